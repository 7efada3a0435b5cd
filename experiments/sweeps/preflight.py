"""The facts of a sweep before it starts, from eight prompts and a few loops."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cascades import drafters
from cascades.config import DecodingConfig
from cascades.models import checkpoints
from experiments import measuring
from experiments.sweeps import costs
from experiments.sweeps.curve_plan import Curve


class Trial(NamedTuple):
  """Totals of eight prompts, decoded at a point of a curve."""

  prompts: int
  emitted: int
  cut: int
  counts: Mapping[str, int]

  @property
  def tokens_per_block(self) -> float:
    """Tokens for each call of the verifier."""
    return self.emitted / max(1, self.counts['verifier_calls'])


def choose(curves: Sequence[Curve]) -> tuple[Curve, float]:
  """Returns the curve and lenience to try: strict decoding, if there is one."""
  drafting = [x for x in curves if x.config.gamma]
  for curve in drafting:
    if curve.config.method.strict in curve.leniences:
      return curve, curve.config.method.strict
  curve = (drafting or curves)[0]
  return curve, (*curve.leniences, 0.0)[0]


def describe(trial: Trial, curve: Curve, lenience: float) -> Iterator[str]:
  """Yields the facts of a trial."""
  yield (
    f'answers: {trial.emitted / trial.prompts:.0f} tokens on average, to'
    f' {trial.prompts} prompts.'
  )
  if trial.cut > 0.5 * trial.prompts:
    yield (
      f'answers: {trial.cut / trial.prompts:.0%} of them reach the maximum'
      ' number of tokens; to end answers sooner, give stop texts with'
      ' --config.file.stop_strings, or a lower --config.task.max_new_tokens.'
    )
  if curve.config.gamma:
    point = f'{curve.points_name} at lenience {lenience:g}'
    share = trial.counts['accepted'] / max(1, trial.counts['examined'])
    yield f'drafter: its acceptance rate is {share:.2f} in {point}.'


def payment(rows: int, ratio: float, speed: float) -> str:
  """Returns whether the drafter pays for a number of rows at a time."""
  return (
    f'{"one answer" if rows == 1 else f"{rows} answers"} at a time: a block'
    f' takes {ratio:.2f} times as long as a token of the verifier alone, so the'
    f' drafter {"pays" if speed > 1 else "does not pay"} ({speed:.2f} times as'
    ' fast).'
  )


def block_times(
  verifier: checkpoints.Checkpoint,
  bound_drafter: drafters.BoundDrafter,
  config: DecodingConfig,
  widths: Iterable[int],
  context: int,
) -> dict[tuple[int, int], float]:
  """Measures the seconds of a block, by its gamma (0 is a token) and rows."""
  no_drafter = drafters.BoundDrafter(drafters.NoDrafter(), ())
  loops = {}
  for gamma, rows in ((x, rows) for x in {0, config.gamma} for rows in widths):
    loops[gamma, rows], _ = costs.strict_loop(
      verifier,
      bound_drafter if gamma else no_drafter,
      gamma=gamma,
      drafts=config.drafts if gamma else 1,
      tree_size=config.tree_size if gamma else None,
      context=max(2 * (gamma + 1), context),
      rows=rows,
    )
  times = measuring.time_in_turns(loops, repeats=3, seconds=1.0)
  return {key: statistics.median(x) for key, x in times.items()}
