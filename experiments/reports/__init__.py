"""The page of a run, or of several: made of workdirs, without a model.

The folder `report/` gets `index.html`, `tables/` (CSV and Markdown) and
`figures/` (SVG and PNG). Frames and numbers come from `analysis`; this package
presents them.

  page       What the page shows; `page.html` is its template.
  sentences  Three headline results.
  figure     Quality against latency.
  tables     Tables with their columns.
  answers    Answers side by side, token by token.
  styles     Labels and looks of curves, and formats of numbers.

A further table takes a function in `analysis` that makes a frame with a column
`variant`, the curve of a row, and an entry of `page.sections`.
"""

from experiments.analysis.analysis_config import AnalysisConfig
from experiments.reports.page import write_report

__all__ = ['AnalysisConfig', 'write_report']
