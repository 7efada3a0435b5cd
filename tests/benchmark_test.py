"""Benchmarks and the check of a new device, on models of no size."""

import dataclasses
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
from experiments import benchmarks, cli
from experiments.accelerators import (
  device_correctness,
  device_facts,
  device_phases,
  device_table,
  measuring,
)
from experiments.accelerators.device_phases import Measurement, Phase
from experiments.benchmarks import (
  answering,
  eight_bits,
  entrants,
  harness,
  loops,
  lower_bounds,
  peers,
)
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
  timed = [row for row in figures if 'decode_s' in row]
  arms = [row['arm'] for row in timed]
  counted = {arm: arms.count(arm) for arm in arms}
  assert counted == dict(gemma=1, alone=1, floor=3, strict=3, token_v3=2)
  for row in timed:
    assert len(row['decode_s']) == len(row['prefill_s']) == 2
    assert row['weight_bytes'] > 0
    assert row['arm'] == 'floor' or row['tokens'] == 12
    assert row['arm'] not in ('gemma', 'alone') or row['same_tokens']
  rows = loops.rows(figures)
  assert sum(row['over_floor'] is not None for row in rows) == 3
  assert all(row['over_copy'] > 0 for row in rows)
  _, held = map(harness.format_table, loops.tables(figures))
  assert 'small, batch 1: loop time by its floor, worst gamma' in held


def _entrant(name, seconds, **facts):
  """An entrant whose runs take the given seconds, one after the other."""
  turns = iter(seconds)
  run = lambda: {'decode_s': next(turns)} | facts  # noqa: E731
  return harness.Entrant({'arm': name}, run)


def test_a_race_keeps_all_seconds_and_compares_tokens():
  first = _entrant('first', (9.0, 1.0, 2.0), first=[1, 2, 3], tokens=3)
  other = _entrant('other', (9.0, 3.0, 4.0), first=np.array([1, 2, 4]))
  short = _entrant('short', (9.0, 3.0, 4.0), first=[1, 2])
  unknown = _entrant('unknown', (9.0, 3.0, 4.0), first=None)
  assert harness.race([first, other, short, unknown], 2, 'race') == [
    dict(arm='first', decode_s=[1.0, 2.0], same_tokens=True, tokens=3),
    dict(arm='other', decode_s=[3.0, 4.0], same_tokens=False),
    dict(arm='short', decode_s=[3.0, 4.0], same_tokens=True),
    dict(arm='unknown', decode_s=[3.0, 4.0], same_tokens=None),
  ]


def test_entrants_take_turns_after_one_that_warms_up():
  calls = []
  runs = [lambda name=name: calls.append(name) or len(calls) for name in 'ab']
  outputs = harness.run_in_turns(runs, 2, 'turns')
  assert ''.join(calls) == 'baabba'
  assert outputs == [[3, 6], [4, 5]]
  # The first run is that which compiles.
  warm, output = harness.warm_up(_entrant('x', (9.0, 2.0), blocks=5))
  assert warm.fields == {'arm': 'x', 'compile_s': 7.0}
  assert output == {'decode_s': 2.0, 'blocks': 5}


def test_a_table_has_what_its_rows_have_and_a_ratio_its_bound():
  columns = {'a': ('x', None), 'b': ('y', 2), 'c': ('z', 0)}
  rows = [{'x': 'one', 'y': 1.236}, {'x': 'two'}]
  bounds = [('<=', 1.1, x) for x in (1.1, 1.11)]
  bounds += [('>=', 2, x) for x in (2.0, 1.99)]
  held = [harness.threshold('x', *bound) for bound in bounds]
  table, thresholds = harness.tables(columns, rows, held)
  assert table == [['a', 'b'], ['one', '1.24'], ['two', '-']]
  assert harness.format_table(table) == 'a    b\none  1.24\ntwo  -'
  assert thresholds[:2] == [harness.THRESHOLDS, ('x', '<= 1.1', '1.10', 'yes')]
  assert [met for *_, met in held] == ['yes', '**no**', 'yes', '**no**']


def test_a_forced_method_keeps_as_many_as_it_is_told():
  d = jax.tree.map(jnp.asarray, law_checks.draw_distributions('random', 8))
  method = entrants.force_acceptance(methods.METHODS['token_v3'], True)
  kept = jax.vmap(method.acceptance, (0, None))(d, jnp.float32(0.7))
  np.testing.assert_allclose(kept, 0.7, rtol=1e-6)


