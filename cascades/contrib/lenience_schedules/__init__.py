"""Schedules: leniences that change along an answer.

  positions       by the position in the answer: 'first:16', 'ramp:16'
  spans           inside or outside of a span: 'inside:<a> ... <b>'
  budgets         until a budget is spent: 'budget:2.5', 'mismatches:3'
  schedule_kinds  entries of the registry, by these names

Each has the methods of `cascades.schedules.ScheduleBase`.
"""

from cascades.contrib.lenience_schedules.budgets import Budget, Mismatches
from cascades.contrib.lenience_schedules.positions import Each, First, Ramp
from cascades.contrib.lenience_schedules.spans import Span

__all__ = ['Budget', 'Each', 'First', 'Mismatches', 'Ramp', 'Span']
