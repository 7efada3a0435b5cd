"""The suite 'launchers': what it costs to have a point decoded elsewhere.

Elsewhere is a worker on the same machine, which has as many cores.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from cascades import arguments
from experiments import records
from experiments.benchmarks import stopwatch
from experiments.benchmarks.digits import median
from experiments.sweeps import launchers, plan

_ARMS = ('local', 'ray')


def check(config: ConfigDict) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: A number is out of its range.
  """
  for name in ('num_examples', 'repeats'):
    arguments.whole(name, config[name], 1)


def measure(
  config: ConfigDict, done: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
  """Figures of one point: both launchers decode it in turns.

  Args:
    config: Fields of a sweep, and which curve of it is timed.
    done: Figures of an earlier run; if there are any, nothing is left to do.
  """
  if done:
    return
  tasks = plan.tasks_of(config)
  curves = plan.curves(config, None, {})
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
    job = point, examples[point.task]
    turns = [functools.partial(_decode, teams[arm], job) for arm in _ARMS]
    told = stopwatch.take_turns(turns, config.repeats, alternate=True)
  finally:
    for team in teams.values():
      team.close()
  here, there = (turns[-1][1] for turns in told)
  yield {
    'answers': len(there),
    'bytes': sum(len(records.dumps(one)) for pair in there for one in pair),
    'same': _traces(here) == _traces(there),
    'seconds': {
      arm: [seconds for seconds, _ in turns]
      for arm, turns in zip(_ARMS, told, strict=True)
    },
  }


def _decode(
  team: launchers.Launcher, job: launchers.Job
) -> tuple[float, list[tuple[records.Record, records.Trace]]]:
  """Seconds of a point, and what came of it."""
  seconds, ((_, made),) = stopwatch.timed(
    lambda: list(team.decode([job], lambda: None, lambda: False))
  )
  return seconds, made


def _traces(made: list[tuple[records.Record, records.Trace]]) -> list[str]:
  """How answers were decoded, without the seconds that it took."""
  return [records.dumps(trace) for _, trace in made]


def ratio(row: dict[str, Any]) -> float:
  """Ray's seconds by those of local, medians of turns."""
  local, ray = (median(row['seconds'][arm]) for arm in _ARMS)
  return ray / local


def table(figures: Sequence[dict[str, Any]]) -> str:
  """A line per point."""
  return '\n'.join(
    f'a point of {row["answers"]} answers, {row["bytes"] / 1e6:.1f} MB: local'
    f' {median(row["seconds"]["local"]):.1f} s, Ray'
    f' {median(row["seconds"]["ray"]):.1f} s, by local'
    f' {ratio(row):.3f}; answers are {"" if row["same"] else "not "}the same'
    for row in figures
  )
