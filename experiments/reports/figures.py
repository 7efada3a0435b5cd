"""Plots of the page.

Each function takes a frame that is cut to one task, temperature and gamma (or
to a gamma for each point), and returns a `Drawing`. Beside the columns of the
summary a frame has `variant`, which curve a row is of, and `place`, what people
are told of where on it.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from experiments.analysis import comparisons
from experiments.analysis.reference_points import BASELINES, DRAFTER, VERIFIER
from experiments.reports import drawings
from experiments.reports.drawings import Drawing
from experiments.reports.styles import Style, lenience, number, words

# Of lines that something is to be compared with.
_DASHED = dict(color=drawings.SOFT, linestyle=(0, (4, 3)), linewidth=1.1)
# What stands along an axis, by the column that is drawn.
LABELS = {
  'quality': 'quality',
  'relative_latency': 'modelled latency per token (verifier alone = 1)',
  'rejection_rate': 'rejection rate of examined drafts',
  'latency': 'modelled latency per token (verifier alone = 1)',
  'relative_length': 'output length (verifier alone = 1)',
}


def _curve(frame: pd.DataFrame, variant: str) -> pd.DataFrame:
  """Points of one curve along its lenience, or its gamma if it has none."""
  return frame[frame.variant == variant].sort_values(
    ['lenience', 'gamma'], kind='stable'
  )


def _annotate(axes: Axes, curve: pd.DataFrame, x: str, y: str) -> None:
  """Puts beside the points of a curve which ones they are.

  Where points lie so close that what is written would overlap, the first and
  the last along the curve have their label, and others as far as there is room.

  Args:
    axes: Has its limits and its place on the figure by now.
    curve: Its points, in their order.
    x: Column of the horizontal axis.
    y: Column of the vertical axis.
  """
  rows = curve.to_dict('records')
  taken: list[Bbox] = []
  for row in rows[:1] + rows[:0:-1]:
    if not math.isfinite(row[x]) or not math.isfinite(row[y]):
      continue
    text = lenience(row['lenience'])
    if math.isnan(row['lenience']) and row['gamma']:
      text = f'gamma {row["gamma"]}'
    label = axes.annotate(
      text,
      (row[x], row[y]),
      xytext=(3, -4),
      textcoords='offset points',
      va='top',
      fontsize=8,
      color=drawings.SOFT,
    )
    box = label.get_window_extent()
    if any(box.overlaps(other) for other in taken):
      label.remove()
    else:
      taken.append(box)


def _titles(curve: pd.DataFrame, style: Style, x: str, y: str) -> list[str]:
  """What is shown when the pointer rests on each point that is drawn."""
  return [
    f'{style.label}, {row["place"]}\n'
    f'{words(y)} {number(row[y], 3)}\n{words(x)} {number(row[x], 3)}'
    for row in curve.to_dict('records')
    if math.isfinite(row[x]) and math.isfinite(row[y])
  ]


def _looks(style: Style) -> dict[str, Any]:
  """How a curve is drawn; on a dashed line its marks are hollow."""
  looks = dict(color=style.placeholder, marker=drawings.shape(style))
  if not style.dashes:
    return looks | dict(markeredgecolor=drawings.PAGE)
  return looks | dict(
    linestyle=(0, style.dashes),
    markerfacecolor=drawings.PAGE,
    markeredgecolor=style.placeholder,
    markeredgewidth=1.3,
  )


def _draw(
  axes: Axes, curve: pd.DataFrame, variant: str, style: Style, x: str, y: str
) -> None:
  """A line with its markers, and its interval where there is one."""
  _, low, high = comparisons.with_ends(y)
  if low in curve:
    axes.fill_between(
      curve[x],
      curve[low],
      curve[high],
      color=style.placeholder,
      alpha=0.13,
      linewidth=0,
      gid=f'band:{variant}',
    )
  axes.plot(curve[x], curve[y], gid=f'method:{variant}', **_looks(style))


def _zoom(axes: Axes, frame: pd.DataFrame, x: str) -> None:
  """Fits the horizontal axis to the curves, if the two models dwarf them."""
  low, high = axes.dataLim.intervalx
  places = [_first(frame, m, x) for m in BASELINES]
  span = high - low
  far = [p for p in places if p < low - 2 * span or p > high + 2 * span]
  if far and span > 0:
    axes.set_xlim(low - 0.3 * span, high + 0.4 * span)


@dataclasses.dataclass(frozen=True)
class _Spot:
  """Where a model alone stands along the horizontal axis.

  Attributes:
    place: There, or, at an edge, as a share of the axis.
    edge: Whether it stands at an edge of the plot, or beside it.
    right: Whether its label stands to the right of it.
    label: What stands there.
  """

  place: float
  edge: bool
  right: bool
  label: str


def _spot(
  method: str,
  label: str,
  place: float,
  limits: tuple[float, float],
  zoomed: bool,
) -> _Spot:
  """Where the mark of a model alone stands, and what its label says.

  A model alone rejects nothing and keeps nothing: where it has no place on the
  horizontal axis, its mark stands beside the plot. Where its place is far off,
  the mark stands at the edge and the label says how far.

  Args:
    method: One of `BASELINES`.
    label: What people call it.
    place: Its value along the axis; nan where it has none.
    limits: Both ends of the axis.
    zoomed: Whether the axis is fitted to other points.
  """
  low, high = limits
  if math.isnan(place):
    return _Spot(1.0, True, True, label.replace(' ', '\n'))
  if zoomed and not low <= place <= high:
    at = f'at {number(place, 2)}'
    label = f'{label}\n← {at}' if place < low else f'{label}\n{at} →'
    edge, across = True, float(place > high)
    place = across
  else:
    edge, across = False, (place - low) / (high - low)
  # Away from the nearer side of the plot.
  right = across < 0.2 or (method == DRAFTER and across < 0.8)
  return _Spot(place, edge, right, label)


def _baselines(
  axes: Axes,
  frame: pd.DataFrame,
  styles: Mapping[str, Style],
  x: str,
  y: str,
  titles: dict[str, list[str]],
) -> None:
  """Big marks, dashed reference lines and labels for the models alone.

  Args:
    axes: What is drawn on, all curves being there.
    frame: A row per point of one task, the models alone among them.
    styles: Styles by variant.
    x: Column of the horizontal axis.
    y: Column of the vertical axis.
    titles: What is shown at each mark, by the id of its artist; these are
      added.
  """
  levels = {m: _first(frame, m, y) for m in BASELINES}
  levels = {m: v for m, v in levels.items() if math.isfinite(v)}
  limits = axes.get_xlim()
  zoomed = not axes.get_autoscalex_on()
  for method, level in levels.items():
    style, place = styles[method], _first(frame, method, x)
    spot = _spot(method, style.label.lower(), place, limits, zoomed)
    axes.axhline(level, **_DASHED)
    if not spot.edge:
      axes.axvline(place, **_DASHED)
    axes.plot(
      [spot.place],
      [level],
      transform=axes.get_yaxis_transform() if spot.edge else axes.transData,
      color=style.placeholder,
      marker=style.marker,
      markersize=16 if method == VERIFIER else 12,
      markeredgecolor=drawings.PAGE,
      clip_on=False,
      zorder=5,
      gid=f'method:{method}',
    )
    # Away from the other model's label, should the two be close.
    upper = level == max(levels.values())
    axes.annotate(
      spot.label,
      (spot.place, level),
      xycoords=('axes fraction' if spot.edge else 'data', 'data'),
      xytext=(11 if spot.right else -11, 4 if upper else -5),
      textcoords='offset points',
      ha='left' if spot.right else 'right',
      va='bottom' if upper else 'top',
      fontsize=10.5,
    )
    where = '' if math.isnan(place) else f'\n{words(x)} {number(place, 3)}'
    titles[f'method:{method}'] = [
      f'{style.label}\n{words(y)} {number(level, 3)}{where}'
    ]


def _first(frame: pd.DataFrame, method: str, column: str) -> float:
  """A value of a model alone; nan where it was not run."""
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
  whole: bool = False,
) -> Drawing:
  """One line per method, a marker per lenience, and the models alone.

  Args:
    frame: A row per point of one task.
    styles: Styles by variant, in the order in which curves are drawn.
    x: Column of the horizontal axis.
    y: Column of the vertical axis; where the frame has its ends, as
      `comparisons.with_ends` names them, they are drawn as a band.
    name: What its files are called; no other drawing of the page has it.
    size: Width and height in inches; the page scales it.
    whole: Whether the models alone are in the frame wherever they stand, and
      the horizontal axis begins at 0.
  """
  titles: dict[str, list[str]] = {}
  with mpl.rc_context(drawings.RC):
    figure = drawings.new(*size)
    axes = figure.subplots()
    for variant, style in styles.items():
      curve = _curve(frame, variant)
      if variant in BASELINES or curve.empty:
        continue
      _draw(axes, curve, variant, style, x, y)
      titles[f'method:{variant}'] = _titles(curve, style, x, y)
    # Below, and above, is room for what the models alone are called.
    axes.margins(0.06, 0.13)
    if whole:
      axes.set_xlim(0, 1.08 * frame[x].max())
    else:
      _zoom(axes, frame, x)
    _baselines(axes, frame, styles, x, y, titles)
    axes.set_xlabel(LABELS.get(x, x))
    axes.set_ylabel(LABELS.get(y, y))
    description = f'{LABELS.get(y, y)} against {LABELS.get(x, x)}'
    return drawings.finish(figure, name, description, styles, titles)


def panels(
  frame: pd.DataFrame,
  styles: Mapping[str, Style],
  *,
  x: str,
  y: str,
  name: str,
) -> Drawing:
  """The same curves, a panel for each, the others pale behind it.

  Args:
    frame: A row per point of one task.
    styles: Styles by variant, in the order of the panels.
    x: Column of the horizontal axis.
    y: Column of the vertical axis; where the frame has its ends, as
      `comparisons.with_ends` names them, they are drawn as a band.
    name: What its files are called; no other drawing of the page has it.
  """
  curves_of = {
    v: _curve(frame, v)
    for v in styles
    if v not in BASELINES and (frame.variant == v).any()
  }
  # Never fewer than three, or one panel would fill the page.
  columns = min(4, max(3, len(curves_of)))
  rows = math.ceil(len(curves_of) / columns)
  titles: dict[str, list[str]] = {}
  with mpl.rc_context(drawings.RC | {'font.size': 10.0}):
    figure = drawings.new(2.6 * columns, 2.5 * rows + 0.3)
    grid = list(
      figure.subplots(
        rows, columns, sharex=True, sharey=True, squeeze=False
      ).flat
    )
    for axes, (variant, curve) in zip(grid, curves_of.items(), strict=False):
      style = styles[variant]
      for other in curves_of.values():
        axes.plot(
          other[x], other[y], color=drawings.SOFT, alpha=0.25, linewidth=1
        )
      for baseline in BASELINES:
        level = _first(frame, baseline, y)
        if math.isfinite(level):
          axes.axhline(level, **_DASHED)
      _draw(axes, curve, variant, style, x, y)
      titles[f'method:{variant}'] = _titles(curve, style, x, y)
      axes.set_title(style.label, loc='left', color=drawings.INK, fontsize=11)
    for axes in grid[len(curves_of) :]:
      axes.set_visible(False)
    figure.supxlabel(LABELS.get(x, x), fontsize=10)
    figure.supylabel(LABELS.get(y, y), fontsize=10)
    # Where points are is known once all have been drawn.
    figure.draw_without_rendering()
    for axes, curve in zip(grid, curves_of.values(), strict=False):
      _annotate(axes, curve, x, y)
    description = f'{LABELS.get(y, y)} of each method in a panel of its own'
    return drawings.finish(figure, name, description, styles, titles)


def front(
  frame: pd.DataFrame,
  best: pd.DataFrame,
  styles: Mapping[str, Style],
  *,
  name: str,
) -> Drawing:
  """All points of a task, and a line along those that no other beats.

  Args:
    frame: A row per point of one task, as `comparisons.compare` makes them.
    best: Those of its rows that are on the front, fastest first.
    styles: Styles by variant.
    name: What its files are called; no other drawing of the page has it.
  """
  with mpl.rc_context(drawings.RC):
    figure = drawings.new(7.4, 5.2)
    axes = figure.subplots()
    titles = _scatter(axes, frame, styles, 0.35, 'method')
    axes.plot(best.latency, best.quality, color=drawings.SOFT, zorder=1.5)
    titles |= _scatter(axes, best, styles, 1.0, 'front')
    axes.set_xlabel(LABELS['relative_latency'])
    axes.set_ylabel(LABELS['quality'])
    description = 'points that no other beats in quality and modelled latency'
    return drawings.finish(figure, name, description, styles, titles)


def _scatter(
  axes: Axes,
  frame: pd.DataFrame,
  styles: Mapping[str, Style],
  alpha: float,
  kind: str,
) -> dict[str, list[str]]:
  """Draws quality against latency, as marks without lines.

  Args:
    axes: What is drawn on.
    frame: A row per point of one task.
    styles: Styles by variant.
    alpha: How far marks hide what is behind them: 0 is not at all, 1 all of it.
    kind: What the ids of the artists begin with.

  Returns:
    What to show at each mark, by the id of its artist.
  """
  titles = {}
  known = frame[np.isfinite(frame.latency) & np.isfinite(frame.quality)]
  for variant, part in known.groupby('variant', sort=False):
    style = styles[variant]
    axes.plot(
      part.latency,
      part.quality,
      **_looks(style) | dict(linestyle='none', alpha=alpha),
      gid=f'{kind}:{variant}',
    )
    titles[f'{kind}:{variant}'] = _titles(part, style, 'latency', 'quality')
  return titles
