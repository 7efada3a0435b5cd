"""Facts of a sweep before it starts, and unit costs of given times."""

import dataclasses
import functools
import math
import types

import pytest
import small

from cascades import drafters
from cascades.models import checkpoints
from experiments import sweep
from experiments.sweeps import costs, curve_plan, preflight

_TRIAL = preflight.Trial(
  efficiency=[1.5, 3.36],
  prompts=6,
  tokens_per_block=3.36,
  acceptance=0.8,
  has_full_drafts=True,
  answer_tokens=80.2,
  cut_answers=0.0,
  prefill_s=0.1,
  compile_s=1.0,
)
_PREVIEW = preflight.Preview(
  prompt_tokens=(3, 5, 9),
  vocab_size=768,
  gamma=4,
  trial=_TRIAL,
  block_ratios={1: 2.0, 16: 4.0},
  answers=1080,
  seconds=73.0,
)


def test_a_drafter_pays_from_the_break_even_on():
  for acceptance, tokens in ((0, 1), (0.5, 1.9375), (1, 5)):
    assert preflight.tokens_per_block(acceptance, 4) == pytest.approx(tokens)
  for ratio in (1.0, 1.5, 3.0, 4.9):
    acceptance = preflight.break_even(ratio, 4)
    assert preflight.tokens_per_block(acceptance, 4) >= ratio
    if acceptance:
      assert preflight.tokens_per_block(acceptance - 0.001, 4) < ratio
  # No acceptance pays for a block that takes longer than its tokens.
  assert preflight.break_even(5.1, 4) is None


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({}, 'pays (1.68 times as fast; it pays from an acceptance rate of 0.519'),
    ({}, '16 answers at a time: a block takes 4.00 times as long as a'),
    ({}, 'so the drafter does not pay (0.84 times as fast; it pays from'),
    ({'block_ratios': {1: 9.0}}, 'no acceptance rate is high enough'),
    ({'trial': _TRIAL._replace(cut_answers=0.75)}, 'answers: 75% of them'),
    ({}, 'prompts: 3 to 9 tokens, median 5.'),
    ({}, 'answers: 80 tokens on average, to 6 prompts.'),
    ({}, 'its acceptance rate is 0.80 in strict decoding with gamma 4.'),
    ({'lossy_point': 'a at 0.5'}, 'is 0.80 with a at 0.5; no curve decodes'),
    ({'lossy_point': 'a'}, 'pays (1.68 times as fast).'),
    # What eq. 1 gives for the drafts that there were is no measure here.
    (
      {'trial': _TRIAL._replace(has_full_drafts=False, tokens_per_block=1.1)},
      'does not pay (0.55 times as fast).',
    ),
    ({'trial': _TRIAL._replace(acceptance=math.nan)}, 'no token after 6 pro'),
    ({}, 'time: 1080 answers in about 73 s.'),
    ({'seconds': 600.0}, 'about 10 min.'),
    ({'seconds': 9000.0}, 'about 2.5 h.'),
  ],
)
def test_facts_are_sentences(changes, words):
  sentences = dataclasses.replace(_PREVIEW, **changes).sentences()
  assert words in '\n'.join(sentences)


def test_each_fact_is_said_once_when_it_is_known():
  first = preflight.Preview(prompt_tokens=(3, 5, 9), vocab_size=768)
  trial = _TRIAL._replace(cut_answers=0.9)
  decoded = dataclasses.replace(first, gamma=4, trial=trial)
  last = dataclasses.replace(
    decoded, block_ratios={1: 2.0}, answers=9, seconds=7.0
  )
  said, counts = [], []

  def measured():
    for facts in (first, decoded, last):
      counts.append(len(said))
      yield facts

  preflight.say_facts(measured(), said.append)
  assert counts == [0, 2, 5]
  assert said == last.sentences()


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
  for word in (*words, 'in strict decoding with gamma 4.', 'times as fast; '):
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
  monkeypatch.setattr(preflight.costs, 'time_in_turns', take)
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
    ('proposal_loop', costs.TimedLoop(None, 1)),
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
