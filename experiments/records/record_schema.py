"""The lines of a workdir's files: records and traces.

A record is one example decoded at one point (task, method, lenience, gamma,
options, temperature). Numbers that JSON cannot hold, such as an infinite
lenience, are strings that `float` reads.

No count includes the prompt or tokens after an end-of-sequence token.
"""

import dataclasses
import functools
import json
import math
import operator
import types
import typing
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

import pydantic

from cascades import Conversation, files
from cascades.arguments import options_of
from cascades.config import DecodingConfig
from cascades.files import digest, plain
from cascades.verification_config import SOURCES
from experiments import tasks

# How the name of a curve shows each option that is not at its default.
_VARIANT_WORDS = {
  'verification': '{}',
  'gate': 'gate {}',
  'bonus': 'bonus {}',
  'drafts': '{} drafts',
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
  """

  id: str
  tokens: list[int]
  token_strings: list[str]
  sources: list[int]
  deferred: list[int] | None
  logprobs: list[float]
  rejected: list[int | None]


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
  deferrals: int | None
  last_deferral: int | None
  residual: int
  bonus: int
  verifier_calls: int
  verifier_tokens: int
  drafter_calls: int
  wall_s: float

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
  def options(self) -> tuple[str, str, str, int]:
    """The options of verification, in the order of `OPTIONS`."""
    return self.verification, self.gate, self.bonus_from, self.drafts


def decoding_fields(config: Any, **more: Any) -> dict[str, Any]:
  """Returns the fields of a record that hold the options of decoding."""
  return dict(
    method=config.method.name,
    gamma=config.gamma,
    verification=config.verification,
    gate=config.gate,
    bonus_from=config.bonus,
    drafts=config.drafts,
    temperature=config.temperature,
    **more,
  )


class Outcome(NamedTuple):
  """The record and the trace of an example at one lenience of a curve."""

  record: Record
  trace: Trace


def failed_example(reason: str, **fields: Any) -> Outcome:
  """Returns the outcome of an example without an answer."""
  counts = (
    'emitted drafted examined accepted residual bonus verifier_calls'
    ' verifier_tokens drafter_calls'
  )
  record = Record(
    **fields,
    failure=reason,
    text='',
    quality=math.nan,
    scores={},
    ended=False,
    deferred=None,
    deferrals=None,
    last_deferral=None,
    wall_s=0.0,
    **dict.fromkeys(counts.split(), 0),
  )
  trace = Trace(
    id=record.id,
    tokens=[],
    token_strings=[],
    sources=[],
    deferred=None,
    logprobs=[],
    rejected=[],
  )
  return Outcome(record, trace)


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
  check = _CHECKS.get(kind)
  if check is not None:
    check(line)
  return line


@functools.cache
def _schema(kind: type) -> type[files.Schema]:
  """Returns the schema of a type of lines."""
  fields = {
    field.name: (
      _typed(field.type),
      ... if field.default is dataclasses.MISSING else field.default,
    )
    for field in dataclasses.fields(kind)
  }
  return pydantic.create_model(kind.__name__, __base__=_Line, **fields)


class _Line(files.Schema):
  """A line, which has no unknown fields."""

  model_config = pydantic.ConfigDict(extra='forbid')


# Numbers that JSON cannot hold are strings; see `plain`.
_Float = Annotated[
  float,
  pydantic.Field(allow_inf_nan=True),
  pydantic.BeforeValidator(
    lambda x: float(x) if x in ('nan', 'inf', '-inf') else x
  ),
]


def _typed(kind: Any) -> Any:
  """Returns the type of a field in JSON."""
  scalars = {float: _Float, int: files.Count, tuple[str, ...]: list[str]}
  scalars |= {Conversation: list[list[str]]}
  if kind in scalars:
    return scalars[kind]
  inner = tuple(map(_typed, typing.get_args(kind)))
  if not inner:
    return kind
  if isinstance(kind, types.UnionType):
    return functools.reduce(operator.or_, inner)
  origin = typing.get_origin(kind)
  typed = origin[inner]
  return Annotated[typed, files.FailFast] if origin is list else typed


def _check_counts(record: Record) -> None:
  """Checks that the counts of a record add up."""
  r = record
  if r.emitted != r.accepted + r.residual + r.bonus:
    raise ValueError(
      f'emitted must be accepted + residual + bonus, got {r.emitted} and'
      f' {r.accepted} + {r.residual} + {r.bonus}'
    )
  if not r.accepted <= r.examined <= r.drafted:
    raise ValueError(
      'accepted must be at most examined, and examined at most drafted, got'
      f' {r.accepted}, {r.examined} and {r.drafted}'
    )


def _check_trace(trace: Trace) -> None:
  """Checks that the lists of a trace have a value for each token."""
  for name, values in vars(trace).items():
    # A method without a deferral rule has no deferrals.
    if isinstance(values, list) and len(values) != len(trace.tokens):
      raise ValueError(
        f'{name} must be as long as tokens, got {len(values)} and'
        f' {len(trace.tokens)}'
      )
  last = len(SOURCES) - 1
  for name, values, top in (
    ('sources', trace.sources, last),
    ('deferred', trace.deferred or (), 1),
  ):
    wrong = [x for x in values if not 0 <= x <= top]
    if wrong:
      raise ValueError(f'{name} must be 0 to {top}, got {wrong[0]}')


# Checks beyond the types of fields, by the type of the line.
_CHECKS = {Record: _check_counts, Trace: _check_trace}
