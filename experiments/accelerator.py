"""Checks a new device: run it first on a GPU, a TPU or another CPU.

Command: python -m experiments.accelerator --minutes=8
         python -m experiments.accelerator --tiny
Shows: a table of the device, whether decoding is correct on it, and how fast it
is compared with its memory and with the forward passes alone. --workdir
receives a JSON file for each phase as it ends, index.html and table.md.

Phases, the most important first: device (memory, versions, copying speed),
correctness (greedy strict decoding equals the verifier; samples follow their
enumerated laws), unit_costs (time to read 1 to 17 tokens, and of a drafter's
step), floor (the loop and its forward passes), speed (strict decoding, token_v2
and the verifier alone), curve (11 leniences and one of them), compilation (time
and peak memory), real_pair (Gemma 3 270M, if it is installed).

Each phase has a share of the minutes. Measurements that do not fit are listed,
and the same command measures them later; --phases selects some phases. --tiny
rehearses all phases on a CPU in two minutes. --report_only writes the page and
the table from --workdir's files, and needs no device. Nothing is downloaded.
"""

import dataclasses
import pathlib

from absl import flags

from experiments import cli

_MINUTES = flags.DEFINE_float(
  'minutes', None, 'Minutes for all phases; by default 8, or 2 with --tiny.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir',
  None,
  'Folder of results; by default runs/accelerator, or'
  ' runs/accelerator_tiny with --tiny.',
)
_PHASES = flags.DEFINE_list('phases', [], 'Phases to run; by default all.')
_MAX_LAYERS = flags.DEFINE_integer(
  'max_layers',
  18,
  'Maximum number of layers of a model with random weights; 0 keeps all.',
  lower_bound=0,
)
_TINY = flags.DEFINE_bool('tiny', False, 'Rehearses the phases on tiny models.')
_REPORT_ONLY = flags.DEFINE_bool(
  'report_only', False, 'Only writes the page and the table of an earlier run.'
)
# More minutes than a day has are a mistake.
_MAX_MINUTES = 1440


def main() -> None:
  """Runs the command."""
  try:
    _run()
  except ModuleNotFoundError as error:
    # A machine without a network has what was carried to it.
    raise ValueError(
      f'{error.name}: the package is not installed; install the dependencies'
      ' that pyproject.toml lists.'
    ) from None


def _run() -> None:
  """Measures, then reports."""
  from experiments.accelerators import device_phases, supervising

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
  if not _REPORT_ONLY.value:
    cli.make_folder(folder)
    sizes = dataclasses.replace(
      device_phases.TINY if is_tiny else device_phases.Sizes(),
      max_layers=_MAX_LAYERS.value,
    )
    supervising.run(names, sizes, folder, 60 * minutes)
  _report(folder)


def _report(folder: pathlib.Path) -> None:
  """Prints the table of a folder, and writes it and the page."""
  from experiments.accelerators import device_summary, phase_results

  results = phase_results.read_all(folder)
  if not results:
    raise ValueError(
      f'workdir: there are no results in {folder}; run the check without'
      ' --report_only.'
    )
  summary = device_summary.summarize(results)
  print(summary.text())
  try:
    from experiments.accelerators import device_page
  except ModuleNotFoundError as error:
    print(
      f'The page was not written: the package {error.name} is not installed;'
      f' copy {folder} to a machine that has it, and add --report_only there.'
    )
    return
  print(device_page.write(folder, summary))


if __name__ == '__main__':
  cli.run(main)
