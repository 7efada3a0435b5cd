"""Parts that stand beside the library, which imports none statically.

cpu                 the engine of CPUs, and eight bits
engine_audits       audits of other engines, by their functions or traces
lm_eval             the adapter for that harness
"""
