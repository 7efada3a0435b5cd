"""The paper's setting for Gemma: a pair of models on a task.

Command: python -m experiments.sweep
  --config=configs/paper.py:gemma2_2b_9b,gsm8k
Shows: a task's quality against rejection rate and latency for the paper's
rules, from strict to drafter-only; for spec_bench, which has no metric, tokens
per verifier call and latency by lenience.

The argument is a pair, named after its drafter and its verifier, and a task:
keys of PAIRS and TASKS below. Results go to
runs/paper/gemma2_2b_9b/gsm8k.
To rehearse it, give --workdir=runs/rehearsal --config.verifier=tiny-verifier
--config.drafter=tiny-drafter --config.num_examples=4, and for a pair with chat
--config.chat=False.

gemma2_2b_9b and gemma3_270m_1b_it are repositories of the Hugging Face hub:
accept their licences there and put a token into HF_TOKEN. To use another copy
of a model, give its name, as in --config.verifier=gemma2-9b-pt (a download of
the library gemma) or --config.verifier=/my/folder.

Setting: that of Narasimhan et al. 2025 (arXiv 2405.19261) for Gemma: gamma 1,
temperature 1, few worked examples, every rule of the paper from strict to
drafter-only, and its baselines. Choices that the paper does not report are
ours: the worked examples (TASKS says where their number is the paper's), 500
examples of each test set drawn by a seed, an even grid of leniences, and the
pretrained checkpoints (instruction-tuned ones end in -it instead of -pt).
gemma3_270m_1b_it is instruction-tuned: its prompts are wrapped in the chat
template, and its gamma is 5.

Expect: a small gain if the drafter is large. A block reads the weights of the
verifier once and of the drafter gamma + 1 times, at half of the bandwidth, and
emits 1 + a + ... + a^gamma tokens on average, where a is the acceptance rate.
With gemma2_2b_9b a block of gamma 1 reads 28.9 GB, in 17.3 ms on an H100 (3.35
TB/s) and 70.7 ms on a TPU v5e (0.82 TB/s, which has to be several), 1.57 times
a token of the verifier alone: the break-even is a = 0.57, and no rule is faster
than 1.28 times the verifier. With gemma3_270m_1b_it a block of gamma 5 reads
5.2 GB, in 3.1 ms and 12.7 ms, 2.61 times a token: the break-even is a = 0.64,
0.8 gives 1.41 times, and no rule is faster than 2.30 times. A lenient rule
moves from strict decoding towards these bounds and from the verifier's quality
towards the drafter's.
"""

from typing import NamedTuple

import ml_collections

from configs import common


class Pair(NamedTuple):
  """Two models and their setting.

  Attributes:
    verifier: Name of the verifier.
    drafter: Name of the drafter.
    gamma: Tokens drafted per block; the paper's is 1.
    chat: True to wrap prompts in the chat template of instruction-tuned models.
  """

  verifier: str
  drafter: str
  gamma: int = 1
  chat: bool = False


class Task(NamedTuple):
  """Worked examples before a question, and rows decoded at a time."""

  shots: int
  batch_size: int


PAIRS = {
  # Pairs of the paper.
  'gemma2_2b_9b': Pair('google/gemma-2-9b', 'google/gemma-2-2b'),
  'gemma2_2b_27b': Pair('gemma2-27b-pt', 'gemma2-2b-pt'),
  # Pairs of newer models.
  'gemma3_270m_4b': Pair('gemma3-4b-pt', 'gemma3-270m-pt'),
  'gemma3_1b_12b': Pair('gemma3-12b-pt', 'gemma3-1b-pt'),
  'gemma4_e2b_31b': Pair('gemma4-31b-pt', 'gemma4-e2b-pt'),
  # Instruction-tuned models with Google's drafters for them, from the hub.
  **{
    f'gemma4_assistant_{x[:3].lower()}': Pair(
      f'gemma4-{x.lower()}-it', f'google/gemma-4-{x}-it-assistant'
    )
    for x in ('E2B', 'E4B', '26B-A4B', '31B')
  },
  # A pair that fits any accelerator.
  'gemma3_270m_1b_it': Pair(
    'google/gemma-3-1b-it', 'google/gemma-3-270m-it', gamma=5, chat=True
  ),
}
# Tasks with longer sequences have fewer rows, since caches grow with both.
TASKS = {
  # Tasks with as many worked examples as in the paper.
  'gsm8k': Task(8, 16),
  'web_questions': Task(1, 64),
  'natural_questions': Task(1, 64),
  'wmt14_en_de': Task(5, 32),
  # Tasks of the paper for which it does not report the number of examples.
  'squad_v2': Task(2, 16),
  'trivia_qa': Task(1, 64),
  'cnn_dailymail': Task(1, 8),
  # A task that the paper has for T5 only; here in its setting for Gemma.
  'xsum': Task(1, 8),
  # A set that the paper lacks: first turns, without examples and metric.
  'spec_bench': Task(0, 8),
}
_INF = float('inf')


def get_config(argument: str = '') -> ml_collections.ConfigDict:
  """Returns the fields of a pair on a task.

  Args:
    argument: Names of both, such as 'gemma2_2b_9b,gsm8k'.

  Raises:
    ValueError: A name is missing or unknown.
  """
  pair, _, task = argument.partition(',')
  if not (pair and task):
    raise ValueError(
      'argument: must be a pair and a task, such as gemma2_2b_9b,gsm8k;'
      f' the pairs are {", ".join(PAIRS)}, and the tasks are'
      f' {", ".join(TASKS)}.'
    )
  for option, name, names in (('pair', pair, PAIRS), ('task', task, TASKS)):
    if name not in names:
      raise ValueError(
        f'{option}: must be one of {", ".join(names)}, got {name!r}.'
      )
  verifier, drafter, gamma, chat = PAIRS[pair]
  return common.sweep(
    'mesh',
    verifier=verifier,
    drafter=drafter,
    tasks=(task,),
    task=dict(shots=TASKS[task].shots),
    # Spec-Bench has 480 examples.
    num_examples=480 if task == 'spec_bench' else 500,
    gamma=gamma,
    **(dict(chat=True) if chat else {}),
    batch_size=TASKS[task].batch_size,
    # Well above the longest prompt and answer of any task.
    cache_length=8192,
    # Half the default: a killed run loses at most one point.
    shard_size=128,
    # A worker has a device of its own.
    ray=dict(cpus=8, gpus=1),
  )


def sweep(add):
  """Adds the paper's rules and baselines, from strict to drafter-only."""
  inner = (0.1, 0.3, 0.5, 0.7, 0.9)
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0, *inner, 1.0))
  add(method='lossy', lenience=(0.0, *inner, 1.0))
  add(method='bild', lenience=(-1.0, 0.5, 1.0, 2.0, 3.0, 5.0, _INF))
  add(method='chow', lenience=(-1.0, *inner, 1.0))
  add(method='diff', lenience=(-1.0, 0.0, *inner, 1.0))
  add(method='opt', lenience=(-_INF, -0.5, 0.0, 0.25, 0.5, 0.75, _INF))
  add(method='token_v1', lenience=(-1.0, 0.0, *inner, 1.0))
  add(method='token_v2', lenience=(-1.0, 0.0, *inner, 1.0))
  add(method='token_v3', lenience=(-1.0, 0.0, *inner, 1.0))
  # A cascade of whole answers; those of single tokens are counted from chow and
  # diff.
  add(method='sequence_mean', lenience=(-1.0, *inner, 1.0))
