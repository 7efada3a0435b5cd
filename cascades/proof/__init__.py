"""Proofs that a method emits the law that it declares.

  table_models  Small language models whose laws are known, and methods in them.
  enumeration   Laws by enumeration of every block that can be emitted.
  law_checks    Equation (L) on distributions of every kind.
  sampled       Samples of the loop against the declared law.
  audit         Audit of any method: a verdict, and counterexamples.

Audits of other engines are in `cascades.contrib.engine_audits`.
"""
