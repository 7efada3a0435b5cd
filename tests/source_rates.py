"""Counts the right engines that the sources of their tokens accuse.

Run by hand, since it takes minutes: python tests/source_rates.py
At level 0.01 at most 18 of 1,000 may be: 11 were by traces of blocks, 14 by
answers whose w the models computed.
"""

import pathlib
import sys
import tempfile

import engines_test
import numpy as np

from cascades.contrib.engine_audits import traces


def _blocks(path, **options):
  engines_test._written(path, engines_test._token, blocks=500, **options)
  return traces.certify(path).sources.passed


def _answer(path, tables, seed):
  engines_test._answer(path, engines_test._token, tables=tables, seed=seed)
  models = engines_test._models(tables=tables)
  return traces.check_answers(path, models).passed


def main(seeds: int = 1000) -> None:
  failed = dict.fromkeys((_blocks, _answer), 0)
  with tempfile.TemporaryDirectory() as folder:
    for seed in range(seeds):
      rng = np.random.default_rng((seed, 1))
      shape = engines_test._TABLES.shape[:2]
      tables = rng.dirichlet(np.full(engines_test._V, 0.6), shape)
      for passes in failed:
        path = pathlib.Path(folder) / 'trace'
        failed[passes] += not passes(path, tables=tables, seed=seed)
  for passes, count in failed.items():
    print(f'{passes.__name__[1:]}: {count} of {seeds} right engines fail')
    assert count <= 0.018 * seeds


if __name__ == '__main__':
  main(*map(int, sys.argv[1:]))
