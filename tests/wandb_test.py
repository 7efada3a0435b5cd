"""A run of Weights & Biases has the summary, and cannot end a sweep."""

import importlib.util
import json
import math

import launching
import pandas as pd
import pytest
import report_test
import small
from answers import COSTS, make_trace

from cascades.sampler import batching
from experiments import records, reports, sweep
from experiments.records import unit_costs
from experiments.sweeps import worker

wandb = pytest.importorskip('wandb', reason="pip install -e '.[wandb]'")

pytestmark = pytest.mark.slow
_CURVES = [
  small.curve('verifier_only', ()),
  small.curve('opt', (-math.inf, 0.0, math.inf), gamma=2),
  small.curve('token_v3', (-1.0, 0.25, 1.0), gamma=2),
]


class _MadeUp:
  """A worker without models: the answers of `report_test`."""

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


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
  """No models, no page, no network, and no files of W&B's elsewhere."""
  monkeypatch.setattr(worker, 'Worker', _MadeUp)
  monkeypatch.setattr(reports, 'write_report', lambda workdir: workdir)
  monkeypatch.setenv('WANDB_MODE', 'offline')
  monkeypatch.setenv('WANDB_ERROR_REPORTING', 'false')
  for name in ('CACHE', 'CONFIG', 'DATA'):
    monkeypatch.setenv(f'WANDB_{name}_DIR', str(tmp_path / 'home'))
  yield
  # Else it reads its variables once in a process.
  wandb.teardown()


def _run(workdir, **fields):
  config = small.config(num_examples=4, shard_size=2, **fields)
  with config.unlocked():
    # Of settings that these curves do not have.
    del config.decision
  sweep.run(config, _CURVES, workdir, quiet=True)


def _lines(workdir, starts):
  """The lines of W&B's file of the latest of so many starts, and its folder."""
  folders = sorted(workdir.glob('wandb/offline-run-*'))
  assert len(folders) == starts
  command = '-m', 'wandb', 'leet', 'inspect', '--json', folders[-1]
  done = launching.python(*command, check=True)
  return [json.loads(line) for line in done.stdout.splitlines()], folders[-1]


def test_a_run_has_the_rows_of_the_summary_and_goes_on_at_the_next_start(
  tmp_path, monkeypatch, capfd
):
  # All of the first two curves, and the first half of the third.
  with monkeypatch.context() as patch:
    patch.setattr(_MadeUp, 'limit', 5)
    with pytest.raises(RuntimeError, match='the machine is gone'):
      _run(tmp_path, wandb=True)
  lines, first = _lines(tmp_path, 1)
  assert sum('history' in line for line in lines) == 1 + 3
  assert lines[-1]['exit']['exit_code'] == 1
  _run(tmp_path, wandb=True)
  assert capfd.readouterr().err == ''
  lines, folder = _lines(tmp_path, 2)
  # To W&B it is the same run: offline-run-TIME-ID, and a number behind that
  # where both began within a second.
  assert first.name.split('-')[3] == folder.name.split('-')[3]
  assert lines[-1]['exit'].get('exit_code', 0) == 0
  found = [line['history']['item'] for line in lines if 'history' in line]
  summary = pd.read_csv(tmp_path / 'summary.csv')
  assert len(found) == len(summary)
  names = {curve.method: curve.name for curve in _CURVES}
  for item, (_, row) in zip(found, summary.iterrows(), strict=True):
    tag = f'numerals/{names[row.method]}'
    for name in ('quality', 'quality_low', 'relative_latency', 'n', 'wall_s'):
      assert item[f'{tag}/{name}'] == pytest.approx(row[name])
    lenience = float(item.get(f'{tag}/lenience', math.nan))
    assert lenience == pytest.approx(row.lenience, nan_ok=True)
  (run,) = [line['run'] for line in lines if 'run' in line]
  assert run['project'] == 'cascades'
  assert run['config']['update']['verifier'] == small.pair()[0]
  # Charts are over the lenience, where there is one.
  axes = {m['metric']['step_metric'] for m in lines if 'metric' in m}
  assert axes == {f'numerals/{c.name}/lenience' for c in _CURVES[1:]}
  saved = (folder / 'files/summary.csv').read_text()
  assert saved == (tmp_path / 'summary.csv').read_text()


def test_a_finished_sweep_is_logged_without_decoding(tmp_path, monkeypatch):
  _run(tmp_path)
  assert not (tmp_path / 'wandb').exists()
  before = (tmp_path / 'config.json').read_bytes()
  monkeypatch.setattr(_MadeUp, 'decode', lambda self, jobs, *_: iter(jobs))
  _run(tmp_path, wandb=True)
  lines, _ = _lines(tmp_path, 1)
  assert sum('history' in line for line in lines) == 7
  assert (tmp_path / 'config.json').read_bytes() == before


@pytest.mark.parametrize('name', ['log', 'save', 'finish'])
def test_a_run_that_fails_is_said_once_and_left_out(
  tmp_path, monkeypatch, capsys, name
):
  def fail(*_, **options):
    raise OSError(28, 'No space\nleft')

  monkeypatch.setattr(wandb.Run, name, fail)
  _run(tmp_path, wandb=True)
  sentence = 'wandb: failed ([Errno 28] No space left) and is turned off.\n'
  assert capsys.readouterr().err == sentence
  assert (tmp_path / 'summary.csv').exists()


def test_whoever_is_not_logged_in_is_told_so(tmp_path, monkeypatch, capfd):
  for name in ('WANDB_MODE', 'WANDB_API_KEY', 'NETRC'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv('HOME', str(tmp_path))
  with pytest.raises(ValueError, match='log in with `wandb login`, or set'):
    _run(tmp_path / 'w', wandb=True)
  assert capfd.readouterr().err == ''


def test_what_is_not_installed_has_the_command(tmp_path, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ValueError, match=r'^wandb: wandb is not .*\[wandb\]'):
    _run(tmp_path / 'w', wandb=True)
  assert not (tmp_path / 'w').exists()
