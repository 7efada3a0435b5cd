"""Tests of the records of answers, and of the metrics of their counts."""

import dataclasses
import json
import math

import counts
import numpy as np
import pandas as pd
import pytest
from answers import COSTS, make_failure, make_record, make_trace, measured

from cascades.config import DecodingConfig
from experiments import records, tasks
from experiments.records import metrics, unit_costs
from experiments.tasks import METRICS

RECORD = make_record(
  method='opt', text=' vier ☃', deferred=None, emitted=2, examined=1, residual=0
)
_FIELDS = dict(token_strings=[' ☃', ''], deferred=[0, 1])
TRACE = make_trace('db', logprobs=[-0.5, -math.inf], **_FIELDS)
_AT_MOST = 'must be less than or equal to'


def at(lenience):
  return dataclasses.replace(RECORD, lenience=lenience)


def test_a_line_holds_a_record_in_strict_json():
  def refuse(constant):
    raise AssertionError(f'{constant} is not JSON')

  for lenience in (0.5, 1.0, math.inf, -math.inf, math.nan):
    record = dataclasses.replace(at(lenience), quality=math.nan)
    line = records.dumps(record)
    assert '\n' not in line
    json.loads(line, parse_constant=refuse)
    # nan is not equal to itself.
    assert repr(records.loads(line)) == repr(record)
  assert records.loads(records.dumps(TRACE), records.Trace) == TRACE


@pytest.mark.parametrize(
  ('line', 'changes', 'message'),
  [
    (TRACE, {'token_strings': ['a']}, 'token_strings must be as long as tok'),
    (TRACE, {'sources': [0]}, 'sources must be as long'),
    (TRACE, {'logprobs': []}, 'logprobs must be as long'),
    (TRACE, {'deferred': [0]}, 'deferred must be as long'),
    (TRACE, {'deferred': [0, 2]}, rf'deferred\.1 {_AT_MOST} 1'),
    (TRACE, {'sources': [99, 1]}, rf'sources\.0 {_AT_MOST} 3'),
    (RECORD, {'rejected': 3}, 'rejected is not a known field'),
    (RECORD, {'accepted': None}, 'accepted must be a valid integer, got None'),
    (RECORD, {'accepted': ...}, 'accepted is missing'),
  ],
)
def test_what_is_not_a_line_is_refused(line, changes, message):
  fields = json.loads(records.dumps(line)) | changes
  text = json.dumps({k: v for k, v in fields.items() if v is not ...})
  with pytest.raises(ValueError, match=message):
    records.loads(text, type(line))


def test_points_are_told_apart_by_their_coordinates():
  line = records.dumps(at(math.nan))
  # nan is one point, although it is not equal to itself.
  one, two = (records.loads(line) for _ in range(2))
  assert one.point == two.point
  assert len({one.point, two.point}) == 1
  assert one.point != at(0.0).point
  changes = dict(task='x', method='chow', lenience=9, gamma=9, drafts=2)
  changes |= dict(verification='block', gate='processed', draft='argmax')
  changes |= dict(bonus_from='verifier', temperature=9)
  for name, value in changes.items():
    assert dataclasses.replace(RECORD, **{name: value}).point != RECORD.point


def test_what_was_asked_is_kept_once(tmp_path):
  for reference in ('vier', ('vier', '4'), ()):
    example = tasks.Example(id='7', prompt='2+2=\n', reference=reference)
    records.write(tmp_path / 'examples/sums.jsonl', [example])
    assert records.read_examples(tmp_path) == {'sums': {'7': example}}


def test_traces_are_packed_into_the_same_bytes(tmp_path):
  path = tmp_path / 'traces/a.jsonl.gz'
  records.write(path, [TRACE] * 99)
  packed = path.read_bytes()
  assert len(packed) < 350
  assert records.read_traces(tmp_path, 'a') == [TRACE] * 99
  records.write(path, [TRACE] * 99)
  assert path.read_bytes() == packed
  path.write_bytes(packed[:-20])
  with pytest.raises(ValueError, match=r'a\.jsonl\.gz:\d+: damaged record'):
    records.read_traces(tmp_path, 'a')
  with pytest.raises(ValueError, match=r'b\.jsonl\.gz is missing; run'):
    records.read_traces(tmp_path, 'b')


