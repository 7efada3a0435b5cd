"""Tests of the best points of a summary, by sweep and page alike."""

import math

import pandas as pd
import pytest

from experiments.analysis import comparisons, slices
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import Points
from experiments.records import metrics

NAN = math.nan
# What a summary says of every point, unless a test says otherwise.
USUAL = dict(task='t', temperature=1.0, lenience=NAN, gamma=2, drafts=1)
USUAL |= dict(verification='token', gate='raw', bonus_from='target')
USUAL |= dict(quality=NAN, relative_latency=NAN, mean_output_tokens=10.0)
POINTS = 'method lenience quality relative_latency'


def make_frame(rows, names=POINTS):
  frame = pd.DataFrame(rows, columns=names.split())
  frame = frame.assign(**{k: v for k, v in USUAL.items() if k not in frame})
  is_baseline = frame.method.isin(['verifier_only', 'drafter_only'])
  frame = frame.assign(gamma=frame.gamma.where(~is_baseline, 0))
  return frame.assign(run='', variant=metrics.variants(frame))


def make_points(summary):
  table = summary.assign(run='run', batch_size=1, oracle=False, law=0, scale=1)
  table = table.assign(strict=table.method == 'verifier_only')
  is_sequential = table.verification == 'sequential'
  table = table.assign(gamma=table.gamma.where(~is_sequential, 0))
  answers = [
    dict(point=i, id=example, emitted=1.0, wall_s=NAN)
    | dict(quality=row.quality, latency=row.relative_latency)
    for i, row in table.iterrows()
    for example in map(str, range(1000))
  ]
  table = table.drop(columns=['quality', 'mean_output_tokens'])
  return Points(table, pd.DataFrame(answers))


def judged(rows, names=POINTS):
  """The frame of rows, compared with the verifier alone."""
  summary = make_frame(rows, names)
  config = AnalysisConfig(resamples=9)
  compared = comparisons.compare(make_points(summary), config)
  return comparisons.with_differences(summary, compared)


def best_points(rows, names=POINTS):
  summary = make_frame(rows, names).drop(columns=['run', 'variant'])
  return slices.best_points(summary, make_points(make_frame(rows, names)))


def no_worse(rows):
  (part,) = slices.slice_summary(judged(rows))
  return slices.no_worse(part)


VERIFIER = ('verifier_only', NAN, 0.9, 1.0)


def of(*begin_and_rows):
  """Rows that begin alike."""
  begin = [x for x in begin_and_rows if not isinstance(x, tuple)]
  return [(*begin, *x) for x in begin_and_rows if isinstance(x, tuple)]


def test_no_worse_is_by_the_verifiers_quality_and_fastest_first():
  rows = [
    *(VERIFIER, ('drafter_only', NAN, 0.9, 0.1)),
    *of('a', (0.0, 0.9, 0.7), (0.5, 0.95, 0.6), (1.0, 0.5, 0.3)),
    *of('b', (0.0, 0.8, 0.2), (0.5, 0.88, 0.65)),
    # Within the margin of 0.03; of points that are alike the first; of no
    # latency none.
    *of('c', (0.0, 0.9, 0.7), (0.5, 0.9, NAN)),
  ]
  assert no_worse(rows).index.tolist() == [3, 6, 2, 7]


@pytest.mark.parametrize('known', [[], [('verifier_only', NAN, NAN, 1.0)]])
def test_where_nobody_knows_the_verifiers_quality(known):
  rows = [*known, *of('a', (0.0, 0.9, 0.7), (1.0, 0.5, 0.3))]
  assert no_worse(rows) is None
  # Of its best points the fastest.
  assert best_points(rows).lenience.iloc[-1] == 0.0


def test_best_points_are_fastest_at_the_verifiers_quality_else_the_best():
  rows = [
    ('t', 'verifier_only', NAN, 0.9, 1.0),
    ('t', 'drafter_only', NAN, 0.6, 0.1),
    *of('t', 'a', (0.0, 0.9, 0.7), (0.5, 0.95, 0.6), (1.0, 0.5, 0.3)),
    *of('t', 'b', (0.0, 0.8, 0.7), (0.5, 0.8, 0.5), (1.0, 0.7, 0.2)),
    *of('u', 'a', (0.0, 0.4, 0.7), (1.0, 0.3, 0.1)),
  ]
  best = best_points(rows, f'task {POINTS}')
  assert best.index.tolist() == [0, 1, 3, 6, 8]
  assert best.at_quality.tolist() == [True, False, True, False, False]


