"""Figures of the page, with a panel for each task.

A figure is a function of `FIGURES`: it draws the points of a task, and returns
an artist for each label. Its docstring has its alternative text and caption.
"""

import io
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments import escapes
from experiments.analysis import comparisons
from experiments.analysis.runs import BASELINES
from experiments.reports import tables

_RC = {
  # A dollar sign in a method's name is no mathematics.
  'text.parse_math': False,
  # Makes the ids inside the file the same in every run.
  'svg.hashsalt': 'cascades',
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'grid.color': '#e3e7ec',
}
_DASHED = dict(color='#5d6878', linestyle=(0, (4, 3)), linewidth=1.1)
# Leaves dates out, so that the files of a figure are reproducible.
_UNDATED = dict.fromkeys(('Date', 'Creator', 'Format', 'Type'))


class Picture(NamedTuple):
  """A figure: its texts, its SVG for narrow and wide screens, and its PNG."""

  name: str
  alt: str
  caption: str
  narrow: str
  wide: str
  png: bytes


def draw(
  panel: Callable[..., dict[str, Any]],
  fields: Sequence[str],
  frame: pd.DataFrame,
  curve_styles: tables.CurveStyles,
) -> Picture | None:
  """Draws a figure of the points that have its fields; None without any."""
  frame = frame[np.isfinite(frame[[*fields]]).all(axis=1)]
  parts = list(frame.groupby('task', sort=False))
  if not parts:
    return None
  svgs, png, largest = [], io.BytesIO(), min(2, len(parts))
  for columns, width in (1, 4.4), (largest, 4 + 4 * largest):
    rows, ncols = math.ceil(len(parts) / columns), int(width / 4)
    lines = math.ceil(frame.variant.nunique() / ncols)
    with mpl.rc_context(_RC):
      # A canvas without pyplot has no global state and needs no display.
      figure = Figure((width, 3.4 * rows + 0.2 * lines), layout='constrained')
      FigureCanvasAgg(figure)
      grid = list(figure.subplots(rows, columns, squeeze=False).flat)
      handles = {}
      for axes, (task, part) in zip(grid, parts, strict=False):
        handles |= panel(axes, part, curve_styles)
        title = escapes.for_xml(tables.words(task))
        axes.set_title(title, loc='left', fontsize=10)
      for axes in grid[len(parts) :]:
        axes.set_visible(False)
      figure.legend(
        handles.values(),
        map(escapes.for_xml, handles),
        loc='outside lower center',
        ncols=ncols,
        frameon=False,
      )
      svg = io.StringIO()
      figure.savefig(svg, format='svg', metadata=_UNDATED)
      svgs.append(escapes.for_xml(svg.getvalue()))
  # The last figure is for wide screens.
  figure.savefig(png, format='png', dpi=120)
  alt, _, caption = str(panel.__doc__).partition('\n\n')
  return Picture(panel.__name__, alt, caption, *svgs, png.getvalue())


def quality(
  axes: Axes, frame: pd.DataFrame, curve_styles: tables.CurveStyles
) -> dict[str, Any]:
  """Quality against modelled latency.

  Up and to the left is better; a latency below 1 is faster than the verifier
  alone. A line is the front of a method over the leniences and gammas that were
  tried: no point of the method is both faster and better. Vertical lines are
  95 % intervals, dashed lines the two models alone; a ring marks the default or
  documented value of an engine's switch. A front favours points with lucky
  samples: points with overlapping intervals cannot be told apart.
  """
  handles = {}
  for variant, curve in frame.groupby('variant', sort=False):
    style = curve_styles[variant]
    is_alone = variant in BASELINES
    look = dict(color=style.colour, marker=style.marker)
    if is_alone:
      axes.axhline(curve.quality.iloc[0], **_DASHED)
      axes.axvline(curve.latency.iloc[0], **_DASHED)
    front = comparisons.front(curve)
    axes.plot(curve.latency, curve.quality, **look, linestyle='none', alpha=0.3)
    (line,) = axes.plot(
      front.latency,
      front.quality,
      **look,
      linestyle=style.line,
      markersize=13 if is_alone else 6,
      zorder=5 if is_alone else 3,
    )
    defaults = curve[[*map(comparisons.is_default, curve.itertuples())]]
    ring = look | dict(marker='o', markersize=12, markerfacecolor='none')
    axes.plot(defaults.latency, defaults.quality, **ring, linestyle='none')
    low, high = (front[name] for name in comparisons.with_ends('quality')[1:])
    axes.vlines(front.latency, low, high, color=style.colour, alpha=0.4)
    handles[style.label] = line
  axes.set_xlim(0, 1.08 * frame.latency.max())
  axes.set_xlabel('modelled latency per token (verifier alone = 1)')
  axes.set_ylabel('quality')
  return handles


def prediction(
  axes: Axes, frame: pd.DataFrame, curve_styles: tables.CurveStyles
) -> dict[str, Any]:
  """Predicted speed-up against the distance to the verifier.

  Dashed lines are predicted: both models read answers of the verifier and, at
  the end of a sweep, of decoded points. Up and to the left is better; a
  speed-up below 1 is slower than the verifier alone. A line is the front of a
  method over leniences and gammas, with 95 % intervals: no point of the method
  is both faster and closer. Marks are decoded points, at their gamma and the
  predicted distance.
  """
  handles, fields = {}, ('total_variation', 'speedup')
  for variant, curve in frame.groupby('variant', sort=False):
    style = curve_styles[variant]
    look = dict(color=style.colour, marker=style.marker)
    # Decoded points lack the columns of predicted ones.
    is_decoded = curve.tokens_per_call.isna()
    axes.plot(*fields, data=curve[is_decoded], **look, ls='')
    curve = curve.assign(quality=-curve[fields[0]], latency=1 / curve.speedup)
    front = comparisons.front(curve[~is_decoded])
    axes.plot(*fields, data=front, color=style.colour, ls='--', lw=1)
    ends = front.speedup_low, front.speedup_high
    axes.vlines(front[fields[0]], *ends, color=style.colour, alpha=0.4)
    (handles[style.label],) = axes.plot([], [], **look, ls='--', lw=1)
  axes.axhline(1, **_DASHED)
  axes.set_xlabel('total variation from the verifier')
  axes.set_ylabel('modelled speed-up (verifier alone = 1)')
  return handles


# With the fields of a point that a figure shows.
FIGURES = {
  quality: ('latency', 'quality'),
  prediction: ('total_variation', 'speedup'),
}
