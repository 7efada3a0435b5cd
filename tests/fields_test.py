"""Fields of a sweep's config: of another type or unknown, each is named."""

import math

import ml_collections
import pytest
from absl import flags
from ml_collections import config_flags

from configs import common
from experiments import sweep
from experiments.sweeps import curve_plan, fields

# What no field has for its value.
_ODD = 10**5000, math.nan, b'x', 1j, object(), [[]], {1}, len
_USUAL = fields.defaults()
_NAMES = (
  *_USUAL,
  *('task.path', 'task.shots', 'ray.cpus', 'ray.address', 'file.stop_strings'),
)


def _refused(run, name):
  """That it is a sentence on a field, and no other error."""
  with pytest.raises(ValueError, match=rf'^{name}[.:]') as error:
    run()
  assert type(error.value) is ValueError
  said = str(error.value)
  assert said.endswith(('.', '?'))
  assert '\n' not in said
  assert len(said) < 300


def _given(name, value, wrap=dict):
  """The usual fields, with another value of one, or of one of a table."""
  table, _, field = name.partition('.')
  return _USUAL | {table: wrap({field: value}) if field else value}


@pytest.mark.parametrize('name', _NAMES)
def test_a_field_of_another_type_is_named(name, tmp_path):
  for value in _ODD:
    given = _given(name, value)
    _refused(lambda given=given: fields.check(given), name)
    _refused(lambda given=given: sweep.run(given, [], tmp_path / 'run'), name)
    given = _given(name, value, ml_collections.ConfigDict)
    _refused(lambda given=given: fields.check(given), name)
  # Nothing was written.
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ('name', 'values'),
  [
    ('tasks', ('numerals', 3)),
    ('lenience', (0.1, math.nan)),
    ('lenience', (0.1, '0.2')),
    ('lenience', (1e39,)),
    ('gamma', (2, -1)),
    ('gamma', (2, True)),
    ('mesh', (1, 1, 1)),
    ('mesh', (1, 0)),
  ],
  ids=str,
)
def test_a_value_of_a_list_is_named(name, values):
  _refused(lambda: fields.check({name: values}), name)
  _refused(lambda: fields.check({name: list(values)}), name)


@pytest.mark.parametrize(
  ('given', 'name', 'near'),
  [
    ({'drafer': 'ngram'}, 'drafer', 'drafter'),
    ({'gama': 3}, 'gama', 'gamma'),
    ({'task': {'shot': 3}}, 'task.shot', 'task.shots'),
    ({'ray': {'cpu': 3}}, 'ray.cpu', 'ray.cpus'),
    ({7: 3}, '7', ''),
  ],
  ids=str,
)
def test_a_field_that_no_sweep_has_is_named(given, name, near):
  with pytest.raises(ValueError, match=rf'^{name}: .* did you mean {near}'):
    fields.check(given)


def test_the_table_has_every_field_that_configs_share():
  for name in ('risk', 'margin'):
    with pytest.raises(
      ValueError, match=f'{name}: must be a number from 0.001'
    ):
      fields.check({'decision': {name: 3}})
  fields.check(_USUAL, complete=True)
  for name in fields.REQUIRED:
    lacking = {x: value for x, value in _USUAL.items() if x != name}
    _refused(lambda given=lacking: fields.check(given, complete=True), name)
  fields.check(common.sweep(*_USUAL), complete=True)


@pytest.mark.parametrize(
  ('field', 'text', 'value'),
  [
    ('dtype', 'int8', 'int8'),
    ('dtype', 'None', None),
    ('top_k', '40', 40),
    ('top_p', '0.9', 0.9),
    ('task.shots', '3', 3),
    ('gamma', '3', 3),
    ('gamma', '(2,4,6)', (2, 4, 6)),
  ],
)
def test_the_command_line_sets_fields_without_a_value(field, text, value):
  usual = common.sweep()
  assert (type(usual.gamma), usual.to_dict()['gamma']) == (int, 4)
  values = flags.FlagValues()
  given = ['x', '--config=configs/your_data.py', f'--config.{field}', text]
  holder = config_flags.DEFINE_config_file(
    'config', flag_values=values, sys_argv=given
  )
  values(given)
  config = holder.value
  fields.check(config, complete=True)
  assert config[field] == value
  if field == 'gamma':
    curves = curve_plan.plan_curves(config, None, {'gamma': value})
    assert len(curves) == (3 if isinstance(value, tuple) else 1)
