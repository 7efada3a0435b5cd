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
centroids have the largest products with u. Other tokens get -inf or, as in
transformers, the smallest of the logits minus 1. The law holds either way.

The design follows transformers' modeling_gemma4_assistant, without its code.
The loop of transformers leaves rejected drafts visible, shows layers with a
window two keys more than the verifier's own layers see, and takes the most
probable token instead of a sample.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from cascades.drafters.cached_attention import KeyValueView, attend, rms_norm
from cascades.drafters.stepwise import Recurrence, StepwiseDrafter


@dataclasses.dataclass(frozen=True)
class AssistantDrafter(StepwiseDrafter):
  """Drafts with an assistant; parameters are (its own, the verifier's).

  Attributes:
    model: The verifier, a Gemma 4.
    layer_types: Gemma's name for the attention of each layer, 'LOCAL_SLIDING'
      or 'GLOBAL'.
    top: Groups of tokens that get logits; None for all tokens.
    fill_unselected_logits: True if tokens of other groups get the smallest
      logit minus 1, as in transformers; False gives them -inf.
  """

  model: Any
  layer_types: tuple[str, ...]
  top: int | None = None
  fill_unselected_logits: bool = True

  def views(
    self, cache: PyTree, length: Int[Array, '']
  ) -> dict[str, KeyValueView]:
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
      views[layer_type] = KeyValueView(layer['k'][0], layer['v'][0], is_visible)
    return views

  def step(
    self,
    params: tuple[PyTree, PyTree],
    views: dict[str, KeyValueView],
    position: Int[Array, ''],
    state: Float[Array, 'D'],
    token: Int[Array, ''],
  ) -> tuple[Float[Array, 'D'], Float[Array, 'V']]:
    """Reads one token."""
    assistant, verifier = params
    embedded = self.model.embed(verifier, token)
    scale = jnp.sqrt(embedded.shape[-1]).astype(embedded.dtype)
    y = jnp.concatenate([embedded * scale, state]) @ assistant['before']
    layers = zip(self.layer_types, assistant['layers'], strict=True)
    for layer_type, layer in layers:
      x = rms_norm(y, layer['pre_attention'])
      queries = jnp.einsum('d,dnh->nh', x, layer['query'])
      queries = rms_norm(queries, layer['query_norm'])
      queries = self.model.apply_rope(queries, position, layer_type)
      attended = attend(queries, views[layer_type])
      x = jnp.einsum('nh,nhd->d', attended, layer['out'])
      y = y + rms_norm(x, layer['post_attention'])
      x = rms_norm(y, layer['pre_feed_forward'])
      x = jax.nn.gelu(x @ layer['gate'], approximate=True) * (x @ layer['up'])
      y = y + rms_norm(x @ layer['down'], layer['post_feed_forward'])
      y = y * layer['scale']
    u = rms_norm(y, assistant['norm'])
    # A verifier may have another dtype than its assistant.
    hidden = (u @ assistant['after']).astype(state.dtype)
    return hidden, self.logits(assistant, u)

  def logits(
    self, assistant: PyTree, u: Float[Array, 'd']
  ) -> Float[Array, 'V']:
    """Returns the logits of all tokens."""
    table = assistant['table']
    if self.top is None:
      return table @ u
    scores = jnp.dot(
      assistant['centroids'], u, preferred_element_type=jnp.float32
    )
    _, groups = jax.lax.top_k(scores, self.top)
    ids = assistant['groups'][groups].ravel()
    selected = table[ids] @ u
    fill = selected.min() - 1 if self.fill_unselected_logits else -jnp.inf
    return jnp.full(len(table), fill, selected.dtype).at[ids].set(selected)

  def start(self, params, state, context, gamma):
    """Returns the recurrence of the assistant over the verifier's caches."""
    views = self.views(context.verifier_cache, context.length)
    step = functools.partial(self.step, params, views, context.length - 1)
    return Recurrence(step, context.hidden)
