"""Options are declared once, and what is made of the declarations."""

import dataclasses
import json

import pytest

from cascades.config import DecodingConfig
from cascades.declarations import Declared, option


@pytest.mark.parametrize(
  'options',
  [
    {},
    dict(method='opt', lenience=0.1, gamma=8),
    dict(verification='k_seq', drafts=3, tree_size=6, top_k=5, top_p=0.5),
  ],
  ids=str,
)
def test_a_config_is_that_of_its_dictionary(options):
  config = DecodingConfig(**options)
  text = json.dumps(config.to_dict())
  assert DecodingConfig.from_dict(json.loads(text)) == config


def test_a_dictionary_with_another_option_is_refused():
  with pytest.raises(ValueError, match=r'^gama: is not an option of Dec'):
    DecodingConfig.from_dict(dict(gama=2))


def test_a_value_is_checked_as_it_is_declared():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Spec(Declared):
    window: int = option(3, low=1, high=9, help='Tokens compared.')
    order: str = option('up', choices=('up', 'down'), help='Order.')

  assert Spec().replace(window=4).to_dict() == {'window': 4, 'order': 'up'}
  for values, sentence in (
    (dict(window=0), 'window: must be 1 or more, got 0.'),
    (dict(window=10), 'window: must be 9 or less, got 10.'),
    (dict(order='no'), "order: must be 'up' or 'down', got 'no'."),
  ):
    with pytest.raises(ValueError, match='^' + sentence):
      Spec(**values)
