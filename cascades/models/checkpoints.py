"""Loading and saving checkpoints: `load_model(name or folder)`.

Seven kinds of names are understood:

- the bundled models, those of `BUNDLED` and `REDUCED`;
- real models that come as Python packages, those of `package_index.MODELS`;
- a folder in Hugging Face layout of Gemma 2, 3, 3n or 4; see `huggingface`;
- a GGUF file of Gemma 2 or Gemma 3, or a folder with one; see `gguf_files`;
- a folder with a few layers that share another model's embedding table; see
  `shared_table`;
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
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from cascades import arguments, atomic, compilation
from cascades.models import (
  gemma_library,
  gguf_export,
  gguf_files,
  gguf_header,
  huggingface,
  language,
  loading,
  orbax_files,
  package_index,
  param_mapping,
  shared_table,
  tensor_files,
  tokenizers,
)

ASSETS = pathlib.Path(__file__).parents[1] / 'assets'
BUNDLED = (
  'tiny-drafter',
  'tiny-specialist',
  'tiny-verifier',
)
# Bundled without an embedding table, which is that of a packaged model.
REDUCED = ('gemma3-270m-multi30k-de-en',)


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

  def pack(self) -> 'Checkpoint':
    """The same model as a CPU reads it best; see `LanguageModel.pack`."""
    if self.model.packed:
      return self
    return self._replace(
      model=dataclasses.replace(self.model, packed=True),
      params=self.model.pack(self.params),
    )

  def unpack(self) -> 'Checkpoint':
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
    name: One of `BUNDLED` or `package_index.MODELS`; a GGUF file; a folder in
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
    `Checkpoint.unpack` brings into gemma's order.

  Raises:
    ValueError: There is no such model, or its folder is damaged; one sentence
      says what to do.
  """
  compilation.enable_cache()
  check_dtype(dtype)
  packed = jax.default_backend() == 'cpu'
  return Checkpoint(*_source(name).load(dtype, mesh, packed))


def load_folder(folder: str | pathlib.Path) -> Checkpoint:
  """Loads a folder, with parameters in gemma's order on any device.

  Args:
    folder: In Hugging Face layout, or of Orbax's.

  Raises:
    ValueError: It is no such folder, or it is damaged.
  """
  return Checkpoint(*_source(pathlib.Path(folder)).load(None, None, False))


