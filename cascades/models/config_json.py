"""A config.json of a Gemma 2, 3, 3n or 4, read once into a `GemmaConfig`.

Hugging Face's families, some of which hold a text model beside other parts:

  gemma2
  gemma3_text          in gemma3
  gemma3n_text         in gemma3n
  gemma4_text          in gemma4
  gemma4_unified_text  in gemma4_unified; a Gemma 4 without parts for images
                       and sounds

Wrong types, and what gemma's code cannot represent, are refused here alone.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import pydantic

from cascades import arguments
from cascades.files import Count, FailFast, Positive, Schema, Size, one_of

FULL: Final = 'full_attention'
SLIDING: Final = 'sliding_attention'
# Names in gemma's enumerations of attention types, one for each family.
ATTENTION_TYPES = {FULL: 'GLOBAL', SLIDING: 'LOCAL_SLIDING'}
# More layers than any model has; code iterates over them.
MAX_LAYERS = 10_000
# Values that gemma's code implies; other values would be read as these.
FIXED: dict[str, Any] = dict(
  hidden_activation='gelu_pytorch_tanh',
  rms_norm_eps=1e-6,
  attention_bias=False,
  tie_word_embeddings=True,
  use_bidirectional_attention=False,
)
_PROPORTIONAL = 'proportional'
# Fields that some writers set to null instead of leaving them out.
_NULL_IS_ABSENT = {
  *('hidden_activation', 'tie_word_embeddings', 'sliding_window_pattern'),
  *('rope_local_base_freq', 'partial_rotary_factor'),
}


class Rope(NamedTuple):
  """A rotary position embedding."""

  theta: float
  factor: float = 1.0
  share: float = 1.0


def _same_for_all(field: Any) -> Any:
  """Returns the only value of a list that has one for each layer."""
  is_list = isinstance(field, list) and len(field) > 0
  return field[0] if is_list and field.count(field[0]) == len(field) else field


class _Of(frozenset):
  """Names the families that have a field; all have a field without it."""


_RESOLVED, _CLASSIC = _Of(), _Of({'gemma2', 'gemma3_text'})
_3 = _Of({'gemma3_text'})
_3N = _Of({'gemma3n_text'})
_4 = _Of({'gemma4_text', 'gemma4_unified_text'})
_3N_4, _TO_3N, _3_3N = _Of(_3N | _4), _Of(_CLASSIC | _3N), _Of(_3 | _3N)
Layers = Annotated[int, pydantic.Field(ge=1, le=MAX_LAYERS)]
_Width = Annotated[Size, pydantic.BeforeValidator(_same_for_all)]
_Type = Literal['full_attention', 'sliding_attention']
_Types = Annotated[list[_Type], FailFast]
_Share = Annotated[float, pydantic.Field(ge=0, lt=1)]
_Shares = Annotated[list[_Share], FailFast]
# transformers pads the numbers of layers with zeros.
_Layer = Annotated[int, pydantic.Field(strict=False)]
_Heads = dict[Literal['num_key_value_heads', 'head_dim'], Size]


class GemmaConfig(Schema):
  """A text model, with a value for every field of its config.json.

  Names and defaults are those of transformers. Fields that a family lacks have
  no effect.

  Attributes:
    vocab_size: Number of tokens that all embedding tables have; gemma has one
      number for all tables.
    table_size: Rows of the embedding table, some of which may be padding.
    num_key_value_heads: Key heads of a layer with a window; of layers without,
      `num_global_key_value_heads`. Likewise `head_dim`; see `key_heads`.
    layer_types: The attention type of each layer, `FULL` or `SLIDING`.
    ropes: The rotary embedding of each attention type.
    stored_dtype: Dtype that the file declares, 'int8' for the eight bits of
      `contrib.cpu`; None if it declares none.
  """

  model_type: str
  vocab_size: Size
  table_size: Annotated[Size, _RESOLVED] = 1
  hidden_size: Size = 2304
  intermediate_size: _Width = 9216
  num_hidden_layers: Layers
  num_attention_heads: Size = 8
  num_key_value_heads: Size = 4
  num_global_key_value_heads: Size
  head_dim: Size = 256
  global_head_dim: Size
  layer_types: _Types
  sliding_window: Size | None
  final_logit_softcapping: Positive | None = None
  attn_logit_softcapping: Annotated[Positive | None, _CLASSIC] = None
  query_pre_attn_scalar: Annotated[Positive, _CLASSIC] = 256
  ropes: Annotated[dict[str, Rope], _RESOLVED] = pydantic.Field(
    default_factory=dict
  )
  hidden_size_per_layer_input: Annotated[Count | None, _3N_4] = 0
  num_kv_shared_layers: Annotated[Count, _3N_4] = 0
  laurel_rank: Annotated[Size, _3N] = 64
  activation_sparsity_pattern: _Shares
  altup_coef_clip: Annotated[Positive | None, _3N] = 120.0
  altup_num_inputs: Annotated[Any, one_of(4), _3N] = 4
  attention_k_eq_v: Annotated[bool, _4] = False
  use_double_wide_mlp: Annotated[bool, _4] = False
  # 'vision' applies to tokens of a picture only, which no text has.
  use_bidirectional_attention: Annotated[Any, one_of(False, 'vision')] = False
  enable_moe_block: Annotated[bool, _4] = False
  num_experts: Annotated[Size | None, _4] = None
  top_k_experts: Annotated[Size | None, _4] = None
  moe_intermediate_size: Annotated[Size | None, _4] = None
  stored_dtype: Annotated[Any, _RESOLVED] = None

  @property
  def is_gemma3n(self) -> bool:
    """True for a Gemma 3n."""
    return self.model_type == 'gemma3n_text'

  @property
  def is_gemma4(self) -> bool:
    """True for a Gemma 4."""
    return self.model_type.startswith('gemma4')

  def key_heads(self, layer: int) -> tuple[int, int]:
    """Returns number and size of the key heads of a layer."""
    if self.layer_types[layer] == FULL:
      return self.num_global_key_value_heads, self.global_head_dim
    return self.num_key_value_heads, self.head_dim


class _File(GemmaConfig):
  """The fields as a file has them, some in other forms than resolved ones."""

  num_global_key_value_heads: Annotated[Size | None, _4] = None
  global_head_dim: Annotated[Size, _4] = 512
  layer_types: _Types | None = None
  activation_sparsity_pattern: Annotated[_Shares | None, _3N] = None
  per_layer_config: Annotated[dict[_Layer, _Heads] | None, _4] = None
  vocab_size_per_layer_input: Annotated[Count | None, _3N_4] = 262_144
  sliding_window_pattern: Annotated[Size, _3] = 6
  rope_parameters: dict[str, Any] | None = None
  rope_scaling: Annotated[dict[str, Any] | None, _TO_3N] = None
  rope_theta: Annotated[Positive, _TO_3N] = 1_000_000
  rope_local_base_freq: Annotated[Positive, _3_3N] = 10_000
  hidden_activation: Annotated[Any, one_of(FIXED['hidden_activation'])]
  rms_norm_eps: Annotated[Any, one_of(FIXED['rms_norm_eps'])]
  attention_bias: Annotated[Any, one_of(False)]
  tie_word_embeddings: Annotated[Any, one_of(True)]
  altup_active_idx: Annotated[Any, one_of(0), _3N] = 0
  altup_correct_scale: Annotated[Any, one_of(True), _3N] = True


class _Parts(Schema):
  """Parts of a file that are objects themselves."""

  text_config: dict[str, Any] | None = None
  full_attention: dict[str, Any] | None = None
  sliding_attention: dict[str, Any] | None = None


def rope_type() -> Any:
  """Returns the field `rope_type`, which older files call `type`."""
  names = pydantic.AliasChoices('rope_type', 'type')
  return pydantic.Field('default', validation_alias=names)


class _RopeFields(Schema):
  rope_type: str = rope_type()
  rope_theta: Positive
  factor: Annotated[Positive, pydantic.Field(ge=1)] | None = None
  partial_rotary_factor: Annotated[Positive, pydantic.Field(le=1)] = 1.0


# By family, where transformers' defaults are not those of `_File`.
_DEFAULTS: dict[str, dict[str, Any]] = {
  'gemma2': dict(vocab_size=256_000, num_hidden_layers=26, sliding_window=4096)
  | dict(attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
  | dict(rope_theta=10_000),
  'gemma3_text': dict(vocab_size=262_208, num_hidden_layers=26)
  | dict(sliding_window=4096),
  'gemma3n_text': dict(vocab_size=262_400, num_hidden_layers=35)
  | dict(sliding_window=512, hidden_size=2048, intermediate_size=16_384)
  | dict(num_key_value_heads=2, final_logit_softcapping=30.0)
  | dict(hidden_size_per_layer_input=256, num_kv_shared_layers=15),
  'gemma4_text': dict(vocab_size=262_144, num_hidden_layers=30)
  | dict(sliding_window=512, hidden_size_per_layer_input=256),
  'gemma4_unified_text': dict(vocab_size=262_144, num_hidden_layers=30)
  | dict(sliding_window=1024, use_bidirectional_attention='vision'),
}
# The text model's family, by the family of the model that holds it.
_MULTIMODAL = {
  name.removesuffix('_text'): name for name in _DEFAULTS if name != 'gemma2'
}
# Values of `model_type` that `read` reads.
MODEL_TYPES = (*_DEFAULTS, *_MULTIMODAL)


def defaults(family: str) -> dict[str, Any]:
  """Returns the fields of a family with transformers' defaults."""
  usual = {
    name: field.get_default()
    for name, field in _File.model_fields.items()
    if all(family in x for x in field.metadata if isinstance(x, _Of))
  }
  return usual | FIXED | _DEFAULTS[family]


