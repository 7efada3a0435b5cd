"""Comparisons of points with the verifier alone, and selections of them.

Functions take frames and return frames. `compare` returns a row per point, with
paired intervals over the examples that both points answered (see `stats`); the
other functions select from its rows.

Latency is per emitted token, relative to the verifier alone: modelled from
counted calls, or on the clock. A speed-up is its reciprocal.
"""

import dataclasses
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import runs
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import (
  BASELINES,
  CURVE,
  VERIFIER,
  Points,
  Run,
  is_corpus,
)
from experiments.records import metrics, stats, unit_costs
from experiments.tasks import quality_metric

# Speed-ups: modelled, and on the clock.
_SPEEDUPS = 'speedup', 'wall_speedup'
_COMPARED = 'difference', *_SPEEDUPS


def with_ends(name: str) -> list[str]:
  """Returns the name of a column and those of the ends of its interval."""
  return [name, f'{name}_low', f'{name}_high']


def add_speedups(points: pd.DataFrame, costs: unit_costs.Costs) -> None:
  """Adds modelled speed-ups, with their ends, to predicted points."""
  per_token = costs.speedup(1, points.drafter_calls, points.gamma)
  tokens = points[['tokens_per_call', 'low', 'high']]
  points[with_ends('speedup')] = tokens.mul(per_token, axis=0)


