"""The one schema of a result line, shared by runs and reports.

A record is one example decoded at one point (task, method, lenience, gamma,
options, temperature). In a workdir lie, one JSON object a line,

  examples/TASK.jsonl     what was asked: an `Example` each
  records/POINT.jsonl     what came of it: a `Record` each
  traces/POINT.jsonl.gz   how, token by token: a `Trace` for each record
  views/TASK.jsonl        what was thought of it: a `View` of a few of them

A file is written under another name and renamed when it is whole, so what is
there can be trusted; traces before their records. Numbers that JSON cannot
hold (an infinite lenience) are written as strings and read back by `float`.

Counts follow one rule: tokens after an end-of-sequence token, and the prompt,
are counted nowhere.
"""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import json
import math
import os
import pathlib
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

# Where an emitted token came from.
SOURCES = ('prompt', 'draft', 'residual', 'bonus')

# How blocks are verified unless a run says otherwise; `verification.Scheme`
# says what the options mean.
STANDARD = {
  'verification': 'token',
  'gate': 'raw',
  'bonus': 'target',
  'drafts': 1,
}


def variant(
  method: str, verification: str, gate: str, bonus: str, drafts: int = 1
) -> str:
  """A method's name, and its options where they are not the standard ones.

  'token_v3', 'token_v3 block', 'diff gate processed', 'speed bonus verifier',
  'opt k_seq 4 drafts'.
  """
  words = [method]
  if verification != STANDARD['verification']:
    words.append(verification)
  if gate != STANDARD['gate']:
    words += ['gate', gate]
  if bonus != STANDARD['bonus']:
    words += ['bonus', bonus]
  if drafts != STANDARD['drafts']:
    words.append(f'{drafts} drafts')
  return ' '.join(words)


