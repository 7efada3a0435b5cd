"""The tests are tested: a small fault in the library turns one of them red.

A mutant replaces a piece of a function's own source, runs a test that is named
beside it, and wants it to fail by an assertion. The same test passes on the
library as it is. `pytest tests/mutants_test.py` ends with a table of them all.

Most of the tests are other files'. Some faults had none, or none that is
cheap: theirs come first.
"""

import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import batching_test
import caps_test
import comparisons_test
import decoding_test
import drafters_test
import jax
import jax.numpy as jnp
import learned_test
import methods_test
import numpy as np
import processing_test
import pytest
import schedules_test
import scoring_test
import several_test
import stats_test
import theory_test
import verification_test

from cascades import decoding, methods, schedules, verification
from cascades.contrib import capping, learned
from cascades.contrib.look_ahead import window
from cascades.decoding import journal, reading, rows
from cascades.drafters import model
from cascades.methods import (
  baselines,
  cascade,
  method,
  processing,
  relaxed,
)
from cascades.proof import enumeration
from cascades.sampler import batching, scoring
from cascades.verification import several, single, traversal
from experiments.analysis import (
  calibration,
  comparisons,
  mixture,
)
from experiments.analysis import kinds as plainer
from experiments.records import stats

_RULES = baselines, cascade, relaxed
# The package has the function under the module's name.
stepping = inspect.getmodule(decoding.step)


# --- Tests for the faults that no cheap test of another file sees.


def _by_hand(drafter, prompt, lenience, gamma, limit, stops):
  """token_v1 at temperature 0, without a cache, block after block."""
  model, tables = decoding_test._MODEL, (drafter, decoding_test._VERIFIER)
  tokens, sources, logprobs = list(prompt), [], []
  names = 'blocks', 'examined', 'accepted', 'deferred', 'residual', 'bonus'
  counts = dict.fromkeys(names, 0)
  ended = False
  while not ended:
    counts['blocks'] += 1
    for i in range(gamma + 1):
      logits = (model.logits(table, tokens) for table in tables)
      q, p = (np.asarray(jax.nn.softmax(x)) for x in logits)
      draft = int(q.argmax())
      deferred = bool(q[draft] < p.max() - lenience)
      token = int(p.argmax()) if deferred else draft
      if i == gamma:
        source = 'bonus'
      else:
        source = 'accepted' if token == draft else 'residual'
        counts['examined'] += 1
        counts['deferred'] += deferred
      counts[source] += 1
      tokens.append(token)
      sources.append(['accepted', 'residual', 'bonus'].index(source) + 1)
      logprobs.append(np.log(p[token]))
      ended = token in stops or len(tokens) == limit
      if ended or source == 'residual':
        break
  return tokens, sources, logprobs, counts


@pytest.mark.slow
def test_a_greedy_run_is_what_a_loop_without_caches_writes():
  prompts = [(1,), (2, 4), (3, 3, 3), (0, 1, 2, 3, 4), (4,), (2,), (0, 2)]
  gamma, new, lenience, stops = 2, 9, 0.1, (4,)
  # The two tables have no favourite in common; a draft of this one can stay.
  drafter = decoding_test._DRAFTER + 0.5 * decoding_test._VERIFIER
  state = decoding_test._generate(
    'token_v1',
    (lenience,),
    gamma,
    0,
    new,
    0.0,
    prompts,
    stops=stops,
    drafter_table=drafter,
  )
  total = dict.fromkeys(('accepted', 'deferred', 'residual', 'bonus'), 0)
  for i, prompt in enumerate(prompts):
    tokens, sources, logprobs, counts = _by_hand(
      drafter, prompt, lenience, gamma, len(prompt) + new, stops
    )
    row = jax.tree.map(lambda x, i=i: x[i, 0], state)
    emitted = slice(len(prompt), int(row.length))
    assert row.tokens[: row.length].tolist() == tokens
    assert row.source[emitted].tolist() == sources
    np.testing.assert_allclose(row.logprob[emitted], logprobs, atol=1e-6)
    found = decoding.count(row)
    assert {name: int(getattr(found, name)) for name in counts} == counts
    total = {name: total[name] + counts[name] for name in total}
  # All that can happen did: also a draft that was deferred and kept.
  assert min(total.values()) > 0
  assert total['deferred'] > total['residual']


def test_the_gate_is_what_the_scheme_says():
  logits = jax.random.normal(jax.random.key(0), (2, 5))
  how = decoding_test.processed_by(temperature=0.5, top_k=3)
  raw, processed = (
    decoding.distributions(*logits, how, gate=gate)
    for gate in ('raw', 'processed')
  )
  for d in raw, processed:
    np.testing.assert_array_equal(
      [d.q, d.p], [processing.probabilities(z, how) for z in logits]
    )
  np.testing.assert_array_equal(processed.q_gate, processed.q)
  np.testing.assert_array_equal(processed.p_gate, processed.p)
  np.testing.assert_allclose(
    [raw.q_gate, raw.p_gate], jax.nn.softmax(logits), rtol=1e-5
  )


