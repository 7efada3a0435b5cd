"""The lines of a workdir's files: what one example came to at one point.

A record is one example decoded at one point (task, method, lenience, gamma,
options, temperature). Numbers that JSON cannot hold (an infinite lenience) are
written as strings and read back by `float`.

Counts follow one rule: tokens after an end-of-sequence token, and the prompt,
are counted nowhere.
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

from cascades.plain import digest, plain
from cascades.untrusted import bounded, schema
from cascades.verification_config import CONSTANT, NO_CAP, SOURCES, STANDARD
from experiments import tasks
from experiments.records import old_names

# How blocks are verified unless a run says otherwise, under the names that
# configs and records have for it.
OPTIONS = {
  **dataclasses.asdict(STANDARD),
  'drafts': 1,
  'schedule': CONSTANT,
  'cap': NO_CAP,
}


def variant(
  method: str,
  verification: str,
  gate: str,
  bonus: str,
  drafts: int = 1,
  schedule: str = CONSTANT,
  cap: str = NO_CAP,
) -> str:
  """A method's name, and its options where they are not the standard ones.

  'token_v3', 'token_v3 block', 'diff gate processed', 'speed bonus verifier',
  'opt k_seq 4 drafts', 'token_v3 first:16', 'token_v2 cap top:3'.
  """
  words = [method]
  if verification != OPTIONS['verification']:
    words.append(verification)
  if gate != OPTIONS['gate']:
    words += ['gate', gate]
  if bonus != OPTIONS['bonus']:
    words += ['bonus', bonus]
  if drafts != OPTIONS['drafts']:
    words.append(f'{drafts} drafts')
  if schedule != OPTIONS['schedule']:
    words.append(schedule)
  if cap != OPTIONS['cap']:
    words += ['cap', cap]
  return ' '.join(words)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
  """An answer, token by token.

  Attributes:
    id: The example's.
    tokens: Ids of the emitted tokens, end-of-sequence included.
    token_strings: The text of each of them; a stop token has none.
    sources: Index into `SOURCES` for each of them.
    deferred: 1 for each of them where the rule defers to the verifier, else 0;
      None where the method has no deferral rule.
    logprobs: The verifier's log-probability of each of them, at temperature 1;
      of the drafter alone, the drafter's.
  """

  id: str
  tokens: list[int]
  token_strings: list[str]
  sources: list[int]
  deferred: list[int] | None
  logprobs: list[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
  """One example decoded at one point.

  Attributes:
    task: Key of `TASKS`.
    method: Key of `METHODS`, or of `sequence.CONFIDENCES`.
    lenience: As given; nan where the method has none.
    gamma: Tokens drafted per block; 0 is plain decoding. 1 for a sequential
      cascade, which makes no blocks; records from before there were results
      versions have another number there, which changes nothing.
    verification: How blocks were verified; see `verification.VERIFICATIONS`.
    gate: What the deferral rule saw: 'raw' or 'processed'.
    bonus_from: What bonus tokens were drawn from: 'target' or 'verifier'.
    drafts: Drafts per block.
    schedule: How the lenience went along an answer.
    cap: Which tokens the method could make likelier than the verifier does.
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
      cascade: both models read every token of it, which it need not do.
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
  schedule: str = CONSTANT
  cap: str = NO_CAP

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
  def options(self) -> tuple[str, str, str, int, str, str]:
    """How its blocks were verified, in the order of `OPTIONS`."""
    return (
      *(self.verification, self.gate, self.bonus_from, self.drafts),
      *(self.schedule, self.cap),
    )


# Most tokens of an answer that a view has something to say of.
MAX_VIEW_TOKENS = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
  """What models and method say of each token of an answer, for people.

  Attributes:
    point: Name of the point that the answer is of: of its file.
    lenience: At which of the point's leniences; nan where it has none.
    id: The example's.
    q: How likely each token was to the drafter, as it samples; of the first
      `MAX_VIEW_TOKENS` tokens, and so the rest.
    p: How likely it was to the verifier, as it samples.
    pi: How likely it was to be emitted there.
    deferred: 1 for each where the rule defers the token itself, else 0; None
      where the method has no deferral rule. Of a token that was kept it is
      what the trace says; there, that of a rejection is about the draft.
    drafter_argmax: The drafter's most likely token at each position, as text.
    verifier_argmax: The verifier's most likely token at each position.
  """

  point: str
  lenience: float
  id: str
  q: list[float]
  p: list[float]
  pi: list[float]
  deferred: list[int] | None
  drafter_argmax: list[str]
  verifier_argmax: list[str]

  @property
  def key(self) -> tuple:
    """Which answer it is of."""
    return view_key(self.point, self.lenience, self.id)


def view_key(point: str, lenience: float, example: str) -> tuple:
  """Which answer a view is of; see `View`."""
  # nan is not equal to itself; None is.
  return point, None if math.isnan(lenience) else lenience, example


