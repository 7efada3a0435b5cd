"""The facts of a sweep before it starts, from the answers to eight prompts."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence

from experiments import records
from experiments.records import metrics, unit_costs
from experiments.sweeps.curve_plan import Curve


def choose(curves: Sequence[Curve]) -> Curve:
  """Returns the point to try: strict decoding, if there is such a point."""
  drafting = [x for x in curves if x.config.gamma]
  for curve in drafting:
    if (strict := curve.config.method.strict) in curve.leniences:
      return dataclasses.replace(curve, leniences=(strict,))
  first = (drafting or curves)[0]
  return dataclasses.replace(first, leniences=first.leniences[:1])


def facts(
  answers: Sequence[records.Record],
  costs: unit_costs.Costs,
  num_answers: int,
  compile_s: float,
) -> Iterator[str]:
  """Yields what answers to the first prompts tell of a sweep."""
  answers = [x for x in answers if x.failure is None]
  if not answers:
    return
  mean = statistics.mean(x.emitted for x in answers)
  yield f'answers: {mean:.0f} tokens on average, to {len(answers)} prompts.'
  cut = statistics.mean(not x.ended for x in answers)
  if cut > 0.5:
    yield (
      f'answers: {cut:.0%} of them reach the maximum number of tokens; to end'
      ' answers sooner, give stop texts with --config.file.stop_strings, or a'
      ' lower --config.task.max_new_tokens.'
    )
  if gamma := answers[0].gamma:
    examined = sum(x.examined for x in answers)
    share = sum(x.accepted for x in answers) / max(1, examined)
    speed = 1 / metrics.relative_latency(answers, costs)
    pays = 'pays' if speed > 1 else 'does not pay'
    yield (
      f'drafter: its acceptance rate is {share:.2f} in {answers[0].variant} at'
      f' lenience {answers[0].lenience:g}, gamma {gamma}; for one answer at a'
      f' time it {pays} ({speed:.2f} times as fast as the verifier alone,'
      ' modelled).'
    )
  seconds = compile_s + num_answers * statistics.mean(x.wall_s for x in answers)
  yield f'time: {num_answers} answers in about {seconds / 60:.0f} min.'
