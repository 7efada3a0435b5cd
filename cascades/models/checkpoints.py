"""Loading and saving checkpoints: `load_model(name or folder)`.

Seven kinds of names are understood:

- the bundled models, those of `BUNDLED` and `REDUCED`;
- real models that come as Python packages, those of `packaged.MODELS`;
- a folder in Hugging Face layout of Gemma 2, 3, 3n or 4; see `huggingface`;
- a GGUF file of Gemma 2 or Gemma 3, or a folder with one; see `gguf_files`;
- a folder with a few layers that share another model's embedding table; see
  `reduced`;
- a folder with an Orbax checkpoint of gemma's, as its Flax downloads are. What
  it is a checkpoint of is told by a config.json beside it, else by its name in
  front of the folder (`gemma2-2b:/path/to/folder`), else by its number of
  layers and their width;
- the names of gemma's own checkpoints (`gemma2-2b-it`, ...), which gemma
  downloads.

A checkpoint's model has as many logits as its tokenizer has pieces: families
pad their embedding tables to different sizes, and what pads them is no token.
"""

import dataclasses
import difflib
import functools
import pathlib
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import PyTree

from cascades import arguments, atomic, compilation
from cascades.models import (
  gguf_files,
  huggingface,
  language,
  packaged,
  reduced,
  sharding,
  tokenizers,
  turns,
)

ASSETS = pathlib.Path(__file__).parents[1] / 'assets'
BUNDLED = (
  'tiny-drafter',
  'tiny-specialist',
  'tiny-verifier',
)
# Bundled too, but for the table, which is that of one of `packaged.MODELS`.
REDUCED = ('gemma3-270m-multi30k-de-en',)
DTYPES = ('bfloat16', 'float32')
# One of these is in every folder that Orbax has written.
_ORBAX = ('_METADATA', '_CHECKPOINT_METADATA')


class Checkpoint(NamedTuple):
  """A model ready to run: unpacks to (model, params, tokenizer).

  Attributes:
    model: The model as a function of its parameters.
    params: gemma's tree of parameters, or that of `LanguageModel.pack` where
      the model is packed.
    tokenizer: Has a piece for each of the model's logits.
  """

  model: language.LanguageModel
  params: language.Params
  tokenizer: tokenizers.Tokenizer

  def packed(self) -> 'Checkpoint':
    """The same model as a CPU reads it best; see `LanguageModel.pack`."""
    if self.model.packed:
      return self
    return self._replace(
      model=dataclasses.replace(self.model, packed=True),
      params=self.model.pack(self.params),
    )

  def unpacked(self) -> 'Checkpoint':
    """The same model with its parameters as gemma's own code takes them."""
    return self._replace(
      model=dataclasses.replace(self.model, packed=False),
      params=self.model.unpack(self.params),
    )


