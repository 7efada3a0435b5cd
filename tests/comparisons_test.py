"""Tests of what the report's tables say, on answers made for each question."""

import math

import numpy as np
import pandas as pd
import pytest
from answers import make_trace

from experiments.analysis import (
  calibration,
  comparisons,
  kinds,
  mixture,
  positions,
)
from experiments.analysis.choice import Choice
from experiments.analysis.runs import Points
from experiments.records import stats
from experiments.reports import questions
from experiments.tasks import translation

CHOICE = Choice(resamples=500)


def make(specs, n=200, task='sums', seed=0, batch_size=8, run='a'):
  """Points and answers of one task.

  Args:
    specs: By (method, lenience, gamma): share of right answers, modelled
      latency of a token, seconds of a token, tokens, share of rejections.
    n: Examples.
    task: Its name.
    seed: Of who is right where; a harder example is hard for all.
    batch_size: Of the run.
    run: Its name.
  """
  rng = np.random.default_rng(seed)
  hard = rng.permutation(n) / n
  points, answers = [], []
  for i, ((method, lenience, gamma), spec) in enumerate(specs.items()):
    right, latency, wall, tokens, rejected = spec
    point = dict(run=run, batch_size=batch_size, task=task, n=n, failed=0)
    point |= dict(method=method, variant=method, lenience=lenience, gamma=gamma)
    point |= dict(verification='token', temperature=1.0, oracle=False)
    points.append(point)
    answer = dict(point=i, emitted=tokens, ended=True)
    answer |= dict(latency=latency * tokens, wall_s=wall * tokens)
    answer |= dict(
      examined=100 if gamma else 0,
      accepted=round(100 * (1 - rejected)) if gamma else 0,
    )
    answers += [
      dict(id=str(example), quality=float(hard[example] < right), **answer)
      for example in range(n)
    ]
  return Points(pd.DataFrame(points), pd.DataFrame(answers))


def join(*parts):
  shift, answers = 0, []
  for part in parts:
    answers.append(part.answers.assign(point=part.answers.point + shift))
    shift += len(part.points)
  return Points(
    pd.concat([p.points for p in parts], ignore_index=True),
    pd.concat(answers, ignore_index=True),
  )


ALONE = ('verifier_only', math.nan, 0)
SPECS = {
  ALONE: (0.80, 1.0, 0.010, 10, 0.0),
  ('drafter_only', math.nan, 0): (0.40, 0.1, 0.002, 10, 0.0),
  ('opt', 0.0, 4): (0.80, 0.8, 0.009, 10, 0.3),
  ('opt', 0.5, 4): (0.795, 0.6, 0.008, 11, 0.2),
  ('opt', 1.0, 4): (0.50, 0.4, 0.012, 20, 0.1),
  ('opt', 0.5, 2): (0.795, 0.5, 0.007, 11, 0.2),
  ('diff', 0.5, 4): (0.85, 1.2, 0.011, 10, 0.4),
}


@pytest.fixture(scope='module')
def found():
  return make(SPECS)


@pytest.fixture(scope='module')
def frame(found):
  return comparisons.compare(found, CHOICE)


def row(frame, method, lenience=math.nan, gamma=0):
  same = frame[(frame.method == method) & (frame.gamma == gamma)]
  if not math.isnan(lenience):
    same = same[same.lenience == lenience]
  return same.iloc[0]


def test_points_are_compared_with_the_verifier(frame):
  one = row(frame, 'opt', 1.0, 4)
  assert one.quality == pytest.approx(0.5)
  assert one.difference == pytest.approx(-0.3)
  assert one.difference_low < -0.3 < one.difference_high
  assert one.speedup == pytest.approx(1 / 0.4)
  assert one.wall_speedup == pytest.approx(10 / 12)
  assert one.length == pytest.approx(2)
  assert one.rejection_rate == pytest.approx(0.1)
  alone = row(frame, 'verifier_only')
  assert alone[['difference_low', 'difference_high']].tolist() == [0, 0]
  assert alone.speedup == alone.length == 1
  # Tokens are faster, and twice as many.
  told = row(comparisons.lengths(frame), 'opt', 1.0, 4)
  assert told.answer_speedup == pytest.approx(1 / 0.4 / 2)


