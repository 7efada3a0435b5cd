"""What lies in workdirs, as frames; several workdirs make one set of points.

`points` has a row for each point and `answers` a row for each example that was
answered there; everything that the report says is worked out from these two.
Workdirs are put together only where they asked the same in the same way, or
where it is said by name what may differ.
"""

import dataclasses
import functools
import io
import itertools
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from cascades.untrusted import bounded, display, schema
from experiments import records
from experiments.analysis import reference_points
from experiments.records import metrics
from experiments.tasks import TASKS

_ADVICE = 'run experiments.sweep with this workdir first'
_REMEDY = f'{_ADVICE}.'

# Columns that tell points apart. Answers are compared within a GROUP. A CURVE
# is a variant of a method in one run on one task; ACROSS tasks it goes on.
RUN = ['temperature', 'run', 'batch_size']
ACROSS = [*RUN, 'variant']
CURVE = ['task', *ACROSS]
GROUP = ['task', 'temperature']

# What has to be alike for answers of two workdirs to be compared.
SETTINGS = (
  'prompts',
  'data',
  'seed',
  'temperature',
  'truncation',
  'weights',
  'max_new_tokens',
  'shots',
)
# Fields of a config that cut distributions off, if it has them.
_TRUNCATION = ('top_k', 'top_p', 'min_p')
_WEIGHTS = ('verifier', 'drafter', 'tokenizer')


@dataclasses.dataclass(frozen=True)
class Run:
  """What lies in one workdir.

  Attributes:
    path: The folder itself.
    config: Settings of the sweep, as `config.json` has them; empty if they
      were not kept.
    start: The latest start in its provenance; empty if it was not kept.
    measured: Unit costs, at the start and at the end of the sweep.
    summary: A row per point, with the columns of `metrics.columns`.
    lines: Records of each of its files, by the file's name without an ending,
      in the order of the summary.
    race: Records of arms that were timed against each other, if any were.
  """

  path: pathlib.Path
  config: dict[str, Any]
  start: dict[str, Any]
  measured: metrics.Measured
  summary: pd.DataFrame
  lines: dict[str, list[records.Record]]
  race: list[records.Record] = dataclasses.field(default_factory=list)

  @functools.cached_property
  def costs(self) -> metrics.Costs:
    """Unit costs that latencies are modelled with, in seconds."""
    return self.measured.costs


class _Config(schema.Schema):
  """What is read of a config.json."""

  name: str | None = None
  verifier: str | None = None
  drafter: str | None = None
  batch_size: schema.Count | None = None
  block_by_block: bool | None = None
  task: dict[str, Any] | None = None
  data: dict[str, dict[str, Any]] | None = None
  versions: dict[str, str] | None = None


def read(path: str | pathlib.Path) -> Run:
  """Reads a workdir, except for its traces.

  Args:
    path: The folder that a sweep wrote to.

  Raises:
    ValueError: A file is missing or damaged; says what to do.
  """
  path = pathlib.Path(path)
  if not path.is_dir():
    raise ValueError(f'workdir: there is no folder {path}; {_REMEDY}')
  lines = records.read_points(path)
  summary = _summary(path / 'summary.csv')
  starts = records.read_starts(path) or [{}]
  # Files are in the order of their names, a summary in that of the sweep.
  order: dict[tuple, int] = {}
  for key in zip(summary.task, metrics.variants(summary), strict=True):
    order.setdefault(key, len(order))

  def place(of_file: list[records.Record]) -> int:
    last = len(order)
    if not of_file:
      return last
    return order.get((of_file[0].task, of_file[0].variant), last)

  lines = dict(sorted(lines.items(), key=lambda item: place(item[1])))
  return Run(
    path,
    _fields(path / 'config.json', _Config),
    starts[-1],
    metrics.Measured.from_json(_text(path / 'costs.json')),
    summary,
    lines,
    records.read_race(path),
  )


def _text(path: pathlib.Path) -> str:
  """A file that has to be there."""
  if not path.is_file():
    raise ValueError(f'workdir: there is no {path}; {_REMEDY}')
  return bounded.read_bytes(path, 'workdir', _ADVICE).decode(errors='replace')


