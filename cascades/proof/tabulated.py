"""What methods say of every context, as tables.

A context has one row of distributions. `Table` holds what methods say of each
row.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cascades import decoding, methods
from cascades.methods import processing
from cascades.proof import separation
from cascades.proof.table_models import Logits, TableModel


@dataclasses.dataclass(frozen=True)
class Table:
  """What methods say of every context, numpy; M methods at a time.

  Attributes:
    q: [contexts, V], what the drafter samples from.
    p: [contexts, V], what the verifier samples from.
    acceptance: [M, contexts, V], how probably each drafted token is kept.
    residual: [M, contexts, V], what a rejected draft is replaced from.
    law: [M, contexts, V], the declared law.
    deferred: [M, contexts, V], 1 where the rule defers to the verifier, else
      0; 0 everywhere for a method without a rule.
  """

  q: np.ndarray
  p: np.ndarray
  acceptance: np.ndarray
  residual: np.ndarray
  law: np.ndarray
  deferred: np.ndarray

  @classmethod
  def of(
    cls,
    pairs: Sequence[tuple[methods.Method, float]],
    d: methods.Distributions,
  ) -> 'Table':
    """Tabulates methods.

    Args:
      pairs: The M methods, each with the lenience it is asked at.
      d: What they are asked about, each field [contexts, V].
    """
    d = jax.tree.map(jnp.asarray, d)
    columns = [
      np.asarray(_tabulate(d, jnp.asarray(lenience, d.q.dtype), method=method))
      for method, lenience in pairs
    ]
    columns = np.stack(columns, axis=1).astype(np.float64)
    return cls(np.asarray(d.q), np.asarray(d.p), *columns)


@functools.partial(jax.jit, static_argnames='method')
def _tabulate(
  d: methods.Distributions, lenience: Array, *, method: methods.Method
) -> Float[Array, '4 contexts V']:
  """Acceptance, residual, law and deferrals, for d [contexts, V]."""
  rule = method.rule or (lambda d, lenience: jnp.zeros(()))

  def one(row):
    said = (
      method.acceptance(row, lenience),
      method.residual(row, lenience),
      method.law(row, lenience),
      jnp.broadcast_to(rule(row, lenience), row.q.shape),
    )
    return jnp.stack([x.astype(row.q.dtype) for x in said])

  return jax.vmap(one, out_axes=1)(d)


def table_distributions(
  verifier_table: Float[Array, 'contexts V'],
  drafter_table: Float[Array, 'contexts V'],
  sampling: processing.SamplingParams,
  gate: str = 'raw',
  of_verifier: processing.SamplingParams | None = None,
) -> methods.Distributions:
  """What the loop sees in each context of two `TableModel`s.

  Args:
    verifier_table: The verifier's parameters, its logits in each context.
    drafter_table: The drafter's parameters, its logits in each context.
    sampling: Temperature, truncation and forbidden tokens.
    gate: What rules see: 'raw' probabilities, or the 'processed' ones; see
      `verification.VerificationConfig`.
    of_verifier: From the verifier's logits to its probabilities, where that is
      not `sampling`.

  Returns:
    Each field [contexts, V].
  """

  def one(of_drafter, of_verifier_):
    return decoding.distributions(
      of_drafter,
      of_verifier_,
      of_verifier or sampling,
      lambda logits, _: processing.processed_probs(logits, sampling),
      gate,
    )

  return jax.vmap(one)(drafter_table, verifier_table)


def random_models(
  model: TableModel,
  keys: Sequence[jax.Array],
  sampling: processing.SamplingParams,
  prompt: Sequence[int],
  depth: int,
  scale: float = 2.0,
) -> tuple[list[Logits], methods.Distributions]:
  """Draws a verifier and a drafter of which no two contexts are alike.

  Args:
    model: Of both.
    keys: Random keys of the two tables.
    sampling: Temperature, truncation and forbidden tokens.
    prompt: Token ids before a block.
    depth: Tokens of a draft.
    scale: Standard deviation of the logits.

  Returns:
    Their tables, and what methods see of them, each field [contexts, V].

  Raises:
    ValueError: Two contexts of a block are too near to be told apart.
  """
  tables = separation.random_tables(model, keys, scale)
  d = table_distributions(*tables, sampling)
  pairs = separation.context_pairs(model, prompt, depth)
  separation.check_distances(np.asarray(d.q), np.asarray(d.p), pairs)
  return tables, d
