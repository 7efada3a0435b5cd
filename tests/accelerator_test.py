"""The check of a new device: its phases, files, limits, faults and page."""

import dataclasses
import json
import os
import re
import signal
import time

import launching
import numpy as np
import pytest

from cascades.sampler.outputs import SampleOutput
from experiments.accelerators import (
  device_correctness,
  device_page,
  device_phases,
  device_summary,
  measuring,
  phase_results,
  supervising,
)
from experiments.accelerators.device_phases import Measurement, Phase
from experiments.accelerators.phase_results import PhaseResult, Setting

_SETTING = Setting(
  device='cpu <b>',
  platform='cpu',
  devices=1,
  versions={},
  tiny=True,
  max_layers=0,
)


def _measure(phase, folder, sizes=device_phases.TINY, seconds=100.0):
  return measuring.measure(
    phase, sizes, _SETTING, folder=folder, seconds=seconds, quiet=True
  )


def test_two_phases_are_rehearsed(tmp_path):
  sizes = dataclasses.replace(
    device_phases.TINY, batch_sizes=(2,), widths=(1,), copy_size=2**10
  )
  device, costs = (
    _measure(x, tmp_path, sizes) for x in ('device', 'unit_costs')
  )
  assert device.is_complete
  assert costs.is_complete
  assert device.figures['facts']['platform'] == 'cpu'
  assert device.figures['copy']['bytes_per_s'] > 0
  names = ['tiny 1, batch 2: reading 1', 'tiny 1, batch 2: drafting']
  assert list(costs.figures) == names
  for row in costs.figures.values():
    assert len(row['pass_s']) == 2
    assert min(row['pass_s']) > 0
  summary = device_summary.summarize(phase_results.read_all(tmp_path))
  text = summary.text()
  assert 'model   layers  batch  reading 1, ms' in text
  assert 'Not started: Correctness, Loop time and its floor' in text
  assert 'cpu &lt;b&gt;: check of the device' in device_page.render(summary)


@pytest.fixture
def phases(monkeypatch):
  """Three phases in place of the table's; `plans` has their measurements."""
  plans = {}
  table = {
    name: Phase(name.title(), '', share, new_process=name == 'last')
    for name, share in (('first', 1.0), ('second', 0.1), ('last', 9.0))
  }
  monkeypatch.setattr(
    Phase, 'plan', lambda self, _: plans[self.title.lower()]()
  )
  for module in device_phases, measuring, phase_results, supervising:
    monkeypatch.setattr(module, 'PHASES', table)
  # Without JAX, whose threads do not survive a fork.
  monkeypatch.setattr(
    supervising,
    '_serve',
    lambda pipe, sizes, folder: measuring.serve(
      pipe, sizes, folder, lambda: _SETTING
    ),
  )
  return plans


def _plan(**runs):
  return lambda: [Measurement(name, run) for name, run in runs.items()]


def _value(x):
  return lambda: {'value': x}


def _raise(error):
  def run():
    raise error

  return run


def test_errors_are_sentences_and_the_rest_is_measured_later(tmp_path, phases):
  calls = []
  phases['first'] = _plan(
    a=lambda: calls.append('a') or {'value': 1.0},
    b=_raise(RuntimeError('RESOURCE_EXHAUSTED: out of\nmemory')),
    c=_raise(ModuleNotFoundError('No module', name='gemma.gm')),
    d=_raise(ValueError('model: gemma is not installed; install it.')),
    e=lambda: time.sleep(0.2) or {'value': 2},
    f=_value(3),
  )
  result = _measure('first', tmp_path, seconds=0.1)
  assert result.figures == {'a': {'value': 1.0}, 'e': {'value': 2}}
  assert result.errors == {
    'b': 'RuntimeError: RESOURCE_EXHAUSTED: out of memory',
    'c': 'gemma: the package is not installed; install it to measure.',
    'd': 'model: gemma is not installed; install it.',
  }
  assert result.left_out == ['f']
  assert not result.is_complete
  assert phase_results.read(tmp_path, 'first') == result
  assert [x.name for x in tmp_path.iterdir()] == ['first.json']
  # The same command measures what is missing, and nothing twice.
  phases['first'] = _plan(
    a=lambda: calls.append('a'), **{x: _value(4) for x in 'bcdef'}
  )
  result = _measure('first', tmp_path)
  assert calls == ['a']
  assert [x['value'] for x in result.figures.values()] == [1, 2, 4, 4, 4, 4]
  assert result.is_complete
  # A run that was killed has left a partial file.
  partial = PhaseResult(
    setting=_SETTING, figures={'a': {'value': 5}}, current='b'
  )
  phase_results.write(tmp_path, 'last', partial, partial=True)
  phases['last'] = _plan(a=_value(6), b=_value(7))
  figures = _measure('last', tmp_path).figures
  assert figures == {'a': {'value': 5}, 'b': {'value': 7}}
  phases['second'] = _raise(ImportError('no library'))
  assert _measure('second', tmp_path).errors == {'': 'ImportError: no library'}


