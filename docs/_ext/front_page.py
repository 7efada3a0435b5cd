"""The picture of the README: an answer by two models, and what decoding gains.

Command: python -m docs._ext.front_page
Writes: experiments/results/front.png, of the committed table of captions and of
`answer.json` beside it, the tokens of an answer with their sources.
"""

import json
import textwrap

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from docs._ext.result_tables import RESULTS
from experiments.reports import tables

_FOLDER = RESULTS / 'gemma3_270m'
# By source, the colour and the meaning.
_SOURCES = {
  'draft': ('#b45309', 'draft, accepted'),
  'residual': ('#1d4ed8', 'replaces a rejected draft'),
  'bonus': ('#15803d', 'bonus: every draft was accepted'),
}
_BARS = {
  'Verifier alone': 'verifier\nalone',
  'Strict decoding': 'strict\ndecoding',
  'TokenV2': 'cascade,\nTokenV2',
  'Drafter alone': 'drafter\nalone',
}
# The speed-up at which a bar is cut.
_CUT = 2.4
_TIMES = '\N{MULTIPLICATION SIGN}'
_GREY = '#374151'


def _draw_answer(axes, answer):
  """Writes the tokens of an answer in the colours of their sources."""
  axes.set_axis_off()
  prompt = textwrap.fill(answer['prompt'], 52)
  axes.text(0, 1, prompt, fontsize=12, color=_GREY, va='top')
  x, y = 0.01, 0.66
  style = dict(family='monospace', fontsize=13, color='white', va='center')
  for token in answer['tokens']:
    colour, _ = _SOURCES[token['source']]
    box = dict(boxstyle='square,pad=0.2', fc=colour, ec=colour)
    text = axes.text(x, y, token['text'].strip(), bbox=box, **style)
    right = text.get_window_extent().transformed(axes.transData.inverted()).x1
    if right > 0.97:
      x, y = 0.01, y - 0.13
      text.set_position((x, y))
    right = text.get_window_extent().transformed(axes.transData.inverted()).x1
    x = right + 0.025
  for i, (colour, meaning) in enumerate(_SOURCES.values()):
    axes.text(0, 0.18 - 0.09 * i, '■', color=colour, fontsize=14, va='center')
    axes.text(
      0.045, 0.18 - 0.09 * i, meaning, fontsize=11, color=_GREY, va='center'
    )


def _draw_bars(axes, table):
  """Draws speed-ups, with BLEU and its interval below each."""
  labels, rows = [], table.drop_duplicates('Method').set_index('Method')
  for i, (name, label) in enumerate(_BARS.items()):
    row = rows.loc[name]
    text = row['On the clock'].strip(tables.DASH) or row['Modelled speed-up']
    speed = float(text.split()[0])
    colour = '#cf4a00' if name == 'TokenV2' else '#64748b'
    axes.bar(i, min(speed, _CUT), 0.62, color=colour)
    at = f'{speed:.2f}{_TIMES}' if speed < _CUT else f'↑ {speed:.1f}{_TIMES}'
    axes.text(i, min(speed, _CUT) + 0.04, at, ha='center', fontsize=12)
    quality, _, interval = row['BLEU (95 % interval)'].partition(' (')
    labels.append(f'{label}\n\nBLEU {quality}\n({interval}')

  axes.set_xticks(range(len(labels)), labels, fontsize=11)
  axes.tick_params(axis='x', length=0)
  axes.set_yticks([])
  axes.set_ylim(0, _CUT + 0.3)
  axes.spines[['top', 'right', 'left']].set_visible(False)
  title = 'Tokens a second, verifier alone = 1'
  axes.set_title(title, fontsize=12, color=_GREY, loc='left')


def main():
  """Draws both panels."""
  figure = Figure((11, 3.7), facecolor='white')
  FigureCanvasAgg(figure)
  left = figure.add_axes((0.02, 0.05, 0.46, 0.88))
  right = figure.add_axes((0.53, 0.27, 0.45, 0.64))
  answer = json.loads((_FOLDER / 'answer.json').read_text(encoding='utf-8'))
  _draw_answer(left, answer)
  _draw_bars(right, pd.read_csv(_FOLDER / 'points.csv', keep_default_na=False))
  figure.savefig(RESULTS / 'front.png', dpi=110, metadata={'Software': None})


if __name__ == '__main__':
  main()
