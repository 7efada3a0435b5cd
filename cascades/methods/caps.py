"""Caps by name: tokens that a method may make likelier than the verifier does.

The core has no cap. A plug-in, such as `cascades.contrib.capping`, defines the
tokens in its cap, and the law of a method with the cap.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from cascades import arguments
from cascades.methods.method import Method
from cascades.registries import Registry
from cascades.verification_config import NO_CAP


class Kind(NamedTuple):
  """A kind of cap, the registry's entry of a name.

  Attributes:
    patterns: Examples of its notation.
    values: Valid values of its numbers, in a few words.
    parse: Parses the notation; returns a pytree of traced numbers with a method
      `inside(p)`, [V] -> bool [V], or None for no cap. Raises ValueError for
      another notation.
    wrap: Returns the method whose law respects `Distributions.cap`.
  """

  patterns: tuple[str, ...]
  values: str
  parse: Callable[[str], Any]
  wrap: Callable[[Method], Method]


CAPS: Registry[Kind] = Registry('cap', Kind)
CAPS.register(
  NO_CAP,
  Kind((NO_CAP,), 'no numbers', lambda spec: None, lambda method: method),
  builtin=True,
)


def parse(spec: str) -> Any:
  """Parses a cap.

  Args:
    spec: 'none', or the notation of a kind with other numbers.

  Returns:
    The cap; None for 'none'.

  Raises:
    ValueError: The cap is unknown, or has another notation.
  """
  # Of several parts, as in 'top:3 delta:0.1', the first names the kind.
  kind, _ = CAPS.find(spec)
  try:
    if kind is CAPS[NO_CAP] and spec != NO_CAP:
      raise ValueError
    return kind.parse(spec)
  except ValueError:
    patterns = ', '.join(map(repr, kind.patterns))
    raise ValueError(
      f'cap: {arguments.quote(spec)} is not known; write {patterns}, with'
      f' {kind.values}.'
    ) from None


def capped(method: Method, spec: str) -> Method:
  """Returns a method with a cap, given as for `parse`."""
  return CAPS.find(spec)[0].wrap(method)