def test_a_phase_that_crashes_or_hangs_does_not_stop_the_others(
  tmp_path, phases, monkeypatch
):
  monkeypatch.setattr(supervising, '_GRACE_SECONDS', 0.3)
  kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
  phases['first'] = _plan(a=_value(1), b=kill, c=_value(3))
  phases['second'] = _plan(d=_value(4), e=lambda: time.sleep(60))
  phases['last'] = _plan(f=lambda: {'value': os.getpid()})
  supervising.run(
    ['first', 'second', 'last'], device_phases.TINY, tmp_path, 9.0
  )
  first, second, last = phase_results.read_all(tmp_path).values()
  assert first.figures == {'a': {'value': 1}}
  assert first.errors == {'b': 'stopped: the process ended with exit code -9.'}
  assert second.figures == {'d': {'value': 4}}
  assert re.fullmatch(
    r'stopped: it exceeded its limit of \d+ s by \d+ s\.', second.errors['e']
  )
  assert last.is_complete
  assert last.figures['f']['value'] != os.getpid()
  assert not [*tmp_path.glob('*.part.json')]
  # A second run measures what the first did not.
  phases['first'] = _plan(a=_value(9), b=_value(2), c=_value(3))
  phases['second'] = _plan(d=_value(9), e=_value(5))
  supervising.run(
    ['first', 'second', 'last'], device_phases.TINY, tmp_path, 9.0
  )
  first, second, again = phase_results.read_all(tmp_path).values()
  assert [x['value'] for x in first.figures.values()] == [1, 2, 3]
  assert [x['value'] for x in second.figures.values()] == [4, 5]
  assert again == last


def test_results_of_another_device_are_not_continued(tmp_path, phases):
  phases['first'] = _plan(a=_value(1))
  other = _SETTING.model_copy(update={'device': 'H100', 'max_layers': 3})
  phase_results.write(
    tmp_path, 'first', PhaseResult(setting=other, left_out=['a'])
  )
  with pytest.raises(
    ValueError, match='another device, max_layers; choose'
  ) as e:
    supervising.run(['first'], device_phases.TINY, tmp_path, 9.0)
  assert '\n' not in str(e.value)
  phase_results.write(tmp_path, 'second', PhaseResult(setting=_SETTING))
  with pytest.raises(ValueError, match='of several devices'):
    phase_results.read_all(tmp_path)


def test_no_device_is_a_sentence(tmp_path, phases, monkeypatch):
  del phases
  for serve, sentence in (
    (
      lambda pipe, sizes, folder: measuring.serve(
        pipe, sizes, folder, _raise(RuntimeError('no GPU\nfound'))
      ),
      'device: RuntimeError: no GPU found',
    ),
    (lambda *_: None, 'device: its process ended or took 180 s; see stderr.'),
  ):
    monkeypatch.setattr(supervising, '_serve', serve)
    with pytest.raises(ValueError, match=f'^{re.escape(sentence)}$'):
      supervising.run(['first'], device_phases.TINY, tmp_path, 9.0)


def test_phases_share_the_seconds_that_remain():
  shares = {name: phase.share for name, phase in device_phases.PHASES.items()}
  names = list(shares)
  assert device_phases.limit(names[0], names[1:], 100) == pytest.approx(
    100 * shares[names[0]] / sum(shares.values())
  )
  assert device_phases.limit(names[-1], [], 7.0) == 7.0
  assert device_phases.limit(names[-1], [], -1.0) == 0.0
  assert device_phases.check_names(['speed', 'device']) == ['device', 'speed']
  for phase in device_phases.PHASES.values():
    planned = [x.name for x in phase.plan(device_phases.Sizes())]
    assert len({*planned}) == len(planned) > 0


def _answer(tokens, logits=None):
  return SampleOutput(
    text='',
    tokens=tokens,
    token_strings=[],
    sources=[],
    deferred=None,
    ended=True,
    logprobs=[],
    logits=logits,
    counts={},
  )


def test_the_first_divergence_has_its_gap_in_spacings():
  logits = np.array([[1.0, 0.0, 0.0], [5.0, 5.03125, -1.0]])
  expected = _answer([0, 1], logits)
  find = device_correctness.first_divergence
  assert find(expected, _answer([0, 1])) is None
  assert find(expected, _answer([0, 0])) == {
    'position': 1,
    'tokens': [1, 0],
    'gap': 0.03125,
    # From 4 to 8 there are 128 numbers of bfloat16.
    'spacing': 0.03125,
  }
  assert find(expected, _answer([0]))['gap'] is None


