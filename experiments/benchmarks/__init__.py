"""Benchmarks of decoding: entrants take turns in one process.

A suite is a module with

  parts(config)    Checks what its config names, then yields the parts that are
                   measured together: fields that identify the figures of a
                   part, and a function that returns the figures, dicts that
                   JSON can hold.
  tables(figures)  Returns rows of tables of the figures.
"""

import datetime
import importlib
import json
import os
import pathlib

from ml_collections import ConfigDict

from cascades import arguments
from experiments import cli

# Modules are imported when a config names them, because they import JAX.
SUITES = ('loops', 'answering')
# Fields that are integers from 1 on, or tuples of such.
_COUNTS = (
  *('batch_sizes', 'gamma', 'gammas', 'new_tokens', 'num_examples'),
  *('prompt_tokens', 'repeats'),
)


def run(config: ConfigDict, workdir: pathlib.Path) -> None:
  """Runs a suite, writes its figures and prints its tables."""
  import jax

  from experiments import measuring, records
  from experiments.sweeps import workdirs

  if config.suite not in SUITES:
    raise ValueError(
      f'suite: must be one of {", ".join(SUITES)}, got {config.suite!r}.'
    )
  for name in (name for name in _COUNTS if name in config):
    values = config[name] if isinstance(config[name], tuple) else [config[name]]
    if not values:
      raise ValueError(f'{name}: must have at least one value, got none.')
    for value in values:
      arguments.integer(name, value, 1)
  # Compile times are figures here.
  jax.config.update('jax_enable_compilation_cache', False)
  suite = importlib.import_module(f'experiments.benchmarks.{config.suite}')
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
  print('\n\n'.join(map(measuring.table, suite.tables(figures))))
  print(f'All figures: {path}')
