"""Entries of the registry of schedules, by name: 'first:16'."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cascades import arguments, methods
from cascades.contrib.lenience_schedules.budgets import Budget, Mismatches
from cascades.contrib.lenience_schedules.positions import Each, First, Ramp
from cascades.contrib.lenience_schedules.spans import Span
from cascades.schedules import Kind, TokenLookup


def _parse_count(argument: str) -> np.int32:
  count = int(argument)
  if not 0 <= count <= arguments.MAX_INT32:
    raise ValueError
  return np.int32(count)


def _parse_total(argument: str) -> np.float32:
  total = float(argument)
  if not 0 <= total <= arguments.MAX_FLOAT32:
    raise ValueError
  return np.float32(total)


def _make_per_token(argument: str, token_id: TokenLookup | None) -> Each:
  leniences = [float(x) for x in argument.split(',')]
  # Infinity is accepted if written out: some methods are strict at it.
  for x, text in zip(leniences, argument.split(','), strict=True):
    if not (abs(x) <= arguments.MAX_FLOAT32 or 'inf' in text.lower()):
      raise ValueError
  return Each(np.array(leniences, np.float32))


def _make_span(inside: bool) -> Callable[[str, TokenLookup | None], Any]:
  def make(argument, token_id):
    start, end = argument.split(' ... ')
    if not start or not end or start == end:
      raise ValueError
    # Without a tokenizer only the notation can be checked.
    find = token_id or (lambda text: 0)
    return Span(
      start_token=np.int32(find(start)),
      end_token=np.int32(find(end)),
      inside=np.bool_(inside),
    )

  return make


def _refuse_ramp(method: methods.Method) -> str | None:
  """Explains why a lenience cannot rise from an infinite strict one."""
  if method.strict is None or not math.isinf(method.strict):
    return None
  return (
    f'{method.name} is strict at {method.strict}, from which no ramp can rise;'
    " take 'first' or 'each'"
  )


FIRST = Kind(
  pattern='first:16',
  description='strict for the first 16 tokens',
  make=lambda argument, token_id: First(_parse_count(argument)),
)
RAMP = Kind(
  pattern='ramp:16',
  description='rises from strict to the lenience within 16 tokens',
  make=lambda argument, token_id: Ramp(_parse_count(argument)),
  refuse=_refuse_ramp,
)
EACH = Kind(
  pattern='each:0,0.2,0.5',
  description='a lenience for each token',
  make=_make_per_token,
)
INSIDE = Kind(
  pattern='inside:<a> ... <b>',
  description='lenient inside of a span, strict elsewhere',
  make=_make_span(True),
)
OUTSIDE = Kind(
  pattern='outside:<a> ... <b>',
  description='strict inside of a span, lenient elsewhere',
  make=_make_span(False),
)
BUDGET = Kind(
  pattern='budget:2.5',
  description='lenient until the sum of TV(law, p) over the answer is 2.5',
  make=lambda argument, token_id: Budget(_parse_total(argument)),
)
MISMATCHES = Kind(
  pattern='mismatches:3',
  description='lenient until the law raised 3 emitted tokens above p',
  make=lambda argument, token_id: Mismatches(_parse_count(argument)),
)
