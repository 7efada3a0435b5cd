"""Benchmarks of decoding: entrants take turns in one process.

A suite is a module with

  check(config)    Checks a config before anything is timed.
  parts(config)    Yields the parts that are measured together: fields that
                   identify the figures of a part, and a function that returns
                   the figures, dicts that JSON can hold.
  tables(figures)  Makes tables of the figures.

The suites, each named as its module:

  loops       This project's loop, compared with gemma's sampler and with its
              lower bound, on a CPU or on an accelerator.
  answering   Samplers with every kind of drafter, and the loops of other
              libraries with a real model.
  eight_bits  A model in eight bits beside the same in floats.

Shared modules:

  harness        Entrants, turns, figures, thresholds and tables.
  entrants       Two models and their prompts; this loop and gemma's.
  lower_bounds   The loop's forward passes, without any rule.
  gemma_sampler  gemma's sampler in two parts.
  peers          Other libraries' loops, in processes of their own.
"""

import datetime
import importlib
import json
import os
import pathlib

from ml_collections import ConfigDict

from experiments import cli

# Modules are imported when a config names them, because they import JAX.
SUITES = ('loops', 'answering', 'eight_bits')


def run(config: ConfigDict, workdir: pathlib.Path) -> None:
  """Runs a suite and writes its figures."""
  import jax

  from experiments import records
  from experiments.benchmarks import harness
  from experiments.sweeps import workdirs

  if config.suite not in SUITES:
    raise ValueError(
      f'suite: must be one of {", ".join(SUITES)}, got {config.suite!r}.'
    )
  # Compile times are figures here.
  jax.config.update('jax_enable_compilation_cache', False)
  suite = importlib.import_module(f'experiments.benchmarks.{config.suite}')
  suite.check(config)
  start = workdirs.provenance({})
  output = {
    'suite': config.suite,
    'date': datetime.date.today().isoformat(),
    'device': jax.devices()[0].device_kind,
    'cores': os.cpu_count(),
    'versions': cli.versions(),
    'commit': start['commit'],
    'config': json.loads(config.to_json_best_effort()),
    'figures': [],
  }
  path = workdir / 'benchmark.json'
  if path.exists():
    previous = json.loads(path.read_text(encoding='utf-8'))
    fields = ('suite', 'device', 'cores', 'versions', 'commit', 'config')
    changed = [name for name in fields if previous.get(name) != output[name]]
    if changed:
      raise ValueError(
        f'workdir: {workdir} holds figures of another {", ".join(changed)};'
        ' choose another --workdir, or delete it.'
      )
    output = previous
  output['starts'] = [*output.get('starts', ()), start]
  figures = output['figures']
  for fields, measure in suite.parts(config):
    if any(fields.items() <= figure.items() for figure in figures):
      continue
    cli.say('measuring ' + ', '.join(f'{k} {v}' for k, v in fields.items()))
    figures += measure()
    records.write_text(path, json.dumps(output, indent=1) + '\n')
  print('\n\n'.join(map(harness.format_table, suite.tables(figures))))
  print(f'All figures: {path}')
