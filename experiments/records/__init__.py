"""Records of decoded examples, and metrics computed from them.

The package imports neither JAX nor flags. A workdir holds these files, with one
JSON object a line:

  examples/TASK.jsonl     prompts and references: a `tasks.Example` each
  records/POINT.jsonl     scores and counts of each answer: a `Record` each
  traces/POINT.jsonl.gz   tokens of each answer: a `Trace` for each record
  views/TASK.jsonl        probabilities of each token of a few answers: `View`s
  race.jsonl              answers that were timed against each other: `Record`s

`record_schema` declares the fields, `files` reads and writes the files,
`metrics` computes the numbers of a point, and `stats` their intervals.
"""

from cascades.files import digest, plain
from cascades.verification_config import SOURCES
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
from experiments.records.record_schema import (
  MAX_VIEW_TOKENS,
  OPTIONS,
  Outcome,
  Record,
  Trace,
  View,
  decoding_fields,
  dumps,
  failed_example,
  hash_examples,
  loads,
  variant,
  view_key,
)

__all__ = [
  'MAX_VIEW_TOKENS',
  'OPTIONS',
  'SOURCES',
  'Outcome',
  'Record',
  'Trace',
  'View',
  'claim',
  'decoding_fields',
  'digest',
  'dumps',
  'failed_example',
  'hash_examples',
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
  'variant',
  'view_key',
  'write',
  'write_text',
]
