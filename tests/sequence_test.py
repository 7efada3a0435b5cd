"""Tests of sequence-level cascades, on answers that are made up."""

import dataclasses
import math

import counts
import pytest
from answers import make_alone, make_failure, make_trace

from experiments import records
from experiments.sweeps import sequence


def baseline(method, tokens, **fields):
  """A model's own answer of some tokens."""
  record = make_alone(method, len(tokens), text=f'{method} says', **fields)
  pieces = [*map(str, tokens)]
  return record, make_trace(
    'b' * len(tokens), tokens=tokens, token_strings=pieces, deferred=None
  )


DRAFTER, DRAFTED = baseline('drafter_only', [5, 6, 1], quality=0.0, wall_s=0.1)
TOKENS = [7, 8, 9, 9, 1]
VERIFIER, VERIFIED = baseline('verifier_only', TOKENS, quality=1.0, wall_s=1.0)
# Probabilities 0.9, 0.4 and 0.6: geometric mean 0.6, least 0.4.
LOGPROBS = [math.log(p) for p in (0.9, 0.4, 0.6)]


def cascade(lenience=0.5, logprobs=LOGPROBS, method='sequence_mean', **models):
  models = dict(drafter=DRAFTER, verifier=VERIFIER) | models
  drafted = dataclasses.replace(DRAFTED, logprobs=logprobs)
  outcomes = (models['drafter'], drafted), (models['verifier'], VERIFIED)
  return sequence.cascade(
    *(records.Outcome(*x) for x in outcomes), method=method, lenience=lenience
  )


def test_confidences_are_between_0_and_1():
  for confidence in sequence.CONFIDENCES.values():
    for logprobs in ([], [0], [1e-6], [-math.inf], [-math.inf, 0], [-200]):
      assert 0 <= confidence(logprobs) <= 1
      assert isinstance(confidence(logprobs), float)


@pytest.mark.parametrize('method', sequence.CONFIDENCES)
@pytest.mark.parametrize('logprobs', [[0.0], [1e-6], [-math.inf], LOGPROBS])
def test_the_extremes_are_the_two_models(method, logprobs):
  for lenience, model, trace_of_model, wall_s, source in (
    (-1.0, VERIFIER, VERIFIED, 1.1, 'residual'),
    (1.0, DRAFTER, DRAFTED, 0.1, 'draft'),
  ):
    record, trace = cascade(lenience, logprobs, method)
    counts.check(record)
    assert (record.text, record.quality) == (model.text, model.quality)
    assert trace.tokens == trace_of_model.tokens
    assert trace.token_strings == trace_of_model.token_strings
    # Both answers are paid for, where there are two.
    assert record.drafter_calls == DRAFTER.drafter_calls == 3
    assert record.verifier_calls == record.verifier_tokens
    assert record.verifier_calls == model.verifier_calls
    assert record.wall_s == pytest.approx(wall_s)
    # Counts say who wrote.
    assert record.accepted + record.residual == len(trace.tokens)
    assert record.drafted == record.examined == 3
    assert (record.method, record.lenience) == (method, lenience)
    assert (record.gamma, record.deferred) == (0, None)
    assert {records.SOURCES[x] for x in trace.sources} == {source}


@pytest.mark.parametrize(
  ('method', 'logprobs', 'leniences'),
  [
    ('sequence_mean', [0.0], (0.0, -1e-9)),
    # Confidences .6, the geometric mean, and .4.
    ('sequence_mean', LOGPROBS, (0.45, 0.35)),
    ('sequence_least', LOGPROBS, (0.65, 0.55)),
  ],
)
def test_it_defers_below_one_minus_lenience(method, logprobs, leniences):
  kept, deferred = (cascade(x, logprobs, method)[0] for x in leniences)
  assert not kept.verifier_calls
  assert deferred.verifier_calls


@pytest.mark.parametrize('which', ['drafter', 'verifier'])
def test_where_a_model_failed_so_does_the_cascade(which):
  failed, _ = make_failure(dict(drafter=DRAFTER, verifier=VERIFIER)[which], 'a')
  record, _ = cascade(lenience=0.5, **{which: failed})
  assert (record.failure, record.method) == ('a', 'sequence_mean')
  assert record.lenience == 0.5
