"""Odd arguments: an answer, or a ValueError of one sentence, nothing else."""

import fractions
import functools
import math
import re

import hypothesis
import numpy as np
import pytest
import small
from hypothesis import strategies as st

import cascades
from cascades import arguments
from cascades.sampler import batching, scoring

pytestmark = pytest.mark.usefixtures('wrong_types')
_V, _SIZE = 768, 96
_pair = small.tables


@functools.cache
def _sampler():
  return small.sampler(
    *_pair(), method='speed', lenience=0.0, cache_length=_SIZE, batch_size=2
  )


@pytest.fixture(autouse=True, scope='module')
def one_width():
  """A batch of one prompt is one of two, too: the same program."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(batching, 'width', lambda rows, size: min(size, 2))
    yield


class _Odd:
  """A value that no argument expects."""

  def __repr__(self):
    raise RuntimeError('nobody is to say what this is')


_NUMBERS = st.one_of(
  st.sampled_from(
    [
      *(0, 1, -1, 2, 3, 5.5, 0.5, -0.0, 1e-9, 1e-37, 1e-320, 1e300),
      *(math.nan, math.inf, -math.inf, True, False, None),
      *(2**31 - 1, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**400, 10**5000),
      *(np.int64(3), np.float32(0.3), np.bool_(True), np.uint8(7)),
      *(np.array(2), np.array([1, 2]), np.array([]), np.array(['a'])),
      *(fractions.Fraction(1, 3), fractions.Fraction(4)),
      *(1j, '1', '', 'nan', b'2', '\ud800', (), [], {}, {1: 2}, set(), [[]]),
      *((1,), [1, 2], (2, 1), (True, 1), range(3), len, _Odd(), object(), int),
    ]
  ),
  st.integers(-10, 900),
  st.integers(),
  st.floats(),
)
_TEXTS = st.text(max_size=12) | st.sampled_from(
  ['', ' ', 'four two', '\n', '\u2581', 'a\u2581b', '\ud800', 'x\udfff', '\0']
)
_LISTS = st.one_of(
  st.lists(_NUMBERS, max_size=3),
  st.lists(_TEXTS, max_size=3),
  st.lists(st.integers(0, _V - 1), max_size=4).map(np.array),
  st.lists(st.integers(0, _V - 1), max_size=4),
)
_ANYTHING = _NUMBERS | _TEXTS | _LISTS


def _mixed(usual):
  """Now and then anything, else what is usual."""
  return st.one_of(st.sampled_from(usual), _ANYTHING)


_OPTIONS = dict(
  drafter=_mixed([None, 'ngram', 'self:x', 'nowhere']),
  method=_mixed([*cascades.METHODS, 'token_v33']),
  gamma=_mixed([0, 1, 4]),
  verification=_mixed(['token', 'block', 'match', 'k_seq']),
  gate=_mixed(['raw', 'processed']),
  bonus=_mixed(['target', 'verifier']),
  drafts=_mixed([1, 3]),
  tree_size=_mixed([None, 4]),
  mesh=st.sampled_from([(1, 1), (2, 1), (0, 1)]),
)
_OPTIONS |= dict.fromkeys(
  ('stop_below', 'beam'),
  st.sampled_from([None, False, True, 0.5, 2, math.nan, 10**400, 'x', b'1']),
)
_OPTIONS |= dict.fromkeys(
  'lenience temperature top_k top_p cache_length batch_size'.split(), _NUMBERS
)
_REQUEST = dict(
  max_new_tokens=_mixed([1, 3, 8]),
  seed=_NUMBERS,
  forbidden_tokens=_mixed([None, ['\n'], [0, 1, 2]]),
  stop_tokens=_mixed([None, ['.', 5]]),
  stop_strings=_mixed([(), ['a', 'the']]),
)
_REQUEST |= dict.fromkeys(
  'echo return_logits return_state apply_chat_template'.split(), st.booleans()
)


def _some(options):
  """A few of them."""
  names = st.lists(st.sampled_from(list(options)), max_size=3, unique=True)
  return names.flatmap(
    lambda names: st.fixed_dictionaries({n: options[n] for n in names})
  )


def _answer_or_sentence(run):
  """Returns a call's result, or None if it refuses in one good sentence."""
  try:
    return run()
  except ValueError as error:
    kind, said = type(error), str(error)
  # Not one of the many kinds of ValueError that others raise.
  assert kind is ValueError, said
  assert re.match(r'[a-z_]+( \d+)?: .*\.$', said), said
  assert '\n' not in said
  assert len(said) < 800
  return None


