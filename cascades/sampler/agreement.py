"""Measures greedy agreement between a drafter and a verifier.

The drafter continues a prompt greedily; the verifier reads the continuation in
one pass and gives its own greedy token at every position. At the first mismatch
greedy speculative decoding would have taken the verifier's token. Nothing is
sampled, so this is the first thing to measure of a pair.

The continuation is one drafted block of gamma = max_new_tokens, so any kind of
drafter can be measured. A drafter that reads the verifier's states where a
block begins reads those at the end of the prompt only.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import arguments, decoding
from cascades.config import DecodingConfig
from cascades.decoding import faults
from cascades.methods import processing
from cascades.models import checkpoints
from cascades.models.conversations import Prompt
from cascades.sampler import batching, sampler
from cascades.sampler.requests import SampleRequest

# Largest numbers of prompts, and of logits, in one batch.
_MAX_ROWS, _MAX_LOGITS = 16, 2**27


@dataclasses.dataclass(frozen=True)
class TokenComparison:
  """The greedy tokens of both models at one position, after the same text.

  The probabilities are those of each model (q, p) for each of the two tokens.
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


@functools.partial(jax.jit, static_argnames='step_config')
def _compare(
  rows: decoding.Row,
  params: decoding.Params,
  sampling: processing.SamplingParams,
  *,
  step_config: decoding.StepConfig,
) -> tuple[tuple[jax.Array, ...], jax.Array, faults.Fault]:
  """Drafts a block of each row and compares it with the verifier's tokens."""
  gamma = step_config.gamma

  def compare_row(row):
    key = jax.random.key(0)
    proposed = decoding.propose(
      row, params, sampling, key, step_config=step_config
    )
    block = decoding.read_block(row, params, proposed, step_config)
    drafted, length = block.draft.tokens[0], block.draft.lengths[0]
    logits = jax.vmap(
      lambda i: block.draft.logits_at(i, 0, block.logits.shape[-1])
    )(jnp.arange(gamma))
    q = jax.nn.softmax(logits.astype(jnp.float32))
    p = jax.nn.softmax(block.logits[:-1].astype(jnp.float32))
    forbidden = False if sampling.forbidden is None else sampling.forbidden
    greedy = processing.argmax_lowest_id(jnp.where(forbidden, -1, p))
    # Positions after the draft are padding.
    is_drafted = jnp.arange(gamma) < length
    is_sound = processing.is_sound(block.logits[:-1], block.hidden[:-1])
    fault = faults.locate(
      row,
      verifier_bad=is_drafted & ~is_sound,
      drafter_bad=proposed.drafter_bad[:-1],
      method_bad=jnp.zeros_like(is_drafted),
      emitted=jnp.int32(gamma),
    )
    probs = [
      jnp.take_along_axis(rows, tokens[:, None], 1)[:, 0]
      for rows in (q, p)
      for tokens in (drafted, greedy)
    ]
    return (drafted, greedy, *probs), length, fault

  return jax.vmap(compare_row, axis_name=decoding.ROWS)(rows)


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
  size = verifier.model.vocab_size
  gamma = arguments.integer(
    'max_new_tokens', max_new_tokens, 1, arguments.MAX_INT32 // size
  )
  config = DecodingConfig(
    # Not applied: nothing is verified. 'match' takes the drafts of a beam.
    method='speed',
    verification='match',
    gamma=gamma,
    temperature=0.0,
    cache_length=arguments.MAX_INT32,
  )
  decoder = sampler.Sampler(verifier, drafter, config=config)
  is_single = isinstance(prompts, Prompt)
  texts: Any = [prompts] if is_single else prompts
  request = SampleRequest(
    max_new_tokens=1, apply_chat_template=apply_chat_template
  )
  engine, stop, texts, batch = decoder.prepare(texts, [0.0], request)
  agreements = []
  rows = max(1, min(_MAX_ROWS, _MAX_LOGITS // (gamma * size)))
  longest = max(map(len, batch.prompts), default=0)
  limit = batching.bucket(longest + engine.step_config.cache_headroom)
  for i in range(0, len(texts), rows):
    # One size, so that nothing is compiled twice.
    read = (batch.prompts[i : i + rows] + batch.prompts[i : i + 1] * rows)[
      :rows
    ]
    keys = jax.random.split(jax.random.key(0), rows)
    columns, lengths, row_faults = jax.device_get(
      _compare(
        engine.prefill(read, keys, [limit] * rows, limit),
        engine.params,
        engine.sampling,
        step_config=engine.step_config,
      )
    )
    for j, text in enumerate(texts[i : i + rows]):
      fault = jax.tree.map(lambda x, j=j: x[j], row_faults)
      faults.check(fault, f'prompt {i + j}')
      values = [column[j, : lengths[j]].tolist() for column in columns]
      tokens = [TokenComparison(*token) for token in zip(*values, strict=True)]
      ids = [token.drafter_token for token in tokens]
      ends = [at for at, token in enumerate(ids) if token in stop.tokens]
      count = ends[0] + 1 if ends else len(ids)
      agreements.append(
        Agreement(
          prompt=text,
          tokens=tuple(tokens[:count]),
          token_strings=tuple(decoder.tokenizer.token_strings(ids[:count])),
          ended=bool(ends),
        )
      )
  return agreements[0] if is_single else agreements