def _rows(*seconds, **fields):
  return [
    {'arm': arm, 'decode_s': [s], 'blocks': 2, 'tokens': 8, **fields}
    for arm, s in seconds
  ]


_LAYERS = {
  'verifier': {'layers': 18, 'of_layers': 34},
  'drafter': {'layers': 18, 'of_layers': 18},
}
_FIGURES = {
  'device': {'copy': {'bytes_per_s': 1e12}},
  'correctness': {
    'greedy, float32': dict(
      prompts=2, tokens=9, must_agree=True, divergences=[]
    ),
    'greedy, bfloat16': dict(
      prompts=2,
      tokens=9,
      must_agree=False,
      divergences=[
        dict(prompt='x', position=3, tokens=[1, 2], gap=0.5, spacing=0.25)
      ],
    ),
    'law, token': dict(samples=9, z=6.0, agrees=False, detail=''),
  },
  'unit_costs': {
    f'w{w}': dict(
      shape='4B',
      batch=1,
      width=w,
      pass_s=[s],
      bytes=1e9,
      layers=18,
      of_layers=34,
    )
    for w, s in ((1, 0.002), (5, 0.0024))
  },
  'floor': {
    'x': dict(
      pair='a|b',
      batch=1,
      layers=_LAYERS,
      rows=_rows(
        ('alone', 2.1), ('floor', 2.0), ('strict', 2.4), ('floor', 2.0)
      ),
    )
  },
  'speed': {
    'x': dict(
      pair='a|b',
      batch=1,
      layers=_LAYERS,
      rows=[
        *_rows(('alone', 2.0), rate=None),
        *_rows(('strict', 1.0), rate=0.8, acceptance=0.79),
      ],
    )
  },
}


def test_a_summary_says_what_is_met(tmp_path):
  for name, figures in _FIGURES.items():
    result = PhaseResult(setting=_SETTING, figures=figures, date='2026-01-02')
    phase_results.write(tmp_path, name, result)
  summary = device_summary.summarize(phase_results.read_all(tmp_path))
  assert {x.heading: (x.value, x.is_met) for x in summary.verdicts} == {
    'Greedy strict decoding equals the verifier': ('2 of 2', True),
    'First divergences that are near ties': ('1 of 1', True),
    'Samples follow their law': ('0 of 1', False),
    'Memory speed': ('50%', None),
    'Reading 5 tokens, relative to one': ('1.20', None),
    'Loop time relative to its floor, worst': ('1.20', False),
    'Strict decoding relative to the verifier alone, best': ('2.00 x', None),
  }
  text = summary.text()
  assert 'differs at token 3  gap 0.5, 2.0 spacings' in text
  assert '18 of 34 and 18' in text
  device_page.write(tmp_path, summary)
  table = (tmp_path / 'table.md').read_text()
  assert r'# cpu &lt;b\>: check of the device' in table
  assert (
    r'| a\|b | 18 of 34 and 18 | 1 | strict | 1200.000 | 1.20 | NO |' in table
  )
  page = (tmp_path / 'index.html').read_text()
  assert page.count('role="img"') == 2
  # One file, which loads nothing.
  assert not re.search(r'(src|href)="(?!#)|url\((?!#)|@import|<script', page)


@pytest.mark.parametrize(
  ('change', 'sentence'),
  [
    ({'setting': {}}, 'floor.json: setting.device is missing; delete it'),
    ({'figures': []}, 'floor.json: figures must be'),
    ({'figures': {'x': {}}}, 'floor.json has unexpected figures (KeyError'),
  ],
)
def test_a_damaged_file_is_a_sentence(change, sentence, tmp_path):
  fields = PhaseResult(setting=_SETTING).model_dump() | change
  (tmp_path / 'floor.json').write_text(json.dumps(fields))
  with pytest.raises(ValueError, match=re.escape(sentence)) as e:
    device_summary.summarize(phase_results.read_all(tmp_path))
  assert '\n' not in str(e.value)


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
  results = phase_results.read_all(tmp_path)
  assert list(results) == list(device_phases.PHASES)
  for name, result in results.items():
    assert result.is_complete, (name, result.errors, result.left_out)
  assert done.stdout.splitlines()[-1] == str(tmp_path / 'index.html')
  assert 'Greedy strict decoding equals the verifier' in done.stdout
  greedy = results['correctness'].figures['greedy, float32']
  assert greedy['prompts'] == 4
  assert not greedy['divergences']
  assert 'Traceback' not in done.stderr
