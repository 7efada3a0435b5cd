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
from collections.abc import Callable
from typing import Any

from cascades.models import conversations, tokenizers

# Placeholder of a message, which is put into the frame unchanged: `dialog`
# would replace tags in it.
_MESSAGE = '\0'


@dataclasses.dataclass(frozen=True)
class Template:
  """The frame of messages for the models of a tokenizer.

  Attributes:
    write: Returns the texts around the messages of (roles, is_later): one more
      than there are roles. A later text follows an answer without an
      end-of-turn token.
    close: The beginning of a later text that ends the answer.
    end_token: The id of the end-of-turn token.
    tags: Texts in the frame that are one token each, with their ids.
  """

  write: Callable[[tuple[str, ...], bool], tuple[str, ...]]
  close: str
  end_token: int
  tags: tuple[tuple[str, int], ...]

  def format_turn(
    self, prompt: conversations.Prompt, last_token: int | None = None
  ) -> str:
    """Returns the text of a turn, up to the beginning of the answer.

    Args:
      prompt: The user's message, or several messages.
      last_token: The last token of the text before; None for a first turn.
    """
    parts = self._parts(prompt, last_token)
    return ''.join(text for text, _ in parts)

  def encode(
    self,
    tokenizer: tokenizers.Tokenizer,
    prompt: conversations.Prompt,
    last_token: int | None = None,
  ) -> list[int]:
    """Encodes a turn; only the frame has control tokens.

    Args:
      tokenizer: The tokenizer that the template was made for.
      prompt: The user's message, or several messages.
      last_token: The last token of the text before. None starts a sequence,
        with beginning-of-sequence.
    """
    parts: list[str | int] = []
    for text, is_message in self._parts(prompt, last_token):
      parts += [text] if is_message else self._split_tags(text)
    return tokenizer.encode_framed(parts, add_bos=last_token is None)

  def _parts(
    self, prompt: conversations.Prompt, last_token: int | None
  ) -> list[tuple[str, bool]]:
    """Returns texts of the frame and messages, with True for a message.

    Raises:
      ValueError: The messages are in an order that the frame does not have.
    """
    messages = conversations.as_conversation(prompt)
    roles = tuple(message.role for message in messages)
    turns = roles[1:] if roles[0] == 'system' else roles
    if turns != tuple('user assistant'.split() * len(turns))[: len(turns)]:
      raise ValueError(
        'messages: must be those of the user and the assistant in turns, after'
        f' at most one of the system, got {", ".join(roles)}.'
      )
    frames = [*self.write(roles, last_token is not None)]
    if last_token == self.end_token:
      frames[0] = frames[0].removeprefix(self.close)
    contents = [*(message.content for message in messages), '']
    return [
      part
      for frame, content in zip(frames, contents, strict=True)
      for part in ((frame, False), (content, True))
    ]

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

  names = dialog.Tags.TURN.open, dialog.Tags.TURN.close
  for tags in dialog.Format:
    start, close = (tags.from_gemma4(name) for name in names)
    end = tokenizer.token_id(close)
    if end is not None:
      ids = (start, tokenizer.token_id(start)), (close, end)
      return Template(
        write=functools.partial(_write_frame, tags),
        close=close,
        end_token=end,
        tags=tuple((tag, i) for tag, i in ids if i is not None),
      )
  return None


@functools.lru_cache(maxsize=1024)
def _write_frame(
  tags: Any, roles: tuple[str, ...], is_later: bool
) -> tuple[str, ...]:
  """Returns the texts around messages; see `Template.write`."""
  import dialog

  message_types = dict(
    system=dialog.System, user=dialog.User, assistant=dialog.Model
  )
  # An answer that has begun before is only closed.
  before = [dialog.Model()] if is_later else []
  messages = [message_types[role](_MESSAGE) for role in roles]
  text = dialog.Conversation(*before, *messages).as_text(format=tags)
  return tuple(str(text).split(_MESSAGE))


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
