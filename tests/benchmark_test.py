"""Benchmarks and the check of a new device, on models of no size."""

import contextlib
import json
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
from cascades.models import memory, tokenizers
from cascades.proof import law_checks
from configs import common
from experiments import accelerator, benchmark, cli, measuring
from experiments.benchmarks import answering, loops, peers


def _config(name, **fields):
  config = cli.load_config_module(f'configs/{name}.py').get_config()
  with config.unlocked():
    config.update(fields)
  return config


@pytest.mark.slow
def test_the_loop_is_timed_against_its_floor(tmp_path):
  config = _config('benchmark')
  models = (common.shape('gemma2', n, 32, 1, 2, 1, 8, 512) for n in (32, 16))
  config.pairs = (common.pair(*models, 'small'),)
  config.batch_sizes, config.gammas, config.gamma = (1,), (1, 2), 2
  config.acceptances, config.repeats, config.new_tokens = (0.5, 0.9), 2, 12
  benchmark.run(config, tmp_path)
  figures = small.read_json(tmp_path / 'benchmark.json')['figures']
  arms = [row['arm'] for row in figures]
  counted = {arm: arms.count(arm) for arm in arms}
  assert counted == dict(gemma=1, alone=1, floor=3, strict=3, token_v3=2)
  for row in figures:
    assert len(row['decode_s']) == len(row['prefill_s']) == 2
    assert row['arm'] == 'floor' or row['tokens'] == 12
    assert row['arm'] not in ('gemma', 'alone') or row['same_tokens']
  rows = loops.table(figures)
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
  unknown = _entrant('unknown', (9.0, 3.0, 4.0))
  assert measuring.race([first, other, short, unknown], 2, 'race') == [
    dict(arm='first', decode_s=[1.0, 2.0], same_tokens=True, tokens=3),
    dict(arm='other', decode_s=[3.0, 4.0], same_tokens=False),
    dict(arm='short', decode_s=[3.0, 4.0], same_tokens=True),
    dict(arm='unknown', decode_s=[3.0, 4.0]),
  ]


def test_entrants_take_turns_after_one_that_warms_up():
  calls = []
  runs = [lambda name=name: calls.append(name) or len(calls) for name in 'ab']
  assert measuring.take_turns(runs, 2) == [[4, 5], [3, 6]]
  assert ''.join(calls) == 'abbaab'


def test_a_table_has_the_columns_that_have_values():
  fields = {'ms': 2.0, 'z': None, 'arm': 'b'}
  rows = [{'x': 'a|b', 'y': 1.23456}, {'x': fields, 'z': None, 'y': None}]
  table = '| x | y |\n| --- | --- |\n| a\\|b | 1.235 |\n| ms 2, arm b | - |'
  assert measuring.table(rows) == table


def test_a_forced_method_keeps_as_many_as_it_is_told():
  d = jax.tree.map(jnp.asarray, law_checks.draw_distributions('random', 8))
  method = loops.force_acceptance(methods.METHODS['token_v3'])
  kept = jax.vmap(method.acceptance, (0, None))(d, jnp.float32(0.7))
  np.testing.assert_allclose(kept, 0.7, rtol=1e-6)


