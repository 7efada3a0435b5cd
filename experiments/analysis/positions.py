"""Where in a block drafts are kept, and where in an answer the rule defers.

Read from traces, one at a time: a point's answers need not fit into memory.
A block is a run of drafted tokens, ended by a residual or a bonus token, or by
the end of the answer. Its bonus token was not examined, and no rule was asked.
"""

import itertools
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from experiments import records
from experiments.analysis import roles
from experiments.analysis.blocks import DRAFT, RESIDUAL
from experiments.analysis.runs import Points, Run
from experiments.records import Record, Trace

# Tokens of an answer that are counted together.
WIDTH = 8
# Of the tokens at the best known place of an answer, so many make a mark.
_ENOUGH = 0.05
KINDS = ('digits', 'letters', 'punctuation', 'spaces', 'other')


def kind(piece: str) -> str:
  """What a token is made of, spaces around it aside; one of `KINDS`."""
  bare = piece.strip()
  if not bare:
    # A token without text ends the answer.
    return 'spaces' if piece else 'other'
  if bare.isdigit():
    return 'digits'
  if bare.isalpha():
    return 'letters'
  if all(unicodedata.category(c)[0] in 'PS' for c in bare):
    return 'punctuation'
  return 'other'


class _Kinds(dict):
  """Place in `KINDS` of each piece that was asked for."""

  def __missing__(self, piece: str) -> int:
    self[piece] = KINDS.index(kind(piece))
    return self[piece]


_KIND = _Kinds()


class Counts:
  """Counts of one point, to which traces are added."""

  def __init__(self):
    self._kept = np.zeros(0, dtype=np.int64)
    self._examined = np.zeros(0, dtype=np.int64)
    self._asked = np.zeros(0, dtype=np.int64)
    self._deferred = np.zeros(0, dtype=np.int64)
    self._kinds = np.zeros(2 * len(KINDS), dtype=np.int64)

  def add(self, traces: Sequence[Trace]) -> None:
    """Counts the tokens of some answers, of which some may be empty."""
    traces = [trace for trace in traces if trace.sources]
    if not traces:
      return
    sources = np.concatenate([trace.sources for trace in traces])
    lengths = [len(trace.sources) for trace in traces]
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    places = block_places(sources, first)
    drafts, residuals = sources == DRAFT, sources == RESIDUAL
    asked = drafts | residuals
    self._kept = _plus(self._kept, places[drafts])
    self._examined = _plus(self._examined, places[asked])
    if any(trace.deferred is None for trace in traces):
      return
    deferred = np.concatenate([trace.deferred for trace in traces]) > 0
    answer = (np.arange(len(sources)) - np.repeat(first, lengths)) // WIDTH
    self._asked = _plus(self._asked, answer[asked])
    self._deferred = _plus(self._deferred, answer[asked & deferred])
    kinds = [_KIND[piece] for trace in traces for piece in trace.pieces]
    cells = 2 * np.array(kinds) + deferred
    self._kinds = _plus(self._kinds, cells[asked])

  def by_block(self) -> list[dict]:
    """Acceptance by position in the block, from 1 on."""
    return _rates('accepted', self._kept, self._examined, lambda i: i + 1)

  def by_answer(self) -> list[dict]:
    """Deferrals by position in the answer, in steps of `WIDTH` from 0 on."""
    return _rates('deferred', self._deferred, self._asked, lambda i: i * WIDTH)

  def by_kind(self) -> list[dict]:
    """Deferrals by what a token is made of."""
    no, yes = self._kinds[::2], self._kinds[1::2]
    rows = _rates('deferred', yes, no + yes, lambda i: KINDS[i])
    return [{'kind': row.pop('position')} | row for row in rows]


def _plus(counts: np.ndarray, places: np.ndarray) -> np.ndarray:
  """Counts, [places], of which some more have been met."""
  more = np.bincount(places, minlength=len(counts))
  more[: len(counts)] += counts
  return more


def _rates(
  name: str,
  some: np.ndarray,
  of: np.ndarray,
  place: Callable[[int], int | str],
) -> list[dict]:
  """A row for each place where something was examined.

  Args:
    name: What `some` are called.
    some: How many of them there are, [places].
    of: How many were examined, [places] or more of them.
    place: What people call a place, of its number from 0 on.
  """
  # What never happened at the last places was not counted there.
  some = np.pad(some, (0, len(of) - len(some)))
  return [
    {
      'position': place(i),
      'examined': int(of[i]),
      name: int(some[i]),
      'rate': some[i] / of[i],
    }
    for i in np.flatnonzero(of).tolist()
  ]