def test_a_failure_says_what_options_it_is_of_and_counts_nothing():
  given = dict(verification='k_seq', gate='processed', bonus='verifier')
  given |= dict(method='cascade_opt', lenience=9, gamma=2, temperature=0)
  options = DecodingConfig(**given, drafts=3)
  names = dict(task='sums', lenience=math.nan, id='0')
  told = records.decoding_fields(options, **names)
  record, trace = records.failed_example('It is too long.', **told)
  assert RECORD.variant == 'opt'
  assert record.variant == 'opt k_seq gate processed bonus verifier 3 drafts'
  assert record.point == ('sums', 'opt', None, 2, *record.options, 0.0)
  assert set(told) < {field.name for field in dataclasses.fields(record)}
  assert record.failure == 'It is too long.'
  assert math.isnan(record.quality)
  counts.check(record, trace)
  again = records.loads(records.dumps(record))
  assert (again.scores, again.emitted) == ({}, 0)


def test_files_are_read_in_name_order(tmp_path):
  records.write(tmp_path / 'records' / 'b.jsonl', [at(2.0)])
  records.write(tmp_path / 'records' / 'a.jsonl', [at(1.0), at(0.0)])
  # A file that is still being written does not count.
  (tmp_path / 'records' / '.c.jsonl.part').write_text('{"task":')
  assert [r.lenience for r in records.read_all(tmp_path)] == [1.0, 0.0, 2.0]


def test_a_damaged_line_is_named(tmp_path):
  path, line = tmp_path / 'a.jsonl', records.dumps(RECORD)
  # The last might be read, were it not cut off before its end.
  for damage in '{"task": "su\n', '[]\n', '3\n', 'null\n', '\n', line:
    path.write_text(f'{line}\n{damage}')
    with pytest.raises(ValueError, match=r'a\.jsonl:2: damaged record'):
      records.read(path)


_COLUMNS = (
  'task method lenience gamma verification gate bonus_from drafts'
  ' draft temperature n failed quality quality_low quality_high acceptance_rate'
  ' rejection_rate deferral_rate block_efficiency verifier_calls_per_token'
  ' drafter_calls_per_token relative_latency mean_output_tokens unended_rate'
  ' wall_s'
)
# Blocks: [ddb][dr] and [r]: 6 tokens, 3 verifier calls, 5 examined, 3 kept.
RECORDS = [make_record('ddbdr')]
RECORDS += [make_record('r', id='1', quality=0.0, deferred=0, ended=False)]


def test_metrics_are_ratios_of_totals():
  ratios = dict(quality=1 / 2, acceptance_rate=3 / 5, rejection_rate=2 / 5)
  ratios |= dict(deferral_rate=1 / 5, block_efficiency=6 / 3)
  ratios |= dict(verifier_calls_per_token=3 / 6, drafter_calls_per_token=9 / 6)
  ratios |= dict(mean_output_tokens=6 / 2, unended_rate=1 / 2)
  values = {name: f(RECORDS) for name, f in metrics.POINT_METRICS.items()}
  assert values == pytest.approx(ratios)
  assert all(math.isnan(f([])) for f in metrics.POINT_METRICS.values())
  unknown = [make_record(deferred=None)]
  assert math.isnan(metrics.POINT_METRICS['deferral_rate'](unknown))


def test_calls_cost_what_was_measured_else_by_the_token():
  seconds = 3 * 0.012 + 9 * 0.001
  latency = metrics.relative_latency(RECORDS, COSTS)
  assert latency == pytest.approx(seconds / 6 / 0.010)
  for gamma in (2, 4):
    seconds = COSTS.verifier_s(7, 7 * (gamma + 1), gamma)
    assert seconds == pytest.approx(7 * COSTS.verify(gamma))
  # A token more costs (0.012 - 0.010) / 2.
  assert COSTS.verifier_s(3, 11, 2) == pytest.approx(3 * 0.010 + 8 * 0.001)
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
  latency = [(x / 7 + 0.001) / 0.010 for x in read]
  np.testing.assert_allclose(frame.relative_latency, latency)
  assert frame.verifier_calls_per_token.tolist() == [2 / 7, 0]
  assert (frame.drafter_calls_per_token == 1).all()
  assert frame.deferral_rate.tolist() == [2 / 7, 0]
  assert metrics.without_speculation(added) == []


def slower(costs, token, block):
  """Costs of which the verifier's take so many times as long."""
  changes = dict(verifier_token_s=costs.verifier_token_s * token)
  changes |= dict(verify_s={k: s * block for k, s in costs.verify_s.items()})
  return costs.model_copy(update=changes)


