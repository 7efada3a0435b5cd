"""Records of decoded examples, and metrics computed from them.

The package imports neither JAX nor flags. A workdir holds these files, with one
JSON object a line:

  examples/TASK.jsonl     prompts and references: a `tasks.Example` each
  records/POINT.jsonl     scores and counts of each answer: a `Record` each
  traces/POINT.jsonl.gz   tokens of each answer: a `Trace` for each record
  race.jsonl              answers that were timed against each other: `Record`s

A record is one example decoded at one point (task, method, lenience, gamma,
options, temperature). Numbers that JSON cannot hold, such as an infinite
lenience, are strings that `float` reads. No count includes the prompt or tokens
after an end-of-sequence token.

A file is written under another name and renamed when it is complete, so that
no file is partial. Traces are written before their records.
`metrics` computes the numbers of a point, and `stats` their intervals.
"""

import dataclasses
import functools
import gzip
import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

from cascades import Conversation, files
from cascades.arguments import options_of
from cascades.config import DecodingConfig
from cascades.files import Count, digest, plain, write_bytes, write_text
from cascades.verification_config import SOURCES
from experiments import tasks

# Numbers that JSON cannot hold are strings; see `plain`.
_Float = Annotated[
  float,
  pydantic.Field(allow_inf_nan=True),
  pydantic.BeforeValidator(
    lambda x: float(x) if x in ('nan', 'inf', '-inf') else x
  ),
]
_Source = Annotated[int, pydantic.Field(ge=0, le=len(SOURCES) - 1)]
_Bit = Annotated[int, pydantic.Field(ge=0, le=1)]
_Counts = Annotated[list[Count], files.FailFast]
_Texts = Annotated[list[str], files.FailFast]
# How the name of a curve shows each option that is not at its default.
_VARIANT_WORDS = {
  'verification': '{}',
  'gate': 'gate {}',
  'bonus': 'bonus {}',
  'drafts': '{} drafts',
  'draft': 'draft {}',
}
# These options and their defaults, by the names of configs.
OPTIONS = {
  name: options_of(DecodingConfig)[name].default for name in _VARIANT_WORDS
}


