"""The text model that a config.json describes, with every field resolved.

Hugging Face's families, some of which hold a text model beside other parts:

  gemma2
  gemma3_text          in gemma3
  gemma3n_text         in gemma3n
  gemma4_text          in gemma4
  gemma4_unified_text  in gemma4_unified; a Gemma 4 without parts for images
                       and sounds

Fields that gemma's code cannot represent, and fields of a wrong type, are
refused before anything is built.
"""

from collections.abc import Mapping
from typing import Any

from cascades import arguments
from cascades.models import rope_fields
from cascades.models.family_fields import (
  FAMILIES,
  KNOWN_FIELDS,
  without_nulls,
)
from cascades.untrusted.schema import Schema

FULL, SLIDING = 'full_attention', 'sliding_attention'
# Names in gemma's enumerations of attention types, one for each family.
ATTENTION_TYPES = {FULL: 'GLOBAL', SLIDING: 'LOCAL_SLIDING'}
# Names of sizes in gemma's configurations, and in a config.json of any family.
SIZES = dict(
  num_embed='vocab_size',
  embed_dim='hidden_size',
  hidden_dim='intermediate_size',
  num_heads='num_attention_heads',
  head_dim='head_dim',
  num_kv_heads='num_key_value_heads',
  final_logit_softcap='final_logit_softcapping',
  sliding_window_size='sliding_window',
)
# The text model's family, by the family of the model that holds it.
_MULTIMODAL = {
  'gemma3': 'gemma3_text',
  'gemma3n': 'gemma3n_text',
  'gemma4': 'gemma4_text',
  'gemma4_unified': 'gemma4_unified_text',
}
# Values of `model_type` that `text_config` reads.
MODEL_TYPES = (*FAMILIES, *_MULTIMODAL)


class _Multimodal(Schema):
  """Fields of a model with parts for images or sounds."""

  text_config: dict[str, Any] | None = None


def is_gemma4(config: Mapping[str, Any]) -> bool:
  """Returns True if a text model is a Gemma 4."""
  return config['model_type'].startswith('gemma4')


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the text model's fields of a `config.json`, all resolved."""
  family, text_fields = _find_family(config)
  tied = {'tie_word_embeddings': config.get('tie_word_embeddings', True)}
  schema = FAMILIES[family]
  checked = schema.check(
    without_nulls({**tied, **text_fields, 'model_type': family}), 'config.json'
  )
  # Fields of other families are ignored, as in transformers.
  resolved = {
    name: value
    for name, value in checked
    if name in schema.model_fields or name not in KNOWN_FIELDS
  }
  _check_heads(resolved, 'num_key_value_heads', 'head_dim')
  resolved['layer_types'] = _layer_types(resolved)
  if SLIDING in resolved['layer_types'] and resolved['sliding_window'] is None:
    raise _refuse('sliding_window', None, 'a number with sliding layers')
  if family == 'gemma3n_text':
    _resolve_gemma3n(resolved)
  elif is_gemma4(resolved):
    _resolve_gemma4(resolved)
  ropes(resolved)
  return resolved


