"""Schedules by name, as options and configs have them: 'first:16'."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cascades import arguments
from cascades.schedules.budgets import Budget, Mismatches
from cascades.schedules.places import Each, First, Ramp
from cascades.schedules.spans import Span
from cascades.scheme import CONSTANT

# The id of a text that is one token.
Token = Callable[[str], int]


class Kind(NamedTuple):
  """A kind of schedule.

  Attributes:
    pattern: How it is written.
    says: What it does, for people.
    make: A schedule, of what stands after the colon.
  """

  pattern: str
  says: str
  make: Callable[[str, Token | None], Any]


def _whole(said: str) -> np.int32:
  count = int(said)
  if not 0 <= count <= arguments.MOST:
    raise ValueError
  return np.int32(count)


def _number(said: str) -> np.float32:
  total = float(said)
  if not 0 <= total <= arguments.LARGEST:
    raise ValueError
  return np.float32(total)


def _each(said: str, token: Token | None) -> Each:
  leniences = [float(x) for x in said.split(',')]
  # Infinity is some methods' strict or drafter-only end, where it is asked for.
  for x, text in zip(leniences, said.split(','), strict=True):
    if not (abs(x) <= arguments.LARGEST or 'inf' in text.lower()):
      raise ValueError
  return Each(np.array(leniences, np.float32))


def _span(inside: bool) -> Callable[[str, Token | None], Any]:
  def make(said, token):
    begins, ends = said.split(' ... ')
    if not begins or not ends or begins == ends:
      raise ValueError
    # Without a tokenizer, only how it is written can be checked.
    find = token or (lambda text: 0)
    return Span(*map(np.int32, (find(begins), find(ends))), np.bool_(inside))

  return make


KINDS = {
  CONSTANT: Kind(
    CONSTANT, 'lenient everywhere alike', lambda said, token: None
  ),
  'first': Kind(
    'first:16',
    'strict for the first 16 tokens',
    lambda said, token: First(_whole(said)),
  ),
  'ramp': Kind(
    'ramp:16',
    'from strict to the lenience within 16 tokens',
    lambda said, token: Ramp(_whole(said)),
  ),
  'each': Kind('each:0,0.2,0.5', 'a lenience for each token', _each),
  'inside': Kind(
    'inside:<a> ... <b>',
    'lenient inside of a span, strict elsewhere',
    _span(True),
  ),
  'outside': Kind(
    'outside:<a> ... <b>',
    'strict inside of a span, lenient elsewhere',
    _span(False),
  ),
  'budget': Kind(
    'budget:2.5',
    'lenient until its divergences sum to 2.5',
    lambda said, token: Budget(_number(said)),
  ),
  'mismatches': Kind(
    'mismatches:3',
    "lenient until 3 tokens are not the verifier's",
    lambda said, token: Mismatches(_whole(said)),
  ),
}


class _MarkerError(Exception):
  """A marker that is not one token, as its message says."""


def parse(said: str, token: Token | None = None) -> Any:
  """A schedule by name.

  Args:
    said: One of the patterns of `KINDS`, with other numbers or tokens.
    token: The id of a text that is one token; raises ValueError for others. If
      None, markers are not looked up: the schedule is only good to be checked.

  Returns:
    A `Schedule`; None where leniences stay as they are.

  Raises:
    ValueError: It is written in another way, a number is below 0, or a marker
      is not one token.
  """
  name, _, rest = said.partition(':') if isinstance(said, str) else ('', '', '')
  if name not in KINDS:
    patterns = ', '.join(repr(kind.pattern) for kind in KINDS.values())
    raise ValueError(
      f'schedule: {arguments.shown(said)} is not known; there are {patterns},'
      ' with numbers or tokens of your own.'
    )

  def known(text):
    try:
      return token(text)
    except ValueError as error:
      raise _MarkerError(str(error)) from None

  kind = KINDS[name]
  try:
    return kind.make(rest, known if token else None)
  except _MarkerError as error:
    raise ValueError(f'schedule: {arguments.shown(said)}: {error}') from None
  except ValueError:
    raise ValueError(
      f'schedule: {arguments.shown(said)} will not do; write it as'
      f' {kind.pattern!r}, with numbers of 0 or more that 32 bits hold, and two'
      ' tokens that differ.'
    ) from None
