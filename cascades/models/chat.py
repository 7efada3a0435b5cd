"""Chats: messages, and the Jinja templates that frame them for a model.

A model's frame is the template that came with it, else that of Gemma's whose
tokens its tokenizer has, as gemma's own chats write it. The frame of a later
turn also closes an answer that was cut off.

A message stays text: a tag in it, such as `<end_of_turn>`, becomes ordinary
pieces. Templates may trim, split and compare messages, so they render twice:
messages as they are, and with the characters of control tokens in messages
replaced by characters that occur nowhere. A control token in the second result
belongs to the template, if both are equal once the characters are put back. If
not, the template computes with a message: control tokens that the template
spells stay in it, if this adds none to the result; else it is refused.
"""

import datetime
import functools
import itertools
import json
import pathlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

from cascades import arguments, files
from cascades.models import tokenizers

_ROLES = 'system', 'user', 'assistant'
_OPTION = 'chat_template'
# Files of a template, in the order in which transformers looks for them.
FILE = 'chat_template.jinja'
_FILES = 'tokenizer_config.json', 'chat_template.json'
# Characters of a template and of its result; Gemma 4's has 12,000.
MAX_CHARS = 2**20
# An earlier turn, before a later one.
_EARLIER = ('user', 'a'), ('assistant', '')
# The tokens around a turn of Gemma 4, and of Gemma 2 and 3, which have 0 turns
# of a system: its message begins the user's message.
_TAGS = ('<|turn>', '<turn|>', 1), ('<start_of_turn>', '<end_of_turn>', 0)
_FRAME = """{{ bos_token }}
{%- for m in messages -%}
  {%- set before = loop.previtem or {'role': 'assistant'} -%}
  {%- set is_led = before.role == 'system' and not has_system_turn -%}
  {%- if (m.role == 'assistant') != (before.role == 'user')
      or m.role == before.role -%}
    {{ raise_exception('they must alternate between user and assistant, with'
                       ' at most one of the system before the user') }}
  {%- endif -%}
  {%- if m.role != 'system' or has_system_turn -%}
    {{- start + m.role.replace('assistant', 'model') + '\\n' -}}
    {{- before.content + '\\n\\n' if is_led -}}
    {{- m.content + end + '\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ start + 'model\\n' }}{% endif -%}"""


class Conversation(tuple[tuple[str, str], ...]):
  """Messages for a model to answer: a prompt of `Sampler.sample`.

  Equal to the tuple of its messages, and hashable. JSON holds it as a list of
  [role, content]. The last message is a user's, or the beginning of the answer
  for the model to continue.

  Args:
    messages: Pairs of role and content, or mappings with these two fields, as
      chat data has them. 'model' is read as 'assistant'.

  Raises:
    ValueError: A message has another form or role, there is none, or the last
      one is the system's.
  """

  __slots__ = ()

  def __new__(cls, messages: Iterable[Any]) -> 'Conversation':
    """Checks the messages."""
    items = arguments.as_list('messages', messages, 'messages')
    checked = [_as_message(i, message) for i, message in enumerate(items)]
    if not checked or checked[-1][0] == 'system':
      raise ValueError(
        'messages: must end with a message of the user, or with the beginning'
        f' of an answer, got {len(checked)} messages; add one.'
      )
    return super().__new__(cls, checked)

  def __str__(self) -> str:
    return '\n\n'.join(f'{role}: {content}' for role, content in self)


# A text or messages that a sampler answers.
Prompt = str | Conversation


def as_conversation(prompt: Prompt) -> Conversation:
  """Returns a prompt as messages; a text is a message of the user."""
  is_text = isinstance(prompt, str)
  return Conversation([('user', prompt)]) if is_text else prompt


