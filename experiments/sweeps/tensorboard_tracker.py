"""TensorBoard: event files in the workdir."""

import json
import pathlib
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd


class TensorBoard:
  """Event files: a run for each curve of a task, a step for each lenience.

  Curves of a task share their charts, from strict to drafter-only. A lenience
  is no integer, so it has a chart of its own.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    settings: Mapping[str, Any],
    say: Callable[[str], None],
  ):
    """Writes the settings."""
    del say
    self._folder = folder / 'tensorboard'
    # TensorBoard reads the files of a run in the order of their names.
    self._file_name = (
      f'events.out.tfevents.{time.time():.6f}.{socket.gethostname()}'
    )
    text = json.dumps(settings, indent=2)
    code = '\n'.join(f'    {line}' for line in text.split('\n'))
    self._texts: dict[str, Any] = {'settings': code}
    self._write_texts()

  def _write_texts(self) -> None:
    """Writes the settings and the table of the best points."""
    from tensorboard.plugins.text.summary_v2 import text_pb

    self._write('', [[text_pb(*item) for item in self._texts.items()]])

  def _write(self, run: str, steps: Sequence[Sequence[Any]]) -> None:
    """Replaces the summaries of a run."""
    # This needs neither TensorFlow nor a thread whose errors are lost.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.record_writer import RecordWriter

    now, path = time.time(), self._folder / run / self._file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    # A session start discards earlier events of this step and later ones.
    start = SessionLog(status=SessionLog.START)
    events = [Event(step=0, session_log=start)]
    if not path.exists():
      events.insert(0, Event(file_version='brain.Event:2'))
    for step, summaries in enumerate(steps):
      events += [Event(step=step, summary=summary) for summary in summaries]
    with path.open('ab') as f:
      writer = RecordWriter(f)
      for event in events:
        event.wall_time = now
        writer.write(event.SerializeToString())

  def log_curve(
    self,
    task: str,
    curve: str,
    rows: Sequence[Mapping[str, float]],
    is_complete: bool,
  ) -> None:
    """Replaces the charts of a curve; see `trackers.Tracker`."""
    del is_complete
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb

    steps = [
      [scalar_pb(f'{task}/{name}', value) for name, value in row.items()]
      for row in rows
    ]
    self._write(f'{task}/{curve.replace(" ", "-")}', steps)

  def log_summary(self, summary: pd.DataFrame, best: pd.DataFrame) -> None:
    """Writes a table of the best points; see `trackers.Tracker`."""
    del summary
    # TensorBoard shows an array of texts as a table.
    table = [list(best), *best.round(3).to_numpy().tolist()]
    self._texts['best points'] = [[str(cell) for cell in row] for row in table]
    self._write_texts()

  def close(self) -> None:
    """Does nothing: all events are written."""
