"""Trackers of a sweep: TensorBoard and Weights & Biases, where a config asks.

What lies in a workdir is the truth; a tracker is told of it, all of it again at
each start, so that the same command shows in a new tracker what was decoded
long ago. None of them can end a sweep: one that fails is left out. To add one,
write a class like `Tracker`, and name it in TRACKERS.
"""

import contextlib
import importlib.util
import json
import math
import os
import pathlib
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pandas as pd

from cascades import extras
from experiments import cli, records
from experiments.analysis import slices
from experiments.records import metrics
from experiments.sweeps import plan, workdirs

# What a row of the summary says beside what tells it from the others.
_NUMBERS = [
  'lenience',
  *metrics.summary_columns()[metrics.summary_columns().index('n') :],
]
# What is said of the best points.
_BEST = 'task variant gamma lenience quality relative_latency'.split()


class Tracker(Protocol):
  """Shows a sweep elsewhere.

  Attributes:
    package: What has to be installed.
  """

  package: str

  def __init__(
    self,
    folder: pathlib.Path,
    settings: Mapping[str, Any],
    say: Callable[[str], None],
  ):
    """Begins, before a model is loaded.

    Args:
      folder: Where files may be written: the workdir's, for all trackers.
      settings: Fields of the sweep and its curves, which `config.json` holds.
      say: Tells the user.

    Raises:
      ValueError: The user has to do something first; says what.
    """

  def rows(
    self,
    task: str,
    curve: str,
    rows: Sequence[Mapping[str, float]],
    whole: bool,
  ) -> None:
    """Tells of a curve, in place of what was told of it before.

    Args:
      task: Its task.
      curve: Its name.
      rows: For each lenience, in their order, what the summary says of it, from
        the examples that are done; what is not known (nan) is left out.
      whole: Whether these are all of its examples, so that nothing will change.
    """

  def summary(self, summary: pd.DataFrame, best: pd.DataFrame) -> None:
    """Tells of a sweep that is done: all of its rows, and the best of each."""

  def close(self) -> None:
    """Ends, also where the sweep did not."""


class TensorBoard:
  """Event files: a run for each curve of a task, a step for each lenience.

  Curves of a task lie in the same charts, from strict to drafter-only; a
  lenience, which is no integer, is a chart of its own.
  """

  package = 'tensorboard'

  def __init__(self, folder, settings, say):
    del say
    self._folder = folder / 'tensorboard'
    # TensorBoard reads the files of a run in the order of their names.
    self._name = f'events.out.tfevents.{time.time():.6f}.{socket.gethostname()}'
    text = json.dumps(settings, indent=2)
    code = '\n'.join(f'    {line}' for line in text.split('\n'))
    self._about = {'settings': code}
    self._tell_about()

  def _tell_about(self) -> None:
    from tensorboard.plugins.text.summary_v2 import text_pb

    self._write('', [[text_pb(*item) for item in self._about.items()]])

  def _write(self, run: str, steps: Sequence[Sequence[Any]]) -> None:
    """Replaces what a run says.

    Args:
      run: Its folder.
      steps: Summaries of its first step, of the next, and so on.
    """
    # No TensorFlow, nor a thread whose errors nobody would hear.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.record_writer import RecordWriter

    now, path = time.time(), self._folder / run / self._name
    path.parent.mkdir(parents=True, exist_ok=True)
    # After a start, what was said of this step and later ones counts no more.
    start = SessionLog(status=SessionLog.START)
    events = [Event(step=0, session_log=start)]
    if not path.exists():
      events.insert(0, Event(file_version='brain.Event:2'))
    for step, summaries in enumerate(steps):
      events += [Event(step=step, summary=each) for each in summaries]
    with path.open('ab') as f:
      writer = RecordWriter(f)
      for event in events:
        event.wall_time = now
        writer.write(event.SerializeToString())

  def rows(self, task, curve, rows, whole):
    """Writes the rows of a curve."""
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb

    steps = [
      [scalar_pb(f'{task}/{name}', value) for name, value in row.items()]
      for row in rows
    ]
    self._write(f'{task}/{curve.replace(" ", "-")}', steps)

  def summary(self, summary, best):
    """Writes the best points."""
    # A table, where the text is an array.
    table = [list(best), *best.round(3).to_numpy().tolist()]
    self._about['best points'] = [[str(cell) for cell in row] for row in table]
    self._tell_about()

  def close(self):
    """Does nothing: files are closed after each write."""