def test_the_residual_after_half_a_block_has_its_weight():
  # w = 1/2 after the first draft, and max(0, w p - q) is only token 3; without
  # the weight it were token 1 too. The second draft has p = 0: it goes.
  q = [[0.9, 0.1, 0, 0], [0.3, 0.3, 0.4, 0], [0.25] * 4]
  p = [[0.45, 0.55, 0, 0], [0.1, 0.5, 0, 0.4], [0.25] * 4]
  d = methods.Distributions(*(jnp.array(x) for x in (q, p, q, p)))
  n = 4000

  def one(key):
    return verification.verify(
      methods.METHODS['speed'],
      jnp.zeros(()),
      key,
      jnp.array([[0, 2]]),
      lambda i, j: jax.tree.map(lambda x: x[i], d),
      verification.Scheme('block'),
    )

  keys = jax.random.split(jax.random.key(0), n)
  said = jax.device_get(jax.jit(jax.vmap(one))(keys))
  kept = said.num_accepted == 1
  assert (said.next_token[kept] == 3).all()
  assert (said.next_token[~kept] == 1).all()
  assert (said.num_accepted < 2).all()
  # S = 0.2, so h = S / (S + 1 - w) = 2/7.
  assert abs(kept.mean() - 2 / 7) < 5 * np.sqrt(2 / 7 * 5 / 7 / n)


def test_a_residual_without_mass_is_the_law():
  p = jnp.array([0.1, 0.2, 0.7])
  np.testing.assert_array_equal(methods.normalised(0 * p, p), p)
  for name in ('speed', 'chow', 'diff', 'opt', 'lossy'):
    one = methods.METHODS[name]
    said = one.residual(methods.Distributions(p, p, p, p), jnp.asarray(0.0))
    np.testing.assert_allclose(said, p, atol=1e-6)


# --- The mutants.


class Mutant(NamedTuple):
  """A fault, and the test that must see it.

  Attributes:
    name: Of the mutant.
    broken: What is wrong with it.
    where: A function of the library, or a module of methods.
    old: A piece of its source, which occurs once.
    new: What stands there instead.
    victim: A test.
    arguments: Of the test.
  """

  name: str
  broken: str
  where: Any
  old: str
  new: str
  victim: Callable[..., None]
  arguments: tuple = ()

  @property
  def test(self) -> str:
    """The victim, about as pytest calls it."""
    said = ', '.join(map(str, self.arguments))
    file = self.victim.__module__.removesuffix('_test')
    return f'{file}: {self.victim.__name__}' + f'[{said}]' * bool(said)


_law = methods_test.test_law_is_what_acceptance_and_residual_emit
_limits = methods_test.test_limits_are_exactly_the_verifier_and_the_drafter
_verify = verification_test.test_verify_emits_what_the_enumeration_says
_cascade = decoding_test.test_the_emitted_law_is_the_declared_law
_greedy = test_a_greedy_run_is_what_a_loop_without_caches_writes
_formula = theory_test.test_rules_are_their_formulas
_rows = decoding_test.test_rows_do_not_depend_on_their_batch
_alone = batching_test.test_answers_are_what_they_are_alone
_answers = comparisons_test.make(comparisons_test.SPECS)

