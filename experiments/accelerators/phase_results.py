"""The file of a phase: figures by measurement, errors, and what is missing."""

import datetime
import json
import pathlib
from typing import Any

import pydantic

from cascades import atomic
from cascades.untrusted import bounded
from cascades.untrusted.schema import Count, NotNegative, Schema, Texts
from experiments.accelerators.device_phases import PHASES

_ADVICE = 'delete it, and run the check again'


class Setting(Schema):
  """The device, versions and sizes that figures must share.

  Attributes:
    device: Kind of the device.
    platform: JAX's name of the platform, such as gpu.
    devices: Number of devices.
    versions: Versions of packages by name.
    tiny: True for a rehearsal.
    max_layers: As in `Sizes`.
  """

  device: str
  platform: str
  devices: Count
  versions: Texts
  tiny: bool
  max_layers: Count

  def differences(self, other_setting: 'Setting') -> list[str]:
    """Returns the names of the fields that differ."""
    fields, other_fields = self.model_dump(), other_setting.model_dump()
    return [name for name in fields if fields[name] != other_fields.get(name)]


class PhaseResult(Schema):
  """The content of a phase's file.

  Attributes:
    setting: Results of another setting are not continued.
    date: Day of the last measurement, ISO 8601.
    seconds: Seconds of all runs of the phase.
    figures: Figures by the name of the measurement.
    errors: A sentence by the name of each measurement that failed; '' is the
      phase itself.
    left_out: Names of the measurements that did not fit into the minutes.
    current: Name of the measurement in progress; '' if there is none.
  """

  setting: Setting
  date: str = ''
  seconds: NotNegative = 0.0
  figures: dict[str, dict[str, Any]] = pydantic.Field(default_factory=dict)
  errors: Texts = pydantic.Field(default_factory=dict)
  left_out: list[str] = pydantic.Field(default_factory=list)
  current: str = ''

  @property
  def is_complete(self) -> bool:
    """True if every measurement has its figures."""
    return not (self.errors or self.left_out or self.current)

  def changed(self, **fields: Any) -> 'PhaseResult':
    """Returns a copy with other values of some fields, dated today."""
    fields = {'date': datetime.date.today().isoformat()} | fields
    return self.model_copy(update=fields)


def path(folder: pathlib.Path, phase: str, partial: bool = False):
  """Returns the file of a phase, or of a phase that has not ended."""
  return folder / f'{phase}{".part" if partial else ""}.json'


def write(
  folder: pathlib.Path, phase: str, result: PhaseResult, partial: bool = False
) -> None:
  """Writes the file of a phase; the file of one that ended ends the other."""
  text = json.dumps(result.model_dump(), indent=1) + '\n'
  atomic.write_text(path(folder, phase, partial), text)
  if not partial:
    path(folder, phase, partial=True).unlink(missing_ok=True)


def read(
  folder: pathlib.Path, phase: str, partial: bool = False
) -> PhaseResult | None:
  """Reads the file of a phase; None if there is none."""
  file = path(folder, phase, partial)
  try:
    fields = bounded.read_fields(file, 'workdir', _ADVICE)
  except FileNotFoundError:
    return None
  return PhaseResult.check(fields, f'workdir: {file}', _ADVICE)


def read_latest(
  folder: pathlib.Path, phase: str, setting: Setting
) -> PhaseResult:
  """Reads what is measured of a phase; an empty result if nothing is.

  The partial file of a run that was killed has more figures than the phase's
  own file.
  """
  for partial in (True, False):
    result = read(folder, phase, partial)
    if result is not None and not setting.differences(result.setting):
      return result
  return PhaseResult(setting=setting)


def read_all(folder: pathlib.Path) -> dict[str, PhaseResult]:
  """Reads the phases of a folder, by name in order of worth."""
  results = {name: read(folder, name) for name in PHASES}
  present = {name: x for name, x in results.items() if x is not None}
  settings = [x.setting for x in present.values()]
  if any(settings[0].differences(setting) for setting in settings):
    raise ValueError(
      f'workdir: {folder} holds results of several devices or versions; give'
      ' each a separate folder.'
    )
  return present
