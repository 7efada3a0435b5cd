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
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import arguments, decoding, methods
from cascades.decoding import faults
from cascades.drafters import binding, token_checks
from cascades.methods import processing
from cascades.models import checkpoints, tokenizers, turns
from cascades.models.conversations import Conversation, Prompt
from cascades.sampler import batching
from cascades.sampler.requests import encode, forbidden_mask
from cascades.verification_config import VerificationConfig

# Largest numbers of prompts, and of logits, in one batch.
_MAX_ROWS, _MAX_LOGITS = 16, 2**27


@dataclasses.dataclass(frozen=True)
class TokenComparison:
  """The greedy tokens of both models at one position, after the same text.

  Attributes:
    drafter_token: The drafter's token.
    verifier_token: The verifier's token.
    q_drafter_token: The drafter's probability of the drafter's token.
    q_verifier_token: The drafter's probability of the verifier's token.
    p_drafter_token: The verifier's probability of the drafter's token.
    p_verifier_token: The verifier's probability of the verifier's token.
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

  def compare_row(row):
    key = jax.random.key(0)
    proposed = decoding.propose(
      row, params, sampling, key, step_config=step_config
    )
    block = decoding.read_block(row, params, proposed, step_config)
    drafted, gamma = block.draft.tokens[0], step_config.gamma
    logits = jax.vmap(
      lambda i: block.draft.logits_at(i, 0, block.logits.shape[-1])
    )(jnp.arange(gamma))
    q = jax.nn.softmax(logits.astype(jnp.float32))
    p = jax.nn.softmax(block.logits[:-1].astype(jnp.float32))
    forbidden = False if sampling.forbidden is None else sampling.forbidden
    greedy = processing.argmax_lowest_id(jnp.where(forbidden, -1, p))
    length = block.draft.lengths[0]
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
    pair: The verifier, a `Checkpoint` or its name; and the drafter, as
      `Sampler` takes it.
    prompts: One text or `Conversation`, or several.
    max_new_tokens: Most tokens of a continuation.
    apply_chat_template: Wraps each text in the model's chat template.

  Returns:
    An agreement for a single prompt, else a list of them.

  Raises:
    ValueError: The models cannot be combined, an argument is out of its range,
      or the tokenizer has no chat template.
  """
  models = arguments.as_list('pair', pair, 'a verifier and a drafter')
  if len(models) != 2 or not isinstance(
    models[0], str | checkpoints.Checkpoint
  ):
    raise ValueError(
      'pair: must be two models, or their names: the verifier and the drafter.'
    )
  verifier, drafter = models
  if isinstance(verifier, str):
    verifier = checkpoints.load_model(verifier)
  token_checks.check_tokenizer(verifier, verifier.tokenizer)
  bound_drafter = binding.bind_drafter(verifier, drafter)
  # One block is drafted, whose logits are one array.
  gamma = arguments.integer(
    'max_new_tokens',
    max_new_tokens,
    1,
    arguments.MAX_INT32 // verifier.model.vocab_size,
  )
  texts: list[Any] = [prompts]
  if not isinstance(prompts, Prompt):
    texts = arguments.as_list('prompts', prompts, 'texts')
  tokenizer = verifier.tokenizer
  encoded = [encode(tokenizer, x, apply_chat_template) for x in texts]
  if apply_chat_template or any(isinstance(x, Conversation) for x in texts):
    # As for `Sampler`, the end of a turn ends an answer.
    end = turns.require_template(tokenizer).end_token
    tokenizer = tokenizer.with_stops(*([] if end is None else [end]))
  engine = batching.Engine(
    decoding.StepConfig(
      decoding.Models(verifier.model, bound_drafter.drafter),
      # Not applied: nothing is verified. 'match' takes the drafts of a beam.
      methods.get_method('speed'),
      gamma,
      VerificationConfig('match'),
    ),
    decoding.Params(verifier.params, bound_drafter.params),
    processing.SamplingParams(
      np.float32(0),
      forbidden=forbidden_mask(tokenizer.suppress_tokens, tokenizer.vocab_size),
    ),
    np.zeros(0, np.int32),
  )
  agreements = list(_agreements(tokenizer, engine, encoded))
  return agreements[0] if isinstance(prompts, Prompt) else agreements


def _agreements(
  tokenizer: tokenizers.Tokenizer,
  engine: batching.Engine,
  encoded: Sequence[tuple[str, list[int]]],
) -> Iterator[Agreement]:
  """Compares texts with their tokens, a batch at a time."""
  gamma, size = engine.step_config.gamma, tokenizer.vocab_size
  rows = max(1, min(_MAX_ROWS, _MAX_LOGITS // (gamma * size)))
  prompts = [np.array(ids) for _, ids in encoded]
  longest = max(map(len, prompts), default=0)
  limit = batching.bucket(longest + engine.step_config.cache_headroom)
  fixed = engine.params, engine.sampling
  for i in range(0, len(prompts), rows):
    batch = prompts[i : i + rows]
    # One size, so that nothing is compiled twice.
    batch += [batch[0]] * (rows - len(batch))
    keys = jax.random.split(jax.random.key(0), rows)
    read = engine.prefill(batch, keys, [limit] * rows, limit)
    columns, lengths, row_faults = jax.device_get(
      _compare(read, *fixed, step_config=engine.step_config)
    )
    for j, (text, _) in enumerate(encoded[i : i + rows]):
      fault = jax.tree.map(lambda x, j=j: x[j], row_faults)
      faults.check(fault, f'prompt {i + j}')
      values = [column[j, : lengths[j]].tolist() for column in columns]
      tokens = []
      for token in map(TokenComparison, *values):
        tokens.append(token)
        if token.drafter_token in tokenizer.stops:
          break
      ids = [token.drafter_token for token in tokens]
      yield Agreement(
        prompt=text,
        tokens=tuple(tokens),
        token_strings=tuple(tokenizer.token_strings(ids)),
        ended=bool(ids) and ids[-1] in tokenizer.stops,
      )
