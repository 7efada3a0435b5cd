"""Three sentences: how much faster, how much better, better than both models.

They are for a reader without prior knowledge.
"""

from collections.abc import Callable

import pandas as pd

from experiments.analysis import comparisons, mixture
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.mixture import Headline
from experiments.reports import styles

# Returns the name of a point: its method and lenience.
_Namer = Callable[[pd.Series], str]


def summarize(
  frame: pd.DataFrame, curve_styles: styles.CurveStyles, config: AnalysisConfig
) -> list[tuple[str, list[str]]]:
  """Returns a caption and sentences for each run and temperature."""
  output = []
  groups = list(frame.groupby(['temperature', 'run'], sort=False))
  show_gamma = frame.gamma[frame.gamma > 0].nunique() > 1

  def name(row: pd.Series) -> str:
    label = styles.point_label(row.lenience, row.gamma * show_gamma)
    return f'{curve_styles[row.variant].label} at {label}'

  for (temperature, run), part in groups:
    results = mixture.headline(comparisons.at_fastest_gamma(part))
    if results is None:
      continue
    caption = f'Temperature {temperature:g}, {run}' if len(groups) > 1 else ''
    sentences = [
      _fastest(results, config, name),
      _best(results, name),
      _above(results, name),
    ]
    output.append((caption, sentences))
  return output


def _fastest(results: Headline, config: AnalysisConfig, name: _Namer) -> str:
  """Names the fastest point at the verifier's quality, and strict decoding."""
  row = results.fastest
  if row is None:
    sentence = (
      "No point is shown to have the verifier's quality within a margin of"
      f' {config.margin:g} of the best score.'
    )
  else:
    sentence = (
      f"At the verifier's quality, {name(row)} is fastest: {_times(row)} as"
      ' fast as the verifier alone (modelled), with a quality that differs by'
      f' {_signed(row, "over_verifier")}; up to {config.margin:g} may be lost.'
    )
  strict = results.strict
  if strict is None or (row is not None and strict.equals(row)):
    return sentence
  return (
    f'{sentence} Strict speculative decoding, which is lossless, is'
    f' {_times(strict)} as fast.'
  )


def _best(results: Headline, name: _Namer) -> str:
  """Names the point of the highest quality within the verifier's latency."""
  row = results.best
  if row is None:
    return 'No point has the modelled latency of the verifier alone or less.'
  return (
    f"Within the verifier's latency, {name(row)} is best: quality"
    f' {styles.number(row.quality, 3)}, which differs from the verifier by'
    f' {_signed(row, "over_verifier")}, {_times(row)} as fast (modelled).'
  )


def _above(results: Headline, name: _Namer) -> str:
  """Names the point with the largest gain over the better model."""
  row = results.above
  if row is None or pd.isna(row.over_drafter):
    return 'The drafter alone was not run: a gain over both models is unknown.'
  better = min(('over_verifier', 'over_drafter'), key=lambda field: row[field])
  gain = f'{_signed(row, better)} in quality over the better model'
  if row.above > 0 and row.above_low > 0:
    return (
      f'A method is better than both models alone: {name(row)}, {gain}; it was'
      ' chosen on these same examples.'
    )
  return (
    'No method is shown to be better than both models alone: the nearest is'
    f' {name(row)}, {gain}.'
  )


def _times(row: pd.Series) -> str:
  """Returns the speed-up over the verifier alone, with its interval."""
  ends = sorted(1 / row[name] for name in ('latency_low', 'latency_high'))
  low, high = map(styles.number, ends)
  value = styles.number(1 / row.latency)
  return f'{value} times (95 % interval {low} to {high})'


def _signed(row: pd.Series, name: str) -> str:
  """Returns a gain with its sign and its interval."""

  def signed(value: float) -> str:
    text = styles.number(value, 3)
    return f'+{text}' if value > 0 else text

  ends = ' to '.join(signed(row[f'{name}{end}']) for end in ('_low', '_high'))
  return f'{signed(row[name])} ({ends})'
