"""Assistants on disk: Hugging Face folders of model_type gemma4_assistant.

An assistant is made for the verifier of one size; with another verifier it is
refused.
"""

import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from cascades.drafters.assistant import assistant_drafter
from cascades.models import (
  checkpoints,
  config_json,
  hub,
  param_dtypes,
  tensor_files,
  tokenizer_files,
  tokenizers,
)
from cascades.untrusted.schema import Schema, Size, one_of

_TYPES = 'gemma4_assistant', 'gemma4_unified_assistant'
# Name of the tensor of token ids in the order of their centroids.
_ORDER = 'masked_embedding.token_ordering'


class _Text(Schema):
  """Fields of `text_config` that must have one value."""

  hidden_size_per_layer_input: Annotated[Any, one_of(None, 0)] = 0
  enable_moe_block: Annotated[Any, one_of(False)] = False
  use_double_wide_mlp: Annotated[Any, one_of(False)] = False


class _Fields(Schema):
  """Fields of config.json, without those of its text model."""

  backbone_hidden_size: Size = 1536
  use_ordered_embeddings: bool = False
  num_centroids: Size = 2048
  centroid_intermediate_top_k: Size = 32
  text_config: dict[str, Any] | None = None


# Names of the published assistants.
_PUBLISHED = frozenset(
  f'gemma-4-{size}-it-assistant' for size in ('E2B', 'E4B', '26B-A4B', '31B')
)


class AssistantCheckpoint(NamedTuple):
  """An assistant, and what its verifier must have."""

  params: PyTree
  config: dict[str, Any]
  tokenizer: tokenizers.Tokenizer | None
  name: str


def make_drafter(
  checkpoint: AssistantCheckpoint,
  verifier: checkpoints.Checkpoint,
  fill_unselected_logits: bool,
) -> assistant_drafter.AssistantDrafter:
  """Makes the drafter of an assistant for a verifier."""
  _check_verifier(checkpoint, verifier)
  config = checkpoint.config
  layer_types = config['text_config'].layer_types
  is_grouped = config['use_ordered_embeddings']
  return assistant_drafter.AssistantDrafter(
    verifier.model,
    tuple(config_json.ATTENTION_TYPES[x] for x in layer_types),
    config['centroid_intermediate_top_k'] if is_grouped else None,
    fill_unselected_logits,
  )


def is_assistant(name: str | pathlib.Path) -> bool:
  """Returns True for an assistant's folder, or for its published name."""
  return _published_name(name)[0] in _PUBLISHED or _is_folder(name)


def _published_name(name: str | pathlib.Path) -> tuple[str, str]:
  """Returns a name without owner and revision, and with them for the hub."""
  plain = str(name).removeprefix(hub.PREFIX).removeprefix('google/')
  return plain.partition('@')[0], f'google/{plain}'


def _is_folder(name: str | pathlib.Path) -> bool:
  return tensor_files.read_config(name).get('model_type') in _TYPES


def load(
  folder: str | pathlib.Path, dtype: str | None = None
) -> AssistantCheckpoint:
  """Reads an assistant."""
  checkpoints.check_dtype(dtype)
  plain, hub_name = _published_name(folder)
  if plain in _PUBLISHED and not _is_folder(folder):
    folder = hub.local_folder(hub_name)
  folder = pathlib.Path(folder)
  config = _full_config(folder, tensor_files.read_config(folder))
  tensors = tensor_files.open_folder(folder)
  arrays = tensor_files.read_all(
    folder, tensors, _shapes(config), field='drafter', ids=_ORDER
  )
  vocab_size, tokenizer = config['text_config'].vocab_size, None
  if tokenizer_files.find_file(folder).exists():
    _, tokenizer = tokenizer_files.read_folder(folder, vocab_size)
  params = _arrange(config, arrays, folder, dtype)
  return AssistantCheckpoint(params, config, tokenizer, hub.label(folder))


