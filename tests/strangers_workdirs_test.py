"""Tests of workdirs that come from strangers, and of URLs with a password.

A workdir's records may be damaged or made up, its texts hold control
characters, and its folders link elsewhere.
"""

import contextlib
import json
import pathlib
import shutil
import sys
import types

import pytest
import report_test
import small
import strangers
from absl import flags
from absl.testing import flagsaver

from experiments import records, sweep, tasks
from experiments.reports import Choice, write_report
from experiments.sweeps import remote, workdirs

pytestmark = pytest.mark.slow


def report(workdir, figures=False) -> pathlib.Path:
  return write_report(workdir, Choice(resamples=5), figures=figures)


# Values of a record that no sweep writes.
IMPOSSIBLE = {
  'emitted': ('3', None, -1, 10**9, 1.5),
  'verifier_calls': ('2', -1),
  'examined': (-5, 'x'),
  'accepted': (10**9,),
  'gamma': (None,),
  'id': (5, None, {'a': 1}),
  'task': (5, []),
  'method': (5, None),
  'verification': (5,),
  'drafts': (None,),
  'quality': (10**400,),
  'text': (5,),
  'failure': ({},),
  'scores': ([1],),
  'ended': ('no',),
}


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  path = strangers.make_workdir(tmp_path_factory.mktemp('run') / 'run')
  # As it is, it has a page.
  assert report(path).exists()
  return path


@pytest.mark.parametrize(('field', 'value'), strangers.cases(IMPOSSIBLE))
def test_an_impossible_record_is_refused_by_its_line(
  workdir, tmp_path, field, value
):
  copy = shutil.copytree(workdir, tmp_path / 'run')
  path = copy / 'records/all.jsonl'
  *others, last = path.read_text().splitlines()
  changed = json.dumps(json.loads(last) | {field: value})
  path.write_text('\n'.join((*others, changed)) + '\n')
  with pytest.raises(ValueError, match='damaged record') as error:
    report(copy)
  assert f'{path}:{len(others) + 1}: ' in str(error.value)


FIELDS = json.loads(
  records.dumps(report_test.make_record('sums', 'speed', 0.0, 0))
)
# Lines of a file of records, by what is wrong with each.
DAMAGED = {
  'a lenience of 400 digits': json.dumps(FIELDS | {'lenience': 10**400}),
  'lists in lists': '[' * 100_000 + ']' * 100_000,
  'numbers in the place of texts': json.dumps(dict.fromkeys(FIELDS, 1)),
}


@pytest.mark.parametrize('case', DAMAGED)
def test_a_sweep_makes_a_point_with_a_damaged_record_again(tmp_path, case):
  path, stale = (tmp_path / x / 'a.jsonl' for x in ('records', 'stale/records'))
  path.parent.mkdir()
  path.write_text(DAMAGED[case] + '\n')
  trace = records.Trace(
    id='1', tokens=[], pieces=[], sources=[], deferred=None, logprobs=[]
  )
  records.write(tmp_path / 'traces/a.jsonl.gz', [trace])
  point = types.SimpleNamespace(
    name='a', first=0, last=1, curve=types.SimpleNamespace(leniences=(1.0,))
  )
  assert workdirs.Workdir(tmp_path).made(point) is None
  assert not path.exists()
  assert stale.exists()


@pytest.mark.parametrize(
  ('method', 'prompt'),
  [('speed', 'half of a surrogate pair: \ud800'), ('an escape: \x1b', 'a b')],
  ids=repr,
)
def test_a_page_replaces_characters_that_it_cannot_show(
  tmp_path, method, prompt
):
  workdir = strangers.make_workdir(tmp_path / 'run', method)
  examples = [
    tasks.Example(id=str(i), prompt=prompt, reference='r') for i in range(4)
  ]
  records.write(workdir / 'examples/sums.jsonl', examples)
  page = report(workdir).read_text(encoding='utf-8')
  assert '\N{REPLACEMENT CHARACTER}' in page
  assert '\x1b' not in page


# --- Symbolic links ---

# What meets a link may refuse it.
refusing = contextlib.suppress(ValueError, OSError)


