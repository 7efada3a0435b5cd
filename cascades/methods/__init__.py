"""Methods: the acceptance of drafts, and the residual of a rejection.

`method.py` defines a method; `cascade.py` holds the paper's deferral
rules, `relaxed.py` other relaxations, `baselines.py` the baselines.
To add a method, write one small function and one entry in the module it
belongs to, or call `register` from a notebook.
"""

from cascades.methods.method import (
  Distributions,
  Method,
  from_rule,
  from_target,
  law_of,
  mixture,
  normalize,
  ratio,
  total_variation,
)
from cascades.methods.registry import (
  METHODS,
  get_acceptance_residual_fns,
  get_method,
  register,
)

__all__ = [
  'METHODS',
  'Distributions',
  'Method',
  'from_rule',
  'from_target',
  'get_acceptance_residual_fns',
  'get_method',
  'law_of',
  'mixture',
  'normalize',
  'ratio',
  'register',
  'total_variation',
]
