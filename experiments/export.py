"""Writes a model as a Hugging Face folder, or as a GGUF file for llama.cpp.

Command: python -m experiments.export --model=tiny-verifier --folder=exported
Shows: what was written. The model may be whatever `load_model` takes, of Gemma
2 or Gemma 3: one trained here, or one of gemma's own. With --format=gguf the
file is called after the model.
"""

import pathlib

from absl import app, flags

from experiments import cli

_MODEL = flags.DEFINE_string('model', None, 'Name, folder or file.')
_FOLDER = flags.DEFINE_string('folder', None, 'Where the model goes.')
_FORMAT = flags.DEFINE_enum(
  'format', 'huggingface', ['huggingface', 'gguf'], 'How it is written.'
)
_STORED = flags.DEFINE_enum(
  'stored',
  None,
  ['float32', 'float16', 'bfloat16'],
  'What tensors are rounded to; by default what they are. float16 is of GGUF.',
)
_SHARD_GB = flags.DEFINE_float(
  'shard_gb', 5.0, 'Most of a file of tensors, in 1e9 bytes.'
)
cli.define_dtype()


def main() -> None:
  """Runs the command."""
  if not (_MODEL.value and _FOLDER.value):
    raise app.UsageError(
      '--model, --folder: give both, such as --model=tiny-verifier'
      ' --folder=exported.'
    )
  from cascades import atomic
  from cascades.models import checkpoints

  folder = pathlib.Path(_FOLDER.value)
  as_gguf = _FORMAT.value == 'gguf'
  name = f'{pathlib.Path(_MODEL.value).stem}.gguf' if as_gguf else 'config.json'
  if (folder / name).exists():
    raise ValueError(
      f'folder: {folder} holds a model already; choose another --folder.'
    )
  with atomic.create_folder(folder):
    cli.make_folder(folder)
    model = checkpoints.load_model(_MODEL.value, flags.FLAGS.dtype)
    if as_gguf:
      checkpoints.save_gguf(folder / name, model, _STORED.value)
    else:
      checkpoints.save_model(folder, model, _SHARD_GB.value, _STORED.value)
  files = sorted(file for file in folder.iterdir() if file.is_file())
  for file in files:
    print(f'{file.stat().st_size:>15,}  {file}')


if __name__ == '__main__':
  cli.run(main)
