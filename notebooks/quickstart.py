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
# # Speculative cascades in five steps
#
# [![Open in Colab][badge]][colab]
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/
#
# A small model drafts, a large one verifies, and a deferral rule decides which
# model's distribution counts. Run the first two cells for an answer; the rest
# takes two minutes on a laptop CPU.

# %% cellView="form"
# @title Makes the checkout importable. In Colab, clones and installs it.
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

# %%
import cascades
from experiments.sample import paint

config = cascades.DecodingConfig(method='token_v3', lenience=0.3, gamma=4)
sampler = cascades.Sampler('tiny-verifier', 'tiny-drafter', config=config)
answer = sampler.sample('The number 4302 in words:', max_new_tokens=32)
# Green: accepted drafts; red: replaces a rejected draft; blue: bonus tokens.
print(paint(answer.token_strings, answer.sources, True))
print(f'{answer.block_efficiency:.1f} tokens per verifier call')

# %% [markdown]
# ## 1. Load a pair
#
# The method is that of Narasimhan et al., *Faster Cascades via Speculative
# Decoding*, ICLR 2025 ([arXiv 2405.19261](https://arxiv.org/abs/2405.19261)).
#
# `load_model` takes the bundled names, a Hugging Face folder of Gemma 2 or 3,
# or one of gemma's own checkpoint names such as `gemma2-2b-it`.

# %%
import matplotlib.pyplot as plt

from experiments.tasks import TASKS

verifier = cascades.load_model('tiny-verifier')
drafter = cascades.load_model('tiny-drafter')

task = TASKS['word_problems']
examples = list(task.load(split='test', num_examples=16))
print(examples[0].prompt, examples[0].reference, sep='\n')

# %% [markdown]
# ## 2. Choose a method and a lenience
#
# Every method has two small functions: the acceptance probability of a drafted
# token, and the distribution of its replacement. The registry has the leniences
# at which a method equals the verifier (`strict`) and the drafter.

# %%
for method in cascades.METHODS.values():
  print(
    f'{method.name:14} {method.equation:62} strict at {method.strict}, drafter'
    f' at {method.drafter_only}'
  )

# %% [markdown]
# The two functions of the paper's one-token notebook have these names here:

# %%
acceptance, residual = cascades.get_acceptance_residual_fns(
  'cascade_tokenV3', 0.3
)

# %% [markdown]
# ## 3. Sample

# %%
sampler = cascades.Sampler(
  verifier,
  drafter,
  config=cascades.DecodingConfig(
    method='token_v3',
    lenience=0.3,
    gamma=4,
    temperature=1.0,
  ),
)
answer = sampler.sample(examples[0].prompt, max_new_tokens=128)
print(answer.text)

# %% [markdown]
# ## 4. How much was accepted?

# %%
print(answer.counts)
print(f'acceptance rate          {answer.acceptance_rate:.3f}')
print(f'tokens per verifier call {answer.block_efficiency:.2f}')

# %% [markdown]
# ## 5. A small curve
#
# Lenience is traced, so a whole curve is decoded in one compiled call.

# %%
leniences = [-1.0, 0.0, 0.3, 0.6, 0.9, 1.0]
curve = sampler.sample_curve(
  [e.prompt for e in examples], leniences, max_new_tokens=128
)
rejection, quality = [], []
for answers in curve:
  examined = sum(a.counts['examined'] for a in answers)
  accepted = sum(a.counts['accepted'] for a in answers)
  rejection.append(1 - accepted / examined)
  scores = [
    task.score(a.text, e.reference)['exact_match']
    for a, e in zip(answers, examples, strict=True)
  ]
  quality.append(sum(scores) / len(scores))

figure, axes = plt.subplots(figsize=(5, 3.5))
axes.plot(rejection, quality, 'o-')
for x, y, lenience in zip(rejection, quality, leniences, strict=True):
  axes.annotate(
    f'{lenience:g}', (x, y), textcoords='offset points', xytext=(4, 4)
  )
axes.set(xlabel='rejection rate', ylabel='exact match', title='token_v3')
figure.tight_layout()

# %% [markdown]
# A curve of sixteen problems is noisy. `python -m experiments.sweep
# --config=configs/quickstart.py` draws it for all methods, with intervals.
