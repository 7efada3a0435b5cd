"""Metrics: scores of an answer against a reference, by name.

A task lists metrics by name (see `task.Task`). To add a metric, add an entry
to `_BUILTIN`, or declare a `Metric` as an entry point of the group
`cascades.metrics` in another package.
"""

import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any

from cascades.registries import Registry
from experiments.tasks import sandbox, short_answers
from experiments.tasks.final_numbers import MARK, final_number, marked_number
from experiments.tasks.short_answers import Reference

# The longest n-grams of BLEU have four words.
_ORDERS = range(1, 5)
# Ends a program, and in a reference of `pass_at_1` separates it from its tests.
CODE_END = '```'
# The reference of a question that its passage does not answer.
UNANSWERABLE = 'unanswerable'


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
  """

  name: str
  help: str
  scores: tuple[str, ...]
  score: Callable[[str, Reference], Mapping[str, float]]
  corpus: Callable[[Mapping[str, float]], float] | None = None
  signature: Callable[[], str] | None = None


METRICS: Registry[Metric] = Registry('metric', Metric)


def _exact_match(answer: str, reference: str) -> dict[str, float]:
  """Compares texts without white space around them."""
  return {'exact_match': float(answer.strip() == reference.strip())}


def _final_number(answer: str, reference: str) -> dict[str, float]:
  """Compares final numbers; `marked` is 1 if the answer marks its number."""
  number, is_marked = final_number(answer)
  is_right = number is not None and number == marked_number(reference)
  return {'exact_match': float(is_right), 'marked': float(is_marked)}


def _marked_number(answer: str, reference: str) -> dict[str, float]:
  """Compares the numbers after `####`; several marks are wrong."""
  number = marked_number(answer) if answer.count(MARK) == 1 else None
  is_right = number is not None and number == marked_number(reference)
  return {'exact_match': float(is_right)}


def _short_answer(answer: str, reference: Reference) -> dict[str, float]:
  """Compares with all accepted answers, after SQuAD's normalisation."""
  return {'exact_match': short_answers.exact_match(answer, reference)}


def _squad(answer: str, reference: Reference) -> dict[str, float]:
  """Returns F1 and exact match; a part of `unanswerable` scores 0."""
  exact = short_answers.exact_match(answer, reference)
  f1 = short_answers.f1(answer, reference)
  return {
    'f1': exact if reference == UNANSWERABLE else f1,
    'exact_match': exact,
  }


@functools.cache
def _rouge_scorer() -> Any:
  from rouge_score import rouge_scorer

  return rouge_scorer.RougeScorer(['rouge2', 'rougeL'], use_stemmer=True)


def _rouge(answer: str, reference: str) -> dict[str, float]:
  """Returns the F-measures of ROUGE-2 and ROUGE-L."""
  scores = _rouge_scorer().score(reference, answer)
  return {name: float(value.fmeasure) for name, value in scores.items()}


def _rouge_signature() -> str:
  """Returns the version and options of rouge-score."""
  return f'rouge-score:{importlib.metadata.version("rouge-score")}|stem:yes'


@functools.cache
def _bleu_scorer(effective_order: bool) -> Any:
  from sacrebleu.metrics import BLEU

  return BLEU(effective_order=effective_order)


def _bleu(answer: str, reference: str) -> dict[str, float]:
  """Returns sentence BLEU, and the counts that corpus BLEU is made of."""
  bleu = _bleu_scorer(True).sentence_score(answer.strip(), [reference])
  return {
    'sentence_bleu': _rounded(bleu.score),
    **{f'matches_{n}': float(bleu.counts[n - 1]) for n in _ORDERS},
    **{f'ngrams_{n}': float(bleu.totals[n - 1]) for n in _ORDERS},
    'answer_words': float(bleu.sys_len),
    'reference_words': float(bleu.ref_len),
  }


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


def _rounded(score: float) -> float:
  # The score is made of logarithms: a perfect one is 100.00000000000004.
  return round(float(score), 9)


@functools.cache
def _chrf_scorer() -> Any:
  from sacrebleu.metrics import CHRF

  return CHRF()


def _chrf(answer: str, reference: str) -> dict[str, float]:
  """Returns chrF in 0..100, rounded to nine digits."""
  score = _chrf_scorer().sentence_score(answer.strip(), [reference]).score
  return {'chrf': _rounded(score)}


def _chrf_unrounded(answer: str, reference: str) -> dict[str, float]:
  """Returns chrF in 0..100 of texts without white space around them."""
  texts = answer.strip(), [reference.strip()]
  return {'chrf': _chrf_scorer().sentence_score(*texts).score}


def _chrf_signature() -> str:
  """Returns sacrebleu's signature of chrF."""
  _chrf_scorer().corpus_score(['a'], [['a']])
  return f'chrF|{_chrf_scorer().get_signature()}'


def _pass_at_1(answer: str, reference: str) -> dict[str, float]:
  """Runs a program and its tests; `stopped` is 1 if a limit ended it.

  Args:
    answer: Python text.
    reference: A right program, `CODE_END` and the tests.

  Raises:
    ValueError: Programs cannot be confined on this machine.
  """
  _, _, tests = reference.partition(CODE_END)
  outcome = sandbox.run(answer, tests)
  return {
    'pass@1': float(outcome.passed),
    'stopped': float(outcome.result in ('timeout', 'output')),
  }


_BUILTIN = (
  Metric(
    name='exact_match',
    help='The answer is the reference, up to white space around it.',
    scores=('exact_match',),
    score=_exact_match,
  ),
  Metric(
    name='final_number',
    help='The final number, marked by #### or the last one, is right.',
    scores=('exact_match', 'marked'),
    score=_final_number,
  ),
  Metric(
    name='marked_number',
    help='The number after the only #### of the answer is right.',
    scores=('exact_match',),
    score=_marked_number,
  ),
  Metric(
    name='short_answer',
    help="The answer is an accepted one, after SQuAD's normalisation.",
    scores=('exact_match',),
    score=_short_answer,
  ),
  Metric(
    name='squad',
    help='SQuAD 2.0: F1 of words with the best accepted answer.',
    scores=('f1', 'exact_match'),
    score=_squad,
  ),
  Metric(
    name='rouge',
    help='ROUGE-2 and ROUGE-L F-measures with stemming (Lin 2004).',
    scores=('rouge2', 'rougeL'),
    score=_rouge,
    signature=_rouge_signature,
  ),
  Metric(
    name='bleu',
    help='BLEU of all answers together (Post 2018), by sacrebleu.',
    scores=(
      'sentence_bleu',
      *(f'matches_{n}' for n in _ORDERS),
      *(f'ngrams_{n}' for n in _ORDERS),
      *('answer_words', 'reference_words'),
    ),
    score=_bleu,
    corpus=_corpus_bleu,
    signature=_bleu_signature,
  ),
  Metric(
    name='chrf',
    help='chrF (Popovic 2015), by sacrebleu, rounded to nine digits.',
    scores=('chrf',),
    score=_chrf,
    signature=_chrf_signature,
  ),
  # The numerals of earlier records have these digits.
  Metric(
    name='chrf_unrounded',
    help='chrF (Popovic 2015), by sacrebleu, with all digits.',
    scores=('chrf',),
    score=_chrf_unrounded,
    signature=_chrf_signature,
  ),
  Metric(
    name='pass_at_1',
    help='The program passes its tests, which are run confined.',
    scores=('pass@1', 'stopped'),
    score=_pass_at_1,
  ),
)
for _metric in _BUILTIN:
  METRICS.register(_metric.name, _metric, builtin=True)
