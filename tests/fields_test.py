"""Fields of a sweep's config: of another type or unknown, each is named."""

import math

import pytest
from absl import flags
from ml_collections import ConfigDict, config_flags

from configs import common
from experiments.sweeps import curve_plan, fields

# What no field has for its value.
_ODD = 10**5000, math.nan, b'x', 1j, object(), [[]], {1}, len
_LENIENCES = (0.1, math.nan), [0.1, '0.2'], (1e39,)
_USUAL = fields.defaults()
_NAMES = (
  *_USUAL,
  *('task.path', 'task.shots', 'ray.cpus', 'ray.address', 'file.stop_strings'),
)


def _refused(given, said):
  """Checks that fields are refused in a sentence, and by no other error."""
  with pytest.raises(ValueError, match=rf'^{said}') as error:
    fields.SweepConfig.convert(given)
  assert type(error.value) is ValueError
  message = str(error.value)
  assert message.endswith(('.', '?'))
  assert '\n' not in message
  assert len(message) < 300


@pytest.mark.parametrize('name', _NAMES)
def test_a_field_of_another_type_is_named(name):
  table, _, field = name.partition('.')
  for value in _ODD:
    given = _USUAL | {table: {field: value} if field else value}
    _refused(given, f'{name}[.:]')


@pytest.mark.parametrize(
  ('given', 'said'),
  [
    (dict(tasks=('numerals', 3)), 'tasks: '),
    *((dict(lenience=x), 'lenience: ') for x in _LENIENCES),
    *((dict(gamma=x), 'gamma: ') for x in ((2, -1), 'two', [2, True], ())),
    *((dict(mesh=x), 'mesh: ') for x in ((1, 1, 1), [1, 0])),
    (dict(drafer='ngram'), 'drafer: .* did you mean drafter'),
    (dict(task=dict(shot=3)), r'task\.shot: .* did you mean task\.shots'),
    (dict(ray=ConfigDict(dict(cpu=3))), r'ray\.cpu: .* did you mean ray\.cpus'),
    ({7: 3}, '7: .* did you mean '),
    ({'decision': {'risk': 3}}, r'decision\.risk: must be a number from 0.001'),
  ],
  ids=str,
)
def test_what_no_sweep_has_is_named(given, said):
  _refused(_USUAL | given, said)


def test_a_config_is_converted_once():
  typed = fields.SweepConfig.convert(_USUAL)
  assert fields.SweepConfig.convert(typed) is typed
  assert (typed.mesh, typed.decision.risk) == ((1, 1), 0.05)
  assert fields.SweepConfig.convert(common.sweep()).clock == 0
  for name in fields.REQUIRED:
    lacking = {x: value for x, value in _USUAL.items() if x != name}
    _refused(lacking, f'{name}: is missing')


@pytest.mark.parametrize(
  ('field', 'text', 'value'),
  [
    *(('dtype', 'int8', 'int8'), ('dtype', 'None', None), ('top_k', '40', 40)),
    *(('top_p', '0.9', 0.9), ('task.shots', '3', 3), ('gamma', '3', 3)),
    *(('gamma', '(2,4,6)', (2, 4, 6)), ('gamma', 'predicted', 'predicted')),
    *(('lenience', '0.3', 0.3), ('lenience', '(0.3, 0.5)', (0.3, 0.5))),
    *(('lenience', 'predicted', 'predicted'), ('drafter', 'true', 'true')),
    *(('tasks', 'numerals', ('numerals',)), ('chat', 'true', True)),
  ],
)
def test_the_command_line_sets_fields_without_a_value(field, text, value):
  usual = common.sweep()
  assert (type(usual.gamma), usual.to_dict()['gamma']) == (int, 4)
  values = flags.FlagValues()
  given = ['x', '--config=configs/your_data.py', f'--config.{field}', text]
  options = dict(flag_values=values, sys_argv=given)
  holder = config_flags.DEFINE_config_file('config', **options)
  values(given)
  config = holder.value
  fields.SweepConfig.convert(config)
  assert config[field] == value
  if field == 'gamma':
    curves = curve_plan.plan_curves(config, None, {'gamma': value})
    assert len(curves) == (3 if isinstance(value, tuple) else 1)
