"""Distributions that no proof can mistake for each other.

A verification that reads the wrong distribution of a block emits the right law
wherever that distribution equals the right one. So a proof needs models whose
distributions differ: those of any two contexts of a block, for the drafter (q)
and for the verifier (p), and q and p of one context. Any two differ by at least
`LEAST_DISTANCE` in total variation. The error of the law from a wrong
distribution is a fraction of that distance, far above rounding.
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
  """Finds the contexts whose distributions a proof must distinguish."""
  texts = [
    text
    for length in range(depth + 1)
    for text in itertools.product(range(model.vocab_size), repeat=length)
  ]
  contexts = {text: model.context_after([*prompt, *text]) for text in texts}
  distinct = sorted(set(contexts.values()))
  if along_drafts:
    pairs = [
      (text[:length], text) for text in texts for length in range(len(text))
    ]
  else:
    pairs = list(itertools.combinations(texts, 2))
  compared = np.array([(contexts[a], contexts[b]) for a, b in pairs])
  compared = compared.reshape(-1, 2)
  equal = np.flatnonzero(compared[:, 0] == compared[:, 1])
  if len(equal):
    text_a, text_b = (list(text) for text in pairs[equal[0]])
    raise ValueError(
      f'contexts: after {list(prompt)}, the texts {text_a} and {text_b} have'
      f' the same context {compared[equal[0], 0]} of {model.contexts}; give the'
      ' model more contexts.'
    )
  itself = np.stack([distinct, distinct], 1)
  return np.unique(np.concatenate([compared, itself]), axis=0)


def check_distances(
  q: Float[np.ndarray, 'contexts V'],
  p: Float[np.ndarray, 'contexts V'],
  pairs: Int[np.ndarray, 'N 2'] | None = None,
) -> None:
  """Refuses distributions that a proof could mistake for each other."""
  probs = np.concatenate([q, p])
  pairs = _indices(len(q), pairs)
  distances = _distances(probs, pairs)
  worst = int(np.argmin(distances)) if len(pairs) else 0
  if len(pairs) and distances[worst] < LEAST_DISTANCE:
    name_a, name_b = (
      f'{"qp"[i // len(q)]} of context {i % len(q)}' for i in pairs[worst]
    )
    raise ValueError(
      f'tables: {name_a} and {name_b} differ by {distances[worst]:.2g} in total'
      f' variation; let them differ by {LEAST_DISTANCE} or more.'
    )


def separate(
  q: Float[np.ndarray, 'contexts V'],
  p: Float[np.ndarray, 'contexts V'],
  draw: Callable[[np.random.Generator, int], Float[np.ndarray, 'n V']],
  pairs: Int[np.ndarray, 'N 2'] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws distributions again until no two are too near."""
  probs = np.concatenate([q, p])
  indices = _indices(len(q), pairs)
  rng = np.random.default_rng(0)
  for _ in range(_MOST_DRAWS):
    near = _distances(probs, indices) < LEAST_DISTANCE
    if not near.any():
      return probs[: len(q)], probs[len(q) :]
    rejected = np.unique(indices[near].max(1))
    probs[rejected] = draw(rng, len(rejected))
  raise ValueError(
    f'tables: {len(probs)} distributions of {probs.shape[1]} tokens do not all'
    f' differ by {LEAST_DISTANCE}; take fewer contexts or more tokens.'
  )


def random_tables(
  model: TableModel, keys: Sequence[jax.Array] | jax.Array, scale: float = 2.0
) -> list[Logits]:
  """Draws tables of a verifier and a drafter that a proof can distinguish."""

  def log_probs(logits):
    return np.asarray(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)))

  def draw(rng, count):
    shape = count, model.vocab_size
    return np.exp(log_probs(scale * rng.standard_normal(shape)))

  tables = [model.init_params(key, scale) for key in keys]
  verifier_probs, drafter_probs = (np.exp(log_probs(x)) for x in tables)
  separate_probs = separate(verifier_probs, drafter_probs, draw)
  return [
    jnp.where((old == new).all(-1, keepdims=True), table, jnp.log(new))
    for table, old, new in zip(
      tables, (verifier_probs, drafter_probs), separate_probs, strict=True
    )
  ]


def _indices(
  contexts: int, pairs: Int[np.ndarray, 'N 2'] | None
) -> Int[np.ndarray, 'M 2']:
  """Turns pairs of contexts into pairs of indices into [q, p]."""
  if pairs is None:
    return np.stack(np.triu_indices(2 * contexts, 1), 1)
  distinct = pairs[pairs[:, 0] != pairs[:, 1]]
  q_to_p = np.array([0, contexts])
  return np.concatenate(
    [
      distinct,
      distinct + contexts,
      pairs + q_to_p,
      distinct[:, ::-1] + q_to_p,
    ]
  )


def _distances(
  probs: Float[np.ndarray, 'n V'], pairs: Int[np.ndarray, 'N 2']
) -> Float[np.ndarray, 'N']:
  """Computes the total variation of each pair."""
  return np.abs(probs[pairs[:, 0]] - probs[pairs[:, 1]]).sum(-1) / 2
