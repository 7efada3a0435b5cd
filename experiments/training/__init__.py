"""Training of drafters on a laptop, on the answers of their verifier.

layer_drafters      Drafters made of some of the verifier's layers.
recurrent_heads     Recurrent heads.
distillation_data   Texts, answers, and the verifier's states at their tokens.
training_loop       Checkpoints and log of every training, and its card.
tokenizer_training  SentencePiece tokenizers.
"""
