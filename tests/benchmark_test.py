"""Benchmarks and the check of a new device, on models of no size."""

import json
import math
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import launching
import numpy as np
import pytest
import small

from cascades import decoding, methods
from cascades.proof import law_checks
from configs import common
from experiments import accelerator, benchmarks, cli, measuring
from experiments.benchmarks import answering, loops, peers
from experiments.sweeps import workdirs

_DATA = pathlib.Path(__file__).parent / 'data/tasks'


def _config(name, **fields):
  config = cli.load_config_module(f'configs/{name}.py').get_config()
  with config.unlocked():
    config.update(fields)
  return config


def _figures(config, workdir):
  """Runs a benchmark, and returns its figures."""
  benchmarks.run(config, workdir)
  return small.read_json(workdir / 'benchmark.json')['figures']


@pytest.fixture
def no_cache():
  """Keeps what a run sets of the whole process."""
  before = jax.config.jax_enable_compilation_cache
  yield
  jax.config.update('jax_enable_compilation_cache', before)


@pytest.mark.slow
def test_the_loop_is_timed_once_and_a_run_continues(tmp_path, no_cache):
  config = _config('benchmark')
  models = (common.shape('gemma2', n, 32, 1, 2, 1, 8, 512) for n in (32, 16))
  config.pairs = (common.pair(*models, 'small'),)
  config.batch_sizes, config.gammas, config.gamma = (1,), (1, 2), 2
  config.acceptances, config.repeats, config.new_tokens = (0.5, 0.9), 2, 12
  benchmarks.run(config, tmp_path)
  text = (tmp_path / 'benchmark.json').read_text()
  # Nothing is left to be done, and nothing is done twice.
  benchmarks.run(config, tmp_path)
  assert (tmp_path / 'benchmark.json').read_text() == text
  config.repeats = 3
  with pytest.raises(ValueError, match='figures of another config;'):
    benchmarks.run(config, tmp_path)
  figures = json.loads(text)['figures']
  arms = [row['arm'] for row in figures]
  counted = {arm: arms.count(arm) for arm in arms}
  assert counted == dict(gemma=1, alone=1, floor=3, strict=3, token_v3=2)
  for row in figures:
    assert len(row['decode_s']) == len(row['prefill_s']) == 2
    assert row['arm'] == 'floor' or row['tokens'] == 12
    assert row['arm'] not in ('gemma', 'alone') or row['same_tokens']
  (rows,) = loops.tables(figures)
  assert sum('x floor' in row for row in rows) == 3


def _entrant(name, seconds, **facts):
  """An entrant whose runs take the given seconds, one after the other."""
  turns = iter(seconds)
  run = lambda: {'decode_s': next(turns)} | facts  # noqa: E731
  return measuring.Entrant({'arm': name}, run)


def test_a_race_keeps_all_seconds_and_compares_tokens():
  first = _entrant('first', (9.0, 1.0, 2.0), first=[1, 2, 3], tokens=3)
  other = _entrant('other', (9.0, 3.0, 4.0), first=np.array([1, 2, 4]))
  short = _entrant('short', (9.0, 3.0, 4.0), first=[1, 2])
  unknown = _entrant('unknown', (9.0, 3.0, 4.0), first=None)
  assert measuring.race([first, other, short, unknown], 2, 'race') == [
    dict(arm='first', decode_s=[1.0, 2.0], same_tokens=True, tokens=3),
    dict(arm='other', decode_s=[3.0, 4.0], same_tokens=False),
    dict(arm='short', decode_s=[3.0, 4.0], same_tokens=True),
    dict(arm='unknown', decode_s=[3.0, 4.0], same_tokens=None),
  ]


def test_entrants_take_turns_after_one_that_warms_up():
  calls = []
  runs = [lambda name=name: calls.append(name) or len(calls) for name in 'ab']
  outputs = measuring.take_turns(runs, 2)
  assert ''.join(calls) == 'abbaab'
  assert outputs == [[4, 5], [3, 6]]
  # The first run is that which compiles.
  warm, output = measuring.warm_up(_entrant('x', (9.0, 2.0), blocks=5))
  assert warm.fields == {'arm': 'x', 'compile_s': 7.0}
  assert output == {'decode_s': 2.0, 'blocks': 5}


