"""Tests of gemma as a function of one sequence."""

import dataclasses
import functools
import os
import re

import jax
import jax.numpy as jnp
import launching
import numpy as np
import pytest
import tiers
from flax import linen as nn

from cascades.contrib.cpu import blocked
from cascades.models import language, patches

WINDOW, LENGTH, SLOTS, VOCAB = 5, 24, 32, 50
KINDS = {
  'gemma2-gqa': dict(
    model_type='gemma2',
    num_attention_heads=4,
    num_key_value_heads=2,
    attn_logit_softcapping=2.0,
    final_logit_softcapping=3.0,
  ),
  'gemma3-mqa': dict(
    model_type='gemma3_text',
    num_attention_heads=3,
    num_key_value_heads=1,
    rope_theta=1000.0,
    rope_local_base_freq=100.0,
    rope_scaling={'rope_type': 'linear', 'factor': 8.0},
  ),
  'gemma3-mha': dict(
    model_type='gemma3_text', num_attention_heads=2, num_key_value_heads=2
  ),
}
# Of gemma's own checkpoints, one for each set of features, made small: all that
# is not named here is as published.
SMALL = dict(num_embed=VOCAB, embed_dim=24, hidden_dim=40, head_dim=8)
SMALL |= dict(num_heads=4, num_kv_heads=2)
FAMILIES = {
  # Soft-caps; gates by columns.
  'gemma2-2b': dict(layers='LG'),
  # Queries scaled by the width; positions that are stretched.
  'gemma3-27b': dict(layers='LG'),
  # Caches and embeddings that layers share, AltUp, LAuReL, sparse gates.
  'gemma3n-e2b': dict(
    layers='LGLG',
    shared=2,
    per_layer_input_dim=4,
    activation_sparsity_pattern=(0.95, 0.0, 0.95, 0.0),
    laurel_rank=3,
  ),
  # Likewise; heads of another size in global layers, wider shared layers.
  'gemma4-e2b': dict(
    num_kv_heads=1,
    layers='LGLG',
    shared=2,
    global_key_size=16,
    per_layer_input_dim=4,
    override_kv_shared_ffw_hidden=80,
  ),
  # Values that are keys.
  'gemma4-31b': dict(layers='LG', num_global_kv_heads=1, global_key_size=16),
  # And a mixture of experts.
  'gemma4-26b-a4b': dict(
    layers='LG',
    num_global_kv_heads=1,
    global_key_size=16,
    num_experts=6,
    expert_dim=12,
    top_k_experts=2,
    moe_dense_hidden_dim=20,
  ),
}
SHARING = [kind for kind, small in FAMILIES.items() if 'shared' in small]
# A model of three generations; the others are those with more features.
_FIRST = 'gemma2-gqa', 'gemma3-mqa', 'gemma4-26b-a4b'
every_kind = pytest.mark.parametrize(
  'kind', tiers.first(dict.fromkeys([*_FIRST, *KINDS, *FAMILIES]), len(_FIRST))
)


def _small(name: str, layers: str, shared: int = 0, **changes):
  """One of gemma's own models with few layers: L for local, G for global."""
  model, _ = language.from_gemma(f'{name}-it')
  config = model.module.config
  kinds = {kind.name[0]: kind for kind in config.attention_types}
  sharing = getattr(config, 'kv_cache_sharing_config', None)
  assert bool(sharing) == bool(shared)
  if shared:
    fraction = shared / len(layers)
    changes['kv_cache_sharing_config'] = dataclasses.replace(
      sharing, frac_shared_layers=fraction
    )
  config = dataclasses.replace(
    config,
    attention_types=tuple(kinds[kind] for kind in layers),
    sliding_window_size=WINDOW,
    **SMALL | changes,
  )
  module = dataclasses.replace(model.module, config=config, dtype=jnp.float32)
  return dataclasses.replace(model, module=module, vocab_size=VOCAB)


def config_of(kind: str) -> dict:
  return dict(
    vocab_size=VOCAB,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    layer_types=['sliding_attention', 'full_attention'],
    head_dim=8,
    query_pre_attn_scalar=8,
    sliding_window=WINDOW,
    **KINDS[kind],
  )


@functools.cache
def make(kind: str):
  """A model and parameters none of which is at its default."""
  if kind in KINDS:
    model = language.from_config(config_of(kind))
  else:
    model = _small(kind, **FAMILIES[kind])
  random = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: jnp.asarray(random.normal(scale=0.3, size=x.shape), jnp.float32),
    model.param_shapes(),
  )
  return model, params


@functools.cache
def _jitted(model):
  return jax.jit(model.with_hidden)


@functools.cache
def _vmapped(model):
  axes = None, 0, 0, 0, 0
  return jax.jit(jax.vmap(jax.vmap(model.with_hidden, axes), axes))


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
  # From 1: gemma's own default mask hides padding, which is 0.
  return np.random.default_rng(seed).integers(1, VOCAB, length)


