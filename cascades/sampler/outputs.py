"""What comes out for a prompt, and what a conversation goes on from."""

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
  """What came out for one prompt; tokens after end-of-sequence are nowhere.

  Attributes:
    text: The answer; without stop tokens, and without the prompt unless
      `echo` was set.
    tokens: Ids, the stop token included; with `echo`, the prompt's before.
    pieces: The text of each token.
    sources: For each token, where it came from: an index into
      `verification_config.SOURCES` (prompt, draft, residual, bonus).
    deferred: For each emitted token, whether the method's rule defers to the
      verifier there; None where it has no such rule.
    ended: Whether a stop token, or a text, ended it rather than its limit.
    logprobs: The verifier's log-probability of each emitted token, at
      temperature 1 and before truncation, whatever was sampled from.
    logits: [emitted tokens, V], the verifier's, float32; None unless asked
      for.
    counts: Token and call counts, named as the fields of a record of a sweep.
    state: What `Sampler.sample` takes as `last_state` to go on from here; None
      unless asked for.
  """

  text: str
  tokens: list[int]
  pieces: list[str]
  sources: list[int]
  deferred: list[bool] | None
  ended: bool
  logprobs: list[float]
  logits: np.ndarray | None
  counts: dict[str, int]
  state: 'State | None' = dataclasses.field(default=None, repr=False)

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
  """Where a conversation stands: all that both models have read of it.

  Attributes:
    row: One row, with both caches.
    models: The verifier and the drafter that read it.
    params: Their parameters.
    pieces: The text of each token.
  """

  row: decoding.Row
  models: tuple[Any, Any]
  params: PyTree
  pieces: list[str]

  def check(self, models: tuple[Any, Any], params: PyTree) -> None:
    """Refuses to go on with other models than those that read it.

    Parameters are compared by their values where they are not the same arrays.
    Single numbers among them, as where a drafter stops, are options, and may
    change from one turn to the next.

    Raises:
      ValueError: They are others, or have other parameters.
    """
    same = self.models == models
    if same:
      ours, theirs = (
        [x for x in jax.tree.leaves(tree) if jnp.ndim(x)]
        for tree in (self.params, params)
      )
      same = len(ours) == len(theirs) and all(
        x is y or (x.dtype == y.dtype and jnp.array_equal(x, y))
        for x, y in zip(ours, theirs, strict=True)
      )
    if not same:
      raise ValueError(
        'last_state: other models have read it; go on with the sampler that'
        ' made it.'
      )
