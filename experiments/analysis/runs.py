"""The contents of workdirs, and the points of several as one set.

`Points` has a table with a row per point, and a frame with a row per answer;
every number of a report is computed from these two. Workdirs are compared only
if they decoded the same prompts with the same settings, or if the settings that
may differ are named.
"""

import dataclasses
import functools
import io
import itertools
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from cascades import files
from experiments import records
from experiments.analysis import reference_points
from experiments.records import metrics, unit_costs
from experiments.tasks import quality_metric

_ADVICE = 'run experiments.sweep with this workdir first'
_REMEDY = f'{_ADVICE}.'

# Columns that identify points. Answers are compared within a GROUP. A CURVE is
# a variant of a method in one run on one task; ACROSS is the same on all tasks.
RUN = ['temperature', 'run', 'batch_size']
ACROSS = [*RUN, 'variant']
CURVE = ['task', *ACROSS]
GROUP = ['task', 'temperature']

# Settings that must be equal in workdirs whose answers are compared.
SETTINGS = (
  'prompts',
  'data',
  'seed',
  'temperature',
  'truncation',
  'weights',
  'max_new_tokens',
  'shots',
  'chat',
  'stop_strings',
)
# Fields of a config that truncate distributions.
_TRUNCATION = ('top_k', 'top_p', 'min_p')
_WEIGHTS = ('verifier', 'drafter', 'tokenizer', 'settings')


@dataclasses.dataclass(frozen=True)
class Run:
  """The contents of one workdir."""

  path: pathlib.Path
  config: dict[str, Any]
  start: dict[str, Any]
  measured: unit_costs.CostMeasurements
  summary: pd.DataFrame
  records: dict[str, list[records.Record]]
  race: list[records.Record] = dataclasses.field(default_factory=list)

  @functools.cached_property
  def costs(self) -> unit_costs.Costs:
    """Unit costs of modelled latencies, in seconds."""
    return self.measured.costs


class _Source(files.Schema):
  """The provenance of a task's data that a report reads."""

  scale: files.Positive | None = None


class _Curve(files.Schema):
  """The fields of a curve that a report reads."""

  method: str | None = None
  strict: list[float | Literal['inf', '-inf']] | None = None


class _Config(files.Schema):
  """The fields of config.json that a report reads."""

  curves: list[_Curve] | None = None
  name: str | None = None
  verifier: str | None = None
  drafter: str | None = None
  batch_size: files.Count | None = None
  block_by_block: bool | None = None
  task: dict[str, Any] | None = None
  file: dict[str, Any] | None = None
  data: dict[str, _Source] | None = None
  versions: dict[str, str] | None = None


def read(path: str | pathlib.Path) -> Run:
  """Reads a workdir, except for its traces."""
  path = pathlib.Path(path)
  if not path.is_dir():
    raise ValueError(f'workdir: there is no folder {path}; {_REMEDY}')
  by_file = records.read_points(path)
  decoded = itertools.chain.from_iterable(by_file.values())
  summary = _summary(path / 'summary.csv')
  starts = records.read_starts(path) or [{}]
  # Files are sorted by name, and the summary is in the order of the sweep.
  order: dict[tuple, int] = {}
  for key in zip(summary.task, metrics.variants(summary), strict=True):
    order.setdefault(key, len(order))

  def rank(of_file: list[records.Record]) -> int:
    last = len(order)
    if not of_file:
      return last
    return order.get((of_file[0].task, of_file[0].variant), last)

  return Run(
    path,
    config=_fields(path / 'config.json', _Config),
    start=starts[-1],
    measured=unit_costs.CostMeasurements.from_json(_text(path / 'costs.json')),
    summary=summary,
    records=dict(sorted(by_file.items(), key=lambda item: rank(item[1])))
    | {metrics.SEQUENTIAL: metrics.without_speculation(decoded)},
    race=records.read_race(path),
  )


def _text(path: pathlib.Path) -> str:
  """Reads a file that a workdir must have."""
  if not path.is_file():
    raise ValueError(f'workdir: there is no {path}; {_REMEDY}')
  return files.read_bytes(path, 'workdir', _ADVICE).decode(errors='replace')


def _summary(path: pathlib.Path) -> pd.DataFrame:
  """Reads a summary and checks its columns."""
  text = io.StringIO(_text(path))
  texts = [
    'task',
    *(name for name in metrics.CURVE_COLUMNS if name != 'drafts'),
  ]
  try:
    # Only an empty cell is nan, because a task may be called 'None'.
    frame = pd.read_csv(
      text,
      dtype=dict.fromkeys(texts, str),
      keep_default_na=False,
      na_values=['', 'nan'],
      # Leniences are compared with those of the records, to the bit.
      float_precision='round_trip',
    )
  except ValueError as e:
    raise ValueError(f'workdir: {path} is damaged ({e}); {_REMEDY}') from None
  missing = [c for c in metrics.summary_columns() if c not in frame]
  if missing or frame.empty:
    problem = f'has no column {missing[0]}' if missing else 'has no rows'
    raise ValueError(f'workdir: {path} {problem}; {_REMEDY}')
  return frame.assign(
    **{
      c: _numbers(path, frame[c])
      for c in metrics.summary_columns()
      if c not in texts
    }
  )


