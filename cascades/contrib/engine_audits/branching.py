"""A random generator that goes through everything it could say.

A function that draws random numbers and looks at them is called over and over:
where it asks whether a uniform number is less than a threshold, both answers
come in turn, each with its chance, and the number is in a smaller interval from
then on. So the law of what the function returns is known, and not estimated;
a number that is looked at twice is the same number.

What can be asked is what verification is made of: `random`, `uniform`,
`choice` of numbers and `multinomial` of one; of a uniform number, sums and
products with numbers, and comparisons with them. Whoever asks for more gets
`NotEnumerableError`.

A branch whose probability is rounding is no branch: the float64 cumulative sum
of a row ends near 1 and not at 1, and no generator draws the number between.
Branches of at most `ROUNDING` are dropped, until together they have the
probability `MOST_DROPPED`; what is dropped is missing in the law. So no branch
is hidden that could change a law by more than that.
"""

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

# Largest probability of a branch that float64 rounding can make. Sums of
# thousands of probabilities are exact to 1e-13; float32 is not meant, for its
# sums are off by 1e-7, and a generator does draw numbers there.
ROUNDING = 1e-12
# Largest total probability of the branches that are dropped.
MOST_DROPPED = 1e-10


class NotEnumerableError(Exception):
  """Something was asked that has too many answers to go through."""


class _Script:
  """The answers given in one call, and the branches left for later calls.

  Attributes:
    chance: Of all answers so far.
    dropped: Total probability of the branches that were dropped as rounding.
  """

  def __init__(self):
    self._answers: list[int] = []
    self._open: list[list[tuple[int, float]]] = []
    self._chances: list[float] = []
    self._next = 0
    self.chance = 1.0
    self.dropped = 0.0

  def ask(self, chances: list[float], scale: float = 1.0) -> int:
    """An answer's number; those without a chance are never given.

    Args:
      chances: Of each answer, given all answers before.
      scale: Probability of what the answers divide: a `Uniform` that was
        compared before is in an interval of this width. Rounding is absolute,
        so that it is the width of an answer that is compared with `ROUNDING`.
    """
    if self._next == len(self._answers):
      first, *others = self._kept(chances, scale)
      self._answers.append(first[0])
      self._chances.append(first[1])
      self._open.append(others)
    at = self._next
    self._next += 1
    self.chance *= self._chances[at]
    return self._answers[at]

  def _kept(
    self, chances: list[float], scale: float
  ) -> list[tuple[int, float]]:
    """Answers that are gone through, and their chances; at least one."""
    possible = [(i, c) for i, c in enumerate(chances) if c > 0]
    likeliest = max(c for _, c in possible)
    kept = []
    for i, c in possible:
      lost = self.chance * c
      is_rounding = c * scale <= ROUNDING and c < likeliest
      if is_rounding and self.dropped + lost <= MOST_DROPPED:
        self.dropped += lost
      else:
        kept.append((i, c))
    return kept

  def rewind(self) -> bool:
    """Makes the next call another one; whether there is any."""
    while self._open and not self._open[-1]:
      for kept in (self._open, self._answers, self._chances):
        kept.pop()
    if not self._open:
      return False
    self._answers[-1], self._chances[-1] = self._open[-1].pop(0)
    self._next, self.chance = 0, 1.0
    return True


class _Interval:
  """An interval that a uniform number is in, as far as it was compared."""

  def __init__(self, script: _Script):
    self.low, self.high, self._script = 0.0, 1.0, script

  def below(self, threshold: float) -> bool:
    """Decides whether the number is smaller."""
    threshold = min(self.high, max(self.low, threshold))
    width = self.high - self.low
    # Each by a difference of its own: 1 - share would lose what is small.
    chances = [(self.high - threshold) / width, (threshold - self.low) / width]
    is_below = self._script.ask(chances, width) == 1
    if is_below:
      self.high = threshold
    else:
      self.low = threshold
    return is_below


