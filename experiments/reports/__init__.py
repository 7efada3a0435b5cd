"""The page of a run, or of several: reads workdirs, loads no model.

A workdir holds `records`, `traces` and `examples`, `summary.csv`, `costs.json`
and, for the page's first line, `config.json`; with `views`, the page also says
how likely tokens were. Under `report/` go `index.html`,
`tables/` (CSV, Markdown and LaTeX), `figures/` (SVG and PNG), all of them of
the same frames, and `reports.json`, which says how intervals were drawn.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

import pandas as pd

from experiments import records
from experiments.analysis import positions, roles, runs
from experiments.analysis.comparisons import Choice
from experiments.analysis.runs import SETTINGS
from experiments.records import metrics
from experiments.reports import examples, page, questions, styles, tables

__all__ = ['SETTINGS', 'Choice', 'write_report']


def write_report(
  workdir: str | pathlib.Path | Sequence[str | pathlib.Path],
  choice: Choice | None = None,
  allow: Sequence[str] = (),
  figures: bool = True,
) -> pathlib.Path:
  """Writes `report/index.html` under a workdir, and what belongs to it.

  Args:
    workdir: A folder, or several whose points are compared; of several the
      report goes to `report/with-...` of the first.
    choice: Margins, targets and how intervals are drawn.
    allow: Those of `SETTINGS` that may differ between several.
    figures: Whether to write each figure of the page as files too.

  Returns:
    The path of the page.

  Raises:
    ValueError: A file is missing or damaged, or workdirs cannot be compared;
      says what to do.
  """
  choice = choice or Choice()
  many = not isinstance(workdir, str | pathlib.Path)
  paths = list(map(pathlib.Path, workdir if many else [workdir]))
  read = [runs.read(path) for path in paths]
  names = runs.names(read)
  told = dict(zip(names, read, strict=True))
  differing = runs.check(read, allow)
  found = runs.gather(read)
  frame = _summary(told)
  lines = {name: run.lines for name, run in told.items()}
  shown = examples.find(paths[0], read[0].lines)
  looks = styles.styles(
    dict(zip(roles.BASELINES, roles.BASELINES, strict=True))
    | dict(zip(frame.variant, frame.method, strict=True))
    | {s.record.variant: s.record.method for s in examples.every(shown)}
  )
  counts: dict[int, positions.Counts] = {}
  for name, files in lines.items():
    for point, of_file in files.items():
      places = [_place(found, name, r) for r in of_file]
      if any(place is not None for place in places):
        traces = records.scan_traces(told[name].path, point)
        positions.count(places, traces, counts)
  asked = questions.answer(found, counts, looks, choice)
  note = _note(differing)
  text, drawn = page.render(frame, shown, told, asked, looks, choice, note)
  folder = paths[0] / 'report'
  if len(paths) > 1:
    folder /= '-'.join(['with', *names[1:]]).replace('/', '-')
  _write_tables(folder / 'tables', asked, looks, note)
  if figures:
    (folder / 'figures').mkdir(parents=True, exist_ok=True)
    for drawing in drawn:
      drawing.save(folder / 'figures')
  records.write_text(
    folder / 'report.json',
    json.dumps(
      dataclasses.asdict(choice)
      | {'workdirs': list(map(str, paths)), 'allowed': differing},
      indent=2,
    )
    + '\n',
  )
  path = folder / 'index.html'
  records.write_text(path, text)
  return path


def _place(found: runs.Points, name: str, r: records.Record) -> int | None:
  """The row of a record that drafts in blocks."""
  if not r.gamma or r.verification == 'sequential' or r.failure is not None:
    return None
  return found.places[name, r.point]


def _summary(told: dict[str, runs.Run]) -> pd.DataFrame:
  """Summaries of all runs; runs are told apart where points are in several."""
  frame = pd.concat(
    [run.summary.assign(run=name) for name, run in told.items()],
    ignore_index=True,
  )
  frame = frame.assign(variant=metrics.variants(frame))
  key = ['task', 'temperature', 'variant', 'lenience', 'gamma']
  twice = frame.duplicated(key)
  if (twice & ~frame.method.isin(roles.BASELINES)).any():
    return frame
  return frame[~twice].assign(run='')


def _note(differing: Sequence[str]) -> str:
  """What stands at every table of runs that are not alike."""
  if not differing:
    return ''
  return f'These runs differ in {", ".join(differing)}, which was allowed.'


def _write_tables(folder: pathlib.Path, asked, looks, note: str) -> None:
  for table in (t for question in asked for t in question.tables):
    path = folder / table.name
    records.write_text(path.with_suffix('.csv'), table.csv(note))
    if table.columns:
      for suffix, text_of in (('.md', tables.markdown), ('.tex', tables.latex)):
        text = text_of(table, looks, note)
        records.write_text(path.with_suffix(suffix), text)
