"""The page: one HTML file without other files or network requests.

All content is visible without its script, which sorts tables.
"""

import base64
import dataclasses
import functools
import importlib.metadata
import json
import pathlib
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import markupsafe
import pandas as pd

from cascades import files
from experiments import cli, escapes, records
from experiments.analysis import (
  comparisons,
  method_kinds,
  mixture,
  reference_points,
  runs,
)
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import Run
from experiments.reports import answers, figure, sentences, styles, tables
from experiments.reports.tables import RATIO, SCORE, Column, Table

# Relative change of unit costs in a run above which the page has a notice.
_COST_CHANGE = 0.1


def _escaped(value: Any) -> Any:
  """Returns a value of the template with invisible characters spelled."""
  if isinstance(value, markupsafe.Markup):
    return value
  return escapes.for_xml(str(value))


_TEMPLATES = jinja2.Environment(
  autoescape=True,
  finalize=_escaped,
  loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
  lstrip_blocks=True,
  trim_blocks=True,
  undefined=jinja2.StrictUndefined,
)


@dataclasses.dataclass(frozen=True)
class Section:
  """A section of the page with a table."""

  title: str
  guide: str
  table: Table


def write_report(
  contents: Sequence[Run],
  config: AnalysisConfig | None = None,
  allow: Sequence[str] = (),
) -> pathlib.Path:
  """Writes the page under the first workdir, with its figure and tables.

  Args:
    contents: Runs that are compared on one page.
    config: Margin and bootstrap settings.
    allow: Settings that may differ between the runs.

  Returns:
    The path of the page.
  """
  config, first = config or AnalysisConfig(), contents[0]
  files.check_tree(first.path)
  names = runs.names(contents)
  differing = runs.check(contents, allow)
  cli.say('drawing the page')
  points = runs.gather(contents)
  frame = comparisons.compare(points, config)
  mixed = mixture.mix(points, config)
  left_out: list[str] = []
  selected = answers.select_answers(first.path, first.records, left_out)
  curves = zip(frame.variant, frame.method, strict=True)
  curve_styles = styles.styles(
    {name: name for name in reference_points.BASELINES} | dict(curves)
  )
  decision = _decision(first, left_out) if len(contents) == 1 else None
  frames = [mixed[mixed.task == mixture.ALL], frame]
  picture = _make_part(
    'the figure', left_out, figure.draw, frames, curve_styles
  )
  notice = (
    f'These runs differ in {", ".join(differing)}, which was allowed.'
    if differing
    else ''
  )
  parts = sections(contents, frame, decision, config, curve_styles)
  finish = functools.partial(_finished, curve_styles, notice)
  results = [
    _make_part(name, left_out, finish, part) for name, part in parts.items()
  ]
  finished = list(filter(None, results))
  notices = [notice] if notice else []
  notices += map(_drift, contents, names)
  notices += comparisons.unsolved(frame)
  notices += [f'Left out: {files.sentence(thing)}' for thing in left_out]
  text = _TEMPLATES.get_template('page.html').render(
    title=str(first.config.get('name') or 'Speculative cascades'),
    lead=_lead(contents, names, frame),
    notices=list(filter(None, notices)),
    decision=decision,
    headlines=sentences.summarize(mixed, curve_styles, config),
    figure=picture and base64.b64encode(picture[0].encode()).decode(),
    sections=[section for section, *_ in finished],
    curve_styles=curve_styles,
    examples=answers.examples(selected, curve_styles),
    sources=answers.SOURCES,
    costs=list(map(_costs, contents)),
    runs=dict(zip(names, contents, strict=True)),
    settings={
      name: json.dumps(run.config, indent=2)
      for name, run in zip(names, contents, strict=True)
    },
    versions=_versions(contents),
    config=config,
  )
  folder = first.path / 'report'
  if len(names) > 1:
    folder /= '-'.join(['with', *names[1:]]).replace('/', '-')
  records.write_text(folder / 'index.html', text)
  if picture:
    records.write_text(folder / 'figures/quality.svg', picture[0])
    files.write_bytes(folder / 'figures/quality.png', picture[1])
  for section, *texts in finished:
    path = folder / 'tables' / section.table.name
    for suffix, text in zip(('.csv', '.md'), texts, strict=True):
      records.write_text(path.with_suffix(suffix), text)
  return folder / 'index.html'


