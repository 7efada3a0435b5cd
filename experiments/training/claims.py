"""What lies in a training's folder, so that nothing goes on as another's."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from experiments import records


def claim(file: pathlib.Path, fields: Mapping[str, Any]) -> None:
  """Says what a folder's files were made with, or goes on with the same.

  Args:
    file: Where that is said, in the folder.
    fields: Numbers, texts, and lists of them, by name.

  Raises:
    ValueError: Something else is said there.
  """
  # Lists and tuples are the same to JSON.
  text = json.dumps(dict(fields), indent=2) + '\n'
  if not file.exists():
    records.write_text(file, text)
    return
  found, fields = json.loads(file.read_text(encoding='utf-8')), json.loads(text)
  names = sorted(
    name
    for name in set(found) | set(fields)
    if found.get(name) != fields.get(name)
  )
  if names:
    raise ValueError(
      f'workdir: {file.parent} holds a training with another'
      f' {", ".join(names)}; choose another --workdir, or delete it.'
    )
