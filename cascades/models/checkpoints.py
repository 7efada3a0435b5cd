"""Loads and saves models: `load_model(name or path)`.

`checkpoint_formats` has the formats that a name or path can have, and
`builtin_formats` those of the library.

A checkpoint's model has as many logits as its tokenizer has pieces. Families
pad their embedding tables to different sizes, and rows that pad a table are no
tokens.
"""

import functools
import logging
import pathlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from cascades import arguments, compilation
from cascades.models import (
  builtin_formats,
  hub,
  huggingface_export,
  language,
  param_dtypes,
)
from cascades.models.bundled import ASSETS, BUNDLED, BUNDLED_WITHOUT_TABLE
from cascades.models.checkpoint_formats import matching_formats
from cascades.models.checkpoint_source import Checkpoint, LoadOptions

_LOGGER = logging.getLogger(__name__)

__all__ = [
  'ASSETS',
  'BUNDLED',
  'BUNDLED_WITHOUT_TABLE',
  'Checkpoint',
  'check_dtype',
  'load_folder',
  'load_model',
  'matching_formats',
  'save_model',
]


def load_model(
  name: str | pathlib.Path,
  dtype: str | None = None,
  mesh: jax.sharding.Mesh | None = None,
  *,
  revision: str | None = None,
) -> Checkpoint:
  """Loads a model with its parameters and tokenizer.

  Args:
    name: A name or path of any checkpoint format: a name of `BUNDLED` or
      `package_index.MODELS`, a GGUF file, a folder in Hugging Face layout or
      of Orbax's, one of gemma's own checkpoints, such as `gemma2-2b-it`, or a
      repository of the Hugging Face hub, such as `google/gemma-3-1b-it` or
      `google/gemma-3-1b-it@REVISION` (see `hub`). 'FORMAT:NAME' selects one
      of `checkpoint_formats.CHECKPOINT_FORMATS`.
    dtype: Dtype that parameters are converted to as they are read: 'bfloat16',
      'float32' or 'int8', which rounds matrices to eight bits, with a scale for
      each output channel, and keeps the rest in float32. None takes the dtype
      that a folder's config.json names (`torch_dtype`), else the stored one.
      Stored float16 becomes float32, also if config.json names float16.
    mesh: Devices that the parameters are divided among as they are read, from
      `sharding.make_mesh`; None for the first device.
    revision: Branch, tag or commit of a repository of the hub; None for its
      default branch.

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
  name = hub.at_revision(name, revision)
  source = builtin_formats.open_checkpoint(hub.local_folder(name))
  # After a wrong name was refused.
  _LOGGER.info('loading %s', name)
  return source.load(LoadOptions(dtype, mesh, pack))


def load_folder(folder: str | pathlib.Path) -> Checkpoint:
  """Loads a folder, with parameters in gemma's order on any device."""
  source = builtin_formats.open_checkpoint(pathlib.Path(folder))
  return source.load(LoadOptions()).unpack()


def save_model(
  folder: str | pathlib.Path,
  checkpoint: Checkpoint,
  shard_gb: float = 5.0,
  stored: str | None = None,
) -> None:
  """Writes a checkpoint in Hugging Face layout, whatever its format was."""
  if stored not in (None, *param_dtypes.DTYPES):
    raise ValueError(
      f'stored: must be one of {", ".join(param_dtypes.DTYPES)}, got'
      f" {arguments.quote(stored)}; leave it out to keep the model's."
    )
  model, params, tokenizer = checkpoint
  config = huggingface_export.make_config(model, params, tokenizer.stops)
  keeps_int8 = stored is None and model.layout == 'int8'
  if keeps_int8 or stored == 'int8':
    params = _exportable_params(
      model, params, functools.partial(language.cpu().files.to_rounded, model)
    )
  else:
    params = _exportable_params(model, params, model.unpack)
    if stored:
      rounded = jnp.dtype(stored)
      params = jax.tree.map(lambda x: x.astype(rounded), params)
  huggingface_export.save(
    folder,
    config,
    params,
    tokenizer,
    shard_gb=shard_gb,
    gate_by_rows=model.gate_by_rows,
  )


def _exportable_params(
  model: language.LanguageModel,
  params: language.Params,
  unpack: Callable[[language.Params], language.Params],
) -> language.Params:
  """Returns parameters in gemma's order, of a model with all its tokens."""
  if language.VOCAB_IDS in params['embedder']:
    raise ValueError(
      'model: a restricted vocabulary is not supported by other formats; copy'
      " the model's folder instead."
    )
  if model.layout is not None:
    # Views of the arrays, since packed models are on a CPU.
    params = jax.tree.map(np.asarray, params)
  return unpack(params)


def check_dtype(
  dtype: str | None, dtypes: Sequence[str] = param_dtypes.DTYPES
) -> None:
  """Refuses a dtype that parameters cannot be converted to."""
  if dtype not in (None, *dtypes):
    raise ValueError(
      f'dtype: must be one of {", ".join(dtypes)}, got'
      f' {arguments.quote(dtype)}; leave it out to take the dtype that the'
      ' checkpoint names (float32 for float16).'
    )