_MUTANTS = (
  # Methods.
  Mutant(
    'residual_is_pi',
    'the residual is pi, not norm(max(0, pi - q))',
    method.from_target,
    'normalised(jnp.maximum(0, pi - d.q), pi)',
    'pi',
    _law,
    ('token_v3', True),
  ),
  Mutant(
    'mixture_without_eta',
    'pi = q (1 - r) + r p, which is no distribution',
    method.mixture,
    'deferred * p',
    'r * p',
    _law,
    ('token_v2', True),
  ),
  Mutant(
    'no_fallback',
    'a residual without mass is 0: sampling takes token 0',
    method.normalised,
    ', otherwise)',
    ', 0)',
    _law,
    ('diff', True),
  ),
  Mutant(
    'fallback_is_token_0',
    'a residual without mass is one-hot at token 0',
    method.normalised,
    ', otherwise)',
    ', jnp.eye(weights.shape[-1])[0])',
    test_a_residual_without_mass_is_the_law,
  ),
  Mutant(
    'gate_sign',
    'Chow defers where the drafter is sure',
    cascade.chow,
    'max(-1) < 1',
    'max(-1) > 1',
    _limits,
    ('chow', True),
  ),
  Mutant(
    'opt_plus',
    'OPT makes a deferral cheaper where p and q differ',
    cascade.opt,
    '- price',
    '+ price',
    _limits,
    ('opt', True),
  ),
  Mutant(
    'strict_sign',
    'the strict lenience of Diff is 1, not -1',
    cascade,
    "'defer if mq < mp - lam', -1.0",
    "'defer if mq < mp - lam', 1.0",
    _limits,
    ('diff', True),
  ),
  Mutant(
    'zero_is_strict',
    'TokenV3 calls lenience 0 strict',
    cascade,
    "'defer v if p(v) < (1 - lam) mp', -1.0",
    "'defer v if p(v) < (1 - lam) mp', 0.0",
    _limits,
    ('token_v3', True),
  ),
  Mutant(
    'stricter_than_strict',
    'lenient decoding divides by 1 + lam',
    relaxed.speed_acceptance,
    '1 - lenience',
    '1 + lenience',
    theory_test.test_lenient_decoding_has_a_target,
    (0.5,),
  ),
  Mutant(
    'both_sides_of_tv',
    'TV is sum |p - q|, without its half',
    method.total_variation,
    'jnp.maximum(0, p - q)',
    'jnp.abs(p - q)',
    _formula,
    ('opt',),
  ),
  Mutant(
    'opt_prices_the_gates',
    'OPT takes TV of what the gate sees, not of what is sampled',
    cascade.price,
    'total_variation(d.p, d.q)',
    'total_variation(d.p_gate, d.q_gate)',
    _formula,
    ('opt',),
  ),
  Mutant(
    'learned_keeps_what_it_defers',
    'the learned rule defers where the drafter is said to lose less',
    learned.defer,
    '> price',
    '< price',
    _limits,
    ('learned', True),
  ),
  Mutant(
    'learned_adds_the_other_model',
    "how likely p holds the drafter's favourite is looked up in q",
    learned._at_favourite,
    'of >= of.max',
    'probs >= probs.max',
    learned_test.test_features_are_their_formulas,
    ('random',),
  ),
  Mutant(
    'bild_favourite',
    "BiLD looks at the verifier's favourite",
    relaxed.bild,
    'likeliest(d.q_gate',
    'likeliest(d.p_gate',
    _formula,
    ('bild',),
  ),
  Mutant(
    'kl_reversed',
    'KL(q || p) instead of KL(p || q)',
    relaxed.fuzzy_kl_pq,
    'd.p_gate, d.q_gate',
    'd.q_gate, d.p_gate',
    _formula,
    ('fuzzy_kl_pq',),
  ),
  Mutant(
    'js_of_the_mean',
    'JS where its authors have the mean of KL(m || p) and KL(m || q)',
    relaxed.fuzzy_js_unbounded,
    'kl(middle, d.p_gate) + kl(middle, d.q_gate)',
    'kl(d.p_gate, middle) + kl(d.q_gate, middle)',
    _formula,
    ('fuzzy_js_unbounded',),
  ),
  Mutant(
    'margin_is_a_difference',
    'the margin of logits is a difference, not a quotient',
    relaxed.margin,
    '(1 - lenience) * most',
    'most - lenience',
    _formula,
    ('margin',),
  ),
  Mutant(
    'undecided_by_all',
    'undecided by the entropy of three that do not sum to 1',
    relaxed.undecided,
    'top / top.sum(-1, keepdims=True)',
    'top',
    _formula,
    ('undecided',),
  ),
  Mutant(
    'cap_inside_out',
    'a cap holds back the likely tokens, not the others',
    capping.capped,
    'jnp.where(d.cap, pi,',
    'jnp.where(~d.cap, pi,',
    caps_test.test_a_capped_method_emits_its_law,
    ('ensemble', False),
  ),
  Mutant(
    'cut_goes_to_the_target',
    'what a cap cuts goes to its target, not to the verifier',
    capping.capped,
    'jnp.maximum(0, d.p - kept), d.p',
    'kept, d.p',
    caps_test.test_a_capped_method_emits_its_law,
    ('ensemble', False),
  ),
  Mutant(
    'typical_entropy_sign',
    'typical acceptance with exp(H)',
    relaxed.typical,
    'jnp.exp(-entropy',
    'jnp.exp(entropy',
    _formula,
    ('typical',),
  ),
  # Sampling.
  Mutant(
    'zeros_are_drawn',
    'a token of probability 0 is drawn now and then',
    processing.draw,
    'jnp.log(runs[run])',
    'jnp.log(runs[run] + 1e-3)',
    processing_test.test_sampling_never_draws_a_zero_and_follows_the_rest,
  ),
  Mutant(
    'top_k_drops_equals',
    'top-k drops the token at its border',
    processing.truncate,
    'probs = jnp.where(probs >= least, probs, 0)\n  if top_p',
    'probs = jnp.where(probs > least, probs, 0)\n  if top_p',
    processing_test.test_top_k_keeps_k_and_renormalises,
  ),
  # Verification.
  Mutant(
    'target_row_late',
    'a draft is judged by the row of the next one',
    single.of_drafts,
    'ask.row(i, 0)',
    'ask.row(i + 1, 0)',
    _verify,
    ('token', 'target'),
  ),
  Mutant(
    'bonus_row_early',
    "the bonus comes from the last draft's row",
    single.token,
    'ask.row(kept, 0)',
    'ask.row(jnp.minimum(kept, ask.gamma - 1), 0)',
    _verify,
    ('token', 'target'),
  ),
  Mutant(
    'bonus_option_ignored',
    "the bonus is the target's, whatever was asked for",
    single.Question.beyond,
    'jnp.where(known, law, d.p) if self.from_target else d.p',
    'jnp.where(known, law, d.p)',
    _verify,
    ('token', 'verifier'),
  ),
  Mutant(
    'gate_option_ignored',
    'the gate is raw, whatever was asked for',
    decoding.distributions,
    "gate == 'raw'",
    'True',
    test_the_gate_is_what_the_scheme_says,
  ),
  Mutant(
    'block_keeps_by_weight',
    'block verification with h = w at every draft',
    single.block,
    'jnp.append(h[1:], 0.0)[:gamma]',
    'jnp.append(w[1:-1], 0.0)[:gamma]',
    _verify,
    ('block', 'target'),
  ),
  Mutant(
    'block_residual_unweighted',
    'the residual of a block is without its weight',
    single.block,
    'w[kept] * law - d.q',
    'law - d.q',
    test_the_residual_after_half_a_block_has_its_weight,
  ),
  Mutant(
    'window_too_short',
    'a window that looks ahead is a draft too short',
    window.look_ahead,
    'followed >= window - 1',
    'followed >= window - 2',
    verification_test.test_verify_emits_what_the_enumeration_says,
    ('look_ahead:2', 'target'),
  ),
  Mutant(
    'verifier_after_a_window',
    'after a window fails comes a token of p, not of what q leaves of it',
    window.look_ahead,
    'methods.normalised(jnp.maximum(0, d.p - d.q), d.p)',
    'd.p',
    verification_test.test_verify_emits_what_the_enumeration_says,
    ('look_ahead:2', 'target'),
  ),
  Mutant(
    'lenience_of_the_first_place',
    'a residual is as lenient as the first place of the draft',
    single.token,
    'ask.leniences[0, kept]',
    'ask.leniences[0, 0]',
    schedules_test.test_the_loop_follows_a_law_that_bends,
    ('token', 1, 'first:2'),
  ),
  Mutant(
    'lenience_a_token_early',
    'a schedule has counted the token that is judged',
    schedules.along,
    'schedule.lenience(memory, asked',
    'schedule.lenience(schedule.after(memory, token, None), asked',
    schedules_test.test_the_loop_follows_a_law_that_bends,
    ('token', 1, 'first:2'),
  ),
  Mutant(
    'memory_of_what_was_drafted',
    'a schedule remembers drafts that did not stay',
    stepping.verify_block,
    'x[path, n], memory',
    'x[path, -1], memory',
    schedules_test.test_the_loop_follows_a_law_that_bends,
    ('token', 1, 'first:2'),
  ),
  Mutant(
    'sequential_residual',
    'a sequential cascade samples the residual, not p',
    single.sequential,
    'processing.draw(last, d.p)',
    'processing.draw(last, ask.method.residual(d, ask.leniences[0, 0]))',
    _cascade,
    (verification.Scheme('sequential'), ('plain',)),
  ),
  Mutant(
    'gate_left_behind',
    'the loop looks through the raw gate, whatever was asked for',
    stepping._rows,
    'how, q, gate)',
    'how, q)',
    decoding_test.test_the_emitted_law_of_every_other_scheme,
    (verification.Scheme('token', 'processed'), 3, decoding_test.FEW),
  ),
  Mutant(
    'one_rejection',
    'a candidate is tried against what the last one was',
    several._rounds,
    'jnp.where(tried & ~yes, less, rho)',
    'rho',
    several_test.test_verify_emits_what_the_enumeration_says,
    ('multi_round', 3),
  ),
  Mutant(
    'undivided',
    'k-SEQ accepts against the target as it is',
    several._divided,
    'jnp.where(b >= a, one, c)',
    'one',
    several_test.test_verify_emits_what_the_enumeration_says,
    ('k_seq', 2),
  ),
  Mutant(
    'other_drafts_stay',
    'a draft that began otherwise stays a candidate',
    several._walk,
    'jnp.where(accepted, agree, active)',
    'active',
    several_test.test_verify_emits_what_the_enumeration_says,
    ('multi_round', 2),
  ),
  Mutant(
    'uncapped_rest',
    'after a candidate, a node is left with what it had',
    traversal._without,
    'return rest',
    'return budget',
    several_test.test_verify_emits_what_the_enumeration_says,
    ('traversal', 2),
  ),
  Mutant(
    'target_with_what_was_tried',
    'after a candidate, a node has the target that it had',
    traversal._without,
    'methods.normalised(left, target)',
    'target',
    several_test.test_verify_emits_what_the_enumeration_says,
    ('traversal', 3),
  ),
  Mutant(
    'tried_again',
    'a token is tried once for each draft that begins with it, and once more',
    traversal._turn,
    'walk.tried[draft, at] | down',
    'walk.tried[draft, at] | (down & (walk.tests > 0))',
    several_test.test_verify_emits_what_the_enumeration_says,
    ('traversal', 2),
  ),
  # The loop.
  Mutant(
    'drafts_see_each_other',
    'a draft sees the tokens of those beside it',
    reading.read_hidden,
    'mask = jax.lax.dynamic_update_slice(mask, branches.sees, (0, position))',
    'mask = slots <= positions[:, None]',
    several_test.test_a_tree_of_drafts_is_read_as_each_draft_alone,
    ('match', 9),
  ),
  Mutant(
    'another_draft_kept',
    "the first draft's slots are kept, whichever stays",
    stepping.verify_block,
    'at, at + kept)',
    'at, at + block.places[0])',
    several_test.test_a_tree_of_drafts_is_read_as_each_draft_alone,
    ('match', 9),
  ),
  Mutant(
    'a_draft_ends_by_its_next_token',
    'a tree ends where the tokens of the next level do not fit',
    reading.tree,
    'before + there.sum(0) <= size',
    'before + own.sum(0) <= size',
    several_test.test_where_drafts_end_hangs_on_what_stands_before_only,
  ),
  Mutant(
    'one_key',
    'drafting and verifying share a key',
    decoding.step,
    'params, how, verify_key)',
    'params, how, draft_key)',
    _cascade,
    (verification.STANDARD, ('forbidden',)),
  ),
  Mutant(
    'raw_q',
    'q is raw, the draft is not',
    decoding.distributions,
    'drawn_from = q(drafter_logits, how)',
    'drawn_from = processing.gate_probabilities(drafter_logits)',
    _cascade,
    (verification.STANDARD, ('forbidden',)),
  ),
  Mutant(
    'argmax_draft',
    'the draft is the argmax of a q that is soft',
    model._draft,
    'processing.draw(u, processing.probabilities(z, how))',
    'jnp.argmax(z).astype(jnp.int32)',
    _cascade,
    (verification.STANDARD, ('forbidden',)),
  ),
  Mutant(
    'places_for_ids',
    'a drafter of some tokens gives their places among these',
    model._draft,
    'last if said is None else said[last]',
    'last',
    drafters_test.test_a_drafter_of_some_tokens_keeps_the_law,
    ('token',),
  ),
  Mutant(
    'verifier_row_early',
    'the verifier reads one token less than it is asked about',
    stepping._rows,
    'block.logits[i if',
    'jnp.roll(block.logits, 1, 0)[i if',
    _greedy,
  ),
  Mutant(
    'drafter_behind',
    'after a whole block the drafter lacks the last draft',
    model._draft,
    'jnp.maximum(at - 1, 0)',
    'at',
    drafters_test.test_a_model_that_drafts_for_itself_is_never_rejected,
  ),
  Mutant(
    'nobody_looks_beyond',
    'a lenient bonus looks at what the drafter never said',
    stepping.Decoder.beyond,
    'state.lenience != strict',
    'jnp.zeros((), bool)',
    decoding_test.test_where_none_is_lenient_a_drafter_makes_a_pass_less,
  ),
  Mutant(
    'a_call_for_others',
    'a strict row counts the pass that a lenient one asks for',
    model._draft,
    'going.any() & (i < gamma + beyond)',
    'going.any()',
    decoding_test.test_where_none_is_lenient_a_drafter_makes_a_pass_less,
  ),
  Mutant(
    'verifier_ahead',
    'a rejected draft stays in the verifier',
    stepping.commit,
    'verifier.rewind(block.verifier_cache, length - 1)',
    'verifier.rewind(block.verifier_cache, at + decoder.gamma + 1)',
    _greedy,
  ),
  Mutant(
    'deferrals_of_all_drafts',
    'deferrals are counted past the last examined draft',
    decoding.count,
    '(index < end)',
    '(index <= end)',
    _greedy,
  ),
  Mutant(
    'logprob_of_next_row',
    'logprobs are of the row after the token',
    stepping.verify_block,
    '(logits, tokens[:places])',
    '(jnp.roll(logits, -1, 0), tokens[:places])',
    _greedy,
  ),
  Mutant(
    'after_the_stop',
    'what follows a stop token in its block is emitted',
    stepping.emitted_of,
    'jnp.where(stopped, jnp.argmax(is_stop), kept) + 1',
    'kept + 1',
    decoding_test.test_nothing_comes_after_a_stop_token,
    (1,),
  ),
  Mutant(
    'after_the_limit',
    'a block goes on past the limit of its row',
    stepping.emitted_of,
    'jnp.minimum(emitted, state.limit - state.length)',
    'emitted',
    decoding_test.test_limits_are_kept_row_by_row,
  ),
  Mutant(
    'finished_rows_go_on',
    'a row that has ended emits until the others have',
    stepping.emitted_of,
    'jnp.where(state.done, 0, emitted)',
    'emitted',
    _greedy,
  ),
  Mutant(
    'bonus_examined',
    'the bonus counts as examined',
    decoding.count,
    'examined=accepted + residual',
    'examined=accepted + residual + of(source == BONUS)',
    decoding_test.test_counts_add_up,
    (1, (-1,)),
  ),
  Mutant(
    'finished_rows_count',
    'a finished row goes on counting blocks',
    journal.note,
    'write(before.taken, at, taken)',
    'write(before.taken, at - 1, taken)',
    _rows,
  ),
  Mutant(
    'key_of_the_place',
    'the key of a row depends on where in the batch it stands',
    decoding.prefill,
    'prompts, prompt_lengths, keys, limits',
    'prompts, prompt_lengths,\n'
    '    jax.vmap(jax.random.fold_in)(keys, jnp.arange(len(keys))),\n'
    '    limits',
    _rows,
  ),
  # Keeping a batch busy.
  Mutant(
    'leniences_mixed_up',
    "a row takes its neighbour's lenience",
    decoding.place,
    'leniences[i]',
    'leniences[i - 1]',
    _alone,
    (16,),
  ),
  Mutant(
    'prompts_mixed_up',
    'a row takes the prompt that was read before its own',
    decoding.place,
    'x, sources[i], keepdims',
    'x, sources[i] - 1, keepdims',
    _alone,
    (16,),
  ),
  Mutant(
    'not_wide_enough',
    'a row goes on where its cache has ended',
    decoding.decode,
    'rows.length + decoder.slack <= room',
    'rows.length <= room',
    batching_test.test_caches_grow_with_their_rows,
    (8, 24),
  ),
  Mutant(
    'wrong_rows_dropped',
    'a batch that is narrowed keeps its first rows',
    batching._Batch.narrow,
    'decoding.take(self.rows, _padded(going, slots))',
    'decoding.take(self.rows, np.arange(slots))',
    batching_test.test_a_batch_is_narrowed_when_few_rows_are_left,
  ),
  Mutant(
    'turn_read_late',
    'another turn is read one place too far',
    rows._extend,
    'params.verifier, state.verifier_cache, block, at',
    'params.verifier, state.verifier_cache, block, at + 1',
    batching_test.test_a_turn_goes_on_where_the_last_one_ended,
    (3,),
  ),
  # What the report says.
  Mutant(
    'narrow_intervals',
    'intervals of 95 % hold half as much',
    stats.bootstrap,
    'confidence_level=level',
    'confidence_level=level / 2',
    stats_test.test_intervals_hold_the_true_mean_as_often_as_they_say,
  ),
  Mutant(
    'own_draws',
    'a draw has every example once',
    stats.bootstrap,
    'counts @ rows',
    'np.ones_like(counts) @ rows',
    stats_test.test_ratios_of_totals_follow_the_delta_method,
  ),
  Mutant(
    'strata_forgotten',
    'a mixture has as many examples of a task as chance gives it',
    stats.bootstrap,
    'strata or (n,)',
    '(n,)',
    stats_test.test_strata_are_drawn_apart,
  ),
  Mutant(
    'worse_is_fine',
    'to be no worse is to be better by the margin',
    stats.not_inferior,
    '> -margin',
    '> margin',
    comparisons_test.test_as_good_is_by_the_lower_end_and_the_margin,
    (_answers,),
  ),
  Mutant(
    'uncorrected',
    'p-values are not corrected for the number of methods',
    stats.holm,
    "method='holm')[1]",
    "method='holm')[1] / known.sum()",
    comparisons_test.test_mcnemar_is_corrected_for_the_methods_of_a_task,
    (_answers,),
  ),
  Mutant(
    'strangers',
    'examples that only the method answered are compared all the same',
    comparisons._sums,
    'own & own[:, reference]',
    'own',
    comparisons_test.test_examples_that_one_did_not_answer_are_out_of_the_pair,
    (_answers,),
  ),
  Mutant(
    'slower_is_as_fast',
    "the best within the verifier's latency may be slower",
    comparisons.best_as_fast,
    '>= 1',
    '>= 0.5',
    comparisons_test.test_both_sides_of_the_table,
    (_answers,),
  ),
  Mutant(
    'judged_where_chosen',
    'a lenience is judged on the half that it was chosen on',
    calibration.halves,
    'for i in (0, 1)',
    'for i in (0, 0)',
    comparisons_test.test_a_lenience_is_chosen_and_judged_apart,
    (_answers,),
  ),
  Mutant(
    'truncated_otherwise',
    'TokenV3 stands beside min-p at its own lenience',
    plainer.truncated_alike,
    '1 - row.lenience',
    'row.lenience',
    comparisons_test.test_what_truncation_alone_is_worth_is_told,
  ),
  Mutant(
    'large_tasks_count_more',
    'a mixture is of examples, not of tasks',
    mixture._sums,
    '/ sums[..., i * (size + 1), None]',
    '/ sums[..., 0, None]',
    comparisons_test.test_tasks_count_equally_in_a_mixture,
  ),
)


