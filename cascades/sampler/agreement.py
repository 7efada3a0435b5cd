"""Measures greedy agreement between a drafter and a verifier.

The drafter continues a prompt greedily, in one block of gamma = max_new_tokens;
the verifier reads the continuation in one pass and gives its own greedy token
at every position. At the first mismatch greedy speculative decoding would have
taken the verifier's token. Nothing is sampled, so this is the first thing to
measure of a pair. Any kind of drafter can be measured; one that reads the
verifier's states where a block begins reads those at the end of the prompt.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cascades import arguments
from cascades.config import DecodingConfig
from cascades.methods import processing
from cascades.models import checkpoints
from cascades.models.chat import Prompt
from cascades.sampler import requests, sampler, scoring
from cascades.verification_config import DRAFT

# Largest numbers of prompts, and of logits, in one batch.
_MAX_ROWS, _MAX_LOGITS = 16, 2**27


@dataclasses.dataclass(frozen=True)
class TokenComparison:
  """The greedy tokens of both models at one position, after the same text.

  The probabilities are those of each model (q, p) for each of the two tokens; q
  is nan for a drafter that is no language model.
  """

  drafter_token: int
  verifier_token: int
  q_drafter_token: float
  q_verifier_token: float
  p_drafter_token: float
  p_verifier_token: float

  @property
  def is_match(self) -> bool:
    """True if both tokens are the same."""
    return self.drafter_token == self.verifier_token


@dataclasses.dataclass(frozen=True)
class Agreement:
  """A drafter's greedy continuation beside the verifier's tokens.

  Attributes:
    prompt: The prompt, with its chat template.
    tokens: The comparison at each position, up to end-of-sequence or the limit.
    token_strings: The texts of the drafter's tokens.
    ended: True if the last token ends an answer or turn of the model.
  """

  prompt: str
  tokens: tuple[TokenComparison, ...]
  token_strings: tuple[str, ...]
  ended: bool

  @property
  def matched_length(self) -> int:
    """Number of tokens before the first mismatch."""
    return [*(token.is_match for token in self.tokens), False].index(False)

  @property
  def first_mismatch(self) -> TokenComparison | None:
    """The first position at which the tokens differ; None if none does."""
    return None if self.is_full_match else self.tokens[self.matched_length]

  @property
  def is_full_match(self) -> bool:
    """True if all tokens are the verifier's."""
    return self.matched_length == len(self.tokens)

  @property
  def match_rate(self) -> float:
    """Share of positions with the same token; nan if nothing was drafted."""
    if not self.tokens:
      return float('nan')
    return float(np.mean([token.is_match for token in self.tokens]))


def agreement(
  pair: Sequence[Any],
  prompts: Prompt | Sequence[Prompt],
  max_new_tokens: int = 64,
  apply_chat_template: bool = False,
) -> Agreement | list[Agreement]:
  """Compares the drafter's greedy continuations with the verifier's tokens.

  Args:
    pair: The verifier and the drafter, as `Sampler` takes them.
    prompts: One text or `Conversation`, or several.
    max_new_tokens: Most tokens of a continuation.
    apply_chat_template: Wraps each text in the model's chat template.

  Returns:
    An agreement for a single prompt, else a list of them.

  Raises:
    ValueError: The models cannot be combined, an argument is out of its range,
      or the tokenizer has no chat template.
  """
  verifier, drafter = pair
  if isinstance(verifier, str):
    verifier = checkpoints.load_model(verifier)
  # One block is drafted, whose logits are one array.
  size, limit = verifier.model.vocab_size, arguments.MAX_INT32
  gamma = arguments.integer('max_new_tokens', max_new_tokens, 1, limit // size)
  config = DecodingConfig(
    method='always_accept',
    # Takes the drafts of a beam too.
    verification='match',
    gamma=gamma,
    temperature=0.0,
    cache_length=limit,
    batch_size=max(1, min(_MAX_ROWS, _MAX_LOGITS // (gamma * size))),
  )
  decoder = sampler.Sampler(verifier, drafter, config=config)
  is_single = isinstance(prompts, Prompt)
  texts: Any = [prompts] if is_single else list(prompts)
  answers = decoder.sample(
    texts, max_new_tokens=gamma, apply_chat_template=apply_chat_template
  )
  tokenizer = decoder.tokenizer
  encoded = [requests.encode(tokenizer, x, apply_chat_template) for x in texts]
  # Where the draft ends early, the next token is not the drafter's.
  drafted = [
    x.tokens[: [*(y == DRAFT for y in x.sources), False].index(False)]
    for x in answers
  ]
  pairs = [(ids, new) for (_, ids), new in zip(encoded, drafted, strict=True)]
  target = scoring.explained_target(decoder, is_lossless=True)
  compared = scoring.map_tokens(decoder, pairs, _compare, target, one_size=True)
  has_q = len(target.models) > 1
  agreements = []
  for (text, _), ids, answer, columns in zip(
    encoded, drafted, answers, compared, strict=True
  ):
    greedy, *probs = (column.tolist() for column in columns)
    if not has_q:
      probs[:2] = [[math.nan] * len(ids)] * 2
    values = zip(ids, greedy, *probs, strict=True)
    agreements.append(
      Agreement(
        prompt=text,
        tokens=tuple(TokenComparison(*x) for x in values),
        token_strings=tuple(tokenizer.token_strings(ids)),
        ended=answer.ended and len(ids) == len(answer.tokens),
      )
    )
  return agreements[0] if is_single else agreements


def _compare(method, d, lenience, token):
  """Returns the verifier's greedy token, and q and p of both tokens."""
  greedy = processing.argmax_lowest_id(d.p)
  probs = (x[i] for x in (d.q_gate, d.p_gate) for i in (token, greedy))
  return greedy, *probs
