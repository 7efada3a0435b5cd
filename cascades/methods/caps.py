"""Caps by name: which tokens a method may make likelier than the verifier does.

The core has none. A plug-in, such as `cascades.contrib.capping`, says which
tokens are inside of its cap, and what a method's law becomes with it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from cascades import arguments
from cascades.methods.method import Method
from cascades.registries import Registry
from cascades.verification_config import NO_CAP


class Kind(NamedTuple):
  """A kind of cap: the entry of a name.

  Attributes:
    patterns: How it may be written.
    says: What its numbers must be, in a few words.
    parse: Makes the cap of its text: a pytree of traced numbers with a function
      `inside(p)`, [V] -> bool [V]. None: there is no cap. Raises ValueError if
      the text is written in another way.
    wrap: The method whose law keeps to `Distributions.cap`.
  """

  patterns: tuple[str, ...]
  says: str
  parse: Callable[[str], Any]
  wrap: Callable[[Method], Method]


CAPS: Registry[Kind] = Registry('cap', Kind)
CAPS.register(
  NO_CAP,
  Kind((NO_CAP,), 'any token', lambda spec: None, lambda method: method),
  builtin=True,
)


def parse(spec: str) -> Any:
  """Makes a cap by name.

  Args:
    spec: 'none', or a pattern of a kind with other numbers.

  Returns:
    The cap; None for none.

  Raises:
    ValueError: It is not known, or is written in another way.
  """
  # Of several that go together, each a word, the first names the kind.
  kind, _ = CAPS.find(spec)
  try:
    if kind is CAPS[NO_CAP] and spec != NO_CAP:
      raise ValueError
    return kind.parse(spec)
  except ValueError:
    patterns = ', '.join(map(repr, kind.patterns))
    raise ValueError(
      f'cap: {arguments.quote(spec)} is not known; write {patterns}, with'
      f' {kind.says}.'
    ) from None


def capped(method: Method, spec: str) -> Method:
  """Returns the method with a cap, by the cap's name."""
  return CAPS.find(spec)[0].wrap(method)
