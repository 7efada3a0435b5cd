"""Writes a model as a Hugging Face folder.

Command: python -m experiments.export --model=tiny-verifier --folder=exported
Shows: each file with its size in bytes. The model is anything that `load_model`
takes: a Gemma 2, 3, 3n or 4.
"""

import pathlib

from absl import app, flags

from cascades.arguments import options_of
from experiments import cli
from experiments.sweeps import fields

_MODEL = flags.DEFINE_string(
  'model', None, "Model: a name, file, folder, or 'OWNER/NAME' on the hub."
)
_FOLDER = flags.DEFINE_string('folder', None, 'Folder to write the model to.')
_TENSOR_TYPE = flags.DEFINE_enum(
  'stored',
  None,
  ['float32', 'bfloat16', 'int8'],
  'Dtype of the stored tensors; by default that of the loaded model.',
)
cli.define_options({'dtype': options_of(fields.SweepConfig)['dtype']})


def main() -> None:
  """Runs the command."""
  if not (_MODEL.value and _FOLDER.value):
    raise app.UsageError(
      'model, folder: both must be given; give --model=tiny-verifier'
      ' --folder=exported.'
    )

  from cascades.models import checkpoints

  folder = pathlib.Path(_FOLDER.value)
  if (folder / 'config.json').exists():
    raise ValueError(
      f'folder: {folder} already holds a model; choose another --folder.'
    )
  cli.make_folder(folder)
  model = checkpoints.load_model(_MODEL.value, flags.FLAGS.dtype)
  cli.say(f'writing {folder}')
  checkpoints.save_model(folder, model, _TENSOR_TYPE.value)
  for file in sorted(file for file in folder.iterdir() if file.is_file()):
    print(f'{file.stat().st_size:>15,}  {file}')


if __name__ == '__main__':
  cli.run(main)
