"""Writes a model as a Hugging Face folder, which transformers opens.

Command: python -m experiments.export --model=tiny-verifier --folder=exported
Shows: what was written. The model may be whatever `load_model` takes, of Gemma
2 or Gemma 3: one trained here, or one of gemma's own.
"""

import pathlib

from absl import app, flags

from experiments import cli

_MODEL = flags.DEFINE_string('model', None, 'Name or folder.')
_FOLDER = flags.DEFINE_string('folder', None, 'Where the model goes.')
_SHARD_GB = flags.DEFINE_float(
  'shard_gb', 5.0, 'Most of a file of tensors, in 1e9 bytes.'
)
cli.define_dtype()


def main() -> None:
  if not (_MODEL.value and _FOLDER.value):
    raise app.UsageError(
      '--model, --folder: give both, such as --model=tiny-verifier'
      ' --folder=exported.'
    )
  from cascades.models import checkpoints

  folder = pathlib.Path(_FOLDER.value)
  if (folder / 'config.json').exists():
    raise ValueError(
      f'folder: {folder} holds a model already; choose another --folder.'
    )
  cli.make_folder(folder)
  model = checkpoints.load_model(_MODEL.value, flags.FLAGS.dtype)
  checkpoints.save_model(folder, model, _SHARD_GB.value)
  files = sorted(file for file in folder.iterdir() if file.is_file())
  for file in files:
    print(f'{file.stat().st_size:>15,}  {file}')


if __name__ == '__main__':
  cli.run(main)
