"""What may be asked of an answer, made and checked once."""

import dataclasses
from collections.abc import Sequence

from cascades import arguments


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asking:
  """How prompts are to be answered, whatever they are.

  Attributes:
    max_new_tokens: Most tokens of an answer.
    seed: Decides what is sampled; from 0 to 2^64 - 1.
    echo: Whether texts and tokens start with the prompt.
    return_logits: Whether to return the verifier's logits of the emitted
      tokens.
    forbidden_tokens: Ids, or texts that are one token, never to be emitted;
      None for nothing.
    stop_tokens: Ids, or texts that are one token, that end an answer beside
      the tokenizer's own: end-of-sequence, and end-of-turn for models that
      were tuned for instructions. None for no more.
    stop_strings: Texts that end an answer. They are no part of its text; its
      tokens, and all counts, end with the token that completes the first of
      them.
    chat: Whether the prompts are a user's words, to be put as the models were
      taught turns (see `turns`); a turn ends the answer.

  Raises:
    ValueError: One will not do; one sentence says which.
  """

  max_new_tokens: int = 64
  seed: int = 0
  echo: bool = False
  return_logits: bool = False
  forbidden_tokens: Sequence[int | str] | None = None
  stop_tokens: Sequence[int | str] | None = None
  stop_strings: Sequence[str] = ()
  chat: bool = False

  def __post_init__(self):
    arguments.flags(
      echo=self.echo, return_logits=self.return_logits, chat=self.chat
    )
    checked = dict(
      max_new_tokens=arguments.whole('max_new_tokens', self.max_new_tokens, 1),
      seed=arguments.whole('seed', self.seed, 0, 2**64 - 1),
      stop_strings=arguments.texts('stop_strings', self.stop_strings),
    )
    for name, value in checked.items():
      # Frozen for everyone else.
      object.__setattr__(self, name, value)
