"""Trains the models of a config and evaluates them on held-out problems.

Command: python -m experiments.train --config=configs/train_tiny.py
Shows: progress bars, then each model's folder and figures. An interrupted
training resumes from its last checkpoint when the command is run again.
"""

import json
import pathlib
import shlex
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from experiments import cli
from experiments.sweeps import plan, workdirs

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'Config of a training, such as configs/train_tiny.py.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Folder of results; by default runs/<name of the config>.'
)
cli.define_import()
_ONLY = flags.DEFINE_string('only', None, 'Model to train; by default all.')


def main() -> None:
  """Trains the models of the config named by the flags."""
  cli.require_config(_CONFIG.value, 'configs/train_tiny.py')
  config = _CONFIG.value
  names = list(config.models) if 'models' in config else [config.name]
  if _ONLY.value not in (None, *names):
    raise app.UsageError(
      f'only: must be one of {", ".join(names)}, got {_ONLY.value!r}.'
    )
  path = config_flags.get_config_filename(flags.FLAGS['config'])
  workdir = pathlib.Path(_WORKDIR.value or plan.default_workdir(path))
  cli.make_folder(workdir)

  # Imported after the flags are parsed, so that a mistyped flag fails at once.
  from experiments.training import layer_drafters, recurrent_heads, small_models

  kind: Any = recurrent_heads if 'depth' in config else layer_drafters
  kind = small_models if 'models' in config else kind
  command = f'python -m experiments.train --config={path}{_overrides()}'
  with workdirs.Workdir(workdir).lock():
    for name in [_ONLY.value] if _ONLY.value else names:
      # A config may have several language models.
      of_model = [name] if 'models' in config else []
      folder = kind.train(config, workdir, *of_model)
      figures = kind.evaluate(folder, config)
      kind.write_card(folder, config, figures, command, *of_model)
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
