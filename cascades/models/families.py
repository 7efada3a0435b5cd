"""What a config.json says of a text model, with every field spelled out.

Hugging Face's families, of which some hold a text model beside others:

  gemma2
  gemma3_text          in gemma3
  gemma3n_text         in gemma3n
  gemma4_text          in gemma4
  gemma4_unified_text  in gemma4_unified; a Gemma 4 without the parts below

What gemma's code cannot be is refused here, before anything is made, as is what
is no number where one is asked for.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

from cascades import arguments
from cascades.untrusted.schema import (
  Count,
  Each,
  Positive,
  Schema,
  Size,
  one_of,
)

FULL, SLIDING = 'full_attention', 'sliding_attention'
# gemma's names of them; of which each family has an enumeration of its own.
KINDS = {FULL: 'GLOBAL', SLIDING: 'LOCAL_SLIDING'}
# Fields of gemma's configurations, and of a config.json of any family.
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
# The text model's family, by that of what holds it.
_OUTER = {
  'gemma3': 'gemma3_text',
  'gemma3n': 'gemma3n_text',
  'gemma4': 'gemma4_text',
  'gemma4_unified': 'gemma4_unified_text',
}
# What gemma's code leaves no choice about; anything else would be read as this.
FIXED = dict(
  hidden_activation='gelu_pytorch_tanh',
  rms_norm_eps=1e-6,
  attention_bias=False,
  tie_word_embeddings=True,
  use_bidirectional_attention=False,
)
# Of these null is what an absent one is: some writers spell it out.
_NULL_IS_ABSENT = {
  *('hidden_activation', 'tie_word_embeddings', 'sliding_window_pattern'),
  *('rope_local_base_freq', 'partial_rotary_factor'),
}
# More than any model has; they are gone through one by one.
MOST_LAYERS = 10_000
_LOCAL, _GLOBAL = 10_000, 1_000_000
_PROPORTIONAL = 'proportional'


_GELU = Annotated[Any, one_of(FIXED['hidden_activation'])]
_EPS = Annotated[Any, one_of(FIXED['rms_norm_eps'])]
# 'vision': between tokens of a picture, of which a text has none.
_OfPictures = Annotated[Any, one_of(False, 'vision')]
_Kind = Literal['full_attention', 'sliding_attention']
_Sparsity = Annotated[float, pydantic.Field(ge=0, lt=1)]
Layers = Annotated[int, pydantic.Field(ge=1, le=MOST_LAYERS)]


_Sizes = Annotated[list[Size], Each]


class _Text(Schema):
  """Fields of all families; what is absent is as transformers has it."""

  model_type: str
  vocab_size: Size
  hidden_size: Size = 2304
  intermediate_size: Size | _Sizes = 9216
  num_hidden_layers: Layers
  num_attention_heads: Size = 8
  num_key_value_heads: Size = 4
  head_dim: Size = 256
  sliding_window: Size | None
  layer_types: Annotated[list[_Kind], Each] | None = None
  final_logit_softcapping: Positive | None = None
  rope_parameters: dict[str, Any] | None = None
  rope_scaling: dict[str, Any] | None = None
  hidden_activation: _GELU = FIXED['hidden_activation']
  rms_norm_eps: _EPS = FIXED['rms_norm_eps']
  attention_bias: Annotated[Any, one_of(False)] = False
  tie_word_embeddings: Annotated[Any, one_of(True)] = True
  use_bidirectional_attention: Annotated[Any, one_of(False)] = False


class _Classic(_Text):
  """Of Gemma 2 and 3."""

  num_hidden_layers: Layers = 26
  intermediate_size: Size = 9216
  query_pre_attn_scalar: Positive = 256
  sliding_window: Size | None = 4096
  attn_logit_softcapping: Positive | None = None


class _Gemma2(_Classic):
  vocab_size: Size = 256_000
  final_logit_softcapping: Positive | None = 30.0
  attn_logit_softcapping: Positive | None = 50.0
  rope_theta: Positive = _LOCAL


class _Gemma3(_Classic):
  vocab_size: Size = 262_208
  # Layers from one with full attention to the next, where nothing is said.
  sliding_window_pattern: Size = 6
  rope_theta: Positive = _GLOBAL
  rope_local_base_freq: Positive = _LOCAL


class _Gemma3n(_Text):
  vocab_size: Size = 262_400
  vocab_size_per_layer_input: Count | None = 262_144
  hidden_size: Size = 2048
  intermediate_size: Size | _Sizes = 16_384
  num_hidden_layers: Layers = 35
  num_key_value_heads: Size = 2
  sliding_window: Size | None = 512
  final_logit_softcapping: Positive | None = 30.0
  hidden_size_per_layer_input: Count = 256
  num_kv_shared_layers: Count = 15
  laurel_rank: Size = 64
  activation_sparsity_pattern: Annotated[list[_Sparsity], Each] | None = None
  altup_coef_clip: Positive | None = 120.0
  altup_num_inputs: Annotated[Any, one_of(4)] = 4
  altup_active_idx: Annotated[Any, one_of(0)] = 0
  altup_correct_scale: Annotated[Any, one_of(True)] = True
  rope_theta: Positive = _GLOBAL
  rope_local_base_freq: Positive = _LOCAL


class _Gemma4(_Text):
  num_hidden_layers: Layers = 30
  vocab_size: Size = 262_144
  intermediate_size: Size = 9216
  vocab_size_per_layer_input: Count | None = 262_144
  sliding_window: Size | None = 512
  hidden_size_per_layer_input: Count | None = 256
  global_head_dim: Size = 512
  num_global_key_value_heads: Size | None = None
  per_layer_config: dict[str, dict[str, Size]] | None = None
  attention_k_eq_v: bool = False
  num_kv_shared_layers: Count = 0
  use_double_wide_mlp: bool = False
  enable_moe_block: bool = False
  num_experts: Size | None = None
  top_k_experts: Size | None = None
  moe_intermediate_size: Size | None = None
  expert_intermediate_size: Size | None = None
  use_bidirectional_attention: _OfPictures = None


class _Unified(_Gemma4):
  sliding_window: Size | None = 1024
  hidden_size_per_layer_input: Count | None = 0
  use_bidirectional_attention: _OfPictures = 'vision'


_FAMILIES: dict[str, type[_Text]] = {
  'gemma2': _Gemma2,
  'gemma3_text': _Gemma3,
  'gemma3n_text': _Gemma3n,
  'gemma4_text': _Gemma4,
  'gemma4_unified_text': _Unified,
}
# All that any family reads, and what is worked out here.
_KNOWN = {'table_size'}.union(*(x.model_fields for x in _FAMILIES.values()))


class Rope(NamedTuple):
  """How a kind of layer turns positions.

  Attributes:
    theta: Base of the frequencies.
    factor: What positions are divided by.
    share: Of the angles; the rest stands still.
  """

  theta: float
  factor: float = 1.0
  share: float = 1.0


class _ByKind(Schema):
  """What a file says of the positions of both kinds of layer."""

  full_attention: dict[str, Any] | None = None
  sliding_attention: dict[str, Any] | None = None


def rope_type() -> Any:
  """A field that older files call `type`; an absent one is 'default'."""
  names = pydantic.AliasChoices('rope_type', 'type')
  return pydantic.Field('default', validation_alias=names)


class _RopeFields(Schema):
  """What a file says of the positions of a kind of layer."""

  rope_type: str = rope_type()
  rope_theta: Positive
  factor: Positive = 1.0
  partial_rotary_factor: Annotated[Positive, pydantic.Field(le=1)] = 1.0


class _Holder(Schema):
  """A model that also sees or hears."""

  text_config: dict[str, Any] | None = None


def is_gemma4(config: Mapping[str, Any]) -> bool:
  """Whether a text model is a Gemma 4."""
  return config['model_type'].startswith('gemma4')


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
  """The text model's fields of a `config.json`, with every field spelled out.

  Args:
    config: A Hugging Face `config.json`, read; of a model that also sees or
      hears, with the text model under `text_config`.

  Returns:
    Its fields, with transformers' defaults for those that are absent and with
    `layer_types` for every layer. Of Gemma 3n and Gemma 4, `vocab_size` is what
    both tables have, and `table_size` the rows of the larger; layers with full
    attention have `global_head_dim` and `num_global_key_value_heads`.

  Raises:
    ValueError: The family, or a value in it, is not supported.
  """
  if 'speculators_model_type' in config:
    kind = arguments.quote(config['speculators_model_type'])
    raise ValueError(
      f'config.json: speculators_model_type {kind} is no model that answers'
      ' alone; give it as the drafter of its verifier.'
    )
  family, outer = config.get('model_type'), config
  if not isinstance(family, str | None):
    raise ValueError(
      'config.json: model_type must be the name of a family, got'
      f' {arguments.quote(family)}; fetch it again.'
    )
  if family in _OUTER:
    config = _Holder.check(config, 'config.json').text_config or {}
    family = _OUTER[family]
  if family not in _FAMILIES:
    if str(family).endswith('_assistant'):
      raise ValueError(
        f'config.json: model_type {arguments.quote(family)} is a drafter that'
        " looks into a Gemma 4's caches, and no model by itself; give its"
        ' folder as drafter, beside the verifier that it was made for.'
      )
    names = ', '.join([*_FAMILIES, *_OUTER])
    raise ValueError(
      f'config.json: model_type {arguments.quote(family)} cannot be read; give'
      f' a text model of Gemma 2, 3, 3n or 4 ({names}).'
    )
  tied = {'tie_word_embeddings': outer.get('tie_word_embeddings', True)}
  schema = _FAMILIES[family]
  checked = schema.check(
    _without_nulls({**tied, **config, 'model_type': family}), 'config.json'
  )
  # Fields of other families are left alone, as transformers has it.
  config = {
    name: value
    for name, value in checked
    if name in schema.model_fields or name not in _KNOWN
  }
  _check_heads(config, 'num_key_value_heads', 'head_dim')
  config['layer_types'] = _layer_types(config)
  if SLIDING in config['layer_types'] and config['sliding_window'] is None:
    raise _refuse('sliding_window', None, 'a number, as layers have one')
  if family == 'gemma3n_text':
    _resolve_3n(config)
  elif is_gemma4(config):
    _resolve_4(config)
  ropes(config)
  return config


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Fields, without those whose null says as much as none."""
  nulls = {x for x in _NULL_IS_ABSENT if fields.get(x, 0) is None}
  return {name: x for name, x in fields.items() if name not in nulls}


