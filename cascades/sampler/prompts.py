"""Prompts and tokens of a request, as token ids."""

import dataclasses
import numbers
from collections.abc import Sequence

import numpy as np

from cascades import arguments
from cascades.models import tokenizers, turns
from cascades.models.conversations import Conversation, Prompt
from cascades.sampler.requests import SampleRequest


def with_template(
  request: SampleRequest, prompts: Sequence[Prompt]
) -> SampleRequest:
  """Returns the request, with the chat template if prompts are messages."""
  if request.apply_chat_template:
    return request
  are_messages = {isinstance(prompt, Conversation) for prompt in prompts}
  if len(are_messages) > 1:
    raise ValueError(
      'prompts: must all be texts or all be messages; set apply_chat_template'
      ' to read texts as messages of the user.'
    )
  return dataclasses.replace(request, apply_chat_template=True in are_messages)


def encode(
  tokenizer: tokenizers.Tokenizer,
  prompt: Prompt,
  apply_chat_template: bool = False,
  previous: Sequence[int] = (),
  allow_control_tokens: bool = False,
) -> tuple[str, list[int]]:
  """Encodes a prompt that follows earlier tokens."""
  if not isinstance(prompt, Prompt):
    raise ValueError(f'prompts: must be texts, got {arguments.quote(prompt)}.')
  if isinstance(prompt, str) and not apply_chat_template:
    return prompt, tokenizer.encode(prompt, add_bos=not previous)
  template = turns.require_template(tokenizer)
  last = previous[-1] if previous else None
  return (
    template.format_turn(prompt, last),
    template.encode(tokenizer, prompt, last, allow_control_tokens),
  )


def encode_request(
  tokenizer: tokenizers.Tokenizer,
  prompt: Prompt,
  request: SampleRequest,
  previous: Sequence[int] = (),
) -> tuple[str, list[int]]:
  """Encodes a prompt as its request has it; see `encode`."""
  return encode(
    tokenizer,
    prompt,
    request.apply_chat_template,
    previous,
    allow_control_tokens=request.allow_control_tokens,
  )


def token_ids(
  option: str,
  tokens: Sequence[int | str],
  tokenizer: tokenizers.Tokenizer,
  vocab_size: int,
) -> list[int]:
  """Returns the ids of tokens given as ids or as texts of one token."""
  ids = []
  for token in arguments.as_list(
    option, tokens, 'token ids, or of texts of one token'
  ):
    if isinstance(token, str):
      encoded = tokenizer.encode(token)
      if len(encoded) != 1:
        raise ValueError(
          f'{option}: {arguments.quote(token)} is {len(encoded)} tokens; give'
          ' texts of one token, or ids.'
        )
      ids += encoded
      continue
    is_integer = isinstance(token, numbers.Integral)
    if (
      not is_integer
      or isinstance(token, bool)
      or not 0 <= int(token) < vocab_size
    ):
      raise ValueError(
        f'{option}: there is no token {arguments.quote(token)}; ids go from 0'
        f' to {vocab_size - 1}.'
      )
    ids.append(int(token))
  return ids


def forbidden_mask(ids: Sequence[int], vocab_size: int) -> np.ndarray | None:
  """Returns [V], True for tokens that are never emitted; None for no ids."""
  if not ids:
    return None
  forbidden = np.zeros(vocab_size, bool)
  forbidden[np.array(ids, np.int32)] = True
  if forbidden.all():
    raise ValueError(
      'forbidden_tokens: must not be all tokens; leave at least one out.'
    )
  return forbidden
