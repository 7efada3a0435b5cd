"""The sampler, on tables: requests, options, and logits that are broken."""

import dataclasses
import functools
import itertools
import math
import pickle
import types
from unittest import mock

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
import tiers

import cascades
from cascades import decoding, drafters, methods, verification
from cascades.config import DecodingConfig
from cascades.decoding import faults
from cascades.methods import engines
from cascades.sampler import batching, scoring
from cascades.sampler.requests import StopCondition
from cascades.verification_config import BONUS, DRAFT, RESIDUAL
from experiments.sweeps import curve_plan, worker
from experiments.tasks import TASKS

pytestmark = pytest.mark.usefixtures('few_shapes')


@pytest.fixture(scope='module')
def pair():
  """Tables that speak the bundled models' tokens; their loops compile fast."""
  return small.tables()


@pytest.fixture(scope='module')
def prompts():
  words = TASKS['word_problems'].load(num_examples=6)
  return [e.prompt for e in (*words, *TASKS['numerals'].load(num_examples=6))]


def test_the_answer_has_the_shape_of_the_question(pair, prompts):
  sampler = small.sampler(*pair, temperature=0)
  one = sampler.sample(prompts[-1], max_new_tokens=32)
  (several,) = sampler.sample(prompts[-1:], max_new_tokens=32)
  assert dataclasses.asdict(one) == dataclasses.asdict(several)
  assert one.text == ''.join(one.token_strings)
  assert len(one.tokens) == len(one.sources) == len(one.token_strings)
  assert type(one.tokens) is list
  assert {*map(type, (*one.tokens, *one.counts.values()))} == {int}


def test_echo_begins_with_what_was_asked(pair):
  sampler = small.sampler(*pair, temperature=0)
  prompt = 'a b   c \U0001f642'
  echoed = sampler.sample(prompt, max_new_tokens=8, echo=True)
  plain = sampler.sample(prompt, max_new_tokens=8, return_state=True)
  assert echoed.text == prompt + plain.text == ''.join(echoed.token_strings)
  assert len(echoed.token_strings) == len(echoed.tokens)
  assert echoed.tokens[-len(plain.tokens) :] == plain.tokens
  assert echoed.sources.count(0) == len(echoed.tokens) - len(plain.tokens)
  asked = dict(max_new_tokens=8, last_state=plain.state, echo=True)
  then = sampler.sample(' d e', **asked)
  before = pair[0].tokenizer.decode(plain.state.tokens)
  assert then.text.startswith(before + ' d e')


@pytest.mark.smoke
def test_forbidden_and_stop_tokens(pair, prompts):
  tokenizer = pair[0].tokenizer
  sampler = small.sampler(*pair, temperature=0)
  # An id, and a text that is this one token.
  answers = sampler.sample(prompts, max_new_tokens=24)
  prompt, free, token = next(
    (prompt, free, token)
    for prompt, free in zip(prompts, answers, strict=True)
    for token in free.tokens[1:-1]
    if tokenizer.encode(tokenizer.decode([token])) == [token]
  )
  end = free.tokens.index(token)
  for which in (token, tokenizer.decode([token])):
    banned = sampler.sample(prompt, max_new_tokens=24, forbidden_tokens=[which])
    assert token not in banned.tokens
    assert banned.tokens[:end] == free.tokens[:end]
    stopped = sampler.sample(prompt, max_new_tokens=24, stop_tokens=[which])
    assert stopped.tokens == free.tokens[: end + 1]
    assert stopped.ended
    assert stopped.text == tokenizer.decode(free.tokens[:end])


def _speaks(pair, chances):
  """A table that says some tokens, whatever stands before."""
  model = pair[0].model
  table = np.full((model.contexts, model.vocab_size), -np.inf, np.float32)
  table[:, [*chances]] = np.log([*chances.values()])
  return pair[0]._replace(params=jnp.asarray(table))


