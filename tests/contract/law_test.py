"""The emitted law is the declared one: by enumeration, and through the loop.

By enumeration of every block, without samples; of the library's verification,
on every tree of drafts; and of the compiled loop, for every drafter.
"""

import dataclasses
import functools
import itertools

import cases
import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
import tiers

import cascades
from cascades import decoding, drafters, methods, verification
from cascades.methods import processing
from cascades.proof import enumeration, law_checks, sampled, table_models
from cascades.sampler import scoring
from cascades.verification_config import (
  BONUS,
  BONUSES,
  DRAFT,
  GATES,
  RESIDUAL,
  SINGLE_DRAFT,
)

_Config = verification.VerificationConfig
_TOKEN, _BLOCK = map(_Config, SINGLE_DRAFT)


def test_every_entry_of_a_registry_is_a_case():
  kinds = {drafters.kind_of(cases.named(x)) for _, x, _ in cases.PAIRS}
  assert kinds == {*drafters.DRAFTERS.values()}
  names = {name.partition(':')[0] for name in cases.VERIFICATIONS}
  assert names == {*verification.VERIFICATIONS}
  assert {method for method, _ in cases.METHODS} == {*methods.METHODS.values()}


# --- By enumeration

_PROMPT, _GAMMA = (1, 2), 3
# A row for each text of a block, and for the token after it.
_MODEL = table_models.TableModel.injective(3, _GAMMA + 1)


def _pairs(config):
  """Every method that a verification takes, at leniences that matter.

  Strict ones, where a text has no law of its own.
  """
  pairs = []
  for method, _ in cases.METHODS:
    ends = [x for x in (method.strict, method.drafter_only) if x is not None]
    leniences = [*ends, 0.1, 0.3, 0.8]
    if not config.kind.keeps_law:
      leniences = [x for x in ends[:1] if x == method.strict]
    pairs += [(method, x) for x in dict.fromkeys(leniences)]
  return tuple(pairs)


@functools.cache
def _rows(rows='random'):
  """Distributions of every context; the random ones cannot be mixed up."""
  kind, count = 'random' if rows == 'processed' else rows, _MODEL.contexts
  d = law_checks.draw_distributions(kind, count=count, size=3, seed=3)
  if rows == 'processed':
    # At temperature .7, a token forbidden, and unlikely ones cut off.
    q, p = (x ** (1 / 0.7) * [0, 1, 1] for x in (d.q, d.p))
    q, p = (x * (x >= 0.2 * x.max(1, keepdims=True)) for x in (q, p))
    q, p = (x / x.sum(1, keepdims=True) for x in (q, p))
    d = d._replace(q=q, p=p)
  return d


@functools.cache
def _table(pairs, rows='random'):
  with law_checks.enable_x64(True):
    return table_models.Table.from_methods(pairs, _rows(rows))


# At temperature 0 all are one-hot.
_ROWS = 'random', 'near_equal', 'disjoint', 'one_hot', 'processed'
_MULTI = verification.MULTI_DRAFT
_RANDOM = [
  *((x, 1, y, 'random', None) for x in cases.ONE_DRAFT for y in (1, 2, 3)),
  # Cut, the next level is read where drafts so far have enough in common.
  *(
    (kind, *x[:2], 'random', x[2])
    for kind in _MULTI
    for x in ((1, 2, None), (2, 1, None), (2, 2, None), (2, 2, 3), (3, 1, None))
  ),
]
_MORE = [
  *((x, 1, 3, y, None) for x in cases.ONE_DRAFT for y in _ROWS[1:]),
  *itertools.product(_MULTI, (1, 2, 3), (1,), _ROWS[1:], (None,)),
  *itertools.product(_MULTI, (1, 2), (2,), _ROWS[1:], (None,)),
  # The last have 3^6 trees, cut and whole.
  *((kind, 2, 3, 'random', 3) for kind in _MULTI),
  *((kind, 3, 2, 'random', size) for kind in _MULTI for size in (4, None)),
]