def load_model(
  name: str | pathlib.Path,
  dtype: str | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> Checkpoint:
  """Loads a model with its parameters and tokenizer.

  Args:
    name: One of `BUNDLED` or `packaged.MODELS`; a GGUF file; a folder in
      Hugging Face layout or of Orbax's; or one of gemma's own checkpoints, such
      as `gemma2-2b-it`.
    dtype: What the parameters become as they are read, 'bfloat16' or
      'float32'; None for what a folder's config.json names (`torch_dtype`), and
      where it names neither, for what is stored. What is stored in float16
      becomes float32, whatever config.json says of float16.
    mesh: Devices that the parameters are divided among as they are read, as
      `sharding.make_mesh` gives them; None for the first device.

  Returns:
    (model, params, tokenizer); on a CPU with packed parameters, which
    `Checkpoint.unpacked` brings into gemma's order.

  Raises:
    ValueError: There is no such model, or its folder is damaged; one sentence
      says what to do.
  """
  compilation.keep()
  return _load(name, dtype, mesh, jax.default_backend() == 'cpu')


def load_folder(folder: str | pathlib.Path) -> Checkpoint:
  """Loads a folder, with parameters in gemma's order on any device.

  Args:
    folder: In Hugging Face layout, or of Orbax's.

  Raises:
    ValueError: It is no such folder, or it is damaged.
  """
  return _load(pathlib.Path(folder), None, None, False)


def describe(
  name: str | pathlib.Path, dtype: str | None = None
) -> tuple[language.LanguageModel, PyTree]:
  """The model that `load_model` gives, and the shapes of its parameters.

  Of a folder, everything but the parameters is read. Of gemma's own
  checkpoints nothing is fetched, so that the model still has the logits of
  rows that pad its table.

  Args:
    name: One of `BUNDLED` or `packaged.MODELS`; a GGUF file; a folder in
      Hugging Face layout or of Orbax's; or one of gemma's own checkpoints, such
      as `gemma2-2b-it`.
    dtype: What the parameters would become as they are read, 'bfloat16' or
      'float32'; None as for `load_model`.

  Returns:
    (model, shapes and dtypes of its params).

  Raises:
    ValueError: There is no such model, or its folder is damaged, as far as that
      shows without reading the parameters.
  """
  check_dtype(dtype)
  folder, architecture = _locate(name)
  if folder is None:
    _check_known(str(name))
    model, _ = language.from_gemma(str(name))
    shapes = model.param_shapes()
  elif orbax := _orbax_folder(folder):
    model, _, shapes = _open_orbax(orbax, architecture)
    dtype = dtype or huggingface.choose_dtype(_dtypes(shapes))
  else:
    found = _open(folder, architecture)
    leaves = list(found.params())
    model, dtype, shapes = found.model, found.choose_dtype(dtype, leaves), {}
    for leaf, _, tensors in leaves:
      _set(shapes, leaf.path, jax.eval_shape(leaf.pack, tensors))
    if found.said is not None:
      said = functools.partial(model.speaking, tokens=found.said)
      shapes = jax.eval_shape(said, shapes)
  if dtype:
    shapes = jax.tree.map(
      lambda x: (
        x.update(dtype=jnp.dtype(dtype))
        if jnp.issubdtype(x.dtype, jnp.floating)
        else x
      ),
      shapes,
    )
  if jax.default_backend() == 'cpu':
    shapes = jax.eval_shape(model.pack, shapes)
    model = dataclasses.replace(model, packed=True)
  return model, shapes


def save_model(
  folder: str | pathlib.Path,
  checkpoint: Checkpoint,
  shard_gb: float = 5.0,
  stored: str | None = None,
) -> None:
  """Writes a checkpoint in Hugging Face layout, whatever it was read from.

  Args:
    folder: Made if it is not there; another model's tensors in it are removed.
    checkpoint: A Gemma 2, 3, 3n or 4, with its tokenizer.
    shard_gb: Most of a file of tensors, in 1e9 bytes, except that a larger
      tensor has one of its own.
    stored: What the tensors are rounded to, 'bfloat16' or 'float32'; None for
      what they are, which config.json names in any case, so that they are read
      as that again.

  Raises:
    ValueError: `shard_gb` is not positive, `stored` is neither, or the model is
      of another family, or says only some tokens.
    OSError: A file cannot be written; names it, and the folder stays as it was.
  """
  check_dtype(stored)
  model, params, tokenizer = checkpoint
  _check_says_all(params)
  config = huggingface.config_of(model, params, tokenizer.stops)
  if model.packed:
    # On a CPU, and so views of the arrays and no copies.
    params = model.unpack(jax.tree.map(np.asarray, params))
  if stored:
    rounded = jnp.dtype(stored)
    params = jax.tree.map(lambda x: x.astype(rounded), params)
  huggingface.save(
    folder,
    config,
    params,
    tokenizer,
    shard_gb=shard_gb,
    gate_by_rows=model.gate_by_rows,
  )


def save_gguf(
  file: str | pathlib.Path, checkpoint: Checkpoint, stored: str | None = None
) -> None:
  """Writes a checkpoint as a GGUF file, whatever it was read from.

  Args:
    file: Is written whole or not at all; its folder is made if need be.
    checkpoint: A Gemma 2 or a Gemma 3, with its tokenizer.
    stored: What matrices are rounded to, 'float32', 'float16' or 'bfloat16';
      None for what they are.

  Raises:
    ValueError: `stored` is none of them, the model is of another family, or the
      format has no word for something of it.
    OSError: It cannot be written; names the file.
  """
  if stored not in (None, *gguf_files.STORED):
    raise ValueError(
      f'stored: {arguments.shown(stored)} will not do; give'
      f' {", ".join(gguf_files.STORED)}.'
    )
  model, params, tokenizer = checkpoint
  _check_says_all(params)
  if model.packed:
    params = model.unpack(jax.tree.map(np.asarray, params))
  file = pathlib.Path(file)
  with atomic.replace_file(file) as part:
    gguf_files.save(
      part,
      model,
      params,
      tokenizer,
      gate_by_rows=model.gate_by_rows,
      stored=stored,
    )


def _check_says_all(params: language.Params) -> None:
  """Refuses what would be another model where it was written.

  Raises:
    ValueError: It says only some tokens.
  """
  if language.SAID in params['embedder']:
    raise ValueError(
      'model: it says only some tokens, which other formats have no word for;'
      ' copy its folder instead.'
    )


def check_dtype(dtype: str | None) -> None:
  """Refuses what parameters cannot become.

  Raises:
    ValueError: It is neither None nor one of `DTYPES`.
  """
  if dtype not in (None, *DTYPES):
    raise ValueError(
      f'dtype: {arguments.shown(dtype)} will not do; give'
      f' {" or ".join(DTYPES)}, or leave it'
      ' out to take what its folder says (float32 for float16).'
    )


def _named_dtype(config: Mapping[str, Any]) -> str | None:
  """What config.json says that the parameters are, if it is one of `DTYPES`.

  Transformers goes by it too; both spellings are in use.
  """
  named = config.get('dtype') or config.get('torch_dtype')
  return named if named in DTYPES else None


def _locate(
  name: str | pathlib.Path,
) -> tuple[pathlib.Path | None, str | None]:
  """A model's folder or file, None if gemma has to fetch it; and what is said
  of it."""
  if name in (*BUNDLED, *REDUCED):
    folder = ASSETS / name
    if not folder.is_dir():
      raise ValueError(
        f'model: {name} is not part of the installed package; clone the'
        f' repository and give its folder, cascades/assets/{name}.'
      )
    return folder, None
  arguments.file_name('model', str(name))
  if name in packaged.MODELS:
    return packaged.fetch(name), None
  if pathlib.Path(name).exists():
    return pathlib.Path(name), None
  architecture, _, folder = str(name).partition(':')
  if folder and pathlib.Path(folder).exists():
    return pathlib.Path(folder), architecture
  return None, None


def _orbax_folder(folder: pathlib.Path) -> pathlib.Path | None:
  """Where in a folder Orbax has written; None if it has not."""
  if folder.is_file():
    return None
  found = [
    place
    for place in (folder, *sorted(folder.iterdir()))
    if any((place / name).is_file() for name in _ORBAX)
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


def _load(
  name: str | pathlib.Path,
  dtype: str | None,
  mesh: jax.sharding.Mesh | None,
  packed: bool,
) -> Checkpoint:
  """Loads a model, with parameters in the wanted order.

  Args:
    name: A model's name, or a folder.
    dtype: What the parameters become; None as for `load_model`.
    mesh: Devices that they are divided among; None for the first device.
    packed: Whether they are to lie as a CPU reads them best, else in gemma's
      order.
  """
  check_dtype(dtype)
  folder, architecture = _locate(name)
  if folder is None:
    model, tokenizer, params = _fetch(str(name), dtype, mesh)
  elif orbax := _orbax_folder(folder):
    model, tokenizer, shapes = _open_orbax(orbax, architecture)
    try:
      params = _restore(orbax, model, shapes, dtype, mesh)
    # Whatever Orbax may raise, the user's way out is the same.
    except Exception as e:
      raise ValueError(
        f'model: {orbax} is damaged ({_said(e)}); fetch it again.'
      ) from e
  else:
    found = _open(folder, architecture)
    return found.load(dtype, mesh, packed)
  model = dataclasses.replace(model, packed=packed)
  # Layer by layer, so that the model is not held twice.
  for layer in params:
    params[layer] = _lay(model, (layer,), params[layer], dtype, mesh)
  return Checkpoint(model, params, tokenizer)


def _lay(
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
    x = np.asarray(x) if isinstance(x, huggingface.Rows) else x
    x = x.astype(jnp.dtype(dtype), copy=False) if dtype else x
    # JAX copies while Python reads on, and holds what it still has to copy.
    return x if mesh else jax.block_until_ready(jnp.asarray(x))

  tree = model.pack(tree, put) if model.packed else jax.tree.map(put, tree)
  if mesh:
    tree = jax.block_until_ready(sharding.shard_params(model, tree, mesh))
  for key in path:
    tree = tree[key]
  return tree


# Tables that somebody holds, by what they were read of and what became of them.
_tables: dict[Hashable, tuple[weakref.ref, ...]] = {}


def _written(path: pathlib.Path) -> tuple:
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


def _paired(
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


def tokenizer_file(folder: pathlib.Path) -> pathlib.Path:
  """Where a folder has its tokenizer, or should have it."""
  names = 'tokenizer.model', 'tokenizer.json'
  files = [folder / name for name in names]
  return next((file for file in files if file.exists()), files[0])


def read_tokenizer(file: pathlib.Path) -> tokenizers.Tokenizer:
  """The tokenizer of a tokenizer.model, or of a tokenizer.json.

  Raises:
    ValueError: It is missing or damaged.
  """
  if file.suffix == '.json':
    return tokenizers.from_json(file)
  try:
    tokenizer = tokenizers.Tokenizer.from_file(file)
  except ValueError:
    tokenizer = None
  # An empty file makes a tokenizer without pieces.
  if tokenizer is None or not tokenizer.vocab_size:
    raise ValueError(
      f'model: {file} is missing, damaged or not a SentencePiece model; fetch'
      ' it again.'
    )
  return tokenizer


def _of_turns(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
  """The tokenizer of a model that was taught turns."""
  template = turns.find(tokenizer)
  return tokenizer.ending_at(template.end) if template else tokenizer


# --- Hugging Face ---


class Stored(NamedTuple):
  """A model as it is stored, before its tensors are read.

  Attributes:
    what: Its folder or file.
    config: What its config.json says, or would.
    model: What that describes.
    tokenizer: Its own.
    places: Where its tensors are; see `huggingface.places`.
    said: Ids of what it says, where it does not say all tokens.
    table_of: Whose table it has, where it is another model's.
    checksum: Of that table.
  """

  what: pathlib.Path
  config: dict[str, Any]
  model: language.LanguageModel
  tokenizer: tokenizers.Tokenizer
  places: Mapping[str, tuple[Any, str]]
  said: np.ndarray | None = None
  table_of: pathlib.Path | None = None
  checksum: str | None = None

  def choose_dtype(
    self, dtype: str | None, leaves: list, what: Any = None
  ) -> str | None:
    """What its parameters become: as asked, as it says, or as they are stored.

    Args:
      dtype: What is asked for.
      leaves: What `params` gives.
      what: As in `huggingface.choose_dtype`.
    """
    return (
      dtype
      or _named_dtype(self.config)
      or huggingface.choose_dtype(
        (x.dtype for *_, tensors in leaves for x in tensors), what
      )
    )

  def params(self) -> Iterator[tuple[huggingface.Leaf, list, list]]:
    """Every leaf, and where it is; see `huggingface.find_params`."""
    return huggingface.find_params(
      self.what, self.places, self.config, self.model
    )

  def load(
    self, dtype: str | None, mesh: jax.sharding.Mesh | None, packed: bool
  ) -> Checkpoint:
    """Reads it; arguments as for `_load`."""
    leaves = list(self.params())
    dtype = self.choose_dtype(dtype, leaves, self.what)
    model, params = dataclasses.replace(self.model, packed=packed), {}
    for leaf, places, _ in leaves:

      def read(leaf=leaf, places=places):
        # Never kept longer: a leaf may be a fifth of the model.
        part = leaf.pack(huggingface.stored(*place, leaf) for place in places)
        return _lay(model, leaf.path, part, dtype, mesh)

      is_table = leaf.path == huggingface.TABLE
      owner = self.table_of or self.what
      key = owner, _written(owner), dtype, mesh, packed
      _set(params, leaf.path, _held(key, read) if is_table else read())
    if self.said is not None:
      found = reduced.checksum(model, params)
      if found != self.checksum:
        raise ValueError(
          f'model: {self.what} was trained with another embedding table'
          f' ({self.checksum}, and this is {found}); give the model that it was'
          ' trained for, in its place.'
        )
      params = model.speaking(params, self.said)
    return Checkpoint(model, params, self.tokenizer)


def _open(path: pathlib.Path, architecture: str | None = None) -> Stored:
  """A folder in Hugging Face layout, or a GGUF file.

  Args:
    path: To either, or to a folder that holds the file.
    architecture: What a name says that it is; there must be nothing.

  Raises:
    ValueError: It is damaged, or of another family.
  """
  if architecture:
    raise ValueError(
      f'model: {path} says itself what it is; give it without'
      f" '{architecture}:'."
    )
  if file := gguf_files.find(path):
    return _opened(file, _written(file))
  config, model = huggingface.read_config(path)
  if shared := reduced.read(path):
    return _open_reduced(path, config, model, shared)
  file = tokenizer_file(path)
  tokenizer = read_tokenizer(file)
  model = _paired(str(file), model, tokenizer)
  stops = huggingface.stop_tokens(path, model.vocab_size)
  return Stored(
    path, config, model, tokenizer.ending_at(*stops), huggingface.places(path)
  )


def _open_reduced(
  path: pathlib.Path,
  config: dict[str, Any],
  model: language.LanguageModel,
  shared: reduced.Said,
) -> Stored:
  """A folder whose table is another model's."""
  folder, architecture = _locate(shared.verifier)
  if folder is None or _orbax_folder(folder):
    raise ValueError(
      f'model: {path} shares the table of {shared.verifier}, which is no folder'
      ' in Hugging Face layout and no GGUF file; give it a name of one in'
      f' {reduced.FILE}.'
    )
  whole = _open(folder, architecture)
  places = reduced.places(path)
  size = whole.model.vocab_size
  # llama.cpp's converter leaves out what pads a table.
  config = config | {'vocab_size': whole.config['vocab_size']}
  model = language.from_config(config)
  (table,) = (
    leaf.names[0]
    for leaf in huggingface.leaves(config)
    if leaf.path == huggingface.TABLE
  )
  return Stored(
    path,
    config,
    dataclasses.replace(model, vocab_size=size),
    whole.tokenizer,
    {**places, table: whole.places[table]},
    reduced.vocabulary(path, places, size),
    whole.what,
    shared.checksum,
  )


@functools.lru_cache(maxsize=2)
def _opened(file: pathlib.Path, written: Hashable) -> Stored:
  """A GGUF file, as it was written last: Gemma's tokenizer takes seconds."""
  del written
  header = gguf_files.read_header(file)
  config = gguf_files.config_of(header)
  try:
    model = language.from_config(config)
  except ValueError as e:
    said = str(e).removeprefix('config.json: ')
    raise ValueError(f'model: {file}: {said}') from None
  tokenizer = gguf_files.tokenizer_of(header)
  model = _paired(str(file), model, tokenizer)
  places = gguf_files.places(header, config)
  return Stored(file, config, model, tokenizer, places)


# --- Orbax, and gemma's own ---


def _open_orbax(
  folder: pathlib.Path, architecture: str | None
) -> tuple[language.LanguageModel, tokenizers.Tokenizer, PyTree]:
  """The model, the tokenizer and the stored shapes of a checkpoint.

  Args:
    folder: What Orbax has written.
    architecture: The checkpoint of gemma's that it is like, where a name says
      so; else a config.json beside it says it, or its shapes do.
  """
  try:
    shapes = language.orbax_shapes(folder)
  # Whatever Orbax may raise, the user's way out is the same.
  except Exception as e:
    raise ValueError(
      f'model: {folder} is no checkpoint that Orbax can read ({_said(e)});'
      ' fetch it again.'
    ) from e
  # Downloads have the tokenizer beside the checkpoint, not in it.
  places = folder, folder.parent
  beside = [p for p in places if (p / 'config.json').is_file()]
  name = None
  if beside and not architecture:
    _, model = huggingface.read_config(beside[0])
  else:
    name = _full_name(architecture) if architecture else _named(folder, shapes)
    model, fetched = language.from_gemma(name)
  _check_shapes(folder, shapes, model)
  beside = [p for p in places if (p / 'tokenizer.model').is_file()]
  if beside or name is None:
    tokenizer = read_tokenizer((beside or places)[0] / 'tokenizer.model')
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
    tokenizer = _of_turns(tokenizer)
  return _paired('tokenizer.model', model, tokenizer), tokenizer, shapes


def _full_name(architecture: str) -> str:
  """One of gemma's checkpoints that has this architecture."""
  known = language.gemma_checkpoints()
  either = architecture, f'{architecture}-it'
  name = next((name for name in either if name in known), architecture)
  _check_known(name)
  return name


def _named(folder: pathlib.Path, shapes: PyTree) -> str:
  """One of gemma's checkpoints that has parameters of these shapes."""
  layers = sum(name.startswith('layer_') for name in shapes)
  width = shapes['embedder']['input_embedding'].shape[1]
  name = language.find_gemma(layers, width)
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
      float16 (see `huggingface.choose_dtype`).
    mesh: Devices that they are divided among; None for the first device.
  """
  ckpts = language.import_gemma().ckpts
  dtype = dtype or huggingface.choose_dtype(_dtypes(shapes), folder)
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


def _fetch(
  name: str, dtype: str | None, mesh: jax.sharding.Mesh | None
) -> tuple[language.LanguageModel, tokenizers.Tokenizer, language.Params]:
  """One of gemma's own checkpoints, which gemma fetches.

  Args:
    name: Its name in gemma.
    dtype: What its parameters become; None leaves them as they are stored.
    mesh: Devices that they are divided among; None for the first device.

  Raises:
    ValueError: There is no such checkpoint, or it cannot be fetched.
  """
  path = _check_known(name)[name].value
  model, file = language.from_gemma(name)
  try:
    tokenizer = tokenizers.Tokenizer(epath.Path(file).read_bytes())
    shapes = language.orbax_shapes(path)
    params = _restore(path, model, shapes, dtype, mesh)
  # Whatever a cloud client may raise, the user's way out is the same.
  except Exception as e:
    raise ValueError(
      f'model: {name} could not be fetched from {path} ({_said(e)}); check the'
      ' connection, or give a folder that holds the model.'
    ) from e
  if name.endswith('-it'):
    tokenizer = _of_turns(tokenizer)
  return _paired(file, model, tokenizer), tokenizer, params


def _said(error: Exception) -> str:
  """The first line of what a library said."""
  return (str(error).splitlines() or [type(error).__name__])[0]


def _check_known(name: str) -> dict[str, Any]:
  """gemma's own checkpoints, which must have this name."""
  known = language.gemma_checkpoints()
  if name not in known:
    names = [*BUNDLED, *packaged.MODELS, *REDUCED, *known]
    near = difflib.get_close_matches(name, names, 1, 0.0)
    raise ValueError(
      f'model: {arguments.shown(name)} is no folder and no known name; did you'
      f' mean {near[0]!r}? There are {", ".join(names)}.'
    )
  return known