def variant(method: str, **options: Any) -> str:
  """Returns the name of a method and of its options that are not standard.

  For example 'token_v3', 'token_v3 block', 'diff gate processed',
  'speed bonus verifier', 'opt k_seq 4 drafts'.
  """
  words = [
    words.format(options[name])
    for name, words in _VARIANT_WORDS.items()
    if options.get(name, OPTIONS[name]) != OPTIONS[name]
  ]
  return ' '.join([method, *words])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
  """An answer, token by token.

  Attributes:
    id: Id of the example.
    tokens: Ids of the emitted tokens, end-of-sequence included.
    token_strings: The text of each token; '' for a stop token.
    sources: Index into `SOURCES` for each token.
    deferred: 1 for each token where the rule defers to the verifier, else 0;
      see `SampleOutput.deferred` for bonus tokens. None for a method without a
      deferral rule.
    logprobs: The verifier's log-probability of each token at temperature 1; for
      the drafter alone, the drafter's.
    rejected: Id of the draft that each residual token replaces; None for the
      other tokens, and with several drafts.
    verifier_logprobs: log p of each token after temperature and truncation;
      these three as in `SampleOutput`.
    drafter_logprobs: log q of each token.
    target_logprobs: log pi of each token.
    law_given: The condition of pi beside the text, 'text' for none or 'path'.
  """

  id: str
  tokens: _Counts
  token_strings: _Texts
  sources: Annotated[list[_Source], files.FailFast]
  deferred: Annotated[list[_Bit], files.FailFast] | None
  logprobs: Annotated[list[_Float], files.FailFast]
  rejected: Annotated[list[Count | None], files.FailFast]
  verifier_logprobs: Annotated[list[_Float], files.FailFast]
  drafter_logprobs: Annotated[list[_Float | None], files.FailFast]
  target_logprobs: Annotated[list[_Float | None], files.FailFast]
  law_given: Literal['text', 'path']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
  """One example decoded at one point.

  Attributes:
    task: Key of `TASKS`.
    method: Key of `METHODS`, or of `sequence.CONFIDENCES`.
    lenience: Lenience of the method; nan for a method without lenience.
    gamma: Tokens drafted per block; 0 for plain decoding.
    verification: Verification of blocks; a name of `VERIFICATIONS`.
    gate: Distributions that the deferral rule reads: 'raw' or 'processed'.
    bonus_from: Distribution of bonus tokens: 'target' or 'verifier'.
    drafts: Drafts per block.
    draft: How drafts are drawn: 'sample' or 'argmax'.
    temperature: Temperature of both models.
    id: Id of the example.
    failure: Why there is no answer, in a sentence; None for an answer. A
      failure has no score and counts of zero.
    text: Text of the answer.
    quality: The task's quality score; nan for a task without one.
    scores: All scores of the task, by name.
    emitted: Tokens of the answer, end-of-sequence included.
    ended: True if a stop token or text ended the answer, not the length limit.
    drafted: Tokens that the drafter proposed.
    examined: Drafted tokens that verification reached.
    accepted: Examined tokens that were accepted.
    deferred: Examined tokens where the rule defers to the verifier; None for a
      method without a deferral rule.
    deferrals: Emitted tokens, bonus tokens included, where the rule defers;
      None unless chow or diff decoded with `token` verification, one draft a
      block and bonus tokens from the target.
    last_deferral: The place of the last of them, from 1 on; 0 if there is none.
    residual: Emitted tokens sampled after a rejection.
    bonus: Emitted tokens sampled after a block of accepted drafts.
    verifier_calls: Forward passes of the verifier, prefill excluded.
    verifier_tokens: Tokens that the verifier read in these passes.
    drafter_calls: Forward passes of the drafter, prefill excluded.
    wall_s: Seconds of decoding, prefill included and compilation excluded, as
      this row's share of its batch.
  """

  task: str
  method: str
  lenience: _Float
  gamma: Count
  verification: str
  gate: str
  bonus_from: str
  drafts: Count
  draft: str
  temperature: _Float
  id: str
  failure: str | None
  text: str = ''
  quality: _Float = math.nan
  scores: dict[str, _Float] = dataclasses.field(default_factory=dict)
  emitted: Count = 0
  ended: bool = False
  drafted: Count = 0
  examined: Count = 0
  accepted: Count = 0
  deferred: Count | None = None
  deferrals: Count | None = None
  last_deferral: Count | None = None
  residual: Count = 0
  bonus: Count = 0
  verifier_calls: Count = 0
  verifier_tokens: Count = 0
  drafter_calls: Count = 0
  wall_s: _Float = 0.0

  @property
  def variant(self) -> str:
    """The name of the method and of its options that are not standard."""
    options = dict(zip(OPTIONS, self.options, strict=True))
    return variant(method=self.method, **options)

  @property
  def point(self) -> tuple:
    """The values that all records of a row of the summary share."""
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
  def options(self) -> tuple[Any, ...]:
    """The options of a curve, in the order of `OPTIONS`."""
    first = self.verification, self.gate, self.bonus_from
    return *first, self.drafts, self.draft


def decoding_fields(config: Any, **more: Any) -> dict[str, Any]:
  """Returns the fields of a record that hold the options of decoding."""
  names = 'gamma verification gate drafts draft temperature'.split()
  fields = {name: getattr(config, name) for name in names}
  return fields | dict(
    method=config.method.name, bonus_from=config.bonus, **more
  )


class Outcome(NamedTuple):
  """The record and the trace of an example at one lenience of a curve."""

  record: Record
  trace: Trace


