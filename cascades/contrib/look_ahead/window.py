"""One draft per block, each token judged by what is drafted after it too.

A rule that looks at one place cannot tell another way to say the same from a
mistake. Here a draft that only the lenient method would keep stays if what
follows it shows that the text goes on as the verifier would have it: the next
W - 1 drafts would have stayed by strict decoding. That is the deferred window
of FLy (arXiv 2511.22972), which was not compared with its authors' code
(unverified); its gate is the method `undecided`, at temperature 0 its strict
decoding is equality with the verifier's favourite.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cascades import methods
from cascades.verification import single_draft
from cascades.verification.verdict import Verdict


def _strict(d: methods.Distributions, lenience: Array) -> Array:
  """min(1, p / q), whatever the method."""
  del lenience
  return methods.ratio(d.p, d.q)


def look_ahead(
  ask: single_draft.Question,
  chances: Float[Array, 'gamma'],
  last: Float[Array, 'n'],
  argument: int,
) -> Verdict:
  """From the left, each draft by itself or by what follows it.

  With one number u_i for each draft x_i, drawn once,

    s_i = u_i < min(1, p_i(x_i) / q_i(x_i))
    l_i = u_i < acceptance_i(x_i)
    x_i stays if s_i, or if l_i and s_{i+1}, ..., s_{i+W-1},

  and all before it stay; where a block has no W - 1 drafts after x_i, only s_i
  counts. After the first that does not stay comes a token of norm(max(0, p -
  q)). So a block follows, with A(x) the chance that the W - 1 drafts after x
  are all s,

    kept_i(x) = s_i(x) + max(0, l_i(x) - s_i(x)) A(x)
    law_i(x) = q_i(x) kept_i(x) + (1 - sum q_i kept_i) norm(max(0, p_i - q_i)),

  s_i and l_i as chances; and after a draft that stayed so, the next W - 1 are
  those that were looked at. At the method's strict lenience it is p. It hangs
  on where blocks begin: a text has no one probability.

  Args:
    ask: The block.
    chances: One for each draft.
    last: What the token after those that stay is drawn by.
    argument: W, 2 or more.
  """
  window = argument
  method, count = ask.method, ask.count[0]
  strict, acceptance, deferred = single_draft.of_drafts(
    ask, (_strict, method.acceptance, method.rule), ask.tokens[0]
  )
  there = jnp.arange(ask.gamma) < count
  sure, likely = ((chances < x) & there for x in (strict, acceptance))

  def run(after, now):
    # How many in a row are sure from here on.
    return jnp.where(now, after + 1, 0), after

  zero = jnp.zeros((), jnp.int32)
  _, followed = jax.lax.scan(run, zero, sure, reverse=True)
  kept = single_draft.leading(sure | (likely & (followed >= window - 1)))
  d, lenience = ask.row(kept, 0), ask.leniences[0, kept]
  instead = methods.normalize(jnp.maximum(0, d.p - d.q), d.p)
  beyond = ask.beyond(d, method.law(d, lenience), ask.known[0])
  found = single_draft.verdict(
    kept, kept < count, instead, beyond, last, deferred
  )
  return single_draft.check_acceptance(found, acceptance, there)
