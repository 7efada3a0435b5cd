"""Tests of sequence-level cascades, on answers that are made up."""

import dataclasses
import math

import counts
import pytest
from answers import COSTS, make_alone, make_failure, make_trace

from experiments import records
from experiments.records import metrics
from experiments.sweeps import sequence


def baseline(method, tokens, **fields):
  """A model's own answer of some tokens."""
  record = make_alone(method, len(tokens), text=f'{method} says', **fields)
  pieces = [*map(str, tokens)]
  return record, make_trace(
    'b' * len(tokens), tokens=tokens, token_strings=pieces, deferred=None
  )


DRAFTER, DRAFTED = baseline('drafter_only', [5, 6, 1], quality=0.0, wall_s=0.1)
VERIFIER, VERIFIED = baseline(
  'verifier_only', [7, 8, 9, 9, 1], quality=1.0, wall_s=1.0
)
# Probabilities 0.9, 0.4 and 0.6: geometric mean 0.6, least 0.4.
LOGPROBS = [math.log(p) for p in (0.9, 0.4, 0.6)]


def cascade(
  method='sequence_mean',
  lenience=0.5,
  logprobs=LOGPROBS,
  drafter=DRAFTER,
  verifier=VERIFIER,
):
  drafted = dataclasses.replace(DRAFTED, logprobs=logprobs)
  return sequence.cascade(
    records.Outcome(drafter, drafted),
    records.Outcome(verifier, VERIFIED),
    method=method,
    lenience=lenience,
  )


def test_confidences_are_means_and_minima_between_0_and_1():
  mean, least = sequence.sequence_mean, sequence.sequence_least
  assert mean(LOGPROBS) == pytest.approx((0.9 * 0.4 * 0.6) ** (1 / 3))
  assert least(LOGPROBS) == pytest.approx(0.4)
  for confidence in sequence.CONFIDENCES.values():
    for logprobs in ([], [0], [1e-6], [-math.inf], [-math.inf, 0], [-200]):
      assert 0 <= confidence(logprobs) <= 1
      assert isinstance(confidence(logprobs), float)


@pytest.mark.parametrize('method', sequence.CONFIDENCES)
@pytest.mark.parametrize('logprobs', [[0.0], [1e-6], [-math.inf], LOGPROBS])
def test_the_extremes_are_the_two_models(method, logprobs):
  for lenience, baseline, trace_of_model, wall_s in (
    (-1.0, VERIFIER, VERIFIED, 1.1),
    (1.0, DRAFTER, DRAFTED, 0.1),
  ):
    record, trace = cascade(method, lenience, logprobs)
    assert (record.text, record.quality) == (baseline.text, baseline.quality)
    assert trace.tokens == trace_of_model.tokens
    assert trace.token_strings == trace_of_model.token_strings
    # Both answers are paid for, where there are two.
    assert record.drafter_calls == DRAFTER.drafter_calls == 3
    assert record.verifier_calls == record.verifier_tokens
    assert record.verifier_calls == baseline.verifier_calls
    assert record.wall_s == pytest.approx(wall_s)
    seconds = 3 * 0.001 + record.verifier_calls * 0.010
    assert metrics.relative_latency([record], COSTS) == pytest.approx(
      seconds / record.emitted / 0.010
    )


@pytest.mark.parametrize(
  ('method', 'lenience', 'logprobs', 'deferred'),
  [
    ('sequence_mean', -1e-9, [0.0], True),
    ('sequence_mean', 0.0, [0.0], False),
    # Confidences .6 and .4.
    ('sequence_mean', 0.45, LOGPROBS, False),
    ('sequence_mean', 0.35, LOGPROBS, True),
    ('sequence_least', 0.65, LOGPROBS, False),
    ('sequence_least', 0.55, LOGPROBS, True),
  ],
)
def test_it_defers_below_one_minus_lenience(
  method, lenience, logprobs, deferred
):
  assert bool(cascade(method, lenience, logprobs)[0].verifier_calls) == deferred


@pytest.mark.parametrize('lenience', [-1.0, 1.0])
def test_counts_add_up_and_say_who_wrote(lenience):
  record, trace = cascade(lenience=lenience)
  counts.check(record)
  assert record.accepted + record.residual == len(trace.tokens)
  assert record.drafted == record.examined == 3
  assert (record.method, record.lenience) == ('sequence_mean', lenience)
  assert (record.gamma, record.deferred) == (0, None)
  (source,) = set(trace.sources)
  assert records.SOURCES[source] == ('residual' if lenience < 0 else 'draft')
  assert metrics.rejection_rate([record]) == (1 if lenience < 0 else 0)


def test_answers_of_two_examples_are_refused():
  with pytest.raises(ValueError, match='must be the same example'):
    cascade(verifier=dataclasses.replace(VERIFIER, id='1'))


@pytest.mark.parametrize('which', ['drafter', 'verifier'])
def test_where_a_model_failed_so_does_the_cascade(which):
  failed, _ = make_failure(dict(drafter=DRAFTER, verifier=VERIFIER)[which], 'a')
  record, _ = cascade(lenience=0.5, **{which: failed})
  assert (record.failure, record.method) == ('a', 'sequence_mean')
  assert record.lenience == 0.5
