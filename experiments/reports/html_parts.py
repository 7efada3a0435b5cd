"""Parts of the page's HTML that several sections share."""

import re
from collections.abc import Sequence

from experiments import escapes
from experiments.reports import drawings, styles
from experiments.reports.drawings import Drawing

# Longest table that is not folded away.
_LONGEST_OPEN_TABLE = 10


def figure(drawing: Drawing, wide: bool = False) -> str:
  """Returns a drawing with its caption."""
  caption = f'<figcaption>{escapes.for_html(drawing.caption)}</figcaption>'
  css_class = ' class="wide"' if wide else ''
  return f'<figure{css_class}>{drawing.svg}{caption}</figure>'


def anchor(title: str) -> str:
  """Returns the id of the section with a title."""
  return re.sub('[^a-z0-9]+', '-', title.lower()).strip('-')


def folded(table: str, title: str, rows: int) -> str:
  """Returns a table, folded away under its title if it has many rows."""
  if rows <= _LONGEST_OPEN_TABLE:
    return table
  return (
    f'<details><summary>{escapes.for_html(title)}, {rows} rows</summary>'
    f'{table}</details>'
  )


def contents(titles: Sequence[str]) -> str:
  """Returns a list of links to the sections with these titles."""
  links = ''.join(
    f'<li><a href="#{anchor(title)}">{escapes.for_html(title)}</a></li>'
    for title in titles
  )
  return f'<nav><ul>{links}</ul></nav>'


def tile(heading: str, value: str, detail: str) -> str:
  """Returns a tile: a number in large type with a heading and a detail."""
  return (
    f'<div class="tile"><span>{escapes.for_html(heading)}</span>'
    f'<b>{escapes.for_html(value)}</b><small>{escapes.for_html(detail)}</small></div>'
  )


def variants_in(svg: str, curve_styles: styles.CurveStyles) -> list[str]:
  """Returns the variants whose curves are in an SVG."""
  return [
    v for v in curve_styles if f'data-method="{escapes.for_html(v)}"' in svg
  ]


def legend(variants: Sequence[str], curve_styles: styles.CurveStyles) -> str:
  """Returns the legend of a section, whose entries highlight a curve."""
  entries = ''.join(
    f'<li data-key="{escapes.for_html(v)}">'
    f'{drawings.marker(curve_styles[v])}'
    f' {escapes.for_html(curve_styles[v].label)}</li>'
    for v in variants
  )
  return f'<ul class="legend">{entries}</ul>'
