"""Checks a new device: run it first on a GPU, a TPU or another CPU.

Command: python -m experiments.accelerator --minutes=8
         python -m experiments.accelerator --tiny
Shows: a table in Markdown of the device, whether decoding is correct on it, and
how fast it is compared with its memory and with the forward passes alone.
--workdir receives figures.jsonl, a line for each figure as it is measured.

Phases, the most important first: device (memory, versions, copying speed),
correctness (greedy strict decoding equals the verifier; samples follow their
enumerated laws), unit_costs (time to read 1 to 17 tokens, and of a drafter's
step), floor (the loop and its forward passes), speed (strict decoding, token_v2
and the verifier alone), curve (11 leniences and one of them), compilation (time
and peak memory), real_pair (Gemma 3 270M, if it is installed).

Each phase has a share of the minutes. Measurements that do not fit are listed,
and the same command measures them later; --phases selects some phases. --tiny
rehearses all phases on a CPU in two minutes. Nothing is downloaded.
"""

import os
import pathlib

from absl import flags

from experiments import cli

_MINUTES = flags.DEFINE_float(
  'minutes', None, 'Minutes for all phases; by default 8, or 2 with --tiny.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir',
  None,
  'Folder of figures; by default runs/accelerator, or'
  ' runs/accelerator_tiny with --tiny.',
)
_PHASES = flags.DEFINE_list('phases', [], 'Phases to run; by default all.')
_TINY = flags.DEFINE_bool('tiny', False, 'Rehearses the phases on tiny models.')
# More minutes than a day has are a mistake.
_MAX_MINUTES = 1440


def main() -> None:
  """Runs the command."""
  from experiments.accelerators import device_phases

  names = device_phases.check_names(_PHASES.value)
  is_tiny = _TINY.value
  minutes = _MINUTES.value
  if minutes is None:
    minutes = 2.0 if is_tiny else 8.0
  if not 0 < minutes <= _MAX_MINUTES:
    raise ValueError(
      f'minutes: must be above 0 and at most {_MAX_MINUTES}, got {minutes:g}.'
    )
  folder = pathlib.Path(
    _WORKDIR.value or f'runs/accelerator{"_tiny" if is_tiny else ""}'
  )
  cli.make_folder(folder)
  sizes = device_phases.TINY if is_tiny else device_phases.Sizes()
  if is_tiny:
    # Compiling is most of the time of a rehearsal.
    flags_before = os.environ.get('XLA_FLAGS', '')
    level = '--xla_backend_optimization_level=0'
    os.environ['XLA_FLAGS'] = f'{flags_before} {level}'
  # Not all of the device's memory at once: its peak is a figure.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  try:
    import jax

    from experiments.accelerators import measuring
  except ModuleNotFoundError as error:
    # A machine without a network has what was carried to it.
    raise ValueError(
      f'{error.name}: the package is not installed; install the dependencies'
      ' that pyproject.toml lists.'
    ) from None
  # Compile times are figures.
  jax.config.update('jax_enable_compilation_cache', False)
  print(measuring.run(names, sizes, folder / 'figures.jsonl', 60 * minutes))


if __name__ == '__main__':
  cli.run(main)