def _as_message(i: int, message: Any) -> tuple[str, str]:
  match message:
    case {'role': str(role), 'content': str(text)} | [str(role), str(text)]:
      role = 'assistant' if role == 'model' else role
      if role in _ROLES:
        return role, text
  raise ValueError(
    f'messages: message {i} must have a role of {", ".join(_ROLES)} and a'
    f' text as its content, got {arguments.quote(message)}.'
  )


def read(folder: pathlib.Path) -> str | None:
  """Returns the chat template of a folder; None if it has none."""
  file = folder / FILE
  try:
    if file.exists():
      return files.read_bytes(file, _OPTION, 'fetch it again').decode()
    for file in map(folder.joinpath, _FILES):
      fields = files.read_fields(file, _OPTION) if file.exists() else {}
      if (template := fields.get('chat_template')) is not None:
        return template + ''
  except (TypeError, UnicodeDecodeError):
    raise ValueError(
      f'{_OPTION}: {file} must have a text in UTF-8; write it into {FILE}.'
    ) from None
  return None


class ChatTemplate:
  """Frames messages for the models of a tokenizer."""

  def __init__(self, tokenizer: tokenizers.Tokenizer, source: str):
    """Compiles a template."""
    self._special_tokens = tokenizer.special_tokens()
    self._ids = tokenizer.control_tokens()
    # The longest of several tokens that begin alike.
    longest_first = sorted(self._ids, key=len, reverse=True)
    self._pattern = re.compile(f'({"|".join(map(re.escape, longest_first))})')
    self._unused = {text for text in self._ids if text not in source}
    self._masked = ''.join({*''.join(''.join(self._ids).split())})
    self._used = {*source, *self._masked}
    if len(source) > MAX_CHARS:
      raise _fault(f'has more than {MAX_CHARS} characters')
    # Transformers' tag around answers has a scope of its own.
    source = re.sub(r'(\{%[-+]?\s*)(end)?generation\b', r'\1\2with', source)
    try:
      self._template = _SANDBOX.from_string(source)
    except Exception as error:
      raise _fault(f'is not a valid template ({_reason(error)})') from None

  @functools.cached_property
  def end_token(self) -> int | None:
    """The token that the template writes after an answer, if any."""
    try:
      text, mark, _ = self._render(_EARLIER, [1])
    except ValueError:
      # `split` raises the error as soon as a message is rendered.
      return None
    parts = self._split(text.partition(mark)[2].lstrip())
    return next((x for x in parts[:1] if isinstance(x, int)), None)

  def split(
    self, prompt: Prompt, last_token: int | None = None
  ) -> list[str | int]:
    """Returns a turn as texts, and as ids of control tokens of its frame."""
    is_later = last_token is not None
    history = [*_EARLIER * is_later, *as_conversation(prompt)]
    is_continued = history[-1][0] == 'assistant'
    marked = [1] * is_later + [len(history) - 1] * is_continued
    text, mark, unmask = self._render(history, marked)
    if text.count(mark) != len(marked):
      raise _fault('must render each answer once, so that it can be continued')
    if is_later:
      text = text.partition(mark)[2]
    if is_continued:
      text, _, rest = text.partition(mark)
      text = text if rest.startswith(' ') else text.rstrip()
    parts = self._split(text.lstrip())
    # The end of the answer may be its last token.
    parts = parts[1:] if parts[:1] == [last_token] else self._split(text)
    return [x.translate(unmask) if isinstance(x, str) else x for x in parts]

  def encode(
    self,
    tokenizer: tokenizers.Tokenizer,
    prompt: Prompt,
    last_token: int | None = None,
  ) -> list[int]:
    """Encodes a turn."""
    return tokenizer.encode_framed(self.split(prompt, last_token))

  def _split(self, text: str) -> list[str | int]:
    """Splits a text into texts and the ids of control tokens in it."""
    parts: list[str] = self._pattern.split(text)
    return [self._ids.get(part, part) for part in parts if part]

  def _render(
    self, messages: Sequence[tuple[str, str]], marked: Collection[int]
  ) -> tuple[str, str, dict[int, int]]:
    """Returns masked text, a mark at ends of messages, a table to unmask."""
    used = self._used.union(*(content for _, content in messages))
    # Private characters of Unicode replace those of messages.
    free = (x for x in map(chr, range(0xF0000, 0x10FFFE)) if x not in used)
    mark, *masks = itertools.islice(free, len(self._masked) + 1)
    mask = str.maketrans(self._masked, ''.join(masks))
    unmask = str.maketrans(''.join(masks), self._masked)
    # All results have the same time.
    now = datetime.datetime.now()
    variables = self._special_tokens | dict(
      add_generation_prompt=messages[-1][0] != 'assistant',
      tools=None,
      documents=None,
      strftime_now=lambda format: now.strftime(format),
    )

    def render(masked: Collection[int], hidden: Collection[str] = ()) -> str:
      contents = []
      for i, (role, content) in enumerate(messages):
        content = ''.join(
          x.translate(mask) if i in masked or x in hidden else x
          for x in self._pattern.split(content)
        )
        if i in marked:
          # The space shows whether the template keeps the end of a message.
          content += mark + ' ' * (i == len(messages) - 1)
        contents.append(dict(role=role, content=content))
      text = ''
      try:
        for part in self._template.generate(variables, messages=contents):
          text += part
          if len(text) > MAX_CHARS:
            raise ValueError(f'it makes more than {MAX_CHARS} characters')
      except Exception as error:
        # Jinja's own errors are of subclasses.
        if type(error) is jinja2.TemplateError:
          raise ValueError(
            "messages: the model's chat template refuses them"
            f' ({_reason(error)}); change them.'
          ) from None
        raise _fault(f'cannot be rendered ({_reason(error)})') from None
      return text

    indices = range(len(messages))
    text, masked = render([]), render(indices)
    if masked.translate(unmask) != text:
      frame = self._pattern.findall(masked)
      separable = [i for i in indices if render([i]).translate(unmask) == text]
      masked = render(separable, self._unused)
      if masked.translate(unmask) != text or (
        self._pattern.findall(masked) != frame
      ):
        raise _fault(
          'computes with these messages so that they cannot be kept apart from'
          ' its control tokens'
        )
    return masked, mark, unmask


