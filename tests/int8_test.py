"""Models in eight bits: exact whatever the batch, and on disk."""

import tracemalloc
import warnings

import conftest
import jax
import jax.numpy as jnp
import models_test
import numpy as np
import pytest
import small
import tiers

import cascades
from cascades.contrib.cpu import blocked, int8, stored
from cascades.contrib.cpu.blocked import AxisSplit
from cascades.contrib.cpu.int8 import Int8Weight
from cascades.models import checkpoints, config_json, param_mapping

_TOKENS = np.random.default_rng(0).integers(1, models_test.VOCAB, (8, 24))


def _read(model, params, batch, width, slots=models_test.SLOTS):
  """Logits of the first of some sequences, read `width` tokens at a time."""

  def read(tokens, start, cache):
    positions = start + jnp.arange(width)
    mask = jnp.arange(slots)[None] <= positions[:, None]
    return model(params, tokens, positions, mask, cache)

  run, empty = jax.jit(jax.vmap(read, (0, None, 0))), model.init_cache
  cache = jax.vmap(lambda _: empty(params, slots))(jnp.arange(batch))
  logits = []
  for start in range(0, _TOKENS.shape[1], width):
    tokens = jnp.asarray(_TOKENS[:batch, start : start + width])
    part, cache = run(tokens, start, cache)
    logits.append(np.asarray(part[0]))
  return np.concatenate(logits)


def _read_exactly(model, params):
  """Logits, after comparisons of several batches and blocks."""
  expected = _read(model, params, 2, 1)
  for batch, width, slots in (1, 8, 32), (8, 3, 48):
    got = _read(model, params, batch, width, slots)
    np.testing.assert_array_equal(got, expected, f'{batch} x {width}')
  return expected


@models_test.every_kind
def test_logits_have_the_same_bits_in_any_batch_and_block(kind):
  plain, params = models_test.make(kind)
  model = plain.with_layout('int8')
  expected = _read_exactly(model, model.pack(params))
  # The same model, up to eight bits; random weights magnify what is rounded.
  floats = _read(plain, params, 2, 1)
  assert np.corrcoef(floats.ravel(), expected.ravel())[0, 1] > 0.9


@pytest.mark.parametrize('layout', tiers.first(['blocked', None]))
def test_floats_have_the_same_bits_on_demand(layout, monkeypatch):
  monkeypatch.setattr(blocked, '_SMALL', 0)
  plain, params = models_test.make('gemma3-mqa')
  model = plain.with_layout(layout)
  checkpoint = checkpoints.Checkpoint(model, model.pack(params), None)
  model, params8, _ = checkpoint.with_exact_rows()
  exact = _read_exactly(model, params8)
  near = _read(plain, params, 2, 1)
  np.testing.assert_allclose(exact, near, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
  ('gamma', 'drafter'),
  tiers.first([(4, None), (1, None), (7, None), (4, 'tiny-recurrent')]),
)
def test_strict_decoding_is_the_verifier_alone_in_any_batch(gamma, drafter):
  prompts = ['The number 4302', 'in', 'words: a b', 'of 17']
  names = ('tiny-verifier', drafter) if drafter else small.pair()
  verifier = cascades.load_model(names[0], 'int8')
  drafter = drafter or cascades.load_model(names[1], 'int8')
  alone = small.sampler(verifier, temperature=0.0, gamma=0)
  request = dict(max_new_tokens=24, return_logits=True)
  first = alone.sample(prompts, **request)
  options = dict(temperature=0.0, gamma=gamma, lenience=-1.0)
  strict = small.sampler(verifier, drafter, **options)
  together = strict.sample(prompts, **request)
  for x, y in zip(together, first, strict=True):
    assert x.tokens == y.tokens
    np.testing.assert_array_equal(x.logits, y.logits)
    np.testing.assert_allclose(x.logprobs, y.logprobs, rtol=0, atol=1e-5)
  assert strict.sample(prompts[0], **request).tokens == first[0].tokens
  assert sum(x.counts['accepted'] for x in together) > 0


