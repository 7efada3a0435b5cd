"""Tests of what the report's tables say, on answers made for each question."""

import math

import numpy as np
import pandas as pd
import pytest

from experiments.analysis import comparisons, runs
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import Points
from experiments.records import stats
from experiments.tasks import METRICS

CHOICE = AnalysisConfig(resamples=500)
# Methods with a deferral rule, one of them registered nowhere.
RULES = 'chow', 'diff', 'opt', 'token_v3', 'somebodys_rule'


def make(specs, n=200, task='sums', seed=0):
  """Points and answers of one task; harder examples are hard for all.

  `specs` has by (method, lenience, gamma): the share of right answers, modelled
  latency of a token, seconds of a token, and tokens.
  """
  hard = np.random.default_rng(seed).permutation(n) / n
  points, answers = [], []
  for i, ((method, lenience, gamma), spec) in enumerate(specs.items()):
    right, latency, wall, tokens = spec
    point = dict(task=task, n=n, failed=0)
    point |= dict(method=method, variant=method, lenience=lenience, gamma=gamma)
    preset = comparisons.preset_of(method, 'verifier')
    bonus = 'verifier' if preset else 'target'
    point |= dict(verification='token', bonus_from=bonus)
    strict = runs.is_strict(method, lenience)
    point |= dict(has_rule=method in RULES, scale=1.0, strict=strict)
    points.append(point)
    answer = dict(point=i, emitted=tokens)
    answer |= dict(latency=latency * tokens, wall_s=wall * tokens)
    answers += [
      dict(id=str(example), quality=float(hard[example] < right), **answer)
      for example in range(n)
    ]
  return scored(pd.DataFrame(points), pd.DataFrame(answers))


def scored(table, answers):
  """Points with the quality and the latency of their answers."""
  points = answers.groupby('point')
  totals = points[['latency', 'emitted']].sum()
  quality = points.quality.agg(lambda x: x.mean(skipna=False))
  latency = totals.latency / totals.emitted
  return Points(table.assign(quality=quality, latency=latency), answers)


ALONE = ('verifier_only', math.nan, 0)
SPECS = {
  ALONE: (0.80, 1.0, 0.010, 10),
  ('drafter_only', math.nan, 0): (0.40, 0.1, 0.002, 10),
  ('opt', 0.0, 4): (0.80, 0.8, 0.009, 10),
  ('opt', 0.5, 4): (0.795, 0.6, 0.008, 11),
  ('opt', 1.0, 4): (0.50, 0.4, 0.012, 20),
  ('opt', 0.5, 2): (0.795, 0.5, 0.007, 11),
  ('diff', 0.5, 4): (0.85, 1.2, 0.011, 10),
}


@pytest.fixture(scope='module')
def points():
  return make(SPECS)


def test_models_strict_decoding_and_the_fastest_as_good_are_timed():
  made = make(SPECS | {('speed', 0.0, g): (1, 0.5 + g, 1, 9) for g in (4, 2)})

  def entrants():
    models, rows = made.table.method[:2].tolist(), comparisons.entrants(made)
    assert [x.method for x in rows[:2]] == models
    return [f'{x.method} {x.lenience} {x.gamma}' for x in rows[2:]]

  assert entrants() == ['speed 0.0 2', 'opt 0.5 2']
  # What is only counted is not timed.
  made.table['variant'] = made.table.method.replace('opt', 'opt sequential')
  assert entrants() == ['speed 0.0 2', 'diff 0.5 4']
  # Of two tasks, it is as good on both.
  made.table['variant'] = made.table.method
  bad = {k: (0.8, *spec[1:]) for k, spec in SPECS.items()}
  bad['opt', 0.5, 2] = 0.1, *bad['opt', 0.5, 2][1:]
  bad, one = make(bad), made
  table = pd.concat([one.table, bad.table.assign(task='names')])
  more = bad.answers.assign(point=bad.answers.point + len(one.table))
  both = pd.concat([one.answers, more])
  made = Points(table.reset_index(drop=True), both)
  assert entrants() == ['speed 0.0 2', 'opt 0.5 4']
  # Without a quality none is as good; a point that failed on slow examples is
  # no faster.
  made = one
  made.answers['quality'] = math.nan
  made.answers.loc[made.answers.id.astype(int) % 2 == 0, 'latency'] *= 9
  half = made.answers.index[made.answers.point == len(SPECS)][::2]
  made.answers.drop(index=half, inplace=True)
  assert entrants() == ['speed 0.0 2']
  made.table['method'] = made.table.method.replace(ALONE[0], 'other')
  assert not comparisons.entrants(made)


