"""The suite 'decoding': the loop, by gemma's own sampler, by its floor.

First what the machine takes (`machine`), then each pair (`pairs`) at each
batch size (`contests`), and the curve of those with trained weights. The table
has a line per arm (`speedups`), and then the targets (`bars`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from cascades import arguments
from experiments import cli
from experiments.benchmarks import contests, machine, pairs
from experiments.benchmarks.bars import targets
from experiments.benchmarks.digits import cell
from experiments.benchmarks.speedups import rows


def check(config: ConfigDict) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: A number is out of its range.
  """
  for name in ('prompt_tokens', 'new_tokens', 'repeats'):
    arguments.whole(name, config[name], 1)
  for name in ('gammas', 'batch_sizes', 'acceptances', 'leniences'):
    if not config[name]:
      raise ValueError(f'{name}: it is empty; give at least one.')
    if name != 'leniences' and min(config[name]) <= 0:
      raise ValueError(f'{name}: give numbers above 0.')
  for rate in config.acceptances:
    if rate > 1:
      raise ValueError(f'acceptances: {rate} is no probability.')


def measure(
  config: ConfigDict, done: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
  """All figures, as they are known.

  Args:
    config: What to time.
    done: Figures of an earlier run, which are not measured again.
  """
  groups = {(row.get('pair'), row.get('batch', row['arm'])) for row in done}
  bar = cli.progress(0, 'measuring the machine')
  for arm, single in machine.singles(config).items():
    if all(row['arm'] != arm for row in done):
      bar.set_description(arm)
      yield single()
  for spec in config.pairs:
    todo = [b for b in config.batch_sizes if (spec.name, b) not in groups]
    trained = isinstance(spec.verifier, str)
    if not todo and (not trained or (spec.name, 'curve') in groups):
      continue
    bar.set_description(f'{spec.name}: loading')
    pair = pairs.load(config, spec)
    for batch in todo:
      bar.set_description(f'{pair.name}, batch {batch}: compiling')
      entered = list(contests.arms_of(config, pair, batch))
      bar.set_description(f'{pair.name}, batch {batch}')
      bar.total += len(entered) * (pair.repeats + 1)
      yield from contests.figures(pair, batch, entered, bar)
      pair.compiled.clear()
      del entered
      # A process can map only so much memory, and each loop takes a lot of it.
      jax.clear_caches()
    if trained and (pair.name, 'curve') not in groups:
      yield contests.curve(config, pair)
  bar.close()


def table(figures: Sequence[dict[str, Any]]) -> str:
  """A line per arm; then the targets."""
  lines = [
    f'{"pair":<9}{"batch":>5}  {"arm":<10}{"gamma":>5}{"lenience":>9}'
    f'{"accepted":>9}{"compile s":>10}{"prefill ms":>11}{"whole ms":>9}'
    f'{"ms/block":>9}'
    f'{"tokens/s":>9}{"x gemma":>8}{"x floor":>8}{"GB/s":>6}'
  ]
  for row in rows(figures):
    lines.append(
      f'{row["pair"]:<9}{row["batch"]:>5}  {row["arm"]:<10}{row["gamma"]:>5}'
      + cell(row['lenience'], 9, 2)
      + cell(row['acceptance'], 9, 3)
      + cell(row['compile_s'], 10, 1)
      + cell(1e3 * row['prefill_s'], 11, 1)
      + cell(1e3 * row['whole_s'], 9, 1)
      + cell(row['ms_per_block'], 9, 2)
      + cell(row.get('tokens_per_s'), 9, 0)
      + cell(row.get('over_gemma'), 8, 2)
      + cell(row.get('over_floor'), 8, 2)
      + cell(row['bytes_per_s'] / 1e9, 6, 1)
    )
  lines += ['', f'{"target":<68}{"bound":>9}{"found":>9}  met']
  for name, bound, value, met in targets(figures):
    lines.append(f'{name:<68}{bound:>9}{value:>9}  {"yes" if met else "NO"}')
  return '\n'.join(lines)
