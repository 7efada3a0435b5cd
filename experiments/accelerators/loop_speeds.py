"""Phases: the loop by its floor, by the verifier alone, and of trained pairs.

Weights are random, so that drafts are accepted by force (see
`entrants.force_acceptance`). Entrants of a measurement take turns. The phases
share their compiled loops. A pair with trained weights translates captions, if
it is installed; nothing is downloaded.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from cascades import Sampler, drafters, load_model, methods
from cascades.config import DecodingConfig
from cascades.models import memory
from experiments.accelerators import device_facts, random_models
from experiments.accelerators.device_phases import Measurement, Pair, Sizes
from experiments.benchmarks import entrants, harness, lower_bounds

_ALONE, _STRICT, _LENIENT, _FLOOR = 'alone', 'strict', 'token_v2', 'floor'
# Fields of figures that say nothing here: random weights write the same tokens,
# and the first of several rates is compiled for all.
_DROPPED = 'same_tokens', 'lenience', 'compile_s'
# Least acceptance rate of a curve, and the largest.
_CURVE = 0.5, 0.95
_GERMAN = (
  'Ein Hund läuft durch den Schnee.',
  'Zwei Kinder spielen am Strand.',
  'Eine Frau liest ein Buch im Park.',
  'Ein Mann fährt mit dem Fahrrad zur Arbeit.',
  'Drei Mädchen singen auf einer Bühne.',
  'Ein Junge springt in das Wasser.',
  'Zwei Männer reparieren ein Dach.',
  'Eine Gruppe von Menschen wartet auf den Bus.',
)
_EXAMPLE = (
  'German: Eine Katze schläft auf dem Sofa.\n'
  'English: A cat is sleeping on the sofa.\n\n'
)
_ARMS = {
  'alone': dict(gamma=0),
  'strict': dict(method='speed', lenience=0.0, gamma=4),
  'token_v2': dict(method='token_v2', lenience=0.3, gamma=4),
}


def plan_floor(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of the loop by its floor."""
  for pair, batch in itertools.product(sizes.pairs, sizes.loop_batch_sizes):
    loops = _Loops(sizes, pair, batch)
    yield Measurement(f'{pair}, batch {batch}', loops.by_floor)


def plan_speed(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of both methods by the verifier alone."""
  for pair, batch in itertools.product(sizes.pairs, sizes.loop_batch_sizes):
    loops = _Loops(sizes, pair, batch)
    yield Measurement(f'{pair}, batch {batch}', loops.by_verifier)


def plan_curve(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of a curve by one lenience."""
  for pair in sizes.pairs:
    yield Measurement(str(pair), _Loops(sizes, pair, sizes.curve).curve)


def plan_compilation(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of compilation and memory."""
  for pair in sizes.pairs:
    loops = _Loops(sizes, pair, max(sizes.loop_batch_sizes))
    yield Measurement(str(pair), loops.compilation)


def plan_real(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of the pair with trained weights."""
  for batch in sizes.loop_batch_sizes:
    run = functools.partial(_translate, sizes, batch)
    yield Measurement(f'{sizes.real[0]}, batch {batch}', run)


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


@dataclasses.dataclass(frozen=True)
class _Loops:
  """The loops of a pair at a batch size, compiled when they are first used."""

  sizes: Sizes
  pair: Pair
  batch: int

  @property
  def rate(self) -> float:
    """The rate of measurements at one rate."""
    return self.sizes.rates[len(self.sizes.rates) // 2]

  def entrant(
    self, arm: str, rate: Any = 0.0
  ) -> tuple[harness.Entrant, dict[str, Any]]:
    """Returns an entrant that is compiled, and the facts of a run."""

    def make() -> tuple[harness.Entrant, Any]:
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

    return random_models.cached((self, arm, str(rate)), make)

  def figures(self, participants: Sequence[harness.Entrant]) -> dict[str, Any]:
    """Times entrants in turns; returns a row for each, without its tokens."""
    rows = harness.race(participants, self.sizes.repeats, 'turns', quiet=True)
    for row in rows:
      for name in _DROPPED:
        row.pop(name, None)
    return self.facts | {'rows': rows}

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
    point, _ = row_loops.entrant(_LENIENT, float(rates[0]))
    curve, _ = self.entrant(_LENIENT, rates)
    return self.figures([point, curve]) | {'leniences': self.batch}

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
      'weight_bytes': memory.num_bytes(weights),
    }


@functools.cache
def _models(names: tuple[str, str], dtype: str) -> tuple[Any, Any]:
  """Loads both models without a network."""
  os.environ['HF_HUB_OFFLINE'] = '1'
  verifier, drafter = names
  return load_model(verifier, dtype), drafters.load(drafter, dtype)


def _translate(sizes: Sizes, batch: int) -> dict[str, Any]:
  """Times the verifier alone and two methods, greedily, in turns."""
  dtype = 'float32' if jax.default_backend() == 'cpu' else sizes.dtype
  verifier, drafter = _models(sizes.real, dtype)
  prompts = [f'{_EXAMPLE}German: {x}\nEnglish:' for x in _GERMAN[:batch]]

  def entrant(name: str, options: dict[str, Any]) -> harness.Entrant:
    config = DecodingConfig(temperature=0.0, batch_size=batch, **options)
    sampler = Sampler(
      verifier, drafter if config.gamma else None, config=config
    )

    def run() -> dict[str, Any]:
      answers = sampler.sample(
        prompts, max_new_tokens=8 if sizes.tiny else 48, stop_strings=['\n']
      )
      counts = [answer.counts for answer in answers]
      examined = sum(x['examined'] for x in counts)
      return {
        'decode_s': sampler.usage.decode_s,
        'tokens': sum(len(answer.logprobs) for answer in answers),
        'acceptance': sum(x['accepted'] for x in counts) / examined
        if examined
        else None,
        'first': answers[0].tokens,
      }

    return harness.Entrant({'arm': name}, run)

  participants = [entrant(name, options) for name, options in _ARMS.items()]
  rows = harness.race(participants, sizes.repeats, 'turns', quiet=True)
  return {'batch': batch, 'dtype': dtype, 'rows': rows}
