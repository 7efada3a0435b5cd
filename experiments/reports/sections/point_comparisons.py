"""Sections that compare points: with the verifier, peers, and each other."""

import dataclasses
import re

from experiments.analysis import comparisons, method_kinds, mixture, race
from experiments.analysis.runs import GROUP
from experiments.reports import figures, styles
from experiments.reports.columns import (
  BEST_SPEEDUP,
  DIFFERENCE,
  EXAMPLES,
  LATENCY,
  QUALITY,
  RATIO,
  SCORE,
  SPEEDUP,
  TASK,
  Column,
  count,
  text_or_dash,
)
from experiments.reports.sections.section import Section, SectionContext
from experiments.reports.tables import Table


def _best_columns(context: SectionContext) -> list[Column]:
  """Returns the columns that identify the best point of a row."""
  return [
    dataclasses.replace(
      column, field=f'best_{column.field}', heading=f'Best: {column.field}'
    )
    for column in context.point_columns
  ]


def two_sided(context: SectionContext) -> Section:
  """Builds the section of the paper's table."""
  table = comparisons.two_sided(context.frame)
  columns = context.columns(
    SPEEDUP, *_best_columns(context), DIFFERENCE, BEST_SPEEDUP
  )
  return Section(
    'Speed at equal quality, quality at equal speed',
    'The left columns show the fastest point of each method at the quality of'
    ' the verifier alone: the lower end of the paired 95 % interval of the'
    f' difference is above {styles.MINUS}{context.config.margin:g} of the best'
    ' score. The right columns show the point of the highest quality that takes'
    ' no longer than the verifier alone. A dash marks a method without such a'
    ' point. Both are chosen on these same examples, which favours them.',
    [Table('two_sided_modelled', 'Fastest and best points', table, columns)],
  )


def wall_clock(context: SectionContext) -> Section | None:
  """Builds the section of measured speed-ups."""
  if context.timed_points is None:
    return None
  table = race.compare(context.timed_points, context.config)
  columns = [
    *(c for c in context.group_columns if c is not TASK),
    *context.point_columns,
    Column('wall_speedup', 'Measured speed-up', RATIO, 'of wall-clock time'),
    Column('speedup', 'Modelled speed-up', RATIO, 'of the same answers'),
    Column(
      'by_model', 'Measured / modelled time', RATIO, '1 if the model is exact'
    ),
    Column('n', 'Prompts', count, 'decoded one at a time'),
  ]
  return Section(
    'Measured and modelled speed-ups',
    'Selected points decoded the same prompts of all tasks, one at a time and'
    ' in turn; the shortest of three wall-clock times counts, without prefill.'
    ' All other speed-ups on this page are modelled, because other points were'
    ' decoded in batches of different sizes.',
    [Table('race', 'Speed-ups over the verifier alone', table, columns)],
  )


def simpler_decoding(context: SectionContext) -> Section:
  """Builds the section that compares kinds of decoding."""
  table = method_kinds.best_of_kinds(context.frame)
  table = table.rename(columns={'variant': 'fastest', 'kind': 'variant'})

  def name(variant: object) -> str:
    style = context.curve_styles.get(variant)
    return style.label if style else text_or_dash(variant)

  # Runs are not told apart: a kind is represented by the best of all runs.
  columns = [
    *(c for c in context.group_columns if c.field in GROUP),
    Column('fastest', 'Fastest', name, "at the verifier's quality"),
    *context.point_columns,
    SPEEDUP,
    Column('best_variant', 'Best', name, "within the verifier's latency"),
    *_best_columns(context),
    DIFFERENCE,
    BEST_SPEEDUP,
  ]
  gained = 'from min-p, on the same examples, with its 95 % interval'
  return Section(
    'Comparison with simpler decoding',
    'The first table shows each kind of decoding by its best points; a kind'
    ' with more points had more chances. A speculative cascade has a deferral'
    ' rule; relaxed decoding accepts more drafts than strict decoding without'
    ' one. Other methods are your own without a deferral rule. Sequential'
    ' cascades do not speculate; sequence-level cascades keep or replace the'
    ' whole answer of the drafter. If the sweep has min-p, a second table'
    ' compares TokenV3 with strict decoding of the verifier truncated by min-p'
    f' at 1 {styles.MINUS} lenience, which restricts both to the same tokens:'
    ' the difference is the contribution of the drafter, without that of'
    ' truncation.',
    [
      Table('kinds', 'Kinds of decoding', table, columns, row_heading='Kind'),
      Table(
        'truncated_alike',
        'TokenV3 against the verifier truncated to the same tokens',
        method_kinds.compare_with_truncation(context.points, context.config),
        context.columns(
          EXAMPLES,
          Column('gained', 'Quality difference', SCORE, gained),
          Column('faster', 'Modelled speed-up', RATIO, 'over min-p'),
        ),
      ),
    ],
    empty_text='The sweep has only one kind of decoding.',
  )


