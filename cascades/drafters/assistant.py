"""Gemma 4's own drafters: layers that attend to the verifier's caches.

Google ships an assistant for each size (`gemma-4-E2B-it-assistant` and so on).
Its layers have no keys and values: each attends to those that the verifier's
last layer of its kind, with a window or without, has cached. With E the
verifier's table of width D, x the last token, and s the verifier's last hidden
state, which predicted x,

  y = P [sqrt(D) E_x; s],   y <- layers(y),   u = norm(y)
  logits = (the assistant's own table) u,   s' = Q u

The next step takes the drafted token and s'. Queries have the position of the
last token for the whole block, and nothing of the block is cached: a later step
knows of an earlier one through s' alone. So q depends on where a block began.

With `top`, only the tokens of that many groups get logits: the groups whose
centroids have the largest products with u. Other tokens get the smallest of the
logits minus 1.

The design follows transformers' modeling_gemma4_assistant, whose loop leaves
rejected drafts visible, shows layers with a window two more keys, and takes the
most probable token instead of a sample. Assistants are Hugging Face folders.
"""

import dataclasses
import functools
import pathlib
import re
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from cascades.decoding.drafter import BoundDrafter
from cascades.drafters import stepwise
from cascades.drafters.unbound import UnboundDrafter
from cascades.files import Schema, Size, one_of
from cascades.models import (
  checkpoints,
  config_json,
  gemma_library,
  hub,
  language,
  tensor_files,
)

# Names of the published assistants.
_PUBLISHED = r'google/gemma-4-.*-assistant(@.*)?'
# Name of the tensor of token ids in the order of their centroids.
_ORDER = 'masked_embedding.token_ordering'


@dataclasses.dataclass(frozen=True)
class AssistantDrafter(stepwise.StepwiseDrafter):
  """Drafts with an assistant; parameters are (its own, the verifier's).

  Attributes:
    model: The verifier, a Gemma 4.
    layer_types: Gemma's name for the attention of each layer, 'LOCAL_SLIDING'
      or 'GLOBAL'.
    top: Groups of tokens that get logits; None for all tokens.
  """

  model: language.LanguageModel
  layer_types: tuple[str, ...]
  top: int | None = None

  def views(self, cache: PyTree, length: Array) -> dict[str, Any]:
    """Returns the keys and values that layers of each type attend to."""
    views, position = {}, length - 1
    for layer_type, i in self.model.last_cached_layers.items():
      layer = cache[f'layer_{i}']
      slots = jnp.arange(layer['k'].shape[1])
      # Later slots hold rejected drafts.
      is_visible = slots < position
      if layer_type == 'LOCAL_SLIDING':
        window = self.model.module.config.sliding_window_size
        is_visible &= slots > position - window
      keys, values = layer['k'][0], layer['v'][0]
      views[layer_type] = stepwise.KeyValueView(keys, values, is_visible)
    return views

  def step(self, params, views, position, state, token, _):
    """Reads one token; returns the next state [D] and the logits [V]."""
    assistant, verifier = params
    embedded = self.model.embed(verifier, token)
    scale = jnp.sqrt(embedded.shape[-1]).astype(embedded.dtype)
    y = jnp.concatenate([embedded * scale, state]) @ assistant['before']
    layers = zip(self.layer_types, assistant['layers'], strict=True)
    for layer_type, layer in layers:
      x = stepwise.rms_norm(y, layer['pre_attention'])
      queries = jnp.einsum('d,dnh->nh', x, layer['query'])
      queries = stepwise.rms_norm(queries, layer['query_norm'])
      rope = self.model.ropes[layer_type]
      queries = gemma_library.apply_rope(queries, position, rope)
      attended = stepwise.attend(queries, views[layer_type])
      x = jnp.einsum('nh,nhd->d', attended, layer['out'])
      y = y + stepwise.rms_norm(x, layer['post_attention'])
      x = stepwise.rms_norm(y, layer['pre_feed_forward'])
      x = jax.nn.gelu(x @ layer['gate'], approximate=True) * (x @ layer['up'])
      y = y + stepwise.rms_norm(x @ layer['down'], layer['post_feed_forward'])
      y = y * layer['scale']
    u = stepwise.rms_norm(y, assistant['norm'])
    # A verifier may have another dtype than its assistant.
    hidden = (u @ assistant['after']).astype(state.dtype)
    table = assistant['table']
    if self.top is None:
      return hidden, table @ u
    centroids = assistant['centroids']
    scores = jnp.dot(centroids, u, preferred_element_type=jnp.float32)
    _, groups = jax.lax.top_k(scores, self.top)
    ids = assistant['groups'][groups].ravel()
    selected = table[ids] @ u
    fill = jnp.full(len(table), selected.min() - 1, selected.dtype)
    return hidden, fill.at[ids].set(selected)

  def start(self, params, state, context, gamma):
    """Returns the recurrence of the assistant over the verifier's caches."""
    views = self.views(context.verifier_cache, context.length)
    step = functools.partial(self.step, params, views, context.length - 1)
    return step, context.hidden, None


