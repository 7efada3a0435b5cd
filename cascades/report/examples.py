"""Example answers, each token coloured by where it came from."""

import dataclasses
import html
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence

from cascades import records as records_lib
from cascades.records import Example, Record, Trace
from cascades.report import plots, styles

# Source -> (what the legend calls it, what it means).
SOURCES = {
  'draft': ('drafted and kept', 'the drafter wrote it, verification kept it'),
  'residual': ("verifier's residual", 'sampled after a draft was turned down'),
  'bonus': ('bonus', 'sampled after a whole block was kept'),
}
# What is shown for characters that cannot be seen.
_VISIBLE = {'\n': '↵\n', '\t': '⇥\t', '\r': '␍'}


@dataclasses.dataclass(frozen=True)
class Shown:
  """An answer that is shown.

  Attributes:
    record: What came of it.
    trace: Its tokens.
    example: What was asked.
  """

  record: Record
  trace: Trace
  example: Example


def look_up(
  workdir: pathlib.Path,
  points: Mapping[str, Sequence[Record]],
  chosen: Sequence[Record],
) -> list[Shown]:
  """Records with their traces and examples, of which only these are read.

  Args:
    workdir: Where they lie.
    points: From `records.read_points`.
    chosen: Some of these records.
  """
  asked, found = records_lib.read_examples(workdir), {}
  wanted = {id(record) for record in chosen}
  for name, lines in points.items():
    places = [i for i, line in enumerate(lines) if id(line) in wanted]
    if places:
      traces = records_lib.read_traces(workdir, name)
      found |= {id(lines[i]): traces[i] for i in places}
  return [Shown(r, found[id(r)], asked[r.task][r.id]) for r in chosen]


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


def _token(trace: Trace, index: int) -> str:
  source = records_lib.SOURCES[trace.sources[index]]
  name = SOURCES.get(source, (source, ''))[0]
  piece = trace.pieces[index]
  # The end of a sequence has no text of its own.
  last = index == len(trace.tokens) - 1
  text = html.escape(piece or ('[end]' if last else '∅'))
  for character, visible in _VISIBLE.items():
    text = text.replace(character, visible)
  title = html.escape(f'{name}, token {trace.tokens[index]}')
  return f'<span class="t {source}" title="{title}">{text}</span>'


def legend() -> str:
  """What the colours mean."""
  entries = ''.join(
    f'<span title="{html.escape(meaning)}">'
    f'<span class="t {source}">{html.escape(name)}</span></span>'
    for source, (name, meaning) in SOURCES.items()
  )
  return f'<p class="sources">{entries}</p>'


def _verdict(quality: float) -> str:
  if math.isnan(quality):
    return ''
  # Tasks score in [0, 1] or in [0, 100].
  if quality in (1, 100):
    return '<span class="right">✓ right</span>'
  if quality == 0:
    return '<span class="wrong">✗ wrong</span>'
  return f'<span>quality {styles.number(quality)}</span>'


def _example(shown: Shown, style: styles.Style, gamma: bool) -> str:
  record, trace = shown.record, shown.trace
  tokens = ''.join(_token(trace, i) for i in range(len(trace.tokens)))
  # Some tasks name themselves in their ids.
  own = record.id.startswith(record.task)
  name = record.id if own else f'{record.task} {record.id}'
  place = styles.place(record.lenience, record.gamma if gamma else 0)
  reference = shown.example.reference
  if not isinstance(reference, str):
    reference = '\n'.join(reference)
  per_block = record.emitted / max(1, record.verifier_calls)
  return f"""<article class="example">
<header>{_verdict(record.quality)}
<span>{html.escape(name)}</span>
<span>{plots.marker(style)} {html.escape(style.label)},
{place}</span>
<span>{record.emitted} tokens in {record.verifier_calls} verifier calls
({styles.number(per_block, 1)} per call)</span></header>
<dl><dt>Prompt</dt><dd class="text">{html.escape(shown.example.prompt)}</dd>
<dt>Answer</dt><dd class="text tokens">{tokens}</dd>
<dt>Reference</dt><dd class="text">{html.escape(reference)}</dd></dl>
</article>"""


def section(
  shown: Sequence[Shown], table: Mapping[str, styles.Style], gamma: bool
) -> str:
  """Examples with their legend; empty if there are none.

  Args:
    shown: From `look_up`.
    table: Styles by variant.
    gamma: Whether points differ in gamma, so that it is named.
  """
  if not shown:
    return ''
  shown = '\n'.join(_example(s, table[s.record.variant], gamma) for s in shown)
  return f"""<section>
<h2>Who wrote what</h2>
<p class="guide">Long runs of drafted tokens are where time is saved; each
residual token is a place where the verifier, or the rule that speaks for it,
disagreed. These are the first examples of each task, not picked.</p>
{legend()}
{shown}
</section>"""
