"""From logits to probabilities, and drawing from them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascades.methods import processing
from cascades.proof import law_checks

_LOGITS = jnp.array([2.0, 1.0, 0.5, 0.5, -1.0])


def _probs(logits=_LOGITS, **sampling):
  return np.asarray(
    processing.processed_probs(logits, processing.SamplingParams(**sampling))
  )


@pytest.mark.parametrize('temperature', [1e-5, 0.1, 0.5, 1.0])
@pytest.mark.parametrize('sign', [1, -1])
def test_finite_logits_do_not_overflow(temperature, sign):
  logits = sign * jnp.float32([3e38, 2e38, 3e38, -3e38])
  want = [0.5, 0, 0.5, 0] if sign > 0 else [0, 0, 0, 1]
  np.testing.assert_array_equal(_probs(logits, temperature=temperature), want)


def test_the_likeliest_is_that_of_an_argmax():
  some = np.random.default_rng(0).integers(0, 4, (5, 7, 9))
  values = np.where(some == 3, -np.inf, some).astype(np.float32)
  values[0, 0] = -np.inf
  found = processing.argmax_lowest_id(jnp.asarray(values))
  np.testing.assert_array_equal(found, values.argmax(-1))
  assert found.dtype == jnp.int32


@pytest.mark.parametrize('size', [1, 30, 1e4])
def test_small_temperatures_are_greedy_and_never_nan(size):
  logits = size * jax.random.normal(jax.random.key(0), (64, 9))
  over = jax.jit(jax.vmap(processing.processed_probs, (0, None)))
  greedy = over(logits, processing.SamplingParams(temperature=0.0))
  for power in range(46):
    got = over(logits, processing.SamplingParams(temperature=10.0**-power))
    np.testing.assert_allclose(got.sum(-1), 1, atol=1e-5)
    if 10.0**-power < processing.GREEDY_BELOW:
      np.testing.assert_array_equal(got, greedy)
    elif power < 3:
      want = jax.nn.softmax(logits * 10**power)
      np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize('temperature', [0.0, 0.7])
def test_devices_that_make_no_choice_give_the_same(monkeypatch, temperature):
  given = dict(temperature=temperature, top_p=0.9, forbidden=_LOGITS == 0.5)
  want = _probs(**given)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  np.testing.assert_array_equal(_probs(**given), want)


def test_what_is_forbidden_leaves_a_distribution():
  # Of a token that was chosen, all but one logit are -inf.
  chosen = jnp.where(jnp.arange(5) == 2, 0.0, -jnp.inf)
  forbidden = jnp.array([True, False, True, False, False])
  for logits in chosen, _LOGITS:
    for temperature in (0.0, 1.0):
      got = _probs(logits, temperature=temperature, forbidden=forbidden)
      assert got.sum() == pytest.approx(1, abs=1e-6)
      np.testing.assert_array_equal(got[np.asarray(forbidden)], 0)
  assert _probs(temperature=0.0, forbidden=forbidden)[1] == 1


def _kept_by_sorting(probs, k, share):
  """Which tokens a plain sort keeps, in float64."""
  probs = np.asarray(probs, np.float64)
  ordered = np.sort(probs)[::-1]
  ordered = ordered[ordered >= ordered[min(k, len(ordered)) - 1]]
  before = np.concatenate([[0], np.cumsum(ordered)[:-1]])
  inside = ordered[(before < share * ordered.sum()) | (ordered == ordered[0])]
  return probs >= inside.min()


@pytest.mark.parametrize('dtype', [np.float16, np.float32])
def test_what_is_kept_is_what_a_sort_keeps(dtype):
  # Of sixteenths many are equal, and every sum is exact.
  rows = np.random.default_rng(0).multinomial(16, np.full(9, 1 / 9), 200) / 16
  # The mass of a top-p is that of what top-k leaves.
  for k, share in (1, 1.0), (3, 0.5), (9, 0.25), (5, 0.0), (20, 1.0), (2, 0.7):
    cut = functools.partial(processing.truncate, top_k=k, top_p=share)
    got = np.asarray(jax.vmap(cut)(jnp.asarray(rows, dtype)))
    assert got.dtype == dtype
    for row, kept in zip(rows, got > 0, strict=True):
      want = _kept_by_sorting(row, k, share) & (row > 0)
      assert kept.tolist() == want.tolist(), (row, k, share)


def test_probabilities_are_float32_whatever_they_are_made_of():
  got = _probs(_LOGITS.astype(jnp.bfloat16), top_p=0.9)
  assert got.dtype == np.float32
  assert got.sum() == pytest.approx(1, abs=1e-6)
  with law_checks.enable_x64(True):
    assert _probs(temperature=np.float64(0.7)).dtype == np.float32


def test_borders_do_not_hang_on_rounding():
  # The least of the kept tokens used to be lost where both were set: the sorted
  # and the unsorted probabilities were normalised in different orders.
  logits = 2 * jax.random.normal(jax.random.key(0), (2000, 5))
  sampling = processing.SamplingParams(top_k=5, top_p=1.0)
  probs = jax.vmap(processing.processed_probs, (0, None))(logits, sampling)
  assert (probs > 0).all()
