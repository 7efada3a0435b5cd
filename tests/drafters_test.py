"""Every drafter: the law is kept, the states are level, the drafts its own."""

import dataclasses
import functools
import itertools

import conftest
import decoding_test
import jax
import jax.numpy as jnp
import many_methods
import models_test
import numpy as np
import pytest
import small
import tiers

from cascades import decoding, drafters, methods, verification
from cascades.drafters import recurrent
from cascades.methods import processing
from cascades.proof import exact

_V, _MODEL = decoding_test._V, decoding_test._MODEL
_VERIFIER, _DRAFTER = decoding_test._VERIFIER, decoding_test._DRAFTER
# Its favourites are the verifier's now and then.
_NEAR = _DRAFTER + 0.7 * _VERIFIER


@dataclasses.dataclass(frozen=True)
class _Few(exact.TableModel):
  """It says three of five tokens: a part of the vocabulary."""

  draft_vocab_ids = (0, 2, 3)

  def split_vocab_ids(self, params):
    draft_vocab_ids = jnp.array(self.draft_vocab_ids)
    return params[:, draft_vocab_ids], draft_vocab_ids

  def unembed(self, params, hidden):
    few = hidden[jnp.array(self.draft_vocab_ids)]
    if params.shape[-1] == len(self.draft_vocab_ids):
      return few
    return processing.scatter_to_vocab(
      few, jnp.array(self.draft_vocab_ids), self.vocab_size
    )


_FEW = _Few.injective(_V, 3)
_REDUCED = _NEAR.at[:, jnp.array([1, 4])].set(-jnp.inf)
_HEAD = recurrent.init_head(jax.random.key(4), _V)

_ADAPTIVE = drafters.BoundDrafter(
  drafters.ModelDrafter(_MODEL, adaptive=True), (_NEAR, jnp.float32(0.55))
)
# It drafts wherever a text is that has its last token already.
_NGRAM = drafters.BoundDrafter(drafters.NgramDrafter(3, 1), ())
_RECURRENT, _BEAM, _RECURRENT_FEW, _BEAM_FEW = (
  drafters.BoundDrafter(
    drafters.RecurrentDrafter(model, beam=beam), (_HEAD, _VERIFIER)
  )
  for model in (_MODEL, _FEW)
  for beam in (False, True)
)
_FEW_SAID = drafters.BoundDrafter(drafters.ModelDrafter(_FEW), _REDUCED)


def _run(bound_drafter, method='speed', gamma=3, **options):
  return decoding_test._generate(
    method,
    gamma=gamma,
    drafter=bound_drafter.drafter,
    drafter_table=bound_drafter.params,
    **options,
  )


def _of(table):
  """Returns the distributions that the loop sees of two tables."""
  return lambda config, sampling: exact.table_distributions(
    _VERIFIER, table, sampling, config.gate
  )


@pytest.mark.parametrize('kind', tiers.first(decoding_test.SINGLE_DRAFT))
def test_a_drafter_of_some_tokens_keeps_the_law(kind):
  config = verification.VerificationConfig(kind)
  seen = _of(_REDUCED)
  decoding_test.check_laws(config, 3, bound_drafter=_FEW_SAID, seen=seen)


_TWO = dict(gamma=2, drafts=2)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('bound_drafter', 'seen', 'kind', 'options'),
  [
    *((_ADAPTIVE, _of(_NEAR), kind, {}) for kind in decoding_test.SINGLE_DRAFT),
    (
      *(_ADAPTIVE, _of(_NEAR), 'multi_round'),
      _TWO | dict(hows=decoding_test.SAMPLING),
    ),
    *(
      (_FEW_SAID, _of(_REDUCED), kind, _TWO)
      for kind in verification.MULTI_DRAFT
    ),
  ],
)
def test_drafters_that_stop_keep_the_law(bound_drafter, seen, kind, options):
  decoding_test.check_laws(
    verification.VerificationConfig(kind),
    **dict(gamma=3, bound_drafter=bound_drafter, seen=seen) | options,
  )


def test_a_threshold_decides_how_much_is_drafted():
  def run(threshold):
    bound_drafter = _ADAPTIVE._replace(params=(_NEAR, jnp.float32(threshold)))
    return _run(bound_drafter, 'speed', leniences=(0.0,), rows=256, new=8)

  never, some, always = run(0.0), run(0.55), run(1.1)
  of_never, of_some, of_always = map(decoding.count, (never, some, always))
  assert (of_never.drafted == 3 * never.blocks).all()
  assert (of_never.drafter_calls == 3 * never.blocks).all()
  assert (of_always.drafted == 0).all()
  assert (of_always.drafter_calls == always.blocks).all()
  assert 0 < of_some.drafted.sum() < 3 * some.blocks.sum()
  # What is drafted where the drafter is sure is kept more often.
  rate = [
    float(of.accepted.sum() / of.examined.sum()) for of in (of_never, of_some)
  ]
  assert rate[1] > rate[0]


