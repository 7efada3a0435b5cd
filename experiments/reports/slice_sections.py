"""Sections of the page with the points of one task: tiles, plots, a table."""

import dataclasses

from experiments import escapes
from experiments.analysis import reference_points, slices
from experiments.analysis.slices import SummarySlice
from experiments.reports import figures, html_parts, styles, tables
from experiments.reports.drawings import Drawing
from experiments.tasks import quality_metric

# Captions of the plots, by the column of the horizontal axis or the plot.
_CAPTIONS = {
  'relative_latency': (
    'Up and to the left is better. Each line is one method as its lenience'
    ' grows; a latency below 1 is faster than the verifier alone. Bands are'
    ' 95 % intervals over {n} examples.'
  ),
  'rejection_rate': (
    'The same points by rejection rate: rejected drafts / examined drafts. Of'
    ' two lines, the higher one has more quality at the same rejection rate.'
  ),
  'panels': (
    'One panel for each method, with all methods in pale grey. Numbers at marks'
    ' are leniences, dashed lines are the two models alone, and bands are 95 %'
    ' intervals over {n} examples.'
  ),
  'latency_by_rejections': (
    'Lower is faster; below 1 is faster than the verifier alone. Points further'
    ' to the left have a lower rejection rate.'
  ),
  'relative_length': (
    'Mean tokens per answer. Above 1, answers are longer than those of the'
    ' verifier alone, which offsets part of the time saved per token.'
  ),
}
# Notes on how to read the section.
_NOTES = {
  'no_quality': (
    'This task measures speed only: its answers are not scored, and only strict'
    ' decoding is known to be lossless.'
  ),
  'gamma_tuned': (
    'Each point is shown at the gamma that made it fastest on these same'
    ' examples. The emitted tokens have the same distribution at any gamma, so'
    ' that quality differs by sampling noise only.'
  ),
  'verifier_bonus': (
    'With bonus tokens from the verifier, gamma changes the distribution of the'
    ' answers, and each gamma is a separate point.'
  ),
  'variants': (
    'Hollow marks on dashed lines are a method with other options than the'
    ' defaults, which the legend names in parentheses.'
  ),
  'lenient': 'Speculative decoding is strict, or lossless, at lenience 0 only.',
  'oracle': (
    'A sequential oracle reads the verifier at every token to decide, but its'
    ' latency counts only calls where it defers: a bound, not a method that can'
    ' be run.'
  ),
}


def _tiles(
  part: SummarySlice, curve_styles: styles.CurveStyles, margin: float
) -> str:
  """Returns tiles of both models alone and of the fastest point as good."""
  tiles = []
  for baseline in reference_points.BASELINES:
    rows = part.frame[part.frame.method == baseline]
    if len(rows):
      row = rows.iloc[0]
      value, detail = styles.number(row.relative_latency), 'modelled latency'
      if part.has_quality:
        detail = f'quality, at a modelled latency of {value}'
        value = styles.quality(row.quality)
      tiles.append(html_parts.tile(curve_styles[baseline].label, value, detail))
  fit = slices.no_worse(part)
  if fit is not None:
    limit = f'{styles.MINUS}{margin:g} of the best score'
    value = 'none'
    detail = f'no difference in quality is shown to be above {limit}'
    if len(fit):
      best = fit.iloc[0]
      value = f'{styles.number(1 / best.relative_latency)} times as fast'
      detail = (
        f'{curve_styles[best.variant].label}, {best.point_label}; the'
        f' difference in quality is shown to be above {limit}; chosen on these'
        ' same examples'
      )
    heading = "Fastest at the verifier's quality (modelled)"
    tiles.append(html_parts.tile(heading, value, detail))
  return f'<div class="tiles">{"".join(tiles)}</div>'


def title_of(part: SummarySlice) -> str:
  """Returns the title of a slice: its task, and what differs among slices."""
  parts = [styles.words(part.task)]
  parts += [part.run] if part.run else []
  if part.temperature is not None:
    parts.append(f'temperature {part.temperature:g}')
  if part.gamma_tuned:
    parts.append('gamma tuned')
  elif part.gamma is not None:
    parts.append(f'gamma {part.gamma}')
  return ', '.join(parts)


