"""WMT14, English to German (newstest2014), by BLEU.

Bojar et al. 2014, Findings of the Workshop on Statistical Machine Translation;
for research. A pair of plain files holds a sentence a line, `NAME.en` and
`NAME.de`, of which either path may be given, or the name without its end.
sacrebleu writes them:

  sacrebleu -t wmt14/full -l en-de --echo src > newstest2014.en
  sacrebleu -t wmt14/full -l en-de --echo ref > newstest2014.de

BLEU belongs to a set of answers and not to one of them (Post 2018, arXiv
1804.08771). What an answer adds to it (matches, n-grams and lengths) are its
scores, and their sums make the BLEU of any set of answers. Beside them
stands `sentence_bleu`, smoothed and of shorter n-grams where an answer
has no longer ones: to look at a single answer, not to be averaged.
"""

import functools
import pathlib
from collections.abc import Iterator, Mapping

from experiments.tasks.sources import (
  DamagedError,
  Row,
  Source,
  read_lines,
  take,
  take_text,
)
from experiments.tasks.task import benchmark

_ORDERS = range(1, 5)
_LANGUAGES = ('en', 'de')


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


def _ask(english: str) -> str:
  return f'English: {english}\nGerman:'


def _problem(row, number):
  pair = take(row, 'translation', dict)
  return str(number), _ask(take_text(pair, 'en')), take_text(pair, 'de')


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


def scorer() -> str:
  """sacrebleu's signature of the corpus' BLEU."""
  bleu = _bleu(False)
  # It knows the number of references once it has seen some.
  bleu.corpus_score(['a'], [['a']])
  return f'BLEU|{bleu.get_signature()}'


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

TASK = benchmark(
  'wmt14_en_de',
  Source(
    get='newstest2014.en and .de, as sacrebleu writes them (-t wmt14/full)',
    read=read,
    hub='wmt/wmt14',
    config='de-en',
    files=files,
  ),
  _problem,
  score=score,
  scorer=scorer,
  corpus=corpus_bleu,
  metric='sentence_bleu',
  worked=tuple((_ask(english), german) for english, german in _WORKED),
  shots=5,
  stops=('\n',),
  max_new_tokens=256,
)
