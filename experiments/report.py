"""Rebuilds the page of a finished run, or of several, from their workdirs.

Command: python -m experiments.report --workdir=runs/sweep
Shows: the path of the page, `report/index.html` under the workdir. Tables (CSV,
Markdown, LaTeX) and figures (SVG, PNG) are written beside the page. The command
needs no accelerator and loads no model.

Several workdirs, `--workdir=runs/a,runs/b`, are compared on one page, in
`report/with-b` of the first. Their prompts, data, seed, temperature,
truncation, weights, max_new_tokens and shots must be equal. `--allow=seed,...`
names settings that may differ; the page names them too.
"""

from absl import app, flags

from experiments import cli
from experiments.analysis.analysis_config import AnalysisConfig

_WORKDIR = flags.DEFINE_list(
  'workdir', None, 'Folder of a finished run, or several folders.'
)
_ALLOW = flags.DEFINE_list(
  'allow', [], 'Settings that may differ between several workdirs.'
)
_MARGIN = flags.DEFINE_float(
  'margin',
  AnalysisConfig.margin,
  "Largest loss of quality that still counts as the verifier's quality.",
  lower_bound=0,
  upper_bound=1,
)
_LOSS = flags.DEFINE_float(
  'loss',
  AnalysisConfig.loss,
  'Largest loss of quality of a calibrated lenience.',
  lower_bound=0,
  upper_bound=1,
)
_LATENCY = flags.DEFINE_float(
  'latency',
  AnalysisConfig.latency,
  'Largest latency of a calibrated lenience; the verifier alone has 1.',
  lower_bound=0,
)
_RISK = flags.DEFINE_float(
  'risk',
  AnalysisConfig.risk,
  'Largest loss of quality of a guaranteed lenience.',
  lower_bound=0.001,
  upper_bound=1,
)
_DELTA = flags.DEFINE_float(
  'delta',
  AnalysisConfig.delta,
  'Probability with which the guarantee may fail.',
  lower_bound=0.0001,
  upper_bound=0.9999,
)
_RESAMPLES = flags.DEFINE_integer(
  'resamples',
  AnalysisConfig.resamples,
  'Number of bootstrap resamples of the examples.',
  lower_bound=1,
)
_SEED = flags.DEFINE_integer(
  'bootstrap_seed',
  AnalysisConfig.seed,
  'Seed of the resamples and of the halves of the examples.',
  lower_bound=0,
)
_FIGURES = flags.DEFINE_bool(
  'figures', True, 'Whether to write each figure of the page as files too.'
)


def main() -> None:
  """Runs the command."""
  if not _WORKDIR.value:
    raise app.UsageError(
      '--workdir: must name the folder of a finished run; give'
      ' --workdir=runs/sweep.'
    )
  # Imported after the flags are parsed, so that a mistyped flag fails at once.
  from experiments.reports import write_report

  config = AnalysisConfig(
    margin=_MARGIN.value,
    resamples=_RESAMPLES.value,
    seed=_SEED.value,
    loss=_LOSS.value,
    latency=_LATENCY.value,
    risk=_RISK.value,
    delta=_DELTA.value,
  )
  workdirs = [path for path in _WORKDIR.value if path]
  path = write_report(
    workdirs, config, allow=_ALLOW.value, figures=_FIGURES.value
  )
  print(path)


if __name__ == '__main__':
  cli.run(main)
