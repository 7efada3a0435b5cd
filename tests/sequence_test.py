"""Tests of sequence-level cascades, on answers that are made up."""

import dataclasses
import math

import counts
import pytest
from answers import COSTS, make_alone, make_failure, make_trace

from experiments import records
from experiments.records import metrics
from experiments.sweeps import sequence


def alone(method, tokens):
  """A model's own answer of some tokens."""
  drafts = method == 'drafter_only'
  record = make_alone(
    method,
    len(tokens),
    text=f'{method} says',
    quality=0.0 if drafts else 1.0,
    wall_s=0.1 if drafts else 1.0,
  )
  pieces = [*map(str, tokens)]
  return record, make_trace(
    'b' * len(tokens), tokens=tokens, pieces=pieces, deferred=None
  )


DRAFTER, DRAFTED = alone('drafter_only', [5, 6, 1])
VERIFIER, VERIFIED = alone('verifier_only', [7, 8, 9, 9, 1])
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
    (drafter, drafted), (verifier, VERIFIED), method=method, lenience=lenience
  )


def test_confidences_are_means_and_minima():
  mean, least = sequence.sequence_mean, sequence.sequence_least
  assert mean(LOGPROBS) == pytest.approx((0.9 * 0.4 * 0.6) ** (1 / 3))
  assert least(LOGPROBS) == pytest.approx(0.4)


@pytest.mark.parametrize('confidence', sequence.CONFIDENCES.values())
@pytest.mark.parametrize(
  'logprobs', [[], [0.0], [1e-6], [-math.inf], [-math.inf, 0.0], [-200.0]]
)
def test_confidences_lie_between_0_and_1(confidence, logprobs):
  assert 0 <= confidence(logprobs) <= 1
  assert isinstance(confidence(logprobs), float)


@pytest.mark.parametrize('method', sequence.CONFIDENCES)
@pytest.mark.parametrize('logprobs', [[0.0], [1e-6], [-math.inf], LOGPROBS])
def test_the_extremes_are_the_two_models(method, logprobs):
  strict, trace = cascade(method, -1.0, logprobs)
  assert strict.text == VERIFIER.text
  assert (trace.tokens, trace.pieces) == (VERIFIED.tokens, VERIFIED.pieces)
  assert strict.quality == VERIFIER.quality
  # Both answers are paid for.
  assert strict.drafter_calls == DRAFTER.drafter_calls == 3
  assert strict.verifier_calls == strict.verifier_tokens == 5
  assert strict.wall_s == pytest.approx(1.1)
  seconds = 3 * 0.001 + 5 * 0.010
  assert metrics.relative_latency([strict], COSTS) == pytest.approx(
    seconds / 5 / 0.010
  )

  loose, trace = cascade(method, 1.0, logprobs)
  assert loose.text == DRAFTER.text
  assert (trace.tokens, trace.pieces) == (DRAFTED.tokens, DRAFTED.pieces)
  assert loose.quality == DRAFTER.quality
  assert loose.drafter_calls == 3
  assert loose.verifier_calls == loose.verifier_tokens == 0
  assert loose.wall_s == pytest.approx(0.1)
  assert metrics.relative_latency([loose], COSTS) == metrics.relative_latency(
    [DRAFTER], COSTS
  )


def test_any_negative_lenience_is_strict():
  assert sequence.defers('sequence_mean', -1e-9, [0.0])
  assert not sequence.defers('sequence_mean', 0.0, [0.0])


def test_it_defers_below_one_minus_lenience():
  # Confidences 0.6 and 0.4.
  assert not cascade('sequence_mean', 0.45)[0].verifier_calls
  assert cascade('sequence_mean', 0.35)[0].verifier_calls
  assert not cascade('sequence_least', 0.65)[0].verifier_calls
  assert cascade('sequence_least', 0.55)[0].verifier_calls


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
  with pytest.raises(ValueError, match='two examples'):
    cascade(verifier=dataclasses.replace(VERIFIER, id='1'))


@pytest.mark.parametrize('which', ['drafter', 'verifier'])
def test_where_a_model_failed_so_does_the_cascade(which):
  model = {'drafter': DRAFTER, 'verifier': VERIFIER}[which]
  failed, _ = make_failure(model, 'too long')
  record, _ = cascade(lenience=0.5, **{which: failed})
  assert (record.failure, record.method) == ('too long', 'sequence_mean')
  assert record.lenience == 0.5
