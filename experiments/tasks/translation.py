"""Translation between English and German, by BLEU: WMT14 and Multi30k.

- `wmt14_en_de`, newstest2014 (Bojar et al. 2014, Findings of the Workshop on
  Statistical Machine Translation); for research. sacrebleu writes its files:

    sacrebleu -t wmt14/full -l en-de --echo src > newstest2014.en
    sacrebleu -t wmt14/full -l en-de --echo ref > newstest2014.de

- `multi30k_de_en` and `multi30k_en_de`, captions of pictures (Elliott et al.
  2016, arXiv 1605.00459), task 1; for research. Its authors give out `train`,
  `val` and `test_2016_flickr`; worked examples are the first pairs of `val`,
  which lies beside the file. An answer has a `chrf` too (Popovic 2015), of
  which the mean over answers is told.

A pair of plain files holds a sentence a line, `NAME.en` and `NAME.de`, or
packed as `NAME.en.gz`. Any of these paths may be given, or the name without its
end.

BLEU belongs to a set of answers and not to one of them (Post 2018, arXiv
1804.08771). What an answer adds to it (matches, n-grams and lengths) are its
scores, and their sums make the BLEU of any set of answers. Beside them
stands `sentence_bleu`, smoothed and of shorter n-grams where an answer
has no longer ones: to look at a single answer, not to be averaged.
"""

import functools
import itertools
import pathlib
from collections.abc import Iterator, Mapping

from experiments.tasks.sources import (
  DamagedError,
  Row,
  Source,
  at,
  read_lines,
  take,
  take_text,
)
from experiments.tasks.task import Task, benchmark

_ORDERS = range(1, 5)
_LANGUAGES = {'en': 'English', 'de': 'German'}
# More worked examples than anyone shows.
_MOST = 32


def files(path: pathlib.Path) -> list[pathlib.Path]:
  """The two files, English first; packed ones where there are no others.

  Args:
    path: Of either, or what both begin with.
  """
  stem = path.with_suffix('') if path.suffix == '.gz' else path
  if stem.suffix.removeprefix('.') in _LANGUAGES:
    stem = stem.with_suffix('')
  plain = [stem.with_name(f'{stem.name}.{end}') for end in _LANGUAGES]
  packed = [file.with_name(f'{file.name}.gz') for file in plain]
  return [
    b if b.exists() and not a.exists() else a
    for a, b in zip(plain, packed, strict=True)
  ]


def read(path: pathlib.Path) -> Iterator[Row]:
  """Rows of a pair of files, in the shape of the hub's WMT sets.

  Raises:
    DamagedError: A file cannot be read, or they have not as many lines.
  """
  sides = [read_lines(file) for file in files(path)]
  if len(sides[0]) != len(sides[1]):
    english, german = files(path)
    raise DamagedError(
      f'{english} has {len(sides[0])} lines and {german} {len(sides[1])}'
    )
  for number, pair in enumerate(zip(*sides, strict=True), 1):
    row = dict(zip(_LANGUAGES, pair, strict=True))
    yield f'{path}, line {number},', {'translation': row}


@functools.cache
def _bleu(sentence: bool):
  from sacrebleu.metrics import BLEU

  return BLEU(effective_order=sentence)


def score(answer: str, reference: str) -> dict[str, float]:
  """Sentence BLEU in 0..100, and what the answer adds to a corpus' BLEU."""
  found = _bleu(True).sentence_score(answer.strip(), [reference])
  return {
    'sentence_bleu': _exact(found.score),
    **{f'matches_{n}': float(found.counts[n - 1]) for n in _ORDERS},
    **{f'ngrams_{n}': float(found.totals[n - 1]) for n in _ORDERS},
    'answer_words': float(found.sys_len),
    'reference_words': float(found.ref_len),
  }


def corpus_bleu(sums: Mapping[str, float]) -> float:
  """BLEU in 0..100 from the summed scores of some answers."""
  found = _bleu(False).compute_bleu(
    correct=[int(sums[f'matches_{n}']) for n in _ORDERS],
    total=[int(sums[f'ngrams_{n}']) for n in _ORDERS],
    sys_len=int(sums['answer_words']),
    ref_len=int(sums['reference_words']),
    smooth_method='exp',
  )
  return _exact(found.score)


def _exact(score: float) -> float:
  # It comes from logarithms: what is all right has 100.00000000000004.
  return round(float(score), 9)


