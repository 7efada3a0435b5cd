"""Training of SentencePiece tokenizers."""

import io
from collections.abc import Iterable, Sequence

import sentencepiece

from cascades.models import tokenizers


def train(
  texts: Iterable[str], vocab_size: int, symbols: Sequence[str] = ()
) -> tokenizers.Tokenizer:
  """Trains a byte-pair tokenizer with Gemma's conventions.

  Digits are single tokens, unknown characters fall back to bytes, spaces are
  preserved, and there is no dummy prefix.
  """
  out = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts),
    model_writer=out,
    vocab_size=vocab_size,
    model_type='bpe',
    byte_fallback=True,
    split_digits=True,
    **tokenizers.IDS,
    normalization_rule_name='identity',
    add_dummy_prefix=False,
    remove_extra_whitespaces=False,
    user_defined_symbols=['\n', *symbols],
    num_threads=1,
    minloglevel=2,
  )
  return tokenizers.Tokenizer(out.getvalue())