# Columns of a summary whose cells are whole numbers.
_COUNTS = ('gamma', 'drafts', 'n', 'failed')
_LARGEST = 1e100


def _numbers(path: pathlib.Path, column: pd.Series) -> pd.Series:
  """Converts a column of a summary to numbers."""
  values = pd.to_numeric(column, errors='coerce').astype(float)
  wrong, valid = values.isna() & column.notna(), 'a number'
  if column.name in _COUNTS:
    valid = 'a whole number from 0 on'
    wrong |= ~(values.between(0, 2**53) & (values % 1 == 0))
  elif column.name == 'temperature':
    valid = 'a number from 0 on'
    wrong |= ~values.between(0, sys.float_info.max)
  if wrong.any():
    row = int(wrong.to_numpy().argmax())
    cell = files.printable(str(column.iloc[row]))
    raise ValueError(
      f'workdir: {path}: {column.name} of row {row + 1} must be {valid}, got'
      f' {cell:.40}; {_REMEDY}'
    )
  if column.name in _COUNTS:
    return values.astype(int)
  # A lenience may be infinite. A measured value counts as unknown if it or the
  # sum of its squares is infinite.
  if column.name == 'lenience':
    return values
  return values.where(values.abs() < _LARGEST)


def _fields(path: pathlib.Path, kind: type[files.Schema]) -> dict[str, Any]:
  """Reads and checks a JSON file; returns no fields if it is missing."""
  if not path.is_file():
    return {}
  fields = records.read_json(path)
  kind.check(fields, f'workdir: {path}', 'delete it')
  return fields


def settings(run: Run) -> dict[str, dict[str, Any]]:
  """Returns the `SETTINGS` of a run, each by task, or by '' for all tasks.

  A setting that a run does not record is left out, and differs from nothing.
  """
  config, task = run.config, run.config.get('task') or {}
  return {
    'prompts': {
      name: records.hash_examples(examples.values())
      for name, examples in records.read_examples(run.path).items()
    },
    'data': {
      name: {k: v for k, v in source.items() if k != 'shots'}
      for name, source in (config.get('data') or {}).items()
    },
    'seed': _shared_field(config, 'seed'),
    'temperature': {'': sorted(run.summary.temperature.unique().tolist())},
    'truncation': {'': {k: config[k] for k in _TRUNCATION if config.get(k)}},
    'weights': {k: run.start[k] for k in _WEIGHTS if k in run.start}
    or {k: config[k] for k in _WEIGHTS if k in config},
    'max_new_tokens': _shared_field(task, 'max_new_tokens'),
    'shots': _shared_field(task, 'shots'),
    'chat': _shared_field(config, 'chat'),
    'stop_strings': _shared_field(config.get('file') or {}, 'stop_strings'),
  }


def _shared_field(config: Mapping[str, Any], name: str) -> dict[str, Any]:
  """Returns a field that all tasks share, by ''; empty if it is missing."""
  return {'': config[name]} if name in config else {}


def differences(runs: Sequence[Run]) -> list[str]:
  """Returns the `SETTINGS` that differ among the runs that record them."""
  pairs = list(itertools.combinations(map(settings, runs), 2))
  return [
    name
    for name in SETTINGS
    if any(
      first[name].get(key, value) != value
      for first, second in pairs
      for key, value in second[name].items()
    )
  ]


def check(runs: Sequence[Run], allow: Sequence[str] = ()) -> list[str]:
  """Checks that runs can be compared, and returns the settings that differ."""
  unknown = [name for name in allow if name not in SETTINGS]
  if unknown:
    raise ValueError(
      f'allow: must name settings, got {", ".join(unknown)}; the settings are'
      f' {", ".join(SETTINGS)}.'
    )
  differing = differences(runs)
  refused = [name for name in differing if name not in allow]
  if refused:
    raise ValueError(
      f'workdir: {", ".join(str(run.path) for run in runs)} differ in'
      f' {", ".join(refused)}; report them one by one, or add'
      f' --allow={",".join(refused)}.'
    )
  return differing


