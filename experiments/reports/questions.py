"""What the report answers: how to read the frames that answer each question.

`experiments.analysis` makes the frames; a function here says what a frame is
called, which of its columns people see and what is drawn of it. `QUESTIONS`, at
the end, lists these functions in the order of the page.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from experiments.analysis import (
  calibration,
  comparisons,
  kinds,
  mixture,
  positions,
  race,
  risk,
)
from experiments.analysis.choice import Choice
from experiments.analysis.runs import GROUP, Points
from experiments.reports import figures, styles
from experiments.reports.columns import (
  BATCH,
  BEST_SPEEDUP,
  DIFFERENCE,
  EXAMPLES,
  GAMMA,
  LATENCY,
  LENIENCE,
  QUALITY,
  RUN,
  SPEEDUP,
  TASK,
  TEMPERATURE,
  Column,
  count,
  digits,
  p_value,
  size,
  texts,
  yes,
)
from experiments.reports.drawings import Drawing
from experiments.reports.tables import Table

NO_VERIFIER = (
  'No task has a quality, the verifier alone, and a method to compare with it.'
)


@dataclasses.dataclass(frozen=True)
class Question:
  """A section of the page.

  Attributes:
    title: What is asked.
    guide: How to read what answers it.
    tables: What is shown, those without rows left out.
    drawings: What is drawn.
    otherwise: Why there is nothing, where there is nothing.
  """

  title: str
  guide: str
  tables: Sequence[Table] = ()
  drawings: Sequence[Drawing] = ()
  otherwise: str = NO_VERIFIER


# Frames are not equal to anything in one word.
@dataclasses.dataclass(frozen=True, eq=False)
class Context:
  """What every question is answered with.

  Attributes:
    found: Points and answers.
    counts: What was counted in traces, by row of the points.
    looks: Styles by variant.
    choice: Margins, targets and how intervals are drawn.
    raced: Points and answers of arms that were timed, if any were.
  """

  found: Points
  counts: Mapping[int, positions.Counts]
  looks: Mapping[str, styles.Style]
  choice: Choice
  raced: Points | None = None

  @functools.cached_property
  def frame(self) -> pd.DataFrame:
    """Every point against the verifier alone."""
    return comparisons.compare(self.found, self.choice)

  @functools.cached_property
  def calibrated(self) -> pd.DataFrame:
    """Leniences chosen on a half of the examples, judged on the other."""
    return calibration.calibrate(self.found, self.choice)

  @property
  def several_gammas(self) -> bool:
    """Whether points differ in gamma, so that it is named."""
    gammas = self.found.points.gamma
    return gammas[gammas > 0].nunique() > 1

  @property
  def head(self) -> list[Column]:
    """Columns that tell where a row is from."""
    points, head = self.found.points, [TASK]
    head += [TEMPERATURE] if points.temperature.nunique() > 1 else []
    return head + ([RUN, BATCH] if points.run.nunique() > 1 else [])

  @property
  def place(self) -> list[Column]:
    """Columns that tell which point of its curve a row is."""
    return [LENIENCE, GAMMA] if self.several_gammas else [LENIENCE]

  def placed(self, part: pd.DataFrame) -> pd.DataFrame:
    """With what people are told of where on its curve a point is."""
    shown = part.gamma if self.several_gammas else 0 * part.gamma
    return part.assign(place=list(map(styles.place, part.lenience, shown)))

  def tasks(self) -> list[tuple[str, pd.DataFrame]]:
    """Points that are drawn apart, with what people call them."""
    parts = list(self.frame.groupby(GROUP, sort=False))
    several = self.frame.temperature.nunique() > 1
    return [
      (f'{task}, temperature {t:g}' if several else task, part)
      for (task, t), part in parts
    ]


def _named(name: str, task: str) -> str:
  """A name for the files of a drawing, whatever the task is called."""
  return f'{name}-{re.sub("[^A-Za-z0-9_.]+", "-", task)}'


def _for(task: str, drawing: Drawing, **more) -> Drawing:
  """A drawing of one task among others."""
  return dataclasses.replace(drawing, caption=styles.words(task), **more)


def _two_sided(context: Context) -> Question:
  """The paper's table."""
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
    BEST_SPEEDUP,
  ]
  return Question(
    'How fast at the same quality, how good at the same speed',
    'For each method, on the left its fastest point whose quality is that of'
    ' the verifier alone: the lower end of the paired 95 % interval of the'
    f' difference is above {styles.MINUS}{context.choice.margin:g} of the best'
    ' score. On the right its best point that takes no longer than the'
    ' verifier. A dash is a method that has none. Both are chosen on these same'
    ' examples, which flatters them; below, they are chosen on others.',
    [
      Table(
        'two_sided_modelled',
        'Latency as modelled from counted calls',
        table,
        columns,
      )
    ],
  )


