"""Decodes every point of a sweep, and reports quality against cost.

Command: python -m experiments.sweep --config=configs/quickstart.py
Shows: a progress bar, a table, and where the report lies.

`plan` says what the points are, `launchers` who decodes them, `worker` how, and
`workdirs` where it is kept. What is done is kept: the same command goes on
where a run was stopped, however that was, and ends with the same records.
"""

import contextlib
import itertools
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

import tqdm
from absl import app, flags
from ml_collections import config_flags

from cascades.untrusted import display
from experiments import cli, records
from experiments.sweeps import fields, plan, remote

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'What to run, such as configs/quickstart.py.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir',
  None,
  'Where results go, a folder or a URL such as gs://bucket/run; by default'
  ' runs/<name of the config>.',
)
_LAUNCHER = flags.DEFINE_string(
  'launcher',
  'local',
  "Who decodes: local, this process; ray, the cluster that the config's field"
  ' ray names, or one on this machine.',
)
_QUIET = flags.DEFINE_bool(
  'quiet', False, 'For logs: no progress, and only the last lines.'
)


def main() -> None:
  """Runs the command."""
  if _CONFIG.value is None:
    raise app.UsageError(
      '--config: name a config, such as --config=configs/quickstart.py.'
    )
  config = _CONFIG.value
  flag = flags.FLAGS['config']
  # A path, and what stands behind a colon is for `get_config`.
  named = config_flags.get_config_filename(flag)
  module = cli.load_config_module(named.partition(':')[0])
  chosen = plan.curves(config, module, config_flags.get_override_values(flag))
  how = dict(launcher=_LAUNCHER.value, quiet=_QUIET.value)
  if _WORKDIR.value and remote.is_url(_WORKDIR.value):
    mirror = remote.Mirror(_WORKDIR.value)
    with mirror.held():
      run(config, chosen, mirror.folder, **how, kept=mirror.push)
    print(f'Copied to:  {display.printable(mirror.url)}')
    return
  workdir = pathlib.Path(
    _WORKDIR.value or plan.default_workdir(named, bool(config.get('tiny')))
  )
  run(config, chosen, workdir, **how)


