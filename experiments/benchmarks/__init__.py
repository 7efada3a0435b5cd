"""What decoding costs: what is compared takes turns, in one process.

A suite is a module with

  check(config)          Refuses a config before anything is timed.
  measure(config, done)  Yields figures, dicts that JSON can hold, as they are
                         known, but for those that an earlier run has `done`.
  table(figures)         Shows them, made of nothing else.

The suites:

  loops          'decoding': the loop, by gemma's own sampler, by its floor.
  proposals      'drafters': all that proposes, and several drafts per block.
  pretrained     'pretrained': a real model, by other people's loops.

What they are made of:

  stopwatch      Seconds: of a call, a compilation, arms that take turns.
  pairs          Two models, and what they are asked.
  arms           Loops that write text: ours, gemma's own, lock-step.
  elsewhere      Other people's loops, in a Python of their own.
  floors         The same forward passes, without any rule.
  contests       Which arms a pair has, and their figures.
  machine        What the device and the compiler take.
  speedups       Ratios of a contest's arms, and the formula.
  bars           The targets, and whether they are met.
  digits         Medians, and cells of a table.

To add a suite, write a module with these three functions here, name it in
SUITES, and write a config whose `suite` is that name, as
configs/benchmark_drafters.py is one. `run` does the rest.
"""

import importlib
import json
import os
import pathlib

from ml_collections import ConfigDict

from experiments import cli

# A suite's name in configs, and its module here; imported when asked for, for
# they import JAX.
SUITES = {
  'decoding': 'loops',
  'drafters': 'proposals',
  'pretrained': 'pretrained',
}


def run(config: ConfigDict, workdir: pathlib.Path) -> None:
  """Runs a suite and writes its figures, as they are known.

  Args:
    config: Has the suite's name, in its field `suite`, and what that asks for.
    workdir: Where benchmark.json is written, or gone on with.

  Raises:
    ValueError: The suite refuses the config, or there is no such suite; or the
      folder has figures of another config, device or version.
  """
  import datetime

  import jax

  from experiments import records
  from experiments.sweeps import workdirs

  if config.suite not in SUITES:
    raise ValueError(
      f'suite: no suite {config.suite!r}; there are {", ".join(SUITES)}.'
    )
  # Compile times are figures here.
  jax.config.update('jax_enable_compilation_cache', False)
  suite = importlib.import_module(
    f'experiments.benchmarks.{SUITES[config.suite]}'
  )
  suite.check(config)
  found = {
    'suite': config.suite,
    'date': datetime.date.today().isoformat(),
    'device': jax.devices()[0].device_kind,
    'cores': os.cpu_count(),
    'versions': cli.versions(),
    'config': json.loads(config.to_json_best_effort()),
    'figures': [],
  }
  path = workdir / 'benchmark.json'
  if path.exists():
    before = json.loads(path.read_text(encoding='utf-8'))
    same = ('suite', 'device', 'cores', 'versions', 'config')
    changed = [name for name in same if before.get(name) != found[name]]
    if changed:
      raise ValueError(
        f'workdir: {workdir} holds figures of another {", ".join(changed)};'
        ' choose another --workdir, or delete it.'
      )
    found = before
  found['starts'] = [*found.get('starts', ()), workdirs.provenance({})]
  # A copy: what is found is added to it.
  for figure in suite.measure(config, tuple(found['figures'])):
    found['figures'].append(figure)
    records.write_text(path, json.dumps(found, indent=1) + '\n')
  print(suite.table(found['figures']))
  print(f'All figures: {path}')
