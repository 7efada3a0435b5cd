"""Hashes of what a pair computes with, by which its results are known."""

import dataclasses
import hashlib
from typing import Any

import jax
import jax.numpy as jnp

from cascades import methods
from cascades.models import checkpoints, sharding
from experiments import records


def fingerprint(params: Any) -> str:
  """A hash of all weights, made of a checksum of each where it lies."""
  leaves, treedef = jax.tree.flatten(params)
  said = [str(treedef)]
  for leaf in leaves:
    first, second = sharding.fetch(_checksum(leaf))
    said.append(f'{leaf.dtype}{leaf.shape}{first:08x}{second:08x}')
  return hashlib.sha256('\n'.join(said).encode()).hexdigest()


@jax.jit
def _checksum(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns two position-weighted sums of an array's bits.

  Sums of integers do not depend on the order in which a device adds.
  """
  kind = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
  bits = jax.lax.bitcast_convert_type(x, kind).astype(jnp.uint32)
  place, stride = jnp.ones((), jnp.uint32), 1
  for axis, size in enumerate(bits.shape):
    along = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    place, stride = place + along * jnp.uint32(stride % 2**32), stride * size
  # Odd, as is every product that is to lose none of the bits.
  weight = 2 * place * jnp.uint32(2654435761) + 1
  mixed = bits * weight
  return mixed.sum(), ((mixed ^ (mixed >> 15)) * weight).sum()


def weights(
  verifier: checkpoints.Checkpoint, bound_drafter: Any
) -> dict[str, str]:
  """Hashes of what a pair computes with, and of the tokenizer of both.

  Args:
    verifier: The verifier.
    bound_drafter: What drafts.

  Returns:
    By name, of the parameters, the tokenizer, and all other settings.
  """
  return {
    'verifier': fingerprint(verifier.params),
    'drafter': fingerprint(bound_drafter.params),
    'tokenizer': hashlib.sha256(verifier.tokenizer.proto).hexdigest(),
    'settings': records.digest(
      records.plain(
        [
          _settings(verifier.model),
          _settings(bound_drafter.drafter),
          list(verifier.tokenizer.stops),
        ]
      )
    ),
  }


def _settings(value: Any) -> Any:
  """What a model computes with beside its parameters, without our names.

  Such as the base of its rotations, its windows and its soft caps, as its
  config.json says them.
  """
  config = getattr(getattr(value, 'module', None), 'config', None)
  if config is not None:
    return [repr(config), value.vocab_size]
  if isinstance(value, methods.Method):
    return value.name
  if dataclasses.is_dataclass(value):
    return [
      _settings(getattr(value, field.name))
      for field in dataclasses.fields(value)
    ]
  if isinstance(value, tuple | list):
    return [_settings(x) for x in value]
  plain = value is None or isinstance(value, bool | int | float | str)
  return value if plain else type(value).__name__
