"""Entries of a user's file, which --import registers, in the commands."""

import launching
import pandas as pd
import pytest
import small

from experiments import cli, records
from experiments.analysis import runs

_FILE = small.FIXTURES / 'own_entries.py'
_IMPORT = f'--import={_FILE}'
_CONFIG = """
from configs import common

def get_config():
  return common.sweep(
    verifier={verifier!r},
    drafter='own_drafter',
    own_window=2,
    tasks=('own_task',),
    num_examples=4,
    batch_size=4,
    clock=0,
  )

def sweep(add):
  add('verifier_only', ())
  add('own_method', (0.0, 0.5), gamma=2, verification='own_verification')
"""


@pytest.mark.slow
@pytest.mark.parametrize('launcher', ['local', 'ray'])
def test_a_sweep_uses_an_entry_of_each_kind(tmp_path, launcher):
  if launcher == 'ray':
    pytest.importorskip('ray', reason="pip install -e '.[ray]'")
  folder = tmp_path / 'model'
  folder.mkdir()
  (folder / 'own_model.txt').write_text(small.pair()[0])
  config, workdir = tmp_path / 'config.py', tmp_path / 'run'
  config.write_text(_CONFIG.format(verifier=str(folder)))
  flags = f'--config={config}', f'--workdir={workdir}'
  flags = *flags, f'--launcher={launcher}'
  done = launching.run('experiments.sweep', _IMPORT, *flags)
  assert done.returncode == 0, done.stderr
  summary = pd.read_csv(workdir / 'summary.csv')
  rows = summary[summary.method == 'own_method']
  assert rows.lenience.tolist() == [0.0, 0.5]
  assert {*rows.task} == {'own_task'}
  assert {*rows.verification} == {'own_verification'}
  for record in records.read_all(workdir):
    assert [*record.scores] == ['same_letters', 'exact_match']
  # The report does not import the file.
  flags = '--nofigures', f'--workdir={workdir}'
  done = launching.run('experiments.report', *flags)
  assert done.returncode == 0, done.stderr
  points = runs.gather([runs.read(workdir)]).table
  is_strict = points[points.method == 'own_method'].set_index('lenience').strict
  assert is_strict.to_dict() == {0.0: True, 0.5: False}


def test_options_of_a_drafter_are_flags():
  done = launching.run('experiments.sample', _IMPORT, '--help')
  text = ' '.join(done.stdout.split())
  assert '--own_window: Last tokens that another look-up compares' in text
  done = launching.run('experiments.sample', '--own_window=3', '--prompt=x')
  assert done.returncode == 2
  assert "Unknown command line flag 'own_window'" in done.stderr


def test_what_cannot_be_imported_is_refused(tmp_path):
  broken = tmp_path / 'broken_entries.py'
  broken.write_text('{}["absent"]')
  for name, said in (
    ('nowhere.py', 'there is no file nowhere.py'),
    ('no_such_module', "ModuleNotFoundError: No module named 'no_such"),
    (str(broken), 'broken_entries.py cannot be imported (KeyError: '),
  ):
    with pytest.raises(ValueError, match=r'^import: ') as caught:
      cli.import_module(name)
    assert said in str(caught.value)