class _Text(Schema):
  """Fields of `text_config` that must have one value."""

  hidden_size_per_layer_input: Annotated[Any, one_of(None, 0)] = 0
  enable_moe_block: Annotated[Any, one_of(False)] = False
  use_double_wide_mlp: Annotated[Any, one_of(False)] = False


class _Config(Schema):
  """Fields of config.json, without those of its text model."""

  backbone_hidden_size: Size = 1536
  use_ordered_embeddings: bool = False
  num_centroids: Size = 2048
  centroid_intermediate_top_k: Size = 32
  text_config: _Text = _Text()


@dataclasses.dataclass(frozen=True, eq=False)
class Assistant(UnboundDrafter):
  """An assistant of Gemma 4, made for a verifier of one size.

  Attributes:
    params: The parameters of the assistant.
    config: The fields of its config.json, of which `text` are the text model's.
    name: Name of the assistant, for errors.
  """

  params: PyTree = dataclasses.field(repr=False)
  config: _Config
  text: config_json.GemmaConfig
  name: str
  syntax = 'a folder (an assistant of Gemma 4)'
  reads_files = True

  @classmethod
  def claims(cls, name: str) -> bool:
    """Returns True for an assistant's folder, or for its published name."""
    model_type = tensor_files.read_config(name).get('model_type')
    is_folder = model_type in ('gemma4_assistant', 'gemma4_unified_assistant')
    return is_folder or bool(re.fullmatch(_PUBLISHED, name))

  @classmethod
  def load(cls, name, dtype=None, mesh=None):
    """Reads an assistant; it is small, so the mesh is ignored."""
    checkpoints.check_dtype(dtype)
    folder = pathlib.Path(hub.local_folder(name))
    config = tensor_files.read_config(folder)
    config = _Config.check(config, f'drafter: {folder}/config.json')
    # All layers of an assistant share the verifier's keys, which a whole model
    # cannot.
    text = config.text_config.model_dump() | {
      'num_kv_shared_layers': 0,
      'hidden_size_per_layer_input': 0,
      'model_type': 'gemma4_text',
    }
    try:
      text = config_json.read(text)
    except ValueError as e:
      raise ValueError(f'drafter: {folder}/{e}') from None
    params = _read_params(folder, config, text)
    params = tensor_files.device_put_params(params, dtype)
    return cls(params, config, text, hub.label(folder))

  def bind(self, verifier: checkpoints.Checkpoint) -> BoundDrafter:
    """Binds the assistant to a Gemma 4 of the size that it was made for."""
    model, text, gemma = verifier.model, self.text, verifier.model.module.config
    cache = jax.eval_shape(lambda: model.init_cache(verifier.params, 8))
    fields = {
      'Gemma 4': (True, hasattr(gemma, 'global_rope_proportion')),
      'width': (self.config.backbone_hidden_size, gemma.embed_dim),
      'tokens': (text.vocab_size, model.vocab_size),
      'sliding window': (text.sliding_window, gemma.sliding_window_size),
    }
    types = [config_json.ATTENTION_TYPES[x] for x in text.layer_types]
    for i, gemma_type in enumerate(types):
      layer = cache.get(f'layer_{model.last_cached_layers.get(gemma_type)}')
      shape = None if layer is None else layer['k'].shape[-2:]
      fields[f'key heads ({gemma_type})'] = text.key_heads(i), shape
      ropes = text.ropes[text.layer_types[i]], model.ropes.get(gemma_type)
      fields[f'rotary embedding ({gemma_type})'] = ropes
    stepwise.check_verifier(self.name, fields)
    is_grouped = self.config.use_ordered_embeddings
    drafter = AssistantDrafter(
      model,
      tuple(types),
      self.config.centroid_intermediate_top_k if is_grouped else None,
    )
    return BoundDrafter(drafter, (self.params, verifier.params))


