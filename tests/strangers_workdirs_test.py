"""Tests of workdirs that come from strangers, and of URLs with a password.

A workdir's records may be damaged or made up, its texts hold control
characters, and its folders link elsewhere.
"""

import contextlib
import gzip
import html
import json
import pathlib
import re
import shutil
import sys
import types
from unittest import mock

import answers
import pandas as pd
import pytest
import report_test
import strangers

from cascades.untrusted import display
from experiments import records, tasks
from experiments.reports import AnalysisConfig, drawings, tables, write_report
from experiments.sweeps import workdirs

pytestmark = pytest.mark.slow


def report(workdir, figures=False) -> pathlib.Path:
  return write_report(workdir, AnalysisConfig(resamples=5), figures=figures)


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


@pytest.fixture
def copy(workdir, tmp_path):
  """A workdir that a test then changes."""
  return shutil.copytree(workdir, tmp_path / 'run')


@pytest.mark.parametrize(('field', 'value'), strangers.cases(IMPOSSIBLE))
def test_an_impossible_record_is_refused_by_its_line(copy, field, value):
  path = copy / 'records/all.jsonl'
  *other_lines, last = path.read_text().splitlines()
  changed = json.dumps(json.loads(last) | {field: value})
  path.write_text('\n'.join((*other_lines, changed)) + '\n')
  with pytest.raises(ValueError, match='damaged record') as error:
    report(copy)
  assert f'{path}:{len(other_lines) + 1}: ' in str(error.value)


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
  trace = answers.make_trace('', id='1', deferred=None)
  records.write(tmp_path / 'traces/a.jsonl.gz', [trace])
  point = types.SimpleNamespace(
    name='a', first=0, last=1, curve=types.SimpleNamespace(leniences=(1.0,))
  )
  assert workdirs.Workdir(tmp_path).read_point(point) is None
  assert not path.exists()
  assert stale.exists()


@pytest.mark.parametrize(
  ('method', 'prompt'),
  [
    ('speed', 'half of a surrogate pair: \ud800'),
    ('an escape: \x1b', 'a b'),
    ('speed', 'the other way: \u202e'),
    ('the other way: \u202e', 'a b'),
    ('a filler: \u3164', 'a b'),
  ],
  ids=repr,
)
def test_a_page_spells_what_would_act_or_cannot_be_seen(
  tmp_path, method, prompt
):
  workdir = strangers.make_workdir(tmp_path / 'run', method)
  examples = [
    tasks.Example(id=str(i), prompt=prompt, reference='r') for i in range(4)
  ]
  records.write(workdir / 'examples/sums.jsonl', examples)
  page = report(workdir).read_text(encoding='utf-8')
  (odd,) = filter(display.is_invisible, method + prompt)
  # Half of a pair of surrogates is none of a file's characters.
  spelling = '\ufffd' if odd == '\ud800' else display.escape(odd)
  assert not any(map(display.is_invisible, page))
  if odd in method:
    # Curves are found by the same name in figures and legends.
    assert f'data-key="{method.replace(odd, spelling)}"' in page
    assert f'data-method="{method.replace(odd, spelling)}"' in page
  else:
    assert prompt.replace(odd, spelling) in page


# --- Files that disagree ---


def _traces(skip=0, **changes):
  """Leaves the first traces out, and changes fields of the others."""

  def damage(workdir):
    lines = records.read_traces(workdir, 'all')[skip:]
    fields = [json.loads(records.dumps(line)) | changes for line in lines]
    text = ''.join(json.dumps(f) + '\n' for f in fields)
    (workdir / 'traces/all.jsonl.gz').write_bytes(gzip.compress(text.encode()))

  return damage


def _other_ids(workdir):
  asked = [tasks.Example(id='x', prompt='p', reference='r')]
  records.write(workdir / 'examples/sums.jsonl', asked)


def _view(**changes):
  def damage(workdir):
    fields = dict(point='all', lenience=0.5, id='0', deferred=None)
    fields |= dict.fromkeys(('q', 'p', 'pi'), [0.5] * 3)
    fields |= dict.fromkeys(('drafter', 'verifier'), ['a'] * 3)
    path = workdir / 'views/sums.jsonl'
    path.parent.mkdir()
    path.write_text(json.dumps(fields | changes) + '\n')

  return damage


# What is done to a workdir, and what the page says of it.
DISAGREEING = {
  'a source of no kind': (_traces(sources=[99, 1, 1]), 'sources must be'),
  'few pieces': (_traces(token_strings=[]), 'token_strings must'),
  'few sources': (_traces(sources=[1]), 'sources'),
  'few traces': (_traces(skip=12), 'has no trace'),
  'no trace': (_traces(skip=10**6), 'has no trace'),
  'traces of others': (_traces(id='x'), 'has no trace'),
  'no traces': (lambda w: shutil.rmtree(w / 'traces'), 'is missing'),
  'no zip': (
    lambda w: (w / 'traces/all.jsonl.gz').write_bytes(b'x'),
    'traces/all.jsonl.gz',
  ),
  'no examples': (lambda w: shutil.rmtree(w / 'examples'), 'no example 0'),
  'examples of others': (_other_ids, 'there is no example 0'),
  'a view of three q': (_view(p=[0.5], pi=[0.5]), 'p must be as long as q'),
  'a view without pi': (_view(pi=[]), 'pi must be as long as q'),
}


