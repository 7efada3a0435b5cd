"""Trains the models of a config, and judges them on held-out problems.

Command: python -m experiments.train --config=configs/train_tiny.py
Shows: progress bars, then each model's figures, and where it lies. Run again
after a stop, it goes on from the last checkpoint.
"""

import json
import pathlib
import statistics

from absl import app, flags
from ml_collections import config_flags

from experiments import cli
from experiments.sweeps import plan

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'What to train, such as configs/train_tiny.py.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Where results go; by default runs/<name of the config>.'
)
_ONLY = flags.DEFINE_string('only', None, 'Train just this model.')

# Tokens in the cache when a model's time per token is measured.
_CONTEXT = 128


def main() -> None:
  """Runs the command."""
  if _CONFIG.value is None:
    raise app.UsageError(
      '--config: name a config, such as --config=configs/train_tiny.py.'
    )
  config = _CONFIG.value
  names = list(config.models) if 'models' in config else [config.name]
  if _ONLY.value not in (None, *names):
    raise app.UsageError(
      f'--only: no model {_ONLY.value!r}; there are {", ".join(names)}.'
    )
  path = config_flags.get_config_filename(flags.FLAGS['config'])
  workdir = pathlib.Path(_WORKDIR.value or plan.default_workdir(path))
  cli.make_folder(workdir)

  command = f'python -m experiments.train --config={path}'
  if 'models' in config:
    for name in [_ONLY.value] if _ONLY.value else names:
      _train_model(config, name, workdir, command)
    return
  train = _train_head if 'depth' in config else _train_drafter
  train = _train_rule if 'workdirs' in config else train
  train(config, workdir, command)


def _train_model(config, name: str, workdir: pathlib.Path, command) -> None:
  """A language model, of problems that are made up."""
  from cascades.models import checkpoints
  from experiments.sweeps import costs
  from experiments.training import small_models

  start = small_models.begin(config, name)
  folder = small_models.train_model(config, name, start, workdir)
  figures = small_models.evaluate(
    folder, config.eval_tasks, config.eval_examples
  )
  model = checkpoints.load_folder(folder)
  passes = {'token': costs.forward_loop(model, 1, _CONTEXT)}
  seconds = costs.time_in_turns(passes, repeats=15, seconds=4.0)['token']
  least = statistics.quantiles(seconds, n=10)[0]
  small_models.write_card(
    folder, config, name, command, figures, least, _CONTEXT
  )
  print(f'{folder}: {json.dumps(figures)}')


def _of_texts(config) -> str:
  """Flags that name the texts: of a path its end, which others may have."""
  tasks = '' if config.tasks else " --config.tasks='()'"
  end = '/'.join(pathlib.Path(config.text).parts[-2:])
  return f' --config.text={end}{tasks}'


def _train_head(config, workdir: pathlib.Path, command: str) -> None:
  """A recurrent head for a verifier that is there already."""
  from experiments.training import recurrent_heads

  folder, verifier = recurrent_heads.train_head(config, workdir)
  figures = recurrent_heads.evaluate(folder, verifier, config)
  if 'text' in config:
    command += _of_texts(config)
  recurrent_heads.write_card(folder, config, figures, command)
  print(f'{folder}: {json.dumps(figures)}')


def _train_drafter(config, workdir: pathlib.Path, command: str) -> None:
  """A drafter for a verifier that has none."""
  from experiments.training import layer_drafters

  folder, held = layer_drafters.train_drafter(config, workdir)
  figures = layer_drafters.evaluate(folder, held, config)
  command += f' --config.verifier={config.verifier}{_of_texts(config)}'
  if 'init' in config:
    command += f' --config.init={config.init}'
  layer_drafters.write_card(folder, config, figures, command)
  print(f'{folder}: {json.dumps(figures)}')


def _train_rule(config, workdir: pathlib.Path, command: str) -> None:
  """A deferral rule, of what sweeps of a pair wrote."""
  from experiments.training import rules

  folder, figures, of = rules.train_rule(config, workdir)
  command += f' --config.workdirs={config.workdirs}'
  rules.write_card(folder, config, figures, of, command)
  means = {name: round(x, 5) for name, x in figures['mean'].items()}
  print(f'{folder}: {json.dumps(means)}')


if __name__ == '__main__':
  cli.run(main)
