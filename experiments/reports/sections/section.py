"""A section of the page, and the frames that all sections are built from."""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence

import pandas as pd

from experiments.analysis import comparisons, mixture
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import Points
from experiments.reports import styles
from experiments.reports.columns import (
  BATCH,
  GAMMA,
  LENIENCE,
  RUN,
  TASK,
  TEMPERATURE,
  Column,
)
from experiments.reports.drawings import Drawing
from experiments.reports.tables import Table

NOT_COMPARABLE = (
  'No task has a quality, the verifier alone, and a method to compare with it.'
)


@dataclasses.dataclass(frozen=True)
class Section:
  """A section of the page."""

  title: str
  guide: str
  tables: Sequence[Table] = ()
  drawings: Sequence[Drawing] = ()
  empty_text: str = NOT_COMPARABLE


# The field `points` holds frames, whose == is not one truth value.
@dataclasses.dataclass(frozen=True, eq=False)
class SectionContext:
  """The points, styles and settings that all sections are built from."""

  points: Points
  curve_styles: styles.CurveStyles
  config: AnalysisConfig
  timed_points: Points | None = None
  decision: pathlib.Path | None = None

  @functools.cached_property
  def frame(self) -> pd.DataFrame:
    """Every point compared with the verifier alone."""
    return comparisons.compare(self.points, self.config)

  @functools.cached_property
  def mixed(self) -> pd.DataFrame:
    """Every point over all tasks, compared with both models alone."""
    return mixture.mix(self.points, self.config)

  @property
  def gamma_varies(self) -> bool:
    """True if points differ in gamma, so that labels must name it."""
    gammas = self.points.table.gamma
    return gammas[gammas > 0].nunique() > 1

  @property
  def group_columns(self) -> list[Column]:
    """Columns of the task, and of temperature and run if they vary."""
    table, columns = self.points.table, [TASK]
    columns += [TEMPERATURE] if table.temperature.nunique() > 1 else []
    return columns + ([RUN, BATCH] if table.run.nunique() > 1 else [])

  @property
  def point_columns(self) -> list[Column]:
    """Columns that identify a point on its curve."""
    return [LENIENCE, GAMMA] if self.gamma_varies else [LENIENCE]

  def columns(self, *results: Column) -> list[Column]:
    """Returns the columns that identify a point, followed by its results."""
    return [*self.group_columns, *self.point_columns, *results]

  def with_point_labels(self, frame: pd.DataFrame) -> pd.DataFrame:
    """Adds a column `point_label` to the rows of a frame."""
    return styles.with_point_labels(frame, self.gamma_varies)
