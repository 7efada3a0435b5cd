"""Decodes every point of a sweep, and reports quality against cost.

Command: python -m experiments.sweep --config=configs/quickstart.py
Shows: a progress bar, a table, and the path of the report.

The package `sweeps` has the parts: `plan` makes the points of a config,
`phases` runs them, `worker` decodes, `workdirs` keeps results.
The same command resumes a sweep that was stopped, and ends with the same
records.
"""

import contextlib
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from experiments import cli
from experiments.sweeps import curve_plan, plan

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'Config of a sweep, such as configs/quickstart.py.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir',
  None,
  'Folder of results; by default runs/<name of the config>.',
)
cli.define_import()
_TASK = flags.DEFINE_multi_string(
  'task',
  None,
  "Task instead of the config's tasks: a name, or lm_eval:NAME or"
  ' lm_eval:FOLDER for lm-evaluation-harness; can be given several times.',
)
_LAUNCHER = flags.DEFINE_enum(
  'launcher',
  'local',
  ['local', 'ray'],
  'Where points are decoded: local (this process) or ray (the Ray cluster of'
  ' the field ray, by default one on this machine).',
)
_SHARD = flags.DEFINE_string(
  'shard',
  None,
  'Part of the points to decode, such as 2/4, beside other processes with the'
  ' same workdir; the same command without it then makes the report.',
)
_DISTRIBUTED = flags.DEFINE_string(
  'distributed',
  None,
  'Place of this process among several that decode together, each started by'
  ' this command: auto on clusters that JAX detects, else'
  ' HOST:PORT,PROCESSES,INDEX with the host of process 0. --config.mesh divides'
  ' the devices of all processes; only process 0 uses the workdir.',
)
_QUIET = flags.DEFINE_bool(
  'quiet', False, 'Prints no progress, only the final lines; for logs.'
)
# Flags for fields of the config, with the fields and help.
_SHORT = {
  'verifier': ('verifier', 'Verifier: a name or a folder.'),
  'drafter': ('drafter', 'Drafter: a name, a folder, ngram or self:3.'),
  'data': ('file.path', 'Path or URL of a .jsonl, .csv or .parquet file.'),
  'metric': (
    'file.metric',
    'Metric of the file: rouge2, short_answer, module:function'
    ' and others in the documentation; by default only speed is measured.',
  ),
}


def define_short_flags() -> None:
  """Defines the short flags, which other commands have for themselves."""
  for name, (field, text) in _SHORT.items():
    flags.DEFINE_string(name, None, f'{text} Short for --config.{field}.')


def _apply_short_flags(config: Any) -> None:
  """Sets the fields of the short flags that were given."""
  for name, (field, _) in _SHORT.items():
    value = flags.FLAGS[name].value if name in flags.FLAGS else None
    if value is None:
      continue
    table, _, key = field.rpartition('.')
    owner = config.get(table) if table else config
    if owner is None or key not in owner:
      raise ValueError(
        f'{name}: this config has no field {field}; run'
        ' --config=configs/your_data.py, or build the config with'
        f" common.sweep('{table or field}')."
      )
    owner[key] = value


def main() -> None:
  """Runs the sweep of the flags."""
  cli.require_config(_CONFIG.value, 'configs/quickstart.py')
  joining: contextlib.AbstractContextManager = contextlib.nullcontext()
  if place := _DISTRIBUTED.value:
    # Imports JAX, which --help does not need.
    from experiments.sweeps import multihost

    joining = multihost.joined(place)
  with joining as process:
    _run(process)


def _run(process: int | None) -> None:
  """Runs the sweep of the flags in this process; see `main`."""
  config, flag = _CONFIG.value, flags.FLAGS['config']
  if _TASK.value:
    config.tasks = tuple(_TASK.value)
  _apply_short_flags(config)
  # A path, maybe followed by a colon and the argument of `get_config`.
  name = config_flags.get_config_filename(flag)
  module = cli.load_config_module(name.partition(':')[0])
  overrides = config_flags.get_override_values(flag)
  curves = curve_plan.plan_curves(config, module, overrides)
  # The data is a file, or the task that --task names.
  data = (config.get('file') or {}).get('path', '')
  if _TASK.value:
    data = _TASK.value[0].rpartition(':')[2]
  workdir = _WORKDIR.value or plan.default_workdir(name, data)
  if '://' in str(workdir):
    raise ValueError(f'workdir: must be a local folder, got {workdir}.')
  run(
    config,
    curves,
    pathlib.Path(workdir),
    launcher=_LAUNCHER.value,
    quiet=_QUIET.value,
    process=process,
    shard=_parse_shard(_SHARD.value),
  )


def _parse_shard(text: str | None) -> tuple[int, int] | None:
  """Returns an index and a count of shards from a text such as '1/4'."""
  if text is None:
    return None
  match = re.fullmatch(r'([0-9]{1,6})/([0-9]{1,6})', text)
  index, count = map(int, match.groups()) if match else (0, 0)
  if not 0 < index <= count:
    raise ValueError(f'shard: must be such as 1/4 to 4/4, got {text!r}.')
  return index - 1, count


def run(
  config: Any,
  curves: Sequence[curve_plan.Curve],
  workdir: pathlib.Path,
  launcher: str = 'local',
  **options: Any,
) -> None:
  """Runs the part of a sweep that a workdir lacks; see `phases.Sweep`."""
  # `phases` imports JAX, which --help does not need.
  from experiments.sweeps import phases, ray_cluster

  if launcher == 'ray':
    if {options.get('process'), options.get('shard')} != {None}:
      refused = 'cannot be combined with --distributed or --shard'
      raise ValueError(f'launcher: ray {refused}; leave out one of the two.')
    ray_cluster.run(config, curves, workdir, options.get('quiet', False))
    return
  sweep = phases.Sweep(config, curves, workdir, **options)
  if options.get('process'):
    # Without the workdir.
    sweep.follow()
  else:
    sweep.run()


if __name__ == '__main__':
  define_short_flags()
  cli.run(main)
