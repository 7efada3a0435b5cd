"""Chat templates: turns of a conversation, for instruction-tuned models.

Gemma 2 and 3 frame a user's message as

  <start_of_turn>user
  What is 2 + 2?<end_of_turn>
  <start_of_turn>model

and Gemma 4 with tokens of its own. A model's frame is the one whose tokens its
tokenizer has. Frames and tokens are those of `dialog`, which gemma's own chat
sampler uses; the frame of a later turn also closes an answer that was cut off.

A message stays text: `Template.encode` encodes it apart from the tokens of the
frame, and a tag in the message, such as `<end_of_turn>`, becomes ordinary
pieces. A prompt without a frame (`chat=False`) is encoded as it is, and tags
in it become control tokens.
"""

import dataclasses
import functools
import re

from cascades.models import tokenizers

# Placeholder of the message, which is put into the frame unchanged: `dialog`
# would replace tags in it.
_MESSAGE = '\0'


@dataclasses.dataclass(frozen=True)
class Template:
  """The frame of a user's message for the models of a tokenizer.

  Attributes:
    first_turn: Texts before and after the message of a first turn.
    later_turn: The same after an answer without an end-of-turn token.
    close: The beginning of `later_turn` that ends the answer.
    end_token: The id of the end-of-turn token.
    tags: Texts in the frame that are one token each, with their ids.
  """

  first_turn: tuple[str, str]
  later_turn: tuple[str, str]
  close: str
  end_token: int
  tags: tuple[tuple[str, int], ...]

  def format_turn(self, message: str, last_token: int | None = None) -> str:
    """Returns the text of a turn, up to the beginning of the answer.

    Args:
      message: The user's message.
      last_token: The last token of the text before; None for a first turn.
    """
    return message.join(self._frame(last_token))

  def encode(
    self,
    tokenizer: tokenizers.Tokenizer,
    message: str,
    last_token: int | None = None,
  ) -> list[int]:
    """Encodes a turn; only the frame has control tokens.

    Args:
      tokenizer: The tokenizer that the template was made for.
      message: The user's message.
      last_token: The last token of the text before. None starts a sequence,
        with beginning-of-sequence.
    """
    before, after = (self._split_tags(x) for x in self._frame(last_token))
    return tokenizer.encode_framed(
      [*before, message, *after], add_bos=last_token is None
    )

  def _frame(self, last_token: int | None) -> tuple[str, str]:
    """Returns the texts before and after the message."""
    is_first = last_token is None
    before, after = self.first_turn if is_first else self.later_turn
    if last_token == self.end_token:
      before = before.removeprefix(self.close)
    return before, after

  def _split_tags(self, text: str) -> list[str | int]:
    """Splits a text of the frame into texts and ids of its tags."""
    ids = dict(self.tags)
    pattern = '|'.join(re.escape(tag) for tag in ids)
    return [ids.get(part, part) for part in re.split(f'({pattern})', text)]


@functools.cache
def find_template(tokenizer: tokenizers.Tokenizer) -> Template | None:
  """Returns a tokenizer's template; None if it has no tokens for turns."""
  # Comes with gemma; the import takes seconds.
  import dialog

  user = dialog.User(_MESSAGE)
  for tags in dialog.Format:
    names = dialog.Tags.TURN.open, dialog.Tags.TURN.close
    start, close = (tags.from_gemma4(name) for name in names)
    end = tokenizer.token_id(close)
    if end is not None:
      first = dialog.Conversation(user).as_text(format=tags)
      # An answer that has begun before is only closed.
      later = dialog.Conversation(dialog.Model(), user).as_text(format=tags)
      ids = (start, tokenizer.token_id(start)), (close, end)
      return Template(
        first_turn=_split_message(first),
        later_turn=_split_message(later),
        close=close,
        end_token=end,
        tags=tuple((tag, i) for tag, i in ids if i is not None),
      )
  return None


def _split_message(text: object) -> tuple[str, str]:
  """Returns the texts before and after the placeholder of the message."""
  before, after = str(text).split(_MESSAGE)
  return before, after


def with_turn_end(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
  """Returns the tokenizer with answers that end at its end-of-turn token."""
  template = find_template(tokenizer)
  return tokenizer.with_stops(template.end_token) if template else tokenizer


def require_template(tokenizer: tokenizers.Tokenizer) -> Template:
  """Returns a tokenizer's template.

  Raises:
    ValueError: The tokenizer has no tokens for turns.
  """
  template = find_template(tokenizer)
  if template is None:
    raise ValueError(
      'chat: is not supported by a tokenizer without tokens for turns; give an'
      ' instruction-tuned model, or leave out chat.'
    )
  return template
