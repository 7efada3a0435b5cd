"""Reads folders in Hugging Face layout of Gemma 2, 3, 3n and 4, without torch.

A folder holds config.json, tensors (`tensor_files` reads them, `param_mapping`
has their names), and a tokenizer. `huggingface_export` writes such folders.
"""

import pathlib
from typing import Annotated, Any

from cascades.models import config_json, tensor_files, tokenizers
from cascades.untrusted.schema import Count, Schema, one_of


def read_config(
  folder: pathlib.Path, **changes: Any
) -> config_json.GemmaConfig:
  """Reads the config.json of a folder, with changes of its fields."""
  config = tensor_files.read_json(folder / 'config.json')
  if config is None:
    is_adapter = (folder / 'adapter_config.json').exists()
    raise ValueError(
      f'model: {folder} has no config.json{" but an adapter" * is_adapter};'
      ' give a folder in Hugging Face layout (config.json, *.safetensors,'
      ' tokenizer.model), with adapters merged into the model, or an Orbax'
      " checkpoint of gemma's."
    )
  try:
    return config_json.read(config | changes)
  except ValueError as error:
    raise ValueError(f'model: {folder}/{error}') from None


_Ids = Count | list[Count | None] | None
_Unsupported = Annotated[Any, one_of(None, [])]


class _GenerationFields(Schema):
  """Fields of tokens that end an answer, and that no answer may contain."""

  eos_token_id: _Ids = None
  suppress_tokens: _Ids = None
  begin_suppress_tokens: _Unsupported = None
  bad_words_ids: _Unsupported = None


def with_generation_config(
  folder: pathlib.Path, tokenizer: tokenizers.Tokenizer, table_size: int
) -> tokenizers.Tokenizer:
  """Returns a tokenizer with a folder's stop tokens and suppressed tokens."""
  fields = {'eos_token_id': tokenizer.vocab_size, 'suppress_tokens': table_size}
  ids: dict[str, list[int]] = {field: [] for field in fields}
  for name in ('config.json', 'generation_config.json'):
    content = tensor_files.read_json(folder / name) or {}
    location, advice = f'model: {folder / name}', 'fetch it again or correct it'
    checked = _GenerationFields.check(content, location, advice)
    for field, size in fields.items():
      value = getattr(checked, field)
      values = value if isinstance(value, list) else [value]
      ids[field] += [i for i in values if i is not None]
      if max(ids[field], default=0) >= size:
        raise ValueError(
          f'{location}: {field} must be less than {size}, the number of tokens,'
          f' got {max(ids[field])}; {advice}.'
        )
  return tokenizer.with_stops(
    *ids['eos_token_id'], suppress_tokens=ids['suppress_tokens']
  )
