"""Orbax checkpoints of gemma's: in folders, and those that gemma fetches."""

import dataclasses
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from etils import epath
from jaxtyping import PyTree

from cascades.models import (
  gemma_library,
  huggingface,
  language,
  loading,
  sharding,
  tensor_files,
  tokenizers,
  turns,
)

# One of these is in every folder that Orbax has written.
_FILES = ('_METADATA', '_CHECKPOINT_METADATA')


def find(folder: pathlib.Path) -> pathlib.Path | None:
  """Where in a folder Orbax has written; None if it has not.

  Raises:
    ValueError: It has in several places.
  """
  if folder.is_file():
    return None
  found = [
    place
    for place in (folder, *sorted(folder.iterdir()))
    if any((place / name).is_file() for name in _FILES)
  ]
  # A checkpoint of Kauldron's holds others, and says itself which.
  if folder in found:
    return folder
  if len(found) > 1:
    names = ', '.join(place.name for place in found)
    raise ValueError(
      f'model: {folder} holds several checkpoints ({names}); give the folder'
      ' of one.'
    )
  return found[0] if found else None


class Folder(NamedTuple):
  """A checkpoint in a folder, before its parameters are read.

  Attributes:
    path: What Orbax has written.
    model: What it is a checkpoint of.
    tokenizer: The model's.
    shapes: Of what is stored.
  """

  path: pathlib.Path
  model: language.LanguageModel
  tokenizer: tokenizers.Tokenizer
  shapes: PyTree

  def describe(self, dtype: str | None) -> loading.Description:
    """Reads nothing; arguments and result as of `loading.Stored`."""
    dtype = dtype or tensor_files.choose_dtype(_dtypes(self.shapes))
    return self.model, self.shapes, dtype

  def load(
    self, dtype: str | None, mesh: jax.sharding.Mesh | None, packed: bool
  ) -> loading.Loaded:
    """Reads it; arguments and result as of `loading.Stored`."""
    try:
      params = _restore(self.path, self.model, self.shapes, dtype, mesh)
    # Whatever Orbax may raise, the user's way out is the same.
    except Exception as e:
      raise ValueError(
        f'model: {self.path} is damaged ({_said(e)}); fetch it again.'
      ) from e
    model = dataclasses.replace(self.model, packed=packed)
    return model, loading.lay_all(model, params, dtype, mesh), self.tokenizer


class Fetched(NamedTuple):
  """One of gemma's own checkpoints, which gemma fetches.

  Attributes:
    name: Its name in gemma.
  """

  name: str

  def describe(self, dtype: str | None) -> loading.Description:
    """Fetches nothing; arguments and result as of `loading.Stored`."""
    model, _ = language.from_gemma(self.name)
    return model, model.param_shapes(), dtype

  def load(
    self, dtype: str | None, mesh: jax.sharding.Mesh | None, packed: bool
  ) -> loading.Loaded:
    """Fetches it; arguments and result as of `loading.Stored`."""
    path = gemma_library.gemma_checkpoints()[self.name].value
    model, file = language.from_gemma(self.name)
    try:
      tokenizer = tokenizers.Tokenizer(epath.Path(file).read_bytes())
      shapes = gemma_library.orbax_shapes(path)
      params = _restore(path, model, shapes, dtype, mesh)
    # Whatever a cloud client may raise, the user's way out is the same.
    except Exception as e:
      raise ValueError(
        f'model: {self.name} could not be fetched from {path} ({_said(e)});'
        ' check the connection, or give a folder that holds the model.'
      ) from e
    if self.name.endswith('-it'):
      tokenizer = turns.with_turn_end(tokenizer)
    model = loading.paired(file, model, tokenizer)
    model = dataclasses.replace(model, packed=packed)
    return model, loading.lay_all(model, params, dtype, mesh), tokenizer