# Rows that verification, scoring or a proof's own enumeration could take for
# each other: each use of a row, and the rows that stand there instead. Left out
# is what changes nothing: a row after a whole draft is asked for in no other
# place than the last, so that `kept + 1` and `ask.gamma` are that row.
_ABOVE = '{0} + 1', 'jnp.maximum({0} - 1, 0)', '0 * {0}'
_BELOW = _ABOVE[1:]
_BESIDE = '({0} + 1) % len(ask.tokens)', '0 * {0}'


def _of_others(template, row, others):
  return [template.format(other.format(row)) for other in others]


def _in_tree(i, j, levels=_ABOVE):
  """Another level of a tree, and another draft."""
  return [
    *_of_others(f'ask.row({{}}, {j})', i, levels),
    *_of_others(f'ask.row({i}, {{}})', j, _BESIDE),
  ]


def _mixed_up():
  """Functions, what of their source, what instead, tests, and a name."""
  token, ahead_, block = (
    (_verify, kind, 'target') for kind in ('token', 'look_ahead:2', 'block')
  )
  half = (test_the_residual_after_half_a_block_has_its_weight,)
  one = functools.partial(_of_others, 'ask.row({}, 0)')
  kept, drafted = one('kept', _ABOVE), one('i', _ABOVE)
  for tests in token, ahead_:
    yield single.of_drafts, 'ask.row(i, 0)', drafted, tests, 'draft'
  empty = (
    verification_test.test_a_block_without_drafts_is_drawn_from_its_first_row
  )
  yield (
    *(single.passed, 'ask.row(nothing, nothing)'),
    *(['ask.row(nothing + 1, nothing)'], (empty, 2), 'nothing'),
  )
  for where, tests in ((single.token, token), (window.look_ahead, ahead_)):
    yield where, 'ask.row(kept, 0)', kept, tests, 'after'
    laws = [f'method.law({x}, lenience)' for x in one('kept', _BELOW)]
    yield where, 'method.law(d, lenience)', laws, tests, 'bonus'
  instead = [f'method.residual({x}, lenience)' for x in kept]
  yield single.token, 'method.residual(d, lenience)', instead, token, 'residual'
  for field in 'pq':
    of = [f'd._replace({field}={x}.{field})' for x in kept]
    left = [f'jnp.maximum(0, ({x}).p - ({x}).q)' for x in of]
    yield (
      *(window.look_ahead, 'jnp.maximum(0, d.p - d.q)'),
      *(left, ahead_, f'residual_{field}'),
    )
  yield (
    single.block,
    'd = ask.row(kept, 0)',
    ['d = ' + x for x in kept],
    (*block,),
    'after',
  )
  yield (
    single.block,
    'ask.row(i, 0), ask',
    [x + ', ask' for x in drafted],
    (*block,),
    'draft',
  )
  left = [f'w[kept] * law - {x}.q' for x in kept]
  left += [
    f'w[kept] * method.law({x}, ask.leniences[0, kept]) - d.q' for x in kept
  ]
  yield single.block, 'w[kept] * law - d.q', left, block, 'residual'
  weights = _of_others('w[{}]', 'kept', _BELOW)
  yield single.block, 'w[kept]', weights, half, 'weight'
  mass = ['w * pi - ask.row(i + 1, 0).q']
  mass += ['w * method.law(ask.row(i + 1, 0), lenience) - d.q']
  yield single.block, 'w * pi - d.q', mass, half, 'mass'
  law = [
    f'ask.beyond(d, method.law({x}, ask.leniences[0, kept])'
    for x in one('kept', _BELOW)
  ]
  yield single.block, 'ask.beyond(d, law', law, block, 'bonus'