@pytest.mark.parametrize('gamma', [0, 2])
def test_the_floor_makes_the_passes_of_a_strict_block(gamma, monkeypatch):
  """Gamma of the drafter, whose first reads two tokens; one of the verifier."""
  passes = []

  def read(model, params, cache, tokens, at):
    passes.append((model.name, tokens.shape[0], int(at) - int(cache)))
    assert params == model.name
    return jnp.eye(7)[tokens + 1], cache + tokens.shape[0]

  monkeypatch.setattr(decoding, 'read', read)
  # The cache of a model is where it stands.
  verifier, drafter = (
    types.SimpleNamespace(name=name, rewind=lambda cache, at: at)
    for name in ('verifier', 'drafter')
  )
  start = (jnp.int32(90), jnp.int32(90)), jnp.int32(0)
  with jax.disable_jit():
    caches, token = lower_bounds.block(
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
  timed = dict(prefill_s=[1.0], decode_s=[decode_s], weight_bytes=8)
  return fields | timed | more


def test_the_loop_is_held_to_gemma_and_to_its_floor():
  written = dict(tokens=40)
  figures = [
    {'arm': 'copy', 'bytes_per_s': 2.0},
    _row('gemma', 0, 80.0, 40, **written),
    _row('alone', 0, 40.0, 40, **written),
    _row('floor', 0, 40.0, 40),
    _row('strict', 3, 16.0, 10, acceptance=1.0, lenience=0.0, **written),
    # Another share of drafts, which makes blocks that the floor does not.
    _row('strict', 3, 8.0, 9, acceptance=1.0, lenience=0.9, **written),
    _row('floor', 3, 15.0, 10),
    _row('strict', 4, 20.0, 8, acceptance=1.0, lenience=0.0, **written),
    _row('floor', 4, 10.0, 8),
    _row('token_v3', 3, 15.0, 10, **written),
    # Of another batch, and no bound for these.
    _row('floor', 3, 1.0, 10, batch=4),
  ]
  rows = loops.rows(figures)
  strict, apart, _ = (row for row in rows if row['arm'] == 'strict')
  assert strict['over_gemma'] == pytest.approx(5)
  assert strict['over_alone'] == pytest.approx(2.5)
  assert strict['over_floor'] == pytest.approx(16 / 15)
  assert strict['over_copy'] == pytest.approx(8 / 16 / 2)
  assert strict['ms_per_block'] == pytest.approx(1600)
  assert apart['over_floor'] is None
  (every,) = (r for r in rows if r['arm'] == 'token_v3')
  assert every['over_floor'] is None
  floor = 'bundled, batch 1: loop time by its floor'
  assert loops.thresholds(figures) == [
    (f'{floor}, median of gammas', '<= 1.25', '1.07', 'yes'),
    (f'{floor}, worst gamma', '<= 1.25', '2.00', '**no**'),
    ('bundled, batch 1: the verifier alone, by gemma', '>= 1', '2.00', 'yes'),
    # The fastest.
    ('bundled, batch 1: strict at gamma 3, by gemma', '>= 2', '5.00', 'yes'),
  ]


def _answered(arm, decode_s, calls=None, dtype='float32', **more):
  fields = dict(part='problems', dtype=dtype, batch=1, arm=arm, tokens=20)
  seconds = [9 * decode_s, decode_s, decode_s / 9]
  return fields | dict(decode_s=seconds, verifier_calls=calls) | more


def test_answers_are_compared_within_their_group():
  cost = {'part': 'costs', 'dtype': 'float32'}
  proposing = {'arm': 'strict', 'what': 'proposing'}
  figures = [
    cost | {'arm': 'alone', 'what': 'reading', 'block_s': [1.0]},
    cost | {'arm': 'strict', 'what': 'reading', 'block_s': [1.5]},
    cost | proposing | {'block_s': [0.5], 'passes': 5},
    _answered('alone', 10.0, 20),
    _answered('strict', 5.0, 5, accepted=15, examined=20, drafter_calls=20),
    _answered('transformers, plain', 20.0),
    _answered('alone', 8.0, 20, 'bfloat16'),
    _answered('n-gram', 8.0, 20, 'bfloat16', batch=8),
  ]
  rows = answering.rows(figures)
  assert [row['over_alone'] for row in rows] == [1, 2, 0.5, 1, 1]
  strict = rows[1]
  assert strict['tokens_per_call'] == 4
  assert strict['acceptance'] == 0.75
  # A block gives 4 tokens, where the verifier alone takes 1 for each; it has
  # four passes of the five that were timed.
  assert strict['latency'] == pytest.approx((1.5 + 0.5 * 4 / 5) / 4)
  # Older figures do not say how many were timed.
  figures[2] = cost | proposing | {'block_s': [0.5]}
  assert answering.rows(figures)[1]['latency'] == 0.5
  assert 'latency' not in rows[3]
  one, other = (f'problems, {x}, batch 1' for x in ('float32', 'bfloat16'))
  assert answering.thresholds(figures) == [
    (f'{one}: alone by transformers, plain', '>= 2.7', '2.00', '**no**'),
    (f'{one}: strict by alone', '>= 1.6', '2.00', 'yes'),
    (f'{other}: alone by float32', '>= 1.54', '1.25', '**no**'),
  ]


@pytest.mark.slow
def test_drafters_are_timed(tmp_path, no_cache):
  fields = dict(num_examples=3, new_tokens=40, repeats=1, gamma=2)
  config = _config('benchmark_drafters', **fields)
  config.problems = config.problems[0], config.problems[2]
  figures = _figures(config, tmp_path)
  rows = {(r['part'], r['arm']): r for r in answering.rows(figures)}
  assert len(rows) == 4
  assert rows['problems', 'none']['tokens_per_call'] == 1
  assert rows['problems', 'none']['latency'] == 1
  assert rows['problems', 'model, 4']['tokens_per_call'] > 1.5
  # What stands in the prompt already is found there.
  assert rows['copies', 'n-gram']['tokens_per_call'] > 1
  assert rows['copies', 'n-gram']['same_tokens']


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


_SHORT = dict(verifier='tiny-verifier', path=str(_DATA / 'multi30k_de_en'))
_SHORT |= dict(shots=1, stop='\n', new_tokens=6, repeats=1, context=16)
_SHORT |= dict(num_examples=2)


@pytest.mark.slow
def test_a_pretrained_model_is_timed_by_others(tmp_path, monkeypatch, no_cache):
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
      for x in answering.rows(figures)
      if x['dtype'] == y
    }
    for y in config.dtypes
  )
  # No other loop has int8.
  assert {arm for _, arm in int8} == {'alone', 'strict', 'n-gram'}
  # Ours, gemma's and the peer's; ours copy.
  assert len(rows) == 3 + 1 + 3 + 3
  for (part, arm), row in rows.items():
    if arm == 'gemma':
      # All that it writes, of the first prompt.
      assert row['tokens'] == 6
    if arm.startswith('transformers'):
      assert (part, row['same_tokens']) == ('problems', None)
    else:
      # Strict and greedy, all write what the verifier does.
      assert row['same_tokens']
  assert math.isfinite(rows['problems', 'strict']['latency'])
  names = [name for name, *_ in answering.thresholds(figures)]
  assert 'problems, float32, batch 1: alone by transformers, plain' in names


