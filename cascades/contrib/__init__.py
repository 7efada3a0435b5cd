"""Plug-ins of the registries, which the core never imports.

  look_ahead          verification that judges a draft by the drafts after it
  engine_audits       audits of other engines, by their functions or traces
  lm_eval             the adapter for that harness

Entry points declare them, as those of another package (see
`cascades.registries`).
"""
