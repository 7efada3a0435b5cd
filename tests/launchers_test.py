"""Launchers and trackers in their registries: what each of them has."""

import importlib.util
import inspect
import pkgutil

import pytest
import small

from cascades import registries
from experiments import sweep
from experiments.sweeps import launchers, trackers


def _check_protocol(kind, protocol):
  """Looks whether what a kind makes has the methods of a protocol."""
  made = pkgutil.resolve_name(kind.factory)
  for name, method in inspect.getmembers(protocol, inspect.isfunction):
    if not name.startswith('_'):
      parameters = [*inspect.signature(method).parameters]
      own = inspect.signature(getattr(made, name)).parameters
      assert [*own][: len(parameters)] == parameters, name
      # The caller gives no more.
      rest = [*own.values()][len(parameters) :]
      assert all(x.default is not x.empty for x in rest), name


@pytest.mark.parametrize('name', launchers.LAUNCHERS)
def test_every_launcher_is_in_the_help_and_decodes(name):
  kind = launchers.LAUNCHERS[name]
  assert f'{name} ({kind.help})' in launchers.flag_help()
  assert f'{name} ({kind.help})' in sweep._LAUNCHER._flagvalues['launcher'].help
  _check_protocol(kind, launchers.Launcher)


@pytest.mark.parametrize('name', trackers.TRACKERS)
def test_every_tracker_shows_curves(name):
  kind = trackers.TRACKERS[name]
  pytest.importorskip(kind.package)
  trackers.require_installed([name])
  _check_protocol(kind, trackers.Tracker)


def test_names_that_are_not_known_have_the_nearest_beside_them(tmp_path):
  with pytest.raises(ValueError, match=r"^trackers: 'wandbb'.*'wandb'\?"):
    trackers.require_installed(['tensorboard', 'wandbb'])
  with pytest.raises(ValueError, match=r"^launcher: 'rai' .*mean 'ray'\?"):
    sweep.run(small.config(), [], tmp_path / 'run', launcher='rai')
  assert not (tmp_path / 'run').exists()


def test_what_is_not_installed_has_the_command(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ValueError, match=r'^trackers: wandb .*\[track\]'):
    trackers.require_installed(['wandb'])


_OTHER = """
from experiments.sweeps import launchers, trackers
LAUNCHER = launchers.LauncherKind(
  name='far', help='a machine far away', factory='other_far:Far')
TRACKER = trackers.TrackerKind(
  name='noted', help='a note', package='json', factory='other_far:Noted')
"""


def test_a_package_adds_a_launcher_and_a_tracker(monkeypatch, tmp_path):
  (tmp_path / 'other_kinds.py').write_text(_OTHER)
  (tmp_path / 'other_far.py').write_text(
    'def Far(*given): return given\ndef Noted(*given): return given\n'
  )
  info = tmp_path / 'other_kinds-1.0.dist-info'
  info.mkdir()
  (info / 'METADATA').write_text('Name: other-kinds\nVersion: 1.0\n')
  (info / 'entry_points.txt').write_text(
    '[cascades.launchers]\nfar = other_kinds:LAUNCHER\n'
    '[cascades.trackers]\nnoted = other_kinds:TRACKER\n'
  )
  monkeypatch.syspath_prepend(tmp_path)
  found = registries.Registry('launcher', launchers.LauncherKind)
  monkeypatch.setattr(launchers, 'LAUNCHERS', found)
  assert launchers.flag_help() == (
    'Where points are decoded: far (a machine far away).'
  )
  assert found['far'].launch({}, [], {}, print) == ({}, [], {}, print)
  found = registries.Registry('tracker', trackers.TrackerKind)
  monkeypatch.setattr(trackers, 'TRACKERS', found)
  trackers.require_installed(['noted'])
  assert found['noted'].start(tmp_path, {}, print) == (tmp_path, {}, print)