def _summary(path: pathlib.Path) -> pd.DataFrame:
  """A summary that has all of its columns."""
  text = io.StringIO(_text(path))
  texts = ['task', *(name for name in metrics.CURVE if name != 'drafts')]
  try:
    # Only an empty cell is nan: a task may well be called 'None'.
    frame = pd.read_csv(
      text,
      dtype=dict.fromkeys(texts, str),
      keep_default_na=False,
      na_values=['', 'nan'],
    )
  except ValueError as e:
    raise ValueError(f'workdir: {path} is damaged ({e}); {_REMEDY}') from None
  missing = [c for c in metrics.columns() if c not in frame]
  if missing or frame.empty:
    what = f'has no column {missing[0]}' if missing else 'has no rows'
    raise ValueError(f'workdir: {path} {what}; {_REMEDY}')
  return frame.assign(
    **{c: _numbers(path, frame[c]) for c in metrics.columns() if c not in texts}
  )


# Columns of a summary in which every row has a whole number.
_COUNTS = ('gamma', 'drafts', 'n', 'failed')
_LARGEST = 1e100


def _numbers(path: pathlib.Path, column: pd.Series) -> pd.Series:
  """A column of a summary as numbers.

  Args:
    path: The file, for the message.
    column: What it holds.

  Raises:
    ValueError: A cell is no number, or one that cannot stand there.
  """
  found = pd.to_numeric(column, errors='coerce').astype(float)
  wrong, what = found.isna() & column.notna(), 'a number'
  if column.name in _COUNTS:
    what = 'a whole number from 0 on'
    wrong |= ~(found.between(0, 2**53) & (found % 1 == 0))
  elif column.name == 'temperature':
    what = 'a number from 0 on'
    wrong |= ~found.between(0, sys.float_info.max)
  if wrong.any():
    row = int(wrong.to_numpy().argmax())
    cell = display.printable(str(column.iloc[row]))
    raise ValueError(
      f'workdir: {path}: {column.name} of row {row + 1} has to be {what}, got'
      f' {cell:.40}; {_REMEDY}'
    )
  if column.name in _COUNTS:
    return found.astype(int)
  # A lenience may be infinite; what is measured is as good as not known then,
  # or where sums and squares of it would be infinite.
  if column.name == 'lenience':
    return found
  return found.where(found.abs() < _LARGEST)


def _fields(path: pathlib.Path, kind: type[schema.Schema]) -> dict[str, Any]:
  """What a JSON file holds, of its types; empty if it was not kept."""
  if not path.is_file():
    return {}
  fields = records.read_json(path)
  kind.check(fields, f'workdir: {path}', 'delete it')
  return fields


def settings(run: Run) -> dict[str, dict[str, Any]]:
  """What `SETTINGS` are in a run, each by task, or by '' for all tasks.

  What a run does not say is not there, and differs from nothing.

  Args:
    run: What lies in a workdir.
  """
  config, task = run.config, run.config.get('task') or {}
  found: dict[str, dict[str, Any]] = {
    'prompts': {
      name: records.hash_of(asked.values())
      for name, asked in records.read_examples(run.path).items()
    },
    'data': {
      name: {k: v for k, v in told.items() if k != 'shots'}
      for name, told in (config.get('data') or {}).items()
    },
    'seed': _said(config, 'seed'),
    'temperature': {'': sorted(run.summary.temperature.unique().tolist())},
    'truncation': {'': {k: config[k] for k in _TRUNCATION if config.get(k)}},
    'weights': {k: run.start[k] for k in _WEIGHTS if k in run.start}
    or {k: config[k] for k in _WEIGHTS if k in config},
    'max_new_tokens': _said(task, 'max_new_tokens'),
    'shots': _said(task, 'shots'),
  }
  return found


def _said(config: Mapping[str, Any], name: str) -> dict[str, Any]:
  """A field of all tasks, if it is there."""
  return {'': config[name]} if name in config else {}


def differences(runs: Sequence[Run]) -> list[str]:
  """Which of `SETTINGS` are not alike in all runs that say them."""
  pairs = list(itertools.combinations(map(settings, runs), 2))
  return [
    name
    for name in SETTINGS
    if any(
      one[name].get(key, value) != value
      for one, other in pairs
      for key, value in other[name].items()
    )
  ]


def check(runs: Sequence[Run], allow: Sequence[str] = ()) -> list[str]:
  """Which settings differ, all of which are allowed to.

  Args:
    runs: What lies in the workdirs that are compared.
    allow: Those of `SETTINGS` that may differ.

  Raises:
    ValueError: There is no such setting, or others differ; names them.
  """
  unknown = [name for name in allow if name not in SETTINGS]
  if unknown:
    raise ValueError(
      f'allow: no setting {", ".join(unknown)}; there are'
      f' {", ".join(SETTINGS)}.'
    )
  found = differences(runs)
  refused = [name for name in found if name not in allow]
  if refused:
    raise ValueError(
      f'workdir: {", ".join(str(run.path) for run in runs)} differ in'
      f' {", ".join(refused)}; report them one by one, or say'
      f' --allow={",".join(refused)}.'
    )
  return found


