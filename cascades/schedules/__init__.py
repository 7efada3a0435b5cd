"""Schedules of leniences along an answer, instead of one lenience.

A schedule computes the lenience of the next token from the tokens before it:
from the position in the answer, from being inside or outside of a span, or from
a budget. Every row carries the schedule's state. Within a block the state
advances from token to token, so that the lenience of each drafted position
follows from the tokens before it. The law at a position depends on those tokens
only, so every verification with `keeps_law` keeps it:

  lenience_i = schedule(state after x_1 .. x_{i-1})
  law(x_1 .. x_n) = prod_i law(x_i | prefix, lenience_i)

A schedule is a pytree of traced numbers: another number compiles nothing. The
core has the constant schedule; others are plug-ins, such as those of
`cascades.contrib.lenience_schedules`. To add one, write a class with the
methods of `ScheduleBase`, and a `Kind` in the registry `SCHEDULES`.
"""

from cascades.schedules.naming import (
  SCHEDULES,
  Kind,
  TokenLookup,
  check,
  for_answers,
  parse,
)
from cascades.schedules.schedule import (
  ScheduleBase,
  TokenCost,
  leniences_along_draft,
  token_cost,
)

__all__ = [
  'SCHEDULES',
  'Kind',
  'ScheduleBase',
  'TokenCost',
  'TokenLookup',
  'check',
  'for_answers',
  'leniences_along_draft',
  'parse',
  'token_cost',
]
