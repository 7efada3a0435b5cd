"""What a report of many points costs: made-up records, a process of its own."""

import json
import math
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cascades import tasks
from experiments import records
from experiments.records import metrics

_COSTS = metrics.Costs(
  verifier_token_s=0.010,
  drafter_token_s=0.001,
  verify_s={2: 0.012, 4: 0.014},
)
_GAMMAS = tuple(_COSTS.verify_s)
_METHODS = ('speed', 'chow', 'diff', 'opt', 'token_v1', 'token_v2', 'token_v3')
_TASKS = ('sums', 'words')
# Examples of a file, as of a sweep.
_SHARD = 256
_PIECES = (' the', ' shells', ' 7', '4', '.', '\n', ' =', ' Cleo', 'x1')


def check(config) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: A number is out of its range.
  """
  for name in ('examples', 'leniences', 'tokens'):
    if config[name] < 1:
      raise ValueError(f'{name}: {config[name]} will not do; give 1 or more.')


def make(workdir: pathlib.Path, config) -> dict[str, float]:
  """Writes a workdir of two tasks; how large it is.

  Args:
    workdir: Made if need be.
    config: Says how many examples, leniences and tokens there are.
  """
  rng = np.random.default_rng(config.seed)
  summary, size, count, points = [], 0, 0, 0
  leniences = np.linspace(0, 1, config.leniences).round(3).tolist()
  curves = [('verifier_only', 0, [math.nan]), ('drafter_only', 0, [math.nan])]
  curves += [(m, gamma, leniences) for m in _METHODS for gamma in _GAMMAS]
  for task in _TASKS:
    names = [f'{task}/test/{config.seed}/{i}' for i in range(config.examples)]
    hard = rng.random(len(names))
    asked = [
      tasks.Example(id=name, prompt='How many? ' * 20, reference='7')
      for name in names
    ]
    records.write(workdir / f'examples/{task}.jsonl', asked)
    for method, gamma, of_curve in curves:
      made = []
      for first in range(0, len(names), _SHARD):
        pairs = [
          _answer(rng, task, method, gamma, lenience, names[i], hard[i], config)
          for lenience in of_curve
          for i in range(first, min(first + _SHARD, len(names)))
        ]
        name = f'{task}-{method}-gamma-{gamma}-{first}'
        lines, traces = zip(*pairs, strict=True)
        records.write(workdir / f'traces/{name}.jsonl.gz', traces)
        path = workdir / f'records/{name}.jsonl'
        records.write(path, lines)
        size += path.stat().st_size
        size += (workdir / f'traces/{name}.jsonl.gz').stat().st_size
        made += lines
      points += len(of_curve)
      count += len(made)
      summary.append(metrics.summarise(made, _COSTS))
  text = '\n'.join(
    frame.to_csv(index=False, header=i == 0).strip()
    for i, frame in enumerate(summary)
  )
  records.write_text(workdir / 'summary.csv', text + '\n')
  records.write_text(workdir / 'costs.json', _COSTS.to_json())
  told = {'seed': config.seed, 'batch_size': 16, 'tasks': list(_TASKS)}
  records.write_text(workdir / 'config.json', json.dumps(told))
  return {'points': points, 'records': count, 'bytes_a_record': size / count}


def _answer(
  rng, task, method, gamma, lenience, name, hard, config
) -> tuple[records.Record, records.Trace]:
  """An answer that is kept more, and right less often, by its lenience."""
  level = {'verifier_only': 0.9, 'drafter_only': 0.6}.get(
    method, 0.9 - 0.3 * lenience
  )
  n = int(rng.integers(config.tokens // 2, 3 * config.tokens // 2 + 1))
  if gamma:
    kept = np.minimum(rng.geometric(0.25 - 0.2 * lenience, size=n) - 1, gamma)
    # Drafts of each block, and the token after them.
    blocks = [[1] * k + [3 if k == gamma else 2] for k in kept.tolist()]
    sources, calls = [], 0
    while len(sources) < n:
      sources += blocks[calls]
      calls += 1
    sources = sources[:n]
    deferred = (rng.random(n) < 0.3).astype(int).tolist()
  else:
    sources, calls, deferred = (
      [1 if method == 'drafter_only' else 2] * n,
      n,
      None,
    )
  drafted, residual = sources.count(1), sources.count(2)
  pieces = [_PIECES[i] for i in rng.integers(0, len(_PIECES), n).tolist()]
  verifies = method != 'drafter_only'
  counts = dict(drafted=0, examined=0, accepted=0, residual=0, bonus=0)
  if gamma:
    counts = dict(
      drafted=calls * gamma,
      examined=drafted + residual,
      accepted=drafted,
      residual=residual,
      bonus=n - drafted - residual,
    )
  record = records.Record(
    task=task,
    method=method,
    lenience=lenience,
    gamma=gamma,
    verification='token',
    gate='raw',
    bonus_from='target',
    drafts=1,
    temperature=1.0,
    id=name,
    failure=None,
    text=''.join(pieces),
    quality=float(hard < level),
    scores={'exact_match': float(hard < level), 'chrf': 100 * level},
    emitted=n,
    ended=bool(rng.random() < 0.97),
    deferred=sum(deferred) if deferred else None,
    verifier_calls=calls if verifies else 0,
    verifier_tokens=calls * (gamma + 1) if verifies else 0,
    drafter_calls=calls * (gamma + 1) if gamma else 0 if verifies else calls,
    wall_s=0.01 * calls * (1 + 0.1 * gamma) * (1 + 0.1 * rng.random()),
    **counts,
  )
  trace = records.Trace(
    id=name,
    tokens=rng.integers(0, 1000, n).tolist(),
    pieces=pieces,
    sources=sources,
    deferred=deferred,
    logprobs=np.round(-rng.exponential(size=n), 6).tolist(),
  )
  return record, trace


def measure(config, done: Sequence[dict[str, Any]] = ()) -> Iterator[dict]:
  """Figures of one report: a workdir is made up, and reported once."""
  if done:
    return
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder) / 'made-up'
    start = time.perf_counter()
    figures = make(workdir, config)
    figures['making_s'] = time.perf_counter() - start
    start = time.perf_counter()
    subprocess.run(
      [sys.executable, '-m', 'experiments.report', f'--workdir={workdir}'],
      check=True,
      capture_output=True,
    )
    figures['report_s'] = time.perf_counter() - start
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    # Kilobytes, but for macOS.
    figures['report_bytes'] = most * (1 if sys.platform == 'darwin' else 1024)
    page = workdir / 'report/index.html'
    figures['page_bytes'] = page.stat().st_size
  yield figures


def table(figures: Sequence[dict[str, Any]]) -> str:
  """A line per report."""
  return '\n'.join(
    f'{row["points"]} points, {row["records"]:,} records of'
    f' {row["bytes_a_record"]:.0f} bytes with their traces: report in'
    f' {row["report_s"]:.0f} s and {row["report_bytes"] / 1e9:.2f} GB, page of'
    f' {row["page_bytes"] / 1e6:.1f} MB'
    for row in figures
  )
