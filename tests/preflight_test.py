"""Facts of a sweep before it starts, and unit costs of given times."""

import dataclasses
import functools

import pytest
import small
from answers import COSTS, make_failure, make_record

from experiments import measuring, sweep
from experiments.sweeps import costs, curve_plan, preflight


def test_strict_decoding_is_tried_first():
  curves = [
    small.curve('verifier_only', ()),
    small.curve('token_v3', (0.5, 0.6), gamma=2),
  ]
  tried = preflight.choose(curves)
  assert (tried.method, tried.leniences) == ('token_v3', (0.5,))
  assert preflight.choose(curves[:1]) == curves[0]
  strict = small.curve('speed', (0.5, 0.0), gamma=4)
  tried = preflight.choose([*curves, strict])
  assert (tried.method, tried.leniences) == ('speed', (0.0,))


def test_facts_are_sentences():
  blocks = [make_record('ddbdr', id=x, ended=x == '0') for x in '012']
  failed, _ = make_failure(blocks[0], 'a')
  said = '\n'.join(preflight.facts([*blocks, failed], COSTS, 300, 60.0))
  for words in (
    'answers: 5 tokens on average, to 3 prompts.',
    'answers: 67% of them reach the maximum',
    'rate is 0.75 in token_v3 at lenience 0.5, gamma 2; for one answer at a'
    ' time it pays (1.67 times as fast',
    'time: 300 answers in about 2 min.',
  ):
    assert words in said
  assert not list(preflight.facts([failed], COSTS, 300, 60.0))
  slow = dataclasses.replace(COSTS, verifier_token_s=0.001)
  assert 'does not pay' in '\n'.join(preflight.facts(blocks, slow, 1, 0.0))


@pytest.mark.slow
def test_a_sweep_prints_the_facts_before_its_first_point(tmp_path, capsys):
  config = small.config(temperature=0.0)
  with config.unlocked():
    config.preflight = True
  make = functools.partial(curve_plan.Curve.from_config, config)
  curves = [make('verifier_only', ()), make('speed', (0.0,), num_examples=1)]
  curves.append(make('token_v3', (0.5,), gamma=1))
  sweep.run(config, curves, tmp_path / 'run')
  printed = capsys.readouterr().err
  for word in 'time: 11', 'in speed at lenience 0, gamma 4;', 'times as fast':
    assert word in printed
  # Nothing is left to decode, so there is nothing to say.
  sweep.run(config, curves, tmp_path / 'run')
  printed = capsys.readouterr().err
  assert 'time: ' not in printed
  assert 'page: : ' not in printed


def measured(monkeypatch, times, blocks, calls, drafter='', **options):
  """Unit costs, where each loop takes a time of its own."""
  for name, loop in (
    ('_model_loop', None),
    ('proposal_loop', measuring.TimedLoop(None, 1)),
    ('strict_loop', (None, calls)),
  ):
    monkeypatch.setattr(costs, name, lambda *_, loop=loop, **__: loop)
  timed_names = []

  def time_in_turns(loops, repeats, seconds):
    timed_names.extend(loops)
    return {name: [times[name]] * 3 for name in loops}

  monkeypatch.setattr(costs, 'time_in_turns', time_in_turns)
  spread = costs.measure(object(), drafter, None, blocks, **options)
  assert spread.low == spread.high
  return spread.low, timed_names


def test_a_block_is_the_verifiers_but_for_the_drafters_calls(monkeypatch):
  times = {'verifier': 1.0, 1: 0.1, (4, 1): 2.0, (2, 1): 1.5}
  unit_costs, timed_names = measured(
    monkeypatch, times, [(4, 1), (2, 1), (0, 1)], calls=3
  )
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
