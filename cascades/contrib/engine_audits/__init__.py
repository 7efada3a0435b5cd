"""Audits of other engines: tests that a verification emits a declared law.

  engines    audits a function that verifies blocks
  traces     audits recorded blocks of an engine
  branching  enumerates all random draws of a function

The command is `python -m experiments.audit`, with --function or --trace.
"""
