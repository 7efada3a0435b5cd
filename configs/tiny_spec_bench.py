"""The bundled pair on Spec-Bench: how much is drafted, on six kinds of text.

Command: python -m experiments.sweep --config=configs/tiny_spec_bench.py
  --config.task.path=question.jsonl
(`data/spec_bench` of github.com/hemingkx/Spec-Bench.)
Shows: acceptance, calls and latency where nothing scores the answers. The
models know arithmetic and number words alone, so that they babble; of a
conversation the first turn is asked.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
  return common.sweep(
    tasks=('spec_bench',),
    task=dict(max_new_tokens=128),
    num_examples=24,
    method='speed',
    lenience=(0.0,),
    gamma=(2, 4, 8),
    batch_size=8,
  )


def sweep(add):
  """Strict decoding at several gammas, token by token and by blocks."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='speed', lenience=(0.0,), verification='block')
