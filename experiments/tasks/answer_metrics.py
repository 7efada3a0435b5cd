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

import regex

from cascades import arguments
from cascades.arguments import Registry
from experiments.tasks.data_files import RowError

# One accepted answer, or several.
Reference = str | tuple[str, ...]
MARK = '####'
# The reference of a question that its passage does not answer.
UNANSWERABLE = 'unanswerable'
# The longest n-grams of BLEU have four words.
_ORDERS = range(1, 5)
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
_REGEX = 'regex'
# A pattern may take exponential time on an answer.
_TIMEOUT_S = 2.0


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

  def check_reference(self, text: str) -> None:
    """Refuses a text that cannot be a reference."""
    if self.accepts and not self.accepts(text):
      raise RowError(
        f'has a reference that {self.name} cannot score,'
        f' {arguments.quote(text)}',
        'fix the row or choose another metric',
      )

  def row_quality(self, scores: Mapping[str, float]) -> float:
    """Returns the quality of one answer in [0, 1] from its scores.

    It is the first score over its scale; of BLEU and chrF, sentence by
    sentence.
    """
    return min(1.0, scores[self.scores[0]] / self.scale)


METRICS: Registry[Metric] = Registry('metric', Metric)


def _builtin(name: str, *scores: str, **fields: Any) -> Any:
  """Registers a function as a metric; its docstring is the help."""

  def register(score: Any) -> Any:
    options = {'help': score.__doc__} | fields
    metric = Metric(name=name, scores=scores, score=score, **options)
    METRICS.register(name, metric, builtin=True)
    return score

  return register


def normalise(text: str) -> str:
  """Returns a text in SQuAD's normal form: 'The  U.S.A.' becomes 'usa'."""
  text = text.lower().translate(_PUNCTUATION)
  return ' '.join(_ARTICLES.sub(' ', text).split())


def accepted_answers(reference: Reference) -> tuple[str, ...]:
  """Returns the accepted answers as a tuple."""
  return (reference,) if isinstance(reference, str) else tuple(reference)


def exact_match(answer: str, reference: Reference) -> float:
  """Returns 1 if the answer is an accepted one, else 0."""
  normal = normalise(answer)
  return float(
    any(normal == normalise(text) for text in accepted_answers(reference))
  )


def f1(answer: str, reference: Reference) -> float:
  """Returns F1 of the common words with the best accepted answer, or 0."""
  words = normalise(answer).split()
  return max(
    (
      _word_f1(words, normalise(text).split())
      for text in accepted_answers(reference)
    ),
    default=0.0,
  )


def _word_f1(words: list[str], reference_words: list[str]) -> float:
  if not words or not reference_words:
    # Two empty texts are the same; an empty one shares no word with others.
    return float(words == reference_words)
  common = collections.Counter(words) & collections.Counter(reference_words)
  return 2 * common.total() / (len(words) + len(reference_words))


def numbers(text: str) -> list[Decimal]:
  """Returns the numbers in a text, in order.

  '-$1,234.50' is -1234.50 and '3/4' is 0.75; divisions by zero are left out.
  """
  values = []
  for match in _NUMBER.finditer(text):
    value = Decimal(match['value'].replace(',', ''))
    if match['denominator']:
      denominator = Decimal(match['denominator'])
      if not denominator:
        continue
      value /= denominator
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
def _exact_match(answer: str, reference: Reference) -> dict[str, float]:
  """The answer is the reference, up to white space around it."""
  references = (text.strip() for text in accepted_answers(reference))
  return {'exact_match': float(answer.strip() in references)}


@_builtin(
  *('final_number', 'exact_match', 'marked'),
  accepts=lambda text: final_number(text)[0] is not None,
)
def _final_number(answer: str, reference: Reference) -> dict[str, float]:
  """The final number, marked by #### or the last one, is right."""
  number, is_marked = final_number(answer)
  references = (final_number(text)[0] for text in accepted_answers(reference))
  is_right = number is not None and number in references
  return {'exact_match': float(is_right), 'marked': float(is_marked)}


@_builtin(
  'marked_number',
  'exact_match',
  accepts=lambda text: marked_number(text) is not None,
)
def _marked_number(answer: str, reference: Reference) -> dict[str, float]:
  """The number after the only #### of the answer is right."""
  number = marked_number(answer) if answer.count(MARK) == 1 else None
  references = map(marked_number, accepted_answers(reference))
  is_right = number is not None and number in references
  return {'exact_match': float(is_right)}


@_builtin('short_answer', 'exact_match')
def _short_answer(answer: str, reference: Reference) -> dict[str, float]:
  """The answer is an accepted one, after SQuAD's normalisation."""
  return {'exact_match': exact_match(answer, reference)}