def test_a_report_writes_nothing_that_its_figures_point_at(tmp_path):
  outside = tmp_path / 'mine.txt'
  outside.write_text('precious')
  workdir = strangers.make_workdir(tmp_path / 'run')
  report(workdir, figures=True)
  figures = list((workdir / 'report/figures').iterdir())
  assert {path.suffix for path in figures} == {'.png', '.svg'}
  for path in figures:
    path.unlink()
    path.symlink_to(outside)
  with refusing:
    report(workdir, figures=True)
  assert outside.read_bytes() == b'precious'


@pytest.mark.parametrize(
  ('link', 'name'),
  [
    ('records', 'notes.jsonl'),
    ('records', '.download.part'),
    ('stale/records', 'notes.jsonl'),
  ],
)
def test_a_sweep_touches_nothing_that_its_folders_point_at(
  tmp_path, link, name
):
  outside, workdir = tmp_path / 'docs', tmp_path / 'run'
  for path in (outside, workdir / 'stale'):
    path.mkdir(parents=True)
  (outside / name).write_text('precious')
  (workdir / link).symlink_to(outside)
  if link != 'records':
    (workdir / 'records').mkdir()
    (workdir / 'records' / name).write_text('new')
  with refusing:
    workdirs.Workdir(workdir).sort_out([])
  assert (outside / name).exists()
  assert (outside / name).read_text() == 'precious'


# --- URLs ---

PASSWORD = 'hunter2secret'


def url(scheme) -> str:
  return f'{scheme}://user:{PASSWORD}@127.0.0.1:9/run'


def an_error(patch, capsys) -> str:
  # Nothing listens at this port.
  with pytest.raises(ValueError, match=r'^workdir: ') as error:
    remote.Mirror(url('ftp'))
  return str(error.value)


def the_provenance(patch, capsys) -> str:
  command = ['python', '-m', 'experiments.sweep', f'--workdir={url("ftp")}']
  patch.setattr(sys, 'orig_argv', command)
  return json.dumps(workdirs.provenance({}))


def the_last_line(patch, capsys) -> str:
  patch.setattr(sweep, 'run', lambda *args, **options: None)
  config = small.ROOT / 'configs/quickstart.py'
  with flagsaver.flagsaver():
    flags.FLAGS(['', f'--config={config}', f'--workdir={url("memory")}'])
    sweep.main()
  return capsys.readouterr().out


@pytest.mark.parametrize('of', [an_error, the_provenance, the_last_line])
def test_no_password_of_a_url_is_shown(tmp_path, monkeypatch, capsys, of):
  # The copy of the workdir on this machine.
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  shown = of(monkeypatch, capsys)
  assert PASSWORD not in shown
  assert '://user:***@127.0.0.1' in shown


# By file, fields that no sweep writes there.
OTHER_SETTINGS = {
  'config.json': (
    *({'task': 5}, {'data': [1]}, {'data': {'sums': 3}}, {'versions': 'x'}),
    *({'batch_size': -1}, {'name': {}}, {'verifier': 5}, {'block_by_block': 2}),
  ),
  'provenance.json': (
    {'starts': 3},
    {'starts': [3]},
    {'starts': [{'code': 1}]},
  ),
}


@pytest.mark.parametrize(
  ('name', 'fields'),
  [(name, x) for name, each in OTHER_SETTINGS.items() for x in each],
)
def test_settings_of_other_types_are_refused_by_field(
  workdir, tmp_path, name, fields
):
  copy = shutil.copytree(workdir, tmp_path / 'run')
  (copy / name).write_text(json.dumps(fields))
  with pytest.raises(ValueError, match=f'^workdir: {copy}/{name}: ') as error:
    report(copy)
  assert f'{next(iter(fields))}' in str(error.value)


def test_settings_that_nobody_reads_are_shown_however_deep(workdir, tmp_path):
  copy = shutil.copytree(workdir, tmp_path / 'run')
  deep = json.loads('[' * 400 + '1' + ']' * 400)
  (copy / 'config.json').write_text(json.dumps({'other': deep}))
  assert 'other' in report(copy).read_text(encoding='utf-8')