def _notes(part: SummarySlice, has_hollow_marks: bool) -> str:
  """Returns the notes that apply to a slice; empty if none does."""
  frame = part.frame
  applies = {
    'no_quality': not part.has_quality,
    'gamma_tuned': part.gamma_tuned,
    'verifier_bonus': part.gamma_tuned
    and (frame.bonus_from == 'verifier').any(),
    'variants': has_hollow_marks,
    'lenient': (frame.method == 'speed').any(),
    'oracle': frame.oracle.any(),
  }
  text = ' '.join(_NOTES[name] for name, holds in applies.items() if holds)
  if (metric := quality_metric(part.task)) and part.has_quality:
    name = styles.words(metric.scores[0])
    text = f'Quality is {name}, from 0 to {metric.scale:g}. {text}'
  return f'<p class="guide">{escapes.for_html(text)}</p>\n' if text else ''


def _plots(
  part: SummarySlice, curve_styles: styles.CurveStyles, name: str
) -> tuple[str, list[Drawing]]:
  """Draws a slice: two plots beside each other, and others below them."""
  frame, drawings = part.frame, []

  def figure(drawing: Drawing, caption: str) -> str:
    drawings.append(drawing)
    text = _CAPTIONS[caption].format(n=f'{frame.n.max():,}')
    return html_parts.figure(dataclasses.replace(drawing, caption=text))

  def against(x: str, y: str, caption: str, **size) -> str:
    drawing = figures.curves(
      frame, curve_styles, x=x, y=y, name=f'{name}-{x}-{y}', **size
    )
    return figure(drawing, caption)

  if part.has_quality:
    pair = against('relative_latency', 'quality', 'relative_latency')
    pair += against('rejection_rate', 'quality', 'rejection_rate')
  else:
    caption = 'latency_by_rejections'
    pair = against('rejection_rate', 'relative_latency', caption)
  below = ''
  if not frame.method.isin(reference_points.BASELINES).all():
    if part.has_quality:
      drawing = figures.curve_panels(
        frame,
        curve_styles,
        x='relative_latency',
        y='quality',
        name=f'{name}-panels',
      )
      below = figure(drawing, 'panels')
    if frame.relative_length.notna().any():
      x, y = 'relative_latency', 'relative_length'
      below += against(x, y, 'relative_length', size=(5.2, 5.3))
    below = f'<div class="panels">{below}</div>'
  return f'<div class="pair">{pair}</div>\n{below}', drawings


def slice_section(
  part: SummarySlice, curve_styles: styles.CurveStyles, name: str, margin: float
) -> tuple[str, list[Drawing]]:
  """Returns the section of a slice, with a folded section for each gamma."""
  frame = styles.with_point_labels(part.frame, part.gamma_tuned)
  part = dataclasses.replace(part, frame=frame)
  variants = [v for v in curve_styles if (frame.variant == v).any()]
  notes = _notes(part, any(curve_styles[v].dashes for v in variants))
  plots, drawings = _plots(part, curve_styles, name)
  by_gamma = '\n'.join(
    slice_section(one_gamma, curve_styles, f'{name}-{i}', margin)[0]
    for i, one_gamma in enumerate(part.by_gamma)
  )
  if by_gamma:
    by_gamma = (
      f'\n<details><summary>{escapes.for_html(styles.words(part.task))}'
      f', each gamma separately</summary>\n{by_gamma}\n</details>'
    )
  title = title_of(part)
  table = tables.summary(frame, curve_styles, part.gamma_tuned)
  text = f"""<section id="{html_parts.anchor(title)}">
<h2>{escapes.for_html(title)}</h2>
{notes}{_tiles(part, curve_styles, margin)}
{html_parts.legend(variants, curve_styles)}
{plots}
{html_parts.folded(table, 'All points', len(frame))}
</section>{by_gamma}"""
  return text, drawings
