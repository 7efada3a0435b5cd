"""Verification that looks ahead: by enumeration, and through the loop."""

import itertools

import decoding_test
import numpy as np
import pytest
import tiers
import verification_test

from cascades import methods, verification
from cascades.proof import exact

_MODEL, _PROMPT, _GAMMA = (
  getattr(verification_test, name) for name in ('_MODEL', '_PROMPT', '_GAMMA')
)
_PAIRS = [(m, x) for m in methods.METHODS.values() for x in (0.1, 0.8)]
_STRICT = [
  (m, m.strict) for m in methods.METHODS.values() if m.strict is not None
]


def _ahead(window):
  return verification.VerificationConfig(f'look_ahead:{window}')


def _first(table, config, gamma=_GAMMA):
  """The law of a block's first token, [M, V]."""
  return exact.emitted_law(table, config, _MODEL, _PROMPT, 1, gamma)


@pytest.mark.parametrize('window', [2, 3, 4])
def test_the_first_token_has_the_law_that_is_declared(window):
  table = verification_test._table(_PAIRS)
  c = _MODEL.context_after(_PROMPT)
  strict = np.minimum(1, table.p / table.q)

  def sure(done, drafts):
    """The chance that so many drafts after `done` are kept strictly."""
    total = 0.0
    for further in itertools.product(range(3), repeat=drafts):
      chance = 1.0
      for i, x in enumerate(further):
        of = _MODEL.context_after([*_PROMPT, *done, *further[:i]])
        chance *= table.q[of, x] * strict[of, x]
      total += chance
    return total

  fits = window <= _GAMMA
  follow = [sure((x,), window - 1) if fits else 0.0 for x in range(3)]
  more = np.maximum(table.acceptance[:, c] - strict[c], 0)
  kept = table.q[c] * (strict[c] + more * np.array(follow))
  left = np.maximum(table.p[c] - table.q[c], 0)
  want = kept + (1 - kept.sum(-1, keepdims=True)) * left / left.sum()
  np.testing.assert_allclose(_first(table, _ahead(window)), want, atol=1e-9)
  # It is neither strict nor lenient.
  for other in (table.p[None, c], table.law[:, c]):
    assert (np.abs(want - other).max() > 0.01) == fits or not fits


@pytest.mark.parametrize('kind', ['random', 'disjoint'])
def test_at_its_strict_end_a_method_is_the_verifier(kind):
  table = verification_test._table(_STRICT, kind)
  emitted = exact.emitted_law(
    table, _ahead(2), _MODEL, _PROMPT, _GAMMA + 1, _GAMMA
  )
  declared = exact.declared_law(table, _MODEL, _PROMPT, _GAMMA + 1)
  np.testing.assert_allclose(emitted, declared, atol=1e-9)


def test_a_window_keeps_more_than_strict_and_less_than_lenient():
  pairs = [(methods.METHODS[m], 0.8) for m in ('token_v3', 'undecided')]
  table = verification_test._table(pairs)
  strict = verification_test._table([(m, m.strict) for m, _ in pairs])
  block = _MODEL, _PROMPT, _GAMMA
  kept = verification_test.kept
  token = verification.VerificationConfig('token')
  by = [kept(strict, token, *block)]
  by += [kept(table, x, *block) for x in (_ahead(3), _ahead(2), token)]
  for fewer, more in itertools.pairwise(by):
    assert (fewer <= more + 1e-12).all()
  assert (by[-1] > by[0] + 0.01).all()


@pytest.mark.parametrize('window', tiers.first([2, 3]))
def test_the_loop_emits_what_the_enumeration_says(window):
  pair, config = (methods.METHODS['token_v3'], 0.8), _ahead(window)
  sampling = decoding_test.SAMPLING['plain']
  table = exact.Table.from_methods(
    [pair], decoding_test.seen_of_model(config, sampling)
  )
  rows = decoding_test._generate(
    *(pair[0], [pair[1]], 3, 20_000),
    **dict(sampling=sampling, config=config, return_logits=False),
  )
  z, other = (
    exact.z_scores(
      rows.tokens[:, 0, 3:6],
      exact.emitted_law(
        table, of, decoding_test._MODEL, decoding_test._PROMPT, 3, 3
      )[0],
    )
    for of in (config, verification.STANDARD)
  )
  assert np.abs(z).max() < 5
  assert np.abs(other).max() > 10
