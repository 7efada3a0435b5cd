"""The contents of a workdir: its points, and a row for each answer.

`Points` has a table with a row per point, and a frame with a row per answer;
every number of a report is computed from these two. A point is judged against
both models alone and against strict leniences, which emit what the verifier
would; an oracle is a bound that no method reaches.
"""

import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd

from cascades import files
from experiments import records
from experiments.records import metrics, unit_costs
from experiments.tasks import quality_metric

_ADVICE = 'run experiments.sweep with this workdir first'
# Columns that identify the variant of a method on a task.
CURVE = ['task', 'variant']
VERIFIER, DRAFTER = 'verifier_only', 'drafter_only'
BASELINES = (VERIFIER, DRAFTER)


def is_strict(method: str, lenience: float) -> bool:
  """Tells if the law of a setting is the verifier's.

  False for a method that is not registered here. A method without lenience has
  the lenience nan.
  """
  # The import loads JAX, which not every page needs.
  from cascades.methods import METHODS

  registered = METHODS.get(method, None)
  return method == VERIFIER or (
    registered is not None and registered.is_strict(lenience)
  )


def is_oracle(method: str, verification: str) -> bool:
  """Tells if a rule reads the verifier at tokens where no call is counted.

  A sequential cascade calls the verifier only where the verifier takes over:
  of the rules, chow alone decides that without the verifier.
  """
  return verification == metrics.SEQUENTIAL and method != 'chow'


@dataclasses.dataclass(frozen=True)
class Run:
  """The contents of one workdir."""

  path: pathlib.Path
  config: dict[str, Any]
  starts: list[dict[str, Any]]
  measured: unit_costs.CostMeasurements
  records: dict[str, list[records.Record]]
  race: list[records.Record] = dataclasses.field(default_factory=list)

  @functools.cached_property
  def costs(self) -> unit_costs.Costs:
    """Unit costs of modelled latencies, in seconds."""
    return self.measured.costs

  @functools.cached_property
  def decoded(self) -> list[records.Record]:
    """The records of examples that all points have, in the sweep's order."""
    decoded = itertools.chain.from_iterable(self.records.values())
    return metrics.on_common_examples(decoded)

  @property
  def mixed(self) -> list[str]:
    """Says if memory lacked for batches on which answers depend."""
    halved = {}
    for start in self.starts:
      # A fresh start decodes all points again.
      halved = {} if start.get('fresh') else halved
      halved |= start.get('halved') or {}
    halved = {k: x for k, x in halved.items() if k in self.records}
    sizes = sorted({*halved.values()})
    text = (
      f'batch_size: in {len(halved)} of {len(self.records) - 1} points, memory'
      f' was enough for batches of {" or ".join(map(str, sizes))}'
      ' rows; on this device an answer depends on the batch around it.'
    )
    return [text] if halved else []

  @functools.cached_property
  def summary(self) -> pd.DataFrame:
    """A row for each point."""
    return metrics.summarize(self.decoded, self.costs)


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
  block_by_block: bool | None = None
  data: dict[str, _Source] | None = None


def read(
  path: str | pathlib.Path,
  decoded: Mapping[str, list[records.Record]] | None = None,
) -> Run:
  """Reads a workdir, except for its traces and the records that are given."""
  path = pathlib.Path(path)
  if not path.is_dir():
    raise ValueError(f'workdir: there is no folder {path}; {_ADVICE}.')
  config: dict[str, Any] = {}
  file, costs = path / 'config.json', path / 'costs.json'
  if file.is_file():
    config = records.read_json(file)
    _Config.check(config, f'workdir: {file}', 'delete it')
  if decoded is None:
    decoded = records.read_points(path)
  if not costs.is_file():
    raise ValueError(f'workdir: there is no {costs}; {_ADVICE}.')
  text = files.read_bytes(costs, 'workdir', _ADVICE)
  race = path / 'race.jsonl'
  counted = itertools.chain.from_iterable(decoded.values())
  return Run(
    path,
    config=config,
    starts=records.read_starts(path),
    measured=unit_costs.CostMeasurements.from_json(text),
    records={
      **decoded,
      metrics.SEQUENTIAL: metrics.without_speculation(counted),
    },
    race=records.read(race) if race.is_file() else [],
  )


# The fields are frames, whose == is not one truth value.
@dataclasses.dataclass(frozen=True, eq=False)
class Points:
  """All points of some runs, and their answers.

  Attributes:
    table: The rows of the summary, with variant, gamma (0 without blocks),
      latency, scale (the best score of the task), strict (True if the law is
      the verifier's) and has_rule (True if its answers record deferrals, as
      only those of a method with a deferral rule do).
    answers: A row per answer: point (a row of `table`), id, quality, emitted,
      latency (modelled, in units of the verifier's token), wall_s (seconds; nan
      if times cannot be compared), and `score:NAME` for the sums of a corpus
      metric.
  """

  table: pd.DataFrame
  answers: pd.DataFrame


_COLUMNS = 'point id quality emitted latency wall_s'.split()


def gather(run: Run, clock: bool = False) -> Points:
  """Collects the points of a run, in order of appearance.

  The answers are those to examples that all points have.
  """
  data, answers = run.config.get('data') or {}, []
  scales = {task: x.get('scale') for task, x in data.items()}
  points = metrics.by_point(run.decoded)
  first_records = [point[0] for point in points.values()]
  indices = {key: i for i, key in enumerate(points)}
  for r in run.decoded:
    if r.failure is not None:
      continue
    if not scales.get(r.task) and not math.isnan(r.quality):
      raise ValueError(
        f'workdir: {run.path / "config.json"} does not have the scale of the'
        f' metric of {r.task}; run experiments.sweep in another workdir.'
      )
    answer = {
      'point': indices[r.point],
      'id': r.id,
      'quality': r.quality,
      'emitted': r.emitted,
      'latency': metrics.latency(r, run.costs),
      'wall_s': r.wall_s if clock else math.nan,
    }
    if is_corpus(r.task):
      answer |= {f'score:{k}': v for k, v in r.scores.items()}
    answers.append(answer)
  # Strict leniences of methods that may not be registered here.
  strict = {
    (curve.get('method'), float(x))
    for curve in run.config.get('curves') or ()
    for x in curve.get('strict') or ()
  }
  table = run.summary.assign(
    variant=[r.variant for r in first_records],
    gamma=list(map(block_gamma, first_records)),
    latency=run.summary.relative_latency,
    scale=[scales.get(r.task) or 1.0 for r in first_records],
    strict=[
      (r.method, r.lenience) in strict or is_strict(r.method, r.lenience)
      for r in first_records
    ],
    has_rule=[
      any(r.failure is None and r.deferred is not None for r in point)
      for point in points.values()
    ],
  )
  # Without answers the frame still has its columns.
  columns = None if answers else _COLUMNS
  return Points(table, pd.DataFrame(answers, columns=columns))


def is_corpus(task: str) -> bool:
  """Tells if a task has a corpus metric: one quality for all answers."""
  metric = quality_metric(task)
  return metric is not None and metric.corpus is not None


def block_gamma(r: records.Record) -> int:
  """Returns gamma, or 0 for a sequential cascade, which has no blocks."""
  return 0 if r.verification == metrics.SEQUENTIAL else r.gamma
