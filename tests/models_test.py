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

from cascades import decoding
from cascades.contrib.cpu import blocked
from cascades.models import language

WINDOW, SLOTS, VOCAB = 6, 32, 64
# Fixtures: a model of three generations, then those with more features.
_SUFFIXES = '2 3 4_experts 3n 4_dense 4_shared'.split()
KINDS = tuple(f'hf_gemma{suffix}' for suffix in _SUFFIXES)
every_kind = pytest.mark.parametrize('kind', tiers.first(KINDS, 3))


def make(kind: str):
  """A model, and parameters none of which is at its default."""
  return small.load(kind)[:2]


@functools.cache
def _jitted(model):
  return jax.jit(model.with_hidden)


def _place(count):
  """Positions and mask of the first `count` tokens of a cache."""
  positions = jnp.arange(count)
  return positions, jnp.arange(SLOTS)[None] <= positions[:, None]


def text(seed: int, length: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(1, VOCAB, length)


@every_kind
def test_a_tree_is_read_as_each_of_its_drafts(kind):
  # Beyond the sliding window, with a draft that was rejected before.
  model, params = make(kind)
  paths, gamma = 3, 3
  prefix = text(1, WINDOW + 3)
  drafts = text(2, paths * gamma).reshape(paths, gamma)
  drafts[1, 0] = drafts[0, 0]
  slots = SLOTS + paths * (gamma + 1)
  cache = model.init_cache(params, slots)
  at = jnp.int32(len(prefix) - 1)
  read = jax.jit(decoding.read_hidden, static_argnums=0)
  *_, cache = read(model, params, cache, jnp.array(prefix), jnp.int32(0))
  wrong = jnp.array(text(3, 4))
  *_, cache = read(model, params, cache, wrong, at + 1)
  rewound = model.rewind(cache, at)
  # Integers are changed, and nothing is copied.
  for name, layer in cache.items():
    assert all(x is rewound[name][k] for k, x in layer.items() if x.ndim > 1)
  cache, logits = rewound, jnp.zeros((gamma + 1, paths, 1))
  draft = decoding.full_length_draft(jnp.array(drafts), logits, 0)
  tree = decoding.build_tree(jnp.int32(prefix[-1]), draft, paths * gamma)
  logits, _, cache = read(model, params, cache, tree.tokens, at, tree.tree_mask)

  def alone(tokens):
    place = small.causal(len(tokens))
    return _jitted(model)(params, jnp.array(tokens), *place)[0]

  for j in range(paths):
    want = alone([*prefix, *drafts[j]])[len(prefix) - 1 :]
    np.testing.assert_allclose(logits[tree.node_indices[j]], want, atol=2e-5)
  # The second draft stays, without its last token; another follows it.
  kept = model.move(cache, at, at + tree.node_indices[1])
  kept = model.rewind(kept, at + gamma)
  then, *_ = read(model, params, kept, jnp.array([5]), at + gamma)
  want = alone([*prefix, *drafts[1, : gamma - 1], 5])[-1]
  np.testing.assert_allclose(then[0], want, atol=2e-5)


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
  logits, *_ = _jitted(model)(params, tokens, *_place(3), cache)
  table = params['embedder']['input_embedding']
  for one, own in (model, params), (packed, theirs):
    again, hidden, _ = _jitted(one)(own, tokens, *_place(3), cache)
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
  tokens = jnp.asarray(text(1, 9))
  *_, cache = _jitted(model)(params, tokens, *_place(9), cache)
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
