"""Rotary position embeddings in a config.json.

transformers 5 keeps their fields in `rope_parameters`, and transformers 4 in
`rope_theta`, `rope_local_base_freq` and `rope_scaling`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import pydantic

from cascades import arguments
from cascades.models.family_fields import (
  GLOBAL_THETA,
  LOCAL_THETA,
  without_nulls,
)
from cascades.untrusted.schema import Positive, Schema

_PROPORTIONAL = 'proportional'


class Rope(NamedTuple):
  """A rotary position embedding."""

  theta: float
  factor: float = 1.0
  share: float = 1.0


class _ByLayerType(Schema):
  """`rope_parameters` of a model with two attention types."""

  full_attention: dict[str, Any] | None = None
  sliding_attention: dict[str, Any] | None = None


def rope_type() -> Any:
  """Returns the field `rope_type`, which older files call `type`."""
  names = pydantic.AliasChoices('rope_type', 'type')
  return pydantic.Field('default', validation_alias=names)


class _RopeFields(Schema):
  """Fields of the embedding of one attention type."""

  rope_type: str = rope_type()
  rope_theta: Positive
  factor: Annotated[Positive, pydantic.Field(ge=1)] = 1.0
  partial_rotary_factor: Annotated[Positive, pydantic.Field(le=1)] = 1.0


def gemma2_rope(config: Mapping[str, Any]) -> Rope:
  """Returns the embedding of all layers of a Gemma 2."""
  fields = config['rope_scaling'] or config['rope_parameters'] or {}
  return _parse(fields, config['rope_theta'])


def gemma3_ropes(config: Mapping[str, Any]) -> tuple[Rope, Rope]:
  """Returns the embeddings of a Gemma 3 or 3n: sliding, full attention."""
  sliding, full = _split_by_type(config)
  scaling = config['rope_scaling'] or {}
  return (
    _parse(sliding, config['rope_local_base_freq']),
    _parse(full | scaling, config['rope_theta']),
  )


def gemma4_ropes(config: Mapping[str, Any]) -> tuple[Rope, Rope]:
  """Returns the embeddings of a Gemma 4: sliding, full attention."""
  sliding, full = _split_by_type(config)
  if not config['rope_parameters']:
    full = {'rope_type': _PROPORTIONAL, 'partial_rotary_factor': 0.25}
  return (
    _parse(sliding, LOCAL_THETA, allows_proportional=True),
    _parse(full, GLOBAL_THETA, allows_proportional=True),
  )


def _split_by_type(
  config: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the fields of `rope_parameters` for sliding and full attention."""
  checked = _ByLayerType.check(
    config['rope_parameters'] or {}, 'config.json: rope_parameters'
  )
  return checked.sliding_attention or {}, checked.full_attention or {}


def _parse(
  fields: Mapping[str, Any], theta: float, allows_proportional: bool = False
) -> Rope:
  """Returns the embedding of one attention type."""
  checked = _RopeFields.check(
    without_nulls({'rope_theta': theta, **fields}),
    'config.json: rope_parameters',
  )
  types = ('default', 'linear', *[_PROPORTIONAL][: int(allows_proportional)])
  share = checked.partial_rotary_factor if allows_proportional else 1.0
  is_linear = checked.rope_type == 'linear'
  if checked.rope_type not in types or (
    is_linear and ('factor' not in fields or share != 1)
  ):
    raise ValueError(
      f'config.json: the rope parameters {arguments.quote(dict(fields))} are'
      f' not supported; gemma has rope_type {", ".join(types)}, and linear'
      ' needs a factor.'
    )
  return Rope(
    checked.rope_theta,
    1.0 if checked.rope_type == 'default' else checked.factor,
    share if checked.rope_type == _PROPORTIONAL else 1.0,
  )


def ropes_of(config: Any) -> dict[str, Rope]:
  """Returns rotary embeddings by gemma's name of the attention type."""
  return {
    attention_type: Rope(
      getattr(config, f'{side}_base_frequency'),
      getattr(config, f'{side}_scale_factor'),
      getattr(config, f'{side}_rope_proportion', 1.0),
    )
    for attention_type, side in (
      ('LOCAL_SLIDING', 'local'),
      ('GLOBAL', 'global'),
    )
  }