def _raced(context: Context) -> Question | None:
  """What the clock says, of arms that took turns at the same prompts."""
  if context.raced is None:
    return None
  table = race.compare(context.raced, context.choice)
  columns = [
    *(c for c in context.head if c is not TASK),
    *context.place,
    Column('wall_speedup', 'On the clock', digits(2), 'times as fast'),
    Column('speedup', 'Modelled', digits(2), 'of the same answers'),
    Column('by_model', 'Clock by model', digits(2), 'time; 1 is as modelled'),
    Column('n', 'Prompts', count, 'one at a time'),
  ]
  return Question(
    'What does the clock say',
    'A few arms against each other: the same prompts of all tasks, one at a'
    ' time, in turns, and the fewest seconds of three turns; reading the prompt'
    ' is left out. Nowhere else on this page is time on the clock compared, for'
    ' elsewhere arms were decoded in batches of different sizes.',
    [Table('race', 'Speed-ups over the verifier alone', table, columns)],
  )


def _kinds(context: Context) -> Question:
  """What else would do."""
  table = kinds.best_of_kinds(context.frame)
  table = table.rename(columns={'variant': 'fastest', 'kind': 'variant'})

  def name(variant: object) -> str:
    look = context.looks.get(variant)
    return look.label if look else texts(variant)

  # A kind has the best of all runs.
  head = [c for c in context.head if c.field in GROUP]
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
    BEST_SPEEDUP,
  ]
  alike = kinds.truncated_alike(context.found, context.choice)
  gained = "over min-p's, on the same examples, with its 95 % interval"
  faster = "by min-p's, with its 95 % interval"
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
          EXAMPLES,
          Column('gained', 'Quality gained', digits(3), gained),
          Column('faster', 'Speed', digits(2), faster),
        ],
      ),
    ],
    otherwise='Only one kind of decoding was run.',
  )