def test_intervals_are_paired(found, frame):
  one = row(frame, 'opt', 1.0, 4)
  values = comparisons.matrices(found, found.points.index)['quality']
  want = stats.bootstrap_mean_interval(
    values[:, 4] - values[:, 0], resamples=500
  )
  assert (one.difference_low, one.difference_high) == pytest.approx(want)
  # As strangers they would be told apart far worse.
  near = row(frame, 'opt', 0.5, 4)
  assert near.difference_high - near.difference_low < 0.03


def test_as_good_is_by_the_lower_end_and_the_margin(found):
  wide = comparisons.compare(found, Choice(margin=0.05, resamples=500))
  narrow = comparisons.compare(found, Choice(margin=0.004, resamples=500))
  assert row(wide, 'opt', 0.5, 4).as_good
  # The difference itself is within the margin, its interval is not.
  close = comparisons.compare(found, Choice(margin=0.006, resamples=500))
  assert row(close, 'opt', 0.5, 4).difference > -0.006
  assert not row(close, 'opt', 0.5, 4).as_good
  assert row(narrow, 'opt', 0.0, 4).as_good
  assert not row(wide, 'opt', 1.0, 4).as_good


def test_examples_that_one_did_not_answer_are_out_of_the_pair(found):
  point, example = found.answers.point, found.answers.id.astype(int)
  # The method lacks the first ones, the verifier alone the last ones.
  lost = ((point == 4) & (example < 40)) | ((point == 0) & (example >= 190))
  answers = found.answers[~lost]
  frame = comparisons.compare(
    Points(found.points, answers.reset_index(drop=True)), CHOICE
  )
  values = comparisons.matrices(found, found.points.index)['quality']
  one = frame.loc[4]
  # Examples are in the order of their ids.
  assert one.difference == pytest.approx(
    (values[40:190, 4] - values[40:190, 0]).mean()
  )
  assert frame.loc[3].difference == pytest.approx(
    (values[:190, 3] - values[:190, 0]).mean()
  )


def test_the_front_has_no_point_that_is_beaten(frame):
  front = comparisons.pareto(frame)
  assert ' '.join(front.method) == 'drafter_only opt opt opt diff'
  assert front.quality.is_monotonic_increasing
  assert front.latency.is_monotonic_increasing
  assert (front.gamma == [0, 4, 2, 4, 4]).all()


def test_both_sides_of_the_table(found):
  frame = comparisons.compare(found, Choice(margin=0.05, resamples=500))
  table = comparisons.two_sided(frame).set_index('method')
  opt = table.loc['opt']
  assert (opt.lenience, opt.gamma) == (0.5, 2)
  assert opt.speedup == pytest.approx(2)
  assert opt.speedup_low <= opt.speedup <= opt.speedup_high
  assert (opt.best_lenience, opt.best_gamma, opt.difference) == (0.0, 4, 0)
  diff = table.loc['diff']
  assert diff.speedup == pytest.approx(1 / 1.2)
  # It is never as fast.
  assert math.isnan(diff.best_lenience)
  # A curve that is never as good has no speed.
  frame = comparisons.compare(found, Choice(margin=0.0, resamples=500))
  assert comparisons.fastest_as_good(frame).method.tolist() == ['diff']
  table = comparisons.two_sided(frame)
  assert table[table.method == 'opt'].speedup.isna().all()


def test_a_gamma_of_its_own_beside_everyones(found):
  frame = comparisons.compare(found, Choice(margin=0.05, resamples=500))
  assert comparisons.common_gamma(frame) == 4
  table = comparisons.gammas(frame)
  assert table.variant.tolist() == ['opt']
  one = table.iloc[0]
  assert (one.fixed_gamma, one.fixed_lenience, one.gamma) == (4, 0.5, 2)
  assert (one.fixed_speedup, one.speedup) == pytest.approx((1 / 0.6, 2))
  single = frame[frame.gamma != 2]
  assert comparisons.gammas(single).empty


def test_rejections_tell_latency_by_a_line():
  specs = {ALONE: (0.8, 1.0, 0.01, 10, 0.0)} | {
    ('opt', r, 4): (0.8, 0.3 + 2 * r, 0.01 * (0.5 + r), 10, r)
    for r in (0.1, 0.2, 0.3, 0.4)
  }
  frame = comparisons.rates(
    join(make(specs), make(specs, batch_size=1, run='b'))
  )
  fit = comparisons.latency_fit(frame)
  assert fit.batch_size.tolist() == [8, 1]
  np.testing.assert_allclose(fit.slope, [2, 2])
  np.testing.assert_allclose(fit.intercept, [0.3, 0.3])
  np.testing.assert_allclose(fit.r2, 1)
  frame.loc[2, 'latency'] = 5.0
  assert comparisons.latency_fit(frame).r2[0] < 0.9
  assert comparisons.latency_fit(frame[frame.lenience != 0.1][:3]).empty


