"""A full disk: one sentence that names the file, and nothing half written.

Files that grow beyond a limit of the process fail as on a full disk.
"""

import contextlib
import errno
import math
import os
import resource

import jax
import jax.numpy as jnp
import launching
import numpy as np
import optax
import pytest
import small
from ml_collections import ConfigDict

from cascades import atomic
from cascades.drafters import recurrent
from cascades.models import checkpoints
from experiments import cli
from experiments.training import (
  distillation_data,
  reduced_folders,
  terms,
  texts,
  training_loop,
)


@contextlib.contextmanager
def file_limit(size):
  """Has no file of this process grow beyond so many bytes.

  JAX would cut off what it writes to the compile cache of all tests.
  """
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  seconds = jax.config.jax_persistent_cache_min_compile_time_secs
  jax.config.update('jax_persistent_cache_min_compile_time_secs', math.inf)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', seconds)


def contents(folder):
  """All files and folders, with what is in them."""
  return {
    str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
    for path in sorted(folder.rglob('*'))
  }


def refuse(write, file, size=2000):
  """Checks that what cannot be written names a file, in one sentence."""
  with file_limit(size), pytest.raises(OSError, match='too large') as error:
    write()
  assert error.value.filename == str(file)
  assert error.value.errno == errno.EFBIG
  assert cli._sentence(error.value) == f'{file}: File too large.'


def model():
  return checkpoints.load_folder(small.FIXTURES / 'hf_gemma2')


def save_reduced(folder):
  reduced_folders.save(folder, model(), np.arange(4, 40), verifier='any')


def save_head(folder):
  recurrent.save(folder, recurrent.init_head(jax.random.key(0), 32), model())


# What is written at first, how much of it there is room for, and how.
SAVES = [
  ('model.safetensors', 2000, lambda x: checkpoints.save_model(x, model())),
  (
    'model-00001-of-00007.safetensors',
    12_000,
    lambda folder: checkpoints.save_model(folder, model(), shard_gb=2e-5),
  ),
  ('model.safetensors', 2000, save_reduced),
  ('head.safetensors', 2000, save_head),
]


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'size', 'save'), SAVES)
def test_what_cannot_be_saved_leaves_nothing(tmp_path, name, size, save):
  folder = tmp_path / 'made/here'
  refuse(lambda: save(folder), folder / name, size)
  assert not list(tmp_path.iterdir())
  save(folder)
  # Others may read all of it.
  for file in folder.iterdir():
    assert file.stat().st_mode & 0o444 == 0o444
  (folder / 'mine.txt').write_text('mine')
  before = contents(tmp_path)
  refuse(lambda: save(folder), folder / name, size)
  assert contents(tmp_path) == before
  save(folder)
  assert not list(tmp_path.rglob('.*'))


def _interrupt(file):
  with atomic.replace_file(file) as part:
    part.write_text('half')
    raise KeyboardInterrupt


def test_a_file_stays_as_it_was_until_another_is_whole(tmp_path):
  file = tmp_path / 'new/a.txt'
  refuse(lambda: atomic.write_text(file, 'x' * 9999), file)
  assert not list(tmp_path.iterdir())
  atomic.write_text(file, 'first')
  refuse(lambda: atomic.write_text(file, 'x' * 9999), file)
  with pytest.raises(KeyboardInterrupt):
    _interrupt(file)
  assert contents(tmp_path) == {'new': None, 'new/a.txt': b'first'}


def test_a_disk_that_is_full_at_the_end_is_told_too(tmp_path, monkeypatch):

  def full(handle):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', full)
  with pytest.raises(OSError, match='No space left') as error:
    atomic.write_text(tmp_path / 'a', 'b')
  assert cli._sentence(error.value) == (
    f'{tmp_path / "a"}: No space left on device. Free space, then run it again.'
  )
  with (
    pytest.raises(OSError, match='No space left') as error,
    atomic.replace_files(tmp_path / 'c') as part,
  ):
    (part / 'd').write_text('e')
  assert error.value.filename == str(tmp_path / 'c/d')
  assert not list(tmp_path.iterdir())


def test_errors_of_libraries_become_the_systems(tmp_path):
  for said in (
    'I/O error: No space left on device (os error 28)',
    "RESOURCE_EXHAUSTED: No space left on device [os_error_code='28']",
  ):
    with (
      pytest.raises(OSError, match='No space left') as error,
      atomic.name_path_in_errors(tmp_path / 'a'),
    ):
      raise ValueError(said)
    assert error.value.errno == errno.ENOSPC
    assert error.value.filename == str(tmp_path / 'a')
  with (
    pytest.raises(ValueError, match='another'),
    atomic.name_path_in_errors(tmp_path),
  ):
    raise ValueError('another')
  # What names a file already keeps its name.
  with (
    pytest.raises(FileNotFoundError) as error,
    atomic.name_path_in_errors(tmp_path / 'a'),
  ):
    (tmp_path / 'b').read_text()
  assert error.value.filename == str(tmp_path / 'b')


_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
from experiments import cli, export
cli.run(export.main)
"""


@pytest.mark.slow
def test_the_launcher_says_so_in_one_sentence(tmp_path):
  folder = tmp_path / 'out'
  flags = '--model=tiny-drafter', f'--folder={folder}', '--nocompilation_cache'
  done = launching.python('-c', _LIMITED, *flags)
  assert done.returncode == 2, done.stderr
  last = done.stderr.splitlines()[-1]
  assert last == f'error: {folder / "model.safetensors"}: File too large.'
  assert 'Traceback' not in done.stderr
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_checkpoint_of_a_training_that_is_not_whole_is_removed(
  tmp_path, monkeypatch, capfd
):
  monkeypatch.setattr(training_loop, '_deciding', lambda config, name: {'a': 1})
  config = ConfigDict(dict(log_every=1, checkpoint_every=1))
  rows = np.random.default_rng(0).normal(size=(100, 1000))
  start = jnp.asarray(rows, jnp.float32)

  def loss(x):
    return x.sum(), {}

  def run():
    training = training_loop.TrainingRun(
      config=config, name='one', steps=2, workdir=tmp_path
    )
    return training_loop.fit(
      training, start, optax.sgd(1.0), loss_fn=loss, batch=lambda step: ()
    )

  folder = tmp_path / 'checkpoints/one'
  refuse(run, folder, 100_000)
  assert not list(folder.iterdir())
  assert 'Traceback' not in capfd.readouterr().err
  np.testing.assert_allclose(run(), start - 2, atol=1e-5)


def test_what_a_training_keeps_is_named(tmp_path, monkeypatch):
  monkeypatch.setattr(
    terms.package_index, 'MODELS', dict(terms.package_index.MODELS)
  )
  (name,) = terms.package_index.MODELS
  refuse(lambda: terms.add_licence(tmp_path, name), tmp_path / 'NOTICE', 10)
  assert not list(tmp_path.iterdir())
  file = tmp_path / 'states.npy'
  refuse(lambda: distillation_data._reserve(file, np.float32, (100, 100)), file)
  assert not file.exists()
  answers = tmp_path / 'answers.jsonl'
  refuse(
    lambda: texts.resume_answers(
      answers, ['a'], lambda some, first: ['x' * 9999]
    ),
    answers,
  )
