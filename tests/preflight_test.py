"""Facts of a sweep before it starts, and unit costs of given times."""

import functools

import pytest
import small

from cascades import drafters
from cascades.config import DecodingConfig
from cascades.models import checkpoints
from experiments import measuring, sweep
from experiments.sweeps import costs, curve_plan, preflight

_TRIAL = preflight.Trial(
  prompts=6,
  emitted=480,
  cut=0,
  counts=dict(verifier_calls=160, examined=400, accepted=320),
)


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'cut': 5}, 'answers: 83% of them reach the maximum'),
    ({}, 'answers: 80 tokens on average, to 6 prompts.'),
    ({}, 'acceptance rate is 0.80 in speed gamma 4 at lenience 0.'),
  ],
)
def test_facts_are_sentences(changes, words):
  chosen = preflight.choose(
    [
      small.curve('verifier_only', ()),
      small.curve('token_v3', (0.5,), gamma=2),
      small.curve('speed', (0.5, 0.0), gamma=4),
    ]
  )
  sentences = preflight.describe(_TRIAL._replace(**changes), *chosen)
  assert words in '\n'.join(sentences)
  assert _TRIAL.tokens_per_block == 3


def test_a_drafter_pays_if_its_blocks_are_faster():
  text = 'times as long as a token of the verifier alone, so the drafter'
  assert f'one answer at a time: a block takes 2.00 {text} pays (1.50' in (
    preflight.payment(1, 2.0, 1.5)
  )
  assert f'16 answers at a time: a block takes 4.00 {text} does not pay (0' in (
    preflight.payment(16, 4.0, 0.75)
  )


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
  words = ['prompts:', 'time: 11', 'in speed gamma 4 at lenience 0.']
  for word in (*words, 'times as fast)'):
    assert word in printed
  # Nothing is left to decode, so there is nothing to say.
  sweep.run(config, curves, tmp_path / 'run')
  printed = capsys.readouterr().err
  assert 'prompts:' not in printed
  assert 'page: : ' not in printed


@pytest.mark.slow
def test_blocks_of_beams_are_timed():
  verifier = checkpoints.load_model('tiny-verifier')
  drafter = drafters.load('tiny-recurrent', beam=True)
  bound = drafters.bind_drafter(verifier, drafter)
  config = DecodingConfig(gamma=2, drafts=4, verification='match')
  times = preflight.block_times(verifier, bound, config, [1], 8)
  assert min(times.values()) > 0
  assert times.keys() == {(0, 1), (2, 1)}


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
