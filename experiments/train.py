"""Trains the drafter of a config and evaluates it on held-out prompts.

Command: python -m experiments.train --config=configs/train_recurrent.py
Shows: progress bars, then the drafter's folder and figures. An interrupted
training resumes from its last checkpoint when the command is run again.
"""

import json
import pathlib
import shlex

from absl import flags
from ml_collections import config_flags

from experiments import cli
from experiments.sweeps import plan, workdirs

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'Config of a training, such as configs/train_recurrent.py.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Folder of results; by default runs/<name of the config>.'
)
cli.define_import()


def main() -> None:
  """Trains the models of the config named by the flags."""
  cli.require_config(_CONFIG.value, 'configs/train_recurrent.py')
  config = _CONFIG.value
  path = config_flags.get_config_filename(flags.FLAGS['config'])
  workdir = pathlib.Path(_WORKDIR.value or plan.default_workdir(path))
  cli.make_folder(workdir)

  # Imported after the flags are parsed, so that a mistyped flag fails at once.
  from experiments.training import (
    layer_drafters,
    recurrent_heads,
    training_loop,
  )

  kind = recurrent_heads if 'depth' in config else layer_drafters
  command = f'python -m experiments.train --config={path}{_overrides()}'
  with workdirs.Workdir(workdir).lock():
    folder = kind.train(config, workdir)
    figures = training_loop.write_card(folder, config, command)
  print(f'{folder}: {json.dumps(figures)}')


def _overrides() -> str:
  """Returns the flags that set fields, with the last parts of a text's path."""
  values = dict(config_flags.get_override_values(flags.FLAGS['config']))
  if 'text' in values:
    values['text'] = '/'.join(pathlib.Path(values['text']).parts[-2:])
  return ''.join(
    f' {shlex.quote(f"--config.{name}={value}")}'
    for name, value in values.items()
  )


if __name__ == '__main__':
  cli.run(main)