@pytest.fixture(scope='module')
def frame(points):
  return comparisons.compare(points, CHOICE)


def row(frame, method, lenience=math.nan, gamma=0):
  same = frame[(frame.method == method) & (frame.gamma == gamma)]
  if not math.isnan(lenience):
    same = same[same.lenience == lenience]
  return same.iloc[0]


def test_points_are_compared_with_the_verifier_in_pairs(points, frame):
  point_row = row(frame, 'opt', 1.0, 4)
  assert point_row.quality == pytest.approx(0.5)
  assert point_row.difference == pytest.approx(-0.3)
  assert point_row.difference_low < -0.3 < point_row.difference_high
  assert point_row.speedup == pytest.approx(1 / 0.4)
  assert point_row.wall_speedup == pytest.approx(10 / 12)
  verifier_row = row(frame, 'verifier_only')
  assert verifier_row[['difference_low', 'difference_high']].tolist() == [0, 0]
  assert verifier_row.speedup == 1
  values = comparisons.matrices(points, points.table.index)['quality']
  low, high = stats.paired_interval(values[:, [4]], values[:, [0]])
  ends = point_row.difference_low, point_row.difference_high
  assert ends == pytest.approx((low[0], high[0]))
  # As strangers they would be told apart far worse.
  near = row(frame, 'opt', 0.5, 4)
  assert near.difference_high - near.difference_low < 0.05


def test_as_good_is_by_the_lower_end_and_the_margin(points):
  wide, narrow, close = (
    comparisons.compare(points, AnalysisConfig(margin=x, resamples=500))
    for x in (0.05, 0.004, 0.006)
  )
  assert row(wide, 'opt', 0.5, 4).as_good
  # The difference itself is within the margin, its interval is not.
  assert row(close, 'opt', 0.5, 4).difference > -0.006
  assert not row(close, 'opt', 0.5, 4).as_good
  # Nor do 200 answers without a change show that so little is lost.
  assert row(narrow, 'opt', 0.0, 4).difference == 0
  assert not row(narrow, 'opt', 0.0, 4).as_good
  assert row(wide, 'opt', 0.0, 4).as_good
  assert not row(wide, 'opt', 1.0, 4).as_good


def test_examples_that_one_did_not_answer_are_out_of_the_pair(points):
  point, example = points.answers.point, points.answers.id.astype(int)
  # The method lacks the first ones, the verifier alone the last ones.
  lost = ((point == 4) & (example < 40)) | ((point == 0) & (example >= 190))
  answers = points.answers[~lost].reset_index(drop=True)
  frame = comparisons.compare(Points(points.table, answers), CHOICE)
  values = comparisons.matrices(points, points.table.index)['quality']
  point_row = frame.loc[4]
  # Examples are in the order of their ids.
  means = values[40:190, [4, 0]].mean(0), values[:190, [3, 0]].mean(0)
  assert point_row.difference == pytest.approx(means[0][0] - means[0][1])
  assert frame.loc[3].difference == pytest.approx(means[1][0] - means[1][1])


def test_the_front_has_no_point_that_is_beaten(frame):
  front = comparisons.front(frame)
  assert ' '.join(front.method) == 'drafter_only opt opt opt diff'
  assert front.quality.is_monotonic_increasing
  assert front.latency.is_monotonic_increasing
  assert (front.gamma == [0, 4, 2, 4, 4]).all()
  assert comparisons.front(frame.assign(quality=math.nan)).empty


