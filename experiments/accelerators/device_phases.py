"""The phases of the check in order of worth, and the sizes they run at."""

import dataclasses
import math
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple


class Measurement(NamedTuple):
  """A measurement by its name in the phase; returns what JSON can hold."""

  name: str
  run: Callable[[], dict[str, Any]]


class Pair(NamedTuple):
  """A verifier and a drafter, by the names of their shapes."""

  verifier: str
  drafter: str

  def __str__(self):
    return f'{self.drafter} drafts for {self.verifier}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
  """Sizes of all measurements.

  Attributes:
    shapes: Names of shapes, see `random_models.shape`; drafters first.
    batch_sizes: Rows of the passes that are timed.
    widths: Tokens that a pass reads, those of most worth first.
    context: Cache slots of the passes.
    rates: Forced acceptance rates.
    curve: Leniences of a curve.
    prompts: Prompts whose greedy answers are compared.
    samples: Sequences that are drawn from each law.
    laws: Verifications whose laws are compared; 0 for all.
    copy_size: Numbers of the array that is copied; 4 bytes each.
    real: Names of the verifier and of the drafter with trained weights.
  """

  tiny: bool = False
  shapes: tuple[str, ...] = ('270M', '1B', '4B', '9B')
  pairs: tuple[Pair, ...] = (Pair('4B', '270M'), Pair('9B', '1B'))
  batch_sizes: tuple[int, ...] = (1, 8, 64)
  # A block of gamma 4, 16, 8, 2 and 1 has one token more; then all others.
  widths: tuple[int, ...] = (1, 5, 17, 9, 3, 2, 4, *range(6, 9), *range(10, 17))
  context: int = 136
  loop_batch_sizes: tuple[int, ...] = (1, 8)
  gamma: int = 4
  rates: tuple[float, ...] = (0.6, 0.8, 0.9)
  curve: int = 11
  new_tokens: int = 128
  prompts: int = 20
  samples: int = 20_000
  laws: int = 0
  copy_size: int = 2**28
  repeats: int = 5
  dtype: str = 'bfloat16'
  real: tuple[str, str] = ('gemma3-270m', 'gemma3-270m-multi30k-de-en')


# Every phase in two minutes on two cores.
TINY = Sizes(
  tiny=True,
  shapes=('tiny 1',),
  pairs=(Pair('tiny 2', 'tiny 1'),),
  batch_sizes=(1, 2),
  widths=(1, 3),
  context=12,
  loop_batch_sizes=(2,),
  gamma=2,
  new_tokens=12,
  prompts=4,
  samples=2_000,
  laws=3,
  copy_size=2**20,
  repeats=2,
  real=('tiny-verifier', 'tiny-drafter'),
)


class Phase(NamedTuple):
  """A phase of the check.

  Attributes:
    function: 'module:function' of this package; called with `Sizes`, it yields
      the measurements, those of most worth first.
    share: Share of the minutes, compared with those of the other phases.
    drops_models: True if models of earlier phases leave the memory before it.
  """

  function: str
  share: float
  drops_models: bool = False

  def plan(self, sizes: Sizes) -> Iterator[Measurement]:
    """Yields the measurements of the phase."""
    return pkgutil.resolve_name(f'{__package__}.{self.function}')(sizes)


PHASES: Mapping[str, Phase] = {
  'device': Phase('device_facts:plan', 2),
  'correctness': Phase('device_correctness:plan', 26),
  'unit_costs': Phase('forward_costs:plan', 28),
  'floor': Phase('loop_speeds:plan_floor', 16, drops_models=True),
  'speed': Phase('loop_speeds:plan_speed', 12),
  'curve': Phase('loop_speeds:plan_curve', 5),
  'compilation': Phase('loop_speeds:plan_compilation', 4),
  'real_pair': Phase('loop_speeds:plan_real', 7),
}


def check_names(names: list[str]) -> list[str]:
  """Returns phases in order of worth."""
  for name in names:
    if name not in PHASES:
      raise ValueError(
        f'phases: {name!r} is not a phase; choose from {", ".join(PHASES)}.'
      )
  return [name for name in PHASES if not names or name in names]


def limit(phase: str, later: list[str], seconds: float) -> float:
  """Returns the seconds of a phase, its share of those that remain."""
  shares = [PHASES[name].share for name in (phase, *later)]
  return max(0.0, seconds) * shares[0] / math.fsum(shares)