def decoding_fields(config: Any, **more: Any) -> dict[str, Any]:
  """What a record says of how an example was to be decoded.

  Args:
    config: A `cascades.DecodingConfig`; its lenience is not read, since a
      method may have none.
    **more: Fields of a record, as they are.
  """
  return dict(
    method=config.method.name,
    gamma=config.gamma,
    verification=config.verification,
    gate=config.gate,
    bonus_from=config.bonus,
    drafts=config.drafts,
    schedule=config.schedule,
    cap=config.cap,
    temperature=config.temperature,
    **more,
  )


class Outcome(NamedTuple):
  """The record and the trace of an example at one point."""

  record: Record
  trace: Trace


def failed_example(reason: str, **fields: Any) -> Outcome:
  """Returns the outcome of an example without an answer.

  Args:
    reason: Why there is no answer, in a sentence.
    **fields: Fields of the record: task, lenience, id, and the options of
      decoding; see `decoding_fields`.
  """
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
  )
  return Outcome(record, trace)


def hash_examples(examples: Iterable[tasks.Example]) -> str:
  """Of all that is asked, and should be answered."""
  return digest([[e.id, e.prompt, e.reference] for e in examples])


def dumps(line: Any) -> str:
  """A dataclass of this module, or an example, as one line of JSON."""
  return json.dumps(plain(dataclasses.asdict(line)), allow_nan=False)


def loads[Line](text: str | bytes, kind: type[Line] = Record) -> Line:
  """Reads a line that `dumps` wrote, of this version or an older one.

  Raises:
    ValueError: A field is missing, unknown, of another type or out of range;
      counts of a record do not add up; what a trace or a view says is not of
      each token.
  """
  fields = old_names.replace(kind.__name__, bounded.parse_json(text))
  fields = dict(_schema(kind).parse(fields))
  if kind is tasks.Example and isinstance(fields['reference'], list):
    fields['reference'] = tuple(fields['reference'])
  line = kind(**fields)
  check = _CHECKS.get(kind)
  if check is not None:
    check(line)
  return line


@functools.cache
def _schema(kind: type) -> type[schema.Schema]:
  """What the fields of a line may be."""
  fields = {
    field.name: (
      _typed(field.type),
      ... if field.default is dataclasses.MISSING else field.default,
    )
    for field in dataclasses.fields(kind)
  }
  return pydantic.create_model(kind.__name__, __base__=_Line, **fields)


class _Line(schema.Schema):
  """A line; it has no fields but its own."""

  model_config = pydantic.ConfigDict(extra='forbid')


# Numbers that JSON cannot hold are texts; see `plain`.
_Float = Annotated[
  float,
  pydantic.Field(allow_inf_nan=True),
  pydantic.BeforeValidator(
    lambda x: float(x) if x in ('nan', 'inf', '-inf') else x
  ),
]


def _typed(kind: Any) -> Any:
  """The type of a field as JSON has it."""
  known = {float: _Float, int: schema.Count, tuple[str, ...]: list[str]}
  if kind in known:
    return known[kind]
  inner = tuple(map(_typed, typing.get_args(kind)))
  if not inner:
    return kind
  if isinstance(kind, types.UnionType):
    return functools.reduce(operator.or_, inner)
  origin = typing.get_origin(kind)
  found = origin[inner]
  return Annotated[found, schema.FailFast] if origin is list else found


def _check_counts(record: Record) -> None:
  """Refuses counts that no decoding gives.

  Raises:
    ValueError: They do not add up.
  """
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
  """Refuses a trace that does not say the same of each of its tokens.

  Raises:
    ValueError: A list is longer or shorter, or there is no such source.
  """
  _check_lengths(
    trace, 'tokens', 'token_strings', 'sources', 'deferred', 'logprobs'
  )
  last = len(SOURCES) - 1
  wrong = [x for x in trace.sources if not 0 <= x <= last]
  if wrong:
    raise ValueError(f'sources must be 0 to {last}, got {wrong[0]}')


def _check_view(view: View) -> None:
  """Refuses a view that does not say the same of each of its tokens.

  Raises:
    ValueError: A list is longer or shorter than the first.
  """
  _check_lengths(
    view, 'q', 'p', 'pi', 'deferred', 'drafter_argmax', 'verifier_argmax'
  )


def _check_lengths(line: Trace | View, first: str, *others: str) -> None:
  """Refuses lists of other lengths, and deferrals other than 0 and 1."""
  wanted = len(getattr(line, first))
  for name in others:
    values = getattr(line, name)
    # Where there is no deferral rule, nothing is deferred.
    if values is None:
      continue
    if len(values) != wanted:
      raise ValueError(
        f'{name} must be as many as {first}, got {len(values)} and {wanted}'
      )
  wrong = [x for x in line.deferred or () if x not in (0, 1)]
  if wrong:
    raise ValueError(f'deferred must be 0 or 1, got {wrong[0]}')


# What is looked at beside the types of fields, by the kind of a line.
_CHECKS = {Record: _check_counts, Trace: _check_trace, View: _check_view}