def test_a_table_has_the_columns_that_have_values():
  rows = [{'x': 'a|b', 'y': 1.23456}, {'x': 'two', 'z': None, 'y': None}]
  table = '| x | y |\n| --- | --- |\n| a\\|b | 1.235 |\n| two | - |'
  assert measuring.table(rows) == table


def test_a_forced_method_keeps_as_many_as_it_is_told():
  d = jax.tree.map(jnp.asarray, law_checks.draw_distributions('random', 8))
  method = loops.force_acceptance(methods.METHODS['token_v3'], True)
  kept = jax.vmap(method.acceptance, (0, None))(d, jnp.float32(0.7))
  np.testing.assert_allclose(kept, 0.7, rtol=1e-6)


@pytest.mark.parametrize('gamma', [0, 2])
def test_the_floor_makes_the_passes_of_a_strict_block(gamma, monkeypatch):
  """Gamma of the drafter, whose first reads two tokens; one of the verifier."""
  passes = []

  def read(model, params, cache, tokens, at):
    passes.append((model.name, tokens.shape[0], int(at) - int(cache)))
    assert params == model.name
    return jnp.eye(7)[tokens + 1], None, cache + tokens.shape[0]

  monkeypatch.setattr(decoding, 'read_hidden', read)
  # The cache of a model is where it stands.
  verifier, drafter = (
    types.SimpleNamespace(name=name, rewind=lambda cache, at: at)
    for name in ('verifier', 'drafter')
  )
  start = (jnp.int32(90), jnp.int32(90)), jnp.int32(0)
  with jax.disable_jit():
    caches, token = loops.block(
      (verifier, drafter),
      gamma,
      cache_length=64,
      index=jnp.int32(2),
      state=start,
      params=('verifier', 'drafter'),
    )
  drafts = [('drafter', 2, 0)] + (gamma - 1) * [('drafter', 1, 0)]
  verifies = [('verifier', gamma + 1, 0)]
  assert passes == (drafts if gamma else []) + verifies
  # Where the next block's tokens begin, and a token that all passes made.
  assert int(caches[0]) == 3 * (gamma + 1)
  assert 0 <= int(token) < 7


def _row(arm, gamma, decode_s, blocks, **more):
  fields = dict(pair='bundled', batch=1, arm=arm, gamma=gamma, blocks=blocks)
  timed = dict(prefill_s=[1.0], decode_s=[decode_s], compile_s=1.0)
  return fields | timed | more


def test_the_loop_is_compared_with_gemma_and_with_its_floor():
  written = dict(tokens=40)
  figures = [
    _row('gemma', 0, 80.0, 40, **written),
    _row('alone', 0, 40.0, 40, **written),
    _row('floor', 0, 40.0, 40),
    _row('strict', 3, 16.0, 10, **written),
    # Another share of drafts, which makes blocks that the floor does not.
    _row('strict', 3, 8.0, 9, **written),
    _row('floor', 3, 15.0, 10),
    _row('token_v3', 3, 15.0, 10, **written),
    # Of another batch.
    _row('floor', 3, 1.0, 10, batch=4),
  ]
  (rows,) = loops.tables(figures)
  strict, apart = (row for row in rows if row['arm'] == 'strict')
  assert strict['x gemma'] == pytest.approx(5)
  assert strict['x alone'] == pytest.approx(2.5)
  assert strict['x floor'] == pytest.approx(16 / 15)
  assert strict['ms/block'] == pytest.approx(1600)
  assert 'x floor' not in apart
  (lenient,) = (r for r in rows if r['arm'] == 'token_v3')
  assert 'x floor' not in lenient


def _answered(arm, decode_s, calls=None, dtype='float32', **more):
  fields = dict(part='problems', dtype=dtype, batch=1, arm=arm, tokens=20)
  seconds = [9 * decode_s, decode_s, decode_s / 9]
  return fields | dict(decode_s=seconds, verifier_calls=calls) | more


def test_answers_are_compared_within_their_group():
  figures = [
    _answered('alone', 10.0, 20),
    _answered('strict', 5.0, 5, accepted=15, examined=20, drafter_calls=20),
    _answered('alone', 8.0, 20, 'bfloat16'),
    _answered('n-gram', 8.0, 20, 'bfloat16'),
  ]
  (rows,) = answering.tables(figures)
  assert [row['x alone'] for row in rows] == [1, 2, 1, 1]
  strict = rows[1]
  assert strict['tokens per call'] == 4
  assert strict['acceptance'] == 0.75


