"""Lenience that goes along an answer, instead of one number for all of it.

A schedule says how lenient a method is at the next token, by what was written
before it: how far the answer is, whether it is inside a span, what was spent so
far. What it has to remember is a memory that every row carries; within a block
it goes on from draft to draft, so each place of a draft has the lenience that
follows the tokens before it. A method's law at a place hangs on those tokens
only, whatever the verification, and so every verification keeps it:

  lenience_i = schedule(memory of x_1 .. x_{i-1})
  law(x_1 .. x_n) = prod_i law(x_i | prefix, lenience_i)

A schedule is a pytree of numbers, which are traced: another number compiles
nothing. The core has the constant one; others are plug-ins, such as those of
`cascades.contrib.lenience_schedules`. To add one: a class with the functions of
`Schedule`, and a `Kind` in the registry `SCHEDULES`.
"""

from cascades.schedules.naming import SCHEDULES, Kind, Token, check, parse
from cascades.schedules.schedule import Schedule, Spent, along, spent

__all__ = [
  'SCHEDULES',
  'Kind',
  'Schedule',
  'Spent',
  'Token',
  'along',
  'check',
  'parse',
  'spent',
]
