r"""A pair of models on your own prompts, from a file.

Command: python -m experiments.sweep --config=configs/your_data.py
  --verifier=V --drafter=D --data=mine.jsonl --metric=rouge2
or, for a task of lm-evaluation-harness, --task=lm_eval:gsm8k
Shows: quality against latency on the rows of a JSONL, CSV or Parquet file, a
path or a URL, in the order of the file. A row has the fields `prompt` and
`reference`, a text or a list, and may have an `id`. Other fields and templates
are given by `--config.file.prompt=$'Question: {question}\nAnswer:'` and similar
flags (see experiments/tasks/task.py), a file of worked examples by
`--config.file.examples=shots.jsonl`, and chats by `--config.chat=True` and rows
with `messages`. Metrics: those of the documentation's list of tasks,
`regex:PATTERN`, and `module:function` for your own `function(answer,
reference)`, which returns a number from 0 to 1; without a metric only speed is
measured. Results go to runs/your_data/<name of the file>.
"""

import ml_collections

from configs import common

# Optional fields that can be set on the command line.
_FIELDS = (
  'file task chat decision clock dtype cache_length mesh top_k top_p'
  ' verification drafts shard_size'
).split()


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  return common.sweep(
    *_FIELDS,
    tasks=('file',),
    # Worked examples of other tasks: as many as the tasks declare.
    task=dict(shots=None),
    # '' is the task's default, all rows of a file; `choose` and `report` are
    # the halves to choose a setting on and to report the setting on.
    split='',
    num_examples=200,
    batch_size=16,
    temperature=0.0,
  )


def sweep(add):
  """Adds both models alone, strict decoding, and two cascades."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='token_v2', lenience=(0.6, 0.8, 0.95))
  add(method='token_v3', lenience=(0.5, 0.9, 0.99))