def test_rounding_deviates_by_half_a_scale_and_keeps_zeros():
  x = np.random.default_rng(0).normal(size=(3, 8, 5)).astype(np.float32)
  x[:, :, 2] = 0
  axes = AxisSplit((2,), (0, 1))
  values, scales = Int8Weight.pack(x, axes)
  assert values.dtype == np.int8
  assert (values.shape, scales.shape) == ((5, 3, 8), (5,))
  again = Int8Weight.unpack((values, scales), axes)
  assert (np.abs(again - x) <= scales / 1.99).all()
  np.testing.assert_array_equal(again[:, :, 2], 0)
  # An array on a device gives the same, and its parts are kept.
  on_device = Int8Weight.pack(jnp.asarray(x), axes)
  jax.tree.map(np.testing.assert_array_equal, on_device, (values, scales))
  rounded = int8.to_gemma((values, scales), axes)
  kept = Int8Weight.pack(rounded, axes)
  jax.tree.map(np.testing.assert_array_equal, kept, (values, scales))
  # A channel that is damaged stays damaged.
  x[0, 0, 0] = np.nan
  for broken in x, jnp.asarray(x):
    scales = np.asarray(Int8Weight.pack(broken, axes)[1])
    assert np.isnan(scales).tolist() == [True, False, False, False, False]


def test_a_product_is_near_that_of_floats_and_shared_under_vmap():
  random = np.random.default_rng(0)
  w = random.normal(size=(2, 48, 24)).astype(np.float32)
  x = random.normal(size=(3, 4, 2, 48)).astype(np.float32)
  axes = AxisSplit((2,), (0, 1))
  weight = Int8Weight(Int8Weight.pack(w, axes), axes)
  assert weight.shape == w.shape
  got = weight.dot(jnp.asarray(x))
  plain = np.tensordot(x, w, 2)
  assert np.abs(got - plain).max() < 0.02 * np.abs(plain).max()
  run = weight.dot
  np.testing.assert_array_equal(jax.vmap(run)(x), got)
  np.testing.assert_array_equal(run(jnp.asarray(x[0, 0])), got[0, 0])
  np.testing.assert_array_equal(run(jnp.zeros((2, 48))), 0)


# Two runs of 80, three of 48, one of 64; no run divides 24.
@pytest.mark.parametrize(
  ('size', 'run'), [(160, 80), (144, 64), (64, 64), (24, 16)]
)
def test_a_single_row_has_the_bits_of_a_batch(size, run, monkeypatch):
  random = np.random.default_rng(0)
  shape, axes = (2048, size), AxisSplit((0,), (1,))
  w, x = random.normal(size=shape), random.normal(size=(5, size))
  parts = Int8Weight.pack(w.astype(np.float32), axes)
  weight = Int8Weight(parts, axes)
  x = jnp.asarray(x, jnp.float32)
  expected = weight.dot(x)
  monkeypatch.setattr(int8, '_LARGE', 0)
  monkeypatch.setattr(int8, '_RUN', run)
  np.testing.assert_array_equal(weight.dot(x[3]), expected[3])

  @jax.jit
  def decode(x, parts):
    weight = Int8Weight(parts, axes)

    def step(_, x):
      return x + weight.dot(x)[:size]

    return jax.lax.fori_loop(0, 5, step, x)

  # A copy in 32 bits, made ahead of the loop, would be four times as large.
  memory = decode.lower(x[3], parts).compile().memory_analysis()
  if int8._run_length(size) or not int8.copies_weights():
    assert memory.temp_size_in_bytes < 2 * w.size


# Layers of the latter have keys and values of other layers.
@pytest.mark.parametrize(
  'source', ['tiny-drafter', small.FIXTURES / 'hf_gemma4_shared']
)
def test_a_model_is_saved_and_loaded_in_eight_bits(tmp_path, source):
  whole = checkpoints.load_model(source, 'int8')
  assert whole.model.layout == 'int8'
  assert small.dtypes(whole.params) == {'int8', 'float32'}
  checkpoints.save_model(tmp_path / 'a', whole)
  plain = checkpoints.load_model(source)
  checkpoints.save_model(tmp_path / 'b', plain, stored='int8')
  for name in 'ab':
    tensors = small.stored(tmp_path / name)
    up = 'model.layers.0.mlp.up_proj.weight'
    assert tensors[up].dtype == np.int8
    assert tensors[f'{up}_scale'].shape == (len(tensors[up]), 1)
    assert tensors['model.norm.weight'].dtype == np.float32
    fields = small.read_json(tmp_path / name / 'config.json')
    assert fields['quantization_config']['format'] == 'int-quantized'
    read = checkpoints.load_model(tmp_path / name)
    assert read.model == whole.model
    small.same(read.params, whole.params)
  floats = checkpoints.load_model(tmp_path / 'a', 'float32').unpack()
  small.same(floats.params, whole.unpack().params)
  small.same(checkpoints.load_folder(tmp_path / 'a').params, floats.params)


