"""The Ray launcher: each shard of a sweep is a task of the cluster."""

import contextlib
import io
import logging
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import ml_collections
from absl import flags

from cascades import arguments
from experiments import cli
from experiments.sweeps import curve_plan, fields, phases


def run(
  config: Any,
  curves: Sequence[curve_plan.Curve],
  workdir: pathlib.Path,
  quiet: bool,
) -> None:
  """Decodes shards of a sweep side by side; a last task makes the report.

  All machines share the folder of the workdir.
  """
  sweep = phases.Sweep(config, curves, workdir, quiet=quiet)
  sweep.plan()
  total = len(sweep.planned({}))
  # The config may lack the field.
  options = fields.RayFields(**(config.get('ray') or {}))
  ray = _connect(options.address)
  slots = min(_count_slots(ray.cluster_resources(), options), total)
  cli.make_folder(workdir)
  task = ray.remote(_run_shard).options(
    num_cpus=options.cpus,
    num_gpus=options.gpus,
    max_retries=options.retries,
    # Only lost workers are worth a retry: an error of the code recurs.
    retry_exceptions=False,
  )
  # Workers have another working folder.
  imports = [
    os.path.abspath(x) if x.endswith('.py') else x for x in cli.imports()
  ]
  place = os.getcwd(), sys.orig_argv, imports
  content = config.to_dict(), tuple(curves), workdir.resolve()
  dumped = ray.cloudpickle.dumps(content)
  shards = [task.remote(place, dumped, (i, slots)) for i in range(slots)]
  with cli.progress(total, 'points', quiet) as bar:
    while shards:
      done, shards = ray.wait(shards, timeout=1.0)
      bar.update(len([*workdir.glob('records/*.jsonl')]) - bar.n)
      for ref in done:
        print(_result(ray, ref), end='', file=sys.stderr)
  print(_result(ray, task.remote(place, dumped, None)), end='')


def _result(ray: ModuleType, ref: Any) -> str:
  """Returns what a task printed."""
  try:
    return ray.get(ref)
  except ray.exceptions.RayTaskError as error:
    raise error.cause from None
  except (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
  ) as error:
    raise ValueError(
      'ray: a worker was lost more often than ray.retries'
      f' ({type(error).__name__}); the workdir keeps the points that are done,'
      ' and the same command resumes the sweep.'
    ) from None


def _run_shard(
  place: tuple[str, list[str], list[str]],
  dumped: bytes,
  shard: tuple[int, int] | None,
) -> str:
  """Decodes a shard, or makes the report; returns what was printed."""
  import ray

  folder, sys.orig_argv, imports = place
  os.chdir(folder)
  cli.define_import()
  flags.FLAGS['import'].value = imports
  for module in imports:
    cli.import_module(module)
  values, curves, workdir = ray.cloudpickle.loads(dumped)
  config, printed = ml_collections.ConfigDict(values), io.StringIO()
  with (
    contextlib.redirect_stdout(printed),
    contextlib.redirect_stderr(printed),
  ):
    phases.Sweep(config, curves, workdir, quiet=True, shard=shard).run()
  return printed.getvalue()


def _connect(address: str) -> ModuleType:
  """Returns Ray, connected to a cluster, or to a new one without address."""
  os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
  if not address:
    # Ray then accepts connections from this machine only.
    os.environ.setdefault('RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER', '0')
    os.environ.setdefault('RAY_AUTH_MODE', 'token')
  try:
    import ray
  except ImportError:
    raise ValueError(arguments.missing('launcher', 'ray', 'ray')) from None
  try:
    if not ray.is_initialized():
      ray.init(
        address=address or 'local',
        include_dashboard=None if address else False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={'env_vars': worker_environment()},
      )
  except (ConnectionError, OSError, RuntimeError, ValueError) as error:
    raise ValueError(
      f'ray: cannot use a cluster at {address or "this machine"}'
      f' ({cli.one_line(error)}); start one, or give another'
      ' --config.ray.address.'
    ) from None
  return ray


def _count_slots(
  resources: Mapping[str, float], options: fields.RayFields
) -> int:
  """Returns the number of shards that a cluster can decode at a time."""
  needed = {'CPU': options.cpus, 'GPU': options.gpus}
  slots = [resources.get(x, 0) // count for x, count in needed.items() if count]
  if (count := int(min(slots, default=1))) < 1:
    raise ValueError(
      f'ray: a shard needs {needed["CPU"]:g} CPUs and {needed["GPU"]:g} GPUs,'
      f' but the cluster has {resources.get("CPU", 0):g} CPUs and'
      f' {resources.get("GPU", 0):g} GPUs; give a smaller ray.cpus or ray.gpus.'
    )
  return count


def worker_environment() -> dict[str, str]:
  """Returns the environment variables that workers on other machines need."""
  names = ('JAX_COMPILATION_CACHE_DIR', 'JAX_PLATFORMS', 'XLA_FLAGS')
  return {name: os.environ[name] for name in names if name in os.environ}
