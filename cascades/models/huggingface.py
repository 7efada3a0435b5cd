"""Reads folders in Hugging Face layout of Gemma 2, 3, 3n and 4, without torch.

A folder holds config.json, tensors (`tensor_files` reads them, `param_mapping`
has their names), and a tokenizer. `huggingface_export` writes such folders.
"""

import pathlib
from typing import Any

from cascades.models import language, tensor_files
from cascades.untrusted.schema import Count, Schema


def read_config(
  folder: pathlib.Path,
) -> tuple[dict[str, Any], language.LanguageModel]:
  """Returns the fields of a folder's config.json, and their model.

  Raises:
    ValueError: The file does not exist, is damaged, or has another family.
  """
  config = tensor_files.read_json(folder / 'config.json')
  if config is None:
    raise ValueError(
      f'model: {folder} has no config.json; give a folder in Hugging Face'
      ' layout (config.json, *.safetensors, tokenizer.model), or an Orbax'
      " checkpoint of gemma's."
    )
  try:
    return config, language.from_config(config)
  except ValueError as error:
    raise ValueError(f'model: {folder}/{error}') from None


class _StopFields(Schema):
  """The field of a file that names the tokens which end an answer."""

  eos_token_id: Count | list[Count | None] | None = None


def stop_tokens(folder: pathlib.Path, vocab_size: int) -> list[int]:
  """Returns the ids that end an answer, such as end-of-turn.

  Args:
    folder: A folder whose config.json and generation_config.json may name ids.
    vocab_size: Number of the model's logits; ids must be less.

  Raises:
    ValueError: A file is damaged, or an id is out of range.
  """
  ids = []
  for name in ('config.json', 'generation_config.json'):
    fields = tensor_files.read_json(folder / name) or {}
    field = _StopFields.check(fields, f'model: {folder / name}').eos_token_id
    listed_ids = field if isinstance(field, list) else [field]
    file_ids = [i for i in listed_ids if i is not None]
    if max(file_ids, default=0) >= vocab_size:
      raise ValueError(
        f'model: {folder / name}: eos_token_id must be less than {vocab_size},'
        f' the number of tokens, got {max(file_ids)}; fetch it again.'
      )
    ids += file_ids
  return ids
