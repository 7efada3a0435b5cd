"""Plots as inline SVG that takes its colours and font from the page.

Each function takes a frame that is cut to one task, temperature and gamma (or
to a gamma for each point), and returns a `Drawing`: an `<svg>` element for the
page, and the same as files. Beside the columns of the summary a frame has
`variant`, which curve a row is of, and `place`, what people are told of where
on it.
"""

import dataclasses
import io
import itertools
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import colors
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from experiments.analysis.roles import BASELINES, DRAFTER, VERIFIER
from experiments.reports.styles import (
  Style,
  lenience,
  number,
  words,
)

# Placeholder colours and the CSS variables they turn into.
_INK, _SOFT, _FAINT = '#0a0b01', '#0a0b02', '#0a0b03'
_PAGE = '#0a0b04'
_VARIABLES = {
  _INK: '--ink',
  _SOFT: '--soft',
  _FAINT: '--faint',
  _PAGE: '--card',
}
# What they are on paper.
_PAPER = {
  _INK: '#1d2430',
  _SOFT: '#5d6878',
  _FAINT: '#e3e7ec',
  _PAGE: '#ffffff',
}
_DASHED = {'color': _SOFT, 'linestyle': (0, (4, 3)), 'linewidth': 1.1}
# Of the tokens at the best known place of an answer, so many make a mark.
_ENOUGH = 0.05
# Of fitted lines, in order of appearance.
_LINES = ((), (5, 2), (1.2, 1.6), (7, 2, 1.2, 2))
_RC = {
  # A dollar in a method's name is a dollar.
  'text.parse_math': False,
  # Text stays text: it can be selected, and scales with the page.
  'svg.fonttype': 'none',
  # Ids inside the file would differ from run to run otherwise.
  'svg.hashsalt': 'cascades',
  'font.size': 11.0,
  'axes.edgecolor': _SOFT,
  'axes.labelcolor': _INK,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'grid.color': _FAINT,
  'grid.linewidth': 0.8,
  'axes.axisbelow': True,
  'xtick.color': _SOFT,
  'ytick.color': _SOFT,
  'text.color': _INK,
  'lines.linewidth': 1.9,
  'lines.markersize': 7.5,
  'lines.markeredgewidth': 0.6,
}
LABELS = {
  'quality': 'quality',
  'relative_latency': 'modelled latency per token (verifier alone = 1)',
  'rejection_rate': 'rejection rate of examined drafts',
  'latency': 'modelled latency per token (verifier alone = 1)',
  'relative_length': 'output length (verifier alone = 1)',
}


def _figure(width: float, height: float) -> Figure:
  figure = Figure(figsize=(width, height), layout='constrained')
  # A canvas of its own: no pyplot, so no global state and no display.
  FigureCanvasSVG(figure)
  return figure


@dataclasses.dataclass(frozen=True)
class Drawing:
  """A figure, as the page has it and as files.

  Attributes:
    name: Unique in the page; of the files.
    svg: An element that takes its colours from the page.
    figure: What it was made of, in placeholder colours.
    colours: What becomes of each placeholder on paper.
    labels: Of curves, by variant.
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
    nothing = dict.fromkeys(('Date', 'Creator', 'Format', 'Type'))
    with mpl.rc_context(_RC):
      self.figure.legend(
        [lines[variant] for variant in named],
        [self.labels[variant] for variant in named],
        loc='upper center',
        bbox_to_anchor=(0.5, 0),
        ncols=5,
        frameon=False,
        labelcolor=_PAPER[_INK],
      )
      looks = dict(bbox_inches='tight', facecolor='white')
      self.figure.savefig(
        folder / f'{self.name}.svg', metadata=nothing, **looks
      )
      FigureCanvasAgg(self.figure)
      self.figure.savefig(folder / f'{self.name}.png', dpi=120, **looks)


def _recolour(figure: Figure, colours: Mapping[str, str]) -> None:
  """Paints all that has a placeholder colour."""
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


def _drawing(
  figure: Figure,
  name: str,
  description: str,
  styles: Mapping[str, Style],
  titles: Mapping[str, list[str]],
) -> Drawing:
  """What a finished figure becomes; arguments as for `_svg`."""
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
    figure: To be written.
    name: Unique in the page; prefixes the ids that survive.
    description: For those who cannot see it.
    styles: Whose placeholders become CSS variables.
    titles: By artist id, what to show when the pointer rests on each marker.
  """
  buffer = io.StringIO()
  nothing = dict.fromkeys(('Date', 'Creator', 'Format', 'Type'))
  figure.savefig(buffer, format='svg', metadata=nothing, transparent=True)
  text = buffer.getvalue()
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
  return ElementTree.tostring(root, encoding='unicode')


