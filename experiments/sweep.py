"""Decodes every point of a sweep, and reports quality against cost.

Command: python -m experiments.sweep --config=configs/quickstart.py
Shows: a progress bar, the decision, and the path of the report.

The package `sweeps` has the parts: `plan` makes the points of a config, `run`
decodes them with a `worker`, and `workdirs` keeps results. The same command
resumes a sweep that was stopped, and ends with the same records.

--verifier, --drafter (a name or a folder; ngram or self:3), --data (path or URL
of a .jsonl, .csv or .parquet file) and --metric (rouge2, short_answer,
module:function and others; by default only speed is measured) are short for
--config.verifier, --config.drafter, --config.file.path and
--config.file.metric.
"""

import contextlib
import functools
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments import cli

cli.define_config('configs/quickstart.py')
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
_FRESH = flags.DEFINE_bool(
  'fresh',
  False,
  'Deletes the points of this sweep and decodes them again; in the workdir of'
  ' another config, takes it over and deletes nothing.',
)
_QUIET = flags.DEFINE_bool(
  'quiet', False, 'Prints no progress, only the final lines; for logs.'
)
# Short flags, and the fields of the config that they are short for.
_SHORT = {
  'verifier': 'verifier',
  'drafter': 'drafter',
  'data': 'file.path',
  'metric': 'file.metric',
}


def long_flag(word: str) -> str:
  """Returns a word of a command, with the name of its field if it is short."""
  return re.sub(
    rf'^--?({"|".join(_SHORT)})(?==|$)',
    lambda match: f'--config.{_SHORT[match[1]]}',
    word,
  )


def main() -> None:
  """Runs the sweep of the flags."""
  name, module, config, overrides = cli.read_config()
  # Imports JAX, which --help does not need.
  from experiments.sweeps import curve_plan, multihost, plan
  from experiments.sweeps.fields import SweepConfig

  if _TASK.value:
    config.tasks = tuple(_TASK.value)
  typed = SweepConfig.convert(config)
  # The data is a file, or the task that --task names.
  data = (config.get('file') or {}).get('path', '')
  if _TASK.value:
    data = _TASK.value[0].rpartition(':')[2]
  workdir = flags.FLAGS.workdir or str(plan.default_workdir(name, data))
  if '://' in workdir:
    raise ValueError(f'workdir: must be a local folder, got {workdir}.')
  path, shard = pathlib.Path(workdir), _parse_shard(_SHARD.value)
  joining: contextlib.AbstractContextManager = contextlib.nullcontext()
  if place := _DISTRIBUTED.value:
    joining = multihost.joined(place)
  with joining as process:
    args = config, module, overrides
    curves = curve_plan.plan_curves(*args)
    options = dict(quiet=_QUIET.value, fresh=_FRESH.value, process=process)
    options |= dict(shard=shard, launcher=_LAUNCHER.value)
    options |= dict(replan=functools.partial(curve_plan.plan_curves, *args))
    run(typed, curves, path, **options)


def _parse_shard(text: str | None) -> tuple[int, int] | None:
  """Returns an index and a count of shards from a text such as '1/4'."""
  if text is None:
    return None
  match = re.fullmatch(r'([0-9]{1,6})/([0-9]{1,6})', text)
  index, count = map(int, match.groups()) if match else (0, 0)
  if not 1 <= index <= count:
    raise ValueError(f'shard: must be such as 1/4 to 4/4, got {text!r}.')
  return index - 1, count


def run(
  config: Any,
  curves: Sequence[Any],
  workdir: pathlib.Path,
  launcher: str = 'local',
  **options: Any,
) -> None:
  """Runs the part of a sweep that a workdir lacks; see `run.Sweep`.

  The launcher 'ray' runs the command of this process, on a cluster.
  """
  from experiments.sweeps import ray_cluster
  from experiments.sweeps.run import Sweep

  shard, fresh = options.get('shard'), options.get('fresh')
  if launcher == 'ray' and (fresh or {options.get('process'), shard} != {None}):
    refused = 'cannot be combined with --distributed, --shard or --fresh'
    raise ValueError(f'launcher: ray {refused}; leave out one of the two.')
  if shard and fresh:
    raise ValueError(
      'shard: cannot be combined with --fresh; delete the workdir once instead.'
    )
  sweep = Sweep(config, curves, workdir, **options)
  if launcher == 'ray':
    total = len(sweep.planned({}))
    quiet = options.get('quiet', False)
    ray_cluster.run(sweep.config.ray, workdir, total, quiet)
  elif options.get('process'):
    # Without the workdir.
    sweep.follow()
  else:
    sweep.run()


if __name__ == '__main__':
  sys.argv[1:] = map(long_flag, sys.argv[1:])
  cli.run(main)
