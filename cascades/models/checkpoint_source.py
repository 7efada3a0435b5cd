"""Checkpoints: models with parameters and tokenizer, and sources of them.

A checkpoint format (see `checkpoint_formats`) opens a name as a
`CheckpointSource`, which loads it. `TensorSource` is the source of all formats
that store named tensors which can be read one by one.
"""

import dataclasses
import pathlib
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from cascades.models import (
  config_json,
  language,
  memory,
  param_dtypes,
  param_mapping,
  sharding,
  tensor_files,
  tokenizers,
)

# Rows of tables that are compared at a time.
_HEAD_ROWS = 2**11


class Checkpoint(NamedTuple):
  """A model ready to run: unpacks to (model, params, tokenizer).

  Attributes:
    model: The model as a function of its parameters.
    params: gemma's parameter tree, or the tree of `LanguageModel.pack` if the
      model is packed.
    tokenizer: Has a piece for each of the model's logits.
  """

  model: language.LanguageModel
  params: language.Params
  tokenizer: tokenizers.Tokenizer

  def shard(self, mesh: jax.sharding.Mesh | None) -> 'Checkpoint':
    """Returns the checkpoint divided over a mesh; None leaves it as it is."""
    if mesh is None:
      return self
    params = sharding.shard_params(self.model, self.params, mesh)
    return self._replace(params=params)

  def with_exact_rows(self) -> 'Checkpoint':
    """Returns the checkpoint with results that depend on no other row.

    Logits of decoding are then equal to the bit in any batch and block, as in
    eight bits. Experts of a mixture are excepted. See `row_exact`.
    """
    model = self.model.with_layout(self.model.layout, is_row_exact=True)
    return self._replace(model=model)

  def pack(self) -> 'Checkpoint':
    """Returns the checkpoint with matrices in blocks, the order for CPUs."""
    if self.model.layout is not None:
      return self
    model = self.model.with_layout('blocked')
    return self._replace(model=model, params=model.pack(self.params))

  def unpack(self) -> 'Checkpoint':
    """Returns the checkpoint with parameters in gemma's order.

    Of eight bits, they become float32.
    """
    model = self.model.with_layout(None)
    return self._replace(model=model, params=self.model.unpack(self.params))


class LoadOptions(NamedTuple):
  """Dtype, devices and order of parameters as they are read."""

  dtype: str | None = None
  mesh: jax.sharding.Mesh | None = None
  pack: bool = False

  @property
  def layout(self) -> str | None:
    """`LanguageModel.layout` of the model that is read."""
    if self.dtype == 'int8':
      return 'int8'
    return 'blocked' if self.pack else None

  @property
  def float_dtype(self) -> str | None:
    """Dtype of parameters that are not in eight bits."""
    return param_dtypes.float_dtype(self.dtype)


@runtime_checkable
class CheckpointSource(Protocol):
  """A stored model that was opened, before its parameters are read."""

  def load(self, options: LoadOptions) -> Checkpoint:
    """Reads the model."""
    ...


def place_params(
  model: language.LanguageModel,
  path: tuple[str, ...],
  part: PyTree,
  options: LoadOptions,
) -> PyTree:
  """Converts a part of the parameters and moves it to its devices."""
  tree: dict[str, Any] = {}
  _set_at(tree, path, part)

  def convert(x):
    if isinstance(x, tensor_files.TensorHandle):
      x = np.asarray(x)
    if options.float_dtype and not np.issubdtype(x.dtype, np.integer):
      x = x.astype(jnp.dtype(options.float_dtype), copy=False)
    # JAX copies asynchronously and would hold several arrays at a time. Unlike
    # jnp.asarray, device_put takes aligned arrays as they are.
    return x if options.mesh else jax.block_until_ready(jax.device_put(x))

  tree = model.pack(tree, convert)
  if options.mesh:
    tree = sharding.shard_params(model, tree, options.mesh)
    tree = jax.block_until_ready(tree)
  return param_mapping.get(tree, path)


# Embedding tables in memory, by the file and the options they were read with.
_tables: dict[Hashable, tuple[weakref.ref, ...]] = {}


