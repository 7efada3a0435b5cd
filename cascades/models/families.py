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

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from cascades import arguments
from cascades.models.config_fields import number, same, table, whole

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
_FIXED_3N = dict(
  altup_num_inputs=4, altup_active_idx=0, altup_correct_scale=True
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
    **_FIXED_3N,
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
_PATTERN = 'sliding_window_pattern'
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
# Fields that other families have, and what is worked out here.
_FOREIGN = {
  family: {*itertools.chain(*_FAMILIES.values()), 'table_size'}.difference(
    fields, FIXED
  )
  for family, fields in _FAMILIES.items()
}
_LOCAL, _GLOBAL = 10_000, 1_000_000
# More than any model has; they are gone through one by one.
MOST_LAYERS = 10_000
# Of those that a family has, and that may not be null, whole numbers by the
# least that they may be. All else is checked where it is read.
_WHOLE = dict(
  num_kv_shared_layers=0,
  vocab_size=1,
  hidden_size=1,
  num_attention_heads=1,
  num_key_value_heads=1,
  head_dim=1,
  laurel_rank=1,
)
# Other numbers, and whether null switches them off.
_NUMBERS = dict(
  final_logit_softcapping=True,
  attn_logit_softcapping=True,
  altup_coef_clip=True,
  query_pre_attn_scalar=False,
)
_PROPORTIONAL, _SHARE = 'proportional', 'partial_rotary_factor'


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
  if not isinstance(family, str | None):
    raise ValueError(
      f'config.json: model_type is {arguments.shown(family)}, and not the name'
      ' of a family; fetch it again.'
    )
  if family in _OUTER:
    config, family = table(config, 'text_config'), _OUTER[family]
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
  for name in _FOREIGN[family]:
    # As transformers, which leaves it alone too.
    config.pop(name, None)
  fixed = FIXED | (_FIXED_3N if family == 'gemma3n_text' else {})
  if is_four(config) and config['use_bidirectional_attention'] == 'vision':
    # Between tokens of a picture, of which a text has none.
    del fixed['use_bidirectional_attention']
  for field, value in fixed.items():
    given = config[field]
    # Null is as good as false, and no number.
    if not same(given or False if value is False else given, value):
      raise ValueError(
        f'config.json: {field} is {config[field]!r}, but gemma has no other'
        f' than {value!r}; give another model.'
      )
  _check_numbers(config)
  config['layer_types'] = _layer_types(config)
  if family == 'gemma3n_text':
    _resolve_3n(config)
  else:
    whole(config, 'intermediate_size')
    if is_four(config):
      _resolve_4(config)
  # A window is asked for where layers have one.
  whole(config, 'sliding_window', or_null=SLIDING not in config['layer_types'])
  ropes(config)
  return config


def _check_numbers(config: Mapping[str, Any]) -> None:
  """Refuses what is no number among fields of which each family has its own.

  Raises:
    ValueError: One is none.
  """
  known = _FAMILIES[config['model_type']]
  for name, low in _WHOLE.items():
    if name in known:
      whole(config, name, low)
  for name, or_null in _NUMBERS.items():
    if name in known:
      number(config, name, or_null)
  whole(config, 'num_hidden_layers', 1, MOST_LAYERS)
  if 'hidden_size_per_layer_input' in known:
    name, four = 'hidden_size_per_layer_input', is_four(config)
    size = whole(config, name, 0, or_null=four)
    name, least = 'vocab_size_per_layer_input', 1 if size else 0
    whole(config, name, least, or_null=not size)


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
  kinds = config.get('layer_types')
  if kinds is None or kinds == []:
    every = _EVERY.get(family) or whole({_PATTERN: 6} | config, _PATTERN)
    kinds = [SLIDING if (i + 1) % every else FULL for i in range(layers)]
  known = isinstance(kinds, list | tuple) and all(
    kind in (FULL, SLIDING) for kind in kinds
  )
  if not known or len(kinds) != layers:
    raise ValueError(
      f'config.json: layer_types must say {FULL} or {SLIDING} for each of the'
      f' {layers} layers, not {arguments.shown(kinds)}; fetch it again.'
    )
  # As transformers has it of a Gemma 4.
  return [*kinds[:-1], FULL] if is_four(config) else kinds


def _resolve_3n(config: dict[str, Any]) -> None:
  """Spells out what is Gemma 3n's own."""
  layers = config['num_hidden_layers']
  sizes = config['intermediate_size']
  sizes = sizes if isinstance(sizes, list | tuple) else [sizes]
  sizes = {
    whole({'intermediate_size': size}, 'intermediate_size') for size in sizes
  }
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
  known = isinstance(sparse, list | tuple) and len(sparse) == layers
  if not known or not all(
    type(x) in (int, float) and 0 <= x < 1 for x in sparse
  ):
    raise _refuse(
      'activation_sparsity_pattern',
      sparse,
      f'there are {layers} layers, each with a number from 0 to less than 1',
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
    name = 'moe_intermediate_size'
    config[name] = config.get(name) or config.get('expert_intermediate_size')
    for field in ('num_experts', 'top_k_experts', name):
      if not config.get(field):
        raise _refuse(field, config.get(field), 'enable_moe_block asks for it')
      whole(config, field)
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
    size = whole({'global_head_dim': 512} | dict(config), 'global_head_dim')
    found = usual | {'head_dim': size}
    heads = whole(config, 'num_global_key_value_heads', or_null=True)
    if heads and config['attention_k_eq_v']:
      found['num_key_value_heads'] = heads
    return found
  kinds = config['layer_types']
  said, own = table(config, 'per_layer_config'), {}
  for i in said:
    if not i.isdecimal():
      raise _refuse(
        'per_layer_config', said, f'{i!r} is the number of no layer'
      )
    # Keys may have zeros in front.
    own[int(i)] = table(said, i)
    for name in own[int(i)]:
      whole(own[int(i)], name)
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
  given = table(config, 'rope_parameters')
  scaling = table(config, 'rope_scaling')
  if config['model_type'] == 'gemma2':
    both = _rope(scaling or given, _theta(config, 'rope_theta', _LOCAL))
    return {SLIDING: both, FULL: both}
  window, full = (
    table(given, kind, 'config.json: rope_parameters')
    for kind in (SLIDING, FULL)
  )
  if is_four(config):
    if not given:
      full = {'rope_type': 'proportional', 'partial_rotary_factor': 0.25}
    return {
      SLIDING: _rope(window, _LOCAL, True),
      FULL: _rope(full, _GLOBAL, True),
    }
  return {
    SLIDING: _rope(window, _theta(config, 'rope_local_base_freq', _LOCAL)),
    FULL: _rope(full | scaling, _theta(config, 'rope_theta', _GLOBAL)),
  }


def _theta(fields: Mapping[str, Any], name: str, usual: float) -> float:
  """The base of a kind's frequencies, or the usual one where it is absent."""
  return number({name: usual} | dict(fields), name, where='config.json')


def _rope(rope: Mapping[str, Any], theta: float, partly: bool = False) -> Rope:
  """One kind's.

  Args:
    rope: What config.json says.
    theta: Where it says none.
    partly: Whether a share of the angles may stand still.
  """
  kind = rope.get('rope_type', rope.get('type', 'default'))
  share = rope.get(_SHARE, 1.0) if partly else 1.0
  kinds = ('default', 'linear', *([_PROPORTIONAL] if partly else ()))
  linear = kind == 'linear'
  if kind not in kinds or (linear and ('factor' not in rope or share != 1)):
    raise ValueError(
      f'config.json: the rope parameters {dict(rope)} cannot be read; gemma has'
      f' rope_type {", ".join(kinds)}; linear with a factor.'
    )
  where = 'config.json: rope_parameters'
  rope = {'rope_theta': theta, 'factor': 1.0, _SHARE: share} | dict(rope)
  return Rope(
    number(rope, 'rope_theta', where=where),
    1.0 if kind == 'default' else number(rope, 'factor', where=where),
    number(rope, _SHARE, where=where, high=1) if kind == _PROPORTIONAL else 1.0,
  )
