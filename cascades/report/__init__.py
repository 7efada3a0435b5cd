"""The page of a run: reads what lies in its workdir, loads no model.

A workdir holds `records`, `traces` and `examples`, `summary.csv`, `costs.json`
and, for the page's first line, `config.json`; with `views`, the page also says
how likely tokens were. It goes to `report/index.html`.
"""

import io
import json
import pathlib

import pandas as pd

from cascades import metrics, records
from cascades.report import examples, page

__all__ = ['write_report']

_REMEDY = 'run experiments.sweep with this workdir first.'


def _read(path: pathlib.Path) -> str:
  if not path.is_file():
    raise ValueError(f'workdir: there is no {path}; {_REMEDY}')
  return path.read_text(encoding='utf-8')


def _summary(path: pathlib.Path) -> pd.DataFrame:
  text = io.StringIO(_read(path))
  texts = ['task', 'method', 'verification', 'gate', 'bonus_from']
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
  return frame


def _config(path: pathlib.Path) -> dict:
  """The run's settings; empty if they were not kept."""
  if not path.is_file():
    return {}
  try:
    config = json.loads(_read(path))
  except json.JSONDecodeError as e:
    raise ValueError(f'workdir: {path} is not JSON ({e}); {_REMEDY}') from None
  if not isinstance(config, dict):
    raise ValueError(f'workdir: {path} is not a JSON object; {_REMEDY}')
  return config


def write_report(workdir: str | pathlib.Path) -> pathlib.Path:
  """Writes `report/index.html` under a workdir.

  Returns:
    The path of the page.

  Raises:
    ValueError: A file is missing or damaged; says what to do.
  """
  workdir = pathlib.Path(workdir)
  if not workdir.is_dir():
    raise ValueError(f'workdir: there is no folder {workdir}; {_REMEDY}')
  points = records.read_points(workdir)
  frame = _summary(workdir / 'summary.csv')
  costs = metrics.Costs.from_json(_read(workdir / 'costs.json'))
  config = _config(workdir / 'config.json')
  path = workdir / 'report' / 'index.html'
  shown = examples.find(workdir, points)
  records.write_text(path, page.render(frame, shown, costs, config))
  return path
