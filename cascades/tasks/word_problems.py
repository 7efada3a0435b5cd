"""Short arithmetic stories with worked steps, in GSM8K's answer format.

A story starts from a quantity and changes it in two to five steps with +, -,
x and /; every number stays below 1000. The reference works the steps out, one
line each, and ends in a line `#### N` as GSM8K's answers do (Cobbe et al.
2021, arXiv 2110.14168), so one scorer serves both. Wording varies, in the
story and in the worked steps; the numbers do not depend on it.
"""

import random
import re

from cascades.tasks.gsm8k import marked_number
from cascades.tasks.task import generated

_NAMES = (
  'Ana Ben Cleo Dan Ella Finn Gita Hugo Iris Jon Kira Leo Mia Noah Olga Paul'
).split()
_ITEMS = 'apples books cards coins eggs marbles pens shells stamps tickets'
_ITEMS = _ITEMS.split()
_LARGEST = 999

# Each step: how the story tells it. {n} acts, {f} is a friend, {k} the number.
_TOLD = {
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
# How the answer works it out. {e} is 'a+b=c', {c} the new quantity.
_WORKED = {
  '+': ('Then {n} has {e} {i}.', 'That makes {e} {i}.'),
  '-': ('Then {n} has {e} {i}.', 'That leaves {e} {i}.'),
  '*': ('Then {n} has {e} {i}.', 'Times {k} that is {e} {i}.'),
  '/': ('Then {n} has {e} {i}.', 'Each share is {e} {i}.'),
}


def _operand(rng: random.Random, op: str, value: int) -> int | None:
  """A second operand that keeps the result within 1..999, or None."""
  if op == '+':
    room = _LARGEST - value
    most = min(room, rng.choice((99, 899))) if room > 2 else 0
    return rng.randint(2, most) if most else None
  if op == '-':
    most = min(value - 1, rng.choice((99, 899)))
    return rng.randint(2, most) if most >= 2 else None
  if op == '*':
    most = min(9, _LARGEST // value)
    return rng.randint(2, most) if most >= 2 else None
  divisors = [k for k in range(2, 10) if value % k == 0 and value > k]
  return rng.choice(divisors) if divisors else None


_APPLY = {
  '+': lambda a, b: a + b,
  '-': lambda a, b: a - b,
  '*': lambda a, b: a * b,
  '/': lambda a, b: a // b,
}


def _opening(rng: random.Random, words: dict[str, str]):
  """First sentence, first worked line and the quantity they lead to."""
  kind = rng.randrange(4)
  if kind < 2:
    value = rng.randint(*rng.choice(((2, 99), (100, 600))))
    return '{n} has {v} {i}.'.format(v=value, **words), [], value
  if kind == 2:
    a, b = rng.randint(2, 9), rng.randint(2, 99)
    told = '{n} has {a} boxes with {b} {i} in each.'.format(a=a, b=b, **words)
    return told, [_work(rng, words, '*', b, a)], a * b
  a = rng.randint(*rng.choice(((2, 99), (100, 400))))
  if rng.random() < 0.5:
    b = rng.randint(2, 99)
    told = '{f} has {a} {i}. {n} has {b} more {i} than {f}.'
    op = '+'
  else:
    b = rng.randint(2, min(9, _LARGEST // a))
    told = '{f} has {a} {i}. {n} has {b} times as many {i} as {f}.'
    op = '*'
  told = told.format(a=a, b=b, **words)
  return told, [_work(rng, words, op, a, b)], _APPLY[op](a, b)


def _work(rng, words, op, a, b) -> str:
  c = _APPLY[op](a, b)
  e = f'{a}{op}{b}={c}'
  return rng.choice(_WORKED[op]).format(e=e, k=b, **words)


def _problem(rng: random.Random) -> tuple[str, str, str]:
  """(key, prompt, reference): the chain of equations is the key."""
  name, friend = rng.sample(_NAMES, 2)
  item, other = rng.sample(_ITEMS, 2)
  words = {'n': name, 'f': friend, 'i': item}
  sentence, worked, value = _opening(rng, words)
  story = [sentence]
  steps = rng.randint(2, 5)
  while len(worked) < steps:
    op = rng.choice('+-*/')
    k = _operand(rng, op, value)
    if k is None:
      continue
    story.append(rng.choice(_TOLD[op]).format(k=k, **words))
    worked.append(_work(rng, words, op, value, k))
    value = _APPLY[op](value, k)
  if rng.random() < 0.15:
    aside = f'{friend} also has {rng.randint(2, 99)} {other}.'
    story.insert(rng.randint(1, len(story)), aside)
  question = rng.choice(
    (
      f'How many {item} does {name} have now?',
      f'How many {item} does {name} have in the end?',
    )
  )
  prompt = f'Question: {" ".join(story)} {question}\nAnswer:'
  reference = ' ' + '\n'.join([*worked, f'#### {value}'])
  key = ' '.join(re.findall(r'\d+[-+*/]\d+=\d+', reference))
  return key, prompt, reference


def score(answer: str, reference: str) -> dict[str, float]:
  """Exact match of the number after `####`, and of no other."""
  found = marked_number(answer)
  right = found is not None and found == marked_number(reference)
  return {'exact_match': float(right)}


TASK = generated(
  'word_problems',
  _problem,
  score=score,
  metric='exact_match',
  max_new_tokens=128,
)
