"""What the device and the compiler take, whichever pair decodes."""

import dataclasses
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from ml_collections import ConfigDict

from cascades import decoding, drafters, methods
from cascades.methods import processing
from cascades.models import language
from experiments.benchmarks import digits, stopwatch


def singles(config: ConfigDict) -> dict[str, Callable[[], dict[str, Any]]]:
  """What makes each figure, by its name.

  Args:
    config: Has the models' shapes; says whether anything is compiled.
  """
  made = {'copy': _copy_bandwidth}
  if config.compiles:
    made |= {
      'compile': functools.partial(_compile, config),
      'memory': functools.partial(_memory, config),
      'compilation cache': _cache,
    }
  return made


def _copy_bandwidth() -> dict[str, Any]:
  """Bytes that the device reads and writes in a second, copying."""
  x = jnp.ones(2**26, jnp.float32)
  # In place: new memory would be paid for besides.
  copy = jax.jit(lambda x: x + 1, donate_argnums=0)
  x, seconds = jax.block_until_ready(copy(x)), []
  for _ in range(7):
    taken, x = stopwatch.timed(copy, x)
    seconds.append(taken)
  return {'arm': 'copy', 'bytes_per_s': 2 * x.nbytes / digits.median(seconds)}


def _abstract(
  shape: ConfigDict, dtype: jnp.dtype
) -> tuple[language.LanguageModel, PyTree]:
  """A model and its parameters without their numbers."""
  model = language.from_config(dict(shape), dtype)
  params = model.param_shapes()
  if jax.default_backend() == 'cpu':
    params = jax.eval_shape(model.pack, params)
    model = dataclasses.replace(model, packed=True)
  return model, params


def _lowered(
  config: ConfigDict, spec: ConfigDict, batch: int, gamma: int, room: int
) -> jax.stages.Lowered:
  """The loop of two models without numbers, traced but not compiled.

  Args:
    config: Has the type of their numbers.
    spec: The shapes of `verifier` and `drafter`.
    batch: How many rows there are.
    gamma: How many tokens are drafted per block.
    room: Slots of the caches.
  """
  dtype = jnp.dtype(config.dtype)
  (verifier, of_verifier), (drafter, of_drafter) = (
    _abstract(spec[name], dtype) for name in ('verifier', 'drafter')
  )
  models = decoding.Models(verifier, drafters.ModelDrafter(drafter))
  params = decoding.Params(of_verifier, of_drafter)
  whole = jax.ShapeDtypeStruct((batch,), jnp.int32)
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch))
  rows = jax.eval_shape(
    functools.partial(decoding.prefill, cache_length=room, models=models),
    params,
    jax.ShapeDtypeStruct((batch, 64), jnp.int32),
    whole,
    keys,
    whole,
  )
  return decoding.decode.lower(
    rows,
    params,
    processing.Processing(temperature=np.float32(1)),
    np.array([1] * 8, np.int32),
    np.int32(0),
    np.int32(1),
    decoder=decoding.Decoder(models, methods.METHODS['token_v3'], gamma),
  )


def _compile(config: ConfigDict) -> dict[str, Any]:
  """Seconds to compile the loop of a large pair, with abstract weights."""
  trace_s, lowered = stopwatch.timed(
    _lowered, config, config.large, 1, config.gamma, 512
  )
  compile_s, _ = stopwatch.timed(lowered.compile)
  return {'arm': 'compile', 'trace_s': trace_s, 'compile_s': compile_s}


def _memory(config: ConfigDict) -> dict[str, Any]:
  """Temporaries of the loop at Gemma's vocabulary, and what a draft adds."""
  spec = config.memory

  def temporaries(gamma: int) -> int:
    loop = _lowered(config, spec, spec.batch, gamma, 128).compile()
    return loop.memory_analysis().temp_size_in_bytes

  dtype = jnp.dtype(config.dtype)
  size = spec.batch * spec.verifier['vocab_size']
  some, more = (temporaries(n * spec.gamma) for n in (1, 2))
  return {
    'arm': 'memory',
    'batch': spec.batch,
    'gamma': spec.gamma,
    'vocab_size': spec.verifier['vocab_size'],
    'temporary_bytes': some,
    'twice_gamma_bytes': more,
    'logits_bytes': 2 * (spec.gamma + 1) * size * dtype.itemsize,
    'row_bytes': size * dtype.itemsize,
  }


def _cache() -> dict[str, Any]:
  """Seconds of one command, twice, with an empty compilation cache."""
  command = [sys.executable, '-m', 'experiments.sample']
  with tempfile.TemporaryDirectory() as folder:
    environment = os.environ | {
      'JAX_COMPILATION_CACHE_DIR': folder,
      'JAX_PLATFORMS': jax.default_backend(),
    }
    sample = functools.partial(
      subprocess.run,
      [*command, '--prompt=12 in words:'],
      env=environment,
      check=True,
      capture_output=True,
    )
    first, second = (stopwatch.timed(sample)[0] for _ in range(2))
    files = sum(path.is_file() for path in pathlib.Path(folder).rglob('*'))
  return {
    'arm': 'compilation cache',
    'first_s': first,
    'second_s': second,
    'files': files,
  }
