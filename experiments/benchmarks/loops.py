"""The suite 'loops': our loop, by gemma's own sampler and its lower bound.

Each pair at each batch size has these entrants:

  gemma     The verifier alone, by gemma's own sampler.
  alone     The verifier alone, by ours (gamma 0).
  strict    Ours, gamma after gamma.
  token_v3  Ours, at several leniences.
  floor     Bare forward passes, as many of each model as a strict entrant
            makes, of the same shapes, in a loop without any rule.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from cascades import methods
from experiments.benchmarks import entrants, harness, lower_bounds
from experiments.benchmarks.harness import Figures, median, threshold

# What the table shows of rows: a head, a field, and how many digits of it.
COLUMNS = {
  'pair': ('pair', None),
  'batch': ('batch', 0),
  'arm': ('arm', None),
  'gamma': ('gamma', 0),
  'lenience': ('lenience', 2),
  'drafts kept': ('acceptance', 2),
  'compile s': ('compile_s', 1),
  'prefill ms': ('prefill_ms', 1),
  'whole ms': ('whole_ms', 1),
  'ms/block': ('ms_per_block', 2),
  'tokens/s': ('tokens_per_s', 0),
  'x gemma': ('over_gemma', 2),
  'x alone': ('over_alone', 2),
  'x floor': ('over_floor', 2),
  'GB/s': ('gb_per_s', 1),
  'x copying': ('over_copy', 2),
  'peak GB': ('peak_gb', 1),
}


def check(config: ConfigDict) -> None:
  """Checks a config before anything is timed.

  Raises:
    ValueError: A number is out of its range.
  """
  counts = 'prompt_tokens', 'new_tokens', 'repeats', 'gammas', 'batch_sizes'
  harness.check_whole(config, *counts)
  for rate in config.acceptances:
    if not 0 < rate <= 1:
      raise ValueError(f'acceptances: must be above 0, up to 1, got {rate}.')


def parts(
  config: ConfigDict,
) -> Iterator[tuple[dict[str, Any], Callable[[], Figures]]]:
  """Yields how fast the device copies, and each pair at each batch size."""
  yield {'arm': 'copy'}, _copying
  for spec in config.pairs:
    load = functools.cache(functools.partial(entrants.load, config, spec))
    for batch in config.batch_sizes:
      key = {'pair': spec.name, 'batch': batch}
      yield key, lambda load=load, key=key: _measured(config, load(), key)


def _copying() -> Figures:
  """Measures the bytes that the device reads and writes in a second."""
  x = jnp.ones(2**26, jnp.float32)
  # In place: new memory would be paid for besides.
  copy = jax.jit(lambda x: x + 1, donate_argnums=0)
  x, seconds = jax.block_until_ready(copy(x)), []
  for _ in range(7):
    copy_s, x = harness.timed(copy, x)
    seconds.append(copy_s)
  return [{'arm': 'copy', 'bytes_per_s': 2 * x.nbytes / median(seconds)}]


def _measured(
  config: ConfigDict, pair: entrants.Pair, key: dict[str, Any]
) -> Figures:
  """Times a pair at a batch size, which its figures have as `key`."""
  name = f'{pair.name}, batch {key["batch"]}'
  entered = _entrants(config, pair, key['batch'])
  timed = [key | row for row in harness.race(entered, pair.repeats, name)]
  # A process can map only so much memory, and each loop takes a lot of it.
  jax.clear_caches()
  memory = jax.devices()[0].memory_stats() or {}
  of_verifier, of_drafter = (
    sum(x.nbytes for x in jax.tree.leaves(params)) for params in pair.params
  )
  for row in timed:
    passes = row['gamma'] + 1 if row['gamma'] else 0
    # What is read of weights while it decodes.
    row['weight_bytes'] = row['blocks'] * (of_verifier + passes * of_drafter)
    if 'peak_bytes_in_use' in memory:
      # Of the process until here.
      row['peak_gb'] = memory['peak_bytes_in_use'] / 1e9
  return timed


def _entrants(
  config: ConfigDict, pair: entrants.Pair, batch: int
) -> list[harness.Entrant]:
  """Makes the entrants of a pair at a batch size, and compiles them."""
  ours = functools.partial(entrants.ours, pair, batch)
  sizes = pair.new_tokens, pair.cache_length
  speed, token_v3 = methods.METHODS['speed'], methods.METHODS['token_v3']
  rates, leniences = [speed.strict], config.leniences
  if pair.verifier.tokenizer is None:
    speed = entrants.forced(speed, law_uses_q=False)
    token_v3 = entrants.forced(token_v3, law_uses_q=True)
    rates = leniences = config.acceptances
  middle = rates[len(rates) // 2]
  found = []

  def enter(entrant: harness.Entrant) -> dict[str, Any]:
    entrant, facts = harness.warmed(entrant)
    found.append(entrant)
    return facts

  enter(entrants.gemma(pair.verifier, pair.prompts[:batch], *sizes))
  enter(ours(methods.METHODS['verifier_only'], 0, 0.0, 'alone'))
  enter(lower_bounds.floor(pair, batch, 0, pair.new_tokens))
  for gamma in config.gammas:
    for rate in rates if gamma == config.gamma else [middle]:
      blocks = enter(ours(speed, gamma, rate, 'strict'))['blocks']
      if rate == middle:
        # As many blocks as the loop makes.
        enter(lower_bounds.floor(pair, batch, gamma, blocks))
  for lenience in leniences:
    enter(ours(token_v3, config.gamma, lenience, 'token_v3'))
  return found


def rows(figures: Figures) -> list[dict[str, Any]]:
  """Derives medians and ratios of the entrants.

  Args:
    figures: All figures; of each pair and batch at least gemma's and ours
      alone.

  Returns:
    For each entrant its fields, `prefill_ms`, `whole_ms` with decoding,
    `ms_per_block`, `gb_per_s` of weights, and `over_copy`, that by the device's
    copying. Where it writes, `tokens_per_s` of decoding, and `over_gemma` and
    `over_alone`, times as fast; where it has a lower bound, `over_floor`, times
    as slow. Else None.
  """
  copying = next(row for row in figures if row['arm'] == 'copy')
  timed = [row for row in figures if 'decode_s' in row]
  found = []
  for row in timed:
    both = zip(row['prefill_s'], row['decode_s'], strict=True)
    decode_s = median(row['decode_s'])
    gb_per_s = row['weight_bytes'] / decode_s / 1e9
    out = {name: row.get(name) for name, _ in COLUMNS.values()} | {
      'prefill_ms': 1e3 * median(row['prefill_s']),
      'whole_ms': 1e3 * median([sum(seconds) for seconds in both]),
      'ms_per_block': 1e3 * decode_s / row['blocks'],
      'gb_per_s': gb_per_s,
      'over_copy': 1e9 * gb_per_s / copying['bytes_per_s'],
    }
    if 'tokens' in row:
      out['tokens_per_s'] = row['tokens'] / decode_s
    for other in timed:
      if any(other[name] != row[name] for name in ('pair', 'batch')):
        continue
      arm, other_s = other['arm'], median(other['decode_s'])
      if arm in ('gemma', 'alone') and 'tokens' in row:
        out[f'over_{arm}'] = out['tokens_per_s'] * other_s / other['tokens']
      # Only as many blocks can be compared.
      alike = all(other[name] == row[name] for name in ('gamma', 'blocks'))
      if arm == 'floor' and alike and row['arm'] in ('alone', 'strict'):
        out['over_floor'] = decode_s / other_s
    found.append(out)
  return found


def thresholds(figures: Figures) -> list[tuple[str, ...]]:
  """Holds the loop to its lower bound and to gemma's sampler."""
  timed = rows(figures)
  strict = [
    row for row in timed if row['arm'] == 'strict' and row['over_floor']
  ]
  found = []
  for pair, batch in dict.fromkeys((r['pair'], r['batch']) for r in strict):
    mine = [r for r in timed if (r['pair'], r['batch']) == (pair, batch)]
    ratios = [row['over_floor'] for row in mine if row['over_floor']]
    alone = next(row for row in mine if row['arm'] == 'alone')
    bound, name = 1.25 if pair == 'bundled' else 1.1, f'{pair}, batch {batch}'
    floor = f'{name}: loop time by its floor'
    found += [
      threshold(f'{floor}, median of gammas', '<=', bound, median(ratios)),
      threshold(f'{floor}, worst gamma', '<=', bound, max(ratios)),
      threshold(
        f'{name}: the verifier alone, by gemma', '>=', 1, alone['over_gemma']
      ),
    ]
    if (pair, batch) == ('bundled', 1):
      best = max(
        (row for row in mine if row in strict), key=lambda r: r['tokens_per_s']
      )
      title = f'{name}: strict at gamma {best["gamma"]}, by gemma'
      found.append(threshold(title, '>=', 2, best['over_gemma']))
  return found


def tables(figures: Figures) -> list[harness.Table]:
  """Shows every entrant, and the thresholds."""
  return harness.tables(COLUMNS, rows(figures), thresholds(figures))
