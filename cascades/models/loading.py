"""Parameters as they are stored, and as they are to lie in memory.

What reads a format gives a source: it has `describe`, which tells the model and
its parameters' shapes without reading any, and `load`, which reads them.
`Stored` is that of files whose tensors are read one by one.
"""

import dataclasses
import functools
import pathlib
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from cascades.models import (
  language,
  param_mapping,
  sharding,
  shared_table,
  tensor_files,
  tokenizers,
)

# The model, shapes of its parameters as they are stored, and what they become;
# None for what they are.
Description = tuple[language.LanguageModel, PyTree, str | None]
Loaded = tuple[language.LanguageModel, language.Params, tokenizers.Tokenizer]


def lay(
  model: language.LanguageModel,
  path: tuple[str, ...],
  part: PyTree,
  dtype: str | None,
  mesh: jax.sharding.Mesh | None,
) -> PyTree:
  """A part of the parameters as it is to be, and where it is to lie.

  Args:
    model: Says whether they are to be packed, and how they can be divided.
    path: Keys into gemma's tree that lead to the part.
    part: An array, or a tree of them, as it was read.
    dtype: What it becomes; None leaves it as it is.
    mesh: Devices that it is divided among; None for the first device.
  """
  tree: dict[str, Any] = {}
  _set(tree, path, part)

  def put(x):
    # What gives its rows when it is asked becomes an array here.
    x = np.asarray(x) if isinstance(x, tensor_files.TensorHandle) else x
    x = x.astype(jnp.dtype(dtype), copy=False) if dtype else x
    # JAX copies while Python reads on, and holds what it still has to copy.
    return x if mesh else jax.block_until_ready(jnp.asarray(x))

  tree = model.pack(tree, put) if model.packed else jax.tree.map(put, tree)
  if mesh:
    tree = jax.block_until_ready(sharding.shard_params(model, tree, mesh))
  return param_mapping.get(tree, path)


def lay_all(
  model: language.LanguageModel,
  params: language.Params,
  dtype: str | None,
  mesh: jax.sharding.Mesh | None,
) -> language.Params:
  """As `lay`, layer by layer, so that the model is not held twice."""
  for layer in params:
    params[layer] = lay(model, (layer,), params[layer], dtype, mesh)
  return params


# Tables that somebody holds, by what they were read of and what became of them.
_tables: dict[Hashable, tuple[weakref.ref, ...]] = {}


