"""Numbers and dates written out in English, and back: a small translation.

There are four kinds: a number below a million to words, words to the number, an
ISO date to words, words to the ISO date. The value decides the split, so that
both directions of a training number are training problems.

The task `roman`, unknown to the bundled pair, has numbers of 1 to 3999 to their
Roman numerals, and back; 506 of the 7998 prompts are test problems.
"""

import random

from experiments.tasks.phrasing import Phraser

_ONES = (
  'zero one two three four five six seven eight nine ten eleven twelve'
  ' thirteen fourteen fifteen sixteen seventeen eighteen nineteen'
).split()
_TENS = ' . twenty thirty forty fifty sixty seventy eighty ninety'.split()
_MONTHS = (
  'January February March April May June July August September October'
  ' November December'
).split()
_ORDINALS = {
  'one': 'first',
  'two': 'second',
  'three': 'third',
  'five': 'fifth',
  'eight': 'eighth',
  'nine': 'ninth',
  'twelve': 'twelfth',
}
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


def number_in_words(n: int) -> str:
  """Returns 0 <= n < 1,000,000 in English words, without 'and'."""
  if n < 20:
    return _ONES[n]
  if n < 100:
    tens = _TENS[n // 10 - 1]
    return tens + (f'-{_ONES[n % 10]}' if n % 10 else '')
  unit, name = (1000, 'thousand') if n >= 1000 else (100, 'hundred')
  rest = f' {number_in_words(n % unit)}' if n % unit else ''
  return f'{number_in_words(n // unit)} {name}{rest}'


def ordinal_in_words(n: int) -> str:
  """Returns the English ordinal of 1 <= n < 100, such as 'twenty-first'."""
  *head, last = number_in_words(n).split('-')
  if last in _ORDINALS:
    last = _ORDINALS[last]
  else:
    last = (last[:-1] + 'ie' if last.endswith('y') else last) + 'th'
  return '-'.join([*head, last])


def date_in_words(year: int, month: int, day: int) -> str:
  """Returns a date of 1100 to 2099: 'the fourth of July, two thousand'."""
  century, rest = divmod(year, 100)
  if century == 20 and rest < 10:
    spoken = number_in_words(year)
  elif rest == 0:
    spoken = f'{number_in_words(century)} hundred'
  elif rest < 10:
    spoken = f'{number_in_words(century)} oh {number_in_words(rest)}'
  else:
    spoken = f'{number_in_words(century)} {number_in_words(rest)}'
  return f'the {ordinal_in_words(day)} of {_MONTHS[month - 1]}, {spoken}'


def draw(rng: random.Random, phraser: Phraser) -> tuple[str, str, str]:
  """Draws (key, prompt, reference); the value in figures is the key."""
  del phraser  # A number has a single spelling.
  if rng.random() < 0.6:
    value = rng.randrange(10 ** rng.randint(2, 6))
    figures, words, kind = str(value), number_in_words(value), 'number'
  else:
    date = rng.randint(1100, 2099), rng.randint(1, 12), rng.randint(1, 28)
    figures = '{:04d}-{:02d}-{:02d}'.format(*date)
    words, kind = date_in_words(*date), 'date'
  if rng.random() < 0.5:
    return figures, f'The {kind} {figures} in words:', f' {words}'
  return figures, f'In figures, the {kind} {words}:', f' {figures}'


def roman_numeral(n: int) -> str:
  """Returns the Roman numeral of 1 <= n < 4000, such as 'MCMXCIV'."""
  numeral = ''
  for letters, value in _NUMERALS.items():
    times, n = divmod(n, value)
    numeral += letters * times
  return numeral


def draw_roman(rng: random.Random, phraser: Phraser) -> tuple[str, str, str]:
  """Draws (key, prompt, reference); the value in figures is the key."""
  del phraser  # A number has a single spelling.
  figures = str(value := rng.randint(1, 3999))
  numeral = roman_numeral(value)
  if rng.random() < 0.5:
    return figures, f'The number {figures} in Roman numerals:', f' {numeral}'
  return figures, f'In figures, the Roman numeral {numeral}:', f' {figures}'
