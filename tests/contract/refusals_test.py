"""Options, requests and entries: what is taken, and in what words refused.

A refusal is a ValueError of one sentence, whose beginning stands in the table;
whatever an argument is given, there is an answer or such a sentence.
"""

import fractions
import functools
import itertools
import math
import numbers
import re

import numpy as np
import pytest
import small

import cascades
from cascades import arguments
from cascades.arguments import Registry, number, options_of
from cascades.config import DecodingConfig
from cascades.drafters import DRAFTERS
from cascades.sampler import scoring
from cascades.sampler.requests import RequestOptions

pytestmark = pytest.mark.usefixtures('wrong_types', 'few_shapes')
_V, _SIZE = 768, 96
_pair = small.tables


def _option(**options):
  given = dict(zip(('verifier', 'drafter'), _pair(), strict=True))
  return small.sampler(**given | options)


@functools.cache
def _sampler():
  return small.sampler(*_pair(), cache_length=_SIZE, batch_size=4)


def _request(**request):
  _sampler().sample(**dict(prompts='x') | request)


def _curve(*leniences):
  _sampler().sample_curve(['x'], leniences)


def _entry(name, entry):
  registry = Registry('colour', numbers.Real)
  registry.register('red', 1)
  registry.register('red', 1)
  registry.register(name, entry)


