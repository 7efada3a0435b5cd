"""The bundled pair on Spec-Bench: how much is drafted, on six kinds of text.

Command: python -m experiments.sweep --config=configs/tiny_spec_bench.py
  --config.task.path=question.jsonl
(`data/spec_bench` of github.com/hemingkx/Spec-Bench.)
Shows: acceptance, calls and latency where nothing scores the answers. The
models know arithmetic and number words alone, so that they babble; of a
conversation the first turn is asked.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.verifier = 'tiny-verifier'
  c.drafter = 'tiny-drafter'
  c.tasks = ('spec_bench',)
  # Where the set lies, how many worked examples stand before a question (it has
  # none), most tokens of an answer (0: the task's own), and whether generated
  # code may be run.
  c.task = dict(
    path='', shots=0, max_new_tokens=128, allow_code_execution=False
  )
  c.num_examples = 24
  # One method and its leniences; sweep() below goes through all of them.
  c.method = 'speed'
  c.lenience = (0.0,)
  # Tokens drafted per block; the report tunes it for each curve.
  c.gamma = (2, 4, 8)
  c.temperature = 1.0
  # Rows decoded at a time, a row being a prompt at a lenience.
  c.batch_size = 8
  # Of the examples and of the sampling.
  c.seed = 0
  return c


def sweep(add):
  """Strict decoding at several gammas, token by token and by blocks."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='speed', lenience=(0.0,), verification='block')
