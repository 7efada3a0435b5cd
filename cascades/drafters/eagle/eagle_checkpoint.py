"""EAGLE-3 heads on disk: folders as the `speculators` library writes them.

config.json says `speculators_model_type: eagle3`; other algorithms of that
library are refused, and so are layers that are not Llama's. Which verifier a
head was trained for is told by sizes alone: for another of the same size it
drafts badly, and nothing is wrong but the speed.
"""

import pathlib
import sys
from collections.abc import Collection, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import pydantic
from jaxtyping import PyTree

from cascades.decoding import BoundDrafter
from cascades.drafters import specs
from cascades.drafters.eagle import eagle_drafter
from cascades.drafters.language_model import NoDrafter
from cascades.models import (
  checkpoints,
  families,
  param_dtypes,
  rope_fields,
  tensor_files,
)
from cascades.untrusted import display
from cascades.untrusted.schema import Count, Positive, Schema, Size, one_of

_KIND = 'speculators_model_type'
_TAPS = 'eagle_aux_hidden_state_layer_ids'


_Kinds = Annotated[Any, one_of(None, [families.FULL], [families.SLIDING])]


class _Layer(Schema):
  """Fields of a layer of Llama's; what is absent is as transformers has it."""

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
  """How positions are turned."""

  rope_type: Annotated[Any, one_of('default')] = rope_fields.rope_type()
  rope_theta: Positive


class _Head(Schema):
  """Fields of a head."""

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
# How the names begin of tensors all of which have a part in what it drafts.
_READ = 'layers.', 'input_norm.', 'fc_norm.'
_EMBEDDINGS, _BIAS, _OFFSETS = 'embed_tokens.weight', 'fc.bias', 'd2t'


class Loaded(NamedTuple):
  """A head, and what a verifier must have for it.

  Attributes:
    params: Its own.
    config: Its fields; those of its layer under `transformer_layer_config`.
    name: Where it came from.
  """

  params: PyTree
  config: dict[str, Any]
  name: str
  options = ()

  def bind(self, verifier: checkpoints.Checkpoint) -> BoundDrafter:
    """Binds it to a verifier.

    Args:
      verifier: Of the size that the head was trained for.

    Raises:
      ValueError: It is of another.
    """
    layer = self.config['transformer_layer_config']
    drafter = eagle_drafter.EagleDrafter(
      verifier.model,
      _check(self, verifier),
      layer['rope_theta'],
      layer['rms_norm_eps'],
      self.config['norm_before_residual'],
      self.config['norm_output'],
      layer['sliding_window'],
    )
    return BoundDrafter(drafter, (self.params, verifier.params))


def known(name: str) -> bool:
  """Whether `speculators` made what lies in a folder."""
  return _KIND in tensor_files.read_config(name)


def describe(
  name: str, dtype: str | None = None
) -> tuple[specs.Drafting, dict[str, jax.ShapeDtypeStruct]]:
  """What counts as a head's model, and its tensors.

  Args:
    name: Its folder.
    dtype: What its parameters would become; None for bfloat16, which is what
      is published, or float32 for what is stored in float16.

  Raises:
    ValueError: It is of another kind than is read here.
  """
  checkpoints.check_dtype(dtype)
  folder = pathlib.Path(name)
  config, places = _config(folder), tensor_files.open_folder(folder)
  wanted = _shapes(config, places)
  shapes = param_dtypes.drafter_shapes(places, wanted, dtype, _OFFSETS)
  size = config['transformer_layer_config']['vocab_size']
  # A head's cache is a layer's.
  return specs.Drafting(NoDrafter(), size), shapes


