"""The section of the decision."""

import pandas as pd

from experiments.reports.columns import (
  GAMMA,
  LENIENCE,
  RATIO,
  SCORE,
  Column,
  check_mark,
  p_value,
)
from experiments.reports.sections.section import Section, SectionContext
from experiments.reports.tables import Table


def decision(context: SectionContext) -> Section | None:
  """Builds the section of the decision, if the run ended with one."""
  if context.decision is None:
    return None
  # Imports JAX, which other pages do without.
  from cascades.decisions import Decision

  decided = Decision.load(context.decision)
  evidence = decided.evidence
  table = pd.DataFrame(evidence['trials'])
  # A column without any number would not be one of numbers.
  for name in ('speedup', 'lenience', 'loss', 'p'):
    table[name] = table[name].astype(float)
  about_p = 'that more than the risk is lost'
  if evidence['choosing_examples']:
    about_p += f'; certified if at most {evidence["delta_per_curve"]:.3g}'
  columns = [
    GAMMA,
    LENIENCE,
    Column('speedup', 'Modelled speed-up', RATIO, 'over the verifier alone'),
    Column('loss', 'Quality loss', SCORE, 'below the verifier alone; best = 1'),
    Column('p', 'p-value', p_value, about_p),
    Column('is_certified', 'Certified', check_mark, 'may be chosen'),
  ]
  guide = (
    '(The method speed is speculative decoding.) The table has the numbers of'
    f' the {evidence["choosing_examples"]} examples that the setting was chosen'
    ' on. Lossless settings need no test. The other leniences of a curve (a'
    ' method with its options and a gamma) are tested from strict on, up to the'
    f' first that fails, at level {evidence["delta_per_curve"]:.3g} each.'
    if evidence['choosing_examples']
    else 'The config fixes the settings; nothing was chosen on these examples.'
  )
  return Section(
    'Decision',
    f'{decided.sentence} {guide}',
    [Table('decision', 'Settings that were tried', table, columns)],
  )
