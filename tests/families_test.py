"""Every Gemma family: by name as published, and made small through the loop."""

import functools
import math
import warnings

import conftest
import jax
import jax.numpy as jnp
import models_test
import numpy as np
import pytest
import small

from cascades import decoding, drafters, methods, verification
from cascades.methods import processing
from cascades.models import (
  families,
  family_fields,
  gemma_library,
  language,
  memory,
)
from cascades.proof import exact

# --- As published

# Billions of parameters, and which tables are among them: all, none, or that
# of tokens. Gemma 2: arXiv 2408.00118, table 2; Gemma 3: arXiv 2503.19786,
# table 1; of the others, effective parameters or all of the text model, from
# the models' cards. Gemma 3n's count projections that no layer looks at.
_PUBLISHED = {
  'gemma2-2b': (2.024, 'none'),
  'gemma2-9b': (8.324, 'none'),
  'gemma2-27b': (26.047, 'none'),
  'gemma3-270m': (0.1, 'none'),
  'gemma3-1b': (0.698, 'none'),
  'gemma3-4b': (3.209, 'none'),
  'gemma3-12b': (10.759, 'none'),
  'gemma3-27b': (25.6, 'none'),
  'gemma3n-e2b': (1.91, 'none'),
  'gemma3n-e4b': (3.98, 'none'),
  'gemma4-e2b': (2.3, 'tokens'),
  'gemma4-e4b': (7.5, 'all'),
  'gemma4-26b-a4b': (25.2, 'all'),
  'gemma4-31b': (30.7, 'all'),
}
_TABLES = {
  'none': (),
  'tokens': ('input_embedding',),
  'all': (
    'input_embedding',
    'per_layer_input_embedding',
    'per_layer_embeddings',
  ),
}


def test_every_checkpoint_of_gemma_is_known_here():
  # A new one wants a line above, and a small one in models_test.
  names = {f'{name}-{kind}' for name in _PUBLISHED for kind in ('pt', 'it')}
  assert set(gemma_library.gemma_checkpoints()) == names


@pytest.mark.slow
@pytest.mark.parametrize('name', _PUBLISHED)
def test_a_model_has_the_parameters_that_were_published(name):
  shapes = language.from_gemma(f'{name}-it')[0].param_shapes()
  assert language.from_gemma(f'{name}-pt') == language.from_gemma(f'{name}-it')
  billions, tables = _PUBLISHED[name]
  # Without what sees and hears.
  assert all(
    x == 'embedder' or 'layer' in x or 'norm' in x or 'altup' in x
    for x in shapes
  )
  left_out = set(_TABLES['all']) - set(_TABLES[tables])
  embedder = {k: x for k, x in shapes['embedder'].items() if k not in left_out}
  counted = jax.tree.leaves(shapes | {'embedder': embedder})
  count = sum(math.prod(x.shape) for x in counted)
  assert count / 1e9 == pytest.approx(billions, rel=0.015)
  everything = jax.tree.leaves(shapes)
  assert all(x.dtype == jnp.bfloat16 for x in everything)


def test_layers_without_a_cache_take_no_memory():
  model, _ = language.from_gemma('gemma4-e2b-it')
  cache = jax.eval_shape(
    lambda params: model.init_cache(params, 64), model.param_shapes()
  )
  # Of 35 layers the first 15, of which every fifth is global; keys and values
  # in bfloat16, positions, and where a cache ends.
  slot = 2 * 2 * (12 * 256 + 3 * 512) + 4 * 15
  assert memory.num_bytes(cache) == 64 * slot + 4 * 15


@pytest.mark.parametrize(
  'name', ['dolphingemma-400m-pt', 'gemma-2b-it', 'siglip', 'gemma3-4b']
)
def test_names_of_no_text_model_are_refused(name):
  with pytest.raises(ValueError, match=f'model: gemma has no .* for {name!r};'):
    language.from_gemma(name)


# --- Through the loop

_NEW = 14


