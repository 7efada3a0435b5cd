"""Hashes of the weights, settings and tokenizer of a pair of models."""

import dataclasses
import hashlib
from typing import Any

import jax
import jax.numpy as jnp

from cascades import drafters, methods
from cascades.models import checkpoints, hub, sharding
from cascades.plain import digest, plain


def fingerprint(params: Any) -> str:
  """Hashes parameters, from a checksum of each array on its own device."""
  leaves, treedef = jax.tree.flatten(params)
  checksums = [str(treedef)]
  for leaf in leaves:
    first, second = sharding.fetch(_checksum(leaf))
    checksums.append(f'{leaf.dtype}{leaf.shape}{first:08x}{second:08x}')
  return hashlib.sha256('\n'.join(checksums).encode()).hexdigest()


@jax.jit
def _checksum(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns two sums of an array's bits, weighted by their positions.

  The sums are of integers, so that the order of addition does not matter.
  """
  kind = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
  bits = jax.lax.bitcast_convert_type(x, kind).astype(jnp.uint32)
  position, stride = jnp.ones((), jnp.uint32), 1
  for axis, size in enumerate(bits.shape):
    along = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    position += along * jnp.uint32(stride % 2**32)
    stride *= size
  # Multiplication by an odd number is invertible modulo 2**32.
  weight = 2 * position * jnp.uint32(2654435761) + 1
  mixed = bits * weight
  return mixed.sum(), ((mixed ^ (mixed >> 15)) * weight).sum()


def weights(
  verifier: checkpoints.Checkpoint, bound_drafter: drafters.BoundDrafter | None
) -> dict[str, str]:
  """Hashes a pair of models."""
  of_verifier = {
    'verifier': fingerprint(verifier.params),
    'tokenizer': hashlib.sha256(verifier.tokenizer.proto).hexdigest(),
  }
  if bound_drafter is None:
    return of_verifier
  return of_verifier | {
    'drafter': fingerprint(bound_drafter.params),
    'settings': digest(
      plain(
        [
          _settings(verifier.model),
          _settings(bound_drafter.drafter),
          list(verifier.tokenizer.stops),
          *verifier.tokenizer.suppress_tokens,
          *filter(None, [verifier.tokenizer.chat_template]),
        ]
      )
    ),
  }


def commits(config: Any) -> dict[str, dict[str, str]]:
  """Returns {'commits': {name on the hub: commit}}; {} without a hub model."""
  names = hub.commits([config.verifier, config.drafter])
  return {'commits': names} if names else {}


def _settings(value: Any) -> Any:
  """Lists the settings of a model, without the names of this code's fields.

  Settings are the base of the rotary embedding, windows, soft caps and so on,
  as in the model's config.json. Renaming a field changes no hash.
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
  is_plain = value is None or isinstance(value, bool | int | float | str)
  return value if is_plain else type(value).__name__
