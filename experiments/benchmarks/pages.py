"""The suite 'reports': what a report of many points costs.

Their records are made up, and the report is a process of its own.
"""

import functools
import json
import math
import pathlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cascades import arguments, tasks
from experiments import records
from experiments.benchmarks import stopwatch
from experiments.records import metrics

_COSTS = metrics.Costs(
  verifier_token_s=0.010,
  drafter_token_s=0.001,
  verify_s={2: 0.012, 4: 0.014},
)
_MEASURED = metrics.Measured((metrics.Spread(_COSTS, _COSTS),))
_GAMMAS = tuple(_COSTS.verify_s)
_METHODS = ('speed', 'chow', 'diff', 'opt', 'token_v1', 'token_v2', 'token_v3')
_TASKS = ('sums', 'words')
# Examples of a file, as of a sweep.
_SHARD = 256
_PIECES = (' the', ' shells', ' 7', '4', '.', '\n', ' =', ' Cleo', 'x1')


def check(config: ConfigDict) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: A number is out of its range.
  """
  for name in ('examples', 'leniences', 'tokens'):
    arguments.whole(name, config[name], 1)


class _Asked(NamedTuple):
  """An example at a point.

  Attributes:
    task: The task's name.
    id: The example's.
    hard: How hard it is, from 0 to 1: at which level of a model it is solved.
    method: The method's name.
    gamma: How many tokens are drafted per block; 0 for a model alone.
    lenience: The method's; nan where it has none.
  """

  task: str
  id: str
  hard: float
  method: str
  gamma: int
  lenience: float


def make(workdir: pathlib.Path, config: ConfigDict) -> dict[str, float]:
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
    examples = [
      tasks.Example(id=name, prompt='How many? ' * 20, reference='7')
      for name in names
    ]
    records.write(workdir / f'examples/{task}.jsonl', examples)
    for method, gamma, of_curve in curves:
      made = []
      for first in range(0, len(names), _SHARD):
        pairs = [
          _answer(
            rng,
            _Asked(task, names[i], hard[i], method, gamma, lenience),
            config.tokens,
          )
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
  records.write_text(workdir / 'costs.json', _MEASURED.to_json())
  told = {'seed': config.seed, 'batch_size': 16, 'tasks': list(_TASKS)}
  records.write_text(workdir / 'config.json', json.dumps(told))
  return {'points': points, 'records': count, 'bytes_a_record': size / count}


def _answer(
  rng: np.random.Generator, asked: _Asked, tokens: int
) -> tuple[records.Record, records.Trace]:
  """The larger the lenience, the more drafts stay, and the more is wrong.

  Args:
    rng: Makes it up.
    asked: The example, and how it is answered.
    tokens: How many an answer has, about.
  """
  level = {'verifier_only': 0.9, 'drafter_only': 0.6}.get(
    asked.method, 0.9 - 0.3 * asked.lenience
  )
  n = int(rng.integers(tokens // 2, 3 * tokens // 2 + 1))
  sources, calls, deferred = _sources(rng, asked, n)
  pieces = [_PIECES[i] for i in rng.integers(0, len(_PIECES), n).tolist()]
  record = records.Record(
    task=asked.task,
    method=asked.method,
    lenience=asked.lenience,
    gamma=asked.gamma,
    verification='token',
    gate='raw',
    bonus_from='target',
    drafts=1,
    temperature=1.0,
    id=asked.id,
    failure=None,
    text=''.join(pieces),
    quality=float(asked.hard < level),
    scores={'exact_match': float(asked.hard < level), 'chrf': 100 * level},
    emitted=n,
    ended=bool(rng.random() < 0.97),
    deferred=sum(deferred) if deferred else None,
    wall_s=0.01 * calls * (1 + 0.1 * asked.gamma) * (1 + 0.1 * rng.random()),
    **_counts(asked, sources, calls),
  )
  trace = records.Trace(
    id=asked.id,
    tokens=rng.integers(0, 1000, n).tolist(),
    pieces=pieces,
    sources=sources,
    deferred=deferred,
    logprobs=np.round(-rng.exponential(size=n), 6).tolist(),
  )
  return record, trace


def _sources(
  rng: np.random.Generator, asked: _Asked, n: int
) -> tuple[list[int], int, list[int] | None]:
  """Where the tokens of an answer come from.

  Args:
    rng: Makes it up.
    asked: How the answer is decoded.
    n: How many tokens it has.

  Returns:
    A source for each token, how many calls of the verifier (of the drafter,
    where it is alone) that took, and for each token whether it was deferred;
    None for a model alone.
  """
  if not asked.gamma:
    return [1 if asked.method == 'drafter_only' else 2] * n, n, None
  share = 0.25 - 0.2 * asked.lenience
  kept = np.minimum(rng.geometric(share, size=n) - 1, asked.gamma)
  # Drafts of each block, and the token after them.
  blocks = [[1] * k + [3 if k == asked.gamma else 2] for k in kept.tolist()]
  sources, calls = [], 0
  while len(sources) < n:
    sources += blocks[calls]
    calls += 1
  return sources[:n], calls, (rng.random(n) < 0.3).astype(int).tolist()


def _counts(asked: _Asked, sources: list[int], calls: int) -> dict[str, int]:
  """Counts of drafts and calls, as a record has them.

  Args:
    asked: How the answer is decoded.
    sources: Where each of its tokens came from.
    calls: How often the verifier was called; the drafter, where it is alone.
  """
  gamma = asked.gamma
  if not gamma:
    verifies = asked.method != 'drafter_only'
    return dict(
      verifier_calls=calls if verifies else 0,
      verifier_tokens=calls if verifies else 0,
      drafter_calls=0 if verifies else calls,
      **dict.fromkeys(
        ('drafted', 'examined', 'accepted', 'residual', 'bonus'), 0
      ),
    )
  drafted, residual = sources.count(1), sources.count(2)
  return dict(
    verifier_calls=calls,
    verifier_tokens=calls * (gamma + 1),
    drafter_calls=calls * (gamma + 1),
    drafted=calls * gamma,
    examined=drafted + residual,
    accepted=drafted,
    residual=residual,
    bonus=len(sources) - drafted - residual,
  )


def measure(
  config: ConfigDict, done: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
  """Figures of one report: a workdir is made up, and reported once.

  Args:
    config: Says how large the workdir is.
    done: Figures of an earlier run; if there are any, nothing is left to do.
  """
  if done:
    return
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder) / 'made-up'
    making_s, figures = stopwatch.timed(make, workdir, config)
    figures['making_s'] = making_s
    report = functools.partial(
      subprocess.run,
      [sys.executable, '-m', 'experiments.report', f'--workdir={workdir}'],
      check=True,
      capture_output=True,
    )
    figures['report_s'], _ = stopwatch.timed(report)
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