def test_a_token_that_holds_a_text_that_ends_an_answer_ends_its_row(pair):
  # The loop runs until a row ends, or is looked at: no block is for nothing.
  tokenizer = pair[0].tokenizer
  (a,), (stop,) = tokenizer.encode('a'), tokenizer.encode('\n')
  sampler = small.sampler(_speaks(pair, {a: 0.5, stop: 0.5}), gamma=0)
  ended = sampler.sample('x', max_new_tokens=64, seed=3, stop_tokens=['\n'])
  blocks = sampler.usage.rows
  assert ended.ended
  assert len(ended.tokens) == blocks != batching.POLL_INTERVAL_BLOCKS
  cut = sampler.sample('x', max_new_tokens=64, seed=3, stop_strings=['\n'])
  assert sampler.usage.rows == blocks
  assert (cut.tokens, cut.text) == (ended.tokens, ended.text)
  # In the midst of a token: what stands before is of the answer's text.
  (many,) = tokenizer.encode(' many')
  sampler = small.sampler(_speaks(pair, {a: 0.5, many: 0.5}), gamma=0)
  free = sampler.sample('x', max_new_tokens=64, seed=3)
  cut = sampler.sample('x', max_new_tokens=64, seed=3, stop_strings=['any'])
  assert cut.text == free.text.partition('any')[0]
  assert cut.tokens == free.tokens[: free.tokens.index(many) + 1]


@pytest.mark.usefixtures('wrong_types')
def test_what_is_new_ends_an_answer_wherever_it_begins(pair):
  tokenizer = pair[0].tokenizer
  # Three bytes of a character, of which the first are not looked at any more.
  before = tokenizer.encode('\u20ac' * 40)
  tokens = before + tokenizer.encode(' seven pears')
  ending = StopCondition(tokenizer, [1], ('\u20ac seven p',), 4)
  texts = np.cumsum([len(piece) for piece in tokenizer.token_strings(tokens)])
  last = int(np.searchsorted(texts, 40 + len(' seven p'))) + 1
  for length in range(len(before), min(last + 4, len(tokens)) + 1):
    row = types.SimpleNamespace(prompt_length=0, length=length)
    row.tokens = np.array(tokens)
    assert ending.find_end(row) == (last if length >= last else None)


def test_a_text_that_tokens_without_text_interrupt_ends_an_answer(pair):
  # `a` and `b` stand far apart, with nothing but padding between them.
  (a,), (b,) = map(pair[0].tokenizer.encode, 'ab')
  tables = _speaks(pair, {0: 0.92, a: 0.04, b: 0.04})
  sampler = small.sampler(tables, tables, gamma=4)
  apart = 0
  for seed in range(24):
    free = sampler.sample('x', max_new_tokens=120, seed=seed)
    asked = dict(max_new_tokens=120, seed=seed, stop_strings=['ab'])
    cut = sampler.sample('x', **asked)
    texts = itertools.accumulate(free.token_strings)
    ends = [i for i, text in enumerate(texts) if 'ab' in text]
    size = ends[0] + 1 if ends else 120
    if ends:
      apart = max(apart, free.tokens[ends[0] :: -1].index(a))
    # Counts are those of an answer of that many tokens.
    limited = sampler.sample('x', max_new_tokens=size, seed=seed)
    for name in 'tokens', 'counts', 'logprobs':
      assert getattr(cut, name) == getattr(limited, name)
    assert cut.tokens == free.tokens[:size]
    assert cut.ended == bool(ends)
    assert cut.text == ''.join(cut.token_strings)
    assert cut.text == free.text.partition('ab')[0]
  assert apart > batching.POLL_INTERVAL_BLOCKS * 5 + 2


def test_nothing_is_traced_again(pair, prompts):
  functions = decoding.prefill, decoding.decode, decoding.refill_rows
  first = small.sampler(*pair, lenience=0.1, top_k=3)
  for count in 2, 4:
    first.sample(prompts[:count], max_new_tokens=30)
  sizes = [fn._cache_size() for fn in functions]
  other = small.sampler(*pair, lenience=0.9, temperature=0.3, top_k=2)
  # Other prompts of the same shapes, two of them and more.
  swapped = [prompts[1], prompts[0].replace('How many', 'So many')]
  other.sample(swapped, max_new_tokens=20, seed=9, stop_tokens=['\n', '.'])
  other.sample(prompts[:4], max_new_tokens=25)
  assert sizes == [fn._cache_size() for fn in functions]


