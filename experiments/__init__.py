"""Around the library: files, and people who start commands.

Here, too, a room imports only what stands above it, and of `cascades` whatever
it likes; a command is one module, `python -m experiments.sweep`.

  cli         flags, mistakes in a sentence, progress
  tasks       what is asked, and the score of an answer
  records     what a run keeps, and the numbers made of it
  analysis    frames that answer a question about points
  reports     a page of those frames
  sweeps      every point of a config, decoded
  training    models and heads trained here
  benchmarks  what decoding costs, in ratios of one run
  guides      what READMEs say of the code
"""

import importlib.util
import sys

from cascades import extras

# In the order of the list; `tests/imports_test.py` holds them to it.
ROOMS = (
  'cli tasks records analysis reports sweeps training benchmarks guides'
).split()

# What the rooms import and the library does not.
NEEDED = (
  'absl datasets filelock fsspec matplotlib ml_collections optax pandas'
  ' rouge_score sacrebleu statsmodels tqdm'
).split()


def _check_installed() -> None:
  """Refuses to start a command without what the rooms import.

  Raises:
    ModuleNotFoundError: A package is not installed, and no command starts.
  """
  absent = [x for x in NEEDED if importlib.util.find_spec(x) is None]
  if not absent:
    return
  said = extras.missing('experiments', absent[0], 'experiments')
  # While `python -m experiments.sweep` imports this package, argv[0] is '-m'.
  if sys.argv[:1] == ['-m']:
    print(f'error: {said}', file=sys.stderr)
    sys.exit(2)
  raise ModuleNotFoundError(said)


_check_installed()
