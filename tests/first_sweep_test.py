"""The config of the first sweep: its fixed settings and its curves."""

import pytest
import small

from experiments import cli
from experiments.analysis import reference_points
from experiments.sweeps import curve_plan


def _load():
  module = cli.load_config_module(small.ROOT / 'configs/quickstart.py')
  return module, module.get_config()


def test_the_quickstart_fixes_its_settings():
  module, config = _load()
  assert config.decision.to_dict() == dict(
    method='token_v3', lenience=0.95, gamma=12, strict_gamma=4, margin=0.03
  ) | dict(risk=0.05, delta=0.1)
  assert config.split == 'test'
  curves = curve_plan.plan_curves(config, module, {})
  all_examples = {
    (x.name, x.leniences) for x in curves if x.num_examples is None
  }
  assert all_examples == {
    ('verifier_only', ()),
    ('speed gamma 4', (0.0,)),
    ('token_v3 gamma 12', (0.95,)),
  }
  assert config.num_examples >= 400
  # The ends of curves are laws that other points have.
  drafting = {
    x.method: x.leniences
    for x in curves
    if x.num_examples and x.method not in reference_points.BASELINES
  }
  assert len(drafting) == 7
  for method, leniences in drafting.items():
    assert reference_points.strict_lenience(method) not in leniences


@pytest.mark.parametrize(
  ('given', 'names'),
  [
    # A number of examples is that of every curve.
    ({'num_examples': 20}, ['speed gamma 4', 'token_v2 gamma 4']),
    # The point that both curves have is left to the one with all examples.
    ({'gamma': 12}, ['token_v3 gamma 12', 'token_v3 gamma 12 on 200']),
  ],
)
def test_fields_of_the_command_line_merge_curves(given, names):
  module, config = _load()
  config.update(given)
  curves = {
    x.name: x for x in curve_plan.plan_curves(config, module, {**given})
  }
  curve_plan.check_curves([*curves.values()], config)
  assert curves.keys() >= {*names}
  points = [x for c in curves.values() for x in curve_plan._points(c)]
  assert len({*points}) == len(points)
  if 'gamma' in given:
    assert curves['token_v3 gamma 12'].leniences == (0.95,)
    assert 0.95 not in curves['token_v3 gamma 12 on 200'].leniences
  else:
    assert curves['speed gamma 4'].leniences == (0.0, 0.6, 0.8, 0.9, 0.95)
