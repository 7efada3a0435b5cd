"""The Ray launcher: each shard of a sweep is a command on the cluster."""

import contextlib
import io
import logging
import os
import pathlib
import runpy
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from cascades import arguments
from experiments import cli, records
from experiments.sweeps.fields import RayFields

# Variables that workers on other machines need.
_VARIABLES = ('JAX_COMPILATION_CACHE_DIR', 'JAX_PLATFORMS', 'XLA_FLAGS')
# Tries of a shard whose worker is lost.
_RETRIES = 3


def run(
  options: RayFields | None,
  workdir: pathlib.Path,
  total: int,
  quiet: bool = False,
) -> None:
  """Decodes shards of this command's sweep; a last task makes the report.

  All machines share the folders of the checkout and of the workdir.
  """
  # A config may lack the field.
  options = options or RayFields()
  ray = _connect(options.address)
  count = min(_count_slots(ray.cluster_resources(), options), total)
  cli.make_folder(workdir)
  command = [*sys.argv[1:], '--launcher=local', '--quiet']
  command.append(f'--workdir={workdir.resolve()}')
  # Only lost workers are worth a retry: a command that fails does so again.
  task = ray.remote(
    num_cpus=options.cpus,
    num_gpus=options.gpus,
    max_retries=_RETRIES,
    # Flags are defined once in a process.
    max_calls=1,
  )(_run_command)
  shards = [
    task.remote(os.getcwd(), [*command, f'--shard={i + 1}/{count}'])
    for i in range(count)
  ]
  with cli.progress(total, 'points', quiet) as bar:
    while shards:
      done, shards = ray.wait(shards, timeout=1.0)
      bar.update(len(records.read_plan(workdir)[0]) - bar.n)
      for ref in done:
        print(_result(ray, ref), end='', file=sys.stderr)
  print(_result(ray, task.remote(os.getcwd(), command)), end='')


def _result(ray: ModuleType, ref: Any) -> str:
  """Returns what a task printed."""
  try:
    return ray.get(ref)
  except ray.exceptions.RayTaskError as error:
    raise error.cause from None
  except ray.exceptions.RayError as error:
    raise ValueError(
      f'ray: a task did not end, in {_RETRIES + 1} tries if its worker was lost'
      f' ({type(error).__name__}: {cli.one_line(error)}); the same command'
      ' resumes the sweep.'
    ) from None


def _run_command(folder: str, command: list[str]) -> str:
  """Runs a sweep as `python -m` does, and returns what it printed."""
  os.chdir(folder)
  sys.argv = ['experiments.sweep', *command]
  sys.orig_argv = [sys.executable, '-m', *sys.argv]
  printed, code = io.StringIO(), None
  with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
    try:
      runpy.run_module('experiments.sweep', run_name='__main__')
    except SystemExit as end:
      code = end.code
  *_, last = printed.getvalue().strip().splitlines() or ['']
  if code:
    raise ValueError(last.removeprefix('error: '))
  return printed.getvalue()


def _connect(address: str) -> ModuleType:
  """Returns Ray, connected to a cluster, or to a new one without address."""
  os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
  if not address:
    # Ray then accepts connections from this machine only.
    os.environ.setdefault('RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER', '0')
    os.environ.setdefault('RAY_AUTH_MODE', 'token')
  try:
    import ray  # pyright: ignore[reportMissingImports]
  except ImportError:
    raise ValueError(arguments.missing('launcher', 'ray', 'ray')) from None
  try:
    ray.init(
      address=address or 'local',
      include_dashboard=None if address else False,
      log_to_driver=False,
      logging_level=logging.ERROR,
      runtime_env={
        'env_vars': {x: os.environ[x] for x in _VARIABLES if x in os.environ}
      },
    )
  except (ConnectionError, OSError, RuntimeError, ValueError) as error:
    raise ValueError(
      f'ray: cannot use a cluster at {address or "this machine"}'
      f' ({cli.one_line(error)}); start one, or give another'
      ' --config.ray.address.'
    ) from None
  return ray


def _count_slots(resources: Mapping[str, float], options: RayFields) -> int:
  """Returns the number of shards that a cluster can decode at a time."""
  cpus, gpus = (resources.get(name, 0) for name in ('CPU', 'GPU'))
  needed = (cpus, options.cpus), (gpus, options.gpus)
  if (count := int(min((x // y for x, y in needed if y), default=1))) < 1:
    raise ValueError(
      f'ray: a shard needs {options.cpus:g} CPUs and {options.gpus:g} GPUs, but'
      f' the cluster has {cpus:g} CPUs and {gpus:g} GPUs; give a smaller'
      ' ray.cpus or ray.gpus.'
    )
  return count
