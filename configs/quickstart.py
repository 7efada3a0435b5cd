"""The paper's methods from strict to drafter-only, and what a cascade gains.

Command: python -m experiments.sweep --config=configs/quickstart.py
Shows: in a minute the predicted curves of the paper's methods, and in three to
six minutes on two CPU cores one sentence: the speed-up of a cascade over strict
decoding, with its interval, at the verifier's quality.
Then two points of each method, which differ in the quality that they lose; flat
and dominated points, which a prediction shows too, are left out.
--config.temperature=0 decodes greedily, and --task=numerals another bundled
task. Committed results of both temperatures are in experiments/results, in
quickstart and quickstart_greedy.

The sentence compares two settings that are fixed here, on 1,500 problems:
nothing is chosen on the problems that are reported. Methods, leniences and
gammas were chosen on 1,000 training problems, which another sweep decoded, with
--config.split=train: `tuned_gamma`, whose config commit a580d6e has. There
token_v3 at lenience 0.95 and gamma 12 is the fastest setting that loses at most
0.01 of the verifier's quality, a third of the margin: 3.09 times as fast as the
verifier, losing 0.009. token_v2 at lenience 0.7 and gamma 12 is 3.32 times as
fast and loses 0.013. Strict decoding is fastest with gamma 3 and 4, by 1.48
times; gamma 6 gives 1.35.
"""

import ml_collections

from configs import common

# Optional fields of configs/common.py.
_OPTIONAL_FIELDS = (
  'verification gate bonus draft drafts mesh shard_size split clock'
).split()
# Examples of a curve. They show its shape; the difference of two points needs
# the config's num_examples.
_CURVE = 200
# Two leniences of each method: near strict decoding, and where its speed-up
# hardly grows any more.
_LENIENCES = dict(
  speed=(0.6, 0.95),
  chow=(0.25, 0.4),
  diff=(0.0, 0.1),
  opt=(0.0, 0.2),
  token_v1=(0.0, 0.1),
  token_v2=(0.6, 0.7),
  token_v3=(0.9, 0.95),
)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.sweep(
    # Fields that the command line can set, beside those of every sweep, such as
    # models, gamma, temperature and seed.
    *_OPTIONAL_FIELDS,
    # A task that the bundled pair was trained on.
    tasks=('word_problems',),
    num_examples=1500,
    # The settings of the sentence, which were chosen on training problems.
    decision=dict(method='token_v3', lenience=0.95, gamma=12, strict_gamma=4),
  )


def sweep(add):
  """Adds the points of the sentence, and curves without their ends."""
  add(method='verifier_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='token_v3', lenience=(0.95,), gamma=12)
  add(method='drafter_only', lenience=(), num_examples=_CURVE)
  for method, lenience in _LENIENCES.items():
    add(method=method, lenience=lenience, num_examples=_CURVE)
