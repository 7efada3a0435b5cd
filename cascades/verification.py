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
"""

import dataclasses
from typing import NamedTuple

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
  dists: methods.Distributions,
  scheme: Scheme = STANDARD,
) -> Verdict:
  """Verifies a block.

  Args:
    method: What to keep and what to sample instead.
    lenience: Of the method.
    key: Used for this block only.
    draft: x_1..x_gamma, gamma >= 0.
    dists: Of positions 1..gamma + 1, each [gamma + 1, V]; `q` is what the
      draft was drawn from.
    scheme: How.

  Returns:
    The verdict.
  """
  chex.assert_shape(dists, (draft.shape[0] + 1, None))
  if scheme.gate == 'processed':
    dists = dists._replace(q_gate=dists.q, p_gate=dists.p)
  keep_key, next_key = jax.random.split(key)
  if scheme.verification == 'sequential':
    return _sequential(method, lenience, keep_key, next_key, draft, dists)
  count = {'token': _count_by_token, 'block': _count_by_block}
  num_accepted, weight = count[scheme.verification](
    method, lenience, keep_key, draft, dists
  )
  rejected = num_accepted < draft.shape[0]
  # Only the one row that is sampled is made.
  row = jax.tree.map(lambda x: x[num_accepted], dists)
  law = method.law(row, lenience)
  if scheme.verification == 'token':
    instead = method.residual(row, lenience)
  else:
    instead = methods.normalised(jnp.maximum(0, weight * law - row.q), law)
  bonus = law if scheme.bonus == 'target' else row.p
  deferred = jnp.zeros((draft.shape[0] + 1,), bool)
  if method.rule is not None:
    of_drafts = _of_drafts(method.rule, lenience, draft, dists)
    deferred = deferred.at[:-1].set(of_drafts)
  return Verdict(
    num_accepted=num_accepted,
    next_token=sampling.sample(next_key, jnp.where(rejected, instead, bonus)),
    next_source=jnp.where(rejected, RESIDUAL, BONUS),
    deferred=deferred,
  )


def _of_drafts(fn, lenience, draft, dists) -> Array:
  """fn's value for each drafted token; [len(draft)]."""

  def one(d, x):
    return jnp.broadcast_to(fn(d, lenience), d.q.shape)[x]

  rows = jax.tree.map(lambda x: x[: draft.shape[0]], dists)
  return jax.vmap(one)(rows, draft)


def _leading(kept: Bool[Array, 'n']) -> Int[Array, '']:
  """How many are True before the first that is not."""
  return jnp.cumprod(kept.astype(jnp.int32)).sum().astype(jnp.int32)


def _count_by_token(method, lenience, key, draft, dists):
  """How many drafts stay; [] and a weight that is not used."""
  # u < 1 always: what is accepted with probability 1 never fails.
  uniform = jax.random.uniform(key, draft.shape)
  kept = uniform < _of_drafts(method.acceptance, lenience, draft, dists)
  return _leading(kept), jnp.ones(())


def _count_by_block(method, lenience, key, draft, dists):
  """How many drafts stay, and the weight w_i of the target after them.

  With w_0 = 1 and pi_i, q_i the rows of draft x_i,

    w_i = min(1, w_{i-1} pi_i(x_i) / q_i(x_i))
    S_i = sum max(0, w_i pi_{i+1} - q_{i+1})
    h_i = S_i / (S_i + 1 - w_i) for i < gamma,   h_gamma = w_gamma,

  the longest i with u_i < h_i stays, and the residual after it is
  norm(max(0, w_i pi_{i+1} - q_{i+1})). Unverified against its authors' code;
  that it keeps the law is proven by enumeration.
  """
  gamma = draft.shape[0]
  one = jnp.ones((1,))
  if not gamma:
    return jnp.zeros((), jnp.int32), one[0]
  pi = jax.vmap(method.law, (0, None))(dists, lenience)

  def weigh(w, inputs):
    pi_x, q_x = inputs
    # A draft has q(x) > 0, unless it stands past a row's end.
    w = jnp.where(w * pi_x >= q_x, 1.0, w * pi_x / jnp.where(q_x > 0, q_x, 1))
    return w, w

  at = jnp.arange(gamma), draft
  _, w = jax.lax.scan(weigh, one[0], (pi[at], dists.q[at]))
  inner = w[:-1, None] * pi[1:gamma] - dists.q[1:gamma]
  mass = jnp.maximum(0, inner).sum(-1)
  # In this order no rounding makes the divisor smaller than the mass. At w = 1
  # and no mass the next draft is kept for certain: any h will do.
  lost = jnp.where(w[:-1] < 1, 1 - w[:-1], 1)
  h = jnp.where(w[:-1] < 1, mass / (mass + lost), 1)
  h = jnp.append(h, w[-1])
  kept = jax.random.uniform(key, (gamma,)) < h
  num_accepted = jnp.where(kept, jnp.arange(1, gamma + 1), 0).max()
  num_accepted = num_accepted.astype(jnp.int32)
  return num_accepted, jnp.concatenate([one, w])[num_accepted]


def _sequential(method, lenience, keep_key, next_key, draft, dists) -> Verdict:
  """A cascade of tokens: the drafter writes until its rule defers.

  It drafts gamma + 1 tokens here, for it needs no verifier to go on.
  """
  gamma = draft.shape[0]
  last = sampling.sample(keep_key, dists.q[gamma])
  draft = jnp.append(draft, last)
  deferred = _of_drafts(method.rule, lenience, draft, dists)
  kept = _leading(~deferred)
  num_accepted = jnp.minimum(kept, gamma)
  written = sampling.sample(next_key, dists.p[num_accepted])
  return Verdict(
    num_accepted=num_accepted,
    next_token=jnp.where(kept > gamma, last, written),
    next_source=jnp.where(kept > gamma, DRAFT, RESIDUAL),
    deferred=deferred,
  )