def _check_heads(config: Mapping[str, Any], keys: str, size: str) -> None:
  """Refuses heads of so many keys, and of such a size, that do not fit."""
  if (queries := config['num_attention_heads']) % config[keys]:
    what = f'a divisor of the {queries} of num_attention_heads'
    raise _refuse(keys, config[keys], what)
  if config[size] % 2:
    raise _refuse(size, config[size], 'even, as positions turn pairs')


def _refuse(field: str, value: Any, what: str) -> ValueError:
  """What is said of a field that does not go with the others."""
  return ValueError(
    f'config.json: {field} must be {what}, got {arguments.quote(value)}; give'
    ' another model.'
  )


def _layer_types(config: Mapping[str, Any]) -> list[str]:
  """The kind of each layer.

  Raises:
    ValueError: There are too few, or too many.
  """
  family, layers = config['model_type'], config['num_hidden_layers']
  kinds = config['layer_types']
  if not kinds:
    every = {'gemma2': 2, 'gemma3n_text': 5}.get(family)
    every = every or config.get('sliding_window_pattern', 6)
    kinds = [SLIDING if (i + 1) % every else FULL for i in range(layers)]
  if len(kinds) != layers:
    raise _refuse('layer_types', kinds, f'one for each of the {layers} layers')
  # As transformers has it of a Gemma 4.
  return [*kinds[:-1], FULL] if is_gemma4(config) else kinds


