"""What an answer counts at another lenience than the one it was decoded at.

An answer x of the law pi, which is that of the lenience it was decoded at, has
at another lenience, whose law is pi', the weight

  w(x) = prod_t pi'(x_t | x_<t) / pi(x_t | x_<t),        E[w] = 1,

so that E[w f] is what any f of an answer comes to there: importance sampling.
These weights are per token. Where blocks are verified token by token, there are
others that are per block: what became of each draft is counted in. A token that
was drafted and kept had the chance q(x) a(x) of becoming that, one drawn in the
place of a draft (1 - sum q a) residual(x), a bonus token pi(x), and the ratios
of these multiply to that of the chances of the blocks as they were.

A sum over places needs no more of a weight than what stands before each place:

  E'[examined] = E[sum_t w_<t s'_t]
  E'[rejected] = E[sum_t w_<t s'_t (1 - sum q a')_t],

where s'_t says whether a draft is examined there. Per block that is what was
seen. Per token it is how probable that is after x_<t, whatever the blocks were:
a draft at place j of its block is followed by place j + 1 if it was kept, which
of a token x_t has the chance q(x_t) a'(x_t) / pi'(x_t), else by a new block.

Weights are wild where pi' likes what pi hardly writes: a few answers would
count for all, and mostly none of them was drawn, so that nothing looks amiss.
But both laws are known at every place, drawn tokens or not. So an answer counts
as long as w <= limit. At each place a token passes if it is more than g times
as likely as under pi, g being the largest of some ratios with w_<t g <= limit;
and what is lost by that is known though no such token was drawn,

  hidden(x) = sum_t w_<t pi'_t(tokens that pass),
  E[w 1{x stays}] + E[hidden] = 1:

how probable answers are, at the other lenience, that are out of sight here. Of
them nothing is known but that; an interval that is to hold has to grow by it.
Tokens with pi = 0, which have no support, pass at any limit.

Sums over places so weighted are Precup, Sutton and Singh's, 2000. Weights that
are stopped, and what is said of those that are, were derived here;
`tests/reweighting_test.py` goes through every text.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from cascades.scheme import DRAFT, RESIDUAL

if TYPE_CHECKING:
  # It brings JAX, which no page needs.
  from cascades.sampler.scoring import Across

# What may have a weight.
TOKEN, BLOCK = WEIGHTED = 'token', 'block'


class Counted(NamedTuple):
  """What an answer counts at each of K leniences.

  Attributes:
    weights: Its weight, 0 once it passed the limit.
    hidden: Of answers that pass it, the share that this one tells of.
    missing: Of answers that pi cannot write, the share that this one tells of;
      those that pass for another reason are not among them.
    examined: Examined drafts, each by the weight of what stands before it; nan
      where nothing can be said of blocks.
    rejected: Rejected drafts, in the same way.
  """

  weights: Float[np.ndarray, 'K']
  hidden: Float[np.ndarray, 'K']
  missing: Float[np.ndarray, 'K']
  examined: Float[np.ndarray, 'K']
  rejected: Float[np.ndarray, 'K']


def per_token(
  said: 'Across',
  ratios: Sequence[float],
  limit: float = np.inf,
  gamma: int | None = None,
) -> Counted:
  """What an answer counts by the law of its tokens.

  Args:
    said: What the laws say of its N tokens.
    ratios: By how much likelier tokens are that `said` counts as beyond; the
      last is inf.
    limit: Most that an answer may count, at least 1.
    gamma: Drafts of a block, if they are verified token by token and all of
      them are there; None: nothing is said of blocks.
  """
  with np.errstate(divide='ignore', invalid='ignore'):
    ratio = said.law / said.law[:, :1]
  examined = None
  if gamma is not None:
    with np.errstate(divide='ignore', invalid='ignore'):
      stays = np.clip(said.kept / said.law, 0, 1)
    examined = _examined(np.nan_to_num(stays), gamma)
  return _counted(ratio, said.beyond, said.rejected, examined, ratios, limit)


def per_block(
  said: 'Across',
  sources: Sequence[int],
  ratios: Sequence[float],
  limit: float = np.inf,
) -> Counted:
  """What an answer counts by the chances of its blocks, verified by token.

  Args:
    said: What the laws say of its N tokens.
    sources: Where each came from, [N]; see `cascades.scheme.SOURCES`.
    ratios: By how much likelier outcomes are that `said` counts as beyond; the
      last is inf.
    limit: Most that an answer may count, at least 1.
  """
  sources = np.asarray(sources)[:, None]
  drafted = (sources == DRAFT) | (sources == RESIDUAL)
  chance = np.select(
    [sources == DRAFT, sources == RESIDUAL], [said.kept, said.instead], said.law
  )
  with np.errstate(divide='ignore', invalid='ignore'):
    ratio = chance / chance[:, :1]
  beyond = np.where(drafted[..., None], said.beyond_drafted, said.beyond)
  examined = np.broadcast_to(drafted, ratio.shape).astype(float)
  return _counted(ratio, beyond, said.rejected, examined, ratios, limit)


def _examined(
  stays: Float[np.ndarray, 'N K'], gamma: int
) -> Float[np.ndarray, 'N K']:
  """How likely a draft is examined at each place, after the tokens before it.

  Args:
    stays: How likely each token was drafted and kept, if one was examined
      there; given the token.
    gamma: Drafts of a block.
  """
  count, k = stays.shape
  # By place in the block; at the last one stands a bonus token.
  place = np.zeros((gamma + 1, k))
  place[0] = 1
  found = np.empty((count, k))
  for t in range(count):
    drafts = place[:gamma]
    found[t] = drafts.sum(0)
    begins = place[gamma] + (drafts * (1 - stays[t])).sum(0)
    place = np.concatenate([begins[None], drafts * stays[t]])
  return found


def _counted(ratio, beyond, rejected, examined, ratios, limit) -> Counted:
  """Follows an answer as long as it stays within the limit.

  Args:
    ratio: Of each outcome, by its chance at the first lenience, [N, K].
    beyond: As `Across.beyond`, of the outcomes that there were, [N, K, M].
    rejected: How likely a draft is rejected at each place, [N, K].
    examined: How likely one is examined there, [N, K]; None: it is not known.
    ratios: [M], as in `beyond`.
    limit: Most that an answer may count.
  """
  ratios, each = np.asarray(ratios), np.arange(ratio.shape[1])
  weight, hidden, missing = np.ones(len(each)), 0.0, 0.0
  before = np.empty_like(ratio)
  for t in range(len(ratio)):
    before[t] = weight
    with np.errstate(divide='ignore'):
      most = limit / weight
    g = np.maximum(np.searchsorted(ratios, most, 'right') - 1, 0)
    hidden = hidden + weight * beyond[t, each, g]
    missing = missing + weight * beyond[t, :, -1]
    # What the first lenience has at 0 was written by rounding, and passes too.
    stays = (ratio[t] <= ratios[g]) & np.isfinite(ratio[t])
    weight = np.where(stays, weight * np.where(stays, ratio[t], 0), 0)
  nothing = np.full(len(each), np.nan)
  zero = np.zeros(len(each))
  return Counted(
    weights=weight,
    hidden=hidden + zero,
    missing=missing + zero,
    examined=nothing if examined is None else (before * examined).sum(0),
    rejected=nothing
    if examined is None
    else (before * examined * rejected).sum(0),
  )


def effective_size(weights: Float[np.ndarray, 'n ...']) -> np.ndarray:
  """How many answers of equal weight say as much: (sum w)^2 / sum w^2.

  Kish 1965; 0 where nothing has a weight.
  """
  squares = (weights**2).sum(0)
  return weights.sum(0) ** 2 / np.where(squares > 0, squares, 1)
