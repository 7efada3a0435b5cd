"""The benchmark of the loop, on models of no size, and its arithmetic."""

import importlib
import json
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from cascades import methods
from cascades.proof import exact
from experiments import benchmarks, cli
from experiments.benchmarks import arms, digits, elsewhere, loops, stopwatch
from experiments.benchmarks import proposals as drafters_suite

_DATA = pathlib.Path(__file__).parent / 'data/tasks'


def _shape(width):
  return dict(
    model_type='gemma2',
    vocab_size=512,
    hidden_size=width,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    query_pre_attn_scalar=8,
  )


@pytest.fixture(scope='module')
def found(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('benchmark')
  config = cli.load_config_module('configs/benchmark.py').get_config()
  config.pairs = (
    ml_collections.ConfigDict(
      {'name': 'small', 'verifier': _shape(32), 'drafter': _shape(16)}
    ),
  )
  config.compiles = False
  config.batch_sizes, config.gammas, config.gamma = (1,), (1, 2), 2
  config.acceptances, config.repeats, config.new_tokens = (0.5, 0.9), 2, 12
  before = jax.config.jax_enable_compilation_cache
  benchmarks.run(config, workdir)
  # Nothing is left to be done, and nothing is done twice.
  figures = (workdir / 'benchmark.json').read_text()
  benchmarks.run(config, workdir)
  assert (workdir / 'benchmark.json').read_text() == figures
  (start,) = json.loads(figures)['starts']
  assert {'command', 'commit', 'dirty'} <= start.keys()
  config.repeats = 3
  with pytest.raises(ValueError, match='figures of another config;'):
    benchmarks.run(config, workdir)
  jax.config.update('jax_enable_compilation_cache', before)
  return json.loads((workdir / 'benchmark.json').read_text())


@pytest.mark.slow
def test_every_arm_is_timed(found):
  timed = [row for row in found['figures'] if 'decode_s' in row]
  arms = [row['arm'] for row in timed]
  assert {arm: arms.count(arm) for arm in arms} == {
    'gemma': 1,
    'alone': 1,
    'lock-step': 1,
    'strict': 3,
    'token_v3': 2,
    'floor': 3,
    'reading': 2,
    'drafting': 1,
  }
  for row in timed:
    assert len(row['decode_s']) == len(row['prefill_s']) == 2
    assert min(row['decode_s']) > 0
    if 'tokens' in row:
      assert row['tokens'] == 12 * row['batch']
    if row['arm'] in ('gemma', 'alone', 'lock-step'):
      assert row['same_tokens']


@pytest.mark.slow
def test_all_that_follows_is_there(found):
  rows = loops.rows(found['figures'])
  strict = [r for r in rows if r['arm'] == 'strict' and r['batch'] == 1]
  assert all(row['over_formula'] > 0 for row in strict)
  assert sum('over_floor' in row for row in strict) == 2
  names = [name for name, *_ in loops.targets(found['figures'])]
  assert len(set(names)) == len(names) == 5
  table = loops.table(found['figures'])
  for word in ('small', 'lock-step', 'x floor', 'target', 'formula'):
    assert word in table


def test_every_suite_has_what_run_asks_of_it():
  for name in benchmarks.SUITES.values():
    suite = importlib.import_module(f'experiments.benchmarks.{name}')
    assert all(map(callable, (suite.check, suite.measure, suite.table)))
    assert f'  {name} ' in benchmarks.__doc__


@pytest.mark.parametrize(
  ('alternate', 'called'), [(False, 'ababab'), (True, 'baabba')]
)
def test_arms_take_turns_after_one_that_warms_up(alternate, called):
  calls = []
  turns = [lambda name=name: calls.append(name) or len(calls) for name in 'ab']
  bar = cli.progress(6, 'turns', quiet=True)
  found = stopwatch.take_turns(turns, 2, bar, alternate)
  assert ''.join(calls) == called
  assert found == [
    [i + 1 for i in (2, 3, 4, 5) if called[i] == x] for x in 'ab'
  ]


def test_seconds_are_those_of_the_call():
  seconds, found = stopwatch.timed(time.sleep, 0.02)
  assert found is None
  assert seconds >= 0.02
  seconds, double = stopwatch.compiled(jax.jit(lambda x: 2 * x), np.ones(2))
  assert seconds > 0
  assert double(np.ones(2)).tolist() == [2, 2]
  bar = cli.progress(3, 'turns', quiet=True)
  (times,) = stopwatch.interleave({'x': lambda: None}, 2, bar).values()
  assert len(times) == 2


def test_a_number_that_is_missing_is_a_dash():
  assert digits.cell(None, 4, 2) == '   -'
  assert digits.cell(1.236, 6, 2) == '  1.24'
  assert digits.median([3, 1, 9]) == 3


def test_a_forced_method_keeps_as_many_as_it_is_told():
  d = jax.tree.map(jnp.asarray, exact.rows('random', 8))
  for name in ('speed', 'token_v3'):
    method = arms.forced(methods.METHODS[name], True)
    kept = jax.vmap(method.acceptance, (0, None))(d, jnp.float32(0.7))
    np.testing.assert_allclose(kept, 0.7, rtol=1e-6)


def _row(arm, gamma, decode_s, blocks, **more):
  return {
    'pair': 'x',
    'batch': 1,
    'arm': arm,
    'gamma': gamma,
    'prefill_s': [1.0],
    'decode_s': [decode_s],
    'blocks': blocks,
    'tokens': 40,
    'weight_bytes': 8,
  } | more


def test_targets_are_the_formulas():
  figures = [
    _row('gemma', 0, 80.0, 40),
    _row('alone', 0, 40.0, 40),
    _row('lock-step', 1, 60.0, 40),
    _row('floor', 0, 40.0, 40),
    _row('drafting', 0, 4.0, 40),
    _row('strict', 3, 16.0, 10, acceptance=1.0, lenience=0.0),
    _row('floor', 3, 15.0, 10),
    _row('reading', 3, 10.0, 10),
  ]
  (row,) = [r for r in loops.rows(figures) if r['arm'] == 'strict']
  assert row['over_gemma'] == pytest.approx(5)
  assert row['over_lock_step'] == pytest.approx(3.75)
  assert row['over_floor'] == pytest.approx(16 / 15)
  # 4 tokens for 3 drafts of 0.1 and a reading of 1, in passes of 1.
  assert row['formula'] == pytest.approx(4 / (3 * 0.1 + 1))
  assert row['over_formula'] == pytest.approx(2.5 / (4 / 1.3))
  met = {name: met for name, _, _, met in loops.targets(figures)}
  assert met['x, batch 1: loop time by its floor, worst gamma']
  assert not met['x, batch 1: speed-up by the formula, worst gamma 3']


@pytest.mark.slow
def test_drafters_are_timed(tmp_path):
  config = cli.load_config_module('configs/benchmark_drafters.py').get_config()
  config.problems = tuple(
    arm
    for arm in config.problems
    if arm.name in ('none', 'model, 2', 'model, stops', 'recurrent')
  )
  config.copies = config.copies[:2]
  with config.unlocked():
    config.tree = ml_collections.ConfigDict(
      {'name': 'small', 'verifier': _shape(32), 'drafter': _shape(16)}
    )
  config.num_examples, config.max_new_tokens, config.repeats = 3, 40, 1
  config.new_tokens, config.tree_drafts, config.gamma = 12, (1, 2), 2
  config.batch_sizes, config.loop_tokens, config.loop_gammas = (1,), 40, (4,)
  before = jax.config.jax_enable_compilation_cache
  benchmarks.run(config, tmp_path)
  jax.config.update('jax_enable_compilation_cache', before)
  figures = json.loads((tmp_path / 'benchmark.json').read_text())['figures']
  rows = {(r['part'], r['arm']): r for r in drafters_suite.rows(figures)}
  assert len(rows) == 8
  assert rows['problems', 'none']['tokens_per_call'] == 1
  assert rows['problems', 'none']['latency'] == 1
  assert rows['problems', 'model, 2']['tokens_per_call'] > 1.5
  assert all(row['tokens_per_s'] > 0 for row in rows.values())
  # What stands in the prompt already is found there.
  assert rows['copies', 'n-gram']['tokens_per_call'] > 1
  # Greedy texts of random weights come to repeat a token.
  assert rows['loops', 'n-gram']['tokens_per_call'] > 2
  trees = [row for row in figures if row['part'] == 'tree']
  assert [row['drafts'] for row in trees] == [1, 2]
  table = drafters_suite.table(figures)
  for word in ('model, stops', 'x alone', 'ms/block'):
    assert word in table


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
_SPEC = {
  'verifier': 'x.gguf',
  'prompts': [[7, 8, 9], [7, 8]],
  'stop_text': '.',
  'new_tokens': 4,
  'threads': 1,
}


def test_other_peoples_loops_answer_from_a_process_of_their_own(
  tmp_path, monkeypatch
):
  (tmp_path / 'xllamacpp.py').write_text(_LLAMA)
  about = tmp_path / 'xllamacpp-9.dist-info'
  about.mkdir()
  (about / 'METADATA').write_text('Name: xllamacpp\nVersion: 9\n')
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  with elsewhere.Elsewhere(sys.executable, 'llama', _SPEC) as other:
    assert other.versions == {'xllamacpp': '9'}
    for _ in range(2):
      assert other.answer('plain', 1) == {
        'prefill_s': 5.0,
        'decode_s': 1.0,
        # Its first token comes of reading the prompt.
        'tokens': 3.0,
        'first': None,
      }


def test_a_python_without_them_is_named(tmp_path, monkeypatch):
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  with pytest.raises(ValueError, match='with llama ended; see whether it can'):
    elsewhere.Elsewhere(sys.executable, 'llama', _SPEC)
  with pytest.raises(ValueError, match='python: /nowhere cannot be started'):
    elsewhere.Elsewhere('/nowhere', 'llama', _SPEC)


@pytest.mark.slow
def test_a_pretrained_model_is_timed(tmp_path):
  config = cli.load_config_module('configs/benchmark_270m.py').get_config()
  config.verifier, config.drafter = 'tiny-verifier', 'tiny-drafter'
  config.path, config.shots = str(_DATA / 'multi30k_de_en'), 1
  config.stop, config.new_tokens, config.repeats = '\n', 6, 1
  config.dtypes, config.batch_sizes = ('float32', 'bfloat16'), (1, 2)
  config.widths, config.context, config.seconds = (1, 2), 16, 0.0
  before = jax.config.jax_enable_compilation_cache
  benchmarks.run(config, tmp_path)
  jax.config.update('jax_enable_compilation_cache', before)
  figures = json.loads((tmp_path / 'benchmark.json').read_text())['figures']
  suite = importlib.import_module('experiments.benchmarks.pretrained')
  rows = suite.rows(figures)
  arms = {(r['part'], r['dtype'], r['batch'], r['arm']): r for r in rows}
  assert len(arms) == len(rows) == 2 * 2 * (4 + 3)
  for key, row in arms.items():
    assert row['tokens_per_s'] > 0
    if key[-1] == 'alone':
      assert row['over_alone'] == 1
      assert row['tokens_per_call'] == 1
    if key[1] == 'float32':
      # Strict and greedy, all write what the verifier does.
      assert row['same_tokens']
  assert set(suite.calls(figures)['float32']) == {
    '1',
    '2',
    '1 without logits',
    'drafter',
  }
  names = [name for name, *_ in suite.targets(figures)]
  assert 'float32: reading 2 by 1' in names
  assert 'bfloat16: reading 1 by 2' in names
  assert "batch 1: bfloat16's time by float32's, alone" in names
  table = suite.table(figures)
  for word in ('n-gram', 'gemma', 'x alone', 'copies'):
    assert word in table
  # A run that goes on has nothing left to do.
  assert list(suite.measure(config, figures)) == []


@pytest.mark.parametrize(
  ('field', 'value', 'said'),
  [
    ('repeats', 0, 'repeats: 0'),
    ('gammas', (), 'gammas: it is empty'),
    ('acceptances', (1.5,), 'acceptances: 1.5 is no probability'),
    ('suite', 'odd', 'suite: no suite'),
  ],
)
def test_bad_fields_are_named(field, value, said, tmp_path):
  config = cli.load_config_module('configs/benchmark.py').get_config()
  with config.unlocked():
    config[field] = value
  with pytest.raises(ValueError, match=said):
    benchmarks.run(config, tmp_path)