def read(fields: Mapping[str, Any]) -> GemmaConfig:
  """Returns the text model of a config.json.

  Args:
    fields: The content of the file.

  Raises:
    ValueError: A field has a wrong type, or gemma cannot represent it.
  """
  family, text_fields = _find_family(fields)
  # Fields of other families are ignored, as in transformers.
  all_fields = defaults(family)
  tied = {'tie_word_embeddings': fields.get('tie_word_embeddings')}
  stated = _without_nulls({**tied, **text_fields, 'model_type': family})
  stated = {name: x for name, x in stated.items() if name in all_fields}
  file = _File.check(all_fields | stated, 'config.json')
  layers, vocab_size = file.num_hidden_layers, file.vocab_size
  if file.hidden_size_per_layer_input:
    vocab_size = min(vocab_size, file.vocab_size_per_layer_input or 0)
  sparse, types = 10 if layers > 10 else 0, _layer_types(file)
  num_heads, head_dim = _full_attention_heads(file, types)
  quantization = fields.get('quantization_config')
  is_int8 = isinstance(quantization, Mapping) and (
    quantization.get('format') == 'int-quantized'
  )
  # transformers reads the same fields; both names are in use.
  stored_dtype = fields.get('dtype') or fields.get('torch_dtype')
  resolved: dict[str, Any] = dict(file) | dict(
    vocab_size=vocab_size,
    table_size=file.vocab_size,
    layer_types=types,
    num_global_key_value_heads=num_heads,
    global_head_dim=head_dim,
    ropes=_ropes(file),
    activation_sparsity_pattern=file.activation_sparsity_pattern
    or [0.95] * sparse + [0.0] * (layers - sparse),
    stored_dtype='int8' if is_int8 else stored_dtype,
  )
  names = GemmaConfig.model_fields
  config = GemmaConfig.model_construct(**{x: resolved[x] for x in names})
  _check(config)
  return config