@pytest.mark.parametrize(
  ('kind', 'drafts', 'gamma', 'rows', 'tree_size'),
  tiers.first([*_RANDOM, *_MORE], len(_RANDOM) + 12),
)
def test_blocks_follow_the_declared_law(kind, drafts, gamma, rows, tree_size):
  # The law of the first gamma + 1 tokens, whatever blocks they come in; of
  # large trees, the first block and the token after it.
  config = _Config(kind)
  length = 2 if tree_size or drafts * gamma > 4 else gamma + 1
  given = _table(_pairs(config), rows), config, _MODEL, _PROMPT, length
  emitted = enumeration.emitted_law(*given, gamma, drafts, tree_size)
  declared = enumeration.declared_law(given[0], _MODEL, _PROMPT, length)
  np.testing.assert_allclose(emitted, declared, atol=1e-9)


def _blocks(config, gamma, drafts=1, table=None):
  """The blocks that can be emitted, with the chance of each by method."""
  found, table = {}, table or _table(_pairs(_BLOCK))
  for block, chance in enumeration.blocks(
    table, config, _MODEL, _PROMPT, gamma, drafts
  ):
    found[block] = found.get(block, 0) + chance
  return found


def _kept(kind, *shape):
  """Drafts of a block that stay, on average, of each method."""
  blocks = _blocks(_Config(kind), *shape)
  return sum((len(block) - 1) * chance for block, chance in blocks.items())


@pytest.mark.parametrize(
  ('fewer', 'more'),
  [
    *((('token', x), ('block', x)) for x in (1, 2, 3)),
    *((('multi_round', *x), ('traversal', *x)) for x in ((2, 2), (1, 3))),
  ],
)
def test_some_verifications_keep_at_least_as_many_drafts(fewer, more):
  less, kept = (_kept(*x) for x in (fewer, more))
  assert (kept >= less - 1e-12).all()
  assert fewer[1] == 1 or (kept > less + 1e-4).any()


def test_traversal_of_one_draft_is_block_verification():
  blocks = [_blocks(_Config(x), _GAMMA) for x in ('traversal', 'block')]
  close = functools.partial(np.testing.assert_allclose, atol=1e-12)
  jax.tree.map(close, *blocks)


# --- The library's own verification


def _verdicts(method, lenience, config, d, **changes):
  """A function of keys [n], drafts and the rows of their distributions."""

  @functools.partial(jax.vmap, in_axes=(0, None, None))
  def verify(key, paths, rows):
    drafts, whole = paths.shape[0], jnp.full(len(paths), paths.shape[1])
    known = dict(draft_lengths=whole, has_bonus_probs=jnp.ones(drafts, bool))
    inputs = verification.VerificationInputs(
      **dict(method=method, lenience=jnp.asarray(lenience), tokens=paths),
      distributions_at=lambda i, j: jax.tree.map(lambda x: x[rows[i, j]], d),
      config=config,
      **known | changes,
    )
    return verification.verify(inputs, key)

  return jax.jit(verify)