def test_a_stream_is_the_whole_answer_in_parts(pair, prompts):
  sampler = small.sampler(*pair)
  whole = sampler.sample(prompts[1], max_new_tokens=40, seed=3)
  parts = list(sampler.stream(prompts[1], max_new_tokens=40, seed=3))
  assert ''.join(parts) == whole.text
  assert len(parts) > 3
  assert all(parts)
  middle = len(whole.text) // 2
  asked = dict(max_new_tokens=40, seed=3)
  asked['stop_strings'] = [whole.text[middle : middle + 3]]
  cut = sampler.sample(prompts[1], **asked)
  assert ''.join(sampler.stream(prompts[1], **asked)) == cut.text


def test_a_conversation_reads_nothing_twice(pair, prompts, monkeypatch):
  sampler = small.sampler(*pair, temperature=0)
  first = sampler.sample(prompts[0], max_new_tokens=20, return_state=True)
  assert first.state is not None
  read = []

  def bucket(n, least=64):
    if least >= 32:  # Tokens or slots; rows have another.
      read.append(n)
    return max(n, least)

  monkeypatch.setattr(batching, 'bucket', bucket)
  asked = dict(last_state=first.state, max_new_tokens=20)
  second = sampler.sample(' And then', **asked)
  # Not its prompt, only what is new; the rest are sizes of the cache.
  assert min(read) == len(pair[0].tokenizer.encode(' And then'))
  monkeypatch.undo()
  assert ''.join(sampler.stream(' And then', **asked)) == second.text


@pytest.mark.slow
def test_where_a_drafter_stops_is_an_option_and_no_model(pair):
  stopping = [small.sampler(*pair, stop_below=x) for x in (0.2, 0.6)]
  state_of_one = stopping[0].sample('x', max_new_tokens=5, return_state=True)
  stopping[1].sample('y', last_state=state_of_one.state, max_new_tokens=5)


def test_pairs_that_will_not_do_are_refused(pair):
  words = small.tokenizer(['the quick brown fox ' * 20] * 3, 280)
  fewer = dataclasses.replace(pair[1].model, vocab_size=100)
  fewer = pair[1]._replace(model=fewer)
  bound = drafters.DraftModel(fewer).bind(pair[0])
  for models, said in (
    ([x._replace(tokenizer=words) for x in pair], 'tokenizer: must have a pie'),
    (pair[:1], 'drafter: none is given'),
    *(((pair[0], x), 'drafter: must have as many') for x in (fewer, bound)),
  ):
    with pytest.raises(ValueError, match=f'^{said}'):
      cascades.Sampler(*models)


def test_a_state_of_other_models_is_refused(pair, prompts):
  made = cascades.Sampler(*pair)
  state = made.sample(prompts[0], max_new_tokens=5, return_state=True).state
  others = [small.sampler(*pair, gamma=0)]
  # Of the same shapes, and yet others.
  for which in range(2):
    models = list(pair)
    params = jax.tree.map(lambda x: 1.001 * x, pair[which].params)
    models[which] = pair[which]._replace(params=params)
    others.append(cascades.Sampler(*models))
  for sampler in others:
    with pytest.raises(ValueError, match='last_state: was made by other'):
      sampler.sample('x', last_state=state)
  # Copies are the same models.
  copies = [x._replace(params=jnp.copy(x.params)) for x in pair]
  cascades.Sampler(*copies).sample('x', last_state=state, max_new_tokens=5)
  with pytest.raises(ValueError, match='return_state: takes one prompt'):
    made.sample(['x', 'y'], last_state=state)
  short = small.sampler(*pair, cache_length=100)
  with pytest.raises(ValueError, match='do not fit into cache_length'):
    short.sample('x', last_state=state, max_new_tokens=90)


_PROMPTS = [f'The number {i} in words:' for i in range(1000, 1016)]
_KINDS = {x: n for x, n in cases.VERIFICATIONS.items() if x != 'look_ahead'}


