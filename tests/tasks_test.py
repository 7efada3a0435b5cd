"""Problems are right, different, seeded, and split by their content."""

import collections
import hashlib
import itertools
import json
import pathlib
import random
import re

import pytest

from experiments.tasks import GENERATED, TASKS, numerals, phrasing, roman
from experiments.tasks.task import split_of

_DATA = pathlib.Path(__file__).parent / 'data'
# Hashes of every task's examples, by split.
_EXAMPLES = json.loads((_DATA / 'task_examples.json').read_text())


@pytest.fixture(params=[name for name, x in TASKS.items() if x.problems])
def task(request):
  return TASKS[request.param]


def _problems(task, count, *stream):
  return list(itertools.islice(task.problems(*stream), count))


def test_examples_are_reproducible_and_different(task):
  def load(seed, count):
    return list(task.load(split='test', seed=seed, num_examples=count))

  first, other = load(0, 50), load(1, 50)
  assert first == load(0, 50)
  assert first[:10] == load(0, 10)
  assert {e.id for e in first}.isdisjoint(e.id for e in other)
  assert len({e.prompt for e in first}) == 50
  assert [e.prompt for e in first] != [e.prompt for e in other]


def test_splits_share_no_problem_whatever_the_seed(task):
  keys = {}
  for seed in (0, 1):
    for key, *_ in _problems(task, 3000, f'any/{seed}'):
      keys.setdefault(split_of(key), set()).add(key)
  train, test = keys['train'], keys['test']
  assert train.isdisjoint(test | keys['validation'])
  assert 0.03 < len(test) / sum(map(len, keys.values())) < 0.1
  # What `load` yields is of the split it was asked for.
  problems = _problems(task, 1000, 'test/0')
  split = {prompt: split_of(key) for key, prompt, _ in problems}
  examples = task.load(split='test', num_examples=20)
  assert {split[e.prompt] for e in examples} == {'test'}


def test_references_score_full_and_others_do_not(task):
  examples = list(task.load(num_examples=30))
  for example, other in itertools.pairwise(examples):
    right = example.reference
    answers = {right: 1, '': 0}
    if other.reference.split()[-1] != right.split()[-1]:
      answers[other.reference] = 0
    for answer, score in answers.items():
      assert task.score(answer, right)[task.quality_score] == score


def test_word_problems_are_worked_out_right():
  operators, steps, large = set(), set(), 0
  for example in TASKS['word_problems'].load(num_examples=400):
    lines = example.reference.strip().split('\n')
    values = []
    for line in lines[:-1]:
      a, op, b, c = re.search(r'(\d+)([-+*/])(\d+)=(\d+)', line).groups()
      assert int(c) == eval(f'{a}{op}{b}')
      assert 0 < int(c) < 1000
      assert not values or int(a) == values[-1]
      values.append(int(c))
      operators.add(op)
      large += int(c) > 99
    steps.add(len(values))
    assert lines[-1] == f'#### {values[-1]}'
  assert operators == set('+-*/')
  assert steps == {2, 3, 4}
  assert large > 300


def test_a_word_problem_wants_one_marked_number():
  wrong = '12', 'so #### 12 or #### 12', '#### 11\n#### 12', '#### twelve'
  wrong += '####\n12', '#### 12/0', '#### a hundred thousand million'
  for answer in ('#### 12', '####12', *wrong, f'#### {"9" * 9999}'):
    scored = TASKS['word_problems'].score(answer, 'then 3*4=12.\n#### 12')
    right = float(answer in ('#### 12', '####12'))
    assert scored == {'exact_match': right}, answer


