"""The bundled pair on GSM8K: real prompts, real counts, no right answers.

Command: python -m experiments.sweep --config=configs/tiny_gsm8k.py
  --config.task.path=test.jsonl
(of github.com/openai/grade-school-math; without a path it comes from the
Hugging Face hub.)
Shows: that a published set runs from end to end on a laptop. Acceptance, calls
and lengths are those of text that the models were not trained on; they are far
too small for its problems, so that exact match stays near zero.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.verifier = 'tiny-verifier'
  c.drafter = 'tiny-drafter'
  c.tasks = ('gsm8k',)
  # Where the set lies (from the hub if empty), how many worked examples stand
  # before a question, most tokens of an answer (0: the task's own), and whether
  # generated code may be run.
  c.task = dict(
    path='', shots=8, max_new_tokens=256, allow_code_execution=False
  )
  c.num_examples = 24
  # One method and its leniences; sweep() below goes through all of them.
  c.method = 'token_v3'
  c.lenience = (0.3,)
  # Tokens drafted per block.
  c.gamma = 4
  c.temperature = 1.0
  # Rows decoded at a time, a row being a prompt at a lenience.
  c.batch_size = 8
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
  """Both models alone, strict decoding, and a cascade."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='token_v3', lenience=(-1.0, 0.5, 0.9, 1.0))
