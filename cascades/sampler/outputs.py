"""Outputs of a sampler, and the state that a conversation continues from."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from cascades import decoding


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleOutput:
  """The answer to one prompt; tokens after end-of-sequence are left out.

  Attributes:
    text: The answer, without stop tokens, and without the prompt unless `echo`
      was set.
    tokens: Token ids, the stop token included; with `echo`, preceded by those
      of the prompt.
    token_strings: The text of each token.
    sources: The source of each token: an index into
      `verification_config.SOURCES` (prompt, draft, residual, bonus).
    deferred: For each emitted token, True if the method's rule defers the draft
      that was examined there. At a bonus token, True if a rule about the whole
      position, such as `chow`, defers there or q is unknown, with `token`
      verification and bonus 'target'. None if the method has no rule.
    ended: True if a stop token or a stop string ended the answer, False if its
      limit did.
    logprobs: The verifier's log-probability of each emitted token, at
      temperature 1 and before truncation, for every method.
    logits: [emitted tokens, V], the verifier's, float32; None unless requested.
    counts: Counts of tokens and calls by name; see `decoding.summarize_counts`.
    drafts: For each emitted token, the id of the draft that was examined there,
      at a residual token the rejected one. None at a bonus token, and at a
      residual token with several drafts, more of which may be rejected.
    accept_uniforms: The uniform number u that each of these drafts was compared
      with: it is accepted if u is less than its acceptance probability. None
      without a draft, and for every verification but 'token'.
    state: The `last_state` with which `Sampler.sample` continues this answer;
      None unless requested.
  """

  text: str
  tokens: list[int]
  token_strings: list[str]
  sources: list[int]
  deferred: list[bool] | None
  ended: bool
  logprobs: list[float]
  logits: np.ndarray | jax.Array | None
  counts: dict[str, int]
  drafts: list[int | None] = dataclasses.field(default_factory=list)
  accept_uniforms: list[float | None] = dataclasses.field(default_factory=list)
  state: 'ConversationState | None' = dataclasses.field(
    default=None, repr=False
  )

  @property
  def acceptance_rate(self) -> float:
    """Accepted per examined token; nan if none was examined."""
    if not self.counts['examined']:
      return math.nan
    return self.counts['accepted'] / self.counts['examined']

  @property
  def block_efficiency(self) -> float:
    """Emitted tokens per verifier call; nan if there was none."""
    if not self.counts['verifier_calls']:
      return math.nan
    return len(self.logprobs) / self.counts['verifier_calls']


@dataclasses.dataclass(frozen=True)
class ConversationState:
  """A conversation as both models have read it.

  Attributes:
    row: One row, with the caches of both models.
    models: The verifier and the drafter that read it.
    params: Their parameters.
    token_strings: The text of each token.
  """

  row: decoding.Row
  models: tuple[Any, Any]
  params: PyTree
  token_strings: list[str]

  @property
  def tokens(self) -> list[int]:
    """The conversation's token ids."""
    return np.asarray(self.row.tokens[0])[: int(self.row.length[0])].tolist()

  def is_read_by(self, models: tuple[Any, Any], params: PyTree) -> bool:
    """True if these models read the conversation.

    Scalars of their parameters, such as the threshold at which a drafter stops,
    are options, which may change from one turn to the next.
    """

    def is_same(x, y):
      is_option = jnp.ndim(x) == jnp.ndim(y) == 0
      return (
        is_option or x is y or (x.dtype == y.dtype and jnp.array_equal(x, y))
      )

    trees = jax.tree.structure(self.params), jax.tree.structure(params)
    if self.models != models or trees[0] != trees[1]:
      return False
    return jax.tree.all(jax.tree.map(is_same, self.params, params))
