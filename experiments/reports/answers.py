"""Some answers side by side, token by token: sources and blocks."""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments import escapes, records, tasks
from experiments.analysis import reference_points
from experiments.records import Record, Trace
from experiments.reports import styles

# Label and meaning of the tokens of each source.
SOURCES = {
  'draft': ('accepted draft', 'drafted, and accepted by the method'),
  'residual': ('residual', 'sampled after a draft was rejected'),
  'bonus': ('bonus', 'sampled after all drafts of a block were accepted'),
  'alone': ('verifier alone', 'one verifier call per token'),
  'parts': ('first difference', 'of the two answers'),
}
# Symbols of invisible characters.
_VISIBLE = {'\n': '↵\n', '\t': '⇥\t', '\r': '␍'}
# Index of accepted drafts in the sources of a trace.
_DRAFT = records.SOURCES.index('draft')


@dataclasses.dataclass(frozen=True)
class SelectedAnswer:
  """An answer that a page shows token by token."""

  record: Record
  trace: Trace
  example: tasks.Example
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


class Token(NamedTuple):
  """A token as the page shows it: CSS classes, details and text."""

  classes: str
  details: str
  text: str


class Lane(NamedTuple):
  """An answer as the page shows it."""

  name: str
  verdict: str
  counts: str
  blocks: list[list[Token]]


class Example(NamedTuple):
  """A prompt with its reference and its answers."""

  name: str
  prompt: str
  reference: str
  lanes: list[Lane]


def _token(answer: SelectedAnswer, index: int, parts: bool) -> Token:
  record, trace = answer.record, answer.trace
  source = records.SOURCES[trace.sources[index]] if record.gamma else 'alone'
  details = [
    f'{SOURCES.get(source, (source,))[0]}, token {trace.tokens[index]}'
  ]
  if trace.rejected[index] is not None:
    details.append(f'rejected draft: token {trace.rejected[index]}')
  if record.gamma and trace.deferred is not None:
    verdict = 'defers' if trace.deferred[index] else 'keeps'
    draft = 'draft rejected here' if source == 'residual' else 'token'
    details.append(f'the rule {verdict} the {draft}')
  details += ['here the two answers differ first'] if parts else []
  # An end-of-sequence token has no text.
  last = index == len(trace.tokens) - 1
  text = trace.token_strings[index] or ('[end]' if last else '∅')
  return Token(
    f't {source} parts' if parts else f't {source}',
    '\n'.join(details),
    ''.join(_VISIBLE.get(c) or escapes.for_xml(c) for c in text),
  )


def blocks(record: Record, trace: Trace) -> list[range]:
  """Returns the positions of each block's tokens.

  A block holds its accepted drafts and the token after them.
  """
  count = len(trace.tokens)
  ends = [i + 1 for i in range(count) if trace.sources[i] != _DRAFT]
  if not record.gamma:
    ends = range(1, count + 1)
  # An answer may end inside a block.
  edges = list(dict.fromkeys((0, *ends, count)))
  return [range(*edge) for edge in itertools.pairwise(edges)]


def parting(answers: Sequence[SelectedAnswer]) -> int | None:
  """Returns the index of the first token in which answers differ, if any."""
  texts = itertools.zip_longest(*(a.trace.tokens for a in answers))
  return next((i for i, t in enumerate(texts) if len(set(t)) > 1), None)


def _verdict(quality: float) -> str:
  """Returns the quality of an answer in words; empty if it is unknown."""
  if math.isnan(quality):
    return ''
  # The best score of a task is 1 or 100.
  if quality in (1, 100):
    return '✓ right'
  return f'quality {styles.quality(quality)}' if quality else '✗ wrong'


def lane(
  answer: SelectedAnswer, curve_styles: styles.CurveStyles, index: int | None
) -> Lane:
  """Returns an answer; `index` is that of the token with a frame, if any."""
  record, name = answer.record, curve_styles[answer.record.variant].label
  counts = f'{record.emitted} tokens, one verifier call per token'
  if record.gamma:
    per_call = record.emitted / max(1, record.verifier_calls)
    name = f'{name}, {styles.point_label(record.lenience, record.gamma)}'
    counts = (
      f'{record.emitted} tokens in {record.verifier_calls} verifier calls'
      f' ({styles.number(per_call, 1)} tokens per call)'
    )
  tokens = [
    [_token(answer, i, i == index) for i in block]
    for block in blocks(record, answer.trace)
  ]
  return Lane(name, _verdict(record.quality), counts, tokens)


def examples(
  answers: Sequence[SelectedAnswer], curve_styles: styles.CurveStyles
) -> list[Example]:
  """Returns each prompt with its answer and the answer's counterpart."""
  output = []
  for answer in answers:
    record, reference = answer.record, answer.example.reference
    # The ids of some tasks begin with the name of the task.
    has_task = record.id.startswith(record.task)
    pair = [answer, *filter(None, [answer.counterpart])]
    index = parting(pair)
    output.append(
      Example(
        record.id if has_task else f'{record.task} {record.id}',
        str(answer.example.prompt),
        reference if isinstance(reference, str) else '\n'.join(reference),
        [lane(x, curve_styles, index) for x in pair],
      )
    )
  return output