def load(
  folder: str | pathlib.Path, dtype: str | None = None, mesh: Any = None
) -> Loaded:
  """Reads a head.

  Args:
    folder: As `speculators` writes it: config.json and safetensors.
    dtype: What its parameters become; None for what `fc.weight` is stored in,
      or float32 where anything is stored in float16.
    mesh: Ignored, for a head is small.

  Raises:
    ValueError: It is not whole, or of another kind.
  """
  checkpoints.check_dtype(dtype)
  folder = pathlib.Path(folder)
  config = _config(folder)
  places = tensor_files.open_folder(folder)
  shapes = _shapes(config, places)
  # What the layer is given may be changed by more than is read here.
  unread = [x for x in places if x.startswith(_READ) and x not in shapes]
  if unread:
    raise ValueError(
      f'drafter: {folder} has a tensor {min(unread)}, of which its config.json'
      ' says nothing that can be read; give another head.'
    )
  found = tensor_files.read_all(
    folder, places, shapes, field='drafter', ids=_OFFSETS
  )
  params = _arranged(config, found, folder)
  stored = (x.dtype for x in found.values())
  dtype = dtype or param_dtypes.choose_dtype(stored, folder)
  params = param_dtypes.device_put_params(params, dtype or params['join'].dtype)
  return Loaded(params, config, folder.name)


def _config(folder: pathlib.Path) -> dict[str, Any]:
  """The fields of a folder's config.json, spelled out.

  Raises:
    ValueError: They are of another kind than is read here.
  """
  where = f'drafter: {folder}/config.json'
  said = _Head.check(tensor_files.read_config(folder), where)
  layer = said.transformer_layer_config
  rope = layer.rope_parameters or layer.rope_scaling or {}
  rope = _Rope.check({'rope_theta': layer.rope_theta} | rope, where)
  heads = layer.num_attention_heads
  keys = layer.num_key_value_heads or heads
  if heads % keys:
    raise ValueError(
      f'{where}: num_key_value_heads must divide the {heads} of'
      f' num_attention_heads, got {keys}; fetch it again.'
    )
  if said.norm_before_fc and said.fc_norm:
    raise ValueError(
      f'{where}: norm_before_fc and fc_norm are both true, and a head has one'
      ' of them at most; fetch it again.'
    )
  # A layer has a window only where its kind says so, whatever else is given.
  windowed = layer.layer_types == [families.SLIDING]
  layer = dict(layer) | dict(
    sliding_window=layer.sliding_window if windowed else None,
    rope_theta=rope.rope_theta,
    num_key_value_heads=keys,
    head_dim=layer.head_dim or layer.hidden_size // heads,
  )
  return dict(said) | dict(
    transformer_layer_config=layer,
    target_hidden_size=said.target_hidden_size or layer['hidden_size'],
  )


