"""Comparisons of points with the verifier alone, and selections of them.

Functions take frames and return frames. `compare` returns a row per point, with
paired intervals over the examples that both points answered (see `stats`); the
other functions select from its rows.

Latency is per emitted token, relative to the verifier alone: modelled from
counted calls, or on the clock. A speed-up is its reciprocal.
"""

import math
import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.analysis import reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import CURVE, GROUP, Points, is_corpus
from experiments.records import stats
from experiments.tasks import quality_metric

# Speed-ups: modelled, and on the clock.
_SPEEDUPS = 'speedup', 'wall_speedup'
_COMPARED = 'difference', *_SPEEDUPS
# Suffixes of the columns that hold the ends of an interval.
ENDS = ('_low', '_high')


def with_ends(name: str) -> list[str]:
  """Returns the name of a column and those of the ends of its interval."""
  return [name, *(f'{name}{end}' for end in ENDS)]


def matrices(
  points: Points, indices: Sequence[int] | pd.Index | np.ndarray
) -> dict[str, np.ndarray]:
  """Returns the answers of some points as matrices."""
  answers = points.answers[points.answers.point.isin(indices)]
  ids, names = pd.factorize(answers.id)
  columns = pd.Index(indices).get_indexer(answers.point)
  output = {'id': np.asarray(names, dtype=object)}
  for field in answers.columns.difference(['point', 'id']):
    values = np.full((len(names), len(indices)), math.nan)
    values[ids, columns] = answers[field].to_numpy(dtype=np.float64)
    output[field] = values
  # float32 scores of a perfect answer can be above the best score.
  best = points.table.scale[indices].to_numpy()
  output['quality'] = np.clip(output['quality'] / best, 0, 1)
  return output


def references(points: pd.DataFrame) -> np.ndarray:
  """Returns the verifier-alone point that each point is compared with.

  It is that of the same run, else one of the same batch size, else any.
  """
  verifiers = np.flatnonzero(points.method == reference_points.VERIFIER)
  if not len(verifiers):
    return np.full(len(points), -1)
  runs, sizes = points.run.to_numpy(), points.batch_size.to_numpy()
  # [points, verifiers]: 2 for the same run, 1 for the same batch size, else 0.
  same_size = sizes[:, None] == sizes[verifiers]
  closeness = same_size * (1 + (runs[:, None] == runs[verifiers]))
  return verifiers[closeness.argmax(1)]


# --- One row for each point.


def scored(
  rows: np.ndarray,
  score: stats.Score,
  names: Sequence[str],
  config: AnalysisConfig,
  strata: Sequence[int] = (),
) -> dict[str, np.ndarray]:
  """Returns the scores over all examples, with their intervals."""
  with np.errstate(divide='ignore', invalid='ignore'):
    aggregate = score(rows.sum(0))
    ends = stats.bootstrap(
      rows, score, resamples=config.resamples, seed=config.seed, strata=strata
    )
  parts = [np.split(values, len(names)) for values in (aggregate, *ends)]
  return {
    column: values
    for name, triple in zip(names, zip(*parts, strict=True), strict=True)
    for column, values in zip(with_ends(name), triple, strict=True)
  }


def _sums(
  task: str, answers: dict[str, np.ndarray], reference: np.ndarray
) -> tuple[np.ndarray, stats.Score]:
  """Returns the summands of each example, and the scores of their sums."""
  answered = np.isfinite(answers['emitted'])
  both = answered & answered[:, reference]

  def column(name: str, points: np.ndarray | slice = slice(None)) -> np.ndarray:
    return np.where(both, answers[name][:, points], 0.0)

  parts = {
    **{name: column(name) for name in ('emitted', 'latency', 'wall_s')},
    **{
      f'{name} of verifier': column(name, reference)
      for name in ('emitted', 'latency', 'wall_s')
    },
  }
  if is_corpus(task):
    corpus = [name for name in answers if name.startswith('score:')]
    parts |= {name: column(name) for name in corpus}
    parts |= {f'{name} of verifier': column(name, reference) for name in corpus}
  size, order = both.shape[1], list(parts)

  def score(sums: np.ndarray) -> np.ndarray:
    part = {
      name: sums[..., i * size : (i + 1) * size] for i, name in enumerate(order)
    }

    def faster(name: str) -> np.ndarray:
      of_verifier = part[f'{name} of verifier'] / part['emitted of verifier']
      return of_verifier * part['emitted'] / part[name]

    scores = [faster('latency'), faster('wall_s')]
    if is_corpus(task):
      more = _corpus(task, part, '') - _corpus(task, part, ' of verifier')
      scores.append(more)
    return np.concatenate(scores, -1)

  rows = np.concatenate(list(parts.values()), 1)
  return rows, score


def _corpus(task: str, part: dict[str, np.ndarray], suffix: str) -> np.ndarray:
  """Returns the corpus metric of each point."""
  names = [n for n in part if n.startswith('score:') and ' of ' not in n]
  stacked = np.stack([part[f'{name}{suffix}'] for name in names], -1)
  titles = [name.removeprefix('score:') for name in names]

  corpus = quality_metric(task).corpus

  def metric(sums: np.ndarray) -> float:
    return corpus(dict(zip(titles, sums, strict=True)))

  # Most often all points are compared with the same verifier.
  if stacked.ndim > 2 and (stacked == stacked[..., :1, :]).all():
    shared = np.apply_along_axis(metric, -1, stacked[..., :1, :])
    return np.broadcast_to(shared, stacked.shape[:-1])
  return np.apply_along_axis(metric, -1, stacked)