class WandB:
  """A run of Weights & Biases, where and how its own variables say.

  WANDB_MODE, WANDB_PROJECT (by default cascades), WANDB_ENTITY and so on. The
  workdir keeps the run's id, so that another start is the same run told again.
  Lines of a run's history cannot be taken back: a curve is told once it is
  whole, a line for each lenience.
  """

  package = 'wandb'

  def __init__(self, folder, settings, say):
    import wandb

    self._folder, self._done = folder / 'wandb', False
    name = self._folder / 'id'
    if not name.exists():
      records.write_text(name, secrets.token_hex(4))
    # Else it speaks, and asks whoever is not logged in.
    wandb.setup(wandb.Settings(silent=True))
    workdir = folder.resolve().parent
    try:
      self._run = wandb.init(
        project=os.environ.get('WANDB_PROJECT', 'cascades'),
        name=os.environ.get('WANDB_NAME', '/'.join(workdir.parts[-2:])),
        id=name.read_text(encoding='utf-8'),
        dir=str(folder.resolve()),
        config=dict(settings),
        reinit='create_new',
        settings=wandb.Settings(
          silent=True,
          console='off',
          symlink=False,
          # What is not uploaded by then can be by `wandb sync`.
          finish_timeout=60,
          finish_timeout_raises=True,
        ),
      )
    except (wandb.errors.AuthenticationError, wandb.errors.UsageError) as error:
      raise ValueError(
        f'trackers: wandb says {cli.one_line(error)!r}; log in with'
        ' `wandb login`, or set WANDB_MODE=offline.'
      ) from None
    if self._run.url:
      say(f'trackers: {self._run.url}')

  def rows(self, task, curve, rows, whole):
    """Logs the rows of a complete curve."""
    if not whole:
      return
    tag = f'{task}/{curve}'
    if 'lenience' in rows[0]:
      self._run.define_metric(f'{tag}/*', step_metric=f'{tag}/lenience')
    for row in rows:
      self._run.log({f'{tag}/{name}': value for name, value in row.items()})

  def summary(self, summary, best):
    """Logs the best points and uploads the summary."""
    for row in best.to_dict('records'):
      tag = f'{row.pop("task")}/{row.pop("variant")}'
      self._run.summary.update({f'{tag}/best {k}': v for k, v in row.items()})
    path = self._folder / 'summary.csv'
    records.write_text(path, summary.to_csv(index=False))
    self._run.save(path, base_path=self._folder, policy='now')
    self._done = True

  def close(self):
    """Ends the run."""
    self._run.finish(exit_code=0 if self._done else 1)


TRACKERS: dict[str, type[Tracker]] = {
  'tensorboard': TensorBoard,
  'wandb': WandB,
}


def check(names: Sequence[str]) -> None:
  """Looks at the names of trackers before anything is loaded.

  Raises:
    ValueError: There is no such tracker, or it is not installed.
  """
  for name in names:
    if name not in TRACKERS:
      raise ValueError(
        f'trackers: no tracker {name!r}; there are {", ".join(TRACKERS)}.'
      )
    if importlib.util.find_spec(TRACKERS[name].package) is None:
      raise ValueError(extras.missing('trackers', name, 'track'))


class Trackers:
  """Those that a sweep asks for; whichever fails is said once and left out."""

  def __init__(
    self,
    names: Sequence[str],
    files: workdirs.Workdir,
    settings: Mapping[str, Any],
    say: Callable[[str], None],
  ):
    """Begins.

    Args:
      names: Keys of TRACKERS.
      files: The sweep's.
      settings: What the sweep's `config.json` holds: fields, and curves.
      say: Tells the user.

    Raises:
      ValueError: One of them needs something of the user first.
    """
    self._files, self._say = files, say
    self._left: dict[str, Tracker] = {}
    # Of each task and curve, the records of its points that were told, and
    # what they came to.
    self._told: dict[tuple, dict[plan.Point, list]] = {}
    folder = files.path / 'trackers'
    for name in dict.fromkeys(names):
      try:
        self._left[name] = TRACKERS[name](folder, settings, say)
      except ValueError:
        self.close()
        raise
      except Exception as error:
        self._leave_out(name, error)

  def _leave_out(self, name: str, error: Exception) -> None:
    self._say(
      f'trackers: {name} failed ({cli.one_line(error)}) and is left out; what'
      ' is decoded is kept all the same, and the same command tells it again.'
    )
    tracker = self._left.pop(name, None)
    if tracker is not None:
      with contextlib.suppress(Exception):
        tracker.close()

  def _each(self, tell: Callable[[Tracker], None]) -> None:
    for name, tracker in list(self._left.items()):
      try:
        tell(tracker)
      except Exception as error:
        self._leave_out(name, error)

  def tell(self, points: Sequence[plan.Point], costs: metrics.Costs) -> None:
    """Tells of the points that are there and have not been told.

    Args:
      points: All of the sweep's.
      costs: Unit costs.
    """
    if not self._left:
      return
    curves: dict[tuple, list[plan.Point]] = {}
    for point in points:
      curves.setdefault((point.task, point.curve.name), []).append(point)
    for key, shards in curves.items():
      told = self._told.setdefault(key, {})
      found = {
        point: [record for record, _ in made]
        for point in shards
        if point not in told and (made := self._files.made(point)) is not None
      }
      if not found:
        continue
      told |= found
      done = [record for point in shards for record in told.get(point, [])]
      frame = metrics.summarize(done, costs)
      rows = [
        {name: float(v) for name, v in row.items() if not math.isnan(v)}
        for row in frame[_NUMBERS].to_dict('records')
      ]
      whole = len(told) == len(shards)
      if whole:
        # They are needed no more.
        self._told[key] = {point: [] for point in shards}
      self._each(lambda t, k=key, r=rows, w=whole: t.rows(*k, r, w))

  def summarise(self, summary: pd.DataFrame) -> None:
    """Tells of the whole, once all points were told.

    Args:
      summary: A row per point, from `metrics.summarize`.
    """
    if not self._left:
      return
    best = slices.best_points(summary)[_BEST]
    self._each(lambda tracker: tracker.summary(summary, best))

  def close(self) -> None:
    """Ends all of them."""
    while self._left:
      name, tracker = self._left.popitem()
      try:
        tracker.close()
      except Exception as error:
        self._leave_out(name, error)
