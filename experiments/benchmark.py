"""Times compiled functions against each other, in one process.

Command: python -m experiments.benchmark --config=configs/benchmark.py
Shows: a table of medians; every figure with its repeats, versions and device
goes to benchmark.json, as soon as it is known. A run that was stopped goes on
when it is started again.

Arms take turns, so that a busy moment of the machine falls on all of them, and
each is warmed up first. Compare ratios of one run, not seconds of two.
"""

import pathlib

from absl import app, flags
from ml_collections import config_flags

from experiments import benchmarks, cli

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'What to time, such as configs/benchmark.py.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Where results go; by default runs/<name of the config>.'
)


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
  benchmarks.run(config, workdir)


if __name__ == '__main__':
  cli.run(main)
