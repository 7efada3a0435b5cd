"""What may be asked of an answer, made and checked once."""

import dataclasses
from collections.abc import Sequence

from cascades import arguments


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleRequest:
  """How prompts are to be answered, whatever they are.

  Fields are arguments of `sampler.Sampler.sample`, which has what they mean.

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
    arguments.booleans(
      echo=self.echo, return_logits=self.return_logits, chat=self.chat
    )
    checked = dict(
      max_new_tokens=arguments.integer(
        'max_new_tokens', self.max_new_tokens, 1
      ),
      seed=arguments.integer('seed', self.seed, 0, 2**64 - 1),
      stop_strings=arguments.text_tuple('stop_strings', self.stop_strings),
    )
    for name, value in checked.items():
      # Frozen for everyone else.
      object.__setattr__(self, name, value)
