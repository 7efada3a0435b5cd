"""Weights & Biases: a run of the project that its environment names."""

import os
import pathlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import wandb

from experiments import cli, records


class WandB:
  """A run of Weights & Biases.

  WANDB_MODE, WANDB_PROJECT (by default cascades), WANDB_ENTITY and so on select
  the project. The workdir keeps the run's id, so that another start continues
  the same run. Lines of a run's history cannot be replaced, so a curve is
  logged once it is complete, with a line for each lenience.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    settings: Mapping[str, Any],
    say: Callable[[str], None],
  ):
    """Starts or continues the run."""
    self._folder, self._is_done = folder / 'wandb', False
    id_file = self._folder / 'id'
    if not id_file.exists():
      records.write_text(id_file, secrets.token_hex(4))
    # The library would otherwise print, and prompt for a login.
    wandb.setup(wandb.Settings(silent=True))
    workdir = folder.resolve().parent
    try:
      self._run = wandb.init(
        project=os.environ.get('WANDB_PROJECT', 'cascades'),
        name=os.environ.get('WANDB_NAME', '/'.join(workdir.parts[-2:])),
        id=id_file.read_text(encoding='utf-8'),
        dir=str(folder.resolve()),
        config=dict(settings),
        reinit='create_new',
        settings=wandb.Settings(
          silent=True,
          console='off',
          symlink=False,
          # `wandb sync` can upload later what is not uploaded by then.
          finish_timeout=60,
          finish_timeout_raises=True,
        ),
      )
    except (wandb.errors.AuthenticationError, wandb.errors.UsageError) as error:
      raise ValueError(
        f'trackers: wandb reports {cli.one_line(error)!r}; log in with'
        ' `wandb login`, or set WANDB_MODE=offline.'
      ) from None
    if self._run.url:
      say(f'trackers: {self._run.url}')

  def log_curve(
    self,
    task: str,
    curve: str,
    rows: Sequence[Mapping[str, float]],
    is_complete: bool,
  ) -> None:
    """Logs a complete curve; see `trackers.Tracker`."""
    if not is_complete:
      return
    tag = f'{task}/{curve}'
    if 'lenience' in rows[0]:
      self._run.define_metric(f'{tag}/*', step_metric=f'{tag}/lenience')
    for row in rows:
      self._run.log({f'{tag}/{name}': value for name, value in row.items()})

  def log_summary(self, summary: pd.DataFrame, best: pd.DataFrame) -> None:
    """Logs the best points, and saves the summary; see `trackers.Tracker`."""
    for row in best.to_dict('records'):
      tag = f'{row.pop("task")}/{row.pop("variant")}'
      self._run.summary.update({f'{tag}/best {k}': v for k, v in row.items()})
    path = self._folder / 'summary.csv'
    records.write_text(path, summary.to_csv(index=False))
    self._run.save(path, base_path=self._folder, policy='now')
    self._is_done = True

  def close(self) -> None:
    """Finishes the run, as failed if the sweep is not done."""
    self._run.finish(exit_code=0 if self._is_done else 1)
