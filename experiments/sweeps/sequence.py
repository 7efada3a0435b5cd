"""Sequence-level cascades: the answer of one model or of the other.

The baseline of Narasimhan et al. 2025, arXiv 2405.19261: the drafter answers
alone; if its confidence in the answer is low, the verifier answers again from
scratch. Nothing is speculated, so a deferred example costs both answers.

A cascade is added as a function of the log-probabilities of an answer's tokens,
in CONFIDENCES; a sweep accepts its name as a method. It is not in `METHODS`,
since a method decides about tokens.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from experiments.records import SOURCES, Outcome

_DRAFT, _RESIDUAL = SOURCES.index('draft'), SOURCES.index('residual')


def _probability(logprob: float) -> float:
  """Returns a probability, at most 1, from a rounded log-probability."""
  return float(np.exp(min(logprob, 0.0)))


def sequence_mean(logprobs: Sequence[float]) -> float:
  """Returns the geometric mean of the tokens' probabilities; 1 for none."""
  return _probability(np.mean(logprobs)) if len(logprobs) else 1.0


def sequence_least(logprobs: Sequence[float]) -> float:
  """Returns the probability of the least probable token; 1 for none."""
  return _probability(np.min(logprobs)) if len(logprobs) else 1.0


# Functions that return the drafter's confidence in its answer, in [0, 1].
CONFIDENCES: dict[str, Callable[[Sequence[float]], float]] = {
  'sequence_mean': sequence_mean,
  'sequence_least': sequence_least,
}


def cascade(
  drafter: Outcome, verifier: Outcome, *, method: str, lenience: float
) -> Outcome:
  """Returns the answer of a cascade, from the answers of the models alone.

  The two answers must be drawn independently, each with random numbers of its
  own. Otherwise the verifier would answer where its draws are as improbable as
  the drafter's, and the output would not follow the verifier's law.
  """
  drafted, verified = drafter.record, verifier.record
  fields = dict(method=method, lenience=lenience)
  for outcome in (drafter, verifier):
    if outcome.record.failure is not None:
      failed = dataclasses.replace(outcome.record, **fields)
      return Outcome(failed, outcome.trace)
  deferred = CONFIDENCES[method](drafter.trace.logprobs) < 1 - lenience
  answer = verifier if deferred else drafter
  emitted = answer.record.emitted
  record = dataclasses.replace(
    answer.record,
    **fields,
    drafted=drafted.emitted,
    examined=drafted.emitted,
    accepted=0 if deferred else drafted.emitted,
    deferred=None,
    residual=emitted if deferred else 0,
    bonus=0,
    verifier_calls=verified.verifier_calls if deferred else 0,
    verifier_tokens=verified.verifier_tokens if deferred else 0,
    drafter_calls=drafted.drafter_calls,
    wall_s=drafted.wall_s + (verified.wall_s if deferred else 0.0),
  )
  sources = [_RESIDUAL if deferred else _DRAFT] * emitted
  return Outcome(record, dataclasses.replace(answer.trace, sources=sources))