def test_scales_are_stored_without_a_matrix_of_them(tmp_path):
  whole = checkpoints.load_model('tiny-drafter', 'int8')
  rounded = stored.to_rounded(whole.model, whole.params)
  checkpoints.save_model(tmp_path, whole)
  config = config_json.read(small.read_json(tmp_path / 'config.json'))
  integers, scales, *_ = param_mapping.tensors(rounded, config)
  tracemalloc.start()
  column = scales.make()
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert column.shape == (integers.struct.shape[0], 1) == scales.struct.shape
  assert peak < 2 * column.nbytes + 10_000 < integers.make().nbytes


def test_eight_bits_of_what_stays_in_floats_are_multiplied(tmp_path):
  checkpoints.save_model(tmp_path, small.load('hf_gemma3n'), stored='int8')
  tensors = small.stored(tmp_path)
  # Other libraries read matrices without scales as floats.
  fields = small.read_json(tmp_path / 'config.json')
  ignored = {f'{x}.weight' for x in fields['quantization_config']['ignore']}
  matrices = {x for x, y in tensors.items() if y.ndim > 1}
  floats = {x for x in matrices if tensors[x].dtype == np.float32}
  assert ignored == {x for x in floats if not x.endswith('_scale')}
  name = 'model.layers.0.per_layer_input_gate.weight'
  values, scales = int8.round_matrix(tensors[name], 1, np)
  changes = {name: values, f'{name}_scale': scales[:, None]}
  small.rewrite(tmp_path, tensors=tensors | changes)
  read = checkpoints.load_model(tmp_path).params['layer_0']['per_layer_mapping']
  gate = (values * scales[:, None]).T
  np.testing.assert_array_equal(read['per_layer_input_gate']['w'], gate)


def test_a_restricted_vocabulary_keeps_the_rows_of_the_table():
  model, params, _ = checkpoints.load_model('tiny-drafter', 'int8')
  tokens = [7, 30, 500]
  few = model.restrict_vocab(params, tokens)
  hidden = jax.random.normal(jax.random.key(0), (model.hidden_size(params),))
  some, every = (model.unembed(p, hidden) for p in (few, params))
  np.testing.assert_array_equal(some[np.array(tokens)], every[np.array(tokens)])
  assert np.isfinite(some).sum() == len(tokens)


@pytest.mark.parametrize('fault', ['none', 'nan', 'negative', 'zero point'])
def test_a_folder_with_bad_scales_is_refused(fault, tmp_path):
  whole = checkpoints.load_model('tiny-drafter', 'int8')
  checkpoints.save_model(tmp_path, whole)
  tensors = small.stored(tmp_path)
  name = 'model.layers.0.self_attn.o_proj.weight'
  scales = tensors[f'{name}_scale'].copy()
  scales[3] = {'nan': np.nan, 'negative': -1}.get(fault, 1)
  if fault == 'none':
    scales = None
  elif fault == 'zero point':
    tensors[f'{name}_zero_point'] = np.zeros((len(scales), 1), np.int8)
  small.rewrite(tmp_path, tensors=tensors | {f'{name}_scale': scales})
  for dtype in None, 'float32':
    message = conftest.refused('model', checkpoints.load_model, tmp_path, dtype)
    assert name in message
    assert message.endswith(('fetch it again.', 'with symmetric weights.'))


@pytest.mark.parametrize(
  ('product', 'problem'),
  [
    (lambda x, y: x @ 'unit', 'not supported by this cpu; give bfloat16 or'),
    (lambda x, y: y.astype(int) @ x.T, 'slower than float32 with JAX'),
  ],
)
def test_a_device_without_such_products_is_named(product, problem, monkeypatch):
  monkeypatch.setattr(int8, '_multiply_integers', product)
  int8.check_device.cache_clear()
  pattern = f'^dtype: int8 is {problem} .*[.]$'
  error = pytest.raises((ValueError, UserWarning), match=pattern)
  with error, warnings.catch_warnings(action='error'):
    checkpoints.load_model('tiny-drafter', 'int8')
  int8.check_device.cache_clear()


def test_jax_takes_the_integers_without_a_copy():
  array = int8.allocate((3, 64))
  array[:] = 1
  assert jax.device_put(array).unsafe_buffer_pointer() == array.ctypes.data