def _mixed_up_in_trees():
  """The same, where there are several drafts."""
  check = several_test.test_verify_emits_what_the_enumeration_says
  of_verifier = several_test.test_a_bonus_of_the_verifiers_is_of_its_own_row
  for kind in 'multi_round', 'k_seq', 'match':
    yield (
      *(several._walk, 'd = ask.row(kept, path)\n    len'),
      [f'd = {x}\n    len' for x in _in_tree('kept', 'path')],
      *((check, kind, 2), f'step_{kind}'),
    )
    yield (
      *(several._walk, 'd = ask.row(kept, path)\n  law'),
      [f'd = {x}\n  law' for x in _in_tree('kept', 'path', _BELOW)],
      *((check, kind, 2), f'bonus_{kind}'),
    )
    yield (
      *(several._walk, 'd = ask.row(kept, path)\n  law'),
      [f'd = {x}\n  law' for x in _in_tree('kept', 'path', _BELOW)],
      *((of_verifier, kind), f'p_of_bonus_{kind}'),
    )
  for kind in 'multi_round', 'k_seq':
    yield (
      *(several._walk, 'step(d, pi'),
      [f'step(d._replace(q={x}.q), pi' for x in _in_tree('kept', 'path')],
      *((check, kind, 2), f'q_{kind}'),
    )
  for row in (('depth', 'path'), ('above', 'path'), ('at + 1', 'draft')):
    old = f'ask.row({row[0]}, {row[1]})'
    others = _in_tree(*row, levels=('1 + {0}', 'jnp.maximum({0} - 1, 0)'))
    tests = check, 'traversal', 2
    yield traversal._turn, old, others, tests, row[0].partition(' ')[0]
  others = ['ask.row(zero + 1, zero)']
  tests = check, 'traversal', 2
  yield traversal.traversal, 'ask.row(zero, zero)', others, tests, 'root'
  yield (
    *(traversal.traversal, 'ask.row(kept, path)'),
    _in_tree('kept', 'path', _BELOW),
    *((of_verifier, 'traversal'), 'bonus'),
  )
  others = _in_tree('i', 'path', _BELOW)
  yield traversal._deferred, 'ask.row(i, path)', others, tests, 'rule'


