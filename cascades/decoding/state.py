"""The state of a sequence between two steps, and how it is rolled back.

Rolling a cache back sets one integer:

  slot          0 ............... length-1 | length ........ length+gamma
  tokens        final ............... last | x_1 ........... next
  caches before |<-- length - 1 -->|
  step writes                       last     x_1 .. x_gamma
  rewound to    |<-- new length - 1 ------------->|

Only integers pass through `where`, never buffers or caches. Slots past `length`
are masked until they are overwritten. A finished row advances by 0.
"""

from typing import NamedTuple

import jax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.decoding.drafter import Drafter
from cascades.decoding.faults import Fault
from cascades.decoding.model import Model


class Models(NamedTuple):
  """The verifier and the drafter. Hashable: a static argument of `jit`."""

  verifier: Model
  drafter: Drafter


class Params(NamedTuple):
  """The parameters of `Models`."""

  verifier: PyTree
  drafter: PyTree


class Row(struct.PyTreeNode):
  """A sequence, both models' states of it, and statistics; `vmap` for a batch.

  Invariant between steps: tokens[:length] is final, and both caches hold
  tokens[:length - 1]; the drafter's may lack the last of these, which it then
  reads at the start of its next block.

  Attributes:
    tokens: The sequence; caches have T slots too. A step writes up to index
      length + cache_headroom.
    length: Tokens of the sequence.
    done: True for a finished row.
    blocks: Blocks since the prompt; the key of a block is folded from it.
    verifier_cache: The verifier's cache.
    drafter_state: The drafter's state.
    hidden: The verifier's hidden state that predicted the last token; None
      unless the drafter needs it.
    key: The random key of the row.
    lenience: The lenience of the row.
    prompt_length: Tokens of the prompt.
    limit: Length, prompt included, at which the row ends.
    source: Source of each token, an index into `SOURCES`.
    deferral: True where the rule defers the examined draft; at a bonus token,
      where a rule about the whole position defers.
    draft: The examined draft at each token; -1 for none.
    accept_uniform: The number that it was compared with; nan for none.
    cumulative_counts: Blocks, drafted tokens, calls of the drafter, and tokens
      that the verifier read, up to the end of the token's block.
    logprob: The verifier's log-probability of each token at temperature 1.
    logits: The verifier's logits; room for R new tokens. None if not requested.
    law_logprobs: log q, log p and log law of each token; None if not requested.
    fault: The first distribution that was not finite; later tokens are
      meaningless.
  """

  # These change from step to step.
  tokens: Int[Array, 'T']
  length: Int[Array, '']
  done: Bool[Array, '']
  blocks: Int[Array, '']
  verifier_cache: PyTree
  drafter_state: PyTree
  hidden: Float[Array, 'D'] | None
  # These are fixed for a row.
  key: jax.Array
  lenience: Float[Array, '']
  prompt_length: Int[Array, '']
  limit: Int[Array, '']
  # The loop records these.
  source: Int[Array, 'T']
  deferral: Bool[Array, 'T']
  draft: Int[Array, 'T']
  accept_uniform: Float[Array, 'T']
  cumulative_counts: Int[Array, 'T 4']
  logprob: Float[Array, 'T']
  logits: Float[Array, 'R V'] | None
  law_logprobs: Float[Array, 'T 3'] | None
  fault: Fault


def write(buffer: Array, start: Int[Array, ''] | int, values: Array) -> Array:
  """Writes `values` from index `start` of the first axis on; they must fit."""
  starts = (start,) + (0,) * (buffer.ndim - 1)
  return jax.lax.dynamic_update_slice(
    buffer, values.astype(buffer.dtype), starts
  )
