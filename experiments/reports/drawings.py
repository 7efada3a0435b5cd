"""A figure as the page has it, and as files.

On the page it is inline SVG that takes its colours and font from there: it is
drawn in placeholder colours, which become CSS variables. `new` begins one,
under `RC`, and `finish` makes a `Drawing` of it.
"""

import dataclasses
import io
import pathlib
import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib import colors
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from cascades import atomic
from cascades.untrusted import display
from experiments.reports.styles import Style

# Placeholder colours and the CSS variables they turn into.
INK, SOFT, FAINT = '#0a0b01', '#0a0b02', '#0a0b03'
PAGE = '#0a0b04'
_VARIABLES = {
  INK: '--ink',
  SOFT: '--soft',
  FAINT: '--faint',
  PAGE: '--card',
}
# What they are on paper: what `page.css` has for a light page.
_PAPER = {
  INK: '#1d2430',
  SOFT: '#5d6878',
  FAINT: '#e3e7ec',
  PAGE: '#ffffff',
}
RC = {
  # A dollar in a method's name is a dollar.
  'text.parse_math': False,
  # Text stays text: it can be selected, and scales with the page.
  'svg.fonttype': 'none',
  # Ids inside the file would differ from run to run otherwise.
  'svg.hashsalt': 'cascades',
  'font.size': 11.0,
  'axes.edgecolor': SOFT,
  'axes.labelcolor': INK,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'grid.color': FAINT,
  'grid.linewidth': 0.8,
  'axes.axisbelow': True,
  'xtick.color': SOFT,
  'ytick.color': SOFT,
  'text.color': INK,
  'lines.linewidth': 1.9,
  'lines.markersize': 7.5,
  'lines.markeredgewidth': 0.6,
}


# Files of the same figure are the same, whenever they are written.
_UNDATED = dict.fromkeys(('Date', 'Creator', 'Format', 'Type'))


def new(width: float, height: float) -> Figure:
  """An empty figure, in inches; the page scales it."""
  figure = Figure(figsize=(width, height), layout='constrained')
  # A canvas of its own: no pyplot, so no global state and no display.
  FigureCanvasSVG(figure)
  return figure


@dataclasses.dataclass(frozen=True)
class Drawing:
  """A figure, as the page has it and as files.

  Attributes:
    name: What its files are called, without an ending; no other drawing of
      the page has it.
    svg: An element that takes its colours from the page.
    figure: What it was made of, in placeholder colours.
    colours: Which colour each placeholder becomes on paper.
    labels: What people call each curve, by variant.
    caption: Which of several alike it is; may be empty.
    wide: Whether it fills a line of the page.
  """

  name: str
  svg: str
  figure: Figure
  colours: Mapping[str, str]
  labels: Mapping[str, str]
  caption: str = ''
  wide: bool = True

  def save(self, folder: pathlib.Path) -> None:
    """Writes NAME.svg and NAME.png, in light colours and with a legend."""
    _recolour(self.figure, self.colours)
    # All has its place since the page was drawn.
    self.figure.set_layout_engine('none')
    lines = {
      line.get_gid().partition(':')[2]: line
      for line in self.figure.findobj(Line2D)
      if (line.get_gid() or '').startswith('method:')
    }
    named = [variant for variant in self.labels if variant in lines]
    with mpl.rc_context(RC):
      self.figure.legend(
        [lines[variant] for variant in named],
        [self.labels[variant] for variant in named],
        loc='upper center',
        bbox_to_anchor=(0.5, 0),
        ncols=5,
        frameon=False,
        labelcolor=_PAPER[INK],
      )
      looks = dict(bbox_inches='tight', facecolor='white')
      text = _xml(self.figure, **looks)
      atomic.write_text(folder / f'{self.name}.svg', text)
      FigureCanvasAgg(self.figure)
      picture = io.BytesIO()
      self.figure.savefig(picture, format='png', dpi=120, **looks)
    atomic.write_bytes(folder / f'{self.name}.png', picture.getvalue())


def _xml(figure: Figure, **looks: Any) -> str:
  """Returns a figure's SVG, whatever its labels hold."""
  buffer = io.StringIO()
  figure.savefig(buffer, format='svg', metadata=_UNDATED, **looks)
  return display.for_xml(buffer.getvalue())


def _recolour(figure: Figure, colours: Mapping[str, str]) -> None:
  """Paints all that has a placeholder colour.

  Args:
    figure: What is painted, in place.
    colours: Which colour each placeholder becomes, both as '#rrggbb'.
  """
  exact = {colors.to_rgb(k): colors.to_rgb(v) for k, v in colours.items()}

  def painted(value):
    try:
      rgba = colors.to_rgba_array(value)
    except (TypeError, ValueError):
      # Such as 'auto'.
      return None
    new = np.array([(*exact.get(tuple(c[:3]), c[:3]), c[3]) for c in rgba])
    return None if np.array_equal(new, rgba) else new

  for artist in figure.findobj():
    for what in (
      'color',
      'facecolor',
      'edgecolor',
      'markerfacecolor',
      'markeredgecolor',
    ):
      get = getattr(artist, f'get_{what}', None)
      if get is None or not hasattr(artist, f'set_{what}'):
        continue
      new = painted(get())
      if new is not None and len(new):
        many = hasattr(artist, 'get_offsets')
        getattr(artist, f'set_{what}')(new if many else tuple(new[0]))


