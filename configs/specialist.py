"""A cascade of two models that know different things, on all that they know.

Command: python -m experiments.sweep --config=configs/specialist.py
Shows: in some two minutes, points that are far better than either model, for a
rule can take each one's word where it is surer. The verifier knows nothing of
Roman numerals, and the drafter, fine-tuned on them, forgot some of the rest.
The page says by how much: "When is a cascade better than both models".
"""

import ml_collections

_INF = float('inf')


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  # Bundled models, Hugging Face folders, or gemma's checkpoint names.
  c.verifier = 'tiny-verifier'
  # configs/train_specialist.py makes it.
  c.drafter = 'tiny-specialist'
  # What to decode: keys of cascades.tasks.TASKS. The verifier was trained on
  # the first two, the drafter at last mostly on the third.
  c.tasks = ('word_problems', 'numerals', 'roman')
  # Held-out examples per task.
  c.num_examples = 100
  # One method and its leniences; sweep() below goes through all of them.
  c.method = 'chow'
  c.lenience = (0.3,)
  # Tokens drafted per block.
  c.gamma = 4
  # Which drafts stay; one of verification.VERIFICATIONS.
  c.verification = 'token'
  # What deferral rules see: 'raw' probabilities, or 'processed' ones, that is
  # with the temperature applied.
  c.gate = 'raw'
  # What the token after a whole block is drawn from: 'target' or 'verifier'.
  c.bonus = 'target'
  # Of both models; 0 is greedy.
  c.temperature = 1.0
  # Rows decoded at a time, a row being a prompt at a lenience.
  c.batch_size = 64
  # Devices that split the rows, and that split the parameters.
  c.mesh = (1, 1)
  # With --launcher=ray: where the cluster is ('' is this machine), what a point
  # takes, and how often one whose worker is lost is tried again.
  c.ray = dict(address='', cpus=1, gpus=0, retries=3)
  # Who is told of points as they are done, beside the workdir: of 'tensorboard'
  # and 'wandb'.
  c.trackers = ()
  # Of the examples and of the sampling.
  c.seed = 0
  return c


def sweep(add):
  """Curves, each from strict to drafter-only; baselines have no lenience.

  The specialist is very sure of what it was taught, and the verifier now and
  then as sure of a wrong answer: chow, diff and opt bend near 0. token_v3 goes
  by the verifier alone, to which a Roman numeral is next to impossible.
  """
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  # Strict speculative decoding, which is the verifier's distribution.
  add(method='speed', lenience=(0.0,))
  add(method='chow', lenience=(-1.0, 0.002, 0.01, 0.03, 0.07, 0.15, 0.4, 1.0))
  diff = (-1.0, -0.35, -0.1, -0.01, 0.0, 0.01, 0.05, 0.2, 1.0)
  add(method='diff', lenience=diff)
  opt = (-_INF, -0.3, -0.1, -0.01, 0.01, 0.05, 0.1, 0.3, _INF)
  add(method='opt', lenience=opt)
  token_v3 = (-1.0, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999, 1.0)
  add(method='token_v3', lenience=token_v3)
