"""Training of models and heads: batches, losses, how a training begins."""

import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from ml_collections import ConfigDict

from cascades import load_model
from cascades.drafters import recurrent
from cascades.models import checkpoints
from configs import train_recurrent, train_specialist
from experiments import cli
from experiments.tasks import GENERATED, TASKS
from experiments.tasks.task import split_of
from experiments.training import recurrent_heads, small_models
from experiments.training.distillation_data import DistillationBatch

_ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope='module')
def config():
  config = cli.load_config_module(_ROOT / 'configs/train_tiny.py').get_config()
  config.tokenizer_examples = 200
  config.vocab_size, config.row_length = 400, 400
  sizes = ('hidden_size', 'intermediate_size', 'head_dim')
  shape = dict.fromkeys((*sizes, 'query_pre_attn_scalar'), 16)
  config.models.tiny_drafter.config.update(shape, vocab_size=400)
  return config


@pytest.fixture(scope='module')
def tokenizer(config):
  return small_models.begin(config, 'tiny_drafter').tokenizer


@pytest.mark.slow
def test_a_batch_is_packed_answers_weighted_and_reproducible(config, tokenizer):
  batch = small_models.make_batch(config, tokenizer, 4, step=7)
  again = small_models.make_batch(config, tokenizer, 4, step=7)
  other = small_models.make_batch(config, tokenizer, 4, step=8)
  assert all((batch[k] == again[k]).all() for k in batch)
  assert (batch['tokens'] != other['tokens']).any()
  assert (batch['segments'] > 0).mean() > 0.7
  for row in range(4):
    for segment in range(1, batch['segments'][row].max() + 1):
      span = batch['segments'][row] == segment
      tokens, targets = batch['tokens'][row][span], batch['targets'][row][span]
      weights = batch['weights'][row][span]
      assert (tokens[1:] == targets[:-1]).all()
      assert (batch['positions'][row][span] == np.arange(span.sum())).all()
      answer = tokenizer.decode(targets[weights > 0])
      prompt = tokenizer.decode(tokens)[: -len(answer)]
      # Weights begin with the answer, and end with end-of-sequence.
      assert prompt.endswith((':', ': '))
      assert targets[-1] == weights[-1] == 1
      assert (np.diff(weights) >= 0).all()


def test_held_out_problems_are_never_trained_on(config):
  trained = {
    prompt
    for prompt, _ in itertools.islice(
      small_models.problem_stream(config.mixture, '0/0'), 2000
    )
  }
  for task in map(TASKS.get, GENERATED):
    held = {
      prompt
      for key, prompt, _ in itertools.islice(task.problems('0/0'), 2000)
      if split_of(key) != 'train'
    }
    assert held
    assert trained.isdisjoint(held)


def _specialist(**changes):
  config = train_specialist.get_config()
  config.update(checkpoint_every=2, log_every=1, eval_examples=2)
  config.models.tiny_specialist.update(steps=3, rows=2, **changes)
  return config


@pytest.mark.slow
def test_a_model_goes_on_from_another(tmp_path):
  config = _specialist(learning_rate=1e-3)
  start = small_models.begin(config, 'tiny_specialist')
  drafter = checkpoints.load_model('tiny-drafter')
  assert start.tokenizer.proto == drafter.tokenizer.proto
  for a, b in zip(
    jax.tree.leaves(start.params),
    jax.tree.leaves(drafter.unpack().params),
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)
  folder = small_models.train(config, tmp_path, 'tiny_specialist')
  trained = checkpoints.load_model(folder).unpack()
  assert trained.model == start.model
  assert trained.tokenizer.proto == start.tokenizer.proto
  log = (tmp_path / 'tiny_specialist.jsonl').read_text().splitlines()
  first, *_ = (json.loads(line)['loss'] for line in log)
  # The first loss is the drafter's own; training makes it less.
  batch = small_models.make_batch(config, start.tokenizer, 2, 0)
  want, _ = small_models.loss_fn(start.params, start.model, batch)
  np.testing.assert_allclose(first, want, rtol=1e-5)
  less, _ = small_models.loss_fn(trained.params, trained.model, batch)
  assert 0.5 * first < less < 0.98 * first
  figures = {'roman': {'exact_match': 0.5}}
  small_models.write_card(
    folder, config, figures, 'the command', 'tiny_specialist'
  )
  card = (folder / 'README.md').read_text()
  assert '`tiny-drafter`, trained further by the project' in card
  assert '| roman | exact_match | 0.500 |' in card
  assert '"tiny_specialist": {' in card


def test_a_training_that_cannot_be_is_named(config, tokenizer):
  with config.unlocked():
    short = config.copy_and_resolve_references()
  short.row_length = 8
  with pytest.raises(ValueError, match=r'row_length: must be at least .* 8'):
    small_models.make_batch(short, tokenizer, 4, step=7)
  with pytest.raises(ValueError, match=r"mixture: must be tasks .* 'gsm8k'"):
    next(small_models.problem_stream({'gsm8k': 1.0}, '0'))
  # A model is new, or goes on from another.
  both, neither = _specialist(), _specialist()
  with both.unlocked(), neither.unlocked():
    both.models.tiny_specialist.config = {'model_type': 'gemma3_text'}
    del neither.models.tiny_specialist.init
  for wrong in (both, neither):
    with pytest.raises(ValueError, match='tiny_specialist: exactly one of ini'):
      small_models.begin(wrong, 'tiny_specialist')