def check_verify(kind, drafts, gamma=2, bonus='target', name='typical'):
  """The library's verification, on every tree of drafts, one after another.

  The mean over n keys each is compared with the enumerated blocks, to five
  standard deviations of a share of so many trees, at the most.
  """
  config = _Config(kind, bonus=bonus)
  n, share = 20_000 if drafts == 1 else 3_000, 1.5 * drafts
  # The law is not the verifier's, and rejects often; the second is looser:
  # there is something to look ahead for.
  name, x = (name, 0.3) if config.kind.keeps_law else ('ensemble', 0.8)
  method = methods.METHODS[name]
  table = table_models.Table.from_methods([(method, x)], _rows())
  d = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), _rows())
  verdicts = _verdicts(method, x, config, d)
  blocks = _blocks(config, gamma, drafts, table=table)
  want = {block: chance[0] for block, chance in blocks.items()}
  off = {block: -chance for block, chance in want.items()}
  assert sum(want.values()) == pytest.approx(1)
  every = itertools.product(range(3), repeat=gamma)
  for number, paths in enumerate(itertools.product(every, repeat=drafts)):
    rows = _contexts(paths)
    chance = np.prod(
      [d.q[rows[i, j]][x] for j, p in enumerate(paths) for i, x in enumerate(p)]
    )
    keys = jax.random.split(jax.random.key(number), n)
    verdict = jax.device_get(verdicts(keys, jnp.array(paths), jnp.array(rows)))
    # Whether the rule defers a token is asked in its own row, too: of one draft
    # wherever it is, of several along the path that stays.
    deferred = table.deferred[0, rows[:gamma], np.transpose(paths)] > 0
    examined = gamma if drafts == 1 else verdict.num_accepted[:, None]
    differs = verdict.deferred[:, :gamma] != deferred[:, verdict.draft_index].T
    assert not (differs & (np.arange(gamma) < examined)).any()
    for path, count, token in zip(
      verdict.draft_index, verdict.num_accepted, verdict.next_token, strict=True
    ):
      block = (*paths[path][:count], int(token))
      off[block] = off.get(block, 0) + float(chance) / n
  for block, difference in off.items():
    sd = np.sqrt(max(want.get(block, 0), 1e-4) / n) / share
    assert abs(difference) < 5 * sd


def _contexts(paths):
  """The contexts after each token of some drafts, [gamma + 1, drafts]."""
  texts = [
    [[*_PROMPT, *x[:i]] for x in paths] for i in range(len(paths[0]) + 1)
  ]
  return np.array([[*map(_MODEL.context_after, row)] for row in texts])


_VERIFIED = [
  *((kind, 1, 2) for kind in cases.ONE_DRAFT),
  *((kind, *x) for kind in _MULTI for x in ((2, 2), (3, 1))),
]


@pytest.mark.parametrize(
  ('kind', 'drafts', 'gamma', 'bonus', 'name'),
  tiers.first(
    [
      *((*x, bonus, 'typical') for bonus in BONUSES for x in _VERIFIED),
      *((*x, 'target', 'cactus') for x in _VERIFIED),
    ],
    len(_VERIFIED) + 3,
  ),
)
def test_verify_emits_what_the_enumeration_says(
  kind, drafts, gamma, bonus, name
):
  check_verify(kind, drafts, gamma, bonus, name)


@pytest.mark.parametrize(('name', 'lenience'), [('chow', 0.5), ('diff', 0.0)])
def test_tokens_and_deferrals_are_those_of_a_plain_cascade(name, lenience):
  gamma, method = 2, methods.METHODS[name]
  table = _table(((method, lenience),))
  defers = table.deferred[0, :, 0] > 0
  assert 0 < defers.mean() < 1
  # The cascade draws from q, and from p where the rule defers.
  cascade = np.where(defers[:, None], table.p, table.q)
  np.testing.assert_allclose(table.law[0], cascade, atol=1e-12)
  # At each token `token` says what the rule does there, whatever is drafted.
  d = jax.tree.map(jnp.asarray, _rows())
  keys = jax.random.split(jax.random.key(0), 50)
  for has_q in (True, False):
    known = dict(has_bonus_probs=jnp.array([has_q]))
    verify = _verdicts(method, lenience, _TOKEN, d, **known)
    for path in itertools.product(range(3), repeat=gamma):
      rows = _contexts([path])
      want = defers[rows[:, 0]] | (np.arange(gamma + 1) == gamma) & (not has_q)
      verdict = verify(keys, jnp.array([path]), jnp.array(rows))
      is_emitted = np.arange(gamma + 1) <= verdict.num_accepted[:, None]
      assert not (is_emitted & (verdict.deferred != want)).any()