def _shape(style: Style) -> MarkerStyle:
  """The marker; Matplotlib makes its own polygons and stars too small."""
  if isinstance(style.marker, tuple):
    return MarkerStyle(style.marker, transform=Affine2D().scale(1.3))
  return MarkerStyle(style.marker)


def marker(style: Style) -> str:
  """The marker of a curve for legends and tables."""
  shape = _shape(style)
  path = shape.get_path().transformed(shape.get_transform())
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


def _curve(frame: pd.DataFrame, variant: str) -> pd.DataFrame:
  """Points of one curve along its lenience, or its gamma if it has none."""
  return frame[frame.variant == variant].sort_values(
    ['lenience', 'gamma'], kind='stable'
  )


def _mark(row: Mapping) -> str:
  """What stands beside a point in a panel of its own."""
  if math.isnan(row['lenience']) and row['gamma']:
    return f'gamma {row["gamma"]}'
  return lenience(row['lenience'])


def _titles(curve: pd.DataFrame, style: Style, x: str, y: str) -> list[str]:
  return [
    f'{style.label}, {row["place"]}\n'
    f'{words(y)} {number(row[y], 3)}\n{words(x)} {number(row[x], 3)}'
    for row in curve.to_dict('records')
    if math.isfinite(row[x]) and math.isfinite(row[y])
  ]


def _looks(style: Style) -> dict[str, Any]:
  """Of a curve: its line, and its marks, which are hollow on dashed lines."""
  looks = dict(color=style.placeholder, marker=_shape(style))
  if not style.dashes:
    return looks | dict(markeredgecolor=_PAGE)
  return looks | dict(
    linestyle=(0, style.dashes),
    markerfacecolor=_PAGE,
    markeredgecolor=style.placeholder,
    markeredgewidth=1.3,
  )


def _draw(axes, curve, variant: str, style: Style, x: str, y: str) -> None:
  """A line with its markers, and its interval where there is one."""
  if f'{y}_low' in curve:
    axes.fill_between(
      curve[x],
      curve[f'{y}_low'],
      curve[f'{y}_high'],
      color=style.placeholder,
      alpha=0.13,
      linewidth=0,
      gid=f'band:{variant}',
    )
  axes.plot(curve[x], curve[y], gid=f'method:{variant}', **_looks(style))


def _zoom(axes, frame, x: str) -> None:
  """Fits the horizontal axis to the curves, if the two models dwarf them."""
  low, high = axes.dataLim.intervalx
  places = [_first(frame, m, x) for m in BASELINES]
  span = high - low
  far = [p for p in places if p < low - 2 * span or p > high + 2 * span]
  if far and span > 0:
    axes.set_xlim(low - 0.3 * span, high + 0.4 * span)


def _baselines(axes, frame, styles, x: str, y: str, titles) -> None:
  """Big marks, dashed reference lines and labels for the models alone."""
  levels = {m: _first(frame, m, y) for m in BASELINES}
  levels = {m: v for m, v in levels.items() if math.isfinite(v)}
  low, high = axes.get_xlim()
  zoomed = not axes.get_autoscalex_on()
  for method, level in levels.items():
    style = styles[method]
    label = style.label.lower()
    axes.axhline(level, **_DASHED)
    place = _first(frame, method, x)
    where = '' if math.isnan(place) else f'\n{words(x)} {number(place, 3)}'
    # A model alone rejects nothing and keeps nothing: where it has no place
    # on the horizontal axis, its mark stands beside the plot. Where its place
    # is far off, the mark stands at the edge and the label says how far.
    beside = math.isnan(place)
    off = zoomed and not beside and not low <= place <= high
    if off:
      at = f'at {number(place, 2)}'
      label = f'{label}\n← {at}' if place < low else f'{label}\n{at} →'
      place = float(place > high)
    elif beside:
      label, place = label.replace(' ', '\n'), 1.0
    else:
      axes.axvline(place, **_DASHED)
    edge = beside or off
    axes.plot(
      [place],
      [level],
      transform=axes.get_yaxis_transform() if edge else axes.transData,
      color=style.placeholder,
      marker=style.marker,
      markersize=16 if method == VERIFIER else 12,
      markeredgecolor=_PAGE,
      clip_on=False,
      zorder=5,
      gid=f'method:{method}',
    )
    # Away from the other model's label, should the two be close.
    upper = level == max(levels.values())
    # And away from the nearer side of the plot.
    across = place if off else (place - low) / (high - low)
    right = beside or across < 0.2 or (method == DRAFTER and across < 0.8)
    axes.annotate(
      label,
      (place, level),
      xycoords=('axes fraction' if edge else 'data', 'data'),
      xytext=(11 if right else -11, 4 if upper else -5),
      textcoords='offset points',
      ha='left' if right else 'right',
      va='bottom' if upper else 'top',
      fontsize=10.5,
    )
    titles[f'method:{method}'] = [
      f'{style.label}\n{words(y)} {number(level, 3)}{where}'
    ]


