"""Every checkpoint format: what was written is the model that is read."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from cascades.models import checkpoints


@functools.cache
def logits(name, dtype):
  return _logits(checkpoints.load_model(cases.named(name), dtype))


def _logits(checkpoint):
  model, params, _ = checkpoint
  tokens = jnp.arange(3, 3 + 16)
  return jax.jit(model.with_hidden)(params, tokens, *small.causal(16))[0]


@pytest.mark.parametrize(
  ('kind', 'name'),
  [(kind, name) for kind, x in cases.FORMATS.items() for name in x.models],
)
def test_what_was_written_is_the_model_that_is_read(kind, name, tmp_path):
  entry = cases.FORMATS[kind]
  entry.write(tmp_path, small.load(name), small.FIXTURES / name)
  read = checkpoints.load_model(tmp_path / entry.name)
  want = checkpoints.load_model(cases.named(name), entry.dtype)
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
