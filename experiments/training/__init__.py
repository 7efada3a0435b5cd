"""Models and heads trained here, for the bundled ones and for a laptop.

small_models  Language models on generated problems.
distillation  Recurrent heads on what their verifier says.
texts         What a drafter learns from.
drafting      Drafters of some of the verifier's own layers.
"""
