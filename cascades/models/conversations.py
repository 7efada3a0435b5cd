"""Conversations: messages of a system, of a user and of an assistant."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cascades import arguments

ROLES = 'system', 'user', 'assistant'
# The name that Gemma's frames give the assistant.
_MODEL = 'model'


class Message(NamedTuple):
  """A message of a conversation.

  Attributes:
    role: One of `ROLES`.
    content: The text, in which control tokens that it spells stay text.
  """

  role: str
  content: str


class Conversation(tuple[Message, ...]):
  """Messages for a model to answer: a prompt of `Sampler.sample`.

  Equal to the tuple of its messages, and hashable. JSON holds it as a list of
  [role, content]. The last message is a user's, or the beginning of the answer
  for the model to continue.

  Args:
    messages: `Message`s, pairs of role and content, or mappings with these two
      fields, as chat data has them. 'model' is read as 'assistant'.

  Raises:
    ValueError: A message has another form or role, there is none, or the last
      one is the system's.
  """

  __slots__ = ()

  def __new__(cls, messages: Iterable[Any]) -> 'Conversation':
    """Checks the messages."""
    items = arguments.as_list('messages', messages, 'messages')
    checked = [_as_message(i, message) for i, message in enumerate(items)]
    if not checked or checked[-1].role == 'system':
      raise ValueError(
        'messages: must end with a message of the user, or with the beginning'
        f' of an answer, got {len(checked)} messages; add one.'
      )
    return super().__new__(cls, checked)

  @property
  def is_continued(self) -> bool:
    """True if the last message is the beginning of the answer."""
    return self[-1].role == 'assistant'

  def __str__(self) -> str:
    """Returns the messages as a text for people."""
    return '\n\n'.join(f'{role}: {content}' for role, content in self)


# A text or messages that a sampler answers.
Prompt = str | Conversation


def as_conversation(prompt: Prompt) -> Conversation:
  """Returns a prompt as messages; a text is a message of the user."""
  if isinstance(prompt, Conversation):
    return prompt
  return Conversation([Message('user', prompt)])


def _as_message(i: int, message: Any) -> Message:
  """Returns a message of a conversation; refuses other forms and roles."""
  role, content = None, None
  if isinstance(message, Mapping):
    role, content = message.get('role'), message.get('content')
  elif isinstance(message, tuple | list) and len(message) == 2:
    role, content = message
  role = 'assistant' if role == _MODEL else role
  if role not in ROLES or not isinstance(content, str):
    raise ValueError(
      f'messages: message {i} must have a role of {", ".join(ROLES)} and a text'
      f' as its content, got {arguments.quote(message)}.'
    )
  return Message(role, content)