def _make_part[Part](
  name: str, left_out: list[str], make: Callable[..., Part], *args: Any
) -> Part | None:
  """Makes a part of the page; None for one that fails, whose error is said."""
  try:
    return make(*args)
  # Files of a stranger may hold anything.
  except Exception as error:
    reason = f'{type(error).__name__}: {cli.one_line(error)}'
    left_out.append(f'{name} cannot be made ({reason}).')
    return None


def _finished(
  curve_styles: styles.CurveStyles,
  notice: str,
  make: Callable[[], Section | None],
) -> tuple[Section, str, str] | None:
  """Returns a section with its table as CSV and as Markdown."""
  if (section := make()) is None:
    return None
  text = tables.markdown(section.table, curve_styles, notice)
  return section, section.table.csv(notice), text


def sections(
  contents: Sequence[Run],
  frame: pd.DataFrame,
  decision: Any,
  config: AnalysisConfig,
  curve_styles: styles.CurveStyles,
) -> dict[str, Callable[[], Section | None]]:
  """Returns functions that make the sections, in the order of the page."""
  group = [tables.TASK]
  group += [tables.TEMPERATURE] if frame.temperature.nunique() > 1 else []
  run = [tables.RUN, tables.BATCH] if len(contents) > 1 else []
  gammas = frame.gamma[frame.gamma > 0]
  point = [tables.LENIENCE]
  point += [tables.GAMMA] if gammas.nunique() > 1 else []

  def compare_kinds() -> Section | None:
    by_kind = method_kinds.best_of_kinds(frame)
    if not len(by_kind):
      return None
    # Runs are not told apart: a kind is represented by the best of all runs.
    return _kinds_section(by_kind, group, point, curve_styles, config)

  def compare_times() -> Section | None:
    points = mixture.timed_points(contents[0]) if len(contents) == 1 else None
    if points is None:
      return None
    return Section(
      'Measured and modelled speed-ups',
      'Selected points decoded the same prompts of all tasks, one at a time and'
      ' in turn; the shortest of three wall-clock times counts, without'
      ' prefill. All other speed-ups on this page are modelled, because other'
      ' points were decoded in batches of different sizes.',
      Table(
        'race',
        'Speed-ups over the verifier alone',
        mixture.compare_times(points, config),
        [*group[1:], *point, *tables.RACE],
      ),
    )

  all_points = Section(
    'All points',
    'Speculative decoding is strict, or lossless, at lenience 0 only. A'
    ' sequential oracle reads the verifier at every token to decide, but its'
    ' latency counts only calls where it defers: a bound, not a method that can'
    ' be run.',
    Table(
      'points',
      'All points',
      frame,
      [*group, *run, *point, *tables.RESULTS],
    ),
  )
  return {
    'the table of the decision': lambda: (
      decision and _decision_section(decision)
    ),
    'the table of kinds': compare_kinds,
    'the table of timed points': compare_times,
    'the table of all points': lambda: all_points,
  }


def _decision_section(decision: Any) -> Section:
  """Returns the section of the settings that were tried."""
  evidence = decision.evidence
  table = pd.DataFrame(evidence['trials'])
  # A column without any number would not be one of numbers.
  for name in ('speedup', 'lenience', 'loss', 'p'):
    table[name] = table[name].astype(float)
  guide, about_p = (
    'The config fixes the settings; nothing was chosen on these examples.',
    'that more than the risk is lost',
  )
  if evidence['choosing_examples']:
    level = f'{evidence["delta_per_curve"]:.3g}'
    about_p += f'; certified if at most {level}'
    guide = (
      '(The method speed is speculative decoding.) The table has the numbers of'
      f' the {evidence["choosing_examples"]} examples that the setting was'
      ' chosen on. Lossless settings need no test. The other leniences of a'
      ' curve (a method with its options and a gamma) are tested from strict'
      f' on, up to the first that fails, at level {level} each.'
    )
  columns = [
    tables.GAMMA,
    tables.LENIENCE,
    Column('speedup', 'Modelled speed-up', RATIO, 'over the verifier alone'),
    Column('loss', 'Quality loss', SCORE, 'below the verifier alone; best = 1'),
    Column('p', 'p-value', styles.small, about_p),
    Column('is_certified', 'Certified', '✗✓'.__getitem__, 'may be chosen'),
  ]
  table = Table('decision', 'Settings that were tried', table, columns)
  return Section('Decision', guide, table)


