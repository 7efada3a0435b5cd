"""Chat templates: Jinja templates that frame messages for a model.

A template renders in Jinja's sandbox, as in transformers, without access to
files; it may take long and much memory. It may trim, split and compare
messages, so that a message cannot be put into its place afterwards. Instead,
it renders twice: the messages as they are, which gives the text, and with the
characters of control tokens in messages replaced by characters that occur
nowhere. A control token in the second result belongs to the template, and both
results are equal once the characters are put back. Where they are not, the
template computes with a message: its control tokens that the template spells
are left as they are, if this adds none to the result; otherwise the messages
are refused.
"""

import datetime
import functools
import itertools
import json
import pathlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from cascades.models import tokenizers
from cascades.models.conversations import Message, Prompt, as_conversation
from cascades.untrusted import bounded, display
from cascades.untrusted.schema import Schema

OPTION = 'chat_template'
# Files of a template, in the order in which transformers looks for them.
FILE = 'chat_template.jinja'
_FILES = 'tokenizer_config.json', 'chat_template.json'
# Characters of a template and of its result; Gemma 4's has 12,000.
MAX_CHARS = 2**20
# Characters of a reason that an error shows.
_MAX_REASON = 300
# Private characters of Unicode, which replace those of messages.
_PRIVATE = range(0xF0000, 0x10FFFE)


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
  file = folder / FILE
  try:
    return bounded.read_bytes(file, OPTION, 'fetch it again').decode()
  except FileNotFoundError:
    pass
  except UnicodeDecodeError:
    raise ValueError(
      f'{OPTION}: {file} is not UTF-8 text; fetch it again.'
    ) from None
  for file in map(folder.joinpath, _FILES):
    if not file.exists():
      continue
    content = bounded.read_fields(file, OPTION)
    template = _Fields.check(content, f'{OPTION}: {file}').chat_template
    if isinstance(template, list):
      named = {x.name: x.template for x in template}
      if 'default' not in named:
        raise ValueError(
          f'{OPTION}: {file} has the templates {sorted(named)}, none named'
          f' default; write the one to use into {FILE}.'
        )
      template = named['default']
    if template is not None:
      return template
  return None


