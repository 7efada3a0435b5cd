"""Models that are stored in float16: they are computed in float32.

Gemma's activations pass the largest number of float16, which float32 holds
every number of.
"""

import json
import shutil

import eagle_test
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared_table_test
import small
import tiers
from absl import flags
from absl.testing import flagsaver
from safetensors.numpy import load_file, save_file
from small import FIXTURES, dtypes, same

from cascades import drafters, load_model
from cascades.drafters import assistant, eagle3, recurrent
from cascades.models import checkpoints, tensor_files
from experiments import cli

TINY = checkpoints.ASSETS / 'tiny-drafter'


def rewrite(folder, dtype):
  """Stores a folder's floats in a dtype, as in config.json."""
  for file in folder.glob('*.safetensors'):
    tensors = load_file(file)
    for name, x in tensors.items():
      if x.dtype.kind not in 'iub':
        # Every number is one of float16's, whatever it is kept in.
        tensors[name] = x.astype(np.float16).astype(dtype)
    save_file(tensors, file, metadata={'format': 'pt'})
  config = folder / 'config.json'
  if config.exists():
    fields = small.read_json(config)
    for of in fields, fields.get('text_config') or {}:
      of |= dict.fromkeys(('dtype', 'torch_dtype'), np.dtype(dtype).name)
    config.write_text(json.dumps(fields))
  return folder


def both(source, root):
  """Copies of a folder in float32 and float16, of the same numbers."""
  return [
    rewrite(shutil.copytree(source, root / name), np.dtype(name))
    for name in ('float32', 'float16')
  ]


def check_same(found, want):
  """Checks parameters that were loaded, and float32 if they are numbers."""
  same(found, want)
  # Gemma asks for some leaves that nothing is stored of.
  stored = [x for x in jax.tree.leaves(found) if x.any()]
  assert dtypes(stored) <= {'float32', 'int32'}
  assert 'float16' not in dtypes(found)


def _eagle(folder):
  eagle_test.write_head(folder, 24, 64, [3, 4, 9], hidden_layers=(1, 2, 3))
  return folder


_ASSISTANT = FIXTURES / 'hf_gemma4_shared_assistant'
_HEAD = checkpoints.ASSETS / 'tiny-recurrent'


@pytest.mark.parametrize(
  ('make', 'load', 'part'),
  tiers.first(
    [
      (lambda _: FIXTURES / 'hf_gemma2', load_model, 'params'),
      (lambda _: _HEAD, recurrent.RecurrentHead.load, 'head'),
      (lambda _: _ASSISTANT, assistant.Assistant.load, 'params'),
      (_eagle, eagle3.EagleHead.load, 'params'),
      (lambda x: shared_table_test.save(x, 'float32'), load_model, 'params'),
      (lambda _: FIXTURES / 'hf_gemma4_shared', load_model, 'params'),
    ],
    4,
  ),
)
def test_what_is_stored_in_float16_is_read_as_float32(
  tmp_path, make, load, part
):
  whole, half = both(make(tmp_path / 'made'), tmp_path)
  want = load(whole)
  found = load(half)
  check_same(getattr(found, part), getattr(want, part))
  if load is load_model:
    assert found.model == want.model
    chosen = load_model(half, 'bfloat16')
    assert chosen.model.dtype(chosen.params) == jnp.bfloat16


def test_float16_that_is_asked_for_is_refused(tmp_path):
  names = TINY, _ASSISTANT, _eagle(tmp_path / 'head'), 'tiny-recurrent'
  for call in (
    lambda: load_model(TINY, 'float16'),
    lambda: small.sampler('tiny-verifier', gamma=0, dtype='float16'),
    *(lambda x=name: drafters.load(str(x), 'float16') for name in names),
  ):
    with pytest.raises(ValueError, match=r"^dtype: must be .*'float16'"):
      call()
  cli.define_dtype()
  flags.FLAGS.mark_as_parsed()
  with (
    flagsaver.flagsaver(),
    pytest.raises(flags.IllegalFlagValueError, match='float16'),
  ):
    flags.FLAGS['dtype'].parse('float16')
  for name in ('bfloat16', 'float32'):
    head = drafters.load('tiny-recurrent', name).head
    assert dtypes(head) == {name}


def test_parameters_in_float16_of_your_own_are_refused():
  one = load_model(TINY)
  half = jax.tree.map(lambda x: x.astype(np.float16), one.params)
  mine = one._replace(params=half)
  said = r'^params: must not be float16.*float32'
  with pytest.raises(ValueError, match=said):
    small.sampler(mine, gamma=0).sample('a', max_new_tokens=2)
  positions = jnp.arange(2)
  with pytest.raises(ValueError, match=r'^params: must not be float16'):
    one.model.with_hidden(half, positions, positions, jnp.ones((2, 2), bool))


def test_what_is_not_float16_stays_as_it_is_stored():
  assert tensor_files.choose_dtype([jnp.bfloat16]) is None
  # Keys would be float32 in a cache of bfloat16.
  for more in np.float32, np.float16:
    assert tensor_files.choose_dtype([jnp.bfloat16, more]) == 'float32'