def test_the_clock_of_another_batch_size_says_nothing():
  one = make({ALONE: SPECS[ALONE]})
  other = make({('opt', 0.5, 4): SPECS['opt', 0.5, 4]}, batch_size=1, run='b')
  frame = comparisons.compare(join(one, other), CHOICE)
  assert math.isnan(frame.wall_speedup[1])
  assert frame.speedup[1] == pytest.approx(1 / 0.6)
  other.points['batch_size'] = 8
  frame = comparisons.compare(join(one, other), CHOICE)
  assert frame.wall_speedup[1] == pytest.approx(10 / 8)


def test_without_the_verifier_nothing_is_compared():
  frame = comparisons.compare(
    make({k: v for k, v in SPECS.items() if k != ALONE}), CHOICE
  )
  assert frame.difference.isna().all()
  assert not frame.as_good.any()
  assert comparisons.two_sided(frame).empty
  assert len(comparisons.pareto(frame))


def test_what_nobody_knows_is_nan_and_never_as_good(found):
  answers = found.answers.assign(quality=math.nan)
  frame = comparisons.compare(Points(found.points, answers), CHOICE)
  assert not frame.as_good.any()
  assert frame.quality.isna().all()
  assert frame.speedup_low.notna().all()
  assert comparisons.pareto(frame).empty
  # A point whose examples all failed.
  answers = found.answers[found.answers.point != 3].reset_index(drop=True)
  frame = comparisons.compare(Points(found.points, answers), CHOICE)
  assert frame.loc[3, ['quality', 'difference', 'speedup']].isna().all()
  assert frame.loc[2].difference == 0


def test_mcnemar_is_corrected_for_the_methods_of_a_task(found):
  table = comparisons.significance(found, [2, 4, 6]).set_index('variant')
  assert len(table) == 3
  one = table[table.lenience == 1.0].iloc[0]
  assert (one.n, one.only_verifier, one.only_method) == (200, 60, 0)
  assert one.p == pytest.approx(2 * 0.5**60)
  assert one.p_holm == pytest.approx(3 * one.p)
  assert table.loc['diff'].p_holm == pytest.approx(2 * 2 * 0.5**10)
  # It is for right and wrong alone.
  answers = found.answers.assign(quality=found.answers.quality * 0.3)
  assert comparisons.significance(Points(found.points, answers), [4]).empty


def test_a_corpus_quality_is_made_of_sums_in_every_draw():
  found = make({ALONE: SPECS[ALONE], ('opt', 0.5, 4): SPECS['opt', 0.5, 4]}, 30)
  found.points['task'] = 'wmt14_en_de'
  asked = 'the cat sat on the mat and looked at the dog outside today'.split()
  rows = []
  for point, example in zip(
    found.answers.point, found.answers.id.astype(int), strict=True
  ):
    # The method loses some words, and not the same number everywhere.
    words = asked[: len(asked) - (example % 4 if point else 0)]
    rows.append(translation.score(' '.join(words), ' '.join(asked)))
  scores = pd.DataFrame(rows).add_prefix('score:')
  found = Points(found.points, found.answers.join(scores))
  frame = comparisons.compare(found, Choice(resamples=60))
  alone, opt = frame.iloc[0], frame.iloc[1]
  assert alone.quality == 100
  sums = pd.DataFrame(rows)[found.answers.point == 1].sum()
  assert opt.quality == pytest.approx(translation.corpus_bleu(sums))
  assert opt.difference == pytest.approx(opt.quality - 100)
  assert opt.difference_low < opt.difference < opt.difference_high < 0
  assert (opt.scale, bool(opt.exact), bool(opt.as_good)) == (100, False, False)
  assert comparisons.compare(found, Choice(margin=0.5, resamples=60)).as_good[1]


# --- Calibration.


def test_halves_are_of_the_ids_alone():
  sides = [calibration.half(str(i), 0) for i in range(400)]
  assert 150 < sum(sides) < 250
  assert sides == [calibration.half(str(i), 0) for i in range(400)]
  assert sides != [calibration.half(str(i), 1) for i in range(400)]


