"""Tests of what a pair of models needs of a device's memory."""

import functools
import re
import shutil

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from cascades import drafters
from cascades.models import checkpoints, gemma_library, language, orbax_files
from cascades.sampler import memory

PAIR = ('tiny-verifier', 'tiny-drafter')
OPTIONS = dict(batch_size=64, cache_length=1024, gamma=4)
NINE_B = dict(
  model_type='gemma2',
  hidden_size=3584,
  intermediate_size=14336,
  num_hidden_layers=42,
  num_attention_heads=16,
  num_key_value_heads=8,
  head_dim=256,
  vocab_size=256_000,
  query_pre_attn_scalar=256,
)


@pytest.fixture(scope='module')
def pair():
  return [checkpoints.describe(name) for name in PAIR]


@pytest.fixture(scope='module')
def nine_b():
  model = language.from_config(NINE_B)
  return model, model.param_shapes()


def nbytes(tree) -> int:
  return sum(x.nbytes for x in jax.tree.leaves(tree))


def check(pair, limit, allocated=False, **changes):
  memory.check(*pair, allocated=allocated, limit=limit, **OPTIONS | changes)


def refusal(pair, limit, allocated=False, **changes) -> str:
  call = functools.partial(check, pair, limit, allocated, **changes)
  return conftest.refused('memory', call)


def ways(message: str) -> list[str]:
  return message[:-1].split('; give ')[1].split(' or ')


def option(message: str, name: str) -> int:
  """Returns the value that an error proposes for an option."""
  (way,) = [way for way in ways(message) if way.startswith(name)]
  return int(way.split()[1])


def total(pair, **changes) -> int:
  return memory.estimate(*pair, **OPTIONS | changes).total


# --- The arithmetic ---


def test_returned_logits_are_counted(pair, monkeypatch):
  options = dict(gamma=4, mesh=(1, 1))
  need = memory.estimate(*pair, batch_size=64, cache_length=1024, **options)
  guard = memory.MemoryGuard(*pair, **options)
  monkeypatch.setattr(memory, 'available', lambda *_: need.without_params)
  guard.check(64, 1024)
  assert 'batch_size' in conftest.refused('memory', guard.check, 64, 1024, 9)
  # Of 64 rows, and of the 32 prompts that wait.
  more = total(pair, logits_length=9) - total(pair)
  assert more == 9 * 4 * pair[0][0].vocab_size * (64 + 32)


@pytest.mark.slow
def test_weights_and_caches_are_what_arrays_take():
  loaded = [checkpoints.load_model(name) for name in PAIR]
  need = memory.estimate(*loaded, batch_size=4, cache_length=96, gamma=2)
  assert need.params == sum(nbytes(c.params) for c in loaded)
  caches = [drafters.ModelDrafter(c.model).init(c.params, 96) for c in loaded]
  # Two prompts wait for the four rows.
  assert need.caches == 6 * nbytes(caches)
  vocab = loaded[0].model.vocab_size
  block = [jnp.zeros((4, 3, vocab)) for _ in loaded]
  assert need.logits == nbytes(block) + 4 * nbytes(jnp.zeros((4, vocab)))
  assert need.per_token == 6 * 96 * 9
  parts = need.params, need.caches, need.logits, need.per_token
  assert need.total == sum(parts)
  # Shapes say as much as arrays.
  described = map(checkpoints.describe, PAIR)
  assert need == memory.estimate(
    *described, batch_size=4, cache_length=96, gamma=2
  )


def test_weights_and_caches_are_divided_among_devices(nine_b, pair):
  def need(models, batch_size, mesh=(1, 1)):
    options = OPTIONS | dict(batch_size=batch_size)
    return memory.estimate(*models, **options, mesh=mesh)

  one, model, data = (
    need((nine_b, nine_b), 8, mesh) for mesh in ((1, 1), (1, 4), (4, 1))
  )
  # All but norms, which every device has; along `data` it has everything.
  assert one.params / 4 < model.params < 1.01 * one.params / 4
  assert data.params == one.params
  assert one.caches / 4 < model.caches < 1.01 * one.caches / 4
  assert one.caches == 4 * data.caches
  assert one.logits == model.logits == data.logits
  # Neither batch is of a number of rows that three devices could share.
  assert need(pair, 4).caches == need(pair, 4, (3, 1)).caches
  # A single row has a prompt waiting, as two have.
  assert need(pair, 1).caches * 3 == need(pair, 2).caches * 2


@pytest.mark.slow
@pytest.mark.parametrize('name', ['gemma4-26b-a4b-it', 'gemma3n-e4b-it'])
def test_experts_and_tables_are_divided_too(name):
  described = checkpoints.describe(name)
  one, two = (
    memory.estimate(described, None, **OPTIONS | dict(gamma=0), mesh=(1, n))
    for n in (1, 2)
  )
  assert one.params / 2 < two.params < 1.02 * one.params / 2


