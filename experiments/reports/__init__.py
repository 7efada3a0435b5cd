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
import functools
import json
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from cascades.untrusted import display, paths
from experiments import records
from experiments.analysis import (
  example_selection,
  race,
  reference_points,
  runs,
)
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.example_selection import SelectedAnswer
from experiments.reports import (
  drawings,
  first_screen,
  page,
  questions,
  styles,
  tables,
)
from experiments.reports.questions import Context, Question

__all__ = ['AnalysisConfig', 'write_report']

# Writes the file that it is given.
_Writer = Callable[[pathlib.Path], None]


def write_report(
  workdir: str | pathlib.Path | Sequence[str | pathlib.Path],
  config: AnalysisConfig | None = None,
  allow: Sequence[str] = (),
  figures: bool = True,
) -> pathlib.Path:
  """Writes `report/index.html` under a workdir, and what belongs to it.

  The page comes first. What cannot be written beside it is left out, which the
  page says, and a line on stderr.

  Args:
    workdir: A folder, or several whose points are compared; of several the
      report goes to `report/with-...` of the first.
    config: Margins, targets and how intervals are drawn; by default those of
      `AnalysisConfig`.
    allow: Those of `runs.SETTINGS` that may differ between several.
    figures: Whether to write each figure of the page as files too.

  Returns:
    The path of the page.

  Raises:
    ValueError: A file is missing or damaged, or workdirs cannot be compared;
      says what to do.
  """
  config = config or AnalysisConfig()
  many = not isinstance(workdir, str | pathlib.Path)
  folders = list(map(pathlib.Path, workdir if many else [workdir]))
  paths.check_tree(folders[0], ['trackers/wandb'])
  read = [runs.read(path) for path in folders]
  names = runs.names(read)
  told = dict(zip(names, read, strict=True))
  differing = runs.check(read, allow)
  frame, left_out = runs.summary(told), []
  answers = example_selection.select_answers(
    folders[0], read[0].records, left_out
  )
  looks = _looks(frame, answers)
  # Of several runs, nothing is said of one alone.
  raced = race.timed_points(read[0]) if len(read) == 1 else None
  context = Context(runs.gather(read), looks, config, raced)
  asked = questions.answer(context)
  note = _note(differing)
  screens = first_screen.first_screens(context.mixed, looks, config)
  render = functools.partial(
    page.render, frame, answers, told, screens, asked, looks, config, note
  )
  left_out = [f'Left out: {display.sentence(one)}' for one in left_out]
  text, drawn = render(left_out)
  folder = _folder(folders[0], names)
  path = folder / 'index.html'
  records.write_text(path, text)
  written = {folder / 'report.json': _about(config, folders, differing)}
  written |= _tables(folder / 'tables', asked, looks, note)
  written |= _figures(folder / 'figures', drawn if figures else ())
  failed = _write(written)
  if failed:
    print(*failed, sep='\n', file=sys.stderr)
    text, _ = render([*left_out, *failed])
    records.write_text(path, text)
  return path


def _write(written: Mapping[pathlib.Path, _Writer]) -> list[str]:
  """Writes what it can.

  Args:
    written: What writes each file.

  Returns:
    A sentence for each that could not be written.
  """
  failed = []
  for path, write in written.items():
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      write(path)
    # One that cannot be drawn takes nothing else with it.
    except Exception as error:
      why = f'{type(error).__name__}: {error}'
      failed.append(
        display.sentence(f'Left out: {path} could not be written ({why}).')
      )
  return failed


def _folder(first: pathlib.Path, names: Sequence[str]) -> pathlib.Path:
  """Where a report goes, under the first of the workdirs of these names."""
  folder = first / 'report'
  if len(names) == 1:
    return folder
  return folder / '-'.join(['with', *names[1:]]).replace('/', '-')


def _looks(
  frame: pd.DataFrame, answers: Sequence[SelectedAnswer]
) -> dict[str, styles.Style]:
  """Styles by variant, of all that is on the page."""
  return styles.styles(
    dict(
      zip(reference_points.BASELINES, reference_points.BASELINES, strict=True)
    )
    | dict(zip(frame.variant, frame.method, strict=True))
    | {
      s.record.variant: s.record.method
      for s in example_selection.with_counterparts(answers)
    }
  )


def _note(differing: Sequence[str]) -> str:
  """What stands at every table of runs that are not alike."""
  if not differing:
    return ''
  return f'These runs differ in {", ".join(differing)}, which was allowed.'


def _about(
  config: AnalysisConfig,
  folders: Sequence[pathlib.Path],
  differing: Sequence[str],
) -> _Writer:
  """What writes how a report was made."""
  kept = dataclasses.asdict(config) | {
    'workdirs': list(map(str, folders)),
    'allowed': differing,
  }
  text = json.dumps(kept, indent=2) + '\n'
  return lambda path: records.write_text(path, text)


def _figures(
  folder: pathlib.Path, drawn: Sequence[drawings.Drawing]
) -> dict[pathlib.Path, _Writer]:
  """What writes drawings as files, by those without their endings."""
  return {
    folder / drawing.name: lambda path, drawing=drawing: drawing.save(
      path.parent
    )
    for drawing in drawn
  }


def _tables(
  folder: pathlib.Path,
  asked: Sequence[Question],
  looks: Mapping[str, styles.Style],
  note: str,
) -> dict[pathlib.Path, _Writer]:
  """What writes the tables of all questions, by file.

  Args:
    folder: Where they are to lie.
    asked: Questions with their answers.
    looks: Styles by variant.
    note: What has to be said in each file; may be empty.
  """
  texts = {
    '.csv': lambda table: table.csv(note),
    '.md': lambda table: tables.markdown(table, looks, note),
    '.tex': lambda table: tables.latex(table, looks, note),
  }

  def writer(table: tables.Table, suffix: str) -> _Writer:
    return lambda path: records.write_text(path, texts[suffix](table))

  return {
    (folder / table.name).with_suffix(suffix): writer(table, suffix)
    for question in asked
    for table in question.tables
    for suffix in texts
  }
