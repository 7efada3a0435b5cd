"""Tests of the metrics, on counts small enough to do by hand."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from answers import COSTS, make_failure, make_record

from experiments.records import metrics, unit_costs
from experiments.tasks import METRICS

_COLUMNS = (
  'task method lenience gamma verification gate bonus_from drafts'
  ' temperature n failed quality quality_low quality_high acceptance_rate'
  ' rejection_rate deferral_rate block_efficiency verifier_calls_per_token'
  ' drafter_calls_per_token relative_latency mean_output_tokens unended_rate'
  ' wall_s'
)
# Blocks: [ddb][dr] and [r]: 6 tokens, 3 verifier calls, 5 examined, 3 kept.
RECORDS = [
  make_record('ddbdr'),
  make_record('r', id='1', quality=0.0, deferred=0, ended=False),
]


def test_metrics_are_ratios_of_totals():
  ratios = dict(quality=1 / 2, acceptance_rate=3 / 5, rejection_rate=2 / 5)
  ratios |= dict(deferral_rate=1 / 5, block_efficiency=6 / 3)
  ratios |= dict(verifier_calls_per_token=3 / 6, drafter_calls_per_token=9 / 6)
  ratios |= dict(mean_output_tokens=6 / 2, unended_rate=1 / 2)
  values = {name: f(RECORDS) for name, f in metrics.POINT_METRICS.items()}
  assert values == pytest.approx(ratios)


def test_no_records_have_no_metric():
  assert all(math.isnan(f([])) for f in metrics.POINT_METRICS.values())
  assert math.isnan(metrics.deferral_rate([make_record(deferred=None)]))


def test_relative_latency_counts_calls_times_costs():
  seconds = 3 * 0.012 + 9 * 0.001
  latency = metrics.relative_latency(RECORDS, COSTS)
  assert latency == pytest.approx(seconds / 6 / 0.010)


def test_reads_cost_what_was_measured_else_by_the_token():
  for gamma in (2, 4):
    seconds = COSTS.verifier_s(7, 7 * (gamma + 1), gamma)
    assert seconds == pytest.approx(7 * COSTS.verify(gamma))
  # A token more costs (0.012 - 0.010) / 2.
  assert COSTS.verifier_s(3, 11, 2) == pytest.approx(3 * 0.010 + 8 * 0.001)
  assert COSTS.verifier_s(3, 3, 2) == pytest.approx(3 * 0.010)
  assert COSTS.verifier_s(0, 0, 2) == 0
  assert COSTS.verifier_s(3, 3, 0) == pytest.approx(3 * 0.010)
  with pytest.raises(ValueError, match='gamma 7'):
    metrics.relative_latency([make_record(gamma=7, verifier_tokens=8)], COSTS)


def test_a_cascade_without_speculation_pays_for_what_it_calls():
  def make(deferrals, last_deferral, **changes):
    changes |= dict(deferrals=deferrals, last_deferral=last_deferral)
    return make_record('ddbddbd', **dict(method='chow') | changes)

  failed, _ = make_failure(make(0, 0, id='1'), 'It failed.')
  # Two calls, which read the five tokens up to the last deferral, in the run of
  # the smallest gamma.
  lines = [make(7, 7, gamma=4), make(2, 5), failed, make(9, 9, gamma=8)]
  lines += [make(0, 0, method='diff', gamma=4), make_record('ddb')]
  added = metrics.without_speculation(lines)
  assert [x.id for x in added] == ['0', '1', '0']
  frame = metrics.summarize(added, COSTS)
  assert list(metrics.variants(frame)) == ['chow sequential', 'diff sequential']
  assert (frame.gamma == 1).all()
  assert frame.failed.tolist() == [1, 0]
  assert frame.wall_s.isna().all()
  # A token more costs its share of the longest block, (0.013 - 0.010) / 4.
  read = 2 * 0.010 + 3 * 0.00075, 0.0
  np.testing.assert_allclose(
    frame.relative_latency, [(x / 7 + 0.001) / 0.010 for x in read]
  )
  assert frame.verifier_calls_per_token.tolist() == [2 / 7, 0]
  assert (frame.drafter_calls_per_token == 1).all()
  assert frame.deferral_rate.tolist() == [2 / 7, 0]
  assert metrics.without_speculation(added) == []


def slower(costs, token, block):
  """Costs of which the verifier's take so many times as long."""
  return dataclasses.replace(
    costs,
    verifier_token_s=costs.verifier_token_s * token,
    verify_s={k: s * block for k, s in costs.verify_s.items()},
  )


def measured(start, end):
  """Unit costs that were measured twice, each time without a spread."""
  return unit_costs.CostMeasurements(
    (unit_costs.CostRange(start, start), unit_costs.CostRange(end, end))
  )


def test_of_costs_measured_twice_on_a_processor_the_lower_count():
  assert measured(slower(COSTS, 2, 1), slower(COSTS, 1, 3)).costs == COSTS
  # A sweep may go on on another processor.
  fast = slower(COSTS, 0.5, 0.1)
  times = (
    unit_costs.CostRange(fast, slower(fast, 1.5, 2), 'one'),
    unit_costs.CostRange(COSTS, COSTS, 'other'),
  )
  both = unit_costs.CostMeasurements(times)
  assert both.costs == COSTS
  assert both.drift()[1] == 1
  assert unit_costs.CostMeasurements.from_json(both.to_json()) == both


