"""The page: one HTML file without other files or network requests.

All content is visible without its script, which sorts tables.
"""

import base64
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jinja2
import markupsafe
import pandas as pd

from cascades import files
from experiments import cli, escapes, records
from experiments.analysis import comparisons, runs
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import Run
from experiments.reports import answers, figure, tables
from experiments.reports.tables import RATIO, SCORE, Column, Table


def _escaped(value: Any) -> Any:
  """Returns a value of the template with invisible characters spelled."""
  if isinstance(value, markupsafe.Markup):
    return value
  return escapes.for_xml(str(value))


TEMPLATES = jinja2.Environment(
  autoescape=True,
  finalize=_escaped,
  loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
  lstrip_blocks=True,
  trim_blocks=True,
  undefined=jinja2.StrictUndefined,
)
TEMPLATES.filters['base64'] = lambda x: base64.b64encode(x.encode()).decode()


def write_report(
  run: Run, config: AnalysisConfig | None = None
) -> pathlib.Path:
  """Writes the page under a workdir, with its figure and tables.

  Args:
    run: The contents of the workdir.
    config: Margin and bootstrap settings.

  Returns:
    The path of the page.
  """
  config, left_out = config or AnalysisConfig(), {}

  def make[Part](name: str, part: Callable[..., Part], *args: Any) -> Any:
    """Makes a part of the page; None for one that fails."""
    try:
      return part(*args)
    # Files of a stranger may hold anything.
    except Exception as error:
      reason = f'{type(error).__name__}: {cli.one_line(error)}'
      left_out.setdefault(name, f'{name} cannot be made ({reason}).')
      return None

  def render(x: Table) -> tuple[Table, list, str]:
    return x, [*x.rows(curve_styles)], x.csv()

  path = run.path / 'decision.json'
  records.check_tree(run.path)
  cli.say('drawing the page')
  gathered = runs.gather(run)
  frame = comparisons.compare(gathered, config)
  predicted = make('the prediction', _predicted, run, frame)
  frames = [frame] if predicted is None else [frame, predicted]
  curves = {x: x for x in frames[-1].variant}
  curves |= dict(zip(frame.variant, frame.method, strict=True))
  curve_styles = tables.styles({x: x for x in runs.BASELINES} | curves)
  pictures = [
    make('the figure', figure.draw, *entry, x, curve_styles)
    for entry, x in zip(figure.FIGURES.items(), frames, strict=False)
  ]
  points = {*(run.config.get('points') or ())} - {*run.records}
  lacking = [f'{len(points)} points are not decoded yet.'] if points else []
  decision = make('the decision', _decision, path)
  by_kind = make('the kinds', comparisons.best_of_kinds, frame)
  switches = make(
    "the engines' switches", comparisons.switches, gathered, frame, config
  )
  timed = make('the race', comparisons.race, run, config)
  output = [
    decision and make('the table of the decision', _trials, decision),
    *_tables(frame, by_kind, switches, timed, curve_styles),
  ]
  # Cells that cannot be shown are refused here, not in the template.
  rendered = [x and make(x.title, render, x) for x in output]
  text = TEMPLATES.get_template('page.html').render(
    answers=make('answers', answers.read, run.path, run.records, make) or [],
    sources=answers.SOURCES,
    config=config,
    curve_styles=curve_styles,
    decision=decision,
    figures=pictures,
    frame=frame,
    left_out=list(map(files.sentence, left_out.values())),
    notices=[*lacking, *run.mixed, *comparisons.unsolved(frame)],
    run=run,
    settings=json.dumps(run.config, indent=2),
    formats=tables,
    tables=list(filter(None, rendered)),
  )
  folder = run.path / 'report'
  records.write_text(folder / 'index.html', text)
  for picture in filter(None, pictures):
    path = folder / f'figures/{picture.name}'
    records.write_text(path.with_suffix('.svg'), picture.wide)
    files.write_bytes(path.with_suffix('.png'), picture.png)
  for table, _, text in filter(None, rendered):
    records.write_text(folder / f'tables/{table.name}.csv', text)
  return folder / 'index.html'


