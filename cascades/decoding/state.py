"""What the loop keeps of a sequence, and what it moves along.

Rolling a cache back is setting one integer:

  slot          0 ............... length-1 | length ........ length+gamma
  tokens        final ............... last | x_1 ........... next
  caches before |<-- length - 1 -->|
  step writes                       last     x_1 .. x_gamma
  rewound to    |<-- new length - 1 ------------->|

Only integers are selected; buffers and caches never are. What lies past
`length` is masked until it is overwritten. A finished row advances by 0.
"""

from typing import Any, NamedTuple

import jax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.decoding.drafter import Drafter


class Models(NamedTuple):
  """Who verifies, and who drafts. Hashable: a static argument.

  Attributes:
    verifier: A `language.LanguageModel`, or anything with its methods.
    drafter: Proposes; `drafters.NoDrafter` for the verifier alone.
  """

  verifier: Any
  drafter: Drafter


class Params(NamedTuple):
  """The parameters of `Models`.

  Attributes:
    verifier: The verifier's checkpoint.
    drafter: Anything the drafter takes.
  """

  verifier: PyTree
  drafter: PyTree


@struct.dataclass
class SamplingState:
  """One sequence and both models' memories of it; `vmap` for a batch.

  Invariant between steps: tokens[:length] is final, and both caches hold
  tokens[:length - 1]; the drafter's may lack the last of these, with which it
  begins its next block.

  T is the room of the caches; a step writes up to length + cache_headroom.
  """

  # Evolving.
  tokens: Int[Array, 'T']
  length: Int[Array, '']
  done: Bool[Array, '']
  # Since the prompt; random numbers of a block are made of its number.
  blocks: Int[Array, '']
  verifier_cache: PyTree
  drafter_state: PyTree
  # What a schedule remembers of the sequence; () without one.
  memory: PyTree
  # Where the verifier said the last token; only for drafters that look at it.
  hidden: Float[Array, 'D'] | None
  # Fixed for a row.
  key: jax.Array
  lenience: Float[Array, '']
  # How the lenience goes along the sequence; None: it stays.
  schedule: PyTree
  prompt_length: Int[Array, '']
  limit: Int[Array, '']


def write(buffer: Array, at: Int[Array, ''] | int, values: Array) -> Array:
  """The buffer with `values` from row `at` on; they must fit."""
  start = (at,) + (0,) * (buffer.ndim - 1)
  return jax.lax.dynamic_update_slice(
    buffer, values.astype(buffer.dtype), start
  )