@pytest.mark.usefixtures('few_shapes')
def test_a_model_that_drafts_for_itself_is_never_rejected():
  # All blocks are kept whole, so that their last tokens are read a block late;
  # after a prompt of one token, of some, and of more than a window, and after
  # another turn.
  itself = small.sampler(
    *('tiny-drafter', 'tiny-drafter'), method='speed', lenience=0.0, gamma=3
  )
  prompts = ['', 'The number 31', 'one two three ' * 40]
  answers = itself.sample(prompts, max_new_tokens=40)
  asked = dict(max_new_tokens=8, stop_tokens=[])
  for seed in range(3):
    one = itself.sample('a', return_state=True, seed=seed, **asked)
    then = itself.sample(' b', last_state=one.state, seed=seed, **asked)
    answers += [one, then]
  calls = 0
  for counts in (answer.counts for answer in answers):
    assert counts['accepted'] == counts['examined']
    assert counts['residual'] == 0
    assert counts['drafter_calls'] == 3 * counts['verifier_calls']
    calls += counts['verifier_calls']
  assert calls >= 20


# Rows of the programs that sample below.
_MANY = 20_480


@pytest.mark.parametrize(
  ('bound_drafter', 'drafts', 'kind'),
  tiers.first(
    [
      (_NGRAM, 1, 'token'),
      (_NGRAM, 1, 'block'),
      (_NGRAM, 1, 'match'),
      (_BEAM, 3, 'match'),
      (_BEAM_FEW, 3, 'match'),
      (_RECURRENT, 1, 'block'),
      (_RECURRENT, 3, 'k_seq'),
      (_RECURRENT_FEW, 3, 'multi_round'),
    ]
  ),
)
def test_strict_is_the_verifier_whatever_is_drafted(
  bound_drafter, drafts, kind
):
  run = functools.partial(
    _run,
    bound_drafter,
    'speed',
    config=verification.VerificationConfig(kind),
    drafts=drafts,
  )
  _check_strict(run)
  _check_greedy(functools.partial(run, filled=_MANY))


def _check_strict(run):
  """That a run of the strict rule is the verifier, however it is processed.

  Their q hangs on where a block began, so that only p is a law of the text:
  three tokens, of which n-grams have something to say, and two forbidden.
  """
  strict, prompt = methods.METHODS['speed'], (1, 2, 3, 1, 2)
  for name in decoding_test.FEW:
    sampling = decoding_test.SAMPLING[name]
    d = exact.table_distributions(_VERIFIER, _DRAFTER, sampling)
    table = exact.Table.from_methods([(strict, 0.0)], d)
    law = exact.declared_law(table, _MODEL, prompt, 3)[0]
    with conftest.optimised():
      state = run(
        leniences=np.zeros(_MANY),
        prompts=[prompt] * _MANY,
        sampling=sampling,
        filled=_MANY,
      )
    tokens = state.tokens[:, 5:8]
    assert not sampling.forbidden[tokens].any()
    assert np.abs(exact.z_scores(tokens, law)).max() < 5, name
    if name == 'plain':
      assert decoding.count(state).accepted.sum() > 0


