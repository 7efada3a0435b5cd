"""What `experiments.benchmark` can time, a module each.

A suite has `check(config)`; `measure(config, done)`, which yields figures as
they are known; and `table(figures)`, which shows them.
"""

import importlib
import json
import os
import pathlib

from experiments import cli

# A suite's name in configs, and its module here; imported when asked for, for
# they import JAX.
SUITES = {
  'methods': 'single_blocks',
  'decoding': 'loops',
  'drafters': 'proposals',
  'reports': 'pages',
  'launchers': 'launching',
}


def run(config, workdir: pathlib.Path) -> None:
  """Runs a suite and writes its figures, as they are known."""
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
