"""Phases: the loop by its floor, by the verifier alone, and of a curve.

Weights are random, so that drafts are accepted by force (see
`entrants.force_acceptance`). Entrants of a measurement take turns. The phases
share their compiled loops.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cascades import methods
from experiments.accelerators import device_facts, random_models
from experiments.accelerators.device_phases import Measurement, Pair, Sizes
from experiments.benchmarks import entrants, harness, lower_bounds

_ALONE, _STRICT, _LENIENT = 'alone', 'strict', 'token_v2'
_FLOOR = 'floor'
# Fields of figures that say nothing here: random weights write the same tokens,
# and the first of several rates is compiled for all.
_DROPPED = 'same_tokens', 'lenience', 'compile_s'
# Least acceptance rate of a curve, and the largest.
_CURVE = 0.5, 0.95


def plan_floor(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of the loop by its floor."""
  for loops in _all_loops(sizes):
    yield Measurement(loops.name, loops.by_floor)


def plan_speed(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of both methods by the verifier alone."""
  for loops in _all_loops(sizes):
    yield Measurement(loops.name, loops.by_verifier)


def plan_curve(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of a curve by one lenience."""
  for pair in sizes.pairs:
    yield Measurement(str(pair), _Loops(sizes, pair, sizes.curve).curve)


def plan_compilation(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of compilation and memory."""
  for pair in sizes.pairs:
    loops = _Loops(sizes, pair, max(sizes.loop_batch_sizes))
    yield Measurement(str(pair), loops.compilation)


@functools.cache
def _method(arm: str) -> methods.Method:
  """Returns the method of an entrant; one object, which is compiled once."""
  if arm == _ALONE:
    return methods.METHODS['verifier_only']
  name = 'speed' if arm == _STRICT else arm
  method = methods.METHODS[name]
  return entrants.force_acceptance(method, law_uses_q=arm != _STRICT)


# Seconds of compiling an entrant, which rates share, by its key.
_compile_s: dict[tuple, float] = {}


def _all_loops(sizes: Sizes) -> Iterator['_Loops']:
  """Yields the loops of each pair and batch size."""
  for pair, batch in itertools.product(sizes.pairs, sizes.loop_batch_sizes):
    yield _Loops(sizes, pair, batch)


@dataclasses.dataclass(frozen=True)
class _Loops:
  """The loops of a pair at a batch size, compiled when they are first used."""

  sizes: Sizes
  pair: Pair
  batch: int

  @property
  def name(self) -> str:
    """Name of a measurement."""
    return f'{self.pair}, batch {self.batch}'

  @property
  def rate(self) -> float:
    """The rate of measurements at one rate."""
    return self.sizes.rates[len(self.sizes.rates) // 2]

  def entrant(
    self, arm: str, rate: Any = 0.0
  ) -> tuple[harness.Entrant, dict[str, Any]]:
    """Returns an entrant that is compiled, and the facts of a run."""
    key = (self, arm, str(rate))
    return random_models.cached(key, lambda: self._make(arm, rate))

  def _make(self, arm: str, rate: Any) -> tuple[harness.Entrant, Any]:
    """Makes and compiles an entrant; see `entrant`."""
    models = random_models.load_pair(self.pair, self.sizes)
    if arm == _FLOOR:
      gamma, blocks = rate
      entrant = lower_bounds.lower_bound(models, self.batch, gamma, blocks)
    else:
      gamma = 0 if arm == _ALONE else self.sizes.gamma
      loop = functools.partial(entrants.project_loop, models, self.batch)
      entrant = loop(_method(arm), gamma, rate, name=arm)
    entrant, facts = harness.warm_up(entrant)
    _compile_s.setdefault((self, arm), entrant.fields['compile_s'])
    return entrant, facts

  def figures(self, participants: Sequence[harness.Entrant]) -> dict[str, Any]:
    """Times entrants in turns; returns a row for each, without its tokens."""
    rows = harness.race(participants, self.sizes.repeats, 'turns', quiet=True)
    figure_rows = [
      {k: v for k, v in x.items() if k not in _DROPPED} for x in rows
    ]
    return self.facts | {'rows': figure_rows}

  @property
  def facts(self) -> dict[str, Any]:
    """Fields of all figures: models, layers and batch size."""
    layers = {
      side: random_models.load(name, self.sizes).facts
      for side, name in self.pair._asdict().items()
    }
    return {'pair': str(self.pair), 'batch': self.batch, 'layers': layers}

  def by_floor(self) -> dict[str, Any]:
    """Times the verifier alone and strict decoding with their floors."""
    participants = []
    for arm, gamma in ((_ALONE, 0), (_STRICT, self.sizes.gamma)):
      loop, facts = self.entrant(arm, self.rate if gamma else 0.0)
      floor, _ = self.entrant(_FLOOR, (gamma, facts['blocks']))
      participants += [loop, floor]
    return self.figures(participants)

  def by_verifier(self) -> dict[str, Any]:
    """Times both methods at each forced rate with the verifier alone."""
    rates = self.sizes.rates
    participants = [self.entrant(_ALONE)[0]]
    for arm, rate in itertools.product((_STRICT, _LENIENT), rates):
      participants.append(self.entrant(arm, rate)[0])
    figures = self.figures(participants)
    for row, rate in zip(figures['rows'], [None, *rates, *rates], strict=True):
      row['rate'] = rate
    return figures

  def curve(self) -> dict[str, Any]:
    """Times a prompt at a rate in each row, and at the least rate."""
    rates = np.linspace(*_CURVE, self.batch)
    row_loops = dataclasses.replace(self, batch=1)
    figures = self.figures(
      [
        row_loops.entrant(_LENIENT, float(rates[0]))[0],
        self.entrant(_LENIENT, rates)[0],
      ]
    )
    return figures | {'leniences': self.batch}

  def compilation(self) -> dict[str, Any]:
    """Returns compile times, and the peak of memory."""
    rates = {_ALONE: 0.0, _STRICT: self.rate, _LENIENT: self.rate}
    for arm, rate in rates.items():
      self.entrant(arm, rate)
    models = random_models.load_pair(self.pair, self.sizes)
    weights = models.verifier.params, models.drafter.params
    return self.facts | {
      'compile_s': {arm: _compile_s[self, arm] for arm in rates},
      'peak_bytes': device_facts.peak_bytes(),
      'weight_bytes': random_models.nbytes(weights),
    }
