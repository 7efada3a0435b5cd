"""Facts of a sweep before it starts, and unit costs of given times."""

import functools
import types

import pytest
import small

from cascades import drafters
from cascades.models import checkpoints
from experiments import measuring, sweep
from experiments.sweeps import costs, curve_plan, preflight

_TRIAL = preflight.Trial(
  prompts=6,
  emitted=480,
  cut=0,
  counts=dict(verifier_calls=160, examined=400, accepted=320),
  prefill_s=0.1,
  compile_s=1.0,
)


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'cut': 5}, 'answers: 83% of them reach the maximum'),
    ({}, 'answers: 80 tokens on average, to 6 prompts.'),
    ({}, 'its acceptance rate is 0.80 in strict decoding.'),
    ({'counts': _TRIAL.counts | {'examined': 0}}, 'no token after 6 prompts'),
  ],
)
def test_facts_are_sentences(changes, words):
  sentences = preflight.describe(_TRIAL._replace(**changes), 'strict decoding')
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
  # Strict decoding has fewer rows at a time than the others.
  curves = [make('verifier_only', ()), make('speed', (0.0,), num_examples=1)]
  curves.append(make('token_v3', (0.5,), gamma=1))
  sweep.run(config, curves[:2], tmp_path / 'run', estimate_only=True)
  assert 'time: 6 answers' in capsys.readouterr().err
  assert not list((tmp_path / 'run').glob('records/*'))
  # With another gamma, whose blocks were not measured then.
  sweep.run(config, curves, tmp_path / 'run')
  printed = capsys.readouterr().err
  words = ['tokenizers:', 'prompts:', 'time: 11']
  for word in (*words, 'in strict decoding with gamma 4.', 'times as fast)'):
    assert word in printed
  # Nothing is left to decode, so there is nothing to say.
  sweep.run(config, curves, tmp_path / 'run')
  printed = capsys.readouterr().err
  assert 'tokenizers:' not in printed
  assert 'page: : ' not in printed


def test_blocks_are_timed_as_their_curves_have_them(monkeypatch):
  several = dict(drafts=4, verification='multi_round')
  curve = curve_plan.Curve.from_config(
    {'tree_size': 6}, 'speed', (0.0,), gamma=3, **several
  )
  timed = []

  def strict_loop(*_, gamma, drafts, tree_size, rows, **__):
    timed.append((gamma, drafts, tree_size, rows))
    return None, 0.0

  take = lambda loops, **_: {key: [1.0] for key in loops}  # noqa: E731
  monkeypatch.setattr(preflight.costs, 'strict_loop', strict_loop)
  monkeypatch.setattr(preflight.measuring, 'time_in_turns', take)
  stub = types.SimpleNamespace
  setting = stub(verifier=None, bound_drafter=None)
  preflight._block_times(setting, {(preflight._block(curve), 2)}, 10)
  assert sorted(timed) == [(0, 1, None, 2), (3, 4, 6, 2)]


@pytest.mark.slow
def test_blocks_of_beams_are_timed():
  verifier = checkpoints.load_model('tiny-verifier')
  drafter = drafters.load('tiny-recurrent', beam=True)
  bound = drafters.bind_drafter(verifier, drafter)
  setting = types.SimpleNamespace(verifier=verifier, bound_drafter=bound)
  blocks = (2, 4, None), (1, 1, None)
  times = preflight._block_times(setting, {(x, 1) for x in blocks}, 8)
  assert min(times.values()) > 0
  assert len(times) == 3


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