_LLAMA = """
class CommonParams:
  class model: path = ''
  class cpuparams: n_threads = 0
  class cpuparams_batch: n_threads = 0

class Server:
  def __init__(self, params):
    self.path = params.model.path

  def handle_completions(self, asked):
    n = len(asked['prompt'])
    timings = {'prompt_ms': 1000.0 * n, 'predicted_ms': 500.0, 'predicted_n': n}
    print('a log of its own')
    return {'timings': timings}
"""
_SPEC = dict(verifier='x.gguf', prompts=[[7, 8, 9], [7, 8]], stop_text='.')
_SPEC |= dict(new_tokens=4, threads=1)


def test_other_peoples_loops_answer_from_a_process(tmp_path, monkeypatch):
  (tmp_path / 'xllamacpp.py').write_text(_LLAMA)
  about = tmp_path / 'xllamacpp-9.dist-info'
  about.mkdir()
  (about / 'METADATA').write_text('Name: xllamacpp\nVersion: 9\n')
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  with peers.Peer(sys.executable, 'llama', _SPEC) as other:
    assert other.versions == {'xllamacpp': '9'}
    for _ in range(2):
      assert other.answer('plain', 1) == {
        'prefill_s': 5.0,
        'decode_s': 1.0,
        # Its first token comes of reading the prompt.
        'tokens': 3.0,
        'first': None,
      }
  (tmp_path / 'xllamacpp.py').write_text('raise OSError')
  with pytest.raises(ValueError, match='with llama ended; check that it can'):
    peers.Peer(sys.executable, 'llama', _SPEC)
  with pytest.raises(ValueError, match='python: /nowhere cannot be started'):
    peers.Peer('/nowhere', 'llama', _SPEC)


class _Peer:
  """A peer that says what it is asked."""

  def __init__(self, python, engine, spec):
    assert python == 'a Python'
    if engine == 'transformers':
      assert spec['stop_text'] == '\n'
      for name in ('verifier', 'drafter'):
        assert (pathlib.Path(spec[name]) / 'config.json').is_file()
    self.versions = {engine: '9'}

  def __enter__(self):
    return self

  def __exit__(self, *_):
    pass

  def answer(self, kind, batch):
    return dict(prefill_s=1.0, decode_s=2.0, tokens=batch, first=None)


_SHORT = dict(
  verifier='tiny-verifier', path=str(_DATA / 'multi30k_de_en.jsonl')
)
_SHORT |= dict(shots=1, stop='\n', new_tokens=6, repeats=1)
_SHORT |= dict(num_examples=2)


@pytest.mark.slow
def test_a_pretrained_model_is_timed(tmp_path, monkeypatch, no_cache):
  monkeypatch.setattr(peers, 'Peer', _Peer)
  fields = _SHORT | dict(assistant='tiny-drafter', transformers='a Python')
  fields |= dict(batch_sizes=(1,), dtypes=('float32', 'int8'))
  config = _config('benchmark_270m', **fields)
  for part in (config.problems, config.copies):
    part[1].drafter = 'tiny-drafter'
  figures = _figures(config, tmp_path)
  rows, int8 = (
    {
      (x['part'], x['arm']): x
      for x in answering.tables(figures)[0]
      if x['dtype'] == y
    }
    for y in config.dtypes
  )
  # No other loop has int8.
  assert {arm for _, arm in int8} == {'alone', 'strict', 'n-gram'}
  # Ours, gemma's and the peer's; ours copy.
  assert len(rows) == 3 + 1 + 3 + 3
  # Strict and greedy, all write what the verifier does; the peer says nothing.
  for (_, arm), row in rows.items():
    assert row['same tokens'] or arm.startswith('transformers')


@pytest.mark.parametrize(
  ('name', 'field', 'value', 'said'),
  [
    ('benchmark', 'repeats', 0, 'repeats: must be 1 or more, got 0'),
    ('benchmark', 'gammas', (), 'gammas: must have at least one value'),
    ('benchmark', 'acceptances', (1.5,), 'acceptances: must be above 0, up to'),
    ('benchmark', 'suite', 'odd', 'suite: must be one of loops, answering'),
    ('benchmark_drafters', 'dtypes', ('float8',), 'dtype'),
    ('benchmark_drafters', 'temperature', -1.0, 'temperature'),
  ],
)
def test_bad_fields_are_named(name, field, value, said, tmp_path, no_cache):
  with pytest.raises(ValueError, match=said):
    benchmarks.run(_config(name, **{field: value}), tmp_path)


