"""Times compiled functions against each other, in one process.

Command: python -m experiments.benchmark --config=configs/benchmark_methods.py
Shows: a table of medians with their spread and temporaries; every figure with
its repeats, versions and device goes to benchmark.json.

Arms take turns, so that a busy moment of the machine falls on all of them, and
each is warmed up first. Compare ratios of one run, not seconds of two.
"""

import json
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from experiments import cli

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'What to time, such as configs/benchmark_methods.py.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Where results go; by default runs/<name of the config>.'
)


def interleave(
  arms: Mapping[str, Callable[[], Any]], repeats: int, bar
) -> dict[str, list[float]]:
  """Seconds of every arm, the arms taking turns; the first turn is left out.

  Args:
    arms: Functions of nothing that return arrays.
    repeats: Turns that count.
    bar: Moved on by one for each turn of an arm.
  """
  import jax

  seconds: dict[str, list[float]] = {name: [] for name in arms}
  for turn in range(repeats + 1):
    for name, run in arms.items():
      start = time.perf_counter()
      jax.block_until_ready(run())
      if turn:
        seconds[name].append(time.perf_counter() - start)
      bar.update()
  return seconds


def time_methods(config) -> list[dict[str, Any]]:
  """Each method's acceptance and residual, and its verification of a block.

  The unit is two softmaxes of the same size: what makes q and p of logits.
  """
  import jax
  import jax.numpy as jnp
  import numpy as np

  from cascades import methods, verification

  batch, gamma, size = config.batch, config.gamma, config.vocab_size
  names = list(config.methods) or list(methods.METHODS)
  shape = (batch, gamma + 1, size)
  zq, zp = (
    3 * jax.random.normal(key, shape)
    for key in jax.random.split(jax.random.key(config.seed))
  )
  q, p = jax.nn.softmax(zq), jax.nn.softmax(zp)
  # Gates of their own, as in the loop: four arrays are read.
  dists = methods.Distributions(q, p, jnp.copy(q), jnp.copy(p))
  keys = jax.random.split(jax.random.key(config.seed + 1), batch)
  draft = jnp.argmax(zq[:, :gamma], -1).astype(jnp.int32)
  lenience = jnp.float32(config.lenience)

  def two_softmaxes(zq, zp):
    return jax.nn.softmax(zq), jax.nn.softmax(zp)

  def functions(method):
    def one(d, lenience):
      return method.acceptance(d, lenience), method.residual(d, lenience)

    over = jax.vmap(jax.vmap(one, (0, None)), (0, None))
    return over, (dists, lenience)

  def verify(method):
    def one(key, draft, d, lenience):
      return verification.verify(method, lenience, key, draft, d)

    return jax.vmap(one, (0, 0, 0, None)), (keys, draft, dists, lenience)

  todo = {'two softmaxes': (two_softmaxes, (zq, zp))}
  for name in names:
    method = methods.get_method(name)
    todo[f'{name}: acceptance and residual'] = functions(method)
    todo[f'{name}: verification'] = verify(method)
  bar = cli.progress(len(todo) * (config.repeats + 2), 'compiling')
  arms, compiled = {}, {}
  for name, (fn, args) in todo.items():
    start = time.perf_counter()
    exe = jax.jit(fn).lower(*args).compile()
    compiled[name] = {
      'compile_s': time.perf_counter() - start,
      'temporary_bytes': exe.memory_analysis().temp_size_in_bytes,
    }
    arms[name] = lambda exe=exe, args=args: exe(*args)
    bar.update()
  bar.set_description('timing')
  seconds = interleave(arms, config.repeats, bar)
  bar.close()
  unit = float(np.median(seconds['two softmaxes']))
  return [
    {
      'arm': name,
      'median_s': float(np.median(times)),
      'ratio': float(np.median(times)) / unit,
      'seconds': times,
      **compiled[name],
    }
    for name, times in seconds.items()
  ]


SUITES = {'methods': time_methods}


def main() -> None:
  if _CONFIG.value is None:
    raise app.UsageError(
      '--config: name a config, such as --config=configs/benchmark_methods.py.'
    )
  config = _CONFIG.value
  if config.suite not in SUITES:
    raise ValueError(
      f'suite: no suite {config.suite!r}; there are {", ".join(SUITES)}.'
    )
  for name in ('batch', 'vocab_size', 'repeats'):
    if config[name] < 1:
      raise ValueError(f'{name}: {config[name]} will not do; give 1 or more.')
  path = config_flags.get_config_filename(flags.FLAGS['config'])
  workdir = pathlib.Path(
    _WORKDIR.value or pathlib.Path('runs') / pathlib.Path(path).stem
  )
  cli.make_folder(workdir)
  run(config, workdir)


def run(config, workdir: pathlib.Path) -> None:
  """Runs a suite and writes its figures."""
  import datetime
  import os

  import jax

  from cascades import records

  figures = SUITES[config.suite](config)
  found = {
    'suite': config.suite,
    'date': datetime.date.today().isoformat(),
    'device': jax.devices()[0].device_kind,
    'cores': os.cpu_count(),
    'versions': cli.versions(),
    'config': json.loads(config.to_json_best_effort()),
    'figures': figures,
  }
  path = workdir / 'benchmark.json'
  records.write_text(path, json.dumps(found, indent=2) + '\n')
  print(f'{"":<42}{"median":>10}{"ratio":>8}{"spread":>16}{"temporary":>12}')
  for row in figures:
    low, high = min(row['seconds']), max(row['seconds'])
    spread = f'{low * 1e3:.0f} to {high * 1e3:.0f}'
    print(
      f'{row["arm"]:<42}{row["median_s"] * 1e3:>7.0f} ms{row["ratio"]:>8.2f}'
      f'{spread:>16}{row["temporary_bytes"] / 1e6:>9.0f} MB'
    )
  print(f'All figures: {path}')


if __name__ == '__main__':
  cli.run(main)
