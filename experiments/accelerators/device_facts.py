"""Phase: the device, its memory, versions, and the speed of copying."""

import functools
import importlib.metadata
import os
import platform
import re
import resource
from collections.abc import Iterator
from typing import Any

import jax

import cascades
from cascades.models import memory
from experiments.accelerators.device_phases import Measurement, Sizes
from experiments.benchmarks import loops
from experiments.benchmarks.harness import median, timed

# Packages that figures depend on, plug-ins of devices among them.
_PACKAGES = re.compile(
  r'jax|jaxlib|jax[_-].*(plugin|pjrt)|libtpu|flax|gemma|numpy|nvidia[_-]cudnn.*'
)
_CALLS = 100


def versions() -> dict[str, str]:
  """Returns the versions of the packages that are installed."""
  packages = {
    x.name: x.version
    for x in importlib.metadata.distributions()
    if x.name and _PACKAGES.fullmatch(x.name)
  }
  return {'cascades': cascades.__version__} | dict(sorted(packages.items()))


def setting(sizes: Sizes) -> dict[str, Any]:
  """Returns what the figures of a file must share."""
  device = jax.devices()[0]
  return {
    'device': device.device_kind,
    'platform': device.platform,
    'devices': jax.device_count(),
    'versions': versions(),
    'tiny': sizes.tiny,
  }


def peak_bytes() -> int:
  """Returns the most memory that was in use; on a CPU, by the process."""
  stats = jax.local_devices()[0].memory_stats() or {}
  # Linux counts in KiB.
  in_process = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return stats.get('peak_bytes_in_use', in_process)


def plan(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of the phase."""
  yield Measurement('facts', functools.partial(_facts, sizes))
  copy = functools.partial(loops.measure_copying, sizes.copy_size, 8)
  yield Measurement('copy', lambda: {'bytes_per_s': copy()})
  yield Measurement('launch', _launch)


def _facts(sizes: Sizes) -> dict[str, Any]:
  """Returns facts about the device and the computer."""
  device = jax.local_devices()[0]
  stats = device.memory_stats() or {}
  return setting(sizes) | {
    'processes': jax.process_count(),
    'runtime': getattr(device.client, 'platform_version', ''),
    'memory_bytes': stats.get('bytes_limit'),
    'free_bytes': memory.available(),
    'cores': os.cpu_count(),
    'system': platform.platform(),
    'python': platform.python_version(),
    'xla_flags': os.environ.get('XLA_FLAGS', ''),
    'matmul_precision': jax.config.jax_default_matmul_precision or 'default',
  }


def _launch() -> dict[str, float]:
  """Times calls of a compiled function that computes nothing."""
  increment = jax.jit(lambda x: x + 1)
  x = jax.block_until_ready(increment(0.0))
  seconds = [timed(increment, x)[0] for _ in range(_CALLS)]
  return {'call_s': median(seconds)}