def _tables(
  frame: pd.DataFrame,
  by_kind: pd.DataFrame | None,
  switches: pd.DataFrame | None,
  timed: pd.DataFrame | None,
  curve_styles: tables.CurveStyles,
) -> list[Table]:
  """Returns the tables that are made of records, in the order of the page."""
  point = tables.LENIENCE, tables.GAMMA
  output = []

  def name(variant: Any) -> str:
    style = curve_styles.get(variant)
    return style.label if style else tables.DASH

  if by_kind is not None and len(by_kind):
    columns = [
      tables.TASK,
      Column('fastest', 'Fastest', name),
      *point,
      tables.SPEEDUP,
      Column('best_variant', 'Best', name),
      *(
        x._replace(field=f'best_{x.field}', heading=f'Best: {x.field}')
        for x in point
      ),
      tables.DIFFERENCE,
      tables.SPEEDUP._replace(field='best_speedup', heading='Best: speed-up'),
    ]
    title = 'Kinds of decoding at equal quality'
    by_kind = by_kind.rename(columns={'variant': 'fastest', 'kind': 'variant'})
    output.append(Table('kinds', title, by_kind, columns, row_heading='Kind'))
  if switches is not None and len(switches):
    columns = [
      tables.TASK,
      *point,
      tables.SPEEDUP,
      tables.DIFFERENCE,
      Column('rival_variant', 'Rule at its quality', name),
      tables.LENIENCE._replace(field='rival_lenience', heading='Its lenience'),
      Column('gain_speedup', 'Its speed over the switch', RATIO),
      Column('gain_difference', 'Its quality above', SCORE),
      Column('dominated', 'Dominated', '✗✓'.__getitem__),
    ]
    title = "Engines' switches beside rules"
    output.append(Table('switches', title, switches, columns))
  if timed is not None:
    title = 'Measured and modelled speed-ups'
    output.append(Table('race', title, timed, [*point, *tables.RACE]))
  columns = [tables.TASK, *point, *tables.RESULTS]
  return [*output, Table('points', 'All points', frame, columns)]


def _predicted(run: Run, frame: pd.DataFrame) -> pd.DataFrame | None:
  """Returns predicted points and, at their distances, decoded ones."""
  path = run.path / 'corrected.csv'
  path = path if path.is_file() else path.with_stem('predicted')
  if not path.is_file():
    return None
  points = pd.read_csv(path)
  points['variant'] = points.method.astype(str)
  # At the unit costs of the decoded points.
  comparisons.add_speedups(points, run.costs)
  keys = ['task', 'variant', 'lenience']
  distances = points[[*keys, 'total_variation']].drop_duplicates(keys)
  return pd.concat([points, frame.merge(distances, on=keys)])


def _decision(path: pathlib.Path) -> Any:
  """Returns the decision of a file; None if there is none."""
  if not path.is_file():
    return None
  # Imports JAX, which other pages do without.
  from cascades.decisions import Decision

  return Decision.load(path)


def _trials(decision: Any) -> Table:
  """Returns the table of a decision."""
  evidence = decision.evidence
  frame = pd.DataFrame(evidence['trials'])
  if evidence['choosing_examples']:
    # Refused here if the template cannot show it.
    tables.small(evidence['delta_per_curve'])
  # A column without any number would not be one of numbers.
  numbers = ['speedup', 'lenience', 'loss', 'p']
  columns = [
    tables.GAMMA,
    tables.LENIENCE,
    Column('speedup', 'Modelled speed-up', RATIO),
    Column('loss', 'Quality loss', SCORE),
    Column('p', 'p-value', tables.small),
    Column('is_certified', 'Certified', '✗✓'.__getitem__),
  ]
  frame = frame.astype(dict.fromkeys(numbers, float))
  return Table('decision', 'Decision', frame, columns)