def _shapes(
  config: Mapping[str, Any], there: Collection[str]
) -> dict[str, tuple[int, ...]]:
  """The tensors of a head.

  Args:
    config: As `_config` gives it.
    there: By name, the tensors of its folder, not all of which it must have.
  """
  layer = config['transformer_layer_config']
  width, hidden = layer['hidden_size'], layer['intermediate_size']
  hidden_layers = len(config[_TAPS] or range(3))
  states = hidden_layers * config['target_hidden_size']
  some, every = config['draft_vocab_size'], layer['vocab_size']
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
    'lm_head.weight': (some, width),
  } | dict.fromkeys(_NORMS.values(), (width,))
  if config['norm_before_fc']:
    shapes['input_norm.weight'] = (states,)
  if config['fc_norm']:
    shapes |= dict.fromkeys(
      _norms_of_each(hidden_layers), (states // hidden_layers,)
    )
  if _EMBEDDINGS in there or width != config['target_hidden_size']:
    shapes[_EMBEDDINGS] = every, width
  if _BIAS in there:
    shapes[_BIAS] = (width,)
  if _OFFSETS in there or some != every:
    shapes[_OFFSETS] = (some,)
  return shapes


def _norms_of_each(hidden_layers: int) -> list[str]:
  """Names of the tensors that norm the states of each tap apart."""
  return [f'fc_norm.{i}.weight' for i in range(hidden_layers)]


def _arranged(
  config: Mapping[str, Any], found: Mapping[str, np.ndarray], folder: Any
) -> PyTree:
  """Tensors as `EagleDrafter` takes them.

  Raises:
    ValueError: What the head says are no tokens.
  """
  layer = config['transformer_layer_config']
  size = layer['head_dim']

  def heads(name):
    matrix = found[f'layers.0.self_attn.{name}_proj.weight'].T
    return matrix.reshape(len(matrix), -1, size)

  out = found['layers.0.self_attn.o_proj.weight'].T
  params = {
    'join': found['fc.weight'].T,
    'query': heads('q'),
    'key': heads('k'),
    'value': heads('v'),
    'out': out.reshape(-1, size, out.shape[-1]),
    'table': found['lm_head.weight'],
  }
  params |= {ours: found[theirs] for ours, theirs in _NORMS.items()}
  for name in ('gate', 'up', 'down'):
    params[name] = found[f'layers.0.mlp.{name}_proj.weight'].T
  for ours, theirs in (
    ('taps_norm', 'input_norm.weight'),
    ('embeddings', _EMBEDDINGS),
    ('join_bias', _BIAS),
  ):
    if theirs in found:
      params[ours] = found[theirs]
  if config['fc_norm']:
    hidden_layers = len(found['fc.weight'][0]) // config['target_hidden_size']
    params['norm_of_each'] = np.stack(
      [found[name] for name in _norms_of_each(hidden_layers)]
    )
  if _OFFSETS in found:
    tokens = np.arange(len(found[_OFFSETS])) + found[_OFFSETS]
    inside = (tokens >= 0) & (tokens < layer['vocab_size'])
    if not inside.all() or len(np.unique(tokens)) < len(tokens):
      raise ValueError(
        f'drafter: in {folder} the tensor {_OFFSETS} points outside the'
        f' {layer["vocab_size"]} tokens of vocab_size, or twice at one; fetch'
        ' it again.'
      )
    params['tokens'] = tokens.astype(np.int32)
  return params


def _check(loaded: Loaded, verifier: checkpoints.Checkpoint) -> tuple[int, ...]:
  """Refuses a verifier that a head was not made for; gives its hidden_layers.

  Raises:
    ValueError: It is of another size, or its layers are no such layers.
  """
  model, config = verifier.model, loaded.config
  c, layers = model.module.config, model.module.config.num_layers

  def refuse(what: str):
    raise ValueError(
      f'drafter: {loaded.name} was made for another verifier ({what}); give the'
      ' model that it was trained for.'
    )

  if getattr(c, 'use_altup', False):
    refuse('whose layers pass on one state, not the four of a Gemma 3n')
  if c.embed_dim != config['target_hidden_size']:
    refuse(f'of width {config["target_hidden_size"]}, not {c.embed_dim}')
  # What pads the verifier's table may be counted as tokens.
  size = config['transformer_layer_config']['vocab_size']
  tokens = loaded.params.get('tokens', np.zeros(1, np.int32))
  if size not in (model.vocab_size, c.num_embed):
    refuse(f'of {size} tokens, not {model.vocab_size}')
  if int(tokens.max()) >= model.vocab_size:
    refuse(f'with a token {int(tokens.max())}')
  hidden_layers = config[_TAPS]
  unnamed = hidden_layers is None
  # As `speculators` has it where nothing is said.
  hidden_layers = tuple(
    (2, layers // 2, layers - 3) if unnamed else hidden_layers
  )
  if max(hidden_layers) > layers or min(hidden_layers) < 0:
    refuse(
      f'of more than {layers} layers, for it looks after {list(hidden_layers)}'
    )
  if unnamed:
    first, second, third = hidden_layers
    print(
      f'{display.printable(loaded.name)}: config.json has no {_TAPS}; it looks'
      f' at the states after {first}, {second} and {third} of the {layers}'
      ' layers, as speculators does by default.',
      file=sys.stderr,
    )
  return hidden_layers
