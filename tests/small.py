"""Pairs with nothing to say that compile and run at once."""

import atexit
import functools
import pathlib
import shutil
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import cascades
from cascades.models import checkpoints, huggingface, language, tokenizers
from cascades.proof import exact


@functools.cache
def tables(
  apart: float = 0.5,
) -> tuple[checkpoints.Checkpoint, checkpoints.Checkpoint]:
  """Two tables that speak the bundled models' tokens.

  About one answer in three ends within 32 tokens.

  Args:
    apart: How much of another table the drafter's has in it.
  """
  tokenizer = cascades.load_model('tiny-drafter').tokenizer
  model = exact.TableModel(tokenizer.vocab_size)
  one, other = (model.init_params(jax.random.key(i)) for i in range(2))
  logits = np.array(one), np.array(one + apart * other)
  for table in logits:
    table[:, [tokenizers.PAD, tokenizers.BOS, tokenizers.UNK]] = -np.inf
    table[:, tokenizers.EOS] += 3
  return tuple(
    checkpoints.Checkpoint(model, jnp.asarray(table), tokenizer)
    for table in logits
  )


@functools.cache
def pair() -> tuple[str, str]:
  """Folders of a verifier of two layers, and of a drafter of one.

  They are Hugging Face's, with the bundled tokenizer; their parameters are
  random. They are gone when the process ends.
  """
  root = pathlib.Path(tempfile.mkdtemp(prefix='cascades-small-'))
  atexit.register(shutil.rmtree, root, ignore_errors=True)
  tokenizer = cascades.load_model('tiny-drafter').tokenizer
  for i, (name, layers) in enumerate((('verifier', 2), ('drafter', 1))):
    config = dict(
      model_type='gemma2',
      vocab_size=tokenizer.vocab_size,
      hidden_size=16,
      intermediate_size=16,
      num_hidden_layers=layers,
      num_attention_heads=1,
      num_key_value_heads=1,
      head_dim=16,
      query_pre_attn_scalar=16,
      sliding_window=512,
    )
    params = language.from_config(config).init_params(jax.random.key(i))
    huggingface.save(root / name, config, params, tokenizer)
  return str(root / 'verifier'), str(root / 'drafter')
