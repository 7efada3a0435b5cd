"""An answer is the same alone, in any batch, and as the point of a curve.

For tables in the loop and in a batch whose free rows are filled, and for models
in float32 and int8. What a conversation, a wider cache or a shared beginning of
prompts makes a batch do is no part of an answer either.
"""

import functools
import itertools
from unittest import mock

import jax
import numpy as np
import pytest
import small
import tiers

from cascades import decoding, drafters, load_model, methods
from cascades.methods import processing
from cascades.proof import sampled, table_models
from cascades.sampler import batching

_V = 5
_MODEL = table_models.TableModel(_V)
_PARAMS = [_MODEL.init_params(jax.random.key(i)) for i in (1, 2)]
_LENIENCES = (-1.0, 0.3, 0.7)
_STOPS = (4,)
_COUNTS = ('blocks', 'examined', 'accepted', 'deferred', 'residual', 'bonus')


def _engine(gamma=3, stops=_STOPS):
  drafter = drafters.ModelDrafter(_MODEL) if gamma else drafters.NoDrafter()
  models = decoding.Models(_MODEL, drafter)
  return batching.Engine(
    decoding.StepConfig(models, methods.METHODS['token_v1'], gamma),
    decoding.Params(*_PARAMS),
    sampling=processing.SamplingParams(temperature=np.float32(1)),
    stop_tokens=np.array(stops, np.int32),
  )


def _prompts(count):
  """Prompts of 1 to 9 tokens, and their keys."""
  rng = np.random.default_rng(0)
  prompts = [rng.integers(4, size=n) for n in rng.integers(1, 10, count)]
  return prompts, jax.random.split(jax.random.key(3), count)


def _said(row):
  """Tokens and counts of a final row."""
  tokens = row.tokens[row.prompt_length : row.length].tolist()
  counts = decoding.count(row)
  return tokens, [int(getattr(counts, name)) for name in _COUNTS]


@functools.cache
def _alone(count, new):
  """Every answer, from one loop that all rows run through to the end."""
  prompts, keys = _prompts(count)
  engine = _engine()
  states = sampled.decode_curve(
    engine.step_config,
    _PARAMS,
    batching.BatchRequest(prompts, keys, _LENIENCES, new),
    engine.sampling,
    stop_tokens=_STOPS,
  )
  return {
    batching.Job(i, j): _said(jax.tree.map(lambda x: x[i, j], states))  # noqa: B023
    for i in range(count)
    for j in range(len(_LENIENCES))
  }


def _answers(rows):
  return {job: _said(row) for job, row in rows.items()}


def _run(count, new, batch_size, stops=_STOPS, **options):
  prompts, keys = _prompts(count)
  usage = batching.DecodeStats()
  asked = batching.BatchRequest(prompts, keys, _LENIENCES, new, **options)
  engine = _engine(stops=stops)
  found = batching.run(engine, asked, batch_size, usage)
  return dict(found), usage


@pytest.mark.parametrize(
  ('dtype', 'temperature'),
  tiers.first(itertools.product(('int8', 'float32'), (30.0, 0.0)), 2),
)
def test_models_answer_alike_in_any_batch_and_on_a_curve(dtype, temperature):
  # Random models are sure of everything.
  pair = [load_model(name, dtype) for name in small.pair()]
  options = dict(method='token_v2', gate='processed', gamma=3)
  options |= dict(temperature=temperature)
  prompts = ['The number 4302', 'in', 'words: a b', 'of 17', '']
  leniences, new = [0.0, 0.9], dict(max_new_tokens=12, return_logits=True)

  def sampler(batch_size, lenience=0.0):
    given = dict(batch_size=batch_size, lenience=lenience, **options)
    return small.sampler(*pair, **given)

  curve = sampler(4).sample_curve(prompts, leniences, **new)
  texts = {tuple(a.tokens) for points in curve for a in points}
  assert len(texts) > len(prompts) or not temperature
  for lenience, points in zip(leniences, curve, strict=True):
    for batch_size in 1, 4:
      answers = sampler(batch_size, lenience).sample(prompts, **new)
      for one, other in zip(answers, points, strict=True):
        assert (one.tokens, one.counts) == (other.tokens, other.counts)
        # To the last bit in int8.
        atol = 1e-4 * (dtype != 'int8')
        np.testing.assert_allclose(one.logits, other.logits, atol=atol, rtol=0)


