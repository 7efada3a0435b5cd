"""Plots of the page.

Each function takes the points of one task, temperature and gamma (or of one
gamma per point), and returns a `Drawing`. A frame has the columns of the
summary, `variant`, which names the curve of a row, and `point_label`, which
names the point on its curve.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from experiments.analysis import comparisons
from experiments.analysis.reference_points import BASELINES, DRAFTER, VERIFIER
from experiments.reports import drawings
from experiments.reports.drawings import Drawing
from experiments.reports.styles import (
  CurveStyles,
  Style,
  lenience,
  number,
  quality,
)

# Style of reference lines.
_DASHED = dict(color=drawings.SOFT, linestyle=(0, (4, 3)), linewidth=1.1)
# Axis labels by column.
LABELS = {
  'quality': 'quality',
  'relative_latency': 'modelled latency per token (verifier alone = 1)',
  'rejection_rate': 'rejection rate',
  'latency': 'modelled latency per token (verifier alone = 1)',
  'relative_length': 'tokens per answer (verifier alone = 1)',
}


class _Columns(NamedTuple):
  """The columns of the horizontal and of the vertical axis."""

  x: str
  y: str


def _curve(frame: pd.DataFrame, variant: str) -> pd.DataFrame:
  """Returns the points of one curve by lenience, then by gamma."""
  return frame[frame.variant == variant].sort_values(
    ['lenience', 'gamma'], kind='stable'
  )


def _annotate(axes: Axes, curve: pd.DataFrame, columns: _Columns) -> None:
  """Labels the points of a curve with their leniences."""
  rows, (x, y) = curve.to_dict('records'), columns
  label_boxes: list[Bbox] = []
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
    if any(box.overlaps(label_box) for label_box in label_boxes):
      label.remove()
    else:
      label_boxes.append(box)


def _value(column: str, value: float) -> str:
  """Returns a value with the label of its column."""
  text = quality(value) if column == 'quality' else number(value, 3)
  return f'{LABELS.get(column, column)}: {text}'


def _titles(curve: pd.DataFrame, style: Style, columns: _Columns) -> list[str]:
  """Returns the tooltip of each point that is drawn."""
  x, y = columns
  return [
    f'{style.label}, {row["point_label"]}\n'
    f'{_value(y, row[y])}\n{_value(x, row[x])}'
    for row in curve.to_dict('records')
    if math.isfinite(row[x]) and math.isfinite(row[y])
  ]


def _line_options(style: Style) -> dict[str, Any]:
  """Returns Matplotlib's options of a curve; dashed lines have hollow marks."""
  options = dict(color=style.placeholder, marker=drawings.shape(style))
  if not style.dashes:
    return options | dict(markeredgecolor=drawings.PAGE)
  return options | dict(
    linestyle=(0, style.dashes),
    markerfacecolor=drawings.PAGE,
    markeredgecolor=style.placeholder,
    markeredgewidth=1.3,
  )


def _draw(
  axes: Axes, curve: pd.DataFrame, style: Style, columns: _Columns
) -> None:
  """Draws a curve with its markers, and its interval if the frame has one."""
  x, y = columns
  variant = curve.variant.iloc[0]
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
  axes.plot(curve[x], curve[y], gid=f'method:{variant}', **_line_options(style))


def _zoom(axes: Axes, frame: pd.DataFrame, x: str) -> None:
  """Fits the horizontal axis to the curves if a model alone is far away."""
  low, high = axes.dataLim.intervalx
  values = [_baseline_value(frame, m, x) for m in BASELINES]
  span = high - low
  far = [p for p in values if p < low - 2 * span or p > high + 2 * span]
  if far and span > 0:
    axes.set_xlim(low - 0.3 * span, high + 0.4 * span)


@dataclasses.dataclass(frozen=True)
class _BaselineMark:
  """The position and the label of a model alone along the horizontal axis."""

  x: float
  at_edge: bool
  label_right: bool
  label: str