def failed_example(reason: str, **fields: Any) -> Outcome:
  """Returns the outcome of an example without an answer."""
  record = Record(**fields, failure=reason)
  lists = 'tokens token_strings sources logprobs rejected verifier_logprobs'
  lists += ' drafter_logprobs target_logprobs'
  empty: dict[str, Any] = {name: [] for name in lists.split()}
  trace = Trace(id=record.id, deferred=None, law_given='text', **empty)
  return Outcome(record, trace)


def check_tree(folder: pathlib.Path) -> None:
  """Refuses a workdir that contains a symbolic link, but in its `wandb`.

  Data written to such a path would be written to the link's target.
  """
  for path in folder.rglob('*'):
    parents = path.relative_to(folder).parts[:-1]
    if path.is_symlink() and parents[:1] != ('wandb',):
      raise ValueError(
        f'workdir: {path} is a symbolic link, which is not followed here;'
        ' replace it by its target.'
      )


def hash_examples(examples: Iterable[tasks.Example]) -> str:
  """Hashes the ids, prompts and references of examples."""
  return digest([[e.id, e.prompt, e.reference] for e in examples])


def dumps(line: Any) -> str:
  """Returns a dataclass of this module, or an example, as a line of JSON."""
  return json.dumps(plain(dataclasses.asdict(line)), allow_nan=False)


def loads[Line](text: str | bytes, kind: type[Line] = Record) -> Line:
  """Reads a line that `dumps` wrote."""
  fields = dict(_schema(kind).parse(files.parse_json(text)))
  if kind is tasks.Example:
    if isinstance(fields['reference'], list):
      fields['reference'] = tuple(fields['reference'])
    if isinstance(fields['prompt'], list):
      fields['prompt'] = Conversation(fields['prompt'])
  line = kind(**fields)
  for name, values in fields.items() if isinstance(line, Trace) else ():
    # A method without a deferral rule has no deferrals.
    if isinstance(values, list) and len(values) != len(line.tokens):
      raise ValueError(f'{name} must be as long as tokens')
  return line


class _Line(files.Schema):
  """A line, which has no unknown fields."""

  model_config = pydantic.ConfigDict(extra='forbid')


class _ExampleLine(_Line):
  id: str
  prompt: str | Annotated[list[_Texts], files.FailFast]
  reference: str | _Texts


@functools.cache
def _schema(kind: type) -> type[files.Schema]:
  """Returns the schema of a type of lines."""
  if kind is tasks.Example:
    return _ExampleLine
  fields: dict[str, Any] = {
    field.name: (field.type, ...) for field in dataclasses.fields(kind)
  }
  return pydantic.create_model(kind.__name__, __base__=_Line, **fields)


def claim(
  path: pathlib.Path,
  fields: Mapping[str, Any],
  kind: str,
  bound: bool = True,
  replaceable: Sequence[str] = (),
  dependent: Sequence[pathlib.Path] = (),
  advice: str = 'delete it',
  keep: bool = False,
) -> list[str]:
  """Writes the settings of a workdir, or checks that they have not changed.

  Dependent files are of the earlier settings, and are deleted if these change.
  With `keep`, nothing is changed where there are settings. Returns the changed
  fields that are not replaceable.
  """
  text = json.dumps(fields, indent=2) + '\n'
  previous = read_json(path) if path.exists() else {}
  current = json.loads(text)
  names = sorted(
    name
    for name in previous.keys() | current.keys()
    if previous.get(name) != current.get(name)
  )
  refused = [x for x in names if previous and x not in replaceable]
  if bound and refused:
    # Of the same settings, the facts name other points.
    differing = ', '.join(x for x in refused if x != 'points')
    raise ValueError(
      f'workdir: {path.parent} holds a {kind} with another'
      f' {differing or "device, data or versions"}; choose another --workdir,'
      f' or {advice}.'
    )
  if not (keep and previous):
    for dependency in dependent if names else ():
      dependency.unlink(missing_ok=True)
    write_text(path, text)
  return refused


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object from a file of a workdir."""
  return files.read_fields(path, 'workdir', 'delete it')


class _Start(files.Schema):
  """The fields of a start of a sweep that are read."""

  code: str | None = None
  commit: str | None = None
  versions: dict[str, str] | None = None
  halved: dict[str, Count] | None = None


class _Provenance(files.Schema):
  """The fields of a provenance.json that are read."""

  starts: list[_Start]


def read_starts(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Reads the starts of a sweep; returns none if the file is missing."""
  path = workdir / 'provenance.json'
  if not path.is_file():
    return []
  fields = read_json(path)
  _Provenance.check(fields, f'workdir: {path}', 'delete it')
  return fields['starts']


