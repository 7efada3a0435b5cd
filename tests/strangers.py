"""Cases and a workdir that tests of untrusted files share."""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import report_test


def cases(values: Mapping[str, Iterable[Any]]) -> list:
  """Returns cases of `parametrize`: each name with each of its values."""
  return [
    pytest.param(name, value, id=f'{name}={value!r:.24}')
    for name, of_name in values.items()
    for value in of_name
  ]


def make_workdir(path: pathlib.Path, method: str = 'speed') -> pathlib.Path:
  """Makes a workdir of one task: models alone, a method at two leniences."""
  points = [('verifier_only', float('nan')), ('drafter_only', float('nan'))]
  points += [(method, 0.0), (method, 0.5)]
  lines = [
    report_test.make_record('sums', *point, example)
    for point in points
    for example in range(4)
  ]
  return report_test.make_workdir(path, lines)