def _baseline_mark(
  axes: Axes, method: str, label: str, value: float
) -> _BaselineMark:
  """Places the mark of a model alone along the horizontal axis."""
  low, high = axes.get_xlim()
  if math.isnan(value):
    wrapped = label.replace(' ', '\n')
    return _BaselineMark(1.0, at_edge=True, label_right=True, label=wrapped)
  is_zoomed = not axes.get_autoscalex_on()
  if is_zoomed and not low <= value <= high:
    text = f'at {number(value, 2)}'
    label = f'{label}\n← {text}' if value < low else f'{label}\n{text} →'
    at_edge, share = True, float(value > high)
    value = share
  else:
    at_edge, share = False, (value - low) / (high - low)
  # The label is on the side with more room.
  label_right = share < 0.2 or (method == DRAFTER and share < 0.8)
  return _BaselineMark(value, at_edge, label_right, label)


def _baselines(
  axes: Axes, frame: pd.DataFrame, styles: CurveStyles, columns: _Columns
) -> dict[str, list[str]]:
  """Draws the models alone as big marks with dashed lines and labels."""
  titles, (x, y) = {}, columns
  levels = {m: _baseline_value(frame, m, y) for m in BASELINES}
  levels = {m: v for m, v in levels.items() if math.isfinite(v)}
  values = {m: _baseline_value(frame, m, x) for m in levels}
  # All marks are placed first, because drawing them may change the limits.
  marks = {
    m: _baseline_mark(axes, m, styles[m].label.lower(), value)
    for m, value in values.items()
  }
  for method, level in levels.items():
    style, value, mark = styles[method], values[method], marks[method]
    axes.axhline(level, **_DASHED)
    if not mark.at_edge:
      axes.axvline(value, **_DASHED)
    axes.plot(
      [mark.x],
      [level],
      transform=axes.get_yaxis_transform() if mark.at_edge else axes.transData,
      color=style.placeholder,
      marker=style.marker,
      markersize=16 if method == VERIFIER else 12,
      markeredgecolor=drawings.PAGE,
      clip_on=False,
      zorder=5,
      gid=f'method:{method}',
    )
    # Away from the label of the other model.
    upper = level == max(levels.values())
    axes.annotate(
      mark.label,
      (mark.x, level),
      xycoords=('axes fraction' if mark.at_edge else 'data', 'data'),
      xytext=(11 if mark.label_right else -11, 4 if upper else -5),
      textcoords='offset points',
      ha='left' if mark.label_right else 'right',
      va='bottom' if upper else 'top',
      fontsize=10.5,
    )
    x_text = '' if math.isnan(value) else f'\n{_value(x, value)}'
    titles[f'method:{method}'] = [f'{style.label}\n{_value(y, level)}{x_text}']
  return titles


def _baseline_value(frame: pd.DataFrame, method: str, column: str) -> float:
  """Returns a value of a model alone; nan if the model alone was not run."""
  rows = frame[frame.variant == method]
  return float(rows.iloc[0][column]) if len(rows) else math.nan


def curves(
  frame: pd.DataFrame,
  styles: CurveStyles,
  *,
  x: str,
  y: str,
  name: str,
  size: tuple[float, float] = (7.4, 5.2),
  from_zero: bool = False,
) -> Drawing:
  """Draws a line per method, a marker per lenience, and the models alone."""
  titles: dict[str, list[str]] = {}
  columns = _Columns(x, y)
  with mpl.rc_context(drawings.RC):
    figure = drawings.new(*size)
    axes = figure.subplots()
    for variant, style in styles.items():
      curve = _curve(frame, variant)
      if variant in BASELINES or curve.empty:
        continue
      _draw(axes, curve, style, columns)
      titles[f'method:{variant}'] = _titles(curve, style, columns)
    # Leaves room for the labels of the models alone.
    axes.margins(0.06, 0.13)
    if from_zero:
      axes.set_xlim(0, 1.08 * frame[x].max())
    else:
      _zoom(axes, frame, x)
    titles |= _baselines(axes, frame, styles, columns)
    axes.set_xlabel(LABELS.get(x, x))
    axes.set_ylabel(LABELS.get(y, y))
    description = f'{LABELS.get(y, y)} against {LABELS.get(x, x)}'
    return drawings.finish(
      figure, name, description=description, styles=styles, titles=titles
    )