def test_a_lenience_is_chosen_and_judged_apart(found):
  # On the half that chooses, lenience 1 loses nothing; on the other, much.
  side = found.answers.id.map(lambda i: calibration.half(i, 0))
  answers = found.answers.copy()
  alone = answers[answers.point == 0].quality.to_numpy()
  lucky = (answers.point == 4) & (side == 0)
  answers.loc[lucky, 'quality'] = alone[side[:200].to_numpy() == 0]
  table = calibration.calibrate(Points(found.points, answers), CHOICE)
  own = calibration.own(table, 'quality').set_index('variant')
  opt = own.loc['opt']
  assert opt.lenience == 1.0
  assert not opt.kept
  assert opt.loss > 0.2
  assert opt.best_lenience == 0.5
  assert opt.regret == pytest.approx(0.4 - 0.6)
  assert own.loc['diff'].regret == 0


def test_a_target_of_latency_takes_the_best_quality(found):
  choice = Choice(resamples=500, latency=0.65)
  table = calibration.own(calibration.calibrate(found, choice), 'latency')
  opt = table.set_index('variant').loc['opt']
  # Gamma is everyone's: the faster point at gamma 2 is no choice.
  assert (opt.lenience, opt.gamma, opt.kept) == (0.5, 4, True)
  assert opt.regret == 0
  # Nothing of diff is as fast: the fastest there is, and told so.
  assert not table.set_index('variant').loc['diff'].kept


def test_one_tasks_lenience_on_another():
  easy = {
    ALONE: SPECS[ALONE],
    ('opt', 0.0, 4): (0.8, 0.8, 0.01, 10, 0.3),
    ('opt', 1.0, 4): (0.8, 0.4, 0.01, 10, 0.1),
  }
  hard = easy | {('opt', 1.0, 4): (0.3, 0.4, 0.01, 10, 0.1)}
  found = join(make(easy, task='easy'), make(hard, task='hard'))
  table = calibration.calibrate(found, CHOICE)
  matrix = calibration.transfer(table, 'quality')
  assert matrix.loc['easy', 'easy'] == 1
  assert matrix.loc['easy', 'hard'] == 0
  assert matrix.loc['hard', 'easy'] == matrix.loc['hard', 'hard'] == 1
  part = table[(table.target == 'quality') & (table.chosen_on == 'hard')]
  regret = part.set_index('task').regret
  assert regret['easy'] == pytest.approx(0.4)
  lost, kept = calibration.by_judge(table, 'quality')
  assert list(lost) == list(kept) == ['easy', 'hard']
  lost, kept = (
    f.droplevel(['temperature', 'run', 'variant']) for f in (lost, kept)
  )
  assert lost.loc[(8, 'easy'), 'hard'] > 0.4
  assert kept.loc[(8, 'easy')].tolist() == [1, 0]
  assert kept.loc[(8, 'hard')].tolist() == [1, 1]


def test_a_typical_point_is_the_calibrated_one_else_a_middling_one(found):
  table = calibration.calibrate(found, CHOICE)
  own = calibration.own(table, 'quality').point.tolist()
  # Neither model alone can be chosen, and each has one point.
  assert calibration.typical(found.points, table) == sorted([0, 1, *own])
  assert calibration.typical(found.points, table.iloc[:0]) == [0, 1, 3, 6]
  # One example cannot be halved.
  one = make({k: SPECS[k] for k in (ALONE, ('opt', 0.5, 4))}, n=1)
  assert calibration.calibrate(one, CHOICE).empty


# --- Traces.


def trace(sources, deferred=None, pieces=None):
  n = len(sources)
  return make_trace(sources, deferred=deferred, pieces=pieces or ['a'] * n)


def test_positions_agree_with_a_walk_over_the_tokens():
  rng = np.random.default_rng(0)
  kept, examined, traces = {}, {}, []
  for _ in range(300):
    sources = ''
    while len(sources) < 12:
      block = 'd' * rng.integers(0, 5)
      sources += block + ('b' if len(block) == 4 else 'r')
    sources = sources[: rng.integers(0, 13)]
    traces.append(trace(sources))
    place = 0
    for source in sources:
      if source in 'dr':
        examined[place] = examined.get(place, 0) + 1
      if source == 'd':
        kept[place] = kept.get(place, 0) + 1
      place = place + 1 if source == 'd' else 0
  counts = {}
  positions.count([7] * 300, traces, counts)
  found = counts[7].by_block()
  assert {r['position'] - 1: r['examined'] for r in found} == examined
  assert {r['position'] - 1: r['accepted'] for r in found if r['accepted']} == (
    kept
  )


