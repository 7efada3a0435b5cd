"""Styles of curves and formats of numbers, shared by all plots and tables.

A curve is a variant of a method: its name, and its options if they are not
standard (`Record.variant`). Variants have the method's colour and shape, but
are hollow and dashed.

Plots and page share colours by name: an SVG is written with a placeholder
colour that becomes a CSS variable, so that one plot serves light and dark
pages.
"""

import collections
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.analysis.reference_points import DRAFTER, VERIFIER, is_oracle
from experiments.tasks import quality_metric

MINUS = '\N{MINUS SIGN}'
# The text of a missing value.
DASH = '\N{EN DASH}'

# The paper's methods have Okabe and Ito's colour-blind-safe palette, darkened
# if a colour is too pale for lines on white: rules for whole distributions are
# cool, token rules warm or green. The remaining methods have shades between;
# they outnumber the colours that readers can distinguish, so that shapes differ
# too. A shape is Matplotlib's code, or (corners, 0 for a polygon or 1 for a
# star, degrees).
# name: (label, marker, colour on a light page, colour on a dark page)
_BUILT_IN = {
  VERIFIER: ('Verifier alone', '*', '#1d2430', '#f3f5f8'),
  DRAFTER: ('Drafter alone', 'h', '#1d2430', '#f3f5f8'),
  'speed': ('Speculative decoding', 'D', '#8a7a00', '#e8d944'),
  'chow': ('Chow', 's', '#2f9bd6', '#7cc8f5'),
  'diff': ('Diff', '^', '#0b4f8a', '#3f8fd9'),
  'opt': ('OPT', 'v', '#b3488f', '#e08cc0'),
  'token_v1': ('TokenV1', 'P', '#e08a00', '#f5a623'),
  'token_v2': ('TokenV2', 'X', '#00845f', '#2fc496'),
  'token_v3': ('TokenV3', 'o', '#cf4a00', '#ff7a3d'),
  'always_accept': ('Always accept', 'H', '#5d6878', '#aab4c2'),
  'lossy': ('Lossy SD', (4, 1, 0), '#a89a2e', '#d6cb6a'),
  'mentored': ('Mentored', (4, 1, 45), '#5f6f00', '#b4c832'),
  'cactus': ('Cactus', (6, 1, 0), '#3f7d1f', '#8bcf62'),
  'bild': ('BiLD*', (3, 1, 0), '#0f6f7c', '#58c3d0'),
  'fuzzy_tv': ('Fuzzy, TV', '8', '#4a5fc1', '#8fa2ff'),
  'fuzzy_kl_qp': ('Fuzzy, KL(q || p)', (3, 1, 180), '#6a4fb3', '#ad96f5'),
  'fuzzy_kl_pq': ('Fuzzy, KL(p || q)', (3, 1, 90), '#54489e', '#a59ff0'),
  'fuzzy_js': ('Fuzzy, JS', (5, 0, 180), '#8e4fb8', '#cd97f0'),
  'fuzzy_js_unbounded': ('Fuzzy, KL(m)', (3, 0, 135), '#a34fa6', '#dd97dc'),
  'undecided': ('Undecided', (7, 0, 0), '#4a7f2c', '#9ad36f'),
  'margin': ('Margin', (7, 1, 0), '#7d3b1f', '#e09a78'),
  'typical': ('Typical', (8, 1, 0), '#d1335b', '#ff7f9f'),
  'ensemble': ('Ensemble', (7, 0, 0), '#a0522d', '#dd9870'),
  'contrastive': ('Contrastive', (5, 1, 180), '#8c2f39', '#e58f97'),
  'min_p': ('Min-p', '<', '#7b5b00', '#d6b25a'),
  'top_p': ('Top-p', '>', '#52603a', '#a9b98c'),
  'top_k': ('Top-k', (3, 0, 225), '#6f5a4e', '#c4ab9d'),
  'eta': ('Eta', (3, 0, 315), '#9a6a8a', '#d3a6c3'),
  'sequence_mean': ('SeqCascade, mean q', 'p', '#0a7a5a', '#5fd3ae'),
  'sequence_least': ('SeqCascade, min q', 'd', '#33627f', '#93bfd8'),
}
# Looks of further methods, in order of appearance.
_FURTHER = (
  ('<', '#7a2f63', '#d48abf'),
  ('>', '#5c6b00', '#b9cc4a'),
  ('p', '#6a4b2a', '#c79a6b'),
  ('d', '#00727a', '#4cc3cc'),
)
# Dash patterns of variants: drawn and blank lengths, in line widths.
DASHES = ((5, 2), (1.2, 1.6), (7, 2, 1.2, 2), (2.5, 1.5), (9, 3))


