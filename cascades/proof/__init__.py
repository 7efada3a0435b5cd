"""Proofs that a method emits the law that it declares.

  table_models         Small language models whose laws are known.
  separation           Distributions that no proof can mistake for each other.
  float64              Float64 within a `with` statement.
  trial_distributions  Distributions of several kinds to test a method on.
  tabulated            Methods evaluated in every context, as tables.
  block_starts         Start of a block, and blocks as enumeration yields them.
  tree_enumeration     Blocks of several drafts, enumerated.
  enumeration          Laws by enumeration of every block that can be emitted.
  sampled              Laws by sampling from the compiled loop.
  exact                All of the above under one name, for tests and audits.
  law_checks           Equation (L) on distributions of every kind.
  sampled_checks       Samples of the loop against the declared law.
  audit                Audit of any method: a verdict, a curve and examples.

Audits of other engines are in `cascades.contrib.engine_audits`.
"""