def _raise_exception(message: object = '') -> None:
  raise jinja2.TemplateError(str(message))


# As in transformers; it has no loader of files.
_SANDBOX = jinja2.sandbox.ImmutableSandboxedEnvironment(
  trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
)
_SANDBOX.filters['tojson'] = functools.partial(json.dumps, ensure_ascii=False)
_SANDBOX.globals['raise_exception'] = _raise_exception


def _fault(reason: str) -> ValueError:
  return ValueError(f'{_OPTION}: {reason}; give another template.')


def _reason(error: Exception) -> str:
  return files.sentence(str(error)).rstrip('.') or type(error).__name__


# Equal tokenizers may have several templates.
_compile = functools.lru_cache(maxsize=8)(ChatTemplate)


def require_template(tokenizer: tokenizers.Tokenizer) -> ChatTemplate:
  """Returns the template that came with a model, else the built-in frame."""
  if tokenizer.chat_template is not None:
    return _compile(tokenizer, tokenizer.chat_template)
  for tags in _TAGS:
    frame = f'{{% set start, end, has_system_turn = {tags} %}}\n{_FRAME}'
    template = _compile(tokenizer, frame)
    # Tags of an ordinary piece are not told apart from a user's.
    if template.end_token is not None:
      return template
  raise ValueError(
    'chat: apply_chat_template is not supported by a tokenizer without tokens'
    ' for turns; give an instruction-tuned model, or leave out the option.'
  )


def with_turn_end(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
  """Returns the tokenizer with answers that end at its end-of-turn token."""
  ends = (tokenizer.token_id(end) for _, end, _ in _TAGS)
  return tokenizer.with_stops(*[x for x in ends if x is not None][:1])
