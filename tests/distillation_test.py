"""Training a head: the loss is what it says, and the head what it drafts."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from cascades import load_model
from cascades.drafters import recurrent
from configs import train_recurrent
from experiments.training import recurrent_heads
from experiments.training.distillation_data import DistillationBatch


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


def test_a_head_goes_with_a_verifier_in_bfloat16():
  tokens = jnp.array([[2, 300, 301, 302, 303, 304, 305, 306]])
  places = jnp.array([[1, 2, 3, 4]])
  head = recurrent.init_head(jax.random.key(0), 320)
  losses, drafts = [], []
  for dtype in ('float32', 'bfloat16'):
    drafts.append([])
    model, params, _ = load_model('tiny-verifier', dtype)
    hidden = jax.random.normal(jax.random.key(1), (8, 320)).astype(dtype)
    state = hidden[0]
    for token in 5, 7, 7:
      state, logits = recurrent.step(
        model, params, head, hidden[0], state, jnp.int32(token)
      )
      drafts[-1].append(logits)
    model, params, _ = load_model('tiny-verifier', dtype).unpack()
    said = params['embedder']['input_embedding']
    mask = jnp.ones_like(places, bool)
    batch = DistillationBatch(tokens, places, mask, hidden[places])
    loss, _ = recurrent_heads.loss_fn(head, params, model, said, batch, 2)
    losses.append(loss)
  np.testing.assert_allclose(*map(jnp.stack, drafts), atol=0.1)
  np.testing.assert_allclose(*losses, rtol=0.02)


@pytest.mark.slow
def test_a_head_of_texts_says_what_is_frequent_in_them(tmp_path):
  config = train_recurrent.get_config('texts')
  lines = [
    json.dumps({'prompt': f'{n} in words:', 'answer': f' number {n}'})
    for n in range(60)
  ]
  (tmp_path / 'texts.jsonl').write_text('\n'.join(lines))
  said = dict(vocabulary=20, held_out=10, answers=4, answer_length=8, shots=1)
  steps = dict(texts=8, row_length=96, rows=2, steps=2, depth=2, log_every=1)
  config.update(said | steps | dict(eval_examples=3, checkpoint_every=2))
  config.update(name='head', verifier='tiny-verifier', dtype='float32')
  config.update(text=str(tmp_path / 'texts.jsonl'), tasks=())
  folder, verifier = recurrent_heads.train_head(config, tmp_path)
  (line,) = (tmp_path / 'head.jsonl').read_text().splitlines()[1:]
  assert np.isfinite(json.loads(line)['loss'])
  loaded = recurrent.RecurrentHead.load(folder)
  assert loaded.draft_vocab_ids.shape == (20,)
  bound_drafter = loaded.bind(verifier)
  state = jnp.ones(320)
  _, logits = recurrent.step(
    *(bound_drafter.drafter.model, bound_drafter.params[1], loaded.head),
    *(state, state, jnp.int32(5)),
  )
  drafted = np.flatnonzero(np.isfinite(logits))
  assert drafted.tolist() == loaded.draft_vocab_ids.tolist()
  figures = recurrent_heads.evaluate(folder, verifier, config)
  assert figures['held_out']['tokens per verifier call, temperature 0'] >= 1
  recurrent_heads.write_card(folder, config, figures, 'a command')
  card = (folder / 'README.md').read_text()
  assert 'Drafts 20 tokens' in card
  assert '| held_out | acceptance, temperature 1 |' in card