def written(path: pathlib.Path) -> tuple:
  """What changes when a model's file, or a folder's, is written anew."""
  # The index too, which says what is read from which file.
  files = [path] if path.is_file() else sorted(path.glob('*.safetensors*'))
  return tuple((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in files)


def _held(key: Hashable, read: Callable[[], PyTree]) -> PyTree:
  """A table that is there already, else what is read.

  A drafter may have its verifier's, which is most of a small model.
  """
  parts = [ref() for ref in _tables.get(key, ())]
  if parts and all(part is not None for part in parts):
    return tuple(parts) if len(parts) > 1 else parts[0]
  table = read()
  _tables[key] = tuple(weakref.ref(part) for part in jax.tree.leaves(table))
  return table


def _set(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
  """Puts a value at the end of a path of keys, and trees on the way to it."""
  for key in path[:-1]:
    tree = tree.setdefault(key, {})
  tree[path[-1]] = value


def paired(
  what: str, model: language.LanguageModel, tokenizer: tokenizers.Tokenizer
) -> language.LanguageModel:
  """The model, with as many logits as there are pieces.

  Args:
    what: Where the tokenizer is from, for an error.
    model: With a logit for every row of its embedding table.
    tokenizer: The model's own.

  Raises:
    ValueError: There are more pieces than rows.
  """
  if tokenizer.vocab_size > model.vocab_size:
    raise ValueError(
      f'model: {what} has {tokenizer.vocab_size} pieces, more than the'
      f' {model.vocab_size} of the model; fetch the tokenizer that belongs to'
      ' it.'
    )
  return dataclasses.replace(model, vocab_size=tokenizer.vocab_size)


class Stored(NamedTuple):
  """A model as it is stored, before its tensors are read.

  Attributes:
    what: Its folder or file.
    config: What its config.json says, or would.
    model: What that describes.
    tokenizer: Its own.
    places: Where its tensors are; see `tensor_files.open_folder`.
    said: Ids of what it says, where it does not say all tokens.
    table_of: Whose table it has, where it is another model's.
    checksum: Of that table.
  """

  what: pathlib.Path
  config: dict[str, Any]
  model: language.LanguageModel
  tokenizer: tokenizers.Tokenizer
  places: Mapping[str, tensor_files.TensorHandle]
  said: np.ndarray | None = None
  table_of: pathlib.Path | None = None
  checksum: str | None = None

  def _params(self) -> list[tuple[param_mapping.ParamMapping, list]]:
    """Every leaf, and the tensors that it is made of.

    Raises:
      ValueError: A tensor is missing or of another model.
    """
    # Before anything is made of as many layers as a config claims.
    for leaf in param_mapping.param_mappings(self.config):
      tensor_files.check_present(self.what, self.places, leaf.names)
    layers = self.model.module.config.num_layers
    tensor_files.check_layers(self.what, self.places, layers, 'model.layers.')
    shapes, found = self.model.param_shapes(), []
    for leaf in param_mapping.param_mappings(self.config):
      # Of the stored tensors: a transposed one can be packed, but wrongly.
      shape = param_mapping.get(shapes, leaf.path)
      wanted = zip(leaf.names, jax.eval_shape(leaf.unpack, shape), strict=True)
      tensors = [
        tensor_files.find(self.what, self.places, name, x.shape)
        for name, x in wanted
      ]
      found.append((leaf, tensors))
    return found

  def _choose_dtype(
    self, dtype: str | None, leaves: list, what: Any = None
  ) -> str | None:
    """What its parameters become: as asked, as it says, or as they are stored.

    Args:
      dtype: What is asked for.
      leaves: What `_params` gives.
      what: As in `tensor_files.choose_dtype`.
    """
    # Transformers goes by it too; both spellings are in use.
    named = self.config.get('dtype') or self.config.get('torch_dtype')
    return (
      dtype
      or (named if named in tensor_files.DTYPES else None)
      or tensor_files.choose_dtype(
        (x.dtype for _, tensors in leaves for x in tensors), what
      )
    )

  def describe(self, dtype: str | None) -> Description:
    """Describes it without reading tensors.

    Args:
      dtype: What the parameters are to become; None as for `load_model`.
    """
    leaves, shapes = self._params(), {}
    for leaf, tensors in leaves:
      tensors = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in tensors]
      _set(shapes, leaf.path, jax.eval_shape(leaf.pack, tensors))
    if self.said is not None:
      said = functools.partial(self.model.restrict_vocab, tokens=self.said)
      shapes = jax.eval_shape(said, shapes)
    return self.model, shapes, self._choose_dtype(dtype, leaves)

  def load(
    self, dtype: str | None, mesh: jax.sharding.Mesh | None, packed: bool
  ) -> Loaded:
    """Reads it.

    Args:
      dtype: What the parameters become; None as for `load_model`.
      mesh: Devices that they are divided among; None for the first device.
      packed: Whether they are to lie as a CPU reads them best, else in gemma's
        order.
    """
    leaves = self._params()
    dtype = self._choose_dtype(dtype, leaves, self.what)
    model, params = dataclasses.replace(self.model, packed=packed), {}
    owner = self.table_of or self.what
    key = owner, written(owner), dtype, mesh, packed
    for leaf, tensors in leaves:
      is_table = leaf.path == param_mapping.TABLE

      def read(leaf=leaf, tensors=tensors, is_table=is_table):
        # Never kept longer: a leaf may be a fifth of the model; and a table is
        # not even read whole.
        parts = (x if is_table else np.asarray(x) for x in tensors)
        return lay(model, leaf.path, leaf.pack(parts), dtype, mesh)

      _set(params, leaf.path, _held(key, read) if is_table else read())
    if self.said is not None:
      found = shared_table.checksum(model, params)
      if found != self.checksum:
        raise ValueError(
          f'model: {self.what} was trained with another embedding table'
          f' ({self.checksum}, and this is {found}); give the model that it was'
          ' trained for, in its place.'
        )
      params = model.restrict_vocab(params, self.said)
    return model, params, self.tokenizer
