"""Random keys of answers, from a seed and a prompt alone."""

import collections
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from cascades.sampler import batching


def of_prompts(seed: int, prompts: list[list[int]]) -> jax.Array:
  """A key per prompt, from the seed, its tokens and how often it came before.

  Neither the place in the batch nor the other prompts have a part in it: two
  prompts of one checksum share a key, and each is answered as it is alone.

  Args:
    seed: From 0 to 2^64 - 1; its upper half is folded in where there is one.
    prompts: Token ids.
  """
  seen = collections.Counter()
  numbers = []
  for prompt in map(tuple, prompts):
    digest = zlib.crc32(np.array(prompt, '<i4').tobytes())
    numbers.append((digest, seen[prompt]))
    seen[prompt] += 1
  halves = np.array([seed % 2**32, seed // 2**32], np.uint32)
  # Of few shapes, so that prompts of any number compile nothing.
  padded = np.zeros((batching.bucket(len(numbers), 8), 2), np.uint32)
  padded[: len(numbers)] = numbers
  return _fold(halves, padded)[: len(numbers)]


@jax.jit
def _fold(seed: Int[Array, '2'], numbers: Int[Array, 'N 2']) -> jax.Array:
  """Keys of a seed's halves and of two numbers each."""
  root = jax.random.key(seed[0])
  root = jnp.where(seed[1] > 0, jax.random.fold_in(root, seed[1]), root)

  def one(pair):
    return jax.random.fold_in(jax.random.fold_in(root, pair[0]), pair[1])

  return jax.vmap(one)(numbers)
