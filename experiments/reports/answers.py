"""Some answers, token by token."""

import itertools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from experiments import escapes, records
from experiments.records import Record, Trace
from experiments.reports import tables
from experiments.tasks.answer_metrics import accepted_answers

# Label and meaning of the tokens of each source.
SOURCES = {
  'draft': ('accepted draft', 'drafted, and accepted by the method'),
  'residual': ('residual', 'sampled after a draft was rejected'),
  'bonus': ('bonus', 'sampled after all drafts of a block were accepted'),
}
# Symbols of invisible characters.
_VISIBLE = {'\n': '↵\n', '\t': '⇥\t', '\r': '␍'}


def select(
  points: Mapping[str, Sequence[Record]], count: int = 5
) -> list[tuple[str, int]]:
  """Selects answers at a middle lenience, in turn from each task.

  They are of TokenV3 if the sweep has it, else of the first curve that drafts.
  Of each task the first examples are chosen, whatever their quality. Returns
  the point and the line of each.
  """
  drafted = [
    (r, (name, line))
    for name, part in points.items()
    for line, r in enumerate(part)
    if r.gamma and r.failure is None
  ]
  variants = dict.fromkeys(r.variant for r, _ in drafted)
  variant = next(iter(variants), None)
  variant = 'token_v3' if 'token_v3' in variants else variant
  by_task: dict[str, dict[tuple, list[tuple[str, int]]]] = {}
  for r, place in drafted:
    if r.variant == variant:
      of_task = by_task.setdefault(r.task, {})
      of_task.setdefault(r.point, []).append(place)
  middles = []
  for of_task in by_task.values():
    ordered = sorted(of_task, key=lambda p: -math.inf if p[2] is None else p[2])
    middles.append(of_task[ordered[len(ordered) // 2]])
  in_turn = itertools.chain.from_iterable(itertools.zip_longest(*middles))
  return list(filter(None, in_turn))[:count]


def read(
  workdir: pathlib.Path,
  points: Mapping[str, Sequence[Record]],
  make: Callable[..., Any],
) -> list[dict[str, Any]]:
  """Reads the answers that the page shows, with their prompts.

  `make` is called with a name, a function and its arguments; it returns None
  where the function fails.
  """
  examples = records.read_examples(workdir)

  def answer(name: str, line: int) -> dict[str, Any]:
    r = points[name][line]
    # Both files have the same order, and an id occurs at each lenience.
    trace = next(iter(records.read_traces(workdir, name, line)), None)
    if trace is None or trace.id != r.id:
      raise ValueError(f'traces/{name}: record {line + 1} has no trace')
    if (example := examples.get(r.task, {}).get(r.id)) is None:
      raise ValueError(f'examples/{r.task}: there is no example {r.id}')
    return dict(
      record=r,
      # The ids of some tasks begin with the name of the task.
      name=r.id if r.id.startswith(r.task) else f'{r.task} {r.id}',
      verdict=_verdict(r.quality),
      prompt=str(example.prompt),
      reference='\n'.join(accepted_answers(example.reference)),
      tokens=list(_tokens(trace)),
    )

  output = [make('some answers', answer, *place) for place in select(points)]
  return list(filter(None, output))


def _tokens(trace: Trace) -> Iterator[tuple[str, str]]:
  """Yields the source and the text of each token."""
  for i, text in enumerate(trace.token_strings):
    # An end-of-sequence token has no text.
    text = text or ('[end]' if i == len(trace.tokens) - 1 else '∅')
    text = ''.join(_VISIBLE.get(c) or escapes.for_xml(c) for c in text)
    yield records.SOURCES[trace.sources[i]], text


def _verdict(quality: float) -> str:
  """Returns the quality of an answer in words; empty if it is unknown."""
  if math.isnan(quality):
    return ''
  # The best score of a task is 1 or 100.
  if quality in (1, 100):
    return '✓ right'
  return f'quality {tables.quality(quality)}' if quality else '✗ wrong'