@contextlib.contextmanager
def _hearing_ctrl_c(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
  """Ctrl-C: the first ends a sweep after the points at work, the second now.

  Yields:
    Whether there was one.
  """
  heard = []

  def hear(number, frame):
    if heard:
      raise KeyboardInterrupt
    heard.append(number)
    say(
      'stopping: what is being decoded is finished and kept; once more stops at'
      ' once.'
    )

  try:
    before = signal.signal(signal.SIGINT, hear)
  except ValueError:
    # No main thread, so that there is nothing to hear.
    before = None
  try:
    yield lambda: bool(heard)
  finally:
    if before is not None:
      signal.signal(signal.SIGINT, before)


def run(
  config,
  chosen: Sequence[plan.Curve],
  workdir: pathlib.Path,
  launcher: str = 'local',
  quiet: bool = False,
  kept: Callable[[], None] = lambda: None,
) -> None:
  """Runs a sweep in a workdir, or what of it is missing there.

  Args:
    config: Fields; see `configs`.
    chosen: From `plan.curves`.
    workdir: Made if need be.
    launcher: Key of `launchers.LAUNCHERS`.
    quiet: Whether to show no progress.
    kept: Is called as a point is kept.

  Raises:
    ValueError: Something cannot be run; says what to do.
    cli.StoppedError: Ctrl-C ended it.
  """
  from experiments.records import metrics
  from experiments.sweeps import launchers, trackers, workdirs

  fields.check(config, complete=True)
  config = plan.shrunk(config)
  tasks, loaded = _asked(config, chosen, launcher)
  chosen = plan.with_models_alone(_decodable(config, chosen))
  workdir, tracked = _place(config, workdir, launcher)
  bar = cli.progress(0, 'loading the models', quiet=quiet)

  def say(text: str) -> None:
    bar.write(text, file=sys.stderr)

  files = workdirs.Workdir(workdir)
  with contextlib.ExitStack() as stack:
    stack.callback(bar.close)
    stack.enter_context(files.held())
    settings = _settings(config, chosen, loaded)
    files.claim(settings)
    shown = trackers.Trackers(tracked, files, settings, say)
    stack.callback(shown.close)
    team = launchers.LAUNCHERS[launcher](config, chosen, tasks, say)
    stack.callback(team.close)
    facts = team.facts()
    examples = {name: found for name, (found, _) in loaded.items()}
    points = plan.points(config.to_dict(), chosen, tasks, examples, facts)
    _tell_code(files, facts, say)
    _put_aside(files, points, say)
    measured = files.costs(facts) or _measured(files, team, bar)
    data = _keep_examples(files, loaded)
    files.log(workdirs.provenance(facts, seed=config.seed, data=data))

    def tell():
      shown.tell(points, measured.costs)
      kept()

    shown.tell(points, measured.costs)
    with _hearing_ctrl_c(say) as stopped:
      done = _decode(files, points, examples, team, bar, stopped, tell)
    if done < len(points):
      raise cli.StoppedError(
        f'stopped: {done} of {len(points)} points are done; the same command'
        ' goes on from there.'
      )
    if len(measured.times) == 1:
      # A busy neighbour slows blocks more than single tokens.
      measured = _measured(files, team, bar, *measured.times)
    lines = files.records(points)
    every = itertools.chain.from_iterable(lines.values())
    frame = metrics.summarize(every, measured.costs)
    records.write_text(workdir / 'summary.csv', frame.to_csv(index=False))
    shown.summarise(frame)
    bar.set_description('looking at what is shown')
    _look(files, points, lines, team, say)
    _race(config, files, points, lines, examples, team, bar)
    files.log_end()
  _report(files.path, frame, team.usage)


def _put_aside(files, points, say: Callable[[str], None]) -> None:
  """Moves points that are not of this run, and says how many there were."""
  if left := files.sort_out(points):
    files.write('race.jsonl', [])
    say(
      f'workdir: {left} points of other weights, data, code or versions lie'
      f' in {files.path}/stale now.'
    )


def _tell_code(files, facts, say: Callable[[str], None]) -> None:
  """Says what the code is, where it is no results version or was another."""
  from experiments.records import versions

  now, before = facts['code'], files.code()
  if not versions.is_version(now):
    say(
      f'code: {versions.describe(now)}; points are named by that source, and'
      ' another edit makes them again.'
    )
  if before not in (None, now):
    say(
      f'workdir: it was decoded with {versions.describe(before)}; what that'
      f' made is put aside, and made again with {versions.describe(now)}.'
    )


def _asked(
  config, chosen: Sequence[plan.Curve], launcher: str
) -> tuple[dict, dict]:
  """Whatever the user can get wrong, looked at before a model is loaded.

  Returns:
    The tasks by name; and of each its examples, and what says which they are.
  """
  from experiments.sweeps import launchers, trackers

  tasks = plan.tasks_of(config)
  plan.check(chosen, config)
  if launcher not in launchers.LAUNCHERS:
    raise ValueError(
      f'launcher: no launcher {launcher!r}; there are'
      f' {", ".join(launchers.LAUNCHERS)}.'
    )
  trackers.check(tuple(config.get('trackers', ())))
  return tasks, {
    name: plan.load_examples(config, task) for name, task in tasks.items()
  }


def _place(
  config, workdir: pathlib.Path, launcher: str
) -> tuple[pathlib.Path, tuple[str, ...]]:
  """Where this process writes, a folder that is there; and its trackers."""
  from experiments.sweeps import worker

  tracked = tuple(config.get('trackers', ()))
  if launcher == 'local':
    # Elsewhere the devices are not this process's, and it had better let them.
    worker.make_mesh(config)
    if worker.host_folder():
      # The first host tells what all of them decode.
      workdir, tracked = workdir / worker.host_folder(), ()
  cli.make_folder(workdir)
  return workdir, tracked


def _measured(files, team, bar: tqdm.tqdm, *before):
  """Unit costs of before, and those of now, in a workdir."""
  from experiments.records import metrics

  bar.set_description('measuring unit costs')
  measured = metrics.CostMeasurements((*before, team.costs()))
  files.keep_costs(measured)
  return measured


def _keep_examples(files, loaded) -> dict[str, dict]:
  """Writes what is asked; of each task, what tells its examples from others."""
  data = {}
  for name, (found, told) in loaded.items():
    files.write(f'examples/{name}.jsonl', found)
    data[name] = told | {
      'examples': len(found),
      'hash': records.hash_examples(found),
    }
  return data


def _decodable(config, chosen: Sequence[plan.Curve]) -> Sequence[plan.Curve]:
  """The curves that the drafter can be in: not alone, if it is no model.

  Raises:
    ValueError: There are none.
  """
  from cascades.drafters import pairing

  if pairing.is_model(config.drafter):
    return chosen

  def is_alone(curve):
    return curve.alone == 'drafter' or curve.confidence

  left = [curve.name for curve in chosen if is_alone(curve)]
  kept = [curve for curve in chosen if not is_alone(curve)]
  if left:
    print(
      f'drafter: {config.drafter} cannot answer alone; left out'
      f' {", ".join(left)}.',
      file=sys.stderr,
    )
  if not kept:
    raise ValueError(
      f'drafter: {config.drafter} cannot answer alone, and no other curve is'
      ' left; add one that it drafts for.'
    )
  return kept


def _settings(config, chosen, loaded) -> dict:
  """What a workdir's results are of, as it is kept there."""
  from cascades.drafters import pairing

  fields = {
    name: value
    for name, value in config.to_dict().items()
    # A run may be shown elsewhere long after it was decoded.
    if name not in (*plan.OF_CURVES, 'trackers', 'clock')
  }
  data = {name: data for name, (_, data) in loaded.items() if data}
  # Bundled tasks are told by their name and the seed.
  fields |= {'data': data} if data else {}
  # What became of the fields that make curves.
  fields['curves'] = [curve.fields for curve in chosen]
  if pairing.kind_of(config.drafter).looks_at_block:
    # For whoever reads the results, and has no such drafter.
    fields['block_by_block'] = True
  return records.plain(fields)


def _decode(
  files, points, examples, team, bar: tqdm.tqdm, stopped, kept
) -> int:
  """Makes what is missing; how many points are done then."""
  from experiments.sweeps import worker

  made = {point for point in points if files.made(point) is not None}
  missing = [point for point in points if point not in made]

  def answers(point):
    return (point.last - point.first) * max(1, len(point.curve.leniences))

  def shard(point):
    return examples[point.task][point.first : point.last]

  bar.reset(total=sum(map(answers, missing)))
  bar.unit = ' answers'

  def show():
    bar.set_description(f'{len(made)} of {len(points)} points')

  show()
  jobs = [
    (point, shard(point)) for point in missing if not point.curve.confidence
  ]
  for point, found in team.decode(jobs, bar.update, stopped):
    files.keep(point, found)
    kept()
    made.add(point)
    show()
  alone = {
    (point.curve.alone, point.task, point.first): point
    for point in points
    if point.curve.alone
  }
  for point in missing:
    if not point.curve.confidence or stopped():
      continue
    of_models = (
      files.made(alone[model, point.task, point.first])
      for model in ('drafter', 'verifier')
    )
    files.keep(point, worker.combine(point.curve, *of_models))
    kept()
    made.add(point)
    bar.update(answers(point))
    show()
  return len(made)


def _look(files, points, lines, team, say: Callable[[str], None]) -> None:
  """Makes the views of what the page shows, as far as they are not there."""
  import jax

  from experiments.analysis import example_selection

  curves = {point.name: point.curve for point in points}
  every = example_selection.with_counterparts(
    example_selection.select_answers(files.path, lines)
  )
  missing: dict[tuple, list] = {}
  for each in every:
    if each.record.gamma and each.view is None:
      key = curves[each.point], each.record.point[1:]
      missing.setdefault(key, []).append(each)
  found = []
  for (curve, _), alike in missing.items():
    asked = [(s.point, s.example.prompt, s.trace) for s in alike]
    try:
      found += team.views(curve, alike[0].record.lenience, asked)
    except jax.errors.JaxRuntimeError as error:
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      say('memory: too little to say how likely the tokens shown were.')
  views = {view.key: view for view in found}
  for task in {s.record.task for s in every} if views else ():
    of_task = [s for s in every if s.record.task == task]
    kept = [s.view or views.get(s.key) for s in of_task]
    files.write(f'views/{task}.jsonl', [view for view in kept if view])


def _race(config, files, points, lines, examples, team, bar: tqdm.tqdm) -> None:
  """Times the models alone, strict decoding and the fastest point in turns."""
  from experiments.analysis import headline, runs

  count = config.get('clock', 0)
  if not count:
    return
  # Neither whole answers nor sequential cascades are decoded as they would be.
  curves = {
    (record.variant, record.gamma): point.curve
    for point in points
    if not point.curve.confidence
    for record in lines[point.name][:1]
  }
  rows = [
    row
    for row in headline.entrants(runs.gather([runs.read(files.path)]))
    if (row.variant, row.gamma) in curves
  ]
  arms = [(curves[row.variant, row.gamma], float(row.lenience)) for row in rows]
  asked = {name: found[:count] for name, found in examples.items()}
  ids = sorted(example.id for found in asked.values() for example in found)
  # nan is not equal to itself.
  wanted = {
    (row.variant, row.gamma, repr(float(row.lenience))): ids for row in rows
  }
  there: dict[tuple, list[str]] = {}
  for r in records.read_race(files.path):
    key = r.variant, r.gamma, repr(r.lenience)
    there.setdefault(key, []).append(r.id)
  if {key: sorted(found) for key, found in there.items()} != wanted:
    bar.set_description('timing arms against each other')
    files.write('race.jsonl', team.race(arms, asked))


def _report(workdir: pathlib.Path, frame, usage) -> None:
  """Writes the page, and prints what is best."""
  from experiments import reports
  from experiments.analysis import slices

  try:
    page = reports.write_report(workdir)
  except Exception as error:
    # What was decoded is there, whatever a page makes of it.
    raise ValueError(
      f'report: all points are kept in {workdir}, but the page could not be'
      f' written ({type(error).__name__}: {error}); make it again with'
      f' python -m experiments.report --workdir={workdir}.'
    ) from error
  shown = slices.best_points(frame)[
    'task variant gamma lenience quality rejection_rate block_efficiency'
    ' relative_latency'.split()
  ]
  # Where there are but oracles, nothing is best.
  if len(shown):
    print(
      "\nEach method's fastest point at the verifier's quality, else its best:"
    )
    print(
      shown.to_string(
        index=False,
        na_rep='-',
        float_format='{:.3f}'.format,
        formatters={'lenience': '{:g}'.format},
      )
    )
  if frame.failed.any():
    print(
      f'Examples that failed: {frame.failed.sum()}, in'
      f' {(frame.failed > 0).sum()} points; their records say why.'
    )
  if usage.rows:
    print(
      f'Rows kept busy: {usage.utilization:.1%} of {usage.rows}; reading'
      f' prompts {usage.prefill_s:.0f} s, decoding {usage.decode_s:.0f} s.'
    )
  print(f'All points: {workdir / "summary.csv"}\nReport:     {page}')


if __name__ == '__main__':
  cli.run(main)
