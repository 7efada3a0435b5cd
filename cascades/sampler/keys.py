"""Random keys of answers, from a seed and a prompt alone."""

import collections
import zlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from cascades.sampler import batching


def of_prompts(seed: int, prompts: Sequence[Sequence[int]]) -> jax.Array:
  """Makes a key per prompt from the seed, its tokens and its repetition.

  A key depends neither on the other prompts nor on the position in the batch.
  Prompts with the same checksum share a key.
  """
  repetitions = collections.Counter()
  pairs = []
  for prompt in map(tuple, prompts):
    digest = zlib.crc32(np.array(prompt, '<i4').tobytes())
    pairs.append((digest, repetitions[prompt]))
    repetitions[prompt] += 1
  halves = np.array([seed % 2**32, seed // 2**32], np.uint32)
  # Few shapes, so that any number of prompts compiles nothing.
  padded = np.zeros((batching.bucket(len(pairs), 8), 2), np.uint32)
  padded[: len(pairs)] = pairs
  return _fold(halves, padded)[: len(pairs)]


@jax.jit
def _fold(seed: UInt32[Array, '2'], pairs: UInt32[Array, 'N 2']) -> jax.Array:
  """Folds pairs of numbers into the key of a seed's two halves."""
  root = jax.random.key(seed[0])
  root = jnp.where(seed[1] > 0, jax.random.fold_in(root, seed[1]), root)

  def fold_pair(pair):
    return jax.random.fold_in(jax.random.fold_in(root, pair[0]), pair[1])

  return jax.vmap(fold_pair)(pairs)