def test_what_nobody_knows_is_nan_and_never_as_good(points):
  answers = points.answers.assign(quality=math.nan)
  frame = comparisons.compare(scored(points.table, answers), CHOICE)
  assert not frame.as_good.any()
  assert frame.quality.isna().all()
  assert frame.speedup_low.notna().all()
  # A point whose examples all failed.
  answers = points.answers[points.answers.point != 3].reset_index(drop=True)
  frame = comparisons.compare(scored(points.table, answers), CHOICE)
  assert frame.loc[3, ['quality', 'difference', 'speedup']].isna().all()
  assert frame.loc[2].difference == 0
  # Without the verifier nothing is compared.
  others = {k: v for k, v in SPECS.items() if k != ALONE}
  frame = comparisons.compare(make(others), CHOICE)
  assert frame.difference.isna().all()
  assert not frame.as_good.any()


def test_a_corpus_quality_is_made_of_sums_in_every_draw():
  points = make({k: SPECS[k] for k in (ALONE, ('opt', 0.5, 4))}, 30)
  points.table[['task', 'scale']] = 'wmt14_en_de', 100.0
  words = 'the cat sat on the mat and looked at the dog outside today'.split()
  # The method loses some words, and not the same number everywhere.
  lost = points.answers.id.astype(int) % 4 * points.answers.point
  rows = [
    METRICS['bleu'].score(' '.join(words[: len(words) - x]), ' '.join(words))
    for x in lost
  ]
  scores = pd.DataFrame(rows).add_prefix('score:')
  sums = pd.DataFrame(rows)[points.answers.point == 1].sum()
  quality = METRICS['bleu'].corpus(sums)
  table = points.table.assign(quality=[100, quality])
  points = Points(table, points.answers.join(scores))
  frame = comparisons.compare(points, AnalysisConfig(resamples=60))
  opt = frame.iloc[1]
  assert opt.difference == pytest.approx(quality - 100)
  assert opt.difference_low < opt.difference < opt.difference_high < 0
  assert (opt.scale, bool(opt.as_good)) == (100, False)
  config = AnalysisConfig(margin=0.5, resamples=60)
  assert comparisons.compare(points, config).as_good[1]


def test_every_known_method_has_a_kind():
  expected = {
    ('verifier_only', 'token', math.nan): '',
    ('token_v3', 'block', -1.0): 'speculative cascade',
    ('somebodys_rule', 'token', 0.5): 'speculative cascade',
    ('speed', 'token', 0.0): 'strict decoding',
    ('speed', 'token', 0.5): 'relaxed decoding',
    ('lossy', 'token', 0.5): 'relaxed decoding',
    ('somebodys_own', 'token', 0.5): 'other method',
    ('eta', 'token', 0.1): 'truncated verifier',
    ('chow', 'sequential', 0.1): 'sequential cascade',
    ('diff', 'sequential', 0.1): 'sequential oracle',
    ('sequence_mean', 'token', 0.1): 'sequence-level cascade',
    ('always_accept', 'token', math.nan): 'always accept',
    ('relaxed_top-3', 'token', 0.6): "engine's switch",
  }
  more = dict(bonus='verifier')
  kinds = {
    key: comparisons.kind_of(*key, has_rule=key[0] in RULES, **more)
    for key in expected
  }
  assert kinds == expected
  assert set(expected.values()) == {'', *comparisons.KINDS}