def test_drift_is_of_what_a_latency_is_made_of():
  def drift(end):
    return measured(COSTS, end).drift()

  # A machine that is slower in all it does models the same latencies.
  drafter = dataclasses.replace(COSTS, drafter_token_s=0.002)
  assert drift(slower(drafter, 2, 2))[1] == pytest.approx(1)
  block = dataclasses.replace(COSTS, verify_s=COSTS.verify_s | {4: 0.026})
  assert drift(block) == ('a block of 4 drafts', pytest.approx(2))
  assert drift(drafter) == ("the drafter's token", pytest.approx(2))


@pytest.mark.parametrize(
  'text',
  [
    *('not json', '[]', '{}', '{"times": []}', '{"times": 3}'),
    *(
      f'{{"times": [{{"low": {{{costs}}}, "high": {{{costs}}}}}]}}'
      for costs in (
        '',
        '"verifier_token_s": 1, "drafter_token_s": 1',
        '"verifier_token_s": 1, "drafter_token_s": 1, "verify_s": {"a": 1}',
        '"verifier_token_s": 0, "drafter_token_s": 1, "verify_s": {}',
        '"verifier_token_s": "1", "drafter_token_s": 1, "verify_s": {}',
        '"verifier_token_s": 1, "drafter_token_s": 1, "verify_s": {}, "x": 1',
      )
    ),
  ],
)
def test_damaged_costs_are_refused(text):
  with pytest.raises(ValueError, match=r'^costs: '):
    unit_costs.CostMeasurements.from_json(text)


def test_summary_has_a_row_per_point_in_order_of_appearance():
  nan = make_record('ddb', lenience=math.nan, method='speed')
  records = [nan, *RECORDS, dataclasses.replace(nan, id='1')]
  frame = metrics.summarize(records, COSTS)
  assert list(frame.columns) == _COLUMNS.split()
  assert list(frame.method) == ['speed', 'token_v3']
  assert list(frame.n) == [2, 2]
  assert math.isnan(frame.lenience[0])
  # Wilson's intervals of 2 of 2 and 1 of 2.
  ends = frame[['quality_low', 'quality_high']].to_numpy()
  assert ends == pytest.approx(np.array([[0.342, 1], [0.095, 0.905]]), abs=1e-3)
  assert frame.wall_s[1] == pytest.approx(0.5)
  frame = metrics.summarize([], COSTS)
  assert frame.empty
  assert list(frame.columns) == metrics.summary_columns()


def test_a_failure_is_counted_and_is_no_answer():
  unscored = dict(quality=math.nan, scores={})
  failed = make_record('', id='2', failure='no', ended=False, **unscored)
  with_it = metrics.summarize([*RECORDS, failed], COSTS)
  without = metrics.summarize(RECORDS, COSTS)
  assert (with_it.n[0], with_it.failed[0]) == (2, 1)
  pd.testing.assert_frame_equal(
    with_it.drop(columns='failed'), without.drop(columns='failed')
  )
  # A quality that nobody knows, as of a task without a metric.
  unknown = make_record(task='spec_bench', **unscored)
  frame = metrics.summarize([unknown], COSTS)
  assert frame[['quality', 'quality_low', 'quality_high']].isna().all(None)
  # Where every example failed, nothing is known of the point.
  row = metrics.summarize([failed], COSTS).iloc[0]
  assert (row.n, row.failed) == (0, 1)
  assert math.isnan(row.quality)
  assert math.isnan(row.relative_latency)


_GERMAN = [
  ('Der Zug fährt um sieben.', 'Der Zug fährt um sieben Uhr ab.'),
  ('Wir sahen das Meer zum ersten Mal.', 'Wir sahen zum ersten Mal das Meer.'),
  ('', 'Er sagte: „Das weiß ich nicht.“'),
  ('Ja.', 'Ja.'),
]


def _translations(pairs):
  return [
    make_record(
      task='wmt14_en_de',
      id=str(i),
      text=answer,
      scores=METRICS['bleu'].score(answer, reference),
      quality=METRICS['bleu'].score(answer, reference)['sentence_bleu'],
    )
    for i, (answer, reference) in enumerate(pairs)
  ]


@pytest.mark.parametrize('numbers', [(0, 1, 2, 3), (0,), (0, 1), (2,), (3,)])
def test_quality_of_translations_is_sacrebleus_corpus_score(numbers):
  from sacrebleu.metrics import BLEU

  pairs = [_GERMAN[i] for i in numbers]
  answers, references = map(list, zip(*pairs, strict=True))
  want = BLEU().corpus_score(answers, [references])
  lines = _translations(pairs)
  assert metrics.quality(lines) == pytest.approx(want.score)
  row = metrics.summarize(lines, COSTS).iloc[0]
  assert row.quality == metrics.quality(lines)
  assert row.quality_low <= row.quality <= row.quality_high
  # All of them differ, so that there is an interval; and their mean is another.
  if len(pairs) == 4:
    assert row.quality_low < row.quality < row.quality_high
    assert abs(row.quality - sum(r.quality for r in lines) / 4) > 1


def test_points_of_the_same_examples_have_the_intervals_they_have_alone():
  lines = [
    make_record(id=str(i), lenience=lenience, quality=float(i % k == 0))
    for lenience, k in ((0.1, 2), (0.2, 3))
    for i in range(40)
  ]
  # One example less: other draws than the rest.
  lines += [dataclasses.replace(r, lenience=0.3) for r in lines[:39]]
  ends = ['quality_low', 'quality_high']
  together = metrics.summarize(lines, COSTS)[ends].to_numpy()
  for row, i in zip(together, (0, 40, 80), strict=True):
    alone = metrics.summarize(lines[i : i + 40], COSTS)[ends].to_numpy()
    assert row == pytest.approx(alone[0])


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
