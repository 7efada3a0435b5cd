"""The fields that a sweep's config can have: their types and ranges, checked.

Everything else of an experiment reads fields without looking at their types, so
that `check` comes first. What a name stands for (a method, a task, a model) is
looked up where it is used.
"""

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

from cascades import arguments, drafters
from cascades.arguments import Option, options_of
from cascades.config import DecodingConfig

# Takes the name of a field and its value; raises a ValueError of one sentence.
Check = Callable[[str, Any], object]
_LARGEST_SEED = 2**64 - 1


def integer(low: int, high: int = arguments.MAX_INT32) -> Check:
  """Checks for a whole number from low to high."""
  return lambda name, value: arguments.integer(name, value, low, high)


def number(low: float, high: float = math.inf) -> Check:
  """Checks for a number from low to high."""
  return lambda name, value: arguments.number(name, value, low, high)


def text(name: str, value: Any) -> None:
  """Refuses all but texts that are not empty."""
  if not isinstance(value, str) or not value:
    raise ValueError(f'{name}: must be a text, got {arguments.quote(value)}.')


def or_empty(check: Check) -> Check:
  """Also allows an empty text, which leaves the field unset."""
  return lambda name, value: None if value == '' else check(name, value)


def flag(name: str, value: Any) -> None:
  """Refuses all but True and False."""
  arguments.instance(name, value, bool, 'True or False')


def choice(*values: str) -> Check:
  """Checks for one of a few texts."""

  def check(name, value):
    if not isinstance(value, str) or value not in values:
      raise ValueError(
        f'{name}: must be {" or ".join(values)}, got {arguments.quote(value)}.'
      )

  return check


def or_none(check: Check) -> Check:
  """Also allows None."""
  return lambda name, value: None if value is None else check(name, value)


def list_of(
  kind: str, check: Check, count: int | None = None, or_one: bool = False
) -> Check:
  """Checks for a list or tuple; `or_one` allows a value, and no empty list."""

  def check_all(name, values):
    if or_one and not isinstance(values, list | tuple):
      values = (values,)
    elif (
      not isinstance(values, list | tuple)
      or count not in (None, len(values))
      or (or_one and not values)
    ):
      expected = f'a list of {"" if count is None else f"{count} "}{kind}'
      raise ValueError(
        f'{name}: must be {expected}, got {arguments.quote(values)}.'
      )
    for value in values:
      check(name, value)

  return check_all


def table(**checks: Check) -> Check:
  """Checks fields by name, each optional; None for none of them."""

  def check_table(name, value):
    if value is not None:
      kind = Mapping | ml_collections.ConfigDict
      arguments.instance(name, value, kind, f'the fields {", ".join(checks)}')
      _check(dict(value.items()), checks, f'{name}.')

  return check_table


# What every sweep must say; what else there is has a usual value.
REQUIRED = (
  *('verifier', 'drafter', 'tasks', 'num_examples', 'batch_size', 'seed'),
)
FIELDS: dict[str, Check] = dict(
  verifier=text,
  drafter=text,
  tasks=list_of('names', text),
  num_examples=integer(1),
  # Options of decoding of which a sweep has several values.
  method=text,
  lenience=list_of('numbers', number(-math.inf)),
  gamma=list_of('whole numbers', integer(0), or_one=True),
  ray=table(
    address=or_empty(text), cpus=number(0), gpus=number(0), retries=integer(0)
  ),
  wandb=flag,
  seed=integer(0, _LARGEST_SEED),
  clock=integer(0),
  split=or_empty(text),
  task=table(
    path=or_none(or_empty(text)),
    shots=or_none(integer(0)),
    max_new_tokens=or_none(integer(0)),
  ),
  file=table(
    path=or_empty(text),
    prompt=text,
    reference=text,
    id=text,
    examples=or_empty(text),
    shots=integer(0),
    separator=or_empty(text),
    metric=or_empty(text),
    stop_strings=list_of('texts', text),
  ),
  decision=table(
    risk=number(0.001, 0.999),
    delta=number(0.0001, 0.9999),
    margin=number(0.001, 0.999),
    method=or_empty(text),
    lenience=number(-math.inf),
    gamma=integer(0),
    strict_gamma=integer(0),
  ),
  preflight=flag,
  chat=flag,
  dtype=or_none(choice('bfloat16', 'float32', 'int8')),
  mesh=list_of('whole numbers', integer(1), 2),
  shard_size=integer(0),
)


def known_fields() -> dict[str, Check]:
  """Returns the check of every field: declared options and those above."""
  declared = options_of(DecodingConfig) | drafters.declared_options()
  checks: dict[str, Check] = {}
  for name, option in declared.items():
    # A text that names a registered entry is looked up when it is used.
    check = text if option.kind is str else _validate(option)
    checks[name] = or_none(check) if option.default is None else check
  return checks | FIELDS


def _validate(option: Option) -> Check:
  """Returns the check of a declared option."""
  return lambda name, value: option.validate(value)


def check(config: Mapping[str, Any], complete: bool = False) -> None:
  """Refuses fields that a sweep does not have, and values of another type."""
  values = dict(config.items())
  _check(values, known_fields())
  for name in REQUIRED if complete else ():
    if name not in values:
      raise ValueError(
        f'{name}: is missing; build the config with common.sweep().'
      )


def _check(
  values: Mapping[str, Any], checks: Mapping[str, Check], prefix: str = ''
) -> None:
  """Checks fields by their names, with what stands before those in errors."""
  for name, value in values.items():
    if name not in checks:
      near = difflib.get_close_matches(str(name), checks, 1, 0.0)
      raise ValueError(
        f'{prefix}{name}: a sweep has no such field; did you mean'
        f' {prefix}{near[0]}?'
      )
    checks[name](f'{prefix}{name}', value)
