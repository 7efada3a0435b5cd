"""The tests are tested: a small fault in the library turns one of them red.

A mutant replaces a piece of a function's own source, runs a test that is named
beside it, and wants it to fail by an assertion. The same test passes on the
library as it is.

Most of the tests are other files'. Some faults had none, or none that is
cheap: theirs come first.
"""

import dataclasses
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import conftest
import decoding_test
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascades import decoding, methods, verification
from cascades.methods import cascade, method, processing, relaxed

_RULES = cascade, relaxed


# --- Tests for the faults that no cheap test of another file sees.


def test_the_gate_is_what_the_scheme_says():
  logits = jax.random.normal(jax.random.key(0), (2, 5))
  sampling = decoding_test.processed_by(temperature=0.5, top_k=3)
  raw, processed = (
    decoding.distributions(*logits, sampling, gate=gate)
    for gate in ('raw', 'processed')
  )
  for d in raw, processed:
    np.testing.assert_array_equal(
      [d.q, d.p], [processing.processed_probs(z, sampling) for z in logits]
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
    inputs = verification.VerificationInputs.full_length(
      methods.METHODS['speed'],
      jnp.zeros(()),
      jnp.array([[0, 2]]),
      lambda i, j: jax.tree.map(lambda x: x[i], d),
      verification.VerificationConfig('block'),
    )
    return verification.verify(inputs, key)

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
  np.testing.assert_array_equal(methods.normalize(0 * p, p), p)
  for name in ('speed', 'chow', 'diff', 'opt', 'lossy'):
    one = methods.METHODS[name]
    said = one.residual(methods.Distributions(p, p, p, p), jnp.asarray(0.0))
    np.testing.assert_allclose(said, p, atol=1e-6)


# --- The mutants.


class Mutant(NamedTuple):
  """A fault of a function, or of methods, and the test that must see it."""

  name: str
  where: Any
  old: str
  new: str
  victim: Callable[..., None]
  arguments: tuple


# Faults as patches, below the test that must see them. `@@`: places that have
# them, and the test's arguments. Then a fault's name, what is broken, and what
# of the source becomes what: `old => new`, or lines with - and +.
_FAULTS = """
=== methods_test:test_law_is_what_acceptance_and_residual_emit
@@ cascades.methods.method:from_target 'token_v3', True
residual_is_pi: the residual is pi, not norm(max(0, pi - q))
  normalize(jnp.maximum(0, pi - d.q), pi) => pi
@@ cascades.methods.method:mixture 'token_v2', True
mixture_without_eta: pi = q (1 - r) + r p, which is no distribution
  deferred * p => r * p

=== mutants_test:test_a_residual_without_mass_is_the_law
@@ cascades.methods.method:normalize
fallback_is_token_0: a residual without mass is one-hot at token 0
  , fallback) => , jnp.eye(weights.shape[-1])[0])

=== methods_test:test_limits_are_exactly_the_verifier_and_the_drafter
@@ cascades.methods.cascade:chow 'chow', True
gate_sign: Chow defers where the drafter is sure
  max(-1) < 1 => max(-1) > 1
@@ cascades.methods.cascade 'diff', True
strict_sign: the strict lenience of Diff is 1, not -1
  < mp - lam', _PAPER, => < mp - lam', _PAPER, strict=1.0,

=== theory_test:test_targets_are_their_formulas
@@ cascades.methods.relaxed:speed 'speed'
stricter_than_strict: lenient decoding divides by 1 + lam
  1 - lenience => 1 + lenience

=== theory_test:test_rules_are_their_formulas
@@ cascades.methods.cascade:opt 'opt'
opt_prices_the_gates: OPT takes TV of what the gate sees, not of what is sampled
  total_variation(d.p, d.q) => total_variation(d.p_gate, d.q_gate)
@@ cascades.methods.relaxed:fuzzy_kl_pq 'fuzzy_kl_pq'
kl_reversed: KL(q || p) instead of KL(p || q)
  d.p_gate, d.q_gate => d.q_gate, d.p_gate
@@ cascades.methods.relaxed:typical_rule 'typical'
typical_entropy_sign: typical acceptance with exp(H)
  jnp.exp(-entropy => jnp.exp(entropy

=== processing_test:test_sampling_never_draws_a_zero_and_follows_the_rest
@@ cascades.methods.processing:sample_from_uniforms
zeros_are_drawn: a token of probability 0 is drawn now and then
  jnp.log(runs[run]) => jnp.log(runs[run] + 1e-3)

=== processing_test:test_what_is_kept_is_what_a_sort_keeps
@@ cascades.methods.processing:truncate np.float32
top_k_drops_equals: top-k drops the token at its border
-probs = jnp.where(probs >= threshold, probs, 0)
-  if top_p
+probs = jnp.where(probs > threshold, probs, 0)
+  if top_p

=== verification_test:test_verify_emits_what_the_enumeration_says
@@ cascades.verification.single_draft:values_at_draft 'token', 'target'
target_row_late: a draft is judged by the row of the next one
  d_at(i, 0) => d_at(i + 1, 0)
@@ cascades.verification.single_draft:token 'token', 'target'
bonus_row_early: the bonus comes from the last draft's row
  d_at(n, 0) => d_at(jnp.minimum(n, inputs.gamma - 1), 0)
@@ cascades.verification:VerificationInputs.bonus_distribution *OF_VERIFIER
bonus_option_ignored: the bonus is the target's, whatever was asked for
-if not self.bonus_from_target:
-      return d.p
+pass
@@ cascades.verification.single_draft:block 'block', 'target'
block_keeps_by_weight: block verification with h = w at every draft
  jnp.append(h[1:], 0.0)[:gamma] => jnp.append(w[1:-1], 0.0)[:gamma]
@@ cascades.verification.look_ahead:look_ahead 'look_ahead:2', 'target'
window_too_short: a window that looks ahead is a draft too short
  run_after >= window - 1 => run_after >= window - 2
verifier_after_a_window: after a window fails comes a token of p, not of what q
leaves of it
  methods.normalize(jnp.maximum(0, d.p - d.q), d.p) => d.p
@@ cascades.verification.single_draft:values_at_draft 'token', 'target'
row_before_the_draft
  d_at(i, 0) => d_at(jnp.maximum(i - 1, 0), 0)
@@ cascades.verification.single_draft:token 'token', 'target'
row_before_the_residual
-method.residual(d, lenience)
+method.residual(d_at(jnp.maximum(n - 1, 0), 0), lenience)
@@ cascades.verification.single_draft:token 'token', 'target'
@@ cascades.verification.look_ahead:look_ahead 'look_ahead:2', 'target'
row_before_the_bonus
  method.law(d, lenience) => method.law(d_at(0 * n, 0), lenience)
@@ cascades.verification.look_ahead:look_ahead 'look_ahead:2', 'target'
row_before_the_rest
  maximum(0, d.p - d.q) => maximum(0, d.p - d_at(jnp.maximum(n - 1, 0), 0).q)
@@ cascades.verification.single_draft:block 'block', 'target'
row_of_block_draft
  d_at(i, 0), inputs => d_at(jnp.maximum(i - 1, 0), 0), inputs
row_of_block_end
  d = d_at(n, 0) => d = d_at(n + 1, 0)
row_of_block_q
  w[n] * law - d.q => w[n] * law - d_at(jnp.maximum(n - 1, 0), 0).q
row_of_block_law
-w[n] * law - d.q
+w[n] * method.law(
+    d_at(n + 1, 0), inputs.leniences[0, n]) - d.q
row_of_block_bonus
-inputs.bonus_distribution(d, law
+inputs.bonus_distribution(d, method.law(
+    d_at(jnp.maximum(n - 1, 0), 0), inputs.leniences[0, n])

=== mutants_test:test_the_gate_is_what_the_scheme_says
@@ cascades.decoding.verify_block:distributions
gate_option_ignored: the gate is raw, whatever was asked for
  gate == 'raw' => True

=== mutants_test:test_the_residual_after_half_a_block_has_its_weight
@@ cascades.verification.single_draft:block
block_residual_unweighted: the residual of a block is without its weight
  w[n] * law - d.q => law - d.q
row_of_weight
  w[n] => w[jnp.maximum(n - 1, 0)]
row_of_mass
  w * pi - d.q => w * pi - d_at(i + 1, 0).q
row_of_law
  w * pi - d.q => w * method.law(d_at(i + 1, 0), lenience) - d.q

=== decoding_test:test_the_emitted_law_is_the_declared_law
@@ cascades.decoding.step:step config('token'), 3, ONE
one_key: drafting and verifying share a key
-key=verify_key
+key=draft_key
@@ cascades.decoding.verify_block:_distributions_at config('token'), 3, PLAIN
verifier_row_early: the verifier reads one token less than it is asked about
  block.logits[index] => jnp.roll(block.logits, 1, 0)[index]
@@ cascades.decoding.commit:commit config('token'), 3, PLAIN
verifier_ahead: a rejected draft stays in the verifier
-verifier.rewind(result.verifier_cache, length - 1)
+verifier.rewind(result.verifier_cache, at + step_config.gamma + 1)
@@ cascades.decoding.verify_block:distributions config('token'), 3, ONE
raw_q: q is raw, the draft is not
-q = processing.processed_probs(drafter_logits, drafter_sampling or sampling)
+q = processing.gate_probs(drafter_logits)
@@ cascades.drafters.language_model:draft_tokens config('token'), 3, ONE
argmax_draft: the draft is the argmax of a q that is soft
-      lambda u, z: processing.sample_from_uniforms(
-        u, processing.processed_probs(z, sampling)
-      )
+      lambda u, z: jnp.argmax(z).astype(jnp.int32)
@@ cascades.decoding.verify_block:_distributions_at PROCESSED, 3, FEW
gate_left_behind: the loop looks through the raw gate, whatever was asked for
  gate=gate => gate='raw'

=== several_test:test_verify_emits_what_the_enumeration_says
@@ cascades.verification.multi_draft:_step_multi_round 'multi_round', 3, TARGET
one_rejection: a candidate is tried against what the last one was
  jnp.where(is_examined & ~accepts, less, rho) => rho
@@ cascades.verification.multi_draft:_step_k_seq 'k_seq', 2, 'target'
undivided: k-SEQ accepts against the target as it is
  jnp.where(b >= a, c_min, c) => c_min
@@ cascades.verification.multi_draft:_walk 'multi_round', 2, 'target'
other_drafts_stay: a draft that began otherwise stays a candidate
  jnp.where(accepted, agrees, walk.is_alive) => walk.is_alive
@@ cascades.verification.traversal:_without_candidate 'traversal', 2, 'target'
uncapped_rest: after a candidate, a node is left with what it had
  return next_budget => return budget
@@ cascades.verification.traversal:_without_candidate 'traversal', 3, 'target'
target_with_what_was_tried: after a candidate, a node has the target that it had
  methods.normalize(rest, target) => target
@@ cascades.verification.traversal:_advance 'traversal', 2, 'target'
tried_again: a token is tried once for each draft that begins with it, and once
more
-walk.is_examined[candidate, at] | down
+walk.is_examined[candidate, at] | (down & (walk.num_tests > 0))
@@ cascades.verification.multi_draft:_walk 'multi_round', 2, 'target'
@@ cascades.verification.multi_draft:_walk 'k_seq', 2, 'target'
@@ cascades.verification.multi_draft:_walk 'match', 2, 'target'
row_of_step
-d = d_at(n, draft)
-    len
+d = d_at(n + 1, draft)
+    len
row_of_a_draft_beside
-d = d_at(n, draft)
-    len
+d = d_at(n, 0 * draft)
+    len
row_of_walk_bonus
-d = d_at(n, draft)
-  law
+d = d_at(jnp.maximum(n - 1, 0), draft)
+  law
@@ cascades.verification.multi_draft:_walk 'multi_round', 2, 'target'
@@ cascades.verification.multi_draft:_walk 'k_seq', 2, 'target'
row_of_step_q
-result = step(d, pi
+result = step(d._replace(q=d_at(n + 1, draft).q), pi
@@ cascades.verification.traversal:_advance 'traversal', 2, 'target'
row_of_depth
  d_at(depth, draft) => d_at(1 + depth, draft)
row_of_above
  d_at(above, draft) => d_at(above, 0 * draft)
row_of_candidate
  d_at(at + 1, candidate) => d_at(at, candidate)
@@ cascades.verification.traversal:traversal 'traversal', 2, 'target'
row_of_root
  d_at(zero, zero) => d_at(zero + 1, zero)
@@ cascades.verification.traversal:_deferred 'traversal', 2, 'target'
row_of_rule
  d_at(i, draft) => d_at(jnp.maximum(i - 1, 0), draft)

=== several_test:test_a_tree_of_drafts_is_read_as_each_draft_alone
@@ cascades.decoding.reading:read_hidden 'match', 9
drafts_see_each_other: a draft sees the tokens of those beside it
  mask, tree_mask.ancestors, => mask, tree_mask.ancestors | True,
@@ cascades.decoding.verify_block:_block_result 'match', 9
another_draft_kept: the first draft's slots are kept, whichever stays
  at, at + nodes) => at, at + block.node_indices[0])

=== several_test:test_where_drafts_end_hangs_on_what_stands_before_only
@@ cascades.decoding.reading:build_tree
a_draft_ends_by_its_next_token: a tree ends where the tokens of the next level
do not fit
  nodes_above + in_draft.sum(0) => nodes_above + is_owner.sum(0)

=== drafters_test:test_a_drafter_of_some_tokens_keeps_the_law
@@ cascades.drafters.language_model:draft_tokens 'token'
places_for_ids: a drafter of some tokens gives their places among these
  tokens = draft_vocab_ids[tokens] => pass

=== several_test:test_a_tree_of_drafts_is_read_as_each_draft_alone
@@ cascades.decoding.verify_block:_block_result 'multi_round', 9
logprob_of_next_row: logprobs are of the row after the token
  (logits, tokens[: => (jnp.roll(logits, -1, 0), tokens[:

=== theory_test:test_the_loop_emits_rejects_and_defers_as_much
@@ cascades.decoding.block_stats:count 4
bonus_examined: the bonus counts as examined
-examined=accepted + residual
+examined=accepted + residual + count_new(source == BONUS)

=== drafters_test:test_a_model_that_drafts_for_itself_is_never_rejected
@@ cascades.drafters.language_model:draft_tokens
drafter_behind: after a whole block the drafter lacks the last draft
  jnp.maximum(last - 1, 0) => last

=== decoding_test:test_where_none_is_lenient_a_drafter_makes_a_pass_less
@@ cascades.decoding.step_config:StepConfig.needs_bonus_probs
nobody_looks_beyond: a lenient bonus looks at what the drafter never said
  state.lenience != strict => jnp.zeros((), bool)
@@ cascades.drafters.language_model:draft_tokens
a_call_for_others: a strict row counts the pass that a lenient one asks for
  is_drafting.any() & (level < gamma + needs_bonus) => is_drafting.any()

=== decoding_test:test_nothing_comes_after_a_stop_token
@@ cascades.decoding.commit:find_emission 1
after_the_stop: what follows a stop token in its block is emitted
  jnp.where(stopped, jnp.argmax(is_stop), num_accepted) => num_accepted
finished_rows_go_on: a row that has ended emits until the others have
  jnp.where(state.done, 0, emitted) => emitted

=== decoding_test:test_limits_are_kept_row_by_row
@@ cascades.decoding.block_stats:count
deferrals_past_the_end: deferrals are counted past the last token
  (index < end) => (index <= end)
@@ cascades.decoding.commit:find_emission
after_the_limit: a block goes on past the limit of its row
  jnp.minimum(emitted, state.limit - state.length) => emitted

=== decoding_test:test_rows_do_not_depend_on_their_batch
@@ cascades.decoding.block_stats:record
finished_rows_count: a finished row goes on counting blocks
-write(before.cumulative_counts, at, counts)
+write(before.cumulative_counts, at - 1, counts)
@@ cascades.decoding.rows:prefill
key_of_the_place: the key of a row depends on where in the batch it stands
-(prompts, params
+(prompts._replace(keys=jax.vmap(jax.random.fold_in)(
+    prompts.keys, jnp.arange(len(prompts.keys)))), params

=== batching_test:test_answers_are_what_they_are_alone
@@ cascades.decoding.rows:refill_rows 16
leniences_mixed_up: a row takes its neighbour's lenience
  leniences[i] => leniences[i - 1]
prompts_mixed_up: a row takes the prompt that was read before its own
  x, sources[i], keepdims => x, sources[i] - 1, keepdims

=== batching_test:test_caches_grow_with_their_rows
@@ cascades.decoding.loop:decode 8, 24
not_wide_enough: a row goes on where its cache has ended
  rows.length + step_config.cache_headroom <= room => rows.length <= room

=== batching_test:test_a_batch_is_narrowed_when_few_rows_are_left
@@ cascades.sampler.batching:RowBatch.narrow
wrong_rows_dropped: a batch that is narrowed keeps its first rows
-decoding.gather_rows(self.rows, _padded(slots, size))
+decoding.gather_rows(self.rows, np.arange(size))

=== batching_test:test_a_turn_goes_on_where_the_last_one_ended
@@ cascades.decoding.rows:_read_prompt 3
turn_read_late: another turn is read one place too far
-position=at,
-    hidden_layers
+position=at + 1,
+    hidden_layers

=== stats_test:test_intervals_hold_the_true_mean_as_often_as_they_say
@@ experiments.records.stats:bootstrap
narrow_intervals: intervals of 95 % hold half as much
  confidence_level=level => confidence_level=level / 2

=== stats_test:test_ratios_of_totals_follow_the_delta_method
@@ experiments.records.stats:bootstrap
own_draws: a draw has every example once
  counts @ rows => np.ones_like(counts) @ rows

=== stats_test:test_strata_are_drawn_apart
@@ experiments.records.stats:bootstrap
strata_forgotten: a mixture has as many examples of a task as chance gives it
  strata or (n,) => (n,)

=== verification_test:test_a_block_without_drafts_is_drawn_from_its_first_row
@@ cascades.verification.single_draft:bonus_only 2
row_of_no_draft
  d_at(zero, zero) => d_at(zero + 1, zero)

=== several_test:test_verify_emits_what_the_enumeration_says
@@ cascades.verification.multi_draft:_walk 'multi_round', 2, 'verifier'
row_of_verifiers_bonus
-d = d_at(n, draft)
-  law
+d = d_at(jnp.maximum(n - 1, 0), draft)
+  law
@@ cascades.verification.traversal:traversal 'traversal', 2, 'verifier'
row_of_traversal_bonus
  d_at(n, draft) => d_at(n, 0 * draft)

=== scoring_test:test_every_text_has_the_probability_that_its_method_declares
@@ cascades.sampler.scoring:_read_rows 'raw', ('opt', 'token_v1')
row_of_start
  len(context) - 1 => len(context) - 2
@@ cascades.sampler.scoring:_read_row 'raw', ('opt', 'token_v1')
row_of_place
  jnp.arange(scored.shape[0]) => 0 * jnp.arange(len(scored))
row_of_model
  logits[-1], logits[0], => logits[0], logits[-1],

=== verification_test:test_blocks_follow_the_declared_law
@@ cascades.proof.enumeration:_by_token 'token', 2, 'random'
row_of_context
  start.context(accepted) => start.context(accepted[1:])
@@ cascades.proof.enumeration:emitted_law 'token', 2, 'random'
row_of_prompt
  [*prompt, *emitted] => [*prompt]
@@ cascades.proof.enumeration:_block_acceptance 'block', 2, 'random'
row_of_p
  law[:, c, x] => law[:, next_c, x]
row_of_q
  table.q[next_c] => table.q[c]

=== several_test:test_blocks_follow_the_declared_law
@@ cascades.proof.enumeration:_RootFirst.visit *tree('multi_round')
@@ cascades.proof.enumeration:_LeavesFirst.visit *tree('traversal')
row_of_tree
  contexts[accepted] => contexts[accepted[:-1]]
"""
# What arguments of tests are made of.
_MADE = {
  'FEW': decoding_test.FEW,
  'OF_VERIFIER': ('token', 'verifier'),
  'ONE': ('forbidden',),
  'PLAIN': ('plain',),
  'PROCESSED': verification.VerificationConfig('token', 'processed'),
  'TARGET': 'target',
  'np': np,
  'config': verification.VerificationConfig,
  'tree': lambda kind: (
    *(verification.VerificationConfig(kind), 2, 2, 'random', None),
  ),
}
# Places and their faults; a fault's texts and its hunks.
_PLACES = re.compile(r'((?:@@ .*\n)+)((?:[^@].*\n)+)')
_HUNK = r'  .* => .*\n|(?:-.*\n)+(?:\+.*\n)+'
_FAULT = re.compile(rf'((?:[^-+ ].*\n)+)({_HUNK})')


def _mutants(text: str) -> Iterator[Mutant]:
  text = text.replace('d_at(', 'inputs.distributions_at(')
  for section in text.split('\n=== ')[1:]:
    victim, _, rest = section.partition('\n')
    for places, faults in _PLACES.findall(rest):
      for said, hunks in _FAULT.findall(faults):
        name = said.partition(':')[0].strip()
        for where, arguments in re.findall(r'@@ (\S+)(.*)', places):
          yield Mutant(
            name,
            pkgutil.resolve_name(where),
            *_change(hunks),
            pkgutil.resolve_name(victim),
            tuple(eval(f'[{arguments}]', _MADE)),
          )


def _change(hunk: str) -> list[str]:
  """Returns the removed and the added text."""
  if hunk[0] == ' ':
    return hunk.strip().split(' => ')
  removed = re.sub(r'^-|^\+.*\n', '', hunk, flags=re.M)
  added = re.sub(r'^\+|^-.*\n', '', hunk, flags=re.M)
  return [removed.rstrip('\n'), added.rstrip('\n')]


_MUTANTS = tuple(_mutants(_FAULTS))


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
    for kind, entry in verification.VERIFICATIONS.items():
      if entry.decide is where:
        entry = dataclasses.replace(entry, decide=made[name])
        patch.setitem(verification.VERIFICATIONS, kind, entry)
  if module in (*_RULES, method):
    # Methods hold on to their functions: they are made again.
    for rules in _RULES:
      made = {'__name__': rules.__name__}
      exec(inspect.getsource(rules).replace(source, changed), made)
      for one in made['METHODS']:
        patch.setitem(methods.METHODS, one.name, one)


# Tests that pass on the library as it is, as far as this file has to tell.
_PASSED = set()


def _check_passes(victim: Callable[..., None], arguments: tuple) -> None:
  """Runs a test on the library as it is, unless it runs in its own file."""
  test = victim.__module__, victim.__name__, repr(arguments)
  if test not in conftest.COLLECTED and test not in _PASSED:
    victim(*arguments)
    _PASSED.add(test)


# Of the faults whose test runs a compiled loop, those that the first tier has:
# each compiles the loop once more, and its test when it is whole.
_LOOPS = 'batching', 'decoding', 'drafters', 'several'
# Of those that take a row for another, the first tier has what was hidden where
# two rows were equal: a draft judged, and replaced, by the row before its own.
_FIRST = 'key_of_the_place', 'row_before_the_draft', 'row_before_the_residual'


def _marks(mutant):
  module, test = mutant.victim.__module__, mutant.victim.__name__
  slow = module.removesuffix('_test') in _LOOPS or 'the_loop' in test
  slow |= mutant.name.startswith('row_')
  return [pytest.mark.slow] if slow and mutant.name not in _FIRST else []


@pytest.mark.parametrize(
  'mutant', [pytest.param(m, id=m.name, marks=_marks(m)) for m in _MUTANTS]
)
def test_a_fault_turns_a_test_red(mutant):
  _check_passes(mutant.victim, mutant.arguments)
  _forget()
  try:
    with pytest.MonkeyPatch.context() as patch:
      _apply(patch, mutant)
      # numpy says IndexError of a row that ends beyond its buffers.
      with pytest.raises((AssertionError, IndexError)):
        mutant.victim(*mutant.arguments)
  finally:
    _forget()
