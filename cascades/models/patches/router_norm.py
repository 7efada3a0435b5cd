"""Normalizes the input of a mixture of experts' router once.

gemma 4.0.1 gives the router of a Gemma 4 the input that `pre_ffw_norm` has
normalized already, and so sends tokens to other experts than the model was
trained with. transformers normalizes once, as gemma does since.

Unnecessary from the first release of gemma after 4.0.1.
"""

from typing import Any


class RouterNorm:
  """Replaces the input of `router_norm` by that of `pre_ffw_norm`."""

  def __init__(self):
    self._args: tuple[Any, ...] = ()

  def replace_args(
    self, module_name: str | None, args: tuple[Any, ...]
  ) -> tuple[Any, ...]:
    """Returns the arguments that a module is to be called with."""
    if module_name == 'pre_ffw_norm':
      self._args = args
    return self._args if module_name == 'router_norm' else args
