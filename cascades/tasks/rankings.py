"""Putting people in order by what they have, a line each.

Three to five people have different numbers of something, and the prompt asks
for them from most to fewest or the other way. Content is the order and each
one's number, which may be written in figures or in words; how a line says it is
up to its author.
"""

import random
import re

from cascades.tasks.task import generated
from cascades.tasks.word_problems import ITEMS, NAMES, SPOKEN, spoken
from cascades.tasks.wording import Author

_ORDERS = {'most to fewest': -1, 'fewest to most': 1}
_LARGEST = 99

_LINE = (
  '[%s [comes|is|stands|goes] {n}|{n} [comes|is|stands|goes] %s]'
  ' [with|at|having|on] [{v}|{w}] [{i}|in all|there|all told].'
)
_PLACES = (
  ('[First|Ahead|Leading|Foremost]', '[first|ahead|leading|foremost]'),
  ('[Then|Next|Behind|After]', '[then|next|behind|after]'),
  ('[Last|Finally|Lastly|Ending]', '[last|finally|lastly|ending]'),
)


def _problem(rng: random.Random, author: Author) -> tuple[str, str, str]:
  """(key, prompt, reference): the numbers as they are given are the key."""
  count = rng.randint(3, 5)
  names = rng.sample(NAMES, count)
  values = rng.sample(range(2, _LARGEST + 1), count)
  item = rng.choice(ITEMS)
  order = rng.choice(list(_ORDERS))
  told = ', '.join(
    f'{n} has {v} {item}' if i == 0 else f'{n} {v}'
    for i, (n, v) in enumerate(zip(names, values, strict=True))
  )
  prompt = f'{told}. From {order}:'
  ranked = sorted(
    zip(values, names, strict=True), key=lambda had: _ORDERS[order] * had[0]
  )
  places = [_PLACES[0], *[_PLACES[1]] * (count - 2), _PLACES[2]]
  lines = [
    author.write(_LINE % place, n=name, v=value, w=spoken(value), i=item)
    for place, (value, name) in zip(places, ranked, strict=True)
  ]
  return ' '.join(map(str, values)), prompt, ' ' + '\n'.join(lines)


_NAMED = re.compile(rf'\b(?:{"|".join(NAMES)})\b')
# Not a part of a longer one: 'forty-four', '-4', '4.5'.
_NUMBER = re.compile(
  rf'(?<![\w.-])(?:[0-9]{{1,9}}|{"|".join(SPOKEN)})(?!\w|-\w|\.\d)'
)


def ranking(answer: str) -> list[tuple[str, int]] | None:
  """Name and number of each line; None where one has not one of each."""
  found = []
  for line in answer.strip().split('\n'):
    names, numbers = _NAMED.findall(line), _NUMBER.findall(line)
    if len(names) != 1 or len(numbers) != 1:
      return None
    (name,), (number,) = names, numbers
    found.append((name, SPOKEN[number] if number in SPOKEN else int(number)))
  return found


def score(answer: str, reference: str) -> dict[str, float]:
  """Exact match of names and numbers, line by line, in whatever words."""
  found = ranking(answer)
  right = found is not None and found == ranking(reference)
  return {'exact_match': float(right)}


TASK = generated(
  'rankings',
  _problem,
  score=score,
  metric='exact_match',
  max_new_tokens=96,
)