def _resolve_3n(config: dict[str, Any]) -> None:
  """Spells out what is Gemma 3n's own."""
  layers = config['num_hidden_layers']
  sizes = config['intermediate_size']
  alike = {*sizes} if isinstance(sizes, list) else {sizes}
  if len(alike) != 1:
    raise _refuse('intermediate_size', sizes, 'the same for all layers')
  (config['intermediate_size'],) = alike
  sparse = config['activation_sparsity_pattern']
  if sparse is None:
    first = 10 if layers > 10 else 0
    sparse = [0.95] * first + [0.0] * (layers - first)
  if len(sparse) != layers:
    what = f'a number for each of the {layers} layers'
    raise _refuse('activation_sparsity_pattern', sparse, what)
  config['activation_sparsity_pattern'] = sparse
  _resolve_tables(config)
  _check_sharing(config)
  shared = config['num_kv_shared_layers']
  if shared and config['num_attention_heads'] == config['num_key_value_heads']:
    what = '0, as gemma has a key for each query then'
    raise _refuse('num_kv_shared_layers', shared, what)


def _resolve_4(config: dict[str, Any]) -> None:
  """Spells out what is Gemma 4's own."""
  _resolve_tables(config)
  _check_sharing(config)
  of_full = _of_full_layers(config)
  config['global_head_dim'] = of_full['head_dim']
  config['num_global_key_value_heads'] = of_full['num_key_value_heads']
  _check_heads(config, 'num_global_key_value_heads', 'global_head_dim')
  if config['enable_moe_block']:
    name = 'moe_intermediate_size'
    config[name] = config[name] or config['expert_intermediate_size']
    for field in ('num_experts', 'top_k_experts', name):
      if not config[field]:
        raise _refuse(field, config[field], 'a number, by enable_moe_block')
    if config['use_double_wide_mlp']:
      what = 'false, as gemma has no experts beside that'
      raise _refuse('use_double_wide_mlp', True, what)


