"""What a config.json says of a text model, with every field spelled out.

Hugging Face's families, of which some hold a text model beside others:

  gemma2
  gemma3_text          in gemma3
  gemma3n_text         in gemma3n
  gemma4_text          in gemma4
  gemma4_unified_text  in gemma4_unified; a Gemma 4 without the parts below

What gemma's code cannot be is refused here, before anything is made.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

FULL, SLIDING = 'full_attention', 'sliding_attention'
# gemma's names of them; of which each family has an enumeration of its own.
KINDS = {FULL: 'GLOBAL', SLIDING: 'LOCAL_SLIDING'}
# The text model's family, by that of what holds it.
_OUTER = {
  'gemma3': 'gemma3_text',
  'gemma3n': 'gemma3n_text',
  'gemma4': 'gemma4_text',
  'gemma4_unified': 'gemma4_unified_text',
}
# What transformers takes where config.json is silent, which it often is.
_SHAPE = dict(
  hidden_size=2304,
  intermediate_size=9216,
  num_attention_heads=8,
  num_key_value_heads=4,
  head_dim=256,
)
_CLASSIC = dict(
  **_SHAPE,
  num_hidden_layers=26,
  query_pre_attn_scalar=256,
  sliding_window=4096,
)
_FOUR = dict(
  **_SHAPE,
  num_hidden_layers=30,
  vocab_size=262_144,
  vocab_size_per_layer_input=262_144,
  final_logit_softcapping=None,
  attention_k_eq_v=False,
  num_kv_shared_layers=0,
  use_double_wide_mlp=False,
  enable_moe_block=False,
)
_FAMILIES = {
  'gemma2': dict(
    **_CLASSIC,
    vocab_size=256_000,
    final_logit_softcapping=30.0,
    attn_logit_softcapping=50.0,
  ),
  'gemma3_text': dict(
    **_CLASSIC,
    vocab_size=262_208,
    final_logit_softcapping=None,
    attn_logit_softcapping=None,
  ),
  'gemma3n_text': dict(
    vocab_size=262_400,
    vocab_size_per_layer_input=262_144,
    hidden_size=2048,
    intermediate_size=16_384,
    num_hidden_layers=35,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=256,
    sliding_window=512,
    final_logit_softcapping=30.0,
    hidden_size_per_layer_input=256,
    num_kv_shared_layers=15,
    laurel_rank=64,
    altup_coef_clip=120.0,
    altup_num_inputs=4,
    altup_active_idx=0,
    altup_correct_scale=True,
  ),
  'gemma4_text': dict(
    **_FOUR,
    sliding_window=512,
    use_bidirectional_attention=None,
    hidden_size_per_layer_input=256,
  ),
  'gemma4_unified_text': dict(
    **_FOUR,
    sliding_window=1024,
    use_bidirectional_attention='vision',
    hidden_size_per_layer_input=0,
  ),
}
# Layers from one with full attention to the next, where nothing is said.
_EVERY = {'gemma2': 2, 'gemma3n_text': 5}
# What gemma's code leaves no choice about; anything else would be read as this.
FIXED = dict(
  hidden_activation='gelu_pytorch_tanh',
  rms_norm_eps=1e-6,
  attention_bias=False,
  tie_word_embeddings=True,
  use_bidirectional_attention=False,
)
_FIXED_3N = dict(
  altup_num_inputs=4, altup_active_idx=0, altup_correct_scale=True
)
_LOCAL, _GLOBAL = 10_000, 1_000_000


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


def is_four(config: Mapping[str, Any]) -> bool:
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
    raise ValueError(
      'config.json: speculators_model_type'
      f' {config["speculators_model_type"]!r} is no model that answers alone;'
      ' give it as the drafter of its verifier.'
    )
  family, outer = config.get('model_type'), config
  if family in _OUTER:
    config, family = config.get('text_config') or {}, _OUTER[family]
  if family not in _FAMILIES:
    if str(family).endswith('_assistant'):
      raise ValueError(
        f'config.json: model_type {family!r} is a drafter that looks into a'
        " Gemma 4's caches, and no model by itself; give its folder as drafter,"
        ' beside the verifier that it was made for.'
      )
    raise ValueError(
      f'config.json: model_type {family!r} cannot be read; give a text model of'
      f' Gemma 2, 3, 3n or 4 ({", ".join([*_FAMILIES, *_OUTER])}).'
    )
  config = {
    **FIXED,
    **_FAMILIES[family],
    'tie_word_embeddings': outer.get('tie_word_embeddings', True),
    **config,
    'model_type': family,
  }
  fixed = dict(FIXED)
  if family == 'gemma3n_text':
    fixed |= _FIXED_3N
  if is_four(config) and config['use_bidirectional_attention'] == 'vision':
    # Between tokens of a picture, of which a text has none.
    del fixed['use_bidirectional_attention']
  for field, value in fixed.items():
    if not same(config[field] or False, value):
      raise ValueError(
        f'config.json: {field} is {config[field]!r}, but gemma has no other'
        f' than {value!r}; give another model.'
      )
  config['layer_types'] = _layer_types(config)
  if family == 'gemma3n_text':
    _resolve_3n(config)
  elif is_four(config):
    _resolve_4(config)
  return config


def same(given: Any, known: Any) -> bool:
  """Whether a file says a value, be it as its nearest float32."""
  if isinstance(known, float) and isinstance(given, float):
    return np.float32(given) == np.float32(known)
  return given == known


def _refuse(field: str, value: Any, why: str) -> ValueError:
  return ValueError(
    f'config.json: {field} is {value!r}, but {why}; give another model.'
  )


def _layer_types(config: Mapping[str, Any]) -> list[str]:
  """The kind of each layer.

  Raises:
    ValueError: There are too few, or of other kinds.
  """
  family, layers = config['model_type'], config['num_hidden_layers']
  every = _EVERY.get(family, config.get('sliding_window_pattern', 6))
  kinds = list(config.get('layer_types') or ())
  kinds = kinds or [SLIDING if (i + 1) % every else FULL for i in range(layers)]
  if is_four(config):
    # As transformers has it.
    kinds[-1:] = [FULL]
  if len(kinds) != layers or not set(kinds) <= {FULL, SLIDING}:
    raise ValueError(
      f'config.json: layer_types must say {FULL} or {SLIDING} for each of the'
      f' {layers} layers, not {kinds}.'
    )
  return kinds


def _resolve_3n(config: dict[str, Any]) -> None:
  """Spells out what is Gemma 3n's own."""
  layers = config['num_hidden_layers']
  sizes = config['intermediate_size']
  sizes = set(sizes) if isinstance(sizes, list | tuple) else {sizes}
  if len(sizes) != 1:
    raise _refuse(
      'intermediate_size',
      config['intermediate_size'],
      'in gemma all layers have the same',
    )
  (config['intermediate_size'],) = sizes
  sparse = config.get('activation_sparsity_pattern')
  if sparse is None:
    first = 10 if layers > 10 else 0
    sparse = [0.95] * first + [0.0] * (layers - first)
  if len(sparse) != layers:
    raise _refuse(
      'activation_sparsity_pattern', sparse, f'there are {layers} layers'
    )
  config['activation_sparsity_pattern'] = list(sparse)
  _resolve_tables(config)
  _check_sharing(config)
  shared = config['num_kv_shared_layers']
  if shared and config['num_attention_heads'] == config['num_key_value_heads']:
    raise _refuse(
      'num_kv_shared_layers', shared, 'gemma has a key for each query then'
    )


