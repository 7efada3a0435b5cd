"""The page itself: one HTML file that needs nothing else, not even a network.

Plots are inline SVG and take their colours from the style sheet, which has a
light and a dark set; the only script sorts tables, lifts out the curve that the
pointer rests on and plays answers, and nothing is hidden without it.
"""

import dataclasses
import importlib.metadata
import importlib.resources
import platform
import re
from collections.abc import Mapping, Sequence

import pandas as pd

from cascades.untrusted import display
from experiments.analysis import reference_points, slices
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.example_selection import SelectedAnswer
from experiments.analysis.runs import Run
from experiments.analysis.slices import SummarySlice
from experiments.records.metrics import Costs
from experiments.records.versions import describe
from experiments.reports import (
  drawings,
  examples,
  figures,
  questions,
  styles,
  tables,
)
from experiments.reports.drawings import Drawing
from experiments.reports.first_screen import FirstScreen

# How to read a plot, or a note on one, by what it is of.
_GUIDES = {
  'relative_latency': (
    'Up and to the left is better: each line is one method as its lenience'
    ' grows, and left of 1 is faster than the verifier alone.'
  ),
  'rejection_rate': (
    'The same points by the share of examined drafts turned down: of two'
    ' lines, the higher keeps more quality for the same rejections.'
  ),
  'tuned': (
    'Each point is shown at the gamma that made it fastest on these same'
    ' examples; what is emitted has the same law at any gamma, so that quality'
    ' differs by noise alone.'
  ),
  'bonus': (
    "Where the bonus is the verifier's own, gamma does change the law, and"
    ' every gamma is a point.'
  ),
  'variants': (
    'Hollow marks on dashed lines are a method with options other than the'
    ' standard ones; the legend names them.'
  ),
  'oracle': (
    'An oracle looks at the verifier at every token to decide, and pays only'
    ' where it defers: a bound, not a method that could be run.'
  ),
  'panels': (
    'Each method alone, the others pale behind it; dashed are the two models'
    ' alone, and bands are 95 % bootstrap intervals over examples.'
  ),
  'speed': (
    'This task is about speed alone: nothing says how good an answer is, so'
    ' that only strict decoding keeps what the verifier would have said.'
  ),
  'by_rejections': (
    'Down is faster, and below 1 faster than the verifier alone; to the left'
    ' fewer examined drafts are turned down.'
  ),
  'relative_length': (
    'Above 1, answers are longer than the verifier would have written, which'
    ' eats into the time saved per token.'
  ),
}

# Rows of a table that is shown without asking.
_LONG = 10
# By how much unit costs may change in a run before the page says so.
_DRIFT = 0.1

# What the page looks like and what it does, in files beside this one. In the
# first, $light and $dark are where the colours of the curves go.
_STYLES = ('page.css', 'tokens.css')
_SCRIPTS = ('page.js', 'tokens.js')


def _inlined(names: Sequence[str]) -> str:
  """Files as one text, for the page needs nothing else."""
  here = importlib.resources.files('experiments.reports')
  return '\n'.join((here / name).read_text(encoding='utf-8') for name in names)


def _css(table: Mapping[str, styles.Style]) -> str:
  """The style sheet, with the colours of the curves."""

  def colours(of: str) -> str:
    return ' '.join(f'{s.variable}: {getattr(s, of)};' for s in table.values())

  text = _inlined(_STYLES).replace('$light', colours('light'))
  return text.replace('$dark', colours('dark'))


def _figure(drawing: Drawing, wide: bool = False) -> str:
  """A drawing with its caption; a wide one fills a line of the page."""
  caption = f'<figcaption>{display.for_html(drawing.caption)}</figcaption>'
  kind = ' class="wide"' if wide else ''
  return f'<figure{kind}>{drawing.svg}{caption}</figure>'


def _question(
  question: questions.Question, looks: Mapping[str, styles.Style], note: str
) -> str:
  """A question with what answers it; long tables are folded away."""
  shown = [table for table in question.tables if len(table.frame)]
  drawn = ''.join(drawing.svg for drawing in question.drawings)
  parts = [_legend(_drawn(drawn, looks), looks)] if drawn else []
  parts += [_figure(d, wide=True) for d in question.drawings if d.wide]
  narrow = ''.join(_figure(d) for d in question.drawings if not d.wide)
  parts += [f'<div class="pair">{narrow}</div>'] if narrow else []
  parts += [
    _folded(
      tables.interactive(table, looks, note), table.title, len(table.frame)
    )
    for table in shown
  ]
  if not parts:
    parts = [f'<p class="guide">{display.for_html(question.otherwise)}</p>']
  body = '\n'.join(parts)
  return f"""<section class="question" id="{_anchor(question.title)}">
<h2>{display.for_html(question.title)}</h2>
<p class="guide">{display.for_html(question.guide)}</p>
{body}
</section>"""