def _mixed_up_in_texts():
  """The same, where a text is scored, and in the enumerations themselves."""
  text = (
    scoring_test.test_every_text_has_the_probability_that_its_method_declares,
    *('raw', ('opt', 'token_v1')),
  )
  starts = [f'len(context) - {n}' for n in (0, 2)]
  yield scoring._read_rows, 'len(context) - 1', starts, text, 'start'
  places = ['jnp.arange(1, 1 + asked.shape[0])', '0 * jnp.arange(len(asked))']
  yield scoring._read, 'jnp.arange(asked.shape[0])', places, text, 'place'
  models = ['logits[0], logits[-1],', 'logits[0], logits[0],']
  yield scoring._read, 'logits[-1], logits[0],', models, text, 'model'
  law = verification_test.test_blocks_follow_the_declared_law
  later = ['place.context(done[:-1])', 'place.context(done[1:])']
  for kind, where, old, others in (
    ('token', enumeration._by_token, 'place.context(done)', later),
    ('token', enumeration.emitted_law, '[*prompt, *done]', ['[*prompt]']),
    (
      *('block', enumeration._stays, 'rows[i], x]'),
      ['rows[i + 1], x]', 'rows[0], x]'],
    ),
    (
      *('block', enumeration._stays, 'table.q[rows[i + 1]]'),
      ['table.q[rows[i]]', 'table.q[rows[0]]'],
    ),
  ):
    yield where, old, others, (law, kind, 2, 'random'), old[:12]
  tree = several_test.test_blocks_follow_the_declared_law
  for kind in verification.SEVERAL:
    scheme = verification.Scheme(kind)
    traversed = kind == 'traversal'
    where = enumeration._Leaves.through if traversed else enumeration._by_tree
    others = ['rows[done[:-1]]', 'rows[done[1:]]']
    yield where, 'rows[done]', others, (tree, scheme, 2, 2, 'random'), 'tree'


