"""The results that the accepted version of the results stands for."""

import fixed_results
import pytest

pytestmark = pytest.mark.slow


def _check(found):
  want = fixed_results.read()['digests']
  others = [name for name in found if want.get(name) != found[name]]
  assert not others, (
    'results differ from those of the accepted version; if that is meant, run'
    ' python -m experiments.accept --change="what changed"'
  )


def test_nothing_is_left_out():
  kept = fixed_results.read()
  cases = fixed_results.table_cases()
  assert {*kept['rows']} == {case.name for case in cases}
  for case in cases:
    rows = kept['rows'][case.name]
    assert len(rows) == len(case.points)
    # Few rows are near a boundary; a case in which most are says nothing.
    assert min(map(len, rows)) == fixed_results.KEPT
  names = {f'{case.name} {name}' for case in cases for name, _ in case.points}
  for part in fixed_results.PARTS:
    names |= {*part()}
  assert names == {*kept['digests']}


@pytest.mark.parametrize(
  'case', fixed_results.table_cases(), ids=lambda case: case.name
)
def test_tables_are_decoded_as_before(case):
  _check(case.digests(fixed_results.read()['rows'][case.name]))


@pytest.mark.parametrize(
  'part', fixed_results.PARTS, ids=lambda part: part.__name__
)
def test_the_rest_is_as_before(part):
  _check(part())


def test_kept_rows_are_far_from_every_boundary():
  """Compares one case; the file itself holds all cases."""
  (case,) = (
    case
    for case in fixed_results.table_cases()
    if case.name == 'verification token'
  )
  assert case.stable() == fixed_results.read()['rows'][case.name]
