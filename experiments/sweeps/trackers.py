"""Trackers: services that show a sweep while it runs.

The workdir holds the results. A tracker receives all of them again at each
start, so that a new tracker also shows points of earlier starts. A tracker that
fails is left out, and never ends a sweep. A tracker is added as a
`TrackerKind`, an entry point of the group `cascades.trackers`; the config field
`trackers` then accepts its name.
"""

import dataclasses
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from cascades import extras
from cascades.registries import Registry

if TYPE_CHECKING:
  import pandas as pd


class Tracker(Protocol):
  """Shows one sweep in a service."""

  def log_curve(
    self,
    task: str,
    curve: str,
    rows: Sequence[Mapping[str, float]],
    is_complete: bool,
  ) -> None:
    """Shows a curve; replaces an earlier version of it."""
    ...

  def log_summary(self, summary: 'pd.DataFrame', best: 'pd.DataFrame') -> None:
    """Shows all points of a finished sweep, and the best of each method."""
    ...

  def close(self) -> None:
    """Ends the connection, also if the sweep failed."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrackerKind:
  """A kind of tracker.

  Attributes:
    name: A value of the config field `trackers`.
    help: The service, in a few words.
    package: The module that must be installed.
    factory: 'module:name' of a callable that takes a folder for its files
      (shared by all trackers), the settings in `config.json`, and a function
      that prints a line, and returns a `Tracker`. It is called before a model
      is loaded, and raises ValueError if the user has to do something first.
  """

  name: str
  help: str
  package: str
  factory: str

  @property
  def start(self) -> Callable[..., Tracker]:
    """The callable that `factory` names; its module is imported here."""
    return pkgutil.resolve_name(self.factory)


TRACKERS: Registry[TrackerKind] = Registry('tracker', TrackerKind)
for _kind in (
  TrackerKind(
    name='tensorboard',
    help='TensorBoard, in event files of the workdir',
    package='tensorboard',
    factory='experiments.sweeps.tensorboard_tracker:TensorBoard',
  ),
  TrackerKind(
    name='wandb',
    help='Weights & Biases',
    package='wandb',
    factory='experiments.sweeps.wandb_tracker:WandB',
  ),
):
  TRACKERS.register(_kind.name, _kind, builtin=True)


def require_installed(names: Sequence[str]) -> None:
  """Refuses names that no tracker has, and trackers that are not installed."""
  for name in names:
    if name not in TRACKERS:
      raise ValueError(TRACKERS.unknown(name, 'trackers'))
    package = TRACKERS[name].package
    if importlib.util.find_spec(package) is None:
      if TRACKERS.is_builtin(name):
        raise ValueError(extras.missing('trackers', name, 'track'))
      raise ValueError(
        f'trackers: {name} needs the package {package}; install it.'
      )
