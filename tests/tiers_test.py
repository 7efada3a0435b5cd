"""The cases that a turn of the slow tier has."""

import types

import tiers


def _item(name, is_slow):
  marker = is_slow or None
  return types.SimpleNamespace(
    nodeid=name, get_closest_marker={'slow': marker}.get
  )


def test_all_slow_cases_have_their_turn_and_only_many_wait_for_it():
  many = [_item(f'a_test.py::many[{i}]', True) for i in range(40)]
  rest = [_item(f'a_test.py::few[{i}]', True) for i in range(4)]
  rest += [_item(f'a_test.py::many[{i}]', False) for i in range(40, 80)]
  turns = [tiers.of_turn([*many, *rest], f'{i}/4') for i in range(4)]
  assert all(item in turn for turn in turns for item in rest)
  waiting = [item for turn in turns for item in turn if item in many]
  assert sorted(x.nodeid for x in waiting) == sorted(x.nodeid for x in many)
  assert max(map(len, turns)) < len(rest) + 16
