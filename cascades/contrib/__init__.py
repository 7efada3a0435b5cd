"""Further entries of registries, imported when their names are first used.

  look_ahead          verification that judges a draft by the drafts after it
  engine_audits       audits of other engines, by their functions or traces
  lm_eval             the adapter for that harness

`cascades.registries` has their names.
"""