def curve_panels(
  frame: pd.DataFrame, styles: CurveStyles, *, x: str, y: str, name: str
) -> Drawing:
  """Draws each curve in a separate panel, with all curves in pale grey."""
  columns = _Columns(x, y)
  curve_by_variant = {
    v: _curve(frame, v)
    for v in styles
    if v not in BASELINES and (frame.variant == v).any()
  }
  # With fewer than three columns, a single panel would fill the page.
  width = min(4, max(3, len(curve_by_variant)))
  height = math.ceil(len(curve_by_variant) / width)
  titles: dict[str, list[str]] = {}
  with mpl.rc_context(drawings.RC | {'font.size': 10.0}):
    figure = drawings.new(2.6 * width, 2.5 * height + 0.3)
    grid = list(
      figure.subplots(
        height, width, sharex=True, sharey=True, squeeze=False
      ).flat
    )
    for axes, (variant, curve) in zip(
      grid, curve_by_variant.items(), strict=False
    ):
      style = styles[variant]
      for pale in curve_by_variant.values():
        axes.plot(
          pale[x], pale[y], color=drawings.SOFT, alpha=0.25, linewidth=1
        )
      for baseline in BASELINES:
        level = _baseline_value(frame, baseline, y)
        if math.isfinite(level):
          axes.axhline(level, **_DASHED)
      _draw(axes, curve, style, columns)
      titles[f'method:{variant}'] = _titles(curve, style, columns)
      axes.set_title(style.label, loc='left', color=drawings.INK, fontsize=11)
    for axes in grid[len(curve_by_variant) :]:
      axes.set_visible(False)
    figure.supxlabel(LABELS.get(x, x), fontsize=10)
    figure.supylabel(LABELS.get(y, y), fontsize=10)
    # Labels need the final positions of the points.
    figure.draw_without_rendering()
    for axes, curve in zip(grid, curve_by_variant.values(), strict=False):
      _annotate(axes, curve, columns)
    description = f'{LABELS.get(y, y)} of each method, one panel a method'
    return drawings.finish(
      figure, name, description=description, styles=styles, titles=titles
    )


def front(
  frame: pd.DataFrame, best: pd.DataFrame, styles: CurveStyles, *, name: str
) -> Drawing:
  """Draws all points of a task, and a line along the Pareto front."""
  with mpl.rc_context(drawings.RC):
    figure = drawings.new(7.4, 5.2)
    axes = figure.subplots()
    titles = _scatter(axes, frame, styles, alpha=0.35, kind='method')
    axes.plot(best.latency, best.quality, color=drawings.SOFT, zorder=1.5)
    titles |= _scatter(axes, best, styles, alpha=1.0, kind='front')
    axes.set_xlabel(LABELS['relative_latency'])
    axes.set_ylabel(LABELS['quality'])
    description = 'Pareto front of quality and modelled latency'
    return drawings.finish(
      figure, name, description=description, styles=styles, titles=titles
    )


def _scatter(
  axes: Axes,
  frame: pd.DataFrame,
  styles: CurveStyles,
  *,
  alpha: float,
  kind: str,
) -> dict[str, list[str]]:
  """Draws quality against latency as marks; returns tooltips by their id."""
  titles = {}
  finite = frame[np.isfinite(frame.latency) & np.isfinite(frame.quality)]
  columns = _Columns('latency', 'quality')
  for variant, part in finite.groupby('variant', sort=False):
    style = styles[variant]
    axes.plot(
      part.latency,
      part.quality,
      **_line_options(style) | dict(linestyle='none', alpha=alpha),
      gid=f'{kind}:{variant}',
    )
    titles[f'{kind}:{variant}'] = _titles(part, style, columns)
  return titles
