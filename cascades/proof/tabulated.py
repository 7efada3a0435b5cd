"""Methods evaluated in every context of a small model, as tables.

Each context has one pair of distributions q and p. `Table` holds the
acceptance, residual, law and deferrals of several methods in each context.
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
  """M methods evaluated in every context, as numpy arrays.

  Attributes:
    q: [contexts, V], the distribution that the drafter samples from.
    p: [contexts, V], the distribution that the verifier samples from.
    acceptance: [M, contexts, V], probability of keeping each drafted token.
    residual: [M, contexts, V], distribution of the token after a rejection.
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
  def from_methods(
    cls,
    pairs: Sequence[tuple[methods.Method, float]],
    d: methods.Distributions,
  ) -> 'Table':
    """Evaluates methods in every context."""
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
  """Computes acceptance, residual, law and deferrals, d [contexts, V]."""
  rule = method.rule or (lambda d, lenience: jnp.zeros(()))

  def evaluate(d):
    columns = (
      method.acceptance(d, lenience),
      method.residual(d, lenience),
      method.law(d, lenience),
      jnp.broadcast_to(rule(d, lenience), d.q.shape),
    )
    return jnp.stack([x.astype(d.q.dtype) for x in columns])

  return jax.vmap(evaluate, out_axes=1)(d)


def table_distributions(
  verifier_table: Float[Array, 'contexts V'],
  drafter_table: Float[Array, 'contexts V'],
  sampling: processing.SamplingParams,
  gate: str = 'raw',
  verifier_sampling: processing.SamplingParams | None = None,
) -> methods.Distributions:
  """Computes the loop's distributions in each context of two models."""

  def at_context(drafter_logits, verifier_logits):
    return decoding.distributions(
      drafter_logits,
      verifier_logits,
      verifier_sampling or sampling,
      gate=gate,
      drafter_sampling=sampling,
    )

  return jax.vmap(at_context)(drafter_table, verifier_table)


def random_models(
  model: TableModel,
  keys: Sequence[jax.Array] | jax.Array,
  sampling: processing.SamplingParams,
  prompt: Sequence[int],
  depth: int,
  scale: float = 2.0,
) -> tuple[list[Logits], methods.Distributions]:
  """Draws a verifier and a drafter whose contexts all differ."""
  tables = separation.random_tables(model, keys, scale)
  verifier_table, drafter_table = tables
  d = table_distributions(verifier_table, drafter_table, sampling)
  pairs = separation.context_pairs(model, prompt, depth)
  separation.check_distances(np.asarray(d.q), np.asarray(d.p), pairs)
  return tables, d