@pytest.mark.parametrize('kind', tiers.first(['token', 'block', 'k_seq']))
def test_the_first_token_of_a_cascade_with_ngrams_follows_its_law(kind):
  # What followed `1 2` was 3, and at the mask's word it is nothing at all.
  prompt, said = (1, 2, 3, 1, 2), 3
  config = verification.VerificationConfig(kind)
  # Every method, between and at its limits.
  pairs = [
    (method, lenience)
    for method, lenience in decoding_test.pairs_of(config)
    for lenience in (lenience, -np.inf, np.inf)
  ]
  # The n-grams may say each of the tokens or nothing, wherever.
  seen, tables = {}, {}
  for name, sampling in decoding_test.SAMPLING.items():
    d = exact.table_distributions(_VERIFIER, _VERIFIER, sampling, config.gate)
    q = np.eye(_V, dtype=np.float32).repeat(len(_VERIFIER), 0)
    d = jax.tree.map(lambda x: np.tile(x, (_V, 1)), d)
    seen[name] = d._replace(q=q, q_gate=q)
    tables[name] = exact.Table.from_methods(pairs, seen[name])
  method = many_methods.from_tables([*tables.values()], [*seen.values()])
  context = _MODEL.context(np.array(prompt), np.arange(len(prompt)))
  at = said * len(_VERIFIER) + context
  each = np.arange(_MANY) % len(pairs)
  for name, table in tables.items():
    sampling = decoding_test.SAMPLING[name]
    given = dict(leniences=each, prompts=[prompt] * _MANY, filled=_MANY, new=1)
    given |= dict(config=config, sampling=sampling)
    with conftest.optimised():
      drawn = [_run(_NGRAM, method, **given, seed=seed) for seed in range(4)]
    tokens = np.concatenate([state.tokens[:, 5:6] for state in drawn])
    assert not sampling.forbidden[tokens].any()
    of = np.tile(each, len(drawn))
    for i in range(len(pairs)):
      law = table.p[at] if sampling.forbidden[said] else table.law[i, at]
      assert np.abs(exact.z_scores(tokens[of == i], law)).max() < 5


def check_head(bound_drafter, drafts, kind, q):
  """Strict, the verifier's law; else that of a block's first token.

  `bound_drafter` is a head of the table model, and q what it draws from after
  the usual prompt.
  """
  method, lenience = methods.METHODS['token_v3'], 0.5
  run = functools.partial(
    _run,
    bound_drafter,
    many_methods.from_functions(
      [(methods.METHODS['speed'], 0.0), (method, lenience)]
    ),
    config=verification.VerificationConfig(kind),
    drafts=drafts,
    filled=_MANY,
  )
  _check_strict(run)
  _check_greedy(run)
  prompt = decoding_test._PROMPT
  p = jax.nn.softmax(_MODEL.logits(_VERIFIER, prompt))
  law = method.law(methods.Distributions(q, p, q, p), lenience)
  assert np.abs(law - p).max() > 0.02
  with conftest.optimised():
    state = run(leniences=np.full(_MANY, 1), rows=_MANY, new=1)
  tokens = state.tokens[:, len(prompt) : len(prompt) + 1]
  assert np.abs(exact.z_scores(tokens, np.asarray(law))).max() < 5


@pytest.mark.parametrize(
  ('drafts', 'kind'), tiers.first([(3, 'multi_round'), (1, 'token')])
)
def test_a_head_keeps_the_law(drafts, kind):
  prompt = decoding_test._PROMPT
  hidden = _MODEL.logits(_VERIFIER, prompt[:-1])
  _, logits = recurrent.step(
    _MODEL, _VERIFIER, _HEAD, hidden, hidden, jnp.int32(prompt[-1])
  )
  check_head(_RECURRENT, drafts, kind, jax.nn.softmax(logits))


def _check_greedy(run):
  """That a run of the strict rule writes the verifier's favourites."""
  prompts = [(1,), (2, 4), (3, 3, 3), (0, 1, 2, 3, 4), (1, 2, 1, 2, 1)]
  with conftest.optimised():
    state = run(leniences=(0.0,), temperature=0.0, prompts=prompts, new=12)
  for i, prompt in enumerate(prompts):
    assert state.length[i, 0] == len(prompt) + 12
    got = state.tokens[i, 0, len(prompt) : len(prompt) + 12].tolist()
    assert got == decoding_test.greedy(prompt, 12)
  assert decoding.count(state).accepted.sum() > 0


# --- n-grams


def _look_up(tokens, gamma, window, agreeing):
  """In plain words: the best agreement, of equals the latest, going round."""
  best, found = agreeing, []
  for start in range(1, len(tokens)):
    pairs = zip(tokens[:start][::-1], tokens[:0:-1], strict=False)
    same = [one == other for one, other in pairs][:window]
    if same[0] and sum(same) >= best:
      best, found = sum(same), (gamma * tokens[start:])[:gamma]
  return found


def test_blocks_without_a_draft_are_read_as_one_token():
  # It looks for more tokens than there are at first.
  bound_drafter = drafters.BoundDrafter(drafters.NgramDrafter(6, 6), ())
  given = dict(leniences=(0.0,), gamma=3, rows=4, temperature=0.0, new=40)
  given |= dict(room=64, filled=4)
  found = _run(bound_drafter, **given)
  plain = decoding_test._generate('speed', **given | dict(gamma=0))
  for row in range(4):
    said = decoding_test._emitted(found, row)
    assert said == decoding_test._emitted(plain, row)
  counts = decoding.count(found)
  assert (counts.drafted > 0).all()
  assert (counts.verifier_tokens == counts.blocks + counts.drafted).all()
  assert (counts.verifier_tokens < 4 * counts.blocks).all()