@functools.cache
def _pair(kind):
  """A small model, its parameters, and those of a drafter that is alike."""
  model, params = models_test.make(kind)
  random = np.random.default_rng(1)
  near = jax.tree.map(
    lambda x: x + 0.05 * random.normal(size=x.shape).astype(np.float32), params
  )
  return model, params, near


@functools.cache
def _said(model):
  """A model's log-probabilities after every token, in one pass."""

  @jax.jit
  def say(params, tokens):
    logits, _ = model(params, tokens, *small.causal(len(tokens)))
    return jax.nn.log_softmax(logits)

  return say


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'gamma', 'drafts'),
  [
    *((kind, 4, 1) for kind in models_test.FAMILIES),
    # How trees are read, drafters_test.py shows for all kinds.
    *((kind, 1, 2) for kind in ('gemma3n-e2b', 'gemma4-26b-a4b')),
  ],
)
def test_strict_decoding_says_what_the_verifier_says(kind, gamma, drafts):
  # Rows of several lengths, which go on beyond the sliding window; drafts are
  # kept and rejected.
  model, params, near = _pair(kind)
  run = functools.partial(
    exact.decode_curve,
    decoding.StepConfig(
      decoding.Models(model, drafters.ModelDrafter(model)),
      methods.METHODS['speed'],
      gamma,
      verification.VerificationConfig(
        'token' if drafts == 1 else 'multi_round'
      ),
      drafts,
    ),
    (params, near),
    exact.BatchRequest(
      [models_test.text(n, n) for n in (2, 4, 8)],
      jax.random.split(jax.random.key(0), 3),
      [0.0],
      _NEW,
    ),
  )
  for temperature in (0.0, 1.0):
    state = run(processing.SamplingParams(temperature=np.float32(temperature)))
    counts = decoding.count(state)
    assert 0 < counts.accepted.sum() < counts.examined.sum()
    for row in range(3):
      start, end = state.prompt_length[row, 0], state.length[row, 0]
      assert end == start + _NEW
      tokens = state.tokens[row, 0, :22]
      said = np.asarray(_said(model)(params, tokens))[start - 1 : end - 1]
      new = tokens[start:end]
      if not temperature:
        np.testing.assert_array_equal(new, said.argmax(-1))
      np.testing.assert_allclose(
        state.logprob[row, 0, start:end],
        said[np.arange(_NEW), new],
        rtol=0,
        atol=1e-5,
      )


@pytest.mark.parametrize('kind', models_test.SHARING)
def test_layers_that_share_are_no_models_of_their_own(kind):
  model, _ = models_test.make(kind)
  with pytest.raises(ValueError, match='layers: the first 1 of Gemma'):
    model.first_layers(1)


# --- Fields of config.json ---


def _refused(config):
  return conftest.refused('config.json', families.text_config, config)


_NO_NUMBERS = None, '64', '', [64], {'a': 1}, True, float('nan'), -4, 0
# These may be null; these be no whole number; and these be 0.
_OFF = {
  *('final_logit_softcapping', 'attn_logit_softcapping', 'altup_coef_clip'),
  'num_global_key_value_heads',
}
_REAL = {
  *('final_logit_softcapping', 'attn_logit_softcapping', 'altup_coef_clip'),
  *('query_pre_attn_scalar', 'rope_theta', 'rope_local_base_freq'),
}
_NONE = {
  *('num_kv_shared_layers', 'hidden_size_per_layer_input', 'altup_active_idx'),
}


def _numbers():
  for family, schema in family_fields.FAMILIES.items():
    for name, field in schema.model_fields.items():
      kind = type(field.default)
      if kind in (int, float) or name in _OFF:
        yield family, name


