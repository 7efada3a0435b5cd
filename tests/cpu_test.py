"""The engine of CPUs: blocks, eight bits, and rows that are exact."""

import functools
import tracemalloc

import conftest
import jax
import jax.numpy as jnp
import models_test
import numpy as np
import pytest
import small
import tiers

import cascades
from cascades.contrib.cpu import blocked, int8, row_exact, stored
from cascades.contrib.cpu.blocked import BlockedWeight, PackedParam
from cascades.contrib.cpu.int8 import Int8Weight
from cascades.models import checkpoints, config_json, param_mapping
from cascades.models.sharding import AxisSplit

_TABLE, _COLUMNS = AxisSplit((0,), (1,)), AxisSplit((1,), (0,))
# Axes of weights, and their shapes.
_ORDERS = {
  **{'table': (_TABLE, (1088, 48)), 'small table': (_TABLE, (50, 24))},
  'large table': (_TABLE, (64 * 1024 + 640, 8)),
  'keys and values': (AxisSplit((0, 1, 3), (2,)), (2, 2, 64, 192)),
  'queries': (AxisSplit((0, 2), (1,)), (4, 96, 128)),
  'of heads': (AxisSplit((2,), (0, 1)), (4, 64, 192)),
  'gate by rows': (AxisSplit((0, 1), (2,)), (2, 320, 80)),
  # 48 columns a block, and a number of columns that has no such divisor.
  **{'by 48': (_COLUMNS, (400, 336)), 'odd': (_COLUMNS, (400, 90))},
  # 17 blocks of 64 columns, one of 63; and 128, one, and one of 3.
  'prime table': (_TABLE, (1151, 40)),
  'large prime table': (_TABLE, (64 * 129 + 3, 8)),
  'small': (AxisSplit((2,), (0, 1)), (2, 8, 24)),
}


def _make(name, *lead, dtype=np.float32):
  """Axes, a weight, rows and their product in float64."""
  axes, shape = _ORDERS[name]
  sizes = [shape[axis] for axis in axes.summed]
  w, x = (
    jnp.asarray(np.random.default_rng(i).normal(size=size), dtype)
    for i, size in enumerate((shape, (*lead, *sizes)))
  )
  summed = tuple(range(len(lead), x.ndim)), axes.summed
  return axes, w, x, np.tensordot(*(np.float64(y) for y in (x, w)), summed)


def _dot(x, packed, axes):
  return BlockedWeight(packed, axes).dot(x)


