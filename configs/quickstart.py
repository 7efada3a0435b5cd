"""The paper's methods from strict to drafter-only, on two bundled tasks.

Command: python -m experiments.sweep --config=configs/quickstart.py
Shows: in a few minutes on a laptop, 51 points a task: every curve starts at the
verifier's quality, at six to nine tenths of its latency as the machine has it,
and ends at the drafter's. What it gave once: experiments/results/quickstart.
"""

import ml_collections

_INF = float('inf')


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  # Bundled models, Hugging Face folders, or gemma's checkpoint names; a drafter
  # may also be 'ngram', 'self:3' (the verifier's first 3 layers) or a head.
  c.verifier = 'tiny-verifier'
  c.drafter = 'tiny-drafter'
  # What to decode: keys of cascades.tasks.TASKS.
  c.tasks = ('word_problems', 'numerals')
  # Held-out examples per task.
  c.num_examples = 100
  # One method and its leniences; sweep() below goes through all of them.
  c.method = 'token_v3'
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
  # Drafts per block; several want verification 'multi_round' or 'k_seq'.
  c.drafts = 1
  # Of both models; 0 is greedy.
  c.temperature = 1.0
  # Rows decoded at a time, a row being a prompt at a lenience.
  c.batch_size = 64
  # Devices that split the rows, and that split the parameters.
  c.mesh = (1, 1)
  # Examples of a point, which is what a killed run loses at most.
  c.shard_size = 256
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

  The bundled verifier is rarely in doubt, so that what it thinks of a wrong
  draft is far below 1 %: the leniences crowd towards the drafter's end.
  """
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0))
  add(method='chow', lenience=(-1.0, 0.01, 0.05, 0.1, 0.2, 0.4, 1.0))
  add(method='diff', lenience=(-1.0, 0.0, 0.05, 0.1, 0.2, 0.4, 1.0))
  add(method='opt', lenience=(-_INF, -0.5, 0.0, 0.25, 0.5, 0.75, _INF))
  add(method='token_v1', lenience=(-1.0, 0.3, 0.6, 0.9, 0.99, 0.999, 1.0))
  add(method='token_v2', lenience=(-1.0, 0.3, 0.6, 0.9, 0.99, 0.999, 1.0))
  add(method='token_v3', lenience=(-1.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0))