# More than 32 bits hold, and more than Python reads.
_LONG = '3000000000', '9' * 5000
_AHEAD, _TREE = dict(verification='look_ahead'), dict(drafts=4, tree_size=3)
# Options of a sampler, and what their refusal begins with.
_OPTIONS = [
  (dict(method='token_v33'), "method: 'token_v33' is not known; did you"),
  *((dict(lenience=x), 'lenience: ') for x in (math.nan, 'a lot')),
  (dict(gamma=-1), 'gamma: must be 0 or more, got -1'),
  (dict(gamma=1.5), 'gamma: must be a whole number, got 1.5'),
  (dict(temperature=-0.1), 'temperature: '),
  (dict(top_k=0), 'top_k: must be 1 or more'),
  (dict(top_p=1.1), 'top_p: '),
  (dict(drafts=2), "verification: 'token' verifies one draft per block, got"),
  (_TREE | dict(verification='match'), 'tree_size: must be 4 or more'),
  (dict(verification='all'), 'verification: .* Choose from token, block'),
  *(
    (dict(verification=x), f"verification: '{x}' is not known")
    for x in ('look_ahead:1', 'look_ahead:x', 'look_ahead:', 'ahead')
  ),
  (_AHEAD | dict(gamma=3), 'verification: .* raise gamma to 4'),
  (dict(verification='look_ahead:5', gamma=4), 'verification: .* raise gamma'),
  (dict(gate='cooked'), "gate: must be 'raw' or 'processed', got 'cooked'"),
  (dict(bonus='none'), "bonus: must be 'target' or 'verifier', got 'none'"),
  *(
    (dict(dtype='bfloat16', **drafter), 'dtype: .bfloat16. has no effect')
    for drafter in ({}, dict(drafter='ngram'))
  ),
  (dict(method='opt', lenience=1e39), 'lenience: .* range of float32'),
  *((dict(verification=f'look_ahead:{x}'), 'verification: ') for x in _LONG),
  *(
    ({name: int(_LONG[0])}, f'{name}: must be 2147483647 or less')
    for name in ('gamma', 'drafts', 'cache_length', 'batch_size')
  ),
]
_STOPPED = dict(stop_strings=['.'], return_state=True)
# What is asked of a sampler.
_REQUESTS = [
  (dict(prompts=[]), 'prompts: the list is empty'),
  (dict(prompts=[3]), 'prompts: must be texts, got 3'),
  (dict(prompts='x' * 5000), 'prompt 0: .* do not fit'),
  (dict(max_new_tokens=0), 'max_new_tokens: must be 1 or more'),
  (dict(max_new_tokens=5000), 'prompt 0: .* do not fit'),
  (dict(stop_tokens=['two words']), 'stop_tokens: .* tokens'),
  (dict(stop_tokens=[5.5]), 'stop_tokens: there is no token 5.5; ids go'),
  (dict(stop_strings='one'), 'stop_strings: must be a list of texts'),
  (dict(stop_strings=['']), 'stop_strings: must be non-empty texts, got'),
  (dict(stop_strings=[5]), r'stop_strings: must be non-empty .*got \[5\]'),
  (dict(stop_strings=None), 'stop_strings: must be a list of texts, got None'),
  (_STOPPED, 'return_state: takes one prompt, .* no stop_strings'),
  (dict(forbidden_tokens=[10**6]), 'forbidden_tokens: there is no'),
  (dict(forbidden_tokens=[True]), 'forbidden_tokens: there is no token True'),
  (dict(forbidden_tokens='ab'), 'forbidden_tokens: must be a list of'),
  *(
    ({name: 'no'}, f'{name}: must be True or False')
    for name in 'echo return_logits apply_chat_template'.split()
  ),
  (dict(prompts='a\ud800b'), r"text: '\\ud800' at 1 is half of a"),
  (dict(seed=-1), 'seed: must be 0 or more'),
  (dict(seed=2**64), 'seed: must be 18446744073709551615 or less'),
  (dict(seed=10**5000), 'seed: must be .* or less, got'),
]
_KINDS = ['token:5']
_NO_NUMBERS = '1', '', b'2', True, np.bool_(True), np.array(True), 1j, None
REFUSED = [
  *((_option, (), options, words) for options, words in _OPTIONS),
  *((_request, (), request, words) for request, words in _REQUESTS),
  *(
    (_curve, (x,), {}, 'lenience: .* range of float32')
    for x in (1e39, -1e39, 10**300)
  ),
  *(
    (number, ('lenience', x, 0, 9), {}, 'lenience: must be a number from 0 to')
    for x in _NO_NUMBERS
  ),
  *(
    (_entry, entry, {}, 'colour: .* cannot be registered; give a Real, and')
    for entry in (('red', 3), ('a:b', 1), ('', 1), ('x', 'x'))
  ),
  (cascades.audit, ('speed',), {'verifications': _KINDS}, 'verification: '),
  (DRAFTERS.register, ('own', int), {}, 'drafter: .*; give a Unbound'),
  (cascades.METHODS.register, ('own', cascades.METHODS['opt']), {}, 'method: '),
  (cascades.Sampler, ('tiny-verifier',), dict(config={}), 'config: must be a'),
]


def _check_sentence(error):
  # Not one of the many kinds of ValueError that others raise.
  assert type(error) is ValueError
  assert re.match(r'[a-z_]+( \d+)?: .*\.$', str(error)), error
  assert '\n' not in str(error)
  assert len(str(error)) < 800


@pytest.mark.smoke
@pytest.mark.parametrize(('run', 'args', 'kwargs', 'words'), REFUSED)
def test_what_will_not_do_is_named_in_a_sentence(run, args, kwargs, words):
  with pytest.raises(ValueError, match=f'^{words}') as caught:
    run(*args, **kwargs)
  _check_sentence(caught.value)


class _Odd:
  """A value that no argument expects."""

  def __repr__(self):
    raise RuntimeError('nobody is to say what this is')