def _mixture(context: Context) -> Question:
  """All tasks together."""
  frame = mixture.mix(context.found, context.choice)
  best = mixture.best(frame)
  guide = (
    'All tasks together, each counting as much as any other, as a share of its'
    ' best score. Of each method the point that is furthest above the better of'
    ' the two models alone, chosen on these same examples.'
  )
  if len(best):
    first = best.iloc[0]
    place = styles.place(first.lenience, first.gamma * context.several_gammas)
    name = context.looks[first.variant].label
    guide = f'{above(best, name, place)} {guide}'
  drawings, parts = [], mixture.drawn(frame)
  for i, (temperature, run, part) in enumerate(parts):
    drawn = figures.curves(
      context.placed(part),
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
  gained = 'quality gained, on the same examples, with its 95 % interval'
  over = [
    Column(f'over_{model}', f'Over the {model}', digits(3), gained)
    for model in ('verifier', 'drafter')
  ]
  columns = [*context.head, *context.place, LATENCY, QUALITY, *over]
  return Question(
    'When is a cascade better than both models',
    guide,
    [Table('mixture', 'All tasks together', best, columns, frame)],
    drawings,
    'It takes at least two tasks, and both models alone on each.',
  )


def above(frame: pd.DataFrame, name: str, place: str) -> str:
  """In a sentence, whether a cascade is above both models, and by how much.

  Args:
    frame: The best points over all tasks, as `mixture.best` gives them; the
      first row is spoken of.
    name: What people call its method.
    place: Where on its curve it is, in words.
  """
  row = frame.iloc[0]
  by = styles.number(abs(row.above), 3)
  where = f'{name} at {place}'
  if row.above > 0:
    sure = (
      'and its intervals over both are above 0'
      if row.above_low > 0
      else 'but within what chance could give'
    )
    return f'{where} is above both models alone, by {by}, {sure}.'
  return (
    f'No cascade is above both models alone: {where} comes nearest, and lacks'
    f' {by} of the better one.'
  )


def _front(context: Context) -> Question:
  """What is not beaten."""
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


def _gammas(context: Context) -> Question | None:
  """What gamma adds to the lenience."""
  if not context.several_gammas:
    return None
  table = comparisons.gammas(context.frame)
  fixed = comparisons.common_gamma(context.frame)
  columns = [
    *context.head,
    Column('fixed_lenience', 'Lenience', styles.lenience, f'at gamma {fixed}'),
    Column(
      'fixed_speedup', f'Speed-up at gamma {fixed}', digits(2), 'modelled'
    ),
    Column('lenience', 'Lenience', styles.lenience, 'at the gamma of its own'),
    Column('gamma', 'Own gamma', size, 'that made it fastest'),
    dataclasses.replace(SPEEDUP, heading='Speed-up at its own'),
  ]
  return Question(
    'What a gamma of its own is worth',
    'The fastest point at the quality of the verifier, with one gamma for all'
    ' methods (that of most points), and with the one that suits the method.',
    [Table('gammas', 'Modelled latency', table, columns)],
    otherwise='No method was run at several gammas.',
  )


def _calibrated(context: Context) -> Question:
  """Leniences that were not chosen where they are judged."""
  table, choice = context.calibrated, context.choice
  asked = {
    'quality': f'at most {choice.loss:g} of quality lost',
    'latency': f'modelled latency of at most {choice.latency:g}',
  }
  given_away = {'quality': 'latency', 'latency': 'quality'}
  columns = [
    *context.head,
    Column('lenience', 'Chosen', styles.lenience, 'on one half'),
    Column('loss', 'Quality lost', digits(3), 'on the other half'),
    LATENCY,
    Column('kept', 'Target kept', yes, 'on the other half'),
    Column('best_lenience', 'Best there', styles.lenience, 'on that half'),
  ]
  tables = []
  for target, words in asked.items():
    regret = Column(
      'regret',
      f'Regret ({given_away[target]})',
      digits(3),
      'given away against the best of that half; less than 0 where the target'
      ' is not kept',
    )
    tables.append(
      Table(
        f'calibration_{target}',
        f'Target: {words}',
        calibration.own(table, target),
        [*columns, regret],
        table[table.target == target].drop(columns='point'),
      )
    )
  for target, words in asked.items():
    if table[table.target == target].task.nunique() > 1:
      tables.append(_transfer(context, target, words))
  return Question(
    'Can the lenience be chosen beforehand',
    'Lenience is chosen on one half of the examples and judged on the other'
    f' (halves by a hash of the id, seed {choice.seed}), at one gamma for all.'
    ' Where several tasks were run, the lenience of each is judged on the'
    ' others too.',
    tables,
    otherwise='There are too few examples, or no verifier alone, to choose by.',
  )


def _guaranteed(context: Context) -> Question | None:
  """Leniences that lose little, with a guarantee."""
  choice = context.choice
  table = risk.control(context.found, choice)
  if table.empty:
    return None
  table = table.assign(
    chosen=[
      f'{styles.lenience(row.lenience)}{" (strict)" if row.strict else ""}'
      if row.found or row.strict
      else f'none; strict ({styles.lenience(row.lenience)} was not shown)'
      for row in table.itertuples()
    ],
    of=[f'{row.found} of {row.tried}' for row in table.itertuples()],
  )
  columns = [
    *context.head,
    Column('chosen', 'Loosest lenience', texts, 'with the guarantee'),
    Column('of', 'Shown', texts, 'leniences that lose so little'),
    Column('lost', 'Quality lost', digits(3), 'on these examples'),
    LATENCY,
    Column('examples', 'Examples', count, 'answered at every lenience'),
  ]
  least = int(table.needed.iloc[0])
  few = (
    f' It takes at least {least} examples, more than there are: so it is strict'
    ' decoding.'
    if table.examples.max() < least
    else f' It takes at least {least} examples, if none of them loses anything.'
  )
  return Question(
    'How do I choose the lenience',
    'The loosest lenience that loses at most'
    f' {choice.risk:g} of the quality against the verifier, with probability'
    f' {1 - choice.delta:g} or more whatever the examples are: tested from'
    ' strict on, up to the first that is not shown to lose so little'
    ' (learn-then-test, arXiv 2110.01052; by betting, 2010.09686). It holds for'
    ' one curve, chosen before.' + few,
    [Table('guaranteed', 'Leniences with a guarantee', table, columns)],
  )


def _transfer(context: Context, target: str, words: str) -> Table:
  """A row per curve and task of choice, a column per task that judges.

  Args:
    context: What every question is answered with.
    target: Key of `calibration.TARGETS`.
    words: What the target is.
  """
  values, kept = calibration.by_judge(context.calibrated, target)
  frame, judges = values.index.to_frame(index=False), []
  what = 'quality lost' if target == 'quality' else 'latency'
  for i, task in enumerate(values):
    # As numbers of the task, whatever it is called.
    frame[f'on {i}'] = [
      styles.number(value, 3)
      if math.isnan(value)
      else f'{styles.number(value, 3)} {yes(mark)}'
      for value, mark in zip(values[task], kept[task], strict=True)
    ]
    heading = f'{styles.words(task)}: {what}'
    judges.append(Column(f'on {i}', heading, texts, 'where judged'))
  columns = [
    Column('chosen_on', 'Chosen on', styles.words, 'the task'),
    *(c for c in context.head if c is not TASK),
    *judges,
  ]
  return Table(
    f'transfer_{target}',
    f"One task's lenience on another; {words}",
    frame,
    columns,
    calibration.transfer(context.calibrated, target).reset_index(),
  )


def _tested(context: Context) -> Question:
  """Whether a difference could be chance."""
  table = calibration.tested(context.found, context.calibrated, context.choice)
  columns = [
    *context.head,
    *context.place,
    EXAMPLES,
    Column('only_verifier', 'Verifier alone right', count, 'method wrong'),
    Column('only_method', 'Method alone right', count, 'verifier wrong'),
    Column('p', 'p', p_value, "McNemar's exact test"),
    Column(
      'p_holm', 'p, corrected', p_value, 'Holm, over the methods of a task'
    ),
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


def _rejections(context: Context) -> Question:
  """Whether counts say how long it takes."""
  lines = comparisons.latency_fit(context.frame)
  drawings = []
  for name, part in context.tasks():
    task, temperature = part.iloc[0][GROUP]
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
    *(c for c in context.head if c in (TASK, TEMPERATURE)),
    BATCH,
    *context.place[1:],
    Column('n', 'Points', count, 'that the line goes through'),
    Column('slope', 'Slope', digits(2), 'latency per rejection rate'),
    Column('intercept', 'Intercept', digits(2), 'where nothing is rejected'),
    Column('r2', 'r²', digits(3), 'share of the variance explained'),
  ]
  return Question(
    'Do rejections tell latency',
    'A line by least squares through the points of all methods, for each gamma'
    ' and batch size. Where r² is near 1, the rejection rate says all about the'
    ' modelled latency.',
    [Table('latency_fit', 'Fitted lines', table, columns)],
    drawings,
    'Too few points draft, or they all reject as much.',
  )


def _lengths(context: Context) -> Question:
  """Whether tokens that are faster are more of them."""
  frame = comparisons.lengths(context.frame)
  columns = [
    *context.head,
    *context.place,
    Column('mean_output_tokens', 'Tokens', digits(1), 'per answer'),
    Column('length', "By the verifier's", digits(3), 'with its 95 % interval'),
    Column(
      'unended_rate', 'Not ended', digits(3), 'cut off by the longest allowed'
    ),
    Column('speedup', 'Speed-up per token', digits(2), 'modelled'),
    Column(
      'answer_speedup', 'Per answer', digits(2), 'speed-up of whole answers'
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


def _positions(context: Context) -> Question:
  """What traces say of places."""
  points = context.found.points
  counted = positions.frames(points, context.counts)
  typical = calibration.typical(points, context.calibrated)
  drawings = []
  for name, part in context.tasks():
    block, answer = positions.drawn(counted, part.index.intersection(typical))
    if len(block):
      drawing = figures.by_position(
        block, answer, context.looks, name=_named('positions', name)
      )
      drawings.append(_for(name, drawing))
  columns = [
    *(c for c in context.head if c is not BATCH),
    *context.place,
    *(
      Column(name, name.capitalize(), digits(3), 'deferred, of those examined')
      for name in positions.KINDS
    ),
  ]

  def file(name: str, title: str) -> Table:
    """A table that is a file, and not on the page."""
    return Table(name, title, counted[name].iloc[:0], (), counted[name])

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
        positions.kinds_beside(counted, typical),
        columns,
        counted['by_kind'],
      ),
      file('by_block', 'Acceptance by place in the block'),
      file('by_answer', 'Deferrals by place in the answer'),
    ],
    drawings,
    'No method drafts.',
  )


# In the order of the page. Each says how to read what answers a question, or
# gives None where it is not worth asking.
QUESTIONS: tuple[Callable[[Context], Question | None], ...] = (
  _two_sided,
  _raced,
  _kinds,
  _front,
  _mixture,
  _gammas,
  _guaranteed,
  _calibrated,
  _tested,
  _rejections,
  _lengths,
  _positions,
)


def answer(context: Context) -> list[Question]:
  """All questions that are worth asking, in the order of the page."""
  answers = [ask(context) for ask in QUESTIONS]
  return [question for question in answers if question is not None]
