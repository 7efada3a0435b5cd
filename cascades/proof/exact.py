"""Everything that a proof of a law is made of, under one name.

Models whose laws are known exactly, rows to try a method on, methods as tables,
what verification emits by enumeration, and what the loop emits by sampling. The
package's docstring says which module has what.
"""

from cascades.proof.enumeration import blocks, declared_law, emitted_law
from cascades.proof.sampled import decode_curve, z_scores
from cascades.proof.separation import (
  LEAST_DISTANCE,
  check_distances,
  context_pairs,
  random_tables,
)
from cascades.proof.table_models import TableModel
from cascades.proof.tabulated import (
  Table,
  random_models,
  table_distributions,
)
from cascades.proof.trial_rows import KINDS, rows
from cascades.sampler.batching import BatchRequest

__all__ = [
  'KINDS',
  'LEAST_DISTANCE',
  'BatchRequest',
  'Table',
  'TableModel',
  'blocks',
  'check_distances',
  'context_pairs',
  'declared_law',
  'decode_curve',
  'emitted_law',
  'random_models',
  'random_tables',
  'rows',
  'table_distributions',
  'z_scores',
]
