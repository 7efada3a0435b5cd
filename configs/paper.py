"""What the sweeps of Gemma pairs share: the paper's setting, task by task.

Each file in configs/gemma*/ is one pair and one task of the tables here:

  get_config, sweep = paper.setting('gemma2_2b_9b', 'gsm8k')

The setting is that of Narasimhan et al. 2025 (arXiv 2405.19261) for Gemma:
gamma 1, temperature 1, few worked examples, every rule of theirs from strict to
drafter-only, and their baselines. It departs from it where theirs is not known
to us: the worked examples are this project's own; their number is the paper's
for gsm8k, web_questions, natural_questions and wmt14_en_de alone; examples, 500
of each test set, are drawn by a seed; leniences are a plain grid; checkpoints
are the pretrained ones (the instructed ones end in -it instead of -pt).

`needs` says what a sweep needs and takes. Bytes are counted as the sweep counts
them before it decodes, for the longest prompts. Hours are estimated, and not
measured: a block reads all weights and caches at half of what the device's
memory can give, a prompt takes two operations per parameter and token at two
fifths of what it computes at most, seven drafts in ten are accepted, and a
curve compiles for a minute.
"""

import math
from typing import NamedTuple

import ml_collections


class Size(NamedTuple):
  """How large a task is, in Gemma's tokens; where not counted, guessed.

  Attributes:
    shots: Worked examples before a question.
    prompt: Tokens of a prompt, these included, on average.
    answer: Tokens of an answer, on average.
    longest: Tokens of the longest prompt and of the longest answer allowed.
    batch_size: Rows decoded at a time.
  """

  shots: int
  prompt: int
  answer: int
  longest: int
  batch_size: int


class Device(NamedTuple):
  """What its maker says of it: bytes, bytes and operations (bf16) a second."""

  name: str
  memory: float
  bandwidth: float
  compute: float


# Verifier and drafter. The first two pairs are the paper's.
PAIRS = {
  'gemma2_2b_9b': ('gemma2-9b-pt', 'gemma2-2b-pt'),
  'gemma2_2b_27b': ('gemma2-27b-pt', 'gemma2-2b-pt'),
  'gemma3_270m_4b': ('gemma3-4b-pt', 'gemma3-270m-pt'),
  'gemma3_1b_12b': ('gemma3-12b-pt', 'gemma3-1b-pt'),
  'gemma4_e2b_31b': ('gemma4-31b-pt', 'gemma4-e2b-pt'),
}
TASKS = {
  'gsm8k': Size(8, 820, 150, 1400, 16),
  'mbpp': Size(3, 550, 90, 1300, 16),
  'squad_v2': Size(2, 390, 8, 1150, 16),
  'web_questions': Size(1, 35, 6, 110, 64),
  'natural_questions': Size(1, 35, 6, 110, 64),
  'trivia_qa': Size(1, 40, 6, 120, 64),
  'cnn_dailymail': Size(1, 1100, 80, 3400, 8),
  'xsum': Size(1, 650, 30, 3300, 8),
  'wmt14_en_de': Size(5, 260, 40, 650, 32),
  'spec_bench': Size(0, 330, 400, 3000, 8),
}
_DEVICES = (
  Device('H100 (80 GB)', 80e9, 3.35e12, 0.99e15),
  Device('H200 (141 GB)', 141e9, 4.8e12, 0.99e15),
)
_INF = float('inf')