def test_numbers_and_dates_are_spelled():
  spell, many = numerals.number_in_words, 'nine hundred ninety-nine'
  texts = 'zero thirteen twenty ninety-nine'.split()
  assert [spell(n) for n in (0, 13, 20, 99)] == texts
  assert [spell(n) for n in (100, 310)] == ['one hundred', 'three hundred ten']
  assert spell(4302) == 'four thousand three hundred two'
  assert spell(100_000) == 'one hundred thousand'
  assert spell(999_999) == f'{many} thousand {many}'
  dates = {
    (1776, 7, 4): 'the fourth of July, seventeen seventy-six',
    (2000, 1, 1): 'the first of January, two thousand',
    (2009, 12, 28): 'the twenty-eighth of December, two thousand nine',
    (1900, 5, 12): 'the twelfth of May, nineteen hundred',
    (1805, 3, 20): 'the twentieth of March, eighteen oh five',
    (2010, 8, 22): 'the twenty-second of August, twenty ten',
  }
  assert {date: numerals.date_in_words(*date) for date in dates} == dates
  texts = 'I XLIX CD MCMXCIV MMMDCCCLXXXVIII MMMCMXCIX'.split()
  numbers = 1, 49, 400, 1994, 3888, 3999
  assert [roman.roman_numeral(n) for n in numbers] == texts


def test_a_roman_problem_and_its_way_back_are_of_one_split():
  prompts = {}
  for key, prompt, reference in _problems(TASKS['roman'], 4000, 'any'):
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
  assert scores == {'exact_match': 0.0, 'chrf': pytest.approx(want)}
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
  for seed in (0, 1):
    for e in task.load(split=split, seed=seed, num_examples=300, **given):
      yield [e.id, e.prompt, e.reference]


@pytest.mark.parametrize('name', _EXAMPLES)
def test_examples_stay_the_same_to_the_bit(name):
  task, want = TASKS[name], dict(_EXAMPLES[name])
  if task.problems:
    for phrasing_style in phrasing.PHRASING_STYLES:
      found = _digest(_problems(task, 1000, 'any', phrasing_style))
      assert found == want.pop(f'by {phrasing_style}')
  assert {split: _digest(_examples(task, split)) for split in want} == want


def test_every_task_has_hashes_of_its_examples():
  assert {*_EXAMPLES} == {n for n, t in TASKS.items() if not t.configure}
  for name in GENERATED:
    assert {'train', 'validation', 'test'} < {*_EXAMPLES[name]}


# --- Phrasing styles: the same problems in different words. ---


def test_shares_are_those_of_the_phrasing_style():
  plain = phrasing.shares('plain', 4)
  assert plain == pytest.approx([0.663, 0.191, 0.092, 0.055], abs=1e-3)
  assert phrasing.shares('ornate', 4) == plain[::-1]
  assert phrasing.shares('any', 4) == [0.25] * 4
  for phrasing_style in phrasing.PHRASING_STYLES:
    assert sum(phrasing.shares(phrasing_style, 5)) == pytest.approx(1)
  with pytest.raises(ValueError, match=r"phrasing_style: .* got 'curt'"):
    next(TASKS['roman'].problems('0', 'curt'))


def test_a_phraser_draws_by_its_shares_and_fills_words_in():
  phraser = phrasing.Phraser('ornate', random.Random(0))
  text = '[now|then|later [on|still]] {n} has {k}.'
  said = (phraser.write(text, n='Ana', k=3) for _ in range(4000))
  found = collections.Counter(said)
  first, second, third = phrasing.shares('ornate', 3)
  on, still = phrasing.shares('ornate', 2)
  want = {
    'now Ana has 3.': first,
    'then Ana has 3.': second,
    'later on Ana has 3.': third * on,
    'later still Ana has 3.': third * still,
  }
  shares = {said: count / 4000 for said, count in found.items()}
  assert shares == pytest.approx(want, abs=0.03)


def test_styles_tell_the_same_problems_in_other_words(task):
  plain, ornate = (
    _problems(task, 300, 'train/0', phrasing_style)
    for phrasing_style in ('plain', 'ornate')
  )
  assert [x[:2] for x in plain] == [x[:2] for x in ornate]
  pairs = [(a, b) for (*_, a), (*_, b) in zip(plain, ornate, strict=True)]
  for one, other in pairs:
    # Each is right by the other's book.
    assert task.score(one, other)['exact_match'] == 1
    assert task.score(other, one)['exact_match'] == 1
  if task.name == 'word_problems':
    assert sum(one == other for one, other in pairs) <= 3
