"""Strict decoding is the verifier alone, greedily and sampled.

Every drafter of the table model with every verification; and models of every
family with a drafter of every kind, through the sampler.
"""

import functools
import itertools

import cases
import jax
import numpy as np
import pytest
import small
import tiers

from cascades import decoding, load_model, methods, verification
from cascades.proof import enumeration, table_models
from cascades.sampler import batching
from experiments import tasks

pytestmark = pytest.mark.usefixtures('few_shapes')
# Others are in the first tier by the law of a block, or by golden cases.
_FIRST = ('model', 'token', None), ('model', 'multi_round', 5)
_MORE = [
  ('beam', 'match', None),
  *(('model', kind, 5) for kind in ('match', 'k_seq')),
  *itertools.product(('model', 'ngram'), cases.VERIFICATIONS, (None,)),
  # `match` reads no q.
  *(
    (name, kind, None)
    for name in cases.DRAFTERS
    for kind in (('match',) if 'beam' in name else ('token', 'multi_round'))
  ),
]


@pytest.mark.parametrize(
  ('name', 'kind', 'tree_size'),
  tiers.first(dict.fromkeys([*_FIRST, *_MORE]), len(_FIRST)),
)
def test_tables_are_the_verifier_whatever_is_drafted(name, kind, tree_size):
  run = functools.partial(
    cases.mixed,
    cases.from_functions(cases.STRICT),
    bound=cases.drafter(name).bound,
    config=verification.VerificationConfig(kind),
    drafts=cases.drafts_of(name, kind),
    tree_size=tree_size,
  )
  count = len(cases.STRICT)
  given = dict(sampling=cases.SAMPLING['greedy'], prompts=cases.PROMPTS, new=12)
  state = run(range(count), **given)
  for i, prompt in enumerate(cases.PROMPTS):
    tokens = [cases.new_tokens(state, i, j) for j in range(count)]
    assert tokens == count * [cases.greedy(prompt, 12)]
  accepted = decoding.count(state).accepted.sum(0)
  # The favourites of this one are never the verifier's.
  assert name == 'apart' or (accepted > 0).all()
  # Three tokens, of which n-grams have something to say, and two forbidden.
  prompt, leniences = (1, 2, 3, 1, 2), np.arange(cases.MANY) % count
  for case in cases.FEW:
    d = cases.distributions(verification.STANDARD, cases.SAMPLING[case])
    table = table_models.Table.from_methods(cases.STRICT, d)
    laws = enumeration.declared_law(table, cases.MODEL, prompt, 3)
    # Nothing is drawn at temperature 0.
    batches = (1 if case == 'greedy' else 10) * [leniences]
    states = cases.check_drawn(run, laws, case, batches, prompt)
    if case == 'plain':
      assert decoding.count(states[0]).accepted.sum() > 0


def test_plain_decoding_is_the_verifier():
  # Whatever the method and its lenience.
  run = functools.partial(cases.mixed, 'token_v3', gamma=0)
  d = cases.distributions(verification.STANDARD, cases.SAMPLING['plain'])
  pairs = 2 * [(methods.METHODS['verifier_only'], 0.0)]
  table = table_models.Table.from_methods(pairs, d)
  laws = enumeration.declared_law(table, cases.MODEL, cases.PROMPT, cases.NEW)
  cases.check_drawn(run, laws, 'plain', 10 * [np.arange(cases.MANY) % 2])


# --- Models


@pytest.mark.slow
@pytest.mark.parametrize(('verifier', 'name', 'options'), cases.PAIRS)
def test_models_are_the_verifier_whatever_is_drafted(verifier, name, options):
  is_tiny = verifier == 'tiny-verifier'
  checkpoint = load_model(cases.named(verifier))
  texts, new = ['the quick brown fox', '', 'every token is either kept'], 24
  if is_tiny:
    problems = tasks.TASKS['word_problems'].load(split='test', num_examples=4)
    texts, new = [example.prompt for example in problems], 40

  def samplers(temperature):
    usual = dict(method='speed', lenience=0.0, gamma=3, temperature=temperature)
    return (
      small.sampler(checkpoint, gamma=0, temperature=temperature),
      small.sampler(checkpoint, cases.named(name), **usual | options),
    )

  alone, strict = samplers(0.0)
  want, answers = (s.sample(texts, max_new_tokens=new) for s in (alone, strict))
  assert [a.tokens for a in answers] == [a.tokens for a in want]
  for one, other in zip(answers, want, strict=True):
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
  # A row is what it is by itself, and a conversation goes on.
  one = strict.sample(texts[1], max_new_tokens=new)
  assert (one.tokens, one.counts) == (answers[1].tokens, answers[1].counts)
  turns = []
  for by in alone, strict:
    begun = by.sample(texts[0], max_new_tokens=6, return_state=True)
    then = by.sample(texts[2], max_new_tokens=12, last_state=begun.state)
    turns.append((begun.tokens, then.tokens))
  assert turns[0] == turns[1]
  # What is sampled has the verifier's log-probabilities too; and random heads
  # are not always wrong.
  read = jax.jit(checkpoint.model.with_hidden)
  for by in samplers(1.0):
    drawn = by.sample(texts, max_new_tokens=new)
    rows = [by.encode(x) + y.tokens for x, y in zip(texts, drawn, strict=True)]
    rows = zip(*batching.pad(rows, 512), drawn, strict=True)
    for row, length, answer in rows:
      logits, *_ = read(checkpoint.params, row, *small.causal(len(row)))
      at = np.arange(length - len(answer.tokens), length)
      logprobs = np.asarray(jax.nn.log_softmax(logits))[at - 1, row[at]]
      np.testing.assert_allclose(answer.logprobs, logprobs, atol=2e-4)
  assert sum(a.counts['accepted'] for a in (*answers, *drawn)) > 0


def test_a_model_that_drafts_for_itself_is_never_rejected():
  # All blocks are kept whole, so that their last tokens are read a block late;
  # after a prompt of one token, of some, and of more than a window, and after
  # another turn.
  itself = small.sampler(
    *('tiny-drafter', 'tiny-drafter'), method='speed', lenience=0.0, gamma=3
  )
  prompts = '', 'The number 31', 'one two three ' * 40
  answers = [itself.sample(x, max_new_tokens=40) for x in prompts]
  asked = dict(max_new_tokens=8, stop_tokens=[])
  for seed in range(3):
    one = itself.sample('a', return_state=True, seed=seed, **asked)
    then = itself.sample(' b', last_state=one.state, seed=seed, **asked)
    answers += [one, then]
  for counts in (answer.counts for answer in answers):
    assert counts['accepted'] == counts['examined']
    assert counts['residual'] == 0
    assert counts['drafter_calls'] == 3 * counts['verifier_calls']
  assert sum(a.counts['verifier_calls'] for a in answers) >= 20