@functools.cache
def _chrf():
  from sacrebleu.metrics import CHRF

  return CHRF()


def _score_with_chrf(answer: str, reference: str) -> dict[str, float]:
  """As `score`, and chrF in 0..100."""
  found = _chrf().sentence_score(answer.strip(), [reference])
  return score(answer, reference) | {'chrf': _exact(found.score)}


def scorer() -> str:
  """sacrebleu's signature of the corpus' BLEU."""
  bleu = _bleu(False)
  # It knows the number of references once it has seen some.
  bleu.corpus_score(['a'], [['a']])
  return f'BLEU|{bleu.get_signature()}'


def _scorer_with_chrf() -> str:
  """sacrebleu's signatures."""
  _chrf().corpus_score(['a'], [['a']])
  return f'{scorer()} chrF|{_chrf().get_signature()}'


def _task(name: str, source: Source, languages, worked, **fields) -> Task:
  """A task of pairs of sentences, from one of two languages to the other.

  Args:
    name: Of the set.
    source: Of its pairs.
    languages: From which, and to which.
    worked: Pairs to be shown; None for the first ones of `val`, which lies
      beside the file.
    **fields: The task's other fields.
  """
  asked, answered = languages

  def problem(row, number):
    # The hub has the languages of Multi30k in the row itself.
    pair = take(row, 'translation', dict) if 'translation' in row else row
    names = _LANGUAGES[asked], _LANGUAGES[answered]
    question = f'{names[0]}: {take_text(pair, asked)}\n{names[1]}:'
    return str(number), question, take_text(pair, answered)

  def beside(path):
    place = str(pathlib.Path(path).with_name('val')) if path else None
    try:
      rows = itertools.islice(source.rows(place, 'validation'), _MOST)
      found = []
      for number, (place, row) in enumerate(rows):
        with at(place):
          found.append(problem(row, number)[1:])
    except DamagedError as e:
      raise ValueError(
        f'path: {e}; worked examples are taken from there, so put it there, or'
        ' give shots 0.'
      ) from None
    return found

  return benchmark(
    f'{name}_{asked}_{answered}',
    source,
    problem,
    corpus=corpus_bleu,
    metric='sentence_bleu',
    worked=beside
    if worked is None
    else [
      problem(dict(zip(languages, pair, strict=True)), 0)[1:] for pair in worked
    ],
    shots=5,
    stops=('\n',),
    **fields,
  )


# Written for this project.
_WORKED = (
  (
    'The bridge will be closed to traffic until Friday morning.',
    'Die Brücke bleibt bis Freitagmorgen für den Verkehr gesperrt.',
  ),
  (
    '"We had not expected so many visitors," said the director of the museum.',
    '„Mit so vielen Besuchern hatten wir nicht gerechnet“, sagte die Leiterin'
    ' des Museums.',
  ),
  (
    'Last year the company sold 1.2 million bicycles, 8 % more than the year'
    ' before.',
    'Im vergangenen Jahr verkaufte das Unternehmen 1,2 Millionen Fahrräder, 8 %'
    ' mehr als im Jahr zuvor.',
  ),
  (
    'It is open whether the law will be passed before the summer.',
    'Ob das Gesetz noch vor dem Sommer verabschiedet wird, ist offen.',
  ),
  (
    'Two of the hikers had lost their way in the fog.',
    'Zwei der Wanderer hatten sich im Nebel verlaufen.',
  ),
)

_MULTI30K = Source(
  get='the raw files of task 1 from github.com/multi30k/dataset',
  read=read,
  hub='bentrevett/multi30k',
  splits={'train': 'train', 'validation': 'validation', 'test': 'test'},
  files=files,
)

TASKS = (
  _task(
    'wmt14',
    Source(
      get='newstest2014.en and .de, as sacrebleu writes them (-t wmt14/full)',
      read=read,
      hub='wmt/wmt14',
      config='de-en',
      files=files,
    ),
    ('en', 'de'),
    _WORKED,
    score=score,
    scorer=scorer,
    max_new_tokens=256,
  ),
  *(
    _task(
      'multi30k',
      _MULTI30K,
      languages,
      None,
      score=_score_with_chrf,
      scorer=_scorer_with_chrf,
      max_new_tokens=64,
    )
    for languages in (('de', 'en'), ('en', 'de'))
  ),
)
