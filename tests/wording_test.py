"""Authors tell the same problems, each in a manner of their own."""

import collections
import itertools
import random

import pytest

from cascades.tasks import GENERATED, TASKS, rankings, wording


def test_shares_are_those_of_the_habit():
  plain = wording.shares('plain', 4)
  assert plain == pytest.approx([0.663, 0.191, 0.092, 0.055], abs=1e-3)
  assert wording.shares('ornate', 4) == plain[::-1]
  assert wording.shares('any', 4) == [0.25] * 4
  for habit in wording.HABITS:
    assert sum(wording.shares(habit, 5)) == pytest.approx(1)


def test_an_author_chooses_by_their_shares_and_fills_words_in():
  author = wording.Author('ornate', random.Random(0))
  text = '[now|then|later [on|still]] {n} has {k}.'
  found = collections.Counter(
    author.write(text, n='Ana', k=3) for _ in range(4000)
  )
  first, second, third = wording.shares('ornate', 3)
  on, still = wording.shares('ornate', 2)
  want = {
    'now Ana has 3.': first,
    'then Ana has 3.': second,
    'later on Ana has 3.': third * on,
    'later still Ana has 3.': third * still,
  }
  assert set(found) == set(want)
  for said, share in want.items():
    assert found[said] / 4000 == pytest.approx(share, abs=0.03)


def test_an_unknown_author_is_named():
  with pytest.raises(ValueError, match="author: 'curt' is none; choose one of"):
    next(TASKS['roman'].problems('0', 'curt'))


@pytest.mark.parametrize('name', GENERATED)
def test_authors_tell_the_same_problems(name):
  plain, ornate = (
    list(itertools.islice(TASKS[name].problems('train/0', habit), 200))
    for habit in ('plain', 'ornate')
  )
  for (key, prompt, one), (other_key, other_prompt, other) in zip(
    plain, ornate, strict=True
  ):
    assert (key, prompt) == (other_key, other_prompt)
    # Each is right by the other's book.
    assert TASKS[name].score(one, other)['exact_match'] == 1
    assert TASKS[name].score(other, one)['exact_match'] == 1


@pytest.mark.parametrize('name', ['word_problems', 'rankings'])
def test_authors_agree_on_few_answers_to_the_letter(name):
  plain, ornate = (
    [
      reference
      for _, _, reference in itertools.islice(
        TASKS[name].problems('train/0', habit), 300
      )
    ]
    for habit in ('plain', 'ornate')
  )
  same = sum(a == b for a, b in zip(plain, ornate, strict=True))
  assert same <= 3


def test_rankings_are_in_order():
  counts = set()
  for example in TASKS['rankings'].load(num_examples=200):
    told, asked = example.prompt.rstrip(':').split('. From ')
    given = {}
    for part in told.split(', '):
      name, *_, value = part.replace(' has', '').rsplit(' ', 2)[:2]
      given[name.split()[0]] = int(value)
    ranked = rankings.ranking(example.reference)
    assert dict(ranked) == given
    values = [value for _, value in ranked]
    assert values == sorted(values, reverse=asked == 'most to fewest')
    counts.add(len(values))
  assert counts == {3, 4, 5}


@pytest.mark.parametrize(
  ('answer', 'right'),
  [
    ('First comes Ana with 30 cards.\nLast comes Ben with 4 cards.', True),
    (' Ana is ahead on 30 there.\nBen goes ending on four all told.\n', True),
    ('Last comes Ben with 4 cards.\nFirst comes Ana with 30 cards.', False),
    ('First comes Ana with 30 cards.\nLast comes Ben with 5 cards.', False),
    ('First comes Ana with 30 cards.', False),
    ('First comes Ana with 30 cards.\nLast comes Ben.', False),
    ('First comes Ana with 30 cards.\nLast Ben, then Ben with 4.', False),
    ('First comes Ana with thirty cards.\nLast comes Ben with 4.', False),
    ('First comes Ana with 30 cards.\nLast comes Ben with forty-four.', False),
    (f'First comes Ana with {"9" * 9999} cards.\nLast is Ben with 4.', False),
    ('First comes Ana with -30.5 cards.\n\n', False),
    ('', False),
    ('\n\n\n', False),
  ],
)
def test_rankings_are_judged_by_names_and_numbers(answer, right):
  reference = 'First comes Ana with 30 cards.\nLast comes Ben with 4 cards.'
  score = TASKS['rankings'].score(answer, reference)
  assert score == {'exact_match': float(right)}
