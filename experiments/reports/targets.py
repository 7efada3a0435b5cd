"""A picture of the targets of a method between q and p, by lenience."""

import pathlib
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cascades import files
from experiments.reports.styles import lenience

_TITLES = tuple(f'p and q agree {x}' for x in ('well', 'partly', 'badly'))


def draw(
  path: str | pathlib.Path,
  name: str,
  leniences: Sequence[float],
  examples: dict[str, np.ndarray],
) -> None:
  """Writes a PNG of q, p and the target at each lenience, of three examples."""
  with mpl.rc_context({'font.size': 11, 'text.parse_math': False}):
    figure = Figure(figsize=(13, 4.2), layout='constrained')
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(1, 3)
    colours = mpl.colormaps['viridis'](np.linspace(0.05, 0.9, len(leniences)))
    for n, (axes, title) in enumerate(zip(all_axes, _TITLES, strict=True)):
      q, p = examples['q'][n], examples['p'][n]
      # Tokens in descending order of p.
      order = np.argsort(-p)
      x = np.arange(len(p))
      axes.bar(x - 0.2, p[order], 0.4, color='#c9d1dc', label='p, verifier')
      axes.bar(
        x + 0.2,
        q[order],
        0.4,
        facecolor='none',
        edgecolor='#8592a6',
        hatch='///',
        label='q, drafter',
      )
      # Side by side, so that equal probabilities do not hide each other.
      shifts = np.linspace(-0.32, 0.32, len(leniences))
      for value, colour, shift, target in zip(
        leniences, colours, shifts, examples['targets'][:, n], strict=True
      ):
        axes.plot(
          x + shift,
          target[order],
          'o',
          color=colour,
          markersize=5.5,
          markeredgecolor='white',
          markeredgewidth=0.5,
          label=f'lenience {lenience(value)}',
        )
      axes.set_title(title, loc='left', fontsize=11)
      axes.set_xticks(x, [str(i + 1) for i in x])
      axes.set_xlabel('rank of the token under p')
      axes.spines[['top', 'right']].set_visible(False)
    all_axes[0].set_ylabel('probability')
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside right upper', frameon=False)
    figure.suptitle(f'{name}: target', x=0.01, ha='left', fontsize=13)
    with files.replace_file(path) as part:
      figure.savefig(part, format='png', dpi=110)
