"""EAGLE-3: a layer that reads hidden states of several verifier layers.

Li et al. 2025, arXiv 2503.01840, with the tensors of the `speculators` library.
The verifier's states after three of its layers at position p, a_p, b_p and c_p,
become g_p = F [a_p; b_p; c_p]. With x the token that the verifier predicted at
position p,

  y = r + attention([norm(E_x); norm(g_p)]),   y <- y + mlp(norm(y))
  logits = T norm(y),

where r is g_p or its norm. The next step takes the drafted token, and y or
norm(y) in the place of g. The states may be normed before F, all three together
or each by itself. E is the head's own table, if it has one, or the verifier's.
T has rows for some of the tokens; the others have the logit -inf.

The layer attends to such pairs of a token and the state that predicted it: the
verifier's states in the text, and the head's own in the draft. The pairs of the
text are in a cache, at the slot and position of their token; the first token
has none. A key and a value depend on their pair alone, so `observe` needs no
attention, and drafting leaves the cache as it is.

A layer with a window attends to the last pairs of the text, as many as the
window has, and to all drafted pairs, as in training.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from cascades.decoding.state import write
from cascades.drafters.cached_attention import KeyValueView, attend, rms_norm
from cascades.drafters.stepwise import Recurrence, StepwiseDrafter


class _Carry(NamedTuple):
  """The state of a draft; its first token is the last token of the text."""

  count: Int[Array, '']
  g: Float[Array, 'H']
  keys: Float[Array, 'gamma_1 K h']
  values: Float[Array, 'gamma_1 K h']


def apply_rope(
  x: Float[Array, 'N h'], position: Int[Array, ''], theta: float
) -> Float[Array, 'N h']:
  """Applies Llama's rotary position embedding."""
  half = x.shape[-1] // 2
  angles = position * theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  low, high = jnp.split(x.astype(jnp.float32), 2, -1)
  rotated = [low * cos - high * sin, high * cos + low * sin]
  return jnp.concatenate(rotated, -1).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class EagleDrafter(StepwiseDrafter):
  """Drafts with an EAGLE-3 head; parameters are (the head's, the verifier's).

  Attributes:
    model: The verifier.
    hidden_layers: Verifier layers after which the head reads hidden states.
    theta: Base of the frequencies of the rotary embedding.
    epsilon: Added to the mean square in all norms.
    norm_before_residual: True if r is the norm of g.
    norm_output: True if the norm of y takes the place of g, instead of y.
    window: Pairs of the text that the layer attends to; None for all.
  """

  model: Any
  hidden_layers: tuple[int, ...]
  theta: float = 10_000.0
  epsilon: float = 1e-6
  norm_before_residual: bool = False
  norm_output: bool = False
  window: int | None = None

  def _norm(self, x: Array, scale: Array) -> Array:
    return rms_norm(x, scale, self.epsilon)

  def _join_states(
    self, head: PyTree, hidden: Float[Array | np.ndarray, 'D']
  ) -> Array:
    """Returns g of the verifier's states at a position."""
    hidden = jnp.asarray(hidden, head['join'].dtype)
    if 'input_norm' in head:
      hidden = self._norm(hidden, head['input_norm'])
    if 'fc_norms' in head:
      states = hidden.reshape(head['fc_norms'].shape)
      hidden = self._norm(states, head['fc_norms']).ravel()
    g = hidden @ head['join']
    return g + head['join_bias'] if 'join_bias' in head else g

  def _pair(
    self,
    params: tuple[PyTree, PyTree],
    g: Float[Array, 'H'],
    token: Int[Array, ''],
  ) -> tuple[Float[Array, 'W'], Float[Array, 'H']]:
    """Returns the layer's input for a token and a state, W = 2 H, and r."""
    head, verifier = params
    if 'embeddings' in head:
      embedded = head['embeddings'][token]
    else:
      embedded = self.model.embed(verifier, token).astype(g.dtype)
    embedded = self._norm(embedded, head['token_norm'])
    normed = self._norm(g, head['state_norm'])
    x = jnp.concatenate([embedded, normed])
    return x, normed if self.norm_before_residual else g

  def _key_value(
    self, head: PyTree, x: Float[Array, 'W'], position: Int[Array, '']
  ) -> tuple[Float[Array, 'K h'], Float[Array, 'K h']]:
    """Returns the key and the value of a pair."""
    key = jnp.einsum('d,dkh->kh', x, head['key'])
    value = jnp.einsum('d,dkh->kh', x, head['value'])
    return apply_rope(key, position, self.theta), value

  def init(self, params, cache_length):
    """Returns an empty cache."""
    head, _ = params
    _, num_heads, size = head['key'].shape
    empty = jnp.zeros((cache_length, num_heads, size), head['key'].dtype)
    return {'k': empty, 'v': empty}

  def observe(self, params, state, tokens, hidden, position, count):
    """Writes the keys and values of tokens to the cache.

    Slots after `count` tokens are written too, and are hidden until they are
    overwritten.
    """
    head, _ = params

    def key_value(token, hidden, position):
      x, _ = self._pair(params, self._join_states(head, hidden), token)
      return self._key_value(head, x, position)

    positions = position + 1 + jnp.arange(len(tokens))
    keys, values = jax.vmap(key_value)(tokens, hidden, positions)
    return {
      'k': write(state['k'], position + 1, keys),
      'v': write(state['v'], position + 1, values),
    }

  def resize(self, params, state, cache_length):
    """Returns the cache with room for `cache_length` tokens."""
    return {
      name: jnp.pad(x, [(0, cache_length - len(x)), (0, 0), (0, 0)])
      for name, x in state.items()
    }

  def view(self, state: PyTree, length: Int[Array, '']) -> KeyValueView:
    """Returns the pairs of a text that a block attends to."""
    slots, position = jnp.arange(len(state['k'])), length - 1
    # The first step reads the pair of the last token, so it is hidden here.
    is_visible = (slots > 0) & (slots < position)
    if self.window is not None:
      is_visible &= slots > position - self.window
    return KeyValueView(state['k'], state['v'], is_visible)

  def step(
    self,
    params: tuple[PyTree, PyTree],
    view: KeyValueView,
    position: Int[Array, ''],
    carry: _Carry,
    token: Int[Array, ''],
  ) -> tuple[_Carry, Float[Array, 'V']]:
    """Reads one token."""
    head, (count, g, keys, values) = params[0], carry
    x, y = self._pair(params, g, token)
    key, value = self._key_value(head, x, position + count)
    keys, values = keys.at[count].set(key), values.at[count].set(value)
    queries = jnp.einsum('d,dnh->nh', x, head['query'])
    queries = apply_rope(queries, position + count, self.theta)
    queries = queries * queries.shape[-1] ** -0.5
    drafted = KeyValueView(keys, values, jnp.arange(len(keys)) <= count)
    attended = attend(queries, view, drafted)
    y = y + jnp.einsum('nh,nhd->d', attended, head['out'])
    x = self._norm(y, head['mlp_norm'])
    hidden = jax.nn.silu(x @ head['gate']) * (x @ head['up'])
    y = y + hidden @ head['down']
    u = self._norm(y, head['norm'])
    g = u if self.norm_output else y
    return _Carry(count + 1, g, keys, values), self.logits(head, u)

  def logits(
    self, head: PyTree, u: Float[Array | np.ndarray, 'H']
  ) -> Float[Array, 'V']:
    """Returns the logits of all the verifier's tokens."""
    logits, size = head['table'] @ u, self.model.vocab_size
    if 'tokens' not in head:
      # Further rows are the padding of the verifier's table.
      return logits[:size]
    return jnp.full(size, -jnp.inf, logits.dtype).at[head['tokens']].set(logits)

  def start(self, params, state, context, gamma):
    """Returns the recurrence of the head over the text's pairs."""
    view = self.view(state, context.length)
    empty = jnp.zeros((gamma + 1, *state['k'].shape[1:]), state['k'].dtype)
    # Given because of `needs_hidden`.
    assert context.hidden is not None
    g = self._join_states(params[0], context.hidden)
    step = functools.partial(self.step, params, view, context.length - 1)
    return Recurrence(step, _Carry(jnp.zeros((), jnp.int32), g, empty, empty))