def _anchor(title: str) -> str:
  """What a link to a section of this title says."""
  return re.sub('[^a-z0-9]+', '-', title.lower()).strip('-')


def _folded(table: str, title: str, rows: int) -> str:
  """The text of a table, folded away under its title if it has many rows."""
  if rows <= _LONG:
    return table
  return (
    f'<details><summary>{display.for_html(title)}, {rows} rows</summary>'
    f'{table}</details>'
  )


def _contents(titles: Sequence[str]) -> str:
  """A list of what is below, to jump there."""
  links = ''.join(
    f'<li><a href="#{_anchor(title)}">{display.for_html(title)}</a></li>'
    for title in titles
  )
  return f'<nav><ul>{links}</ul></nav>'


def _first(
  screens: Sequence[FirstScreen], looks: Mapping[str, styles.Style]
) -> str:
  """One figure of everything, and what it comes to in three sentences."""
  parts = []
  for screen in screens:
    svg = screen.drawing.svg
    answers = ''.join(
      f'<li>{display.for_html(answer)}</li>' for answer in screen.answers
    )
    parts.append(f"""<section class="first">
<div>{_figure(screen.drawing)}</div>
<div><ol>{answers}</ol>
{_legend(_drawn(svg, looks), looks)}</div>
</section>""")
  return '\n'.join(parts)


def _drifts(told: Mapping[str, Run]) -> list[str]:
  """Sentences about unit costs that changed in the course of a run."""
  found = []
  for name, run in told.items():
    unit, ratio = run.measured.drift()
    if abs(ratio - 1) <= _DRIFT:
      continue
    of = f' of {name}' if len(told) > 1 else ''
    found.append(
      f"Unit costs{of} changed: beside the verifier's token, {unit} took"
      f' {styles.number(ratio)} times as long at the end as at the start. The'
      ' machine had other work; read latencies with that in mind.'
    )
  return found


def _tile(what: str, value: str, note: str) -> str:
  """A number that stands out, with what it is and what to know of it."""
  return (
    f'<div class="tile"><span>{display.for_html(what)}</span>'
    f'<b>{display.for_html(value)}</b><small>{display.for_html(note)}</small></div>'
  )


def _tiles(cut: SummarySlice, table: Mapping[str, styles.Style]) -> str:
  """The two models alone, and the fastest point that scored no worse."""
  tiles = []
  for baseline in reference_points.BASELINES:
    rows = cut.frame[cut.frame.method == baseline]
    if len(rows):
      row = rows.iloc[0]
      latency = styles.number(row.relative_latency)
      said = (
        (styles.number(row.quality, 3), f'quality, at latency {latency}')
        if cut.has_quality
        else (latency, 'latency per token')
      )
      tiles.append(_tile(table[baseline].label, *said))
  fit = slices.no_worse(cut)
  if fit is not None:
    said = 'none', 'every point scored worse'
    if len(fit):
      best = fit.iloc[0]
      said = (
        f'{styles.number(1 / best.relative_latency)} times as fast',
        f'{table[best.variant].label}, {best.place};'
        ' chosen on these same examples, with no margin for chance',
      )
    tiles.append(_tile('Fastest that scored no worse', *said))
  return f'<div class="tiles">{"".join(tiles)}</div>'


def _drawn(svg: str, looks: Mapping[str, styles.Style]) -> list[str]:
  """The curves that are in a drawing."""
  return [v for v in looks if f'data-method="{display.for_html(v)}"' in svg]


def _legend(variants: Sequence[str], table: Mapping[str, styles.Style]) -> str:
  """The curves of a section, each of which the pointer can lift out."""
  entries = ''.join(
    f'<li data-key="{display.for_html(v)}">{drawings.marker(table[v])}'
    f' {display.for_html(table[v].label)}</li>'
    for v in variants
  )
  return f'<ul class="legend">{entries}</ul>'


def _title(cut: SummarySlice) -> str:
  """Which rows a cut has, as far as there are others."""
  parts = [styles.words(cut.task)]
  parts += [cut.run] if cut.run else []
  if cut.temperature is not None:
    parts.append(f'temperature {cut.temperature:g}')
  if cut.gamma_tuned:
    parts.append('gamma tuned')
  elif cut.gamma is not None:
    parts.append(f'gamma {cut.gamma}')
  return ', '.join(parts)