def test_the_floor_makes_the_passes_of_a_strict_block(monkeypatch):
  """Gamma of the drafter, whose first reads two tokens; one of the verifier."""
  passes = []

  def read(model, params, cache, tokens, at):
    passes.append((params, tokens.shape[0], int(at) - int(cache)))
    return jnp.eye(7)[tokens + 1], None, cache + tokens.shape[0]

  monkeypatch.setattr(decoding, 'read_hidden', read)
  # The cache of a model is where it stands.
  split = lambda params: (f'{params} without ids', None)  # noqa: E731
  model = types.SimpleNamespace(rewind=lambda _, at: at, split_vocab_ids=split)
  drafter = 'drafter without ids'
  block = [(drafter, 2, 0), (drafter, 1, 0)]
  for models, gamma, drafts in (2, 0, []), (2, 2, block), (1, 2, []):
    passes.clear()
    start = [jnp.int32(90)] * models, jnp.int32(0)
    with jax.disable_jit():
      caches, token = loops.block(
        [model] * models, gamma, 64, 2, start, params=('verifier', 'drafter')
      )
    assert passes == [*drafts, ('verifier', gamma + 1, 0)]
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
    *(_row(x, 0, 40.0, 40, batch=4, **written) for x in ('gemma', 'alone')),
    _row('gemma', 0, 80.0, 40, **written),
    _row('alone', 0, 40.0, 40, **written),
    _row('floor', 0, 40.0, 40),
    _row('strict', 3, 16.0, 10, **written),
    # Another share of drafts, which makes blocks that the floor does not.
    _row('strict', 3, 8.0, 9, **written),
    _row('floor', 3, 15.0, 10),
    _row('token_v3', 3, 15.0, 10, **written),
    _row('curve', 3, 30.0, 10, **written),
    # Of another batch.
    _row('floor', 3, 1.0, 10, batch=4),
  ]
  rows = loops.table(figures)
  assert [x['x alone'] for x in rows if x['arm'] == 'gemma'] == [1, 0.5]
  strict, apart = (row for row in rows if row['arm'] == 'strict')
  assert strict['x gemma'] == pytest.approx(5)
  assert strict['x alone'] == pytest.approx(2.5)
  assert strict['x floor'] == pytest.approx(16 / 15)
  assert strict['ms/block'] == pytest.approx(1600)
  assert 'x floor' not in apart
  lenient, curve = rows[-3:-1]
  assert 'x floor' not in lenient
  assert curve['x token_v3'] == pytest.approx(2)


def test_answers_are_compared_within_their_group():
  fields = dict(part='problems', batch=1, tokens=20)
  figures = [
    fields | dict(dtype=dtype, decode_s=[9 * x, x, x / 9]) | more
    for dtype, x, more in (
      ('float32', 10.0, {}),
      ('float32', 5.0, dict(verifier_calls=5, accepted=15, examined=20)),
      ('bfloat16', 8.0, {}),
      ('bfloat16', 8.0, {}),
    )
  ]
  rows = answering.table(figures)
  assert [row['x alone'] for row in rows] == [1, 2, 1, 1]
  assert rows[1]['tokens per call'] == 4
  assert rows[1]['acceptance'] == 0.75


_LLAMA = """
from types import SimpleNamespace as Fields

class common_speculative_type:
  COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE = 1
  COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE = 2

class CommonParams:
  def __init__(self):
    self.model = Fields()
    self.cpuparams, self.cpuparams_batch = Fields(), Fields()
    draft = Fields(mparams=Fields(path=''), n_max=0)
    ngram_simple = Fields(size_n=0, size_m=0)
    self.speculative = Fields(draft=draft, ngram_simple=ngram_simple, types=[])

class Server:
  def __init__(self, params):
    self.params = params

  def handle_completions(self, asked):
    n, drafts = len(asked['prompt']), self.params.speculative
    timings = {'prompt_ms': 1000.0 * n, 'predicted_ms': 500.0, 'predicted_n': n}
    if drafts.types:
      assert drafts.draft.mparams.path == 'y.gguf'
      n = drafts.draft.n_max
      timings |= {'draft_n': n, 'draft_n_accepted': n - 2}
    print('a log of its own')
    return {'timings': timings}
"""
_SPEC = dict(verifier='x.gguf', prompts=[[7, 8, 9], [7, 8]], stop_text='.')
_SPEC |= dict(new_tokens=4, threads=1, gamma=4, llama_drafter='y.gguf')


