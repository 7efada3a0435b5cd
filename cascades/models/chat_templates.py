"""Chat templates: their interface, and Jinja templates that models bring.

A model's template is rendered in the sandbox of `untrusted.templates`, as
transformers renders it. It may trim, split and compare messages, so that a
message cannot be put into its place afterwards. Instead, the template is
rendered twice: as it is, which gives the text, and with every character of a
message replaced by a character that occurs nowhere. A control token in the
second result belongs to the template's own text. Both results are equal once
the characters are put back; a template that tells them apart is refused.
"""

import abc
import datetime
import pathlib
from collections.abc import Iterable
from typing import Any

from cascades import arguments
from cascades.models import tokenizers
from cascades.models.conversations import Message, Prompt, as_conversation
from cascades.untrusted import bounded, templates
from cascades.untrusted.schema import Schema
from cascades.untrusted.templates import Mask

OPTION = 'chat_template'
# Files of a template, in the order in which transformers looks for them.
FILE = 'chat_template.jinja'
_FILES = 'tokenizer_config.json', 'chat_template.json'


class _Named(Schema):
  """One of several named templates in a file."""

  name: str
  template: str


class _Fields(Schema):
  """The only field that is read from a JSON file with chat templates."""

  chat_template: str | list[_Named] | None = None


def read(folder: pathlib.Path) -> str | None:
  """Returns the chat template of a folder; None if it has none.

  Of several templates with names, the one of the name 'default' is taken.
  """
  advice = 'fetch it again'
  try:
    return bounded.read_bytes(folder / FILE, OPTION, advice).decode()
  except FileNotFoundError:
    pass
  except UnicodeDecodeError:
    raise ValueError(
      f'{OPTION}: {folder / FILE} is not UTF-8 text; {advice}.'
    ) from None
  for name in _FILES:
    try:
      content = bounded.read_fields(folder / name, OPTION, advice)
    except FileNotFoundError:
      continue
    location = f'{OPTION}: {folder / name}'
    template = _Fields.check(content, location, advice).chat_template
    if isinstance(template, list):
      named = {entry.name: entry.template for entry in template}
      if 'default' not in named:
        raise ValueError(
          f'{location} has the templates {arguments.quote([*named])}, none'
          f' named default; put the template to use into {FILE}.'
        )
      template = named['default']
    if template is not None:
      return template
  return None


class ChatTemplate(abc.ABC):
  """Frames messages for the models of a tokenizer."""

  end_token: int | None
  tags: tuple[tuple[str, int], ...]

  @abc.abstractmethod
  def split(
    self, prompt: Prompt, last_token: int | None = None
  ) -> list[str | int]:
    """Returns a turn as texts, and as ids of control tokens of its frame."""

  def format_turn(self, prompt: Prompt, last_token: int | None = None) -> str:
    """Returns the text of a turn, up to the beginning of the answer."""
    texts = {i: tag for tag, i in self.tags}
    return ''.join(
      part if isinstance(part, str) else texts.get(part, '')
      for part in self.split(prompt, last_token)
    )

  def encode(
    self,
    tokenizer: tokenizers.Tokenizer,
    prompt: Prompt,
    last_token: int | None = None,
    allow_control_tokens: bool = False,
    answer: str = '',
  ) -> list[int]:
    """Encodes a turn."""
    parts = [*self.split(prompt, last_token), answer]
    if allow_control_tokens:
      parts = [
        piece
        for part in parts
        for piece in (
          tokenizer.split_control_tokens(part)
          if isinstance(part, str)
          else [part]
        )
      ]
    add_bos = parts[:1] == [tokenizers.BOS]
    return tokenizer.encode_framed(parts[add_bos:], add_bos=add_bos)


class FolderTemplate(ChatTemplate):
  """The template that came with a model."""

  def __init__(self, tokenizer: tokenizers.Tokenizer, source: str):
    self._tokenizer = tokenizer
    self._template = templates.Template(source, OPTION)
    self._variables = tokenizer.special_tokens()
    controls = tokenizer.control_tokens()
    self._texts = source, *controls
    # Control tokens proper, such as end-of-sequence, are decoded to no text.
    self.tags = tuple(
      (tag, i) for tag, i in controls.items() if tokenizer.decode([i])
    )
    self.end_token = self._find_end()

  def split(
    self, prompt: Prompt, last_token: int | None = None
  ) -> list[str | int]:
    """Returns a turn as texts and ids; see `ChatTemplate.split`."""
    messages, is_later = as_conversation(prompt), last_token is not None
    mask = self._make_mask(messages)
    history = [*messages]
    if is_later:
      history[:0] = Message('user', 'a'), Message('assistant', mask.mark)
    if messages.is_continued:
      role, content = history.pop()
      # The space shows whether the template keeps the end of a message.
      history.append(Message(role, f'{content}{mask.mark} '))
    text = self._render(history, mask, not messages.is_continued)
    if text.count(mask.mark) != is_later + messages.is_continued:
      raise ValueError(
        f'{OPTION}: must render each answer once, so that answers can be'
        ' continued; remove the template from the folder.'
      )
    if is_later:
      text = text.partition(mask.mark)[2]
    if messages.is_continued:
      text, _, rest = text.partition(mask.mark)
      text = text if rest.startswith(' ') else text.rstrip()
    if last_token == self.end_token:
      parts = self._split_masked(text.lstrip(), mask)
      if parts[:1] == [last_token]:
        return parts[1:]
    return self._split_masked(text, mask)

  def _make_mask(self, messages: Iterable[Message]) -> Mask:
    """Returns the mask of messages."""
    contents = (message.content for message in messages)
    return Mask([*self._texts, *contents])

  def _render(
    self, messages: list[Message], mask: Mask, add_generation_prompt: bool
  ) -> str:
    """Renders messages, whose contents are masked in the result."""
    # Both results have the same time.
    now = datetime.datetime.now()
    variables: dict[str, Any] = self._variables | dict(
      add_generation_prompt=add_generation_prompt,
      tools=None,
      documents=None,
      strftime_now=lambda format: now.strftime(format),
    )

    def render(mask: Mask | None) -> str:
      variables['messages'] = [
        dict(role=role, content=mask.mask(content) if mask else content)
        for role, content in messages
      ]
      return self._template.render(variables, mask)

    try:
      text = render(None)
      masked = render(mask)
    except templates.RefusedError as error:
      raise ValueError(
        f"messages: the model's chat template refuses them ({error}); change"
        ' them.'
      ) from None
    if mask.unmask(masked) != text:
      raise ValueError(
        f'{OPTION}: computes with these messages so that they cannot be kept'
        ' apart from its control tokens; give another template.'
      )
    return masked

  def _split_masked(self, text: str, mask: Mask) -> list[str | int]:
    """Splits a text by the control tokens of its frame, and unmasks it."""
    parts = self._tokenizer.split_control_tokens(text)
    return [mask.unmask(x) if isinstance(x, str) else x for x in parts]

  def _find_end(self) -> int | None:
    """Returns the token that the template writes after an answer, if any."""
    mask = self._make_mask([])
    messages = [Message('user', 'a'), Message('assistant', mask.mark)]
    try:
      text = self._render(messages, mask, False)
    except ValueError:
      # `split` raises the error as soon as a message is rendered.
      return None
    parts = self._split_masked(text.partition(mask.mark)[2].lstrip(), mask)
    first = next(iter(parts), None)
    return first if isinstance(first, int) else None