# Frames are not equal to anything in one word.
@dataclasses.dataclass(frozen=True, eq=False)
class Points:
  """All points of some runs, and their answers.

  Attributes:
    points: A row per point: run, batch_size, task, temperature, method,
      variant, verification, lenience, gamma, oracle (whether its cost leaves
      out what its rule looks at), n (how many answers), failed (how many
      examples have none).
    answers: A row per answer: point (a row of `points`), id, quality, emitted,
      latency (modelled; the verifier's for a token being 1), wall_s (nan where
      the clock says nothing), and `score:NAME` where quality is made of sums.
  """

  points: pd.DataFrame
  answers: pd.DataFrame

  def __repr__(self) -> str:
    return f'{len(self.points)} points, {len(self.answers)} answers'


_COLUMNS = 'point id quality emitted latency wall_s'.split()


def summary(told: Mapping[str, Run]) -> pd.DataFrame:
  """The summaries of runs, one below the other.

  Args:
    told: What lies in the workdirs, by what tells them apart.

  Returns:
    Their rows with `variant`, gamma 0 for sequential cascades, and `run`, which
    is empty where no point is in several runs, so that nothing has to be told
    apart.
  """
  frame = pd.concat(
    [run.summary.assign(run=name) for name, run in told.items()],
    ignore_index=True,
  )
  frame = frame.assign(
    variant=metrics.variants(frame),
    # It makes no blocks, whatever gamma was recorded.
    gamma=frame.gamma.where(
      frame.verification != reference_points.SEQUENTIAL, 0
    ),
  )
  twice = frame.duplicated([*GROUP, 'variant', 'lenience', 'gamma'])
  if (twice & ~frame.method.isin(reference_points.BASELINES)).any():
    return frame
  return frame[~twice].assign(run='')


def gather(runs: Sequence[Run], clock: bool = False) -> Points:
  """Puts the points of runs together, in order of appearance.

  Args:
    runs: What lies in workdirs.
    clock: Whether seconds on the clock are of the same prompts, decoded alike;
      else they are left out, for nothing can be told from them.
  """
  places: dict[tuple, int] = {}
  points, answers = [], []
  for run, name in zip(runs, names(runs), strict=True):
    told = {'run': name, 'batch_size': run.config.get('batch_size') or 0}
    for r in (r for lines in run.lines.values() for r in lines):
      place = places.setdefault((name, r.point), len(points))
      if place == len(points):
        points.append(told | _row(r))
      points[place]['n' if r.failure is None else 'failed'] += 1
      if r.failure is not None:
        continue
      answer = {
        'point': place,
        'id': r.id,
        'quality': r.quality,
        'emitted': r.emitted,
        'latency': metrics.latency(r, run.costs),
        'wall_s': r.wall_s if clock else math.nan,
      }
      if is_corpus(r.task):
        answer |= {f'score:{k}': v for k, v in r.scores.items()}
      answers.append(answer)
  # Of runs in which everything failed there are the columns.
  columns = None if answers else _COLUMNS
  return Points(pd.DataFrame(points), pd.DataFrame(answers, columns=columns))


def is_corpus(task: str) -> bool:
  """Whether a task's quality is one of all answers together."""
  # A task of somebody's own need not be registered.
  return task in TASKS and TASKS[task].corpus is not None


def _row(r: records.Record) -> dict[str, Any]:
  """What all records of a point say of it, none being counted yet."""
  return {
    'task': r.task,
    'temperature': r.temperature,
    'method': r.method,
    'variant': r.variant,
    'verification': r.verification,
    'lenience': r.lenience,
    'gamma': 0 if r.verification == reference_points.SEQUENTIAL else r.gamma,
    'oracle': reference_points.is_oracle(r.method, r.verification),
    'n': 0,
    'failed': 0,
  }


def names(runs: Sequence[Run]) -> list[str]:
  """What tells runs apart for people: the ends of their paths.

  Raises:
    ValueError: A workdir is there twice.
  """
  parts = [run.path.resolve().parts for run in runs]
  for length in range(1, max(map(len, parts)) + 1):
    found = ['/'.join(p[-length:]) for p in parts]
    if len(set(found)) == len(found):
      return found
  raise ValueError('workdir: one is named twice; name each once.')
