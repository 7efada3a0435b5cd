"""A pair of models: loaded, placed on its devices and bound together."""

import dataclasses
from typing import Any

import jax

from cascades import arguments, drafters
from cascades.config import DecodingConfig, check_effects
from cascades.drafters import binding, token_checks
from cascades.models import checkpoints, sharding, tokenizers


@dataclasses.dataclass(frozen=True)
class Pair:
  """A verifier and a drafter that is bound to it."""

  verifier: checkpoints.Checkpoint
  drafter: drafters.Spec | drafters.BoundDrafter | None
  bound_drafter: drafters.BoundDrafter | None
  tokenizer: Any
  mesh: jax.sharding.Mesh | None


def load_pair(
  verifier: checkpoints.Checkpoint | str,
  drafter: Any,
  tokenizer: tokenizers.Tokenizer | None,
  config: DecodingConfig,
  *,
  mesh_shape: tuple[int, int],
  dtype: str | None,
) -> Pair:
  """Loads the models that are given by name, and binds the drafter."""
  _check_types(verifier, tokenizer)
  drafter = binding.as_spec(drafter)
  has_dtype = isinstance(verifier, str) or (
    isinstance(drafter, drafters.Spec) and drafter.takes_dtype
  )
  if dtype is not None and not has_dtype:
    raise ValueError(
      f'dtype: {arguments.quote(dtype)} has no effect on models that are loaded'
      ' already; give it to load_model, or give the models by name.'
    )
  mesh = _make_mesh(mesh_shape)
  if isinstance(verifier, str):
    verifier = checkpoints.load_model(verifier, dtype, mesh)
  verifier = verifier.shard(mesh)
  if isinstance(drafter, drafters.Spec):
    check_effects(drafter, config)
    drafter = drafter.load(dtype, mesh)
  tokenizer = tokenizer or verifier.tokenizer
  token_checks.check_tokenizer(verifier, tokenizer)
  if drafter is None and config.gamma:
    raise ValueError(
      f'drafter: none is given, but gamma is {config.gamma}; give a drafter, or'
      ' gamma 0 to decode with the verifier alone.'
    )
  bound = None
  if drafter is not None:
    bound = drafters.bind_drafter(verifier, drafter)
    if config.method.name == 'drafter_only' and bound.drafter.needs_hidden:
      name = type(bound.drafter).__name__
      raise ValueError(
        'method: drafter_only decodes with the drafter alone, but'
        f" {name} reads the verifier's states; give another method."
      )
  return Pair(
    verifier=verifier,
    drafter=drafter,
    bound_drafter=bound,
    tokenizer=tokenizer,
    mesh=mesh,
  )


def _check_types(verifier: Any, tokenizer: Any) -> None:
  """Refuses a verifier or a tokenizer of another type."""
  expected = 'a checkpoint from load_model, or a name that it takes'
  arguments.instance(
    'verifier', verifier, str | checkpoints.Checkpoint, expected
  )
  expected = (
    "a cascades.models.tokenizers.Tokenizer, or None for the verifier's"
  )
  arguments.instance(
    'tokenizer', tokenizer, tokenizers.Tokenizer | None, expected
  )


def _make_mesh(shape: tuple[int, int]) -> jax.sharding.Mesh | None:
  """Returns the mesh of (data, model); None for a single device."""
  if not isinstance(shape, tuple | list) or len(shape) != 2:
    raise ValueError(
      'mesh: must be two numbers, such as (4, 2), got'
      f' {arguments.quote(shape)}.'
    )
  if tuple(shape) == (1, 1):
    return None
  data, model = (arguments.integer('mesh', n, 1) for n in shape)
  return sharding.make_mesh(data, model)
