"""A sweep from config to report: small, whole, resumed and refused."""

import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from cascades import metrics, records
from experiments import cli, sweep

_ROOT = pathlib.Path(__file__).parent.parent
_CURVES = [
  ('verifier_only', ()),
  ('drafter_only', ()),
  ('speed', (0.0, 1.0)),
  ('token_v3', (-1.0, 0.5, 1.0)),
]


def _config(**fields):
  module = cli.load_config_module(_ROOT / 'configs/quickstart.py')
  config = module.get_config()
  with config.unlocked():
    config.update(tasks=('numerals',), num_examples=5, batch_size=3)
    config.update(fields)
  return config


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  path = tmp_path_factory.mktemp('runs') / 'small'
  sweep.run(_config(), _CURVES, path)
  return path


def test_a_row_for_every_point(workdir):
  frame = pd.read_csv(workdir / 'summary.csv')
  assert list(frame.columns) == [
    'task',
    'method',
    'lenience',
    'gamma',
    'temperature',
    'n',
    'quality',
    'quality_low',
    'quality_high',
    'acceptance_rate',
    'rejection_rate',
    'deferral_rate',
    'block_efficiency',
    'verifier_calls_per_token',
    'drafter_calls_per_token',
    'relative_latency',
    'mean_output_tokens',
    'wall_s',
  ]
  assert len(frame) == 7
  assert (frame.n == 5).all()
  assert (frame.wall_s > 0).all()
  by_point = frame.set_index(['method', frame.lenience.fillna(9)])
  # The verifier alone is the unit of cost.
  assert by_point.loc[('verifier_only', 9), 'relative_latency'] == 1
  costs = metrics.Costs.from_json((workdir / 'costs.json').read_text())
  assert by_point.loc[('drafter_only', 9), 'relative_latency'] == (
    pytest.approx(costs.drafter_token_s / costs.verifier_token_s)
  )
  for method in ('speed', 'token_v3'):
    assert by_point.loc[(method, 1.0), 'rejection_rate'] == 0
    assert by_point.loc[(method, 1.0), 'acceptance_rate'] == 1


def test_records_are_whole_and_their_counts_add_up(workdir):
  found = records.read_all(workdir)
  assert len(found) == 5 * 7
  for record in found:
    metrics.check_counts(record)
    assert record.quality == record.scores['exact_match']
    assert ''.join(record.pieces) == record.text
  assert {r.id for r in found} == {f'numerals/test/0/{i}' for i in range(5)}
  rule = {r.method: r.deferred is not None for r in found}
  assert rule['token_v3']
  assert not rule['speed']


def test_the_report_stands_beside_the_records(workdir):
  assert (workdir / 'report/index.html').stat().st_size > 10_000
  config = json.loads((workdir / 'config.json').read_text())
  assert config['verifier'] == 'tiny-verifier'
  assert config['method'] == [method for method, _ in _CURVES]
  assert config['versions']['jax']


def _answers(workdir):
  found = records.read_all(workdir)
  return {(r.point, r.id): (r.tokens, r.quality) for r in found}


def test_a_stopped_sweep_goes_on_and_ends_the_same(workdir, tmp_path):
  other = tmp_path / 'resumed'
  real, written = records.write, []

  def fail_on_third(path, lines):
    if len(written) == 2:
      raise KeyboardInterrupt
    written.append(path)
    real(path, lines)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(records, 'write', fail_on_third)
    with pytest.raises(KeyboardInterrupt):
      sweep.run(_config(), _CURVES, other)
  names = {p.name for p in (other / 'records').iterdir()}
  assert names == {p.name for p in written}
  assert not (other / 'summary.csv').exists()
  before = {p: p.stat().st_mtime_ns for p in written}
  sweep.run(_config(), _CURVES, other)
  assert before == {p: p.stat().st_mtime_ns for p in written}
  assert _answers(other) == _answers(workdir)


def test_another_runs_workdir_is_refused_by_field(workdir):
  with pytest.raises(ValueError, match='another gamma;'):
    sweep.run(_config(gamma=2), _CURVES, workdir)


def test_batches_do_not_change_answers(workdir, tmp_path):
  sweep.run(_config(batch_size=5), _CURVES[2:], tmp_path / 'whole')
  whole, parts = _answers(tmp_path / 'whole'), _answers(workdir)
  assert all(parts[key] == value for key, value in whole.items())


def test_an_interrupted_write_leaves_nothing(tmp_path):
  def lines():
    yield records.read_all  # Not a record: fails inside the write.

  with pytest.raises(AttributeError):
    records.write(tmp_path / 'records/a.jsonl', lines())
  assert list((tmp_path / 'records').glob('*')) == []


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (['--config.gama=3'], 'gamma'),
    (['--config.gamma=-1'], 'gamma: -1'),
    (['--config.gamma=x'], 'config.gamma'),
    (['--config.method=token_v33'], "did you mean 'token_v3'"),
    (['--config.lenience=("nan",)'], 'lenience'),
    (['--config.tasks=("gsm9k",)'], "no task 'gsm9k'"),
    (['--config.num_examples=0'], 'num_examples: 0'),
    (['--workdir=/dev/null/x'], 'workdir: '),
    (['--config=configs/nothing.py'], 'nothing.py'),
    (['stray'], "'stray' is not a flag"),
  ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(arguments, said, tmp_path):
  command = [sys.executable, '-m', 'experiments.sweep']
  if not any(a.startswith('--config=') for a in arguments):
    command.append('--config=configs/quickstart.py')
  if not any(a.startswith('--workdir=') for a in arguments):
    command.append(f'--workdir={tmp_path / "w"}')
  done = subprocess.run(
    command + arguments, capture_output=True, text=True, cwd=_ROOT
  )
  assert done.returncode == 2
  assert said in done.stderr
  assert done.stderr.startswith('error: ')
  assert len(done.stderr.strip().split('\n')) == 1
  assert not (tmp_path / 'w').exists()


def test_plain_settings_survive_json():
  value = sweep._plain((-math.inf, 0.5))
  assert json.loads(json.dumps(value)) == ['-inf', 0.5]
  assert np.isinf(float(value[0]))
