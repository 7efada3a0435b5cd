"""Translation between English and German, by BLEU: WMT14 and Multi30k.

- `wmt14_en_de`, newstest2014 (Bojar et al. 2014, Findings of the Workshop on
  Statistical Machine Translation); for research. sacrebleu writes its files:

    sacrebleu -t wmt14/full -l en-de --echo src > newstest2014.en
    sacrebleu -t wmt14/full -l en-de --echo ref > newstest2014.de

- `multi30k_de_en` and `multi30k_en_de`, captions of pictures (Elliott et al.
  2016, arXiv 1605.00459), task 1; for research. The authors publish `train`,
  `val` and `test_2016_flickr`; worked examples are the first pairs of `val`,
  which must lie beside the file. Answers are scored by chrF as well (Popovic
  2015).

A pair of plain files holds a sentence a line, `NAME.en` and `NAME.de`, or
packed as `NAME.en.gz`. A path is that of either file, or their common prefix.

BLEU is a property of a set of answers (Post 2018, arXiv 1804.08771). The scores
of an answer are its summands (matches, n-grams and lengths), whose sums give
the BLEU of any set of answers. The score `sentence_bleu`, smoothed and with
shorter n-grams for short answers, serves to look at a single answer; its mean
is not reported.
"""

import itertools
import pathlib
from collections.abc import Iterator

from experiments.tasks.sources import (
  DamagedError,
  Row,
  Source,
  error_location,
  get_field,
  get_text,
  read_lines,
)
from experiments.tasks.task import Task, published_task

_LANGUAGES = {'en': 'English', 'de': 'German'}
# Upper limit of worked examples taken from `val`.
_MAX_WORKED_EXAMPLES = 32


def files(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the two files of a pair, English first.

  Packed files are used where there are no plain ones.

  Args:
    path: Path of either file, or their common prefix.
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
  """Yields rows of a pair of files in the shape of the hub's WMT sets.

  Raises:
    DamagedError: A file cannot be read, or their line counts differ.
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


def _task(
  name: str, source: Source, languages: tuple[str, str], is_beside, **fields
) -> Task:
  """Returns a task of sentences to translate between two languages.

  Args:
    name: Name of the set.
    source: Source of the sentence pairs.
    languages: Codes of the source and the target language.
    is_beside: True if worked examples are the first pairs of `val`, which must
      lie beside the file.
    **fields: Further fields of the task.
  """
  from_language, to_language = languages

  def problem(row, number):
    # The hub's rows of Multi30k are the pairs themselves.
    pair = get_field(row, 'translation', dict) if 'translation' in row else row
    names = _LANGUAGES[from_language], _LANGUAGES[to_language]
    question = f'{names[0]}: {get_text(pair, from_language)}\n{names[1]}:'
    return str(number), question, get_text(pair, to_language)

  def validation_pairs(path):
    val = str(pathlib.Path(path).with_name('val')) if path else None
    rows = itertools.islice(
      source.rows(val, 'validation'), _MAX_WORKED_EXAMPLES
    )
    found_pairs = []
    try:
      for number, (location, row) in enumerate(rows):
        with error_location(location):
          found_pairs.append(problem(row, number)[1:])
    except DamagedError as e:
      raise ValueError(
        f'path: {e}; worked examples are taken from there, so put it there, or'
        ' give shots 0.'
      ) from None
    return found_pairs

  return published_task(
    f'{name}_{from_language}_{to_language}',
    source,
    problem,
    worked_examples=validation_pairs if is_beside else None,
    shots=5,
    stop_strings=('\n',),
    **fields,
  )


_MULTI30K = Source(
  download='the raw files of task 1 from github.com/multi30k/dataset',
  read=read,
  hub='bentrevett/multi30k',
  splits={'train': 'train', 'validation': 'validation', 'test': 'test'},
  files=files,
)

TASKS = (
  _task(
    'wmt14',
    Source(
      download=(
        'newstest2014.en and .de, as sacrebleu writes them (-t wmt14/full)'
      ),
      read=read,
      hub='wmt/wmt14',
      config='de-en',
      files=files,
    ),
    ('en', 'de'),
    is_beside=False,
    metrics=('bleu',),
    max_new_tokens=256,
  ),
  *(
    _task(
      'multi30k',
      _MULTI30K,
      languages,
      is_beside=True,
      metrics=('bleu', 'chrf'),
      max_new_tokens=64,
    )
    for languages in (('de', 'en'), ('en', 'de'))
  ),
)