_OFTEN = drafters.BoundDrafter(drafters.NgramDrafter(3, 3), ())


@pytest.mark.slow
@pytest.mark.parametrize(
  ('bound_drafter', 'kind'),
  [
    *((_OFTEN, kind) for kind in ('token', 'traversal')),
    *((_ADAPTIVE, kind) for kind in ('block', 'match')),
  ],
)
def test_a_block_that_passes_emits_what_it_would_emit_if_it_were_read(
  bound_drafter, kind
):
  # Both have blocks with drafts and blocks without.
  step_config = decoding.StepConfig(
    decoding.Models(_MODEL, bound_drafter.drafter),
    methods.METHODS['token_v3'],
    3,
    verification.VerificationConfig(kind),
  )
  # A row by itself, since no block passes while another row has a draft.
  passing, read = (
    exact.decode_curve(
      dataclasses.replace(step_config, always_reads_block=whole),
      (_VERIFIER, bound_drafter.params),
      exact.BatchRequest(
        [[3, 1, 2]], jax.random.split(jax.random.key(5), 1), [0.3], 40
      ),
      decoding_test.processed_by(1.0),
      capacity=64,
      return_logits=True,
    )
    for whole in (False, True)
  )
  drafted = np.diff(
    passing.cumulative_counts[0, 0, 2 : int(passing.length.item()), 1]
  )
  blocks = int(passing.blocks.item())
  assert 0 < (drafted > 0).sum() < blocks
  assert decoding.count(passing).verifier_tokens < 4 * blocks
  new = slice(3, int(passing.length.item()))
  for column in ('tokens', 'source', 'logprob'):
    one, other = (getattr(run, column)[0, 0, new] for run in (passing, read))
    np.testing.assert_array_equal(one, other, column)
  one, other = (run.logits[0, 0, : new.stop - 3] for run in (passing, read))
  np.testing.assert_array_equal(one, other)


@functools.partial(jax.jit, static_argnums=0)
def _drafted(drafter, tokens, length):
  context = drafters.DraftContext(
    tokens, length, *[None] * 4, needs_bonus_probs=jnp.bool_(True)
  )
  return drafter.propose((), (), context, gamma=4, drafts=1)[0]


# The last are the usual ones: a phrase is not enough.
@pytest.mark.parametrize('asked', [(3, 1), (5, 3), (12, 9)])
def test_ngrams_are_what_followed_the_last_time(asked):
  drafter = drafters.NgramDrafter(*asked)
  assert drafters.NgramDrafter() == drafters.NgramDrafter(12, 9)
  rng = np.random.default_rng(0)
  found = 0
  for _ in range(200):
    # Some of it stands there twice, with a few other tokens.
    first = rng.integers(0, 4, rng.integers(1, 24))
    again = np.where(rng.random(len(first)) < 0.1, 4, first)
    tokens = [*first.tolist(), *again[: rng.integers(0, 24)].tolist()]
    rest = rng.integers(0, 4, 48 - len(tokens)).tolist()
    draft = _drafted(drafter, jnp.array(tokens + rest), len(tokens))
    want = _look_up(tokens, 4, *asked)
    assert draft.tokens[0, : draft.lengths[0]].tolist() == want
    rows = [draft.logits_at(i, 0, 9) for i in range(len(want))]
    assert [int(jnp.argmax(row)) for row in rows] == want
    found += bool(want)
  assert 20 < found < 200


# --- The recurrent head


def test_the_beams_are_the_likeliest_drafts():
  # As many beams as prefixes, so that the search misses nothing.
  length, beams = 3, _V**2
  hidden, token = jax.random.normal(jax.random.key(5), (_V,)), jnp.int32(2)
  tokens, logits = recurrent.draft_beams(
    *(_MODEL, _VERIFIER, _HEAD, hidden),
    **dict(token=token, gamma=length, beams=beams),
  )
  assert tokens.shape == (beams, length + 1)
  scores = {}
  for draft in itertools.product(range(_V), repeat=length):
    state, last, score = hidden, token, 0.0
    for x in draft:
      state, row = recurrent.step(_MODEL, _VERIFIER, _HEAD, hidden, state, last)
      score += float(jax.nn.log_softmax(row)[x])
      last = jnp.int32(x)
    scores[draft] = score
  best = sorted(scores, key=scores.get, reverse=True)[:beams]
  assert tokens[:, 0].tolist() == [2] * beams
  assert [tuple(x) for x in tokens[:, 1:].tolist()] == best
  # Each row is what the head says along that very draft.
  for j in (0, 7, beams - 1):
    state = hidden
    for i in range(length + 1):
      state, row = recurrent.step(
        _MODEL, _VERIFIER, _HEAD, hidden, state, tokens[j, i]
      )
      np.testing.assert_allclose(logits[i, j], row, atol=1e-5)