# --- What is refused, and what is proposed ---


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({}, {}),
    # The verifier alone.
    (dict(gamma=0), {}),
    # Caches are as long as they are padded to.
    (dict(cache_length=1536), dict(cache_length=1030)),
  ],
  ids=['pair', 'alone', 'padded'],
)
def test_what_just_fits_is_accepted(pair, changes, said):
  pair = (pair[0], None) if 'gamma' in changes else pair
  size = total(pair, **changes)
  check(pair, size, **changes | said)
  refusal(pair, size - 1, **changes | said)


def test_weights_in_memory_are_not_needed_again(pair):
  need = memory.estimate(*pair, **OPTIONS)
  check(pair, need.total - need.params, allocated=True)
  message = refusal(pair, need.total - need.params - 1, allocated=True)
  assert 'caches' in message
  assert 'weights' not in message
  # Without drafts a drafter has only weights.
  alone, both = (
    memory.estimate(*two, **OPTIONS | dict(gamma=0))
    for two in ((pair[0], None), pair)
  )
  assert both.params > alone.params
  assert (both.caches, both.logits) == (alone.caches, alone.logits)


@pytest.mark.parametrize(
  ('name', 'asked', 'fits', 'too_much'),
  [
    ('batch_size', 64, 8, 16),
    ('batch_size', 48, 8, 16),
    # A batch of no power of two may shrink to the next.
    ('batch_size', 48, 32, 64),
    ('cache_length', 1024, 384, 385),
  ],
)
def test_the_most_that_fits_is_proposed(pair, name, asked, fits, too_much):
  limit = total(pair, **{name: fits}) + 1000
  assert option(refusal(pair, limit, **{name: asked}), name) == fits
  check(pair, limit, **{name: fits})
  refusal(pair, limit, **{name: too_much})


@pytest.mark.parametrize('allocated', [False, True])
def test_bfloat16_where_it_would_do(pair, allocated):
  small = list(map(memory._halved, pair))
  # Weights that are there make room when they are replaced.
  held = memory.estimate(*pair, **OPTIONS).params if allocated else 0
  limit = total(small)
  assert 'models in bfloat16' in ways(refusal(pair, limit - held, allocated))
  check(small, limit)
  assert 'bfloat16' not in refusal(pair, limit - held - 1, allocated)
  assert 'bfloat16' not in refusal(small, limit - 1)


def test_as_many_devices_as_would_do(pair):
  limit = total(pair, mesh=(1, 4))
  assert 'mesh 1 x 4 of devices of this size' in ways(refusal(pair, limit))
  # The fewest, by doubling, that would do with less than that.
  message = refusal(pair, limit - 1, mesh=(1, 2))
  more = int(re.search(r'mesh 1 x (\d+) ', message)[1])
  assert more > 4
  check(pair, limit - 1, mesh=(1, more))
  refusal(pair, limit - 1, mesh=(1, more // 2))


def test_what_is_short_is_said_as_it_is(pair, monkeypatch):
  # Where nothing else helps.
  message = refusal(pair, 1000)
  assert message.endswith('so give smaller models.')
  assert '; give' not in message
  # What is short does not read as enough.
  size = total(pair, batch_size=512)
  message = refusal(pair, size - 1, batch_size=512)
  needs, free = map(float, re.findall(r'(\d+\.\d) GB', message))
  assert needs * 1e9 >= size > free * 1e9
  # What is free is the limit; where it is unknown, nothing is refused.
  monkeypatch.setattr(memory, 'available', lambda *_: 1000)
  refusal(pair, None)
  monkeypatch.setattr(memory, 'available', lambda *_: None)
  check(pair, None, batch_size=2**40)


def test_a_pair_of_9b_is_refused_without_being_made(nine_b):
  # 9.2e9 parameters of four bytes, twice; a row of a cache has 42 layers of
  # 2 x 1024 x 8 x 256 floats, and there are 12 for each model.
  both, size = (nine_b, nine_b), dict(batch_size=8, cache_length=1024)
  message = refusal(both, int(80e9), **size)
  assert message == (
    'memory: batch_size 8 with cache_length 1024 needs 91.0 GB (weights 73.9,'
    ' caches 16.9, logits 0.1) where 80.0 GB are free; give batch_size 2 or'
    ' cache_length 256 or models in bfloat16 or mesh 1 x 2 of devices of this'
    ' size.'
  )
  # Loaded or not, there is as little room for the caches.
  params = memory.estimate(*both, **OPTIONS).params
  assert ways(refusal(both, int(80e9) - params, True, **size)) == ways(message)


# --- Names, before they are loaded ---


def test_a_description_has_the_dtypes_that_are_stored(tmp_path):
  folder = shutil.copytree(small.FIXTURES / 'hf_gemma2', tmp_path / 'mixed')
  norm = {'model.norm.weight': np.zeros(32, jnp.bfloat16)}
  # Or else all of them would become what it says.
  small.rewrite(folder, dict(dtype=..., torch_dtype=...), norm)
  model, shapes = checkpoints.describe(folder)
  loaded = checkpoints.load_model(folder)
  assert model == loaded.model
  assert shapes == jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), loaded.params
  )
  dtypes = {str(x.dtype) for x in jax.tree.leaves(shapes)}
  # The widest of them: a cache has one dtype.
  assert dtypes == {'float32'}