@_builtin('json', 'valid', needs_reference=False)
def _json(answer: str, reference: Reference) -> dict[str, float]:
  """The answer is one JSON value, whatever the reference."""
  del reference
  try:
    # NaN and Infinity are of Python's JSON alone; `int` refuses them.
    json.loads(answer, parse_constant=int)
  except (ValueError, RecursionError):
    return {'valid': 0.0}
  return {'valid': 1.0}


@_builtin('squad', 'f1', 'exact_match')
def _squad(answer: str, reference: Reference) -> dict[str, float]:
  """SQuAD 2.0: F1 of words with the best accepted answer."""
  exact, words = exact_match(answer, reference), f1(answer, reference)
  is_exact = reference == UNANSWERABLE
  return {'f1': exact if is_exact else words, 'exact_match': exact}


@functools.cache
def _rouge_scorer(names: tuple[str, ...]) -> Any:
  from rouge_score import rouge_scorer

  return rouge_scorer.RougeScorer(list(names), use_stemmer=True)


def _rouge(
  names: tuple[str, ...], answer: str, reference: Reference
) -> dict[str, float]:
  """Returns F-measures of ROUGE with the best reference of each."""
  scores = _rouge_scorer(names).score_multi(accepted_answers(reference), answer)
  return {name: float(value.fmeasure) for name, value in scores.items()}


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
def _bleu_scorer(effective_order: bool) -> Any:
  from sacrebleu.metrics import BLEU

  return BLEU(effective_order=effective_order)


def _corpus_bleu(sums: Mapping[str, float]) -> float:
  """Returns corpus BLEU in 0..100 from the summed scores of the answers."""
  bleu = _bleu_scorer(False).compute_bleu(
    correct=[int(sums[f'matches_{n}']) for n in _ORDERS],
    total=[int(sums[f'ngrams_{n}']) for n in _ORDERS],
    sys_len=int(sums['answer_words']),
    ref_len=int(sums['reference_words']),
    smooth_method='exp',
  )
  return _rounded(bleu.score)


def _bleu_signature() -> str:
  """Returns sacrebleu's signature of corpus BLEU."""
  bleu = _bleu_scorer(False)
  # The signature has the number of references only after a score.
  bleu.corpus_score(['a'], [['a']])
  return f'BLEU|{bleu.get_signature()}'


@_builtin(
  'bleu',
  'sentence_bleu',
  *(f'matches_{n}' for n in _ORDERS),
  *(f'ngrams_{n}' for n in _ORDERS),
  *('answer_words', 'reference_words'),
  scale=100.0,
  corpus=_corpus_bleu,
  signature=_bleu_signature,
)
def _bleu(answer: str, reference: Reference) -> dict[str, float]:
  """BLEU of all answers together (Post 2018), by sacrebleu."""
  bleu = _bleu_scorer(True).sentence_score(
    answer.strip(), list(accepted_answers(reference))
  )
  return {
    'sentence_bleu': _rounded(bleu.score),
    **{f'matches_{n}': float(bleu.counts[n - 1]) for n in _ORDERS},
    **{f'ngrams_{n}': float(bleu.totals[n - 1]) for n in _ORDERS},
    'answer_words': float(bleu.sys_len),
    'reference_words': float(bleu.ref_len),
  }


def _rounded(score: float) -> float:
  # The score is made of logarithms: a perfect one is 100.00000000000004.
  return round(float(score), 9)


@functools.cache
def _chrf_scorer() -> Any:
  from sacrebleu.metrics import CHRF

  return CHRF()


def _chrf_signature() -> str:
  """Returns sacrebleu's signature of chrF."""
  _chrf_scorer().corpus_score(['a'], [['a']])
  return f'chrF|{_chrf_scorer().get_signature()}'


@_builtin('chrf', 'chrf', scale=100.0, signature=_chrf_signature)
def _chrf(answer: str, reference: Reference) -> dict[str, float]:
  """Sacrebleu's chrF (Popovic 2015), rounded to nine digits."""
  references = list(accepted_answers(reference))
  score = _chrf_scorer().sentence_score(answer.strip(), references).score
  return {'chrf': _rounded(score)}


def find(spec: str, option: str = 'metric') -> Metric:
  """Returns the metric of a specification.

  A name of `METRICS` stands for its entry. `regex:` is followed by a pattern of
  the `regex` package, whose group 'answer', or first group, is compared with
  the reference; a pattern without groups has to match. Everything else with a
  colon is a function of the user's, `function(answer, reference)` in [0, 1].
  """
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