@pytest.mark.parametrize('gate', GATES)
def test_the_gate_is_what_the_scheme_says(gate):
  logits = jax.random.normal(jax.random.key(0), (2, cases.SIZE))
  sampling = cases.sampling_of(0.5, 3)
  d = decoding.distributions(*logits, sampling, gate=gate)
  processed = [processing.processed_probs(z, sampling) for z in logits]
  np.testing.assert_array_equal([d.q, d.p], processed)
  gates = processed if gate == 'processed' else jax.nn.softmax(logits)
  np.testing.assert_allclose([d.q_gate, d.p_gate], gates, rtol=1e-5)


# --- The compiled loop


def _law(table, config, gamma):
  """Enumerates the law of the loop, [pairs] + [V] * NEW."""
  text = cases.MODEL, cases.PROMPT, cases.NEW
  if config.bonus == 'target' and config.kind.keeps_law:
    return enumeration.declared_law(table, *text)
  return enumeration.emitted_law(table, config, *text, gamma)


def check_loop(name, config, gamma=3, drafts=1, tree_size=None, of=cases.FEW):
  """Samples methods of every family through one loop, a batch of each."""
  bound, table = cases.drafter(name)
  pairs, options = cases.LENIENT, dict(gamma=gamma, config=config, bound=bound)
  options |= dict(drafts=drafts, tree_size=tree_size, room=2 * cases.NEW)
  method = cases.from_functions(pairs, cases.one_branch)
  run = functools.partial(cases.mixed, method, **options, return_logits=False)
  indices = [np.full(cases.MANY, i) for i in range(len(pairs))]
  for turn, case in enumerate(of):
    d = cases.distributions(config, cases.SAMPLING[case], table)
    laws = table_models.Table.from_methods(pairs, d)
    law, repeats = _law(laws, config, gamma), 6 if case == 'plain' else 1
    states = cases.check_drawn(run, law, case, repeats * indices)[: len(pairs)]
    # Longer than a block, each method with a sampling; some end inside one.
    options = dict(sampling=cases.SAMPLING[case], new=2 * cases.NEW, stops=(4,))
    longer = indices[turn :: len(of)]
    states += [run(x, rows=len(x), seed=80 + x[0], **options) for x in longer]
    check_logprobs(states, indices + longer, laws, config)


def check_logprobs(states, laws, table, config, prompt=cases.PROMPT, depth=6):
  """That log q, log p and log pi of each token are those of a table.

  So are sources: an emitted token, where a draft stood, is an accepted draft
  with w = q a / pi; and so is the mean of -log pi, the law's mean entropy.
  """
  emitted, first = [], len(prompt)
  for state, rows in zip(states, laws, strict=True):
    for at in range(first, first + depth):
      i = np.flatnonzero(state.length > at)
      c = cases.MODEL.context(state.tokens[i, :at], np.arange(at))
      columns = state.tokens, state.source, state.logprob, state.law_logprobs
      emitted.append((rows[i], c, *(x[i, at] for x in columns)))
  m, c, x, source, raw, found = map(np.concatenate, zip(*emitted, strict=True))
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
  # Those of a model alone are a forward pass's of the whole text.
  close(raw, np.asarray(jax.nn.log_softmax(cases.VERIFIER))[c, x])
  c = c % len(table.q)
  # After a whole draft it may be the verifier's, and then nothing reads q.
  from_p = (source == BONUS) & (config.bonus == 'verifier')
  laws = np.where(from_p[:, None], table.p[c], table.law[m, c])
  q = np.where(from_p, np.nan, table.q[c, x])
  pi = laws[np.arange(len(x)), x]
  with np.errstate(divide='ignore'):
    want = np.log(np.stack([q, table.p[c, x], pi], -1))
  close(found[:, :2], want[:, :2])
  # Looking ahead, no token has a law of its own. A law is a sum: a small one is
  # exact to a step of float32 at 1.
  if config.kind.keeps_law:
    found = np.exp(found[:, 2].astype(float))
    np.testing.assert_allclose(found, pi, rtol=1e-5, atol=2.0**-23)
  if config.verification == 'token':
    check_sources(q * table.acceptance[m, c, x] / pi, source)
  if config.kind.keeps_law:
    logs = np.log(np.where(laws > 0, laws, 1))
    entropy, squares = -(laws * logs).sum(-1), (laws * logs**2).sum(-1)
    off, variance = (
      np.bincount(m, x) for x in (-np.log(pi) - entropy, squares - entropy**2)
    )
    assert (abs(off) < 4.5 * np.sqrt(variance.clip(0)) + 0.01).all(), off