# The fields are frames, whose == is not one truth value.
@dataclasses.dataclass(frozen=True, eq=False)
class Points:
  """All points of some runs, and their answers.

  Attributes:
    table: A row per point: run, batch_size, task, temperature, method, variant,
      verification, lenience, gamma, scale (the best score of the task), strict
      (True if the law is the verifier's), oracle (True if the cost leaves out
      verifier calls that the rule needs), has_rule (True if its answers record
      deferrals, as only those of a method with a deferral rule do), n (number
      of answers), failed (number of examples without an answer).
    answers: A row per answer: point (a row of `table`), id, quality, emitted,
      latency (modelled, in units of the verifier's token), wall_s (seconds; nan
      if times cannot be compared), and `score:NAME` for the sums of a corpus
      metric.
  """

  table: pd.DataFrame
  answers: pd.DataFrame

  def __repr__(self) -> str:
    return f'{len(self.table)} points, {len(self.answers)} answers'


_COLUMNS = 'point id quality emitted latency wall_s'.split()


def summary(runs_by_name: Mapping[str, Run]) -> pd.DataFrame:
  """Concatenates the summaries of runs."""
  frame = pd.concat(
    [run.summary.assign(run=name) for name, run in runs_by_name.items()],
    ignore_index=True,
  )
  frame = frame.assign(
    variant=metrics.variants(frame),
    # A sequential cascade has no blocks; its records have gamma 1.
    gamma=frame.gamma.where(frame.verification != metrics.SEQUENTIAL, 0),
  )
  is_repeated = frame.duplicated([*GROUP, 'variant', 'lenience', 'gamma'])
  if (is_repeated & ~frame.method.isin(reference_points.BASELINES)).any():
    return frame
  return frame[~is_repeated].assign(run='')


def gather(runs: Sequence[Run], clock: bool = False) -> Points:
  """Collects the points of runs, in order of appearance.

  The answers of a run are those to examples that all of its points have.
  """
  indices: dict[tuple, int] = {}
  points, answers = [], []
  for run, name in zip(runs, names(runs), strict=True):
    keys = {'run': name, 'batch_size': run.config.get('batch_size') or 0}
    # Strict leniences of methods that may not be registered here.
    strict = {
      (curve.get('method'), float(x))
      for curve in run.config.get('curves') or ()
      for x in curve.get('strict') or ()
    }
    decoded = itertools.chain.from_iterable(run.records.values())
    for r in metrics.on_common_examples(decoded):
      index = indices.setdefault((name, r.point), len(points))
      if index == len(points):
        points.append(keys | _row(r) | {'scale': _scale(run, r)})
        points[index]['strict'] |= (r.method, r.lenience) in strict
      points[index]['n' if r.failure is None else 'failed'] += 1
      if r.failure is not None:
        continue
      points[index]['has_rule'] = r.deferred is not None
      answer = {
        'point': index,
        'id': r.id,
        'quality': r.quality,
        'emitted': r.emitted,
        'latency': metrics.latency(r, run.costs),
        'wall_s': r.wall_s if clock else math.nan,
      }
      if is_corpus(r.task):
        answer |= {f'score:{k}': v for k, v in r.scores.items()}
      answers.append(answer)
  # Without answers the frame still has its columns.
  columns = None if answers else _COLUMNS
  return Points(pd.DataFrame(points), pd.DataFrame(answers, columns=columns))


def is_corpus(task: str) -> bool:
  """Tells if a task has a corpus metric: one quality for all answers."""
  metric = quality_metric(task)
  return metric is not None and metric.corpus is not None


def _scale(run: Run, r: records.Record) -> float:
  """Returns the best score of a record's task, as the sweep wrote it."""
  data = (run.config.get('data') or {}).get(r.task) or {}
  if data.get('scale') or math.isnan(r.quality):
    return data.get('scale') or 1.0
  raise ValueError(
    f'workdir: {run.path / "config.json"} does not have the scale of the metric'
    f' of {r.task}; run experiments.sweep again in another workdir.'
  )


def block_gamma(r: records.Record) -> int:
  """Returns gamma, or 0 for a sequential cascade, which has no blocks."""
  return 0 if r.verification == metrics.SEQUENTIAL else r.gamma


def _row(r: records.Record) -> dict[str, Any]:
  """Returns the row of a point from a record, before answers are counted."""
  return {
    'task': r.task,
    'temperature': r.temperature,
    'method': r.method,
    'variant': r.variant,
    'verification': r.verification,
    'lenience': r.lenience,
    'gamma': block_gamma(r),
    'strict': reference_points.is_strict(r.method, r.lenience),
    # The gamma that the law depends on, as with bonus tokens of the verifier.
    'law': block_gamma(r) if r.bonus_from == 'verifier' else 0,
    'oracle': reference_points.is_oracle(r.method, r.verification),
    'has_rule': False,
    'n': 0,
    'failed': 0,
  }


def names(runs: Sequence[Run]) -> list[str]:
  """Returns short distinct names of runs: the ends of their paths."""
  parts = [run.path.resolve().parts for run in runs]
  for length in range(1, max(map(len, parts)) + 1):
    ends = ['/'.join(p[-length:]) for p in parts]
    if len(set(ends)) == len(ends):
      return ends
  raise ValueError('workdir: a folder is named twice; name each folder once.')
