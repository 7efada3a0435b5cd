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

from experiments import benchmarks, cli
from experiments.sweeps import plan, workdirs

cli.define_config('configs/benchmark.py')


def main() -> None:
  """Runs the command."""
  name, _, config, _ = cli.read_config()
  workdir = pathlib.Path(flags.FLAGS.workdir or plan.default_workdir(name))
  cli.make_folder(workdir)
  with workdirs.Workdir(workdir).lock():
    benchmarks.run(config, workdir)


if __name__ == '__main__':
  cli.run(main)
