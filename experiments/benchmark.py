"""Times compiled functions against each other, in one process.

Command: python -m experiments.benchmark --config=configs/benchmark.py
Shows: a table of medians; every figure with its repeats, versions and device
goes to benchmark.json, as soon as it is known.

Arms take turns, so that a busy moment of the machine falls on all of them, and
each is warmed up first. Compare ratios of one run, not seconds of two.
"""

import importlib
import json
import os
import pathlib

from absl import app, flags
from ml_collections import config_flags

from experiments import cli

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'What to time, such as configs/benchmark.py.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Where results go; by default runs/<name of the config>.'
)


# Modules of experiments.suites, imported when asked for.
SUITES = ('methods', 'decoding')


def main() -> None:
  if _CONFIG.value is None:
    raise app.UsageError(
      '--config: name a config, such as --config=configs/benchmark.py.'
    )
  config = _CONFIG.value
  path = config_flags.get_config_filename(flags.FLAGS['config'])
  workdir = pathlib.Path(
    _WORKDIR.value or pathlib.Path('runs') / pathlib.Path(path).stem
  )
  cli.make_folder(workdir)
  run(config, workdir)


def run(config, workdir: pathlib.Path) -> None:
  """Runs a suite and writes its figures, as they are known."""
  import datetime

  import jax

  from cascades import records

  if config.suite not in SUITES:
    raise ValueError(
      f'suite: no suite {config.suite!r}; there are {", ".join(SUITES)}.'
    )
  # Compile times are figures here.
  jax.config.update('jax_enable_compilation_cache', False)
  suite = importlib.import_module(f'experiments.suites.{config.suite}')
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
  for figure in suite.measure(config):
    found['figures'].append(figure)
    records.write_text(path, json.dumps(found, indent=1) + '\n')
  print(suite.table(found['figures']))
  print(f'All figures: {path}')


if __name__ == '__main__':
  cli.run(main)
