"""Names that fields of a workdir's files had in older versions.

The readers of a workdir replace them, so that everything else knows the new
names alone, and old workdirs still open.
"""

from typing import Any

# Old name to new name, by what has the fields: a class of `record_schema`, or
# the settings that `files.claim` writes.
OLD_NAMES = {
  'Trace': {'pieces': 'token_strings'},
  'View': {'drafter': 'drafter_argmax', 'verifier': 'verifier_argmax'},
  'settings': {'others_say': 'fill_unselected_logits'},
}


def replace(kind: str, fields: Any) -> Any:
  """Replaces old names of fields, in their order."""
  if not isinstance(fields, dict):
    return fields
  names = {
    old: new
    for old, new in OLD_NAMES.get(kind, {}).items()
    if new not in fields
  }
  return {names.get(name, name): value for name, value in fields.items()}
