"""From logits to the distribution that is sampled, and the sampling.

`SamplingParams` holds temperature, top-k, top-p and the forbidden tokens, which
are removed first; the others apply in that order. The numbers are traced, so
that changing one compiles nothing. A value that is None adds no computation.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy import special
from jaxtyping import Array, Bool, Float, Int

# A traced scalar, or one of Python or NumPy.
RealScalar = Float[Array, ''] | np.floating | float
IntScalar = Int[Array, ''] | np.integer | int

# Lower temperatures are greedy. At 1e-6, logits near 10 that differ by one step
# of float32 have probabilities a factor e apart; far lower, quotients overflow.
GREEDY_BELOW = 1e-6


@struct.dataclass
class SamplingParams:
  """Parameters of sampling from logits; a pytree of traced numbers.

  Attributes:
    temperature: Divides the logits. 0, or less than `GREEDY_BELOW`, is greedy:
      one-hot at the largest logit, at the lowest id among equal ones.
    top_k: Keeps the k most probable tokens; None keeps all.
    top_p: Keeps the fewest most probable tokens that hold this mass (Holtzman
      et al. 2020); None keeps all.
    forbidden: [V], True for tokens that must never be emitted; None forbids
      none.
    draft_temperature: The drafter's temperature; None is `temperature`.
  """

  temperature: RealScalar = 1.0
  top_k: IntScalar | None = None
  top_p: RealScalar | None = None
  forbidden: Bool[Array | np.ndarray, 'V'] | None = None
  draft_temperature: RealScalar | None = None

  @property
  def of_drafter(self) -> Self:
    """The parameters that drafts are drawn by."""
    if self.draft_temperature is None:
      return self
    return dataclasses.replace(self, temperature=self.draft_temperature)

  def restrict_vocab(self, token_ids: Int[Array, 'N'] | None) -> Self:
    """Returns the parameters for logits of these N tokens; None means all V."""
    if token_ids is None or self.forbidden is None:
      return self
    return dataclasses.replace(self, forbidden=self.forbidden[token_ids])


def gate_probs(logits: Float[Array, 'V']) -> Float[Array, 'V']:
  """Computes the softmax of raw logits at temperature 1, in float32."""
  return jax.nn.softmax(logits.astype(jnp.float32), axis=-1)


def token_logprob(
  logits: Float[Array, 'V'], token: Int[Array, '']
) -> Float[Array, '']:
  """Computes one token's log-probability at temperature 1."""
  logits = logits.astype(jnp.float32)
  return logits[token] - jax.nn.logsumexp(logits)


def truncate(
  probs: Float[Array, 'V'],
  *,
  top_k: IntScalar | None = None,
  top_p: RealScalar | None = None,
  min_p: RealScalar | None = None,
  eta: RealScalar | None = None,
) -> Float[Array, 'V']:
  """Sets unlikely tokens to zero and normalizes, in the order of the arguments.

  See `SamplingParams`; eta keeps tokens with at least min(eta, sqrt(eta) *
  exp(-H)), H the entropy in nats. The likeliest token always stays. Equal
  probabilities at a border are kept together, so that the result does not
  depend on the order of the vocabulary.
  """
  if top_k is not None:
    count = jnp.clip(top_k, 1, probs.shape[-1])
    threshold = _truncation_threshold(
      probs, lambda x: (probs > x).sum(-1) < count
    )
    probs = jnp.where(probs >= threshold, probs, 0)
  if top_p is not None:
    mass = top_p * probs.sum(-1)
    threshold = _truncation_threshold(
      probs, lambda x: jnp.where(probs > x, probs, 0).sum(-1) < mass
    )
    # At 1 nothing is dropped, even if rounding makes the sum less than 1.
    probs = jnp.where((probs >= threshold) | (top_p >= 1), probs, 0)
  if min_p is not None:
    probs = jnp.where(probs >= min_p * probs.max(-1), probs, 0)
  if eta is not None:
    probs = probs / probs.sum(-1)
    exp_entropy = jnp.exp(-special.entr(probs).sum(-1))
    threshold = jnp.minimum(eta, jnp.sqrt(eta) * exp_entropy)
    threshold = jnp.minimum(threshold, probs.max(-1))
    probs = jnp.where(probs >= threshold, probs, 0)
  return probs / probs.sum(-1)


def _truncation_threshold(
  probs: Float[Array, 'V'],
  is_kept: Callable[[Float[Array, '']], Bool[Array, '']],
) -> Float[Array, '']:
  """Finds the least probability that truncation keeps; at most the largest.

  Floats above 0 are ordered as their bits are: a binary search over the bits
  ends at one float. A sort takes fifteen times as long on a CPU.
  """
  bits = jnp.finfo(probs.dtype).bits
  as_float = functools.partial(
    jax.lax.bitcast_convert_type, new_dtype=probs.dtype
  )

  def halve(_, ends):
    low, high = ends
    center = low + (high - low) // 2
    keep = is_kept(as_float(center))
    return jnp.where(keep, low, center + 1), jnp.where(keep, center, high)

  highest = jax.lax.bitcast_convert_type(probs.max(-1), jnp.dtype(f'int{bits}'))
  # The search leaves out the sign bit.
  ends = jax.lax.fori_loop(
    0, bits - 1, halve, (jnp.zeros_like(highest), highest)
  )
  return as_float(ends[1])