def _notes(cut: SummarySlice, hollow: bool) -> str:
  """How to read a cut; empty if it goes without saying.

  Args:
    cut: Rows that are shown together.
    hollow: Whether a curve has hollow marks.
  """
  frame = cut.frame
  notes = {
    'speed': not cut.has_quality,
    'tuned': cut.gamma_tuned,
    'bonus': cut.gamma_tuned and (frame.bonus_from == 'verifier').any(),
    'variants': hollow,
    'oracle': frame.oracle.any(),
  }
  guide = ' '.join(_GUIDES[note] for note, holds in notes.items() if holds)
  return f'<p class="guide">{display.for_html(guide)}</p>\n' if guide else ''


def _plots(
  cut: SummarySlice, table: Mapping[str, styles.Style], name: str
) -> tuple[str, list[Drawing]]:
  """What is drawn of a cut: two plots beside each other, others below.

  Args:
    cut: Rows that are shown together, with their `place`.
    table: Styles by variant.
    name: What the names of the drawings begin with.

  Returns:
    The plots, and their drawings.
  """
  frame, drawn = cut.frame, []

  def shown(drawing: Drawing, guide: str) -> str:
    drawn.append(drawing)
    return _figure(dataclasses.replace(drawing, caption=_GUIDES[guide]))

  def against(x: str, y: str, guide: str, **size) -> str:
    drawing = figures.curves(
      frame, table, x=x, y=y, name=f'{name}-{x}-{y}', **size
    )
    return shown(drawing, guide)

  if cut.has_quality:
    pair = against('relative_latency', 'quality', 'relative_latency')
    pair += against('rejection_rate', 'quality', 'rejection_rate')
  else:
    pair = against('rejection_rate', 'relative_latency', 'by_rejections')
  third = ''
  if not frame.method.isin(reference_points.BASELINES).all():
    if cut.has_quality:
      drawing = figures.panels(
        frame, table, x='relative_latency', y='quality', name=f'{name}-panels'
      )
      third = shown(drawing, 'panels')
    if frame.relative_length.notna().any():
      x, y = 'relative_latency', 'relative_length'
      third += against(x, y, 'relative_length', size=(5.2, 5.3))
    third = f'<div class="panels">{third}</div>'
  return f'<div class="pair">{pair}</div>\n{third}', drawn


def _part(
  cut: SummarySlice, table: Mapping[str, styles.Style], name: str
) -> tuple[str, list[Drawing]]:
  """Everything about one cut, and what is folded away below it.

  Args:
    cut: Rows that are shown together.
    table: Styles by variant.
    name: What the names of its drawings begin with, and no others.

  Returns:
    Its section, and its own drawings: not those of what is folded away.
  """
  frame = cut.frame
  shown = frame.gamma if cut.gamma_tuned else 0 * frame.gamma
  frame = frame.assign(place=list(map(styles.place, frame.lenience, shown)))
  cut = dataclasses.replace(cut, frame=frame)
  variants = [v for v in table if (frame.variant == v).any()]
  guide = _notes(cut, any(table[v].dashes for v in variants))
  plots, drawn = _plots(cut, table, name)
  under = '\n'.join(
    _part(below, table, f'{name}-{i}')[0]
    for i, below in enumerate(cut.by_gamma)
  )
  if under:
    under = (
      f'\n<details><summary>{display.for_html(styles.words(cut.task))}'
      f', each gamma by itself</summary>\n{under}\n</details>'
    )
  title = _title(cut)
  text = f"""<section id="{_anchor(title)}">
<h2>{display.for_html(title)}</h2>
{guide}{_tiles(cut, table)}
{_legend(variants, table)}
{plots}
{_folded(tables.summary(frame, table, cut.gamma_tuned), 'All points', len(frame))}
</section>{under}"""
  return text, drawn


def _lead(told: Mapping[str, Run], frame: pd.DataFrame) -> str:
  """One line of what was run.

  Args:
    told: The runs by name; settings are those of the first.
    frame: Rows of their summaries.
  """
  config = next(iter(told.values())).config

  def values(column: str, rows: pd.DataFrame) -> str:
    return ', '.join(f'{v:g}' for v in sorted(rows[column].unique()))

  parts = []
  if config.get('drafter') and config.get('verifier'):
    parts.append(f'{config["drafter"]} drafts for {config["verifier"]}')
  parts.append(f'{values("n", frame)} examples a task')
  drafted = frame[frame.gamma > 0]
  if len(drafted):
    parts.append(f'gamma {values("gamma", drafted)}')
  parts.append(f'temperature {values("temperature", frame)}')
  if config.get('block_by_block'):
    parts.append(
      'what is drafted hangs on where a block begins: a target holds block by'
      ' block, and there is no drafter alone'
    )
  if len(told) > 1:
    parts.append(f'workdirs {", ".join(told)}')
  return ' · '.join(parts)


