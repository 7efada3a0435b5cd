"""Tests of gemma as a function of one sequence."""

import functools
import os
import re

import jax
import jax.numpy as jnp
import launching
import numpy as np
import pytest
import small
import tiers

from cascades.contrib.cpu import blocked
from cascades.models import language

WINDOW, SLOTS, VOCAB = 6, 32, 64
# Fixtures: a model of three generations, then those with more features.
KINDS = tuple(
  f'hf_gemma{x}' for x in ('2', '3', '4_experts', '3n', '4_dense', '4_shared')
)
every_kind = pytest.mark.parametrize('kind', tiers.first(KINDS, 3))


def make(kind: str):
  """A model, and parameters none of which is at its default."""
  return small.load(kind)[:2]


@functools.cache
def _jitted(model):
  return jax.jit(model.with_hidden)


def _place(start, count):
  """Positions and mask of `count` tokens written from slot `start`."""
  positions = start + jnp.arange(count)
  return positions, jnp.arange(SLOTS)[None] <= positions[:, None]


def feed(model, params, cache, start, tokens, block):
  """Reads tokens in blocks; the logits after each, and the cache."""
  logits = []
  for i in range(0, len(tokens), block):
    part = jnp.asarray(tokens[i : i + block])
    at = _place(start + i, len(part))
    out, _, cache = _jitted(model)(params, part, *at, cache)
    logits.append(out)
  return np.concatenate(logits), cache


