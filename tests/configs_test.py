"""Every config loads, documents itself, and asks for what exists."""

import pathlib

import ml_collections
import pytest

from cascades import methods
from cascades.tasks import GENERATED, TASKS
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


def _module(name):
  return cli.load_config_module(next(p for p in _CONFIGS if p.stem == name))


def _quickstart():
  return _module('quickstart')


def _by_name(curves):
  """Curves by name; no two may share one."""
  found = {curve.name: curve for curve in curves}
  assert len(found) == len(curves)
  return found


@pytest.mark.parametrize('name', ['quickstart', 'baselines'])
def test_a_sweep_asks_for_what_can_be_run(name):
  module = _module(name)
  config = module.get_config()
  chosen = sweep.curves(config, module, {})
  sweep.check(chosen, config.temperature)
  assert set(config.tasks) <= set(TASKS)
  for curve in chosen:
    assert list(curve.leniences) == sorted(curve.leniences)


def test_quickstart_runs_its_methods_from_strict_to_drafter_only():
  module = _quickstart()
  config = module.get_config()
  chosen = sweep.curves(config, module, {})
  assert [curve.method for curve in chosen] == (
    'verifier_only drafter_only speed chow diff opt token_v1 token_v2 token_v3'
  ).split()
  assert set(config.tasks) == set(GENERATED)
  for curve in chosen:
    method = methods.METHODS[curve.method]
    assert (curve.verification, curve.gate, curve.bonus) == (
      'token',
      'raw',
      'target',
    )
    if curve.method in ('verifier_only', 'drafter_only'):
      assert (curve.leniences, curve.gamma) == ((), 0)
      continue
    assert curve.gamma == config.gamma
    assert len(set(curve.leniences)) >= 7
    assert (curve.leniences[0], curve.leniences[-1]) == (
      method.strict,
      method.drafter_only,
    )


def test_baselines_compare_all_at_three_gammas():
  module = _module('baselines')
  found = _by_name(sweep.curves(module.get_config(), module, {}))
  for name in (
    *('token_v3', 'chow', 'diff', 'speed', 'token_v3 block', 'speed block'),
    *('always_accept bonus verifier', 'min_p', 'top_p', 'top_k', 'eta'),
  ):
    assert {f'{name} gamma {gamma}' for gamma in (2, 4, 8)} <= set(found)
  assert {
    'verifier_only',
    'drafter_only',
    'chow sequential gamma 4',
    'diff sequential gamma 4',
    'sequence_mean',
    'sequence_least',
  } <= set(found)


def test_fields_given_on_the_command_line_win():
  module = _quickstart()
  config = module.get_config()
  config.method, config.lenience = 'cascade_chow', (0.25,)
  chosen = sweep.curves(config, module, {'method': 'chow', 'lenience': ()})
  assert chosen == [sweep.Curve('chow', (0.25,), 4)]
  found = _by_name(sweep.curves(config, module, {'lenience': ()}))
  assert found['token_v3 gamma 4'].leniences == (0.25,)
  assert found['verifier_only'].leniences == ()


def test_gamma_and_options_given_on_the_command_line_win():
  module = _module('baselines')
  config = module.get_config()
  config.gamma = 3
  found = _by_name(sweep.curves(config, module, {'gamma': 3}))
  assert {curve.gamma for curve in found.values()} == {0, 3}
  # Curves that are equal now are one, with the leniences of all of them.
  config.verification = 'block'
  overrides = {'gamma': 3, 'verification': 'block'}
  found = _by_name(sweep.curves(config, module, overrides))
  assert 'speed gamma 3' not in found
  given = (0.0, 0.9, 0.99, 0.9999)
  assert found['speed block gamma 3'].leniences == given
  assert found['sequence_mean'].verification == 'token'
  sweep.check(list(found.values()), 1.0)


def test_a_method_that_the_sweep_has_not_takes_the_configs_fields():
  module = _quickstart()
  config = module.get_config()
  config.method, config.verification, config.gate = 'bild', 'block', 'processed'
  given = dict.fromkeys(('method', 'verification', 'gate'))
  assert sweep.curves(config, module, given) == [
    sweep.Curve('bild', (0.3,), 4, 'block', 'processed')
  ]
  config.method = 'sequence_least'
  assert sweep.curves(config, module, given) == [
    sweep.Curve('sequence_least', (0.3,))
  ]
  config.method = 'verifier_only'
  assert sweep.curves(config, None, {}) == [sweep.Curve('verifier_only', ())]


class _Module:
  """A config's module with a sweep of its own."""

  def __init__(self, *curves):
    self._curves = curves

  def sweep(self, add):
    for curve in self._curves:
      add(**curve)


def test_curves_take_what_they_are_not_given_from_the_config():
  # Options are missing in this config: they are the standard ones.
  config = {'gamma': 4, 'method': 'chow', 'lenience': (0.3,)}
  module = _Module(
    {'method': 'cascade_tokenV3', 'lenience': [0.5], 'gamma': (2, 8)},
    {'method': 'diff', 'lenience': [0.5], 'gate': 'processed'},
    {'method': 'drafter_only', 'lenience': [], 'verification': 'block'},
    {'method': 'always_accept', 'lenience': [0.5], 'bonus': 'verifier'},
  )
  assert sweep.curves(config, module, {}) == [
    sweep.Curve('token_v3', (0.5,), 2),
    sweep.Curve('token_v3', (0.5,), 8),
    sweep.Curve('diff', (0.5,), 4, gate='processed'),
    sweep.Curve('drafter_only', ()),
    sweep.Curve('always_accept', (), 4, bonus='verifier'),
  ]
  # The config's own options are those of curves that do not say.
  config |= {'verification': 'block', 'bonus': 'verifier', 'gamma': (1, 2)}
  module = _Module(
    {'method': 'diff', 'lenience': [0.5], 'verification': 'sequential'}
  )
  assert sweep.curves(config, module, {}) == [
    sweep.Curve('diff', (0.5,), gamma, 'sequential', bonus='verifier')
    for gamma in (1, 2)
  ]


def test_curves_that_are_there_twice_are_refused_unless_overridden():
  config = {'gamma': 4, 'seed': 0}
  module = _Module(
    {'method': 'diff', 'lenience': [0.1]},
    {'method': 'cascade_diff', 'lenience': [0.5]},
  )
  chosen = sweep.curves(config, module, {'seed': 1})
  with pytest.raises(ValueError, match='diff gamma 4 is added twice'):
    sweep.check(chosen, 1.0)
  chosen = sweep.curves(config, module, {'gamma': 4})
  assert chosen == [sweep.Curve('diff', (0.1, 0.5), 4)]
