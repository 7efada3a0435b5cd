"""Audits of other engines: whether somebody's verification keeps a law.

  engines    of a function that verifies blocks
  traces     of what an engine wrote down of its blocks
  branching  every way that a function's random numbers can fall

The command is `python -m experiments.audit`, with --function or --trace.
"""
