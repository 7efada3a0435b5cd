"""Parts that stand beside the library, which never imports them.

engine_audits       audits of other engines, by their functions or traces
lm_eval             the adapter for that harness
"""