def _first(frame: pd.DataFrame, method: str, column: str) -> float:
  rows = frame[frame.variant == method]
  return float(rows.iloc[0][column]) if len(rows) else math.nan


def curves(
  frame: pd.DataFrame,
  styles: Mapping[str, Style],
  *,
  x: str,
  y: str,
  name: str,
  size: tuple[float, float] = (7.4, 5.2),
) -> Drawing:
  """One line per method, a marker per lenience, and the models alone.

  Args:
    frame: Summary rows of one task.
    styles: By variant.
    x: Column of the horizontal axis.
    y: Column of the vertical axis; `y`_low and `y`_high give bands.
    name: Unique in the page.
    size: Width and height in inches; the page scales it.
  """
  titles: dict[str, list[str]] = {}
  with mpl.rc_context(_RC):
    figure = _figure(*size)
    axes = figure.subplots()
    for variant, style in styles.items():
      curve = _curve(frame, variant)
      if variant in BASELINES or curve.empty:
        continue
      _draw(axes, curve, variant, style, x, y)
      titles[f'method:{variant}'] = _titles(curve, style, x, y)
    # Below, and above, is room for what the models alone are called.
    axes.margins(0.06, 0.13)
    _zoom(axes, frame, x)
    _baselines(axes, frame, styles, x, y, titles)
    axes.set_xlabel(LABELS.get(x, x))
    axes.set_ylabel(LABELS.get(y, y))
    description = f'{LABELS.get(y, y)} against {LABELS.get(x, x)}'
    return _drawing(figure, name, description, styles, titles)


def panels(
  frame: pd.DataFrame,
  styles: Mapping[str, Style],
  *,
  x: str,
  y: str,
  name: str,
) -> Drawing:
  """The same curves, a panel for each, the others pale behind it."""
  curves_of = {
    v: _curve(frame, v)
    for v in styles
    if v not in BASELINES and (frame.variant == v).any()
  }
  # Never fewer than three, or one panel would fill the page.
  columns = min(4, max(3, len(curves_of)))
  rows = math.ceil(len(curves_of) / columns)
  titles: dict[str, list[str]] = {}
  with mpl.rc_context(_RC | {'font.size': 10.0}):
    figure = _figure(2.6 * columns, 2.5 * rows + 0.3)
    grid = list(
      figure.subplots(
        rows, columns, sharex=True, sharey=True, squeeze=False
      ).flat
    )
    for axes, (variant, curve) in zip(grid, curves_of.items(), strict=False):
      style = styles[variant]
      for other in curves_of.values():
        axes.plot(other[x], other[y], color=_SOFT, alpha=0.25, linewidth=1)
      for baseline in BASELINES:
        level = _first(frame, baseline, y)
        if math.isfinite(level):
          axes.axhline(level, **_DASHED)
      _draw(axes, curve, variant, style, x, y)
      titles[f'method:{variant}'] = _titles(curve, style, x, y)
      for row in curve.to_dict('records'):
        if math.isfinite(row[x]) and math.isfinite(row[y]):
          axes.annotate(
            _mark(row),
            (row[x], row[y]),
            xytext=(3, -4),
            textcoords='offset points',
            va='top',
            fontsize=8,
            color=_SOFT,
          )
      axes.set_title(style.label, loc='left', color=_INK, fontsize=11)
    for axes in grid[len(curves_of) :]:
      axes.set_visible(False)
    figure.supxlabel(LABELS.get(x, x), fontsize=10)
    figure.supylabel(LABELS.get(y, y), fontsize=10)
    description = f'{LABELS.get(y, y)} of each method in a panel of its own'
    return _drawing(figure, name, description, styles, titles)


def relative_length(frame: pd.DataFrame) -> pd.Series:
  """Mean output length over the verifier's own; nan without that point."""
  return frame.mean_output_tokens / _first(
    frame, VERIFIER, 'mean_output_tokens'
  )