def describe(
  name: str | pathlib.Path, dtype: str | None = None
) -> tuple[language.LanguageModel, PyTree]:
  """The model that `load_model` gives, and the shapes of its parameters.

  Of a folder, everything but the parameters is read. Of gemma's own
  checkpoints nothing is fetched, so that the model still has the logits of
  rows that pad its table.

  Args:
    name: One of `BUNDLED` or `package_index.MODELS`; a GGUF file; a folder in
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
  model, shapes, dtype = _source(name).describe(dtype)
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
  config = huggingface.make_config(model, params, tokenizer.stops)
  params = _to_write(model, params)
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
  if stored not in (None, *gguf_export.STORED):
    raise ValueError(
      f'stored: {arguments.quote(stored)} will not do; give'
      f' {", ".join(gguf_export.STORED)}.'
    )
  model, params, tokenizer = checkpoint
  params = _to_write(model, params)
  with atomic.replace_file(pathlib.Path(file)) as part:
    gguf_export.save(part, model, params, tokenizer, stored=stored)


def _to_write(
  model: language.LanguageModel, params: language.Params
) -> language.Params:
  """Parameters in gemma's order, of a model that other formats can hold.

  Raises:
    ValueError: It says only some tokens, and would be another model there.
  """
  if language.VOCAB_IDS in params['embedder']:
    raise ValueError(
      'model: it says only some tokens, which other formats have no word for;'
      ' copy its folder instead.'
    )
  if model.packed:
    # On a CPU, and so views of the arrays and no copies.
    params = jax.tree.map(np.asarray, params)
  return model.unpack(params)


def check_dtype(dtype: str | None) -> None:
  """Refuses what parameters cannot become.

  Raises:
    ValueError: It is neither None nor one of `tensor_files.DTYPES`.
  """
  if dtype not in (None, *tensor_files.DTYPES):
    raise ValueError(
      f'dtype: {arguments.quote(dtype)} will not do; give'
      f' {" or ".join(tensor_files.DTYPES)}, or leave it'
      ' out to take what its folder says (float32 for float16).'
    )


def _locate(
  name: str | pathlib.Path,
) -> tuple[pathlib.Path | None, str | None]:
  """Returns the path of a model, None if gemma fetches it, and a notice."""
  if name in (*BUNDLED, *REDUCED):
    folder = ASSETS / name
    if not folder.is_dir():
      raise ValueError(
        f'model: {name} is not part of the installed package; clone the'
        f' repository and give its folder, cascades/assets/{name}.'
      )
    return folder, None
  arguments.file_name('model', str(name))
  if name in package_index.MODELS:
    return package_index.fetch(name), None
  if pathlib.Path(name).exists():
    return pathlib.Path(name), None
  architecture, _, folder = str(name).partition(':')
  if folder and pathlib.Path(folder).exists():
    return pathlib.Path(folder), architecture
  return None, None


def _source(
  name: str | pathlib.Path,
) -> loading.Stored | orbax_files.Folder | orbax_files.Fetched:
  """What reads the model of a name.

  Raises:
    ValueError: There is no such model, or its folder is damaged.
  """
  folder, architecture = _locate(name)
  if folder is None:
    _check_known(str(name))
    return orbax_files.Fetched(str(name))
  if orbax := orbax_files.find(folder):
    full = _full_name(architecture) if architecture else None
    return orbax_files.open_folder(orbax, architecture, full)
  return _open(folder, architecture)


def _open(path: pathlib.Path, architecture: str | None) -> loading.Stored:
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
  if file := gguf_files.find_file(path):
    return _opened(file, loading.written(file))
  config, model = huggingface.read_config(path)
  if shared := shared_table.read(path):
    return _open_reduced(path, config, model, shared)
  file = tokenizers.find_file(path)
  tokenizer = tokenizers.read(file)
  model = loading.paired(str(file), model, tokenizer)
  stops = huggingface.stop_tokens(path, model.vocab_size)
  return loading.Stored(
    path,
    config,
    model,
    tokenizer.with_stops(*stops),
    tensor_files.open_folder(path),
  )


def _open_reduced(
  path: pathlib.Path,
  config: dict[str, Any],
  model: language.LanguageModel,
  shared: shared_table.TableOwner,
) -> loading.Stored:
  """A folder whose table is another model's."""
  folder, architecture = _locate(shared.verifier)
  if folder is None or orbax_files.find(folder):
    raise ValueError(
      f'model: {path} shares the table of {shared.verifier}, which is no folder'
      ' in Hugging Face layout and no GGUF file; give it a name of one in'
      f' {shared_table.FILE}.'
    )
  if shared_table.read(folder):
    # It may be this one.
    raise ValueError(
      f'model: {path} shares the table of {folder}, which has none of its own;'
      f' name one that has in {shared_table.FILE}.'
    )
  whole = _open(folder, architecture)
  places = shared_table.places(path)
  size = whole.model.vocab_size
  # llama.cpp's converter leaves out what pads a table.
  config = config | {'vocab_size': whole.config['vocab_size']}
  model = language.from_config(config)
  table = param_mapping.TABLE_TENSOR
  return loading.Stored(
    path,
    config,
    dataclasses.replace(model, vocab_size=size),
    whole.tokenizer,
    {**places, table: whole.places[table]},
    shared_table.vocabulary(path, places, size),
    whole.what,
    shared.checksum,
  )


@functools.lru_cache(maxsize=2)
def _opened(file: pathlib.Path, written: Hashable) -> loading.Stored:
  """A GGUF file, as it was written last: Gemma's tokenizer takes seconds."""
  del written
  header = gguf_header.read_header(file)
  config = gguf_files.read_config(header)
  try:
    model = language.from_config(config)
  except ValueError as e:
    said = str(e).removeprefix('config.json: ')
    raise ValueError(f'model: {file}: {said}') from None
  tokenizer = gguf_files.read_tokenizer(header)
  model = loading.paired(str(file), model, tokenizer)
  places = gguf_files.open_tensors(header, config)
  return loading.Stored(file, config, model, tokenizer, places)


def _full_name(architecture: str) -> str:
  """One of gemma's checkpoints that has this architecture."""
  known = gemma_library.gemma_checkpoints()
  either = architecture, f'{architecture}-it'
  name = next((name for name in either if name in known), architecture)
  _check_known(name)
  return name


def _check_known(name: str) -> dict[str, Any]:
  """Returns the checkpoints of gemma, which must include this name."""
  known = gemma_library.gemma_checkpoints()
  if name not in known:
    names = [*BUNDLED, *package_index.MODELS, *REDUCED, *known]
    near = difflib.get_close_matches(name, names, 1, 0.0)
    raise ValueError(
      f'model: {arguments.quote(name)} is no folder and no known name; did you'
      f' mean {near[0]!r}? There are {", ".join(names)}.'
    )
  return known