@pytest.mark.parametrize('batch_size', tiers.first([4, 1, 16, 64, 1000]))
def test_answers_are_what_they_are_alone(batch_size):
  rows, usage = _run(20, 30, batch_size)
  want = _alone(20, 30)
  assert _answers(rows) == want
  # Not all of them ran to their limit together.
  assert len({len(tokens) for tokens, _ in want.values()}) > 5
  assert usage.active_rows == sum(counts[0] for _, counts in want.values())
  assert usage.active_rows <= usage.rows
  # A batch of one is always busy. Of 60 answers of about 2 blocks each, what a
  # small one loses is at the end.
  assert batch_size > 1 or usage.active_rows == usage.rows
  assert batch_size != 4 or 0.9 < usage.active_rows / usage.rows < 1


@pytest.mark.parametrize('batch_size', tiers.first([4, 1]))
def test_answers_that_their_texts_end_are_what_they_are_alone(batch_size):
  # At the first token 2, wherever in a block, and whenever it is looked for.
  def ends(row):
    new = row.tokens[row.prompt_length : row.length] == 2
    return int(row.prompt_length + new.argmax() + 1) if new.any() else None

  rows, usage = _run(20, 30, batch_size, find_end=ends)
  free = _alone(20, 30)
  ended = 0
  for job, row in rows.items():
    tokens, counts = _said(row)
    whole, of_whole = free[job]
    end = whole.index(2) + 1 if 2 in whole else len(whole)
    assert tokens == whole[:end]
    named = dict(zip(_COUNTS, counts, strict=True))
    assert sum(named[x] for x in ('accepted', 'residual', 'bonus')) == end
    # Blocks as in a run whose limit is there.
    assert named['blocks'] <= of_whole[0]
    assert decoding.count(row).drafted == named['blocks'] * 3
    ended += end < len(whole)
  assert ended > 10
  # What was decoded for nothing is no part of an answer, but of its cost.
  assert usage.active_rows >= sum(_said(row)[1][0] for row in rows.values())


@pytest.mark.slow
@pytest.mark.parametrize(('first', 'new'), [(8, 24), (8, 150), (40, 150)])
def test_caches_grow_with_their_rows(first, new):
  def run():
    rows, _ = _run(3, new, 4, stops=(-1,))
    return _answers(rows), {len(row.tokens) for row in rows.values()}

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(batching, '_FIRST_NEW_TOKENS', first)
    patch.setattr(batching, 'bucket', lambda n, least=0: n)
    grown, _ = run()
  assert run() == (grown, {batching.bucket(9 + new + 4)})


@pytest.mark.slow
def test_a_batch_is_narrowed_when_few_rows_are_left(monkeypatch):
  monkeypatch.setattr(batching, '_NARROW_MIN_TOKENS', 1)
  rows, usage = _run(20, 30, 64)
  assert _answers(rows) == _alone(20, 30)
  monkeypatch.undo()
  assert usage.rows < _run(20, 30, 64)[1].rows


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_halved(monkeypatch):
  decode, sizes, want = decoding.decode, [], _alone(20, 30)

  def scarce(rows, *args, **options):
    sizes.append(len(rows.length))
    # Not at once: answers that are done by then are not decoded again.
    if sizes[-1] > 8 and len(sizes) > 3:
      raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory.')
    return decode(rows, *args, **options)

  monkeypatch.setattr(decoding, 'decode', scarce)
  rows, usage = _run(20, 30, 32)
  assert _answers(rows) == want
  assert usage.batch_size == 8
  assert sizes[:5] == [32, 32, 32, 32, 16]
  assert set(sizes[5:]) == {8}


