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
# # Would a drafter pay?
#
# [![Open in Colab][badge]][colab]
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/
#
# Both models read answers of the verifier once, without drafting. This reading
# predicts the tokens per verifier call of every rule, lenience and gamma.
# `python -m experiments.predict` does the same for your models and your file.

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

# %%
# The answers of the verifier.
import cascades
from experiments.tasks import TASKS

verifier = cascades.load_model('tiny-verifier')
drafter = cascades.load_model('tiny-drafter')
examples = TASKS['word_problems'].load(split='test', num_examples=60)
prompts = [example.prompt for example in examples]


def decode(**options):
  """Returns texts, prompt and answer in tokens, and their tokens and calls."""
  config = cascades.DecodingConfig(**options)
  sampler = cascades.Sampler(verifier, drafter, config=config)
  answers = sampler.sample(prompts, max_new_tokens=96)
  contexts = map(sampler.encode, prompts)
  texts = [(x, a.tokens) for x, a in zip(contexts, answers, strict=True)]
  tokens = sum(len(a.tokens) for a in answers)
  return texts, tokens, sum(a.counts['verifier_calls'] for a in answers)


texts, tokens, _ = decode(gamma=0)
print(f'{len(texts)} answers of {tokens} tokens')

# %% [markdown]
# ## 1. Every rule, lenience and gamma
#
# Tokens per verifier call at gamma 4. Strict decoding, `speed` at lenience 0,
# is exact in expectation. A lossy rule emits other texts: it is approximate.

# %%
import pandas as pd

prediction = cascades.predict(verifier, drafter, texts, gammas=(4, 8, 12))
points = pd.DataFrame(prediction.points)
points[points.gamma == 4].pivot_table(
  'tokens_per_call', index='lenience', columns='method'
).round(2)

# %% [markdown]
# ## 2. Compared with decoding
#
# At temperature 0 the calls of strict decoding are predicted without error. A
# lossy rule's own answers, as `own_texts` of `predict`, correct its points.

# %%
greedy = dict(temperature=0.0, method='speed', lenience=0.0, gamma=4)
greedy_texts, tokens, calls = decode(**greedy)
options = dict(rules={}, gammas=[4], config=cascades.DecodingConfig(**greedy))
(x,) = cascades.predict(verifier, drafter, greedy_texts, **options).points
print(f'greedy: {calls} calls, predicted {tokens / x.tokens_per_call:.3f}')

_, tokens, calls = decode(method='token_v3', lenience=0.9, gamma=4)
x = points.query("method == 'token_v3' and lenience == 0.9 and gamma == 4")
print(f'token_v3: {tokens / calls:.3f} tokens per call. Predicted:')
x[['basis', 'tokens_per_call', 'low', 'high']]

# %% [markdown]
# ## 3. Speed-up
#
# A line is a rule at the best gamma of each lenience, with unit costs of a CPU;
# the command measures those of your machine.

# %%
import matplotlib.pyplot as plt

from experiments.records import unit_costs

path = checkout / 'experiments/results/quickstart/costs.json'
costs = unit_costs.CostMeasurements.from_json(path.read_bytes()).costs
counts = points[['tokens_per_call', 'drafter_calls', 'gamma']]
points['speedup'] = costs.speedup(*counts.to_numpy().T)
figure, axes = plt.subplots(figsize=(6, 4), layout='tight')
for method, curve in points.groupby('method', sort=False):
  best = curve.loc[curve.groupby('lenience').speedup.idxmax()]
  axes.plot('total_variation', 'speedup', '.-', data=best, label=method)
axes.set(xlabel='total variation from the verifier', ylabel='speed-up')
_ = axes.legend()

# %% [markdown]
# ## 4. Why are drafts rejected?
#
# The drafter reads the answers in other ways: a way that accepts clearly more
# names a fault. The table has the tokens and kinds of tokens rejected most.

# %%
from experiments import doctor

pair = cascades.Sampler(verifier, drafter)
causes, rejections = doctor.diagnose(pair, texts)
print(*[*causes.values()] or ['no fault'], sep='\n')
rejections.round(2)
