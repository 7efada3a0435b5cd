"""Multi30k, captions of pictures in English and German, by BLEU.

Elliott et al. 2016, Multi30K: Multilingual English-German Image Descriptions
(arXiv 1605.00459), task 1; for research. Its authors give out a sentence a
line, `train`, `val` and `test_2016_flickr`, each as `NAME.en` and `NAME.de`, or
packed as `NAME.en.gz`. Any of these paths may be given, or the name without its
end; worked examples are the first pairs of `val`, which lies beside it.

Beside what makes BLEU (see `translation`) each answer has its `chrf` (Popovic
2015), of which the mean over answers is told.
"""

import functools
import pathlib

from experiments.tasks import translation
from experiments.tasks.sources import DamagedError, Source, at, take, take_text
from experiments.tasks.task import benchmark

_NAMES = {'en': 'English', 'de': 'German'}
# More than anyone shows.
_MOST = 32

_SOURCE = Source(
  get='the raw files of task 1 from github.com/multi30k/dataset',
  read=translation.read,
  hub='bentrevett/multi30k',
  splits={'train': 'train', 'validation': 'validation', 'test': 'test'},
  files=translation.files,
)


def _pair(row) -> dict:
  # The hub has the languages in the row itself.
  return take(row, 'translation', dict) if 'translation' in row else row


def _ask(text: str, languages: tuple[str, str]) -> str:
  source, target = (_NAMES[language] for language in languages)
  return f'{source}: {text}\n{target}:'


@functools.cache
def _chrf():
  from sacrebleu.metrics import CHRF

  return CHRF()


def score(answer: str, reference: str) -> dict[str, float]:
  """As `translation.score`, and chrF in 0..100."""
  found = _chrf().sentence_score(answer.strip(), [reference])
  return translation.score(answer, reference) | {
    'chrf': round(float(found.score), 9)
  }


def scorer() -> str:
  """sacrebleu's signatures."""
  _chrf().corpus_score(['a'], [['a']])
  return f'{translation.scorer()} chrF|{_chrf().get_signature()}'


def _task(source: str, target: str):
  languages = source, target

  def problem(row, number):
    pair = _pair(row)
    asked = _ask(take_text(pair, source), languages)
    return str(number), asked, take_text(pair, target)

  def worked(path):
    beside = str(pathlib.Path(path).with_name('val')) if path else None
    found = []
    try:
      for number, (place, row) in enumerate(_SOURCE.rows(beside, 'validation')):
        if number == _MOST:
          break
        with at(place):
          _, asked, answer = problem(row, number)
        found.append((asked, answer))
    except DamagedError as e:
      raise ValueError(
        f'path: {e}; worked examples are taken from there, so put it there, or'
        ' give shots 0.'
      ) from None
    return found

  return benchmark(
    f'multi30k_{source}_{target}',
    _SOURCE,
    problem,
    score=score,
    scorer=scorer,
    corpus=translation.corpus_bleu,
    metric='sentence_bleu',
    worked=worked,
    shots=5,
    stops=('\n',),
    max_new_tokens=64,
  )


TASKS = (_task('de', 'en'), _task('en', 'de'))
