"""From logits to the distribution that is sampled, and the sampling.

`Processing` says how: temperature, top-k, top-p, min-p and forbidden tokens,
applied in that order after forbidden tokens are taken out. Its numbers are
traced, so changing one compiles nothing; what is None costs nothing.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.scipy import special
from jaxtyping import Array, Bool, Float, Int

# A temperature below this is greedy. Logits of about 10 that differ by one
# float32 step are then a factor e apart; much less, and quotients overflow.
GREEDY_BELOW = 1e-6


@struct.dataclass
class Processing:
  """How logits become probabilities; a pytree of traced numbers.

  Attributes:
    temperature: 0, or less than `GREEDY_BELOW`, is greedy: one-hot at the
      largest logit (the lowest id of equals).
    top_k: Keep the k most probable tokens; None keeps all.
    top_p: Keep the fewest most probable tokens that hold this mass (Holtzman
      et al. 2020); None keeps all.
    min_p: Keep tokens with at least this share of the largest probability
      (Nguyen et al. 2024); None keeps all.
    forbidden: [V], True where a token must never be emitted; None: nowhere.
    cap: Which tokens a capped method may make likelier than the verifier does;
      changes no probabilities of either model. None without a cap.
  """

  temperature: Float[Array, ''] | float = 1.0
  top_k: Int[Array, ''] | int | None = None
  top_p: Float[Array, ''] | float | None = None
  min_p: Float[Array, ''] | float | None = None
  forbidden: Bool[Array, 'V'] | None = None
  cap: Any = None

  def among(self, said: Int[Array, 'N'] | None) -> 'Processing':
    """The same for logits of some tokens alone; None for all of them."""
    if said is None or self.forbidden is None:
      return self
    return self.replace(forbidden=self.forbidden[said])


def gate_probabilities(logits: Float[Array, 'V']) -> Float[Array, 'V']:
  """softmax of the raw logits at temperature 1, in float32."""
  return jax.nn.softmax(logits.astype(jnp.float32), axis=-1)


def log_probability(
  logits: Float[Array, 'V'], token: Int[Array, '']
) -> Float[Array, '']:
  """log softmax of the raw logits at temperature 1, at one token."""
  logits = logits.astype(jnp.float32)
  return logits[token] - jax.nn.logsumexp(logits)


def truncate(
  probs: Float[Array, 'V'],
  *,
  top_k: Int[Array, ''] | int | None = None,
  top_p: Float[Array, ''] | float | None = None,
  min_p: Float[Array, ''] | float | None = None,
  eta: Float[Array, ''] | float | None = None,
) -> Float[Array, 'V']:
  """Drops unlikely tokens, in this order, and normalises what is left.

  The likeliest always stays. Ties at a top-k or top-p border are kept
  together, so that the result does not depend on the order of the vocabulary.

  Args:
    probs: A distribution.
    top_k: How many of the most probable tokens to keep.
    top_p: Keep the fewest most probable tokens that hold this mass.
    min_p: Keep tokens with at least this share of the largest probability.
    eta: Keep tokens with at least min(eta, sqrt(eta) * exp(-H)), H the entropy
      in nats (Hewitt et al. 2022).

  Returns:
    A distribution of the same dtype.
  """
  if top_k is not None:
    most = jnp.clip(top_k, 1, probs.shape[-1])
    least = _least_kept(probs, lambda t: (probs > t).sum(-1) < most)
    probs = jnp.where(probs >= least, probs, 0)
  if top_p is not None:
    mass = top_p * probs.sum(-1)
    least = _least_kept(
      probs, lambda t: jnp.where(probs > t, probs, 0).sum(-1) < mass
    )
    # At 1 nothing is dropped, whatever rounding makes of the sum.
    probs = jnp.where((probs >= least) | (top_p >= 1), probs, 0)
  if min_p is not None:
    probs = jnp.where(probs >= min_p * probs.max(-1), probs, 0)
  if eta is not None:
    probs = probs / probs.sum(-1)
    spread = jnp.exp(-special.entr(probs).sum(-1))
    least = jnp.minimum(jnp.minimum(eta, jnp.sqrt(eta) * spread), probs.max(-1))
    probs = jnp.where(probs >= least, probs, 0)
  return probs / probs.sum(-1)


def _least_kept(
  probs: Float[Array, 'V'],
  leaves_room: Callable[[Float[Array, '']], Bool[Array, '']],
) -> Float[Array, '']:
  """The probability from which tokens are kept; at most the largest.

  Floats above 0 are ordered as their bits are, and so a binary search over bits
  ends at one exactly, in 31 plain sums for float32: a sort of a large
  vocabulary takes fifteen times as long on a CPU.

  Args:
    probs: Numbers that are not negative.
    leaves_room: Whether a token of a probability is kept beside those that are
      likelier; if so, then beside those that are likelier than a larger one.
  """
  size = jnp.finfo(probs.dtype).bits
  whole = jnp.dtype(f'int{size}')
  as_float = functools.partial(
    jax.lax.bitcast_convert_type, new_dtype=probs.dtype
  )

  def halve(_, ends):
    low, high = ends
    middle = low + (high - low) // 2
    kept = leaves_room(as_float(middle))
    return jnp.where(kept, low, middle + 1), jnp.where(kept, middle, high)

  highest = jax.lax.bitcast_convert_type(probs.max(-1), whole)
  # The sign is no bit of the search.
  ends = jax.lax.fori_loop(
    0, size - 1, halve, (jnp.zeros_like(highest), highest)
  )
  return as_float(ends[1])


def spread(
  logits: Float[Array, '*L N'], said: Int[Array, 'N'], vocab_size: int
) -> Float[Array, '*L V']:
  """Logits of all tokens, -inf of those that are not said.

  Args:
    logits: Of what is said.
    said: Its ids, upwards.
    vocab_size: V.
  """
  nothing = jnp.full((*logits.shape[:-1], vocab_size), -jnp.inf, logits.dtype)
  return nothing.at[..., said].set(
    logits,
    mode='promise_in_bounds',
    indices_are_sorted=True,
    unique_indices=True,
  )


def is_distribution(logits: Float[Array, '*N V']) -> Bool[Array, '*N']:
  """True if logits define a distribution.

  They are not where one is nan or +inf, or where all are -inf. Comparisons show
  that; a largest value may not, since XLA's max on a CPU can skip a nan.
  """
  return (logits < jnp.inf).all(-1) & (logits > -jnp.inf).any(-1)


def is_sound(
  logits: Float[Array, '*N V'], hidden: Float[Array, '*N D']
) -> Bool[Array, '*N']:
  """True if logits define a distribution and were made of finite states.

  A soft cap makes an infinite logit finite, so that the hidden states that
  logits are made of are looked at too. Those of a table are its logits, which
  may be -inf.
  """
  return is_distribution(logits) & (hidden < jnp.inf).all(-1)


def has_mass(weights: Float[Array, '*N V']) -> Bool[Array, '*N']:
  """True if a token can be drawn by the weights.

  Each is 0 or more, and their sum is positive and finite. A negative weight has
  no logarithm, so that `draw` would give its token whenever it looks at it.
  """
  total = weights.sum(-1)
  return (weights >= 0).all(-1) & (total > 0) & (total < jnp.inf)


def says(logits: Float[Array, '*N V'], how: Processing) -> Bool[Array, '*N']:
  """Whether logits have a token that is not forbidden.

  Those of a token that was chosen, not drawn, are -inf everywhere else.
  """
  if how.forbidden is None:
    return jnp.ones(logits.shape[:-1], bool)
  return ((logits > -jnp.inf) & ~how.forbidden).any(-1)


def probabilities(
  logits: Float[Array, 'V'], how: Processing
) -> Float[Array, 'V']:
  """The distribution that tokens are drawn from, in float32.

  Of logits that forbidden tokens leave nothing of, any allowed token alike: see
  `says`.
  """
  logits = logits.astype(jnp.float32)
  if how.forbidden is not None:
    logits = jnp.where(says(logits, how)[..., None], logits, 0)
    logits = jnp.where(how.forbidden, -jnp.inf, logits)
  greedy = how.temperature < GREEDY_BELOW

  def chosen(logits):
    one_hot = jnp.arange(logits.shape[-1]) == likeliest(logits)
    return one_hot.astype(jnp.float32)

  def weighed(logits):
    temperature = jnp.where(greedy, 1.0, how.temperature)
    most = logits.max(-1, keepdims=True)
    # Quotients of finite logits may not be finite; differences below 0 are 0
    # to a softmax then. All others are divided as they are.
    scaled = logits - jnp.where(jnp.isfinite(most / temperature), 0, most)
    scaled = scaled / temperature
    return truncate(
      jax.nn.softmax(scaled.astype(jnp.float32), axis=-1),
      top_k=how.top_k,
      top_p=how.top_p,
      min_p=how.min_p,
    )

  # Of a large vocabulary either takes a CPU as long as a layer of a small model
  # does; other devices would wait for the host to choose one.
  if jax.default_backend() == 'cpu':
    return jax.lax.cond(greedy, chosen, weighed, logits)
  return jnp.where(greedy, chosen(logits), weighed(logits))


def likeliest(values: Float[Array, '*B V']) -> Int[Array, '*B']:
  """The token of the largest value; of equals the one of the lowest id.

  As an argmax, but by two plain reductions: of one row of 262,144 logits XLA
  takes nine times as long for an argmax on a CPU, of nine rows six times.
  """
  token = jnp.arange(values.shape[-1], dtype=jnp.int32)
  most = values.max(-1, keepdims=True)
  return jnp.where(values == most, token, token.size).min(-1)


def draw_size(vocab_size: int) -> int:
  """How many random numbers `draw` takes, about 2 sqrt(V)."""
  width = _run_length(vocab_size)
  return width - (-vocab_size // width)


def uniform(key: jax.Array, *shape: int) -> Float[Array, '...']:
  """Random numbers above 0 and below 1.

  A call for all that a block needs costs a small model on a CPU far less than
  a call for each of its tokens.
  """
  tiny = jnp.finfo(jnp.float32).tiny
  return jax.random.uniform(key, shape, jnp.float32, minval=tiny)


def draw(
  uniforms: Float[Array, 'n'], probs: Float[Array, 'V']
) -> Int[Array, '']:
  """One token; never one of probability 0, whatever the rounding.

  First one of about sqrt(V) runs of tokens, then a token of that run, each by
  Gumbel's trick, argmax(log weight + noise): noise for every token would cost
  more than a small model.

  Args:
    uniforms: `draw_size(V)` numbers from `uniform`.
    probs: Need not be normalised.
  """
  size = probs.shape[-1]
  width = _run_length(size)
  runs = jnp.pad(probs, (0, -size % width)).reshape(-1, width)
  noise = -jnp.log(-jnp.log(uniforms))
  run = jnp.argmax(jnp.log(runs.sum(-1)) + noise[width:])
  token = jnp.argmax(jnp.log(runs[run]) + noise[:width])
  return (run * width + token).astype(jnp.int32)


def _run_length(vocab_size: int) -> int:
  return math.isqrt(vocab_size - 1) + 1
