"""Refusals: of an option, a request, an entry or a file, in their words.

A refusal is a ValueError of one sentence, whose beginning stands in the table.
"""

import functools
import math
import numbers

import numpy as np
import pytest
import small

import cascades
from cascades.arguments import Registry, number
from cascades.drafters import DRAFTERS
from cascades.verification_config import VerificationConfig

pytestmark = pytest.mark.usefixtures('wrong_types')


def _option(**options):
  verifier, drafter = small.tables()
  small.sampler(verifier, options.pop('drafter', drafter), **options)


@functools.cache
def _usual():
  return small.sampler(*small.tables())


def _request(**request):
  _usual().sample(**dict(prompts='x') | request)


def _curve(*leniences):
  _usual().sample_curve(['x'], leniences)


def _entry(name, entry):
  registry = Registry('colour', numbers.Real)
  registry.register('red', 1)
  registry.register('red', 1)
  registry.register(name, entry)


# More than 32 bits hold, and more than Python reads.
_LONG = '3000000000', '9' * 5000
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
  (
    dict(drafts=4, tree_size=3, verification='match'),
    'tree_size: must be 4 or more',
  ),
  (dict(verification='all'), 'verification: .* Choose from token, block'),
  *(
    (dict(verification=x), f"verification: '{x}' is not known")
    for x in ('look_ahead:1', 'look_ahead:x', 'look_ahead:', 'ahead')
  ),
  (
    dict(verification='look_ahead', gamma=3),
    'verification: .* raise gamma to 4',
  ),
  (dict(verification='look_ahead:5', gamma=4), 'verification: .* raise gamma'),
  (dict(gate='cooked'), "gate: must be 'raw' or 'processed', got 'cooked'"),
  (dict(bonus='none'), "bonus: must be 'target' or 'verifier', got 'none'"),
  *(
    ({name: x}, f'{name}: ')
    for name in ('method', 'verification', 'gate', 'bonus')
    for x in (10**5000, 'x' * 5000, b'1', None, 1.5)
  ),
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
  (
    dict(stop_strings=['.'], return_state=True),
    'return_state: takes one prompt, .* no stop_strings',
  ),
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
  (VerificationConfig, ('token', 'row'), {}, "gate: must be 'raw' or"),
  (VerificationConfig, ('token', 'raw', 'p'), {}, "bonus: must be 'target'"),
  (
    cascades.audit,
    ('speed',),
    dict(verifications=['token:5']),
    'verification: ',
  ),
  (DRAFTERS.register, ('own', int), {}, 'drafter: .*; give a Unbound'),
  (cascades.METHODS.register, ('own', cascades.METHODS['opt']), {}, 'method: '),
  (cascades.Sampler, ('tiny-verifier',), dict(config={}), 'config: must be a'),
]


@pytest.mark.smoke
@pytest.mark.parametrize(('run', 'args', 'kwargs', 'words'), REFUSED)
def test_what_will_not_do_is_named_in_a_sentence(run, args, kwargs, words):
  with pytest.raises(ValueError, match=f'^{words}') as caught:
    run(*args, **kwargs)
  message = str(caught.value)
  # Not one of the many kinds of ValueError that others raise.
  assert type(caught.value) is ValueError
  assert message.endswith('.')
  assert '\n' not in message
  assert len(message) < 800
