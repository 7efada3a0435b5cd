"""Training of models, drafters and heads on a laptop.

small_models        Language models on generated problems.
tokenizer_training  The tokenizers of these models.
recurrent_heads     Recurrent heads, distilled from a verifier.
layer_drafters      Drafters made of some of the verifier's layers.
texts               Training texts of a user, packed into rows.
distillation_data   Hidden states of a verifier on such texts; acceptance.
training_loop       Optimizer, checkpoints and log of every training.
cards               Model cards, and licences of derived models.
"""