def test_of_costs_measured_twice_on_a_processor_the_lower_count():
  assert measured(slower(COSTS, 2, 1), slower(COSTS, 1, 3)).costs == COSTS
  # A sweep may go on on another processor.
  both = (slower(COSTS, 0.5, 0.1), 'first'), (COSTS, 'other')
  make = unit_costs.CostMeasurement
  times = [make(low=low, processor=name) for low, name in both]
  both = unit_costs.CostMeasurements(times=times)
  assert both.costs == COSTS
  assert unit_costs.CostMeasurements.from_json(both.model_dump_json()) == both


@pytest.mark.parametrize(
  'costs',
  [
    '"verifier_token_s": 1, "drafter_token_s": 1',
    '"verifier_token_s": 1, "drafter_token_s": 1, "verify_s": {"a": 1}',
    '"verifier_token_s": 0, "drafter_token_s": 1, "verify_s": {}',
    '"verifier_token_s": "1", "drafter_token_s": 1, "verify_s": {}',
    '"verifier_token_s": 1, "drafter_token_s": 1, "verify_s": {}, "x": 1',
  ],
)
def test_damaged_costs_are_refused(costs):
  times = f'[{{"low": {{{costs}}}}}]'
  damaged = 'not json', '[]', '{}', '{"times": []}', f'{{"times": {times}}}'
  for text in damaged:
    with pytest.raises(ValueError, match=r'^costs: '):
      unit_costs.CostMeasurements.from_json(text)


def test_summary_has_a_row_per_point_in_order_of_appearance():
  nan = make_record('ddb', lenience=math.nan, method='speed')
  lines = [nan, *RECORDS, dataclasses.replace(nan, id='1')]
  frame = metrics.summarize(lines, COSTS)
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
  assert list(frame.columns) == metrics.SUMMARY_COLUMNS


def test_a_failure_is_counted_and_is_no_answer():
  unscored = dict(quality=math.nan, scores={})
  failed = make_record('', id='2', failure='no', ended=False, **unscored)
  with_it = metrics.summarize([*RECORDS, failed], COSTS)
  without = metrics.summarize(RECORDS, COSTS)
  assert (with_it.n[0], with_it.failed[0]) == (2, 1)
  frames = (x.drop(columns='failed') for x in (with_it, without))
  pd.testing.assert_frame_equal(*frames)
  # A quality that nobody knows, as of a task without a metric.
  unknown = make_record(task='spec_bench', **unscored)
  frame = metrics.summarize([unknown], COSTS)
  assert frame[['quality', 'quality_low', 'quality_high']].isna().all(None)
  # Where every example failed, nothing is known of the point.
  row = metrics.summarize([failed], COSTS).iloc[0]
  assert (row.n, row.failed) == (0, 1)
  assert math.isnan(row.quality)
  assert math.isnan(row.relative_latency)


@pytest.mark.parametrize('numbers', [(0, 1, 2, 3), (0,), (0, 1), (2,), (3,)])
def test_quality_of_translations_is_sacrebleus_corpus_score(numbers):
  from sacrebleu.metrics import BLEU

  pairs = [
    ('Der Zug fährt um sieben.', 'Der Zug fährt um sieben Uhr ab.'),
    ('Wir sahen das Meer zum ersten Mal.', 'Wir sahen zum ersten Mal das Meer'),
    ('', 'Er sagte: „Das weiß ich nicht.“'),
    ('Ja.', 'Ja.'),
  ]
  pairs = [pairs[i] for i in numbers]
  want = BLEU().corpus_score([x for x, _ in pairs], [[y for _, y in pairs]])
  scores = [METRICS['bleu'].score(*pair) for pair in pairs]
  lines = [
    make_record(task='wmt14_en_de', id=str(i), scores=x)
    for i, x in enumerate(scores)
  ]
  assert metrics.quality(lines) == pytest.approx(want.score)
  row = metrics.summarize(lines, COSTS).iloc[0]
  assert row.quality == metrics.quality(lines)
  assert row.quality_low <= row.quality <= row.quality_high
  # All of them differ, so that there is an interval; and their mean is another.
  if len(pairs) == 4:
    assert row.quality_low < row.quality < row.quality_high
    mean = sum(x['sentence_bleu'] for x in scores) / 4
    assert abs(row.quality - mean) > 1


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