def _find_family(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
  """Returns the text model's family and its fields."""
  if 'speculators_model_type' in config:
    kind = arguments.quote(config['speculators_model_type'])
    raise ValueError(
      f'config.json: speculators_model_type {kind} is not a model that decodes'
      ' alone; give it as the drafter of its verifier.'
    )
  family = config.get('model_type')
  if not isinstance(family, str | None):
    raise ValueError(
      'config.json: model_type must be the name of a family, got'
      f' {arguments.quote(family)}; fetch it again.'
    )
  if family in _MULTIMODAL:
    checked = _Multimodal.check(config, 'config.json')
    return _MULTIMODAL[family], checked.text_config or {}
  if family in FAMILIES:
    return family, config
  if str(family).endswith('_assistant'):
    raise ValueError(
      f'config.json: model_type {arguments.quote(family)} is a drafter that'
      " reads a Gemma 4's caches, not a model that decodes alone; give it as"
      ' the drafter of its verifier.'
    )
  names = ', '.join([*FAMILIES, *_MULTIMODAL])
  raise ValueError(
    f'config.json: model_type {arguments.quote(family)} is not supported; give'
    f' a text model of Gemma 2, 3, 3n or 4 ({names}).'
  )


def _check_heads(
  config: Mapping[str, Any], heads_field: str, size_field: str
) -> None:
  """Refuses numbers and sizes of key heads that do not fit the queries."""
  if (queries := config['num_attention_heads']) % config[heads_field]:
    expected = f'a divisor of num_attention_heads ({queries})'
    raise _refuse(heads_field, config[heads_field], expected)
  if config[size_field] % 2:
    raise _refuse(
      size_field, config[size_field], 'even, as rotary embeddings turn pairs'
    )


def _refuse(field: str, value: Any, expected: str) -> ValueError:
  """Returns the error of a field that is inconsistent with other fields."""
  return ValueError(
    f'config.json: {field} must be {expected}, got {arguments.quote(value)};'
    ' give another model.'
  )


def _layer_types(config: Mapping[str, Any]) -> list[str]:
  """Returns the attention type of each layer."""
  family, layers = config['model_type'], config['num_hidden_layers']
  types = config['layer_types']
  if not types:
    period = {'gemma2': 2, 'gemma3n_text': 5}.get(family)
    period = period or config.get('sliding_window_pattern', 6)
    types = [SLIDING if (i + 1) % period else FULL for i in range(layers)]
  if len(types) != layers:
    raise _refuse('layer_types', types, f'{layers} types, one per layer')
  # transformers gives the last layer of a Gemma 4 full attention.
  return [*types[:-1], FULL] if is_gemma4(config) else types


def _resolve_gemma3n(config: dict[str, Any]) -> None:
  """Resolves the fields that only Gemma 3n has, in place."""
  layers = config['num_hidden_layers']
  sizes = config['intermediate_size']
  distinct = {*sizes} if isinstance(sizes, list) else {sizes}
  if len(distinct) != 1:
    raise _refuse('intermediate_size', sizes, 'the same for all layers')
  (config['intermediate_size'],) = distinct
  sparsity = config['activation_sparsity_pattern']
  if sparsity is None:
    sparse_layers = 10 if layers > 10 else 0
    sparsity = [0.95] * sparse_layers + [0.0] * (layers - sparse_layers)
  if len(sparsity) != layers:
    expected = f'a number for each of the {layers} layers'
    raise _refuse('activation_sparsity_pattern', sparsity, expected)
  config['activation_sparsity_pattern'] = sparsity
  _resolve_tables(config)
  _check_cache_sharing(config)
  shared = config['num_kv_shared_layers']
  if shared and config['num_attention_heads'] == config['num_key_value_heads']:
    expected = '0 if num_key_value_heads equals num_attention_heads'
    raise _refuse('num_kv_shared_layers', shared, expected)


def _resolve_gemma4(config: dict[str, Any]) -> None:
  """Resolves the fields that only Gemma 4 has, in place."""
  _resolve_tables(config)
  _check_cache_sharing(config)
  full = _full_attention_heads(config)
  config['global_head_dim'] = full['head_dim']
  config['num_global_key_value_heads'] = full['num_key_value_heads']
  _check_heads(config, 'num_global_key_value_heads', 'global_head_dim')
  if config['enable_moe_block']:
    name = 'moe_intermediate_size'
    config[name] = config[name] or config['expert_intermediate_size']
    for field in ('num_experts', 'top_k_experts', name):
      if not config[field]:
        raise _refuse(field, config[field], 'a number with enable_moe_block')
    if config['use_double_wide_mlp']:
      expected = 'false with enable_moe_block'
      raise _refuse('use_double_wide_mlp', True, expected)


def _resolve_tables(config: dict[str, Any]) -> None:
  """Sets `vocab_size` to the tokens that both embedding tables have.

  gemma has one number for both tables.
  """
  rows, name = config['vocab_size'], 'vocab_size_per_layer_input'
  config['table_size'] = rows
  if config['hidden_size_per_layer_input']:
    if not config[name]:
      expected = 'at least 1 with hidden_size_per_layer_input'
      raise _refuse(name, config[name], expected)
    config['vocab_size'] = min(rows, config[name])


def _check_cache_sharing(config: Mapping[str, Any]) -> None:
  """Refuses layers that share caches in another way than gemma's.

  In transformers, a layer without a cache reads the last layer of its type that
  has one. In gemma, it reads the last layer for full attention and the one
  before for the other type.
  """
  shared = config['num_kv_shared_layers']
  with_cache = config['layer_types'][: config['num_hidden_layers'] - shared]
  if shared >= config['num_hidden_layers']:
    expected = 'less than num_hidden_layers'
    raise _refuse('num_kv_shared_layers', shared, expected)
  if shared and with_cache[-2:] != [SLIDING, FULL]:
    expected = (
      'such that a sliding and then a full layer come before the shared ones'
    )
    raise _refuse('num_kv_shared_layers', shared, expected)


def _full_attention_heads(config: Mapping[str, Any]) -> dict[str, int]:
  """Returns size and number of key heads of layers with full attention."""
  fields = 'head_dim', 'num_key_value_heads'
  default = {field: config[field] for field in fields}
  declared = config['per_layer_config']
  if declared is None:
    # Published files have fields for full attention.
    full = default | {'head_dim': config['global_head_dim']}
    key_value_shape = config['num_global_key_value_heads']
    if key_value_shape and config['attention_k_eq_v']:
      full['num_key_value_heads'] = key_value_shape
    return full
  # Keys may have leading zeros.
  by_layer = {arguments.parse_count(i): x for i, x in declared.items()}
  if None in by_layer:
    expected = 'an object whose keys are numbers of layers'
    raise _refuse('per_layer_config', declared, expected)
  types = config['layer_types']
  layers = [default | by_layer.get(i, {}) for i in range(len(types))]
  full, sliding = (
    [layers[i] for i, x in enumerate(types) if x == layer_type]
    for layer_type in (FULL, SLIDING)
  )
  differ = any(x != full[0] for x in full) or any(x != default for x in sliding)
  if differ or set(full[0]) != set(fields):
    expected = (
      'equal in all layers of a type, and types may differ in heads only'
    )
    raise _refuse('per_layer_config', declared, expected)
  return full[0]


def key_value_shape(config: Mapping[str, Any], layer: int) -> tuple[int, int]:
  """Returns number and size of the key heads of a layer."""
  is_global = is_gemma4(config) and config['layer_types'][layer] == FULL
  prefix = 'global_' if is_global else ''
  return config[f'num_{prefix}key_value_heads'], config[f'{prefix}head_dim']


def ropes(config: Mapping[str, Any]) -> dict[str, rope_fields.Rope]:
  """Returns the rotary embedding of each attention type."""
  if config['model_type'] == 'gemma2':
    both = rope_fields.gemma2_rope(config)
    return {SLIDING: both, FULL: both}
  if is_gemma4(config):
    sliding, full = rope_fields.gemma4_ropes(config)
  else:
    sliding, full = rope_fields.gemma3_ropes(config)
  return {SLIDING: sliding, FULL: full}
