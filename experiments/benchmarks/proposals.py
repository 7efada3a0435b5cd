"""The suite 'drafters': all that proposes, and several drafts per block.

Four parts:

  problems   Every drafter at temperature 1, strict: tokens per call of the
             verifier, tokens per second, and the modelled latency, which is
             made of the bare cost of proposing and of reading such blocks.
  copies     Prompts whose answers stand in them already: n-grams, greedy.
  loops      Texts that random weights write greedily, which repeat themselves,
             gone on with: what n-grams can gain with a larger verifier.
  tree       What bookkeeping of several drafts costs, with random weights: the
             loop by bare forward passes of the same shapes.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import tqdm
from ml_collections import ConfigDict

from cascades import arguments, decoding, drafters, load_model
from cascades.drafters import pairing
from cascades.models import checkpoints
from cascades.sampler import batching, sampler
from cascades.sampler.options import Options
from experiments import cli, tasks
from experiments.benchmarks import arms, floors, pairs, stopwatch
from experiments.benchmarks.digits import cell, median
from experiments.sweeps import costs

# Tokens in the cache when bare costs are measured, at the most.
_CONTEXT = 192


def check(config: ConfigDict) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: A number is out of its range.
  """
  for name in ('num_examples', 'gamma', 'repeats', 'max_new_tokens'):
    arguments.whole(name, config[name], 1)
  for arm in (*config.problems, *config.copies):
    Options(
      method='speed',
      lenience=0.0,
      gamma=config.gamma,
      temperature=1.0,
      verification=arm.get('verification', 'token'),
      drafts=arm.get('drafts', 1),
      tree_size=arm.get('tree_size'),
    )


def _repeated(
  verifier: checkpoints.Checkpoint, count: int, max_new_tokens: int
) -> list[str]:
  """Prompts that repeat themselves: a problem, its answer, the problem again.

  As in a summary, or an edit of a program, much of the answer is there to be
  copied.

  Args:
    verifier: Answers the problems.
    count: How many prompts are wanted.
    max_new_tokens: Most tokens of an answer.
  """
  alone = sampler.Sampler(verifier, gamma=0, temperature=0.0)
  task = tasks.TASKS['word_problems']
  examples = list(task.load(split='test', seed=1, num_examples=count))
  prompts = [example.prompt for example in examples]
  answers = alone.sample(prompts, max_new_tokens=max_new_tokens)
  return [
    f'{prompt}{answer.text}\n{prompt}'
    for prompt, answer in zip(prompts, answers, strict=True)
  ]


def _sampler(
  config: ConfigDict,
  verifier: checkpoints.Checkpoint,
  arm: ConfigDict,
  temperature: float,
) -> sampler.Sampler:
  """What an arm decodes with, strictly, one prompt at a time."""
  options = {
    name: arm[name]
    for name in ('drafts', 'tree_size', 'verification', 'stop_below', 'beam')
    if name in arm
  }
  return sampler.Sampler(
    verifier,
    arm.get('drafter'),
    method='speed',
    lenience=0.0,
    gamma=config.gamma if arm.get('drafter') else 0,
    temperature=temperature,
    batch_size=1,
    **options,
  )


def _decode(
  config: ConfigDict,
  part: str,
  verifier: checkpoints.Checkpoint,
  prompts: Sequence[str],
  temperature: float,
  bar: tqdm.tqdm,
) -> Iterator[dict[str, Any]]:
  """Every arm of a part decodes the prompts, the arms taking turns.

  Args:
    config: Has the arms, in the field that has the part's name.
    part: 'problems' or 'copies'.
    verifier: Verifies.
    prompts: What is asked, as text.
    temperature: At which both models are sampled.
    bar: A progress bar that moves on by one with every turn of an arm.
  """

  def answer(one: sampler.Sampler) -> tuple[list[sampler.Answer], float]:
    answers = one.sample(prompts, max_new_tokens=config.max_new_tokens)
    return answers, one.usage.decode_s

  bar.total += len(config[part]) * (config.repeats + 1)
  turns = [
    functools.partial(answer, _sampler(config, verifier, arm, temperature))
    for arm in config[part]
  ]
  told = stopwatch.take_turns(turns, config.repeats, bar)
  for arm, found in zip(config[part], told, strict=True):
    answers, _ = found[-1]
    counts = {
      name: sum(answer.counts[name] for answer in answers)
      for name in answers[0].counts
    }
    yield {
      'part': part,
      'arm': arm.name,
      'drafts': arm.get('drafts', 1),
      'gamma': config.gamma if arm.get('drafter') else 0,
      'tokens': sum(len(answer.logprobs) for answer in answers),
      'decode_s': [seconds for _, seconds in found],
      **counts,
    }


