"""Numbers in Roman numerals, and back: a task the bundled pair never learnt.

Two kinds: a number of 1 to 3999 to its Roman numeral, and a numeral to the
number. The value decides the split, so that the way back of a training number
is never a held-out problem. Of its 7998 prompts, 506 are test problems.
"""

import random

from experiments.tasks.phrasing import Phraser
from experiments.tasks.task import generated

_NUMERALS = {
  'M': 1000,
  'CM': 900,
  'D': 500,
  'CD': 400,
  'C': 100,
  'XC': 90,
  'L': 50,
  'XL': 40,
  'X': 10,
  'IX': 9,
  'V': 5,
  'IV': 4,
  'I': 1,
}


def roman_numeral(n: int) -> str:
  """The Roman numeral of 1 <= n < 4000, such as 'MCMXCIV'."""
  found = ''
  for letters, value in _NUMERALS.items():
    times, n = divmod(n, value)
    found += letters * times
  return found


def _problem(rng: random.Random, phraser: Phraser) -> tuple[str, str, str]:
  """(key, prompt, reference): the value in figures is the key."""
  del phraser  # A number has a single spelling.
  figures = str(value := rng.randint(1, 3999))
  numeral = roman_numeral(value)
  if rng.random() < 0.5:
    return figures, f'The number {figures} in Roman numerals:', f' {numeral}'
  return figures, f'In figures, the Roman numeral {numeral}:', f' {figures}'


def score(answer: str, reference: str) -> dict[str, float]:
  """Exact match."""
  return {'exact_match': float(answer.strip() == reference.strip())}


TASK = generated(
  'roman',
  _problem,
  score=score,
  metric='exact_match',
  max_new_tokens=24,
)