def test_a_description_needs_no_network_and_no_tensors(monkeypatch):
  def refuse(*args, **kwargs):
    raise AssertionError('it was fetched')

  monkeypatch.setattr(gemma_library.import_gemma().ckpts, 'load_params', refuse)
  monkeypatch.setattr(orbax_files.epath, 'Path', refuse)
  _, shapes = checkpoints.describe('gemma3-270m-it')
  leaves = jax.tree.leaves(shapes)
  assert {str(x.dtype) for x in leaves} == {'bfloat16'}
  assert 2.6e8 < sum(x.size for x in leaves) < 2.8e8


def test_what_cannot_be_loaded_cannot_be_described(tmp_path):
  cases = ['gemma2_2b_it', tmp_path / 'nowhere', tmp_path]
  for name, files in (('cut', '*.json'), ('bare', '*.safetensors')):
    cases.append(shutil.copytree(small.FIXTURES / 'hf_gemma2', tmp_path / name))
    for file in cases[-1].glob(files):
      file.unlink()
  for case in cases:
    said = {
      conftest.refused('model', call, case)
      for call in (checkpoints.load_model, checkpoints.describe)
    }
    assert len(said) == 1


# --- What is free ---


class Device:
  """A device that says what it holds."""

  def __init__(self, platform, stats):
    self.platform, self._stats = platform, stats

  def memory_stats(self):
    return self._stats


def test_an_accelerator_says_what_is_free(monkeypatch):
  # As does this machine.
  assert memory.available() > 0

  def device(*args):
    monkeypatch.setattr(jax, 'local_devices', lambda: [Device(*args)])
    return memory.available()

  assert device('gpu', {'bytes_limit': 100, 'bytes_in_use': 30}) == 70
  assert device('gpu', None) is None
  assert device('gpu', {'bytes_in_use': 30}) is None


@pytest.fixture
def machine(monkeypatch, tmp_path):
  """Writes files of a machine of 100 kB; nothing else of it is looked at."""

  def write(files):
    for name, text in files.items():
      path = tmp_path / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text)

  monkeypatch.setattr(memory, '_PROC', tmp_path / 'proc')
  monkeypatch.setattr(memory, '_CGROUP', tmp_path / 'cgroup')
  monkeypatch.setattr(jax, 'local_devices', lambda: [Device('cpu', None)])
  return write


@pytest.mark.parametrize(
  ('line', 'files', 'given_back'),
  [
    (
      '0::/a/b\n',
      {
        'memory.max': 'max\n',
        'a/memory.max': '5000\n',
        'a/memory.current': '4500\n',
        'a/memory.stat': 'anon 1\ninactive_file 200\n',
        'a/b/memory.max': 'max\n',
        'a/b/memory.current': '4500\n',
      },
      200,
    ),
    # A container may see its own group at the root, whatever it is called.
    (
      '3:cpu:/x\n2:memory:/x\n',
      {
        'memory/memory.limit_in_bytes': '5000\n',
        'memory/memory.usage_in_bytes': '4300\n',
        'x/memory.limit_in_bytes': '1\n',
      },
      0,
    ),
  ],
  ids=['v2', 'v1'],
)
def test_a_group_may_have_less_than_its_machine(
  machine, line, files, given_back
):
  # Another system does not say; a machine without groups does.
  assert memory.available() is None
  machine({'proc/meminfo': 'MemTotal: 900 kB\nMemAvailable:  100 kB\n'})
  assert memory.available() == 102_400
  files = {f'cgroup/{name}': text for name, text in files.items()}
  machine(files | {'proc/self/cgroup': line})
  assert memory.available() == 700
  # Nobody needs to know how much more than enough there is.
  assert memory.available(600) == 700
  assert memory.available(400) == 700 - given_back
  # There may be nothing left.
  machine({'cgroup/memory.max': '5', 'cgroup/memory.current': '9'})
  machine({'proc/self/cgroup': '0::/\n'})
  assert memory.available() == 0
