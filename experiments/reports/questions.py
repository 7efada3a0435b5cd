"""What the report answers: how to read the frames that answer each question.

`experiments.analysis` makes the frames; a function here says what a frame is
called, which of its columns people see and what is drawn of it. `QUESTIONS`, at
the end, lists these functions in the order of the page.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from experiments.analysis import (
  calibration,
  comparisons,
  method_kinds,
  mixture,
  race,
  risk,
)
from experiments.analysis.analysis_config import AnalysisConfig
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
    points: Points and answers.
    looks: Styles by variant.
    config: Margins, targets and how intervals are drawn.
    raced: Points and answers of arms that were timed, if any were.
  """

  points: Points
  looks: Mapping[str, styles.Style]
  config: AnalysisConfig
  raced: Points | None = None

  @functools.cached_property
  def frame(self) -> pd.DataFrame:
    """Every point against the verifier alone."""
    return comparisons.compare(self.points, self.config)

  @functools.cached_property
  def mixed(self) -> pd.DataFrame:
    """Every point over all tasks, against both models alone."""
    return mixture.mix(self.points, self.config)

  @functools.cached_property
  def calibrated(self) -> pd.DataFrame:
    """Leniences chosen on a half of the examples, judged on the other."""
    return calibration.calibrate(self.points, self.config)

  @property
  def several_gammas(self) -> bool:
    """Whether points differ in gamma, so that it is named."""
    gammas = self.points.table.gamma
    return gammas[gammas > 0].nunique() > 1

  @property
  def head(self) -> list[Column]:
    """Columns that tell where a row is from."""
    points, head = self.points.table, [TASK]
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


def _two_sided(context: Context) -> Question:
  """The paper's table."""
  table = comparisons.two_sided(context.frame)
  columns = [
    *context.head,
    *context.place,
    SPEEDUP,
    Column('best_lenience', 'Best: lenience', styles.lenience, 'other side'),
    *(dataclasses.replace(c, field='best_gamma') for c in context.place[1:]),
    DIFFERENCE,
    BEST_SPEEDUP,
  ]
  return Question(
    'How fast at the same quality, how good at the same speed',
    'For each method, on the left its fastest point whose quality is that of'
    ' the verifier alone: the lower end of the paired 95 % interval of the'
    f' difference is above {styles.MINUS}{context.config.margin:g} of the best'
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
  table = race.compare(context.raced, context.config)
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
  table = method_kinds.best_of_kinds(context.frame)
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
  alike = method_kinds.compare_with_truncation(context.points, context.config)
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
  frame = mixture.multi_task_points(context.mixed)
  best = mixture.best_per_curve(frame)
  drawings, parts = [], list(frame.groupby(['temperature', 'run'], sort=False))
  for i, ((temperature, run), part) in enumerate(parts):
    drawn = figures.curves(
      # At the gamma of most.
      context.placed(comparisons.at_common_gamma(part)),
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
    'All tasks together, each counting as much as any other, as a share of its'
    ' best score. Of each method the point that is furthest above the better of'
    ' the two models alone, chosen on these same examples.',
    [Table('mixture', 'All tasks together', best, columns, frame)],
    drawings,
    'It takes at least two tasks, and both models alone on each.',
  )


def _front(context: Context) -> Question:
  """What is not beaten."""
  best = comparisons.pareto(context.frame)
  drawings = []
  several = context.frame.temperature.nunique() > 1
  for (task, temperature), part in context.frame.groupby(GROUP, sort=False):
    own = best.index[best.index.isin(part.index)]
    if len(own):
      name = f'{task}, temperature {temperature:g}' if several else task
      # A task may have any name, and a file may not.
      file = re.sub('[^A-Za-z0-9_.]+', '-', name)
      part = context.placed(part)
      drawing = figures.front(
        part, part.loc[own], context.looks, name=f'pareto-{file}'
      )
      drawings.append(
        dataclasses.replace(drawing, caption=styles.words(name), wide=False)
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


def _calibrated(context: Context) -> Question:
  """Leniences that were not chosen where they are judged."""
  table, config = context.calibrated, context.config
  asked = {
    'quality': f'at most {config.loss:g} of quality lost',
    'latency': f'modelled latency of at most {config.latency:g}',
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
        table[table.target == target].drop(columns='point'),
        [*columns, regret],
      )
    )
  return Question(
    'Can the lenience be chosen beforehand',
    'Lenience is chosen on one half of the examples and judged on the other'
    f' (halves by a hash of the id, seed {config.seed}), at one gamma for'
    ' all.',
    tables,
    otherwise='There are too few examples, or no verifier alone, to choose by.',
  )


def _guaranteed(context: Context) -> Question | None:
  """Leniences that lose little, with a guarantee."""
  config = context.config
  table = risk.control(context.points, config)
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
    f' {config.risk:g} of the quality against the verifier, with probability'
    f' {1 - config.delta:g} or more whatever the examples are: tested from'
    ' strict on, up to the first that is not shown to lose so little'
    ' (learn-then-test, arXiv 2110.01052; by betting, 2010.09686). It holds for'
    ' one curve, chosen before.' + few,
    [Table('guaranteed', 'Leniences with a guarantee', table, columns)],
  )


def _tested(context: Context) -> Question:
  """Whether a difference could be chance."""
  table = calibration.significance(
    context.points, context.calibrated, context.config
  )
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


# In the order of the page. Each says how to read what answers a question, or
# gives None where it is not worth asking.
QUESTIONS: tuple[Callable[[Context], Question | None], ...] = (
  _two_sided,
  _raced,
  _kinds,
  _front,
  _mixture,
  _guaranteed,
  _calibrated,
  _tested,
)


def _asked(
  ask: Callable[[Context], Question | None], context: Context
) -> Question | None:
  """Asks one question; where that fails, what is said is that it did.

  The page is the last step of a run that may have taken hours.
  """
  try:
    return ask(context)
  except Exception as error:
    title = ask.__name__.strip('_').replace('_', ' ').capitalize()
    return Question(
      title,
      'What the records say of this could not be shown.',
      otherwise=f'{type(error).__name__}: {error}',
    )


def answer(context: Context) -> list[Question]:
  """All questions that are worth asking, in the order of the page."""
  answers = [_asked(ask, context) for ask in QUESTIONS]
  return [question for question in answers if question is not None]