def test_other_peoples_loops_answer_from_a_process(tmp_path, monkeypatch):
  (tmp_path / 'xllamacpp.py').write_text(_LLAMA)
  about = tmp_path / 'xllamacpp-9.dist-info'
  about.mkdir()
  (about / 'METADATA').write_text('Name: xllamacpp\nVersion: 9\n')
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  start = lambda: peers.start(sys.executable, 'llama.cpp', _SPEC)  # noqa: E731
  # Its first token comes of reading the prompt.
  expected = {'prefill_s': 5.0, 'decode_s': 1.0, 'tokens': 3.0}
  counted = {'plain': (0, 0), 'n-grams': (8, 4), 'assisted': (8, 4)}
  with start() as (versions, modes, answer):
    assert versions == {'xllamacpp': '9'}
    assert modes == [*counted]
    for mode, (drafted, accepted) in counted.items():
      drafts = dict(drafted=drafted, accepted=accepted)
      assert answer(mode, 1) == expected | drafts
  (tmp_path / 'xllamacpp.py').write_text('raise OSError')
  with pytest.raises(ValueError, match=r'llama\.cpp ended; che'), start():
    pass


@contextlib.contextmanager
def _peer(python, engine, spec):
  """A peer that says what it is asked."""
  assert spec['stop_text'] == '\n'
  for name in ('verifier', 'drafter'):
    assert (pathlib.Path(spec[name]) / 'config.json').is_file()
  said = dict(prefill_s=1.0, decode_s=2.0)
  answer = lambda _, batch: said | dict(tokens=batch)  # noqa: E731
  yield {engine: '9'}, ['plain', 'assisted'], answer


@pytest.mark.slow
def test_a_pretrained_model_is_timed(tmp_path, monkeypatch):
  monkeypatch.setattr(peers, 'start', _peer)
  config = _config(
    'benchmark_270m',
    verifier='tiny-verifier',
    path=f'{small.ROOT}/tests/data/tasks/multi30k_de_en.jsonl',
    **dict(shots=1, stop='\n', new_tokens=6, repeats=1, num_examples=2),
    **dict(assistant='tiny-drafter', transformers='a Python'),
    **dict(batch_sizes=(1,), dtypes=('float32', 'int8')),
  )
  for arm in (*config.problems, config.copies[1]):
    if (arm.drafter or '').startswith('gemma'):
      arm.drafter = 'tiny-drafter'
  benchmark.run(config, tmp_path)
  figures = small.read_json(tmp_path / 'benchmark.json')['figures']
  rows, int8 = (
    {
      (x['part'], x['arm']): x
      for x in answering.table(figures)
      if x['dtype'] == y
    }
    for y in config.dtypes
  )
  # No other loop has int8.
  ours = {x.name for x in config.problems}
  assert {arm for _, arm in int8} == ours
  # Ours, gemma's and the peer's; three of ours copy.
  assert len(rows) == len(ours) + 1 + 2 + 3
  # Strict and greedy, all write what the verifier does; the peer says nothing.
  for (_, arm), row in rows.items():
    assert row['same tokens'] or arm.startswith(('transformers', 'TokenV3'))


@pytest.mark.parametrize(
  ('name', 'field', 'value', 'said'),
  [
    ('benchmark', 'repeats', 0, 'repeats: must be 1 or more, got 0'),
    ('benchmark', 'gammas', (), 'gammas: must be a whole number, got ()'),
    ('benchmark', 'gammas', (2.5,), 'gammas: must be a whole number, got 2.5'),
    ('benchmark', 'acceptances', (1.5,), 'acceptances: must be above 0, up to'),
    ('benchmark', 'suite', 'odd', 'suite: must be one of loops, answering'),
    ('benchmark_drafters', 'dtypes', ('float8',), 'dtype'),
    ('benchmark_drafters', 'temperature', -1.0, 'temperature'),
  ],
)
def test_bad_fields_are_named(name, field, value, said, tmp_path):
  with pytest.raises(ValueError, match=said):
    benchmark.run(_config(name, **{field: value}), tmp_path)