class ChatTemplate:
  """Frames messages for the models of a tokenizer.

  Attributes:
    end_token: The token that the template writes after an answer, if any.
  """

  def __init__(
    self,
    tokenizer: tokenizers.Tokenizer,
    source: str,
    tags: Collection[str] = (),
  ):
    """Compiles a template; tags are tokens of its turns, of any kind."""
    pieces = *tags, *([tokenizer.piece(tokenizers.BOS)] if tags else [])
    ids = {x: tokenizer.token_id(x) for x in pieces}
    self._ids = tokenizer.control_tokens() | {
      x: i for x, i in ids.items() if i is not None
    }
    # The longest of several tokens that begin alike.
    longest_first = sorted(self._ids, key=len, reverse=True)
    self._pattern = re.compile(f'({"|".join(map(re.escape, longest_first))})')
    # Control tokens proper, such as end-of-sequence, are decoded to no text.
    self._texts = {
      i: text
      for text, i in self._ids.items()
      if text in tags or tokenizer.decode([i])
    }
    self._special_tokens = tokenizer.special_tokens()
    self._masked = sorted(x for x in set().union(*self._ids) if not x.isspace())
    self._used = {*source, *self._masked}
    self._unused = {text for text in self._ids if text not in source}
    self._template = _compile(source)
    self.end_token = self._find_end()

  def split(
    self, prompt: Prompt, last_token: int | None = None
  ) -> list[str | int]:
    """Returns a turn as texts, and as ids of control tokens of its frame."""
    messages, is_later = as_conversation(prompt), last_token is not None
    mark, mask, unmask = self._make_masks(messages)
    history = [*messages]
    if is_later:
      history[:0] = Message('user', 'a'), Message('assistant', mark)
    if messages.is_continued:
      role, content = history.pop()
      # The space shows whether the template keeps the end of a message.
      history.append(Message(role, f'{content}{mark} '))
    text = self._render(history, mask, unmask, not messages.is_continued)
    if text.count(mark) != is_later + messages.is_continued:
      raise ValueError(
        f'{OPTION}: must render each answer once, so that answers can be'
        ' continued; remove the template from the folder.'
      )
    if is_later:
      text = text.partition(mark)[2]
    if messages.is_continued:
      text, _, rest = text.partition(mark)
      text = text if rest.startswith(' ') else text.rstrip()
    parts = self._split(text)
    if last_token is not None and last_token == self.end_token:
      after_end = self._split(text.lstrip())
      parts = after_end[1:] if after_end[:1] == [last_token] else parts
    return [x.translate(unmask) if isinstance(x, str) else x for x in parts]

  def format_turn(self, prompt: Prompt, last_token: int | None = None) -> str:
    """Returns the text of a turn, up to the beginning of the answer."""
    return ''.join(
      part if isinstance(part, str) else self._texts.get(part, '')
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
      split = (self._split(x) if isinstance(x, str) else [x] for x in parts)
      parts = [*itertools.chain.from_iterable(split)]
    add_bos = parts[:1] == [tokenizers.BOS]
    return tokenizer.encode_framed(parts[add_bos:], add_bos=add_bos)

  def _split(self, text: str) -> list[str | int]:
    """Splits a text into texts and the ids of control tokens in it."""
    parts: list[str] = self._pattern.split(text)
    return [self._ids.get(part, part) for part in parts if part]

  def _make_masks(
    self, messages: Iterable[Message]
  ) -> tuple[str, dict[int, str], dict[int, str]]:
    """Returns a mark, and tables that mask a text and undo it."""
    used = self._used.union(*(message.content for message in messages))
    free = (x for x in map(chr, _PRIVATE) if x not in used)
    mark, *masks = itertools.islice(free, len(self._masked) + 1)
    pairs = [*zip(self._masked, masks, strict=True)]
    mask = {ord(x): y for x, y in pairs}
    return mark, mask, {ord(y): x for x, y in pairs}

  def _render(
    self,
    messages: Sequence[Message],
    mask: dict[int, str],
    unmask: dict[int, str],
    add_generation_prompt: bool,
  ) -> str:
    """Renders messages, whose words are masked in the result."""
    # All results have the same time.
    now = datetime.datetime.now()
    variables = self._special_tokens | dict(
      add_generation_prompt=add_generation_prompt,
      tools=None,
      documents=None,
      strftime_now=lambda format: now.strftime(format),
    )

    def render(masked: Collection[int], hidden: Collection[str] = ()) -> str:
      contents = []
      for i, (role, content) in enumerate(messages):
        pieces = self._pattern.split(content)
        content = ''.join(
          x.translate(mask) if i in masked or x in hidden else x for x in pieces
        )
        contents.append(dict(role=role, content=content))
      return _generate(self._template, dict(variables, messages=contents))

    indices = range(len(messages))
    text, masked = render([]), render(indices)
    if masked.translate(unmask) == text:
      return masked
    frame = self._pattern.findall(masked)
    kept = [i for i in indices if render([i]).translate(unmask) == text]
    masked = render(kept, self._unused)
    if masked.translate(unmask) != text or (
      self._pattern.findall(masked) != frame
    ):
      raise ValueError(
        f'{OPTION}: computes with these messages so that they cannot be kept'
        ' apart from its control tokens; give another template.'
      )
    return masked

  def _find_end(self) -> int | None:
    """Returns the token that the template writes after an answer, if any."""
    mark, mask, unmask = self._make_masks([])
    messages = Message('user', 'a'), Message('assistant', mark)
    try:
      text = self._render(messages, mask, unmask, False)
    except ValueError:
      # `split` raises the error as soon as a message is rendered.
      return None
    first = next(iter(self._split(text.partition(mark)[2].lstrip())), None)
    return first if isinstance(first, int) else None


class _RefusedError(Exception):
  """The reason that a template gives for refusing its messages."""


class _Generation(jinja2.ext.Extension):
  """The tag `generation` around answers, an extension of transformers."""

  tags = {'generation'}  # noqa: RUF012

  def parse(self, parser: Any) -> Any:
    """Returns the statements inside of the tag."""
    line = next(parser.stream).lineno
    body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
    return jinja2.nodes.Scope(body, lineno=line)


def _raise_exception(message: object = '') -> None:
  """Refuses the messages; templates call it."""
  raise _RefusedError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
  """Returns a value as JSON, in the form of transformers' `tojson`."""
  return json.dumps(value, ensure_ascii=ensure_ascii, **options)


@functools.cache
def _environment() -> jinja2.sandbox.SandboxedEnvironment:
  """Returns the sandbox, which has no loader of files."""
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[jinja2.ext.loopcontrols, _Generation],
  )
  environment.filters['tojson'] = _to_json
  environment.globals['raise_exception'] = _raise_exception
  return environment


def _compile(source: str) -> jinja2.Template:
  """Compiles an untrusted template."""
  if len(source) > MAX_CHARS:
    raise _fault(f'has more than {MAX_CHARS} characters')
  try:
    return _environment().from_string(source)
  except Exception as error:
    raise _fault(f'is not a valid template ({_reason(error)})') from None


def _generate(template: jinja2.Template, variables: dict[str, Any]) -> str:
  """Renders a template; every error is reported as its fault."""
  text = ''
  try:
    for part in template.generate(variables):
      text += part
      if len(text) > MAX_CHARS:
        raise ValueError(f'it makes more than {MAX_CHARS} characters')
  except _RefusedError as error:
    raise ValueError(
      f"messages: the model's chat template refuses them ({_reason(error)});"
      ' change them.'
    ) from None
  except Exception as error:
    raise _fault(f'cannot be rendered ({_reason(error)})') from None
  return text


def _fault(reason: str) -> ValueError:
  """Returns the error of a template."""
  return ValueError(f'{OPTION}: {reason}; give another template.')


def _reason(error: Exception) -> str:
  """Returns the reason of an error, in one line."""
  text = display.printable(' '.join(str(error).split()).rstrip('.'))
  return text[:_MAX_REASON] or type(error).__name__
