"""Problems are right, different, seeded, and split by their content."""

import decimal
import hashlib
import itertools
import json
import pathlib
import re

import pytest

from experiments.tasks import GENERATED, TASKS, gsm8k, numerals, roman, wording
from experiments.tasks.task import split_of

_DATA = pathlib.Path(__file__).parent / 'data'
# Hashes of every task's examples, by split.
_EXAMPLES = json.loads((_DATA / 'task_examples.json').read_text())


@pytest.fixture(params=GENERATED)
def task(request):
  return TASKS[request.param]


def test_examples_are_reproducible_and_different(task):
  first = list(task.load(split='test', seed=0, num_examples=50))
  assert first == list(task.load(split='test', seed=0, num_examples=50))
  assert first[:10] == list(task.load(split='test', seed=0, num_examples=10))
  other = list(task.load(split='test', seed=1, num_examples=50))
  assert {e.id for e in first}.isdisjoint(e.id for e in other)
  assert len({e.prompt for e in first}) == 50
  assert [e.prompt for e in first] != [e.prompt for e in other]


def test_splits_share_no_problem_whatever_the_seed(task):
  keys = {}
  for seed in (0, 1):
    for key, *_ in itertools.islice(task.problems(f'any/{seed}'), 3000):
      keys.setdefault(split_of(key), set()).add(key)
  train, test = keys['train'], keys['test']
  assert train.isdisjoint(test | keys['validation'])
  assert 0.03 < len(test) / sum(map(len, keys.values())) < 0.1
  # What `load` yields is of the split it was asked for.
  wanted = {e.prompt for e in task.load(split='test', num_examples=20)}
  found = {
    prompt: split_of(key)
    for key, prompt, _ in itertools.islice(task.problems('test/0'), 1000)
  }
  assert {found[prompt] for prompt in wanted} == {'test'}


def test_references_score_full_and_others_do_not(task):
  examples = list(task.load(num_examples=30))
  for example, other in itertools.pairwise(examples):
    assert task.score(example.reference, example.reference)[task.metric] == 1
    if other.reference.split()[-1] != example.reference.split()[-1]:
      assert task.score(other.reference, example.reference)[task.metric] == 0
    assert task.score('', example.reference)[task.metric] == 0


def test_unknown_split_is_named(task):
  with pytest.raises(ValueError, match="'dev' is not a split"):
    next(task.load(split='dev'))


def test_word_problems_are_worked_out_right():
  operators, steps, large = set(), set(), 0
  for example in TASKS['word_problems'].load(num_examples=400):
    lines = example.reference.strip().split('\n')
    values = []
    for line in lines[:-1]:
      a, op, b, c = re.search(r'(\d+)([-+*/])(\d+)=(\d+)', line).groups()
      a, b, c = int(a), int(b), int(c)
      assert c == {'+': a + b, '-': a - b, '*': a * b, '/': a / b}[op]
      assert 0 < c < 1000
      assert not values or a == values[-1]
      values.append(c)
      operators.add(op)
      large += c > 99
    steps.add(len(values))
    assert lines[-1] == f'#### {values[-1]}'
  assert operators == set('+-*/')
  assert steps == {2, 3, 4}
  assert large > 300


@pytest.mark.parametrize(
  ('answer', 'number'),
  [
    ('#### 12', 12),
    ('so\n#### -3', -3),
    ('####1,234', 1234),
    ('#### 0.5', 0.5),
    ('#### 7\n#### 8', 7),
    ('#### 11\n#### 12', 11),
    ('#### 12/0', None),
    ('####\n12', None),
    ('#### twelve', None),
    ('12', None),
    ('####', None),
    ('', None),
  ],
)
def test_only_a_marked_number_counts(answer, number):
  want = None if number is None else decimal.Decimal(str(number))
  assert gsm8k.marked_number(answer) == want


@pytest.mark.parametrize(
  ('answer', 'right'),
  [
    ('#### 12', 1),
    ('####12', 1),
    ('12', 0),
    ('so #### 12 or #### 12', 0),
    ('#### 11\n#### 12', 0),
    ('#### twelve', 0),
    ('#### a hundred thousand million', 0),
    ('####\n12', 0),
    ('#### 12/0', 0),
    (f'#### {"9" * 9999}', 0),
  ],
)
def test_a_word_problem_wants_one_marked_number(answer, right):
  scored = TASKS['word_problems'].score(answer, 'then 3*4=12.\n#### 12')
  assert scored == {'exact_match': float(right)}