def _row_mutants():
  every = *_mixed_up(), *_mixed_up_in_trees(), *_mixed_up_in_texts()
  for where, old, others, (victim, *arguments), use in every:
    kind = str(arguments[0]) if arguments else 'half'
    kind = getattr(arguments[0], 'verification', kind) if arguments else kind
    for number, new in enumerate(others):
      yield Mutant(
        '_'.join(
          re.findall(r'\w+', f'{where.__name__} row {use} {kind} {number}')
        ),
        f'{" ".join(new.split())} is read for {" ".join(old.split())}',
        *(where, old, new, victim, tuple(arguments)),
      )


_ROW_MUTANTS = tuple(_row_mutants())
_MUTANTS = *_MUTANTS, *_ROW_MUTANTS


def _forget() -> None:
  """Empties whatever remembers what the library's functions did."""
  tests = {sys.modules[mutant.victim.__module__] for mutant in _MUTANTS}
  for module in {*_library(), *tests}:
    for value in list(vars(module).values()):
      for name in ('clear_cache', 'cache_clear'):
        if callable(getattr(type(value), name, None)):
          getattr(value, name)()


def _library() -> list[ModuleType]:
  loaded = list(sys.modules.items())
  return [module for name, module in loaded if name.startswith('cascades')]


def _apply(patch: pytest.MonkeyPatch, mutant: Mutant) -> None:
  """Puts the fault wherever the library looks for what it replaces."""
  where = mutant.where
  source = inspect.getsource(where)
  if source.count(mutant.old) != 1:
    pytest.fail(
      f'{mutant.name}: {mutant.old!r} does not occur once in'
      f' {where.__name__}, which has changed; write the mutant anew.'
    )
  changed = source.replace(mutant.old, mutant.new)
  module = inspect.getmodule(where)
  if module not in _RULES:
    name, owner, made = where.__name__, module, {}
    exec(textwrap.dedent(changed), vars(module), made)
    for part in where.__qualname__.split('.')[:-1]:
      owner = getattr(owner, part)
    patch.setattr(owner, name, made[name])
    # It may have been imported by name, by the test too.
    for other in (*_library(), sys.modules[mutant.victim.__module__]):
      if vars(other).get(name) is where:
        patch.setattr(other, name, made[name])
  if module in (*_RULES, method):
    # Methods hold on to their functions: they are made again.
    for rules in _RULES:
      made = {'__name__': rules.__name__}
      exec(inspect.getsource(rules).replace(source, changed), made)
      for one in (*made['METHODS'], *made.get('TRUNCATIONS', ())):
        patch.setitem(methods.METHODS._entries, one.name, one)


