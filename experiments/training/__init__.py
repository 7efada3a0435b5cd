"""Models and heads trained here, for the bundled ones and for a laptop.

small_models  Language models on generated problems; `pieces`, their tokenizers.
distillation  Recurrent heads on what their verifier says.
texts         What a user gives to learn from, in rows.
lessons       What a verifier says of them.
judging       How much of a drafter's drafts a verifier keeps; tables of cards.
descent       The loop of all: optimizer, checkpoints and a log.
terms         What goes with whatever is made of a model that has terms.
drafting      Drafters of some of the verifier's own layers; `reduced_folders`.
rules         Deferral rules, of what sweeps of a pair wrote.
"""