def compare(points: Points, config: AnalysisConfig) -> pd.DataFrame:
  """Compares each point with the verifier alone."""
  columns = [x for name in _COMPARED for x in with_ends(name)]
  unknown = dict.fromkeys(columns, math.nan)
  frame = points.table.assign(**unknown, as_good=False)
  for (task, _), table in points.table.groupby(GROUP, sort=False):
    indices, reference = table.index.to_numpy(), references(table)
    answers = matrices(points, indices)
    if (reference < 0).any() or not len(answers['id']):
      continue
    part = frame.loc[indices]
    scores = _compared(
      task, answers, reference, scale=part.scale.iloc[0], config=config
    )
    frame.loc[indices, list(scores)] = np.column_stack(list(scores.values()))
    good = scores['difference_low'] > -config.margin * part.scale.to_numpy()
    # An answer that the verifier has wrong cannot be lost.
    good &= part.quality.to_numpy()[reference] > 0
    # Law and quality are known.
    good |= part.strict.to_numpy() & np.isfinite(scores['difference'])
    frame.loc[indices, 'as_good'] = good
  return frame


def _compared(
  task: str,
  answers: dict[str, np.ndarray],
  reference: np.ndarray,
  *,
  scale: float,
  config: AnalysisConfig,
) -> dict[str, np.ndarray]:
  """Returns `_COMPARED` with their ends, each of every point, [points]."""
  rows, score = _sums(task, answers, reference)
  if is_corpus(task):
    return scored(rows, score, [*_SPEEDUPS, 'difference'], config)
  scores = scored(rows, score, _SPEEDUPS, config)
  quality, of_verifier = answers['quality'], answers['quality'][:, reference]
  low, high = stats.paired_interval(quality, of_verifier)
  is_same = reference == np.arange(len(reference))
  with warnings.catch_warnings():
    # No example that both answered.
    warnings.simplefilter('ignore', RuntimeWarning)
    difference = np.nanmean(quality - of_verifier, 0)
  ends = difference, np.where(is_same, 0, low), np.where(is_same, 0, high)
  return scores | {
    column: scale * values
    for column, values in zip(with_ends('difference'), ends, strict=True)
  }


def pair(
  points: Points, index: int, reference: int, config: AnalysisConfig
) -> dict[str, float]:
  """Compares two points on the examples that both answered."""
  answers = matrices(points, [index, reference])
  both = np.isfinite(answers['emitted']).all(1)
  answers = {name: values[both] for name, values in answers.items()}
  task, scale = points.table.loc[index, ['task', 'scale']]
  scores = _compared(
    task, answers, np.array([1, 1]), scale=scale, config=config
  )
  names = {'difference': 'gained', 'speedup': 'faster'}
  return {'n': int(both.sum())} | {
    f'{title}{end}': scores[f'{name}{end}'][0]
    for name, title in names.items()
    for end in ('', *ENDS)
  }


# --- Selections of compared points.


def with_blocks(frame: pd.DataFrame) -> pd.DataFrame:
  """Leaves out gamma 0, the verifier alone, of points with a larger gamma."""
  keys = [*CURVE, 'lenience']
  largest = frame.groupby(keys, dropna=False).gamma.transform('max')
  return frame[(frame.gamma > 0) | (largest == 0)]


def front(curve: pd.DataFrame) -> pd.DataFrame:
  """Selects the Pareto front of a curve by quality and modelled latency."""
  finite = curve[np.isfinite(curve.quality) & np.isfinite(curve.latency)]
  # Of equally fast points the best comes first and hides the rest.
  finite = finite.sort_values(
    ['latency', 'quality'], ascending=[True, False], kind='stable'
  )
  best = finite.quality.cummax().shift(fill_value=-math.inf)
  return finite[finite.quality > best]


def at_fastest_gamma(frame: pd.DataFrame) -> pd.DataFrame:
  """Selects each curve and lenience at its fastest gamma.

  The emitted tokens have the same law at any gamma, so that quality differs by
  sampling noise. Gammas at which a point has another law are points of their
  own.
  """
  order = with_blocks(frame).sort_values('latency', kind='stable')
  fastest = order.drop_duplicates([*CURVE, 'lenience', 'law'])
  return frame.loc[fastest.index.sort_values()]


def best_points(frame: pd.DataFrame) -> pd.DataFrame:
  """Selects the best point of each variant, and the two models alone.

  The best point is the fastest with the verifier's quality. If a curve has
  none, it is the fastest of the points with the highest quality. Oracles are
  left out, because no method reaches their latency.
  """
  points = at_fastest_gamma(frame[~frame.oracle])
  is_good = points.as_good & points.latency.notna()
  order = points.assign(
    is_good=is_good, level=points.quality.where(~is_good, 0.0)
  ).sort_values(
    ['is_good', 'level', 'latency'],
    ascending=[False, False, True],
    kind='stable',
  )
  best = order.drop_duplicates(CURVE).index
  # In the order of the curves.
  curves = points.groupby(CURVE, sort=False).ngroup()
  return points.loc[curves[best].sort_values().index]


def unsolved(frame: pd.DataFrame) -> list[str]:
  """Returns a sentence for each task on which the verifier scores 0."""
  rows = frame[
    (frame.method == reference_points.VERIFIER) & (frame.quality == 0)
  ]
  return [
    f'{row.task}: the verifier scores 0.00 on {row.n} examples; look at the'
    ' prompts and the metric.'
    for row in rows.itertuples()
  ]