def _loops(config: ConfigDict, bar: tqdm.tqdm) -> Iterator[dict[str, Any]]:
  """Texts of random weights go on, with and without n-grams.

  Args:
    config: Has the pair in its field `tree`, and says how long texts are.
    bar: A progress bar that moves on by one with every turn of an arm.
  """
  pair = pairs.load(config, config.tree)
  verifier = pair.verifier

  def write(prompts, drafter, gamma, new_tokens):
    engine = pairs.greedy_engine(verifier, drafter, 'speed', gamma)
    keys = jax.random.split(jax.random.key(config.seed), len(prompts))
    usage = batching.Usage()
    asked = batching.Asked(prompts, keys, [0.0], new_tokens)
    told = dict(batching.run(engine, asked, 1, usage))
    rows = [told[batching.Job(i, 0)] for i in range(len(prompts))]
    return rows, usage.decode_s

  rows, _ = write(pair.prompts, None, 0, config.loop_tokens)
  prompts = [row.tokens[: row.length] for row in rows]
  look_up = drafters.Equipped(drafters.NgramDrafter(), ())
  entered = [('none', None, 0)]
  entered += [('n-gram', look_up, gamma) for gamma in config.loop_gammas]
  turns = [
    functools.partial(write, prompts, drafter, gamma, config.new_tokens)
    for _, drafter, gamma in entered
  ]
  bar.total += len(entered) * (config.repeats + 1)
  told = stopwatch.take_turns(turns, config.repeats, bar)
  for (name, _, gamma), found in zip(entered, told, strict=True):
    rows, _ = found[-1]
    counts = [decoding.count(row) for row in rows]
    yield {
      'part': 'loops',
      'arm': name,
      'drafts': 1,
      'gamma': gamma,
      'tokens': len(rows) * config.new_tokens,
      'decode_s': [seconds for _, seconds in found],
      'verifier_calls': sum(int(row.blocks) for row in rows),
      'accepted': sum(int(count.accepted) for count in counts),
      'examined': sum(int(count.examined) for count in counts),
    }


def _costs(
  config: ConfigDict, verifier: checkpoints.Checkpoint
) -> Iterator[dict[str, Any]]:
  """Bare seconds per block: of the proposal, and of reading it.

  Args:
    config: Has the arms, in its field `problems`.
    verifier: Reads.
  """
  passes, counts = {}, {}
  for arm in config.problems:
    drafts = arm.get('drafts', 1)
    gamma = config.gamma if arm.get('drafter') else 0
    width = decoding.tree_tokens(gamma, drafts, arm.get('tree_size')) + 1
    run, given, blocks = costs.reading(verifier, width, _CONTEXT)
    passes[f'{arm.name}: reading'] = functools.partial(run, *given)
    counts[f'{arm.name}: reading'] = blocks
    if gamma:
      options = {x: arm[x] for x in ('stop_below', 'beam') if x in arm}
      equipped = pairing.equip(verifier, arm.drafter, **options)
      run, given, blocks = costs.proposing(
        verifier, equipped, gamma, drafts, _CONTEXT
      )
      passes[f'{arm.name}: proposing'] = functools.partial(run, *given)
      counts[f'{arm.name}: proposing'] = blocks
  bar = cli.progress(len(passes) * (config.repeats + 1), 'bare costs')
  seconds = stopwatch.interleave(passes, config.repeats, bar)
  bar.close()
  for name, times in seconds.items():
    arm, what = name.split(': ')
    yield {
      'part': 'costs',
      'arm': arm,
      'what': what,
      'block_s': [s / counts[name] for s in times],
    }


