"""The answers that stand for a sweep, each with what stands beside it.

A page shows them token by token, and a sweep says beforehand how likely their
tokens were.
"""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence

from experiments import records
from experiments.analysis import reference_points
from experiments.records import Record, Trace, View
from experiments.tasks import Example


@dataclasses.dataclass(frozen=True)
class SelectedAnswer:
  """An answer that is shown.

  Attributes:
    record: What came of the example.
    trace: Its tokens.
    example: What was asked.
    point: Name of the file, without an ending, that the record is in.
    view: What was said of its tokens; None where nobody looked.
    counterpart: The answer of a reference method to the same prompt; None if
      there is none.
  """

  record: Record
  trace: Trace
  example: Example
  point: str
  view: View | None = None
  counterpart: 'SelectedAnswer | None' = None

  @property
  def key(self) -> tuple:
    """What its view is found by."""
    return records.view_key(self.point, self.record.lenience, self.trace.id)


def select_answers(
  workdir: pathlib.Path,
  points: Mapping[str, Sequence[Record]],
  left_out: list[str] | None = None,
) -> list[SelectedAnswer]:
  """The answers that are shown, each with what stands beside it.

  An answer whose trace or prompt is missing or damaged is not shown.

  Args:
    workdir: Where traces, examples and views lie; only these are read.
    points: Records by name of their file, as `records.read_points` has them,
      but in the order of the sweep.
    left_out: Gets a sentence for each thing that is missing or damaged.
  """
  left_out = [] if left_out is None else left_out
  every = list(itertools.chain(*points.values()))
  chosen = choose_records(every)
  others = [find_counterpart(every, record) for record in chosen]
  wanted = {id(r) for r in (*chosen, *others)}
  asked, views = records.read_examples(workdir), None
  found: dict[int, SelectedAnswer] = {}
  for name, lines in points.items():
    places = [i for i, line in enumerate(lines) if id(line) in wanted]
    if not places:
      continue
    try:
      traces = records.read_traces(workdir, name)
    except (OSError, ValueError) as error:
      left_out.append(f'{str(error).rstrip(".")}.')
      continue
    if views is None:
      views = records.read_views(workdir, left_out)
    for i in places:
      r = lines[i]
      example = asked.get(r.task, {}).get(r.id)
      # Both are in one order, and an id is there at each lenience.
      trace = traces[i] if i < len(traces) else None
      if trace is None or trace.id != r.id:
        left_out.append(f'traces/{name}: record {i + 1} has no trace.')
      elif example is None:
        left_out.append(f'examples/{r.task}: there is no example {r.id}.')
      else:
        one = SelectedAnswer(r, trace, example, name)
        found[id(r)] = dataclasses.replace(one, view=views.get(one.key))
  return [
    dataclasses.replace(found[id(r)], counterpart=found.get(id(other)))
    for r, other in zip(chosen, others, strict=True)
    if id(r) in found
  ]


def with_counterparts(shown: Sequence[SelectedAnswer]) -> list[SelectedAnswer]:
  """What is shown, and what stands beside it."""
  return [
    each for s in shown for each in (s, s.counterpart) if each is not None
  ]


def choose_records(lines: Sequence[Record], count: int = 5) -> list[Record]:
  """Examples of a middling lenience, in turn from each task.

  TokenV3 if the run has it, else the first curve that drafts. Of each task the
  first examples are taken, whatever came of them.

  Args:
    lines: All records of a sweep, in its order.
    count: How many are chosen, if there are as many.
  """
  drafted = [r for r in lines if r.gamma > 0 and r.failure is None]
  if not drafted:
    return []
  variants = [r.variant for r in drafted]
  variant = 'token_v3' if 'token_v3' in variants else variants[0]
  by_task: dict[str, dict[tuple, list[Record]]] = {}
  for record in drafted:
    if record.variant == variant:
      points = by_task.setdefault(record.task, {})
      points.setdefault(record.point, []).append(record)
  chosen = []
  for points in by_task.values():
    ordered = sorted(points, key=lambda p: -math.inf if p[2] is None else p[2])
    chosen.append(points[ordered[len(ordered) // 2]])
  turns = itertools.chain.from_iterable(itertools.zip_longest(*chosen))
  return [r for r in turns if r is not None][:count]


def find_counterpart(lines: Sequence[Record], record: Record) -> Record | None:
  """What strict speculative decoding, or the verifier alone, made of a prompt.

  Strict decoding at the same gamma if the run has it; None if it has neither.

  Args:
    lines: All records of a sweep.
    record: The one that something is to stand beside.
  """
  same = record.task, record.id, record.temperature
  others = [
    r
    for r in lines
    if (r.task, r.id, r.temperature) == same
    and r.failure is None
    and r.point != record.point
  ]
  strict = [r for r in others if r.variant == 'speed' and r.lenience == 0]
  strict.sort(key=lambda r: abs(r.gamma - record.gamma))
  alone = [r for r in others if r.method == reference_points.VERIFIER]
  return next(iter(strict + alone), None)
