"""Trains the models of a config and evaluates them on held-out problems.

Command: python -m experiments.train --config=configs/train_tiny.py
Shows: progress bars, then each model's folder and figures. An interrupted
training resumes from its last checkpoint when the command is run again.
"""

import json
import pathlib
import shlex
import statistics

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

# Tokens in the cache when a model's time per token is measured.
_CONTEXT = 128


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

  command = f'python -m experiments.train --config={path}{_overrides()}'
  with workdirs.Workdir(workdir).lock():
    if 'models' in config:
      for name in [_ONLY.value] if _ONLY.value else names:
        _train_model(config, name, workdir, command)
      return
    _train_drafter(config, workdir, command)


def _train_model(config, name: str, workdir: pathlib.Path, command) -> None:
  """Trains a language model on generated problems."""
  from cascades.models import checkpoints
  from experiments import measuring
  from experiments.sweeps import costs
  from experiments.training import small_models

  start = small_models.begin(config, name)
  folder = small_models.train_model(config, name, start, workdir)
  figures = small_models.evaluate(
    folder, config.eval_tasks, config.eval_examples
  )
  model = checkpoints.load_model(folder).unpack()
  passes = {'token': costs.forward_loop(model, 1, _CONTEXT)}
  seconds = measuring.time_in_turns(passes, repeats=15, seconds=4.0)['token']
  small_models.write_card(
    folder,
    config,
    name,
    command=command,
    figures=figures,
    token_s=statistics.quantiles(seconds, n=10)[0],
    context=_CONTEXT,
  )
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


def _train_drafter(config, workdir: pathlib.Path, command: str) -> None:
  """Trains a recurrent head, or a drafter of some of a verifier's layers."""
  from experiments.training import layer_drafters, recurrent_heads

  kind = recurrent_heads if 'depth' in config else layer_drafters
  folder = kind.train(config, workdir)
  figures = kind.evaluate(folder, config)
  kind.write_card(folder, config, figures, command)
  print(f'{folder}: {json.dumps(figures)}')


if __name__ == '__main__':
  cli.run(main)
