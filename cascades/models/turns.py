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
"""

import dataclasses
import functools

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
    end: The token that ends a turn.
  """

  first: tuple[str, str]
  then: tuple[str, str]
  close: str
  end: int

  def turn(self, words: str, last: int | None = None) -> str:
    """What the model has to read before it answers.

    Args:
      words: The user's.
      last: The token that the text before ends with; None if there is none.
    """
    before, after = self.first if last is None else self.then
    if last == self.end:
      before = before.removeprefix(self.close)
    return before + words + after


@functools.cache
def find(tokenizer: tokenizers.Tokenizer) -> Template | None:
  """The template of a tokenizer's models; None if it has no tokens of turns."""
  # It comes with gemma, and takes seconds.
  import dialog

  user = dialog.User(_WORDS)
  for tags in dialog.Format:
    close = tags.from_gemma4(dialog.Tags.TURN.close)
    end = tokenizer.id_of(close)
    if end is not None:
      first = dialog.Conversation(user).as_text(format=tags)
      # A turn of the model's that has begun before is only closed.
      then = dialog.Conversation(dialog.Model(), user).as_text(format=tags)
      split = [tuple(str(text).split(_WORDS)) for text in (first, then)]
      return Template(*split, close=close, end=end)
  return None


def template(tokenizer: tokenizers.Tokenizer) -> Template:
  """As `find`, for those who cannot do without.

  Raises:
    ValueError: The tokenizer has no tokens of turns.
  """
  found = find(tokenizer)
  if found is None:
    raise ValueError(
      'chat: the tokenizer has no tokens of turns; give an instruction-tuned'
      ' model, or leave out chat.'
    )
  return found