def test_the_default_lenience_is_the_strict_one_of_each_method():
  for name, method in methods.METHODS.items():
    config = DecodingConfig(method='speed').replace(method=name)
    assert config.lenience is None
    assert config.replace(gamma=0).is_lossless
    if method.strict is not None:
      assert config.is_lossless
      assert config.effective_lenience == method.strict
  assert not DecodingConfig(method='drafter_only').is_lossless


def test_a_method_without_a_strict_lenience_is_refused_where_it_decodes(pair):
  decoder = small.sampler(*pair, method='contrastive', cache_length=256)
  score = lambda _: scoring.score(decoder, [([1], [2])])  # noqa: E731
  for run in decoder.sample, lambda x: [*decoder.stream(x)], score:
    with pytest.raises(ValueError, match=r'^lenience: must be given for'):
      run('x')
  rule = small.of_target(lambda d, lenience: d.q, has_lenience=False)
  assert DecodingConfig(method=rule).effective_lenience == 0


def _reads(fn):
  """Names the arguments of a rule that its program uses."""
  row = np.full(4, 0.25, np.float32)
  d = methods.Distributions(*5 * (row,))
  jaxpr = jax.make_jaxpr(fn)(d, 0.5).jaxpr
  used = [x for eqn in jaxpr.eqns for x in eqn.invars] + jaxpr.outvars
  names = zip((*d._fields[:5], 'lenience'), jaxpr.invars, strict=True)
  return {name for name, x in names if any(x is y for y in used)}


@pytest.mark.parametrize('name', methods.METHODS)
def test_a_method_declares_what_it_reads(name):
  method = methods.METHODS[name]
  fns = method.acceptance, method.residual, method.law, method.rule
  names = set().union(*(_reads(fn) for fn in fns if fn))
  assert ('lenience' in names) == method.has_lenience
  assert bool(names & {'q_gate', 'p_gate'}) == method.reads_gates
  # The rule of `margin` looks at logits, and engines have no rules.
  looks = method.reads_gates or 'p_logits' in names
  assert looks == (method.rule is not None) or method in engines.METHODS
  for lenience in (method.strict, method.drafter_only):
    config = DecodingConfig(method=method, lenience=lenience)
    assert config.lenience == lenience


@pytest.mark.parametrize(
  ('drafter', 'kind'),
  tiers.first(
    [
      ('ngram:1', 'token'),
      *(('ngram', kind) for kind in _KINDS if kind in cases.ONE_DRAFT),
      *((None, kind) for kind in _KINDS),
    ]
  ),
)
def test_all_kinds_of_decoding_share_the_definition_of_counts(drafter, kind):
  verifier, model = small.tables()
  options = dict(verification=kind, drafts=_KINDS[kind], gamma=2)
  options |= dict(lenience=0.5, cache_length=256)
  sampler = small.sampler(verifier, drafter or model, **options)
  answers = sampler.sample(_PROMPTS, max_new_tokens=16)
  # No 9 of 12 tokens stood there before: look-up of so many has nothing to say.
  total = sum(answer.counts['drafted'] for answer in answers)
  assert (total > 0) == (drafter != 'ngram')
  for answer in answers:
    counts, sources = answer.counts, np.array(answer.sources)
    emitted = [(sources == x).sum() for x in (DRAFT, RESIDUAL, BONUS)]
    assert emitted == [counts[x] for x in ('accepted', 'residual', 'bonus')]
    assert sum(emitted) == len(answer.tokens)
    # Each rejected draft is replaced by a token of the residual.
    assert counts['examined'] == sum(emitted[:2])
    assert counts['deferred'] <= counts['examined'] <= counts['drafted']
    rate = emitted[0] / counts['examined'] if counts['examined'] else math.nan
    np.testing.assert_equal(answer.acceptance_rate, rate)
    calls, read = counts['verifier_calls'], counts['verifier_tokens']
    assert calls <= read
    assert answer.block_efficiency == len(answer.tokens) / calls
    assert counts['drafted'] or emitted[2] == calls == read == sum(emitted)
    assert (counts['drafter_calls'] > 0) == (drafter is None)


