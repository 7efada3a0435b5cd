"""Exact output distributions of functions that draw random numbers.

`outcomes` calls a function repeatedly with a `Generator` that enumerates its
draws. Each comparison of a uniform number with a threshold has two outcomes;
separate calls follow each of them, with its probability, and restrict the
number to the part of [0, 1] on that side of the threshold. A later comparison
of the same number is conditional on that part. The sum over all calls is the
exact law of the function's return value.

Supported are the draws of speculative verification: `random`, `uniform`,
`choice`, and `multinomial` with n = 1; and, on a uniform number, sums and
products with constants and comparisons with constants. Every other operation
raises `NotEnumerableError`.

Rounding creates outcomes that no generator draws: a float64 cumulative sum of
probabilities ends near 1, not at 1. Outcomes with a probability of at most
`ROUNDING` are therefore dropped, up to a total probability of `MAX_DROPPED`.
An error of a law is underestimated by at most that much.
"""

import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

# Largest probability of an outcome that float64 rounding can create. A float64
# sum of thousands of probabilities is exact to 1e-13. float32 sums are exact
# only to 1e-7, and generators do draw numbers in that gap.
ROUNDING = 1e-12
# Largest total probability of dropped outcomes.
MAX_DROPPED = 1e-10
_NUMPY = np.random.default_rng(0)


class NotEnumerableError(Exception):
  """A draw or an operation has outcomes that cannot be enumerated."""


class _OutcomeTree:
  """A depth-first walk through the outcomes of a function's draws."""

  def __init__(self):
    # Of each draw: outcomes that calls follow, the current one first.
    self._open: list[list[tuple[int, float]]] = []
    self._depth, self.prob, self.dropped_prob = 0, 1.0, 0.0

  def draw(self, probs: list[float], width: float = 1.0) -> int:
    """Returns the outcome that the current call follows at its next draw."""
    if self._depth == len(self._open):
      # All but those of rounding; at least one.
      self._open.append([])
      max_prob = max(probs)
      for i, prob in enumerate(probs):
        joint_prob = self.prob * prob
        is_rounding = prob * width <= ROUNDING and prob < max_prob
        if is_rounding and self.dropped_prob + joint_prob <= MAX_DROPPED:
          self.dropped_prob += joint_prob
        elif prob > 0:
          self._open[-1].append((i, prob))
    outcome, prob = self._open[self._depth][0]
    self._depth += 1
    self.prob *= prob
    return outcome

  def next_call(self) -> bool:
    """Moves to the next unexplored outcome; False if none is left."""
    self._depth, self.prob = 0, 1.0
    while self._open:
      self._open[-1].pop(0)
      if self._open[-1]:
        return True
      self._open.pop()
    return False


UNREPEATABLE = (
  'verify: returns other tokens for equal inputs and equal draws of rng; use'
  ' rng as the only source of randomness, and keep no state.'
)


class _Interval:
  """The interval of a uniform number, given the comparisons so far."""

  def __init__(self, tree: _OutcomeTree):
    self.low, self.high, self._tree = 0.0, 1.0, tree

  def below(self, threshold: float) -> bool:
    """Returns True on the outcome that the number is below the threshold."""
    threshold = min(self.high, max(self.low, threshold))
    width = self.high - self.low
    if not width:
      # An earlier call had other outcomes of the same draws.
      raise ValueError(UNREPEATABLE)
    # Two differences: 1 - share would lose the precision of a small one.
    probs = [(self.high - threshold) / width, (threshold - self.low) / width]
    is_below = self._tree.draw(probs, width) == 1
    setattr(self, 'high' if is_below else 'low', threshold)
    return is_below


