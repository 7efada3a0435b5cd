"""Writes models that share the table of another; see `cpu.stored`."""

import pathlib

import jax.numpy as jnp
import numpy as np

from cascades import arguments, files
from cascades.contrib import cpu
from cascades.models import (
  checkpoints,
  config_json,
  language,
  param_mapping,
  tensor_files,
)

STORED = 'bfloat16', 'float32', 'int8'


def check_stored(stored: str | None) -> None:
  """Checks a format of stored layers."""
  if stored not in (None, *STORED):
    raise ValueError(
      f'stored: must be one of {", ".join(STORED)} or None (unchanged), got'
      f' {arguments.quote(stored)}.'
    )


def save(
  folder: str | pathlib.Path,
  checkpoint: checkpoints.Checkpoint,
  draft_vocab_ids: np.ndarray,
  *,
  verifier: str,
  stored: str | None = None,
) -> None:
  """Writes a model without its embedding table."""
  check_stored(stored)
  model, params, _ = checkpoint
  folder = pathlib.Path(folder)
  config = checkpoints.make_config(model, params, (1,))
  tensors = {cpu.stored.VOCABULARY: np.asarray(draft_vocab_ids, np.int32)}
  resolved = config_json.read(config)
  for tensor in param_mapping.tensors(params, resolved, model.gate_by_rows):
    if tensor.name == param_mapping.TABLE_TENSOR:
      continue
    name, x = tensor.name, tensor.make()
    if stored == 'int8' and x.ndim == 2:
      x, scales = cpu.int8.round_rows(x.astype(np.float32))
      tensors[name + cpu.stored.SCALE] = scales[:, None]
    elif stored and stored != 'int8':
      x = x.astype(jnp.dtype(stored))
    tensors[name] = x
  table = params['embedder']['input_embedding']
  owner = dict(
    verifier=verifier, checksum=cpu.stored.checksum(model.vocab_size, table)
  )
  with files.replace_files(folder) as part:
    tensor_files.save_tensors(part / 'model.safetensors', tensors)
    tensor_files.write_json(part / 'config.json', config)
    tensor_files.write_json(part / language.OWNER_FILE, owner)