class Uniform:
  """A uniform number times a factor, plus something.

  Equality has no chance, so that `<` and `<=` are the same.
  """

  # So that arrays and NumPy's numbers ask this class, and not the reverse.
  __array_ufunc__ = None

  def __init__(self, of: _Interval, factor: float = 1.0, plus: float = 0.0):
    self._of, self._factor, self._plus = of, factor, plus

  def _map(self, other: Any, one: Callable[[float], Any]) -> Any:
    """Something with a number, or with each of an array."""
    if isinstance(other, Uniform):
      raise NotEnumerableError('two random numbers are compared or joined')
    if np.ndim(other):
      flat = [one(float(x)) for x in np.ravel(other)]
      made = np.empty(len(flat), object)
      made[:] = flat
      if flat and isinstance(flat[0], bool):
        made = made.astype(bool)
      return made.reshape(np.shape(other))
    return one(float(other))

  def _less(self, number: float) -> bool:
    if not self._factor:
      return self._plus < number
    threshold = (number - self._plus) / self._factor
    if math.isnan(threshold):
      return False
    is_below = self._of.below(threshold)
    return is_below if self._factor > 0 else not is_below

  def __lt__(self, other: Any) -> Any:
    if isinstance(other, Uniform) and other._of is self._of:
      # As NumPy does where it looks for a place in a sorted array.
      factor, plus = self._factor - other._factor, self._plus - other._plus
      return Uniform(self._of, factor, plus)._less(0.0)
    return self._map(other, self._less)

  __le__ = __lt__

  def __gt__(self, other: Any) -> Any:
    if isinstance(other, Uniform):
      return other < self
    return self._map(other, lambda x: not self._less(x))

  __ge__ = __gt__

  def __mul__(self, other: Any) -> Any:
    return self._map(
      other, lambda x: Uniform(self._of, self._factor * x, self._plus * x)
    )

  __rmul__ = __mul__

  def __truediv__(self, other: Any) -> Any:
    return self._map(
      other, lambda x: Uniform(self._of, self._factor / x, self._plus / x)
    )

  def __add__(self, other: Any) -> Any:
    return self._map(
      other, lambda x: Uniform(self._of, self._factor, self._plus + x)
    )

  __radd__ = __add__

  def __neg__(self) -> 'Uniform':
    return self * -1.0

  def __sub__(self, other: Any) -> Any:
    return self + (-other)

  def __rsub__(self, other: Any) -> Any:
    return (-self) + other

  def __float__(self) -> float:
    raise NotEnumerableError('the digits of a random number are looked at')

  __int__ = __index__ = __bool__ = __float__


def _close(p: Any) -> float:
  """Returns the deviation from 1 that NumPy allows a sum of probabilities."""
  of_array = isinstance(p, np.ndarray) and np.issubdtype(p.dtype, np.floating)
  dtypes = [np.float64, p.dtype] if of_array else [np.float64]
  return max(float(np.sqrt(np.finfo(dtype).eps)) for dtype in dtypes)


class Generator:
  """The functions of `numpy.random.Generator` that can be enumerated."""

  def __init__(self, script: _Script):
    self._script = script

  @property
  def chance(self) -> float:
    """The probability of all that was drawn so far in this call."""
    return self._script.chance

  def _each(self, size: Any, one: Callable[[], Any]) -> Any:
    """One of them, or an array of so many."""
    if size is None:
      return one()
    made = np.empty(size, object)
    for i in np.ndindex(made.shape):
      made[i] = one()
    return made

  def random(self, size: Any = None) -> Any:
    """Uniform from 0 to 1."""
    return self._each(size, lambda: Uniform(_Interval(self._script)))

  def uniform(
    self, low: float = 0.0, high: float = 1.0, size: Any = None
  ) -> Any:
    """Uniform from `low` to `high`."""
    made = lambda: Uniform(_Interval(self._script), high - low, low)  # noqa: E731
    return self._each(size, made)

  def choice(
    self,
    a: Any,
    size: Any = None,
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    shuffle: bool = True,
  ) -> Any:
    """One of some things, or several that may be the same."""
    if size is not None and not replace:
      raise NotEnumerableError('several are drawn without replacement')
    del axis, shuffle
    things = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
    chances = np.full(len(things), 1 / len(things)) if p is None else p
    close = _close(chances)
    chances = np.asarray(chances, np.float64)
    if (chances < 0).any() or not abs(chances.sum() - 1) <= close:
      raise ValueError('probabilities do not sum to 1')
    weights = (chances / chances.sum()).tolist()
    found = self._each(size, lambda: things[self._script.ask(weights)])
    return found if size is None else found.astype(things.dtype)

  def multinomial(self, n: int, pvals: Any) -> np.ndarray:
    """Draws counts of one multinomial trial."""
    if n != 1:
      raise NotEnumerableError('several are drawn at once')
    return np.eye(len(pvals), dtype=int)[self.choice(len(pvals), p=pvals)]

  def __getattr__(self, name: str) -> Any:
    raise NotEnumerableError(f'random numbers of {name} are drawn')


def outcomes[Found: Hashable](
  run: Callable[[Generator], Found], most: int = 100_000
) -> dict[Found, float]:
  """All that a function can return, and the chance of each.

  Args:
    run: Takes a generator; what it returns hangs on nothing else.
    most: Calls of it.

  Raises:
    NotEnumerableError: It asks for what cannot be gone through, or for more
      than so many calls go through.
  """
  found: dict[Found, float] = {}
  script = _Script()
  for said, chance in _calls(run, script, most):
    found[said] = found.get(said, 0.0) + chance
  return found


def _calls(
  run: Callable[[Generator], Any], script: _Script, most: int
) -> Iterator[tuple[Any, float]]:
  """Yields the result of each call and the probability of its draws."""
  for _ in range(most):
    said = run(Generator(script))
    yield said, script.chance
    if not script.rewind():
      return
  raise NotEnumerableError(f'more than {most} calls are needed')