def _resolve_4(config: dict[str, Any]) -> None:
  """Spells out what is Gemma 4's own."""
  _resolve_tables(config)
  _check_sharing(config)
  of_full = _of_full_layers(config)
  config['global_head_dim'] = of_full['head_dim']
  config['num_global_key_value_heads'] = of_full['num_key_value_heads']
  if config['enable_moe_block']:
    config['moe_intermediate_size'] = config.get(
      'moe_intermediate_size'
    ) or config.get('expert_intermediate_size')
    for field in ('num_experts', 'top_k_experts', 'moe_intermediate_size'):
      if not config.get(field):
        raise _refuse(field, config.get(field), 'enable_moe_block asks for it')
    if config['use_double_wide_mlp']:
      raise _refuse(
        'use_double_wide_mlp', True, 'gemma has no experts beside that'
      )


def _resolve_tables(config: dict[str, Any]) -> None:
  """As many tokens as both tables have, of which gemma has one number."""
  rows = config['vocab_size']
  config['table_size'] = rows
  if config['hidden_size_per_layer_input']:
    config['vocab_size'] = min(rows, config['vocab_size_per_layer_input'])


def _check_sharing(config: Mapping[str, Any]) -> None:
  """Refuses layers that share caches otherwise than gemma's do.

  A layer that shares takes the last one of its kind that does not; gemma, for
  one with full attention the last, for the others the last but one.
  """
  shared = config['num_kv_shared_layers']
  own = config['layer_types'][: config['num_hidden_layers'] - shared]
  if shared and own[-2:] != [SLIDING, FULL]:
    raise _refuse(
      'num_kv_shared_layers',
      shared,
      'before them gemma asks for a layer with a window and one without',
    )