def _kinds_section(
  by_kind: pd.DataFrame,
  group: Sequence[Column],
  point: Sequence[Column],
  curve_styles: styles.CurveStyles,
  config: AnalysisConfig,
) -> Section:
  """Returns the section that compares kinds of decoding."""

  def name(variant: object) -> str:
    style = curve_styles.get(variant)
    return style.label if style else tables.text_or_dash(variant)

  columns = [
    *group,
    Column('fastest', 'Fastest', name, "at the verifier's quality"),
    *point,
    tables.SPEEDUP,
    Column('best_variant', 'Best', name, "within the verifier's latency"),
    *(
      x._replace(field=f'best_{x.field}', heading=f'Best: {x.field}')
      for x in point
    ),
    tables.DIFFERENCE,
    tables.BEST_SPEEDUP,
  ]
  table = by_kind.rename(columns={'variant': 'fastest', 'kind': 'variant'})
  return Section(
    'Kinds of decoding at equal quality',
    'Each kind of decoding is shown by its best points; a kind with more points'
    ' had more chances. The left columns show the fastest point at the quality'
    ' of the verifier alone: it is lossless, or the lower end of the paired'
    ' 95 % interval of the difference is above'
    f' {styles.MINUS}{config.margin:g} of the best score. The right columns'
    ' show the point of the highest quality that takes no longer than the'
    ' verifier alone. A speculative cascade has a deferral rule; relaxed'
    ' decoding accepts more drafts than strict decoding without one. Other'
    ' methods are your own without a deferral rule. Sequential cascades do not'
    ' speculate; sequence-level cascades keep or replace the whole answer of'
    ' the drafter.',
    Table('kinds', 'Kinds of decoding', table, columns, row_heading='Kind'),
  )


def _decision(run: Run, left_out: list[str]) -> Any:
  """Reads the decision of a run; returns None if there is none."""
  path = run.path / 'decision.json'
  if not path.is_file():
    return None
  # Imports JAX, which other pages do without.
  from cascades.decisions import Decision

  try:
    return Decision.load(path)
  except ValueError as error:
    left_out.append(f'{str(error).rstrip(".")}.')
    return None


def _lead(
  contents: Sequence[Run], names: Sequence[str], frame: pd.DataFrame
) -> str:
  """Returns one line with models, examples, gamma and temperature."""
  config = contents[0].config

  def values(column: str, rows: pd.DataFrame) -> str:
    return ', '.join(f'{v:g}' for v in sorted(rows[column].unique()))

  parts = []
  if config.get('drafter') and config.get('verifier'):
    parts.append(f'{config["drafter"]} drafts for {config["verifier"]}')
  parts.append(f'{values("n", frame)} examples per task')
  drafted = frame[frame.gamma > 0]
  if len(drafted):
    parts.append(f'gamma {values("gamma", drafted)}')
  parts.append(f'temperature {values("temperature", frame)}')
  if config.get('block_by_block'):
    parts.append(
      'drafts depend on where a block begins: the target holds for each block,'
      ' and there is no drafter alone'
    )
  if len(names) > 1:
    parts.append(f'workdirs {", ".join(names)}')
  return ' · '.join(parts)


def _drift(run: Run, name: str) -> str:
  """Returns a sentence if the unit costs of a run changed meanwhile."""
  unit, ratio = run.measured.drift()
  if abs(ratio - 1) <= _COST_CHANGE:
    return ''
  return (
    f"Unit costs of {name} changed: relative to the verifier's token, {unit}"
    f' took {styles.number(ratio)} times as long at the end of the run as at'
    ' its start. Other work on the machine may be the cause; the modelled'
    ' latencies are less certain.'
  )


def _costs(run: Run) -> str:
  """Returns unit costs in words."""
  blocks = '; '.join(
    f'verifier call on a block of {gamma} drafts {styles.milliseconds(seconds)}'
    for gamma, seconds in sorted(run.costs.verify_s.items())
  )
  return (
    f'verifier token {styles.milliseconds(run.costs.verifier_token_s)}; drafter'
    f' token {styles.milliseconds(run.costs.drafter_token_s)}; {blocks}'
  )


def _versions(contents: Sequence[Run]) -> Mapping[str, str]:
  """Returns the versions of packages; those of the runs take precedence."""
  packages = 'numpy', 'scipy', 'pandas', 'matplotlib'
  versions = {'python': platform.python_version()}
  versions |= {name: importlib.metadata.version(name) for name in packages}
  for run in contents:
    versions |= run.config.get('versions') or {}
  return versions