@pytest.mark.parametrize('case', DISAGREEING)
def test_what_disagrees_is_left_out_and_named(copy, case):
  damage, message = DISAGREEING[case]
  damage(copy)
  page = report(copy).read_text(encoding='utf-8')
  marked = re.findall('<p class="notice">(.*?)</p>', page)
  assert any(message in html.unescape(line) for line in marked)
  assert all(line.startswith('Left out: ') for line in marked)
  # Views are not needed to show an answer.
  assert ('<article' in page) == ('views' in ''.join(marked))


# By column of a summary, what is no value of it.
NO_NUMBERS = {
  'gamma': ('x', '1.5', '-1', ''),
  'n': ('x', '1e309', ''),
  'drafts': ('x',),
  'temperature': ('x', '-1', '1e309', ''),
  **dict.fromkeys(('lenience', 'quality', 'relative_latency'), ('x', '1_0')),
}


def _change_summary(workdir, name, value):
  path = workdir / 'summary.csv'
  frame = pd.read_csv(path, dtype=str)
  frame.loc[2, name] = value
  frame.to_csv(path, index=False)
  return path


@pytest.mark.parametrize(('name', 'value'), strangers.cases(NO_NUMBERS))
def test_a_cell_of_a_summary_is_refused_by_column_and_row(copy, name, value):
  path = _change_summary(copy, name, value)
  message = rf'^workdir: {re.escape(str(path))}: {name} of row 3 must be '
  with pytest.raises(ValueError, match=message):
    report(copy)


@pytest.mark.parametrize('name', ['relative_latency', 'quality'])
@pytest.mark.parametrize(
  'value', ['1e309', '-1e309', '1e308', '-1e308', '1e-320']
)
def test_no_measured_number_ends_the_page(copy, name, value):
  _change_summary(copy, name, value)
  assert report(copy).exists()


def test_a_table_or_figure_that_fails_leaves_the_page(
  copy, monkeypatch, capsys
):
  save, failing = drawings.Drawing.save, []

  def fails(self, folder):
    failing.append(self.name)
    if len(failing) == 1:
      raise OverflowError('too large')
    save(self, folder)

  def markdown(*_):
    raise RecursionError('too deep')

  monkeypatch.setattr(drawings.Drawing, 'save', fails)
  monkeypatch.setattr(tables, 'markdown', markdown)
  page = report(copy, figures=True).read_text(encoding='utf-8')
  message = capsys.readouterr().err
  for reason in ('OverflowError: too large', 'RecursionError: too deep'):
    assert reason in page
    assert reason in message
  folder = copy / 'report'
  assert len(failing) > 1
  assert not (folder / 'figures' / f'{failing[0]}.svg').exists()
  assert (folder / 'figures' / f'{failing[1]}.svg').exists()
  assert list(folder.glob('tables/*.csv'))
  assert (folder / 'report.json').exists()


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
    workdirs.Workdir(workdir).set_aside([], 'source 0', mock.Mock())
  assert (outside / name).exists()
  assert (outside / name).read_text() == 'precious'


def test_no_password_of_a_url_is_kept(monkeypatch):
  url = 'ftp://user:hunter2secret@127.0.0.1:9/a.jsonl'
  command = ['python', '-m', 'experiments.sweep', f'--data={url}']
  monkeypatch.setattr(sys, 'orig_argv', command)
  text = json.dumps(workdirs.provenance({}))
  assert 'hunter2secret' not in text
  assert '--data=ftp://user:***@127.0.0.1' in text


# By file, fields that no sweep writes there.
OTHER_SETTINGS = {
  'config.json': (
    *({'task': 5}, {'data': [1]}, {'data': {'sums': 3}}, {'versions': 'x'}),
    {'file': 5},
    *({'batch_size': -1}, {'name': {}}, {'verifier': 5}, {'block_by_block': 2}),
  ),
  'provenance.json': [{'starts': x} for x in (3, [3], [{'code': 1}])],
}


@pytest.mark.parametrize(
  ('name', 'fields'),
  [(name, x) for name, each in OTHER_SETTINGS.items() for x in each],
)
def test_settings_of_other_types_are_refused_by_field(copy, name, fields):
  (copy / name).write_text(json.dumps(fields))
  with pytest.raises(ValueError, match=f'^workdir: {copy}/{name}: ') as error:
    report(copy)
  assert f'{next(iter(fields))}' in str(error.value)


def test_settings_that_nobody_reads_are_shown_however_deep(copy):
  deep = json.loads('[' * 400 + '1' + ']' * 400)
  config = json.loads((copy / 'config.json').read_text()) | {'other': deep}
  (copy / 'config.json').write_text(json.dumps(config))
  assert 'other' in report(copy).read_text(encoding='utf-8')
