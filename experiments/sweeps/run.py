"""The run of a sweep: plan, load, decode, collect, report.

Points that are done stay in the workdir. The same command therefore resumes a
sweep that was stopped in any way, and ends with the same records.
"""

import contextlib
import functools
import importlib.util
import itertools
import math
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import pandas as pd
import tqdm

from cascades import arguments, drafters, files
from experiments import cli, records, reports
from experiments.analysis import comparisons, runs
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.records import metrics, results_version, unit_costs
from experiments.sweeps import (
  curve_plan,
  deciding,
  multihost,
  plan,
  prediction,
  workdirs,
  worker,
)
from experiments.sweeps.curve_plan import Curve
from experiments.sweeps.fields import PREDICTED, SweepConfig
from experiments.sweeps.plan import Point


class Sweep:
  """A sweep of one config; `run` calls its phases from top to bottom."""

  def __init__(
    self,
    config: Any,
    curves: Sequence[Curve],
    workdir: pathlib.Path,
    quiet: bool = False,
    fresh: bool = False,
    process: int | None = None,
    shard: tuple[int, int] | None = None,
    replan: Callable[..., list[Curve]] = lambda select: [],
  ):
    """Checks all that the user chose, and reads the examples.

    A shard, an index below a count, is each count-th point: it is decoded by
    itself, beside others in the same workdir, and nothing is reported.

    `replan` returns all curves, with those of values that are predicted.
    """
    self.config, self.workdir = SweepConfig.convert(config), workdir
    self._process, self._shard, self._quiet = process, shard, quiet
    self._fresh = fresh
    if self.config.wandb and not importlib.util.find_spec('wandb'):
      raise ValueError(arguments.missing('wandb', 'wandb', 'wandb'))
    self._tasks = plan.configured_tasks(self.config)
    self.curves = curve_plan.complete_curves(curves, self.config)
    self._examples, self._data = {}, {}
    for name, task in self._tasks.items():
      examples, data = plan.load_examples(self.config, task)
      self._examples[name], self._data[name] = examples, data
    self._settings = plan.run_settings(self.config, self.curves, self._data)
    self._requests: list[tuple[str, tuple, tuple]] = []
    self._replan = replan
    # Nothing is predicted yet.
    replan(lambda *request: self._requests.append(request))
    self._start: dict[str, Any] = {}
    self._index: int | None = None
    is_model = drafters.kind_of(self.config.drafter).is_language_model
    is_model &= process is None and math.prod(self.config.mesh) == 1
    if self._requests and not is_model:
      raise ValueError(
        'predicted: needs a drafter that is a model, and one device; give'
        ' numbers.'
      )
    # With fewer answers the interval of a prediction would be wide.
    is_large = min(map(len, self._examples.values())) >= prediction.GOAL[0]
    is_large &= any(x.baseline_model == 'verifier' for x in self.curves)
    self._gammas: list[int] = []
    if is_model and (self._requests or is_large):
      numbers = {x for _, _, gammas in self._requests for x in gammas}
      self._gammas = [*worker.COST_GAMMAS, *(numbers - {PREDICTED})]
    if process is not None:
      self._check_processes()
    line = deciding.shortfall(
      self.config, self.curves, self._tasks, self._examples
    )
    if line and not (process or shard):
      _say(line)

  def run(self) -> None:
    """Decodes the points that are missing in the workdir, and reports all."""
    # Devices are checked before the workdir is made and models are loaded.
    worker.make_mesh(self.config)
    cli.make_folder(self.workdir)
    self._files = workdirs.Workdir(self.workdir)
    # Points of shards are apart, and a point that is made twice is the same.
    with contextlib.nullcontext() if self._shard else self._files.lock():
      self._load()
      page = self.workdir / 'report/index.html'
      if self._gammas and not (self._shard or page.exists()):
        self._show_prediction()
      self._decode(self._assigned)
      if not self._shard:
        self._collect()
      self._share()
    if not self._shard:
      self._report()

  def follow(self) -> None:
    """Calls the worker as process 0 does, without a workdir."""
    loaded = worker.Worker(self.config, self.curves, self._tasks)
    points = {x.name: x for x in self.planned(loaded.facts())}
    while call := multihost.share():
      match call:
        case ['costs']:
          loaded.costs()
        case ['decode', names]:
          for name in names:
            loaded.decode(points[name], self._examples)
        case ['race', entrants]:
          raced = [(self.curves[i], x) for i, x in entrants]
          loaded.race(raced, self._raced())

  def planned(self, facts: Mapping[str, Any]) -> list[Point]:
    """Returns the points, which facts of a worker name."""
    return plan.plan_points(
      self.config.values,
      self.curves,
      tasks=self._tasks,
      examples=self._examples,
      facts=facts,
    )

  def _check_processes(self) -> None:
    """Checks that all processes plan the same sweep, on all devices."""
    hashes = [records.hash_examples(x) for x in self._examples.values()]
    code = results_version.name(), cli.versions()
    if not multihost.is_same(records.digest([self._settings, hashes, code])):
      raise ValueError(
        'distributed: the processes differ in config, examples or versions;'
        ' start all with the same command, files and versions.'
      )
    shape, count = self.config.mesh, jax.device_count()
    if math.prod(shape) != count:
      raise ValueError(
        f'mesh: {shape[0]} x {shape[1]} are {math.prod(shape)} devices, but the'
        f' processes have {count}; give numbers whose product is {count}.'
      )

  def _share(self, *call: Any) -> None:
    """Tells the other processes the next call of the worker; none ends them."""
    if self._process is not None:
      multihost.share(*call)

  def _load(self) -> None:
    """Loads the models, and sets the points and the unit costs."""
    self._worker = worker.Worker(self.config, self.curves, self._tasks, _say)
    self._facts = facts = self._worker.facts()
    self._points = self.planned(facts)
    if self._requests:
      self._select()
    index, count = self._shard or (0, 1)
    # Cascades of whole answers are made of the answers of the models alone.
    self._assigned = [
      point
      for point in self._points[index::count]
      if not (self._shard and point.curve.confidence)
    ]
    # A file may change, and so may a batch size that no point depends on.
    replaceable = ['clock', *(['data'] if self.config.file else [])]
    replaceable += [] if 'batch_size' in facts else ['batch_size']
    # Shards leave the plan to others, which may be at work.
    replaceable += [] if self._shard else ['points']
    # Made of the points by whoever makes the report; curves are selected once.
    names = ['costs.json', 'race.jsonl', 'corrected.csv', 'report/index.html']
    names += [] if self._requests else ['predicted.csv']
    derived = [self.workdir / name for name in names]
    with self._files.lock_plan():
      replaced = records.claim(
        self.workdir / 'config.json',
        self._settings | {'points': [point.name for point in self._points]},
        'run',
        not self._fresh,
        replaceable,
        dependent=derived,
        advice='delete it' if self._shard else 'replace its plan by --fresh',
        keep=self._shard is not None,
      )
    if replaced:
      _say(
        f'workdir: {self.workdir} had another {", ".join(replaced)}; all points'
        ' are kept; a second --fresh decodes those of this sweep again.'
      )
    elif self._fresh:
      paths = itertools.chain(*map(self._files.paths, self._points))
      for path in (*paths, *derived):
        path.unlink(missing_ok=True)
    self._provenance = {
      name: self._data[name]
      | {'examples': len(examples), 'hash': records.hash_examples(examples)}
      for name, examples in self._examples.items()
    }
    self._start = workdirs.provenance(
      facts,
      seed=self.config.seed,
      data=self._provenance,
      fresh=self._fresh and not replaced,
    )
    self._index = self._files.log(self._start)
    if self._shard:
      # Whoever makes the report writes the other files.
      return
    for name, examples in self._examples.items():
      records.write(self.workdir / f'examples/{name}.jsonl', examples)
    self._warn(records.read_starts(self.workdir))
    if derived[0].exists():
      text = files.read_bytes(derived[0], 'costs', 'delete it')
      self._measured = unit_costs.CostMeasurements.from_json(text)
    else:
      derived[1].unlink(missing_ok=True)
      self._measure_costs([])

  def _select(self) -> None:
    """Adds the curves of predicted values to the plan."""
    is_done = self._fresh or (self.workdir / 'predicted.csv').exists()
    if not is_done and (self.workdir / 'config.json').exists():
      # The plan of another sweep, which will be refused.
      return
    points = self._predict('predicted.csv')
    # Gammas whose unit costs are measured.
    points = points[points.gamma.isin(self._gammas)]
    curves = self._replan(functools.partial(curve_plan.select_points, points))
    self.curves = curve_plan.complete_curves(curves, self.config)
    # Unit costs are of all curves.
    self._worker.curves = self.curves
    self._settings = plan.run_settings(self.config, self.curves, self._data)
    self._points = self.planned(self._facts)

  def _predict(
    self, name: str, costs: unit_costs.Costs | None = None
  ) -> pd.DataFrame:
    """Predicts points from first answers of the verifier and other curves."""
    path, frames = self.workdir / name, []
    first = [point for point in self._points if not point.first]
    self._decode([x for x in first if x.curve.baseline_model == 'verifier'])
    if path.exists():
      return pd.read_csv(path)
    costs = costs or self._worker.costs(self._gammas).low
    for task, examples in self._examples.items():
      cli.say(f'predicting {task}')
      decoded = [
        (point.curve, records.read_traces(self.workdir, point.name))
        for point in first
        if point.task == task and self._files.is_done(point)
      ]
      some = examples[: max(point.last for point in first)]
      frame = self._worker.predict(some, decoded, costs, self._requests)
      frames.append(frame.drop(columns='acceptance').assign(task=task))
    with self._files.lock_plan():
      # Of several shards the first one's counts.
      if not path.exists():
        records.write_text(path, pd.concat(frames).to_csv(index=False))
    return pd.read_csv(path)

  def _show_prediction(self) -> None:
    """Prints predicted points, and makes a page before others are decoded."""
    try:
      frame = self._predict('predicted.csv', self._measured.costs)
    except ValueError as error:
      _say(f'not predicted: {error}')
      return
    for task, points in frame.groupby('task', sort=False):
      fronts = [
        curve_plan.select_points(points, x, (PREDICTED,), (PREDICTED,))
        for x in points.method.unique()
      ]
      table = prediction.table(pd.concat(fronts, ignore_index=True))
      _say(f'{task}, predicted: {prediction.sentence(points)}\n{table}')
    page = reports.write_report(runs.read(self.workdir))
    _say(f'Predicted:  {page}')

  def _warn(self, starts: Sequence[Mapping[str, Any]]) -> None:
    """Says which points lie in the workdir."""
    present = {path.stem for path in self.workdir.glob('records/*.jsonl')}
    names = {point.name for point in self._points}
    if count := len(present - names):
      _say(
        f'workdir: {count} points of other weights, data, code, versions or'
        f' devices lie in {self.workdir}; the report leaves them out.'
      )
    first = max((i for i, x in enumerate(starts) if x.get('fresh')), default=0)
    code = {(x.get('commit'), bool(x.get('dirty'))) for x in starts[first:]}
    if present & names and code != {(self._start['commit'], False)}:
      _say(
        f'workdir: {len(present & names)} points are of another commit, or of'
        ' files with changes; --fresh decodes them again.'
      )

  def _measure_costs(self, times: Sequence[unit_costs.CostMeasurement]) -> None:
    """Measures unit costs, and adds them to earlier measurements."""
    cli.say('measuring unit costs')
    self._share('costs')
    times = [*times, self._worker.costs(self._gammas)]
    self._measured = unit_costs.CostMeasurements(times=times)
    text = self._measured.model_dump_json(indent=2) + '\n'
    records.write_text(self.workdir / 'costs.json', text)

  def _decode(self, points: Sequence[Point]) -> None:
    """Decodes those of some points that are missing."""
    done = {point for point in self._points if self._files.is_done(point)}
    missing = [point for point in points if point not in done]
    if not missing:
      return
    # Cascades of whole answers are made of the others.
    missing.sort(key=lambda point: bool(point.curve.confidence))

    def state() -> str:
      return f'{len(done)} of {len(self._points)} points'

    total = sum(point.num_answers for point in missing)
    names = [point.name for point in missing if not point.curve.confidence]
    self._share('decode', names)
    with cli.progress(total, state(), self._quiet) as bar:
      bar.unit = ' answers'
      try:
        for point in missing:
          # By a shard, meanwhile; several processes agree on their points.
          if self._process is None and self._files.is_done(point):
            bar.update(point.num_answers)
            done.add(point)
            continue
          if point.curve.confidence:
            decoded = worker.cascades(point, self._points, self._files)
            bar.update(point.num_answers)
          else:
            decoded = self._worker.decode(point, self._examples, bar.update)
          size = self._worker.batch_size
          if size < self._facts.get('batch_size', 0):
            self._start.setdefault('halved', {})[point.name] = size
            self._files.log(self._start, self._index)
          self._files.write_point(point, decoded)
          done.add(point)
          bar.set_description(state(), False)
      except KeyboardInterrupt:
        raise cli.StoppedError(
          f'stopped: {state()} are done; the same command'
          f'{" without --fresh" * self._fresh} resumes the sweep.'
        ) from None
      bar.refresh()

  def _collect(self) -> None:
    """Computes the summary, and adds timings and the decision."""
    if len(self._measured.times) == 1:
      # A busy neighbour slows blocks more than single tokens.
      self._measure_costs(self._measured.times)
    if (self.workdir / 'predicted.csv').exists():
      # Again, from answers of the decoded points too.
      self._predict('corrected.csv', self._measured.costs)
    self._records = {
      point.name: self._files.read_records(point) for point in self._points
    }
    run = runs.read(self.workdir, self._records)
    text = run.summary.to_csv(index=False)
    records.write_text(self.workdir / 'summary.csv', text)
    self._gathered = runs.gather(run)
    race = self.workdir / 'race.jsonl'
    if self.config.clock and not race.exists():
      records.write(race, self._race())
    self._decision, path = None, self.workdir / 'decision.json'
    path.unlink(missing_ok=True)
    if self.config.decision:
      self._decision = deciding.decide(
        self.config,
        self._points,
        self._records,
        tasks=self._tasks,
        costs=self._measured.costs,
        facts=self._facts,
        data=self._provenance,
        say=_say,
      )
    if self._decision:
      deciding.save(self._decision, path)
    if self.config.wandb:
      self._log_summary(run.summary)
    self._files.log(self._start | {'ended': workdirs.now()}, self._index)

  def _race(self) -> list[records.Record]:
    """Times the models alone, strict decoding and the fastest point."""
    cli.say('timing points against each other')
    # A cascade of whole answers decodes nothing itself.
    curves = {
      (record.variant, record.gamma): point.curve
      for point in self._points
      if not point.curve.confidence
      for record in self._records[point.name][:1]
    }
    entrants = [
      (curves[row.variant, row.gamma], float(row.lenience))
      for row in comparisons.entrants(self._gathered)
      if (row.variant, row.gamma) in curves
    ]
    self._share('race', [[self.curves.index(c), x] for c, x in entrants])
    return self._worker.race(entrants, self._raced())

  def _raced(self) -> dict[str, Sequence]:
    """Returns the examples that the race times."""
    return {k: x[: self.config.clock] for k, x in self._examples.items()}

  def _log_summary(self, summary: pd.DataFrame) -> None:
    """Logs a row for each point to Weights & Biases; no error ends a sweep."""
    import wandb  # pyright: ignore[reportMissingImports]

    first = records.read_starts(self.workdir)[0]
    try:
      # The library would otherwise print, and prompt for a login.
      wandb.setup(wandb.Settings(silent=True))
      with wandb.init(
        project=os.environ.get('WANDB_PROJECT', 'cascades'),
        # The same run when the command is repeated.
        id=records.digest([self._settings, first['started']])[:8],
        dir=str(self.workdir.resolve()),
        config=self._settings,
        reinit='create_new',
        settings=wandb.Settings(
          silent=True,
          console='off',
          symlink=False,
          finish_timeout=60,
          finish_timeout_raises=True,
        ),
      ) as run:
        tags = summary.task + '/' + metrics.variants(summary)
        tags += ' gamma ' + summary.gamma.astype(str)
        rows = summary.select_dtypes('number').to_dict('records')
        for tag, row in zip(tags, rows, strict=True):
          run.log({f'{tag}/{k}': x for k, x in row.items() if pd.notna(x)})
      _say(f'wandb: {run.url or run.dir}')
    except Exception as error:
      _say(
        f'wandb: failed ({cli.one_line(error)}); log in with `wandb login`, or'
        ' set WANDB_MODE=offline, and run the same command again.'
      )

  def _report(self) -> None:
    """Writes the page, and prints where the results are."""
    run = runs.read(self.workdir, self._records)
    page = reports.write_report(run)
    # A decision says by itself what the verifier cannot do.
    table = self._gathered.table
    unsolved = comparisons.unsolved(table)
    first = [self._decision.sentence] if self._decision else unsolved
    first += comparisons.on_the_clock(comparisons.race(run, AnalysisConfig()))
    first += comparisons.scores(table)
    for line in [*first, *run.mixed]:
      print(f'\n{line}')
    if table.failed.any():
      print(
        f'Examples that failed: {table.failed.sum()}, in'
        f' {(table.failed > 0).sum()} points; their records say why.'
      )
    print(f'All points: {self.workdir / "summary.csv"}\nReport:     {page}')
    if self._decision:
      print(f'Decision:   {self.workdir / "decision.json"}')


def _say(text: str) -> None:
  """Prints a line for the user above the progress bar."""
  tqdm.tqdm.write(text, file=sys.stderr)
