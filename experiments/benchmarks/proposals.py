"""Drafters beyond a second model, and several drafts per block.

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
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from cascades import decoding, drafters, load_model, tasks
from cascades.drafters import pairing
from cascades.sampler import batching, sampler
from experiments import cli
from experiments.benchmarks import loops
from experiments.benchmarks.single_blocks import interleave
from experiments.sweeps import costs

# Tokens in the cache when bare costs are measured, at the most.
_CONTEXT = 192


def check(config) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: A number is out of its range.
  """
  for name in ('num_examples', 'gamma', 'repeats', 'max_new_tokens'):
    if config[name] < 1:
      raise ValueError(f'{name}: {config[name]} will not do; give 1 or more.')
  for arm in (*config.problems, *config.copies):
    sampler.check_options(
      method='speed',
      lenience=0.0,
      gamma=config.gamma,
      temperature=1.0,
      verification=arm.get('verification', 'token'),
      drafts=arm.get('drafts', 1),
      tree_size=arm.get('tree_size'),
    )


def copies(verifier, count: int, max_new_tokens: int) -> list[str]:
  """Prompts that repeat themselves: a problem, its answer, the problem again.

  As in a summary, or an edit of a program, much of the answer is there to be
  copied.
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


def _sampler(config, verifier, arm, temperature: float):
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


def _take_turns(arms, repeats: int, bar) -> Iterator[tuple[Any, list[float]]]:
  """What each arm answers, and its seconds; the first turn only warms up.

  Args:
    arms: Functions that decode, and return answers and decoding seconds.
    repeats: Turns that count.
    bar: Moves on by every arm's turn.
  """
  seconds = [[] for _ in arms]
  said = [None] * len(arms)
  for turn in range(repeats + 1):
    for i, arm in enumerate(arms):
      said[i], taken = arm()
      if turn:
        seconds[i].append(taken)
      bar.update()
  return zip(said, seconds, strict=True)


def _decode(config, part, verifier, arms, prompts, temperature, bar):
  """Every arm decodes the prompts, one after the other, taking turns."""

  def answer(one):
    answers = one.sample(prompts, max_new_tokens=config.max_new_tokens)
    return answers, one.usage.decode_s

  samplers = [_sampler(config, verifier, arm, temperature) for arm in arms]
  turns = [functools.partial(answer, one) for one in samplers]
  told = _take_turns(turns, config.repeats, bar)
  for arm, (answers, times) in zip(arms, told, strict=True):
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
      'decode_s': times,
      **counts,
    }


def _loops(config, bar) -> Iterator[dict[str, Any]]:
  """Texts of random weights go on, with and without n-grams."""
  pair = loops.load_pair(config, config.tree)
  verifier = pair.verifier

  def write(prompts, drafter, gamma, new_tokens):
    engine = loops.greedy_engine(verifier, drafter, 'speed', gamma)
    keys = jax.random.split(jax.random.key(config.seed), len(prompts))
    usage = batching.Usage()
    asked = batching.Asked(prompts, keys, [0.0], new_tokens)
    rows = dict(batching.run(engine, asked, 1, usage))
    rows = [rows[batching.Job(i, 0)] for i in range(len(prompts))]
    return rows, usage.decode_s

  rows, _ = write(pair.prompts, None, 0, config.loop_tokens)
  prompts = [row.tokens[: row.length] for row in rows]
  look_up = drafters.Equipped(
    drafters.NgramDrafter(verifier.model.vocab_size), ()
  )
  arms = [('none', None, 0)]
  arms += [('n-gram', look_up, gamma) for gamma in config.loop_gammas]
  turns = [
    functools.partial(write, prompts, drafter, gamma, config.new_tokens)
    for _, drafter, gamma in arms
  ]
  told = _take_turns(turns, config.repeats, bar)
  for (name, _, gamma), (rows, times) in zip(arms, told, strict=True):
    yield {
      'part': 'loops',
      'arm': name,
      'drafts': 1,
      'gamma': gamma,
      'tokens': len(rows) * config.new_tokens,
      'decode_s': times,
      'verifier_calls': sum(int(row.blocks) for row in rows),
      'accepted': sum(int(decoding.count(row).accepted) for row in rows),
      'examined': sum(int(decoding.count(row).examined) for row in rows),
    }


def _costs(config, verifier, arms) -> Iterator[dict[str, Any]]:
  """Bare seconds per block: of the proposal, and of reading it."""
  loops, counts = {}, {}
  for arm in arms:
    drafts = arm.get('drafts', 1)
    gamma = config.gamma if arm.get('drafter') else 0
    width = decoding.tree_tokens(gamma, drafts, arm.get('tree_size')) + 1
    run, given, blocks = costs.reading(verifier, width, _CONTEXT)
    loops[f'{arm.name}: reading'] = functools.partial(run, *given)
    counts[f'{arm.name}: reading'] = blocks
    if gamma:
      options = {x: arm[x] for x in ('stop_below', 'beam') if x in arm}
      equipped = pairing.equip(verifier, arm.drafter, **options)
      run, given, blocks = costs.proposing(
        verifier, equipped, gamma, drafts, _CONTEXT
      )
      loops[f'{arm.name}: proposing'] = functools.partial(run, *given)
      counts[f'{arm.name}: proposing'] = blocks
  bar = cli.progress(len(loops) * (config.repeats + 2), 'bare costs')
  seconds = interleave(loops, config.repeats, bar)
  for name, times in seconds.items():
    arm, what = name.split(': ')
    yield {
      'part': 'costs',
      'arm': arm,
      'what': what,
      'block_s': [s / counts[name] for s in times],
    }


def _tree(config) -> Iterator[dict[str, Any]]:
  """The loop with several drafts, by its bare forward passes."""
  pair = loops.load_pair(config, config.tree)
  for drafts in config.tree_drafts:
    arm = loops.ours(
      pair, 1, 'speed', config.gamma, 0.0, {'arm': 'strict'}, drafts
    )
    said = arm.facts(jax.block_until_ready(arm.decode(arm.prefill())))
    blocks = said['blocks']
    floor = loops.passes(pair, 1, 'floor', config.gamma, blocks, drafts)
    times = {'loop': [], 'floor': []}
    for turn in range(config.repeats + 1):
      for name, one in (('loop', arm), ('floor', floor)):
        state = jax.block_until_ready(one.prefill())
        start = time.perf_counter()
        jax.block_until_ready(one.decode(state))
        if turn:
          times[name].append((time.perf_counter() - start) / blocks)
    yield {
      'part': 'tree',
      'arm': config.tree.name,
      'drafts': drafts,
      'blocks': blocks,
      'block_s': times['loop'],
      'floor_s': times['floor'],
    }


def measure(config, done: Sequence[dict[str, Any]] = ()) -> Iterator[dict]:
  """All figures, as they are known; see `suites`."""
  parts = {row['part'] for row in done}
  verifier = load_model(config.verifier)
  bar = cli.progress(0, 'decoding')
  if 'problems' not in parts:
    task = tasks.TASKS['word_problems']
    examples = task.load(split='test', num_examples=config.num_examples)
    prompts = [example.prompt for example in examples]
    bar.total += len(config.problems) * (config.repeats + 1)
    arms = config.problems
    yield from _decode(config, 'problems', verifier, arms, prompts, 1.0, bar)
  if 'costs' not in parts:
    yield from _costs(config, verifier, config.problems)
  if 'copies' not in parts:
    prompts = copies(verifier, config.num_examples, config.max_new_tokens)
    bar.total += len(config.copies) * (config.repeats + 1)
    arms = config.copies
    yield from _decode(config, 'copies', verifier, arms, prompts, 0.0, bar)
  if 'loops' not in parts:
    bar.total += (1 + len(config.loop_gammas)) * (config.repeats + 1)
    yield from _loops(config, bar)
  if 'tree' not in parts:
    bar.set_description('tree')
    yield from _tree(config)
  bar.close()


def rows(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """The arms that decode, with what follows from their figures."""
  bare = {
    (row['arm'], row['what']): float(np.median(row['block_s']))
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
      r['tokens'] / float(np.median(r['decode_s'])) for r in (row, alone)
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

  def cell(value, width, digits):
    return f'{"-" if value is None else f"{value:.{digits}f}":>{width}}'

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
      loop, floor = (
        float(np.median(row[name])) for name in ('block_s', 'floor_s')
      )
      lines.append(
        f'{row["arm"]:<10}{row["drafts"]:>7}{1e3 * loop:>10.2f}'
        f'{1e3 * floor:>8.2f}{loop / floor:>6.2f}'
      )
  return '\n'.join(lines)
