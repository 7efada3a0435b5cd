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
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from cascades import methods
from experiments.benchmarks import entrants, harness, lower_bounds
from experiments.benchmarks.harness import Figures, median, threshold

# Columns of the table by head: a field, and its number of decimals.
COLUMNS = {
  'pair': ('pair', None),
  'batch': ('batch', 0),
  'arm': ('arm', None),
  'gamma': ('gamma', 0),
  'lenience': ('lenience', 2),
  'acceptance': ('acceptance', 2),
  'compile s': ('compile_s', 1),
  'prefill ms': ('prefill_ms', 1),
  'total ms': ('whole_ms', 1),
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
  """Checks a config before anything is timed."""
  counts = 'prompt_tokens', 'new_tokens', 'repeats', 'gammas', 'batch_sizes'
  harness.check_counts(config, *counts)
  for rate in config.acceptances:
    if not 0 < rate <= 1:
      raise ValueError(f'acceptances: must be above 0, up to 1, got {rate}.')


def parts(
  config: ConfigDict,
) -> Iterator[tuple[dict[str, Any], Callable[[], Figures]]]:
  """Yields the copying speed of the device, and each pair and batch size."""
  yield (
    {'arm': 'copy'},
    lambda: [{'arm': 'copy', 'bytes_per_s': measure_copying()}],
  )
  for spec in config.pairs:
    load = functools.cache(functools.partial(entrants.load, config, spec))
    for batch in config.batch_sizes:
      key = {'pair': spec.name, 'batch': batch}
      yield key, lambda load=load, key=key: _measure(config, load(), key)


def measure_copying(size: int = 2**26, copies: int = 1) -> float:
  """Measures the bytes per second that the device reads and writes."""
  x = jnp.ones(size, jnp.float32)
  # The copy is in place, since an allocation would be timed too.
  copy = jax.jit(lambda x: x + 1, donate_argnums=0)

  def copy_all(x: jax.Array) -> jax.Array:
    for _ in range(copies):
      x = copy(x)
    return x

  x, seconds = jax.block_until_ready(copy(x)), []
  for _ in range(7):
    copy_s, x = harness.timed(copy_all, x)
    seconds.append(copy_s)
  return 2 * copies * x.nbytes / median(seconds)


def _measure(
  config: ConfigDict, pair: entrants.Pair, key: dict[str, Any]
) -> Figures:
  """Times the entrants of a pair; `key` is part of their figures."""
  name = f'{pair.name}, batch {key["batch"]}'
  participants = _entrants(config, pair, key['batch'])
  timed = [key | row for row in harness.race(participants, pair.repeats, name)]
  # Each compiled loop takes mapped memory, which is limited per process.
  jax.clear_caches()
  memory = jax.devices()[0].memory_stats() or {}
  verifier_bytes, drafter_bytes = (
    sum(x.nbytes for x in jax.tree.leaves(params)) for params in pair.params
  )
  for row in timed:
    # A lenient block may end with a token of its law, which depends on q.
    passes = row['gamma'] + (row['arm'] == 'token_v3')
    # Bytes of weights that are read while the entrant decodes.
    row['weight_bytes'] = row['blocks'] * (
      verifier_bytes + passes * drafter_bytes
    )
    if 'peak_bytes_in_use' in memory:
      # The peak of the process so far.
      row['peak_gb'] = memory['peak_bytes_in_use'] / 1e9
  return timed


def _entrants(
  config: ConfigDict, pair: entrants.Pair, batch: int
) -> list[harness.Entrant]:
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

  def enter(entrant: harness.Entrant) -> dict[str, Any]:
    entrant, facts = harness.warm_up(entrant)
    participants.append(entrant)
    return facts

  enter(entrants.gemma_loop(pair.verifier, pair.prompts[:batch], *sizes))
  enter(loop(methods.METHODS['verifier_only'], 0, 0.0, 'alone'))
  enter(lower_bounds.lower_bound(pair, batch, 0, pair.new_tokens))
  for gamma in config.gammas:
    for rate in rates if gamma == config.gamma else [median_rate]:
      blocks = enter(loop(speed, gamma, rate, 'strict'))['blocks']
      if rate == median_rate:
        # The bound runs as many blocks as the strict entrant.
        enter(lower_bounds.lower_bound(pair, batch, gamma, blocks))
  for lenience in leniences:
    enter(loop(token_v3, config.gamma, lenience, 'token_v3'))
  return participants


def rows(figures: Figures) -> list[dict[str, Any]]:
  """Derives medians and ratios of the entrants."""
  copying = next(row for row in figures if row['arm'] == 'copy')
  timed = [row for row in figures if 'decode_s' in row]
  results = []
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
    for reference in timed:
      if any(reference[name] != row[name] for name in ('pair', 'batch')):
        continue
      arm, reference_s = reference['arm'], median(reference['decode_s'])
      if arm in ('gemma', 'alone') and 'tokens' in row:
        speed = out['tokens_per_s'] * reference_s
        out[f'over_{arm}'] = speed / reference['tokens']
      # Only loops with the same number of blocks are comparable.
      is_comparable = all(
        reference[name] == row[name] for name in ('gamma', 'blocks')
      )
      if arm == 'floor' and is_comparable and row['arm'] in ('alone', 'strict'):
        out['over_floor'] = decode_s / reference_s
    results.append(out)
  return results


def thresholds(figures: Figures) -> list[tuple[str, ...]]:
  """Compares the loop with its lower bound and with gemma's sampler."""
  timed = rows(figures)
  strict = [
    row for row in timed if row['arm'] == 'strict' and row['over_floor']
  ]
  results = []
  for pair, batch in dict.fromkeys((r['pair'], r['batch']) for r in strict):
    pair_rows = [r for r in timed if (r['pair'], r['batch']) == (pair, batch)]
    ratios = [row['over_floor'] for row in pair_rows if row['over_floor']]
    verifier_row = next(row for row in pair_rows if row['arm'] == 'alone')
    bound, name = 1.25 if pair == 'bundled' else 1.1, f'{pair}, batch {batch}'
    floor = f'{name}: loop time by its floor'
    results += [
      threshold(f'{floor}, median of gammas', '<=', bound, median(ratios)),
      threshold(f'{floor}, worst gamma', '<=', bound, max(ratios)),
      threshold(
        f'{name}: the verifier alone, by gemma',
        '>=',
        1,
        verifier_row['over_gemma'],
      ),
    ]
    if (pair, batch) == ('bundled', 1):
      best = max(
        (row for row in pair_rows if row in strict),
        key=lambda r: r['tokens_per_s'],
      )
      title = f'{name}: strict at gamma {best["gamma"]}, by gemma'
      results.append(threshold(title, '>=', 2, best['over_gemma']))
  return results


def tables(figures: Figures) -> list[harness.Table]:
  """Makes a table of all entrants, and one of the thresholds."""
  return harness.tables(COLUMNS, rows(figures), thresholds(figures))
