"""Heads: recurrences over the drafted tokens, their attention and checks.

A head drafts from the verifier's hidden states. It is a recurrence over the
drafted tokens of a block, made for one verifier.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.decoding.drafter import (
  ROWS,
  DraftContext,
  Drafter,
  full_length_draft,
)
from cascades.decoding.model import Model
from cascades.methods import processing
from cascades.models import tensor_files

# Score of a hidden slot. Finite, since all slots may be hidden.
_HIDDEN = -2.3819763e38

# Called as step(state, token): reads a token; returns the next state and the
# logits of the next token.
Step = Callable[[Any, Int[Array, '']], tuple[Any, Array]]


class StepwiseDrafter(Drafter):
  """Drafts by a recurrence over tokens that starts at the last token.

  Drafts are independent: none sees the tokens of another, and each token is
  drawn from q.
  """

  model: Model
  needs_hidden = True

  def start(
    self, params: PyTree, state: PyTree, context: DraftContext, gamma: int
  ) -> tuple[Step, PyTree, Int[Array, 'N'] | None]:
    """Returns the recurrence of a block.

    It is a step, the state after all tokens of the sequence but the last, and
    the token ids of the logits; None for the whole vocabulary.
    """
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


class KeyValueView(NamedTuple):
  """Cached keys and values: S slots of K heads of size h."""

  keys: Float[Array, 'S K h']
  values: Float[Array, 'S K h']
  is_visible: Bool[Array, 'S']


def attend(
  queries: Float[Array, 'N h'], *views: KeyValueView
) -> Float[Array, 'N h']:
  """Returns the attention of each query over the slots of all views."""
  num_queries, size = queries.shape
  grouped = queries.reshape(views[0].keys.shape[1], -1, size)

  def scores(view):
    products = jnp.einsum('kgh,skh->kgs', grouped, view.keys)
    return jnp.where(view.is_visible, products.astype(jnp.float32), _HIDDEN)

  logits = jnp.concatenate([scores(view) for view in views], -1)
  weights = jnp.where(logits > _HIDDEN, jax.nn.softmax(logits), 0)
  weights = weights.astype(queries.dtype)
  ends = np.cumsum([len(view.keys) for view in views])
  # Views are summed one by one: concatenation would copy the longest view for
  # every token.
  first, *rest = (
    jnp.einsum('kgs,skh->kgh', x, view.values)
    for x, view in zip(jnp.split(weights, ends[:-1], -1), views, strict=True)
  )
  return sum(rest, start=first).reshape(num_queries, size)


def rms_norm(
  x: Float[Array, '*B n'], scale: Float[Array, '*S n'], epsilon: float = 1e-6
) -> Array:
  """Divides by the root mean square, in float32, and multiplies by a scale."""
  y = x.astype(jnp.float32)
  y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + epsilon)
  return (y * scale.astype(jnp.float32)).astype(x.dtype)


def read_params(
  folder: pathlib.Path,
  tensors: Mapping[str, tensor_files.TensorHandle],
  layout: Mapping[str, tuple[str, tuple[int, ...]]],
  ids: str,
) -> dict[str, np.ndarray]:
  """Reads the tensor of each parameter, given with its shape, transposed."""
  find = functools.partial(tensor_files.find, folder, tensors, field='drafter')
  return {
    name: np.asarray(find(tensor, shape, is_ids=tensor == ids)).T
    for name, (tensor, shape) in layout.items()
  }


def check_verifier(name: str, fields: Mapping[str, tuple[Any, Any]]) -> None:
  """Refuses a verifier with a value that is not the one that a head needs."""
  for field, (expected, actual) in fields.items():
    if actual != expected:
      raise ValueError(
        f'drafter: {name} was made for another verifier ({field}: {expected},'
        f' not {actual}); give the model that it was made for.'
      )
