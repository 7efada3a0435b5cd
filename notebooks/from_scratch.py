# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The whole method in a hundred lines
#
# [![Open in Colab][badge]][colab]
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/
#
# Speculative decoding and cascades, on models so small that they are tables: 4
# tokens, and next-token probabilities that depend on the last token only. There
# is no cache and no neural network, only the method; and since the law of a
# text can be written down, it can be tested.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import scipy.stats

V, GAMMA, LENGTH, N = 4, 3, 3, 40_000
keys = jax.random.split(jax.random.key(0), 3)
Q = jax.nn.softmax(1.5 * jax.random.normal(keys[0], (V, V)))  # The drafter.
P = jax.nn.softmax(1.5 * jax.random.normal(keys[1], (V, V)))  # The verifier.
jax.devices()

# %% [markdown]
# ## 1. A deferral rule, and its target
#
# Chow's rule defers to the verifier where the drafter is not sure. The output
# should follow the *target*: q where the rule keeps q, p where it defers.


# %%
def target(q, p, lenience):
  """Returns pi = q (1 - r) + (sum r q) p, equation (11) of the paper."""
  r = q.max() < 1 - lenience
  return q * (1 - r) + (r * q).sum() * p


# %% [markdown]
# ## 2. Keep or replace
#
# A draft x from q is kept with probability min(1, pi(x) / q(x)), else replaced
# by a draw from the residual, norm(max(0, pi - q)). The result follows pi.


# %%
def acceptance(pi, q, x):
  return jnp.minimum(1, pi[x] / q[x])


def residual(pi, q):
  missing = jnp.maximum(0, pi - q)
  mass = missing.sum()
  return jnp.where(mass > 0, missing / jnp.where(mass > 0, mass, 1), pi)


pi = target(Q[0], P[0], 0.3)
a = jnp.array([acceptance(pi, Q[0], x) for x in range(V)])
emitted = Q[0] * a + (1 - (Q[0] * a).sum()) * residual(pi, Q[0])
np.testing.assert_allclose(emitted, pi, atol=1e-6)

# %% [markdown]
# ## 3. One block
#
# Draft GAMMA tokens; verify from the left; at the first rejection draw from the
# residual; if all are accepted, draw one more token from the target.


# %%
def block(last, key, lenience):
  """Returns tokens [GAMMA + 1], and the number of those to keep."""
  keys = jax.random.split(key, 2 * GAMMA + 1)

  def draft(token, key):
    token = jax.random.categorical(key, jnp.log(Q[token]))
    return token, token

  _, drafts = jax.lax.scan(draft, last, keys[:GAMMA])
  before = jnp.append(last, drafts)  # The token before each token.
  pis = jax.vmap(target, (0, 0, None))(Q[before], P[before], lenience)
  chance = jax.vmap(acceptance)(pis[:-1], Q[before[:-1]], drafts)
  u = jax.vmap(jax.random.uniform)(keys[GAMMA:-1])
  accepted = jnp.cumprod(u < chance).sum()
  missing = residual(pis[accepted], Q[before[accepted]])
  weights = jnp.where(accepted < GAMMA, missing, pis[accepted])
  token = jax.random.categorical(keys[-1], jnp.log(weights))
  return jnp.append(drafts, 0).at[accepted].set(token), accepted + 1


# %% [markdown]
# ## 4. Decode to a given length
#
# `vmap` the block, loop over the batch: each row advances at its own pace.


# %%
@jax.jit
def decode(key, lenience):
  """Returns tokens after token 0, [N, LENGTH], and blocks per row."""

  def step(carry, key):
    tokens, length = carry
    more, count = block(tokens[length - 1], key, lenience)
    done = length > LENGTH
    updated = jax.lax.dynamic_update_slice(tokens, more, (length,))
    return (
      jnp.where(done, tokens, updated),
      jnp.where(done, length, length + count),
    ), ~done

  def row(key):
    tokens = jnp.zeros(LENGTH + GAMMA + 2, int)
    keys = jax.random.split(key, LENGTH)
    (tokens, _), blocks = jax.lax.scan(step, (tokens, 1), keys)
    return tokens[1 : LENGTH + 1], blocks.sum()

  return jax.vmap(row)(jax.random.split(key, N))


# %% [markdown]
# ## 5. Do the samples follow the law?
#
# The probability of a text is a product of targets. Count, and compare.


# %%
def law(lenience):
  """Returns the probability of every text after token 0, [V] * LENGTH."""
  pis = jax.vmap(target, (0, 0, None))(Q, P, lenience)
  total = pis[0]
  for _ in range(LENGTH - 1):
    total = total[..., None] * pis
  return np.asarray(total, np.float64)


figure, axes_grid = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True)
for axes, lenience in zip(axes_grid, (-1.0, 0.4, 1.0), strict=True):
  tokens, blocks = decode(keys[2], lenience)
  counts = np.zeros((V,) * LENGTH)
  np.add.at(counts, tuple(np.asarray(tokens).T), 1)
  want = law(lenience) / law(lenience).sum() * N
  often = want > 5
  test = scipy.stats.chisquare(
    counts[often], want[often] * counts[often].sum() / want[often].sum()
  )
  assert test.pvalue > 1e-3
  axes.loglog(want[often], counts[often], '.')
  axes.axline((10, 10), (100, 100), color='grey', linewidth=0.8)
  axes.set(
    title=f'lenience {lenience:g}: chi-square p = {test.pvalue:.2f}',
    xlabel='expected',
  )
  print(f'lenience {lenience:4}: {LENGTH / blocks.mean():.2f} tokens per block')
axes_grid[0].set_ylabel('counted')
figure.tight_layout()

# %% [markdown]
# The library does the same with transformers and caches: `cascades.decoding`
# has the block, `cascades.methods` the rules, `cascades.verification` the
# acceptance.
