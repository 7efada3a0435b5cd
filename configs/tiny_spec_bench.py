"""The bundled pair on Spec-Bench: how much is drafted, on six kinds of text.

Command: python -m experiments.sweep --config=configs/tiny_spec_bench.py
  --config.task.path=question.jsonl
(`data/spec_bench` of github.com/hemingkx/Spec-Bench.)
Shows: acceptance, calls and latency where nothing scores the answers. The
models know arithmetic and number words alone, so that they babble; of a
conversation the first turn is asked.
"""

import ml_collections

from configs import tiny_gsm8k


def get_config() -> ml_collections.ConfigDict:
  c = tiny_gsm8k.get_config()
  c.tasks = ('spec_bench',)
  # Nothing is worked out before a question.
  c.task.update(shots=0, max_new_tokens=128)
  # One method and its leniences; sweep() below goes through all of them.
  c.method = 'speed'
  c.lenience = (0.0,)
  # Tokens drafted per block; the report tunes it for each curve.
  with c.ignore_type():
    c.gamma = (2, 4, 8)
  return c


def sweep(add):
  """Strict decoding at several gammas, token by token and by blocks."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='speed', lenience=(0.0,), verification='block')
