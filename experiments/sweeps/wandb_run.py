"""Weights & Biases: a run that shows a sweep while it is decoded."""

import itertools
import os
import secrets
from collections.abc import Callable, Mapping, Sequence, Set

import pandas as pd
import wandb

from experiments import cli, records
from experiments.records import metrics, unit_costs
from experiments.sweeps import plan, workdirs


class WandbRun:
  """A run that each start of a sweep continues; the workdir keeps its id."""

  def __init__(self, files: workdirs.Workdir, settings: Mapping, say: Callable):
    self._files, self._say, self._logged = files, say, set()
    id_file = files.path / 'wandb/id'
    if not id_file.exists():
      records.write_text(id_file, secrets.token_hex(4))
    quiet = dict(silent=True, console='off', symlink=False, finish_timeout=60)
    # The library would otherwise print, and prompt for a login.
    wandb.setup(wandb.Settings(silent=True))
    try:
      self._run = wandb.init(
        project=os.environ.get('WANDB_PROJECT', 'cascades'),
        id=id_file.read_text(encoding='utf-8'),
        dir=str(files.path.resolve()),
        config=dict(settings),
        reinit='create_new',
        settings=wandb.Settings(**quiet, finish_timeout_raises=True),
      )
    except wandb.errors.Error as error:
      raise ValueError(
        f'wandb: the service reports {cli.one_line(error)!r}; log in with'
        ' `wandb login`, or set WANDB_MODE=offline.'
      ) from None
    if self._run.url:
      say(f'wandb: {self._run.url}')

  def log(
    self, points: Sequence[plan.Point], done: Set, costs: unit_costs.Costs
  ) -> None:
    """Logs curves once they are complete, since a history only grows."""
    for tag, group in itertools.groupby(
      points, lambda point: f'{point.task}/{point.curve.name}'
    ):
      shards = list(group)
      if tag not in self._logged and done.issuperset(shards):
        self._logged.add(tag)
        read = self._files.read_records(shards).values()
        rows = metrics.summarize(itertools.chain(*read), costs)
        self._call(self._log_curve, tag, rows)

  def _log_curve(self, tag: str, rows: pd.DataFrame) -> None:
    if rows.lenience.notna().any():
      self._run.define_metric(f'{tag}/*', step_metric=f'{tag}/lenience')
    for row in rows.select_dtypes('number').to_dict('records'):
      self._run.log({f'{tag}/{k}': x for k, x in row.items() if pd.notna(x)})

  def close(self, is_done: bool) -> None:
    """Ends the run, with the summary if the sweep is finished."""
    path = self._files.path.resolve()
    if is_done:
      self._call(lambda: self._run.save(path / 'summary.csv', path, 'now'))
    self._call(lambda: self._run.finish(exit_code=0 if is_done else 1))

  def _call(self, method: Callable, *args: object) -> None:
    """Calls a method; its first error ends the run, and not the sweep."""
    try:
      if self._run:
        method(*args)
    except Exception as error:
      self._run = None
      self._say(f'wandb: failed ({cli.one_line(error)}) and is turned off.')