def gain_over_both(context: SectionContext) -> Section:
  """Builds the section of all tasks together, against both models."""
  frame = mixture.multi_task_points(context.mixed)
  best = mixture.best_per_curve(frame)
  drawings, parts = [], list(frame.groupby(['temperature', 'run'], sort=False))
  for i, ((temperature, run), part) in enumerate(parts):
    drawing = figures.curves(
      context.with_point_labels(comparisons.at_common_gamma(part)),
      context.curve_styles,
      x='latency',
      y='quality',
      name=f'mixture-{i}' if len(parts) > 1 else 'mixture',
      size=(10.4, 5.2),
    )
    labels = [
      f'temperature {temperature:g}' if frame.temperature.nunique() > 1 else '',
      run if frame.run.nunique() > 1 else '',
    ]
    caption = ', '.join([mixture.ALL, *filter(None, labels)])
    drawings.append(dataclasses.replace(drawing, caption=caption))
  gained = 'quality difference, on the same examples, with its 95 % interval'
  gains = [
    Column(f'over_{model}', f'Gain over {model} alone', SCORE, gained)
    for model in ('verifier', 'drafter')
  ]
  columns = context.columns(LATENCY, QUALITY, *gains)
  return Section(
    'Gain over both models',
    'Quality is the mean over all tasks, as a share of the best score of each.'
    ' The table shows the point of each method with the largest gain over the'
    ' better of the two models alone, chosen on these same examples.',
    [Table('mixture', 'All tasks together', best, columns, csv_frame=frame)],
    drawings,
    empty_text='This section needs both models alone on at least two tasks'
    ' whose metric is a mean over examples.',
  )


def pareto_front(context: SectionContext) -> Section:
  """Builds the section of the Pareto front of each task."""
  best = comparisons.pareto(context.frame)
  drawings = []
  has_temperatures = context.frame.temperature.nunique() > 1
  for (task, temperature), part in context.frame.groupby(GROUP, sort=False):
    indices = best.index[best.index.isin(part.index)]
    if len(indices):
      name = (
        f'{task}, temperature {temperature:g}' if has_temperatures else task
      )
      # The name of a task may have characters that a file name must not have.
      file = re.sub('[^A-Za-z0-9_.]+', '-', name)
      part = context.with_point_labels(part)
      drawing = figures.front(
        part, part.loc[indices], context.curve_styles, name=f'pareto-{file}'
      )
      caption = styles.words(task) + name.removeprefix(task)
      drawings.append(dataclasses.replace(drawing, caption=caption, wide=False))
  columns = context.columns(LATENCY, QUALITY, DIFFERENCE)
  return Section(
    'Pareto front',
    'For every point off the line, a point on the line has at most its modelled'
    ' latency and at least its quality. A front favours points with lucky'
    ' samples: points with overlapping intervals cannot be told apart.',
    [Table('pareto', 'Points on the Pareto front', best, columns)],
    drawings,
    empty_text='No point has a known quality.',
  )
