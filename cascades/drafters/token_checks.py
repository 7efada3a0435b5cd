"""Checks that a verifier, a drafter and a tokenizer have the same tokens."""

from cascades.models import checkpoints, tokenizers


def check_pair(
  verifier: checkpoints.Checkpoint, drafter: checkpoints.Checkpoint
) -> None:
  """Refuses two models that do not share a vocabulary."""
  pair = drafter.tokenizer, verifier.tokenizer
  token = tokenizers.first_difference(verifier.tokenizer, drafter.tokenizer)
  if token is not None:
    drafter_piece, verifier_piece = (
      repr(x.piece(token)) if token < x.vocab_size else 'nothing' for x in pair
    )
    raise ValueError(
      f'drafter: its tokenizer ({drafter.tokenizer.vocab_size} pieces) must be'
      f" the verifier's ({verifier.tokenizer.vocab_size} pieces), but token"
      f' {token} is {drafter_piece} for the drafter and {verifier_piece} for'
      ' the verifier; take two models of one family.'
    )
  drafter_size, verifier_size = (
    x.model.vocab_size for x in (drafter, verifier)
  )
  if drafter_size != verifier_size:
    raise ValueError(
      f'drafter: must have as many logits as the verifier, got {drafter_size}'
      f' and {verifier_size}, though both have'
      f' {verifier.tokenizer.vocab_size} tokens; load both with load_model,'
      ' which leaves out the padding of a table.'
    )


def check_tokenizer(
  verifier: checkpoints.Checkpoint, tokenizer: tokenizers.Tokenizer | None
) -> None:
  """Refuses a tokenizer that does not have one piece for each logit."""
  size = verifier.model.vocab_size
  if tokenizer is not None and tokenizer.vocab_size != size:
    raise ValueError(
      f'tokenizer: must have a piece for each of the {size} logits of the'
      f" verifier, got {tokenizer.vocab_size} pieces; give the verifier's own"
      ' tokenizer.'
    )