_PROMPT = 'The number 4302 in words:'
_VALUES = {'nan': jnp.nan, 'inf': jnp.inf, 'no token': -jnp.inf}


def _pair(culprit, value):
  """A pair of tables, one of which has rows that are no distribution."""
  pair, i = [*small.tables()], int(culprit == 'drafter')
  # One entry is enough for a drafter, unless it is an impossible token.
  rows = (..., 9) if i and not value < 0 else ...
  pair[i] = pair[i]._replace(params=pair[i].params.at[rows].set(value))
  return pair


def _fails(culprit, pair, forbidden=(), **options):
  """That a sampler's answer ends in an error which names the culprit."""
  sampler = small.sampler(*pair, **dict(cache_length=256) | options)
  length = len(sampler.encode(_PROMPT))
  wanted = f'its logits are not finite at position {length}'
  if culprit == 'method':
    wanted = 'its target is not a distribution at position'
  with pytest.raises(ValueError, match=f'^{culprit}: {wanted} .*of prompt 0;'):
    sampler.sample(_PROMPT, max_new_tokens=8, forbidden_tokens=[*forbidden])


@pytest.mark.parametrize('temperature', [0.0, 1.0])
@pytest.mark.parametrize('value', _VALUES.values(), ids=_VALUES)
@pytest.mark.parametrize('culprit', ['verifier', 'drafter'])
@pytest.mark.parametrize(('kind', 'drafts'), tiers.first(_KINDS.items()))
def test_calls_end_with_a_culprit(kind, drafts, culprit, value, temperature):
  options = dict(verification=kind, drafts=drafts, temperature=temperature)
  # Tokens that are forbidden hide no fault.
  _fails(culprit, _pair(culprit, value), [9, 11], lenience=0.3, **options)


@pytest.mark.parametrize('culprit', ['verifier', 'drafter'])
def test_what_no_emitted_token_is_drawn_from_is_no_fault(culprit):
  # Strict decoding is the verifier alone, which reads nothing more either.
  options = dict(temperature=0.0, cache_length=256)
  verifier, _ = small.tables()
  prompt = small.sampler(verifier, gamma=0, **options).encode(_PROMPT)
  at = np.array(prompt), np.arange(len(prompt))
  context = int(verifier.model.context(*at))
  # The first token ends the answer; whatever is read after it is broken.
  ends = jnp.arange(verifier.params.shape[1]) == 1
  of_first = jnp.where(ends, 9.0, -9.0)

  def table(is_broken):
    rest = jnp.full_like(verifier.params, jnp.nan if is_broken else 0.0)
    return verifier._replace(params=rest.at[context].set(of_first))

  pair = table(culprit == 'verifier'), table(culprit == 'drafter')
  strict = small.sampler(*pair, lenience=-1.0, **options)
  for sampler in strict, small.sampler(pair[0], gamma=0, **options):
    assert sampler.sample(_PROMPT, max_new_tokens=8).tokens == [1]
  if culprit == 'verifier':
    # One that does not end there is told where it broke.
    late = pair[0].params.at[context].set(jnp.roll(of_first, 8))
    sampler = small.sampler(pair[0]._replace(params=late), gamma=0, **options)
    at = f'at position {len(prompt) + 1} of prompt 0'
    with pytest.raises(ValueError, match=f'^verifier: its .* {at}'):
      sampler.sample(_PROMPT, max_new_tokens=8)


@pytest.mark.parametrize('culprit', ['verifier', 'drafter'])
def test_whatever_is_asked_for_ends(culprit):
  pair = _pair(culprit, jnp.nan)
  sampler, new = small.sampler(*pair, lenience=0.3), dict(max_new_tokens=8)
  for call, said in (
    (lambda: list(sampler.stream(_PROMPT, **new)), 'its logits'),
    (lambda: sampler.sample_curve(['x'], [0.3], **new), 'its logits'),
    (lambda: scoring.score(sampler, [([2, 7], [8, 9])]), '.* at position 2 of'),
  ):
    with pytest.raises(ValueError, match=f'^{culprit}: {said}') as error:
      call()
    # Another process can raise it, too.
    again = pickle.loads(pickle.dumps(error.value))
    assert str(again) == str(error.value)


