"""Rebuilds the page of a finished run from its workdir.

Command: python -m experiments.report --workdir=runs/sweep
Shows: the path of the page, `report/index.html` under the workdir. Tables (CSV)
and figures (SVG, PNG) are written beside the page. The command needs no
accelerator and loads no model.

A folder whose sweep is not finished has no page: a table shows the points that
are there, the others are named, and the exit code is 4.

`--compare=token_v3@0.95,speed@0` prints how two points (method@lenience, and
@gamma where a sweep has several) differ in speed and quality, and no page.
"""

import pathlib
import sys

from absl import app, flags

from cascades import files
from cascades.arguments import options_of
from experiments import cli, records
from experiments.analysis.analysis_config import AnalysisConfig

_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of a finished run.')
_COMPARE = flags.DEFINE_list(
  'compare', [], 'Two points to compare instead, with a comma between them.'
)
# The rest are those of a sweep's decision.
_OPTIONS = 'margin', 'resamples', 'seed'
cli.define_options({x: options_of(AnalysisConfig)[x] for x in _OPTIONS})


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
  if records.read_plan(_WORKDIR.value)[1]:
    print(_unfinished(_WORKDIR.value))
    sys.exit(4)
  run = runs.read(_WORKDIR.value)
  if not _COMPARE.value:
    print(*run.mixed, reports.write_report(run, config), sep='\n')
    return
  for sentence in comparisons.compare_named(run, _COMPARE.value, config):
    print(files.printable(sentence))


def _unfinished(workdir: str) -> str:
  """Names the points that a workdir lacks, below a table of those it has."""
  import pandas as pd

  from experiments.records import metrics

  paths, missing = records.read_plan(workdir)
  lines = [line for path in paths.values() for line in records.read(path)]
  rows = []
  for point in metrics.by_point(lines).values():
    first, answers = point[0], [x for x in point if x.failure is None]
    row = first.task, first.variant, first.gamma, first.lenience
    rows.append([*row, len(answers), metrics.quality(answers)])
  names = 'task method gamma lenience answers quality'.split()
  table = pd.DataFrame(rows, columns=names).to_string(index=False)
  strays = len([*pathlib.Path(workdir).glob('records/*.jsonl')]) - len(paths)
  # A name may hold control characters.
  return files.printable(
    f'{table}\n{workdir} lacks {len(missing)} of {len(missing) + len(paths)}'
    ' points; the command of its sweep decodes them. It has'
    f' {strays} points of other plans. Missing:\n  ' + '\n  '.join(missing)
  )


if __name__ == '__main__':
  cli.run(main)