def scatter_to_vocab(
  logits: Float[Array, '*L N'],
  draft_vocab_ids: Int[Array, 'N'],
  vocab_size: int,
) -> Float[Array, '*L V']:
  """Scatters logits of some tokens to the vocabulary; -inf elsewhere."""
  empty = jnp.full((*logits.shape[:-1], vocab_size), -jnp.inf, logits.dtype)
  return empty.at[..., draft_vocab_ids].set(
    logits,
    mode='promise_in_bounds',
    indices_are_sorted=True,
    unique_indices=True,
  )


def is_distribution(logits: Float[Array, '*N V']) -> Bool[Array, '*N']:
  """Returns True if logits have no nan or +inf, and are not all -inf."""
  # XLA's max on a CPU can skip a nan; comparisons do not.
  return (logits < jnp.inf).all(-1) & (logits > -jnp.inf).any(-1)


def is_sound(
  logits: Float[Array, '*N V'], hidden: Float[Array, '*N D']
) -> Bool[Array, '*N']:
  """Returns True if logits define a distribution and states are finite.

  A soft cap makes an infinite logit finite. States may be -inf: the hidden
  states of `TableModel` are its logits.
  """
  return is_distribution(logits) & (hidden < jnp.inf).all(-1)


def has_mass(weights: Float[Array, '*N V']) -> Bool[Array, '*N']:
  """Returns True if no weight is below 0, and the sum positive and finite."""
  total = weights.sum(-1)
  return (weights >= 0).all(-1) & (total > 0) & (total < jnp.inf)


def has_allowed_token(
  logits: Float[Array, '*N V'], forbidden: Bool[Array | np.ndarray, 'V']
) -> Bool[Array, '*N']:
  """Returns True if a token that is not forbidden has a finite logit."""
  return ((logits > -jnp.inf) & ~forbidden).any(-1)


def processed_probs(
  logits: Float[Array, 'V'], sampling: SamplingParams
) -> Float[Array, 'V']:
  """Computes the distribution that tokens are drawn from, in float32.

  If every token with a finite logit is forbidden, as can be with a one-hot q,
  all allowed tokens are equal.
  """
  logits = logits.astype(jnp.float32)
  if sampling.forbidden is not None:
    is_allowed = has_allowed_token(logits, sampling.forbidden)[..., None]
    logits = jnp.where(is_allowed, logits, 0)
    logits = jnp.where(sampling.forbidden, -jnp.inf, logits)
  greedy = sampling.temperature < GREEDY_BELOW

  def one_hot(logits):
    at_max = jnp.arange(logits.shape[-1]) == argmax_lowest_id(logits)
    return at_max.astype(jnp.float32)

  def truncated_softmax(logits):
    temperature = jnp.where(greedy, 1.0, sampling.temperature)
    largest = logits.max(-1, keepdims=True)
    # A quotient of a finite logit may be infinite. Then differences from the
    # largest logit are divided, and those below 0 have probability 0.
    overflows = ~jnp.isfinite(largest / temperature)
    scaled = (logits - jnp.where(overflows, largest, 0)) / temperature
    return truncate(
      jax.nn.softmax(scaled.astype(jnp.float32), axis=-1),
      top_k=sampling.top_k,
      top_p=sampling.top_p,
    )

  # For a large vocabulary either branch takes a CPU as long as a layer of a
  # small model; other devices would wait for the host to select a branch.
  if jax.default_backend() == 'cpu':
    return jax.lax.cond(greedy, one_hot, truncated_softmax, logits)
  return jnp.where(greedy, one_hot(logits), truncated_softmax(logits))


def argmax_lowest_id(values: Float[Array, '*B V']) -> Int[Array, '*B']:
  """Finds the token of the largest value; the lowest id among equal ones."""
  # XLA's argmax takes six to nine times as long on a CPU as two reductions.
  token = jnp.arange(values.shape[-1], dtype=jnp.int32)
  largest = values.max(-1, keepdims=True)
  return jnp.where(values == largest, token, token.size).min(-1)


def uniforms_per_token(vocab_size: int) -> int:
  """Returns how many uniforms `sample_from_uniforms` takes, about 2 sqrt(V)."""
  width = _run_length(vocab_size)
  return width - (-vocab_size // width)


def draw_uniforms(key: jax.Array, *shape: int) -> Float[Array, '...']:
  """Draws numbers between 0 and 1; for a block at once, which is far faster."""
  tiny = jnp.finfo(jnp.float32).tiny
  return jax.random.uniform(key, shape, jnp.float32, minval=tiny)


def sample_from_uniforms(
  uniforms: Float[Array, 'n'], probs: Float[Array, 'V']
) -> Int[Array, '']:
  """Samples one token; never a token of probability 0, despite rounding.

  Gumbel's trick, argmax(log weight + noise), selects one of about sqrt(V) runs
  of tokens and then a token in it: noise for all costs more than a small model.
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
