"""Every checkpoint format: what was written is the model that is read."""

import functools
import shutil
from typing import NamedTuple

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from fixtures import gguf_writer

from cascades.models import checkpoints, gemma_library

CLASSIC = 'hf_gemma2', 'hf_gemma3'
FAMILIES = (
  *CLASSIC,
  *('hf_gemma3n', 'hf_gemma4_shared', 'hf_gemma4_dense', 'hf_gemma4_experts'),
)


def write_orbax(folder, checkpoint, source):
  """Writes what gemma's downloads are: files beside the checkpoint."""
  save = gemma_library.import_gemma().ckpts.save_params
  save(checkpoint.params, folder / 'x', wait_until_finished=True)
  (folder / 'tokenizer.model').write_bytes(checkpoint.tokenizer.proto)
  shutil.copy(source / 'config.json', folder)


class Format(NamedTuple):
  """A writer of a folder, its models, and how a parameter may differ."""

  write: object
  models: tuple[str, ...] = CLASSIC
  dtype: str | None = None
  bound: float = 0.0


def saved(**options):
  return lambda folder, x, _: checkpoints.save_model(folder, x, **options)


FORMATS = {
  'safetensors': Format(saved(), FAMILIES),
  'shards': Format(saved(shard_gb=2e-5)),
  'eight bits': Format(saved(stored='int8'), dtype='int8'),
  # Norms are stored plus 1, of which float32 has 24 bits.
  'gguf': Format(
    lambda folder, x, _: gguf_writer.save_gguf(folder / 'x.gguf', x),
    ('hf_gemma2', 'tiny-verifier'),
    bound=2.0**-22,
  ),
  'orbax': Format(write_orbax, FAMILIES),
}


@functools.cache
def logits(name, dtype):
  return _logits(checkpoints.load_model(_source(name), dtype))


def _source(name):
  folder = small.FIXTURES / name
  return folder if folder.exists() else checkpoints.ASSETS / name


def _logits(checkpoint):
  model, params, _ = checkpoint
  tokens = jnp.arange(3, 3 + 16)
  return jax.jit(model)(params, tokens, *small.causal(16))[0]


@pytest.mark.parametrize(
  ('kind', 'name'),
  [(kind, name) for kind, x in FORMATS.items() for name in x.models],
)
def test_what_was_written_is_the_model_that_is_read(kind, name, tmp_path):
  entry, source = FORMATS[kind], _source(name)
  entry.write(tmp_path, small.load(name), source)
  read = checkpoints.load_model(tmp_path)
  want = checkpoints.load_model(source, entry.dtype)
  assert read.model == want.model
  assert read.tokenizer.vocabulary() == want.tokenizer.vocabulary()
  assert read.tokenizer.stops == want.tokenizer.stops
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=entry.bound),
    *(read.params, want.params),
  )
  atol = 1e-4 if entry.bound else 0
  found = _logits(read)
  np.testing.assert_allclose(found, logits(name, entry.dtype), 0, atol)


@pytest.mark.parametrize('stored', ['float16', 'bfloat16'])
def test_matrices_of_a_gguf_may_be_rounded_and_norms_are_not(tmp_path, stored):
  file, whole = tmp_path / 'x.gguf', small.load('tiny-verifier')
  gguf_writer.save_gguf(file, whole, stored)
  kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(file).tensors}
  assert kinds['blk.0.ffn_up.weight'] == {'float16': 'F16'}.get(stored, 'BF16')
  assert kinds['blk.0.ffn_norm.weight'] == 'F32'
  read = checkpoints.load_model(file).unpack()
  want = jnp.bfloat16 if stored == 'bfloat16' else jnp.float32
  assert small.dtypes(read.params) == {jnp.dtype(want).name}
  # Norms of the project's files are bfloat16, so that nothing is lost.
  small.same(read.params, as_stored(whole.params, stored, want))


def as_stored(params, stored, want):
  """Rounds matrices, and gives every leaf its dtype."""
  return jax.tree.map(
    lambda x: (x.astype(stored) if x.ndim > 1 else x).astype(want), params
  )
