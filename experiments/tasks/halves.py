"""Halves of a user's data: one to choose a setting on, one to report it on.

A guarantee for a setting holds only on examples that had no part in choosing
the setting. The id of an example alone decides its half, so that the half is
the same in every process and does not change when rows are added, removed or
reordered.
"""

import hashlib
from typing import Literal

Half = Literal['choose', 'report']


def half_of(example_id: str) -> Half:
  """Returns the half of an example, by the parity of a hash of its id."""
  # A half of a surrogate pair has no encoding of its own.
  digest = hashlib.sha256(example_id.encode(errors='surrogatepass')).digest()
  return 'report' if digest[0] % 2 else 'choose'
