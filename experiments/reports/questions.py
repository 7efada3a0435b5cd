"""What the report answers: a table or a figure for each question.

The frames come from `comparisons`, `calibration` and `positions`; here stands
what people read of them.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.analysis import (
  calibration,
  comparisons,
  kinds,
  mixture,
  positions,
)
from experiments.analysis.comparisons import Choice
from experiments.analysis.runs import Points
from experiments.reports import figures, styles
from experiments.reports.tables import Column, Table, texts, yes

NO_VERIFIER = (
  'No task has a quality, the verifier alone, and a method to compare with it.'
)


@dataclasses.dataclass(frozen=True)
class Question:
  """A section of the page.

  Attributes:
    title: Of the section.
    guide: How to read it.
    tables: What is shown, those without rows left out.
    drawings: What is drawn.
    otherwise: Why there is nothing, where there is nothing.
  """

  title: str
  guide: str
  tables: Sequence[Table] = ()
  drawings: Sequence[figures.Drawing] = ()
  otherwise: str = NO_VERIFIER


def _digits(n: int):
  return lambda value: styles.number(value, n)


def _gamma(value: float) -> str:
  return '\N{EN DASH}' if not value or math.isnan(value) else f'{value:g}'


def _clock(value: str) -> str:
  return 'on the clock' if value == 'wall' else value


def _count(value: float) -> str:
  return styles.number(value, 0)


def _p(value: float) -> str:
  if math.isnan(value) or value >= 0.001:
    return styles.number(value, 3)
  return f'{value:.0e}'.replace('-', styles.MINUS)


TASK = Column('task', 'Task', styles.words, 'what was asked')
LENIENCE = Column('lenience', 'Lenience', styles.lenience, 'of the point')
GAMMA = Column('gamma', 'Gamma', _gamma, 'tokens drafted per block')
QUALITY = Column('quality', 'Quality', _digits(3), "the task's own metric")
DIFFERENCE = Column(
  'difference',
  'Quality gained',
  _digits(3),
  "over the verifier's, on the same examples, with its 95 % interval",
)
SPEEDUP = Column(
  'speedup',
  'Speed-up',
  _digits(2),
  "per token; the verifier's latency by the method's, with its 95 % interval",
)
LATENCY = Column(
  'latency', 'Latency', _digits(2), 'modelled; the verifier alone is 1'
)


@dataclasses.dataclass(frozen=True)
class _Context:
  """What every question is answered with.

  Attributes:
    found: Points and answers.
    frame: From `comparisons.compare`.
    looks: Styles by variant.
    choice: Margins, targets and draws.
    head: Columns that tell where a row is from.
    place: Columns that tell which point of its curve it is.
  """

  found: Points
  frame: pd.DataFrame
  looks: Mapping[str, styles.Style]
  choice: Choice
  head: Sequence[Column]
  place: Sequence[Column]

  def placed(self, part: pd.DataFrame) -> pd.DataFrame:
    """With what people are told of where on its curve a point is."""
    shown = part.gamma if len(self.place) > 1 else 0 * part.gamma
    return part.assign(place=list(map(styles.place, part.lenience, shown)))

  def tasks(self) -> list[tuple[str, pd.DataFrame]]:
    """Frames that are drawn apart, with what people call them."""
    parts = list(self.frame.groupby(comparisons.GROUP, sort=False))
    several = self.frame.temperature.nunique() > 1
    return [
      (f'{task}, temperature {t:g}' if several else task, part)
      for (task, t), part in parts
    ]


def _named(name: str, task: str) -> str:
  """A name for the files of a drawing, whatever the task is called."""
  return f'{name}-{re.sub("[^A-Za-z0-9_.]+", "-", task)}'


def _for(task: str, drawing: figures.Drawing, **more) -> figures.Drawing:
  return dataclasses.replace(drawing, caption=styles.words(task), **more)


def answer(
  found: Points,
  counts: Mapping[int, positions.Counts],
  looks: Mapping[str, styles.Style],
  choice: Choice,
) -> list[Question]:
  """All questions, in the order of the page.

  Args:
    found: Points and answers.
    counts: From `positions.count`, by row of the points.
    looks: Styles by variant.
    choice: Margins, targets and draws.
  """
  frame = comparisons.compare(found, choice)
  several = frame.gamma[frame.gamma > 0].nunique() > 1
  place = [LENIENCE, GAMMA] if several else [LENIENCE]
  context = _Context(found, frame, looks, choice, _head(found.points), place)
  calibrated = calibration.calibrate(found, choice)
  return [
    _table(context),
    _alternatives(context),
    _front(context),
    _mixture(context),
    *([_gammas(context)] if several else []),
    _calibrated(context, calibrated),
    _tests(context, calibrated),
    _rejections(context),
    _lengths(context),
    _places(context, calibrated, counts),
  ]


def _head(points: pd.DataFrame) -> list[Column]:
  head = [TASK]
  if points.temperature.nunique() > 1:
    shown = Column(
      'temperature', 'Temperature', '{:g}'.format, 'of both models'
    )
    head.append(shown)
  if points.run.nunique() > 1:
    head.append(Column('run', 'Run', texts, 'the workdir'))
    head.append(Column('batch_size', 'Batch', _gamma, 'rows decoded at a time'))
  return head


def _table(context: _Context) -> Question:
  table = comparisons.two_sided(context.frame)
  columns = [
    *context.head,
    *context.place,
    SPEEDUP,
    Column('best_lenience', 'Best: lenience', styles.lenience, 'other side'),
    *(
      dataclasses.replace(GAMMA, field='best_gamma')
      for column in context.place
      if column is GAMMA
    ),
    DIFFERENCE,
    Column('best_speedup', 'Speed-up', _digits(2), 'per token'),
  ]
  titles = {
    'modelled': 'Latency as modelled from counted calls',
    'wall': 'Time on the clock',
  }
  return Question(
    'How fast at the same quality, how good at the same speed',
    'For each method, on the left its fastest point whose quality is that of'
    ' the verifier alone: the lower end of the paired 95 % interval of the'
    f' difference is above {styles.MINUS}{context.choice.margin:g} of the best'
    ' score. On the right its best point that takes no longer than the'
    ' verifier. A dash is a method that has none. Both are chosen on these same'
    ' examples, which flatters them; below, they are chosen on others. On the'
    " clock, a curve's leniences share a batch: with fewer examples than rows"
    ' the verifier alone leaves some of its own empty.',
    [
      Table(f'two_sided_{clock}', title, table[table.clock == clock], columns)
      for clock, title in titles.items()
      if len(table)
    ],
  )


def _alternatives(context: _Context) -> Question:
  table = kinds.best_of_kinds(context.frame)
  if table.kind.nunique() < 2:
    table = table.iloc[:0]
  table = table.rename(columns={'variant': 'fastest', 'kind': 'variant'})

  def name(variant: object) -> str:
    look = context.looks.get(variant)
    return look.label if look else texts(variant)

  # A kind has the best of all runs.
  head = [c for c in context.head if c.field in comparisons.GROUP]
  columns = [
    *head,
    Column('fastest', 'Fastest', name, "at the verifier's quality"),
    *context.place,
    SPEEDUP,
    Column('best_variant', 'Best', name, "within the verifier's latency"),
    *(
      dataclasses.replace(
        column, field=f'best_{column.field}', heading=f'Its {column.field}'
      )
      for column in context.place
    ),
    DIFFERENCE,
    Column('best_speedup', 'Speed-up', _digits(2), 'per token'),
  ]
  alike = kinds.truncated_alike(context.found, context.choice)
  return Question(
    'Do plainer ways reach as far',
    'The first table by kinds of decoding: modelled latency, and each kind by'
    ' the best of its points; one with more points had more chances. Below,'
    ' where both were run: TokenV3 keeps the drafter to the tokens that min-p'
    ' at 1 less the lenience would leave of the verifier. To decode that'
    ' truncated verifier without loss shows what truncation alone is worth; the'
    " rest is the drafter's part.",
    [
      Table('kinds', 'Kinds of decoding', table, columns),
      Table(
        'truncated_alike',
        'TokenV3 over the verifier truncated to the same tokens',
        alike,
        [
          *context.head,
          *context.place,
          Column('n', 'Examples', _count, 'answered by both'),
          Column(
            'gained',
            'Quality gained',
            _digits(3),
            "over min-p's, on the same examples, with its 95 % interval",
          ),
          Column(
            'faster', 'Speed', _digits(2), "by min-p's, with its 95 % interval"
          ),
        ],
      ),
    ],
    otherwise='Only one kind of decoding was run.',
  )


def _mixture(context: _Context) -> Question:
  frame = mixture.mix(context.found, context.choice)
  best = mixture.best(frame)
  guide = (
    'All tasks together, each counting as much as any other, as a share of its'
    ' best score. Of each method the point that is furthest above the better of'
    ' the two models alone, chosen on these same examples.'
  )
  drawings = []
  if len(best):
    first = best.iloc[0]
    place = styles.place(first.lenience, first.gamma * (len(context.place) > 1))
    name = context.looks[first.variant].label
    guide = f'{above(best, name, place)} {guide}'
  parts = list(frame.groupby(['temperature', 'run'], sort=False))
  for i, ((temperature, run), part) in enumerate(parts):
    drawn = figures.curves(
      context.placed(
        comparisons.at_gamma(part, comparisons.common_gamma(part))
      ),
      context.looks,
      x='latency',
      y='quality',
      name=f'mixture-{i}' if len(parts) > 1 else 'mixture',
      size=(10.4, 5.2),
    )
    several = [
      f'temperature {temperature:g}' if frame.temperature.nunique() > 1 else '',
      run if frame.run.nunique() > 1 else '',
    ]
    caption = ', '.join([mixture.ALL, *filter(None, several)])
    drawings.append(dataclasses.replace(drawn, caption=caption))
  columns = [
    *context.head,
    *context.place,
    LATENCY,
    QUALITY,
    *(
      Column(
        f'over_{model}',
        f'Over the {model}',
        _digits(3),
        'quality gained, on the same examples, with its 95 % interval',
      )
      for model in ('verifier', 'drafter')
    ),
  ]
  return Question(
    'When is a cascade better than both models',
    guide,
    [Table('mixture', 'All tasks together', best, columns, frame)],
    drawings,
    'It takes at least two tasks, and both models alone on each.',
  )


def _front(context: _Context) -> Question:
  best = comparisons.pareto(context.frame)
  drawings = []
  for name, part in context.tasks():
    own = best[best.index.isin(part.index)]
    if len(own):
      part = context.placed(part)
      drawings.append(
        _for(
          name,
          figures.front(
            part,
            part.loc[own.index],
            context.looks,
            name=_named('pareto', name),
          ),
          wide=False,
        )
      )
  columns = [*context.head, *context.place, LATENCY, QUALITY, DIFFERENCE]
  return Question(
    'Which points no other beats',
    'For every other point there is one on the line that is no slower and no'
    ' worse. A front is made of the luckiest points:'
    ' neighbours whose intervals overlap are not told apart.',
    [Table('pareto', 'Points on the front', best, columns)],
    drawings,
    'The quality of no point is known.',
  )


def _gammas(context: _Context) -> Question:
  table = comparisons.gammas(context.frame)
  fixed = comparisons.common_gamma(context.frame)
  columns = [
    *context.head,
    Column('fixed_lenience', 'Lenience', styles.lenience, f'at gamma {fixed}'),
    Column(
      'fixed_speedup', f'Speed-up at gamma {fixed}', _digits(2), 'modelled'
    ),
    Column('lenience', 'Lenience', styles.lenience, 'at the gamma of its own'),
    Column('gamma', 'Own gamma', _gamma, 'that made it fastest'),
    dataclasses.replace(SPEEDUP, heading='Speed-up at its own'),
  ]
  return Question(
    'What a gamma of its own is worth',
    'The fastest point at the quality of the verifier, with one gamma for all'
    ' methods (that of most points), and with the one that suits the method.',
    [Table('gammas', 'Modelled latency', table, columns)],
    otherwise='No method was run at several gammas.',
  )


def _calibrated(context: _Context, table: pd.DataFrame) -> Question:
  choice = context.choice
  asked = {
    'quality': f'at most {choice.loss:g} of quality lost',
    'latency': f'modelled latency of at most {choice.latency:g}',
  }
  given_away = {'quality': 'latency', 'latency': 'quality'}
  columns = [
    *context.head,
    Column('lenience', 'Chosen', styles.lenience, 'on one half'),
    Column('loss', 'Quality lost', _digits(3), 'on the other half'),
    LATENCY,
    Column('kept', 'Target kept', yes, 'on the other half'),
    Column('best_lenience', 'Best there', styles.lenience, 'on that half'),
  ]
  tables = []
  for target, words in asked.items():
    last = Column(
      'regret',
      f'Regret ({given_away[target]})',
      _digits(3),
      'given away against the best of that half; less than 0 where the target'
      ' is not kept',
    )
    own = calibration.own(table, target)
    tables.append(
      Table(
        f'calibration_{target}',
        f'Target: {words}',
        own,
        [*columns, last],
        table[table.target == target].drop(columns='point'),
      )
    )
  tables += [
    made
    for target, words in asked.items()
    if (made := _transfer(context, table, target, words)) is not None
  ]
  return Question(
    'Can the lenience be chosen beforehand',
    'Lenience is chosen on one half of the examples and judged on the other'
    f' (halves by a hash of the id, seed {choice.seed}), at one gamma for all.'
    ' Where several tasks were run, the lenience of each is judged on the'
    ' others too.',
    tables,
    otherwise='There are too few examples, or no verifier alone, to choose by.',
  )


def _transfer(
  context: _Context, table: pd.DataFrame, target: str, words: str
) -> Table | None:
  """A row per curve and task of choice, a column per task that judges."""
  part = table[table.target == target]
  tasks = list(part.task.unique())
  if len(tasks) < 2:
    return None
  keys = ['temperature', 'run', 'batch_size', 'variant', 'chosen_on']
  asked, _ = calibration.TARGETS[target]
  wide = part.pivot_table(
    index=keys, columns='task', values=asked, sort=False, dropna=False
  )
  kept = part.set_index([*keys, 'task']).kept
  rows = []
  for key, values in wide.dropna(how='all').iterrows():
    row = dict(zip(keys, key, strict=True))
    for i, task in enumerate(tasks):
      value = values.get(task, math.nan)
      mark = '' if math.isnan(value) else f' {yes(kept[(*key, task)])}'
      row[f'on {i}'] = f'{styles.number(value, 3)}{mark}'
    rows.append(row)
  what = 'quality lost' if target == 'quality' else 'latency'
  columns = [
    Column('chosen_on', 'Chosen on', styles.words, 'the task'),
    *(c for c in context.head if c is not TASK),
    *(
      Column(f'on {i}', f'{styles.words(t)}: {what}', texts, 'where judged')
      for i, t in enumerate(tasks)
    ),
  ]
  return Table(
    f'transfer_{target}',
    f"One task's lenience on another; {words}",
    pd.DataFrame(rows),
    columns,
    calibration.transfer(table, target).reset_index(),
  )


def _tests(context: _Context, calibrated: pd.DataFrame) -> Question:
  chosen = calibration.own(calibrated, 'quality').point
  _, other = calibration.halves(context.found, context.choice.seed)
  table = comparisons.significance(other, chosen.tolist())
  columns = [
    *context.head,
    *context.place,
    Column('n', 'Examples', _count, 'answered by both'),
    Column('only_verifier', 'Verifier alone right', _count, 'method wrong'),
    Column('only_method', 'Method alone right', _count, 'verifier wrong'),
    Column('p', 'p', _p, "McNemar's exact test"),
    Column('p_holm', 'p, corrected', _p, 'Holm, over the methods of a task'),
  ]
  return Question(
    'Are right answers lost',
    "McNemar's exact test of each method against the verifier alone, at the"
    ' lenience chosen above for quality, on the half of the examples that it'
    ' was not chosen on; corrected after Holm for the number of methods. A'
    ' large p is no proof that nothing is lost: see the intervals for that.',
    [Table('mcnemar', 'Right and wrong answers', table, columns)],
    otherwise='No task has answers that are right or wrong, on both halves.',
  )


def _rejections(context: _Context) -> Question:
  lines = comparisons.latency_fit(context.frame)
  drawings = []
  for name, part in context.tasks():
    task, temperature = part.iloc[0][comparisons.GROUP]
    own = lines[(lines.task == task) & (lines.temperature == temperature)]
    if len(own):
      drawings.append(
        _for(
          name,
          figures.fits(
            context.placed(part), own, context.looks, name=_named('fit', name)
          ),
        )
      )
  # Lines are of all methods together.
  table = lines.assign(variant='')
  columns = [
    Column('task', 'Task', styles.words, 'what was asked'),
    *(c for c in context.head if c.field == 'temperature'),
    Column('batch_size', 'Batch', _gamma, 'rows decoded at a time'),
    *context.place[1:],
    Column('clock', 'Latency', _clock, 'modelled, or on the clock'),
    Column('n', 'Points', _count, 'that the line goes through'),
    Column('slope', 'Slope', _digits(2), 'latency per rejection rate'),
    Column('intercept', 'Intercept', _digits(2), 'where nothing is rejected'),
    Column('r2', 'r²', _digits(3), 'share of the variance explained'),
  ]
  return Question(
    'Do rejections tell latency',
    'A line by least squares through the points of all methods, for each gamma'
    ' and batch size. Where r² is near 1, the rejection rate says all about the'
    ' latency; on the clock it is what else takes time that lowers it.',
    [Table('latency_fit', 'Fitted lines', table, columns)],
    drawings,
    'Too few points draft, or they all reject as much.',
  )


def _lengths(context: _Context) -> Question:
  frame = context.frame[np.isfinite(context.frame.mean_output_tokens)]
  frame = frame.assign(
    answer_speedup=frame.speedup / frame.length,
  )
  columns = [
    *context.head,
    *context.place,
    Column('mean_output_tokens', 'Tokens', _digits(1), 'per answer'),
    Column('length', "By the verifier's", _digits(3), 'with its 95 % interval'),
    Column(
      'unended_rate', 'Not ended', _digits(3), 'cut off by the longest allowed'
    ),
    Column('speedup', 'Speed-up per token', _digits(2), 'modelled'),
    Column(
      'answer_speedup', 'Per answer', _digits(2), 'speed-up of whole answers'
    ),
  ]
  return Question(
    'Do answers get longer',
    'Output length over that of the verifier alone, on the same examples, and'
    ' the share of answers that did not end by themselves. Longer answers eat'
    ' into the speed-up per token.',
    [Table('lengths', 'Every point', frame, columns)],
    otherwise='No point has answers.',
  )


def _typical(context: _Context, calibrated: pd.DataFrame) -> list[int]:
  """A point of each curve: the calibrated one, else a middling lenience."""
  chosen = calibration.own(calibrated, 'quality').point.astype(int).tolist()
  points = context.found.points
  keys = [*comparisons.GROUP, 'run', 'variant']
  have = {tuple(points.loc[i, keys]) for i in chosen}
  rest = comparisons.at_gamma(points, comparisons.common_gamma(points))
  for key, part in rest.groupby(keys, sort=False):
    if key not in have:
      part = part.sort_values('lenience', kind='stable')
      chosen.append(part.index[len(part) // 2])
  return sorted(chosen)


def _places(
  context: _Context,
  calibrated: pd.DataFrame,
  counts: Mapping[int, positions.Counts],
) -> Question:
  frames = positions.frames(context.found.points, counts)
  typical = _typical(context, calibrated)
  shown = {k: f[f.point.isin(typical)] for k, f in frames.items()}
  drawings = []
  for name, part in context.tasks():
    own = {k: f[f.point.isin(part.index)] for k, f in shown.items()}
    # A curve of several runs would be several lines of one look.
    own = {
      k: f[f.run == f.groupby('variant').run.transform('first')]
      for k, f in own.items()
    }
    if len(own['by_block']):
      drawings.append(
        _for(
          name,
          figures.by_position(
            own['by_block'],
            own['by_answer'],
            context.looks,
            name=_named('positions', name),
          ),
        )
      )
  by_kind = shown['by_kind']
  keys = ['point', 'task', 'temperature', 'run', 'variant', 'lenience', 'gamma']
  wide = by_kind.pivot_table(
    index='point', columns='kind', values='rate', sort=False
  ).reindex(columns=positions.KINDS)
  table = (
    by_kind[keys]
    .drop_duplicates('point')
    .merge(wide, 'left', left_on='point', right_index=True)
  )
  head = [c for c in context.head if c.field != 'batch_size']
  columns = [
    *head,
    *context.place,
    *(
      Column(name, name.capitalize(), _digits(3), 'deferred, of those examined')
      for name in positions.KINDS
    ),
  ]

  def whole(name: str, title: str) -> Table:
    return Table(name, title, frames[name].iloc[:0], (), frames[name])

  return Question(
    'Where drafts are kept, and what is deferred',
    'On the left, how many of the drafts that verification reached were kept,'
    ' by their place in the block; on the right, how often the rule defers, by'
    f' the place in the answer, {positions.WIDTH} tokens together. Each method'
    ' is shown at the lenience calibrated for quality above, else at a middling'
    ' one; all points are in the CSV files.',
    [
      Table(
        'by_kind',
        'Deferred, by what a token is made of',
        table,
        columns,
        frames['by_kind'],
      ),
      whole('by_block', 'Acceptance by place in the block'),
      whole('by_answer', 'Deferrals by place in the answer'),
    ],
    drawings,
    'No method drafts.',
  )


def above(frame: pd.DataFrame, name: str, place: str) -> str:
  """In a sentence, whether a cascade is above both models, and by how much.

  Args:
    frame: From `best`.
    name: The first row's method, for people.
    place: Where on its curve it is, for people.
  """
  row = frame.iloc[0]
  low = min(row.over_verifier_low, row.over_drafter_low)
  by = styles.number(abs(row.above), 3)
  where = f'{name} at {place}'
  if row.above > 0:
    sure = (
      'and its intervals over both are above 0'
      if low > 0
      else 'but within what chance could give'
    )
    return f'{where} is above both models alone, by {by}, {sure}.'
  return (
    f'No cascade is above both models alone: {where} comes nearest, and lacks'
    f' {by} of the better one.'
  )
