"""The page of a run, or of several: reads workdirs, loads no model.

A workdir holds `records`, `traces` and `examples`, `summary.csv`, `costs.json`
and, for the page's first line, `config.json`; with `views`, the page also says
how likely tokens were.
Under `report/` go `index.html`, `tables/` (CSV, Markdown and LaTeX), `figures/`
(SVG and PNG), all of them of the same frames, and `report.json`, which says how
intervals were drawn.

Nothing is worked out here: frames and numbers come from `analysis`.

  page       The page's parts, and the files of its looks and its script.
  questions  How to read what answers each question.
  examples   Answers side by side, and in `tokens` token by token.
  tables     Tables as HTML, Markdown and LaTeX; `columns` has their columns.
  figures    Plots; `drawings` puts them on the page and into files.
  styles     How curves and numbers look.
  targets    A picture for the audit, not for the page.

To ask one question more, write two functions and add a line. The first stands
in `analysis` and makes a frame of `Points`, or of the frame that
`comparisons.compare` makes of them: a row for each thing that is said, with
`variant` for the curve that it is said of. The second stands in `questions`: it
takes a `Context`, and gives a `Question` with a title, a sentence on how to
read the frame, and a `Table` of the columns that people see. The line is its
name in `questions.QUESTIONS`, where it belongs on the page. Section and files
follow from that.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

import pandas as pd

from cascades.untrusted import paths
from experiments import records
from experiments.analysis import (
  race,
  roles,
  runs,
  shown,
)
from experiments.analysis.choice import Choice
from experiments.analysis.shown import Shown
from experiments.reports import first, page, questions, styles, tables
from experiments.reports.questions import Context, Question

__all__ = ['Choice', 'write_report']


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
    choice: Margins, targets and how intervals are drawn; by default those of
      `Choice`.
    allow: Those of `runs.SETTINGS` that may differ between several.
    figures: Whether to write each figure of the page as files too.

  Returns:
    The path of the page.

  Raises:
    ValueError: A file is missing or damaged, or workdirs cannot be compared;
      says what to do.
  """
  choice = choice or Choice()
  many = not isinstance(workdir, str | pathlib.Path)
  folders = list(map(pathlib.Path, workdir if many else [workdir]))
  paths.check_tree(folders[0])
  read = [runs.read(path) for path in folders]
  names = runs.names(read)
  told = dict(zip(names, read, strict=True))
  differing = runs.check(read, allow)
  found = runs.gather(read)
  frame = runs.summary(told)
  answers = shown.find(folders[0], read[0].lines)
  looks = _looks(frame, answers)
  # Of several runs, nothing is said of one alone.
  raced = race.points(read[0]) if len(read) == 1 else None
  context = Context(found, looks, choice, raced)
  asked = questions.answer(context)
  note = _note(differing)
  screens = first.screens(context.mixed, looks, choice)
  text, drawn = page.render(
    frame, answers, told, screens, asked, looks, choice, note
  )
  folder = folders[0] / 'report'
  if len(folders) > 1:
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
      | {'workdirs': list(map(str, folders)), 'allowed': differing},
      indent=2,
    )
    + '\n',
  )
  path = folder / 'index.html'
  records.write_text(path, text)
  return path


def _looks(
  frame: pd.DataFrame, answers: Sequence[Shown]
) -> dict[str, styles.Style]:
  """Styles by variant, of all that is on the page."""
  return styles.styles(
    dict(zip(roles.BASELINES, roles.BASELINES, strict=True))
    | dict(zip(frame.variant, frame.method, strict=True))
    | {s.record.variant: s.record.method for s in shown.every(answers)}
  )


def _note(differing: Sequence[str]) -> str:
  """What stands at every table of runs that are not alike."""
  if not differing:
    return ''
  return f'These runs differ in {", ".join(differing)}, which was allowed.'


def _write_tables(
  folder: pathlib.Path,
  asked: Sequence[Question],
  looks: Mapping[str, styles.Style],
  note: str,
) -> None:
  """Writes the tables of all questions as files.

  Args:
    folder: Made if need be.
    asked: Questions with their answers.
    looks: Styles by variant.
    note: What has to be said in each file; may be empty.
  """
  for table in (t for question in asked for t in question.tables):
    path = folder / table.name
    records.write_text(path.with_suffix('.csv'), table.csv(note))
    for suffix, text_of in (('.md', tables.markdown), ('.tex', tables.latex)):
      text = text_of(table, looks, note)
      records.write_text(path.with_suffix(suffix), text)
