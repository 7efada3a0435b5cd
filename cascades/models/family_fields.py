"""The fields of a config.json that each family has, with types and defaults.

Defaults are those of transformers. A field that gemma's code cannot represent
must have the value in `FIXED`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

from cascades.untrusted.schema import (
  Count,
  FailFast,
  Positive,
  Schema,
  Size,
  one_of,
)

# Values that gemma's code implies; other values would be read as these.
FIXED: dict[str, Any] = dict(
  hidden_activation='gelu_pytorch_tanh',
  rms_norm_eps=1e-6,
  attention_bias=False,
  tie_word_embeddings=True,
  use_bidirectional_attention=False,
)
# Fields that some writers set to null instead of leaving them out.
_NULL_IS_ABSENT = {
  *('hidden_activation', 'tie_word_embeddings', 'sliding_window_pattern'),
  *('rope_local_base_freq', 'partial_rotary_factor'),
}
# More layers than any model has; code iterates over them.
MAX_LAYERS = 10_000
# Base of rotary frequencies in layers with a window, and in layers without.
LOCAL_THETA, GLOBAL_THETA = 10_000, 1_000_000


_GELU = Annotated[Any, one_of(FIXED['hidden_activation'])]
_EPS = Annotated[Any, one_of(FIXED['rms_norm_eps'])]
# 'vision' applies to tokens of a picture only, which no text has.
_ImagesOnly = Annotated[Any, one_of(False, 'vision')]
_LayerType = Literal['full_attention', 'sliding_attention']
_Sparsity = Annotated[float, pydantic.Field(ge=0, lt=1)]
Layers = Annotated[int, pydantic.Field(ge=1, le=MAX_LAYERS)]


_Sizes = Annotated[list[Size], FailFast]


class TextFields(Schema):
  """Fields of all families, with transformers' defaults."""

  model_type: str
  vocab_size: Size
  hidden_size: Size = 2304
  intermediate_size: Size | _Sizes = 9216
  num_hidden_layers: Layers
  num_attention_heads: Size = 8
  num_key_value_heads: Size = 4
  head_dim: Size = 256
  sliding_window: Size | None
  layer_types: Annotated[list[_LayerType], FailFast] | None = None
  final_logit_softcapping: Positive | None = None
  rope_parameters: dict[str, Any] | None = None
  rope_scaling: dict[str, Any] | None = None
  hidden_activation: _GELU = FIXED['hidden_activation']
  rms_norm_eps: _EPS = FIXED['rms_norm_eps']
  attention_bias: Annotated[Any, one_of(False)] = False
  tie_word_embeddings: Annotated[Any, one_of(True)] = True
  use_bidirectional_attention: Annotated[Any, one_of(False)] = False


class _Classic(TextFields):
  """Fields of Gemma 2 and 3."""

  num_hidden_layers: Layers = 26
  intermediate_size: Size = 9216
  query_pre_attn_scalar: Positive = 256
  sliding_window: Size | None = 4096
  attn_logit_softcapping: Positive | None = None


class _Gemma2(_Classic):
  """Fields of Gemma 2."""

  vocab_size: Size = 256_000
  final_logit_softcapping: Positive | None = 30.0
  attn_logit_softcapping: Positive | None = 50.0
  rope_theta: Positive = LOCAL_THETA


class _Gemma3(_Classic):
  """Fields of Gemma 3."""

  vocab_size: Size = 262_208
  # Layers from one with full attention to the next, without `layer_types`.
  sliding_window_pattern: Size = 6
  rope_theta: Positive = GLOBAL_THETA
  rope_local_base_freq: Positive = LOCAL_THETA


class _Gemma3n(TextFields):
  """Fields of Gemma 3n."""

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
  activation_sparsity_pattern: Annotated[list[_Sparsity], FailFast] | None = (
    None
  )
  altup_coef_clip: Positive | None = 120.0
  altup_num_inputs: Annotated[Any, one_of(4)] = 4
  altup_active_idx: Annotated[Any, one_of(0)] = 0
  altup_correct_scale: Annotated[Any, one_of(True)] = True
  rope_theta: Positive = GLOBAL_THETA
  rope_local_base_freq: Positive = LOCAL_THETA


class _Gemma4(TextFields):
  """Fields of Gemma 4."""

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
  use_bidirectional_attention: _ImagesOnly = None


class _Unified(_Gemma4):
  """Fields of a Gemma 4 without parts for pictures and sounds."""

  sliding_window: Size | None = 1024
  hidden_size_per_layer_input: Count | None = 0
  use_bidirectional_attention: _ImagesOnly = 'vision'


FAMILIES: dict[str, type[TextFields]] = {
  'gemma2': _Gemma2,
  'gemma3_text': _Gemma3,
  'gemma3n_text': _Gemma3n,
  'gemma4_text': _Gemma4,
  'gemma4_unified_text': _Unified,
}
# Fields of any family, and the field that `families.text_config` adds.
KNOWN_FIELDS = {'table_size'}.union(
  *(x.model_fields for x in FAMILIES.values())
)


def without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns fields without those whose null means that they are absent."""
  nulls = {x for x in _NULL_IS_ABSENT if fields.get(x, 0) is None}
  return {name: x for name, x in fields.items() if name not in nulls}