def test_figures_of_another_commit_stay(tmp_path, monkeypatch, no_cache):
  part = {'arm': 'a'}, lambda: [{'arm': 'a'}]
  monkeypatch.setattr(loops, 'parts', lambda config: [part])
  monkeypatch.setattr(loops, 'tables', lambda figures: [])
  benchmarks.run(_config('benchmark'), tmp_path)
  benchmarks.run(_config('benchmark'), tmp_path)
  other = {'commit': 'other'}
  monkeypatch.setattr(workdirs, 'provenance', lambda facts: other)
  with pytest.raises(ValueError, match='holds figures of another commit;'):
    benchmarks.run(_config('benchmark'), tmp_path)


def _rows(capsys):
  return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def _raise(error):
  def run(*_):
    raise error

  return run


def test_a_measurement_that_fails_is_a_row_of_the_check(monkeypatch, capsys):
  plan = {
    'a': lambda: [('x', '1 ms', True), ('y', '2 ms', None)],
    'b': _raise(RuntimeError('RESOURCE_EXHAUSTED: out of\nmemory')),
    'c': lambda: [('', '3 ms', False)],
  }
  monkeypatch.setattr(accelerator, '_loops', lambda tiny: plan.items())
  accelerator._model('tiny 1')
  accelerator.measure('loops', tiny=True)
  assert not accelerator._model.cache_info().currsize
  rows = [(x['measured'], x['result'], x['met']) for x in _rows(capsys)]
  error = 'RuntimeError: RESOURCE_EXHAUSTED: out of memory'
  assert rows == [
    ('a, x', '1 ms', 'yes'),
    ('a, y', '2 ms', ''),
    ('b', error, 'failed'),
    ('c', '3 ms', 'NO'),
  ]


def test_a_phase_that_hangs_loses_only_what_it_has_not_measured(tmp_path):
  code = 'import time; print(\'5\\n{"phase": "a"}\', flush=1); time.sleep(99)'
  path = tmp_path / 'figures.jsonl'
  accelerator.run_phase('a', [sys.executable, '-c', code], path, 3.0)
  first, last = accelerator.read_rows(path)
  assert first == {'phase': 'a'}
  assert last['result'] == 'stopped after 3 s; give it more --minutes'
  code = 'raise SystemExit(3)'
  accelerator.run_phase('b', [sys.executable, '-c', code], path, 99.0)
  *_, last = accelerator.read_rows(path)
  assert last['result'] == 'the process ended with code 3'


def test_how_near_a_tie_was_is_in_spacings_of_bfloat16():
  logits = np.array([[1.0, 0.0, 0.0], [5.0, 5.03125, -1.0]])

  def answer(*tokens):
    return types.SimpleNamespace(tokens=list(tokens), logits=logits)

  assert accelerator.first_gap(answer(0, 1), answer(0, 1)) is None
  # From 4 to 8 there are 128 numbers of bfloat16.
  assert accelerator.first_gap(answer(0, 1), answer(0, 0)) == 1.0
  assert accelerator.first_gap(answer(0, 1), answer(0)) == math.inf


# Hides packages that a machine without a network may lack, and the network.
_LEAN = """
import importlib.machinery, socket, sys
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
"""


@pytest.mark.slow
def test_all_phases_are_rehearsed_without_tensorflow_or_a_network(
  tmp_path, monkeypatch
):
  (tmp_path / 'sitecustomize.py').write_text(_LEAN)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  monkeypatch.setenv('XLA_FLAGS', '--xla_cpu_enable_fast_math=false')
  (tmp_path / 'own.py').write_text('import os; print(os.environ["XLA_FLAGS"])')
  flags = '--tiny', '--minutes=10', f'--workdir={tmp_path}', '--import=own'
  done = launching.python('-m', 'experiments.accelerator', *flags)
  assert done.returncode == 0, done.stderr
  assert (tmp_path / 'figures.jsonl').read_text().count('fast_math') == 4
  phases = [x.split(' | ')[0][2:] for x in done.stdout.splitlines()[3:]]
  assert list(dict.fromkeys(phases)) == list(accelerator.PHASES)
  assert ' failed |' not in done.stdout
  assert '| correctness | greedy, float32 | 4 of 4 agree' in done.stdout
  assert 'Traceback' not in done.stderr