def matrices(
  points: Points, indices: Sequence[int] | pd.Index
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


def _scored(
  rows: np.ndarray,
  score: stats.Score,
  names: Sequence[str],
  config: AnalysisConfig,
) -> dict[str, np.ndarray]:
  """Returns the scores over all examples, with their intervals."""
  with np.errstate(divide='ignore', invalid='ignore'):
    aggregate = score(rows.sum(0))
    ends = stats.bootstrap(
      rows, score, resamples=config.resamples, seed=config.seed
    )
  parts = [np.split(values, len(names)) for values in (aggregate, *ends)]
  return {
    column: values
    for name, triple in zip(names, zip(*parts, strict=True), strict=True)
    for column, values in zip(with_ends(name), triple, strict=True)
  }


def _sums(
  task: str, answers: dict[str, np.ndarray], reference: int
) -> tuple[np.ndarray, stats.Score]:
  """Returns the summands of each example, and the scores of their sums."""
  answered = np.isfinite(answers['emitted'])
  both, parts = answered & answered[:, [reference]], {}
  names = ['emitted', 'latency', 'wall_s']
  if is_corpus(task):
    names += [name for name in answers if name.startswith('score:')]
  for name in names:
    values = answers[name]
    parts[name] = np.where(both, values, 0.0)
    of_verifier = np.where(both, values[:, [reference]], 0.0)
    parts[f'{name} of verifier'] = of_verifier

  def score(sums: np.ndarray) -> np.ndarray:
    columns = np.split(sums, len(parts), axis=-1)
    part = dict(zip(parts, columns, strict=True))

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

  def metric(sums: np.ndarray) -> float:
    sums_of = dict(zip(titles, sums, strict=True))
    return quality_metric(task).corpus(sums_of)

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
  for task, part in frame.groupby('task', sort=False):
    verifiers = np.flatnonzero(part.method == VERIFIER)
    answers = matrices(points, part.index)
    if not len(verifiers) or not len(answers['id']):
      continue
    scores = _compared(
      task, answers, verifiers[0], scale=part.scale.iloc[0], config=config
    )
    frame.loc[part.index, list(scores)] = np.column_stack([*scores.values()])
    good = scores['difference_low'] > -config.margin * part.scale.to_numpy()
    # An answer that the verifier has wrong cannot be lost.
    good &= part.quality.iloc[verifiers[0]] > 0
    # Law and quality are known.
    good |= part.strict.to_numpy() & np.isfinite(scores['difference'])
    frame.loc[part.index, 'as_good'] = good
  return frame


def _compared(
  task: str,
  answers: dict[str, np.ndarray],
  reference: int,
  *,
  scale: float,
  config: AnalysisConfig,
) -> dict[str, np.ndarray]:
  """Returns `_COMPARED` with their ends, each of every point, [points]."""
  rows, score = _sums(task, answers, reference)
  if is_corpus(task):
    return _scored(rows, score, [*_SPEEDUPS, 'difference'], config)
  scores = _scored(rows, score, _SPEEDUPS, config)
  quality = answers['quality']
  of_verifier = np.broadcast_to(quality[:, [reference]], quality.shape)
  low, high = stats.paired_interval(quality, of_verifier)
  low[reference] = high[reference] = 0
  with warnings.catch_warnings():
    # No example that both answered.
    warnings.simplefilter('ignore', RuntimeWarning)
    difference = np.nanmean(quality - of_verifier, 0)
  ends = (scale * x for x in (difference, low, high))
  return scores | dict(zip(with_ends('difference'), ends, strict=True))


_SPEED = '{speedup:.2f} [{speedup_low:.2f}, {speedup_high:.2f}] times as fast'
_GAIN = (
  ', quality gain {difference:+.3f} [{difference_low:+.3f},'
  ' {difference_high:+.3f}]'
)


def point_name(point: Any) -> str:
  """Returns VARIANT@LENIENCE@GAMMA of a point, without what it lacks."""
  text = f'@{float(point.lenience)!r}'.removesuffix('.0').replace('@nan', '')
  return f'{point.variant}{text}@{runs.block_gamma(point)}'.removesuffix('@0')


def matching(names: Iterable[str], beginning: str) -> list[str]:
  """Selects the names of points that begin with VARIANT, @LENIENCE, @GAMMA."""
  return [x for x in names if f'{x}@'.startswith(f'{beginning}@')]


def compare_named(
  run: Run, named: Sequence[str], config: AnalysisConfig
) -> list[str]:
  """Compares two points, VARIANT@LENIENCE@GAMMA or its beginning, by task."""
  records = [x for part in run.records.values() for x in part]
  names = sorted({*map(point_name, records)})
  pair = [matching(names, x) for x in named]
  if [*map(len, pair)] != [1, 1] or pair[0] == pair[1]:
    raise ValueError(f'compare: must name two points of {", ".join(names)}.')
  (first,), (second,) = pair
  records = [x for x in records if point_name(x) in (first, second)]
  points = runs.gather(dataclasses.replace(run, records={'': records}))
  sentences = []
  for task, part in points.table.groupby('task', sort=False):
    rows = {point_name(x): x.Index for x in part.itertuples()}
    if len(rows) < 2 or not part.n.all():
      continue
    answers = matrices(points, [rows[first], rows[second]])
    # On the examples that both answered.
    both = np.isfinite(answers['emitted']).all(1)
    if not both.any():
      continue
    answers = {name: values[both] for name, values in answers.items()}
    scores = _compared(
      task, answers, 1, scale=part.scale.iloc[0], config=config
    )
    values = {name: values[0] for name, values in scores.items()}
    gain = '' if math.isnan(values['difference']) else _GAIN
    sentences.append(
      f'{task} at temperature {part.temperature.iloc[0]:g}, {both.sum()}'
      f' examples: {first} is {_SPEED.format(**values)} as {second}'
      f'{gain.format(**values)} (modelled latency, 95 %).'
    )
  if not sentences:
    raise ValueError(f'compare: no task has {first} and {second}; name others.')
  return sentences


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


def unsolved(frame: pd.DataFrame) -> list[str]:
  """Returns a sentence for each task on which the verifier scores 0."""
  rows = frame[(frame.method == VERIFIER) & (frame.quality == 0)]
  return [
    f'{row.task}: the verifier scores 0.00 on {row.n} examples; look at the'
    ' prompts and the metric.'
    for row in rows.itertuples()
  ]


def scores(frame: pd.DataFrame) -> list[str]:
  """Returns a sentence for each task on what the verifier scores."""
  rows = frame[(frame.method == VERIFIER) & (frame.quality > 0)]
  return [
    f'{row.task}: the verifier alone scores {row.quality:.3f} of {row.scale:g}'
    f' on {row.n} examples'
    + '; read its answers on the page, and correct the prompt, the reference or'
    ' the metric if they are wrong' * (row.quality < row.scale / 2) + '.'
    for row in rows.itertuples()
  ]


# Some of the gain of a lenient rule could be had without speculation or without
# a rule: by truncating the verifier's unlikely tokens and decoding the rest
# without loss, by a cascade that does not speculate, or by taking all drafts.
_KINDS_OF_METHODS = {
  **dict.fromkeys(('min_p', 'top_p', 'top_k', 'eta'), 'truncated verifier'),
  'sequence_mean': 'sequence-level cascade',
  'sequence_least': 'sequence-level cascade',
  'always_accept': 'always accept',
}
# Presets by their methods, which draw bonus tokens from p there.
_ENGINES = {
  'entropy_gate': 'vllm_fly',
  'ensemble': 'transformers_ensemble',
  'ensemble_argmax': 'transformers_ensemble',
  'accept_threshold': 'sglang_threshold',
  'relaxed_top': 'trtllm_relaxed',
  'typical': 'medusa_typical',
}
_SWITCH = "engine's switch"
# In the order of the table.
KINDS = (
  'speculative cascade',
  'strict decoding',
  'relaxed decoding',
  'truncated verifier',
  'sequential cascade',
  'sequential oracle',
  'sequence-level cascade',
  'always accept',
  _SWITCH,
  'other method',
)
_RIVALS = 'strict decoding', 'speculative cascade'


def preset_of(method: str, bonus: str) -> str:
  """Returns the preset of an engine's switch; '' of any other point."""
  name, dash, number = method.partition('-')
  preset = _ENGINES.get(name, '') if bonus == 'verifier' else ''
  return preset and preset + dash + number


def is_default(point: Any) -> bool:
  """Says whether a switch has the lenience that its preset has by default."""
  preset = preset_of(point.method, point.bonus_from).partition('-')[0]
  if not preset:
    return False
  # The import loads JAX, which not every page needs.
  from cascades import presets

  return math.isclose(point.lenience, presets.PRESETS[preset]().lenience)


def kind_of(
  method: str, verification: str, lenience: float, has_rule: bool, bonus: str
) -> str:
  """Returns the kind of decoding of a point; '' for a model alone."""
  if method in BASELINES:
    return ''
  if preset_of(method, bonus):
    return _SWITCH
  if verification == metrics.SEQUENTIAL:
    oracle = runs.is_oracle(method, verification)
    return 'sequential oracle' if oracle else 'sequential cascade'
  if method == 'speed' and lenience == 0:
    return 'strict decoding'
  if has_rule:
    return 'speculative cascade'
  # The import loads JAX, which not every page needs.
  from cascades.methods import METHODS

  # What a method of the user does without a rule is not known.
  builtin = METHODS.is_builtin(method)
  unruled = 'relaxed decoding' if builtin else 'other method'
  return _KINDS_OF_METHODS.get(method, unruled)


_POINT_COLUMNS = ['variant', 'lenience', 'gamma', 'speedup']
_GROUP = ['task', 'kind']


def _kind_names(frame: pd.DataFrame) -> list[str]:
  names = 'method verification lenience has_rule bonus_from'.split()
  return [kind_of(*x) for x in frame[names].itertuples(index=False)]


def switches(
  points: Points, frame: pd.DataFrame, config: AnalysisConfig
) -> pd.DataFrame:
  """Compares each engine's switch with strict decoding and cascades.

  Its rival is the fastest of their points with at least its quality that is
  faster. A point is dominated if one is faster and better, both paired
  intervals excluding no difference; then the fastest such point is the rival.
  The gains are the rival's over the switch.
  """
  frame, gains = frame.assign(kind=_kind_names(frame)), {}
  for row in frame[frame.kind == _SWITCH].itertuples():
    rivals = frame[(frame.task == row.task) & frame.kind.isin(_RIVALS)]
    is_better = (rivals.quality >= row.quality) & (rivals.speedup > row.speedup)
    indices = rivals.index[is_better]
    answers = matrices(points, [*indices, row.Index])
    scores = _compared(
      row.task, answers, len(indices), scale=row.scale, config=config
    )
    gain = pd.DataFrame(scores, [*indices, row.Index])[:-1].add_prefix('gain_')
    dominated = (gain.gain_speedup_low > 1) & (gain.gain_difference_low > 0)
    gain = (
      rivals[['variant', 'lenience']]
      .add_prefix('rival_')
      .join(gain.assign(dominated=dominated), how='right')
    )
    order = gain.sort_values(['dominated', 'gain_speedup'])
    nothing = dict.fromkeys(gain, math.nan) | {'dominated': False}
    gains[row.Index] = order.iloc[-1] if len(order) else nothing
  return frame.join(pd.DataFrame.from_dict(gains, 'index'), how='inner')


def best_of_kinds(frame: pd.DataFrame) -> pd.DataFrame:
  """Selects the best points of each kind of decoding."""
  names = _kind_names(frame)
  tasks = frame.task.unique()
  frame = frame.assign(
    kind=pd.Categorical(names, ['', *KINDS]),
    task=pd.Categorical(frame.task, tasks),
  )
  frame = frame[np.isfinite(frame.speedup) & np.isfinite(frame.difference)]
  frame = with_blocks(frame[frame.kind != ''])

  def largest(frame: pd.DataFrame, by: list[str], more: list[str]) -> Any:
    order = frame.sort_values(by, ascending=False, kind='stable')
    return order.drop_duplicates(_GROUP)[[*_GROUP, *_POINT_COLUMNS, *more]]

  ends = with_ends('speedup')[1:]
  fastest = largest(frame[frame.as_good], ['speedup'], ends)
  # Of equally good points the last one is taken.
  by, ends = ['difference', 'speedup'], with_ends('difference')
  best = largest(frame[frame.speedup >= 1][::-1], by, ends)
  best = best.rename(columns={name: f'best_{name}' for name in _POINT_COLUMNS})
  output = frame[_GROUP].drop_duplicates().sort_values(_GROUP)
  if output.kind.nunique() < 2:
    output = output.iloc[:0]
  output = output.merge(fastest, 'left', on=_GROUP)
  return output.merge(best, 'left', on=_GROUP).astype(
    dict.fromkeys(_GROUP, str)
  )


def entrants(points: Points) -> list[Any]:
  """Selects the points to time, as rows of one frame over all tasks.

  The entrants are both models alone, the fastest strict point, and the fastest
  point with the verifier's quality on every task.
  """
  frame = compare(points, AnalysisConfig()).drop(columns='latency')
  # Calls of cascades without speculation are only counted.
  frame = with_blocks(frame[~frame.variant.str.contains(r'\bsequential\b')])
  answers = points.answers.join(frame.task, 'point', 'inner')
  # A point is no faster because it failed on slow examples.
  count = answers.groupby(['task', 'id']).point.transform('nunique')
  shared = answers[count == answers.groupby('task').point.transform('nunique')]
  frame = frame.join(shared.groupby('point')[['latency', 'emitted']].sum())
  key = ['method', 'variant', 'lenience', 'gamma']
  # A lenience may be nan.
  groups = frame.groupby(key, dropna=False, sort=False, as_index=False)
  frame = groups.agg(
    # Unknown for a point without answers to a task.
    dict.fromkeys(['latency', 'emitted'], lambda x: x.sum(skipna=False))
    | dict.fromkeys(['strict', 'as_good'], 'all')
  )
  if VERIFIER not in set(frame.method):
    return []
  is_alone = frame.method.isin(BASELINES)
  order = frame.assign(latency=frame.latency / frame.emitted)[~is_alone]
  order = order[order.latency.notna()].sort_values('latency', kind='stable')
  fastest = [order[order[name]].index[:1] for name in ('strict', 'as_good')]
  rows = frame.index[is_alone].append(fastest).drop_duplicates()
  return list(frame.loc[rows].itertuples())


def on_the_clock(timed: pd.DataFrame | None) -> list[str]:
  """Returns a sentence on points that took turns with the verifier alone."""
  if timed is None or timed.wall_speedup.isna().any():
    return []
  speeds = (
    f'{x.variant}'
    f'{"" if math.isnan(x.lenience) else f" at lenience {x.lenience:g}"}'
    f'{f" (gamma {x.gamma})" if x.gamma else ""} is'
    f' {x.wall_speedup:.2f} [{x.wall_speedup_low:.2f},'
    f' {x.wall_speedup_high:.2f}]'
    for x in timed.itertuples()
  )
  return [
    f'On the clock, one answer at a time ({timed.n.max()} prompts),'
    f' {", ".join(speeds)} times as fast as the verifier alone (95 %).'
  ]


def race(run: Run, config: AnalysisConfig) -> pd.DataFrame | None:
  """Compares the timed points of a run with the verifier alone.

  They were timed one prompt at a time. Wall-clock times of other points cannot
  be compared: rows are decoded together, and a batch that is half empty is
  slower per token.
  """
  if not run.race:
    return None
  # Tasks may have examples of the same id, and qualities of several scales.
  changes = {'task': 'all tasks', 'quality': math.nan}
  together = [
    dataclasses.replace(r, **changes, id=f'{r.task} {r.id}') for r in run.race
  ]
  timed = dataclasses.replace(run, records={'race': together})
  frame = compare(runs.gather(timed, clock=True), config)
  frame = frame[frame.method != VERIFIER]
  return frame.assign(by_model=frame.speedup / frame.wall_speedup)
