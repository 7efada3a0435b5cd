"""The answers that a page shows token by token, with their counterparts."""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence

from experiments import records
from experiments.analysis import reference_points
from experiments.records import Record, Trace
from experiments.tasks import Example


@dataclasses.dataclass(frozen=True)
class SelectedAnswer:
  """An answer that a page shows token by token."""

  record: Record
  trace: Trace
  example: Example
  counterpart: 'SelectedAnswer | None' = None


def select_answers(
  workdir: pathlib.Path,
  points: Mapping[str, Sequence[Record]],
  left_out: list[str],
) -> list[SelectedAnswer]:
  """Selects the answers that are shown, each with its counterpart.

  An answer whose trace or prompt is missing or damaged is not selected.
  """
  all_records = list(itertools.chain(*points.values()))
  selected = choose_records(all_records)
  counterparts = [find_counterpart(all_records, r) for r in selected]
  needed = {id(r) for r in (*selected, *counterparts)}
  examples = records.read_examples(workdir)
  answers: dict[int, SelectedAnswer] = {}
  for name, of_file in points.items():
    indices = [i for i, r in enumerate(of_file) if id(r) in needed]
    try:
      traces = records.read_traces(workdir, name) if indices else []
    except (OSError, ValueError) as error:
      left_out.append(f'{str(error).rstrip(".")}.')
      continue
    for i in indices:
      r = of_file[i]
      example = examples.get(r.task, {}).get(r.id)
      # Both files have the same order, and an id occurs at each lenience.
      if i >= len(traces) or traces[i].id != r.id:
        left_out.append(f'traces/{name}: record {i + 1} has no trace.')
      elif example is None:
        left_out.append(f'examples/{r.task}: there is no example {r.id}.')
      else:
        answers[id(r)] = SelectedAnswer(r, traces[i], example)
  return [
    dataclasses.replace(answers[id(r)], counterpart=answers.get(id(c)))
    for r, c in zip(selected, counterparts, strict=True)
    if id(r) in answers
  ]


def choose_records(sweep: Sequence[Record], count: int = 5) -> list[Record]:
  """Chooses records at a middle lenience, in turn from each task.

  The records are of TokenV3 if the sweep has it, else of the first curve that
  drafts. Of each task the first examples are chosen, whatever their quality.
  """
  drafted = [r for r in sweep if r.gamma > 0 and r.failure is None]
  if not drafted:
    return []
  variants = [r.variant for r in drafted]
  variant = 'token_v3' if 'token_v3' in variants else variants[0]
  by_task: dict[str, dict[tuple, list[Record]]] = {}
  for record in drafted:
    if record.variant == variant:
      points = by_task.setdefault(record.task, {})
      points.setdefault(record.point, []).append(record)
  middle_records = []
  for points in by_task.values():
    ordered = sorted(points, key=lambda p: -math.inf if p[2] is None else p[2])
    middle_records.append(points[ordered[len(ordered) // 2]])
  in_turn = itertools.chain.from_iterable(
    itertools.zip_longest(*middle_records)
  )
  return [r for r in in_turn if r is not None][:count]


def find_counterpart(sweep: Sequence[Record], record: Record) -> Record | None:
  """Finds the reference answer to the prompt of a record.

  The counterpart is of strict speculative decoding at the nearest gamma if the
  sweep has it, else of the verifier alone.
  """
  key = record.task, record.id, record.temperature
  candidates = [
    r
    for r in sweep
    if (r.task, r.id, r.temperature) == key
    and r.failure is None
    and r.point != record.point
  ]
  strict = [r for r in candidates if r.variant == 'speed' and r.lenience == 0]
  strict.sort(key=lambda r: abs(r.gamma - record.gamma))
  verifier = [r for r in candidates if r.method == reference_points.VERIFIER]
  return next(iter(strict + verifier), None)
