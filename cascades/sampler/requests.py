"""Requests: the options of an answer, checked once."""

import dataclasses
from collections.abc import Sequence
from typing import TypedDict

from cascades import arguments
from cascades.config import DecodingConfig
from cascades.declarations import options_of
from cascades.sampler.outputs import ConversationState


class RequestOptions(TypedDict, total=False):
  """Keyword arguments of `Sampler.sample`; fields of `SampleRequest`."""

  max_new_tokens: int
  seed: int
  echo: bool
  return_logits: bool
  forbidden_tokens: Sequence[int | str] | None
  stop_tokens: Sequence[int | str] | None
  stop_strings: Sequence[str]
  apply_chat_template: bool
  allow_control_tokens: bool


class SampleOptions(RequestOptions, total=False):
  """All keyword arguments of `Sampler.sample`."""

  return_state: bool
  last_state: ConversationState | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleRequest:
  """Options of an answer, whatever the prompt.

  Attributes:
    max_new_tokens: Most tokens of an answer.
    seed: Seed of the sampling, from 0 to 2^64 - 1.
    echo: True if texts and tokens start with the prompt.
    return_logits: True to return the verifier's logits of the emitted tokens.
    forbidden_tokens: Ids, or texts of one token, that are never emitted; None
      forbids the suppress_tokens of the verifier's generation_config.json, and
      an empty list nothing.
    stop_tokens: Ids, or texts of one token, that end an answer in addition to
      the tokenizer's own: end-of-sequence, and end-of-turn of instruction-tuned
      models. None adds none.
    stop_strings: Texts that end an answer. The text stops before them; tokens
      and counts include the token that completes the first of them. An answer
      with stop strings has no state to continue from.
    apply_chat_template: Wraps each prompt in the model's chat template; its
      end-of-turn token ends the output. Control tokens spelled in the prompt,
      such as `<end_of_turn>`, stay text; without a template they are control
      tokens.
    allow_control_tokens: With a template, encodes control tokens spelled in
      messages as control tokens; only for messages from a trusted author.

  Raises:
    ValueError: A value has another type or is out of its range.
  """

  max_new_tokens: int = 64
  seed: int = 0
  echo: bool = False
  return_logits: bool = False
  forbidden_tokens: Sequence[int | str] | None = None
  stop_tokens: Sequence[int | str] | None = None
  stop_strings: Sequence[str] = ()
  apply_chat_template: bool = False
  allow_control_tokens: bool = False

  def __post_init__(self):
    arguments.booleans(
      echo=self.echo,
      return_logits=self.return_logits,
      apply_chat_template=self.apply_chat_template,
      allow_control_tokens=self.allow_control_tokens,
    )
    checked = dict(
      max_new_tokens=arguments.integer(
        'max_new_tokens', self.max_new_tokens, 1
      ),
      seed=arguments.integer('seed', self.seed, 0, 2**64 - 1),
      stop_strings=arguments.text_tuple('stop_strings', self.stop_strings),
    )
    for name, value in checked.items():
      # The class is frozen: nothing else assigns its fields.
      object.__setattr__(self, name, value)


def make_request(options: RequestOptions, function: str) -> SampleRequest:
  """Makes a request of the keyword arguments of a method of `Sampler`."""
  for name in options:
    if name not in RequestOptions.__annotations__:
      advice = 'leave it out'
      if name in options_of(DecodingConfig):
        advice = f'give Sampler the config DecodingConfig({name}=...)'
      raise TypeError(
        f'{name}: is not an argument of Sampler.{function}; {advice}.'
      )
  return SampleRequest(**options)
