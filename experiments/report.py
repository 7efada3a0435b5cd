"""Rebuilds the page of a finished run, or of several, from their workdirs.

Command: python -m experiments.report --workdir=runs/sweep
Shows: the path of the page, `report/index.html` under the workdir; tables (CSV,
Markdown, LaTeX) and figures (SVG, PNG) lie beside it. Needs no accelerator and
loads no model.

Several workdirs, `--workdir=runs/a,runs/b`, are compared on one page, in
`report/with-b` of the first. They have to be alike in what they asked and how:
prompts, data, seed, temperature, truncation, weights, max_new_tokens and shots.
What may differ is said by `--allow=seed,...`, and stands on the page.
"""

from absl import app, flags

from experiments import cli
from experiments.analysis.analysis_config import AnalysisConfig

_WORKDIR = flags.DEFINE_list(
  'workdir', None, 'Folder of a finished run, or several of them.'
)
_ALLOW = flags.DEFINE_list(
  'allow', [], 'Settings that may differ between several workdirs.'
)
_MARGIN = flags.DEFINE_float(
  'margin',
  AnalysisConfig.margin,
  "What quality may lack and still be the verifier's.",
  0,
  1,
)
_LOSS = flags.DEFINE_float(
  'loss',
  AnalysisConfig.loss,
  'Quality that a calibrated lenience may lose.',
  0,
  1,
)
_LATENCY = flags.DEFINE_float(
  'latency',
  AnalysisConfig.latency,
  'Latency that a calibrated lenience may take.',
  0,
)
_RISK = flags.DEFINE_float(
  'risk',
  AnalysisConfig.risk,
  'Quality that a guaranteed lenience may lose.',
  0.001,
  1,
)
_DELTA = flags.DEFINE_float(
  'delta',
  AnalysisConfig.delta,
  'How often that guarantee may fail.',
  0.0001,
  0.9999,
)
_RESAMPLES = flags.DEFINE_integer(
  'resamples', AnalysisConfig.resamples, 'How often examples are drawn anew.', 1
)
_SEED = flags.DEFINE_integer(
  'bootstrap_seed',
  AnalysisConfig.seed,
  'Of the resamples, and of the halves of the examples.',
  0,
)
_FIGURES = flags.DEFINE_bool(
  'figures', True, 'Whether to write each figure of the page as files too.'
)


def main() -> None:
  """Runs the command."""
  if not _WORKDIR.value:
    raise app.UsageError('--workdir: name the folder of a finished run.')
  # After the flags, so that a mistyped one is reported at once.
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
  print(write_report(workdirs, config, _ALLOW.value, _FIGURES.value))


if __name__ == '__main__':
  cli.run(main)
