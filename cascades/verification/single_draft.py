"""One draft per block: token by token, and as a block.

Each function takes a `Question` and random numbers, those that decide what
stays and those that the token after it is drawn by, and gives a `Verdict`.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cascades import methods
from cascades.methods import processing
from cascades.verification.verdict import Verdict
from cascades.verification_config import BONUS, DRAFT, RESIDUAL

# Probabilities of one sequence that are made at a time, at least one row.
# Small rows go together, since on a CPU a loop costs more than they do.
AT_ONCE = 2**15


@dataclasses.dataclass(frozen=True)
class Question:
  """What is asked about a block; see `verification.verify`.

  Attributes:
    method: What to keep and what to sample instead.
    leniences: [K, gamma + 1], how readily the method keeps drafts, after i
      tokens of draft j.
    tokens: [K, gamma].
    count: [K], tokens of each draft that are there.
    known: [K], whether the row after them has a `q`.
    row: Distributions after i tokens of draft j.
    size: V.
    from_target: Whether the bonus is drawn from the law, else from p.
  """

  method: methods.Method
  leniences: Float[Array, 'K gamma_1']
  tokens: Int[Array, 'K gamma']
  count: Int[Array, 'K']
  known: Bool[Array, 'K']
  row: Callable[..., methods.Distributions]
  size: int
  from_target: bool

  @property
  def gamma(self) -> int:
    """Tokens of a draft, at the most."""
    return self.tokens.shape[1]

  def beyond(self, d: methods.Distributions, law: Array, known: Array) -> Array:
    """What the token after a whole draft is drawn from."""
    return jnp.where(known, law, d.p) if self.from_target else d.p


def of_token(fn, d, lenience, x) -> Array:
  """What a function says of one token; None says 0 of everything."""
  if fn is None:
    return jnp.zeros((), d.q.dtype)
  return jnp.broadcast_to(fn(d, lenience), d.q.shape)[x]


def of_drafts(ask: Question, fns, draft) -> list[Array]:
  """What each function says of the drafted tokens; [len(draft)] each."""
  length = draft.shape[0]
  if not length:
    return [jnp.zeros((0,)) for _ in fns]

  def one(i):
    # Looked up in place: a slice of the rows would be a copy of them.
    d, x = ask.row(i, 0), draft[i]
    return [of_token(fn, d, ask.leniences[0, i], x) for fn in fns]

  at_once = min(length, max(1, AT_ONCE // ask.size))
  return jax.lax.map(one, jnp.arange(length), batch_size=at_once)


def leading(kept: Bool[Array, 'n']) -> Int[Array, '']:
  """How many are True before the first that is not."""
  return jnp.cumprod(kept.astype(jnp.int32)).sum().astype(jnp.int32)


def passed(ask: Question, last: Float[Array, 'n']) -> Verdict:
  """The token after nothing: no draft of the block is there to be looked at."""
  nothing = jnp.zeros((), jnp.int32)
  d = ask.row(nothing, nothing)
  law = ask.method.law(d, ask.leniences[0, 0])
  beyond = ask.beyond(d, law, ask.known[0])
  rejected, deferred = jnp.zeros((), bool), jnp.zeros(ask.gamma)
  return verdict(nothing, rejected, beyond, beyond, last, deferred)


def sequential(
  ask: Question, chances: Float[Array, 'n'], last: Float[Array, 'n']
) -> Verdict:
  """One token of the cascade that speculative ones are compared with.

    x ~ q;  emit x where r(x) = 0, and otherwise a token drawn from p

  Where the drafter stopped before it proposed x, though it knows what it would
  say, x is drawn here; where it has nothing to say, the verifier writes. The
  token comes after no draft, whoever wrote it.
  """
  zero = jnp.zeros((), jnp.int32)
  d = ask.row(zero, zero)
  proposed = ask.count[0] > 0
  x = jnp.where(
    proposed, ask.tokens[0, 0], processing.sample_from_uniforms(chances, d.q)
  )
  there = proposed | ask.known[0]
  rule = of_token(ask.method.rule, d, ask.leniences[0, 0], x)
  stays = there & ~(rule > 0)
  is_judged = jnp.isfinite(rule.astype(jnp.float32)) & processing.has_mass(d.q)
  is_valid = (is_judged | ~there) & (stays | processing.has_mass(d.p))
  return Verdict(
    num_accepted=zero,
    next_token=jnp.where(stays, x, processing.sample_from_uniforms(last, d.p)),
    next_source=jnp.where(stays, DRAFT, jnp.where(there, RESIDUAL, BONUS)),
    deferred=jnp.append(there & (rule > 0), False),
    path=zero,
    is_valid=is_valid,
  )


def token(
  ask: Question, chances: Float[Array, 'gamma'], last: Float[Array, 'n']
) -> Verdict:
  """From the left, each draft by itself."""
  method, count = ask.method, ask.count[0]
  acceptance, deferred = of_drafts(
    ask, (method.acceptance, method.rule), ask.tokens[0]
  )
  # u < 1 always: what is accepted with probability 1 never fails.
  there = jnp.arange(ask.gamma) < count
  kept = leading((chances < acceptance) & there)
  # Only the one row that is sampled is made.
  d, lenience = ask.row(kept, 0), ask.leniences[0, kept]
  instead = method.residual(d, lenience)
  law = method.law(d, lenience)
  beyond = ask.beyond(d, law, ask.known[0])
  found = verdict(kept, kept < count, instead, beyond, last, deferred)
  return check_acceptance(check_law(found, law), acceptance, there)


def check_acceptance(
  found: Verdict, acceptance: Float[Array, 'gamma'], there: Bool[Array, 'gamma']
) -> Verdict:
  """Marks a verdict as invalid if a draft was examined by a nan.

  A comparison with nan rejects, which no acceptance asked for.

  Args:
    found: The verdict.
    acceptance: Of the drafted tokens.
    there: Which of them there are.
  """
  index = jnp.arange(len(acceptance))
  examined = there & (index <= found.num_accepted)
  is_number = (jnp.isfinite(acceptance) | ~examined).all()
  return found._replace(is_valid=found.is_valid & is_number)


def check_law(found: Verdict, law: Float[Array, 'V']) -> Verdict:
  """Marks a verdict as invalid if its residual is of no distribution.

  A residual is made of what is above 0, and hides a law that is below.

  Args:
    found: The verdict.
    law: Of the token after what was kept.
  """
  is_residual = found.next_source == RESIDUAL
  is_valid = processing.has_mass(law) | ~is_residual
  return found._replace(is_valid=found.is_valid & is_valid)


def block(
  ask: Question, chances: Float[Array, 'gamma'], last: Float[Array, 'n']
) -> Verdict:
  """The longest part of the block that stays.

  With w_0 = 1 and pi_i, q_i the rows of draft x_i,

    w_i = min(1, w_{i-1} pi_i(x_i) / q_i(x_i))
    S_i = sum max(0, w_i pi_{i+1} - q_{i+1})
    h_i = S_i / (S_i + 1 - w_i) for i < gamma,   h_gamma = w_gamma,

  the longest i with u_i < h_i stays, and the residual after it is
  norm(max(0, w_i pi_{i+1} - q_{i+1})). A draft that was ended early is one of a
  smaller gamma. Unverified against its authors' code; that it keeps the law is
  proven by enumeration.
  """
  gamma, count = ask.gamma, ask.count[0]
  method = ask.method

  def weigh(w, i):
    d, x, lenience = ask.row(i, 0), ask.tokens[0, i], ask.leniences[0, i]
    pi = method.law(d, lenience)
    mass = jnp.maximum(0, w * pi - d.q).sum()
    after = methods.ratio(w * pi[x], d.q[x])
    deferred = of_token(method.rule, d, lenience, x)
    return after.astype(w.dtype), (w, mass, deferred)

  zero = jnp.zeros((), jnp.int32)
  one = jnp.ones((), jax.eval_shape(ask.row, zero, zero).q.dtype)
  end, (w, mass, deferred) = jax.lax.scan(weigh, one, jnp.arange(gamma))
  # In this order no rounding makes the divisor smaller than the mass. At w = 1
  # and no mass the next draft is kept for certain: any h will do.
  h = jnp.where(w < 1, mass / (mass + jnp.where(w < 1, 1 - w, 1)), 1)
  w = jnp.append(w, end)
  # Of i = 1..gamma; nothing is asked of i = 0.
  index = jnp.arange(1, gamma + 1)
  h = jnp.where(index == count, w[1:], jnp.append(h[1:], 0.0)[:gamma])
  stays = (chances < h) & (index <= count)
  kept = jnp.where(stays, index, 0).max(initial=0).astype(jnp.int32)
  d = ask.row(kept, 0)
  law = method.law(d, ask.leniences[0, kept])
  instead = methods.normalize(jnp.maximum(0, w[kept] * law - d.q), law)
  beyond = ask.beyond(d, law, ask.known[0])
  found = verdict(kept, kept < count, instead, beyond, last, deferred)
  return check_law(found, law)


def verdict(
  kept, rejected, instead, beyond, uniforms, deferred, path=0
) -> Verdict:
  """The token after what was kept: a residual, or the bonus beyond it all."""
  weights = jnp.where(rejected, instead, beyond)
  return Verdict(
    num_accepted=kept,
    next_token=processing.sample_from_uniforms(uniforms, weights),
    next_source=jnp.where(rejected, RESIDUAL, BONUS),
    deferred=jnp.append(deferred > 0, False),
    path=jnp.asarray(path, jnp.int32),
    is_valid=processing.has_mass(weights),
  )