def finish(
  figure: Figure,
  name: str,
  description: str,
  styles: Mapping[str, Style],
  titles: Mapping[str, list[str]],
) -> Drawing:
  """What a finished figure becomes.

  Args:
    figure: All of it is drawn.
    name: What its files are called; no other drawing of the page has it.
    description: What it shows, for those who cannot see it.
    styles: Styles by variant.
    titles: What to show when the pointer rests on each marker, by the id of
      the artist that has the markers.
  """
  svg = _svg(figure, name, description, styles, titles)
  colours = _PAPER | {s.placeholder: s.light for s in styles.values()}
  labels = {variant: style.label for variant, style in styles.items()}
  return Drawing(name, svg, figure, colours, labels)


def _svg(
  figure: Figure,
  name: str,
  description: str,
  styles: Mapping[str, Style],
  titles: Mapping[str, list[str]],
) -> str:
  """The figure as an element to be put into a page.

  Args:
    figure: All of it is drawn, in placeholder colours.
    name: What stands before the ids that survive, so that no other drawing of
      the page has them.
    description: What it shows, for those who cannot see it.
    styles: Curves whose placeholders become CSS variables.
    titles: What to show when the pointer rests on each marker, by the id of
      the artist that has the markers.
  """
  text = _xml(figure, transparent=True)
  for style in styles.values():
    text = text.replace(style.placeholder, f'var({style.variable})')
  for placeholder, variable in _VARIABLES.items():
    text = text.replace(placeholder, f'var({variable})')
  # The font comes from the page; only its size is the plot's.
  text = re.sub(r'font: ([\d.]+px) [^;\"]*', r'font-size: \1', text)
  # Ids are shared by all plots of the page.
  text = re.sub(r'(?<=\bid=")(?=[mp][0-9a-f]{8,})', f'{name}-', text)
  text = re.sub(r'(?<=#)(?=[mp][0-9a-f]{8,})', f'{name}-', text)
  root = ElementTree.fromstring(text)
  # Ids are as the text has them.
  titles = {display.for_xml(key): value for key, value in titles.items()}
  used = set(re.findall(r'#([\w-]+)[")]', text))
  parents = {child: parent for parent in root.iter() for child in parent}
  for element in list(root.iter()):
    element.tag = element.tag.rpartition('}')[2]
    for key in [k for k in element.attrib if '}' in k]:
      element.set(key.rpartition('}')[2], element.attrib.pop(key))
    identifier = element.get('id')
    if identifier in titles:
      uses = (e for e in element.iter() if e.tag.endswith('use'))
      for use, title in zip(uses, titles[identifier], strict=True):
        ElementTree.SubElement(use, 'title').text = title
    kind, _, method = (identifier or '').partition(':')
    if kind in ('method', 'band', 'front'):
      element.set('data-method', method)
      if kind == 'band':
        element.set('data-band', '')
    if identifier and identifier not in used:
      del element.attrib['id']
    # It would style the whole page.
    if element.tag == 'style':
      parents[element].remove(element)
  for key in ('width', 'height', 'version'):
    root.attrib.pop(key, None)
  root.set('role', 'img')
  root.set('aria-label', description)
  return display.for_xml(ElementTree.tostring(root, encoding='unicode'))


def shape(style: Style) -> MarkerStyle:
  """The marker; Matplotlib makes its own polygons and stars too small."""
  if isinstance(style.marker, tuple):
    return MarkerStyle(style.marker, transform=Affine2D().scale(1.3))
  return MarkerStyle(style.marker)


def marker(style: Style) -> str:
  """The marker of a curve for legends and tables, as an `<svg>` element."""
  drawn = shape(style)
  path = drawn.get_path().transformed(drawn.get_transform())
  letters = {
    Path.MOVETO: 'M',
    Path.LINETO: 'L',
    Path.CURVE3: 'Q',
    Path.CURVE4: 'C',
  }
  parts = []
  for points, code in path.iter_segments(simplify=False):
    # Closing a path repeats a point that SVG does not want.
    if code == Path.CLOSEPOLY:
      parts.append('Z')
    else:
      numbers = ' '.join(f'{v:.3g}' for v in points)
      parts.append(letters[code] + numbers)
  colour = f'var({style.variable})'
  name, box, line = 'marker', '-.6 -.6 1.2 1.2', ''
  fill = f'fill="{colour}"'
  if style.dashes:
    # Hollow, on a piece of its line.
    name, box = 'marker line', '-1.5 -.8 3 1.6'
    dashes = ' '.join(f'{v * 0.15:g}' for v in style.dashes)
    line = (
      f'<path d="M-1.5 0H1.5" stroke="{colour}" stroke-width=".15"'
      f' stroke-dasharray="{dashes}"/>'
    )
    fill = f'fill="var(--card)" stroke="{colour}" stroke-width=".14"'
  # Matplotlib's y axis points up, SVG's down.
  return (
    f'<svg class="{name}" viewBox="{box}" aria-hidden="true">{line}'
    f'<path transform="scale(1 -1)" d="{"".join(parts)}" {fill}/></svg>'
  )
