"""Rebuilds the page of a finished run from its workdir.

Command: python -m experiments.report --workdir=runs/sweep
Shows: the path of the page, `report/index.html` under the workdir. Tables (CSV)
and figures (SVG, PNG) are written beside the page. The command needs no
accelerator and loads no model.

`--compare=token_v3@0.95,speed@0` prints how two points (method@lenience, and
@gamma where a sweep has several) differ in speed and quality, and no page.
"""

from absl import app, flags

from cascades import files
from cascades.arguments import options_of
from experiments import cli
from experiments.analysis.analysis_config import AnalysisConfig

_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of a finished run.')
_COMPARE = flags.DEFINE_list(
  'compare', [], 'Two points to compare instead, with a comma between them.'
)
# The rest are those of a sweep's decision.
_OPTIONS = 'margin', 'resamples', 'seed'
cli.define_options(
  {name: options_of(AnalysisConfig)[name] for name in _OPTIONS}
)


def main() -> None:
  """Runs the command."""
  if not _WORKDIR.value:
    raise app.UsageError(
      'workdir: no folder is given; give the folder of a finished run, such as'
      ' --workdir=runs/sweep.'
    )
  # Imported after the flags are parsed, so that a mistyped flag fails at once.
  from experiments import reports
  from experiments.analysis import comparisons, runs

  config = AnalysisConfig(
    **{name: flags.FLAGS[name].value for name in _OPTIONS}
  )
  run = runs.read(_WORKDIR.value)
  if not _COMPARE.value:
    print(reports.write_report(run, config))
    return
  for sentence in comparisons.compare_named(run, _COMPARE.value, config):
    print(files.printable(sentence))


if __name__ == '__main__':
  cli.run(main)
