"""What decoding costs: entrants take turns in one process.

A suite is a module with

  check(config)    Refuses a config before anything is timed.
  parts(config)    Yields what is measured together: fields that all figures
                   of the part have and no others, and a function that returns
                   the figures, dicts that JSON can hold.
  tables(figures)  Shows them, made of nothing else.

The suites, each named as its module:

  loops      Our loop, by gemma's own sampler and by its lower bound, on a CPU
             or on an accelerator.
  answering  Samplers: every kind of drafter, and a real model by other people's
             loops.

What they share:

  harness       Entrants, turns, figures, thresholds and tables.
  entrants      Two models and their prompts; our loop and gemma's own.
  lower_bounds  The loop's forward passes, without any rule.
  own_sampler   What gemma's own is made of.
  peers         Other people's loops, in a Python of their own.
"""

import datetime
import importlib
import json
import os
import pathlib

from ml_collections import ConfigDict

from experiments import cli

# Imported when a config names them, since they import JAX.
SUITES = ('loops', 'answering')


def run(config: ConfigDict, workdir: pathlib.Path) -> None:
  """Runs a suite and writes its figures.

  Args:
    config: Has the suite's name, in its field `suite`, and the suite's fields.
    workdir: Where benchmark.json is written, or continued.

  Raises:
    ValueError: The suite refuses the config, or there is no such suite; or the
      folder has figures of another config, device or version.
  """
  import jax

  from experiments import records
  from experiments.benchmarks import harness
  from experiments.sweeps import workdirs

  if config.suite not in SUITES:
    known = ', '.join(SUITES)
    raise ValueError(f'suite: no suite {config.suite!r}; there are {known}.')
  # Compile times are figures here.
  jax.config.update('jax_enable_compilation_cache', False)
  suite = importlib.import_module(f'experiments.benchmarks.{config.suite}')
  suite.check(config)
  output = {
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
    changed = [name for name in same if before.get(name) != output[name]]
    if changed:
      raise ValueError(
        f'workdir: {workdir} holds figures of another {", ".join(changed)};'
        ' choose another --workdir, or delete it.'
      )
    output = before
  output['starts'] = [*output.get('starts', ()), workdirs.provenance({})]
  figures = output['figures']
  for fields, measure in suite.parts(config):
    if any(fields.items() <= figure.items() for figure in figures):
      continue
    figures += measure()
    records.write_text(path, json.dumps(output, indent=1) + '\n')
  print('\n\n'.join(map(harness.text, suite.tables(figures))))
  print(f'All figures: {path}')
