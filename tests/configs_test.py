"""Every config loads, documents itself, and asks for what exists."""

import pathlib

import ml_collections
import pytest

from cascades import methods
from cascades.tasks import TASKS
from experiments import cli, sweep

_CONFIGS = sorted(
  (pathlib.Path(__file__).parent.parent / 'configs').glob('*.py')
)


@pytest.mark.parametrize('path', _CONFIGS, ids=lambda p: p.stem)
def test_a_config_is_documented(path):
  module = cli.load_config_module(path)
  assert isinstance(module.get_config(), ml_collections.ConfigDict)
  assert f'--config=configs/{path.name}' in module.__doc__
  assert 'Shows:' in module.__doc__


def _quickstart():
  path = next(p for p in _CONFIGS if p.stem == 'quickstart')
  return cli.load_config_module(path)


def test_quickstart_runs_every_method_from_strict_to_drafter_only():
  module = _quickstart()
  config = module.get_config()
  curves = dict(sweep.curves(config, module, {}))
  assert set(curves) == set(methods.METHODS)
  assert set(config.tasks) == set(TASKS)
  for name, leniences in curves.items():
    method = methods.METHODS[name]
    if name in ('verifier_only', 'drafter_only'):
      assert leniences == ()
      continue
    assert len(set(leniences)) >= 7
    assert list(leniences) == sorted(leniences)
    assert (leniences[0], leniences[-1]) == (
      method.strict,
      method.drafter_only,
    )


def test_fields_given_on_the_command_line_win():
  module = _quickstart()
  config = module.get_config()
  config.method, config.lenience = 'cascade_chow', (0.25,)
  chosen = sweep.curves(config, module, {'method': 'chow', 'lenience': ()})
  assert chosen == [('chow', (0.25,))]
  chosen = sweep.curves(config, module, {'lenience': ()})
  assert dict(chosen)['token_v3'] == (0.25,)
  assert dict(chosen)['verifier_only'] == ()
