"""Short arithmetic stories with worked steps, in GSM8K's answer format.

A story starts from a quantity and changes it in two to four steps with +, -,
x and /; every number stays below 1000. The reference works the steps out, one
line each, and ends in a line `#### N` as GSM8K's answers do (Cobbe et al.
2021, arXiv 2110.14168). The phrasing style decides the words of a step, but
not its equation, and only the number at the end is scored.
"""

import operator
import random

from experiments.tasks.answer_metrics import MARK
from experiments.tasks.numerals import number_in_words
from experiments.tasks.phrasing import Phraser

# Every second name takes the pronoun 'she'.
NAMES = (
  'Ana Ben Cleo Dan Ella Finn Gita Hugo Iris Jon Kira Leo Mia Noah Olga Paul'
).split()
ITEMS = 'apples books cards coins eggs marbles pens shells stamps tickets'
ITEMS = ITEMS.split()
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


_APPLY = {
  '+': operator.add,
  '-': operator.sub,
  '*': operator.mul,
  '/': operator.floordiv,
}


def _opening(rng: random.Random, words: dict[str, str]):
  """Draws the first sentence of a story."""
  kind = rng.randrange(4)
  if kind < 2:
    value = rng.randint(*rng.choice(((2, 99), (100, 600))))
    return '{n} has {v} {i}.'.format(v=value, **words), [], value
  if kind == 2:
    a, b = rng.randint(2, 9), rng.randint(2, 99)
    sentence = '{n} has {a} boxes with {b} {i} in each.'.format(
      a=a, b=b, **words
    )
    return sentence, [('*', b, a)], a * b
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


def draw(rng: random.Random, phraser: Phraser) -> tuple[str, str, str]:
  """Draws (key, prompt, reference); the chain of equations is the key."""
  name, friend = rng.sample(NAMES, 2)
  item, distractor = rng.sample(ITEMS, 2)
  words = {
    'n': name,
    'f': friend,
    'i': item,
    'p': ('she', 'he')[NAMES.index(name) % 2],
  }
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
  question = rng.choice(
    (
      f'How many {item} does {name} have now?',
      f'How many {item} does {name} have in the end?',
    )
  )
  prompt = f'Question: {" ".join(story)} {question}\nAnswer:'
  equations = [f'{a}{op}{b}={_APPLY[op](a, b)}' for op, a, b in steps]
  worked = []
  for (op, _, k), equation in zip(steps, equations, strict=True):
    spoken = number_in_words(k) if k <= 20 else k
    template = _STEP % _WORKED[op]
    worked.append(phraser.write(template, k=k, w=spoken, e=equation, **words))
  reference = ' ' + '\n'.join([*worked, f'{MARK} {value}'])
  return ' '.join(equations), prompt, reference
