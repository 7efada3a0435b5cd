"""Rebuilds the page of a finished run, or of several, from their workdirs.

Command: python -m experiments.report --workdir=runs/sweep
Shows: the path of the page, `report/index.html` under the workdir. Tables (CSV,
Markdown) and figures (SVG, PNG) are written beside the page. The command needs
no accelerator and loads no model.

Several workdirs, `--workdir=runs/a,runs/b`, are compared on one page, in
`report/with-b` of the first. Their prompts, data, seed, temperature,
truncation, weights, max_new_tokens, shots, chat and stop_strings must be equal.
`--allow=seed,...` names settings that may differ; the page names them too.

`--compare=token_v3@0.95,speed@0` prints how two points (method@lenience, and
@gamma where a sweep has several) differ in speed and quality, and no page.
"""

from absl import app, flags

from cascades import files
from cascades.arguments import options_of
from experiments import cli
from experiments.analysis.analysis_config import AnalysisConfig

_WORKDIR = flags.DEFINE_list(
  'workdir', None, 'Folders of finished runs, with commas between them.'
)
_ALLOW = flags.DEFINE_list(
  'allow', [], 'Settings that may differ between workdirs; by default none.'
)
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
  workdirs = [path for path in _WORKDIR.value or () if path]
  if not workdirs:
    raise app.UsageError(
      'workdir: no folder is given; give the folder of a finished run, such as'
      ' --workdir=runs/sweep.'
    )
  # Imported after the flags are parsed, so that a mistyped flag fails at once.
  from experiments.analysis import named_points, runs

  config = AnalysisConfig(
    **{name: flags.FLAGS[name].value for name in _OPTIONS}
  )
  contents = list(map(runs.read, workdirs))
  if not _COMPARE.value:
    from experiments.reports import write_report

    print(write_report(contents, config, allow=_ALLOW.value))
    return
  differing = runs.check(contents, _ALLOW.value)
  for sentence in named_points.compare(contents, _COMPARE.value, config):
    print(files.printable(sentence))
  if differing:
    print(f'The workdirs differ in {", ".join(differing)}.')


if __name__ == '__main__':
  cli.run(main)
