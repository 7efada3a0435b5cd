"""Authors: who says the same things, each in words of their own.

Two models that were taught by different authors disagree about wording, which
costs an answer nothing; where they disagree about content, it may be wrong.

A text is written with its choices in brackets, which may hold further ones,
and its words in braces: `[Then|Next] {name} [gets|gains] {k}.`
"""

import random
import re
from collections.abc import Sequence

# 'plain' likes the first way of saying a thing best, 'ornate' the last; 'any'
# has no favourites.
AUTHORS = ('plain', 'ornate', 'any')
# The i-th best liked of several ways has a share in proportion to i ** -LIKING:
# .66, .19, .09 and .05 of four; .78 and .22 of two.
LIKING = 1.8

_CHOICE = re.compile(r'\[([^][]*)\]')


def shares(author: str, ways: int) -> list[float]:
  """How often an author says a thing in each of several ways.

  Args:
    author: One of `AUTHORS`.
    ways: How many there are.

  Returns:
    A share for each, which sum to 1.

  Raises:
    ValueError: There is no such author.
  """
  if author not in AUTHORS:
    raise ValueError(
      f'author: {author!r} is none; choose one of {", ".join(AUTHORS)}.'
    )
  liked = [1.0 if author == 'any' else i**-LIKING for i in range(1, ways + 1)]
  if author == 'ornate':
    liked.reverse()
  return [x / sum(liked) for x in liked]


class Author:
  """One who writes texts with choices.

  Attributes:
    name: One of `AUTHORS`.
  """

  def __init__(self, name: str, rng: random.Random):
    """Makes an author.

    Args:
      name: One of `AUTHORS`.
      rng: What choices are drawn with. Nothing but wording should be: then all
        authors tell the same problems.

    Raises:
      ValueError: There is no such author.
    """
    self.name = name
    self._rng = rng
    shares(name, 1)

  def write(self, text: str, **words: object) -> str:
    """A text in this author's words.

    Args:
      text: Has choices in brackets, and the names of words in braces.
      **words: What stands for these names.
    """
    made = None
    while made != text:
      made, text = text, _CHOICE.sub(self._chosen, text)
    return text.format(**words)

  def _chosen(self, choice: re.Match) -> str:
    ways: Sequence[str] = choice[1].split('|')
    return self._rng.choices(ways, shares(self.name, len(ways)))[0]
