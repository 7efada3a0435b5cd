"""Outcomes: the record and trace of each answer, with its scores."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cascades.sampler.sampler import SampleOutput
from cascades.verification_config import RESIDUAL
from experiments import records
from experiments.sweeps import curve_plan, plan, sequence, workdirs
from experiments.tasks import Example, Task, answer_metrics


def score(
  example: Example,
  answer: SampleOutput,
  *,
  task: Task,
  curve: curve_plan.Curve,
  fields: Mapping[str, Any],
  wall_s: float,
) -> records.Outcome:
  """Scores an answer, and returns its record and trace."""
  try:
    values = task.score_example(answer.text, example)
    scores = {name: float(value) for name, value in values.items()}
    quality = scores[task.quality_score] if task.quality_score else math.nan
    if task.quality_score and not math.isfinite(quality):
      raise ValueError(f'{task.quality_score} is {quality}')
  except KeyboardInterrupt:
    raise
  # A metric is code of others, which may even try to end the process.
  except BaseException as error:
    reason = f'score: {answer_metrics.describe_error(error)}'
    return records.failed_example(reason, **fields)
  counts = dict(answer.counts)
  if curve.baseline_model == 'drafter':
    counts |= {
      'verifier_calls': 0,
      'verifier_tokens': 0,
      'drafter_calls': counts['verifier_calls'],
    }
  deferred = answer.deferred
  if curve.config.method.rule is None:
    counts['deferred'] = deferred = None
  record = records.Record(
    **fields,
    failure=None,
    text=answer.text,
    quality=quality,
    scores=scores,
    emitted=len(answer.tokens),
    ended=answer.ended,
    wall_s=wall_s,
    **counts,
    **_deferrals(answer, curve),
  )
  trace = records.Trace(
    id=example.id,
    tokens=answer.tokens,
    token_strings=answer.token_strings,
    sources=answer.sources,
    deferred=None if deferred is None else list(map(int, deferred)),
    # float32 has about 6 significant digits.
    logprobs=[float(f'{x:.6g}') for x in answer.logprobs],
    rejected=[
      draft if source == RESIDUAL else None
      for draft, source in zip(answer.drafts, answer.sources, strict=True)
    ],
  )
  return records.Outcome(record, trace)


def _deferrals(
  answer: SampleOutput, curve: curve_plan.Curve
) -> dict[str, int | None]:
  """Counts what a cascade without speculation would defer."""
  config = curve.config
  is_whole = config.method.name in ('chow', 'diff') and config.gamma
  kind = config.verification, config.bonus, config.drafts
  if not is_whole or kind != ('token', 'target', 1):
    return dict(deferrals=None, last_deferral=None)
  indices = [i for i, x in enumerate(answer.deferred or (), 1) if x]
  return dict(deferrals=len(indices), last_deferral=max(indices, default=0))


def of_answers(
  point: plan.Point, points: Sequence[plan.Point], files: workdirs.Workdir
) -> list[records.Outcome]:
  """Decodes a cascade of whole answers from those of the models alone."""
  # The models alone may have answered more examples.
  n = point.last - point.first
  sources = {
    source.curve.baseline_model: files.read_point(source)[:n]
    for source in points
    if source.curve.baseline_model
    and (source.task, source.first) == (point.task, point.first)
  }
  pairs = list(zip(sources['drafter'], sources['verifier'], strict=True))
  return [
    sequence.cascade(*pair, method=point.curve.confidence, lenience=lenience)
    for lenience in point.curve.leniences
    for pair in pairs
  ]