def _costs(costs: Costs) -> str:
  """Unit costs in words."""
  blocks = '; '.join(
    f'verifier call on a block of {gamma} drafts {styles.milliseconds(seconds)}'
    for gamma, seconds in sorted(costs.verify_s.items())
  )
  return f"""verifier token
{styles.milliseconds(costs.verifier_token_s)}; drafter token
{styles.milliseconds(costs.drafter_token_s)}; {blocks}"""


def _footer(told: Mapping[str, Run], config: AnalysisConfig) -> str:
  """How latency and intervals came about, settings and versions.

  Args:
    told: The runs by name.
    config: How intervals were drawn.
  """
  versions = {'python': platform.python_version()} | {
    name: importlib.metadata.version(name)
    for name in ('numpy', 'scipy', 'pandas', 'matplotlib', 'statsmodels')
  }
  several = len(told) > 1
  costs, made, details = [], [], []
  for name, run in told.items():
    # What the run itself used, if it says so, not what writes the page.
    versions |= run.config.get('versions') or {}
    of = display.for_html(f' of {name}') if several else ''
    costs.append(f'Unit costs{of}: {_costs(run.costs)}.')
    code = run.start.get('code')
    if isinstance(code, str):
      made.append(f'Decoded{of} with {display.for_html(describe(code))}.')
    if run.config:
      whose = display.for_html(name) if several else 'the run'
      details.append(
        f'<details><summary>Settings of {whose}</summary>'
        f'{tables.settings(run.config)}</details>'
      )
  line = ', '.join(f'{name} {v}' for name, v in versions.items())
  costs, details = ' '.join(costs), '\n'.join(details)
  return f"""<footer>
<p>Latency is modelled: counted calls times measured unit costs, per emitted
token, over the verifier's cost of one token. {costs} Prefill is not in it.
Time on the clock stands beside it in the tables and is never merged with
it.</p>
<p>Intervals are percentiles of {config.resamples:,} bootstrap resamples of the
examples, seed {config.seed}; those of differences are paired: both points have
the same resamples. {' '.join(made)}</p>
{details}
<p>{display.for_html(line)}</p>
</footer>"""


def render(
  frame: pd.DataFrame,
  shown: Sequence[SelectedAnswer],
  told: Mapping[str, Run],
  screens: Sequence[FirstScreen],
  asked: Sequence[questions.Question],
  looks: Mapping[str, styles.Style],
  config: AnalysisConfig,
  note: str = '',
  left_out: Sequence[str] = (),
) -> tuple[str, list[Drawing]]:
  """The page, and all that is drawn on it.

  Args:
    frame: Rows of the summary, as `runs.summary` makes them.
    shown: Answers that are shown, token by token.
    told: The runs by name.
    screens: What is said first.
    asked: Questions with their answers.
    looks: Styles by variant.
    config: How intervals were drawn.
    note: What has to be known before anything is compared; may be empty.
    left_out: Sentences on what is missing.
  """
  several = frame.gamma[frame.gamma > 0].nunique() > 1
  first = next(iter(told.values()))
  name = str(first.config.get('name') or 'Speculative cascades')
  cut = list(slices.slice_summary(frame))
  parts = [_part(one, looks, f'p{i}') for i, one in enumerate(cut)]
  drawn = [screen.drawing for screen in screens]
  drawn += [drawing for _, own in parts for drawing in own]
  drawn += [drawing for question in asked for drawing in question.drawings]
  sections = '\n'.join(text for text, _ in parts)
  answers = '\n'.join(_question(one, looks, note) for one in asked)
  marked = ''.join(
    f'<p class="allowed">{display.for_html(one)}</p>\n'
    for one in [*([note] if note else []), *_drifts(told), *left_out]
  )
  titles = [_title(one) for one in cut] + [one.title for one in asked]
  text = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{display.for_html(name)}: quality and latency</title>
<style>
{_css(looks)}</style>
</head>
<body>
<header>
<h1>{display.for_html(name)}</h1>
<p class="lead">{display.for_html(_lead(told, frame))}</p>
{marked}</header>
<main>
{_first(screens, looks)}
{_contents(titles)}
{sections}
{answers}
{examples.section(shown, looks, several, first.costs)}
</main>
{_footer(told, config)}
<script>
{_inlined(_SCRIPTS)}</script>
</body>
</html>
"""
  return text, drawn
