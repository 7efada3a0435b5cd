"""What it costs to have a point decoded elsewhere on the same machine."""

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from experiments import records
from experiments.sweeps import launchers, plan

_ARMS = ('local', 'ray')


def check(config) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: A number is out of its range.
  """
  for name in ('num_examples', 'repeats'):
    if config[name] < 1:
      raise ValueError(f'{name}: {config[name]} will not do; give 1 or more.')


def measure(config, done: Sequence[dict[str, Any]] = ()) -> Iterator[dict]:
  """Figures of one point: both launchers decode it in turns."""
  if done:
    return
  tasks = plan.tasks_of(config)
  curves = [plan.Curve(config.method, tuple(config.lenience), config.gamma)]
  examples = {
    name: plan.load_examples(config, task)[0] for name, task in tasks.items()
  }
  teams = {
    arm: launchers.LAUNCHERS[arm](config, curves, tasks, print) for arm in _ARMS
  }
  try:
    facts = {arm: team.facts() for arm, team in teams.items()}
    (point,) = plan.points(
      config.to_dict() | {'shard_size': config.num_examples},
      curves,
      tasks,
      examples,
      facts['local'],
    )
    jobs = [(point, examples[point.task])]
    seconds: dict[str, list[float]] = {arm: [] for arm in _ARMS}
    said: dict[str, list[str]] = {}
    for turn in range(config.repeats + 1):
      for arm in _ARMS if turn % 2 else _ARMS[::-1]:
        start = time.perf_counter()
        ((_, made),) = teams[arm].decode(jobs, lambda: None, lambda: False)
        if turn:
          seconds[arm].append(time.perf_counter() - start)
        said[arm] = [records.dumps(trace) for _, trace in made]
    size = sum(len(records.dumps(one)) for pair in made for one in pair)
  finally:
    for team in teams.values():
      team.close()
  yield {
    'answers': len(made),
    'bytes': size,
    'same': said['local'] == said['ray'],
    'seconds': seconds,
  }


def ratio(row: dict[str, Any]) -> float:
  """Ray's seconds by those of local, medians of turns."""
  local, ray = (statistics.median(row['seconds'][arm]) for arm in _ARMS)
  return ray / local


def table(figures: Sequence[dict[str, Any]]) -> str:
  """A line per point."""
  return '\n'.join(
    f'a point of {row["answers"]} answers, {row["bytes"] / 1e6:.1f} MB: local'
    f' {statistics.median(row["seconds"]["local"]):.1f} s, Ray'
    f' {statistics.median(row["seconds"]["ray"]):.1f} s, by local'
    f' {ratio(row):.3f}; answers are {"" if row["same"] else "not "}the same'
    for row in figures
  )
