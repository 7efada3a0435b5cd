"""Points of a curve estimated from another of its points, beside decoded ones.

Answers that were decoded at one lenience are counted by their weights at
another (`reweighting`), so that with sums over answers i

  quality = sum w_i f_i / sum w_i
  rejection rate = sum rejected_i / sum examined_i

are what these would be there: self-normalised, so that what all weights have in
common cancels. H = sum hidden_i / sum (w_i + hidden_i) is how probable answers
are there that are out of sight from here. Of them only bounds are known,

  quality in [(1 - H) quality, (1 - H) quality + H best],

and, if they have as many drafts left as an answer has on average, the same of
rejections; an interval goes from the 2.5 % point of the one bound to the 97.5 %
point of the other, by the bootstrap over examples. Two answers are put beside
the others for it, one as good as can be and one as bad (Agresti and Coull
1998): where all answers are right, none would be wrong in any draw.

What was decoded there has noise of its own, and the same prompts. So the two
are compared by their difference, both drawn anew with the same examples, and
with half an answer for each way in which the two may be right or wrong (Agresti
and Min 2005); the estimate agrees if the interval holds 0.

An estimate is refused where answers have no support, where more than
`MOST_HIDDEN` are out of sight, and where the weights are worth fewer than
`LEAST_EFFECTIVE` answers. An answer may count for as much as a tenth of all.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cascades.tasks import TASKS
from experiments.analysis import comparisons, reweighting, runs
from experiments.analysis.choice import Choice
from experiments.analysis.comparisons import ENDS, with_ends
from experiments.analysis.runs import Run
from experiments.records import Record, Rereading, stats

# Fewest answers that the weights have to be worth.
LEAST_EFFECTIVE = 30
# How probable answers may be that are out of sight.
MOST_HIDDEN = 0.05
# How probable those may be that have no support: what rounding leaves of 0.
_ROUNDING = 1e-6
# The largest weight, as a share of all answers.
_SHARE = 0.1
# Of sums of scores, for tasks that take them for whole numbers.
_SCALE = 1000

KEYS = 'task temperature variant gamma weighted decoded_at lenience'.split()
MEASURES = ('quality', 'rejection_rate')
# What is bounded from both sides, of each lenience.
_BOUNDED = [
  name for measure in MEASURES for name in (measure, f'{measure}_difference')
]
COLUMNS = [
  *KEYS,
  *('n', 'effective', 'hidden', 'missing', 'refused'),
  *(
    column
    for measure in MEASURES
    for column in (
      *with_ends(measure),
      f'decoded_{measure}',
      *with_ends(f'{measure}_difference'),
    )
  ),
]
# From sums of scores, [..., leniences, scores], and how many answers these are
# of, [..., leniences], to quality, [..., leniences].
_Quality = Callable[[np.ndarray, np.ndarray], np.ndarray]


def limit(answers: int) -> float:
  """Most that one of so many answers may count."""
  return max(1.0, _SHARE * answers)


def refusal(effective: float, hidden: float, missing: float) -> str:
  """Why an estimate is refused, in some words; '' where it is not.

  Args:
    effective: Answers that the weights are worth.
    hidden: How probable answers are that are out of sight.
    missing: How probable those are that have no support.
  """
  if missing > _ROUNDING:
    return f'no support for {missing:.1%} of its answers'
  if hidden > MOST_HIDDEN:
    return f'{hidden:.0%} of its answers are out of sight'
  if effective < LEAST_EFFECTIVE:
    return f'effective size {effective:.1f}, under {LEAST_EFFECTIVE}'
  return ''


def frame(
  run: Run, read: Sequence[Rereading], choice: Choice | None = None
) -> pd.DataFrame:
  """A row per curve, kind of weights and lenience.

  Args:
    run: What lies in the workdir.
    read: What its answers count at other leniences; of points that are no
      longer there it is left out.
    choice: How intervals are drawn.

  Returns:
    KEYS: of them decoded_at is where the answers are from, and weighted says
    by 'token' or 'block'. n (answers), effective (size), hidden, missing (both
    as shares), refused (why, or ''); and of quality and rejection_rate the
    estimate with its ends, nan where it is refused or not known, what was
    decoded there (`decoded_...`), and the estimate less that
    (`..._difference`) with its ends.
  """
  choice = choice or Choice()
  order = {name: i for i, name in enumerate(run.lines)}
  here = {
    (name, r.lenience, r.id): r
    for name, lines in run.lines.items()
    for r in lines
  }
  answers: dict[tuple, dict[str, Record]] = {}
  for r in here.values():
    if r.failure is None:
      answers.setdefault(r.point, {})[r.id] = r
  known = [line for line in read if _key(line) in here]
  groups: dict[tuple, list[tuple[Record, Rereading]]] = {}
  for line in sorted(known, key=lambda line: order[line.point]):
    record = here[_key(line)]
    key = record.point, line.weighted, tuple(line.leniences)
    groups.setdefault(key, []).append((record, line))
  rows = [
    row
    for weighted in reweighting.WEIGHTED
    for key, pairs in groups.items()
    if key[1] == weighted
    for row in _estimated(pairs, answers, choice)
  ]
  made = pd.DataFrame(rows, columns=COLUMNS)
  # What was read with more leniences, or with fewer, says the same of these.
  return made.drop_duplicates(KEYS, ignore_index=True)


def _key(line: Rereading) -> tuple:
  """Which answer it is of."""
  return line.point, line.lenience, line.id


def _estimated(
  pairs: Sequence[tuple[Record, Rereading]],
  answers: Mapping[tuple, Mapping[str, Record]],
  choice: Choice,
) -> Iterator[dict[str, Any]]:
  """The rows of a curve that was decoded at one lenience.

  Args:
    pairs: Its answers, and what they count.
    answers: All that were decoded, by point and id.
    choice: How intervals are drawn.
  """
  (first, line), others = pairs[0], pairs[0][1].leniences[1:]
  if not others:
    return
  best = comparisons.scale(first.task, np.array([r.quality for r, _ in pairs]))
  parts = _parts(pairs, answers)
  quality = _quality(first)
  score = _score(quality, parts, best)
  rows = np.concatenate(list(parts.values()), 1)
  with np.errstate(all='ignore'):
    whole = _said(quality, {k: x.sum(0) for k, x in parts.items()})
  if not runs.is_corpus(first.task):
    rows = np.concatenate([rows, _imagined(parts, best)])
  ends = stats.bootstrap(
    rows, score, resamples=choice.resamples, seed=choice.seed
  )
  # By bound, what is bounded, and lenience; the lower bound comes first.
  low, high = (x.reshape(2, len(_BOUNDED), len(others)) for x in ends)
  weights, hidden = parts['weights'], parts['hidden'].sum(0)
  missing = np.array([found.missing[1:] for _, found in pairs]).sum(0)
  total = weights.sum(0) + hidden
  effective = reweighting.effective_size(weights)
  for k, lenience in enumerate(others):
    shares = hidden[k] / total[k], missing[k] / total[k]
    refused = refusal(effective[k], *shares)
    row = {
      'task': first.task,
      'temperature': first.temperature,
      'variant': first.variant,
      'gamma': first.gamma,
      'weighted': line.weighted,
      'decoded_at': first.lenience,
      'lenience': lenience,
      'n': len(pairs),
      'effective': effective[k],
      'hidden': shares[0],
      'missing': shares[1],
      'refused': refused,
    }
    for m, name in enumerate(_BOUNDED):
      told = whole[name][k], low[0, m, k], high[1, m, k]
      if refused or not math.isfinite(told[0]):
        told = math.nan, math.nan, math.nan
      row |= dict(zip(with_ends(name), told, strict=True))
    yield row | {f'decoded_{m}': whole[f'decoded_{m}'][k] for m in MEASURES}


def _parts(
  pairs: Sequence[tuple[Record, Rereading]],
  answers: Mapping[tuple, Mapping[str, Record]],
) -> dict[str, np.ndarray]:
  """What each answer adds to sums, by name, [n, leniences], or as many scores.

  Args:
    pairs: The answers of a curve at one lenience, and what they count.
    answers: All that were decoded, by point and id.
  """
  (first, line), n = pairs[0], len(pairs)
  task, method, _, *rest = first.point
  points = [(task, method, other, *rest) for other in line.leniences[1:]]
  # Of each example, what was decoded at the other leniences.
  there = [[answers.get(p, {}).get(r.id) for p in points] for r, _ in pairs]

  def column(name: str) -> np.ndarray:
    return np.array([getattr(found, name)[1:] for _, found in pairs])

  def decoded(count: Callable[[Record], Any]) -> np.ndarray:
    nothing = np.zeros_like(count(first), dtype=float)
    values = [[count(r) if r else nothing for r in row] for row in there]
    return np.array(values, dtype=float).reshape(n, -1)

  own = np.array([_scores(r) for r, _ in pairs])
  weights = column('weights')
  return {
    'weights': weights,
    'hidden': column('hidden'),
    'scores': (weights[..., None] * own[:, None]).reshape(n, -1),
    'examined': column('examined'),
    'rejected': column('rejected'),
    'decoded': decoded(lambda r: 1),
    'decoded_scores': decoded(_scores),
    'decoded_examined': decoded(lambda r: r.examined),
    'decoded_rejected': decoded(lambda r: r.examined - r.accepted),
  }


def _scores(record: Record) -> np.ndarray:
  """What quality is made of, [scores]: quality, where it is a mean."""
  if runs.is_corpus(record.task):
    return np.array(list(record.scores.values()))
  return np.array([record.quality])


def _quality(first: Record) -> _Quality:
  """How quality is made of sums of scores.

  Args:
    first: One of the records.
  """
  if not runs.is_corpus(first.task):
    return lambda sums, count: sums[..., 0] / count
  corpus, names = TASKS[first.task].corpus, list(first.scores)

  def one(values: np.ndarray) -> float:
    if not values.any():
      return math.nan
    # It takes them for whole numbers, and only their ratios matter.
    return corpus(dict(zip(names, _SCALE * values, strict=True)))

  return lambda sums, count: np.apply_along_axis(one, -1, sums)


def _said(
  quality: _Quality, sums: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """What sums over examples say, without bounds, by name, [..., leniences]."""
  size = sums['weights'].shape[-1]

  def scores(name: str) -> np.ndarray:
    return sums[name].reshape(*sums[name].shape[:-1], size, -1)

  said = {
    'quality': quality(scores('scores'), sums['weights']),
    'rejection_rate': sums['rejected'] / sums['examined'],
    'decoded_quality': quality(scores('decoded_scores'), sums['decoded']),
    'decoded_rejection_rate': (
      sums['decoded_rejected'] / sums['decoded_examined']
    ),
  }
  return said | {
    f'{measure}_difference': said[measure] - said[f'decoded_{measure}']
    for measure in MEASURES
  }


def _score(
  quality: _Quality, parts: Mapping[str, np.ndarray], best: float
) -> stats.Score:
  """Both bounds of all that is said, as a function of sums over examples.

  Args:
    quality: From `_quality`.
    parts: What each answer adds to the sums, by name.
    best: The best quality.

  Returns:
    [..., sums] to [..., bounds x what is bounded x leniences].
  """
  ends = np.cumsum([x.shape[1] for x in parts.values()])[:-1]

  def score(sums: np.ndarray) -> np.ndarray:
    of = dict(zip(parts, np.split(sums, ends, -1), strict=True))
    said = _said(quality, of)
    share = of['hidden'] / (of['weights'] + of['hidden'])
    # Of drafts that nobody saw, none may be rejected, or all.
    more = share * of['examined']
    least = {
      'quality': (1 - share) * said['quality'],
      'rejection_rate': of['rejected'] / (of['examined'] + more),
    }
    most = {
      'quality': least['quality'] + share * best,
      'rejection_rate': (of['rejected'] + more) / (of['examined'] + more),
    }
    return np.concatenate(
      [
        bound[measure] - less
        for bound in (least, most)
        for measure in MEASURES
        for less in (0, said[f'decoded_{measure}'])
      ],
      -1,
    )

  return score


def _imagined(parts: Mapping[str, np.ndarray], best: float) -> np.ndarray:
  """Four half answers: each way in which two answers are right or wrong.

  Args:
    parts: What each answer adds, by name; of tasks whose quality is a mean.
    best: The quality of what is right.
  """
  rows = []
  for mine, theirs in itertools.product((0.0, best), repeat=2):
    values = {
      'weights': 1.0,
      'scores': mine,
      'decoded': 1.0,
      'decoded_scores': theirs,
    }
    row = [
      np.full(x.shape[1], values.get(name, 0.0) / 2)
      for name, x in parts.items()
    ]
    rows.append(np.concatenate(row))
  return np.array(rows)


# --- What the frame comes to.


def holds(found: pd.DataFrame, measure: str) -> pd.Series:
  """Whether the interval of each difference holds 0; nan where there is none.

  Args:
    found: As `frame` makes it.
    measure: One of `MEASURES`.
  """
  low, high = (found[f'{measure}_difference{end}'] for end in ENDS)
  held = ((low <= _ROUNDING) & (high >= -_ROUNDING)).astype(float)
  return held.where(np.isfinite(low) & np.isfinite(high))


def coverage(found: pd.DataFrame) -> pd.DataFrame:
  """How often estimates agree with what was decoded.

  Args:
    found: As `frame` makes it.

  Returns:
    A row per task and kind of weights: leniences (that were decoded too),
    refused, and of each of `MEASURES` `..._compared` and `..._held`: how many
    intervals of the difference there are, and how many hold 0.
  """
  beside = found[np.isfinite(found.decoded_quality)]
  rows = []
  for (task, weighted), part in beside.groupby(
    ['task', 'weighted'], sort=False
  ):
    row = {
      'task': task,
      'weighted': weighted,
      'leniences': len(part),
      'refused': int((part.refused != '').sum()),
    }
    for measure in MEASURES:
      held = holds(part, measure).dropna()
      row |= {
        f'{measure}_compared': len(held),
        f'{measure}_held': int(held.sum()),
      }
    rows.append(row)
  columns = ['task', 'weighted', 'leniences', 'refused']
  columns += [f'{m}_{x}' for m in MEASURES for x in ('compared', 'held')]
  return pd.DataFrame(rows, columns=columns)


def sentence(found: pd.DataFrame) -> str:
  """How often estimates agree with what was decoded, in words.

  Args:
    found: As `frame` makes it.
  """
  counted = coverage(found)
  parts = []
  for weighted in reweighting.WEIGHTED:
    total = counted[counted.weighted == weighted].sum(numeric_only=True)
    if not len(counted[counted.weighted == weighted]):
      continue
    parts.append(
      f'Per {weighted}, {total.refused:.0f} of {total.leniences:.0f} leniences'
      f' are refused; {total.quality_held:.0f} of'
      f' {total.quality_compared:.0f} differences of quality and'
      f' {total.rejection_rate_held:.0f} of'
      f' {total.rejection_rate_compared:.0f} of rejection rates, estimated less'
      ' decoded, hold 0 in their 95 % interval.'
    )
  return ' '.join(parts) or 'Nothing that is estimated was decoded too.'