def check_sources(w, source):
  """That w are the chances of the accepted drafts among the tokens."""
  is_examined = source != BONUS
  if is_examined.any():
    w, accepted = w[is_examined].clip(0, 1), (source == DRAFT)[is_examined]
    check = sampled.check_sources(w, accepted, cases.LEVEL)
    assert check.passed, str(check)


def test_three_wrong_laws_are_caught():
  pairs = [(methods.METHODS['speed'], x) for x in (0.3, 0.4, 0.0)]
  d = cases.distributions(_TOKEN, cases.SAMPLING['plain'])
  table = table_models.Table.from_methods(pairs, d)
  text = cases.MODEL, cases.PROMPT, cases.NEW
  law, *wrong = enumeration.declared_law(table, *text)
  bonus = enumeration.emitted_law(table, _Config(bonus='verifier'), *text, 1)
  # As many as the loop draws of each method.
  rows, probs = np.zeros(12_600), law.ravel() / law.sum()
  drawn = np.random.default_rng(0).choice(law.size, len(rows), p=probs)
  tokens = np.stack(np.unravel_index(drawn, law.shape), -1)
  cases.check_samples(tokens, rows, law[None])
  for x in (*wrong, bonus[0]):
    with pytest.raises(AssertionError):
      cases.check_samples(tokens, rows, x[None])
  # So does a single text of probability 0.
  law[tuple(tokens[0])] = 0
  assert sampled.g_test(tokens[:1], law)[0] == np.inf


def _loops():
  """Drafters, configs, gammas, drafts, trees and samplings."""
  every = tuple(cases.SAMPLING)
  # Each verification is enumerated for any q. Adaptive blocks have any length.
  for name, kind in itertools.product(('apart', 'adaptive'), SINGLE_DRAFT):
    yield name, _Config(kind), 3, 1, None, cases.FEW
  for name in 'partial', 'self':
    yield name, _TOKEN, 3, 1, None, cases.FEW
    yield name, _Config('multi_round'), 2, 2, None, cases.FEW
  yield 'apart', _Config('look_ahead:2'), 2, 1, None, ('plain',)
  yield 'apart', _Config('look_ahead:3'), 3, 1, None, cases.FEW
  for kind, gate, bonus in itertools.product(SINGLE_DRAFT, GATES, BONUSES):
    config = _Config(kind, gate, bonus)
    # Each pair of a gate, a bonus and a gamma.
    gamma = 3 if (gate == GATES[0]) == (bonus == BONUSES[0]) else 1
    if config not in (_TOKEN, _BLOCK):
      yield 'apart', config, gamma, 1, None, cases.FEW
  for kind in _MULTI:
    yield 'apart', _Config(kind), 2, 3, None, every
  for kind in 'multi_round', 'traversal':
    yield 'apart', _Config(kind), 3, 3, 4, ('plain', 'forbidden, truncated')
  yield 'adaptive', _Config('multi_round'), 2, 2, None, every


def _named(x):
  return '-'.join(dataclasses.astuple(x)) if isinstance(x, _Config) else None


@pytest.mark.parametrize(
  ('name', 'config', 'gamma', 'drafts', 'tree_size', 'of'),
  tiers.first(_loops(), 2),
  ids=_named,
)
def test_the_loop_emits_the_declared_law(
  name, config, gamma, drafts, tree_size, of
):
  check_loop(name, config, gamma, drafts, tree_size, of)


