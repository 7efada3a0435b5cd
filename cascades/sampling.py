"""From logits to the distribution that is sampled, and the sampling.

`Processing` says how: temperature, top-k, top-p, min-p and forbidden tokens,
applied in that order after forbidden tokens are taken out. Its numbers are
traced, so changing one compiles nothing; what is None costs nothing.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


@struct.dataclass
class Processing:
  """How logits become probabilities; a pytree of traced numbers.

  Attributes:
    temperature: 0 is greedy: one-hot at the largest logit (the lowest id of
      equals).
    top_k: Keep the k most probable tokens; None keeps all.
    top_p: Keep the fewest most probable tokens that hold this mass (Holtzman
      et al. 2020); None keeps all.
    min_p: Keep tokens with at least this share of the largest probability
      (Nguyen et al. 2024); None keeps all.
    forbidden: [V], True where a token must never be emitted; None: nowhere.
  """

  temperature: Float[Array, ''] | float = 1.0
  top_k: Int[Array, ''] | int | None = None
  top_p: Float[Array, ''] | float | None = None
  min_p: Float[Array, ''] | float | None = None
  forbidden: Bool[Array, 'V'] | None = None


def gate_probabilities(logits: Float[Array, 'V']) -> Float[Array, 'V']:
  """softmax of the raw logits at temperature 1, in float32."""
  return jax.nn.softmax(logits.astype(jnp.float32), axis=-1)


def probabilities(
  logits: Float[Array, 'V'], how: Processing
) -> Float[Array, 'V']:
  """The distribution that tokens are drawn from, in float32.

  Ties at a top-k or top-p border are kept together, so that the result does
  not depend on the order of the vocabulary.
  """
  logits = logits.astype(jnp.float32)
  if how.forbidden is not None:
    logits = jnp.where(how.forbidden, -jnp.inf, logits)
  greedy = how.temperature == 0
  scaled = logits / jnp.where(greedy, 1.0, how.temperature)
  probs = jax.nn.softmax(scaled, axis=-1)
  if how.top_k is not None or how.top_p is not None:
    ordered = jnp.sort(probs, axis=-1, descending=True)
    least = jnp.zeros((), probs.dtype)
    if how.top_k is not None:
      last = jnp.clip(how.top_k, 1, probs.shape[-1]) - 1
      least = jnp.take(ordered, last, axis=-1)
      ordered = jnp.where(ordered >= least, ordered, 0)
      ordered = ordered / ordered.sum(-1)
      probs = jnp.where(probs >= least, probs, 0)
      probs = probs / probs.sum(-1)
    if how.top_p is not None:
      before = jnp.cumsum(ordered, axis=-1) - ordered
      inside = (before < how.top_p) & (ordered > 0)
      inside = inside.at[..., 0].set(True)
      least = jnp.where(inside, ordered, jnp.inf).min(-1)
      probs = jnp.where(probs >= least, probs, 0)
  if how.min_p is not None:
    probs = jnp.where(probs >= how.min_p * probs.max(-1), probs, 0)
  probs = probs / probs.sum(-1)
  one_hot = jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1])
  return jnp.where(greedy, one_hot, probs)


def sample(key: jax.Array, probs: Float[Array, 'V']) -> Int[Array, '']:
  """One token; never one of probability 0, whatever the rounding.

  By Gumbel's trick, argmax(log probs + noise).
  """
  noise = jax.random.gumbel(key, probs.shape)
  return jnp.argmax(jnp.log(probs) + noise, axis=-1).astype(jnp.int32)
