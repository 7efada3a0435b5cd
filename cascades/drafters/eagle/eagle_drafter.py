"""EAGLE-3: a layer that looks between the verifier's layers (Li et al. 2025).

arXiv 2503.01840, with the tensors that the `speculators` library gives it. The
verifier's states after three of its layers, a_p, b_p and c_p at position p,
become g_p = F [a_p; b_p; c_p]. Where the verifier said the token x, after the
one at p,

  y = r + attention([norm(E_x); norm(g_p)]),   y <- y + mlp(norm(y))
  logits = T norm(y),

with r = g_p or its norm; and so on with the token that is drafted and y, or
norm(y), in the place of g. The states may be normed before F, all three
together or each apart. E is the head's own table or the verifier's, as it is
stored. T says some of the tokens, and the others have -inf.

What the layer attends to are such pairs of a token and the state where it was
said: the verifier's of what is written, its own of what it drafts. They are in
a cache of its own, at the slot and position of the token; the first token has
none. A key and a value are made of a pair alone, so that `observe` needs no
attention, and drafts leave the cache as it is.

A layer with a window attends to the last pairs of the text, as many as the
window has, and to all that is drafted; so it was trained.

It was compared with `speculators` itself, on random heads, and with a pass in
NumPy, written for the tests from the same description; not with vLLM.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from cascades.decoding.state import write
from cascades.drafters.assistant.assistant_drafter import Bank, attend, norm
from cascades.drafters.recurrent import recurrent_drafter

# How many tokens were drafted before; the last state; keys and values of these.
_Carry = tuple[Array, Array, Array, Array]


def turn(
  x: Float[Array, 'N h'], position: Int[Array, ''], theta: float
) -> Float[Array, 'N h']:
  """Vectors turned by their position, as Llama's are.

  Args:
    x: One for each head. Number i makes a pair with number i + h / 2.
    position: Where they stand.
    theta: Base of the frequencies.
  """
  half = x.shape[-1] // 2
  angles = position * theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  one, other = jnp.split(x.astype(jnp.float32), 2, -1)
  turned = [one * cos - other * sin, other * cos + one * sin]
  return jnp.concatenate(turned, -1).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class EagleDrafter(recurrent_drafter.Unrolled):
  """Drafts with an EAGLE-3 head; parameters are (its own, the verifier's).

  Attributes:
    model: The verifier.
    hidden_layers: After how many of its layers the head looks at its states.
    theta: Base of the frequencies by which positions are turned.
    epsilon: Of all norms.
    norm_before_residual: Whether r is the norm of g.
    norm_output: Whether the norm of y takes the place of g, and not y.
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
    return norm(x, scale, self.epsilon)

  def _joined(
    self, own: PyTree, hidden: Float[Array | np.ndarray, 'D']
  ) -> Array:
    """g, of the verifier's states at a position."""
    hidden = hidden.astype(own['join'].dtype)
    if 'taps_norm' in own:
      hidden = self._norm(hidden, own['taps_norm'])
    if 'norm_of_each' in own:
      each = hidden.reshape(own['norm_of_each'].shape)
      hidden = self._norm(each, own['norm_of_each']).ravel()
    g = hidden @ own['join']
    return g + own['join_bias'] if 'join_bias' in own else g

  def _pair(
    self,
    params: tuple[PyTree, PyTree],
    g: Float[Array, 'H'],
    token: Int[Array, ''],
  ) -> tuple[Float[Array, 'W'], Float[Array, 'H']]:
    """A token and a state as the layer takes them; and r."""
    own, verifier = params
    if 'embeddings' in own:
      embedded = own['embeddings'][token]
    else:
      embedded = self.model.embed(verifier, token).astype(g.dtype)
    embedded = self._norm(embedded, own['token_norm'])
    normed = self._norm(g, own['state_norm'])
    x = jnp.concatenate([embedded, normed])
    return x, normed if self.norm_before_residual else g

  def _kept(
    self, own: PyTree, x: Float[Array, 'W'], position: Int[Array, '']
  ) -> tuple[Float[Array, 'K h'], Float[Array, 'K h']]:
    """The key and the value of a pair."""
    key = jnp.einsum('d,dkh->kh', x, own['key'])
    value = jnp.einsum('d,dkh->kh', x, own['value'])
    return turn(key, position, self.theta), value

  def init(self, params, cache_length):
    """An empty cache."""
    _, heads, size = params[0]['key'].shape
    empty = jnp.zeros((cache_length, heads, size), params[0]['key'].dtype)
    return {'k': empty, 'v': empty}

  def observe(self, params, state, tokens, hidden, position, count):
    """The cache with keys and values of these tokens.

    Those after `count` are written too, and not seen until others lie there.
    """

    def one(token, hidden, at):
      x, _ = self._pair(params, self._joined(params[0], hidden), token)
      return self._kept(params[0], x, at)

    places = position + 1 + jnp.arange(len(tokens))
    keys, values = jax.vmap(one)(tokens, hidden, places)
    return {
      'k': write(state['k'], position + 1, keys),
      'v': write(state['v'], position + 1, values),
    }

  def resize(self, params, state, cache_length):
    """The same cache with another room."""
    return {
      name: jnp.pad(x, [(0, cache_length - len(x)), (0, 0), (0, 0)])
      for name, x in state.items()
    }

  def bank(self, state: PyTree, length: Int[Array, '']) -> Bank:
    """The pairs of a text that a block attends to.

    Args:
      state: The cache.
      length: Tokens of the text.
    """
    slots, at = jnp.arange(len(state['k'])), length - 1
    # The last token's pair is read once more, by the first step.
    seen = (slots > 0) & (slots < at)
    if self.window is not None:
      seen &= slots > at - self.window
    return Bank(state['k'], state['v'], seen)

  def step(
    self,
    params: tuple[PyTree, PyTree],
    bank: Bank,
    at: Int[Array, ''],
    carry: _Carry,
    token: Int[Array, ''],
  ) -> tuple[_Carry, Float[Array, 'V']]:
    """One token read: what is carried on, and the logits of the token after it.

    Args:
      params: The head's, and the verifier's.
      bank: What it sees of the text, up to the last token.
      at: Where that stands.
      carry: From the step before.
      token: The last one.
    """
    own, (count, g, keys, values) = params[0], carry
    x, y = self._pair(params, g, token)
    key, value = self._kept(own, x, at + count)
    keys, values = keys.at[count].set(key), values.at[count].set(value)
    queries = jnp.einsum('d,dnh->nh', x, own['query'])
    queries = turn(queries, at + count, self.theta) * queries.shape[-1] ** -0.5
    drafted = Bank(keys, values, jnp.arange(len(keys)) <= count)
    found = attend(queries, bank, drafted)
    y = y + jnp.einsum('nh,nhd->d', found, own['out'])
    x = self._norm(y, own['mlp_norm'])
    y = y + (jax.nn.silu(x @ own['gate']) * (x @ own['up'])) @ own['down']
    u = self._norm(y, own['norm'])
    g = u if self.norm_output else y
    return (count + 1, g, keys, values), self.logits(own, u)

  def logits(
    self, own: PyTree, u: Float[Array | np.ndarray, 'H']
  ) -> Float[Array, 'V']:
    """What the head says of its last state, of all the verifier's tokens."""
    said, size = own['table'] @ u, self.model.vocab_size
    if 'tokens' not in own:
      # Rows after those pad the verifier's table.
      return said[:size]
    nothing = jnp.full(size, -jnp.inf, said.dtype)
    return nothing.at[own['tokens']].set(said)

  def start(self, params, state, context, gamma):
    """All drafts look at what is written, and at themselves."""
    bank = self.bank(state, context.length)
    empty = jnp.zeros((gamma + 1, *state['k'].shape[1:]), state['k'].dtype)
    g = self._joined(params[0], context.hidden)
    step = functools.partial(self.step, params, bank, context.length - 1)
    return step, (jnp.zeros((), jnp.int32), g, empty, empty), None
