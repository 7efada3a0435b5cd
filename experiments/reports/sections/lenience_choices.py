"""Sections on the choice of a lenience: guarantees, calibration and tests."""

import pathlib

import pandas as pd

from experiments.analysis import calibration, risk
from experiments.reports import styles
from experiments.reports.columns import (
  EXAMPLES,
  GAMMA,
  LATENCY,
  LENIENCE,
  RATIO,
  SCORE,
  Column,
  check_mark,
  count,
  p_value,
  text_or_dash,
)
from experiments.reports.sections.section import Section, SectionContext
from experiments.reports.tables import Table


def _is_chosen(file: pathlib.Path) -> bool:
  """Tells if a decision was made on one half of the examples."""
  from cascades.decisions import Decision

  return bool(Decision.load(file).evidence['choosing_examples'])


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


def guaranteed(context: SectionContext) -> Section | None:
  """Builds the section of leniences with a guaranteed loss."""
  config = context.config
  table = risk.control(context.points, config)
  if table.empty:
    return None
  table = table.assign(
    chosen=[
      f'{styles.lenience(row.lenience)}{" (strict)" if row.strict else ""}'
      if row.found or row.strict
      else f'none; strictest {styles.lenience(row.lenience)} has no guarantee'
      for row in table.itertuples()
    ],
    of=[f'{row.found} of {row.tried}' for row in table.itertuples()],
  )
  columns = [
    *context.group_columns,
    Column('chosen', 'Loosest lenience', text_or_dash, 'with the guarantee'),
    Column('of', 'Guaranteed', text_or_dash, 'leniences, without the strict'),
    Column('lost', 'Quality loss', SCORE, 'on these examples; best score = 1'),
    LATENCY,
    Column('examples', 'Examples', count, 'answered at every lenience'),
  ]
  needed = int(table.needed.iloc[0])
  too_few = (
    f' The guarantee needs at least {needed} examples, which no task has:'
    ' strict decoding remains.'
    if table.examples.max() < needed
    else f' The guarantee needs at least {needed} examples, even if none of'
    ' them has a loss.'
  )
  decision_note = (
    ' The decision above is stricter: it tests on one half of the examples, and'
    f' its curves share the probability {config.delta:g} that a guarantee'
    ' fails.'
    if context.decision and _is_chosen(context.decision)
    else ''
  )
  return Section(
    'Leniences with a guaranteed bound on the quality loss',
    'The table shows the loosest lenience whose mean quality is at most'
    f' {config.risk:g} of the best score below the verifier alone, with'
    f' probability at least {1 - config.delta:g} for any distribution of the'
    ' examples. Leniences are tested from strict on, up to the first that fails'
    ' the test (learn-then-test, arXiv 2110.01052; test by betting, arXiv'
    ' 2010.09686). The column Guaranteed counts the leniences with the'
    ' guarantee among those decoded, without the strict one, which needs none.'
    ' The guarantee holds for one curve (a method with its options and a gamma)'
    ' that is chosen beforehand.' + decision_note + too_few,
    [Table('guaranteed', 'Leniences with a guarantee', table, columns)],
  )


def calibrated(context: SectionContext) -> Section:
  """Builds the section of leniences chosen on half of the examples."""
  table, config = context.calibrated, context.config
  targets = {
    'quality': f'quality loss of at most {config.loss:g}',
    'latency': f'modelled latency of at most {config.latency:g}',
  }
  minimized = {'quality': 'latency', 'latency': 'quality loss'}
  columns = [
    *context.group_columns,
    Column('lenience', 'Lenience', styles.lenience, 'chosen on one half'),
    Column('loss', 'Quality loss', SCORE, 'on the other half; best score = 1'),
    LATENCY,
    Column('kept', 'Target met', check_mark, 'on the other half'),
    Column(
      'best_lenience', 'Best lenience', styles.lenience, 'on the other half'
    ),
  ]
  tables = []
  for target, words in targets.items():
    regret = Column(
      'regret',
      f'Regret ({minimized[target]})',
      SCORE,
      'above that of the best lenience; below 0 if the target is missed',
    )
    tables.append(
      Table(
        f'calibration_{target}',
        f'Target: {words}',
        table[table.target == target].drop(columns='point'),
        [*columns, regret],
      )
    )
  return Section(
    'Leniences chosen on half of the examples',
    'Each lenience is chosen on one half of the examples and judged on the'
    f' other half (halves by a hash of the id, seed {config.seed}), against the'
    ' verifier alone. All methods have the same gamma.',
    tables,
    empty_text='There are too few examples, or no verifier alone, to choose a'
    ' lenience.',
  )


def significance(context: SectionContext) -> Section:
  """Builds the section of McNemar's tests against the verifier alone."""
  table = calibration.significance(
    context.points, context.calibrated, context.config
  )
  columns = [
    *context.columns(EXAMPLES),
    Column('only_verifier', 'Only verifier right', count, 'method wrong'),
    Column('only_method', 'Only method right', count, 'verifier wrong'),
    Column('p', 'p-value', p_value, "McNemar's exact test"),
    Column('p_holm', 'Corrected p-value', p_value, 'by Holm, for each task'),
  ]
  return Section(
    'Tests for a loss of right answers',
    "McNemar's exact test compares each method with the verifier alone, at the"
    ' lenience that was chosen for quality, on the half of the examples on'
    " which it was not chosen. P-values are corrected by Holm's method for the"
    ' number of methods. A large p-value does not prove that no quality is'
    ' lost; see the intervals of the quality difference.',
    [Table('mcnemar', 'Right and wrong answers', table, columns)],
    empty_text='No task has right or wrong answers on both halves.',
  )