@pytest.mark.slow
def test_the_bundled_specialist_knows_what_it_was_trained_on():
  bounds = ('tiny-specialist', 0.9, 1.0), ('tiny-drafter', 0.0, 0.1)
  for name, least, most in bounds:
    fields = ConfigDict(dict(eval_tasks=('roman',), eval_examples=40))
    figures = small_models.evaluate(checkpoints.ASSETS / name, fields)
    assert least <= figures['roman']['exact_match'] <= most, name


# --- Recurrent heads


def test_the_loss_is_of_what_the_head_would_draft():
  model, params, _ = load_model('tiny-verifier').unpack()
  head = recurrent.init_head(jax.random.key(0), 320)
  tokens = jnp.array([[2, 300, 301, 302, 303, 304, 0, 0]])
  text = tokens[0, :6], *small.causal(6)
  logits, hidden, _ = model.with_hidden(params, *text)
  # Of three tokens of an answer, and a place that does not count.
  places = jnp.array([[2, 3, 4, 4]])
  counts = jnp.array([[True, True, True, False]])
  said = params['embedder']['input_embedding']
  batch = DistillationBatch(tokens, places, counts, hidden[places])
  loss, seen = recurrent_heads.loss_fn(head, params, model, said, batch, 2)
  # By hand: drafts begin at the answer's tokens 303 and 304, and as far as the
  # text goes.
  said = jax.nn.softmax(logits)
  nats, shares = [], [[], []]
  for t in (2, 3):
    state = hidden[t]
    for i in range(2):
      if t + 1 + i >= 5:
        continue
      state, guess = recurrent.step(
        model, params, head, hidden[t], state, tokens[0, t + 1 + i]
      )
      p, q = said[t + 1 + i], jax.nn.softmax(guess)
      nats.append(-(p * jnp.log(q)).sum())
      shares[i].append(jnp.minimum(p, q).sum())
  np.testing.assert_allclose(loss, np.mean(nats), rtol=1e-4)
  want = [np.mean(share) for share in shares]
  np.testing.assert_allclose(seen['kept'], want, rtol=1e-4)


def test_answers_that_go_on_count_as_far_as_they_go():
  model, params, _ = load_model('tiny-verifier').unpack()
  head = recurrent.init_head(jax.random.key(0), 320)
  tokens = jnp.array([[2, 300, 301, 302, 303, 304, 305, 306]])
  hidden = jax.random.normal(jax.random.key(1), (8, 320))
  said = params['embedder']['input_embedding'][300:400]

  def loss(*answers):
    places = jnp.array([[t for answer in answers for t in answer]])
    counts = jnp.ones_like(places, bool)
    batch = DistillationBatch(tokens, places, counts, hidden[places])
    nats, seen = recurrent_heads.loss_fn(head, params, model, said, batch, 2)
    return float(nats), seen['kept'].tolist()

  # Nothing is drafted from one answer into the next.
  both, one, two = loss([1, 2, 3], [5, 6]), loss([1, 2, 3]), loss([5, 6])
  assert 4 * both[0] == pytest.approx(3 * one[0] + two[0], rel=1e-5)
  assert both[1][1] == pytest.approx(one[1][1], rel=1e-5)


@pytest.mark.slow
def test_a_head_of_texts_says_what_is_frequent_in_them(tmp_path):
  config = train_recurrent.get_config('texts')
  examples = (
    dict(prompt=f'{n} in words:', answer=f' number {n}') for n in range(60)
  )
  (tmp_path / 'texts.jsonl').write_text('\n'.join(map(json.dumps, examples)))
  config.update(vocabulary=20, held_out=10, answers=4, answer_length=8, shots=1)
  config.update(texts=8, row_length=96, rows=2, steps=2, depth=2, log_every=1)
  config.update(eval_examples=3, checkpoint_every=2, name='head', tasks=())
  config.update(verifier='tiny-verifier', dtype='float32')
  config.update(text=str(tmp_path / 'texts.jsonl'))
  folder = recurrent_heads.train(config, tmp_path)
  (line,) = (tmp_path / 'head.jsonl').read_text().splitlines()[1:]
  assert np.isfinite(json.loads(line)['loss'])
  loaded = recurrent.RecurrentHead.load(folder)
  assert loaded.draft_vocab_ids.shape == (20,)
  bound_drafter = loaded.bind(load_model('tiny-verifier'))
  state = jnp.ones(320)
  _, logits = recurrent.step(
    *(bound_drafter.drafter.model, bound_drafter.params[1], loaded.head),
    *(state, state, jnp.int32(5)),
  )
  drafted = np.flatnonzero(np.isfinite(logits))
  assert drafted.tolist() == loaded.draft_vocab_ids.tolist()
  figures = recurrent_heads.evaluate(folder, config)
  assert figures['held_out']['tokens per verifier call, temperature 0'] >= 1
  recurrent_heads.write_card(folder, config, figures, 'a command')
  card = (folder / 'README.md').read_text()
  assert 'It drafts 20 tokens for that verifier' in card
  assert '| held_out | acceptance, temperature 1 |' in card