class Uniform:
  """An affine function `factor * u + offset` of a uniform number u.

  Equality has probability 0, so `<` and `<=` are the same comparison.
  """

  # NumPy then calls the reflected operators of this class.
  __array_ufunc__ = None

  def __init__(
    self, interval: _Interval, factor: float = 1.0, offset: float = 0.0
  ):
    self._interval, self._factor, self._offset = interval, factor, offset

  def _map(self, operand: Any, apply: Callable[[float], Any]) -> Any:
    """Applies an operation to a number, or to each element of an array."""
    if isinstance(operand, Uniform):
      raise NotEnumerableError('two random numbers are compared or combined')
    if not np.ndim(operand):
      return apply(float(operand))
    array = np.empty(np.shape(operand), object)
    for i, x in np.ndenumerate(operand):
      array[i] = apply(float(x))
    is_bool = array.size and isinstance(array.flat[0], bool)
    return array.astype(bool) if is_bool else array

  def _less(self, number: float) -> bool:
    if not self._factor:
      return self._offset < number
    threshold = (number - self._offset) / self._factor
    if math.isnan(threshold):
      return False
    is_below = self._interval.below(threshold)
    return is_below if self._factor > 0 else not is_below

  def __lt__(self, other: Any) -> Any:
    if isinstance(other, Uniform) and other._interval is self._interval:
      # np.searchsorted compares the number with itself.
      factor = self._factor - other._factor
      offset = self._offset - other._offset
      return Uniform(self._interval, factor, offset)._less(0.0)
    return self._map(other, self._less)

  __le__ = __lt__

  def __gt__(self, other: Any) -> Any:
    if isinstance(other, Uniform):
      return other < self
    return self._map(other, lambda x: not self._less(x))

  __ge__ = __gt__

  def _affine(self, factor: float, offset: float) -> 'Uniform':
    return Uniform(self._interval, factor, offset)

  def __mul__(self, other: Any) -> Any:
    a, b = self._factor, self._offset
    return self._map(other, lambda x: self._affine(a * x, b * x))

  __rmul__ = __mul__

  def __truediv__(self, other: Any) -> Any:
    a, b = self._factor, self._offset
    return self._map(other, lambda x: self._affine(a / x, b / x))

  def __add__(self, other: Any) -> Any:
    a, b = self._factor, self._offset
    return self._map(other, lambda x: self._affine(a, b + x))

  __radd__ = __add__

  def __neg__(self) -> 'Uniform':
    return self * -1.0

  def __sub__(self, other: Any) -> Any:
    return self + (-other)

  def __rsub__(self, other: Any) -> Any:
    return (-self) + other

  def __float__(self) -> float:
    raise NotEnumerableError('the value of a random number is read')

  __int__ = __index__ = __bool__ = __float__


class Generator:
  """The functions of `numpy.random.Generator` that can be enumerated."""

  def __init__(self, tree: _OutcomeTree):
    self._tree = tree

  def _draws(self, size: Any, draw: Callable[[], Any]) -> Any:
    """Returns one draw if `size` is None, else an array of draws."""
    if size is None:
      return draw()
    draws = np.empty(size, object)
    for i in np.ndindex(draws.shape):
      draws[i] = draw()
    return draws

  def random(self, size: Any = None) -> Any:
    """Draws uniform numbers from 0 to 1."""
    return self._draws(size, lambda: Uniform(_Interval(self._tree)))

  def uniform(
    self, low: float = 0.0, high: float = 1.0, size: Any = None
  ) -> Any:
    """Draws uniform numbers from `low` to `high`."""
    return self._draws(
      size, lambda: Uniform(_Interval(self._tree), high - low, low)
    )

  def choice(
    self,
    a: Any,
    size: Any = None,
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    shuffle: bool = True,
  ) -> Any:
    """Draws elements of `a`, or of `range(a)`, with replacement."""
    if size is not None and not replace:
      raise NotEnumerableError('elements are drawn without replacement')
    del axis, shuffle
    elements = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
    # Refuses what is no distribution.
    _NUMPY.choice(len(elements), p=p)
    probs = np.ones(len(elements)) if p is None else np.asarray(p, np.float64)
    normalized = (probs / probs.sum()).tolist()
    draws = self._draws(size, lambda: elements[self._tree.draw(normalized)])
    return draws if size is None else draws.astype(elements.dtype)

  def multinomial(self, n: int, pvals: Any) -> np.ndarray:
    """Draws the counts of one multinomial trial; `n` must be 1."""
    if n != 1:
      raise NotEnumerableError('several multinomial trials are drawn at once')
    return np.eye(len(pvals), dtype=int)[self.choice(len(pvals), p=pvals)]

  def __getattr__(self, name: str) -> Any:
    raise NotEnumerableError(f'random numbers of {name} are drawn')


def outcomes[T: Hashable](
  run: Callable[[Generator], T], max_calls: int = 100_000
) -> dict[T, float]:
  """Returns all possible values of a function and their probabilities."""
  probs: dict[T, float] = {}
  tree = _OutcomeTree()
  for _ in range(max_calls):
    value = run(Generator(tree))
    probs[value] = probs.get(value, 0.0) + tree.prob
    if not tree.next_call():
      return probs
  raise NotEnumerableError(f'more than {max_calls} calls are needed')
