"""Leniences that go along an answer: their laws, their memories, refusals."""

import functools
import itertools

import decoding_test
import numpy as np
import pytest
import small
import tiers

from cascades import (
  decoding,
  drafters,
  load_model,
  methods,
  schedules,
  verification,
)
from cascades.contrib.lenience_schedules import positions
from cascades.proof import exact
from cascades.verification_config import BONUS, DRAFT

_V, _MODEL = decoding_test._V, decoding_test._MODEL
_NEW, _PROMPT = 4, decoding_test._PROMPT
# What is asked for; at it the laws of these models differ most.
_LENIENT = 0.8
_DISTRIBUTIONS = decoding_test.seen_of_model(
  verification.STANDARD, decoding_test.SAMPLING['plain']
)
_NAMES = (
  'first:2',
  'budget:0.1',
  'each:-1,0.2,0.9,0.4,0,0.6,0.5,0.3',
  'inside:1 ... 2',
  'mismatches:1',
  'ramp:3',
  'outside:0 ... 2',
)


def _made(name):
  """A schedule whose markers are ids."""
  return schedules.parse(name, int)


def _spec(name, asked, strict):
  """A schedule in plain Python.

  Gives the lenience after a prompt and what was written, whose tokens are
  (token, divergence, mismatch), as a function.
  """
  kind, _, rest = name.partition(':')

  def first(prompt, written):
    return strict if len(written) < int(rest) else asked

  def ramp(prompt, written):
    t, over = len(written), int(rest)
    return asked if t >= over else strict + (asked - strict) * t / over

  def each(prompt, written):
    return [float(x) for x in rest.split(',')][len(written)]

  def side(prompt, written):
    begins, ends = map(int, rest.split(' ... '))
    inside = False
    for token in [*prompt, *(token for token, *_ in written)]:
      if token in (begins, ends):
        inside = token == begins
    return asked if inside == (kind == 'inside') else strict

  def budget(prompt, written):
    spent = sum(divergence for _, divergence, _ in written)
    return asked if spent < float(rest) else strict

  def mismatches(prompt, written):
    count = sum(mismatch for *_, mismatch in written)
    return asked if count < int(rest) else strict

  kinds = locals() | {'inside': side, 'outside': side}
  return kinds[kind]


@functools.cache
def _rows(method, lenience):
  """Returns a method's law in every context at a lenience."""
  return exact.Table.from_methods(
    [(methods.METHODS[method], lenience)], _DISTRIBUTIONS
  )


def _followed(method, name, asked, written, prompt=_PROMPT, alone=()):
  """Leniences of tokens, one more than there are, and what each has cost.

  Those at places `alone` are the verifier's, which cost nothing.
  """
  lenience = _spec(name, asked, methods.METHODS[method].strict)
  told, leniences = [], []
  for i in range(len(written) + 1):
    leniences.append(lenience(prompt, told))
    if i == len(written):
      return leniences, told
    context = _MODEL.context_after([*prompt, *written[:i]])
    said = _rows(method, leniences[-1])
    law, p = said.law[0, context], said.p[context]
    x = written[i]
    law = p if i in alone else law
    told.append((x, np.maximum(law - p, 0).sum(), law[x] > p[x]))


@functools.cache
def _declared(method, name, asked, new):
  """[V] * new, the product of laws, each as lenient as it is there."""
  law = np.ones([_V] * new)
  for length in range(new):
    for written in itertools.product(range(_V), repeat=length):
      leniences, _ = _followed(method, name, asked, written)
      context = _MODEL.context_after([*_PROMPT, *written])
      of_next = _rows(method, leniences[-1]).law[0, context]
      law[written] *= of_next.reshape([_V] + [1] * (new - length - 1))
  return law


_KINDS = (
  ('token', 1),
  ('block', 1),
  ('multi_round', 2),
  ('traversal', 2),
  ('match', 2),
  ('k_seq', 2),
)


def _decoded(method, name, config, drafts=1, rows=20_000, **more):
  """Rows of the loop, whose leniences go along."""
  if isinstance(config, str):
    config = verification.VerificationConfig(config)
  return decoding_test._generate(
    *(method, np.full(rows, _LENIENT), 3, rows, _NEW),
    config=config,
    drafts=drafts,
    schedule=_made(name),
    **dict(return_logits=False) | more,
  )


_THROUGH_THE_LOOP = (*_KINDS, ('sequential', 1))


@pytest.mark.parametrize('name', tiers.first(_NAMES, 2))
@pytest.mark.parametrize(('kind', 'drafts'), tiers.first(_THROUGH_THE_LOOP))
def test_the_loop_follows_a_law_that_bends(kind, drafts, name):
  rows = _decoded('token_v3', name, kind, drafts)
  tokens = rows.tokens[:, len(_PROMPT) :][:, :_NEW]
  declared = _declared('token_v3', name, _LENIENT, _NEW)
  # It bends: no single lenience has this law.
  (plain,) = exact.declared_law(
    _rows('token_v3', _LENIENT), _MODEL, _PROMPT, _NEW
  )
  assert np.abs(declared - plain).sum() > 0.01
  z = exact.z_scores(tokens, declared)
  assert np.abs(z).max() < 5
  squares = (z**2).sum() - len(z) + 1
  assert squares < 5 * np.sqrt(2 * len(z)) + 5