# Tests that were run on the library as it is; a cache would be forgotten too.
_PASSED = set()


def _check_passes(victim: Callable[..., None], arguments: tuple) -> None:
  """Runs a test on the library as it is, once."""
  if (victim, arguments) not in _PASSED:
    victim(*arguments)
    _PASSED.add((victim, arguments))


@pytest.fixture(scope='module', autouse=True)
def _quickly():
  """Compiles in half the time what then runs for a moment."""
  option = 'jax_disable_most_optimizations'
  before = jax.config.read(option)
  jax.config.update(option, True)
  _forget()
  yield
  jax.config.update(option, before)
  _forget()


@pytest.fixture(scope='module')
def table(request):
  """Rows, printed when the module is done, whether output is shown or not."""
  rows = [('mutant', 'what is broken', 'test that turns red', 'how it shows')]
  yield rows
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  capture = request.config.pluginmanager.getplugin('capturemanager')
  with capture.global_and_fixture_disabled():
    print()
    for row in rows:
      cells = [x.ljust(n) for x, n in zip(row, widths, strict=True)]
      print(' | '.join(cells).rstrip())


def _said(caught: pytest.ExceptionInfo) -> str:
  """A failed assertion in a few words."""
  text = ' '.join(str(caught.value).split())
  for pattern, words in (
    (r'Max absolute difference[^:]*: (\S+)', 'off by {}'),
    (r'(Mismatched .*?\))', '{}'),
    (r'At index (\d+ diff: \S+ != \S+)', 'at index {}'),
  ):
    if found := re.search(pattern, text):
      text = words.format(found[1])
      break
  text = re.sub(r'np\.\w+?\(([^()]*)\)', r'\1', text.split(' + where')[0])
  if text.endswith(('False', 'False_')):
    text = ' '.join(str(caught.traceback[-1].statement).split())
  text = re.sub(
    r'\d+\.\d{3,}(e-?\d+)?', lambda number: f'{float(number[0]):.3g}', text
  )
  return text if len(text) <= 60 else text[:57] + '...'


# Of the faults whose test runs a compiled loop, those that the first tier has:
# each compiles the loop once more, and its test when it is whole.
_LOOPS = 'batching', 'decoding', 'drafters', 'schedules', 'several'
_FIRST = ('key_of_the_place',)
# Of those that take a row for another, the first tier has what was hidden where
# two rows were equal: a draft judged, and replaced, by the row before its own.
_ROWS_FIRST = 'of_drafts_row_draft_token_1', 'token_row_residual_token_2'


def _marks(mutant):
  file = mutant.victim.__module__.removesuffix('_test')
  slow = file in _LOOPS or mutant.victim is _greedy
  slow |= mutant in _ROW_MUTANTS and mutant.name not in _ROWS_FIRST
  return [pytest.mark.slow] if slow and mutant.name not in _FIRST else []


@pytest.mark.parametrize(
  'mutant', [pytest.param(m, id=m.name, marks=_marks(m)) for m in _MUTANTS]
)
def test_a_fault_turns_a_test_red(mutant, table):
  _check_passes(mutant.victim, mutant.arguments)
  _forget()
  try:
    with pytest.MonkeyPatch.context() as patch:
      _apply(patch, mutant)
      try:
        mutant.victim(*mutant.arguments)
      # numpy says so of a row that ends beyond its buffers.
      except (AssertionError, IndexError):
        said = _said(pytest.ExceptionInfo.from_current())
      else:
        said = None
  finally:
    _forget()
  table.append((mutant.name, mutant.broken, mutant.test, said or 'IT PASSES'))
  if said is None:
    pytest.fail(f'{mutant.name}: {mutant.test} passes, though {mutant.broken}.')
