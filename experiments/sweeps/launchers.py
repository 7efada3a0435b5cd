"""Launchers: which processes decode the points of a sweep.

The local launcher decodes in this process; others hand points to workers. A
launcher is added as a `LauncherKind`, an entry point of the group
`cascades.launchers`; `--launcher` then accepts its name.
"""

import dataclasses
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cascades.registries import Registry
from experiments import records

if TYPE_CHECKING:
  # These import JAX or pandas, and --help needs neither.
  from cascades.models.conversations import Prompt
  from cascades.sampler import batching
  from experiments.records import unit_costs
  from experiments.sweeps import curve_plan, plan, preflight, prompt_lengths


class Job(NamedTuple):
  """A point, and the `tasks.Example`s that it covers."""

  point: 'plan.Point'
  examples: Sequence


class Entrant(NamedTuple):
  """A curve at one of its leniences; nan for a method without lenience."""

  curve: 'curve_plan.Curve'
  lenience: float


class ViewRequest(NamedTuple):
  """An answer to evaluate token by token.

  Attributes:
    point: Name of the point that holds the answer.
    prompt: The prompt that was answered.
    trace: The tokens of the answer.
  """

  point: str
  prompt: 'Prompt'
  trace: records.Trace


class Launcher(Protocol):
  """Decodes the points of a sweep.

  Attributes:
    usage: Time and rows that decoding took so far, over all workers.
  """

  usage: 'batching.DecodeStats'

  def facts(self) -> dict[str, Any]:
    """Returns all that can change a result and that no config holds.

    Hashes of the weights, and the code, versions and device of the workers,
    which must be equal on all workers.
    """
    ...

  def costs(self) -> 'unit_costs.CostRange':
    """Measures the seconds of one call of each model."""
    ...

  def preview(
    self, examples: Mapping[str, Sequence], measured: 'unit_costs.Costs'
  ) -> Iterable['preflight.Preview']:
    """Yields the facts of a sweep before it starts, as they are measured."""
    ...

  def fit_prompts(
    self, examples: Mapping[str, Sequence], too_long: str
  ) -> 'prompt_lengths.Fitted':
    """Drops or truncates examples that the cache cannot hold."""
    ...

  def decode(
    self,
    jobs: Sequence[Job],
    on_answer: Callable[[], None],
    is_stopping: Callable[[], bool],
  ) -> Iterator[tuple['plan.Point', list[records.Outcome]]]:
    """Yields each point with its outcomes when it is decoded, in any order."""
    ...

  def views(
    self,
    curve: 'curve_plan.Curve',
    lenience: float,
    requests: Sequence[ViewRequest],
  ) -> list[records.View]:
    """Computes a view of each requested answer of a curve at one lenience."""
    ...

  def race(
    self, entrants: Sequence[Entrant], examples: Mapping[str, Sequence]
  ) -> list[records.Record]:
    """Times entrants against each other on the examples of each task."""
    ...

  def close(self) -> None:
    """Releases the workers."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class LauncherKind:
  """A kind of launcher.

  Attributes:
    name: The value of `--launcher`.
    help: Where points are decoded, in a few words.
    factory: 'module:name' of a callable that takes the config of a sweep, its
      curves, its tasks by name, and a function that prints a line, and returns
      a `Launcher`, with the models loaded. It raises ValueError if a model
      cannot be loaded, or the workers cannot be reached.
    is_local: True if points are decoded on the devices of this process.
  """

  name: str
  help: str
  factory: str
  is_local: bool = False

  @property
  def launch(self) -> Callable[..., Launcher]:
    """The callable that `factory` names; its module is imported here."""
    return pkgutil.resolve_name(self.factory)


LAUNCHERS: Registry[LauncherKind] = Registry('launcher', LauncherKind)
for _kind in (
  LauncherKind(
    name='local',
    help='this process',
    factory='experiments.sweeps.worker:Worker',
    is_local=True,
  ),
  LauncherKind(
    name='ray',
    help='the Ray cluster of the field ray, by default one on this machine',
    factory='experiments.sweeps.ray_cluster:RayCluster',
  ),
):
  LAUNCHERS.register(_kind.name, _kind, builtin=True)


def flag_help() -> str:
  """Returns the help of `--launcher`, with a few words on each launcher."""
  available = LAUNCHERS.available().values()
  texts = '; '.join(f'{kind.name} ({kind.help})' for kind in available)
  return f'Where points are decoded: {texts}.'
