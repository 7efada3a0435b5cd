"""Metrics as users name them: `rouge2`, `regex:PATTERN`, `module:function`.

A name of `METRICS` stands for its entry. `regex:` is followed by a pattern of
the `regex` package, whose group 'answer', or first group, is compared with the
reference; a pattern without groups has to match. Everything else with a colon
is a function of the user's, `function(answer, reference) -> float` in [0, 1].
"""

import contextlib
import functools
import math
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import regex

from cascades import arguments
from experiments.tasks.answer_metrics import METRICS, Metric
from experiments.tasks.short_answers import Reference, accepted_answers

_REGEX = 'regex'
# A pattern may take exponential time on an answer.
_TIMEOUT_S = 2.0


def find(spec: str, option: str = 'metric') -> Metric:
  """Returns the metric of a specification."""
  name, colon, argument = spec.partition(':')
  if name == _REGEX:
    return _regex_metric(argument, option)
  if colon and name not in METRICS:
    return _function_metric(spec, option)
  if colon or name not in METRICS:
    raise ValueError(
      f'{METRICS.unknown(spec, option)[:-1]}, {_REGEX}:PATTERN and'
      ' module:function.'
    )
  return METRICS[name]


def of_task(task: str) -> Metric | None:
  """Returns the metric that the name of a task of a file holds.

  Names no module to import, so that records of others can be read.
  """
  kind, _, name = task.partition(':')
  return METRICS.get(name, None) if kind == 'file' else None


def describe_error(error: BaseException) -> str:
  """Returns the type and the message of an error of others' code, a line."""
  try:
    text = str(error)
  # Making the message is code of the error's author too.
  except Exception:
    text = ''
  return ' '.join(f'{type(error).__name__}: {text}'.split()).rstrip(': ')


@contextlib.contextmanager
def external_code(problem: str, advice: str) -> Iterator[None]:
  """Makes a sentence of every way in which code of the user's can end."""
  try:
    yield
  except KeyboardInterrupt:
    raise
  except BaseException as error:
    cause = error
    while cause.__cause__:
      # Libraries hide the fault behind errors of their own.
      cause = cause.__cause__
    reason = describe_error(cause)[:400].rstrip('.')
    raise ValueError(f'{problem} ({reason}); {advice}.') from error


def check_first(metric: Metric | None, reference: Reference) -> None:
  """Tries a function of the user's before anything is decoded."""
  if metric is None or ':' not in metric.name:
    return
  for answer in ('', *accepted_answers(reference)[:1]):
    metric.score(answer, reference)


def _regex_metric(pattern: str, option: str) -> Metric:
  """Returns the metric of a pattern."""
  if not pattern:
    raise ValueError(
      f"{option}: regex needs a pattern; give --metric='regex:PATTERN'."
    )
  try:
    compiled = regex.compile(pattern)
  except (regex.error, RecursionError, OverflowError) as error:
    raise ValueError(
      f'{option}: {arguments.quote(pattern)} is not a pattern ({error}); give'
      ' a regular expression.'
    ) from None
  group = (
    'answer' if 'answer' in compiled.groupindex else min(compiled.groups, 1)
  )
  return Metric(
    name=_REGEX,
    help='The group of a pattern is the reference, or a pattern matches.',
    scores=('exact_match',),
    score=functools.partial(_score_pattern, compiled, group),
    needs_reference=compiled.groups > 0,
    signature=lambda: f'regex|{pattern}',
  )


def _score_pattern(
  pattern: Any, group: int | str, answer: str, reference: Reference
) -> dict[str, float]:
  """Searches an answer, and compares the group with the references."""
  try:
    match = pattern.search(answer, timeout=_TIMEOUT_S)
  except TimeoutError:
    raise ValueError(
      f'metric: {arguments.quote(pattern.pattern)} took more than'
      f' {_TIMEOUT_S:g} s on an answer; give a pattern without nested repeats.'
    ) from None
  if match is None or not group:
    return {'exact_match': float(match is not None)}
  text = (match[group] or '').strip()
  references = (x.strip() for x in accepted_answers(reference))
  return {'exact_match': float(text in references)}


def _function_metric(spec: str, option: str) -> Metric:
  """Returns the metric of a function of the user's."""
  with external_code(
    f'{option}: {arguments.quote(spec)} cannot be imported',
    'give the name of a metric, or module:function of a module on sys.path',
  ):
    function = pkgutil.resolve_name(spec)
  if not callable(function):
    raise ValueError(
      f'{option}: {arguments.quote(spec)} must be a function(answer,'
      f' reference), got a value of type {type(function).__name__}.'
    )
  return Metric(
    name=spec,
    help='A function of the user.',
    scores=('score',),
    score=functools.partial(_score_function, spec, function),
    needs_reference=False,
  )


def _score_function(
  spec: str,
  function: Callable[[str, Reference], Any],
  answer: str,
  reference: Reference,
) -> dict[str, float]:
  """Calls a function of the user's, and checks what it returns."""
  call = f'metric: {spec} with the answer {arguments.quote(answer)}'
  with external_code(f'{call} failed', 'correct it'):
    value = function(answer, reference)
  returned = f'{call} returned {arguments.quote(value)}'
  with external_code(returned, 'return a number from 0 to 1'):
    score = math.nan if isinstance(value, str | bytes) else float(value)
  if not 0 <= score <= 1:
    raise ValueError(f'{returned}; return a number from 0 to 1.')
  return {'score': score}