def _may_be(family, name, value):
  if value is None and name in family_fields._NULL_IS_ABSENT:
    return True
  if value is None:
    # Of inputs for each layer a Gemma 4 may have none.
    return name in _OFF or name.endswith('_per_layer_input')
  if type(value) is int and not value:
    unified = family == 'gemma4_unified_text'
    return name in _NONE or (unified and name.endswith('_per_layer_input'))
  # Gemma 3n may say the size of each layer.
  return name == 'intermediate_size' and value == [64]


@pytest.mark.parametrize(('family', 'name'), _numbers())
def test_a_number_of_a_config_is_a_number(family, name):
  assert name in families.text_config({'model_type': family})
  beyond = () if name in _REAL else (2.5, 10**30)
  for value in (*_NO_NUMBERS, *beyond):
    config = {'model_type': family, name: value}
    if not _may_be(family, name, value):
      assert name in _refused(config)
    elif name in _OFF:
      families.text_config(config)


@pytest.mark.parametrize('value', [None, '1', [1], {}, 0, float('inf')])
@pytest.mark.parametrize(
  ('field', 'kind'),
  [
    ('rope_theta', 'default'),
    ('factor', 'linear'),
    ('partial_rotary_factor', 'proportional'),
  ],
)
def test_a_number_of_rotary_positions_is_a_number(field, kind, value):
  family = 'gemma4_text' if field.startswith('partial') else 'gemma3_text'
  if value is None and field in family_fields._NULL_IS_ABSENT:
    return
  layers = {'full_attention': {'rope_type': kind, field: value}}
  layers |= {'sliding_attention': {}}
  assert field in _refused({'model_type': family, 'rope_parameters': layers})


_ROPES = (
  *(5, 'default', [1], {'full_attention': 5}),
  {'full_attention': {'rope_theta': '1e5'}},
)
# By field, what neither a Gemma 2 nor a Gemma 3 can have.
_CLASSIC = {
  'tie_word_embeddings': [False],
  'hidden_activation': ['silu'],
  'rms_norm_eps': [1e-5],
  'attention_bias': [True],
  'use_bidirectional_attention': [True],
  'query_pre_attn_scalar': [100],
  'layer_types': [[families.FULL], ['chunked_attention'] * 26, [None] * 26],
  'rope_scaling': [
    {'rope_type': 'yarn', 'factor': 4.0},
    {'rope_type': 'linear'},
    {'rope_type': 'linear', 'factor': 0.5},
  ],
}
_MIXED = dict(enable_moe_block=True, top_k_experts=2, moe_intermediate_size=8)
# A family, fields of its config.json, and the one that is named; None for the
# last of them.
_WRONG = [
  *(
    (family, {field: value}, {'rope_scaling': 'rope'}.get(field))
    for family in ('gemma2', 'gemma3_text')
    for field, values in _CLASSIC.items()
    for value in values
  ),
  *((kind, {}, 'model_type') for kind in (['gemma3_text'], {}, None)),
  *((f'gemma{i}_assistant', {}, 'model_type') for i in (3, 4)),
  ('gemma3', {'text_config': 'none'}, None),
  ('gemma3', {'text_config': {'head_dim': None}}, 'head_dim'),
  *(('gemma3_text', {'sliding_window_pattern': x}, None) for x in (0, '6')),
  # Heads that do not go together.
  *(
    (family, {'num_attention_heads': 4, 'num_key_value_heads': 3}, None)
    for family in ('gemma2', 'gemma3_text', 'gemma3n_text', 'gemma4_text')
  ),
  *(('gemma3_text', {'head_dim': x}, None) for x in (1, 255)),
  ('gemma4_text', {'global_head_dim': 5}, None),
  (
    'gemma4_text',
    {'attention_k_eq_v': True, 'num_global_key_value_heads': 3},
    None,
  ),
  *(('gemma3_text', {'layer_types': x}, None) for x in (5, True, 'full')),
  *(('gemma3_text', {'rope_parameters': x}, None) for x in _ROPES),
  ('gemma3_text', {'rope_scaling': [1]}, None),
  ('gemma3_text', {'num_hidden_layers': 10**9}, None),
  # A window is asked for where layers have one.
  ('gemma3_text', {'sliding_window': None}, 'sliding_window must'),
  ('gemma3n_text', {'altup_num_inputs': 2}, None),
  ('gemma3n_text', {'altup_active_idx': 1}, None),
  ('gemma3n_text', {'altup_correct_scale': False}, None),
  ('gemma3n_text', {'intermediate_size': [8] * 34 + [9]}, None),
  ('gemma3n_text', {'intermediate_size': [64, None]}, None),
  *(
    ('gemma3n_text', {'activation_sparsity_pattern': x}, None)
    for x in (0.5, [0.5], [None] * 35)
  ),
  ('gemma3n_text', {'num_kv_shared_layers': 14}, None),
  # The default of 15.
  ('gemma3n_text', {'num_hidden_layers': 10}, 'num_kv_shared_layers'),
  ('gemma3n_text', {'num_key_value_heads': 8}, 'num_kv_shared_layers'),
  ('gemma4_text', {'use_bidirectional_attention': 'all'}, None),
  ('gemma4_text', {'num_kv_shared_layers': 5}, None),
  ('gemma4_text', {'enable_moe_block': True}, 'num_experts'),
  ('gemma4_text', _MIXED | {'num_experts': '8'}, None),
  *(
    ('gemma4_text', {'per_layer_config': value}, said)
    for value, said in (
      *(({i: {'head_dim': 512}}, None) for i in '05'),
      ({'5': {'sliding_window': 9}}, None),
      *(({'x': {}}, None), ([5], None), ({'1': 5}, 'config.1 must')),
      ({'9' * 5000: {}}, None),
      ({'1': {'head_dim': '4'}}, 'head_dim'),
    )
  ),
]


