"""Trackers are told what the summary says, and cannot end a sweep."""

import json
import math
import sys
import types

import launching
import pandas as pd
import pytest
import report_test
import small
import sweep_test
from answers import COSTS, make_trace

from cascades.sampler import batching
from experiments import records, reports, sweep
from experiments.records import unit_costs
from experiments.sweeps import launchers, trackers

pytest.importorskip('tensorboard', reason="pip install -e '.[track]'")
wandb = pytest.importorskip('wandb', reason="pip install -e '.[track]'")

pytestmark = pytest.mark.slow
no_models = sweep_test.no_models
_CURVES = [
  small.curve('verifier_only', ()),
  small.curve('opt', (-math.inf, 0.0, math.inf), gamma=2),
  small.curve('token_v3', (-1.0, 0.25, 1.0), gamma=2),
]
# Trackers of single tests, which their kinds name.
_MADE = types.SimpleNamespace()
_NAMES = ('quality', 'quality_low', 'relative_latency', 'n', 'wall_s')


class _MadeUp:
  """A launcher without models: the answers of `report_test`."""

  # Points before it breaks.
  limit = math.inf

  def __init__(self, config, curves, tasks, say):
    self.usage = batching.DecodeStats()
    self.close = self.views = lambda *_: []

  def facts(self):
    return {'versions': {}, 'device': 'none', 'code': 'results version 1'}

  def costs(self):
    return unit_costs.CostRange(COSTS, COSTS)

  def decode(self, jobs, on_answer, is_stopping):
    for i, (point, examples) in enumerate(jobs):
      if i == self.limit:
        raise RuntimeError('the machine is gone')
      named = point.task, point.curve.method
      decoded = [
        report_test.make_record(*named, lenience, point.first + k, id=e.id)
        for lenience in point.curve.leniences or [math.nan]
        for k, e in enumerate(examples)
      ]
      yield (
        point,
        [
          records.Outcome(r, make_trace('', id=r.id, deferred=None))
          for r in decoded
        ],
      )


def _register(monkeypatch, registry, kind):
  monkeypatch.setitem(registry._entries, kind.name, kind)


def _track(monkeypatch, name, tracker, package='json'):
  """Registers a tracker of this module."""
  monkeypatch.setattr(_MADE, name, tracker, raising=False)
  kind = trackers.TrackerKind(
    name=name,
    help='made up',
    package=package,
    factory=f'trackers_test:_MADE.{name}',
  )
  _register(monkeypatch, trackers.TRACKERS, kind)


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
  """No models, no page, no network, and no files of W&B's elsewhere."""
  _register(
    monkeypatch,
    launchers.LAUNCHERS,
    launchers.LauncherKind(
      name='made_up', help='nowhere', factory='trackers_test:_MadeUp'
    ),
  )
  monkeypatch.setattr(reports, 'write_report', lambda workdir: workdir)
  monkeypatch.setenv('WANDB_MODE', 'offline')
  monkeypatch.setenv('WANDB_ERROR_REPORTING', 'false')
  for name in ('CACHE', 'CONFIG', 'DATA'):
    monkeypatch.setenv(f'WANDB_{name}_DIR', str(tmp_path / 'home'))
  yield
  # Else it reads its variables once in a process.
  wandb.teardown()


def _run(workdir, *names, **fields):
  config = small.config(trackers=names, num_examples=4, **fields)
  with config.unlocked():
    # Of settings that these curves do not have.
    del config.decision
  sweep.run(config, _CURVES, workdir, launcher='made_up', quiet=True)


def _stop_after(points, workdir, *names, **fields):
  """A sweep that breaks after some points."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(_MadeUp, 'limit', points)
    with pytest.raises(RuntimeError, match='the machine is gone'):
      _run(workdir, *names, **fields)


def _rows(workdir):
  """Rows of the summary by curve, each as in its file, for each lenience."""
  frame = pd.read_csv(workdir / 'summary.csv')
  rows = {
    method: of.to_dict('records') for method, of in frame.groupby('method')
  }
  return [(curve, rows[curve.method]) for curve in _CURVES]


def _charts(workdir):
  """Returns TensorBoard's values by run, tag and step."""
  # TensorBoard looks for this, and does then without TensorFlow.
  sys.modules.setdefault('tensorboard.compat.notf', sys)
  from tensorboard.backend.event_processing import plugin_event_multiplexer
  from tensorboard.util import tensor_util

  multiplexer = plugin_event_multiplexer.EventMultiplexer()
  multiplexer.AddRunsFromDirectory(str(workdir / 'trackers/tensorboard'))
  multiplexer.Reload()
  return {
    (run, tag): [
      (event.step, tensor_util.make_ndarray(event.tensor_proto).tolist())
      for event in multiplexer.Tensors(run, tag)
    ]
    for run, about in multiplexer.Runs().items()
    for tag in about['tensors']
  }