@pytest.mark.parametrize(
  ('rows', 'expected'),
  [
    # Of points that are alike the first.
    ([VERIFIER, *(('a', i / 40, 0.9, 0.5) for i in range(40))], [0, 1]),
    # Without quality the fastest.
    ([('a', 0, NAN, 0.7), ('a', 0.2, NAN, 0.6), ('a', 0.3, NAN, NAN)], [1]),
    # A variant whose examples all failed has a row.
    ([VERIFIER, ('a', 0.1, NAN, NAN), ('b', 0.1, 0.9, 0.5)], [0, 1, 2]),
  ],
)
def test_best_points_of_odd_curves(rows, expected):
  assert best_points(rows).index.tolist() == expected


def test_an_oracle_is_no_best_point():
  rows = [
    ('verifier_only', 'token', 0.9, 1.0),
    ('chow', 'sequential', 0.9, 0.4),
    *of('diff', ('sequential', 0.9, 0.2), ('token', 0.9, 0.6)),
  ]
  best = best_points(rows, 'method verification quality relative_latency')
  assert best.variant.tolist() == ['verifier_only', 'chow sequential', 'diff']
  # As the summary has it, though a sequential cascade has no blocks.
  assert best.gamma.tolist() == [0, 2, 2]
  assert best.at_quality.all()


GAMMAS = 'method verification lenience gamma quality relative_latency'


def test_best_points_are_of_each_variant_at_the_gamma_that_suits_each_point():
  rows = [
    ('verifier_only', 'token', NAN, 0, 0.9, 1.0),
    # At gamma 4 another variant is faster, which comes first all the same.
    *(('a', 'token', 0.0, 2, 0.9, 0.7), ('b', 'token', 0.0, 2, 0.9, 0.6)),
    *(('a', 'token', 0.0, 4, 0.9, 0.5), ('b', 'token', 0.0, 4, 0.9, 0.8)),
    # By chance gamma 2 scores better; it is slower for the same law.
    *of('a', 'block', 0.0, (2, 0.9, 0.4), (4, 0.8, 0.3)),
    # Gamma 0 is the verifier alone.
    *of('c', 'token', 0.5, (0, 0.9, 1.0), (2, 0.7, 0.2)),
  ]
  best = best_points(rows, GAMMAS)
  assert best.variant.tolist() == ['verifier_only', 'a', 'b', 'a block', 'c']
  assert best.gamma.tolist() == [0, 4, 2, 4, 2]
  # The fastest is that of the page.
  page, *_ = slices.slice_summary(judged(rows[:5], GAMMAS))
  assert page.gamma_tuned
  assert slices.no_worse(page).index.tolist() == [3, 2]


def test_tuned_keeps_the_fastest_gamma_of_each_point():
  rows = [
    ('t', 1.0, 'verifier_only', 'token', NAN, 0, 1.0),
    ('t', 1.0, 'sequence_mean', 'token', 0.5, 0, 0.9),
    *of('t', 1.0, 'a', 'token', (0.0, 2, 0.5), (0.5, 2, 0.5)),
    *of('t', 1.0, 'a', 'token', (0.0, 4, 0.6), (0.5, 4, 0.4)),
    # Another curve each, with one gamma only.
    ('t', 1.0, 'a', 'block', 0.5, 4, 0.7),
    ('t', 0.0, 'a', 'token', 0.5, 4, 0.8),
    ('u', 1.0, 'a', 'token', 0.5, 4, 0.9),
    # No lenience is a point too; a latency that is not known never wins.
    *of('t', 1.0, 'b', 'token', NAN, (2, NAN), (4, 0.6)),
    # Gamma 0 is the verifier alone.
    *of('t', 1.0, 'c', 'token', 0.5, (0, 0.1), (2, 0.6)),
  ]
  names = 'task temperature method verification lenience gamma relative_latency'
  frame = make_frame(rows, names)
  fastest = slices.at_fastest_gamma(frame)
  assert fastest.index.tolist() == [0, 1, 2, 5, 6, 7, 8, 10, 12]
  assert slices.at_fastest_gamma(frame.iloc[:0]).empty
  # Where the bonus is the verifier's, gamma changes the law.
  rows = [('a', x, n, 1 / n) for x in ('target', 'verifier') for n in (2, 4)]
  names = 'method bonus_from gamma relative_latency'
  fastest = slices.at_fastest_gamma(make_frame(rows, names))
  assert fastest.gamma.tolist() == [4, 2, 4]
