"""Prompts of a user's file that are too long for the cache."""

import bisect
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cascades.models.chat import Prompt
from experiments.tasks import Example


class Fitted(NamedTuple):
  """Examples that the cache holds."""

  examples: dict[str, list[Example]]
  messages: list[str]


def fit(
  examples: Mapping[str, Sequence[Example]],
  limits: Mapping[str, int],
  encode: Callable[[Prompt], list[int]],
  too_long: str,
) -> Fitted:
  """Drops or truncates examples that the cache cannot hold."""
  fitted, messages = {}, []
  for name, rows in examples.items():
    limit = limits[name]
    lengths = {row.id: len(encode(row.prompt)) for row in rows}
    longer = [row for row in rows if lengths[row.id] > limit]
    fitted[name] = list(rows)
    if not longer:
      continue
    longest = max(lengths.values())
    fault = (
      f'{len(longer)} of {len(rows)} prompts have more than the {limit} tokens'
      f' that cache_length allows (the longest has {longest})'
    )
    if too_long == 'refuse':
      raise ValueError(
        f'file.too_long: {fault}, such as {longer[0].id!r}; drop or truncate'
        ' them with --config.file.too_long, or raise --config.cache_length.'
      )
    if too_long == 'drop':
      fitted[name] = [row for row in rows if lengths[row.id] <= limit]
      if not fitted[name]:
        raise ValueError(
          f'file.too_long: {fault}, and no prompt is left; raise'
          ' --config.cache_length.'
        )
      messages.append(f'data: {fault}; these prompts are left out.')
      continue
    cut = {row.id: _truncate(row, limit, encode) for row in longer}
    fitted[name] = [cut.get(row.id, row) for row in rows]
    messages.append(f'data: {fault}; their beginnings are cut off.')
  return Fitted(fitted, messages)


def _truncate(
  example: Example, limit: int, encode: Callable[[Prompt], list[int]]
) -> Example:
  """Returns an example with the end of its prompt that fits."""
  prompt = example.prompt
  if not isinstance(prompt, str):
    raise ValueError(
      'file.too_long: truncate is not supported for messages, such as those of'
      f' {example.id!r}; set it to drop, or raise --config.cache_length.'
    )
  # A shorter end has hardly ever more tokens; the result was tried in any case.
  start = bisect.bisect_left(
    range(len(prompt)), True, key=lambda i: len(encode(prompt[i:])) <= limit
  )
  if start == len(prompt):
    raise ValueError(
      f'file.too_long: {limit} tokens have no room for a prompt; raise'
      ' --config.cache_length.'
    )
  return dataclasses.replace(example, prompt=prompt[start:])
