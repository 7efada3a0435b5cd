"""Metrics: scores of an answer against a reference, by name.

A task lists metrics by name (see `task.Task`). To add a metric, declare a
function here, or call `METRICS.register` in a module of your own. Users also
name `regex:PATTERN` and `module:function`, see `find`.

Answers that are short are compared as SQuAD does (Rajpurkar et al. 2016, arXiv
1606.05250): without case, ASCII punctuation, articles and repeated spaces, and
the best accepted answer counts. Final numbers are those of GSM8K, whose answers
end in a line `#### N` (Cobbe et al. 2021, arXiv 2110.14168).
"""

import collections
import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import math
import pkgutil
import re
import string
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from cascades import arguments
from cascades.arguments import Registry

# One accepted answer, or several.
Reference = str | tuple[str, ...]
MARK = '####'
# The reference of a question that its passage does not answer.
UNANSWERABLE = 'unanswerable'
# The longest n-grams of BLEU have four words.
_ORDERS = range(1, 5)
# A pattern may take exponential time on an answer.
_TIMEOUT_S = 2.0
_PUNCTUATION = str.maketrans('', '', string.punctuation)
_ARTICLES = re.compile(r'\b(a|an|the)\b')
# Thousands in threes, decimals, a denominator. A minus after a number or apart
# from a number is not a sign; a currency may stand on either side of a sign.
_NUMBER = re.compile(
  r'(?P<sign>(?<![\w).])[-+\u2212])?[$€£¥]?'
  r'(?P<value>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?'
  r'|(?<![0-9])\.[0-9]+)'
  r'(?:/(?P<denominator>[0-9]+))?'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
  """A measure of one answer against its reference.

  Attributes:
    name: Key in `METRICS`.
    help: One line on what is measured.
    scores: Names of the scores.
    score: `score(answer, reference)` returns a value for each of `scores`, in
      their order.
    corpus: Returns the quality of several answers together from the sum of
      each score over the answers, for metrics such as BLEU; None if their
      quality is the mean of a score.
    signature: Returns the library, version and options behind the scores; None
      for metrics of this module alone.
    scale: The first score of a perfect answer, 1 or 100.
    needs_reference: False if an answer is scored without a reference.
    accepts: Returns True for a text that can be a reference; None if all can.
  """

  name: str
  help: str
  scores: tuple[str, ...]
  score: Callable[[str, Reference], Mapping[str, float]]
  corpus: Callable[[Mapping[str, float]], float] | None = None
  signature: Callable[[], str] | None = None
  scale: float = 1.0
  needs_reference: bool = True
  accepts: Callable[[str], bool] | None = None


METRICS: Registry[Metric] = Registry('metric', Metric)


def _builtin(name: str, *scores: str, **fields: Any) -> Any:
  """Registers a function that returns each score; its docstring is the help."""

  def register(function: Any) -> Any:
    def score(answer: str, reference: Reference) -> dict[str, float]:
      values = function(answer, accepted_answers(reference))
      values = values if isinstance(values, tuple) else (values,)
      return dict(zip(scores, map(float, values), strict=True))

    options = {'help': function.__doc__} | fields
    metric = Metric(name=name, scores=scores, score=score, **options)
    METRICS.register(name, metric, builtin=True)
    return function

  return register


def normalise(text: str) -> str:
  """Returns a text in SQuAD's normal form: 'The  U.S.A.' becomes 'usa'."""
  text = text.lower().translate(_PUNCTUATION)
  return ' '.join(_ARTICLES.sub(' ', text).split())


def accepted_answers(reference: Reference) -> tuple[str, ...]:
  """Returns the accepted answers as a tuple."""
  return (reference,) if isinstance(reference, str) else tuple(reference)


def numbers(text: str) -> list[Decimal]:
  """Returns the numbers in a text, in order.

  '-$1,234.50' is -1234.50 and '3/4' is 0.75; divisions by zero are left out.
  """
  values = []
  for match in _NUMBER.finditer(text):
    value = Decimal(match['value'].replace(',', ''))
    # A division may round, even one by 1.
    if match['denominator']:
      denominator = Decimal(match['denominator'])
      value = value / denominator if denominator else None
    if value is not None:
      values.append(-value if match['sign'] in ('-', '\u2212') else value)
  return values


def marked_number(text: str) -> Decimal | None:
  """Returns the first number after the first `####` on its line, or None."""
  _, mark, rest = text.partition(MARK)
  values = numbers(rest.partition('\n')[0])
  return values[0] if mark and values else None


def final_number(text: str) -> tuple[Decimal | None, bool]:
  """Returns the final number of an answer."""
  number = marked_number(text)
  if number is not None:
    return number, True
  values = numbers(text)
  return (values[-1] if values else None), False


@_builtin('exact_match', 'exact_match')
def _exact_match(answer: str, references: tuple[str, ...]) -> bool:
  """The answer is the reference, up to white space around it."""
  return answer.strip() in map(str.strip, references)


@_builtin(
  'final_number',
  'exact_match',
  'marked',
  accepts=lambda text: final_number(text)[0] is not None,
)
def _final_number(
  answer: str, references: tuple[str, ...]
) -> tuple[bool, bool]:
  """The final number, marked by #### or the last one, is right."""
  number, is_marked = final_number(answer)
  accepted = [final_number(text)[0] for text in references]
  return number is not None and number in accepted, is_marked


@_builtin(
  'marked_number',
  'exact_match',
  accepts=lambda text: marked_number(text) is not None,
)
def _marked_number(answer: str, references: tuple[str, ...]) -> bool:
  """The number after the only #### of the answer is right."""
  number = marked_number(answer) if answer.count(MARK) == 1 else None
  return number is not None and number in map(marked_number, references)


@_builtin('short_answer', 'exact_match')
def _short_answer(answer: str, references: tuple[str, ...]) -> bool:
  """The answer is an accepted one, after SQuAD's normalisation."""
  return normalise(answer) in map(normalise, references)


@_builtin('json', 'valid', needs_reference=False)
def _json(answer: str, references: tuple[str, ...]) -> bool:
  """The answer is one JSON value, whatever the reference."""
  del references
  with contextlib.suppress(ValueError, RecursionError):
    # NaN and Infinity are of Python's JSON alone; `int` refuses them.
    json.loads(answer, parse_constant=int)
    return True
  return False


@_builtin('squad', 'f1', 'exact_match')
def _squad(answer: str, references: tuple[str, ...]) -> tuple[float, bool]:
  """SQuAD 2.0: F1 of words with the best accepted answer."""
  is_exact = _short_answer(answer, references)
  if references == (UNANSWERABLE,):
    return is_exact, is_exact
  words, f1 = normalise(answer).split(), 0.0
  for text in references:
    accepted = normalise(text).split()
    common = collections.Counter(words) & collections.Counter(accepted)
    count = len(words) + len(accepted)
    # Two empty texts are the same.
    f1 = max(f1, 2 * common.total() / count if count else 1.0)
  return f1, is_exact


@functools.cache
def _rouge_scorer(names: tuple[str, ...]) -> Any:
  from rouge_score import rouge_scorer

  return rouge_scorer.RougeScorer(list(names), use_stemmer=True)


def _rouge(
  names: tuple[str, ...], answer: str, references: tuple[str, ...]
) -> tuple[float, ...]:
  """Returns F-measures of ROUGE with the best reference of each."""
  scores = _rouge_scorer(names).score_multi(references, answer)
  return tuple(scores[name].fmeasure for name in names)


def _rouge_signature() -> str:
  """Returns the version and options of rouge-score."""
  return f'rouge-score:{importlib.metadata.version("rouge-score")}|stem:yes'


for _name, _title, _scores in (
  ('rouge', 'ROUGE-2 and ROUGE-L F-measures', ('rouge2', 'rougeL')),
  ('rouge1', 'F-measure of ROUGE-1', ('rouge1',)),
  ('rouge2', 'F-measure of ROUGE-2', ('rouge2',)),
  ('rougeL', 'F-measure of ROUGE-L', ('rougeL',)),
):
  _builtin(
    _name,
    *_scores,
    help=f'{_title} with stemming (Lin 2004), in English.',
    signature=_rouge_signature,
    # ROUGE only reads ASCII.
    accepts=lambda text: re.search('[a-zA-Z0-9]', text) is not None,
  )(functools.partial(_rouge, _scores))


@functools.cache
def sacrebleu_scorer(name: str, **options: Any) -> Any:
  """Returns a metric of sacrebleu, BLEU or chrF."""
  from sacrebleu import metrics

  return getattr(metrics, name.upper())(**options)


def _sacrebleu_signature(name: str) -> str:
  """Returns sacrebleu's signature, which it has only after a score."""
  scorer = sacrebleu_scorer(name)
  scorer.corpus_score(['a'], [['a']])
  return f'{name}|{scorer.get_signature()}'


def _rounded(score: float) -> float:
  # The score is made of logarithms: a perfect one is 100.00000000000004.
  return round(float(score), 9)


def _corpus_bleu(sums: Mapping[str, float]) -> float:
  """Returns corpus BLEU in 0..100 from the summed scores of the answers."""
  bleu = sacrebleu_scorer('BLEU').compute_bleu(
    correct=[int(sums[f'matches_{n}']) for n in _ORDERS],
    total=[int(sums[f'ngrams_{n}']) for n in _ORDERS],
    sys_len=int(sums['answer_words']),
    ref_len=int(sums['reference_words']),
    smooth_method='exp',
  )
  return _rounded(bleu.score)


@_builtin(
  'bleu',
  'sentence_bleu',
  *(f'matches_{n}' for n in _ORDERS),
  *(f'ngrams_{n}' for n in _ORDERS),
  'answer_words',
  'reference_words',
  scale=100.0,
  corpus=_corpus_bleu,
  signature=functools.partial(_sacrebleu_signature, 'BLEU'),
)
def _bleu(answer: str, references: tuple[str, ...]) -> tuple[float, ...]:
  """BLEU of all answers together (Post 2018), by sacrebleu."""
  scorer = sacrebleu_scorer('BLEU', effective_order=True)
  bleu = scorer.sentence_score(answer.strip(), list(references))
  counts = *bleu.counts, *bleu.totals, bleu.sys_len, bleu.ref_len
  return _rounded(bleu.score), *counts


@_builtin(
  'chrf',
  'chrf',
  scale=100.0,
  signature=functools.partial(_sacrebleu_signature, 'chrF'),
)
def _chrf(answer: str, references: tuple[str, ...]) -> float:
  """Sacrebleu's chrF (Popovic 2015), rounded to nine digits."""
  scorer = sacrebleu_scorer('chrF')
  return _rounded(scorer.sentence_score(answer.strip(), list(references)).score)


def find(spec: str) -> Metric:
  """Returns the metric of a specification.

  A name of `METRICS` stands for its entry. `regex:` is followed by a pattern of
  the `regex` package, whose group 'answer', or first group, is compared with
  the reference; a pattern without groups has to match. Everything else with a
  colon is a function of the user's, `function(answer, reference)` in [0, 1].
  """
  if spec in METRICS:
    return METRICS[spec]
  name, colon, text = spec.partition(':')
  if not colon or spec == 'regex:':
    unknown = METRICS.unknown(spec)[:-1]
    raise ValueError(f'{unknown}, regex:PATTERN and module:function.')
  if name == 'regex':
    # Late, since the check of a device runs without it.
    import regex

    with external_code(f'metric: {text!r} is not a pattern', 'correct it'):
      pattern = regex.compile(text)
    return Metric(
      name=name,
      help='The group of a pattern is the reference, or a pattern matches.',
      scores=('exact_match',),
      score=functools.partial(_score_pattern, pattern),
      needs_reference=pattern.groups > 0,
      signature=lambda: f'regex|{text}',
    )
  with external_code(
    f'metric: {arguments.quote(spec)} cannot be imported',
    'give the name of a metric, or module:function of a module on sys.path',
  ):
    function = pkgutil.resolve_name(spec)
  if not callable(function):
    raise ValueError(
      f'metric: {arguments.quote(spec)} must be a function(answer,'
      f' reference), got a value of type {type(function).__name__}.'
    )
  return Metric(
    name=spec,
    help='A function of the user.',
    scores=('score',),
    score=functools.partial(_score_function, spec, function),
    needs_reference=False,
  )


def describe_error(error: BaseException) -> str:
  """Returns the type and the message of an error of others' code, a line."""
  return ' '.join(f'{type(error).__name__}: {error}'.split()).rstrip(': ')


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


def _score_pattern(
  pattern: Any, answer: str, reference: Reference
) -> dict[str, float]:
  """Searches an answer, and compares the group with the references."""
  with external_code(f'metric: {pattern.pattern!r} failed', 'simplify it'):
    match = pattern.search(answer, timeout=_TIMEOUT_S)
  if match is None or not pattern.groups:
    return {'exact_match': float(match is not None)}
  text = match['answer' if 'answer' in pattern.groupindex else 1] or ''
  references = map(str.strip, accepted_answers(reference))
  return {'exact_match': float(text.strip() in references)}


def _score_function(
  spec: str,
  function: Callable[[str, Reference], Any],
  answer: str,
  reference: Reference,
) -> dict[str, float]:
  """Calls a function of the user's, and checks what it returns."""
  call = f'metric: {spec} with the answer {arguments.quote(answer)}'
  with external_code(f'{call} failed', 'return a number from 0 to 1'):
    value = function(answer, reference)
    score = math.nan if isinstance(value, str | bytes) else float(value)
  if not 0 <= score <= 1:
    value = arguments.quote(value)
    raise ValueError(f'{call} returned {value}; return a number from 0 to 1.')
  return {'score': score}
