"""Verification by enumeration: every block that it can emit, exactly."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascades import methods, verification
from cascades.proof import exact
from cascades.verification_config import BONUSES, SINGLE_DRAFT

_PROMPT, _GAMMA = (1, 2), 3
# Its law is not the verifier's, and it rejects often.
_RULE = 'typical', 0.3
# A row for each text of a block, and for the token after it.
_MODEL = exact.TableModel.injective(3, _GAMMA + 1)


def _pairs(config):
  """Every method that a verification takes, at leniences that matter."""
  pairs = []
  for method in methods.METHODS.values():
    try:
      config.check(method)
    except ValueError:
      continue
    ends = [x for x in (method.strict, method.drafter_only) if x is not None]
    pairs += [(method, x) for x in dict.fromkeys([*ends, 0.1, 0.3, 0.8])]
  return pairs


def rows_of(model, prompt, length, kind='random'):
  """Distributions of every context; the random ones cannot be mixed up."""
  d = exact.draw_distributions(kind, count=model.contexts, size=3, seed=3)
  if kind == 'random':
    exact.check_distances(d.q, d.p, exact.context_pairs(model, prompt, length))
  return d


def _table(pairs, kind='random'):
  with exact.enable_x64(True):
    return exact.Table.from_methods(
      pairs, rows_of(_MODEL, _PROMPT, _GAMMA + 1, kind)
    )


@pytest.mark.parametrize('kind', ['random', 'near_equal', 'disjoint'])
@pytest.mark.parametrize('gamma', range(1, _GAMMA + 1))
@pytest.mark.parametrize('verification_', SINGLE_DRAFT)
def test_blocks_follow_the_declared_law(verification_, gamma, kind):
  # The law of the first gamma + 1 tokens, whatever blocks they come in.
  config = verification.VerificationConfig(verification_)
  table = _table(_pairs(config), kind)
  emitted = exact.emitted_law(table, config, _MODEL, _PROMPT, gamma + 1, gamma)
  declared = exact.declared_law(table, _MODEL, _PROMPT, gamma + 1)
  np.testing.assert_allclose(emitted, declared, atol=1e-9)


def kept(table, *block):
  """Drafts of a block that stay, on average, of each method."""
  blocks = exact.blocks(table, *block)
  return sum((len(block) - 1) * chance for block, chance in blocks)


@pytest.mark.parametrize('gamma', [1, 2, 3])
def test_block_verification_keeps_at_least_as_many(gamma):
  table = _table(_pairs(verification.VerificationConfig('block')))
  by_token, by_block = (
    kept(table, verification.VerificationConfig(x), _MODEL, _PROMPT, gamma)
    for x in ('token', 'block')
  )
  assert (by_block >= by_token - 1e-12).all()
  if gamma > 1:
    assert (by_block > by_token + 1e-3).any()


def test_the_verifiers_bonus_is_not_the_target():
  config = verification.VerificationConfig(bonus='verifier')
  pairs = _pairs(config)
  table = _table(pairs)
  emitted = exact.emitted_law(table, config, _MODEL, _PROMPT, 2, 1)
  declared = exact.declared_law(table, _MODEL, _PROMPT, 2)
  off = np.abs(emitted - declared).max((1, 2))
  for (method, lenience), difference in zip(pairs, off, strict=True):
    if lenience == method.strict or method.name == 'verifier_only':
      assert difference < 1e-12
  at = pairs.index((methods.METHODS['drafter_only'], 0.0))
  assert off[at] > 0.05


@pytest.mark.parametrize('bonus', BONUSES)
@pytest.mark.parametrize('verification_', [*SINGLE_DRAFT, 'look_ahead:2'])
def test_verify_emits_what_the_enumeration_says(verification_, bonus):
  config = verification.VerificationConfig(verification_, bonus=bonus)
  # Five standard deviations of a share of 9 n, at the most.
  check_verify(_MODEL, _PROMPT, 4, config, 1, 2, 20_000, 1.5)


def check_verify(model, prompt, length, config, drafts, gamma, n, share):
  """The library's own verification, on every tree of drafts, one after another.

  The mean over n keys each is compared with the enumerated blocks, to five
  standard deviations over `share`.
  """
  d = rows_of(model, prompt, length)
  # The second is looser: there is something to look ahead for.
  name, lenience = ('ensemble', 0.8) if not config.kind.keeps_law else _RULE
  method = methods.METHODS[name]
  table = exact.Table.from_methods([(method, lenience)], d)
  d = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), d)

  def context(done):
    tokens = np.array([*prompt, *done])
    return int(model.context(tokens, np.arange(len(tokens))))

  @jax.jit
  @functools.partial(jax.vmap, in_axes=(0, None, None))
  def verdicts(key, paths, rows):
    inputs = verification.VerificationInputs.full_length(
      method,
      jnp.asarray(lenience),
      paths,
      lambda i, j: jax.tree.map(lambda x: x[rows[i, j]], d),
      config,
    )
    return verification.verify(inputs, key)

  got = {}
  every = list(itertools.product(range(3), repeat=gamma))
  for number, paths in enumerate(itertools.product(every, repeat=drafts)):
    rows = np.array(
      [[context(path[:i]) for path in paths] for i in range(gamma + 1)]
    )
    chance = np.prod(
      [d.q[rows[i, j]][x] for j, p in enumerate(paths) for i, x in enumerate(p)]
    )
    keys = jax.random.split(jax.random.key(number), n)
    said = jax.device_get(verdicts(keys, jnp.array(paths), jnp.array(rows)))
    # Whether the rule defers a token is asked in its own row, too: of one draft
    # wherever it is, of several along the path that stays.
    deferred = table.deferred[0, rows[:gamma], np.transpose(paths)] > 0
    asked = gamma if drafts == 1 else said.num_accepted[:, None]
    differs = said.deferred[:, :gamma] != deferred[:, said.draft_index].T
    assert not (differs & (np.arange(gamma) < asked)).any()
    for path, count, token in zip(
      said.draft_index, said.num_accepted, said.next_token, strict=True
    ):
      block = (*paths[path][:count], int(token))
      got[block] = got.get(block, 0) + float(chance) / n
  want = {}
  for block, chance in exact.blocks(
    table, config, model, prompt, gamma, drafts
  ):
    want[block] = want.get(block, 0) + float(chance[0])
  assert sum(want.values()) == pytest.approx(1)
  for block in want | got:
    off = abs(got.get(block, 0) - want.get(block, 0))
    assert off < 5 * np.sqrt(max(want.get(block, 0), 1e-4) / n) / share


@pytest.mark.parametrize(('name', 'lenience'), [('chow', 0.5), ('diff', 0.0)])
def test_tokens_and_deferrals_are_those_of_a_plain_cascade(name, lenience):
  gamma, method = 2, methods.METHODS[name]
  table = _table([(method, lenience)])
  defers = table.deferred[0, :, 0] > 0
  assert 0 < defers.mean() < 1
  # The cascade draws from q, and from p where the rule defers.
  plain = np.where(defers[:, None], table.p, table.q)
  np.testing.assert_allclose(table.law[0], plain, atol=1e-12)
  emitted = exact.emitted_law(
    table, verification.STANDARD, _MODEL, _PROMPT, gamma + 1, gamma
  )
  cascade = dataclasses.replace(table, law=plain[None])
  declared = exact.declared_law(cascade, _MODEL, _PROMPT, gamma + 1)
  np.testing.assert_allclose(emitted, declared, atol=1e-9)
  # At each token `token` says what the rule does there, whatever is drafted.
  d = rows_of(_MODEL, _PROMPT, gamma + 1)

  @functools.partial(jax.vmap, in_axes=(0, None, None, None))
  def verify(key, path, rows, has_q):
    inputs = verification.VerificationInputs.full_length(
      method,
      jnp.asarray(lenience),
      path[None],
      lambda i, _: jax.tree.map(lambda x: jnp.asarray(x)[rows[i]], d),
    )
    inputs = dataclasses.replace(inputs, has_bonus_probs=has_q[None])
    return verification.verify(inputs, key)

  verify, keys = jax.jit(verify), jax.random.split(jax.random.key(0), 50)
  for path in itertools.product(range(3), repeat=gamma):
    texts = ([*_PROMPT, *path[:i]] for i in range(gamma + 1))
    rows = np.array([_MODEL.context_after(text) for text in texts])
    for has_q in (True, False):
      want = defers[rows] | ((np.arange(gamma + 1) == gamma) & (not has_q))
      verdict = verify(keys, jnp.array(path), jnp.array(rows), jnp.array(has_q))
      is_emitted = np.arange(gamma + 1) <= verdict.num_accepted[:, None]
      assert not (is_emitted & (verdict.deferred != want)).any()


@pytest.mark.parametrize('gamma', [0, 2])
def test_a_block_without_drafts_is_drawn_from_its_first_row(gamma):
  rows = jax.tree.map(lambda x: jnp.eye(3), methods.Distributions(*range(4)))
  inputs = verification.VerificationInputs.full_length(
    methods.METHODS['speed'],
    jnp.asarray(0.0),
    jnp.ones((1, gamma), int),
    lambda i, j: jax.tree.map(lambda x: x[i], rows),
  )
  inputs = dataclasses.replace(
    inputs, draft_lengths=jnp.zeros(1, int), empty_draft=True
  )
  said = verification.verify(inputs, jax.random.key(0))
  assert (said.num_accepted, said.next_token) == (0, 0)
