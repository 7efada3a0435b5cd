"""The page: one HTML file without other files or network requests.

Plots are inline SVG with the colours of the style sheet, which has a light and
a dark set. The script sorts tables, highlights a curve and shows the details
of a token; all content is visible without it.
"""

import dataclasses
import importlib.resources
from collections.abc import Mapping, Sequence

import pandas as pd

from experiments import escapes
from experiments.analysis import slices
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.example_selection import SelectedAnswer
from experiments.analysis.runs import Run
from experiments.reports import (
  examples,
  html_parts,
  run_description,
  slice_sections,
  styles,
  tables,
)
from experiments.reports.drawings import Drawing
from experiments.reports.first_screen import FirstScreen
from experiments.reports.sections import Section

# Style sheets and scripts beside this module. In the first style sheet, $light
# and $dark are replaced by the colours of the curves.
_STYLES = ('page.css', 'tokens.css')
_SCRIPTS = ('page.js', 'tokens.js')


# The field `frame` is a frame, whose == is not one truth value.
@dataclasses.dataclass(frozen=True, eq=False)
class PageContent:
  """The content of a page."""

  frame: pd.DataFrame
  answers: Sequence[SelectedAnswer]
  runs_by_name: Mapping[str, Run]
  screens: Sequence[FirstScreen]
  sections: Sequence[Section]
  curve_styles: styles.CurveStyles
  config: AnalysisConfig
  notice: str = ''


def _inlined(names: Sequence[str]) -> str:
  """Returns the files of these names as one text."""
  folder = importlib.resources.files('experiments.reports')
  return '\n'.join(
    (folder / name).read_text(encoding='utf-8') for name in names
  )


def style_sheet(curve_styles: styles.CurveStyles) -> str:
  """Returns the style sheet with the colours of the curves."""

  def colours(theme: str) -> str:
    return ' '.join(
      f'{s.variable}: {getattr(s, theme)};' for s in curve_styles.values()
    )

  text = _inlined(_STYLES).replace('$light', colours('light'))
  return text.replace('$dark', colours('dark'))


def _first_screen(
  screens: Sequence[FirstScreen], curve_styles: styles.CurveStyles
) -> str:
  """Returns the figures of the first screen with their sentences."""
  parts = []
  for screen in screens:
    variants = html_parts.variants_in(screen.drawing.svg, curve_styles)
    answers = ''.join(
      f'<li>{escapes.for_html(answer)}</li>' for answer in screen.answers
    )
    parts.append(f"""<section class="first">
<div>{html_parts.figure(screen.drawing)}</div>
<div><ol>{answers}</ol>
{html_parts.legend(variants, curve_styles)}</div>
</section>""")
  return '\n'.join(parts)


def _analysis_section(
  section: Section, curve_styles: styles.CurveStyles, notice: str
) -> str:
  """Returns an analysis section; `notice` is above each table, or empty."""
  parts, drawings = [], section.drawings
  if drawings:
    svg = ''.join(drawing.svg for drawing in drawings)
    variants = html_parts.variants_in(svg, curve_styles)
    parts.append(html_parts.legend(variants, curve_styles))
  parts += [html_parts.figure(d, wide=True) for d in drawings if d.wide]
  narrow = ''.join(html_parts.figure(d) for d in drawings if not d.wide)
  parts += [f'<div class="pair">{narrow}</div>'] if narrow else []
  for table in section.tables:
    rows = len(table.frame)
    if rows:
      text = tables.interactive(table, curve_styles, notice)
      parts.append(html_parts.folded(text, table.title, rows))
  if not parts:
    empty_text = escapes.for_html(section.empty_text)
    parts = [f'<p class="guide">{empty_text}</p>']
  body = '\n'.join(parts)
  return f"""<section class="analysis" id="{html_parts.anchor(section.title)}">
<h2>{escapes.for_html(section.title)}</h2>
<p class="guide">{escapes.for_html(section.guide)}</p>
{body}
</section>"""


def _header(content: PageContent, title: str, left_out: Sequence[str]) -> str:
  """Returns the title, the setting of the runs, and notices."""
  notices = [content.notice] if content.notice else []
  notices += run_description.cost_notices(content.runs_by_name)
  for run in content.runs_by_name.values():
    notices += slices.unsolved(run.summary)
  paragraphs = ''.join(
    f'<p class="notice">{escapes.for_html(notice)}</p>\n'
    for notice in [*notices, *left_out]
  )
  lead = run_description.lead(content.runs_by_name, content.frame)
  return f"""<header>
<h1>{escapes.for_html(title)}</h1>
<p class="lead">{escapes.for_html(lead)}</p>
{paragraphs}</header>"""


def _example_section(content: PageContent) -> str:
  """Returns the section of answers that are shown token by token."""
  gammas = content.frame.gamma
  gamma_varies = gammas[gammas > 0].nunique() > 1
  return examples.section(content.answers, content.curve_styles, gamma_varies)


def render(
  content: PageContent, left_out: Sequence[str] = ()
) -> tuple[str, list[Drawing]]:
  """Renders the page as HTML."""
  curve_styles = content.curve_styles
  first_run = next(iter(content.runs_by_name.values()))
  title = str(first_run.config.get('name') or 'Speculative cascades')
  parts = list(slices.slice_summary(content.frame))
  rendered = [
    slice_sections.slice_section(
      part, curve_styles, f'p{i}', content.config.margin
    )
    for i, part in enumerate(parts)
  ]
  drawings = [screen.drawing for screen in content.screens]
  drawings += [drawing for _, of_part in rendered for drawing in of_part]
  drawings += [d for section in content.sections for d in section.drawings]
  slice_html = '\n'.join(text for text, _ in rendered)
  analysis_html = '\n'.join(
    _analysis_section(section, curve_styles, content.notice)
    for section in content.sections
  )
  titles = [slice_sections.title_of(part) for part in parts]
  titles += [section.title for section in content.sections]
  text = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escapes.for_html(title)}: quality and latency</title>
<style>
{style_sheet(curve_styles)}</style>
</head>
<body>
{_header(content, title, left_out)}
<main>
{_first_screen(content.screens, curve_styles)}
{html_parts.contents(titles)}
{slice_html}
{analysis_html}
{_example_section(content)}
</main>
{run_description.footer(content.runs_by_name, content.config)}
<script>
{_inlined(_SCRIPTS)}</script>
</body>
</html>
"""
  return text, drawings