def test_deferrals_by_position_and_kind_leave_the_bonus_out():
  pieces = [' 12', ' cat', '.', '\n', 'a1', '', 'x']
  counts = {}
  positions.count(
    [1], [trace('dddddrb', [1, 0, 0, 1, 0, 1, 1], pieces)], counts
  )
  expected = {
    r['kind']: (r['deferred'], r['examined']) for r in counts[1].by_kind()
  }
  assert expected == {
    'digits': (1, 1),
    'letters': (0, 1),
    'punctuation': (0, 1),
    'spaces': (1, 1),
    'other': (1, 2),
  }
  long = {}
  positions.count([1], [trace('d' * 20, [0] * 8 + [1] * 12)], long)
  found = [
    (r['position'], r['rate'], r['examined']) for r in long[1].by_answer()
  ]
  assert found == [(0, 0, 8), (8, 1, 8), (16, 1, 4)]


def test_what_has_no_rule_has_no_deferrals_and_failures_no_tokens():
  counts = {}
  positions.count([0, None, 0], [trace('dr'), trace('d'), trace('')], counts)
  assert list(counts) == [0]
  assert counts[0].by_answer() == counts[0].by_kind() == []
  assert len(counts[0].by_block()) == 2


def test_what_is_drawn_of_places_is_of_the_first_run_and_of_enough_tokens():
  specs = {key: SPECS[key] for key in (ALONE, ('opt', 0.5, 4))}
  found = join(make(specs), make(specs, run='b'))
  counts = {}
  short, long = trace('d' * 8, [1] * 8), trace('d' * 16, [0] * 16)
  positions.count([1] * 20, [short] * 20, counts)
  positions.count([1, 3], [long, trace('dr', [0, 1], ['7', '.'])], counts)
  frames = positions.frames(found.points, counts)
  block, answer = positions.drawn(frames, [1, 3])
  assert set(block.run) == set(answer.run) == {'a'}
  # One answer of 21 goes on.
  assert set(frames['by_answer'].position) == {0, 8}
  assert set(answer.position) == {0}
  block, _ = positions.drawn(frames, [3])
  assert set(block.run) == {'b'}
  told = positions.kinds_beside(frames, [1, 3]).set_index('run')
  assert told.letters['a'] == pytest.approx(160 / 176)
  assert (told.digits['b'], told.punctuation['b']) == (0, 1)
  assert math.isnan(told.letters['b'])


# --- Plainer ways.


def test_every_known_method_has_a_kind():
  expected = {
    ('verifier_only', 'token', math.nan): '',
    ('token_v3', 'block', -1.0): 'speculative cascade',
    ('speed', 'token', 0.0): 'strict decoding',
    ('speed', 'token', 0.5): 'relaxed decoding',
    ('somebodys_own', 'token', 0.5): 'relaxed decoding',
    ('eta', 'token', 0.1): 'truncated verifier',
    ('chow', 'sequential', 0.1): 'sequential cascade',
    ('diff', 'sequential', 0.1): 'sequential oracle',
    ('sequence_mean', 'token', 0.1): 'cascade of answers',
    ('always_accept', 'token', math.nan): 'always accept',
  }
  assert {key: kinds.kind(*key) for key in expected} == expected
  assert set(expected.values()) == {'', *kinds.KINDS}


def test_a_kind_is_shown_by_its_best_points():
  found = make(
    {
      ALONE: (0.80, 1.0, 0.01, 10, 0.0),
      ('speed', 0.0, 4): (0.80, 0.9, 0.01, 10, 0.3),
      ('min_p', 0.1, 4): (0.84, 0.95, 0.01, 10, 0.3),
      ('opt', 0.5, 4): (0.82, 0.8, 0.01, 10, 0.3),
      ('diff', 0.5, 4): (0.81, 0.7, 0.01, 10, 0.3),
      ('chow', 0.5, 4): (0.20, 0.3, 0.01, 10, 0.3),
      ('bild', 0.5, 4): (0.90, 1.1, 0.01, 10, 0.3),
    }
  )
  table = kinds.best_of_kinds(comparisons.compare(found, CHOICE))
  assert list(table.kind) == list(kinds.KINDS[:4])
  told = table.set_index('kind')
  ours = told.loc['speculative cascade']
  assert (ours.variant, ours.speedup) == ('diff', pytest.approx(1 / 0.7))
  assert (ours.best_variant, ours.difference) == ('opt', pytest.approx(0.02))
  plain = told.loc['truncated verifier']
  assert (plain.best_variant, plain.difference) == (
    'min_p',
    pytest.approx(0.04),
  )
  # Good, but slower than the verifier.
  slow = told.loc['relaxed decoding']
  assert slow.variant == 'bild'
  assert slow.speedup < 1
  assert slow[['best_speedup', 'difference']].isna().all()


