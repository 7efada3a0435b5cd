"""Lenience that changes along an answer.

  places          by the position in the answer: 'first:16', 'ramp:16'
  spans           inside or outside of two markers: 'inside:<a> ... <b>'
  budgets         until a budget is spent: 'budget:2.5', 'mismatches:3'
  schedule_kinds  these names, as options and configs have them

Each has the functions of `cascades.schedules.Schedule`.
"""

from cascades.contrib.lenience_schedules.budgets import Budget, Mismatches
from cascades.contrib.lenience_schedules.places import Each, First, Ramp
from cascades.contrib.lenience_schedules.spans import Span

__all__ = ['Budget', 'Each', 'First', 'Mismatches', 'Ramp', 'Span']