_SPELLED = {
  numerals.number_in_words: {
    (0,): 'zero',
    (13,): 'thirteen',
    (20,): 'twenty',
    (99,): 'ninety-nine',
    (100,): 'one hundred',
    (310,): 'three hundred ten',
    (4302,): 'four thousand three hundred two',
    (100_000,): 'one hundred thousand',
    (999_999,): 'nine hundred ninety-nine thousand nine hundred ninety-nine',
  },
  numerals.date_in_words: {
    (1776, 7, 4): 'the fourth of July, seventeen seventy-six',
    (2000, 1, 1): 'the first of January, two thousand',
    (2009, 12, 28): 'the twenty-eighth of December, two thousand nine',
    (1900, 5, 12): 'the twelfth of May, nineteen hundred',
    (1805, 3, 20): 'the twentieth of March, eighteen oh five',
    (2010, 8, 22): 'the twenty-second of August, twenty ten',
  },
  roman.roman_numeral: {
    (1,): 'I',
    (49,): 'XLIX',
    (400,): 'CD',
    (1994,): 'MCMXCIV',
    (3888,): 'MMMDCCCLXXXVIII',
    (3999,): 'MMMCMXCIX',
  },
}


@pytest.mark.parametrize('spell', _SPELLED, ids=lambda f: f.__name__)
def test_numbers_and_dates_are_spelled(spell):
  texts = _SPELLED[spell]
  assert {given: spell(*given) for given in texts} == texts


def test_a_roman_problem_and_its_way_back_are_of_one_split():
  prompts = {}
  for key, prompt, reference in itertools.islice(
    TASKS['roman'].problems('any'), 4000
  ):
    prompts.setdefault(key, {})[prompt] = reference
  assert prompts['1994'] == {
    'The number 1994 in Roman numerals:': ' MCMXCIV',
    'In figures, the Roman numeral MCMXCIV:': ' 1994',
  }


def test_a_task_ends_with_its_last_problem():
  whole = list(TASKS['roman'].load(num_examples=None))
  assert len({e.prompt for e in whole}) == len(whole) == 506
  assert list(TASKS['roman'].load(num_examples=600)) == whole


def test_chrf_is_sacrebleus():
  from sacrebleu.metrics import CHRF

  scores = TASKS['numerals'].score(' four hundred two', ' four hundred ten')
  want = CHRF().sentence_score('four hundred two', ['four hundred ten']).score
  assert scores == {'exact_match': 0.0, 'chrf': want}
  assert 0 < want < 100


def _digest(values) -> str:
  text = json.dumps([*values], ensure_ascii=False)
  return hashlib.sha256(text.encode()).hexdigest()


def _examples(task, split):
  """Lists the examples of a split as plain values.

  Of tasks that make up their problems: the first 300 of two seeds. Of
  published sets: all that the file in `data/tasks` has, with worked examples.
  """
  given = {}
  if task.source is not None:
    given['path'] = str(min((_DATA / 'tasks').glob(f'{task.name}.*')))
    given['allow_code_execution'] = task.runs_code
  for seed in (0, 1):
    for e in task.load(split=split, seed=seed, num_examples=300, **given):
      yield [e.id, e.prompt, e.reference]


@pytest.mark.parametrize('name', TASKS)
def test_examples_stay_the_same_to_the_bit(name):
  task, want = TASKS[name], dict(_EXAMPLES[name])
  if task.problems:
    for author in wording.AUTHORS:
      stream = task.problems('any', author)
      found = _digest(itertools.islice(stream, 1000))
      assert found == want.pop(f'by {author}')
  assert {split: _digest(_examples(task, split)) for split in want} == want


def test_every_task_has_hashes_of_its_examples():
  assert {*_EXAMPLES} == {*TASKS}
  for name in GENERATED:
    assert {'train', 'validation', 'test'} < {*_EXAMPLES[name]}
