"""Numbers in Roman numerals, and back: a task unknown to the bundled pair.

There are two kinds: a number of 1 to 3999 to its Roman numeral, and a numeral
to the number. The value decides the split, so that both directions of a
training number are training problems. 506 of the 7998 prompts are test
problems.
"""

import random

from experiments.tasks.phrasing import Phraser

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
  """Returns the Roman numeral of 1 <= n < 4000, such as 'MCMXCIV'."""
  numeral = ''
  for letters, value in _NUMERALS.items():
    times, n = divmod(n, value)
    numeral += letters * times
  return numeral


def draw(rng: random.Random, phraser: Phraser) -> tuple[str, str, str]:
  """Draws (key, prompt, reference); the value in figures is the key."""
  del phraser  # A number has a single spelling.
  figures = str(value := rng.randint(1, 3999))
  numeral = roman_numeral(value)
  if rng.random() < 0.5:
    return figures, f'The number {figures} in Roman numerals:', f' {numeral}'
  return figures, f'In figures, the Roman numeral {numeral}:', f' {figures}'
