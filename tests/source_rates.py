"""Counts the right engines that the sources of their tokens accuse.

Run by hand, since it takes minutes: PYTHONPATH=. python tests/source_rates.py
At level 0.01 at most 18 of 1,000 may be: 14 were, by traces of blocks and by
answers whose w the models computed.
"""

import pathlib
import sys
import tempfile

import numpy as np
from engines_test import audit_sources


def main(seeds: int = 1000) -> None:
  for form in 'blocks', 'answer':
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
      for seed in range(seeds):
        tables = np.random.default_rng((seed, 1)).dirichlet([0.6] * 6, (2, 97))
        path = pathlib.Path(folder) / 'trace'
        found = audit_sources(path, form, tables=tables, seed=seed)
        failed += not getattr(found, 'sources', found).passed
    print(f'{form}: {failed} of {seeds} right engines fail')
    assert failed <= 0.018 * seeds


if __name__ == '__main__':
  main(*map(int, sys.argv[1:]))
