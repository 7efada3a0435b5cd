"""Times loops and drafters against each other, in one process.

Command: python -m experiments.benchmark --config=configs/benchmark.py
Shows: tables of medians and ratios.
After each part, benchmark.json receives its figures with all repeats, the
versions and the device. The same command resumes a run that was stopped.

Entrants take turns, so that other load of the machine slows all of them,
and each is warmed up first. Compare ratios of one run, not seconds of two runs.
"""

import pathlib

from absl import flags
from ml_collections import config_flags

from experiments import benchmarks, cli

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'Config of a benchmark, such as configs/benchmark.py.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Folder of results; by default runs/<name of the config>.'
)
cli.define_import()


def main() -> None:
  """Runs the command."""
  cli.require_config(_CONFIG.value, 'configs/benchmark.py')
  path = config_flags.get_config_filename(flags.FLAGS['config'])
  workdir = pathlib.Path(_WORKDIR.value or f'runs/{pathlib.Path(path).stem}')
  cli.make_folder(workdir)
  from experiments.sweeps import workdirs

  with workdirs.Workdir(workdir).lock():
    benchmarks.run(_CONFIG.value, workdir)


if __name__ == '__main__':
  cli.run(main)
