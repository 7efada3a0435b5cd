"""Generated problems: arithmetic stories, and numbers written out.

`draw_story` writes short arithmetic stories in GSM8K's format. A story starts
from a quantity and changes it in two to four steps with +, -, x and /; every
number stays below 1000. The reference works the steps out, one line each, and
ends in a line `#### N` as GSM8K's answers do (Cobbe et al. 2021, arXiv
2110.14168). A phraser draws the words of a step, but not its equation, and only
the number at the end is scored.

`draw_numeral` translates numbers below a million and dates into English words,
and back. The value decides the split, so that both directions of a training
number are training problems. `draw_roman`, unknown to the bundled pair, has
numbers of 1 to 3999 to their Roman numerals, and back; 506 of the 7998 prompts
are test problems.
"""

import operator
import random
import re

from experiments.tasks.answer_metrics import MARK

# The i-th preferred of several alternatives has a share in proportion to
# i ** -PREFERENCE_EXPONENT: .66, .19, .09 and .05 of four; .78 and .22 of two.
PREFERENCE_EXPONENT = 1.8

_ALTERNATIVES = re.compile(r'\[([^][]*)\]')


class Phraser:
  """A writer of templates.

  A template has alternatives in brackets, which can be nested, and placeholders
  in braces: `[Then|Next] {name} [gets|gains] {k}.`
  """

  def __init__(self, rng: random.Random):
    self._rng = rng

  def write(self, template: str, **words: object) -> str:
    """Returns a text with alternatives drawn and placeholders filled."""
    previous = None
    while previous != template:
      previous, template = template, _ALTERNATIVES.sub(self._draw, template)
    return template.format(**words)

  def _draw(self, match: re.Match) -> str:
    alternatives = match[1].split('|')
    numbers = range(1, len(alternatives) + 1)
    weights = [i**-PREFERENCE_EXPONENT for i in numbers]
    total = sum(weights)
    return self._rng.choices(alternatives, [x / total for x in weights])[0]


_ONES = (
  'zero one two three four five six seven eight nine ten eleven twelve'
  ' thirteen fourteen fifteen sixteen seventeen eighteen nineteen'
).split()
_TENS = ' . twenty thirty forty fifty sixty seventy eighty ninety'.split()
_MONTHS = (
  'January February March April May June July August September October'
  ' November December'
).split()
_ORDINALS = dict(
  one='first', two='second', three='third', five='fifth', eight='eighth'
)
_ORDINALS |= dict(nine='ninth', twelve='twelfth')
_NUMERALS = dict(M=1000, CM=900, D=500, CD=400, C=100, XC=90, L=50, XL=40)
_NUMERALS |= dict(X=10, IX=9, V=5, IV=4, I=1)


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


def draw_numeral(rng: random.Random, phraser: Phraser) -> tuple[str, str, str]:
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


# Every second name takes the pronoun 'she'.
NAMES = (
  'Ana Ben Cleo Dan Ella Finn Gita Hugo Iris Jon Kira Leo Mia Noah Olga Paul'
).split()
ITEMS = (
  'apples books cards coins eggs marbles pens shells stamps tickets'
).split()
_LARGEST = 999

# Sentences of a story by operation: {n} acts, {f} is a friend, {k} a number.
_STORY = {
  '+': (
    '{n} buys {k} more {i}.',
    '{f} gives {n} {k} {i}.',
    '{n} finds {k} {i} in a drawer.',
    'The next day {n} gets another {k} {i}.',
  ),
  '-': (
    '{n} gives {k} {i} to {f}.',
    '{n} loses {k} {i}.',
    '{n} sells {k} of the {i}.',
    'Then {f} takes {k} {i} away.',
  ),
  '*': (
    'A lucky trade leaves {n} with {k} times as many {i}.',
    '{n} works hard and soon has {k} times that many.',
    'Over the year the number of {i} grows to {k} times as much.',
  ),
  '/': (
    '{n} shares the {i} equally among {k} people and keeps one share.',
    '{n} packs the {i} equally into {k} bags and keeps only one bag.',
    '{n} splits the {i} into {k} equal piles and is left with one pile.',
  ),
}
# Worked steps by operation: {n} acts, {p} is the pronoun; {k} is the number,
# {w} the number, in words up to twenty; {e} is 'a+b=c'.
_STEP = (
  '[Then|Next|Now|Later] [{n}|{p}] %s, [so|thus|hence|and]'
  ' [[{n}|{p}] [has|owns|holds|keeps] {e} [now|then|here|overall]'
  '|[now|then|here|overall] [{n}|{p}] [has|owns|holds|keeps] {e}].'
)
_WORKED = {
  '+': '[gets|gains|takes|adds] [{k}|{w}] [more|extra|new|further]'
  ' [{i}|things|items|pieces]',
  '-': '[loses|drops|misses|yields] [{k}|{w}] [old|good|fine|nice]'
  ' [{i}|things|items|pieces]',
  '*': '[has|makes|sees|counts] [{k}|{w}] [equal|such|like|full]'
  ' [groups|sets|heaps|lots]',
  '/': '[keeps|takes|holds|saves] one of [{k}|{w}] [equal|fair|like|even]'
  ' [groups|sets|heaps|lots]',
}


