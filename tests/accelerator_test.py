"""The check of a new device: its phases, figures, limits, faults and table."""

import dataclasses
import json
import types

import launching
import numpy as np
import pytest

from experiments.accelerators import (
  device_correctness,
  device_facts,
  device_phases,
  device_table,
  measuring,
)
from experiments.accelerators.device_phases import Measurement, Phase


def _run(phases, folder, seconds=100.0, **sizes):
  sizes = dataclasses.replace(device_phases.TINY, **sizes)
  return measuring.run(phases, sizes, folder / 'figures.jsonl', seconds)


def test_two_phases_are_rehearsed(tmp_path):
  sizes = dict(batch_sizes=(2,), widths=(1,), copy_size=2**10)
  table = _run(['device', 'unit_costs'], tmp_path, **sizes)
  assert '| device | platform | cpu |  |' in table
  assert '| unit_costs | tiny 1 (1 layers), batch 2 | reading one' in table
  assert 'failed' not in table


def _raise(error):
  def run(*_):
    raise error

  return run


def test_errors_are_sentences_and_may_be_tried_again(tmp_path, monkeypatch):
  plan, calls, clock = {}, [], [0.0]
  monkeypatch.setattr(measuring.time, 'monotonic', lambda: clock[-1])
  planned = lambda *_: [Measurement(*x) for x in plan.items()]  # noqa: E731
  monkeypatch.setattr(Phase, 'plan', planned)
  rows = lambda x: ((k, str(v), None) for k, v in x['device'].items())  # noqa: E731
  monkeypatch.setitem(device_table._ROWS, 'device', rows)
  plan |= {
    'a': lambda: calls.append('a') or {'x': 1},
    'b': _raise(RuntimeError('RESOURCE_EXHAUSTED: out of\nmemory')),
    'c': _raise(ModuleNotFoundError('No module', name='gemma.gm')),
    'd': _raise(ValueError('model: install it.')),
    'e': lambda: clock.append(9.0) or {'x': 2},
    'f': dict,
  }
  table = _run(['device'], tmp_path, seconds=8.0)
  for row in (
    "a | {'x': 1} | ",
    'b | RuntimeError: RESOURCE_EXHAUSTED: out of memory | failed',
    'c | gemma: the package is not installed; install it to measure. | failed',
    'd | model: install it. | failed',
    "e | {'x': 2} | ",
  ):
    assert f'| device | {row} |' in table
  assert table.endswith('the same command measures them: f.')
  # A run that was killed has left a part of a line. The same command measures
  # what is missing, and nothing twice.
  file = tmp_path / 'figures.jsonl'
  file.write_text(file.read_text() + '{"phase": "device", "na')
  plan |= dict.fromkeys('abcdef', lambda: calls.append('') or {'x': 3})
  assert _run(['device'], tmp_path).count("{'x': 3}") == 4
  assert _run(['device'], tmp_path).count("{'x': 3}") == 4
  assert calls == ['a', *[''] * 4]
  lines = [x for x in file.read_text().splitlines() if x.endswith('}')]
  assert [json.loads(x)['name'] for x in lines] == list('aebcdf')
  # Figures of another device stay in the file alone.
  monkeypatch.setattr(device_facts, 'setting', lambda _: {'device': 'H100'})
  assert _run(['device'], tmp_path).count("{'x': 3}") == 6
  # A phase that cannot be planned does not stop the rest.
  monkeypatch.setattr(Phase, 'plan', _raise(ImportError('no file')))
  table = _run(['device', 'floor'], tmp_path)
  assert '| the phase | ImportError: no file | failed |' in table


def test_no_device_is_a_sentence(tmp_path, monkeypatch):
  fail = _raise(RuntimeError('no GPU\nfound'))
  monkeypatch.setattr(device_facts, 'setting', fail)
  with pytest.raises(ValueError, match=r'^device: RuntimeError: no GPU found$'):
    _run(['device'], tmp_path)


def test_phases_share_the_seconds_that_remain():
  shares = {name: phase.share for name, phase in device_phases.PHASES.items()}
  first, *later = shares
  expected = 100 * shares[first] / sum(shares.values())
  assert device_phases.limit(first, later, 100) == pytest.approx(expected)
  assert device_phases.limit(later[-1], [], 7.0) == 7.0
  assert device_phases.limit(later[-1], [], -1.0) == 0.0
  assert device_phases.check_names(['speed', 'device']) == ['device', 'speed']
  for phase in device_phases.PHASES.values():
    planned = [x.name for x in phase.plan(device_phases.Sizes())]
    assert len({*planned}) == len(planned) > 0


def test_a_first_divergence_that_is_a_near_tie_is_allowed_in_bfloat16():
  logits = np.array([[1.0, 0.0, 0.0], [5.0, 5.03125, -1.0]])

  def answer(*tokens):
    return types.SimpleNamespace(tokens=list(tokens), logits=logits)

  find = device_correctness.first_divergence
  assert find(answer(0, 1), answer(0, 1)) is None
  near = find(answer(0, 1), answer(0, 0))
  # From 4 to 8 there are 128 numbers of bfloat16.
  assert near == dict(position=1, tokens=[1, 0], gap=0.03125, spacing=0.03125)
  cut = find(answer(0, 1), answer(0))
  assert cut['gap'] is None
  common = dict(prompts=9, tokens=9)
  figures = {
    'bfloat16': common | dict(must_agree=False, divergences=[near]),
    'wide': common | dict(must_agree=False, divergences=[near | {'gap': 0.5}]),
    'cut': common | dict(must_agree=False, divergences=[cut]),
    'float32': common | dict(must_agree=True, divergences=[near]),
    'equal': common | dict(must_agree=True, divergences=[]),
    'law': dict(z=6.0, samples=9, agrees=False),
  }
  rows = list(device_table._correctness({'correctness': figures}))
  assert [x[2] for x in rows] == [True, False, False, False, True, False]
  assert rows[0][1].endswith('token 1: gap 0.0312, 1.0 spacings')


# Hides packages that a machine without a network may lack, and the network.
_LEAN = """
import importlib.machinery, runpy, socket, sys
hidden = {'tensorflow', 'tensorflow_datasets', 'grain', 'datasets'}
hidden |= {'rouge_score'}
class Finder(importlib.machinery.PathFinder):
  @classmethod
  def find_spec(cls, name, path=None, target=None):
    if name.split('.')[0] in hidden:
      return None
    return super().find_spec(name, path, target)
sys.meta_path = [
  Finder if x is importlib.machinery.PathFinder else x for x in sys.meta_path
]
def refuse(*_):
  raise OSError('there is no network')
socket.socket.connect = refuse
sys.orig_argv = [sys.executable, '-m', 'experiments.accelerator', *sys.argv[1:]]
runpy.run_module('experiments.accelerator', run_name='__main__', alter_sys=True)
"""


@pytest.mark.slow
def test_all_phases_are_rehearsed_without_tensorflow_or_a_network(tmp_path):
  flags = '--tiny', '--minutes=10', f'--workdir={tmp_path}'
  done = launching.python('-c', _LEAN, *flags)
  assert done.returncode == 0, done.stderr
  phases = [x.split(' | ')[0][2:] for x in done.stdout.splitlines()[2:]]
  assert list(dict.fromkeys(phases)) == list(device_phases.PHASES)
  assert ' failed |' not in done.stdout
  assert '| correctness | greedy, float32 | 4 of 4 agree' in done.stdout
  assert 'Traceback' not in done.stderr
