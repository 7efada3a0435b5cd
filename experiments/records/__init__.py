"""What a run keeps, and the numbers made of it; no JAX, no flags.

In a workdir lie, one JSON object a line,

  examples/TASK.jsonl     what was asked: a `tasks.Example` each
  records/POINT.jsonl     what came of it: a `Record` each
  traces/POINT.jsonl.gz   how, token by token: a `Trace` for each record
  views/TASK.jsonl        what was thought of it: a `View` of a few of them
  race.jsonl              a few arms on the clock: a `Record` of each prompt

`lines` says what they hold, `files` writes and reads them; `metrics` makes the
numbers of a point of its records, with intervals from `stats`.
"""

from cascades.plain import digest, plain
from cascades.scheme import SOURCES
from experiments.records.files import (
  claim,
  read,
  read_all,
  read_examples,
  read_json,
  read_points,
  read_race,
  read_starts,
  read_traces,
  read_views,
  write,
  write_text,
)
from experiments.records.lines import (
  OPTIONS,
  VIEWED,
  Record,
  Trace,
  View,
  dumps,
  failure,
  hash_of,
  loads,
  told,
  variant,
  view_key,
)

__all__ = [
  'OPTIONS',
  'SOURCES',
  'VIEWED',
  'Record',
  'Trace',
  'View',
  'claim',
  'digest',
  'dumps',
  'failure',
  'hash_of',
  'loads',
  'plain',
  'read',
  'read_all',
  'read_examples',
  'read_json',
  'read_points',
  'read_race',
  'read_starts',
  'read_traces',
  'read_views',
  'told',
  'variant',
  'view_key',
  'write',
  'write_text',
]
