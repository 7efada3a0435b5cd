"""Metrics: scores of an answer against a reference, by name.

A task lists metrics by name (see `task.Task`). To add a metric, add an entry
to `_BUILTIN`, or call `METRICS.register` in a module of your own.
"""

import dataclasses
import functools
import importlib.metadata
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from cascades import arguments
from cascades.arguments import Registry
from experiments.tasks import short_answers
from experiments.tasks.data_files import RowError
from experiments.tasks.final_numbers import MARK, final_number, marked_number
from experiments.tasks.short_answers import Reference, accepted_answers

# The longest n-grams of BLEU have four words.
_ORDERS = range(1, 5)
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


def _exact_match(answer: str, reference: Reference) -> dict[str, float]:
  """Compares texts without white space around them."""
  references = (text.strip() for text in accepted_answers(reference))
  return {'exact_match': float(answer.strip() in references)}


def _final_number(answer: str, reference: Reference) -> dict[str, float]:
  """Compares final numbers; `marked` is 1 if the answer marks its number."""
  number, is_marked = final_number(answer)
  references = (final_number(text)[0] for text in accepted_answers(reference))
  is_right = number is not None and number in references
  return {'exact_match': float(is_right), 'marked': float(is_marked)}


def _marked_number(answer: str, reference: Reference) -> dict[str, float]:
  """Compares the numbers after `####`; several marks are wrong."""
  number = marked_number(answer) if answer.count(MARK) == 1 else None
  references = map(marked_number, accepted_answers(reference))
  is_right = number is not None and number in references
  return {'exact_match': float(is_right)}


def _short_answer(answer: str, reference: Reference) -> dict[str, float]:
  """Compares with all accepted answers, after SQuAD's normalisation."""
  return {'exact_match': short_answers.exact_match(answer, reference)}


def _token_f1(answer: str, reference: Reference) -> dict[str, float]:
  """Returns F1 of words with the best reference, as SQuAD compares them."""
  return {'f1': short_answers.f1(answer, reference)}


def _multiple_choice(answer: str, reference: Reference) -> dict[str, float]:
  """Compares the letters of the answer and the references."""
  letter = choice_letter(answer)
  references = map(choice_letter, accepted_answers(reference))
  return {'exact_match': float(letter is not None and letter in references)}


# In the order of preference: after 'answer', at the beginning, in brackets.
_LETTERS = (
  re.compile(r'(?i:answer)(?: is)?:? *[(*]*(?P<letter>[A-Z])\b(?!\')'),
  re.compile(r'\A[\s(*]*(?P<letter>[A-Za-z])(?=[).:,*]|\s*\Z|\s*\n)'),
  re.compile(r'\((?P<letter>[A-Za-z])\)'),
)


def choice_letter(text: str) -> str | None:
  """Returns the letter that an answer chooses, as a capital, or None.

  It is the last one after the word 'answer', else one that begins the text and
  stands apart, else the last one in brackets.
  """
  for pattern in _LETTERS:
    if letters := [match['letter'] for match in pattern.finditer(text)]:
      return letters[-1].upper()
  return None


def _json(answer: str, reference: Reference) -> dict[str, float]:
  """Parses the answer as one JSON value; the reference is not used."""
  del reference
  try:
    # NaN and Infinity are of Python's JSON alone; `int` refuses them.
    json.loads(answer, parse_constant=int)
  except (ValueError, RecursionError):
    return {'valid': 0.0}
  return {'valid': 1.0}


def _squad(answer: str, reference: Reference) -> dict[str, float]:
  """Returns F1 and exact match; a part of `unanswerable` scores 0."""
  exact = short_answers.exact_match(answer, reference)
  f1 = short_answers.f1(answer, reference)
  return {
    'f1': exact if reference == UNANSWERABLE else f1,
    'exact_match': exact,
  }


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


def _has_rouge_words(reference: str) -> bool:
  """Returns True if a text has words for ROUGE, which only reads ASCII."""
  return re.search('[a-zA-Z0-9]', reference) is not None


def _rouge_signature() -> str:
  """Returns the version and options of rouge-score."""
  return f'rouge-score:{importlib.metadata.version("rouge-score")}|stem:yes'


@functools.cache
def _bleu_scorer(effective_order: bool) -> Any:
  from sacrebleu.metrics import BLEU

  return BLEU(effective_order=effective_order)


def _bleu(answer: str, reference: Reference) -> dict[str, float]:
  """Returns sentence BLEU, and the counts that corpus BLEU is made of."""
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


def _chrf(answer: str, reference: Reference) -> dict[str, float]:
  """Returns chrF in 0..100, rounded to nine digits."""
  references = list(accepted_answers(reference))
  score = _chrf_scorer().sentence_score(answer.strip(), references).score
  return {'chrf': _rounded(score)}


def _chrf_signature() -> str:
  """Returns sacrebleu's signature of chrF."""
  _chrf_scorer().corpus_score(['a'], [['a']])
  return f'chrF|{_chrf_scorer().get_signature()}'


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
    accepts=lambda text: final_number(text)[0] is not None,
  ),
  Metric(
    name='marked_number',
    help='The number after the only #### of the answer is right.',
    scores=('exact_match',),
    score=_marked_number,
    accepts=lambda text: marked_number(text) is not None,
  ),
  Metric(
    name='short_answer',
    help="The answer is an accepted one, after SQuAD's normalisation.",
    scores=('exact_match',),
    score=_short_answer,
  ),
  Metric(
    name='token_f1',
    help='F1 of words with the best reference, normalised as in SQuAD.',
    scores=('f1',),
    score=_token_f1,
  ),
  Metric(
    name='multiple_choice',
    help='The letter that the answer chooses is right.',
    scores=('exact_match',),
    score=_multiple_choice,
    accepts=lambda text: choice_letter(text) is not None,
  ),
  Metric(
    name='json',
    help='The answer is one JSON value, whatever the reference.',
    scores=('valid',),
    score=_json,
    needs_reference=False,
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
    score=functools.partial(_rouge, ('rouge2', 'rougeL')),
    signature=_rouge_signature,
    accepts=_has_rouge_words,
  ),
  *(
    Metric(
      name=name,
      help=f'F-measure of {title} with stemming (Lin 2004), in English.',
      scores=(name,),
      score=functools.partial(_rouge, (name,)),
      signature=_rouge_signature,
      accepts=_has_rouge_words,
    )
    for name, title in (
      ('rouge1', 'ROUGE-1'),
      ('rouge2', 'ROUGE-2'),
      ('rougeL', 'ROUGE-L'),
    )
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
    scale=100.0,
    corpus=_corpus_bleu,
    signature=_bleu_signature,
  ),
  Metric(
    name='chrf',
    help='chrF (Popovic 2015), by sacrebleu, rounded to nine digits.',
    scores=('chrf',),
    score=_chrf,
    scale=100.0,
    signature=_chrf_signature,
  ),
)
for _metric in _BUILTIN:
  METRICS.register(_metric.name, _metric, builtin=True)