def _operand(rng: random.Random, op: str, value: int) -> int | None:
  """Draws an operand that keeps the result within 1..999; None if none can."""
  if op == '+':
    room = _LARGEST - value
    upper = min(room, rng.choice((99, 899))) if room > 2 else 0
    return rng.randint(2, upper) if upper else None
  if op == '-':
    upper = min(value - 1, rng.choice((99, 899)))
    return rng.randint(2, upper) if upper >= 2 else None
  if op == '*':
    upper = min(9, _LARGEST // value)
    return rng.randint(2, upper) if upper >= 2 else None
  divisors = [k for k in range(2, 10) if value % k == 0 and value > k]
  return rng.choice(divisors) if divisors else None


_APPLY = {'+': operator.add, '-': operator.sub}
_APPLY |= {'*': operator.mul, '/': operator.floordiv}


def _opening(rng: random.Random, words: dict[str, str]):
  """Draws the first sentence of a story."""
  kind = rng.randrange(4)
  if kind < 2:
    value = rng.randint(*rng.choice(((2, 99), (100, 600))))
    return '{n} has {v} {i}.'.format(v=value, **words), [], value
  if kind == 2:
    a, b = rng.randint(2, 9), rng.randint(2, 99)
    sentence = '{n} has {a} boxes with {b} {i} in each.'
    return sentence.format(a=a, b=b, **words), [('*', b, a)], a * b
  a = rng.randint(*rng.choice(((2, 99), (100, 400))))
  if rng.random() < 0.5:
    b = rng.randint(2, 99)
    sentence = '{f} has {a} {i}. {n} has {b} more {i} than {f}.'
    op = '+'
  else:
    b = rng.randint(2, min(9, _LARGEST // a))
    sentence = '{f} has {a} {i}. {n} has {b} times as many {i} as {f}.'
    op = '*'
  sentence = sentence.format(a=a, b=b, **words)
  return sentence, [(op, a, b)], _APPLY[op](a, b)


def draw_story(rng: random.Random, phraser: Phraser) -> tuple[str, str, str]:
  """Draws (key, prompt, reference); the chain of equations is the key."""
  name, friend = rng.sample(NAMES, 2)
  item, distractor = rng.sample(ITEMS, 2)
  pronoun = ('she', 'he')[NAMES.index(name) % 2]
  words = {'n': name, 'f': friend, 'i': item, 'p': pronoun}
  sentence, steps, value = _opening(rng, words)
  story = [sentence]
  count = rng.randint(2, 4)
  while len(steps) < count:
    op = rng.choice('+-*/')
    k = _operand(rng, op, value)
    if k is None:
      continue
    story.append(rng.choice(_STORY[op]).format(k=k, **words))
    steps.append((op, value, k))
    value = _APPLY[op](value, k)
  if rng.random() < 0.15:
    aside = f'{friend} also has {rng.randint(2, 99)} {distractor}.'
    story.insert(rng.randint(1, len(story)), aside)
  question = f'How many {item} does {name} have'
  question += rng.choice((' now?', ' in the end?'))
  prompt = f'Question: {" ".join(story)} {question}\nAnswer:'
  equations = [f'{a}{op}{b}={_APPLY[op](a, b)}' for op, a, b in steps]
  worked = []
  for (op, _, k), equation in zip(steps, equations, strict=True):
    spoken = number_in_words(k) if k <= 20 else k
    template = _STEP % _WORKED[op]
    worked.append(phraser.write(template, k=k, w=spoken, e=equation, **words))
  reference = ' ' + '\n'.join([*worked, f'{MARK} {value}'])
  return ' '.join(equations), prompt, reference