def open_folder(
  folder: pathlib.Path, architecture: str | None, name: str | None
) -> Folder:
  """A checkpoint in a folder.

  Args:
    folder: What Orbax has written.
    architecture: What the user says that it is, if anything.
    name: The checkpoint of gemma's that has this architecture; else a
      config.json beside the folder says it, or its shapes do.

  Raises:
    ValueError: It is damaged, or none of gemma's.
  """
  try:
    shapes = gemma_library.orbax_shapes(folder)
  # Whatever Orbax may raise, the user's way out is the same.
  except Exception as e:
    raise ValueError(
      f'model: {folder} is no checkpoint that Orbax can read ({_said(e)});'
      ' fetch it again.'
    ) from e
  # Downloads have the tokenizer beside the checkpoint, not in it.
  places = folder, folder.parent
  beside = [p for p in places if (p / 'config.json').is_file()]
  if beside and not name:
    _, model = huggingface.read_config(beside[0])
  else:
    name = name or _name_by_shapes(folder, shapes)
    model, fetched = language.from_gemma(name)
  _check_shapes(folder, shapes, model)
  beside = [p for p in places if (p / 'tokenizer.model').is_file()]
  if beside or name is None:
    tokenizer = tokenizers.read((beside or places)[0] / 'tokenizer.model')
  else:
    try:
      tokenizer = tokenizers.Tokenizer(epath.Path(fetched).read_bytes())
    except Exception as e:
      raise ValueError(
        f'model: {folder} has no tokenizer.model beside it, and {fetched} could'
        f' not be fetched ({_said(e)}); put one there.'
      ) from e
  names = str(architecture), folder.name, folder.parent.name
  if any(name.endswith('-it') for name in names):
    tokenizer = turns.with_turn_end(tokenizer)
  model = loading.paired('tokenizer.model', model, tokenizer)
  return Folder(folder, model, tokenizer, shapes)


def find_gemma(layers: int, width: int) -> str | None:
  """One of gemma's own checkpoints of this architecture; None if none is.

  Args:
    layers: How many there are.
    width: Numbers in an embedding.
  """
  for name in gemma_library.gemma_checkpoints():
    config = language.from_gemma(name)[0].module.config
    if (config.num_layers, config.embed_dim) == (layers, width):
      return name
  return None


def _name_by_shapes(folder: pathlib.Path, shapes: PyTree) -> str:
  """One of gemma's checkpoints that has parameters of these shapes."""
  layers = sum(name.startswith('layer_') for name in shapes)
  width = shapes['embedder']['input_embedding'].shape[1]
  name = find_gemma(layers, width)
  if name is None:
    raise ValueError(
      f'model: {folder} has {layers} layers of width {width}, as no model of'
      " gemma's has; put its config.json beside it."
    )
  return name


def _check_shapes(
  folder: pathlib.Path, shapes: PyTree, model: language.LanguageModel
) -> None:
  """Refuses parameters that are not the model's."""
  found, wanted = (
    {
      jax.tree_util.keystr(path, simple=True, separator='/'): x.shape
      for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }
    for tree in (shapes, model.param_shapes())
  )
  # What is no layer may also be of images and of sound.
  names = {name for name in found if name.startswith('layer_')} | wanted.keys()
  for name in sorted(names):
    if found.get(name) != wanted.get(name):
      raise ValueError(
        f'model: in {folder} the parameter {name} has the shape'
        f' {found.get(name)} where its architecture asks for'
        f' {wanted.get(name)}; give the architecture that it is of in front of'
        " the folder ('gemma2-2b:/path'), or put its config.json beside it."
      )


def _restore(
  folder: str | pathlib.Path,
  model: language.LanguageModel,
  shapes: PyTree,
  dtype: str | None,
  mesh: jax.sharding.Mesh | None,
) -> language.Params:
  """The parameters of a checkpoint, each where it is to lie as it is read.

  Args:
    folder: What Orbax has written, here or in a cloud.
    model: Says how they can be divided.
    shapes: Shapes and dtypes of what is stored.
    dtype: What they become; None leaves them as they are stored, but for
      float16 (see `tensor_files.choose_dtype`).
    mesh: Devices that they are divided among; None for the first device.
  """
  ckpts = gemma_library.import_gemma().ckpts
  dtype = dtype or tensor_files.choose_dtype(_dtypes(shapes), folder)
  if mesh is None:
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    layout = jax.tree.map(lambda x: here, shapes)
  else:
    layout = sharding.layout(model, shapes, mesh)
  wanted = jax.tree.map(
    lambda x, where: jax.ShapeDtypeStruct(
      x.shape, jnp.dtype(dtype or x.dtype), sharding=where
    ),
    shapes,
    layout,
  )
  return ckpts.load_params(folder, params=wanted)


def _dtypes(shapes: PyTree) -> list[Any]:
  """The types of parameters, by their shapes."""
  return [x.dtype for x in jax.tree.leaves(shapes)]


def _said(error: Exception) -> str:
  """The first line of what a library said."""
  return (str(error).splitlines() or [type(error).__name__])[0]
