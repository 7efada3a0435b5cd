"""Commands, tasks, sweeps, records and reports, run from a checkout.

A part imports only parts above it in this list (`lint-imports`), and any module
of `cascades`. A command is one module, such as `python -m experiments.sweep`.

  cli         flags, error messages in a sentence, progress bars
  measuring   turns, medians and tables of times
  tasks       prompts, references and metrics of answers
  records     files of a run, and the numbers computed from them
  analysis    frames that compare the points of sweeps
  reports     a page with tables and figures of these frames
  sweeps      decoding of every point of a config
  training    training of drafters
  benchmarks  costs of decoding, as ratios within one run
"""

import importlib.util
import sys

from cascades import arguments

# Packages that these parts import and the library does not.
NEEDED = (
  'absl datasets filelock fsspec matplotlib ml_collections optax pandas'
  ' pyarrow regex rouge_score sacrebleu tqdm'
).split()
# The check of a device runs where nothing can be installed.
_LIGHT_COMMAND = 'experiments.accelerator'
_LIGHT_NEEDED = 'absl', 'ml_collections', 'pydantic', 'tqdm'


def _check_installed() -> None:
  """Checks that the packages of the extra `experiments` are installed."""
  needed = _LIGHT_NEEDED if _LIGHT_COMMAND in sys.orig_argv else NEEDED
  absent = [x for x in needed if importlib.util.find_spec(x) is None]
  if not absent:
    return
  message = arguments.missing('experiments', absent[0], 'experiments')
  # While `python -m experiments.sweep` imports this package, argv[0] is '-m'.
  if sys.argv[:1] == ['-m']:
    print(f'error: {message}', file=sys.stderr)
    sys.exit(2)
  raise ModuleNotFoundError(message)


_check_installed()