def _resolve_tables(config: dict[str, Any]) -> None:
  """As many tokens as both tables have, of which gemma has one number."""
  rows, name = config['vocab_size'], 'vocab_size_per_layer_input'
  config['table_size'] = rows
  if config['hidden_size_per_layer_input']:
    if not config[name]:
      what = 'at least 1, by hidden_size_per_layer_input'
      raise _refuse(name, config[name], what)
    config['vocab_size'] = min(rows, config[name])


def _check_sharing(config: Mapping[str, Any]) -> None:
  """Refuses layers that share caches otherwise than gemma's do.

  A layer that shares takes the last one of its kind that does not; gemma, for
  one with full attention the last, for the others the last but one.
  """
  shared = config['num_kv_shared_layers']
  own = config['layer_types'][: config['num_hidden_layers'] - shared]
  if shared and own[-2:] != [SLIDING, FULL]:
    what = 'so that gemma has a layer with a window and one without before them'
    raise _refuse('num_kv_shared_layers', shared, what)


def _of_full_layers(config: Mapping[str, Any]) -> dict[str, int]:
  """Sizes of heads, and how many, of layers with full attention.

  Raises:
    ValueError: They, or others, are not all alike.
  """
  fields = 'head_dim', 'num_key_value_heads'
  usual = {field: config[field] for field in fields}
  said = config['per_layer_config']
  if said is None:
    # As published files have it.
    found = usual | {'head_dim': config['global_head_dim']}
    heads = config['num_global_key_value_heads']
    if heads and config['attention_k_eq_v']:
      found['num_key_value_heads'] = heads
    return found
  # Keys may have zeros in front.
  own = {arguments.parse_count(i): fields for i, fields in said.items()}
  if None in own:
    raise _refuse('per_layer_config', said, 'fields by the number of a layer')
  kinds = config['layer_types']
  each = [usual | own.get(i, {}) for i in range(len(kinds))]
  full, window = (
    [each[i] for i, kind in enumerate(kinds) if kind == of]
    for of in (FULL, SLIDING)
  )
  odd = any(x != full[0] for x in full) or any(x != usual for x in window)
  if odd or set(full[0]) != set(fields):
    what = (
      'such that layers of a kind differ in nothing, and kinds in their heads'
    )
    raise _refuse('per_layer_config', said, what)
  return full[0]


def key_value_shape(config: Mapping[str, Any], i: int) -> tuple[int, int]:
  """How many heads a layer has for keys, and the numbers of each head.

  Args:
    config: As `text_config` gives it.
    i: The layer.
  """
  whole = is_gemma4(config) and config['layer_types'][i] == FULL
  prefix = 'global_' if whole else ''
  return config[f'num_{prefix}key_value_heads'], config[f'{prefix}head_dim']


def ropes(config: Mapping[str, Any]) -> dict[str, Rope]:
  """How each kind of layer turns positions.

  Args:
    config: As `text_config` gives it.

  Raises:
    ValueError: Otherwise than gemma can.
  """
  # transformers 5 keeps these in `rope_parameters`, 4 in flat fields.
  given = config['rope_parameters'] or {}
  scaling = config['rope_scaling'] or {}
  if config['model_type'] == 'gemma2':
    both = _rope(scaling or given, config['rope_theta'])
    return {SLIDING: both, FULL: both}
  by_kind = _ByKind.check(given, 'config.json: rope_parameters')
  window = by_kind.sliding_attention or {}
  full = by_kind.full_attention or {}
  if is_gemma4(config):
    if not given:
      full = {'rope_type': _PROPORTIONAL, 'partial_rotary_factor': 0.25}
    return {
      SLIDING: _rope(window, _LOCAL, True),
      FULL: _rope(full, _GLOBAL, True),
    }
  return {
    SLIDING: _rope(window, config['rope_local_base_freq']),
    FULL: _rope(full | scaling, config['rope_theta']),
  }


def _rope(rope: Mapping[str, Any], theta: float, partly: bool = False) -> Rope:
  """One kind's.

  Args:
    rope: What config.json says.
    theta: Where it says none.
    partly: Whether a share of the angles may stand still.
  """
  said = _RopeFields.check(
    _without_nulls({'rope_theta': theta, **rope}),
    'config.json: rope_parameters',
  )
  kinds = ('default', 'linear', *([_PROPORTIONAL] if partly else ()))
  kind, share = said.rope_type, said.partial_rotary_factor if partly else 1.0
  linear = kind == 'linear'
  if kind not in kinds or (linear and ('factor' not in rope or share != 1)):
    raise ValueError(
      f'config.json: the rope parameters {arguments.quote(dict(rope))} cannot'
      f' be read; gemma has rope_type {", ".join(kinds)}; linear with a'
      ' factor.'
    )
  return Rope(
    said.rope_theta,
    1.0 if kind == 'default' else said.factor,
    share if kind == _PROPORTIONAL else 1.0,
  )
