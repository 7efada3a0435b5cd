"""Trains the drafter of a config and evaluates it on held-out prompts.

Command: python -m experiments.train --config=configs/train_drafter.py
Shows: progress bars, then the drafter's folder and figures. An interrupted
training resumes from its last checkpoint when the command is run again.
"""

import json
import pathlib
import shlex

from absl import flags

from experiments import cli

cli.define_config('configs/train_drafter.py')


def main() -> None:
  """Trains the drafter of the config named by the flags."""
  name, _, config, overrides = cli.read_config()
  # Imported after the flags are parsed, so that a mistyped flag fails at once.
  from experiments.sweeps import plan, workdirs
  from experiments.training import (
    layer_drafters,
    recurrent_heads,
    training_loop,
  )

  workdir = pathlib.Path(flags.FLAGS.workdir or plan.default_workdir(name))
  cli.make_folder(workdir)
  kind = recurrent_heads if 'depth' in config else layer_drafters
  # The card names no folder of this machine.
  words = [f'--config.{k}={x}' for k, x in overrides.items() if k != 'text']
  command = shlex.join([f'--config={name}', *words])
  with workdirs.Workdir(workdir).lock():
    folder = kind.train(config, workdir)
    figures = training_loop.write_card(
      folder, config, f'python -m experiments.train {command}'
    )
  print(f'{folder}: {json.dumps(figures)}')


if __name__ == '__main__':
  cli.run(main)
