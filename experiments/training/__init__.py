"""Models and heads trained here, for the bundled ones and for a laptop.

training      Language models on generated problems.
distillation  Recurrent heads on what their verifier says.
"""