# --- Real transformers: trees, and a verifier's own first layers


@pytest.mark.parametrize(
  'kind',
  tiers.first(
    dict.fromkeys(['gemma3-mqa', *models_test.KINDS, *models_test.FAMILIES])
  ),
)
def test_a_tree_is_read_as_each_of_its_drafts(kind):
  # Beyond the sliding window, with a draft that was rejected before.
  model, params = models_test.make(kind)
  paths, gamma = 3, 3
  prefix = models_test.text(1, models_test.WINDOW + 3)
  drafts = models_test.text(2, paths * gamma).reshape(paths, gamma)
  drafts[1, 0] = drafts[0, 0]
  slots = models_test.SLOTS + paths * (gamma + 1)
  cache = model.init_cache(params, slots)
  at = jnp.int32(len(prefix) - 1)
  read = jax.jit(decoding.read, static_argnums=0)
  _, cache = read(model, params, cache, jnp.array(prefix), jnp.int32(0))
  wrong = jnp.array(models_test.text(3, 4))
  _, cache = read(model, params, cache, wrong, at + 1)
  cache = model.rewind(cache, at)
  logits = jnp.zeros((gamma + 1, paths, 1))
  draft = decoding.full_length_draft(jnp.array(drafts), logits, 0)
  tree = decoding.build_tree(jnp.int32(prefix[-1]), draft, paths * gamma)
  logits, cache = read(model, params, cache, tree.tokens, at, tree.tree_mask)

  def alone(tokens):
    return model(params, jnp.array(tokens), *small.causal(len(tokens)))[0]

  for j in range(paths):
    want = alone([*prefix, *drafts[j]])[len(prefix) - 1 :]
    np.testing.assert_allclose(logits[tree.node_indices[j]], want, atol=2e-5)
  # The second draft stays, without its last token; another follows it.
  kept = model.move(cache, at, at + tree.node_indices[1])
  kept = model.rewind(kept, at + gamma)
  then, _ = read(model, params, kept, jnp.array([5]), at + gamma)
  want = alone([*prefix, *drafts[1, : gamma - 1], 5])[-1]
  np.testing.assert_allclose(then[0], want, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'drafts', 'verified'),
  [
    ('gemma3-mqa', 2, 'multi_round'),
    ('gemma4-26b-a4b', 1, 'token'),
    ('gemma2-gqa', 2, 'multi_round'),
    ('gemma3-mha', 1, 'token'),
  ],
)
def test_own_first_layers_draft_as_a_model_of_their_own(kind, drafts, verified):
  # In the verifier's cache, and the answers are the same to the last token.
  model, params = models_test.make(kind)
  first = model.first_layers(1)
  asked = exact.BatchRequest(
    [(3, 4, 5), (6, 7)],
    jax.random.split(jax.random.key(0), 2),
    [0.5],
    models_test.WINDOW + 6,
  )
  config = verification.VerificationConfig(verified)
  shared, own = (
    exact.decode_curve(
      decoding.StepConfig(
        *(decoding.Models(model, drafter), methods.METHODS['token_v3']),
        *(3, config, drafts),
      ),
      (params, params),
      asked,
      processing.SamplingParams(temperature=np.float32(1)),
    )
    for drafter in (drafters.SelfDrafter(first), drafters.ModelDrafter(first))
  )
  np.testing.assert_array_equal(shared.length, own.length)
  for i, length in enumerate(own.length[:, 0]):
    np.testing.assert_array_equal(
      shared.tokens[i, 0, :length], own.tokens[i, 0, :length]
    )
  assert decoding.count(own).accepted.sum() > 0


@pytest.mark.usefixtures('wrong_types')
def test_whole_numbers_may_be_floats():
  ngram, own = (
    drafters.NgramDrafter(3.0, 3.0),
    drafters.SelfSpeculative(layers=3.0),
  )
  assert type(ngram.window) is type(own.layers) is int
