"""Training: what a batch holds, and what a model begins with."""

import itertools
import json
import pathlib

import jax
import numpy as np
import pytest

from cascades.models import checkpoints
from configs import train_specialist
from experiments import cli
from experiments.tasks import GENERATED, TASKS
from experiments.tasks.task import split_of
from experiments.training import small_models

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
  with pytest.raises(ValueError, match=r'row_length: must be at least .* 8'):
    small_models.make_batch(short, tokenizer, 4, step=7)


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


def test_only_tasks_that_are_made_up_are_trained_on():
  with pytest.raises(ValueError, match=r"mixture: must be tasks .* 'gsm8k'"):
    next(small_models.problem_stream({'gsm8k': 1.0}, '0'))


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
  folder = small_models.train_model(config, 'tiny_specialist', start, tmp_path)
  trained = checkpoints.load_folder(folder)
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
    folder, config, 'tiny_specialist', 'the command', figures, 1e-3, 128
  )
  card = (folder / 'README.md').read_text()
  assert '`tiny-drafter`, trained further on' in card
  assert '`roman` (90%)' in card
  assert '`word_problems` (6.5%)' in card
  assert '2 layers (sliding, full), 64 wide' in card
  assert '| roman | exact_match | 0.500 |' in card


def test_a_model_is_new_or_goes_on_from_another():
  both, neither = _specialist(), _specialist()
  with both.unlocked(), neither.unlocked():
    both.models.tiny_specialist.config = {'model_type': 'gemma3_text'}
    del neither.models.tiny_specialist.init
  for config in (both, neither):
    with pytest.raises(ValueError, match='tiny_specialist: exactly one of ini'):
      small_models.begin(config, 'tiny_specialist')


@pytest.mark.slow
def test_the_bundled_specialist_knows_what_it_was_trained_on():
  bounds = ('tiny-specialist', 0.9, 1.0), ('tiny-drafter', 0.0, 0.1)
  for name, least, most in bounds:
    figures = small_models.evaluate(checkpoints.ASSETS / name, ('roman',), 40)
    assert least <= figures['roman']['exact_match'] <= most, name
