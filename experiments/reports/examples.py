"""Example answers: the same prompt by two methods, token by token."""

import dataclasses
import html
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence

from cascades.tasks import Example
from experiments import records as records_lib
from experiments.analysis import roles
from experiments.records import Record, Trace, View, metrics
from experiments.reports import figures, styles, tokens


@dataclasses.dataclass(frozen=True)
class Shown:
  """An answer that is shown.

  Attributes:
    record: What came of it.
    trace: Its tokens.
    example: What was asked.
    point: Name of the point that it is of.
    view: What was said of its tokens; None where nobody looked.
    beside: What another method answered.
  """

  record: Record
  trace: Trace
  example: Example
  point: str
  view: View | None = None
  beside: 'Shown | None' = None

  @property
  def key(self) -> tuple:
    """Of its view."""
    return records_lib.view_key(self.point, self.record.lenience, self.trace.id)


def find(
  workdir: pathlib.Path, points: Mapping[str, Sequence[Record]]
) -> list[Shown]:
  """The answers that a page shows, each with what stands beside it.

  Args:
    workdir: Where traces, examples and views lie; only these are read.
    points: As from `records.read_points`, in the order of the sweep.
  """
  every = list(itertools.chain(*points.values()))
  chosen = choose(every)
  others = [beside(every, record) for record in chosen]
  wanted = {id(r) for r in (*chosen, *others)}
  asked, views = records_lib.read_examples(workdir), None
  found: dict[int, Shown] = {}
  for name, lines in points.items():
    places = [i for i, line in enumerate(lines) if id(line) in wanted]
    if not places:
      continue
    traces = records_lib.read_traces(workdir, name)
    views = records_lib.read_views(workdir) if views is None else views
    for i in places:
      r = lines[i]
      shown = Shown(r, traces[i], asked[r.task][r.id], name)
      view = views.get(shown.key)
      found[id(r)] = dataclasses.replace(shown, view=view)
  return [
    dataclasses.replace(found[id(r)], beside=found.get(id(other)))
    for r, other in zip(chosen, others, strict=True)
  ]


def every(shown: Sequence[Shown]) -> list[Shown]:
  """What is shown, and what stands beside it."""
  return [each for s in shown for each in (s, s.beside) if each is not None]


def choose(records: Sequence[Record], count: int = 5) -> list[Record]:
  """Examples of a middling lenience, in turn from each task.

  TokenV3 if the run has it, else the first curve that drafts. Of each task the
  first examples are taken, whatever came of them. Fewer than `count` if
  there are no more.
  """
  drafted = [r for r in records if r.gamma > 0 and r.failure is None]
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


def beside(records: Sequence[Record], record: Record) -> Record | None:
  """What strict speculative decoding, or the verifier alone, made of a prompt.

  Strict decoding at the same gamma if the run has it; None if it has neither.
  """
  same = record.task, record.id, record.temperature
  others = [
    r
    for r in records
    if (r.task, r.id, r.temperature) == same
    and r.failure is None
    and r.point != record.point
  ]
  strict = [r for r in others if r.variant == 'speed' and r.lenience == 0]
  strict.sort(key=lambda r: abs(r.gamma - record.gamma))
  alone = [r for r in others if r.method == roles.VERIFIER]
  return next(iter(strict + alone), None)


def _verdict(quality: float) -> str:
  if math.isnan(quality):
    return ''
  # Tasks score in [0, 1] or in [0, 100].
  if quality in (1, 100):
    return '<span class="right">✓ right</span>'
  if quality == 0:
    return '<span class="wrong">✗ wrong</span>'
  return f'<span>quality {styles.number(quality)}</span>'


def _lane(
  shown: Shown,
  style: styles.Style,
  gamma: bool,
  costs: metrics.Costs,
  end: float,
) -> str:
  record = shown.record
  place = styles.place(record.lenience, record.gamma if gamma else 0)
  name = style.label
  if record.gamma:
    name = f'{name}, {place}'
    per_block = record.emitted / max(1, record.verifier_calls)
    counts = (
      f'{record.emitted} tokens in {record.verifier_calls} verifier calls'
      f' ({styles.number(per_block, 1)} per call)'
    )
  else:
    counts = f'{record.emitted} tokens, a verifier call each'
  answer = tokens.answer(record, shown.trace, shown.view, costs, name, end)
  return f"""<div class="lane">
<header>{_verdict(record.quality)}
<span>{figures.marker(style)} {html.escape(name)}</span>
<span>{counts}</span></header>
{answer}
</div>"""


def _example(
  shown: Shown,
  table: Mapping[str, styles.Style],
  gamma: bool,
  costs: metrics.Costs,
) -> str:
  record = shown.record
  # Some tasks name themselves in their ids.
  own = record.id.startswith(record.task)
  name = record.id if own else f'{record.task} {record.id}'
  reference = shown.example.reference
  if not isinstance(reference, str):
    reference = '\n'.join(reference)
  end = max(tokens.duration(s.record, costs) for s in every([shown]))
  lanes = '\n'.join(
    _lane(s, table[s.record.variant], gamma, costs, end) for s in every([shown])
  )
  return f"""<article class="example">
<header><span>{html.escape(name)}</span></header>
<dl><dt>Prompt</dt><dd class="text">{html.escape(shown.example.prompt)}</dd>
<dt>Reference</dt><dd class="text">{html.escape(reference)}</dd></dl>
{tokens.CONTROLS}
<div class="lanes">
{lanes}
</div>
</article>"""


def section(
  shown: Sequence[Shown],
  table: Mapping[str, styles.Style],
  gamma: bool,
  costs: metrics.Costs,
) -> str:
  """Examples with their legend; empty if there are none.

  Args:
    shown: From `find`.
    table: Styles by variant.
    gamma: Whether points differ in gamma, so that it is named.
    costs: Measured unit costs.
  """
  if not shown:
    return ''
  alone = any(not s.record.gamma for s in every(shown))
  articles = '\n'.join(_example(s, table, gamma, costs) for s in shown)
  return f"""<section>
<h2>Who wrote what</h2>
<p class="guide">Long runs of drafted tokens are where time is saved; each
residual token is a place where the verifier, or the rule that speaks for it,
disagreed. These are the first examples of each task, not picked. Rest the
pointer on a token, or go through an answer with the arrow keys, to see how
likely it was to drafter (q), verifier (p) and method (π). Both answers of a
prompt play in modelled time; a draft is outlined until the verifier has read
it.</p>
{tokens.legend(alone)}
{articles}
</section>"""