@pytest.mark.slow
def test_eight_bits_are_timed_beside_floats(tmp_path, monkeypatch, no_cache):
  monkeypatch.setattr(peers, 'Peer', _Peer)
  monkeypatch.setattr(eight_bits.package_index, 'fetch', lambda name: name)
  fields = _SHORT | dict(drafter='tiny-drafter', num_compared=2, widths=(1, 5))
  config = _config('benchmark_int8', **fields, llama='a Python')
  figures = _figures(config, tmp_path)
  arms = [(x['arm'], x['width']) for x in figures if x['part'] == 'reading']
  assert len(arms) == len(set(arms)) == 3 * 2
  # Two samplers of two dtypes at each batch size, and the peer at one.
  assert sum(x['part'] == 'answers' for x in figures) == 2 * 4 + 1
  distance = figures[-1]
  assert 0 < distance['kl_low'] <= distance['kl'] <= distance['kl_high'] < 0.1
  assert distance['agreement'] > 0.5
  text = '\n'.join(map(harness.format_table, eight_bits.tables(figures)))
  names = 'reading 5 by 1, int8', 'strict, int8, by llama.cpp'
  for name in (*names, 'KL divergence per'):
    assert name in text


@pytest.mark.parametrize(
  ('name', 'field', 'value', 'said'),
  [
    ('benchmark_int8', 'widths', (0,), 'widths: must be 1 or more, got 0'),
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


def test_weights_are_read_as_often_as_a_block_needs_them(monkeypatch):
  arms = [('alone', 0), ('strict', 4), ('floor', 4), ('token_v3', 4)]
  timed = [dict(arm=arm, gamma=gamma, blocks=2) for arm, gamma in arms]
  monkeypatch.setattr(loops, '_entrants', lambda *_: [])
  monkeypatch.setattr(harness, 'race', lambda *_: timed)
  monkeypatch.setattr(jax, 'clear_caches', lambda: None)
  params = np.zeros(100, np.int8), np.zeros(1, np.int8)
  pair = types.SimpleNamespace(name='a', repeats=1, params=params)
  rows = loops._measure(None, pair, {'batch': 1})
  assert [x['weight_bytes'] for x in rows] == [200, 208, 208, 210]


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


# --- The check of a new device: phases, figures, limits, faults and table.


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
