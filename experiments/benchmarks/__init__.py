"""Benchmarks of decoding: entrants take turns in one process.

A suite is a module with

  parts(config)    Checks what its config names, then yields the parts that are
                   measured together: fields that identify the figures of a
                   part, and a function that returns the figures, dicts that
                   JSON can hold.
  table(figures)   Returns the rows of a table of the figures.
"""
