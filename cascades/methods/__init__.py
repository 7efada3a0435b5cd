"""Methods: the acceptance of drafts, and the residual of a rejection.

`method.py` defines a method; `cascade.py` has the deferral rules of the paper
(arXiv 2405.19261), `relaxed.py` others; `processing.py` computes distributions
from logits. To add a method, write a function below its decorator in one of
them, or call `register` from a notebook.
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

__all__ = (
  'METHODS Distributions Method from_rule from_target'
  ' get_acceptance_residual_fns get_method law_of mixture normalize ratio'
  ' register total_variation'
).split()