def _of_curve(charts, curve):
  """A curve's charts by name."""
  run = f'numerals/{curve.name.replace(" ", "-")}'
  return {
    tag.removeprefix('numerals/'): values
    for (of, tag), values in charts.items()
    if of == run
  }


def _check_charts(workdir):
  """Looks whether TensorBoard shows each number of the summary once."""
  charts = _charts(workdir)
  for curve, rows in _rows(workdir):
    found = _of_curve(charts, curve)
    for name in _NAMES:
      values = [pytest.approx(row[name]) for row in rows]
      assert found[name] == list(enumerate(values)), name
    assert found.get('lenience', []) == list(enumerate(curve.leniences))
  # A method without a rule has no rate of deferral, rather than nan.
  assert 'deferral_rate' not in _of_curve(charts, _CURVES[0])
  return charts


def _lines(workdir, starts):
  """The lines of W&B's file of the latest of so many starts, and its folder."""
  folders = sorted(workdir.glob('trackers/wandb/offline-run-*'))
  assert len(folders) == starts
  folder = folders[-1]
  command = '-m', 'wandb', 'leet', 'inspect', '--json', folder
  done = launching.python(*command, check=True)
  return [json.loads(line) for line in done.stdout.splitlines()], folder


def _check_history(workdir, lines):
  """Looks whether a run of W&B's has each row of the summary once."""
  history = [line['history']['item'] for line in lines if 'history' in line]
  found = [
    {tag: value for tag, value in item.items() if not tag.startswith('_')}
    for item in history
  ]
  expected = [
    (f'numerals/{curve.name}', row)
    for curve, rows in _rows(workdir)
    for row in rows
  ]
  assert len(found) == len(expected)
  for item, (tag, row) in zip(found, expected, strict=True):
    for name in _NAMES:
      assert item[f'{tag}/{name}'] == pytest.approx(row[name])
    lenience = item.get(f'{tag}/lenience', math.nan)
    assert float(lenience) == pytest.approx(row['lenience'], nan_ok=True)
    assert all(name.startswith(f'{tag}/') for name in item)


def test_trackers_say_what_the_summary_says(tmp_path, capfd):
  _run(tmp_path, 'tensorboard', 'wandb')
  assert capfd.readouterr().err == ''
  charts = _check_charts(tmp_path)
  ((_, settings),) = charts['.', 'settings']
  assert f'"verifier": "{small.pair()[0]}"'.encode() in settings
  ((_, best),) = charts['.', 'best points']
  assert best[0][:4] == [b'task', b'variant', b'gamma', b'lenience']
  assert [row[1] for row in best[1:]] == [b'verifier_only', b'opt', b'token_v3']
  lines, folder = _lines(tmp_path, 1)
  _check_history(tmp_path, lines)
  (run,) = [line['run'] for line in lines if 'run' in line]
  assert run['project'] == 'cascades'
  assert run['run_id'] == (tmp_path / 'trackers/wandb/id').read_text()
  assert run['config']['update']['verifier'] == small.pair()[0]
  # Charts are over the lenience, where there is one.
  axes = {m['metric']['step_metric'] for m in lines if 'metric' in m}
  assert axes == {f'numerals/{c.name}/lenience' for c in _CURVES[1:]}
  summary_values = {}
  for line in lines:
    summary_values |= line.get('summary', {}).get('update', {})
  assert summary_values['numerals/token_v3/best gamma'] == 2
  assert lines[-1]['exit'].get('exit_code', 0) == 0
  summary = (tmp_path / 'summary.csv').read_text()
  assert (folder / 'files/summary.csv').read_text() == summary
  assert any(
    'summary.csv' in json.dumps(f['files']) for f in lines if 'files' in f
  )


def test_shards_are_told_as_they_come_and_at_the_next_start_again(
  tmp_path, monkeypatch
):
  _track(monkeypatch, 'noted', _Noted)
  both = ('tensorboard', 'wandb', 'noted')
  # All of the first two curves, and the first half of the third.
  _stop_after(5, tmp_path, *both, shard_size=2)
  charts = _charts(tmp_path)
  assert _of_curve(charts, _CURVES[1])['n'] == [(0, 4), (1, 4), (2, 4)]
  assert _of_curve(charts, _CURVES[2])['n'] == [(0, 2), (1, 2), (2, 2)]
  assert ('.', 'best points') not in charts
  lines, first = _lines(tmp_path, 1)
  assert sum('history' in line for line in lines) == 1 + 3
  assert lines[-1]['exit']['exit_code'] == 1
  # Trackers are closed whatever happens.
  assert _Noted.last.calls[-1] == 'closed'
  assert 'summary' not in _Noted.last.calls
  _run(tmp_path, *both, shard_size=2)
  _check_charts(tmp_path)
  lines, second = _lines(tmp_path, 2)
  _check_history(tmp_path, lines)
  # To W&B it is the same run: offline-run-TIME-ID, and a number behind that
  # where both began within a second.
  assert first.name.split('-')[3] == second.name.split('-')[3]


