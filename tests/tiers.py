"""Which cases of a test the first tier runs; `-m slow` runs the others."""

import collections
import zlib
from collections.abc import Iterable, Sequence

import pytest

# Slow cases of a test, of which there are more in a product of options.
_MANY = 4


def first(cases: Iterable, count: int = 1) -> list:
  """Cases of `parametrize`, all but the first `count` of them marked slow."""
  return [
    pytest.param(
      *(case if isinstance(case, tuple) else (case,)),
      marks=() if i < count else pytest.mark.slow,
    )
    for i, case in enumerate(cases)
  ]


def of_turn(items: Sequence[pytest.Item], turn: str) -> list[pytest.Item]:
  """Leaves out slow cases of another turn, such as `1/4`, of many cases."""
  which, turns = map(int, turn.split('/'))
  assert 0 <= which < turns, f'CASCADES_TURN: there is no turn {turn}'
  tests = [item.nodeid.partition('[')[0] for item in items]
  is_slow = [item.get_closest_marker('slow') is not None for item in items]
  pairs = zip(tests, is_slow, strict=True)
  counts = collections.Counter(test for test, slow in pairs if slow)
  return [
    item
    for item, test, slow in zip(items, tests, is_slow, strict=True)
    if not slow
    or counts[test] <= _MANY
    or zlib.crc32(item.nodeid.encode()) % turns == which
  ]