@dataclasses.dataclass(frozen=True)
class Style:
  """The style of one curve."""

  label: str
  marker: Any
  light: str
  dark: str
  variable: str
  placeholder: str
  dashes: tuple[float, ...] = ()


# Styles by variant.
CurveStyles = Mapping[str, Style]


def styles(methods: Mapping[str, str]) -> dict[str, Style]:
  """Assigns a style to each curve."""
  table, looks, hollow = {}, {}, collections.Counter()
  for i, (variant, method) in enumerate(methods.items()):
    if method not in looks:
      count = sum(m not in _BUILT_IN for m in looks)
      further = (method, *_FURTHER[count % len(_FURTHER)])
      looks[method] = _BUILT_IN.get(method, further)
    label, *rest = looks[method]
    options, dashes = variant.removeprefix(method).strip(), ()
    if is_oracle(method, options.partition(' ')[0]):
      options = options.replace('sequential', 'sequential oracle')
    if options:
      label = f'{label} ({options})'
      # One pattern per variant of a method, in order of appearance.
      dashes = DASHES[hollow[method] % len(DASHES)]
      hollow[method] += 1
    table[variant] = Style(
      label, *rest, f'--method-{i}', f'#0a0c{i:02x}', dashes
    )
  return table


def number(value: float, decimals: int = 2) -> str:
  """Formats a number with a true minus sign; nan as a dash."""
  if math.isnan(value):
    return DASH
  if math.isinf(value):
    return '∞' if value > 0 else MINUS + '∞'
  # + 0.0 makes 0.0 of -0.0.
  return f'{round(value, decimals) + 0.0:.{decimals}f}'.replace('-', MINUS)


def lenience(value: float) -> str:
  """Formats a lenience with as few digits as its value has."""
  if not math.isfinite(value):
    return number(value)
  return f'{value:g}'.replace('-', MINUS)


def point_label(value: float, gamma: int = 0) -> str:
  """Returns the label of a point on its curve."""
  parts = [f'lenience {lenience(value)}', f'gamma {gamma:g}']
  if not gamma:
    return parts[0]
  return parts[1] if math.isnan(value) else ', '.join(parts)


def with_point_labels(frame: pd.DataFrame, show_gamma: bool) -> pd.DataFrame:
  """Adds a column `point_label` to the rows of a frame."""
  gammas = frame.gamma if show_gamma else 0 * frame.gamma
  labels = list(map(point_label, frame.lenience, gammas))
  return frame.assign(point_label=labels)


def milliseconds(seconds: float) -> str:
  """Formats a duration in milliseconds, with three significant digits."""
  return f'{float(f"{seconds * 1e3:.3g}"):,.10g} ms'


def quality(value: float, task: str = '') -> str:
  """Formats a quality, with one decimal if it is from 0 to 100."""
  metric = quality_metric(task)
  scale = metric.scale if metric else 1
  return number(value, 1 if max(value, scale) > 1 else 3)


# Labels of tasks and of scores whose names say too little.
_WORDS = {
  'multi30k_de_en': 'Multi30k de-en',
  'multi30k_en_de': 'Multi30k en-de',
  'wmt14_en_de': 'WMT14 en-de',
  'sentence_bleu': 'BLEU of all answers together',
}


def words(name: str) -> str:
  """Returns the label of a column, task or score, with spaces."""
  return _WORDS.get(name, name.replace('_', ' '))
