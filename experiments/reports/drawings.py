"""Figures as inline SVG for the page, and as files.

On the page a figure is inline SVG with the colours and the font of the page: it
is drawn in placeholder colours, which become CSS variables. `new` begins a
figure, under `RC`, and `finish` makes a `Drawing` of it.
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

from cascades import files
from experiments import escapes
from experiments.reports.styles import CurveStyles, Style

# Placeholder colours and their CSS variables.
INK, SOFT, FAINT = '#0a0b01', '#0a0b02', '#0a0b03'
PAGE = '#0a0b04'
_VARIABLES = {INK: '--ink', SOFT: '--soft', FAINT: '--faint', PAGE: '--card'}
# Their colours on paper, which are those of a light page in `page.css`.
_PAPER = {INK: '#1d2430', SOFT: '#5d6878', FAINT: '#e3e7ec', PAGE: '#ffffff'}
RC = {
  # A dollar sign in a method's name is no mathematics.
  'text.parse_math': False,
  # Text can be selected, and scales with the page.
  'svg.fonttype': 'none',
  # Makes the ids inside the file the same in every run.
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


# Leaves dates out, so that the files of a figure are reproducible.
_UNDATED = dict.fromkeys(('Date', 'Creator', 'Format', 'Type'))


def new(width: float, height: float) -> Figure:
  """Returns an empty figure of a size in inches; the page scales it."""
  figure = Figure(figsize=(width, height), layout='constrained')
  # A canvas without pyplot has no global state and needs no display.
  FigureCanvasSVG(figure)
  return figure


@dataclasses.dataclass(frozen=True)
class Drawing:
  """A figure as an SVG element of the page and as the source of files."""

  name: str
  svg: str
  figure: Figure
  colours: Mapping[str, str]
  labels: Mapping[str, str]
  caption: str = ''
  wide: bool = True

  def save(self, folder: pathlib.Path) -> None:
    """Writes NAME.svg and NAME.png in light colours, with a legend."""
    _recolour(self.figure, self.colours)
    # The layout is fixed since the page was drawn.
    self.figure.set_layout_engine('none')
    artists = {
      line.get_gid().partition(':')[2]: line
      for line in self.figure.findobj(Line2D)
      if (line.get_gid() or '').startswith('method:')
    }
    named = [variant for variant in self.labels if variant in artists]
    with mpl.rc_context(RC):
      self.figure.legend(
        [artists[variant] for variant in named],
        [self.labels[variant] for variant in named],
        loc='upper center',
        bbox_to_anchor=(0.5, 0),
        ncols=5,
        frameon=False,
        labelcolor=_PAPER[INK],
      )
      options = dict(bbox_inches='tight', facecolor='white')
      text = _xml(self.figure, **options)
      files.write_text(folder / f'{self.name}.svg', text)
      FigureCanvasAgg(self.figure)
      picture = io.BytesIO()
      self.figure.savefig(picture, format='png', dpi=120, **options)
    files.write_bytes(folder / f'{self.name}.png', picture.getvalue())


def _xml(figure: Figure, **options: Any) -> str:
  """Returns the SVG of a figure without characters that XML excludes."""
  buffer = io.StringIO()
  figure.savefig(buffer, format='svg', metadata=_UNDATED, **options)
  return escapes.for_xml(buffer.getvalue())


def _recolour(figure: Figure, colours: Mapping[str, str]) -> None:
  """Replaces placeholder colours, as '#rrggbb', of a figure in place."""
  exact = {colors.to_rgb(k): colors.to_rgb(v) for k, v in colours.items()}

  def recoloured(value):
    try:
      rgba = colors.to_rgba_array(value)
    except (TypeError, ValueError):
      # The value is not a colour, such as 'auto'.
      return None
    new = np.array([(*exact.get(tuple(c[:3]), c[:3]), c[3]) for c in rgba])
    return None if np.array_equal(new, rgba) else new

  for artist in figure.findobj():
    for attribute in (
      'color',
      'facecolor',
      'edgecolor',
      'markerfacecolor',
      'markeredgecolor',
    ):
      get = getattr(artist, f'get_{attribute}', None)
      if get is None or not hasattr(artist, f'set_{attribute}'):
        continue
      new = recoloured(get())
      if new is not None and len(new):
        is_collection = hasattr(artist, 'get_offsets')
        getattr(artist, f'set_{attribute}')(
          new if is_collection else tuple(new[0])
        )


def finish(
  figure: Figure,
  name: str,
  *,
  description: str,
  styles: CurveStyles,
  titles: Mapping[str, list[str]],
) -> Drawing:
  """Makes a drawing of a finished figure."""
  text = _xml(figure, transparent=True)
  for style in styles.values():
    text = text.replace(style.placeholder, f'var({style.variable})')
  for placeholder, variable in _VARIABLES.items():
    text = text.replace(placeholder, f'var({variable})')
  # The font is that of the page; only the size is that of the plot.
  text = re.sub(r'font: ([\d.]+px) [^;\"]*', r'font-size: \1', text)
  # Ids must be unique among all plots of the page.
  text = re.sub(r'(?<=\bid=")(?=[mp][0-9a-f]{8,})', f'{name}-', text)
  text = re.sub(r'(?<=#)(?=[mp][0-9a-f]{8,})', f'{name}-', text)
  root = ElementTree.fromstring(text)
  # Ids in the text are escaped for XML.
  titles = {escapes.for_xml(key): value for key, value in titles.items()}
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
    # A style element would apply to the whole page.
    if element.tag == 'style':
      parents[element].remove(element)
  for key in ('width', 'height', 'version'):
    root.attrib.pop(key, None)
  root.set('role', 'img')
  root.set('aria-label', description)
  svg = escapes.for_xml(ElementTree.tostring(root, encoding='unicode'))
  colours = _PAPER | {s.placeholder: s.light for s in styles.values()}
  labels = {variant: style.label for variant, style in styles.items()}
  return Drawing(name, svg, figure, colours=colours, labels=labels)


def shape(style: Style) -> MarkerStyle:
  """Returns the marker of a curve, with polygons and stars enlarged."""
  if isinstance(style.marker, tuple):
    return MarkerStyle(style.marker, transform=Affine2D().scale(1.3))
  return MarkerStyle(style.marker)


def marker(style: Style) -> str:
  """Returns the marker of a curve as an SVG element for legends and tables."""
  marker_style = shape(style)
  path = marker_style.get_path().transformed(marker_style.get_transform())
  letters = {
    Path.MOVETO: 'M',
    Path.LINETO: 'L',
    Path.CURVE3: 'Q',
    Path.CURVE4: 'C',
  }
  parts = []
  for points, code in path.iter_segments(simplify=False):
    # Matplotlib repeats the first point when it closes a path; SVG does not.
    if code == Path.CLOSEPOLY:
      parts.append('Z')
    else:
      numbers = ' '.join(f'{v:.3g}' for v in points)
      parts.append(letters[code] + numbers)
  colour = f'var({style.variable})'
  name, box, line = 'marker', '-.6 -.6 1.2 1.2', ''
  fill = f'fill="{colour}"'
  if style.dashes:
    # Hollow, on a piece of the dashed line.
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
