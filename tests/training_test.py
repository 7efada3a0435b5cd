"""Training: what a batch holds, and runs that stop and go on."""

import itertools
import pathlib

import jax
import numpy as np
import pytest

from cascades import checkpoints, training
from cascades.tasks.task import split_of
from experiments import cli

_ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope='module')
def config():
  config = cli.load_config_module(_ROOT / 'configs/train_tiny.py').get_config()
  config.tokenizer_examples = 200
  config.vocab_size, config.row_length = 400, 400
  config.checkpoint_every, config.log_every = 2, 2
  spec = config.models.tiny_drafter
  spec.rows, spec.steps = 2, 4
  spec.config.update(
    hidden_size=16, intermediate_size=16, vocab_size=400, head_dim=16
  )
  spec.config.query_pre_attn_scalar = 16
  return config


@pytest.fixture(scope='module')
def tokenizer(config):
  return training.train_tokenizer(config)


def test_a_batch_is_packed_answers_weighted_and_reproducible(config, tokenizer):
  batch = training.make_batch(config, tokenizer, 4, step=7)
  again = training.make_batch(config, tokenizer, 4, step=7)
  other = training.make_batch(config, tokenizer, 4, step=8)
  assert all((batch[k] == again[k]).all() for k in batch)
  assert (batch['tokens'] != other['tokens']).any()
  used = batch['segments'] > 0
  assert used.mean() > 0.7
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
      assert targets[-1] == 1
      assert weights[-1] == 1
      assert (np.diff(weights) >= 0).all()


def test_a_row_too_short_for_a_problem_is_named(config, tokenizer):
  with config.unlocked():
    short = config.copy_and_resolve_references()
  short.row_length = 8
  with pytest.raises(ValueError, match='row_length: 8 is too short'):
    training.make_batch(short, tokenizer, 4, step=7)


def test_held_out_problems_are_never_trained_on(config):
  from cascades.tasks import GENERATED, TASKS

  trained = {
    prompt
    for prompt, _ in itertools.islice(
      training.problem_stream(config.mixture, '0/0'), 2000
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


def _params(folder):
  return jax.tree.leaves(checkpoints.load_folder(folder).params)


def test_a_stopped_run_goes_on_and_ends_the_same(config, tokenizer, tmp_path):
  whole = training.train_model(config, 'tiny_drafter', tokenizer, tmp_path)
  want = _params(whole)
  real, calls = training.make_batch, []

  def fail_on_fourth(*args):
    calls.append(args)
    if len(calls) == 4:
      raise KeyboardInterrupt
    return real(*args)

  other = tmp_path / 'other'
  other.mkdir()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(training, 'make_batch', fail_on_fourth)
    with pytest.raises(KeyboardInterrupt):
      training.train_model(config, 'tiny_drafter', tokenizer, other)
  assert not (other / 'tiny-drafter').exists()
  got = _params(training.train_model(config, 'tiny_drafter', tokenizer, other))
  for a, b in zip(want, got, strict=True):
    np.testing.assert_array_equal(a, b)
