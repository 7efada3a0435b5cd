"""Gemma 4's own drafters: a few layers that look into the verifier's caches.

Google ships one for each size (`gemma-4-E2B-it-assistant` and so on). Its
layers have no keys and values: each attends to what the verifier's last layer
of its kind, with a window or without, has cached. With E the verifier's table
of width D, x the last token, and s the verifier's last hidden state where it
said x,

  y = P [sqrt(D) E_x; s],   y <- layers(y),   u = norm(y)
  logits = (the assistant's own table) u,   s' = Q u

and so on with the token that is drafted and s'. Queries stand at the last
token's place for a whole block, of which nothing is cached: what a later step
knows of an earlier one is in s' alone. So its q hangs on where a block began.

With `top`, only the tokens of so many groups get logits: those whose centroids
have the largest products with u. Others have -inf; or, as in transformers, one
less than the least of the logits, which gives each of them a little. The text
follows its law either way.

Known from transformers' modeling_gemma4_assistant, of which nothing is copied:
its loop leaves rejected drafts in sight, shows layers with a window two keys
more than the verifier's own layers see, and takes the likeliest token for one
that was drawn.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.drafters.recurrent import recurrent_drafter

# Of what is not to be seen; finite, since nothing may be seen at all.
_HIDDEN = -2.3819763e38
_EPSILON = 1e-6


class Bank(NamedTuple):
  """What a kind of layer attends to.

  Attributes:
    keys: Turned and normed.
    values: Normed.
    seen: Which slots.
  """

  keys: Float[Array, 'S K h']
  values: Float[Array, 'S K h']
  seen: Bool[Array, 'S']


def norm(
  x: Float[Array, '*B n'],
  scale: Float[Array, '*S n'],
  epsilon: float = _EPSILON,
) -> Array:
  """Divided by its root mean square, in float32, and multiplied."""
  y = x.astype(jnp.float32)
  y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + epsilon)
  return (y * scale.astype(jnp.float32)).astype(x.dtype)


def attend(queries: Float[Array, 'N h'], *banks: Bank) -> Float[Array, 'N h']:
  """What each query finds in all of them; a few share a key's head."""
  heads, size = queries.shape
  grouped = queries.reshape(banks[0].keys.shape[1], -1, size)

  def found(bank):
    products = jnp.einsum('kgh,skh->kgs', grouped, bank.keys)
    return jnp.where(bank.seen, products.astype(jnp.float32), _HIDDEN)

  weights = jnp.concatenate([found(bank) for bank in banks], -1)
  weights = jax.nn.softmax(weights).astype(queries.dtype)
  ends = np.cumsum([len(bank.keys) for bank in banks])
  parts = jnp.split(weights, ends[:-1], -1)
  # Weighed apart: to join them would copy the longest for every token.
  return sum(
    jnp.einsum('kgs,skh->kgh', part, bank.values)
    for part, bank in zip(parts, banks, strict=True)
  ).reshape(heads, size)


@dataclasses.dataclass(frozen=True)
class AssistantDrafter(recurrent_drafter.Unrolled):
  """Drafts with an assistant; parameters are (its own, the verifier's).

  Attributes:
    model: The verifier, a Gemma 4.
    kinds: Of its layers, gemma's names: 'LOCAL_SLIDING' or 'GLOBAL'.
    top: Groups of tokens that get logits; None for all tokens.
    fill_unselected_logits: True to give tokens of other groups the least
      logit minus 1, as transformers does; False to give them -inf.
  """

  model: Any
  kinds: tuple[str, ...]
  top: int | None = None
  fill_unselected_logits: bool = True

  def banks(self, cache: PyTree, length: Int[Array, '']) -> dict[str, Bank]:
    """What layers of each kind see of a sequence.

    Args:
      cache: The verifier's.
      length: Of the sequence; the last token is not in the cache.
    """
    found, at = {}, length - 1
    for kind, i in self.model.last_cached_layers.items():
      layer = cache[f'layer_{i}']
      slots = jnp.arange(layer['k'].shape[1])
      # Beyond are rejected drafts.
      seen = slots < at
      if kind == 'LOCAL_SLIDING':
        seen &= slots > at - self.model.module.config.sliding_window_size
      found[kind] = Bank(layer['k'][0], layer['v'][0], seen)
    return found

  def step(
    self,
    params: tuple[PyTree, PyTree],
    banks: dict[str, Bank],
    at: Int[Array, ''],
    state: Float[Array, 'D'],
    token: Int[Array, ''],
  ) -> tuple[Float[Array, 'D'], Float[Array, 'V']]:
    """One token read: the next state, and the logits of the token after it.

    Args:
      params: The assistant's, and the verifier's.
      banks: What its layers see.
      at: Where queries stand.
      state: The verifier's or its own.
      token: The last one.
    """
    own, verifier = params
    embedded = self.model.embed(verifier, token)
    scale = jnp.sqrt(embedded.shape[-1]).astype(embedded.dtype)
    y = jnp.concatenate([embedded * scale, state]) @ own['before']
    for kind, layer in zip(self.kinds, own['layers'], strict=True):
      x = norm(y, layer['pre_attention'])
      queries = jnp.einsum('d,dnh->nh', x, layer['query'])
      queries = norm(queries, layer['query_norm'])
      queries = self.model.apply_rope(queries, at, kind)
      x = jnp.einsum('nh,nhd->d', attend(queries, banks[kind]), layer['out'])
      y = y + norm(x, layer['post_attention'])
      x = norm(y, layer['pre_feed_forward'])
      x = jax.nn.gelu(x @ layer['gate'], approximate=True) * (x @ layer['up'])
      y = y + norm(x @ layer['down'], layer['post_feed_forward'])
      y = y * layer['scale']
    u = norm(y, own['norm'])
    return u @ own['after'], self.logits(own, u)

  def logits(self, own: PyTree, u: Float[Array, 'd']) -> Float[Array, 'V']:
    """What the assistant says of its last state."""
    table = own['table']
    if self.top is None:
      return table @ u
    near = jnp.dot(own['centroids'], u, preferred_element_type=jnp.float32)
    _, groups = jax.lax.top_k(near, self.top)
    ids = own['groups'][groups].ravel()
    said = table[ids] @ u
    rest = said.min() - 1 if self.fill_unselected_logits else -jnp.inf
    return jnp.full(len(table), rest, said.dtype).at[ids].set(said)

  def start(self, params, state, context, gamma):
    """All drafts look at what is written, and at themselves."""
    banks = self.banks(context.verifier_cache, context.length)
    step = functools.partial(self.step, params, banks, context.length - 1)
    return step, context.hidden, None
