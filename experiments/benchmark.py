"""Times loops and drafters against each other, in one process.

Command: python -m experiments.benchmark --config=configs/benchmark.py
Shows: tables of medians and ratios.
After each part, benchmark.json receives its figures with all repeats, the
versions and the device.

Entrants take turns, so that other load of the machine slows all of them,
and each is warmed up first. Compare ratios of one run, not seconds of two runs.
"""

import json
import os
import pathlib
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from cascades import arguments
from experiments import cli

# Fields that are integers from 1 on, or tuples of such.
_COUNTS = (
  *('batch_sizes', 'gamma', 'gammas', 'new_tokens', 'num_examples'),
  *('prompt_tokens', 'repeats'),
)


def run(config: ConfigDict, workdir: pathlib.Path) -> None:
  """Runs a suite, writes its figures and prints its tables."""
  # Imports JAX, which --help does not need.
  import jax

  from experiments import measuring, records
  from experiments.benchmarks import answering, loops
  from experiments.sweeps import workdirs

  suites = {'loops': loops, 'answering': answering}
  if config.suite not in suites:
    raise ValueError(
      f'suite: must be one of {", ".join(suites)}, got {config.suite!r}.'
    )
  for name in {*_COUNTS} & {*config}:
    values = config[name]
    for value in values if isinstance(values, tuple) and values else [values]:
      arguments.integer(name, value, 1)
  suite = suites[config.suite]
  figures: list[dict[str, Any]] = []
  output = {
    'suite': config.suite,
    'device': jax.devices()[0].device_kind,
    'cores': os.cpu_count(),
    'versions': cli.versions(),
    'starts': [workdirs.provenance({})],
    'config': json.loads(config.to_json_best_effort()),
    'figures': figures,
  }
  for fields, measure in suite.parts(config):
    cli.say('measuring ' + ', '.join(f'{k} {v}' for k, v in fields.items()))
    figures += [fields | row for row in measure()]
    records.write_text(
      workdir / 'benchmark.json', json.dumps(output, indent=1) + '\n'
    )
  print(measuring.table(suite.table(figures)))
  print(f'All figures: {workdir / "benchmark.json"}')


def main() -> None:
  """Runs the config of the flags."""
  name, _, config, _ = cli.read_config()
  import jax

  from experiments.sweeps import plan, workdirs

  workdir = pathlib.Path(flags.FLAGS.workdir or plan.default_workdir(name))
  cli.make_folder(workdir)
  # Compile times are figures here.
  jax.config.update('jax_enable_compilation_cache', False)
  with workdirs.Workdir(workdir).lock():
    run(config, workdir)


if __name__ == '__main__':
  cli.define_config('configs/benchmark.py')
  cli.run(main)
