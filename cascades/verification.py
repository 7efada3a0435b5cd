"""Which drafted tokens stay, and the token after them.

Three ways, one for every method:

  token       From the left, keep a draft with the method's acceptance; at the
              first that is not kept, sample the residual (Leviathan et al.
              2023, Chen et al. 2023; Narasimhan et al. 2025 for any target).
  block       Look at the block as a whole: the same law, at least as many
              drafts kept (Sun et al., ICLR 2025, arXiv 2403.10444).
  sequential  The cascade that a speculative one is compared with: at the first
              draft that the rule defers, the verifier writes one token.

If all drafts stay, one more token, the bonus, is sampled from the method's law,
or from the verifier if `Scheme.bonus` says so.

Distributions are made of logits where they are looked at, and only as many at
a time as fit into `_AT_ONCE` numbers: at Gemma's vocabulary no array of the
block's size is made but the two models' logits.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cascades import methods, sampling

# Where an emitted token comes from; indices into `records.SOURCES`.
PROMPT, DRAFT, RESIDUAL, BONUS = range(4)

VERIFICATIONS = ('token', 'block', 'sequential')
GATES = ('raw', 'processed')
BONUSES = ('target', 'verifier')

# Probabilities of one sequence that are made at a time, at least one row.
# Small rows go together, since on a CPU a loop costs more than they do.
_AT_ONCE = 2**15


@dataclasses.dataclass(frozen=True)
class Scheme:
  """How blocks are verified; recorded with every result.

  Attributes:
    verification: 'token', 'block' or 'sequential'; see the module.
    gate: What deferral rules see: 'raw' probabilities, at temperature 1 and
      untruncated, or the 'processed' ones that tokens are drawn from.
    bonus: What the bonus token is drawn from: the 'target', which is the
      method's law, or the 'verifier', as some implementations do. Then the
      token after a whole block does not follow the method's law.

  Raises:
    ValueError: No such option; names the ones there are.
  """

  verification: str = 'token'
  gate: str = 'raw'
  bonus: str = 'target'

  def __post_init__(self):
    for name, values in (
      ('verification', VERIFICATIONS),
      ('gate', GATES),
      ('bonus', BONUSES),
    ):
      value = getattr(self, name)
      if value not in values:
        raise ValueError(
          f'{name}: {value!r} is not known; there are {", ".join(values)}.'
        )

  def check(self, method: methods.Method) -> None:
    """Refuses a method that cannot be verified this way.

    Raises:
      ValueError: It has no single target, or no deferral rule.
    """
    if self.verification == 'block' and not method.single_target:
      raise ValueError(
        f'verification: {method.name} verifies each token against a target of'
        " its own, and 'block' needs a single one; take 'token'."
      )
    if self.verification == 'sequential' and method.rule is None:
      raise ValueError(
        f"verification: 'sequential' follows a deferral rule, and"
        f" {method.name} has none; take 'token' or 'block'."
      )


STANDARD = Scheme()


class Verdict(NamedTuple):
  """What verification says of one block of gamma drafted tokens.

  Attributes:
    num_accepted: How many drafts stay, 0 to gamma.
    next_token: The token after them.
    next_source: Where it comes from: RESIDUAL after a rejection, BONUS after a
      whole block; DRAFT in a sequential cascade that did not defer.
    deferred: [gamma + 1], where the rule defers the drafted token.
  """

  num_accepted: Int[Array, '']
  next_token: Int[Array, '']
  next_source: Int[Array, '']
  deferred: Bool[Array, 'gamma_1']


def verify(
  method: methods.Method,
  lenience: Float[Array, ''],
  key: jax.Array,
  draft: Int[Array, 'gamma'],
  rows: Any,
  scheme: Scheme = STANDARD,
  of: Callable[[Any], methods.Distributions] = lambda row: row,
) -> Verdict:
  """Verifies a block.

  Args:
    method: What to keep and what to sample instead.
    lenience: Of the method.
    key: Used for this block only.
    draft: x_1..x_gamma, gamma >= 0.
    rows: A pytree of [gamma + 1, V] arrays, of positions 1..gamma + 1:
      `Distributions`, or whatever `of` makes them of. Their `q` is what the
      draft was drawn from.
    scheme: How.
    of: A row's distributions.

  Returns:
    The verdict.
  """
  gamma = draft.shape[0]
  chex.assert_tree_shape_prefix(rows, (gamma + 1,))

  def gated(row):
    d = of(row)
    if scheme.gate == 'processed':
      d = d._replace(q_gate=d.q, p_gate=d.p)
    return d

  # For each draft, for the next token, and for a last draft.
  size = sampling.draw_size(jax.tree.leaves(rows)[0].shape[-1])
  uniforms = jnp.split(
    sampling.uniform(key, gamma + 2 * size), (gamma, gamma + size)
  )
  decide = {'token': _token, 'block': _block, 'sequential': _sequential}
  return decide[scheme.verification](
    method, lenience, uniforms, draft, rows, gated, scheme.bonus
  )


def _of_token(fn, d, lenience, x) -> Array:
  """What a function says of one token; None says 0 of everything."""
  if fn is None:
    return jnp.zeros((), d.q.dtype)
  return jnp.broadcast_to(fn(d, lenience), d.q.shape)[x]


def _of_drafts(fns, lenience, draft, rows, of) -> list[Array]:
  """What each function says of the drafted tokens; [len(draft)] each."""
  gamma = draft.shape[0]
  if not gamma:
    return [jnp.zeros((0,)) for _ in fns]

  def one(i):
    # Looked up in place: a slice of the rows would be a copy of them.
    d, x = of(_row(rows, i)), draft[i]
    return [_of_token(fn, d, lenience, x) for fn in fns]

  size = jax.tree.leaves(rows)[0].shape[-1]
  at_once = min(gamma, max(1, _AT_ONCE // size))
  return jax.lax.map(one, jnp.arange(gamma), batch_size=at_once)


def _leading(kept: Bool[Array, 'n']) -> Int[Array, '']:
  """How many are True before the first that is not."""
  return jnp.cumprod(kept.astype(jnp.int32)).sum().astype(jnp.int32)


def _row(rows, i: Int[Array, '']) -> Any:
  """The row at index i."""
  return jax.tree.map(lambda x: x[i], rows)


def _token(method, lenience, uniforms, draft, rows, of, bonus):
  """From the left, each draft by itself."""
  gamma = draft.shape[0]
  acceptance, deferred = _of_drafts(
    (method.acceptance, method.rule), lenience, draft, rows, of
  )
  # u < 1 always: what is accepted with probability 1 never fails.
  kept = _leading(uniforms[0] < acceptance)
  # Only the one row that is sampled is made.
  d = of(_row(rows, kept))
  instead = method.residual(d, lenience)
  beyond = method.law(d, lenience) if bonus == 'target' else d.p
  return _verdict(kept, kept < gamma, instead, beyond, uniforms[1], deferred)


def _block(method, lenience, uniforms, draft, rows, of, bonus):
  """The longest part of the block that stays.

  With w_0 = 1 and pi_i, q_i the rows of draft x_i,

    w_i = min(1, w_{i-1} pi_i(x_i) / q_i(x_i))
    S_i = sum max(0, w_i pi_{i+1} - q_{i+1})
    h_i = S_i / (S_i + 1 - w_i) for i < gamma,   h_gamma = w_gamma,

  the longest i with u_i < h_i stays, and the residual after it is
  norm(max(0, w_i pi_{i+1} - q_{i+1})). Unverified against its authors' code;
  that it keeps the law is proven by enumeration.
  """
  gamma = draft.shape[0]

  def weigh(w, i):
    d, x = of(_row(rows, i)), draft[i]
    pi = method.law(d, lenience)
    mass = jnp.maximum(0, w * pi - d.q).sum()
    # A draft has q(x) > 0, unless it stands past a row's end.
    after = w * pi[x] / jnp.where(d.q[x] > 0, d.q[x], 1)
    after = jnp.where(w * pi[x] >= d.q[x], 1.0, after)
    deferred = _of_token(method.rule, d, lenience, x)
    return after.astype(w.dtype), (w, mass, deferred)

  one = jnp.ones((), jax.eval_shape(of, _row(rows, 0)).q.dtype)
  last, (w, mass, deferred) = jax.lax.scan(weigh, one, jnp.arange(gamma))
  # In this order no rounding makes the divisor smaller than the mass. At w = 1
  # and no mass the next draft is kept for certain: any h will do.
  h = jnp.where(w < 1, mass / (mass + jnp.where(w < 1, 1 - w, 1)), 1)
  # Of i = 1..gamma; nothing is asked of i = 0.
  h = jnp.append(h[1:], last)[:gamma]
  w = jnp.append(w, last)
  stays = uniforms[0] < h
  kept = jnp.where(stays, jnp.arange(1, gamma + 1), 0).max(initial=0)
  kept = kept.astype(jnp.int32)
  d = of(_row(rows, kept))
  law = method.law(d, lenience)
  instead = methods.normalised(jnp.maximum(0, w[kept] * law - d.q), law)
  beyond = law if bonus == 'target' else d.p
  return _verdict(kept, kept < gamma, instead, beyond, uniforms[1], deferred)


def _verdict(kept, rejected, instead, beyond, uniforms, deferred) -> Verdict:
  """The token after what was kept: a residual, or the bonus beyond it all."""
  return Verdict(
    num_accepted=kept,
    next_token=sampling.draw(uniforms, jnp.where(rejected, instead, beyond)),
    next_source=jnp.where(rejected, RESIDUAL, BONUS),
    deferred=jnp.append(deferred > 0, False),
  )


def _sequential(method, lenience, uniforms, draft, rows, of, bonus):
  """A cascade of tokens: the drafter writes until its rule defers.

  It drafts gamma + 1 tokens here, for it needs no verifier to go on; there is
  no bonus.
  """
  del bonus
  gamma = draft.shape[0]
  last = sampling.draw(uniforms[2], of(_row(rows, gamma)).q)
  draft = jnp.append(draft, last)
  (deferred,) = _of_drafts((method.rule,), lenience, draft, rows, of)
  kept = _leading(deferred == 0)
  num_accepted = jnp.minimum(kept, gamma)
  written = sampling.draw(uniforms[1], of(_row(rows, num_accepted)).p)
  return Verdict(
    num_accepted=num_accepted,
    next_token=jnp.where(kept > gamma, last, written),
    next_source=jnp.where(kept > gamma, DRAFT, RESIDUAL),
    deferred=deferred > 0,
  )
