"""The loop that drafts, and what heads share: attention, norms and checks.

A head drafts from the verifier's hidden states. It is a recurrence over the
drafted tokens of a block, made for one verifier.
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.decoding.drafter import ROWS, Draft, DraftContext, Drafter
from cascades.decoding.model import Model
from cascades.methods import processing
from cascades.models import tensor_files

# Score of a hidden slot. Finite, since all slots may be hidden.
_HIDDEN = -2.3819763e38

# The tensor of each parameter of a head, and its shape.
Layout = dict[str, tuple[str, tuple[int, ...]]]
_TABLES = 'table', 'embeddings', 'centroids'
# Called as step(state, token, i): reads token i of a block; returns the next
# state and the logits of the next token.
Step = Callable[[Any, Int[Array, ''], Int[Array, '']], tuple[Any, Array]]


def draft_tokens(
  step: Callable[[PyTree, Array, Array], tuple[PyTree, Array]],
  state: PyTree,
  logits: Float[Array, 'gamma_1 K N'],
  uniforms: Float[Array, 'gamma_1 K n'],
  context: DraftContext,
  draft_vocab_ids: Int[Array, 'N'] | None = None,
  *,
  first: Callable[[PyTree], tuple[PyTree, Array]] | None = None,
  threshold: Float[Array, ''] | None = None,
) -> tuple[Draft, PyTree]:
  """Drafts until all drafts of the batch are full or have stopped.

  `step` reads a token of each draft, of one level; `first` stands for the step
  that reads the last token. `logits` are zeros, and stay so where no row of the
  batch needs them.
  """
  gamma, drafts = logits.shape[0] - 1, logits.shape[1]
  sampling = context.sampling.restrict_vocab(draft_vocab_ids)
  needs_bonus = context.needs_bonus_probs

  def extend(carry, state, logits):
    """Appends a token to each draft."""
    level, is_drafting = carry['level'], carry['is_drafting']
    tokens = jax.vmap(
      lambda u, z: processing.sample_from_uniforms(
        u, processing.processed_probs(z, sampling)
      )
    )(uniforms[level], logits)
    if draft_vocab_ids is not None:
      tokens = draft_vocab_ids[tokens]
    if context.forced is not None:
      tokens = jnp.broadcast_to(context.forced[level], tokens.shape)
    asks = is_drafting.any() & (level < gamma + needs_bonus)
    any_drafting = carry['any_drafting']
    if threshold is not None:
      confidence = jax.vmap(processing.gate_probs)(logits).max(-1)
      is_drafting = is_drafting & (confidence >= threshold)
      any_drafting = jax.lax.pmax(is_drafting.any(), ROWS)
    return dict(
      level=level + 1,
      state=state,
      last_tokens=tokens,
      tokens=carry['tokens'].at[level].set(tokens),
      logits=carry['logits'].at[level].set(logits),
      is_drafting=is_drafting,
      lengths=carry['lengths'] + (is_drafting & (level < gamma)),
      calls=carry['calls'] + asks,
      any_drafting=any_drafting,
    )

  last = context.tokens[context.length - 1]
  carry = dict(
    level=jnp.zeros((), jnp.int32),
    state=state,
    last_tokens=jnp.broadcast_to(last, (drafts,)),
    tokens=jnp.zeros((gamma + 1, drafts), jnp.int32),
    logits=logits,
    is_drafting=jnp.ones(drafts, bool),
    lengths=jnp.zeros(drafts, jnp.int32),
    calls=jnp.zeros((), jnp.int32),
    any_drafting=jnp.ones((), bool),
  )
  if first is not None:
    carry = extend(carry, *first(state))
  # One loop for the batch: it runs as long as any row needs it.
  levels = gamma + jax.lax.pmax(needs_bonus.astype(jnp.int32), ROWS)
  carry = jax.lax.while_loop(
    lambda x: (x['level'] < levels) & x['any_drafting'],
    lambda x: extend(x, *step(x['state'], x['last_tokens'], x['level'])),
    carry,
  )
  return Draft(
    tokens=carry['tokens'][:gamma].T,
    logits=carry['logits'],
    lengths=carry['lengths'],
    has_bonus_probs=jnp.ones(drafts, bool),
    calls=carry['calls'],
    draft_vocab_ids=draft_vocab_ids,
  ), carry['state']


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
    zero = jnp.zeros((), jnp.int32)
    logits = jax.eval_shape(step, start, zero, zero)[1]
    size = processing.uniforms_per_token(len(logits))
    uniforms = processing.draw_uniforms(context.key, drafts, gamma + 1, size)
    draft, _ = draft_tokens(
      jax.vmap(step, (0, 0, None)),
      jax.tree.map(lambda x: jnp.broadcast_to(x, (drafts, *x.shape)), start),
      jnp.zeros((gamma + 1, drafts, *logits.shape), logits.dtype),
      uniforms.swapaxes(0, 1),
      context,
      draft_vocab_ids,
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
  ids: str,
  layout: Layout,
) -> PyTree:
  """Reads the parameters of a layout; all but tables are transposed."""
  params = {}
  for name, (tensor, shape) in layout.items():
    is_ids = tensor == ids
    handle = tensor_files.find(
      folder, tensors, tensor, shape, field='drafter', is_ids=is_ids
    )
    array = np.asarray(handle)
    params[name] = array if name in _TABLES else array.T
  return params


def check_verifier(name: str, fields: Mapping[str, tuple[Any, Any]]) -> None:
  """Refuses a verifier with a value that is not the one that a head needs."""
  for field, (expected, actual) in fields.items():
    if actual != expected:
      raise ValueError(
        f'drafter: {name} was made for another verifier ({field}: {expected},'
        f' not {actual}); give the model that it was made for.'
      )