def text(seed: int, length: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(1, VOCAB, length)


@every_kind
@pytest.mark.parametrize(('kept', 'wrong'), [(16, 6), (0, 9)])
def test_rewinding_forgets_wrong_tokens(kind, kept, wrong):
  model, params = make(kind)
  prefix, right = text(1, kept), text(2, 9)
  clean = model.init_cache(params, SLOTS)
  if kept:
    _, clean = feed(model, params, clean, 0, prefix, 1)
  expected, _ = feed(model, params, clean, kept, right, 3)

  _, dirty = feed(model, params, clean, kept, text(3, wrong), 3)
  rewound = model.rewind(dirty, jnp.asarray(kept))
  logits, _ = feed(model, params, rewound, kept, right, 3)
  np.testing.assert_array_equal(logits, expected)

  # Integers are changed, and nothing is copied.
  for name, layer in dirty.items():
    np.testing.assert_array_equal(rewound[name].pop('end_index'), kept)
    assert all(x is layer[part] for part, x in rewound[name].items())

  # Not rewound, the wrong tokens do show.
  logits, _ = feed(model, params, dirty, kept + wrong, right[:3], 3)
  assert not np.allclose(logits, expected[:3])


@every_kind
def test_hidden_states_make_the_logits_packed_or_not(kind, monkeypatch):
  model, params = make(kind)
  # However small they are.
  monkeypatch.setattr(blocked, '_SMALL', 0)
  packed = model.with_layout('blocked')
  theirs = packed.pack(params)
  jax.tree.map(np.testing.assert_array_equal, packed.unpack(theirs), params)
  assert model.unpack(params) is params
  out = theirs['layer_0']['attn']['attn_vec_einsum']['w']
  for matrix in out, theirs['embedder']['input_embedding']:
    assert matrix.parts.ndim > matrix.unbox().ndim
  tokens = jnp.asarray(text(1, 3))
  cache = model.init_cache(params, SLOTS)
  logits, *_ = _jitted(model)(params, tokens, *_place(0, 3), cache)
  table = params['embedder']['input_embedding']
  for one, own in (model, params), (packed, theirs):
    again, hidden, _ = _jitted(one)(own, tokens, *_place(0, 3), cache)
    assert hidden.shape == (3, model.hidden_size(params))
    assert hidden.dtype == model.dtype(params) == jnp.float32
    # Panels are multiplied in another order of additions.
    np.testing.assert_allclose(again, logits, rtol=0, atol=1e-5)
    said = one.unembed(own, hidden[0])
    np.testing.assert_allclose(said, logits[0], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(one.embed(own, tokens[0]), table[tokens[0]])


@every_kind
def test_a_cache_grows(kind):
  model, params = make(kind)
  cache = model.init_cache(params, SLOTS)
  _, cache = feed(model, params, cache, 0, text(1, 9), 3)
  larger = model.resize(params, cache, SLOTS + 8)
  empty = model.init_cache(params, SLOTS + 8)
  assert model.cache_length(larger) == SLOTS + 8

  def same(x, y, zeros):
    assert y.shape == zeros.shape
    np.testing.assert_array_equal(y[tuple(slice(size) for size in x.shape)], x)
    assert np.count_nonzero(y) == np.count_nonzero(x)

  jax.tree.map(same, cache, larger, empty)


def test_random_parameters_are_scaled_by_fan_in():
  config = small.read_json(small.FIXTURES / 'hf_gemma2/config.json')
  config |= dict(hidden_size=96, intermediate_size=160, head_dim=32)
  config |= dict(vocab_size=400, num_hidden_layers=1, layer_types=None)
  model = language.from_config(config | dict(query_pre_attn_scalar=32))
  params = model.init_params(jax.random.key(1))
  shapes = model.param_shapes()
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
  fan_in = {'attn_vec_einsum': 32 * 4, 'linear': 160}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = jax.tree_util.keystr(path)
    known = [n for key, n in fan_in.items() if key in name]
    wanted = (known or [96])[0] ** -0.5 if leaf.ndim > 1 else 0
    np.testing.assert_allclose(leaf.std(), wanted, rtol=0.05, err_msg=name)
    assert leaf.ndim > 1 or not leaf.any(), name


# --- Importing ---


def _run(code: str):
  """Runs code in a separate process; gives what it says."""
  quiet = ('TF_', 'GRPC_', 'ABSL_', 'GLOG_')
  env = {k: v for k, v in os.environ.items() if not k.startswith(quiet)}
  done = launching.python('-c', code, env=env)
  assert done.returncode == 0, done.stderr
  return done


def test_gemma_is_imported_late_without_tensorflow_and_quietly():
  done = _run(
    'import sys\n'
    'from cascades.models import gemma_library, language\n'
    'heavy = {"gemma", "tensorflow", "kauldron"}\n'
    'print("early", sorted(heavy & set(sys.modules)))\n'
    'gm = gemma_library.import_gemma()\n'
    'print("late", gm.__name__, "gemma" in sys.modules)\n'
    'gm.nn.Gemma2_2B, gm.text.Gemma2Tokenizer, gm.ckpts.load_params\n'
    'language.from_gemma("gemma4-31b-it")\n'
    'heavy = {"tensorflow", "kauldron.train"}\n'
    'print("heavy", sorted(heavy & set(sys.modules)))\n'
  )
  said = done.stdout.splitlines()
  assert said == ['early []', 'late gemma.gm True', 'heavy []']
  # No line of absl's, as TensorFlow writes them: a letter, digits, a time.
  logged = re.compile(r'^[IWEF]?\d{4}|^20\d\d-|tensorflow|onednn|absl::', re.I)
  assert not [line for line in done.stderr.splitlines() if logged.search(line)]


@pytest.mark.slow
def test_what_gemma_was_imported_without_is_the_real_one():
  _run(
    'from cascades.models import gemma_library\n'
    'gm = gemma_library.import_gemma()\n'
    'from kauldron import kd, typing\n'
    'import kauldron.train, tensorflow\n'
    'assert kd.train.Trainer is kauldron.train.Trainer\n'
    'assert kd.train.TrainState is kauldron.train.TrainState\n'
    'assert typing.array_types.tf.constant is tensorflow.constant\n'
    'assert issubclass(gm.ckpts.AnchoredPolicyLoader, kd.ckpts.InitTransform)'
  )
