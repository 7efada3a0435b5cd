"""Every Gemma family: by name as published, and as its config.json says."""

import warnings

import conftest
import pytest
import small

from cascades.models import config_json, language


@pytest.mark.parametrize(
  'name', ['dolphingemma-400m-pt', 'gemma-2b-it', 'siglip', 'gemma3-4b']
)
def test_names_of_no_text_model_are_refused(name):
  with pytest.raises(ValueError, match=f'model: gemma has no .* for {name!r};'):
    language.from_gemma(name)


@pytest.mark.parametrize('kind', ['hf_gemma3n', 'hf_gemma4_shared'])
def test_layers_that_share_are_no_models_of_their_own(kind):
  model, *_ = small.load(kind)
  with pytest.raises(ValueError, match='share neither caches nor'):
    model.first_layers(1)


# --- Fields of config.json ---

_FAMILIES = [x for x in config_json.MODEL_TYPES if x[-4:] in ('mma2', 'text')]


def _refused(config):
  return conftest.refused('config.json', config_json.read, config)


_CAPS = 'final_logit_softcapping', 'attn_logit_softcapping', 'altup_coef_clip'
_OFF = {*_CAPS, 'num_global_key_value_heads'}
_INPUTS = 'hidden_size_per_layer_input', 'vocab_size_per_layer_input'
_REAL = *_CAPS, 'query_pre_attn_scalar', 'rope_theta', 'rope_local_base_freq'
# What is no number, and the fields that may be it nevertheless.
_NO_NUMBERS = [
  *((x, ()) for x in ('64', '', [[64]], {'a': 1}, True, float('nan'), -4)),
  (None, (*_OFF, *_INPUTS, *config_json._NULL_IS_ABSENT)),
  (0, ('num_kv_shared_layers', 'altup_active_idx', *_INPUTS)),
  *((x, _REAL) for x in (2.5, 10**30)),
]


@pytest.mark.parametrize('family', _FAMILIES)
def test_a_number_of_a_config_is_a_number(family):
  for name, usual in config_json.defaults(family).items():
    if type(usual) in (int, float) or name in _OFF:
      for value, but_of in _NO_NUMBERS:
        if name not in but_of:
          assert name in _refused({'model_type': family, name: value})
  config_json.read({'model_type': family} | dict.fromkeys(_OFF))


def _rope(**fields):
  layers = {'full_attention': fields, 'sliding_attention': {}}
  return {'rope_parameters': layers}


_ROPES = (
  *(5, 'default', [1], {'full_attention': 5}),
  {'full_attention': {'rope_theta': '1e5'}},
)
# By field, what neither a Gemma 2 nor a Gemma 3 can have.
_CLASSIC = dict(tie_word_embeddings=[False], hidden_activation=['silu'])
_CLASSIC |= dict(rms_norm_eps=[1e-5], query_pre_attn_scalar=[100])
_CLASSIC |= dict(attention_bias=[True], use_bidirectional_attention=[True])
_CLASSIC |= dict(
  layer_types=[[config_json.FULL], ['chunked_attention'] * 26, [None] * 26],
  rope_scaling=[
    *({'rope_type': 'yarn', 'factor': 4.0}, {'rope_type': 'linear'}),
    {'rope_type': 'linear', 'factor': 0.5},
  ],
)
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
  ('x' * 10**6 + '_assistant', {}, 'model_type'),
  ('gemma2', {'speculators_model_type': 'x' * 10**6}, 'model_type'),
  # What float32 does not hold.
  ('gemma3_text', {'rms_norm_eps': 1e308}, None),
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
  *(
    (family, _rope(rope_type=kind, **{field: x}), field)
    for family, kind, field in (
      ('gemma3_text', 'default', 'rope_theta'),
      ('gemma3_text', 'linear', 'factor'),
      ('gemma4_text', 'proportional', 'partial_rotary_factor'),
    )
    for x in (None, '1', [1], {}, 0, float('inf'))
    if x is not None or field not in config_json._NULL_IS_ABSENT
  ),
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
  ('gemma4_text', {'vocab_size_per_layer_input': 0}, None),
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
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    said = _refused({'model_type': family} | fields)
  assert (named or [*fields][-1]) in said
  # However long the value is.
  assert len(said) < 2000


@pytest.mark.parametrize('value', [None, 'two', 2, [2], {}])
@pytest.mark.parametrize('family', ['gemma2', 'gemma3_text', 'gemma4_text'])
def test_a_field_of_another_family_is_left_alone(family, value):
  want = config_json.read({'model_type': family})
  known = {name for x in _FAMILIES for name in config_json.defaults(x)}
  foreign = dict.fromkeys(known - config_json.defaults(family).keys(), value)
  assert len(foreign) > 5
  assert config_json.read({'model_type': family} | foreign) == want


@pytest.mark.parametrize('family', _FAMILIES)
def test_a_null_is_an_absent_field_where_writers_spell_it_out(family):
  plain = {'model_type': family}
  nulls = dict.fromkeys(config_json._NULL_IS_ABSENT)
  assert config_json.read(plain | nulls) == config_json.read(plain)
  held = {'model_type': 'gemma3', 'text_config': {}}
  tied = held | {'tie_word_embeddings': None}
  assert config_json.read(tied) == config_json.read(held)
  ropes = {'full_attention': {'partial_rotary_factor': None}}
  config = {'model_type': 'gemma4_text', 'rope_parameters': ropes}
  read = config_json.read(config)
  assert read.ropes[config_json.FULL].share == 1
  # Layers without a window ask for none.
  types = {'num_hidden_layers': 2, 'layer_types': [config_json.FULL] * 2}
  windowless = {'model_type': 'gemma3_text', 'sliding_window': None} | types
  assert config_json.read(windowless).sliding_window is None
