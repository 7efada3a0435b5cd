"""The page of a device, one HTML file, and its table in Markdown."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from cascades import atomic
from cascades.untrusted import display
from experiments.accelerators import device_tables
from experiments.accelerators.device_summary import Section, Summary, Verdict
from experiments.benchmarks.harness import Table, median
from experiments.reports import drawings, html_parts, page, styles, tables
from experiments.reports.drawings import Drawing


def write(folder: pathlib.Path, summary: Summary) -> pathlib.Path:
  """Writes index.html and table.md; returns the path of the page."""
  atomic.write_text(folder / 'table.md', summary.markdown())
  path = folder / 'index.html'
  atomic.write_text(path, render(summary))
  return path


def render(summary: Summary) -> str:
  """Returns the page, which needs no other file and no network."""
  plots = {'unit_costs': _reading_plots, 'speed': _speed_plots}
  # Curves of all figures: models with random weights, then the methods.
  shapes = [shape for shape, _ in device_tables.reading(summary.figures)]
  labels = dict.fromkeys(shapes) | {'strict': None, 'token_v2': None}
  curve_styles = styles.styles(
    {x: 'speed' if x == 'strict' else x for x in labels}
  )
  strict = curve_styles['strict']
  curve_styles['strict'] = dataclasses.replace(
    strict, label='Strict', dashes=()
  )
  parts = []
  for section in summary.sections:
    figures: Sequence[Drawing] = ()
    if section.phase in plots:
      figures = plots[section.phase](summary.figures, curve_styles)
    parts.append(_section(section, figures, curve_styles))
  sections = ''.join(parts)
  tiles = ''.join(map(_tile, summary.verdicts))
  notice = ''
  if summary.missing:
    notice = _notice(f'Not started: {", ".join(summary.missing)}.')
  title = display.for_html(summary.title)
  titles = [section.title for section in summary.sections]
  return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{page.style_sheet(curve_styles)}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="lead">{display.for_html(summary.lead)}</p>
{notice}</header>
<main>
<section class="tiles" style="margin-top:1.2rem">{tiles}</section>
{html_parts.contents(titles)}
{sections}
</main>
<footer>Made by <code>python -m experiments.accelerator</code> from the JSON
files beside this page.</footer>
</body>
</html>
"""


def _notice(text: str) -> str:
  """Returns a notice as HTML."""
  return f'<p class="notice">{display.for_html(text)}</p>\n'


def _tile(verdict: Verdict) -> str:
  """Returns a headline as HTML, in colour if it has a bound."""
  text = html_parts.tile(verdict.heading, verdict.value, verdict.detail)
  if verdict.is_met is None:
    return text
  css_class = 'right' if verdict.is_met else 'wrong'
  return text.replace('<b>', f'<b class="{css_class}">')


def _section(
  section: Section, figures: Sequence[Drawing], curve_styles: styles.CurveStyles
) -> str:
  """Returns a phase as HTML."""
  parts = [''.join(map(_notice, section.sentences))]
  if figures:
    svg = ''.join(x.svg for x in figures)
    variants = html_parts.variants_in(svg, curve_styles)
    parts.append(html_parts.legend(variants, curve_styles))
    drawing_html = ''.join(map(html_parts.figure, figures))
    # A figure without a neighbour would have the width of the page.
    css = '' if len(figures) > 1 else ' style="max-width:42rem"'
    parts.append(f'<div class="pair"{css}>{drawing_html}</div>')
  if section.table:
    # A table of facts has a name and a value in each row.
    if len(section.table[0]) == 2:
      parts.append(tables.settings(dict(section.table[1:])))
    else:
      parts.append(_table(section.table))
  return f"""<section class="analysis" id="{html_parts.anchor(section.title)}">
<h2>{display.for_html(section.title)}</h2>
<p class="guide">{display.for_html(section.guide)}</p>
{''.join(parts)}
</section>
"""


def _table(table: Table) -> str:
  """Returns a table as HTML."""

  def cells(row: Sequence[str], tag: str) -> str:
    texts = (f'<{tag}>{display.for_html(cell)}</{tag}>' for cell in row[1:])
    return f'<tr><th>{display.for_html(row[0])}</th>{"".join(texts)}</tr>'

  head, *rows = table
  body = '\n'.join(cells(row, 'td') for row in rows)
  return (
    '<div class="scroll"><table class="summary">'
    f'<thead>{cells(head, "th")}</thead>\n<tbody>{body}</tbody></table></div>'
  )


def _reading_plots(
  figures: Mapping[str, Any], curve_styles: styles.CurveStyles
) -> list[Drawing]:
  """Draws the time of reading more tokens, a plot for each batch size."""
  passes = device_tables.reading(figures)
  plots = []
  for batch in sorted({batch for _, batch in passes}):
    curves = {}
    for (shape, size), by_width in passes.items():
      if size == batch and 1 in by_width:
        first = median(by_width[1]['pass_s'])
        curves[shape] = {
          w: median(x['pass_s']) / first
          for w, x in sorted(by_width.items())
          if w
        }
    if any(len(curve) > 1 for curve in curves.values()):
      labels = 'tokens read in a pass', 'time relative to one token'
      name, caption = f'reading-{batch}', f'Batch {batch}'
      plots.append(_plot(curves, curve_styles, name, caption, labels=labels))
  return plots


def _speed_plots(
  figures: Mapping[str, Any], curve_styles: styles.CurveStyles
) -> list[Drawing]:
  """Draws speed-ups by the forced rate, a plot for each pair and batch."""
  by_caption: dict[str, dict[str, dict[float, float]]] = {}
  for x, row, ratio in device_tables.speeds(figures, 'speed'):
    if row['rate'] is not None:
      curves = by_caption.setdefault(f'{x["pair"]}, batch {x["batch"]}', {})
      curves.setdefault(row['arm'], {})[row['rate']] = ratio
  labels = 'forced acceptance rate', 'speed relative to the verifier alone'
  return [
    _plot(curves, curve_styles, f'speed-{i}', caption, labels=labels)
    for i, (caption, curves) in enumerate(by_caption.items())
  ]


def _plot(
  curves: Mapping[str, Mapping[float, float]],
  curve_styles: styles.CurveStyles,
  name: str,
  caption: str,
  *,
  labels: tuple[str, str],
) -> Drawing:
  """Draws curves with the value 1 as a line."""
  with mpl.rc_context(drawings.RC):
    figure = drawings.new(6.4, 3.6)
    axes = figure.add_subplot()
    axes.axhline(1, color=drawings.SOFT, linewidth=1.1, linestyle=(0, (4, 3)))
    titles = {}
    for variant, curve in curves.items():
      style, gid = curve_styles[variant], f'method:{variant}'
      axes.plot(
        list(curve),
        list(curve.values()),
        color=style.placeholder,
        marker=drawings.shape(style),
        markeredgecolor=drawings.PAGE,
        gid=gid,
      )
      titles[gid] = [f'{style.label}, {x:g}: {y:.2f}' for x, y in curve.items()]
    ticks = sorted({x for curve in curves.values() for x in curve})
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter('{x:g}'))
    axes.set_ylim(bottom=0)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    drawing = drawings.finish(
      figure,
      name,
      description=f'{labels[1]} over {labels[0]}. {caption}.',
      styles=curve_styles,
      titles=titles,
    )
  return Drawing(**(vars(drawing) | {'caption': caption, 'wide': False}))