def test_what_truncation_alone_is_worth_is_told():
  found = make(
    {
      ALONE: (0.80, 1.0, 0.01, 10, 0.0),
      ('token_v3', 0.9, 4): (0.82, 0.5, 0.01, 10, 0.3),
      ('token_v3', 0.7, 4): (0.82, 0.5, 0.01, 10, 0.3),
      ('min_p', 0.1, 4): (0.90, 0.75, 0.01, 20, 0.3),
      ('min_p', 0.1, 2): (0.10, 0.75, 0.01, 20, 0.3),
    }
  )
  table = kinds.truncated_alike(found, CHOICE)
  assert len(table) == 1
  (one,) = table.to_dict('records')
  assert (one['lenience'], one['gamma'], one['n']) == (0.9, 4, 200)
  assert one['gained'] == pytest.approx(-0.08)
  assert one['gained_low'] < -0.08 < one['gained_high'] < 0
  assert one['faster'] == pytest.approx(1.5)
  lone = make({ALONE: (0.8, 1.0, 0.01, 10, 0.0)})
  assert kinds.best_of_kinds(comparisons.compare(lone, CHOICE)).empty
  assert kinds.truncated_alike(lone, CHOICE).empty


# --- All tasks together.


def _two_tasks(cascade):
  """A verifier that knows one task, a drafter that knows the other."""
  rows = [
    (ALONE, (0.9, 0.3)),
    (('drafter_only', math.nan, 0), (0.2, 0.8)),
    (('diff', 0.2, 4), cascade),
    (('opt', 0.2, 4), (0.5, 0.5)),
  ]
  return join(
    *(
      make(
        {key: (of[i], 0.5 + i, 0.01, 10, 0.1) for key, of in rows},
        task=task,
        seed=i,
        n=(100, 400)[i],
      )
      for i, task in enumerate(('sums', 'names'))
    )
  )


def test_tasks_count_equally_in_a_mixture():
  frame = mixture.mix(_two_tasks((0.9, 0.7)), CHOICE)
  assert set(frame.task) == {mixture.ALL}
  diff = row(frame, 'diff', 0.2, 4)
  assert diff.quality == pytest.approx(0.8)
  assert diff.over_verifier == pytest.approx(0.2)
  assert diff.over_drafter == pytest.approx(0.3)
  assert diff.over_verifier_low < 0.2 < diff.over_verifier_high
  # Per token of all tasks: examples of one are many.
  assert diff.latency == pytest.approx((0.5 * 100 + 1.5 * 400) / 500)
  verifier = row(frame, 'verifier_only')
  assert verifier[['over_verifier_low', 'over_verifier_high']].tolist() == [
    0,
    0,
  ]


def test_it_is_said_whether_a_cascade_is_above_both_models():
  best = mixture.best(mixture.mix(_two_tasks((0.9, 0.7)), CHOICE))
  assert list(best.method) == ['diff', 'opt']
  assert best.iloc[0].above == pytest.approx(0.2)
  said = questions.above(best, 'Diff', 'lenience 0.2')
  assert said.startswith('Diff at lenience 0.2 is above both models alone, by')
  assert said.endswith('0.200, and its intervals over both are above 0.')
  best = mixture.best(mixture.mix(_two_tasks((0.9, 0.3025)), CHOICE))
  said = questions.above(best, 'Diff', 'lenience 0.2')
  assert said.endswith('0.001, but within what chance could give.')
  best = mixture.best(mixture.mix(_two_tasks((0.8, 0.3)), CHOICE))
  said = questions.above(best, 'Diff', 'lenience 0.2')
  assert said.startswith('No cascade is above both models alone: Diff at')
  assert said.endswith('nearest, and lacks 0.050 of the better one.')


def test_one_task_is_no_mixture(found):
  nothing = mixture.mix(found, CHOICE)
  assert nothing.empty
  assert mixture.best(nothing).empty
  two = _two_tasks((0.9, 0.7))
  drafter = two.points.index[two.points.method == 'drafter_only']
  answers = two.answers[~two.answers.point.isin(drafter)]
  alone = Points(two.points.drop(drafter), answers)
  assert mixture.mix(alone, CHOICE).empty