@pytest.mark.parametrize('name', tiers.first(_NAMES, 2))
@pytest.mark.parametrize(
  ('kind', 'drafts'), tiers.first([('token', 1), ('traversal', 2)])
)
def test_what_is_remembered_is_what_was_written(kind, drafts, name):
  rows = _decoded('token_v3', name, kind, drafts)
  for i in range(64):
    written = rows.tokens[i, len(_PROMPT) : int(rows.length[i])].tolist()
    _, told = _followed('token_v3', name, _LENIENT, written)
    # A row that ended inside of a block remembers the block to its end.
    if rows.source[i, rows.length[i] - 1] == DRAFT:
      continue
    want = {
      'first': len(told),
      'ramp': len(told),
      'each': len(told),
      'budget': sum(divergence for _, divergence, _ in told),
      'mismatches': sum(mismatch for *_, mismatch in told),
    }.get(name.partition(':')[0])
    if want is not None:
      np.testing.assert_allclose(rows.schedule_state[i], want, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['token', 'sequential'])
def test_what_no_draft_was_made_for_costs_nothing(kind):
  # OPT follows a drafter that is certain, and nothing was drafted.
  rare = dict(drafter=drafters.NgramDrafter(6, 6), drafter_table=())
  rows = _decoded('opt', 'budget:0.4', kind, rows=64, **rare)
  assert (rows.source != DRAFT).all()
  np.testing.assert_array_equal(rows.schedule_state, 0)


@pytest.mark.slow
def test_a_bonus_of_the_verifiers_costs_nothing():
  config = verification.VerificationConfig('token', bonus='verifier')
  rows = _decoded('opt', 'budget:0.4', config, rows=256)
  seen = 0
  for i, length in enumerate(rows.length):
    sources = rows.source[i, len(_PROMPT) : int(length)]
    if sources[-1] != BONUS:
      continue
    written = rows.tokens[i, len(_PROMPT) : int(length)].tolist()
    alone = np.flatnonzero(sources == BONUS)
    _, told = _followed('opt', 'budget:0.4', _LENIENT, written, alone=alone)
    np.testing.assert_allclose(
      rows.schedule_state[i],
      sum(divergence for _, divergence, _ in told),
      atol=1e-5,
    )
    seen += 1
  assert seen > 20


def test_another_number_compiles_nothing():
  _decoded('token_v3', 'budget:0.4', 'token')
  sizes = [f._cache_size() for f in (decoding.decode, decoding.prefill)]
  _decoded('token_v3', 'budget:1.5', 'token')
  assert sizes == [f._cache_size() for f in (decoding.decode, decoding.prefill)]


@functools.cache
def _sampler(**options):
  pair = load_model('tiny-verifier'), load_model('tiny-drafter')
  return small.sampler(*pair, **dict(method='token_v3', lenience=0.6) | options)


_ASKED = ['Q: 3 + 4\nA:', 'Tom has 5 apples.', 'Q: 12 - 7\nA:']


def _tokens(sampler, **options):
  answers = sampler.sample(_ASKED, max_new_tokens=24, seed=3, **options)
  return [answer.tokens for answer in answers]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('one', 'other'),
  [
    # Those that never bend are none, those that are always strict are strict.
    *((dict(schedule=x), {}) for x in ('budget:1000', 'first:0', 'ramp:0')),
    *(
      (dict(schedule=x), dict(lenience=methods.METHODS['token_v3'].strict))
      for x in ('budget:0', 'first:99', 'mismatches:0')
    ),
    # An answer does not depend on what is beside it.
    *(
      (dict(schedule=x, batch_size=4), dict(schedule=x, batch_size=1))
      for x in ('budget:1.5', 'first:5', 'inside:5 ... 9')
    ),
  ],
)
def test_schedules_that_come_to_the_same_answer_alike(one, other):
  assert _tokens(_sampler(**one)) == _tokens(_sampler(**other))


@pytest.mark.slow
def test_a_further_turn_begins_anew():
  more = ' Q: 5 + 5\nA:'

  def written(**options):
    one = _sampler(temperature=0.0, **dict(lenience=0.999) | options)
    first = one.sample(_ASKED[1], max_new_tokens=4, return_state=True)
    assert len(first.tokens) == 4
    last = one.sample(more, last_state=first.state, max_new_tokens=4)
    return first.tokens, last.tokens

  strict = written(method='speed', lenience=0.0)
  assert written(schedule='first:4') == strict
  assert written(schedule='first:3')[0][:3] == strict[0][:3]
  assert written() != strict


def test_a_ramp_is_exact_at_both_ends():
  ramp = positions.Ramp(3)
  assert [float(ramp.lenience(i, np.inf, -1.0)) for i in (0, 3)] == [-1, np.inf]
  assert float(positions.Ramp(0).lenience(0, 0.5, -1.0)) == 0.5