def _find_family(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
  """Returns the text model's family and its fields."""
  family = config.get('speculators_model_type', config.get('model_type'))
  if (name := str(family)) in _MULTIMODAL:
    parts = _Parts.check(config, 'config.json')
    return _MULTIMODAL[name], parts.text_config or {}
  if name in _DEFAULTS:
    return name, config
  raise ValueError(
    f'config.json: model_type {arguments.quote(family)} is not supported; give'
    f' a text model of Gemma 2, 3, 3n or 4 ({", ".join(MODEL_TYPES)}), or name'
    ' an assistant or a head as the drafter.'
  )


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns fields without those whose null means that they are absent."""
  nulls = {x for x in _NULL_IS_ABSENT if fields.get(x, 0) is None}
  return {name: x for name, x in fields.items() if name not in nulls}


def _layer_types(file: _File) -> list[_Type]:
  """Returns the attention type of each layer."""
  period = {'gemma2': 2, 'gemma3n_text': 5}.get(file.model_type)
  period = period or file.sliding_window_pattern
  layers = range(1, file.num_hidden_layers + 1)
  types = file.layer_types or [SLIDING if i % period else FULL for i in layers]
  # transformers gives the last layer of a Gemma 4 full attention.
  return [*types[:-1], FULL] if file.is_gemma4 else types


def _full_attention_heads(
  file: _File, types: Sequence[_Type]
) -> tuple[int, int]:
  """Returns number and size of key heads of layers with full attention."""
  num_heads, size = file.num_key_value_heads, file.head_dim
  if file.per_layer_config is not None:
    default = {'num_key_value_heads': num_heads, 'head_dim': size}
    changes = {i: default | x for i, x in file.per_layer_config.items()}
    full = changes.get(types.index(FULL), default)
    by_layer = [full if x == FULL else default for x in types]
    _require(
      dict.fromkeys(range(len(types)), default) | changes
      == dict(enumerate(by_layer)),
      'per_layer_config',
      file.per_layer_config,
      'of the layers that there are, equal in all layers of a type',
    )
    return full['num_key_value_heads'], full['head_dim']
  # Published files have fields for full attention.
  if file.is_gemma4 and file.attention_k_eq_v:
    num_heads = file.num_global_key_value_heads or num_heads
  return num_heads, file.global_head_dim if file.is_gemma4 else size


def _ropes(file: _File) -> dict[str, Rope]:
  """Returns the rotary embedding of each attention type."""
  # transformers 5 keeps the fields in `rope_parameters`, 4 in flat fields.
  parameters, scaling = file.rope_parameters or {}, file.rope_scaling or {}
  sliding = full = scaling or parameters
  theta = file.rope_theta
  if file.model_type != 'gemma2':
    by_type = _Parts.check(parameters, 'config.json: rope_parameters')
    theta, sliding = file.rope_local_base_freq, by_type.sliding_attention or {}
    full = (by_type.full_attention or {}) | scaling
  if file.is_gemma4 and not parameters:
    full = {'rope_type': _PROPORTIONAL, 'partial_rotary_factor': 0.25}
  return {
    SLIDING: _rope(file, sliding, theta),
    FULL: _rope(file, full, file.rope_theta),
  }


def _rope(file: _File, fields: dict[str, Any], theta: float) -> Rope:
  """Returns the embedding of one attention type."""
  checked = _RopeFields.check(
    _without_nulls({'rope_theta': theta, **fields}),
    'config.json: rope_parameters',
  )
  kind, factor = checked.rope_type, checked.factor
  types = ['default', 'linear'] + [_PROPORTIONAL] * file.is_gemma4
  share = checked.partial_rotary_factor if file.is_gemma4 else 1.0
  _require(
    kind in types and (kind != 'linear' or (factor and share == 1)),
    'rope_parameters',
    fields,
    f'of the rope_type {" or ".join(types)}, and linear with a factor',
  )
  return Rope(
    checked.rope_theta,
    1.0 if kind == 'default' else factor or 1.0,
    share if kind == _PROPORTIONAL else 1.0,
  )


def _check(c: GemmaConfig) -> None:
  """Refuses fields that contradict others, or that gemma cannot represent."""
  layers, queries = c.num_hidden_layers, c.num_attention_heads

  def require(field: str, is_valid: Any, expected: str) -> None:
    _require(is_valid, field, getattr(c, field), expected)

  require('layer_types', len(c.layer_types) == layers, 'one for each layer')
  has_window = SLIDING in c.layer_types
  require('sliding_window', c.sliding_window or not has_window, 'a number')
  for scope in ('', 'global_'):
    name = f'num_{scope}key_value_heads'
    divides = queries % getattr(c, name) == 0
    require(name, divides, f'a divisor of num_attention_heads ({queries})')
    name = f'{scope}head_dim'
    # Rotary embeddings turn pairs.
    require(name, getattr(c, name) % 2 == 0, 'even')
  if c.model_type in ('gemma2', 'gemma3_text'):
    scalars = c.head_dim, c.hidden_size // queries
    name, expected = 'query_pre_attn_scalar', ' or '.join(map(str, scalars))
    require(name, c.query_pre_attn_scalar in scalars, expected)
  name = 'use_bidirectional_attention'
  require(name, c.is_gemma4 or not c.use_bidirectional_attention, 'false')
  # gemma has one number for the rows of both tables.
  _require(c.vocab_size, 'vocab_size_per_layer_input', 0, 'at least 1')
  name, shares = 'activation_sparsity_pattern', c.activation_sparsity_pattern
  require(name, len(shares) == layers, f'of {layers} numbers')
  # In transformers, a layer without a cache reads the last layer of its type
  # that has one. In gemma, it reads the last layer for full attention and the
  # one before for the other type.
  name, shared = 'num_kv_shared_layers', c.num_kv_shared_layers
  last = c.layer_types[: max(0, layers - shared)][-2:]
  expected = 'such that a sliding and a full layer precede the shared ones'
  require(name, not shared or last == [SLIDING, FULL], expected)
  if c.is_gemma3n and queries == c.num_key_value_heads:
    require(name, not shared, '0 with as many key heads as query heads')
  if c.enable_moe_block:
    for name in ('num_experts', 'top_k_experts', 'moe_intermediate_size'):
      require(name, getattr(c, name), 'a number with enable_moe_block')
    name = 'use_double_wide_mlp'
    require(name, not c.use_double_wide_mlp, 'false with enable_moe_block')


def _require(is_valid: Any, field: str, value: Any, expected: str) -> None:
  if not is_valid:
    raise ValueError(
      f'config.json: {field} must be {expected}, got {arguments.quote(value)};'
      ' give another model.'
    )
