"""EAGLE-3 heads on disk: folders as the `speculators` library writes them.

Their config.json has `speculators_model_type: eagle3`; other algorithms of the
library are refused, and so are layers that are not Llama's. A head does not
record its verifier, so only sizes are checked. With another verifier of the
same size most drafts are rejected: texts stay correct, but decoding is slow.
"""

import pathlib
import sys
from collections.abc import Collection, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic
from jaxtyping import PyTree

from cascades.drafters.eagle import eagle_drafter
from cascades.models import (
  checkpoints,
  config_json,
  hub,
  param_dtypes,
  tensor_files,
)
from cascades.untrusted import display
from cascades.untrusted.schema import Count, Positive, Schema, Size, one_of

_KIND = 'speculators_model_type'
_LAYER_IDS = 'eagle_aux_hidden_state_layer_ids'


_Kinds = Annotated[Any, one_of(None, [config_json.FULL], [config_json.SLIDING])]


class _Layer(Schema):
  """The fields of a Llama layer, with the defaults of transformers."""

  model_type: Annotated[Any, one_of('llama')] = 'llama'
  num_hidden_layers: Annotated[Any, one_of(1)]
  vocab_size: Size = 32_000
  hidden_size: Size = 4096
  intermediate_size: Size = 11_008
  num_attention_heads: Size = 32
  num_key_value_heads: Size | None = None
  head_dim: Size | None = None
  hidden_act: Annotated[Any, one_of('silu')] = 'silu'
  rms_norm_eps: Positive = 1e-6
  attention_bias: Annotated[Any, one_of(False)] = False
  mlp_bias: Annotated[Any, one_of(False)] = False
  layer_types: _Kinds = None
  sliding_window: Size | None = None
  # transformers 5 keeps these in `rope_parameters`, 4 in flat fields.
  rope_theta: Positive = 10_000.0
  rope_parameters: dict[str, Any] | None = None
  rope_scaling: dict[str, Any] | None = None


class _Rope(Schema):
  """The fields of rotary embeddings."""

  rope_type: Annotated[Any, one_of('default')] = config_json.rope_type()
  rope_theta: Positive


class _Head(Schema):
  """The fields of a head."""

  speculators_model_type: Annotated[Any, one_of('eagle3')]
  transformer_layer_config: _Layer
  eagle_aux_hidden_state_layer_ids: (
    Annotated[list[Count], pydantic.Field(min_length=1)] | None
  ) = None
  draft_vocab_size: Size = 32_000
  target_hidden_size: Size | None = None
  norm_before_residual: bool = False
  norm_before_fc: bool = False
  fc_norm: bool = False
  norm_output: bool = False


_NORMS = {
  'token_norm': 'layers.0.input_layernorm.weight',
  'state_norm': 'layers.0.hidden_norm.weight',
  'mlp_norm': 'layers.0.post_attention_layernorm.weight',
  'norm': 'norm.weight',
}
# Prefixes of the tensors that decide the drafts.
_DECISIVE = 'layers.', 'input_norm.', 'fc_norm.'
_EMBEDDINGS, _BIAS, _OFFSETS = 'embed_tokens.weight', 'fc.bias', 'd2t'


class EagleCheckpoint(NamedTuple):
  """A head, and what its verifier must have."""

  params: PyTree
  config: dict[str, Any]
  name: str


def make_drafter(
  checkpoint: EagleCheckpoint, verifier: checkpoints.Checkpoint
) -> eagle_drafter.EagleDrafter:
  """Makes the drafter of a head for a verifier."""
  config = checkpoint.config
  layer = config['transformer_layer_config']
  return eagle_drafter.EagleDrafter(
    verifier.model,
    _check_verifier(checkpoint, verifier),
    theta=layer['rope_theta'],
    epsilon=layer['rms_norm_eps'],
    norm_before_residual=config['norm_before_residual'],
    norm_output=config['norm_output'],
    window=layer['sliding_window'],
  )


def is_speculator(name: str | pathlib.Path) -> bool:
  """Returns True for a folder that the `speculators` library wrote."""
  return _KIND in tensor_files.read_config(name)


