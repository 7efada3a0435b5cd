"""Imports gemma without TensorFlow and without kauldron's training loop.

gemma 4.0.1 imports both for annotations only. They take three quarters of the
import's time and memory, and no model uses them.

Unnecessary from the first release of gemma whose `gm.ckpts` imports neither
`kauldron.kd` nor TensorFlow; 4.0.1, the latest, imports both.
"""

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any


def import_checkpoints() -> None:
  """Imports `gemma.gm.ckpts` with placeholders for two of its dependencies.

  Modules that import TensorFlow or kauldron before or afterwards get the real
  ones; only kauldron's type checks do not know TensorFlow's tensors then. A
  version of gemma that needs more of the two than the placeholders have is left
  to import them itself.
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
  """Provides a module of a few attributes while other modules are imported.

  A module that keeps a reference to it finds the attributes of the real module
  in it afterwards.
  """
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

    def forward(attribute: str) -> Any:
      return getattr(importlib.import_module(name), attribute)

    # Python calls it for attributes that a module lacks (PEP 562).
    module.__dict__['__getattr__'] = forward
