"""Points against the verifier alone, and what follows from that.

Frames in, frames out. `compare` has a row for each point, with paired bootstrap
intervals over the examples that both answered; Pareto fronts and the two sides
of the paper's table are read off that frame.

Latency is per emitted token, the verifier alone being 1: modelled from counted
calls, or on the clock. A speed-up is one by the other.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from experiments.analysis import reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import CURVE, GROUP, Points, is_corpus
from experiments.records import stats
from experiments.tasks import TASKS

# Speed-ups: modelled, and on the clock.
_SPEEDUPS = 'speedup', 'wall_speedup'
# What is put behind a column's name for the ends of its interval.
ENDS = ('_low', '_high')


def with_ends(name: str) -> list[str]:
  """A column, and those of its interval."""
  return [name, *(f'{name}{end}' for end in ENDS)]


def matrices(found: Points, places: Sequence[int]) -> dict[str, np.ndarray]:
  """Columns of the answers of some points, nan where there is no answer.

  Args:
    found: Points and answers.
    places: Rows of `found.points`, all of one task.

  Returns:
    By column of the answers a matrix, [examples, points]; `id` has the names
    of the examples, [examples].
  """
  answers = found.answers[found.answers.point.isin(places)]
  ids, names = pd.factorize(answers.id)
  columns = pd.Index(places).get_indexer(answers.point)
  made = {'id': np.asarray(names, dtype=object)}
  for field in answers.columns.difference(['point', 'id']):
    values = np.full((len(names), len(places)), math.nan)
    values[ids, columns] = answers[field].to_numpy(dtype=np.float64)
    made[field] = values
  return made


def scale(task: str, quality: np.ndarray) -> float:
  """What the best quality of a task is: tasks score in [0, 1] or [0, 100].

  Args:
    task: What it is called in the points.
    quality: The quality of its answers, of any shape; nan where it is not
      known.
  """
  if is_corpus(task):
    return 100.0
  return 100.0 if np.nanmax(quality, initial=0.0) > 1 else 1.0


def references(points: pd.DataFrame) -> np.ndarray:
  """For each point, the verifier alone that it is compared with.

  The one of its own run; else another's of its batch size; else any.

  Args:
    points: Rows of `Points.points`, all of one task and temperature.

  Returns:
    Places in `points`, -1 where there is none, [points].
  """
  alone = np.flatnonzero(points.method == reference_points.VERIFIER)
  if not len(alone):
    return np.full(len(points), -1)
  runs, sizes = points.run.to_numpy(), points.batch_size.to_numpy()
  # Points by verifiers: how near they are, of which the first nearest counts.
  alike = sizes[:, None] == sizes[alone]
  return alone[(alike * (1 + (runs[:, None] == runs[alone]))).argmax(1)]


# --- One row for each point.


def scored(
  rows: np.ndarray,
  score: stats.Score,
  names: Sequence[str],
  config: AnalysisConfig,
  strata: Sequence[int] = (),
) -> dict[str, np.ndarray]:
  """Scores of all examples with their intervals, by column.

  Args:
    rows: What each example adds to the sums, as in `stats.bootstrap`.
    score: Of the sums; its scores are those of `names`, each of all points.
    names: What the scores are called.
    config: How intervals are drawn.
    strata: As in `stats.bootstrap`.
  """
  with np.errstate(divide='ignore', invalid='ignore'):
    whole = score(rows.sum(0))
    ends = stats.bootstrap(
      rows, score, resamples=config.resamples, seed=config.seed, strata=strata
    )
  parts = [np.split(values, len(names)) for values in (whole, *ends)]
  return {
    column: values
    for name, of_name in zip(names, zip(*parts, strict=True), strict=True)
    for column, values in zip(with_ends(name), of_name, strict=True)
  }


def _sums(
  task: str, of: dict[str, np.ndarray], reference: np.ndarray
) -> tuple[np.ndarray, stats.Score]:
  """What each example adds, and the scores that its sums make.

  Args:
    task: What it is called in the points.
    of: Columns of the answers, as `matrices` makes them, [examples, points].
    reference: The place of the verifier alone among them that each point is
      compared with, [points].

  Returns:
    Rows, [examples, sums], and score for `stats.bootstrap`: difference (of
    quality) and `_SPEEDUPS`, each of every point.
  """
  own = np.isfinite(of['emitted'])
  both = own & own[:, reference]

  def column(name: str, places: np.ndarray | slice = slice(None)):
    return np.where(both, of[name][:, places], 0.0)

  parts = {
    'both': both.astype(float),
    **{name: column(name) for name in ('emitted', 'latency', 'wall_s')},
    **{
      f'{name} of verifier': column(name, reference)
      for name in ('emitted', 'latency', 'wall_s')
    },
  }
  if is_corpus(task):
    corpus = [name for name in of if name.startswith('score:')]
    parts |= {name: column(name) for name in corpus}
    parts |= {f'{name} of verifier': column(name, reference) for name in corpus}
  else:
    parts['more'] = column('quality') - column('quality', reference)
  size, order = both.shape[1], list(parts)

  def score(sums: np.ndarray) -> np.ndarray:
    part = {
      name: sums[..., i * size : (i + 1) * size] for i, name in enumerate(order)
    }
    if is_corpus(task):
      more = _corpus(task, part, '') - _corpus(task, part, ' of verifier')
    else:
      more = part['more'] / part['both']

    def faster(name: str) -> np.ndarray:
      of_verifier = part[f'{name} of verifier'] / part['emitted of verifier']
      return of_verifier * part['emitted'] / part[name]

    return np.concatenate([more, faster('latency'), faster('wall_s')], -1)

  rows = np.concatenate(list(parts.values()), 1)
  return rows, score


def _corpus(task: str, part: dict[str, np.ndarray], whose: str) -> np.ndarray:
  """Quality of all answers together, for each point.

  Args:
    task: What it is called in the points.
    part: Sums over examples by name, [..., points].
    whose: What stands behind the names of the sums that are meant: '' for
      each point's own, ' of verifier' for those that it is compared with.
  """
  known = [n for n in part if n.startswith('score:') and ' of ' not in n]
  stacked = np.stack([part[f'{name}{whose}'] for name in known], -1)
  titles = [name.removeprefix('score:') for name in known]

  def one(sums: np.ndarray) -> float:
    return TASKS[task].corpus(dict(zip(titles, sums, strict=True)))

  # Mostly all points are compared with the same answers of one verifier.
  if stacked.ndim > 2 and (stacked == stacked[..., :1, :]).all():
    alike = np.apply_along_axis(one, -1, stacked[..., :1, :])
    return np.broadcast_to(alike, stacked.shape[:-1])
  return np.apply_along_axis(one, -1, stacked)


def _groups(points: pd.DataFrame) -> Iterator[tuple[tuple, np.ndarray]]:
  """Task and temperature, and the rows that have them."""
  for key, part in points.groupby(GROUP, sort=False):
    yield key, part.index.to_numpy()


def rates(found: Points) -> pd.DataFrame:
  """`points` with what all of their answers say, without intervals.

  Returns:
    Columns beside those of the points: quality, scale, latency,
    mean_output_tokens, exact (whether each answer is right or wrong).
  """
  parts = []
  for (task, _), places in _groups(found.points):
    of = matrices(found, places)
    points = found.points.loc[places]
    n = np.isfinite(of['emitted']).sum(0)
    with np.errstate(divide='ignore', invalid='ignore'):
      total = {k: np.nansum(v, 0) for k, v in of.items() if k != 'id'}
      if is_corpus(task):
        quality = _corpus(task, total, '')
        quality = np.where(n > 0, quality, math.nan)
      else:
        # One nan is no quality of 0.
        known = np.isfinite(of['quality']).sum(0) == n
        quality = np.where(known, total['quality'] / n, math.nan)
      values = of['quality']
      right_or_wrong = np.isin(values, (0, 1)) | np.isnan(values)
      exact = right_or_wrong.all(0) & np.isfinite(values).any(0)
      parts.append(
        points.assign(
          quality=quality,
          scale=scale(task, values),
          latency=total['latency'] / total['emitted'],
          mean_output_tokens=total['emitted'] / n,
          exact=exact & (not is_corpus(task)),
        )
      )
  return pd.concat(parts).sort_index()


def compare(found: Points, config: AnalysisConfig) -> pd.DataFrame:
  """Each point against the verifier alone.

  Args:
    found: Points and answers.
    config: How intervals are drawn, and the margin.

  Returns:
    Beside the columns of `rates`, each with its `_low` and `_high`: difference
    (of quality), speedup, wall_speedup; paired, over the examples that both
    answered, nan where there is no verifier alone. Then `as_good`, whether the
    difference is no less than the margin allows.
  """
  frame = rates(found)
  names = ['difference', *_SPEEDUPS]
  columns = [column for name in names for column in with_ends(name)]
  frame = frame.assign(**dict.fromkeys(columns, math.nan))
  for (task, _), places in _groups(found.points):
    points = found.points.loc[places]
    reference = references(points)
    of = matrices(found, places)
    if (reference < 0).any() or not len(of['id']):
      continue
    told = scored(*_sums(task, of, reference), names, config)
    frame.loc[places, list(told)] = np.column_stack(list(told.values()))
  good = stats.not_inferior(
    frame.difference_low.to_numpy(), config.margin * frame.scale.to_numpy()
  )
  return frame.assign(as_good=good)


def pair(
  found: Points, one: int, other: int, config: AnalysisConfig
) -> dict[str, float]:
  """A point against another, on the examples that both answered.

  Args:
    found: Points and answers.
    one: A row of the points.
    other: Another one of its task, whose quality is a mean over answers.
    config: How intervals are drawn.

  Returns:
    n (examples), gained (quality of the one less that of the other) and faster
    (its speed by the other's: modelled latency per token), with their paired
    intervals, `_low` and `_high`.
  """
  of = matrices(found, [one, other])
  both = np.isfinite(of['emitted']).all(1)
  of = {name: values[both] for name, values in of.items()}
  rows, score = _sums(found.points.task[one], of, np.array([1, 1]))
  told = scored(rows, score, ('gained', 'faster', 'wall_faster'), config)
  names = *with_ends('gained'), *with_ends('faster')
  return {'n': len(rows)} | {name: told[name][0] for name in names}


# --- What is read off that frame.


def pareto(frame: pd.DataFrame) -> pd.DataFrame:
  """Points that no other beats in both quality and modelled latency.

  Args:
    frame: A row per point, as `rates` or `compare` makes them.

  Returns:
    Its rows on the front of each task, fastest first. Oracles are on none.
  """
  parts = []
  for _, part in frame[~frame.oracle].groupby(GROUP, sort=False):
    known = part[np.isfinite(part.quality) & np.isfinite(part.latency)]
    # Of equally fast ones the best comes first, and hides the others.
    known = known.sort_values(
      ['latency', 'quality'], ascending=[True, False], kind='stable'
    )
    best = known.quality.cummax().shift(fill_value=-math.inf)
    parts.append(known[known.quality > best])
  return pd.concat(parts) if parts else frame.iloc[:0]


def fastest_as_good(
  frame: pd.DataFrame, of: Sequence[str] = CURVE
) -> pd.DataFrame:
  """The fastest point that is as good as the verifier, of each curve.

  Args:
    frame: A row per point, as `compare` makes them.
    of: Columns of what has a best point; by default of a curve.

  Returns:
    Its rows, in its order; none for a curve that has no such point.
  """
  fit = frame[frame.as_good & np.isfinite(frame.speedup)]
  fit = fit.sort_values('speedup', ascending=False, kind='stable')
  return fit.drop_duplicates(of).sort_index()


def best_as_fast(
  frame: pd.DataFrame,
  of: Sequence[str] = CURVE,
  by: str = 'quality',
) -> pd.DataFrame:
  """The best point that takes no longer than the verifier, of each curve.

  Args:
    frame: A row per point, as `compare` makes them. Of points that are alike
      the first is taken.
    of: Columns of what has a best point; by default of a curve.
    by: Column that says how good a point is.

  Returns:
    Its rows, in the order of their labels; none for a curve that has no such
    point.
  """
  fit = frame[(frame.speedup >= 1) & np.isfinite(frame[by])]
  fit = fit.sort_values(
    [by, 'speedup'], ascending=[False, False], kind='stable'
  )
  return fit.drop_duplicates(of).sort_index()


def two_sided(frame: pd.DataFrame) -> pd.DataFrame:
  """The paper's table.

  Args:
    frame: A row per point, as `compare` makes them.

  Returns:
    A row per task and curve: the fastest point at the verifier's quality
    (lenience, gamma, speedup with its interval), and the best within its
    latency (best_lenience, best_gamma, difference with its interval,
    best_speedup). Where there is none, nan.
  """
  shown = frame[~frame.method.isin(reference_points.BASELINES)]
  # What cannot be compared has no place in the table.
  known = shown[np.isfinite(shown.speedup) & np.isfinite(shown.difference)]
  curves = known[[*CURVE, 'method', 'oracle']].drop_duplicates(CURVE)
  one = fastest_as_good(shown)
  one = one[[*CURVE, 'lenience', 'gamma', *with_ends('speedup')]]
  other = best_as_fast(shown)
  names = {
    'lenience': 'best_lenience',
    'gamma': 'best_gamma',
    'speedup': 'best_speedup',
  }
  other = other[[*CURVE, *names, 'quality', *with_ends('difference')]].rename(
    columns=names
  )
  return curves.merge(one, 'left', on=CURVE).merge(other, 'left', on=CURVE)


def at_common_gamma(frame: pd.DataFrame) -> pd.DataFrame:
  """Points at the gamma that most have, and those of curves without one."""
  gammas = frame.gamma[frame.gamma > 0]
  common = gammas.mode().iloc[0] if len(gammas) else 0
  most = frame.groupby(CURVE).gamma.transform('max')
  return frame[(frame.gamma == common) | (most == 0)]


def significance(found: Points, chosen: Sequence[int]) -> pd.DataFrame:
  """McNemar's test of points against the verifier alone, by right answers.

  Args:
    found: Points and answers.
    chosen: Rows of `found.points`: one for each method, and not chosen on these
      answers, or the test says less than it seems to.

  Returns:
    A row for each of them whose answers are right or wrong: n (answered by
    both), only_verifier and only_method (right), p, and p_holm, corrected for
    the other methods of its task.
  """
  rows = []
  exact = rates(found).exact
  for _, places in _groups(found.points):
    reference = references(found.points.loc[places])
    quality = matrices(found, places)['quality']
    for at in np.flatnonzero(np.isin(places, chosen)):
      pair = [at, reference[at]]
      if min(pair) < 0 or len(set(pair)) < 2 or not exact[places[pair]].all():
        continue
      ours, theirs = quality[np.isfinite(quality[:, pair]).all(1)][:, pair].T
      rows.append(
        found.points.loc[places[at], [*CURVE, 'lenience', 'gamma']].to_dict()
        | {
          'n': len(ours),
          'only_verifier': int((theirs > ours).sum()),
          'only_method': int((ours > theirs).sum()),
          'p': stats.mcnemar(ours, theirs) if len(ours) else math.nan,
        }
      )
  columns = [*CURVE, 'lenience', 'gamma', 'n', 'only_verifier', 'only_method']
  frame = pd.DataFrame(rows, columns=[*columns, 'p'])
  corrected = frame.groupby(GROUP).p.transform(stats.holm)
  return frame.assign(p_holm=corrected)
