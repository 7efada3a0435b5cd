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
HABITS = ('plain', 'ornate', 'any')
# The i-th best liked of several ways has a share in proportion to i ** -LIKING:
# .66, .19, .09 and .05 of four; .78 and .22 of two.
LIKING = 1.8

_CHOICE = re.compile(r'\[([^][]*)\]')


def shares(habit: str, ways: int) -> list[float]:
  """How often an author says a thing in each of several ways.

  Args:
    habit: One of `HABITS`.
    ways: How many there are.

  Returns:
    A share for each, which sum to 1.

  Raises:
    ValueError: There is no such habit.
  """
  if habit not in HABITS:
    raise ValueError(
      f'author: {habit!r} is none; choose one of {", ".join(HABITS)}.'
    )
  liked = [1.0 if habit == 'any' else i**-LIKING for i in range(1, ways + 1)]
  if habit == 'ornate':
    liked.reverse()
  return [x / sum(liked) for x in liked]


class Author:
  """One who writes texts with choices.

  Attributes:
    habit: One of `HABITS`.
  """

  def __init__(self, habit: str, rng: random.Random):
    """Makes an author.

    Args:
      habit: One of `HABITS`.
      rng: What choices are drawn with. Nothing but wording should be: then all
        authors tell the same problems.

    Raises:
      ValueError: There is no such habit.
    """
    self.habit = habit
    self._rng = rng
    shares(habit, 1)

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
    return self._rng.choices(ways, shares(self.habit, len(ways)))[0]
