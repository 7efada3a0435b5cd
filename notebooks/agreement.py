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
# The drafter drafts a few tokens greedily, and the verifier reads them in one
# pass: where do the models first differ? Speculative decoding repeats this
# step. A cascade repeats this step with its own rule for what counts as a
# difference.

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
#
# At a difference, take the verifier's token and draft again after it. The
# answer equals the verifier's, with fewer passes of the verifier than tokens.

# %%
import cascades
from experiments.tasks import TASKS

verifier = cascades.load_model('tiny-verifier')
drafter = cascades.load_model('tiny-drafter')
examples = list(TASKS['word_problems'].load(split='test', num_examples=40))
prompts = [example.prompt for example in examples]

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
# ## 2. Where do they differ?
#
# The first answer with a rejected draft: the text before the difference, and
# the token that each model prefers.

# %%
import math

from cascades.verification_config import RESIDUAL

prompt, answer = next(
  (prompt, answer)
  for prompt, answer in zip(prompts, answers, strict=True)
  if RESIDUAL in answer.sources
)
place = answer.sources.index(RESIDUAL)
print(prompt + ''.join(answer.token_strings[:place]))
ids = [answer.drafts[place], answer.tokens[place]]
texts = verifier.tokenizer.token_strings(ids)
print('the drafter prefers {!r}, the verifier {!r}'.format(*texts))
print(f"the verifier's token has p = {math.exp(answer.logprobs[place]):.3f}")

# %% [markdown]
# How many tokens come before the first difference?

# %%
import matplotlib.pyplot as plt

lengths = [[*a.sources, RESIDUAL].index(RESIDUAL) for a in answers]
figure, axes = plt.subplots(figsize=(5, 3))
axes.hist(lengths, bins=15)
axes.set(xlabel='tokens before the first difference', ylabel='answers')
figure.tight_layout()

# %% [markdown]
# ## 3. And sampled
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
