"""Phrasing styles: the same content in different words.

Models that are trained on different styles disagree about phrasing, which does
not affect correctness; a disagreement about content may be an error.

A template has alternatives in brackets, which can be nested, and placeholders
in braces: `[Then|Next] {name} [gets|gains] {k}.`
"""

import random
import re
from collections.abc import Sequence

# 'plain' prefers the first alternative, 'ornate' the last; 'any' draws all
# alternatives equally often.
PHRASING_STYLES = ('plain', 'ornate', 'any')
# The i-th preferred of several alternatives has a share in proportion to
# i ** -PREFERENCE_EXPONENT: .66, .19, .09 and .05 of four; .78 and .22 of two.
PREFERENCE_EXPONENT = 1.8

_ALTERNATIVES = re.compile(r'\[([^][]*)\]')


def shares(phrasing_style: str, alternatives: int) -> list[float]:
  """Returns the probability of each alternative in a phrasing style."""
  if phrasing_style not in PHRASING_STYLES:
    raise ValueError(
      f'phrasing_style: must be one of {", ".join(PHRASING_STYLES)}, got'
      f' {phrasing_style!r}.'
    )
  weights = [
    1.0 if phrasing_style == 'any' else i**-PREFERENCE_EXPONENT
    for i in range(1, alternatives + 1)
  ]
  if phrasing_style == 'ornate':
    weights.reverse()
  return [weight / sum(weights) for weight in weights]


class Phraser:
  """A writer of templates in one phrasing style."""

  def __init__(self, phrasing_style: str, rng: random.Random):
    """Makes a phraser."""
    self.phrasing_style = phrasing_style
    self._rng = rng
    shares(phrasing_style, 1)

  def write(self, template: str, **words: object) -> str:
    """Returns a text with alternatives drawn and placeholders filled."""
    previous = None
    while previous != template:
      previous, template = template, _ALTERNATIVES.sub(self._draw, template)
    return template.format(**words)

  def _draw(self, match: re.Match) -> str:
    alternatives: Sequence[str] = match[1].split('|')
    weights = shares(self.phrasing_style, len(alternatives))
    return self._rng.choices(alternatives, weights)[0]
