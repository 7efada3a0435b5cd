"""Orbax checkpoints of gemma's: in folders, and those that gemma downloads."""

import difflib
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from etils import epath
from jaxtyping import PyTree

from cascades import arguments
from cascades.models import (
  chat_templates,
  gemma_library,
  huggingface,
  language,
  memory,
  param_dtypes,
  sharding,
  tokenizer_files,
  tokenizers,
  turns,
)
from cascades.models.checkpoint_source import (
  Checkpoint,
  LoadOptions,
  match_tokenizer,
  place_params,
)

# Orbax writes one of these into every checkpoint.
_MARKS = ('_METADATA', '_CHECKPOINT_METADATA')


def find_checkpoints(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the Orbax checkpoints of a folder: itself, or folders in it."""
  if not folder.is_dir():
    return []
  checkpoints = [
    path
    for path in (folder, *sorted(folder.iterdir()))
    if any((path / name).is_file() for name in _MARKS)
  ]
  # A checkpoint of Kauldron's holds others, and names the one to read.
  return [folder] if folder in checkpoints else checkpoints


class OrbaxSource(NamedTuple):
  """An Orbax checkpoint in a folder, before its parameters are read."""

  path: pathlib.Path
  model: language.LanguageModel
  tokenizer: tokenizers.Tokenizer
  shapes: PyTree

  def load(self, options: LoadOptions) -> Checkpoint:
    """Reads the parameters."""
    try:
      params = _restore(self.path, self.model, self.shapes, options)
    # Whatever Orbax raises, the user can do one thing.
    except Exception as error:
      message = _message(error, self.path, 'is damaged', 'fetch it again.')
      raise ValueError(message) from error
    model = self.model.with_layout(options.layout)
    return Checkpoint(model, params, self.tokenizer)


class GemmaSource(NamedTuple):
  """One of gemma's own checkpoints, which gemma downloads."""

  name: str

  def load(self, options: LoadOptions) -> Checkpoint:
    """Downloads the model."""
    path = gemma_library.gemma_checkpoints()[self.name].value
    model, file = language.from_gemma(self.name)
    try:
      tokenizer = tokenizers.Tokenizer(epath.Path(file).read_bytes())
      stored = gemma_library.orbax_shapes(path)
      shapes = gemma_library.select(stored, model.param_shapes())
      params = _restore(path, model, shapes, options)
    # The remedy is the same for every error that a cloud client raises.
    except Exception as error:
      problem = f'could not be fetched from {path}'
      remedy = 'check the connection, or give a folder that holds the model.'
      raise ValueError(_message(error, self.name, problem, remedy)) from error
    if self.name.endswith('-it'):
      tokenizer = turns.with_turn_end(tokenizer)
    model = match_tokenizer(file, model, tokenizer)
    model = model.with_layout(options.layout)
    return Checkpoint(model, params, tokenizer)


def open_folder(path: pathlib.Path, architecture: str | None) -> OrbaxSource:
  """Opens the checkpoint of a folder.

  The architecture is the one that the user names, else the one of a
  config.json beside the checkpoint, else gemma's with as many layers of the
  same width.
  """
  folder = _only_checkpoint(path)
  name = _checkpoint_name(architecture) if architecture else None
  try:
    shapes = gemma_library.orbax_shapes(folder)
  # Whatever Orbax raises, the user can do one thing.
  except Exception as error:
    raise ValueError(
      f'model: {folder} is not a checkpoint that Orbax can read'
      f' ({_first_line(error)}); fetch it again.'
    ) from error
  # Downloads have config and tokenizer beside the checkpoint, not in it.
  parents = folder, folder.parent
  configs = [x for x in parents if (x / 'config.json').is_file()]
  tokenizer_path = None
  if configs and not name:
    model = language.make_model(huggingface.read_config(configs[0]))
  else:
    name = name or _name_by_shapes(folder, shapes)
    model, tokenizer_path = language.from_gemma(name)
  _check_shapes(folder, shapes, model)
  # What belongs to images or sound is not read.
  shapes = gemma_library.select(shapes, model.param_shapes())
  tokenizer = _read_tokenizer(folder, tokenizer_path)
  names = str(architecture), folder.name, folder.parent.name
  if any(name.endswith('-it') for name in names):
    tokenizer = turns.with_turn_end(tokenizer)
  table_size = model.vocab_size
  model = match_tokenizer('tokenizer.model', model, tokenizer)
  if configs:
    tokenizer = huggingface.with_generation_config(
      configs[0], tokenizer, table_size
    ).with_chat_template(chat_templates.read(configs[0]))
  return OrbaxSource(folder, model, tokenizer, shapes)


def _only_checkpoint(path: pathlib.Path) -> pathlib.Path:
  """Returns the only checkpoint of a folder."""
  checkpoints = find_checkpoints(path)
  if len(checkpoints) == 1:
    return checkpoints[0]
  if not checkpoints:
    raise ValueError(
      f'model: {path} holds no Orbax checkpoint; give a folder with one.'
    )
  names = ', '.join(x.name for x in checkpoints)
  raise ValueError(
    f'model: {path} holds several checkpoints ({names}); give the folder of'
    ' one.'
  )


def _read_tokenizer(
  folder: pathlib.Path, gemma_path: str | None
) -> tokenizers.Tokenizer:
  """Reads the tokenizer beside a checkpoint, else the one that gemma has."""
  parents = folder, folder.parent
  present = [x for x in parents if (x / 'tokenizer.model').is_file()]
  if present or gemma_path is None:
    return tokenizer_files.read((present or parents)[0] / 'tokenizer.model')
  try:
    return tokenizers.Tokenizer(epath.Path(gemma_path).read_bytes())
  except Exception as error:
    raise ValueError(
      f'model: {folder} has no tokenizer.model beside it, and {gemma_path}'
      f' could not be fetched ({_first_line(error)}); put the file there.'
    ) from error


def find_gemma(layers: int, width: int) -> str | None:
  """Returns the name of a checkpoint of gemma's with an architecture."""
  for name in gemma_library.gemma_checkpoints():
    config = language.from_gemma(name)[0].module.config
    if (config.num_layers, config.embed_dim) == (layers, width):
      return name
  return None


def _checkpoint_name(architecture: str) -> str:
  """Returns the name of a checkpoint of gemma's that has an architecture."""
  names = list(gemma_library.gemma_checkpoints())
  for name in (architecture, f'{architecture}-it'):
    if name in names:
      return name
  nearest = difflib.get_close_matches(architecture, names, 1, 0.0)
  guess = f'did you mean {nearest[0]!r}? ' if nearest else ''
  raise ValueError(
    f'model: {arguments.quote(architecture)} is not an architecture of gemma;'
    f' {guess}Choose from {", ".join(names)}.'
  )


def _name_by_shapes(folder: pathlib.Path, shapes: PyTree) -> str:
  """Returns the name of a checkpoint of gemma's with the same shapes."""
  layers = sum(name.startswith('layer_') for name in shapes)
  embedder = shapes.get('embedder')
  table = isinstance(embedder, Mapping) and embedder.get('input_embedding')
  width = table.shape[-1] if table else 0
  name = find_gemma(layers, width)
  if name is None:
    raise ValueError(
      f'model: {folder} has {layers} layers of width {width}, which no model of'
      ' gemma has; put its config.json beside it.'
    )
  return name


def _check_shapes(
  folder: pathlib.Path, shapes: PyTree, model: language.LanguageModel
) -> None:
  """Refuses parameters that are not the model's."""
  stored, expected = (
    {
      jax.tree_util.keystr(path, simple=True, separator='/'): x.shape
      for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }
    for tree in (shapes, model.param_shapes())
  )
  # Parameters outside of layers may also belong to images and sound.
  names = {x for x in stored if x.startswith('layer_')} | expected.keys()
  for name in sorted(names):
    if stored.get(name) != expected.get(name):
      raise ValueError(
        f'model: in {folder} the parameter {name} has the shape'
        f' {stored.get(name)} where its architecture implies'
        f' {expected.get(name)}; give its architecture in front of the folder'
        " ('gemma2-2b:/path'), or put its config.json beside it."
      )


def _restore(
  folder: str | pathlib.Path,
  model: language.LanguageModel,
  shapes: PyTree,
  options: LoadOptions,
) -> language.Params:
  """Reads the parameters of a checkpoint onto their devices."""
  dtype = options.dtype or param_dtypes.choose_dtype(_dtypes(shapes), folder)
  memory.check_weights(
    folder, model, jax.tree.leaves(shapes), options._replace(dtype=dtype)
  )
  if options.layout == 'int8':
    # Rounded from the stored dtype: float32 would take twice the memory.
    dtype = None
  if options.mesh is None:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    layout = jax.tree.map(lambda x: device, shapes)
  else:
    layout = sharding.layout(model, shapes, options.mesh)
  structs = jax.tree.map(
    lambda x, placement: jax.ShapeDtypeStruct(
      x.shape, jnp.dtype(dtype or x.dtype), sharding=placement
    ),
    shapes,
    layout,
  )
  model = model.with_layout(options.layout)
  layers = gemma_library.restore_layers(folder, structs)
  # A layer is packed before the next one is read.
  return {x: place_params(model, (x,), part, options) for x, part in layers}


def _dtypes(shapes: PyTree) -> list[Any]:
  """Returns the dtypes of parameters from their shapes."""
  return [x.dtype for x in jax.tree.leaves(shapes)]


def _message(error: Exception, name: Any, problem: str, remedy: str) -> str:
  """Returns the sentence for an error of a library."""
  if isinstance(error, MemoryError) or 'RESOURCE_EXHAUSTED' in str(error):
    problem = 'does not fit into the memory'
    remedy = 'give the dtype int8, or more devices.'
  return f'model: {name} {problem} ({_first_line(error)}); {remedy}'


def _first_line(error: Exception) -> str:
  """Returns the first line of a library's error message."""
  return (str(error).splitlines() or [type(error).__name__])[0]