def write(path: str | pathlib.Path, values: Iterable[Any]) -> None:
  """Writes lines as a whole; compresses them if the name ends in `.gz`."""
  path = pathlib.Path(path)
  content = ''.join(dumps(line) + '\n' for line in values).encode()
  if path.suffix == '.gz':
    # Without a time, so that equal lines are equal bytes.
    content = gzip.compress(content, compresslevel=6, mtime=0)
  write_bytes(path, content)


def read(
  path: str | pathlib.Path, kind: type = Record, only: int | None = None
) -> list:
  """Reads a file that `write` wrote, or only one of its lines."""
  path = pathlib.Path(path)

  def refuse(number: int, reason: object) -> ValueError:
    return ValueError(
      f'{path}:{number}: damaged record ({reason}); delete the file, and run'
      ' the sweep again'
    )

  values = []
  for number, line in enumerate(files.read_lines(path, refuse), 1):
    if only not in (None, number - 1):
      continue
    # A line that was cut off may be valid JSON.
    if not line.endswith(b'\n'):
      raise refuse(number, 'it has no line break at its end')
    try:
      values.append(loads(line, kind))
    except ValueError as e:
      raise refuse(number, e) from None
  return values


def read_all(workdir: str | pathlib.Path) -> list[Record]:
  """Reads all records of a workdir, in the order of the names of files."""
  return [r for point in read_points(workdir).values() for r in point]


class _Plan(files.Schema):
  """The field of a config.json that names points."""

  points: list[str] | None = None


def read_plan(
  workdir: str | pathlib.Path,
) -> tuple[dict[str, pathlib.Path], list[str]]:
  """Returns the files of the points that a workdir plans, and what lacks."""
  workdir, names = pathlib.Path(workdir), None
  paths = sorted(workdir.glob('records/*.jsonl'))
  by_name = {path.stem: path for path in paths}
  if (file := workdir / 'config.json').is_file():
    fields = read_json(file)
    _Plan.check(fields, f'workdir: {file}', 'delete it')
    names = fields.get('points')
  names = by_name if names is None else names
  present = {name: by_name[name] for name in names if name in by_name}
  return present, [name for name in names if name not in by_name]


def read_points(workdir: str | pathlib.Path) -> dict[str, list[Record]]:
  """Reads the points that the plan of a workdir names, in its order."""
  paths, _ = read_plan(workdir)
  points = {name: read(path) for name, path in paths.items()}
  if not any(points.values()):
    raise ValueError(
      f'workdir: {workdir}/records has no records; run experiments.sweep first.'
    )
  return points


def read_traces(
  workdir: str | pathlib.Path, point: str, only: int | None = None
) -> list[Trace]:
  """Reads the traces of a point, in the order of its records, or only one."""
  path = pathlib.Path(workdir) / 'traces' / f'{point}.jsonl.gz'
  if not path.is_file():
    raise ValueError(f'workdir: {path} is missing; run experiments.sweep.')
  return read(path, Trace, only)


def read_examples(
  workdir: str | pathlib.Path,
) -> dict[str, dict[str, tasks.Example]]:
  """Reads the examples of a workdir, by task and id."""
  paths = sorted(pathlib.Path(workdir).glob('examples/*.jsonl'))
  return {
    path.stem: {example.id: example for example in read(path, tasks.Example)}
    for path in paths
  }
