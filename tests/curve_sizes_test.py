"""Curves of a sweep that decode fewer examples than others."""

import dataclasses
import functools

import pytest
from answers import make_record

from experiments.records import metrics
from experiments.sweeps import curve_plan

_make = functools.partial(curve_plan.Curve.from_config, {})


@pytest.mark.parametrize(
  ('curves', 'words'),
  [
    (
      [_make('speed', (0.0,)), _make('speed', (0.0, 1.0), num_examples=9)],
      'two curves of speed gamma 4 have the lenience 0.0',
    ),
    (
      [
        _make('verifier_only', (), num_examples=9),
        _make('sequence_mean', (0.5,), num_examples=10),
      ],
      'num_examples: sequence_mean on 10 selects among the answers',
    ),
  ],
)
def test_curves_whose_examples_do_not_fit_are_refused(curves, words):
  with pytest.raises(ValueError, match=words):
    curve_plan.check_curves(curves, {})


@pytest.mark.parametrize('count', [0, 1.5, True])
def test_a_number_of_examples_is_whole(count):
  with pytest.raises(ValueError, match='num_examples'):
    _make('speed', (0.0,), num_examples=count)


def test_points_are_compared_on_the_examples_that_all_have():
  lines = [make_record('d', id=x, method='diff') for x in '0123']
  lines += [make_record('d', id=x, method='opt') for x in '10']
  lines += [make_record('d', id=x, task='gsm8k') for x in '57']
  common = metrics.on_common_examples(lines)
  assert [(x.method, x.id) for x in common if x.task != 'gsm8k'] == [
    *(('diff', '0'), ('diff', '1'), ('opt', '1'), ('opt', '0'))
  ]
  assert common[-2:] == lines[-2:]
  disjoint = [dataclasses.replace(x, id=f'{x.method}{x.id}') for x in lines]
  assert metrics.on_common_examples(disjoint) == disjoint