def front(
  frame: pd.DataFrame,
  best: pd.DataFrame,
  styles: Mapping[str, Style],
  *,
  name: str,
) -> Drawing:
  """All points of a task, and a line along those that no other beats.

  Args:
    frame: From `comparisons.compare`, of one task.
    best: Of these, those on the front, fastest first.
    styles: By variant.
    name: Unique in the page.
  """
  with mpl.rc_context(_RC):
    figure = _figure(7.4, 5.2)
    axes = figure.subplots()
    titles = _scatter(axes, frame, styles, 'latency', 'quality', 0.35)
    axes.plot(best.latency, best.quality, color=_SOFT, zorder=1.5)
    titles |= _scatter(axes, best, styles, 'latency', 'quality', 1.0, 'front')
    axes.set_xlabel(LABELS['relative_latency'])
    axes.set_ylabel(LABELS['quality'])
    description = 'points that no other beats in quality and modelled latency'
    return _drawing(figure, name, description, styles, titles)


def _scatter(
  axes, frame, styles, x, y, alpha, kind='method'
) -> dict[str, list[str]]:
  """Marks without lines; what to show at each of them."""
  titles = {}
  for variant, part in frame.groupby('variant', sort=False):
    part = part[np.isfinite(part[x]) & np.isfinite(part[y])]
    style = styles[variant]
    if part.empty:
      continue
    axes.plot(
      part[x],
      part[y],
      **_looks(style) | dict(linestyle='none', alpha=alpha),
      gid=f'{kind}:{variant}',
    )
    titles[f'{kind}:{variant}'] = _titles(part, style, x, y)
  return titles


def fits(
  frame: pd.DataFrame,
  lines: pd.DataFrame,
  styles: Mapping[str, Style],
  *,
  name: str,
) -> Drawing:
  """Latency against rejections by both clocks, with the fitted lines.

  Args:
    frame: From `comparisons.compare`, of one task.
    lines: From `comparisons.latency_fit`, of the same.
    styles: By variant.
    name: Unique in the page.
  """
  with mpl.rc_context(_RC):
    figure = _figure(10.4, 4.4)
    drafting = frame[frame.gamma > 0]
    clocks = {'modelled': 'latency', 'wall': 'wall_latency'}
    for axes, (clock, column) in zip(
      figure.subplots(1, 2), clocks.items(), strict=True
    ):
      _scatter(axes, drafting, styles, 'rejection_rate', column, 0.9)
      of_clock = lines[lines.clock == clock].to_dict('records')
      for line, dashes in zip(of_clock, itertools.cycle(_LINES), strict=False):
        ends = np.array([line['low'], line['high']])
        size = f', batch {line["batch_size"]}' if line['batch_size'] else ''
        axes.plot(
          ends,
          line['intercept'] + line['slope'] * ends,
          color=_SOFT,
          linestyle=(0, dashes) if dashes else '-',
          label=f'gamma {line["gamma"]}{size}: r² {number(line["r2"])}',
        )
      if of_clock:
        axes.legend(frameon=False, fontsize=9)
      axes.axhline(1, **_DASHED)
      axes.set_xlabel(LABELS['rejection_rate'])
      axes.set_ylabel(
        {
          'modelled': 'modelled latency per token',
          'wall': 'time on the clock per token',
        }[clock]
      )
    description = 'latency against rejection rate, modelled and on the clock'
    return _drawing(figure, name, description, styles, {})


def by_position(
  block: pd.DataFrame,
  answer: pd.DataFrame,
  styles: Mapping[str, Style],
  *,
  name: str,
) -> Drawing:
  """Acceptance along the block and deferrals along the answer.

  Args:
    block: From `positions.frames`, a point of each curve of one task.
    answer: The same.
    styles: By variant.
    name: Unique in the page.
  """
  # A few long answers say little of how answers go on.
  most = answer.groupby('variant').examined.transform('max')
  answer = answer[answer.examined >= _ENOUGH * most]
  with mpl.rc_context(_RC):
    figure = _figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    for axes, frame in ((left, block), (right, answer)):
      for variant, part in frame.groupby('variant', sort=False):
        axes.plot(
          part.position,
          part.rate,
          gid=f'method:{variant}',
          **_looks(styles[variant]),
        )
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set_xlabel('place in the block')
    left.set_ylabel('kept, of the drafts examined there')
    right.set_xlabel('tokens of the answer before it')
    right.set_ylabel('deferred, of the tokens examined there')
    description = 'acceptance along the block and deferrals along the answer'
    return _drawing(figure, name, description, styles, {})
