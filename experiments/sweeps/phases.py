"""The phases of a sweep: plan, open, load, decode, collect, report.

Points that are done stay in the workdir. The same command therefore resumes a
sweep that was stopped in any way, and ends with the same records.
"""

import contextlib
import functools
import importlib.util
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from cascades import arguments
from cascades.drafters import kind_of
from experiments import cli, records, reports
from experiments.analysis import comparisons, runs
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.records import results_version, unit_costs
from experiments.sweeps import (
  curve_plan,
  deciding,
  fields,
  multihost,
  outcomes,
  plan,
  preflight,
  workdirs,
  worker,
)
from experiments.sweeps.curve_plan import Curve
from experiments.sweeps.plan import Point


class Sweep:
  """A sweep of one config; `run` calls its phases from top to bottom."""

  def __init__(
    self,
    config: Any,
    curves: Sequence[Curve],
    workdir: pathlib.Path,
    quiet: bool = False,
    process: int | None = None,
    shard: tuple[int, int] | None = None,
  ):
    """Keeps the arguments; nothing is checked or loaded yet.

    A shard, an index below a count, is each count-th point: it is decoded by
    itself, beside others in the same workdir, and nothing is reported.
    """
    self._process, self._shard, self._quiet = process, shard, quiet
    self.config, self.curves, self.workdir = config, curves, workdir

  def run(self) -> None:
    """Decodes the points that are missing in the workdir, and reports all."""
    self.plan()
    with contextlib.ExitStack() as stack:
      self.open(stack)
      self.load()
      self.decode()
      if not self._shard:
        self.collect()
      self._share()
    if not self._shard:
      self.report()

  def plan(self) -> None:
    """Checks all that the user chose, and reads the examples."""
    fields.check(self.config, complete=True)
    if self.config.get('wandb') and not importlib.util.find_spec('wandb'):
      raise ValueError(arguments.missing('wandb', 'wandb', 'wandb'))
    self._tasks = plan.configured_tasks(self.config)
    if not kind_of(self.config.drafter).is_language_model:
      self.curves = curve_plan.without_drafter_alone(
        self.curves, self.config.drafter
      )
    curve_plan.check_curves(self.curves)
    self._examples, self._data = {}, {}
    for name, task in self._tasks.items():
      examples, data = plan.load_examples(self.config, task)
      self._examples[name], self._data[name] = examples, data
    self.curves = curve_plan.add_model_baselines(self.curves, self.config)
    if self._process is not None:
      self._check_processes()

  def follow(self) -> None:
    """Calls the worker as process 0 does, without a workdir."""
    self.plan()
    loaded = worker.Worker(self.config, self.curves, self._tasks)
    points = {x.name: x for x in self.planned(loaded.facts())}
    while call := multihost.share():
      match call:
        case ['costs']:
          loaded.costs()
        case ['preview']:
          loaded.preview(self._examples)
        case ['decode', names]:
          list(loaded.decode([points[x] for x in names], self._examples))
        case ['race', entrants]:
          raced = [(self.curves[i], x) for i, x in entrants]
          loaded.race(raced, self._raced())

  def open(self, stack: contextlib.ExitStack) -> None:
    """Opens the workdir."""
    # Devices are checked before the workdir is made and models are loaded.
    worker.make_mesh(self.config)
    cli.make_folder(self.workdir)
    self._bar = cli.progress(3, 'loading the models', quiet=self._quiet)
    stack.callback(lambda: self._bar.close())
    self._files = workdirs.Workdir(self.workdir)
    name = '-'.join(map(str, ('.lock', *(self._shard or ()))))
    stack.enter_context(self._files.lock(name))
    settings = plan.run_settings(self.config, self.curves, self._data)
    self._settings = settings
    # A file may change: its points are named by their examples.
    replaceable = ('data',) if 'file' in self.config else ()
    self._claim = functools.partial(self._files.claim, settings, replaceable)
    self._claim(write=False)
    if line := deciding.shortfall(
      self.config, self.curves, self._tasks, self._examples
    ):
      self._say(line)

  def load(self) -> None:
    """Loads the models, and sets the points and the unit costs."""
    self._worker = worker.Worker(
      self.config, self.curves, self._tasks, self._say
    )
    self._facts = facts = self._worker.facts()
    self._points = self.planned(facts)
    self._claim()
    if self._shard:
      # Whoever makes the report writes the other files.
      return
    self._files.delete_parts()
    if count := self._files.count_others(self._points):
      self._say(
        f'workdir: {count} points of other weights, data, code or versions lie'
        f' in {self.workdir}; the report leaves them out.'
      )
    self._measured = self._files.read_costs(facts)
    self._bar.update(1)
    if self._measured is None:
      # A race was of other weights, code or versions, too.
      (self.workdir / 'race.jsonl').unlink(missing_ok=True)
      self._measure_costs()
    self._provenance = self._write_examples()
    seed, data = self.config.seed, self._provenance
    start = workdirs.provenance(facts, seed=seed, data=data)
    points = [point.name for point in self._points]
    self._files.log_start(start | {'points': points})

  def estimate(self) -> None:
    """Says the facts of the sweep, measured on eight prompts."""
    self._bar.update(1)
    self._bar.set_description('decoding eight prompts')
    self._share('preview')
    answers, compile_s = self._worker.preview(self._examples)
    total = sum(point.num_answers for point in self._points)
    for sentence in preflight.facts(
      answers, self._measured.costs, total, compile_s * len(self.curves)
    ):
      self._say(sentence)

  def decode(self) -> None:
    """Decodes the points that are missing."""
    done = {point for point in self._points if self._files.is_done(point)}
    index, count = self._shard or (0, 1)
    # Cascades of whole answers are made of the answers of the models alone.
    planned = [
      point
      for point in self._points[index::count]
      if not (self._shard and point.curve.confidence)
    ]
    missing = [point for point in planned if point not in done]

    def state() -> str:
      return f'{len(done)} of {len(self._points)} points'

    def keep(point: Point, decoded: Sequence[records.Outcome]) -> None:
      self._files.write_point(point, decoded)
      done.add(point)
      self._bar.set_description(state(), False)

    if not (done or self._shard) and self.config.get('preflight'):
      self.estimate()
    # The time that is left is estimated from here on.
    self._bar.leave = False
    self._bar.close()
    total = sum(point.num_answers for point in missing)
    self._bar = cli.progress(total, state(), self._quiet)
    self._bar.unit = ' answers'
    decoding = [point for point in missing if not point.curve.confidence]
    self._share('decode', [point.name for point in decoding])
    with cli.stop_on_ctrl_c(self._say) as is_stopping:
      for point, decoded in self._worker.decode(
        decoding, self._examples, self._bar.update, is_stopping
      ):
        keep(point, decoded)
      for point in missing:
        if point.curve.confidence and not is_stopping():
          keep(point, outcomes.of_answers(point, self._points, self._files))
          self._bar.update(point.num_answers)
    self._bar.refresh()
    if not done.issuperset(planned):
      raise cli.StoppedError(
        f'stopped: {state()} are done; the same command resumes the sweep.'
      )

  def collect(self) -> None:
    """Computes the summary, and adds timings and the decision."""
    if len(self._measured.times) == 1:
      # A busy neighbour slows blocks more than single tokens.
      self._measure_costs()
    self._records = self._files.read_records(self._points)
    run = runs.read(self.workdir, self._records)
    text = run.summary.to_csv(index=False)
    records.write_text(self.workdir / 'summary.csv', text)
    self._gathered = runs.gather(run)
    self._add_race()
    self._decide()
    if self.config.get('wandb'):
      from experiments.sweeps import wandb_run

      wandb_run.log(self.workdir, self._settings, run.summary, self._say)
    self._files.log_end()

  def report(self) -> None:
    """Writes the page, and prints where the results are."""
    try:
      page = reports.write_report(runs.read(self.workdir, self._records))
    except Exception as error:
      raise ValueError(
        f'report: all points are kept in {self.workdir}, but the page cannot be'
        f' written ({type(error).__name__}: {error}); write it with python -m'
        f' experiments.report --workdir={self.workdir}.'
      ) from error
    # A decision says by itself what the verifier cannot do.
    frame = comparisons.compare(self._gathered, AnalysisConfig())
    unsolved = comparisons.unsolved(frame)
    for line in [self._decision.sentence] if self._decision else unsolved:
      print(f'\n{line}')
    if frame.failed.any():
      print(
        f'Examples that failed: {frame.failed.sum()}, in'
        f' {(frame.failed > 0).sum()} points; their records say why.'
      )
    print(f'All points: {self.workdir / "summary.csv"}\nReport:     {page}')
    if self._decision:
      print(f'Decision:   {self.workdir / "decision.json"}')

  def _say(self, text: str) -> None:
    """Prints a line for the user above the progress bar."""
    self._bar.write(text, file=sys.stderr)

  def _check_processes(self) -> None:
    """Checks that all processes plan the same sweep, on all devices."""
    hashes = [records.hash_examples(x) for x in self._examples.values()]
    settings = plan.run_settings(self.config, self.curves, self._data)
    code = results_version.name()
    digest = records.digest([settings, hashes, code, cli.versions()])
    if not multihost.is_same(digest):
      raise ValueError(
        'distributed: the processes differ in config, examples or versions;'
        ' start all with the same command, files and versions.'
      )
    shape, count = plan.mesh_shape(self.config), jax.device_count()
    if math.prod(shape) != count:
      raise ValueError(
        f'mesh: {shape[0]} x {shape[1]} are {math.prod(shape)} devices, but the'
        f' processes have {count}; give numbers whose product is {count}.'
      )

  def _share(self, *call: Any) -> None:
    """Tells the other processes the next call of the worker; none ends them."""
    if self._process is not None:
      multihost.share(*call)

  def planned(self, facts: Mapping[str, Any]) -> list[Point]:
    """Returns the points, which facts of a worker name."""
    return plan.plan_points(
      self.config.to_dict(),
      self.curves,
      tasks=self._tasks,
      examples=self._examples,
      facts=facts,
    )

  def _measure_costs(self) -> None:
    """Measures unit costs, and adds them to earlier measurements."""
    self._bar.set_description('measuring unit costs')
    self._share('costs')
    times = self._measured.times if self._measured else []
    times = [*times, self._worker.costs()]
    costs = unit_costs.CostMeasurements(times=times)
    text = costs.model_dump_json(indent=2) + '\n'
    records.write_text(self.workdir / 'costs.json', text)
    self._measured = costs

  def _write_examples(self) -> dict[str, dict[str, Any]]:
    """Writes the examples; returns the provenance of each task's."""
    for name, examples in self._examples.items():
      records.write(self.workdir / f'examples/{name}.jsonl', examples)
    return {
      name: self._data[name]
      | {'examples': len(examples), 'hash': records.hash_examples(examples)}
      for name, examples in self._examples.items()
    }

  def _add_race(self) -> None:
    """Times the models alone, strict decoding and the fastest point."""
    if not self.config.get('clock', 0):
      return
    # A cascade of whole answers decodes nothing itself.
    curves = {
      (record.variant, record.gamma): point.curve
      for point in self._points
      if not point.curve.confidence
      for record in self._records[point.name][:1]
    }
    rows = [
      row
      for row in comparisons.entrants(self._gathered)
      if (row.variant, row.gamma) in curves
    ]
    examples, timed = self._raced(), records.read_race(self.workdir)
    ids = [x.id for of_task in examples.values() for x in of_task]

    def key(row: Any, name: str) -> tuple[str, int, str, str]:
      # nan differs from itself.
      return row.variant, row.gamma, repr(float(row.lenience)), name

    expected = {key(row, name) for row in rows for name in ids}
    if {key(record, record.id) for record in timed} != expected:
      self._bar.set_description('timing points against each other')
      entrants = [(curves[x.variant, x.gamma], float(x.lenience)) for x in rows]
      self._share('race', [[self.curves.index(c), x] for c, x in entrants])
      race = self._worker.race(entrants, examples)
      records.write(self.workdir / 'race.jsonl', race)

  def _raced(self) -> dict[str, Sequence]:
    """Returns the examples that the race times."""
    count = self.config.clock
    return {name: x[:count] for name, x in self._examples.items()}

  def _decide(self) -> None:
    """Chooses a setting, and writes it, if the config asks for a decision."""
    self._decision = None
    (self.workdir / 'decision.json').unlink(missing_ok=True)
    if not self.config.get('decision'):
      return
    self._decision = deciding.decide(
      self.config,
      self._points,
      self._records,
      tasks=self._tasks,
      costs=self._measured.costs,
      facts=self._facts,
      data=self._provenance,
      say=self._say,
    )
    if self._decision:
      deciding.save(self._decision, self.workdir / 'decision.json')
