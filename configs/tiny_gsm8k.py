"""The bundled pair on GSM8K: real prompts and counts, but no right answers.

Command: python -m experiments.sweep --config=configs/tiny_gsm8k.py
  --config.task.path=test.jsonl
(from github.com/openai/grade-school-math; without a path, from the Hugging Face
hub)
Shows: that a published set runs from end to end on a laptop. The models were
not trained on such text and are far too small for these problems, so exact
match stays near zero. Other sets run in the same way:
`--config.tasks="('spec_bench',)" --config.task.shots=0
--config.task.path=question.jsonl`.
"""

import ml_collections

from configs import common


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.sweep(
    tasks=('gsm8k',),
    # These models rarely end an answer: fewer tokens than the task's 400.
    task=dict(shots=8, max_new_tokens=256),
    num_examples=24,
    # Eight worked examples make long prompts.
    batch_size=8,
  )


def sweep(add):
  """Adds both models alone, strict decoding, and a cascade."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='token_v3', lenience=(-1.0, 0.5, 0.9, 1.0))