def test_a_kind_is_shown_by_its_best_points():
  specs = {
    ALONE: (0.80, 1.0),
    ('speed', 0.0, 4): (0.80, 0.9),
    ('min_p', 0.1, 4): (0.84, 0.95),
    ('opt', 0.5, 4): (0.82, 0.8),
    ('diff', 0.5, 4): (0.81, 0.7),
    ('chow', 0.5, 4): (0.20, 0.3),
    ('lossy', 0.5, 4): (0.90, 1.1),
  }
  points = make({k: (*spec, 0.01, 10) for k, spec in specs.items()})
  table = comparisons.best_of_kinds(comparisons.compare(points, CHOICE))
  assert list(table.kind) == list(comparisons.KINDS[:4])
  by_kind = table.set_index('kind')
  cascade = by_kind.loc['speculative cascade']
  assert (cascade.variant, cascade.speedup) == ('diff', pytest.approx(1 / 0.7))
  assert cascade.best_variant == 'opt'
  assert cascade.difference == pytest.approx(0.02)
  plain = by_kind.loc['truncated verifier']
  assert plain.best_variant == 'min_p'
  assert plain.difference == pytest.approx(0.04)
  # Good, but slower than the verifier.
  slow = by_kind.loc['relaxed decoding']
  assert slow.variant == 'lossy'
  assert slow.speedup < 1
  assert slow[['best_speedup', 'difference']].isna().all()
  # A kind is not compared with itself.
  lone = comparisons.compare(make({ALONE: (0.8, 1.0, 0.01, 10)}), CHOICE)
  assert comparisons.best_of_kinds(lone).empty


def test_a_switch_stands_beside_the_fastest_rule_of_its_quality():
  specs = {
    ALONE: (0.80, 1.0),
    ('speed', 0.0, 4): (0.80, 0.9),
    ('opt', 0.5, 4): (0.79, 0.5),
    ('token_v3', 0.5, 4): (0.60, 0.3),
    ('relaxed_top-3', 0.6, 4): (0.60, 0.7),
    ('entropy_gate', -0.3, 4): (0.80, 0.6),
    ('ensemble', 0.5, 4): (0.785, 0.7),
  }
  points = make({k: (*spec, 0.01, 10) for k, spec in specs.items()})
  frame = comparisons.compare(points, CHOICE)
  table = comparisons.switches(points, frame, CHOICE).set_index('method')
  # TokenV3 is faster than TensorRT-LLM's switch, and as good; OPT is better.
  columns = ['rival_variant', 'rival_lenience', 'dominated']
  rivals = table[columns].astype(object).where(table.gain_speedup.notna(), '')
  assert rivals.to_numpy().tolist() == [
    *(['opt', 0.5, True], ['', '', ''], ['opt', 0.5, False]),
  ]
  gains = table[['gain_speedup', 'gain_difference']].to_numpy()[[0, 2]]
  np.testing.assert_allclose(gains, [[1.4, 0.19], [1.4, 0.005]], rtol=1e-6)
  is_default = [*map(comparisons.is_default, frame.itertuples())]
  assert is_default == [False] * 4 + [True] * 3
  # Without a faster rule all columns are there, and empty.
  alone = make({ALONE: SPECS[ALONE], ('typical', 0.5, 4): SPECS[ALONE]})
  lone = comparisons.switches(alone, comparisons.compare(alone, CHOICE), CHOICE)
  assert not comparisons.is_default(lone.iloc[0])
  assert {*lone.columns, 'method'} == {*table.columns, 'method'}
  assert lone.filter(regex='rival_|gain_').isna().all(axis=None)
  # Of rules alone there is nothing to compare.
  rules = make(SPECS)
  assert comparisons.switches(
    rules, comparisons.compare(rules, CHOICE), CHOICE
  ).empty


def test_the_clock_and_the_verifiers_score_are_said():
  frame = comparisons.compare(make({x: SPECS[x] for x in [*SPECS][:3]}), CHOICE)
  (said,) = comparisons.on_the_clock(frame[2:])
  assert (
    'at a time (200 prompts), opt at lenience 0 (gamma 4) is 1.11 [' in said
  )
  assert comparisons.on_the_clock(None) == []
  (said,) = comparisons.scores(frame)
  assert said == 'sums: the verifier alone scores 0.800 of 1 on 200 examples.'


def test_a_method_without_blocks_is_left_out_where_it_has_blocks():
  # With gamma 0 it is the verifier alone.
  specs = SPECS | {('opt', 0.5, 0): (0.99, 1.0, 0.01, 10)}
  specs |= {('token_v3', 0.5, 0): (0.7, 1.0, 0.01, 10)}
  gammas = comparisons.with_blocks(make(specs).table).groupby('method').gamma
  assert gammas.unique().map(set)[['opt', 'token_v3']].tolist() == [{2, 4}, {0}]
