"""Texts of the page about the runs: setting, unit costs, and versions."""

import importlib.metadata
import platform
from collections.abc import Mapping

import pandas as pd

from experiments import escapes
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.runs import Run
from experiments.records.unit_costs import Costs
from experiments.reports import styles, tables

# Relative change of unit costs in a run above which the page has a notice.
_COST_CHANGE = 0.1


def lead(runs_by_name: Mapping[str, Run], frame: pd.DataFrame) -> str:
  """Returns one line with models, examples, gamma and temperature."""
  config = next(iter(runs_by_name.values())).config

  def values(column: str, rows: pd.DataFrame) -> str:
    return ', '.join(f'{v:g}' for v in sorted(rows[column].unique()))

  parts = []
  if config.get('drafter') and config.get('verifier'):
    parts.append(f'{config["drafter"]} drafts for {config["verifier"]}')
  parts.append(f'{values("n", frame)} examples per task')
  drafted = frame[frame.gamma > 0]
  if len(drafted):
    parts.append(f'gamma {values("gamma", drafted)}')
  parts.append(f'temperature {values("temperature", frame)}')
  if config.get('block_by_block'):
    parts.append(
      'drafts depend on where a block begins: the target holds for each block,'
      ' and there is no drafter alone'
    )
  if len(runs_by_name) > 1:
    parts.append(f'workdirs {", ".join(runs_by_name)}')
  return ' · '.join(parts)


def cost_notices(runs_by_name: Mapping[str, Run]) -> list[str]:
  """Returns a sentence for each run whose unit costs changed meanwhile."""
  notices = []
  for name, run in runs_by_name.items():
    unit, ratio = run.measured.drift()
    if abs(ratio - 1) <= _COST_CHANGE:
      continue
    of_run = f' of {name}' if len(runs_by_name) > 1 else ''
    notices.append(
      f"Unit costs{of_run} changed: relative to the verifier's token, {unit}"
      f' took {styles.number(ratio)} times as long at the end of the run as at'
      ' its start. Other work on the machine may be the cause; the modelled'
      ' latencies are less certain.'
    )
  return notices


def _costs(costs: Costs) -> str:
  """Returns unit costs in words."""
  blocks = '; '.join(
    f'verifier call on a block of {gamma} drafts {styles.milliseconds(seconds)}'
    for gamma, seconds in sorted(costs.verify_s.items())
  )
  return f"""verifier token
{styles.milliseconds(costs.verifier_token_s)}; drafter token
{styles.milliseconds(costs.drafter_token_s)}; {blocks}"""


def footer(runs_by_name: Mapping[str, Run], config: AnalysisConfig) -> str:
  """Returns unit costs, bootstrap settings, run settings and versions."""
  versions = {'python': platform.python_version()} | {
    name: importlib.metadata.version(name)
    for name in ('numpy', 'scipy', 'pandas', 'matplotlib')
  }
  is_comparison = len(runs_by_name) > 1
  costs, sources, details = [], [], []
  for name, run in runs_by_name.items():
    # The versions of the run take precedence over those of this process.
    versions |= run.config.get('versions') or {}
    of_run = escapes.for_html(f' of {name}') if is_comparison else ''
    costs.append(f'Unit costs{of_run}: {_costs(run.costs)}.')
    code = run.start.get('code')
    if isinstance(code, str):
      source = escapes.for_html(code)
      sources.append(f'Decoded{of_run} with {source}.')
    if run.config:
      subject = escapes.for_html(name) if is_comparison else 'the run'
      details.append(
        f'<details><summary>Settings of {subject}</summary>'
        f'{tables.settings(run.config)}</details>'
      )
  version_line = ', '.join(f'{name} {v}' for name, v in versions.items())
  costs, details = ' '.join(costs), '\n'.join(details)
  return f"""<footer>
<p>Modelled latency is counted calls times measured unit costs, per emitted
token, divided by the verifier's cost of one token; modelled speed-up is its
inverse. {costs} Prefill is excluded. Measured (wall-clock) speed-ups have
separate columns and are never combined with modelled latency.</p>
<p>Intervals have level 95 %. Quality and its differences have intervals that
hold for few examples: Wilson's and Tango's score intervals if answers are right
or wrong, else intervals by betting. Speed-ups and corpus BLEU have percentiles
of {config.resamples:,} bootstrap resamples of the examples, seed {config.seed},
which are too narrow where few examples differ. Differences are paired by
example. {' '.join(sources)}</p>
{details}
<p>{escapes.for_html(version_line)}</p>
</footer>"""
