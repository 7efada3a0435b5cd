"""A picture of targets: what a method makes of q and p as lenience grows."""

import pathlib
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cascades import atomic
from experiments.reports.styles import lenience

_TITLES = ('p and q agree well', 'so-so', 'badly')


def draw(
  path: str | pathlib.Path,
  name: str,
  leniences: Sequence[float],
  examples: dict[str, np.ndarray],
) -> None:
  """Writes a PNG: three rows of tokens, pi at each lenience between q and p.

  Args:
    path: The file that is written.
    name: What the method is called.
    leniences: L of them, growing.
    examples: Three rows of V tokens: `q` and `p`, [3, V], the drafter's and
      the verifier's probabilities, and `targets`, [L, 3, V], the method's.
  """
  with mpl.rc_context({'font.size': 11, 'text.parse_math': False}):
    figure = Figure(figsize=(13, 4.2), layout='constrained')
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3)
    colours = mpl.colormaps['viridis'](np.linspace(0.05, 0.9, len(leniences)))
    for n, (axes, title) in enumerate(zip(panels, _TITLES, strict=True)):
      q, p = examples['q'][n], examples['p'][n]
      # The verifier's likeliest token first.
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
      # Side by side inside a token's place, so that equal ones can be told.
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
      axes.set_xlabel("token, by the verifier's rank")
      axes.spines[['top', 'right']].set_visible(False)
    panels[0].set_ylabel('probability')
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside right upper', frameon=False)
    figure.suptitle(f'{name}: the target', x=0.01, ha='left', fontsize=13)
    with atomic.replace_file(path) as part:
      figure.savefig(part, format='png', dpi=110)
