"""Sequence-level cascades: the whole answer of one model, or of the other.

The baseline of Narasimhan et al. 2025, arXiv 2405.19261: the drafter answers
alone; if it was not confident of its answer, the verifier answers again from
scratch. Nothing is speculated, so a deferred example costs both answers.

To add one, write a function of the log-probabilities of an answer's tokens and
add it to CONFIDENCES; a sweep accepts its name beside those of `METHODS`,
where it is not, for a method decides about tokens.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from experiments.records import SOURCES, Record, Trace

_DRAFT, _RESIDUAL = SOURCES.index('draft'), SOURCES.index('residual')


def _probability(logprob: float) -> float:
  # Rounding may leave a sure token a little more than sure.
  return float(np.exp(min(logprob, 0.0)))


def sequence_mean(logprobs: Sequence[float]) -> float:
  """Geometric mean of the tokens' probabilities; 1 without tokens."""
  return _probability(np.mean(logprobs)) if len(logprobs) else 1.0


def sequence_least(logprobs: Sequence[float]) -> float:
  """Probability of the least probable token; 1 without tokens."""
  return _probability(np.min(logprobs)) if len(logprobs) else 1.0


# What the drafter's confidence in its answer is; all in [0, 1].
CONFIDENCES: dict[str, Callable[[Sequence[float]], float]] = {
  'sequence_mean': sequence_mean,
  'sequence_least': sequence_least,
}


def cascade(
  drafter: tuple[Record, Trace],
  verifier: tuple[Record, Trace],
  *,
  method: str,
  lenience: float,
) -> tuple[Record, Trace]:
  """What the cascade makes of the answers of the two models alone.

  They must be drawn independently, each from random numbers of its own: an
  answer that is given where the other's draws were unlucky would not follow
  its model's law.

  Args:
    drafter: What `drafter_only` made of the example.
    verifier: What `verifier_only` made of it.
    method: Key of CONFIDENCES.
    lenience: How readily the drafter's answer is kept: where its confidence,
      of log-probabilities at temperature 1, is 1 - lenience or more.

  Returns:
    One of the two answers, with what the cascade costs. The drafter's tokens
    count as drafted and examined, and as accepted or rejected all at once.
    Where either model failed, so does the cascade.
  """
  (drafts, trace), (checks, _) = drafter, verifier
  if drafts.id != checks.id:
    raise ValueError(
      f'sequence: {drafts.id!r} and {checks.id!r} are two examples.'
    )
  told = dict(method=method, lenience=lenience)
  for record, of_it in (drafter, verifier):
    if record.failure is not None:
      return dataclasses.replace(record, **told), of_it
  deferred = CONFIDENCES[method](trace.logprobs) < 1 - lenience
  answer, tokens = verifier if deferred else drafter
  drafted, emitted = drafts.emitted, answer.emitted
  record = dataclasses.replace(
    answer,
    **told,
    drafted=drafted,
    examined=drafted,
    accepted=0 if deferred else drafted,
    deferred=None,
    residual=emitted if deferred else 0,
    bonus=0,
    verifier_calls=checks.verifier_calls if deferred else 0,
    verifier_tokens=checks.verifier_tokens if deferred else 0,
    drafter_calls=drafts.drafter_calls,
    wall_s=drafts.wall_s + (checks.wall_s if deferred else 0.0),
  )
  sources = [_RESIDUAL if deferred else _DRAFT] * emitted
  return record, dataclasses.replace(tokens, sources=sources)
