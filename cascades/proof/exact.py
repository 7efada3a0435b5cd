"""The tools of a proof of a law, under one name.

The docstring of the package `cascades.proof` lists their modules.
"""

from cascades.proof.enumeration import blocks, declared_law, emitted_law
from cascades.proof.float64 import enable_x64
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
from cascades.proof.trial_distributions import (
  DISTRIBUTION_KINDS,
  draw_distributions,
)
from cascades.sampler.batching import BatchRequest

__all__ = [
  'DISTRIBUTION_KINDS',
  'LEAST_DISTANCE',
  'BatchRequest',
  'Table',
  'TableModel',
  'blocks',
  'check_distances',
  'context_pairs',
  'declared_law',
  'decode_curve',
  'draw_distributions',
  'emitted_law',
  'enable_x64',
  'random_models',
  'random_tables',
  'table_distributions',
  'z_scores',
]
