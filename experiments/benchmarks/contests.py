"""A pair at a batch size: its arms, which take turns, and their figures.

gemma      the verifier alone, by gemma's own sampler
alone      the verifier alone, by ours (gamma 0)
lock-step  both models read every token, and one token comes out of it
strict     ours, gamma after gamma
token_v3   ours, at several leniences
floor      bare forward passes, as many of each model as a strict arm makes,
           of the same shapes, in a loop without any rule
reading    the verifier's passes of such a floor
drafting   bare forward passes of the drafter, a token each
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import tqdm
from ml_collections import ConfigDict

from cascades import methods
from cascades.sampler import batching
from experiments.benchmarks import arms, floors, pairs, stopwatch


def arms_of(
  config: ConfigDict, pair: pairs.Pair, batch: int
) -> Iterator[arms.Arm]:
  """The arms of a pair, compiled.

  Args:
    config: Says which gammas, acceptances and leniences there are.
    pair: Its models decode, and its prompts are read.
    batch: How many rows every arm has.
  """
  yield arms.gemma(pair, batch)
  speed, token_v3 = methods.METHODS['speed'], methods.METHODS['token_v3']
  yield arms.ours(pair, batch, 'verifier_only', 0, 0.0, {'arm': 'alone'})
  yield arms.lock_step(pair, batch)
  yield floors.passes(pair, batch, 'floor', 0, pair.new_tokens)
  if batch == 1:
    yield floors.passes(pair, batch, 'drafting', 0, pair.new_tokens)
  rates, leniences = [speed.strict], config.leniences
  if pair.random:
    speed = arms.forced(speed, law_uses_q=False)
    token_v3 = arms.forced(token_v3, law_uses_q=True)
    rates = leniences = config.acceptances
  middle = rates[len(rates) // 2]
  for gamma in config.gammas:
    for rate in rates if gamma == config.gamma else [middle]:
      fields = {'arm': 'strict', 'lenience': rate}
      arm = arms.ours(pair, batch, speed, gamma, rate, fields)
      yield arm
      if rate == middle:
        # As many blocks as the loop makes.
        blocks = arm.facts(arm.decode(arm.prefill()))['blocks']
        yield floors.passes(pair, batch, 'floor', gamma, blocks)
        if batch == 1:
          yield floors.passes(pair, batch, 'reading', gamma, blocks)
  for lenience in leniences:
    fields = {'arm': 'token_v3', 'lenience': lenience}
    yield arms.ours(pair, batch, token_v3, config.gamma, lenience, fields)


def figures(
  pair: pairs.Pair,
  batch: int,
  entered: Sequence[arms.Arm],
  bar: tqdm.tqdm,
) -> Iterator[dict[str, Any]]:
  """Times arms, which take turns.

  Args:
    pair: Whose arms they are.
    batch: How many rows every arm has.
    entered: The arms; greedy text is compared with that of the first.
    bar: A progress bar that moves on by one with every turn of an arm.

  Yields:
    A figure for each arm; at the end the device's peak memory, if it is known.
  """
  facts: dict[int, dict[str, Any]] = {}

  def turn(i: int) -> dict[str, float]:
    seconds, state = entered[i].timed()
    # The same every time, and read from the device.
    if i not in facts:
      facts[i] = entered[i].facts(state)
    return seconds

  turns = [functools.partial(turn, i) for i in range(len(entered))]
  seconds = stopwatch.take_turns(turns, pair.repeats, bar)
  reference = facts[0]['first']
  for i, arm in enumerate(entered):
    said = facts[i]
    if 'first' in said:
      # Greedy, and strict: the verifier's own words, unless rounding differs.
      said['same_tokens'] = np.array_equal(said.pop('first'), reference)
    row = {'pair': pair.name, 'batch': batch, **arm.fields, **said}
    for part in ('prefill', 'decode'):
      row[f'{part}_s'] = [one[part] for one in seconds[i]]
    row |= {f'{part}_compile_s': s for part, s in arm.compile_s.items()}
    row['temporary_bytes'] = arm.temporary_bytes
    row['weight_bytes'] = _weight_bytes(row, pair)
    yield row
  statistics = jax.devices()[0].memory_stats() or {}
  if 'peak_bytes_in_use' in statistics:
    yield {
      'pair': pair.name,
      'batch': batch,
      'arm': 'peak memory',
      'bytes': statistics['peak_bytes_in_use'],
    }


def _weight_bytes(row: dict[str, Any], pair: pairs.Pair) -> int:
  """Bytes of weights that an arm read while it decoded."""
  of_verifier, of_drafter = (
    sum(x.nbytes for x in jax.tree.leaves(params)) for params in pair.params
  )
  drafts = {'reading': 0, 'drafting': 1, 'lock-step': 1}.get(
    row['arm'], row['gamma'] + 1 if row['gamma'] else 0
  )
  if row['arm'] == 'drafting':
    of_verifier = 0
  return row['blocks'] * (of_verifier + drafts * of_drafter)


def curve(config: ConfigDict, pair: pairs.Pair) -> dict[str, Any]:
  """A curve of leniences in one call, and point by point.

  Args:
    config: Says how many points it has, gamma, new tokens and turns.
    pair: Its models decode, and the first of its prompts is read.

  Raises:
    RuntimeError: An answer depends on what is decoded beside it.
  """
  engine = pairs.greedy_engine(
    pair.verifier, pair.drafter, 'token_v3', config.gamma
  )
  key = jax.random.split(jax.random.key(0), 1)
  points = np.linspace(0, 1, config.curve_points)
  usage = batching.Usage()

  def answers(leniences: Sequence[float]) -> list[list[int]]:
    prompt = pair.prompts[:1]
    asked = batching.Asked(prompt, key, leniences, config.new_tokens)
    told = sorted(
      batching.run(engine, asked, 64, usage), key=lambda found: found[0]
    )
    return [row.tokens[: row.length].tolist() for _, row in told]

  def one_by_one() -> list[list[int]]:
    return [answers([point])[0] for point in points]

  ways = [functools.partial(answers, points), one_by_one]
  turns = [functools.partial(stopwatch.timed, way) for way in ways]
  together, alone = stopwatch.take_turns(turns, config.repeats)
  if together[0][1] != alone[0][1]:
    raise RuntimeError('A point of the curve depends on the others.')
  return {
    'pair': pair.name,
    'arm': 'curve',
    'points': len(points),
    'together_s': [seconds for seconds, _ in together],
    'one_by_one_s': [seconds for seconds, _ in alone],
  }
