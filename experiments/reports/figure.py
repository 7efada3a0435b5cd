"""The figure of the page: quality against latency, a panel for each task."""

import io
import math

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


def draw(
  frame: pd.DataFrame, curve_styles: tables.CurveStyles
) -> tuple[str, bytes] | None:
  """Draws points and fronts, as SVG and PNG; None without a known quality."""
  is_known = np.isfinite(frame[['latency', 'quality']]).all(axis=1)
  parts = list(frame[is_known].groupby('task', sort=False))
  if not parts:
    return None
  columns = min(2, len(parts))
  rows = math.ceil(len(parts) / columns)
  with mpl.rc_context(_RC):
    # A canvas without pyplot has no global state and needs no display.
    figure = Figure(
      figsize=(2.2 + 4.4 * columns, 0.8 + 3.6 * rows), layout='constrained'
    )
    FigureCanvasAgg(figure)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    handles = {}
    for axes, (task, part) in zip(grid, parts, strict=False):
      handles |= _panel(axes, part, curve_styles)
      title = escapes.for_xml(tables.words(task))
      axes.set_title(title, loc='left', fontsize=10)
      axes.set_xlabel('modelled latency per token (verifier alone = 1)')
      axes.set_ylabel('quality')
    for axes in grid[len(parts) :]:
      axes.set_visible(False)
    figure.legend(
      handles.values(),
      map(escapes.for_xml, handles),
      loc='outside lower center',
      ncols=2 * columns,
      frameon=False,
    )
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format='svg', metadata=_UNDATED)
    figure.savefig(png, format='png', dpi=120)
  return escapes.for_xml(svg.getvalue()), png.getvalue()


def _panel(
  axes: Axes, frame: pd.DataFrame, curve_styles: tables.CurveStyles
) -> dict[str, Axes]:
  """Draws the curves of a task; returns an artist for each label."""
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
    low, high = (front[name] for name in comparisons.with_ends('quality')[1:])
    axes.vlines(front.latency, low, high, color=style.colour, alpha=0.4)
    handles[style.label] = line
  axes.set_xlim(0, 1.08 * frame.latency.max())
  return handles