def test_what_is_decoded_can_be_told_later(tmp_path, monkeypatch):
  _run(tmp_path)
  assert not (tmp_path / 'trackers').exists()
  before = (tmp_path / 'config.json').read_bytes()
  monkeypatch.setattr(_MadeUp, 'decode', lambda self, jobs, *_: iter(jobs))
  _run(tmp_path, 'tensorboard')
  _check_charts(tmp_path)
  assert (tmp_path / 'config.json').read_bytes() == before


class _Noted:
  """A tracker that notes what it is told."""

  def __init__(self, folder, settings, say):
    self.calls = []
    _Noted.last = self

  def log_curve(self, task, curve, rows, is_complete):
    self.calls.append((curve, len(rows), is_complete))

  def log_summary(self, summary, best):
    self.calls.append('summary')

  def close(self):
    self.calls.append('closed')


def _breaking(name):
  """A tracker that fails where it is told of that."""

  class Breaking(_Noted):
    pass

  def fail(self, *args, **state):
    if name != 'close':
      _Noted.failed = self
    raise OSError(28, 'No space\nleft')

  setattr(Breaking, name, fail)
  return Breaking


_ALL = [
  ('verifier_only', 1, True),
  ('opt gamma 2', 3, True),
  ('token_v3 gamma 2', 3, True),
  'summary',
  'closed',
]


@pytest.mark.parametrize(
  'where', ['__init__', 'log_curve', 'log_summary', 'close']
)
def test_a_tracker_that_fails_is_said_once_and_left_out(
  tmp_path, monkeypatch, capsys, where
):
  _track(monkeypatch, 'bad', _breaking(where))
  _track(monkeypatch, 'good', _Noted)
  _run(tmp_path, 'bad', 'good')
  message = capsys.readouterr().err
  assert message.count('trackers: bad failed ([Errno 28] No space left)') == 1
  assert message.count('\n') == 1
  assert _Noted.last.calls == _ALL
  if where in ('log_curve', 'log_summary'):
    # It was closed all the same, and told nothing more.
    assert _Noted.failed.calls[-1] == 'closed'
    assert 'summary' not in _Noted.failed.calls
  assert (tmp_path / 'summary.csv').exists()


def test_a_full_disk_is_heard(tmp_path, capsys):
  # What lies in the way of a folder stands for whatever a disk can do.
  (tmp_path / 'trackers/tensorboard').mkdir(parents=True)
  (tmp_path / 'trackers/tensorboard/numerals').write_text('')
  _run(tmp_path, 'tensorboard')
  message = capsys.readouterr().err
  assert message.startswith('trackers: tensorboard failed (')
  assert message.count('\n') == 1
  assert (tmp_path / 'summary.csv').exists()


def test_what_is_not_installed_is_refused_before_a_model_is_loaded(
  tmp_path, monkeypatch, no_models
):
  _track(monkeypatch, 'absent', _Noted, package='no_such_package')
  message = 'absent needs the package no_such_package; install it'
  config = small.config(trackers=('tensorboard', 'absent'))
  with pytest.raises(ValueError, match=message):
    sweep.run(config, _CURVES, tmp_path / 'w')
  assert not (tmp_path / 'w').exists()


@pytest.mark.parametrize('name', trackers.TRACKERS)
def test_every_tracker_writes_curves_and_a_summary(tmp_path, name):
  lines = []
  tracker = trackers.TRACKERS[name].start(
    tmp_path / 'run/trackers', {'seed': 0}, lines.append
  )
  for count in (1, 2):
    rows = [{'lenience': 0.5, 'n': count, 'quality': 1.0}]
    tracker.log_curve('sums', 'opt gamma 2', rows, is_complete=count == 2)
  frame = pd.DataFrame([{'task': 'sums', 'variant': 'opt', 'quality': 1.0}])
  tracker.log_summary(frame, frame)
  tracker.close()
  assert [*(tmp_path / 'run/trackers' / name).rglob('*')]
  # There is no network, and nothing to tell the user.
  assert not lines


def test_whoever_is_not_logged_in_is_told_so(
  tmp_path, monkeypatch, no_models, capfd
):
  for name in ('WANDB_MODE', 'WANDB_API_KEY', 'NETRC'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv('HOME', str(tmp_path))
  with pytest.raises(ValueError, match='log in with `wandb login`, or set'):
    _run(tmp_path / 'w', 'wandb')
  assert capfd.readouterr().err == ''


def test_tensorboard_is_written_without_tensorflow(tmp_path):
  code = (
    'import pathlib, sys\n'
    'from experiments.sweeps import tensorboard_tracker as tracker\n'
    f't = tracker.TensorBoard(pathlib.Path({str(tmp_path)!r}), {{}}, print)\n'
    't.log_curve("sums", "speed", [{"quality": 1.0}], True)\n'
    'print("tensorflow" in sys.modules)'
  )
  assert launching.python('-c', code, check=True).stdout.strip() == 'False'
