"""Drafters that are a recurrence over the drafted tokens of a block."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from cascades.decoding.drafter import (
  ROWS,
  DraftContext,
  Drafter,
  full_length_draft,
)
from cascades.methods import processing


class Recurrence(NamedTuple):
  """A function that reads a token, and its state before the first token.

  Attributes:
    step: Called as step(state, token); returns the next state and the logits of
      the next token.
    state: State after all tokens of the sequence but the last.
    draft_vocab_ids: Token ids of the logits; None for the whole vocabulary.
  """

  step: Callable[[Any, Int[Array, '']], tuple[Any, Array]]
  state: PyTree
  draft_vocab_ids: Int[Array, 'N'] | None = None


class StepwiseDrafter(Drafter):
  """Drafts by a recurrence over tokens that starts at the last token.

  Drafts are independent: none sees the tokens of another, and each token is
  drawn from q.
  """

  model: Any
  needs_hidden = True

  def start(
    self, params: PyTree, state: PyTree, context: DraftContext, gamma: int
  ) -> Recurrence:
    """Returns the recurrence of a block."""
    raise NotImplementedError

  def propose(self, params, state, context, *, gamma, drafts):
    """Draws K drafts that start at the last token of the sequence."""
    step, start, draft_vocab_ids = self.start(params, state, context, gamma)
    sampling = context.sampling.restrict_vocab(draft_vocab_ids)
    vocab_size = self.model.vocab_size
    if draft_vocab_ids is not None:
      vocab_size = len(draft_vocab_ids)
    size = processing.uniforms_per_token(vocab_size)
    uniforms = processing.draw_uniforms(context.key, drafts, gamma + 1, size)
    # One loop for the batch: it runs as long as any row needs it. Logits that
    # are not computed stay 0.
    needs_bonus = context.needs_bonus_probs
    steps = gamma + jax.lax.pmax(needs_bonus.astype(jnp.int32), ROWS)
    token = context.tokens[context.length - 1]
    shape = jax.eval_shape(step, start, token)[1]
    carry = (
      start,
      jnp.zeros(gamma + 1, jnp.int32).at[0].set(token),
      jnp.zeros((gamma + 1, *shape.shape), shape.dtype),
    )

    def draft_one(uniforms):
      def draft_token(i, carry):
        state, tokens, logits = carry
        state, token_logits = step(state, tokens[i])
        probs = processing.processed_probs(token_logits, sampling)
        token = processing.sample_from_uniforms(uniforms[i], probs)
        if draft_vocab_ids is not None:
          token = draft_vocab_ids[token]
        # The bonus token is not part of the draft, and is dropped.
        tokens = tokens.at[i + 1].set(token, mode='drop')
        return state, tokens, logits.at[i].set(token_logits)

      return jax.lax.fori_loop(0, steps, draft_token, carry)[1:]

    tokens, logits = jax.vmap(draft_one, out_axes=(0, 1))(uniforms)
    draft = full_length_draft(
      tokens[:, 1:], logits, gamma + needs_bonus, draft_vocab_ids
    )
    return draft, state, context.verifier_cache
