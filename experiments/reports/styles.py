"""Labels and looks of curves, and formats of numbers.

A curve is a variant of a method: its name, and its options if they are not
standard (`Record.variant`). Variants have the method's colour and mark, but are
dashed.
"""

import collections
import math
from collections.abc import Mapping
from typing import NamedTuple

from experiments.analysis.reference_points import DRAFTER, VERIFIER, is_oracle
from experiments.tasks import quality_metric

MINUS = '\N{MINUS SIGN}'
# The text of a missing value.
DASH = '\N{EN DASH}'

# The paper's methods have Okabe and Ito's colour-blind-safe palette, darkened
# if a colour is too pale for lines on white; the rest have shades between.
# name: (label, Matplotlib's mark, colour)
_BUILT_IN = {
  VERIFIER: ('Verifier alone', '*', '#1d2430'),
  DRAFTER: ('Drafter alone', 'h', '#1d2430'),
  'speed': ('Speculative decoding', 'D', '#8a7a00'),
  'chow': ('Chow', 's', '#2f9bd6'),
  'diff': ('Diff', '^', '#0b4f8a'),
  'opt': ('OPT', 'v', '#b3488f'),
  'token_v1': ('TokenV1', 'P', '#e08a00'),
  'token_v2': ('TokenV2', 'X', '#00845f'),
  'token_v3': ('TokenV3', 'o', '#cf4a00'),
  'always_accept': ('Always accept', 'H', '#5d6878'),
  'lossy': ('Lossy SD', 'D', '#a89a2e'),
  'mentored': ('Mentored', 'd', '#5f6f00'),
  'cactus': ('Cactus', '*', '#3f7d1f'),
  'bild': ('BiLD*', '1', '#0f6f7c'),
  'fuzzy_tv': ('Fuzzy, TV', '8', '#4a5fc1'),
  'fuzzy_kl_qp': ('Fuzzy, KL(q || p)', '2', '#6a4fb3'),
  'fuzzy_kl_pq': ('Fuzzy, KL(p || q)', '3', '#54489e'),
  'fuzzy_js': ('Fuzzy, JS', 'p', '#8e4fb8'),
  'fuzzy_js_unbounded': ('Fuzzy, KL(m)', '4', '#a34fa6'),
  'undecided': ('Undecided', 'h', '#4a7f2c'),
  'margin': ('Margin', '*', '#7d3b1f'),
  'typical': ('Typical', 'x', '#d1335b'),
  'ensemble': ('Ensemble', 'h', '#a0522d'),
  'contrastive': ('Contrastive', '*', '#8c2f39'),
  'min_p': ('Min-p', '<', '#7b5b00'),
  'top_p': ('Top-p', '>', '#52603a'),
  'top_k': ('Top-k', 'v', '#6f5a4e'),
  'eta': ('Eta', '^', '#9a6a8a'),
  'sequence_mean': ('SeqCascade, mean q', 'p', '#0a7a5a'),
  'sequence_least': ('SeqCascade, min q', 'd', '#33627f'),
}
# Looks of further methods, in order of appearance.
_FURTHER = (
  ('<', '#7a2f63'),
  ('>', '#5c6b00'),
  ('p', '#6a4b2a'),
  ('d', '#00727a'),
)
# Lines of the variants of a method, in order of appearance.
_DASHES = '--', ':', '-.'


class Style(NamedTuple):
  """The label of a curve, and how Matplotlib draws it."""

  label: str
  marker: str
  colour: str
  line: str = '-'


# Styles by variant.
CurveStyles = Mapping[str, Style]


def styles(methods: Mapping[str, str]) -> dict[str, Style]:
  """Assigns a style to each variant of a method."""
  table, looks, count = {}, {}, collections.Counter()
  for variant, method in methods.items():
    if method not in looks:
      further = sum(m not in _BUILT_IN for m in looks) % len(_FURTHER)
      looks[method] = _BUILT_IN.get(method, (method, *_FURTHER[further]))
    style = Style(*looks[method])
    options = variant.removeprefix(method).strip()
    if is_oracle(method, options.partition(' ')[0]):
      options = options.replace('sequential', 'sequential oracle')
    if options:
      label = f'{style.label} ({options})'
      line = _DASHES[count[method] % len(_DASHES)]
      style = style._replace(label=label, line=line)
      count[method] += 1
    table[variant] = style
  return table


def number(value: float, decimals: int = 2) -> str:
  """Formats a number with a true minus sign; nan as a dash."""
  if math.isnan(value):
    return DASH
  if math.isinf(value):
    return '∞' if value > 0 else MINUS + '∞'
  # + 0.0 makes 0.0 of -0.0.
  return f'{round(value, decimals) + 0.0:.{decimals}f}'.replace('-', MINUS)


def small(value: float) -> str:
  """Formats a probability; those below 0.001 with a power of ten."""
  if math.isnan(value) or value >= 0.001 or value == 0:
    return number(value, 3)
  return f'{value:.0e}'.replace('-0', '-').replace('-', MINUS)


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


def milliseconds(seconds: float) -> str:
  """Formats a duration in milliseconds, with three significant digits."""
  return f'{float(f"{seconds * 1e3:.3g}"):,.10g} ms'


def quality(value: float, task: str = '') -> str:
  """Formats a quality, with one decimal if it is from 0 to 100."""
  metric = quality_metric(task)
  scale = metric.scale if metric else 1
  # A perfect score of float32 may be a little above 1.
  return number(value, 1 if max(value, scale) > 1.001 else 3)


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
