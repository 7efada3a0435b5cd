"""Values that JSON can hold, and their hashes."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
  """Returns a value for JSON, with numbers that are not finite as text."""
  if isinstance(value, Mapping):
    return {name: plain(v) for name, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [plain(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return value


def digest(value: Any) -> str:
  """Returns the SHA-256 of a JSON value; the order of fields is ignored."""
  text = json.dumps(value, sort_keys=True, allow_nan=False)
  return hashlib.sha256(text.encode()).hexdigest()