@pytest.mark.slow
def test_a_soft_cap_hides_no_infinity():
  # A Gemma 2, whose logits have a soft cap, with a broken last norm.
  verifier = cascades.load_model(small.pair()[0])
  norm = {'scale': verifier.params['final_norm']['scale'].at[0].set(jnp.inf)}
  broken = verifier._replace(params=verifier.params | {'final_norm': norm})
  sampler = small.sampler(broken, gamma=0, cache_length=256)
  score = functools.partial(scoring.score, sampler, [([2, 7], [8, 9])])
  for call in lambda: sampler.sample(_PROMPT, max_new_tokens=4), score:
    with pytest.raises(ValueError, match=r'^verifier: its logits'):
      call()


@pytest.mark.slow
# `look_ahead` draws from p alone, and is strict if no draft is accepted.
@pytest.mark.parametrize(
  ('kind', 'drafts'), [x for x in _KINDS.items() if x[0] != 'look_ahead:2']
)
def test_a_rule_that_says_nan_is_the_methods_fault(kind, drafts):
  rule = methods.from_rule(
    lambda d, lenience: jnp.full(d.q.shape, jnp.nan),
    **dict(name='nan_rule', equation='', strict=None, drafter_only=None),
    has_lenience=False,
  )
  options = dict(method=rule, verification=kind, drafts=drafts)
  _fails('method', small.tables(), **options)


def _is_valid(method, kind, d, lenience=0.0, **changes):
  """True if a block of one draft is verified by a distribution."""
  whole = dict(draft_lengths=jnp.ones(1, int), has_bonus_probs=jnp.bool_([1]))
  inputs = verification.VerificationInputs(
    **dict(method=method, lenience=jnp.float32(lenience)),
    **dict(tokens=jnp.int32([[1]]), distributions_at=d),
    config=verification.VerificationConfig(kind),
    **whole | changes,
  )
  return verification.verify(inputs, jax.random.key(0)).is_valid


@pytest.mark.parametrize('kind', ['token', 'block', 'k_seq', 'traversal'])
@pytest.mark.parametrize('kept', [False, True])
def test_a_law_with_a_negative_probability_is_the_methods_fault(kind, kept):
  # It sums to 1, and the residual is made of what is above 0.
  pi = jnp.float32([-0.5, 1.0, 0.5] if kept else [-0.5, 0.0, 1.5])
  q = p = jnp.float32([0.25, 0.5, 0.25])
  d = methods.Distributions(q, p, q, p, jnp.log(p))
  for law, is_valid in (pi, False), (p, True):
    method = small.of_target(lambda d, lenience, law=law: law)
    assert _is_valid(method, kind, lambda i, j: d) == is_valid


def test_a_law_after_a_draft_that_ended_early_is_no_fault():
  p = jnp.float32([0.25, 0.5, 0.25])

  def at(depth, draft):
    q = jnp.where(depth, jnp.nan, p)
    return methods.Distributions(q, p, q, p, jnp.log(p))

  unknown = dict(has_bonus_probs=jnp.zeros(1, bool))
  ensemble = methods.METHODS['ensemble']
  assert _is_valid(ensemble, 'traversal', at, 0.5, **unknown)


def test_a_sweep_names_the_drafter_that_decodes_alone():
  ended = mock.Mock()
  ended._sampler.return_value = mock.Mock(), 0
  ended._refusal.return_value = None
  ended._request.return_value = {}
  ended._compiled, ended._clock.seconds = set(), 0.0
  ended._sampler.return_value[0].sample_curve.side_effect = faults.FaultError(
    'verifier', 'at position 9 of prompt 3'
  )
  curve = curve_plan.Curve.from_config({}, 'drafter_only', ())
  with pytest.raises(ValueError, match=r'^drafter: its logits .* of prompt 3;'):
    worker.Worker.decode_curve(ended, mock.Mock(), curve, [mock.Mock()])
