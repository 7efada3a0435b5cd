"""The suite 'loops': this project's loop, gemma's, and the lower bound.

Each pair at each batch size has these entrants:

  gemma     The verifier alone, by gemma's sampler.
  alone     The verifier alone, by this project's loop (gamma 0).
  strict    Strict decoding by this project's loop, at each gamma.
  token_v3  The same loop with token_v3, at several leniences.
  floor     The lower bound: the forward passes of a strict entrant in a loop
            without any rule.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from cascades import methods
from experiments import measuring
from experiments.benchmarks import entrants
from experiments.measuring import median


def parts(
  config: ConfigDict,
) -> Iterator[tuple[dict[str, Any], Callable[[], list[dict[str, Any]]]]]:
  """Yields each pair and batch size."""
  for rate in config.acceptances:
    if not 0 < rate <= 1:
      raise ValueError(f'acceptances: must be above 0, up to 1, got {rate}.')
  for spec in config.pairs:
    load = functools.cache(functools.partial(entrants.load, config, spec))
    for batch in config.batch_sizes:
      key = {'pair': spec.name, 'batch': batch}
      yield key, lambda load=load, key=key: measure(config, load(), key)


def measure(
  config: ConfigDict, pair: entrants.Pair, key: dict[str, Any]
) -> list[dict[str, Any]]:
  """Times the entrants of a pair; `key` is part of their figures."""
  participants = _entrants(config, pair, key['batch'])
  name = f'{pair.name}, batch {key["batch"]}'
  timed = measuring.race(participants, pair.repeats, name)
  # Each compiled loop takes mapped memory, which is limited per process.
  jax.clear_caches()
  return [key | row for row in timed]


def _entrants(
  config: ConfigDict, pair: entrants.Pair, batch: int
) -> list[measuring.Entrant]:
  """Makes and compiles the entrants of a pair at a batch size."""
  loop = functools.partial(entrants.project_loop, pair, batch)
  sizes = pair.new_tokens, pair.cache_length
  speed, token_v3 = methods.METHODS['speed'], methods.METHODS['token_v3']
  rates, leniences = [speed.strict], config.leniences
  if pair.verifier.tokenizer is None:
    speed = entrants.force_acceptance(speed, law_uses_q=False)
    token_v3 = entrants.force_acceptance(token_v3, law_uses_q=True)
    rates = leniences = config.acceptances
  median_rate = rates[len(rates) // 2]
  participants = []

  def enter(entrant: measuring.Entrant) -> dict[str, Any]:
    entrant, facts = measuring.warm_up(entrant)
    participants.append(entrant)
    return facts

  if config.get('gemma', True):
    enter(entrants.gemma_loop(pair.verifier, pair.prompts[:batch], *sizes))
  enter(loop(methods.METHODS['verifier_only'], 0, 0.0, 'alone'))
  enter(entrants.lower_bound(pair, batch, 0, pair.new_tokens))
  for gamma in config.gammas:
    for rate in rates if gamma == config.gamma else [median_rate]:
      blocks = enter(loop(speed, gamma, rate, 'strict'))['blocks']
      if rate == median_rate:
        # The bound runs as many blocks as the strict entrant.
        enter(entrants.lower_bound(pair, batch, gamma, blocks))
  for lenience in leniences:
    enter(loop(token_v3, config.gamma, lenience, 'token_v3'))
  return participants


def tables(
  figures: Sequence[dict[str, Any]],
) -> list[list[dict[str, Any]]]:
  """Derives medians and ratios of the entrants."""
  rows, fields = [], ('pair', 'batch', 'arm', 'gamma', 'lenience', 'acceptance')
  for row in figures:
    group = [
      x for x in figures if all(x[k] == row[k] for k in ('pair', 'batch'))
    ]
    decode_s = median(row['decode_s'])
    out = {name: row.get(name) for name in fields} | {
      'compile s': row['compile_s'],
      'prefill ms': 1e3 * median(row['prefill_s']),
      'ms/block': 1e3 * decode_s / row['blocks'],
    }
    if 'tokens' in row:
      out['tokens/s'] = row['tokens'] / decode_s
      for reference in group:
        if (arm := reference['arm']) in ('gemma', 'alone'):
          speed = reference['tokens'] / median(reference['decode_s'])
          out[f'x {arm}'] = out['tokens/s'] / speed
    for floor in group if row['arm'] in ('alone', 'strict') else ():
      # Only loops with the same number of blocks are comparable.
      if floor['arm'] == 'floor' and all(
        floor[name] == row[name] for name in ('gamma', 'blocks')
      ):
        out['x floor'] = decode_s / median(floor['decode_s'])
    rows.append(out)
  return [rows]