def file_versions(path: pathlib.Path) -> tuple[tuple[str, int, int], ...]:
  """Returns name, modification time and size of each file of a model."""
  files = [path] if path.is_file() else sorted(path.glob('*.safetensors*'))
  return tuple((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in files)


def _share_table(key: Hashable, read: Callable[[], PyTree]) -> PyTree:
  """Returns an embedding table that is in memory, or reads it.

  A drafter may share its verifier's table, most of a small model.
  """
  parts = [ref() for ref in _tables.get(key, ())]
  if parts and all(part is not None for part in parts):
    return tuple(parts) if len(parts) > 1 else parts[0]
  table = read()
  _tables[key] = tuple(weakref.ref(part) for part in jax.tree.leaves(table))
  return table


def _set_at(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
  """Sets the value at a path of keys, and creates the dicts on the way."""
  for key in path[:-1]:
    tree = tree.setdefault(key, {})
  tree[path[-1]] = value


def match_tokenizer(
  tokenizer_file: str,
  model: language.LanguageModel,
  tokenizer: tokenizers.Tokenizer,
) -> language.LanguageModel:
  """Returns the model with one logit for each piece of its tokenizer."""
  if tokenizer.vocab_size > model.vocab_size:
    raise ValueError(
      f'model: {tokenizer_file} has {tokenizer.vocab_size} pieces, more than'
      f' the {model.vocab_size} of the model; fetch the tokenizer that belongs'
      ' to the model.'
    )
  return dataclasses.replace(model, vocab_size=tokenizer.vocab_size)


class TensorSource(NamedTuple):
  """A checkpoint of named tensors, each of which can be read alone."""

  path: pathlib.Path
  config: config_json.GemmaConfig
  model: language.LanguageModel
  tokenizer: tokenizers.Tokenizer
  tensors: Mapping[str, tensor_files.TensorHandle]
  vocab_ids: np.ndarray | None = None
  table_path: pathlib.Path | None = None
  table_checksum: str | None = None

  def _mapped_tensors(
    self,
  ) -> list[tuple[param_mapping.ParamMapping, list[tensor_files.TensorHandle]]]:
    """Returns each parameter's mapping with the tensors that it is made of."""
    # Checked before anything of the declared number of layers is built.
    for mapping in param_mapping.param_mappings(self.config):
      tensor_files.check_present(self.path, self.tensors, mapping.names)
    layers = self.model.module.config.num_layers
    tensor_files.check_layers(self.path, self.tensors, layers, 'model.layers.')
    shapes, mapped = self.model.param_shapes(), []
    for mapping in param_mapping.param_mappings(self.config):
      # Shapes of stored tensors: a transposed one could be packed wrongly.
      shape = param_mapping.get(shapes, mapping.path)
      expected = jax.eval_shape(mapping.unpack, shape)
      tensors = [
        tensor_files.find(self.path, self.tensors, name, x.shape)
        for name, x in zip(mapping.names, expected, strict=True)
      ]
      mapped.append((mapping, tensors))
    return mapped

  def _check_head(self) -> None:
    """Refuses an output head that differs from the embedding table."""
    table, rows = (
      self.tensors[param_mapping.TABLE_TENSOR],
      self.model.vocab_size,
    )
    for name in (x for x in self.tensors if x.endswith('lm_head.weight')):
      head = self.tensors[name]
      # Rows that pad a table have no logit.
      is_tied = head.is_weights and head.shape[1:] == table.shape[1:]
      is_tied = is_tied and head.shape[0] >= rows
      # Two tables of a large model do not fit into memory.
      for i in range(0, rows if is_tied else 0, _HEAD_ROWS):
        a, b = (x[i : min(i + _HEAD_ROWS, rows)] for x in (head, table))
        is_tied &= np.array_equal(a.astype(np.float32), b.astype(np.float32))
      if not is_tied:
        raise ValueError(
          f'model: in {self.path} the tensor {name} differs from'
          f' {param_mapping.TABLE_TENSOR}, and such an output head is not'
          ' supported; give a model with tied embeddings.'
        )

  def _choose_dtype(
    self,
    dtype: str | None,
    mapped: list[tuple[param_mapping.ParamMapping, list]],
  ) -> str | None:
    """Returns the dtype asked for, else the declared or the stored one."""
    declared = self.config.stored_dtype
    return (
      dtype
      or (declared if declared in param_dtypes.DTYPES else None)
      or param_dtypes.choose_dtype(
        (x.dtype for _, tensors in mapped for x in tensors), self.path
      )
    )

  def load(self, options: LoadOptions) -> Checkpoint:
    """Reads the tensors into a model's parameters."""
    mapped = self._mapped_tensors()
    self._check_head()
    dtype = self._choose_dtype(options.dtype, mapped)
    options = options._replace(dtype=dtype)
    table = param_mapping.TABLE if self.table_path else None
    memory.check_weights(
      self.path,
      self.model,
      [x for mapping, xs in mapped if mapping.path != table for x in xs],
      options,
    )
    cpu = language.cpu()
    if dtype == 'int8':
      cpu.int8.check_device()
    dtype = options.float_dtype and jnp.dtype(options.float_dtype)
    model = self.model.with_layout(options.layout)
    params: dict[str, Any] = {}
    table_path = self.table_path or self.path
    key = table_path, file_versions(table_path), options
    for mapping, tensors in mapped:
      is_table = mapping.path == param_mapping.TABLE

      def read(mapping=mapping, tensors=tensors, is_table=is_table):
        is_int8 = all(isinstance(x, cpu.files.Int8Handle) for x in tensors)
        is_matrix = cpu.engine.axis_split(model, mapping.path) is not None
        # Rows of a table of floats are read as they are placed, and some
        # matrices that are never read have no tensor.
        by_tensor = tensors and is_matrix and (is_int8 or not is_table)
        if options.layout == 'int8' and by_tensor:
          leaf = cpu.files.read_rounded(mapping, tensors)
        else:
          # One tensor at a time: a leaf may be a fifth of the model.
          parts = (x if is_table else np.asarray(x, dtype) for x in tensors)
          leaf = mapping.pack(parts)
        return place_params(model, mapping.path, leaf, options)

      leaf = _share_table(key, read) if is_table else read()
      _set_at(params, mapping.path, leaf)
    if self.vocab_ids is not None:
      table = self.tensors[param_mapping.TABLE_TENSOR]
      checksum = language.cpu().files.checksum(model, table)
      if checksum != self.table_checksum:
        raise ValueError(
          f'model: {self.path} was trained with the embedding table'
          f' {self.table_checksum}, but {self.table_path} has {checksum};'
          ' restore the model that it was trained for.'
        )
      params = model.restrict_vocab(params, self.vocab_ids)
    return Checkpoint(model, params, self.tokenizer)