def _full_config(
  folder: pathlib.Path | str, content: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the fields of a config.json, with all defaults filled in."""
  label = f'drafter: {folder}/config.json'
  config = _Fields.check(content, label)
  groups, top = config.num_centroids, config.centroid_intermediate_top_k
  if config.use_ordered_embeddings and top > groups:
    raise ValueError(
      f'{label}: centroid_intermediate_top_k must be at most num_centroids'
      f' ({groups}), got {top}; fetch it again.'
    )
  text_fields = config.text_config or {}
  _Text.check(text_fields, f'{label}: text_config')
  try:
    # All layers of an assistant share the verifier's keys, which `text_config`
    # refuses in a whole model.
    text = config_json.read(
      text_fields
      | {
        'num_kv_shared_layers': 0,
        'hidden_size_per_layer_input': 0,
        'model_type': 'gemma4_text',
      }
    )
  except ValueError as e:
    raise ValueError(f'drafter: {folder}/{e}') from None
  return dict(config) | {'text_config': text}


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of the tensors that an assistant has, by name."""
  text, backbone = config['text_config'], config['backbone_hidden_size']
  width, hidden = text.hidden_size, text.intermediate_size
  vocab = text.vocab_size
  shapes = {
    'pre_projection.weight': (width, 2 * backbone),
    'post_projection.weight': (backbone, width),
    'model.embed_tokens.weight': (vocab, width),
    'model.norm.weight': (width,),
  }
  if config['use_ordered_embeddings']:
    shapes['masked_embedding.centroids.weight'] = config['num_centroids'], width
    shapes[_ORDER] = (vocab,)
  for i in range(text.num_hidden_layers):
    num_heads = text.num_attention_heads
    _, dim = text.key_heads(i)
    layer = {
      'self_attn.q_proj.weight': (num_heads * dim, width),
      'self_attn.q_norm.weight': (dim,),
      'self_attn.o_proj.weight': (width, num_heads * dim),
      'mlp.gate_proj.weight': (hidden, width),
      'mlp.up_proj.weight': (hidden, width),
      'mlp.down_proj.weight': (width, hidden),
      'layer_scalar': (1,),
    } | {f'{name}.weight': (width,) for name in _NORMS.values()}
    shapes |= {f'model.layers.{i}.{k}': shape for k, shape in layer.items()}
  return shapes


_NORMS = {
  'pre_attention': 'input_layernorm',
  'post_attention': 'post_attention_layernorm',
  'pre_feed_forward': 'pre_feedforward_layernorm',
  'post_feed_forward': 'post_feedforward_layernorm',
}


def _arrange(
  config: Mapping[str, Any],
  arrays: Mapping[str, np.ndarray],
  folder: Any,
  dtype: str | None,
) -> PyTree:
  """Returns the parameters of an `AssistantDrafter`."""
  text = config['text_config']
  params = {
    'before': arrays['pre_projection.weight'].T,
    'after': arrays['post_projection.weight'].T,
    'table': arrays['model.embed_tokens.weight'],
    'norm': arrays['model.norm.weight'],
    'layers': [],
  }
  if config['use_ordered_embeddings']:
    order = arrays[_ORDER]
    count = config['num_centroids']
    if len(order) % count or (np.sort(order) != np.arange(len(order))).any():
      raise ValueError(
        f'drafter: in {folder} the tensor {_ORDER} must have each of'
        f' {len(order)} tokens once, in {count} equal groups; fetch it again.'
      )
    params['centroids'] = arrays['masked_embedding.centroids.weight']
    params['groups'] = order.reshape(count, -1).astype(np.int32)
  for i in range(text.num_hidden_layers):
    num_heads = text.num_attention_heads
    _, dim = text.key_heads(i)
    weights = {
      name: arrays[f'model.layers.{i}.{name}.weight']
      for name in (
        *('self_attn.q_proj', 'self_attn.q_norm', 'self_attn.o_proj'),
        *('mlp.gate_proj', 'mlp.up_proj', 'mlp.down_proj'),
        *_NORMS.values(),
      )
    }
    params['layers'].append(
      {name: weights[tensor] for name, tensor in _NORMS.items()}
      | {
        'query': weights['self_attn.q_proj'].T.reshape(-1, num_heads, dim),
        'query_norm': weights['self_attn.q_norm'],
        'out': weights['self_attn.o_proj'].T.reshape(num_heads, dim, -1),
        'gate': weights['mlp.gate_proj'].T,
        'up': weights['mlp.up_proj'].T,
        'down': weights['mlp.down_proj'].T,
        'scale': arrays[f'model.layers.{i}.layer_scalar'],
      }
    )
  return param_dtypes.device_put_params(params, dtype, folder)


def _check_verifier(
  checkpoint: AssistantCheckpoint, verifier: checkpoints.Checkpoint
) -> None:
  """Refuses a verifier that an assistant was not made for."""
  model, config = verifier.model, checkpoint.config
  text, verifier_config = config['text_config'], model.module.config

  def refuse(reason: str):
    raise ValueError(
      f'drafter: {checkpoint.name} was made for another verifier ({reason});'
      ' give the Gemma 4 that it was made for.'
    )

  if not hasattr(verifier_config, 'global_rope_proportion'):
    refuse('a Gemma 4')
  if model.hidden_size(verifier.params) != config['backbone_hidden_size']:
    width = verifier_config.embed_dim
    refuse(f'of width {config["backbone_hidden_size"]}, not {width}')
  if model.vocab_size != text.vocab_size:
    refuse(f'of {text["vocab_size"]} tokens, not {model.vocab_size}')
  if checkpoint.tokenizer is not None and verifier.tokenizer is not None:
    token = tokenizers.first_difference(
      verifier.tokenizer, checkpoint.tokenizer
    )
    if token is not None:
      refuse(f'whose token {token} is another')
  cache = jax.eval_shape(lambda: model.init_cache(verifier.params, 8))
  cached_layers, ropes = model.last_cached_layers, text.ropes
  for i, layer_type in enumerate(text.layer_types):
    gemma_type = config_json.ATTENTION_TYPES[layer_type]
    if gemma_type not in cached_layers:
      refuse(f'with a layer of type {layer_type}')
    shape = text.key_heads(i)
    keys = cache[f'layer_{cached_layers[gemma_type]}']['k']
    if keys.shape[-2:] != shape:
      num_heads, size = shape
      refuse(
        f'with {num_heads} key heads of size {size} in {layer_type} layers'
      )
    if model.ropes[gemma_type] != ropes[layer_type]:
      refuse('with other rotary embeddings')
  if verifier_config.sliding_window_size != text.sliding_window:
    refuse(f'with a sliding window of {text["sliding_window"]} tokens')
