"""Schedules by name, as in the option schedule='first:16'."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from cascades import arguments, methods
from cascades.registries import Registry
from cascades.verification_config import CONSTANT

# Returns the id of a text that is one token; raises ValueError for other texts.
TokenLookup = Callable[[str], int]


class Kind(NamedTuple):
  """A kind of schedule, the registry's entry of a name.

  Attributes:
    pattern: An example of its notation.
    description: Its effect, in a few words.
    make: Called as make(argument, token_id) with the text after the colon and a
      `TokenLookup`, or None if only the notation is checked; returns a
      `ScheduleBase`, or None for constant leniences. Raises ValueError for
      another notation.
    refuse: Called with the method, which has a strict lenience; returns the
      reason why it does not support the schedule, or None. None refuses no
      method.
  """

  pattern: str
  description: str
  make: Callable[[str, TokenLookup | None], Any]
  refuse: Callable[[methods.Method], str | None] | None = None


def _constant(argument: str, token_id: TokenLookup | None) -> None:
  if argument:
    raise ValueError


SCHEDULES: Registry[Kind] = Registry('schedule', Kind)
SCHEDULES.register(
  CONSTANT, Kind(CONSTANT, 'the same for all tokens', _constant), builtin=True
)


class _MarkerError(Exception):
  """Raised for a marker that is not one token."""


def parse(spec: str, token_id: TokenLookup | None = None) -> Any:
  """Makes a schedule by name."""
  kind, argument = SCHEDULES.find(spec)
  try:
    return kind.make(argument, token_id and _checked_lookup(token_id))
  except _MarkerError as error:
    raise ValueError(f'schedule: {arguments.quote(spec)}: {error}') from None
  except ValueError:
    raise ValueError(
      f'schedule: must be written as {kind.pattern!r}, with numbers of 0 or'
      ' more that fit into 32 bits and, for a span, two different tokens, got'
      f' {arguments.quote(spec)}.'
    ) from None


def for_answers(
  spec: str,
  token_id: TokenLookup,
  max_new_tokens: int,
  forbidden: Collection[int],
) -> Any:
  """Makes the schedule of the answers to a request."""
  schedule = parse(spec, token_id)
  if reason := schedule and schedule.refusal(max_new_tokens, forbidden):
    raise ValueError(
      f'schedule: {arguments.quote(spec)} cannot be combined with this'
      f' request: {reason}.'
    )
  return schedule


def _checked_lookup(token_id: TokenLookup) -> TokenLookup:
  """Makes a look-up that raises `_MarkerError` instead of ValueError."""

  def look_up(text):
    try:
      return token_id(text)
    except ValueError as error:
      raise _MarkerError(str(error)) from None

  return look_up


def check(spec: str, method: methods.Method) -> None:
  """Refuses a schedule with a wrong notation or an unsupported method."""
  if parse(spec) is None:
    return
  reason = None
  if method.strict is None:
    reason = (
      f'{method.name} has no strict lenience; omit the schedule, or use another'
      ' method'
    )
  elif refuse := SCHEDULES.find(spec)[0].refuse:
    reason = refuse(method)
  if reason:
    raise ValueError(f'schedule: {reason}.')
