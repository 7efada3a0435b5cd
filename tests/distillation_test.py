"""Training a head: the loss is what it says, and a stop changes nothing."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascades import load_model
from cascades.drafters import heads, recurrent
from configs import train_recurrent
from experiments.training import distillation


def _config(**changes):
  config = train_recurrent.get_config()
  config.update(
    dict(
      texts=6,
      answer_length=24,
      row_length=96,
      steps=6,
      rows=3,
      depth=2,
      checkpoint_every=3,
      log_every=1,
      **changes,
    )
  )
  return config


def test_the_loss_is_of_what_the_head_would_draft():
  model, params, _ = load_model('tiny-verifier').unpacked()
  head = recurrent.init_head(jax.random.key(0), model.hidden_size(params))
  tokens = np.array([[2, 300, 301, 302, 303, 304, 0, 0]])
  lengths = np.array([[3, 6]])
  loss, kept = distillation.loss_fn(head, params, model, tokens, lengths, 2)
  # By hand: drafts begin at the answer's tokens 303 and 304, and as far as the
  # text goes.
  positions = jnp.arange(6)
  mask = positions[None] <= positions[:, None]
  logits, hidden, _ = model.with_hidden(params, tokens[0, :6], positions, mask)
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
  np.testing.assert_allclose(kept, want, rtol=1e-4)


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_the_same(tmp_path):
  whole, _ = distillation.train_head(_config(), tmp_path / 'whole')
  # The schedule is of all its steps, so it is stopped after some of them.
  stopped = tmp_path / 'stopped'
  shutil.copytree(tmp_path / 'whole', stopped)
  for step in (stopped / 'checkpoints' / 'tiny-recurrent').iterdir():
    if step.name == '6':
      for path in sorted(step.rglob('*'), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
      step.rmdir()
  again, verifier = distillation.train_head(_config(), stopped)
  one, two = (heads.load(folder).head for folder in (whole, again))
  for name in one:
    np.testing.assert_array_equal(one[name], two[name])
  log = (stopped / 'tiny-recurrent.jsonl').read_text().splitlines()
  losses = [json.loads(line)['loss'] for line in log]
  assert len(losses) == 9
  assert losses[5] < losses[0]
  assert losses[3:6] == losses[6:9]
  figures = distillation.evaluate(again, verifier, _config(eval_examples=2))
  distillation.write_card(again, _config(), figures)
  card = (again / 'README.md').read_text()
  assert '| word_problems | acceptance, temperature 1 |' in card