@pytest.mark.parametrize(
  ('batch_size', 'said'),
  # One row that does not fit, and what is no lack of memory.
  [(4, 'RESOURCE_EXHAUSTED: Out of memory.'), (32, 'INTERNAL: a fault')],
)
def test_other_faults_are_not_swallowed(monkeypatch, batch_size, said):
  def broken(*args, **options):
    raise jax.errors.JaxRuntimeError(said)

  monkeypatch.setattr(decoding, 'decode', broken)
  with pytest.raises(jax.errors.JaxRuntimeError, match=said):
    _run(20, 30, batch_size)


def _turn(engine, row, prompt, key, new=12):
  prompts = [np.array(prompt, np.int32)]
  asked = batching.BatchRequest(prompts, key, [0.3], new, True)
  stats = batching.DecodeStats()
  return [*batching.decode_single(engine, asked, row, None, stats=stats)]


@pytest.mark.parametrize('gamma', tiers.first([3, 0]))
def test_a_turn_goes_on_where_the_last_one_ended(gamma):
  engine = _engine(gamma)
  keys = jax.random.split(jax.random.key(8), 2)
  ((first, state),) = _turn(engine, None, [1, 2, 3], keys[:1])
  so_far = first.tokens[: first.length].tolist()
  second = [2, 0, 1, 1]
  # Twice, for a state may be gone on from as often as one likes.
  for _ in range(2):
    ((row, _),) = _turn(engine, state, second, keys[1:])
    ((want, _),) = _turn(engine, None, so_far + second, keys[1:])
    assert _said(row) == _said(want)
    assert row.source[: row.length].tolist() == [
      *first.source[: first.length],
      *want.source[first.length : want.length],
    ]
    # Logits are what the verifier's table has for each emitted token.
    tokens, first_new = row.tokens[: row.length], int(row.prompt_length)
    assert len(row.logits) == len(tokens) - first_new
    for i, logits in enumerate(row.logits, first_new):
      at = _MODEL.context_after(tokens[:i])
      np.testing.assert_array_equal(logits, np.asarray(_PARAMS[0])[at])


@pytest.mark.slow
def test_a_turn_may_need_more_room_than_the_last_one_had(monkeypatch):
  monkeypatch.setattr(batching, '_FIRST_NEW_TOKENS', 8)
  engine = _engine(stops=(-1,))
  key = jax.random.split(jax.random.key(8), 1)
  ((first, state),) = _turn(engine, None, [1, 2], key, new=60)
  # More than the smallest cache holds.
  ((row, last),) = _turn(engine, state, [3] * 200, key, new=90)
  whole = first.tokens[: first.length].tolist() + [3] * 200
  assert last.tokens.shape[1] > state.tokens.shape[1]
  monkeypatch.undo()
  ((want, _),) = _turn(engine, None, whole, key, new=90)
  assert _said(row) == _said(want)


@pytest.mark.slow
@pytest.mark.parametrize('begin', [80, 0, 4])
def test_what_all_prompts_begin_with_is_read_once(begin, monkeypatch):
  prompts, keys = _prompts(7)
  first = np.random.default_rng(1).integers(4, size=begin)
  # The longest goes on with what another one ends with; one is the beginning.
  prompts = [*prompts, [3], *([[]] if begin else [])]
  prompts = [np.concatenate([first, prompt]).astype(int) for prompt in prompts]
  keys = jax.random.split(jax.random.key(3), len(prompts))
  engine = _engine()
  for name in ('prefill', 'extend'):
    spy = mock.Mock(wraps=getattr(decoding, name))
    monkeypatch.setattr(decoding, name, spy)

  def answers(some):
    asked = batching.BatchRequest(
      [prompts[i] for i in some], keys[np.array(some)], _LENIENCES, 300
    )
    found = batching.run(engine, asked, 8, batching.DecodeStats())
    return {(some[job.prompt], job.lenience): _said(row) for job, row in found}

  together = answers(range(len(prompts)))
  is_shared = begin >= batching._MIN_SHARED_PREFIX
  assert decoding.extend.called == is_shared
  assert (decoding.prefill.call_count == 1) == is_shared
  alone = {}
  for i in range(len(prompts)):
    alone |= answers([i])
  assert together == alone
