"""The one schema of a result line, shared by runs and reports.

A record is one example decoded at one point (task, method, lenience, gamma,
options, temperature). Records lie in `records/*.jsonl` of a workdir, one JSON
object a line; a file is written under another name and renamed when it is
whole, so what is there can be trusted. Numbers that JSON cannot hold (an
infinite lenience) are written as strings and read back by `float`.

Counts follow one rule: tokens after an end-of-sequence token, and the prompt,
are counted nowhere.
"""

import dataclasses
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
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
    prompt: Text given to the model.
    text: Text it answered.
    reference: Text it should have answered; several where any would do.
    tokens: Ids of the emitted tokens, end-of-sequence included.
    pieces: The text of each of them; a stop token has none.
    sources: Index into `SOURCES` for each of them.
    quality: The task's own metric; nan where it has none.
    scores: All of its metrics, by name.
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
  prompt: str
  text: str
  reference: str | tuple[str, ...]
  tokens: list[int]
  pieces: list[str]
  sources: list[int]
  quality: float
  scores: dict[str, float]
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
    options = self.verification, self.gate, self.bonus_from, self.drafts
    return variant(self.method, *options)

  @property
  def point(self) -> tuple:
    """What records of one row of the summary share."""
    # nan is not equal to itself; None is.
    lenience = None if math.isnan(self.lenience) else self.lenience
    options = self.verification, self.gate, self.bonus_from, self.drafts
    return (
      self.task,
      self.method,
      lenience,
      self.gamma,
      *options,
      self.temperature,
    )

  def to_json(self) -> str:
    """One line."""
    return json.dumps(plain(dataclasses.asdict(self)), allow_nan=False)

  @classmethod
  def from_json(cls, line: str) -> 'Record':
    """Reads a line.

    Raises:
      ValueError: A field is missing or unknown.
    """
    fields: Mapping[str, Any] = json.loads(line)
    names = {f.name for f in dataclasses.fields(cls)}
    if set(fields) != names:
      odd = ', '.join(sorted(set(fields) ^ names))
      raise ValueError(f'record: missing or unknown fields: {odd}.')
    numbers = [f.name for f in dataclasses.fields(cls) if f.type is float]
    fields |= {name: float(fields[name]) for name in numbers}
    if isinstance(fields['reference'], list):
      fields['reference'] = tuple(fields['reference'])
    return cls(**fields)


def write_text(path: str | pathlib.Path, text: str) -> None:
  """Writes a file whole or not at all."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  handle, name = tempfile.mkstemp(dir=path.parent, prefix='.', suffix='.part')
  try:
    with os.fdopen(handle, 'w', encoding='utf-8') as f:
      f.write(text)
    os.chmod(name, 0o644)
    os.replace(name, path)
  except BaseException:
    pathlib.Path(name).unlink(missing_ok=True)
    raise


def write(path: str | pathlib.Path, records: Iterable[Record]) -> None:
  """Writes a file of records whole or not at all."""
  write_text(path, ''.join(r.to_json() + '\n' for r in records))


def read(path: str | pathlib.Path) -> list[Record]:
  """Reads a file of records.

  Raises:
    ValueError: A line is damaged; names file and line.
  """
  records = []
  with open(path, encoding='utf-8') as f:
    for number, line in enumerate(f, 1):
      try:
        records.append(Record.from_json(line))
      except (ValueError, TypeError) as e:
        raise ValueError(f'{path}:{number}: damaged record ({e})') from None
  return records


def read_all(workdir: str | pathlib.Path) -> list[Record]:
  """All records of a workdir, files in name order.

  Raises:
    ValueError: There are none, or one is damaged.
  """
  paths = sorted(pathlib.Path(workdir).glob('records/*.jsonl'))
  records = [record for path in paths for record in read(path)]
  if not records:
    raise ValueError(
      f'workdir: no records in {workdir}/records; run experiments.sweep first.'
    )
  return records