def test_a_phase_that_hangs_keeps_what_it_measured(tmp_path, monkeypatch):
  rows = ({'ms': 1 / x, 'met': True} for x in (4, 0, 1))
  plan = {'a': rows, 'b': [{'met': False}, {'arm': 'strict'}]}
  monkeypatch.setitem(accelerator.PHASES, 'loops', (37, lambda _: plan.items()))
  path = tmp_path / 'figures.jsonl'
  accelerator.measure('loops', True, path)
  code = 'import sys, time; "costs" in sys.argv[1] and time.sleep(99); exit(3)'
  monkeypatch.setattr(sys, 'orig_argv', ['python', '-c', code])
  accelerator.run_phases(['loops', 'costs'], 0.1, path)
  late = {'exit code': 'none after 3 s; give it more --minutes'}
  lines = map(json.loads, path.read_text().splitlines())
  assert [tuple(x.values()) for x in lines] == [
    ('loops', 'a', {'ms': 0.25}, True),
    ('loops', 'a', {'error': 'ZeroDivisionError: division by zero'}, False),
    ('loops', 'b', {}, False),
    ('loops', 'b', {'arm': 'strict'}, None),
    ('costs', 'the phase', late, False),
    ('loops', 'the phase', {'exit code': 3}, False),
  ]


def test_a_difference_is_judged_by_the_first_choice_that_was_lost():
  answer = lambda *tokens: types.SimpleNamespace(  # noqa: E731
    tokens=[*tokens], logits=np.array([[0, 0, 9], [8.0, 8.125, 1]])
  )
  # From 8 to 16 the spacing of bfloat16 is 1/16.
  assert accelerator.first_gap(answer(2, 1), answer(2, 0)) == 2
  assert accelerator.first_gap(answer(2, 1), answer(0, 1)) == 144
  assert accelerator.first_gap(answer(2, 1), answer(2)) == np.inf


def test_passes_of_a_device_are_timed_alone(monkeypatch):
  race = lambda entrants, _: [  # noqa: E731
    {'decode_s': [0.032 * (2 + x.fields['gamma'])], 'bytes': 4e6}
    for x in entrants
  ]
  monkeypatch.setattr(measuring, 'race', race)
  row, _ = accelerator._passes(accelerator._TINY_SHAPES['tiny 1'], True)
  for name in ('token ms', 'GB/s', '3 by 1'):
    assert row[name] == pytest.approx(2)
  monkeypatch.setattr(memory, 'available', lambda: 10)
  with pytest.raises(ValueError, match='memory: a model with random weights'):
    [*accelerator._passes(accelerator._TINY_SHAPES['tiny 1'], True)]


def test_prompts_of_a_trained_pair_begin_as_its_texts_did(monkeypatch):
  pairs = []
  measure = lambda _, load, key: pairs.append(load()) or ()  # noqa: E731
  monkeypatch.setattr(loops, '_measure', measure)
  for _, rows in accelerator._real_pair(True):
    assert not [*rows]
  assert {int(prompt[0]) for prompt in pairs[0].prompts} == {tokenizers.BOS}


# Hides packages that a machine without a network may lack, and the network.
_LEAN = """
import socket
from importlib.machinery import PathFinder
hidden = {'tensorflow', 'tensorflow_datasets', 'grain', 'datasets'}
hidden |= {'rouge_score', 'regex', 'pandas', 'matplotlib', 'sacrebleu'}
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: (
  None if name.split('.')[0] in hidden else find(name, *rest)
)
socket.socket.connect = None
"""


@pytest.mark.slow
def test_all_phases_are_rehearsed_without_a_network(tmp_path, monkeypatch):
  (tmp_path / 'sitecustomize.py').write_text(_LEAN)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  # Every process imports what its user named.
  mine, log = tmp_path / 'mine.py', tmp_path / 'imported.txt'
  mine.write_text(f'print("imported", file=open({str(log)!r}, "a"))')
  flags = '--tiny', '--minutes=10', f'--workdir={tmp_path}', f'--import={mine}'
  done = launching.python('-m', 'experiments.accelerator', *flags)
  assert done.returncode == 0, done.stderr
  phases = [x.split(' | ')[0][2:] for x in done.stdout.splitlines()[3:]]
  assert list(dict.fromkeys(phases)) == list(accelerator.PHASES)
  assert ' | error ' not in done.stdout
  assert ' | the phase | ' not in done.stdout
  assert len(log.read_text().splitlines()) == 1 + len(accelerator.PHASES)
  assert '| correctness | greedy, float32 | equal 4 of 4 | True' in done.stdout
  assert 'Traceback' not in done.stderr