def load(
  folder: str | pathlib.Path, dtype: str | None = None
) -> EagleCheckpoint:
  """Reads a head."""
  checkpoints.check_dtype(dtype)
  folder = pathlib.Path(folder)
  config = _read_config(folder)
  tensors = tensor_files.open_folder(folder)
  shapes = _shapes(config, tensors)
  # A tensor that is not read here may change the drafts.
  unread = [x for x in tensors if x.startswith(_DECISIVE) and x not in shapes]
  if unread:
    raise ValueError(
      f'drafter: {folder} has a tensor {min(unread)} that no supported field of'
      ' its config.json explains; give another head.'
    )
  arrays = tensor_files.read_all(
    folder, tensors, shapes, field='drafter', ids=_OFFSETS
  )
  params = _arrange(config, arrays, folder)
  stored = (x.dtype for x in arrays.values())
  dtype = dtype or param_dtypes.choose_dtype(stored, folder)
  params = param_dtypes.device_put_params(params, dtype or params['join'].dtype)
  return EagleCheckpoint(params, config, hub.label(folder))


def _read_config(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the fields of a config.json, with all defaults filled in."""
  label = f'drafter: {folder}/config.json'
  head = _Head.check(tensor_files.read_config(folder), label)
  layer = head.transformer_layer_config
  rope = layer.rope_parameters or layer.rope_scaling or {}
  rope = _Rope.check({'rope_theta': layer.rope_theta} | rope, label)
  num_heads = layer.num_attention_heads
  num_kv_heads = layer.num_key_value_heads or num_heads
  if num_heads % num_kv_heads:
    raise ValueError(
      f'{label}: num_key_value_heads must divide num_attention_heads'
      f' ({num_heads}), got {num_kv_heads}; fetch it again.'
    )
  if head.norm_before_fc and head.fc_norm:
    raise ValueError(
      f'{label}: norm_before_fc cannot be combined with fc_norm, and both are'
      ' true; fetch it again.'
    )
  # `sliding_window` counts only in a layer of that kind.
  has_window = layer.layer_types == [config_json.SLIDING]
  layer = dict(layer) | dict(
    sliding_window=layer.sliding_window if has_window else None,
    rope_theta=rope.rope_theta,
    num_key_value_heads=num_kv_heads,
    head_dim=layer.head_dim or layer.hidden_size // num_heads,
  )
  return dict(head) | dict(
    transformer_layer_config=layer,
    target_hidden_size=head.target_hidden_size or layer['hidden_size'],
  )


def _shapes(
  config: Mapping[str, Any], tensors: Collection[str]
) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of the tensors that a head must have, by name."""
  layer = config['transformer_layer_config']
  width, hidden = layer['hidden_size'], layer['intermediate_size']
  num_states = len(config[_LAYER_IDS] or range(3))
  states = num_states * config['target_hidden_size']
  draft_vocab_size, vocab_size = config['draft_vocab_size'], layer['vocab_size']
  queries, keys = (
    layer[f'num_{name}_heads'] * layer['head_dim']
    for name in ('attention', 'key_value')
  )
  shapes = {
    'fc.weight': (width, states),
    'layers.0.self_attn.q_proj.weight': (queries, 2 * width),
    'layers.0.self_attn.k_proj.weight': (keys, 2 * width),
    'layers.0.self_attn.v_proj.weight': (keys, 2 * width),
    'layers.0.self_attn.o_proj.weight': (width, queries),
    'layers.0.mlp.gate_proj.weight': (hidden, width),
    'layers.0.mlp.up_proj.weight': (hidden, width),
    'layers.0.mlp.down_proj.weight': (width, hidden),
    'lm_head.weight': (draft_vocab_size, width),
  } | dict.fromkeys(_NORMS.values(), (width,))
  if config['norm_before_fc']:
    shapes['input_norm.weight'] = (states,)
  if config['fc_norm']:
    names = _fc_norm_names(num_states)
    shapes |= dict.fromkeys(names, (states // num_states,))
  if _EMBEDDINGS in tensors or width != config['target_hidden_size']:
    shapes[_EMBEDDINGS] = vocab_size, width
  if _BIAS in tensors:
    shapes[_BIAS] = (width,)
  if _OFFSETS in tensors or draft_vocab_size != vocab_size:
    shapes[_OFFSETS] = (draft_vocab_size,)
  return shapes


def _fc_norm_names(num_states: int) -> list[str]:
  """Returns the names of the norms of the verifier's states, one each."""
  return [f'fc_norm.{i}.weight' for i in range(num_states)]


def _arrange(
  config: Mapping[str, Any], arrays: Mapping[str, np.ndarray], folder: Any
) -> PyTree:
  """Returns the parameters of an `EagleDrafter`."""
  layer = config['transformer_layer_config']
  size = layer['head_dim']

  def split_heads(name):
    matrix = arrays[f'layers.0.self_attn.{name}_proj.weight'].T
    return matrix.reshape(len(matrix), -1, size)

  out = arrays['layers.0.self_attn.o_proj.weight'].T
  params = {
    'join': arrays['fc.weight'].T,
    'query': split_heads('q'),
    'key': split_heads('k'),
    'value': split_heads('v'),
    'out': out.reshape(-1, size, out.shape[-1]),
    'table': arrays['lm_head.weight'],
  }
  params |= {name: arrays[tensor] for name, tensor in _NORMS.items()}
  for name in ('gate', 'up', 'down'):
    params[name] = arrays[f'layers.0.mlp.{name}_proj.weight'].T
  for name, tensor in (
    ('input_norm', 'input_norm.weight'),
    ('embeddings', _EMBEDDINGS),
    ('join_bias', _BIAS),
  ):
    if tensor in arrays:
      params[name] = arrays[tensor]
  if config['fc_norm']:
    num_states = len(arrays['fc.weight'][0]) // config['target_hidden_size']
    params['fc_norms'] = np.stack(
      [arrays[name] for name in _fc_norm_names(num_states)]
    )
  if _OFFSETS in arrays:
    tokens = np.arange(len(arrays[_OFFSETS])) + arrays[_OFFSETS]
    in_range = (tokens >= 0) & (tokens < layer['vocab_size'])
    if not in_range.all() or len(np.unique(tokens)) < len(tokens):
      raise ValueError(
        f'drafter: in {folder} the tensor {_OFFSETS} must point at different'
        f' tokens below vocab_size ({layer["vocab_size"]}); fetch it again.'
      )
    params['tokens'] = tokens.astype(np.int32)
  return params


def _check_verifier(
  checkpoint: EagleCheckpoint, verifier: checkpoints.Checkpoint
) -> tuple[int, ...]:
  """Returns the layers that a head reads, if the verifier fits the head."""
  model, config = verifier.model, checkpoint.config
  verifier_config = model.module.config
  num_layers = verifier_config.num_layers

  def refuse(reason: str):
    raise ValueError(
      f'drafter: {checkpoint.name} was made for another verifier ({reason});'
      ' give the model that it was trained for.'
    )

  if getattr(verifier_config, 'use_altup', False):
    refuse('whose layers pass on one state, not the four of a Gemma 3n')
  width = verifier_config.embed_dim
  if width != config['target_hidden_size']:
    refuse(f'of width {config["target_hidden_size"]}, not {width}')
  # A head may count the padding of the verifier's table as tokens.
  size = config['transformer_layer_config']['vocab_size']
  tokens = checkpoint.params.get('tokens', np.zeros(1, np.int32))
  if size not in (model.vocab_size, verifier_config.num_embed):
    refuse(f'of {size} tokens, not {model.vocab_size}')
  if int(tokens.max()) >= model.vocab_size:
    refuse(f'with a token {int(tokens.max())}, not {model.vocab_size} tokens')
  layer_ids = config[_LAYER_IDS]
  is_default = layer_ids is None
  # The default of `speculators`.
  if is_default:
    layer_ids = 2, num_layers // 2, num_layers - 3
  layer_ids = tuple(layer_ids)
  if max(layer_ids) > num_layers or min(layer_ids) < 0:
    refuse(f'of more than {num_layers} layers; it reads {list(layer_ids)}')
  if is_default:
    print(
      f'{display.printable(checkpoint.name)}: config.json has no {_LAYER_IDS};'
      f' the head reads the states after {layer_ids[0]}, {layer_ids[1]} and'
      f' {layer_ids[2]} of {num_layers} layers, the default of speculators.',
      file=sys.stderr,
    )
  return layer_ids