def plain(value: Any) -> Any:
  """A value as JSON can hold it: numbers that are not finite as text."""
  if isinstance(value, Mapping):
    return {name: plain(v) for name, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [plain(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return value


def digest(value: Any) -> str:
  """A hash of what JSON can hold, whatever the order of its fields."""
  text = json.dumps(value, sort_keys=True, allow_nan=False)
  return hashlib.sha256(text.encode()).hexdigest()


# One accepted answer, or several.
Reference = str | tuple[str, ...]

_READERS: dict[Any, Callable[[Any], Any]] = {
  float: float,
  list[float]: lambda value: list(map(float, value)),
  Reference: lambda value: tuple(value) if isinstance(value, list) else value,
}


class _Line:
  """What is written as a line: a dataclass with plain fields."""

  def to_json(self) -> str:
    """One line."""
    return json.dumps(plain(dataclasses.asdict(self)), allow_nan=False)

  @classmethod
  def from_json(cls, line: str | bytes) -> Self:
    """Reads a line.

    Raises:
      ValueError: A field is missing or unknown.
    """
    values, (fields, readers) = json.loads(line), _fields(cls)
    if not isinstance(values, dict):
      raise ValueError('record: a line has to be a JSON object.')
    if values.keys() != fields:
      odd = ', '.join(sorted(values.keys() ^ fields))
      raise ValueError(f'record: missing or unknown fields: {odd}.')
    for name, reader in readers:
      values[name] = reader(values[name])
    return cls(**values)


@functools.cache
def _fields(cls: type) -> tuple[set[str], list[tuple[str, Callable]]]:
  """Names of the fields, and what makes values of those that JSON changes."""
  kinds = {field.name: field.type for field in dataclasses.fields(cls)}
  readers = [(k, _READERS[t]) for k, t in kinds.items() if t in _READERS]
  return set(kinds), readers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example(_Line):
  """One prompt with its reference answer.

  Attributes:
    id: Unique within the task; names split, seed and number.
    prompt: Text given to the model, exactly as it is.
    reference: Text a perfect model would answer; several where any of them
      will do, and none of them where the set knows none.
  """

  id: str
  prompt: str
  reference: Reference


def hash_of(examples: Iterable[Example]) -> str:
  """Of all that is asked, and should be answered."""
  return digest([[e.id, e.prompt, e.reference] for e in examples])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace(_Line):
  """An answer, token by token.

  Attributes:
    id: The example's.
    tokens: Ids of the emitted tokens, end-of-sequence included.
    pieces: The text of each of them; a stop token has none.
    sources: Index into `SOURCES` for each of them.
    deferred: 1 for each of them where the rule defers to the verifier, else 0;
      None where the method has no deferral rule.
    logprobs: The verifier's log-probability of each of them, at temperature 1;
      of the drafter alone, the drafter's.
  """

  id: str
  tokens: list[int]
  pieces: list[str]
  sources: list[int]
  deferred: list[int] | None
  logprobs: list[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record(_Line):
  """One example decoded at one point.

  Attributes:
    task: Key of `TASKS`.
    method: Key of `METHODS`, or of `sequence.CONFIDENCES`.
    lenience: As given; nan where the method has none.
    gamma: Tokens drafted per block; 0 is plain decoding. A sequential cascade
      has no blocks: there it is that of the loop that simulated it.
    verification: How blocks were verified; see `verification.VERIFICATIONS`.
    gate: What the deferral rule saw: 'raw' or 'processed'.
    bonus_from: What bonus tokens were drawn from: 'target' or 'verifier'.
    drafts: Drafts per block.
    temperature: Of both models.
    id: The example's.
    failure: Why there is no answer, in a sentence; None where there is one.
      A failure has no score and counts of zero.
    text: Text it answered.
    quality: The task's own metric; nan where it has none.
    scores: All of its metrics, by name.
    emitted: Tokens of the answer, end-of-sequence included.
    ended: Whether it ended by itself, and not by the limit of its length.
    drafted: Tokens that the drafter proposed.
    examined: Of these, those that verification reached.
    accepted: Of these, those that were kept.
    deferred: Of the examined, those where the rule defers to the verifier;
      None where the method has no deferral rule.
    residual: Emitted tokens sampled after a rejection.
    bonus: Emitted tokens sampled after a block kept whole.
    verifier_calls: Forward passes of the verifier, prefill excluded.
    verifier_tokens: Tokens that it read in them.
    drafter_calls: Forward passes of the drafter, prefill excluded.
    wall_s: Seconds of the call that decoded it, shared equally by the rows of
      that call; prefill included, compilation excluded. nan for a sequential
      cascade, of which only the counts are its own.
  """

  task: str
  method: str
  lenience: float
  gamma: int
  verification: str
  gate: str
  bonus_from: str
  drafts: int
  temperature: float
  id: str
  failure: str | None
  text: str
  quality: float
  scores: dict[str, float]
  emitted: int
  ended: bool
  drafted: int
  examined: int
  accepted: int
  deferred: int | None
  residual: int
  bonus: int
  verifier_calls: int
  verifier_tokens: int
  drafter_calls: int
  wall_s: float

  @property
  def variant(self) -> str:
    """The method's name, with its options where they are not standard."""
    return variant(self.method, *self.options)

  @property
  def point(self) -> tuple:
    """What records of one row of the summary share."""
    # nan is not equal to itself; None is.
    lenience = None if math.isnan(self.lenience) else self.lenience
    return (
      self.task,
      self.method,
      lenience,
      self.gamma,
      *self.options,
      self.temperature,
    )

  @property
  def options(self) -> tuple[str, str, str, int]:
    """How its blocks were verified, in the order of `STANDARD`."""
    return self.verification, self.gate, self.bonus_from, self.drafts


# Most tokens of an answer that a view has something to say of.
VIEWED = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class View(_Line):
  """What models and method say of each token of an answer, for people.

  Attributes:
    point: Name of the point that the answer is of: of its file.
    lenience: At which of the point's leniences; nan where it has none.
    id: The example's.
    q: How likely each token was to the drafter, as it samples; of the first
      `VIEWED` tokens, and so the rest.
    p: How likely to the verifier, likewise.
    pi: How likely it was to be emitted there.
    deferred: 1 for each where the rule defers the token itself, else 0; None
      where the method has no deferral rule. Of a token that was kept it is
      what the trace says; there, that of a rejection is about the draft.
    drafter: The drafter's likeliest token at each place, as text.
    verifier: The verifier's.
  """

  point: str
  lenience: float
  id: str
  q: list[float]
  p: list[float]
  pi: list[float]
  deferred: list[int] | None
  drafter: list[str]
  verifier: list[str]

  @property
  def key(self) -> tuple:
    """Which answer it is of."""
    return view_key(self.point, self.lenience, self.id)


def view_key(point: str, lenience: float, example: str) -> tuple:
  """Which answer a view is of; see `View`."""
  # nan is not equal to itself; None is.
  return point, None if math.isnan(lenience) else lenience, example


def failure(reason: str, **told) -> tuple[Record, Trace]:
  """What is kept of an example that has no answer.

  Args:
    reason: In a sentence.
    **told: Of the record: its task, its id, and how it was to be decoded.
  """
  counts = (
    'emitted drafted examined accepted residual bonus verifier_calls'
    ' verifier_tokens drafter_calls'
  )
  record = Record(
    **told,
    failure=reason,
    text='',
    quality=math.nan,
    scores={},
    ended=False,
    deferred=None,
    wall_s=0.0,
    **dict.fromkeys(counts.split(), 0),
  )
  trace = Trace(
    id=record.id, tokens=[], pieces=[], sources=[], deferred=None, logprobs=[]
  )
  return record, trace


def write_text(path: str | pathlib.Path, text: str) -> None:
  """Writes a file whole or not at all, even where the power fails."""
  _write(pathlib.Path(path), text.encode())


def _write(path: pathlib.Path, content: bytes) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  handle, name = tempfile.mkstemp(dir=path.parent, prefix='.', suffix='.part')
  try:
    with os.fdopen(handle, 'wb') as f:
      f.write(content)
      f.flush()
      # Else the name could be there after a power cut, and nothing under it.
      os.fsync(f.fileno())
    os.chmod(name, 0o644)
    os.replace(name, path)
  except BaseException as e:
    pathlib.Path(name).unlink(missing_ok=True)
    if isinstance(e, OSError) and e.errno and not e.filename:
      # A full disk does not say what would have been written.
      raise OSError(e.errno, e.strerror, str(path)) from None
    raise


def write(path: str | pathlib.Path, lines: Iterable[_Line]) -> None:
  """Writes lines whole or not at all; packed, where the name ends in `.gz`."""
  path = pathlib.Path(path)
  content = ''.join(line.to_json() + '\n' for line in lines).encode()
  if path.suffix == '.gz':
    # The same lines are the same bytes, whenever they are written.
    content = gzip.compress(content, compresslevel=6, mtime=0)
  _write(path, content)


def scan(
  path: str | pathlib.Path, kind: type[_Line] = Record
) -> Iterator[_Line]:
  """Reads a file that `write` wrote, a line at a time.

  Args:
    path: Of the file.
    kind: What its lines are.

  Raises:
    ValueError: It is damaged; names file and line.
  """
  path = pathlib.Path(path)
  opened = gzip.open if path.suffix == '.gz' else open
  number = 0
  try:
    with opened(path, 'rb') as f:
      for number, line in enumerate(f):
        # A line that was cut off might still be read.
        if not line.endswith(b'\n'):
          raise ValueError('it has no end')
        yield kind.from_json(line)
        # What breaks from here on is the next one.
        number += 1
  except (EOFError, ValueError, TypeError, zlib.error, gzip.BadGzipFile) as e:
    raise ValueError(f'{path}:{number + 1}: damaged record ({e})') from None


def read(path: str | pathlib.Path, kind: type[_Line] = Record) -> list:
  """All that `scan` gives."""
  return list(scan(path, kind))


def read_all(workdir: str | pathlib.Path) -> list[Record]:
  """All records of a workdir, files in name order.

  Raises:
    ValueError: There are none, or one is damaged.
  """
  return [r for lines in read_points(workdir).values() for r in lines]


def read_points(workdir: str | pathlib.Path) -> dict[str, list[Record]]:
  """The records of each point of a workdir, by its name, in that order.

  Raises:
    ValueError: There are none, or one is damaged.
  """
  paths = sorted(pathlib.Path(workdir).glob('records/*.jsonl'))
  found = {path.stem: read(path) for path in paths}
  if not any(found.values()):
    raise ValueError(
      f'workdir: no records in {workdir}/records; run experiments.sweep first.'
    )
  return found


def scan_traces(workdir: str | pathlib.Path, point: str) -> Iterator[Trace]:
  """A point's traces, in the order of its records, one at a time.

  Raises:
    ValueError: They are damaged, or not there.
  """
  path = pathlib.Path(workdir) / 'traces' / f'{point}.jsonl.gz'
  if not path.is_file():
    raise ValueError(f'workdir: there is no {path}; run experiments.sweep.')
  yield from scan(path, Trace)


def read_traces(workdir: str | pathlib.Path, point: str) -> list[Trace]:
  """All that `scan_traces` gives."""
  return list(scan_traces(workdir, point))


def read_examples(workdir: str | pathlib.Path) -> dict[str, dict[str, Example]]:
  """What was asked, by task and id."""
  paths = sorted(pathlib.Path(workdir).glob('examples/*.jsonl'))
  return {
    path.stem: {example.id: example for example in read(path, Example)}
    for path in paths
  }


def read_views(workdir: str | pathlib.Path) -> dict[tuple, View]:
  """What is there of views, by their key; a damaged file is as good as none."""
  found = {}
  for path in sorted(pathlib.Path(workdir).glob('views/*.jsonl')):
    with contextlib.suppress(ValueError):
      found |= {view.key: view for view in read(path, View)}
  return found