def _tree(config: ConfigDict) -> Iterator[dict[str, Any]]:
  """The loop with several drafts, by its bare forward passes."""
  pair = pairs.load(config, config.tree)

  def decode_s(one: arms.Arm) -> float:
    seconds, _ = one.timed()
    return seconds['decode']

  for drafts in config.tree_drafts:
    arm = arms.ours(
      pair, 1, 'speed', config.gamma, 0.0, {'arm': 'strict'}, drafts
    )
    _, state = arm.timed()
    blocks = arm.facts(state)['blocks']
    floor = floors.passes(pair, 1, 'floor', config.gamma, blocks, drafts)
    turns = [functools.partial(decode_s, one) for one in (arm, floor)]
    of_loop, of_floor = stopwatch.take_turns(turns, config.repeats)
    yield {
      'part': 'tree',
      'arm': config.tree.name,
      'drafts': drafts,
      'blocks': blocks,
      'block_s': [s / blocks for s in of_loop],
      'floor_s': [s / blocks for s in of_floor],
    }


def measure(
  config: ConfigDict, done: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
  """All figures, as they are known.

  Args:
    config: What to time.
    done: Figures of an earlier run, whose parts are not measured again.
  """
  parts = {row['part'] for row in done}
  verifier = load_model(config.verifier)
  bar = cli.progress(0, 'decoding')
  if 'problems' not in parts:
    task = tasks.TASKS['word_problems']
    examples = task.load(split='test', num_examples=config.num_examples)
    prompts = [example.prompt for example in examples]
    yield from _decode(config, 'problems', verifier, prompts, 1.0, bar)
  if 'costs' not in parts:
    yield from _costs(config, verifier)
  if 'copies' not in parts:
    prompts = _repeated(verifier, config.num_examples, config.max_new_tokens)
    yield from _decode(config, 'copies', verifier, prompts, 0.0, bar)
  if 'loops' not in parts:
    yield from _loops(config, bar)
  if 'tree' not in parts:
    bar.set_description('tree')
    yield from _tree(config)
  bar.close()


def rows(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """The arms that decode, with what follows from their figures."""
  bare = {
    (row['arm'], row['what']): median(row['block_s'])
    for row in figures
    if row['part'] == 'costs'
  }
  found = []
  for row in figures:
    if row['part'] not in ('problems', 'copies', 'loops'):
      continue
    alone = next(
      r for r in figures if r['part'] == row['part'] and not r['gamma']
    )
    speed, of_alone = (
      r['tokens'] / median(r['decode_s']) for r in (row, alone)
    )
    out = {name: row[name] for name in ('part', 'arm', 'drafts', 'gamma')}
    out |= {
      'tokens_per_call': row['tokens'] / row['verifier_calls'],
      'acceptance': (
        row['accepted'] / row['examined'] if row['examined'] else None
      ),
      'tokens_per_s': speed,
      'over_alone': speed / of_alone,
    }
    reading = bare.get((row['arm'], 'reading'))
    if row['part'] == 'problems' and reading is not None:
      block = reading + bare.get((row['arm'], 'proposing'), 0.0)
      modelled = block / out['tokens_per_call']
      out['latency'] = modelled / bare[alone['arm'], 'reading']
    found.append(out)
  return found


def table(figures: Sequence[dict[str, Any]]) -> str:
  """A line per arm, then the trees."""
  lines = [
    f'{"prompts":<10}{"drafter":<32}{"gamma":>6}{"drafts":>7}{"kept":>7}'
    f'{"tokens/call":>12}{"tokens/s":>10}{"x alone":>9}{"latency":>9}'
  ]
  lines += [
    f'{row["part"]:<10}{row["arm"]:<32}{row["gamma"]:>6}{row["drafts"]:>7}'
    + cell(row['acceptance'], 7, 3)
    + cell(row['tokens_per_call'], 12, 2)
    + cell(row['tokens_per_s'], 10, 0)
    + cell(row['over_alone'], 9, 2)
    + cell(row.get('latency'), 9, 3)
    for row in rows(figures)
  ]
  lines += ['', f'{"pair":<10}{"drafts":>7}{"ms/block":>10}{"bare":>8}{"x":>6}']
  for row in figures:
    if row['part'] == 'tree':
      loop, floor = (median(row[name]) for name in ('block_s', 'floor_s'))
      lines.append(
        f'{row["arm"]:<10}{row["drafts"]:>7}{1e3 * loop:>10.2f}'
        f'{1e3 * floor:>8.2f}{loop / floor:>6.2f}'
      )
  return '\n'.join(lines)
