"""Analysis sections of the page, with a guide, tables and figures each.

`experiments.analysis` computes the frames. A section names a frame, tells how
to read it, and selects the columns and figures that are shown.

  section            A section of the page, and the frames of all sections.
  point_comparisons  Points against the verifier, peers, and each other.
  lenience_choices   The decision.
"""

from collections.abc import Callable

from experiments.reports.sections import lenience_choices, point_comparisons
from experiments.reports.sections.section import Section, SectionContext

__all__ = ['SECTIONS', 'Section', 'SectionContext', 'build_sections']

_Builder = Callable[[SectionContext], Section | None]

# In the order of the page. A builder returns None to leave its section out.
SECTIONS: tuple[_Builder, ...] = (
  lenience_choices.decision,
  point_comparisons.two_sided,
  point_comparisons.wall_clock,
  point_comparisons.simpler_decoding,
  point_comparisons.pareto_front,
  point_comparisons.gain_over_both,
)


def _build(builder: _Builder, context: SectionContext) -> Section | None:
  """Builds a section; if that fails, the section holds the error."""
  try:
    return builder(context)
  except Exception as error:
    return Section(
      builder.__name__.replace('_', ' ').capitalize(),
      'This section could not be computed from the records.',
      empty_text=f'{type(error).__name__}: {error}',
    )


def build_sections(context: SectionContext) -> list[Section]:
  """Builds all sections that the points allow, in the order of the page."""
  output = [_build(builder, context) for builder in SECTIONS]
  return [section for section in output if section is not None]
