"""The page of a run: made of a workdir, without a model.

The folder `report/` gets `index.html`, `tables/` (CSV) and `figures/` (SVG and
PNG). Frames and numbers come from `analysis`; `page.html` is the template.
"""

from experiments.analysis.analysis_config import AnalysisConfig
from experiments.reports.page import write_report