def _of_full_layers(config: Mapping[str, Any]) -> dict[str, int]:
  """Sizes of heads, and how many, of layers with full attention.

  Raises:
    ValueError: They, or others, are not all alike.
  """
  fields = 'head_dim', 'num_key_value_heads'
  usual = {field: config[field] for field in fields}
  said = config.get('per_layer_config')
  if said is None:
    # As published files have it.
    found = usual | {'head_dim': config.get('global_head_dim', 512)}
    heads = config.get('num_global_key_value_heads')
    if heads and config['attention_k_eq_v']:
      found['num_key_value_heads'] = heads
    return found
  kinds = config['layer_types']
  # Keys may have zeros in front.
  own = {int(i): dict(fields) for i, fields in said.items()}
  each = [usual | own.get(i, {}) for i in range(len(kinds))]
  full, window = (
    [each[i] for i, kind in enumerate(kinds) if kind == of]
    for of in (FULL, SLIDING)
  )
  odd = any(x != full[0] for x in full) or any(x != usual for x in window)
  if odd or set(full[0]) != set(fields):
    raise _refuse(
      'per_layer_config',
      said,
      'in gemma layers of a kind differ in nothing, and kinds in their heads',
    )
  return full[0]


def key_heads(config: Mapping[str, Any], i: int) -> tuple[int, int]:
  """How many heads a layer has for keys, and the numbers of each head.

  Args:
    config: As `text_config` gives it.
    i: The layer.
  """
  whole = is_four(config) and config['layer_types'][i] == FULL
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
  given = config.get('rope_parameters') or {}
  scaling = config.get('rope_scaling') or {}
  if config['model_type'] == 'gemma2':
    both = _rope(scaling or given, config.get('rope_theta', _LOCAL))
    return {SLIDING: both, FULL: both}
  window, full = given.get(SLIDING) or {}, given.get(FULL) or {}
  if is_four(config):
    if not given:
      full = {'rope_type': 'proportional', 'partial_rotary_factor': 0.25}
    return {
      SLIDING: _rope(window, _LOCAL, True),
      FULL: _rope(full, _GLOBAL, True),
    }
  return {
    SLIDING: _rope(window, config.get('rope_local_base_freq', _LOCAL)),
    FULL: _rope(full | scaling, config.get('rope_theta', _GLOBAL)),
  }


def _rope(rope: Mapping[str, Any], theta: float, partly: bool = False) -> Rope:
  """One kind's.

  Args:
    rope: What config.json says.
    theta: Where it says none.
    partly: Whether a share of the angles may stand still.
  """
  kind = rope.get('rope_type', rope.get('type', 'default'))
  share = rope.get('partial_rotary_factor', 1.0) if partly else 1.0
  kinds = (
    ('default', 'linear', 'proportional') if partly else ('default', 'linear')
  )
  linear = kind == 'linear'
  if kind not in kinds or (linear and ('factor' not in rope or share != 1)):
    raise ValueError(
      f'config.json: the rope parameters {dict(rope)} cannot be read; gemma has'
      f' rope_type {", ".join(kinds)}; linear with a factor.'
    )
  return Rope(
    rope.get('rope_theta', theta),
    1.0 if kind == 'default' else rope.get('factor', 1.0),
    share if kind == 'proportional' else 1.0,
  )