def _read_params(
  folder: pathlib.Path, config: _Config, text: config_json.GemmaConfig
) -> PyTree:
  """Reads the parameters of an `AssistantDrafter`."""
  tensors = tensor_files.open_folder(folder)
  read = functools.partial(stepwise.read_params, folder, tensors, _ORDER)
  width, hidden = text.hidden_size, text.intermediate_size
  backbone = config.backbone_hidden_size
  vocab_size, num_heads = text.vocab_size, text.num_attention_heads
  layout: stepwise.Layout = {
    'before': ('pre_projection.weight', (width, 2 * backbone)),
    'after': ('post_projection.weight', (backbone, width)),
    'table': ('model.embed_tokens.weight', (vocab_size, width)),
    'norm': ('model.norm.weight', (width,)),
  }
  if config.use_ordered_embeddings:
    count = config.num_centroids
    if config.centroid_intermediate_top_k > count:
      raise ValueError(
        f'drafter: {folder}/config.json: centroid_intermediate_top_k must be at'
        f' most num_centroids ({count}); fetch it again.'
      )
    layout['centroids'] = 'masked_embedding.centroids.weight', (count, width)
    layout['groups'] = _ORDER, (vocab_size,)
  params = read(layout) | {'layers': []}
  if config.use_ordered_embeddings:
    order = params['groups']
    if vocab_size % count or (np.sort(order) != np.arange(vocab_size)).any():
      raise ValueError(
        f'drafter: in {folder} the tensor {_ORDER} must have each of'
        f' {vocab_size} tokens once, in {count} equal groups; fetch it again.'
      )
    params['groups'] = order.reshape(count, -1).astype(np.int32)
  for i in range(text.num_hidden_layers):
    _, size = text.key_heads(i)
    queries = num_heads * size
    layer = {
      'pre_attention': ('input_layernorm.weight', (width,)),
      'post_attention': ('post_attention_layernorm.weight', (width,)),
      'pre_feed_forward': ('pre_feedforward_layernorm.weight', (width,)),
      'post_feed_forward': ('post_feedforward_layernorm.weight', (width,)),
      'query': ('self_attn.q_proj.weight', (queries, width)),
      'query_norm': ('self_attn.q_norm.weight', (size,)),
      'out': ('self_attn.o_proj.weight', (width, queries)),
      'gate': ('mlp.gate_proj.weight', (hidden, width)),
      'up': ('mlp.up_proj.weight', (hidden, width)),
      'down': ('mlp.down_proj.weight', (width, hidden)),
      'scale': ('layer_scalar', (1,)),
    }
    root = f'model.layers.{i}.'
    layer = read({name: (root + x, y) for name, (x, y) in layer.items()})
    layer['query'] = layer['query'].reshape(width, num_heads, -1)
    layer['out'] = layer['out'].reshape(num_heads, -1, width)
    params['layers'].append(layer)
  return params
