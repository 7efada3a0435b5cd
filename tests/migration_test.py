"""Removed names are refused with the names that replace them."""

import re

import launching
import pytest
import small

import cascades
from cascades import migration
from experiments.sweeps import fields


@pytest.mark.parametrize('name', migration.RENAMED_ATTRIBUTES)
def test_a_renamed_attribute_of_the_package_is_named(name):
  new = migration.RENAMED_ATTRIBUTES[name]
  with pytest.raises(AttributeError, match=f'write cascades.{new}'):
    getattr(cascades, name)
  assert getattr(cascades, new)


@pytest.mark.parametrize(
  ('options', 'sentence'),
  [
    (dict(gamma=2), r'config=DecodingConfig\(gamma=...\)'),
    (dict(stop_below=0.5), r'parse_spec\(NAME, stop_below=...\)'),
    (dict(others_say=True), r'parse_spec\(NAME, fill_unselected_logits=...\)'),
    (dict(gama=2), 'gama: is not an argument of Sampler'),
  ],
  ids=str,
)
def test_an_option_as_an_argument_of_a_sampler_is_refused(options, sentence):
  with pytest.raises(TypeError, match=sentence):
    cascades.Sampler(*small.tables(), **options)


@pytest.mark.parametrize('function', ['sample', 'stream', 'sample_curve'])
@pytest.mark.parametrize(
  ('options', 'sentence'),
  [
    (dict(temperature=1), r'config=DecodingConfig\(temperature=...\)'),
    (dict(chat=True), 'write apply_chat_template'),
    (dict(max_new_token=2), r'max_new_token: is not an argument of Sampler\.'),
  ],
  ids=str,
)
def test_another_argument_of_a_request_is_refused(function, options, sentence):
  sampler = cascades.Sampler(*small.tables())
  prompts = 'x' if function == 'stream' else ['x']
  more = [[0.5]] if function == 'sample_curve' else []
  with pytest.raises(TypeError, match=sentence):
    list(getattr(sampler, function)(prompts, *more, **options))


def test_a_renamed_field_and_flag_are_refused():
  with pytest.raises(ValueError, match=r'write fill_unselected_logits\.$'):
    fields.check(dict(others_say=True))
  done = launching.run('experiments.sample', '--others_say', '--prompt=x')
  assert done.returncode == 2
  assert re.search(r'write fill_unselected_logits\.\n$', done.stderr)


@pytest.mark.parametrize(
  ('config', 'field'),
  [('train_drafter', 'turn'), ('train_tiny', 'models.tiny_drafter.author')],
)
def test_a_renamed_field_of_a_training_is_refused(tmp_path, config, field):
  *_, name = field.split('.')
  new = migration.RENAMED_TRAINING_FIELDS[name]
  sentence = f'error: {name}: was renamed in configs of trainings; write {new}.'
  file = tmp_path / 'config.py'
  file.write_text(
    f'from configs import {config}\n'
    'def get_config():\n'
    f'  c = {config}.get_config()\n'
    '  with c.unlocked():\n'
    f"    c.{field} = 'plain'\n"
    '  return c\n'
  )
  for flags in (
    [f'--config={file}', f'--workdir={tmp_path}/w'],
    [f'--config.{field}=x', f'--config=configs/{config}.py'],  # In any order.
  ):
    done = launching.run('experiments.train', *flags)
    assert (done.returncode, done.stdout) == (2, '')
    assert done.stderr == f'{sentence}\n'
  assert [*tmp_path.iterdir()] == [file]
