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
# # Read a sweep, and choose a lenience
#
# [![Open in Colab][badge]][colab]
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/
#
# A sweep writes a folder of records: the prompts, the answers of every method
# at every lenience, and their costs. This notebook loads such a folder, draws
# the curves, shows the decision with its trials, and compares two points with
# intervals. `python -m experiments.report` writes a page of the curves and the
# decision; here you can change them.

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
# ## 1. A run
#
# Set the folder of your own run here, such as `runs/quickstart`. If the folder
# is missing, a small run is decoded: two methods on one bundled task. A run
# that was stopped resumes, and a finished run is only read.

# %%
import pathlib

WORKDIR = 'runs/lenience_sweep'  # @param {type: 'string'}

if not (pathlib.Path(WORKDIR) / 'summary.csv').exists():
  from configs import quickstart
  from experiments import sweep
  from experiments.sweeps.curve_plan import Curve

  config = quickstart.get_config()
  config.tasks, config.num_examples = ('word_problems',), 100
  # A setting is chosen, instead of the one that the config fixes.
  config.decision.method, config.decision.risk = '', 0.1
  curves = [
    Curve.from_config(config, 'verifier_only', ()),
    Curve.from_config(config, 'drafter_only', ()),
    Curve.from_config(config, 'chow', (-1.0, 0.1, 0.4, 1.0), gamma=4),
    Curve.from_config(config, 'token_v3', (-1.0, 0.5, 0.8, 1.0), gamma=4),
  ]
  sweep.run(config, curves, pathlib.Path(WORKDIR), quiet=True)

# %% [markdown]
# ## 2. The records
#
# One line per example and lenience. `gather` makes two frames of them: a row
# for each point, and a row for each answer.

# %%
from experiments import records
from experiments.analysis import comparisons, runs
from experiments.reports import AnalysisConfig, tables

first = records.read_all(WORKDIR)[0]
print(first.variant, first.id, repr(first.text), first.quality, first.emitted)

run = runs.read(WORKDIR)
points = runs.gather(run)
points.table[['task', 'variant', 'lenience', 'gamma', 'n', 'failed']]

# %% [markdown]
# ## 3. The curves
#
# `compare` sets every point against the verifier alone on the same examples:
# the difference in quality and the speed-up per token by modelled latency, with
# paired intervals.

# %%
config = AnalysisConfig()
frame = comparisons.compare(points, config)
frame[
  'variant lenience quality difference difference_low difference_high'
  ' latency speedup speedup_low speedup_high as_good'.split()
].round(3)

# %%
import matplotlib.pyplot as plt

task = frame.task.iloc[0]
task_frame = frame[frame.task == task]
names = dict(zip(task_frame.variant, task_frame.method, strict=True))
curve_styles = tables.styles(names)
figure, axes = plt.subplots(figsize=(6, 4))
for variant, curve in task_frame.groupby('variant', sort=False):
  curve = curve.sort_values('lenience')
  is_single = len(curve) == 1
  axes.plot(
    curve.latency,
    curve.quality,
    '*' if is_single else 'o-',
    markersize=12 if is_single else 6,
    color=curve_styles[variant].colour,
    label=curve_styles[variant].label,
  )
  if not is_single:
    for point in curve.itertuples():
      axes.annotate(
        f'{point.lenience:g}',
        (point.latency, point.quality),
        xytext=(4, 4),
        textcoords='offset points',
        fontsize=8,
      )
axes.set(xlabel='modelled latency per token (verifier = 1)', ylabel='quality')
axes.set_title(tables.words(task), loc='left')
axes.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# ## 4. The decision
#
# The best point of a curve looks better than it is on the examples that it was
# chosen on. So a sweep ends with a decision: a setting is chosen on one half of
# the examples and reported on the other half. One that may lose quality must be
# certified: its mean loss is at most `risk` with probability 1 - `delta`. Its
# trials are the settings with their numbers on the half that chooses.

# %%
import textwrap

import pandas as pd

from cascades.decisions import Decision

decision = Decision.load(pathlib.Path(WORKDIR) / 'decision.json')
print(textwrap.fill(decision.sentence, 79))
pd.DataFrame(decision.evidence['trials']).round(3)

# %% [markdown]
# ## 5. Compare two points
#
# Example by example, on all that both answered: the difference has a far
# narrower interval than either quality, because both answered the same
# problems. A name is `method@lenience`, with `@gamma` where a sweep has
# several.

# %%
FIRST, SECOND = 'chow@0.4', 'token_v3@0.8'

for sentence in comparisons.compare_named(run, [FIRST, SECOND], config):
  print(textwrap.fill(sentence, 79))

# %% [markdown]
# A hundred examples distinguish little: a small test has wide intervals.
# `python -m experiments.sweep --config=configs/quickstart.py` decodes more of
# them with every method of the paper, and its page has the same comparisons.
