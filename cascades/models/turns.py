"""Turns of a conversation, as instruction-tuned models were taught them.

Gemma 2 and 3 put a user's words as

  <start_of_turn>user
  What is 2 + 2?<end_of_turn>
  <start_of_turn>model

and Gemma 4 the same with tokens of its own. Which of them a model was taught is
told by its tokenizer, in which those of turns are pieces. The frames and their
tokens are those of `dialog`, which gemma's own chat sampler writes with; its
frame of a later turn is gemma's too, but here also closes an answer that was
cut off.

A user's words stay words: `Template.encode` encodes them apart from the tokens
of the frame, and a tag that a user types, such as `<end_of_turn>`, becomes
ordinary pieces. A prompt without a frame (`chat=False`) is encoded as it is;
tags that it spells are control tokens.
"""

import dataclasses
import functools
import re

from cascades.models import tokenizers

# Stands for the user's words, which are put into the frame as they are:
# `dialog` would replace what looks like a tag.
_WORDS = '\0'


@dataclasses.dataclass(frozen=True)
class Template:
  """How a tokenizer's models were taught turns.

  Attributes:
    first: The text of a first turn, with {} where the user's words go.
    then: The text of a turn after an answer that did not end.
    close: What `then` begins with: the end of an answer.
    end_token: The token that ends a turn.
    tags: Texts of the frame that are a token each, with that token.
  """

  first: tuple[str, str]
  then: tuple[str, str]
  close: str
  end_token: int
  tags: tuple[tuple[str, int], ...]

  def format_turn(self, words: str, last: int | None = None) -> str:
    """What the model has to read before it answers.

    Args:
      words: The user's.
      last: The token that the text before ends with; None if there is none.
    """
    return words.join(self._frame(last))

  def encode(
    self,
    tokenizer: tokenizers.Tokenizer,
    words: str,
    last: int | None = None,
  ) -> list[int]:
    """Encodes a turn; only the frame has control tokens.

    Args:
      tokenizer: The one that the template was made for.
      words: The user's.
      last: The token that the text before ends with. None starts a sequence,
        with beginning-of-sequence.
    """
    before, after = (self._split(text) for text in self._frame(last))
    return tokenizer.encode_framed(
      [*before, words, *after], add_bos=last is None
    )

  def _frame(self, last: int | None) -> tuple[str, str]:
    """The texts before and after the words."""
    before, after = self.first if last is None else self.then
    if last == self.end_token:
      before = before.removeprefix(self.close)
    return before, after

  def _split(self, text: str) -> list[str | int]:
    """A text of the frame, with tokens in place of its tags."""
    ids = dict(self.tags)
    pattern = '|'.join(re.escape(tag) for tag in ids)
    return [ids.get(part, part) for part in re.split(f'({pattern})', text)]


@functools.cache
def find_template(tokenizer: tokenizers.Tokenizer) -> Template | None:
  """The template of a tokenizer's models; None if it has no tokens of turns."""
  # It comes with gemma, and takes seconds.
  import dialog

  user = dialog.User(_WORDS)
  for tags in dialog.Format:
    names = dialog.Tags.TURN.open, dialog.Tags.TURN.close
    start, close = (tags.from_gemma4(name) for name in names)
    end = tokenizer.token_id(close)
    if end is not None:
      first = dialog.Conversation(user).as_text(format=tags)
      # A turn of the model's that has begun before is only closed.
      then = dialog.Conversation(dialog.Model(), user).as_text(format=tags)
      split = [tuple(str(text).split(_WORDS)) for text in (first, then)]
      ids = (start, tokenizer.token_id(start)), (close, end)
      known = tuple((tag, i) for tag, i in ids if i is not None)
      return Template(*split, close=close, end_token=end, tags=known)
  return None


def with_turn_end(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
  """The tokenizer of a model that was taught turns, if it has their tokens."""
  found = find_template(tokenizer)
  return tokenizer.with_stops(found.end_token) if found else tokenizer


def require_template(tokenizer: tokenizers.Tokenizer) -> Template:
  """As `find_template`, for those who cannot do without.

  Raises:
    ValueError: The tokenizer has no tokens of turns.
  """
  found = find_template(tokenizer)
  if found is None:
    raise ValueError(
      'chat: the tokenizer has no tokens of turns; give an instruction-tuned'
      ' model, or leave out chat.'
    )
  return found