_BY_BLOCK = [
  # Its law does not read q: it holds where nothing is drafted.
  ('ngram', 'token', [(methods.METHODS['min_p'], 0.9)]),
  *(('ngram', kind, cases.LENIENT) for kind in ('token', 'block', 'k_seq')),
  *(('recurrent', kind, cases.LENIENT) for kind in ('multi_round', 'token')),
  ('beam', 'match', cases.LENIENT),
  ('partial recurrent', 'multi_round', cases.LENIENT),
  *(('eagle', x, cases.LENIENT) for x in ('token', 'multi_round', 'match')),
]


@pytest.mark.parametrize(('name', 'kind', 'of'), tiers.first(_BY_BLOCK, 2))
def test_the_first_token_of_a_block_follows_its_law(name, kind, of):
  """Samples one block after a prompt, at three leniences of methods."""
  # These draft otherwise where a block begins elsewhere. What followed `1 2`
  # was 3: so n-grams say, and at a mask's word nothing at all.
  prompt, bound = (1, 2, 3, 1, 2), cases.drafter(name).bound
  pairs = [(method, y) for method, x in of for y in (-np.inf, x, np.inf)]
  method, config = cases.from_functions(pairs, cases.one_branch), _Config(kind)
  options = dict(bound=bound, drafts=cases.drafts_of(name, kind))
  run = functools.partial(cases.mixed, method, config=config, **options)
  # Batches of a method each, as many whatever the number of methods.
  indices = np.arange(cases.MANY) % 3 + 3 * np.arange(len(of))[:, None]
  indices = 26 // len(of) * [*indices]
  p_logits = cases.VERIFIER[cases.MODEL.context_after(prompt)]
  q_logits = _first_logits(bound, prompt)
  for case in cases.FEW:
    sampling = cases.SAMPLING[case]
    d = decoding.distributions(q_logits, p_logits, sampling)
    table = table_models.Table.from_methods(
      pairs, jax.tree.map(lambda x: x[None], d)
    )
    # What all is forbidden of is no draft.
    can_draft = (jnp.isfinite(q_logits) & ~sampling.forbidden).any()
    if not can_draft:
      law = table.p if method.law_uses_q else table.law
      law = np.broadcast_to(law, table.law.shape)
      table = dataclasses.replace(table, q=np.nan * table.q, law=law)
    if case == 'plain':
      assert can_draft
      assert np.abs(table.law - table.p).max() > 0.02
    states = cases.check_drawn(run, table.law[:, 0], case, indices, prompt)
    check_logprobs(states, indices, table, config, prompt, 1)
    # Later blocks begin anywhere: q is unknown without a draft alone.
    for state in states:
      logprobs, sources = state.law_logprobs[:, 5:8], state.source[:, 5:8]
      assert not np.isnan(logprobs[..., 1:]).any()
      assert (sources[np.isnan(logprobs[..., 0])] == BONUS).all()


def _first_logits(bound, prompt):
  """Logits of a drafter's first token; -inf is never drawn."""

  def draft(row):
    fields = row.tokens, row.length, row.hidden, row.verifier_cache, row.key
    sampling = cases.SAMPLING['plain']
    context = drafters.DraftContext(*fields, sampling, jnp.bool_(True))
    found, *_ = bound.drafter.propose(
      bound.params, row.drafter_state, context, gamma=3, drafts=1
    )
    return found.logits_at(0, 0, cases.SIZE)

  length, keys = np.array([len(prompt)]), jax.random.split(jax.random.key(5), 1)
  rows = decoding.prefill(
    decoding.Params(cases.VERIFIER, bound.params),
    decoding.Prompts(np.array([prompt]), length, keys, length + 4),
    models=decoding.Models(cases.MODEL, bound.drafter),
    cache_length=16,
  )
  return jax.vmap(draft, axis_name=decoding.ROWS)(rows)[0]


