"""How methods and numbers look, the same in every plot and table.

Plots and page share colours by name: an SVG is written with a placeholder
colour that becomes a CSS variable, so one plot serves light and dark pages.
"""

import dataclasses
import math
from collections.abc import Iterable

MINUS = '\N{MINUS SIGN}'
VERIFIER, DRAFTER = 'verifier_only', 'drafter_only'
BASELINES = (VERIFIER, DRAFTER)

# Okabe and Ito's colour-blind-safe palette, darkened where it is too pale for
# lines on white. Whole-distribution rules are cool, token rules warm or green.
# name: (label, marker, colour on a light page, colour on a dark page)
_KNOWN = {
  VERIFIER: ('Verifier alone', '*', '#1d2430', '#f3f5f8'),
  DRAFTER: ('Drafter alone', 'h', '#1d2430', '#f3f5f8'),
  'speed': ('Lenient SD', 'D', '#8a7a00', '#e8d944'),
  'chow': ('Chow', 's', '#2f9bd6', '#7cc8f5'),
  'diff': ('Diff', '^', '#0b4f8a', '#3f8fd9'),
  'opt': ('OPT', 'v', '#b3488f', '#e08cc0'),
  'token_v1': ('TokenV1', 'P', '#e08a00', '#f5a623'),
  'token_v2': ('TokenV2', 'X', '#00845f', '#2fc496'),
  'token_v3': ('TokenV3', 'o', '#cf4a00', '#ff7a3d'),
}
# For methods registered elsewhere, in order of appearance.
_OTHERS = (
  ('<', '#7a2f63', '#d48abf'),
  ('>', '#5c6b00', '#b9cc4a'),
  ('p', '#6a4b2a', '#c79a6b'),
  ('d', '#00727a', '#4cc3cc'),
)


@dataclasses.dataclass(frozen=True)
class Style:
  """The looks of one method.

  Attributes:
    label: For people.
    marker: Matplotlib's code.
    light: Colour on a light page.
    dark: Colour on a dark page.
    variable: Name of the CSS variable that holds one or the other.
    placeholder: The colour that stands for the variable while plotting.
  """

  label: str
  marker: str
  light: str
  dark: str
  variable: str
  placeholder: str


def styles(methods: Iterable[str]) -> dict[str, Style]:
  """A style for each method, in the order given, doubles dropped."""
  table, others = {}, 0
  for i, method in enumerate(dict.fromkeys(methods)):
    if method in _KNOWN:
      looks = _KNOWN[method]
    else:
      looks = (method, *_OTHERS[others % len(_OTHERS)])
      others += 1
    table[method] = Style(*looks, f'--method-{i}', f'#0a0c{i:02x}')
  return table


def number(value: float, digits: int = 2) -> str:
  """A number for people: true minus sign, dash for nan."""
  if math.isnan(value):
    return '\N{EN DASH}'
  if math.isinf(value):
    return '∞' if value > 0 else MINUS + '∞'
  return f'{value:.{digits}f}'.replace('-', MINUS)


def lenience(value: float) -> str:
  """As `number`, with no more digits than were given."""
  if not math.isfinite(value):
    return number(value)
  return f'{value:g}'.replace('-', MINUS)


def milliseconds(seconds: float) -> str:
  """Three significant digits."""
  return f'{float(f"{seconds * 1e3:.3g}"):,.10g} ms'


def words(name: str) -> str:
  """A column or task for people."""
  return name.replace('_', ' ')
