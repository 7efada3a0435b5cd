"""Drafts of each drafter, and how many."""

import functools
import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascades import decoding, drafters
from cascades.drafters import recurrent


def test_a_threshold_decides_how_much_is_drafted():
  adaptive = cases.drafter('adaptive').bound

  def run(threshold):
    bound = adaptive._replace(params=(cases.NEAR, jnp.float32(threshold)))
    options = dict(rows=256, new=8, bound=bound)
    return decoding.count(cases.generate('speed', (0.0,), **options))

  never, some, always = run(0.0), run(0.55), run(1.1)
  for drafted in never.drafted, never.drafter_calls:
    assert (drafted == 3 * never.blocks).all()
  assert not always.drafted.any()
  assert (always.drafter_calls == always.blocks).all()
  assert 0 < some.drafted.sum() < 3 * some.blocks.sum()
  # What is drafted where the drafter is sure is kept more often.
  rates = [x.accepted.sum() / x.examined.sum() for x in (never, some)]
  assert rates[1] > rates[0]


def _look_up(tokens, gamma, window, agreeing):
  """In plain words: the best agreement, of equals the latest, going round."""
  best, found = agreeing, []
  for start in range(1, len(tokens)):
    pairs = zip(tokens[:start][::-1], tokens[:0:-1], strict=False)
    same = [one == other for one, other in pairs][:window]
    if same[0] and sum(same) >= best:
      best, found = sum(same), (gamma * tokens[start:])[:gamma]
  return found


@functools.partial(jax.jit, static_argnums=0)
def _drafted(drafter, tokens, length):
  given = tokens, length, *[None] * 4
  context = drafters.DraftContext(*given, needs_bonus_probs=jnp.bool_(True))
  return drafter.propose((), (), context, gamma=4, drafts=1)[0]


# The last are the usual ones: a phrase is not enough.
@pytest.mark.parametrize('asked', [(3, 1), (5, 3), (12, 9)])
def test_ngrams_are_what_followed_the_last_time(asked):
  drafter = drafters.NgramDrafter(*asked)
  assert drafters.NgramDrafter() == drafters.NgramDrafter(12, 9)
  rng = np.random.default_rng(0)
  found = 0
  for _ in range(200):
    # Some of it stands there twice, with a few other tokens.
    first = rng.integers(0, 4, rng.integers(1, 24))
    again = np.where(rng.random(len(first)) < 0.1, 4, first)
    tokens = [*first.tolist(), *again[: rng.integers(0, 24)].tolist()]
    rest = rng.integers(0, 4, 48 - len(tokens)).tolist()
    draft = _drafted(drafter, jnp.array(tokens + rest), len(tokens))
    want = _look_up(tokens, 4, *asked)
    assert draft.tokens[0, : draft.lengths[0]].tolist() == want
    rows = [draft.logits_at(i, 0, 9) for i in range(len(want))]
    assert [int(jnp.argmax(row)) for row in rows] == want
    found += bool(want)
  assert 20 < found < 200


# --- The recurrent head


def test_the_beams_are_the_likeliest_drafts():
  # As many beams as prefixes, so that the search misses nothing.
  length, beams = 3, cases.SIZE**2
  hidden = jax.random.normal(jax.random.key(5), (cases.SIZE,))
  token = jnp.int32(2)
  given = cases.MODEL, cases.VERIFIER, cases.HEAD, hidden
  options = dict(token=token, gamma=length, beams=beams)
  tokens, logits = recurrent.draft_beams(*given, **options)
  assert tokens.shape == (beams, length + 1)
  scores = {}
  for draft in itertools.product(range(cases.SIZE), repeat=length):
    state, last, score = hidden, token, 0.0
    for x in draft:
      state, row = recurrent.step(*given, state, last)
      score += float(jax.nn.log_softmax(row)[x])
      last = jnp.int32(x)
    scores[draft] = score
  best = sorted(scores, key=scores.get, reverse=True)[:beams]
  assert tokens[:, 0].tolist() == [2] * beams
  assert [tuple(x) for x in tokens[:, 1:].tolist()] == best
  # Each row is what the head says along that very draft.
  for j in (0, 7, beams - 1):
    state = hidden
    for i in range(length + 1):
      state, row = recurrent.step(*given, state, tokens[j, i])
      np.testing.assert_allclose(logits[i, j], row, atol=1e-5)
