"""Distributions that no proof can take for each other.

A verification that looks at the wrong row of a block emits the right law
wherever that row equals the right one. So a proof needs models whose
distributions differ: those of each two contexts of a block, of the drafter (q)
and of the verifier (p), and q and p of one context. Each two differ by at least
`LEAST_DISTANCE` in total variation. What a wrong row changes in a law is a part
of that distance, and far above rounding.
"""

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from cascades.proof.table_models import Logits, TableModel

# Least total variation between two distributions of a proof.
LEAST_DISTANCE = 0.01
# Draws of each distribution before a proof gives up.
_MOST_DRAWS = 500


def context_pairs(
  model: TableModel,
  prompt: Sequence[int],
  depth: int,
  *,
  along_drafts: bool = False,
) -> Int[np.ndarray, 'N 2']:
  """Contexts whose distributions a proof has to tell apart.

  Args:
    model: Gives the context of a text.
    prompt: Token ids before the block.
    depth: Tokens of a draft.
    along_drafts: True compares a text with the texts that it begins with, which
      is all that a verification of one draft sees; False compares all texts of
      at most `depth` tokens, those of a tree of drafts.

  Returns:
    Pairs of contexts, each context with itself among them.

  Raises:
    ValueError: Two such texts have one context; names both texts.
  """
  texts = [
    text
    for length in range(depth + 1)
    for text in itertools.product(range(model.vocab_size), repeat=length)
  ]
  contexts = {text: model.after([*prompt, *text]) for text in texts}
  own = sorted(set(contexts.values()))
  if along_drafts:
    pairs = [
      (text[:length], text) for text in texts for length in range(len(text))
    ]
  else:
    pairs = list(itertools.combinations(texts, 2))
  found = np.array([(contexts[a], contexts[b]) for a, b in pairs])
  found = found.reshape(-1, 2)
  equal = np.flatnonzero(found[:, 0] == found[:, 1])
  if len(equal):
    one, other = (list(text) for text in pairs[equal[0]])
    raise ValueError(
      f'contexts: after {list(prompt)}, the texts {one} and {other} have the'
      f' same context {found[equal[0], 0]} of {model.contexts}; give the model'
      ' more contexts.'
    )
  return np.unique(np.concatenate([found, np.stack([own, own], 1)]), axis=0)


def check_distances(
  q: Float[np.ndarray, 'contexts V'],
  p: Float[np.ndarray, 'contexts V'],
  pairs: Int[np.ndarray, 'N 2'] | None = None,
) -> None:
  """Refuses distributions that a proof could take for each other.

  Args:
    q: The drafter's distribution in each context.
    p: The verifier's.
    pairs: Contexts that are compared, as of `context_pairs`; None for all.

  Raises:
    ValueError: Two distributions are too near; names their contexts.
  """
  probs = np.concatenate([q, p])
  pairs = _indices(len(q), pairs)
  distances = _distances(probs, pairs)
  worst = int(np.argmin(distances)) if len(pairs) else 0
  if len(pairs) and distances[worst] < LEAST_DISTANCE:
    one, other = (
      f'{"qp"[i // len(q)]} of context {i % len(q)}' for i in pairs[worst]
    )
    raise ValueError(
      f'tables: {one} and {other} differ by {distances[worst]:.2g} in total'
      f' variation; let them differ by {LEAST_DISTANCE} or more.'
    )


def separated(
  q: Float[np.ndarray, 'contexts V'],
  p: Float[np.ndarray, 'contexts V'],
  draw: Callable[[np.random.Generator, int], Float[np.ndarray, 'n V']],
  pairs: Int[np.ndarray, 'N 2'] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws distributions again that are too near to another.

  Args:
    q: The drafter's distribution in each context.
    p: The verifier's.
    draw: Draws so many distributions.
    pairs: As for `check_distances`.

  Returns:
    q and p, of which `check_distances` refuses nothing. Those that it does not
    refuse are as they were.

  Raises:
    ValueError: There is no room for so many distributions.
  """
  probs = np.concatenate([q, p])
  indices = _indices(len(q), pairs)
  rng = np.random.default_rng(0)
  for _ in range(_MOST_DRAWS):
    near = _distances(probs, indices) < LEAST_DISTANCE
    if not near.any():
      return probs[: len(q)], probs[len(q) :]
    again = np.unique(indices[near].max(1))
    probs[again] = draw(rng, len(again))
  raise ValueError(
    f'tables: {len(probs)} distributions of {probs.shape[1]} tokens do not all'
    f' differ by {LEAST_DISTANCE}; take fewer contexts or more tokens.'
  )


def random_tables(
  model: TableModel, keys: Sequence[jax.Array] | jax.Array, scale: float = 2.0
) -> list[Logits]:
  """Draws the tables of a verifier and of a drafter that a proof can tell.

  Args:
    model: Of both.
    keys: Random keys of the two tables, as for `TableModel.init_params`.
    scale: Standard deviation of the logits.

  Returns:
    Two tables whose distributions at temperature 1 all differ, those of one
    table and of the other; most are as `TableModel.init_params` draws them.
  """

  def log_probs(logits):
    return np.asarray(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)))

  def draw(rng, count):
    shape = count, model.vocab_size
    return np.exp(log_probs(scale * rng.standard_normal(shape)))

  tables = [model.init_params(key, scale) for key in keys]
  before = [np.exp(log_probs(table)) for table in tables]
  after = separated(*before, draw)
  return [
    jnp.where((old == new).all(-1, keepdims=True), table, jnp.log(new))
    for table, old, new in zip(tables, before, after, strict=True)
  ]


def _indices(
  contexts: int, pairs: Int[np.ndarray, 'N 2'] | None
) -> Int[np.ndarray, 'M 2']:
  """Pairs of rows of q and p, q first, that stand for pairs of contexts."""
  if pairs is None:
    return np.stack(np.triu_indices(2 * contexts, 1), 1)
  others = pairs[pairs[:, 0] != pairs[:, 1]]
  of_both = np.array([0, contexts])
  return np.concatenate(
    [
      others,
      others + contexts,
      pairs + of_both,
      others[:, ::-1] + of_both,
    ]
  )


def _distances(
  probs: Float[np.ndarray, 'n V'], pairs: Int[np.ndarray, 'N 2']
) -> Float[np.ndarray, 'N']:
  """Total variation of each pair."""
  return np.abs(probs[pairs[:, 0]] - probs[pairs[:, 1]]).sum(-1) / 2
