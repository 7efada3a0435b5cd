"""Records of decoded examples, and metrics computed from them.

The package imports neither JAX nor flags. A workdir holds these files, with one
JSON object a line:

  examples/TASK.jsonl     prompts and references: a `tasks.Example` each
  records/POINT.jsonl     scores and counts of each answer: a `Record` each
  traces/POINT.jsonl.gz   tokens of each answer: a `Trace` for each record
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
  write,
  write_text,
)
from experiments.records.record_schema import (
  OPTIONS,
  Outcome,
  Record,
  Trace,
  decoding_fields,
  dumps,
  failed_example,
  hash_examples,
  loads,
  variant,
)

__all__ = [
  'OPTIONS',
  'SOURCES',
  'Outcome',
  'Record',
  'Trace',
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
  'variant',
  'write',
  'write_text',
]