def setting(pair: str, task: str):
  """`get_config` and `sweep` of a pair, a key of `PAIRS`, on a task."""

  def get_config() -> ml_collections.ConfigDict:
    c = ml_collections.ConfigDict()
    c.verifier, c.drafter = PAIRS[pair]
    # What to decode: keys of cascades.tasks.TASKS.
    c.tasks = (task,)
    # Where the set lies (from the hub if empty), how many worked examples stand
    # before a question, most tokens of an answer (0: the task's own), and
    # whether generated code may be run.
    c.task = dict(
      path='',
      shots=TASKS[task].shots,
      max_new_tokens=0,
      allow_code_execution=False,
    )
    # Held-out examples.
    c.num_examples = 480 if task == 'spec_bench' else 500
    # One method and its leniences; sweep() below goes through all of them.
    c.method = 'token_v3'
    c.lenience = (0.3,)
    # Tokens drafted per block.
    c.gamma = 1
    # Of both models; 0 is greedy.
    c.temperature = 1.0
    # Rows decoded at a time, a row being a prompt at a lenience.
    c.batch_size = TASKS[task].batch_size
    # Most tokens of a prompt and its answer.
    c.cache_length = 8192
    # Devices that split the rows, and that split the parameters.
    c.mesh = (1, 1)
    # Examples of a point, which is what a killed run loses at most.
    c.shard_size = 128
    # With --launcher=ray: where the cluster is ('' is this machine), what a
    # point takes, and how often one whose worker is lost is tried again.
    c.ray = dict(address='', cpus=8, gpus=1, retries=3)
    # Who is told of points as they are done, beside the workdir: of
    # 'tensorboard' and 'wandb'.
    c.trackers = ()
    # Of the examples and of the sampling.
    c.seed = 0
    # The same with the bundled pair on four examples, without worked ones: a
    # rehearsal that runs anywhere.
    c.tiny = False
    return c

  return get_config, _sweep


def _sweep(add):
  """The paper's rules and baselines, each from strict to drafter-only."""
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
  # Token by token without speculation, the second as an oracle; and by answer.
  add(method='chow', lenience=inner, verification='sequential')
  add(method='diff', lenience=inner, verification='sequential')
  add(method='sequence_mean', lenience=(-1.0, *inner, 1.0))


def needs(config: ml_collections.ConfigDict, curves) -> str:
  """Memory and hours of a sweep on one task of `TASKS`, in a sentence.

  Args:
    config: As `setting` makes it.
    curves: What `experiments.sweeps.plan.curves` makes of it.
  """
  from cascades.models import checkpoints
  from cascades.sampler import batching, memory

  pair = [checkpoints.describe(n) for n in (config.verifier, config.drafter)]
  (task,) = config.tasks
  size = TASKS[task]
  needed = memory.need(
    *pair,
    batch_size=config.batch_size,
    cache_length=batching.bucket(size.longest),
    gamma=config.gamma,
  )
  device = next(d for d in _DEVICES if needed.total < 0.9 * d.memory)
  verifier, drafter = (
    memory.need(model, None, batch_size=1, cache_length=1, gamma=0).params
    for model in pair
  )
  per_block = (1 - 0.7 ** (config.gamma + 1)) / (1 - 0.7)
  seconds = 0.0
  for curve in curves:
    seconds += 60.0
    if curve.method.startswith('sequence'):
      # It takes its answers from the two models alone.
      continue
    # In bfloat16 a parameter is two bytes, and a token takes two operations.
    read = (verifier + drafter) * size.prompt * config.num_examples
    seconds += read / (0.4 * device.compute)
    tokens, weights = per_block, verifier + (config.gamma + 1) * drafter
    if not curve.gamma:
      alone = {'verifier_only': verifier, 'drafter_only': drafter}
      tokens, weights = 1.0, alone[curve.method]
    answers = config.num_examples * max(1, len(curve.leniences))
    blocks = answers * size.answer / tokens / config.batch_size
    seconds += blocks * (weights + needed.caches) / (0.5 * device.bandwidth)
  points = sum(max(1, len(curve.leniences)) for curve in curves)
  return (
    f'{needed.params / 1e9:.1f} GB of weights, {needed.total / 1e9:.1f} GB in'
    f' all at batch_size {config.batch_size}: one {device.name}, for about'
    f' {math.ceil(seconds / 3600)} h by estimate ({points} points).'
  )