# Numbers, texts and lists, and what is neither.
_VALUES = (
  *(0, 1, -1, 3, 5.5, -0.0, 1e-9, 1e-320, 1e300, math.nan, math.inf, -math.inf),
  *(True, None, 2**31, 2**32, 2**64, -(2**63), 10**400, 10**5000),
  *(np.int64(3), np.float32(0.3), np.bool_(True), np.array(2), np.array([])),
  *(np.array([1, 2]), np.array(['?']), fractions.Fraction(1, 3), 1j, range(3)),
  *('1', '', 'nan', '\n', '\ud800', 'a\u2581b', 'self:x', 'nowhere', b'2'),
  *((), [], {}, {1: 2}, set(), [[]], (2, 1), (True, 1), ['a', ''], ['x\udfff']),
  *([5, '.'], [0, 10**400], [math.nan], len, int, object(), _Odd()),
)
_IDS = [], [3], [0, _V - 1], [-1], [_V]
_SAMPLER_OPTIONS = options_of(DecodingConfig)


def _answer_or_sentence(run, *args, **kwargs):
  """Returns a call's result, or None if it refuses in one good sentence."""
  try:
    return run(*args, **kwargs)
  except ValueError as error:
    _check_sentence(error)


@pytest.mark.parametrize('name', [*_SAMPLER_OPTIONS, 'drafter', 'stop_below'])
def test_odd_options_of_a_sampler(name):
  for value in _VALUES:
    _answer_or_sentence(_option, **{name: value})


@pytest.mark.parametrize('name', ['prompts', *RequestOptions.__annotations__])
def test_odd_requests(name):
  for value in _VALUES:
    request = dict(prompts='four two', max_new_tokens=3) | {name: value}
    answers = _answer_or_sentence(_sampler().sample, **request)
    for answer in answers if isinstance(answers, list) else [answers]:
      if answer is not None:
        assert answer.text == ''.join(answer.token_strings)
        assert np.isfinite(answer.logprobs).all()


def test_odd_requests_of_a_score():
  for request in itertools.product(_IDS, repeat=2):
    said = _answer_or_sentence(scoring.score, _sampler(), [request])
    assert said is None or len(said) == 1


def test_arrays_and_large_numbers_are_as_good_as_any():
  run = functools.partial(_sampler().sample, 'four', max_new_tokens=8)
  want = run(stop_tokens=[5, 6], forbidden_tokens=[7])
  stop, forbidden = np.array([5, 6]), np.array([7])
  assert want == run(stop_tokens=stop, forbidden_tokens=forbidden)
  make = functools.partial(small.sampler, *_pair(), cache_length=_SIZE)
  large, every = (make(top_k=k) for k in (2**31, _V))
  assert large.sample(['four', 'two']) == every.sample(['four', 'two'])
  requests = [([3], [4, 5])]
  assert scoring.score(large, requests) == scoring.score(every, requests)


def test_seeds_are_not_taken_modulo_anything():
  seeds = 0, 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1
  run = functools.partial(_sampler().sample, 'four', max_new_tokens=24)
  assert len({tuple(run(seed=seed).tokens) for seed in seeds}) == len(seeds)


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
    assert _answer_or_sentence(_option, drafter=name) is None
  # The system refuses to look for such a file.
  with pytest.raises(OSError, match='too long'):
    _option(drafter='x' * 5000)
  for value in (_Odd(), 10**5000, 'x' * 10**6, {1: [2] * 1000}, '\n\n'):
    said = arguments.quote(value)
    assert len(said) < 120
    assert '\n' not in said
  # A number in a name is one of a few digits.
  for text, count in {'7': 7, '0007': 7, '1234567': 1234567}.items():
    assert arguments.parse_count(text) == count
  for text in ('', '-1', '1.0', '12345678', '9' * 5000, '\u0663', '\u00b2'):
    assert arguments.parse_count(text) is None


def test_entries_are_looked_up_by_name():
  registry = Registry('colour', int)
  registry.register('red', 1, builtin=True)
  assert registry.register('blue', 2) == registry.register('blue', 2) == 2
  assert tuple(registry) == ('red', 'blue')
  assert registry.core() == {'red': 1}
  assert not registry.is_builtin('blue')
  with pytest.raises(ValueError, match=r"^colour: 'bleu' .* 'blue'\? Choose"):
    registry['bleu']
