"""How curves and numbers look, the same in every plot and table.

A curve is a variant of a method: its name, and its options where they are not
standard (`Record.variant`). Variants have the method's colour and shape, but
are hollow and dashed.

Plots and page share colours by name: an SVG is written with a placeholder
colour that becomes a CSS variable, so one plot serves light and dark pages.
"""

import collections
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from experiments.analysis.reference_points import DRAFTER, VERIFIER, is_oracle

MINUS = '\N{MINUS SIGN}'
# What stands for a value that is not there.
DASH = '\N{EN DASH}'

# The paper's methods have Okabe and Ito's colour-blind-safe palette, darkened
# where it is too pale for lines on white: whole-distribution rules are cool,
# token rules warm or green. The others have shades between; there are more of
# them than colours anyone can tell apart, so that shapes differ too. A shape
# is Matplotlib's code, or (corners, 0 for a polygon or 1 for a star, degrees).
# name: (label, marker, colour on a light page, colour on a dark page)
_KNOWN = {
  VERIFIER: ('Verifier alone', '*', '#1d2430', '#f3f5f8'),
  DRAFTER: ('Drafter alone', 'h', '#1d2430', '#f3f5f8'),
  'speed': ('Lenient SD', 'D', '#8a7a00', '#e8d944'),
  'chow': ('Chow', 's', '#2f9bd6', '#7cc8f5'),
  'diff': ('Diff', '^', '#0b4f8a', '#3f8fd9'),
  'opt': ('OPT', 'v', '#b3488f', '#e08cc0'),
  'learned': ('Learned', (6, 0, 0), '#0c7d8c', '#45c8da'),
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
  'sequence_mean': ('Sequence mean', 'p', '#0a7a5a', '#5fd3ae'),
  'sequence_least': ('Sequence least', 'd', '#33627f', '#93bfd8'),
}
# For methods registered elsewhere, in order of appearance.
_OTHERS = (
  ('<', '#7a2f63', '#d48abf'),
  ('>', '#5c6b00', '#b9cc4a'),
  ('p', '#6a4b2a', '#c79a6b'),
  ('d', '#00727a', '#4cc3cc'),
)
# Of lines that have to be told apart: drawn and left out, in line widths.
DASHES = ((5, 2), (1.2, 1.6), (7, 2, 1.2, 2), (2.5, 1.5), (9, 3))


@dataclasses.dataclass(frozen=True)
class Style:
  """The looks of one curve.

  Attributes:
    label: What people call the curve.
    marker: Matplotlib's code of the shape of its points.
    light: Its colour on a light page, such as '#1d2430'.
    dark: Its colour on a dark page.
    variable: Name of the CSS variable that holds one or the other.
    placeholder: The colour that stands for the variable while plotting.
    dashes: How its line is drawn and left out in turn, in line widths; empty
      for a solid one. A dashed curve's markers are hollow.
  """

  label: str
  marker: Any
  light: str
  dark: str
  variable: str
  placeholder: str
  dashes: tuple[float, ...] = ()


def styles(methods: Mapping[str, str]) -> dict[str, Style]:
  """A style for each curve.

  Args:
    methods: The method that each variant is one of, by the variant, in the
      order of the page.

  Returns:
    Styles by variant, in that order.
  """
  table, looks, hollow = {}, {}, collections.Counter()
  for i, (variant, method) in enumerate(methods.items()):
    if method not in looks:
      others = sum(m.partition(':')[0] not in _KNOWN for m in looks)
      looks[method] = (method, *_OTHERS[others % len(_OTHERS)])
      # Behind a colon stands which of a kind, such as a rule that was learnt.
      kind, _, which = method.partition(':')
      if kind in _KNOWN:
        label, *rest = _KNOWN[kind]
        looks[method] = (f'{label} {which}'.strip(), *rest)
    label, *rest = looks[method]
    options, dashes = variant.removeprefix(method).strip(), ()
    if is_oracle(method, options.partition(' ')[0]):
      options = options.replace('sequential', 'sequential oracle')
    if options:
      label = f'{label} ({options})'
      # Of a method's variants, in order of appearance.
      dashes = DASHES[hollow[method] % len(DASHES)]
      hollow[method] += 1
    table[variant] = Style(
      label, *rest, f'--method-{i}', f'#0a0c{i:02x}', dashes
    )
  return table


def number(value: float, digits: int = 2) -> str:
  """A number for people: true minus sign, dash for nan.

  Args:
    value: The number.
    digits: How many stand behind the point.
  """
  if math.isnan(value):
    return DASH
  if math.isinf(value):
    return '∞' if value > 0 else MINUS + '∞'
  return f'{value:.{digits}f}'.replace('-', MINUS)


def lenience(value: float) -> str:
  """A lenience for people, with no more digits than it was given with."""
  if not math.isfinite(value):
    return number(value)
  return f'{value:g}'.replace('-', MINUS)


def place(value: float, gamma: int = 0) -> str:
  """Where on its curve a point is, in words.

  Args:
    value: Its lenience; nan where the method has none.
    gamma: Its gamma; 0 where that is not worth a word.
  """
  parts = [f'lenience {lenience(value)}', f'gamma {gamma:g}']
  if not gamma:
    return parts[0]
  return parts[1] if math.isnan(value) else ', '.join(parts)


def milliseconds(seconds: float) -> str:
  """A duration in milliseconds, with three significant digits."""
  return f'{float(f"{seconds * 1e3:.3g}"):,.10g} ms'


def words(name: str) -> str:
  """A column or task for people."""
  return name.replace('_', ' ')
