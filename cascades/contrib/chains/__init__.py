"""Drafters that are drafted for: cascades of three models and more.

  chain_drafter  two models that draft together
  chain_spec     their names, 'tiny-drafter+ngram'

The options are declared here, where flags and help find them at once.
"""

import math

from cascades import arguments
from cascades.registries import Option

_APPLIES = (
  'a model that is drafted for itself has one; give a drafter such as'
  " 'self:6+ngram'"
)


def _check_method(value):
  # It takes JAX, which flags and help do not wait for.
  from cascades import methods

  return methods.get_method(value, 'inner_method')


INNER_METHOD = Option(
  name='inner_method',
  kind=str,
  help='Of a drafter that is drafted for, as A+B: the method of the two.',
  applies=_APPLIES,
  check=_check_method,
)
INNER_LENIENCE = Option(
  name='inner_lenience',
  kind=float,
  help='Of that method; strict if not given.',
  applies=_APPLIES,
  check=lambda value: arguments.number(
    'inner_lenience', value, -math.inf, math.inf
  ),
)
INNER_GAMMA = Option(
  name='inner_gamma',
  kind=int,
  help='Tokens drafted per block of those two; 2 if not given.',
  applies=_APPLIES,
  check=lambda value: arguments.integer('inner_gamma', value, 1),
)
