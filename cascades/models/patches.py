"""Corrections of gemma and JAX; each names the version that ends it."""

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def import_checkpoints() -> None:
  """Imports `gemma.gm.ckpts` without TensorFlow and kauldron's training loop.

  gemma 4.0.1 imports both for annotations only. They take three quarters of the
  import's time and memory, and no model uses them. Unnecessary from the first
  release of gemma that imports neither.

  Modules that import one of them before or afterwards get the real one; only
  kauldron's type checks do not know TensorFlow's tensors then. A version of
  gemma that needs more than the placeholders have imports them itself.
  """
  if 'gemma.gm.ckpts' in sys.modules:
    return
  with contextlib.suppress(ImportError, AttributeError):
    with _placeholder('tensorflow', Tensor=type('Tensor', (), {})):
      import kauldron.typing  # noqa: F401
    with _placeholder('kauldron.train', TrainState=object):
      importlib.import_module('gemma.gm.ckpts')


@contextlib.contextmanager
def _placeholder(name: str, **attributes: Any) -> Iterator[None]:
  """Provides a module of a few attributes while others are imported."""
  if name in sys.modules:
    yield
    return
  module = types.ModuleType(name)
  module.__dict__.update(attributes)
  package, _, child = name.rpartition('.')
  sys.modules[name] = module
  if package:
    setattr(importlib.import_module(package), child, module)
  try:
    yield
  finally:
    del sys.modules[name]
    if package:
      delattr(sys.modules[package], child)
    for attribute in attributes:
      delattr(module, attribute)
    # Modules that keep it find the real attributes in it (PEP 562).
    module.__dict__['__getattr__'] = lambda attribute: getattr(
      importlib.import_module(name), attribute
    )


def vmap_as_batch(batched: Callable[..., PyTree]) -> Callable[..., PyTree]:
  """Returns a function whose `vmap` is one call with a larger batch.

  JAX 0.12.0.1 has no `vmap` of `ragged_dot`, by which gemma sends each token to
  its experts; unnecessary from the first release in which it accepts batched
  rows and batched group sizes. A token's experts do not depend on other tokens,
  so that rows of several batches can be read together, as long as each row
  keeps its `end_index`. There is one set of parameters for all.
  """

  @jax.custom_batching.custom_vmap
  def run(params, *rows):
    return batched(params, *rows)

  @run.def_vmap
  def rule(size, is_batched, params, *rows):
    def merge(x, has_axis):
      if not has_axis:
        x = jnp.broadcast_to(x, (size, *x.shape))
      return x.reshape(-1, *x.shape[2:])

    out = run(params, *jax.tree.map(merge, rows, tuple(is_batched[1:])))
    out = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), out)
    return out, jax.tree.map(lambda x: True, out)

  return run
