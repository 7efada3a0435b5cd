"""Unit costs of loops that take given times."""

import pytest

from experiments import measuring
from experiments.sweeps import costs


def measured(monkeypatch, times, blocks, calls, drafter='', **options):
  """Unit costs, where each loop takes a time of its own."""
  timed_names = []

  def loop(name):
    return lambda: timed_names.append(name) or times[name], 1

  def strict_loop(model, _, bound_drafter=None, *block, **__):
    return loop(block or (1 if model is drafter else 'verifier')), calls

  monkeypatch.setattr(costs, 'strict_loop', strict_loop)
  monkeypatch.setattr(costs, 'proposal_loop', lambda *args: loop(args[3]))
  monkeypatch.setattr(measuring, 'timed', lambda run: (run(), None))
  spread = costs.measure(object(), drafter, None, blocks, seconds=0, **options)
  return spread.low, timed_names


def test_a_block_is_the_verifiers_but_for_the_drafters_calls(monkeypatch):
  times = {'verifier': 1.0, 1: 0.1, (4, 1): 2.0, (2, 1): 1.5}
  blocks = [(4, 1), (2, 1), (0, 1)]
  unit_costs, timed_names = measured(monkeypatch, times, blocks, calls=3)
  assert unit_costs.verifier_token_s == 1.0
  assert unit_costs.drafter_token_s == 0.1
  assert unit_costs.verify_s == pytest.approx({4: 1.7, 2: 1.2})
  assert not unit_costs.drafts_s
  # Nothing is timed for a gamma of 0 but the verifier.
  assert set(timed_names) == set(times)
  # A block takes no less than a token.
  unit_costs, _ = measured(monkeypatch, times, [(4, 1)], calls=15)
  assert unit_costs.verify_s == {4: 1.0}


def test_several_drafts_have_a_unit_of_their_own(monkeypatch):
  times = {'verifier': 1.0, 1: 0.1, 4: 0.2, (2, 4): 3.0, (8, 1): 4.0}
  blocks = [(2, 4), (8, 1)]
  unit_costs, _ = measured(monkeypatch, times, blocks, calls=2)
  # Both kinds of blocks have eight drafted tokens: the lower counts.
  assert unit_costs.verify_s == pytest.approx({8: 2.6})
  assert unit_costs.drafts_s == {4: 0.2}
  unit_costs, _ = measured(monkeypatch, times, blocks, calls=2, tree_size=5)
  assert unit_costs.verify_s == pytest.approx({5: 2.6, 8: 3.8})


def test_a_drafter_that_is_no_model_is_timed_by_its_proposals(monkeypatch):
  times = {'verifier': 1.0, 1: 0.01, (4, 1): 1.5}
  options = dict(calls=0, drafter=None)
  unit_costs, timed_names = measured(monkeypatch, times, [(4, 1)], **options)
  assert unit_costs.drafter_token_s == 0.01
  # It makes no calls: a block has all of its time.
  assert unit_costs.verify_s == {4: 1.5}
  assert set(timed_names) == set(times)