def block_places(sources: np.ndarray, first: np.ndarray) -> np.ndarray:
  """Where in its block each token is, from 0 on.

  Args:
    sources: Where each token comes from, as an index into `records.SOURCES`:
      the tokens of some answers one after the other, [tokens].
    first: Where each answer begins, [answers].

  Returns:
    Its place, [tokens].
  """
  index = np.arange(len(sources))
  starts = np.zeros_like(index)
  starts[1:] = np.where(sources[:-1] != DRAFT, index[1:], 0)
  starts[first] = first
  return index - np.maximum.accumulate(starts)


# Traces that are looked at together.
_BATCH = 256


def count(
  places: Sequence[int], traces: Iterable[Trace], counts: dict[int, Counts]
) -> None:
  """Adds the traces of a file to the counts of its points.

  Args:
    places: Which point each trace is of; None is one that counts not.
    traces: The traces, in the same order.
    counts: Counts by point, which are added to; new points are put in.
  """
  pairs = zip(places, traces, strict=True)
  for place, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
    for batch in itertools.batched((trace for _, trace in group), _BATCH):
      if place is not None:
        counts.setdefault(place, Counts()).add(batch)


def read(found: Points, told: Mapping[str, Run]) -> dict[int, Counts]:
  """Counts the traces of all points that draft in blocks.

  Args:
    found: Points and answers.
    told: What lies in the workdirs, by what tells them apart.

  Returns:
    Counts by row of `found.points`.

  Raises:
    ValueError: Traces are missing or damaged; says what to do.
  """
  counts: dict[int, Counts] = {}
  for name, run in told.items():
    for file, lines in run.lines.items():
      places = [_place(found, name, r) for r in lines]
      if any(place is not None for place in places):
        count(places, records.scan_traces(run.path, file), counts)
  return counts


def _place(found: Points, name: str, r: Record) -> int | None:
  """The row of a record that drafts in blocks."""
  if not r.gamma or r.verification == roles.SEQUENTIAL or r.failure is not None:
    return None
  return found.places[name, r.point]


def frames(
  points: pd.DataFrame, counts: Mapping[int, Counts]
) -> dict[str, pd.DataFrame]:
  """What was counted: by_block, by_answer and by_kind, a row for each cell.

  Args:
    points: A row per point, as in `Points`.
    counts: What was counted, by row of `points`.
  """
  keys = 'run task temperature method variant lenience gamma'.split()
  columns = {
    'by_block': ['position', 'examined', 'accepted', 'rate'],
    'by_answer': ['position', 'examined', 'deferred', 'rate'],
    'by_kind': ['kind', 'examined', 'deferred', 'rate'],
  }
  found, told = {}, points[keys].to_dict('index')
  for name, own in columns.items():
    rows = [
      {'point': place} | told[place] | row
      for place, one in sorted(counts.items())
      for row in getattr(one, name)()
    ]
    found[name] = pd.DataFrame(rows, columns=['point', *keys, *own])
  return found


def drawn(
  counted: Mapping[str, pd.DataFrame], points: Iterable[int]
) -> tuple[pd.DataFrame, pd.DataFrame]:
  """What is drawn of some points of one task: a line for each curve.

  Args:
    counted: What was counted, as `frames` makes it.
    points: Their labels, a point of each curve.

  Returns:
    Acceptance along the block and deferrals along the answer: of each variant
    those of the first run that has it, and of the answers as far as there are
    enough of them to say something.
  """
  points = list(points)
  block, answer = (
    # A curve of several runs would be several lines of one look.
    part[part.run == part.groupby('variant').run.transform('first')]
    for name in ('by_block', 'by_answer')
    for part in [counted[name][counted[name].point.isin(points)]]
  )
  # A few long answers say little of how answers go on.
  most = answer.groupby('variant').examined.transform('max')
  return block, answer[answer.examined >= _ENOUGH * most]


def kinds_beside(
  counted: Mapping[str, pd.DataFrame], points: Sequence[int]
) -> pd.DataFrame:
  """How often each point defers tokens of each kind.

  Args:
    counted: What was counted, as `frames` makes it.
    points: Labels of those that are asked for.

  Returns:
    A row per point that has a rule: point, task, temperature, run, variant,
    lenience, gamma, and a column for each of `KINDS`, nan where it has none of
    these tokens.
  """
  by_kind = counted['by_kind']
  by_kind = by_kind[by_kind.point.isin(points)]
  keys = 'point task temperature run variant lenience gamma'.split()
  wide = by_kind.pivot_table(
    index='point', columns='kind', values='rate', sort=False
  ).reindex(columns=KINDS)
  rows = by_kind[keys].drop_duplicates('point')
  return rows.merge(wide, 'left', left_on='point', right_index=True)
