"""Weights & Biases: a run that has the summary of a sweep."""

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import wandb

from experiments import cli, records
from experiments.records import metrics


def log(
  workdir: pathlib.Path,
  settings: Mapping[str, Any],
  summary: pd.DataFrame,
  say: Callable[[str], None],
) -> None:
  """Logs a row for each point; an error is said, and does not end a sweep."""
  started = records.read_starts(workdir)[0]['started']
  quiet = wandb.Settings(
    silent=True,
    console='off',
    symlink=False,
    finish_timeout=60,
    finish_timeout_raises=True,
  )
  try:
    # The library would otherwise print, and prompt for a login.
    wandb.setup(wandb.Settings(silent=True))
    with wandb.init(
      project=os.environ.get('WANDB_PROJECT', 'cascades'),
      # The same run when the command is repeated.
      id=records.digest([dict(settings), started])[:8],
      dir=str(workdir.resolve()),
      config=dict(settings),
      reinit='create_new',
      settings=quiet,
    ) as run:
      tags = summary.task + '/' + metrics.variants(summary)
      tags += ' gamma ' + summary.gamma.astype(str)
      rows = summary.select_dtypes('number').to_dict('records')
      for tag, row in zip(tags, rows, strict=True):
        run.log({f'{tag}/{k}': x for k, x in row.items() if pd.notna(x)})
    say(f'wandb: {run.url or run.dir}')
  except Exception as error:
    say(
      f'wandb: failed ({cli.one_line(error)}); log in with `wandb login`, or'
      ' set WANDB_MODE=offline, and run the same command again.'
    )
