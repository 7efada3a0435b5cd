"""The first screen: one figure of everything, and what a sweep comes to.

Three sentences answer what somebody wants to know who has never heard of
cascades: how much faster, how much better, and whether better than both.
"""

import dataclasses
from collections.abc import Callable, Mapping

import pandas as pd

from experiments.analysis import headline, mixture
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.headline import Headline
from experiments.reports import figures, styles
from experiments.reports.drawings import Drawing

# What people call a point.
_Who = Callable[[pd.Series], str]


@dataclasses.dataclass(frozen=True)
class FirstScreen:
  """What is said first of the points of a run and temperature.

  Attributes:
    drawing: All curves and both models alone, in one frame.
    answers: Sentences.
  """

  drawing: Drawing
  answers: tuple[str, ...]


def first_screens(
  frame: pd.DataFrame, looks: Mapping[str, styles.Style], config: AnalysisConfig
) -> list[FirstScreen]:
  """What is said first, of each run and temperature.

  Args:
    frame: Points over all tasks, as `mixture.mix` makes them.
    looks: Styles by variant.
    config: Says by how much a quality may be less and still be the verifier's.
  """
  made = []
  groups = list(frame.groupby(['temperature', 'run'], sort=False))
  gammas = frame.gamma[frame.gamma > 0].nunique() > 1
  for i, ((temperature, run), part) in enumerate(groups):
    part = mixture.at_fastest_gamma(part)
    told = headline.summarize(part, config)
    if told is None:
      continue
    shown = part.gamma if gammas else 0 * part.gamma
    part = part.assign(place=list(map(styles.place, part.lenience, shown)))
    drawing = figures.curves(
      part,
      looks,
      x='latency',
      y='quality',
      name=f'first-{i}' if len(groups) > 1 else 'first',
      size=(8.4, 5.0),
      whole=True,
    )
    caption = [styles.words(part.task.iloc[0])]
    caption += [f'temperature {temperature:g}', run] if len(groups) > 1 else []
    caption = ', '.join(filter(None, caption))
    told_by = _answers(told, looks, config, gammas)
    made.append(
      FirstScreen(dataclasses.replace(drawing, caption=caption), told_by)
    )
  return made


def _answers(
  told: Headline,
  looks: Mapping[str, styles.Style],
  config: AnalysisConfig,
  gammas: bool,
) -> tuple[str, ...]:
  """The sentences.

  Args:
    told: The points that they are of.
    looks: Styles by variant.
    config: Says by how much a quality may be less and still be the verifier's.
    gammas: Whether points differ in gamma, so that it is named.
  """

  def who(row: pd.Series) -> str:
    place = styles.place(row.lenience, row.gamma * gammas)
    return f'{looks[row.variant].label} at {place}'

  return (
    _fastest(told, config, who),
    _best(told, who),
    _above(told, who),
  )


def _fastest(told: Headline, config: AnalysisConfig, who: _Who) -> str:
  row = told.fastest
  if row is None:
    said = (
      'No point is shown to keep the quality of the verifier within'
      f' {config.margin:g}.'
    )
  else:
    said = (
      f"At the verifier's quality, {who(row)} is fastest: {_times(row)} as fast"
      ' as the verifier alone, with a quality that differs by'
      f' {_signed(row, "over_verifier")}.'
    )
  strict = told.strict
  if strict is None or (row is not None and strict.equals(row)):
    return said
  return (
    f'{said} Strict speculative decoding, which changes no answer, is'
    f' {_times(strict)} as fast.'
  )


def _best(told: Headline, who: _Who) -> str:
  row = told.best
  if row is None:
    return 'Nothing takes less time than the verifier alone.'
  return (
    f"Within the verifier's time, {who(row)} is best: quality"
    f' {styles.number(row.quality, 3)}, {_signed(row, "over_verifier")} against'
    f' the verifier, {_times(row)} as fast.'
  )


def _above(told: Headline, who: _Who) -> str:
  row = told.above
  if row is None or pd.isna(row.over_drafter):
    return 'The drafter did not answer alone: there are not two models to beat.'
  nearer = min(('over_verifier', 'over_drafter'), key=lambda name: row[name])
  by = f'{_signed(row, nearer)} over the better of them'
  if row.above > 0 and row.above_low > 0:
    return f'A cascade is better than both models: {who(row)}, {by}.'
  return (
    'No cascade is better than both models beyond chance: the nearest to it is'
    f' {who(row)}, {by}.'
  )


def _times(row: pd.Series) -> str:
  """How many times as fast as the verifier alone, with its interval."""
  ends = sorted(1 / row[name] for name in ('latency_low', 'latency_high'))
  low, high = map(styles.number, ends)
  return f'{styles.number(1 / row.latency)} times ({low} to {high})'


def _signed(row: pd.Series, name: str) -> str:
  """A gain with its sign and interval."""

  def one(value: float) -> str:
    text = styles.number(value, 3)
    return f'+{text}' if value > 0 else text

  ends = ' to '.join(one(row[f'{name}{end}']) for end in ('_low', '_high'))
  return f'{one(row[name])} ({ends})'
