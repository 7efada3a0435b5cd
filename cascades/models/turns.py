"""Chat templates: turns of a conversation, for instruction-tuned models.

Gemma 2 and 3 frame a user's message as

  <start_of_turn>user
  What is 2 + 2?<end_of_turn>
  <start_of_turn>model

and Gemma 4 with tokens of its own. A model's frame is the one whose tokens its
tokenizer has, as gemma's own chat sampler writes it; the frame of a later turn
also closes an answer that was cut off. Gemma 2 and 3 have no turn of a system:
its message begins the user's message. A template that comes with the model
(`chat_templates`) takes precedence.

A message stays text: `ChatTemplate.encode` encodes it apart from the tokens of
the frame, and a tag in the message, such as `<end_of_turn>`, becomes ordinary
pieces. A prompt without a frame (`chat=False`) is encoded as it is, and tags
in it become control tokens.
"""

import functools
import logging

from cascades.models import chat_templates, tokenizers

_LOGGER = logging.getLogger(__name__)
# The tokens around a turn: of Gemma 4, and of Gemma 2 and 3.
_GEMMA4 = '<|turn>', '<turn|>'
_TAGS = _GEMMA4, ('<start_of_turn>', '<end_of_turn>')
_FRAME = """{{ bos_token }}
{%- set ns = namespace(last='assistant', system='') -%}
{%- for m in messages -%}
  {%- if (m.role == 'assistant') != (ns.last == 'user') or m.role == ns.last -%}
    {{ raise_exception('they must alternate between user and assistant, after'
                       ' at most one of the system') }}
  {%- endif -%}
  {%- set ns.last = m.role -%}
  {%- if m.role == 'system' and not has_system_turn -%}
    {%- set ns.system = m.content + '\\n\\n' -%}
  {%- else -%}
    {{- start + m.role.replace('assistant', 'model') + '\\n' -}}
    {{- ns.system + m.content + end + '\\n' -}}
    {%- set ns.system = '' -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ start + 'model\\n' }}{% endif -%}"""


def find_template(
  tokenizer: tokenizers.Tokenizer,
) -> chat_templates.ChatTemplate | None:
  """Returns the template that came with a model, else the built-in frame."""
  return _find_template(tokenizer, tokenizer.chat_template)


# Called with the source too: equal tokenizers may have several templates.
@functools.lru_cache(maxsize=8)
def _find_template(
  tokenizer: tokenizers.Tokenizer, source: str | None
) -> chat_templates.ChatTemplate | None:
  """Returns the template of a source, or the frame of a tokenizer."""
  if source is not None:
    return chat_templates.ChatTemplate(tokenizer, source)
  tags = _find_tags(tokenizer)
  if tags is None:
    return None
  values = f'{tags[0]!r}, {tags[1]!r}, {tags == _GEMMA4}'
  source = f'{{% set start, end, has_system_turn = {values} %}}\n{_FRAME}'
  return chat_templates.ChatTemplate(tokenizer, source, tags)


def _find_tags(tokenizer: tokenizers.Tokenizer) -> tuple[str, str] | None:
  """Returns the tags of turns that a tokenizer has."""
  known = (x for x in _TAGS if tokenizer.token_id(x[1]) is not None)
  return next(known, None)


def with_turn_end(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
  """Returns the tokenizer with answers that end at its end-of-turn token."""
  end = tokenizer.token_id((_find_tags(tokenizer) or _GEMMA4)[1])
  return tokenizer if end is None else tokenizer.with_stops(end)


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