def test_where_none_is_lenient_a_drafter_makes_a_pass_less():
  # A batch that is strict throughout, and one of both kinds.
  speed = methods.METHODS['speed']
  for pairs in [(speed, 0.0)], [(speed, 0.0), (speed, 0.5)]:
    d = cases.distributions(_TOKEN, cases.SAMPLING['plain'])
    laws = _law(table_models.Table.from_methods(pairs, d), _TOKEN, 3)
    rows = np.arange(cases.MANY) % len(pairs)

    def run(indices, **options):
      return cases.mixed(speed, 0.5 * indices, **options)

    state, *_ = cases.check_drawn(run, laws, 'plain', 16 * [rows])
    counts = decoding.count(state)
    np.testing.assert_array_equal(
      counts.drafter_calls, (3 + (rows > 0)) * counts.blocks
    )


def _by_hand(table, prompt, lenience, gamma, limit, stops):
  """Greedy blocks of a rule about tokens, each from its whole text."""
  tokens, sources, logprobs = list(prompt), [], []
  counts, ended = dict(blocks=0, deferred=0), False
  while not ended:
    counts['blocks'] += 1
    for i in range(gamma + 1):
      at = cases.MODEL.context_after(tokens)
      q, p = (
        np.asarray(jax.nn.softmax(x[at])) for x in (table, cases.VERIFIER)
      )
      deferred = q.max() < p.max() - lenience
      tokens.append(int((p if deferred else q).argmax()))
      sources.append(RESIDUAL if tokens[-1] != q.argmax() else DRAFT)
      if i == gamma:
        sources[-1] = BONUS
      counts['deferred'] += bool(deferred and i < gamma)
      logprobs.append(np.log(p[tokens[-1]]))
      ended = tokens[-1] in stops or len(tokens) == limit
      if ended or sources[-1] == RESIDUAL:
        break
  names = dict(accepted=DRAFT, residual=RESIDUAL, bonus=BONUS)
  counts |= {name: sources.count(x) for name, x in names.items()}
  counts['examined'] = counts['accepted'] + counts['residual']
  return tokens, sources, logprobs, counts