@pytest.mark.parametrize(('family', 'fields', 'named'), _WRONG)
def test_what_gemma_cannot_have_is_named(family, fields, named):
  config = {'model_type': family} | fields
  said = conftest.refused('config.json', language.from_config, config)
  assert (named or [*fields][-1]) in said


@pytest.mark.parametrize('value', [None, 'two', 2, [2], {}])
@pytest.mark.parametrize('family', ['gemma2', 'gemma3_text', 'gemma4_text'])
def test_a_field_of_another_family_is_left_alone(family, value):
  want = families.text_config({'model_type': family})
  foreign = dict.fromkeys(family_fields.KNOWN_FIELDS - want.keys(), value)
  assert foreign
  assert families.text_config({'model_type': family} | foreign) == want


@pytest.mark.parametrize('family', [*family_fields.FAMILIES])
def test_a_null_is_an_absent_field_where_writers_spell_it_out(family):
  plain = {'model_type': family}
  nulls = dict.fromkeys(family_fields._NULL_IS_ABSENT)
  assert families.text_config(plain | nulls) == families.text_config(plain)
  held = {'model_type': 'gemma3', 'text_config': {}}
  tied = held | {'tie_word_embeddings': None}
  assert families.text_config(tied) == families.text_config(held)
  ropes = {'full_attention': {'partial_rotary_factor': None}}
  found = families.text_config(
    {'model_type': 'gemma4_text'} | {'rope_parameters': ropes}
  )
  assert families.ropes(found)[families.FULL].share == 1


def test_what_float32_does_not_hold_is_refused_without_a_warning():
  config = {'model_type': 'gemma3_text', 'rms_norm_eps': 1e308}
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert 'rms_norm_eps' in _refused(config)


@pytest.mark.parametrize('name', ['speculators_model_type', 'model_type'])
def test_a_text_of_megabytes_is_shortened(name):
  assert len(_refused({name: 'x' * 10**6 + '_assistant'})) < 1000


def test_layers_without_a_window_ask_for_none():
  config = dict(
    model_type='gemma3_text',
    num_hidden_layers=2,
    layer_types=[families.FULL] * 2,
    sliding_window=None,
  )
  assert families.text_config(config)['sliding_window'] is None
