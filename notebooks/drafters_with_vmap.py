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
# # One draft, then `vmap`
#
# [![Open in Colab][badge]][colab]
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/
#
# A recurrent drafter ([arXiv 2403.09919](https://arxiv.org/abs/2403.09919)) is
# a small network on the verifier's last hidden state. It is easiest to write
# for one sequence and one draft. Beams and batches are then `jax.vmap` of it,
# and nothing is written twice. At the end the verifier verifies drafts of the
# bundled head.

# %%
# Makes the project's checkout importable. In Colab, clones and installs it.
import importlib.util
import pathlib
import subprocess
import sys

REPOSITORY = ''  # @param {type: 'string'}
BRANCH = ''  # @param {type: 'string'}

checkout = pathlib.Path('.' if pathlib.Path('experiments').is_dir() else '..')
if 'google.colab' in sys.modules:
  checkout = pathlib.Path('speculative-cascades').resolve()
  if not checkout.exists():
    if not REPOSITORY:
      raise ValueError('REPOSITORY: is empty; give the address to clone.')
    clone = ['git', 'clone', '-q', *(['-b', BRANCH] if BRANCH else [])]
    subprocess.run([*clone, REPOSITORY, checkout], check=True)
  if not importlib.util.find_spec('cascades'):
    package = f'{checkout}[experiments]'
    pip = [sys.executable, '-m', 'pip', 'install', '-q', package]
    subprocess.run(pip, check=True)
    importlib.invalidate_caches()
sys.path.insert(0, str(checkout.resolve()))

import jax

jax.devices()

# %% [markdown]
# ## 1. One sequence, one draft
#
# The state is carried by `lax.scan`. Each step reads a token, updates the
# state, and returns the logits of the next token. `head` is the trained
# network; the verifier's embedding table turns features into logits.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import cascades
from cascades.drafters import recurrent
from cascades.models import checkpoints

verifier = cascades.load_model('tiny-verifier')
head = recurrent.RecurrentHead.load(checkpoints.ASSETS / 'tiny-recurrent').head
print({name: x.shape for name, x in head.items()})


def draft_one(hidden, token, key, length=4):
  """Returns tokens [length + 1]; the first is the verifier's."""

  def step(carry, key):
    state, token = carry
    state, logits = recurrent.step(
      verifier.model, verifier.params, head, hidden, state, token
    )
    return (state, jax.random.categorical(key, logits)), token

  keys = jax.random.split(key, length + 1)
  return jax.lax.scan(step, (hidden, token), keys)[1]


# %% [markdown]
# The verifier reads a prompt, and returns its next token and a hidden state.

# %%
prompts = ['The number 4302 in words:', 'The number 17 in words:']


def read(prompt):
  """Returns the verifier's hidden state after a prompt, and its next token."""
  tokens = jnp.array(verifier.tokenizer.encode(prompt, add_bos=True))
  positions = jnp.arange(len(tokens))
  mask = positions[None] <= positions[:, None]
  logits, hidden, _ = verifier.model.with_hidden(
    verifier.params, tokens, positions, mask
  )
  return hidden[-1], jnp.argmax(logits[-1])


hidden, token = read(prompts[0])
draft = draft_one(hidden, token, jax.random.key(0))
print('hidden', hidden.shape, 'token', token.shape, 'draft', draft.shape)
print(repr(''.join(verifier.tokenizer.token_strings(draft.tolist()))))

# %% [markdown]
# ## 2. Several drafts: `vmap` over random keys
#
# The hidden state and the token are shared (`None`), the keys are not (`0`).

# %%
batched = jax.vmap(draft_one, in_axes=(None, None, 0))
drafts = batched(hidden, token, jax.random.split(jax.random.key(0), 3))
print('drafts', drafts.shape)
for draft in drafts:
  print(repr(''.join(verifier.tokenizer.token_strings(draft.tolist()))))

# %% [markdown]
# ## 3. A batch: `vmap` once more

# %%
hiddens, tokens = map(jnp.stack, zip(*map(read, prompts), strict=True))
keys = jax.random.split(jax.random.key(0), (len(prompts), 3))
batch = jax.jit(jax.vmap(batched))(hiddens, tokens, keys)
print('batch', batch.shape, '= [prompts, drafts, length + 1]')

# Only the shape changes: the values are those of a loop over single calls.
for i in range(len(prompts)):
  for j in range(3):
    row_draft = draft_one(hiddens[i], tokens[i], keys[i, j])
    np.testing.assert_array_equal(batch[i, j], row_draft)
assert (batch[..., 0] == tokens[:, None]).all()

# %% [markdown]
# ## 4. The most probable drafts: a beam search
#
# For greedy decoding, the drafts with the highest scores are better than random
# ones. The step is the same, `vmap`ped over the beams.

# %%
beams, logits = recurrent.draft_beams(
  verifier.model, verifier.params, head, hidden, token=token, gamma=4, beams=3
)
print('beams', beams.shape, 'logits', logits.shape)
for draft in beams:
  print(repr(''.join(verifier.tokenizer.token_strings(draft.tolist()))))

# %% [markdown]
# ## 5. Verification
#
# The verifier reads four drafts of four tokens in one pass, as a tree.
# Multi-round rejection preserves the verifier's law for any drafts.

# %%
from experiments.tasks import TASKS

problems = TASKS['word_problems']
examples = list(problems.load(split='test', num_examples=8))
for drafts, verification in ((1, 'token'), (4, 'multi_round')):
  sampler = cascades.Sampler(
    verifier,
    'tiny-recurrent',
    config=cascades.DecodingConfig(
      method='speed',
      lenience=0.0,
      gamma=4,
      drafts=drafts,
      verification=verification,
    ),
  )
  answers = sampler.sample([e.prompt for e in examples], max_new_tokens=96)
  calls = sum(a.counts['verifier_calls'] for a in answers)
  tokens = sum(len(a.logprobs) for a in answers)
  print(
    f'{drafts} drafts: {tokens / calls:.2f} tokens per call of the verifier'
  )
