"""Chat templates: turns of a conversation, for instruction-tuned models.

Gemma 2 and 3 frame a user's message as

  <start_of_turn>user
  What is 2 + 2?<end_of_turn>
  <start_of_turn>model

and Gemma 4 with tokens of its own. A model's frame is the one whose tokens its
tokenizer has. Frames and tokens are those of `dialog`, which gemma's own chat
sampler uses; the frame of a later turn also closes an answer that was cut off.
Gemma 2 and 3 have no turn of a system: its message begins the user's message.
A template that comes with the model (`chat_templates`) takes precedence.

A message stays text: `ChatTemplate.encode` encodes it apart from the tokens of
the frame, and a tag in the message, such as `<end_of_turn>`, becomes ordinary
pieces. A prompt without a frame (`chat=False`) is encoded as it is, and tags
in it become control tokens.
"""

import dataclasses
import functools
import logging
import re
from collections.abc import Callable
from typing import Any

from cascades.models import chat_templates, conversations, tokenizers

_LOGGER = logging.getLogger(__name__)
# Placeholder of a message, which is put into the frame unchanged: `dialog`
# would replace tags in it.
_MESSAGE = '\0'


@dataclasses.dataclass(frozen=True)
class Template(chat_templates.ChatTemplate):
  """The built-in frame of a Gemma family, as in gemma's own chats.

  Attributes:
    write: Called as write(roles, is_later); returns the texts before, between
      and after the messages of these roles. With `is_later`, the first text
      also ends an answer that has no end-of-turn token.
    close: The part of that first text that ends the answer.
    end_token: The id of the end-of-turn token.
    tags: See `ChatTemplate`.
    has_system_turn: True if a message of a system has a turn.
  """

  write: Callable[[tuple[str, ...], bool], tuple[str, ...]]
  close: str
  end_token: int
  tags: tuple[tuple[str, int], ...]
  has_system_turn: bool

  def split(
    self, prompt: conversations.Prompt, last_token: int | None = None
  ) -> list[str | int]:
    """Returns a turn as texts and ids; see `ChatTemplate.split`."""
    parts: list[str | int] = [] if last_token is not None else [tokenizers.BOS]
    for text, is_message in self._parts(prompt, last_token):
      parts += [text] if is_message else self._split_tags(text)
    return parts

  def _parts(
    self, prompt: conversations.Prompt, last_token: int | None
  ) -> list[tuple[str, bool]]:
    """Returns texts of the frame and messages, with True for a message."""
    messages = conversations.as_conversation(prompt)
    roles = tuple(message.role for message in messages)
    turns = roles[1:] if roles[0] == 'system' else roles
    if turns != tuple('user assistant'.split() * len(turns))[: len(turns)]:
      raise ValueError(
        'messages: must alternate between user and assistant, after at most'
        f' one of the system, got {", ".join(roles)}.'
      )
    contents = [*(message.content for message in messages), '']
    if roles[0] == 'system' and not self.has_system_turn:
      roles, contents[:2] = turns, ['\n\n'.join(contents[:2])]
    frames = [*self.write(roles, last_token is not None)]
    if last_token == self.end_token:
      frames[0] = frames[0].removeprefix(self.close)
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


def find_template(
  tokenizer: tokenizers.Tokenizer,
) -> chat_templates.ChatTemplate | None:
  """Returns the template that came with a model, else the built-in frame."""
  if tokenizer.chat_template is None:
    return _builtin_template(tokenizer)
  return _folder_template(tokenizer, tokenizer.chat_template)


# Called with the source too: equal tokenizers may have several templates.
_folder_template = functools.lru_cache(maxsize=8)(chat_templates.FolderTemplate)


@functools.cache
def _builtin_template(tokenizer: tokenizers.Tokenizer) -> Template | None:
  """Returns the frame whose tokens a tokenizer has."""
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
        has_system_turn=tags is dialog.Format.GEMMA4,
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
  template = _builtin_template(tokenizer)
  return tokenizer.with_stops(template.end_token) if template else tokenizer


def require_template(
  tokenizer: tokenizers.Tokenizer,
) -> chat_templates.ChatTemplate:
  """Returns a tokenizer's template."""
  template = find_template(tokenizer)
  if template is None:
    raise ValueError(
      'chat: apply_chat_template is not supported by a tokenizer without tokens'
      ' for turns; give an instruction-tuned model, or leave out the option.'
    )
  is_builtin = tokenizer.chat_template is None
  if is_builtin and template.end_token not in tokenizer.stops:
    _warn_once(tokenizer)
  return template


@functools.cache
def _warn_once(tokenizer: tokenizers.Tokenizer) -> None:
  """Warns of a model that may be pretrained only."""
  del tokenizer
  _LOGGER.warning(
    'chat: no chat template came with the model, and its end-of-turn token does'
    ' not end its answers; if it is pretrained and not instruction-tuned, its'
    ' answers to messages may be poor.'
  )