def gemmas_pass(model, params, tokens, **options):
  """Returns the logits of gemma's module for a text, without a cache.

  Of a mixture, its router is given what transformers gives it; that this is
  right, checkpoints_test.py shows.
  """
  unnormed = []

  def mended(call, args, kwargs, context):
    if context.module.name == 'pre_ffw_norm':
      unnormed[:] = args
    if context.module.name == 'router_norm':
      args = tuple(unnormed)
    return call(*args, **kwargs)

  with nn.intercept_methods(mended):
    return model.module.apply(
      {'params': params}, jnp.asarray(tokens)[None], **options
    )


@every_kind
@pytest.mark.parametrize('block', tiers.first([3, 1, LENGTH]))
def test_cached_equals_gemmas_own_uncached_forward(kind, block):
  model, params = make(kind)
  tokens = text(1, LENGTH)
  assert len(tokens) > 4 * WINDOW
  own = gemmas_pass(model, params, tokens).logits[0]
  cache = model.init_cache(params, SLOTS)
  assert model.cache_length(cache) == SLOTS
  # Layers that share have none of their own.
  shared = FAMILIES.get(kind, {}).get('shared', 0)
  layers = model.module.config.num_layers - shared
  assert [*cache] == [f'layer_{i}' for i in range(layers)]
  logits, cache = feed(model, params, cache, 0, tokens, block)
  assert logits.shape == (LENGTH, model.vocab_size)
  np.testing.assert_allclose(logits, own, rtol=0, atol=1e-5)


@every_kind
@pytest.mark.parametrize(('kept', 'wrong'), [(7, 6), (16, 6), (0, 9)])
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
def test_rows_of_different_lengths_equal_single_ones(kind):
  model, params = make(kind)
  lengths = [2, 8, 15, 20]
  blocks = [text(10 + n, 3) for n in lengths]
  caches, single = [], []
  for n, block in zip(lengths, blocks, strict=True):
    cache = model.init_cache(params, SLOTS)
    # One row has been rewound, as decoding does all the time.
    read = text(n, n + 3 * (n == 8))
    _, cache = feed(model, params, cache, 0, read, 1)
    cache = model.rewind(cache, jnp.asarray(n))
    caches.append(cache)
    single.append(feed(model, params, cache, n, block, 3))

  def stack(rows):
    return jax.tree.map(
      lambda *xs: jnp.stack(xs).reshape(2, 2, *np.shape(xs[0])), *rows
    )

  places = [_place(n, 3) for n in lengths]
  given = stack(
    list(zip(blocks, *zip(*places, strict=True), caches, strict=True))
  )
  logits, _, together = _vmapped(model)(params, *given)
  expected, alone = stack(single)
  np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
  # What they leave behind in the cache is the same too.
  close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
  jax.tree.map(close, together, alone)


def test_experts_are_read_with_one_set_of_parameters():
  with pytest.raises(ValueError, match='params: several sets at once are not'):
    jax.vmap(patches.vmap_as_batch(jnp.add))(jnp.ones(3), jnp.ones(3))


@every_kind
def test_hidden_states_make_the_logits_packed_or_not(kind, monkeypatch):
  # However small they are.
  monkeypatch.setattr(blocked, '_SMALL', 0)
  model, params = make(kind)
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
def test_slots_of_a_cache_grow_and_move(kind):
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
  moved = model.move(cache, jnp.int32(2), jnp.array([5, 7]))
  for name, layer in cache.items():
    new = moved[name].pop('end_index')
    np.testing.assert_array_equal(new, layer['end_index'])
    for part, new in moved[name].items():
      old = layer[part]
      assert not np.array_equal(new, old)
      np.testing.assert_array_equal(new[:, [2, 3]], old[:, [5, 7]])
      rest = np.delete(np.arange(SLOTS), [2, 3])
      np.testing.assert_array_equal(new[:, rest], old[:, rest])


@pytest.mark.parametrize('kind', ['gemma2-gqa', 'gemma3-mha'])
def test_random_parameters_are_scaled_by_fan_in(kind):
  big = dict(hidden_size=96, intermediate_size=160, head_dim=32)
  big |= dict(query_pre_attn_scalar=32, vocab_size=400)
  big |= dict(num_hidden_layers=1, layer_types=None)
  model = language.from_config(config_of(kind) | big)
  params = model.init_params(jax.random.key(1))
  shapes = model.param_shapes()
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
  heads = KINDS[kind]['num_attention_heads']
  fan_in = {'attn_vec_einsum': 32 * heads, 'linear': 160}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = jax.tree_util.keystr(path)
    known = [n for key, n in fan_in.items() if key in name]
    wanted = (known or [96])[0] ** -0.5 if leaf.ndim > 1 else 0
    np.testing.assert_allclose(leaf.std(), wanted, rtol=0.05, err_msg=name)
    assert leaf.ndim > 1 or not leaf.any(), name


def test_models_of_equal_configuration_are_one_static_argument():
  kinds = 'gemma3-mqa', 'gemma3-mqa', 'gemma3-mha'
  models = [language.from_config(config_of(kind)) for kind in kinds]
  assert len(set(models)) == 2
  assert models[0] == models[1]


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