@pytest.mark.smoke
def test_a_greedy_run_is_what_a_loop_without_caches_writes():
  prompts = [*cases.PROMPTS[:4], (4,), (2,), (0, 2)]
  gamma, new, lenience, stops = 2, 9, 0.1, (4,)
  near, sampling = cases.drafter('model').bound, cases.SAMPLING['greedy']
  given = dict(new=new, sampling=sampling, prompts=prompts, stops=stops)
  state = cases.generate('token_v1', (lenience,), gamma, bound=near, **given)
  total = dict.fromkeys(('accepted', 'deferred', 'residual', 'bonus'), 0)
  for i, prompt in enumerate(prompts):
    tokens, sources, logprobs, counts = _by_hand(
      near.params, prompt, lenience, gamma, len(prompt) + new, stops
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


def test_drafts_share_what_they_begin_with():
  # a c, a d, b e and a c f: the first and the last have two tokens in common.
  a, b, c, d, e, f = range(1, 7)
  tokens = jnp.array([[a, c, 0], [a, d, 0], [b, e, 0], [a, c, f]])
  draft = decoding.full_length_draft(tokens, jnp.zeros((4, 4, 7)), 0)._replace(
    lengths=jnp.array([2, 2, 2, 3])
  )
  found = decoding.build_tree(jnp.int32(9), draft, 12)
  assert found.tokens.tolist()[:7] == [9, a, b, c, d, e, f]
  np.testing.assert_array_equal(
    found.node_indices[:, :3], [[0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 1, 3]]
  )
  assert found.node_indices[3, 3] == 6
  assert found.draft.lengths.tolist() == [2, 2, 2, 3]
  # Level 2 may have 4 tokens beside the 2 above it, level 3 one more.
  for size, count in ((6, [2, 2, 2, 3]), (5, [1, 1, 1, 1])):
    cut = decoding.build_tree(jnp.int32(9), draft, size)
    assert cut.draft.lengths.tolist() == count
    assert cut.tokens.shape == (size + 1,)


# --- What a sampler reports


@pytest.mark.parametrize('method', tiers.first(['token_v3', 'min_p']))
def test_weighted_means_are_the_verifiers_where_the_law_covers_it(method):
  verifier, drafter = small.tables()
  decoder = small.sampler(
    *(verifier, 'ngram' if method == 'min_p' else drafter),
    **dict(method=method, lenience=0.5, batch_size=256),
  )
  prompts = ['a'] * 2048
  answers = decoder.sample(prompts, max_new_tokens=1, return_logprobs=True)
  ids = decoder.encode('a')
  p_logits = verifier.params[verifier.model.context_after(ids)]
  p = np.asarray(jax.nn.softmax(p_logits))
  covered = p * (p >= 0.5 * p.max() if method == 'min_p' else p > 0)
  weights = np.array([x.weights().values[0] for x in answers])
  odd = np.array([x.tokens[0] % 2 for x in answers])
  for values, want in (weights, covered), (weights * odd, covered[1::2]):
    error = abs(values.mean() - want.sum())
    assert error < 4.5 * values.std() / np.sqrt(len(values)) + 1e-5
  assert {x.law_given for x in answers} == {'text'}
  assert max(x.weights(0.5).values[0] for x in answers) <= 0.5


_BUNDLED = 'tiny-verifier', 'tiny-drafter'
_GEMMA = 'gemma3-270m', 'gemma3-270m-multi30k-de-en'


@conftest.optimised()
@pytest.mark.slow
@pytest.mark.parametrize(
  ('names', 'method', 'kind', 'drafts'),
  [
    *((names, 'token_v3', 'token', 1) for names in (_BUNDLED, _GEMMA)),
    (_BUNDLED, 'speed', 'block', 1),
    (_BUNDLED, 'cactus', 'k_seq', 2),
    (('tiny-drafter', 'self:1'), 'drafter_only', 'token', 1),
  ],
)
def test_answers_report_what_texts_are_scored_as(names, method, kind, drafts):
  if names is _GEMMA:
    import gguf_test

    gguf_test.real()
  options = dict(method=method, verification=kind, drafts=drafts, lenience=0.3)
  options |= dict(temperature=0.7, batch_size=16, dtype='float32')
  decoder = small.sampler(*names, **options)
  # The first is longer than the bundled models' window, of 48 tokens.
  prompts = ['It was cold. ' * 7, *(f'{n} in words:' for n in range(40, 55))]
  options = dict(max_new_tokens=24, return_logprobs=True, forbidden_tokens=[])
  answers = decoder.sample(prompts, **options)
  pairs = zip(prompts[:4], answers[:4], strict=True)
  texts = [(decoder.encode(prompt), answer.tokens) for prompt, answer in pairs]

  def log_law(lenience):
    config = decoder.config.replace(lenience=lenience)
    by = cascades.Sampler(
      decoder.verifier, decoder.bound_drafter, config=config
    )
    target = scoring._target_of_text(by)
    return scoring.map_tokens(by, texts, scoring._log_law, target)[0]

  scored, less, more = map(log_law, (0.3, 0.3 - 1e-5, 0.3 + 1e-5))
  # Rounding may take a token over its rule's threshold.
  is_clear = np.abs(more - less) < 1e-3
  assert (~is_clear).sum() <= 1
  log_q, log_pi, sources = (
    np.concatenate([getattr(answer, x) for answer in answers])
    for x in ('drafter_logprobs', 'target_logprobs', 'sources')
  )
  assert np.abs(log_pi[: len(scored)] - scored)[is_clear].max() < 1e-4
  if kind == 'token':
    # Of a target, q a is the lesser of q and pi.
    check_sources(np.exp(log_q - log_pi), sources)
