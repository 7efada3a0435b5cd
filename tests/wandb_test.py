"""A run of Weights & Biases has the summary, and cannot end a sweep."""

import importlib.util
import json

import launching
import pandas as pd
import pytest
import small

from experiments import reports, sweep

wandb = pytest.importorskip('wandb', reason="pip install -e '.[wandb]'")

pytestmark = pytest.mark.slow
_CURVES = [small.curve('opt', (0.0,)), small.curve('token_v3', (-1.0, 1.0))]


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
  """No page, no network, and no files of W&B's elsewhere."""
  monkeypatch.setattr(reports, 'write_report', lambda run: run.path)
  monkeypatch.setenv('WANDB_MODE', 'offline')
  monkeypatch.setenv('WANDB_ERROR_REPORTING', 'false')
  for name in 'HOME', 'WANDB_CACHE_DIR', 'WANDB_CONFIG_DIR', 'WANDB_DATA_DIR':
    monkeypatch.setenv(name, str(tmp_path / 'home'))
  yield
  # Else it reads its variables once in a process.
  wandb.teardown()


def _run(workdir):
  config = small.config(num_examples=2, wandb=True)
  sweep.run(config, _CURVES, workdir, quiet=True)


def test_starts_of_a_sweep_are_one_run_with_its_summary(tmp_path):
  _run(tmp_path)
  _run(tmp_path)
  first, last = sorted(tmp_path.glob('wandb/offline-run-*'))
  assert first.name.split('-')[3] == last.name.split('-')[3]
  command = '-m', 'wandb', 'leet', 'inspect', '--json', last
  done = launching.python(*command, check=True)
  lines = [json.loads(line) for line in done.stdout.splitlines()]
  assert not lines[-1]['exit'].get('exit_code')
  items = [line['history']['item'] for line in lines if 'history' in line]
  summary = pd.read_csv(tmp_path / 'summary.csv')
  for item, row in zip(items, summary.to_dict('records'), strict=True):
    logged = {name.rpartition('/')[2]: x for name, x in item.items()}
    for name in ('quality', 'n', 'gamma'):
      assert float(logged[name]) == pytest.approx(row[name])


def test_a_run_that_fails_is_left_out(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(wandb.Run, 'log', lambda *_: 1 / 0)
  _run(tmp_path)
  said = capsys.readouterr().err
  assert said.count('wandb: failed (division by zero); log in with') == 1
  assert (tmp_path / 'summary.csv').exists()


def test_who_lacks_the_library_is_told_so(tmp_path, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ValueError, match=r'^wandb: wandb is not .*\[wandb\]'):
    _run(tmp_path / 'v')
