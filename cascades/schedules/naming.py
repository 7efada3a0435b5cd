"""Schedules by name, as options and configs have them: 'first:16'."""

from collections.abc import Callable
from typing import Any, NamedTuple

from cascades import arguments, methods
from cascades.registries import Registry
from cascades.verification_config import CONSTANT

# The id of a text that is one token.
Token = Callable[[str], int]


class Kind(NamedTuple):
  """A kind of schedule: the entry of a name.

  Attributes:
    pattern: How it is written.
    says: What it does, for people.
    make: Called as make(argument, token) with what stands after the colon and
      a `Token` or None; returns a `Schedule`, or None where leniences stay.
      Raises ValueError if the argument is written in another way.
    refuse: Called with the method, which has a strict lenience; says why it
      has no such schedule, in a few words, or None. None refuses no method.
  """

  pattern: str
  says: str
  make: Callable[[str, Token | None], Any]
  refuse: Callable[[methods.Method], str | None] | None = None


def _constant(argument: str, token: Token | None) -> None:
  if argument:
    raise ValueError


SCHEDULES: Registry[Kind] = Registry('schedule', Kind)
SCHEDULES.register(
  CONSTANT, Kind(CONSTANT, 'lenient everywhere alike', _constant), builtin=True
)


class _MarkerError(Exception):
  """A marker that is not one token, as its message says."""


def parse(spec: str, token: Token | None = None) -> Any:
  """Makes a schedule by name.

  Args:
    spec: The pattern of a kind, with other numbers or tokens.
    token: The id of a text that is one token; raises ValueError for others. If
      None, markers are not looked up: the schedule is only good to be checked.

  Returns:
    A `Schedule`; None where leniences stay as they are.

  Raises:
    ValueError: It is written in another way, a number is below 0, or a marker
      is not one token.
  """
  kind, argument = SCHEDULES.find(spec)

  def known(text):
    try:
      return token(text)
    except ValueError as error:
      raise _MarkerError(str(error)) from None

  try:
    return kind.make(argument, known if token else None)
  except _MarkerError as error:
    raise ValueError(f'schedule: {arguments.quote(spec)}: {error}') from None
  except ValueError:
    raise ValueError(
      f'schedule: {arguments.quote(spec)} will not do; write it as'
      f' {kind.pattern!r}, with numbers of 0 or more that 32 bits hold, and two'
      ' tokens that differ.'
    ) from None


def check(spec: str, method: methods.Method) -> None:
  """Refuses a schedule that is written wrong or that a method cannot have.

  Raises:
    ValueError: It is; says why.
  """
  if parse(spec) is None:
    return
  reason = None
  if method.strict is None:
    reason = (
      f'{method.name} has no lenience at which it is strict; leave the schedule'
      ' out, or take another method'
    )
  elif refuse := SCHEDULES.find(spec)[0].refuse:
    reason = refuse(method)
  if reason:
    raise ValueError(f'schedule: {reason}.')
