"""Schedules by name, as options and configs have them: 'first:16'."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cascades import arguments, methods
from cascades.contrib.lenience_schedules.budgets import Budget, Mismatches
from cascades.contrib.lenience_schedules.places import Each, First, Ramp
from cascades.contrib.lenience_schedules.spans import Span
from cascades.schedules import Kind, Token


def _whole(argument: str) -> np.int32:
  count = int(argument)
  if not 0 <= count <= arguments.MAX_INT32:
    raise ValueError
  return np.int32(count)


def _number(argument: str) -> np.float32:
  total = float(argument)
  if not 0 <= total <= arguments.MAX_FLOAT32:
    raise ValueError
  return np.float32(total)


def _each(argument: str, token: Token | None) -> Each:
  leniences = [float(x) for x in argument.split(',')]
  # Infinity is some methods' strict or drafter-only end, where it is asked for.
  for x, text in zip(leniences, argument.split(','), strict=True):
    if not (abs(x) <= arguments.MAX_FLOAT32 or 'inf' in text.lower()):
      raise ValueError
  return Each(np.array(leniences, np.float32))


def _span(inside: bool) -> Callable[[str, Token | None], Any]:
  def make(argument, token):
    begins, ends = argument.split(' ... ')
    if not begins or not ends or begins == ends:
      raise ValueError
    # Without a tokenizer, only how it is written can be checked.
    find = token or (lambda text: 0)
    return Span(*map(np.int32, (find(begins), find(ends))), np.bool_(inside))

  return make


def _refuse_ramp(method: methods.Method) -> str | None:
  """Says why a lenience cannot rise from a method's strict one."""
  if not math.isinf(method.strict):
    return None
  return (
    f'{method.name} is strict at {method.strict}, from where no ramp leads'
    " anywhere; take 'first' or 'each'"
  )


FIRST = Kind(
  pattern='first:16',
  says='strict for the first 16 tokens',
  make=lambda argument, token: First(_whole(argument)),
)
RAMP = Kind(
  pattern='ramp:16',
  says='from strict to the lenience within 16 tokens',
  make=lambda argument, token: Ramp(_whole(argument)),
  refuse=_refuse_ramp,
)
EACH = Kind(
  pattern='each:0,0.2,0.5', says='a lenience for each token', make=_each
)
INSIDE = Kind(
  pattern='inside:<a> ... <b>',
  says='lenient inside of a span, strict elsewhere',
  make=_span(True),
)
OUTSIDE = Kind(
  pattern='outside:<a> ... <b>',
  says='strict inside of a span, lenient elsewhere',
  make=_span(False),
)
BUDGET = Kind(
  pattern='budget:2.5',
  says='lenient until its divergences sum to 2.5',
  make=lambda argument, token: Budget(_number(argument)),
)
MISMATCHES = Kind(
  pattern='mismatches:3',
  says="lenient until 3 tokens are not the verifier's",
  make=lambda argument, token: Mismatches(_whole(argument)),
)
