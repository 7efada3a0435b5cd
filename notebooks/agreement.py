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
# # Do two models agree?
#
# [![Open in Colab][badge]][colab]
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/
#
# The drafter continues a prompt greedily, and the verifier reads the
# continuation in one pass: where do the models first differ? Speculative
# decoding repeats this step. A cascade repeats this step with its own rule for
# what counts as a difference.

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
# ## 1. Draft greedily, check in one pass

# %%
import cascades
from experiments.tasks import TASKS

verifier = cascades.load_model('tiny-verifier')
drafter = cascades.load_model('tiny-drafter')
examples = list(TASKS['word_problems'].load(split='test', num_examples=40))
prompts = [example.prompt for example in examples]

agreements = cascades.agreement((verifier, drafter), prompts, max_new_tokens=96)
full_matches = sum(result.is_full_match for result in agreements)
print(
  f"{full_matches} of {len(agreements)} continuations equal the verifier's."
)

# %% [markdown]
# ## 2. Where do they differ?
#
# The first continuation that differs: the text before the difference, then the
# token that each model prefers, and the probabilities of this token.

# %%
result = next(x for x in agreements if not x.is_full_match)
print(result.prompt + ''.join(result.token_strings[: result.matched_length]))
place = result.first_mismatch
for name, token, q, p in (
  (
    'drafter',
    place.drafter_token,
    place.q_drafter_token,
    place.p_drafter_token,
  ),
  (
    'verifier',
    place.verifier_token,
    place.q_verifier_token,
    place.p_verifier_token,
  ),
):
  text = verifier.tokenizer.token_strings([token])[0]
  print(f'the {name} prefers {text!r}: q = {q:.3f}, p = {p:.3f}')

# %% [markdown]
# How many tokens come before the first difference?

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(5, 3))
axes.hist([result.matched_length for result in agreements], bins=15)
axes.set(xlabel='tokens before the first difference', ylabel='continuations')
figure.tight_layout()

# %% [markdown]
# ## 3. Check as you go: greedy speculative decoding
#
# At a difference, take the verifier's token and draft again after it. The
# answer equals the verifier's, with fewer passes of the verifier than tokens.

# %%
greedy = cascades.Sampler(
  verifier,
  drafter,
  config=cascades.DecodingConfig(
    method='speed',
    lenience=0.0,
    gamma=4,
    temperature=0.0,
  ),
)
answers = greedy.sample(prompts, max_new_tokens=96)
verifier_sampler = cascades.Sampler(
  verifier,
  config=cascades.DecodingConfig(
    gamma=0,
    temperature=0.0,
  ),
)
assert [a.tokens for a in answers] == [
  a.tokens for a in verifier_sampler.sample(prompts, max_new_tokens=96)
]
calls = sum(a.counts['verifier_calls'] for a in answers)
tokens = sum(len(a.tokens) for a in answers)
print(f'{calls} passes of the verifier for {tokens} tokens')

# %% [markdown]
# ## 4. And sampled
#
# At temperature 1 a drafted token is accepted with probability min(1, p / q),
# else replaced by a draw from the residual: every token is an exact draw from
# the verifier. A lenient method accepts more, and declares its law.

# %%
for lenience in (-1.0, 0.5, 0.9):
  sampled = cascades.Sampler(
    verifier,
    drafter,
    config=cascades.DecodingConfig(
      method='token_v3',
      lenience=lenience,
      gamma=4,
    ),
  ).sample(prompts, max_new_tokens=96)
  accepted = sum(a.counts['accepted'] for a in sampled)
  examined = sum(a.counts['examined'] for a in sampled)
  print(f'lenience {lenience:4}: acceptance rate {accepted / examined:.3f}')
