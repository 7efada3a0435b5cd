"""The page of a run, or of several: reads workdirs and loads no model.

A workdir has `records`, `traces` and `examples`, `summary.csv`, `costs.json`
and, for the first line of the page, `config.json`. With `views`, the page also
shows probabilities of tokens.
The folder `report/` gets `index.html`, `tables/` (CSV and Markdown), `figures/`
(SVG and PNG), all made of the same frames, and `report.json`, which has the
bootstrap settings.

Frames and numbers come from `analysis`; this package presents them.

  page             The page, with its style sheets and scripts.
  run_description  Texts about the runs: setting, unit costs, versions.
  first_screen     One figure and three headline results.
  slice_sections   Sections with the points of one task.
  sections         Analysis sections: a title, a guide, tables and figures.
  examples         Answers side by side, and in `tokens` token by token.
  html_parts       Parts of the HTML that sections share.
  tables           Tables as HTML, CSV and Markdown; `columns` has columns.
  figures          Plots; `drawings` makes SVG elements and files of them.
  styles           Styles of curves and formats of numbers.

A further section takes two functions and a line. The first function is in
`analysis` and makes a frame of `Points`, or of the frame that
`comparisons.compare` makes of them, with a column `variant` that names the
curve of a row. The second function is in a module of `sections`: it takes a
`SectionContext`, and returns a `Section` with a title, a guide, and a `Table`
of the columns that are shown. The line is its name in `sections.SECTIONS`, at
its position on the page. Nothing else is needed.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from cascades import files
from experiments import cli, records
from experiments.analysis import (
  comparisons,
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
  sections,
  styles,
  tables,
)
from experiments.reports.page import PageContent

__all__ = ['AnalysisConfig', 'write_report']

# Writes a file at a path.
_Writer = Callable[[pathlib.Path], None]


def write_report(
  workdir: str | pathlib.Path | Sequence[str | pathlib.Path],
  config: AnalysisConfig | None = None,
  allow: Sequence[str] = (),
  figures: bool = True,
) -> pathlib.Path:
  """Writes `report/index.html` under a workdir, with tables and figures.

  The page is written first. Files that cannot be written are left out; the page
  and a line on stderr name them.
  """
  is_comparison = not isinstance(workdir, str | pathlib.Path)
  folders = list(map(pathlib.Path, workdir if is_comparison else [workdir]))
  config = config or AnalysisConfig()
  files.check_tree(folders[0], ['wandb'])
  contents = [runs.read(path) for path in folders]
  names = runs.names(contents)
  differing = runs.check(contents, allow)
  notice = (
    f'These runs differ in {", ".join(differing)}, which was allowed.'
    if differing
    else ''
  )
  cli.say('drawing the page')
  content, left_out = _page_content(
    dict(zip(names, contents, strict=True)), config, notice
  )
  text, page_drawings = page.render(content, left_out)
  folder = _folder(folders[0], names)
  path = folder / 'index.html'
  records.write_text(path, text)
  writers = {folder / 'report.json': _settings(config, folders, differing)}
  writers |= _tables(folder / 'tables', content)
  writers |= _figures(folder / 'figures', page_drawings if figures else ())
  failed = _write(writers)
  if failed:
    print(*failed, sep='\n', file=sys.stderr)
    text, _ = page.render(content, [*left_out, *failed])
    records.write_text(path, text)
  return path


def _page_content(
  runs_by_name: Mapping[str, runs.Run], config: AnalysisConfig, notice: str
) -> tuple[PageContent, list[str]]:
  """Computes the content of the page."""
  contents = list(runs_by_name.values())
  frame, left_out = runs.summary(runs_by_name), []
  answers = example_selection.select_answers(
    contents[0].path, contents[0].records, left_out
  )
  curve_styles = _curve_styles(frame, answers)
  # A comparison of runs has no section of a single run.
  decision = contents[0].path / 'decision.json'
  timed_points = race.timed_points(contents[0]) if len(contents) == 1 else None
  context = sections.SectionContext(
    points=runs.gather(contents),
    curve_styles=curve_styles,
    config=config,
    timed_points=timed_points,
    decision=decision if len(contents) == 1 and decision.is_file() else None,
  )
  content = PageContent(
    frame=comparisons.with_differences(frame, context.frame),
    answers=answers,
    runs_by_name=runs_by_name,
    screens=first_screen.first_screens(
      context.mixed, curve_styles, config, _decided(context.decision, left_out)
    ),
    sections=sections.build_sections(context),
    curve_styles=curve_styles,
    config=config,
    notice=notice,
  )
  missing = [f'Left out: {files.sentence(thing)}' for thing in left_out]
  return content, missing


def _decided(path: pathlib.Path | None, left_out: list[str]) -> tuple[str, ...]:
  """Returns the sentence of a decision; empty if there is none."""
  # Imports JAX, which other pages do without.
  from cascades.decisions import Decision

  try:
    return () if path is None else (Decision.load(path).sentence,)
  except ValueError as error:
    left_out.append(f'{str(error).rstrip(".")}.')
    return ()


def _write(writers: Mapping[pathlib.Path, _Writer]) -> list[str]:
  """Writes all files that can be written; returns a sentence on each other."""
  failed = []
  for path, write in writers.items():
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      write(path)
    # A file that cannot be written does not prevent the rest.
    except Exception as error:
      cause = f'{type(error).__name__}: {error}'
      failed.append(
        files.sentence(f'Left out: {path} could not be written ({cause}).')
      )
  return failed


def _folder(first: pathlib.Path, names: Sequence[str]) -> pathlib.Path:
  """Returns the folder of a report, under the first workdir."""
  folder = first / 'report'
  if len(names) == 1:
    return folder
  return folder / '-'.join(['with', *names[1:]]).replace('/', '-')


def _curve_styles(
  frame: pd.DataFrame, answers: Sequence[SelectedAnswer]
) -> dict[str, styles.Style]:
  """Returns the styles of all curves on the page, by variant."""
  return styles.styles(
    {name: name for name in reference_points.BASELINES}
    | dict(zip(frame.variant, frame.method, strict=True))
    | {
      answer.record.variant: answer.record.method
      for answer in example_selection.with_counterparts(answers)
    }
  )


def _settings(
  config: AnalysisConfig,
  folders: Sequence[pathlib.Path],
  differing: Sequence[str],
) -> _Writer:
  """Returns the writer of the settings of a report."""
  settings = dataclasses.asdict(config) | {
    'workdirs': list(map(str, folders)),
    'allowed': differing,
  }
  text = json.dumps(settings, indent=2) + '\n'
  return lambda path: records.write_text(path, text)


def _figures(
  folder: pathlib.Path, page_drawings: Sequence[drawings.Drawing]
) -> dict[pathlib.Path, _Writer]:
  """Returns the writers of drawings, by their paths without endings."""
  return {
    folder / drawing.name: lambda path, drawing=drawing: drawing.save(
      path.parent
    )
    for drawing in page_drawings
  }


def _tables(
  folder: pathlib.Path, content: PageContent
) -> dict[pathlib.Path, _Writer]:
  """Returns the writers of the tables of all sections, by file."""
  curve_styles, notice = content.curve_styles, content.notice
  formats = {
    '.csv': lambda table: table.csv(notice),
    '.md': lambda table: tables.markdown(table, curve_styles, notice),
  }

  def writer(table: tables.Table, suffix: str) -> _Writer:
    return lambda path: records.write_text(path, formats[suffix](table))

  return {
    (folder / table.name).with_suffix(suffix): writer(table, suffix)
    for section in content.sections
    for table in section.tables
    for suffix in formats
  }