@pytest.mark.parametrize('name', _ORDERS)
def test_a_packed_weight_is_unpacked_and_multiplied(name):
  axes, w, *_ = _make(name)
  for array in w, np.asarray(w):
    packed = BlockedWeight.pack(array, axes)
    again = BlockedWeight.unpack(packed, axes)
    assert isinstance(again, np.ndarray) == isinstance(array, np.ndarray)
    np.testing.assert_array_equal(again, w)
  assert BlockedWeight(packed, axes).shape == w.shape
  widths = [x.shape[-1] for x in jax.tree.leaves(packed)]
  if 'prime' in name:
    assert set(widths[:-1]) == {64}
    assert widths[-1] == len(w) % 64
  else:
    assert name == 'odd' or 'small' in name or set(widths) <= {48, 64}
  parts = {'large table': 9, 'prime table': 2, 'large prime table': 3}
  assert isinstance(packed, tuple) == (name in parts)
  assert len(widths) == parts.get(name, 1)
  packed = BlockedWeight.pack(w, axes)
  for count in 1, 5, 200:
    _, _, x, want = _make(name, 1, count)
    got = jax.jit(_dot, static_argnums=2)(x, packed, axes)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-4)
  # Rows of all sequences together: the weights are read once.
  _, _, x, want = _make(name, 3, 2, 4)
  run = jax.vmap(lambda x, packed: _dot(x, packed, axes), (0, None))
  run = jax.vmap(run, (0, None))
  np.testing.assert_allclose(jax.jit(run)(x, packed), want, rtol=0, atol=2e-4)
  text = str(jax.make_jaxpr(run)(x, packed))
  assert text.count('dot_general[') == parts.get(name, 1)
  if 'table' in name:
    last, weight = jnp.int32(len(w) - 1), BlockedWeight(packed, axes)
    tokens = jnp.array([[0, 1, last], [last - 1, 17, last // 2]])
    for at in tokens, (tokens,), last:
      np.testing.assert_array_equal(weight[at], w[at])
    np.testing.assert_array_equal(jnp.asarray(weight), w)


def test_rows_and_weights_of_other_kinds():
  # On CPUs one row is multiplied otherwise, and takes longer than two.
  for name, dtype, is_padded in (
    ('of heads', np.float32, False),
    ('of heads', jnp.bfloat16, True),
    ('odd', np.float32, False),
    ('by 48', np.float32, True),
  ):
    axes, w, x, want = _make(name, 1, dtype=dtype)
    packed = BlockedWeight.pack(w, axes)
    text = str(jax.make_jaxpr(_dot, static_argnums=2)(x, packed, axes))
    assert ('pad[' in text) == is_padded
    got = _dot(x, packed, axes)
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(np.float32), want, 1e-2, 1e-2)
  # Each call may have a weight of its own.
  axes, w, x, want = _make('queries', 3, 2)
  packed = jnp.stack([BlockedWeight.pack(w * i, axes) for i in range(3)])
  got = jax.vmap(lambda x, packed: _dot(x, packed, axes))(x, packed)
  want *= np.arange(3).reshape(3, 1, 1, 1)
  np.testing.assert_allclose(got, want, rtol=0, atol=5e-4)


_KEYS = np.random.default_rng(1).normal(size=(64, 96, 24)).astype(np.float32)


def _attend(x, keys):
  """Queries of two heads that attend to the keys of a sequence."""
  x, keys = x.reshape(1, len(x), 2, -1), keys[None, :, None]
  logits = jnp.einsum('BTNH,BSNH->BTNS', x, keys)
  return jnp.einsum('BTNS,BSNH->BTNH', jax.nn.softmax(logits), keys)


def _rms(x):
  return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


_FUNCTIONS = {
  'sum': lambda x, keys: jnp.sum(x, -1),
  'mean of squares': lambda x, keys: jnp.mean(jnp.square(x), -1),
  'norm': lambda x, keys: _rms(x),
  'softmax': lambda x, keys: jax.nn.softmax(3 * x),
  'quotient': lambda x, keys: x / (1 + jnp.sum(jnp.abs(x), -1, keepdims=True)),
  'gelu': lambda x, keys: jax.nn.gelu(x),
  'sigmoid': lambda x, keys: jax.nn.sigmoid(x),
  'tanh': lambda x, keys: 30 * jnp.tanh(x / 30),
  'product and sum': lambda x, keys: x * x[:, ::-1] + x,
  'attention': _attend,
}


@pytest.mark.parametrize('name', _FUNCTIONS)
def test_a_row_has_the_same_bits_in_any_batch_and_block(name):
  x = np.random.default_rng(0).normal(size=(64, 40, 48)).astype(np.float32)
  run = jax.jit(jax.vmap(row_exact.row_exact(_FUNCTIONS[name])))

  def rows(batch, width):
    """Results of the first sequence's rows, read `width` at a time."""
    slices = (x[:batch, i : i + width] for i in range(0, x.shape[1], width))
    parts = [run(part, _KEYS[:batch])[0] for part in slices]
    return np.concatenate([np.reshape(part, (width, -1)) for part in parts])

  expected = rows(2, 1)
  for batch, width in (1, 1), (1, 5), (2, 8), (8, 1), (8, 5), (1, 40), (64, 2):
    np.testing.assert_array_equal(rows(batch, width), expected, (batch, width))
  plain = np.reshape(_FUNCTIONS[name](x[0], _KEYS[0]), expected.shape)
  np.testing.assert_allclose(expected, plain, rtol=1e-4, atol=1e-5)


def test_exact_rows_keep_dtypes_trees_and_integers():
  cap = row_exact.row_exact(lambda x: jnp.tanh(x / 30) * 30)
  assert cap(jnp.asarray(_KEYS[0], jnp.bfloat16)).dtype == jnp.bfloat16

  def function(tree, count):
    return {'sum': tree['x'].sum(-1) + count, 'count': (count + 1, None)}

  out = jax.jit(row_exact.row_exact(function))({'x': jnp.ones((3, 5))}, 2)
  np.testing.assert_array_equal(out['sum'], [7, 7, 7])
  assert out['count'] == (3, None)


_TOKENS = np.random.default_rng(0).integers(1, models_test.VOCAB, (8, 24))


def _read(model, params, batch, width, slots=models_test.SLOTS):
  """Logits of the first of some sequences, read `width` tokens at a time."""

  def read(tokens, start, cache):
    positions = start + jnp.arange(width)
    mask = jnp.arange(slots)[None] <= positions[:, None]
    logits, _, cache = model.with_hidden(params, tokens, positions, mask, cache)
    return logits, cache

  run, empty = jax.jit(jax.vmap(read, (0, None, 0))), model.init_cache
  cache = jax.vmap(lambda _: empty(params, slots))(jnp.arange(batch))
  logits = []
  for start in range(0, _TOKENS.shape[1], width):
    tokens = jnp.asarray(_TOKENS[:batch, start : start + width])
    part, cache = run(tokens, start, cache)
    logits.append(np.asarray(part[0]))
  return np.concatenate(logits)


@pytest.mark.parametrize(
  ('kind', 'layout'),
  [
    *(
      pytest.param(*case.values, 'int8', marks=case.marks)
      for case in models_test.every_kind.args[1]
    ),
    *tiers.first([('hf_gemma3', 'blocked'), ('hf_gemma3', None)]),
  ],
)
def test_logits_are_bit_exact_in_any_batch_and_block(kind, layout, monkeypatch):
  plain, params = models_test.make(kind)
  monkeypatch.setattr(blocked, '_SMALL', 0)
  model = plain.with_layout(layout)
  checkpoint = checkpoints.Checkpoint(model, model.pack(params), None)
  model, packed, _ = checkpoint.with_exact_rows()
  assert model.with_layout(None).is_row_exact
  exact = _read(model, packed, 2, 1)
  for batch, width, slots in (1, 8, 32), (8, 3, 48):
    got = _read(model, packed, batch, width, slots)
    np.testing.assert_array_equal(got, exact, f'{batch} x {width}')
  floats = _read(plain, params, 2, 1)
  if layout == 'int8':
    # The same model, up to eight bits; random weights magnify what is rounded.
    assert np.corrcoef(floats.ravel(), exact.ravel())[0, 1] > 0.9
  else:
    np.testing.assert_allclose(exact, floats, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize('drafter', tiers.first([None, 'tiny-recurrent']))
def test_strict_decoding_has_the_logits_of_the_verifier_alone(drafter):
  # In any batch: `batch_independence_test`.
  prompts = ['The number 4302', 'in', 'words: a b', 'of 17']
  names = ('tiny-verifier', drafter) if drafter else small.pair()
  verifier = cascades.load_model(names[0], 'int8')
  drafter = drafter or cascades.load_model(names[1], 'int8')
  request = dict(max_new_tokens=24, return_logits=True)
  make = functools.partial(small.sampler, verifier, temperature=0.0)
  alone, strict = (
    make(x, **options).sample(prompts, **request)
    for x, options in (
      (None, dict(gamma=0)),
      (drafter, dict(method='token_v2', gate='processed', gamma=3)),
    )
  )
  for x, y in zip(strict, alone, strict=True):
    assert x.tokens == y.tokens
    np.testing.assert_array_equal(x.logits, y.logits)
    np.testing.assert_allclose(x.logprobs, y.logprobs, rtol=0, atol=1e-5)
  assert sum(x.counts['accepted'] for x in strict) > 0


def test_rounding_deviates_by_half_a_scale_and_keeps_zeros():
  x = np.random.default_rng(0).normal(size=(3, 8, 5)).astype(np.float32)
  x[:, :, 2] = 0
  axes = AxisSplit((2,), (0, 1))
  values, scales = parts = Int8Weight.pack(x, axes)
  assert values.dtype == np.int8
  assert (values.shape, scales.shape) == ((5, 3, 8), (5,))
  again = Int8Weight.unpack(parts, axes)
  assert (np.abs(again - x) <= scales / 1.99).all()
  np.testing.assert_array_equal(again[:, :, 2], 0)
  # An array on a device gives the same, and its parts are kept.
  for source in (
    jnp.asarray(x),
    int8.to_gemma(PackedParam(parts, axes, Int8Weight)),
  ):
    packed = Int8Weight.pack(source, axes)
    jax.tree.map(np.testing.assert_array_equal, packed, parts)
  # A channel that is damaged stays damaged.
  x[0, 0, 0] = np.nan
  for broken in x, jnp.asarray(x):
    scales = np.asarray(Int8Weight.pack(broken, axes)[1])
    assert np.isnan(scales).tolist() == [True, False, False, False, False]
  # JAX takes the integers without a copy.
  array = int8.allocate((3, 64))
  array[:] = 1
  assert jax.device_put(array).unsafe_buffer_pointer() == array.ctypes.data


# Two runs of 80, three of 48, one of 64; no run divides 24.
@pytest.mark.parametrize('size_run', [(160, 80), (144, 64), (64, 64), (24, 16)])
def test_a_single_row_has_the_bits_of_a_batch(size_run, monkeypatch):
  (size, run), random = size_run, np.random.default_rng(0)
  w, x = random.normal(size=(2048, size)), random.normal(size=(5, size))
  parts = Int8Weight.pack(w.astype(np.float32), _TABLE)
  x = jnp.asarray(x, jnp.float32)
  expected = Int8Weight(parts, _TABLE).dot(x)
  monkeypatch.setattr(int8, '_LARGE', 0)
  monkeypatch.setattr(int8, '_RUN', run)
  got = Int8Weight(parts, _TABLE).dot(x[3])
  np.testing.assert_array_equal(got, expected[3])

  @jax.jit
  def decode(x, parts):
    def step(_, x):
      return x + Int8Weight(parts, _TABLE).dot(x)[:size]

    return jax.lax.fori_loop(0, 5, step, x)

  # A copy in 32 bits, made ahead of the loop, would be four times as large.
  memory = decode.lower(x[3], parts).compile().memory_analysis()
  if int8._run_length(size) or jax.__version_info__ >= (0, 8, 3):
    assert memory.temp_size_in_bytes < 2 * w.size


def test_a_model_in_eight_bits_is_saved(tmp_path):
  whole = checkpoints.load_model('tiny-drafter', 'int8')
  assert whole.model.layout == 'int8'
  assert small.dtypes(whole.params) == {'int8', 'float32'}
  checkpoints.save_model(tmp_path, whole)
  up, tensors = 'model.layers.0.mlp.up_proj.weight', small.stored(tmp_path)
  assert tensors[up].dtype == np.int8
  assert tensors[f'{up}_scale'].shape == (len(tensors[up]), 1)
  assert tensors['model.norm.weight'].dtype == np.float32
  fields = small.read_json(tmp_path / 'config.json')
  assert fields['quantization_config']['format'] == 'int-quantized'
  read = checkpoints.load_model(tmp_path)
  assert read.model == whole.model
  small.same(read.params, whole.params)
  floats = checkpoints.load_model(tmp_path, 'float32').unpack()
  small.same(floats.params, whole.unpack().params)
  small.same(checkpoints.load_model(tmp_path).unpack().params, floats.params)
  # Scales of a larger model are stored without a matrix of them.
  rounded = stored.to_rounded(whole.model, whole.params)
  config = config_json.read(fields)
  tensors = param_mapping.tensors(rounded, config)
  _, integers = next(tensors)
  tracemalloc.start()
  _, column = next(tensors)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert column.shape == (integers.shape[0], 1)
  assert peak < 2 * column.nbytes + 10_000 < integers.nbytes


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
  values, scales = int8.round_rows(tensors[name])
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


def test_a_folder_with_bad_scales_is_refused(tmp_path):
  whole = checkpoints.load_model('tiny-drafter', 'int8')
  checkpoints.save_model(tmp_path, whole)
  tensors, name = small.stored(tmp_path), 'model.layers.0.mlp.up_proj.weight'
  scale, not_finite = f'{name}_scale', 'are negative or not finite'
  scales, column = tensors[scale], f'a column of scales for {name} in eight'
  first = np.arange(len(scales))[:, None] == 0
  for changes, said in (
    ({scale: None}, 'eight bits without _scale'),
    ({scale: np.where(first, np.float32(np.nan), scales)}, not_finite),
    ({scale: np.where(first, np.float32(-1), scales)}, not_finite),
    ({scale: scales[:-1]}, column),
    ({scale: scales.astype(np.int32)}, column),
    ({name: tensors[name].astype(np.float32)}, column),
    ({f'{name}_zero_point': np.zeros(scales.shape, np.int8)}, 'zero points'),
  ):
    small.rewrite(tmp_path, tensors=tensors | changes)
    for dtype in None, 'float32':
      error = conftest.refused('model', checkpoints.load_model, tmp_path, dtype)
      assert name in error
      assert said in error
      assert error.endswith(('again.', 'with symmetric weights.'))