def _many(count):
  return hypothesis.settings(
    max_examples=count,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
  )


@_many(500)
@hypothesis.given(_some(_OPTIONS))
def test_odd_options_of_a_sampler(options):
  given = dict(zip(('verifier', 'drafter'), _pair(), strict=True))
  made = _answer_or_sentence(lambda: small.sampler(**given | options))
  assert made is None or made.config.gamma >= 0


@_many(350)
@hypothesis.given(_mixed(['four two', ['four', 'two']]), _some(_REQUEST))
def test_odd_requests(prompts, request):
  answers = _answer_or_sentence(lambda: _sampler().sample(prompts, **request))
  for answer in answers if isinstance(answers, list) else [answers]:
    if answer is not None:
      assert answer.text == ''.join(answer.token_strings)
      assert np.isfinite(answer.logprobs).all()


_IDS = st.lists(st.integers(-2, _V), max_size=4)


@_many(150)
@hypothesis.given(st.lists(st.tuples(_IDS, _IDS), max_size=2))
def test_odd_requests_of_a_score(requests):
  said = _answer_or_sentence(lambda: scoring.score(_sampler(), requests))
  assert said is None or len(said) == len(requests)


def test_arrays_and_large_numbers_are_as_good_as_any():
  run = functools.partial(_sampler().sample, 'four', max_new_tokens=8)
  want = run(stop_tokens=[5, 6], forbidden_tokens=[7])
  assert want == run(
    stop_tokens=np.array([5, 6]), forbidden_tokens=np.array([7])
  )
  large = small.sampler(*_pair(), cache_length=_SIZE, top_k=2**31)
  every = small.sampler(*_pair(), cache_length=_SIZE, top_k=_V)
  assert large.sample('four').tokens == every.sample('four').tokens
  requests = [([3], [4, 5])]
  assert scoring.score(large, requests) == scoring.score(every, requests)


def test_seeds_are_not_taken_modulo_anything():
  seeds = 0, 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1
  run = functools.partial(_sampler().sample, 'four', max_new_tokens=24)
  assert len({tuple(run(seed=seed).tokens) for seed in seeds}) == len(seeds)


@pytest.mark.parametrize('temperature', [1e-7, 1e-9, 1e-37, 1e-45, 1e-320])
def test_what_is_next_to_greedy_is_greedy(temperature):
  make = functools.partial(
    small.sampler, *_pair(), method='speed', lenience=0.0, cache_length=_SIZE
  )
  near, greedy = make(temperature=temperature), make(temperature=0)
  assert near.sample('four').tokens == greedy.sample('four').tokens
  with pytest.raises(ValueError, match='temperature: must be above 0'):
    scoring.score(near, [([3], [4])])


def test_prompts_of_one_checksum_do_not_change_each_other():
  # CRC-32 of their ids is the same.
  prompts = ['hpiftsdlqw', 'wkpeserbfj']
  run = functools.partial(_sampler().sample, max_new_tokens=12, seed=1)
  alone = [run(prompt).tokens for prompt in prompts]
  assert [a.tokens for a in run(prompts)] == alone
  assert [a.tokens for a in run(prompts[::-1])] == alone[::-1]
  # And each of them, given again, is answered anew.
  twice = [a.tokens for a in run(prompts * 2)]
  assert twice[:2] == alone
  assert twice[2:] != alone


def test_numbers_are_of_any_kind():
  for value in (2, 2.0, np.float32(2), np.array(2)):
    assert arguments.number('lenience', value, 0, 9) == 2
  assert arguments.number('lenience', fractions.Fraction(2), 0, 9) == 2
  assert arguments.number('lenience', math.inf, 0, math.inf) == math.inf


def test_what_is_long_or_odd_is_said_in_a_few_words():
  for name in 'ngram:' + '9' * 5000, 'self:' + '9' * 5000:
    run = functools.partial(small.sampler, _pair()[0], name)
    assert _answer_or_sentence(run) is None
  # The system refuses to look for such a file.
  with pytest.raises(OSError, match='too long'):
    small.sampler(_pair()[0], 'x' * 5000)
  for value in (_Odd(), 10**5000, 'x' * 10**6, {1: [2] * 1000}, '\n\n'):
    said = arguments.quote(value)
    assert len(said) < 120
    assert '\n' not in said
  # A number in a name is one of a few digits.
  for text, count in {'7': 7, '0007': 7, '1234567': 1234567}.items():
    assert arguments.parse_count(text) == count
  for text in ('', '-1', '1.0', '12345678', '9' * 5000, '\u0663', '\u00b2'):
    assert arguments.parse_count(text) is None
