"""Authors tell the same problems, each in a manner of their own."""

import collections
import itertools
import random

import pytest

from experiments.tasks import GENERATED, TASKS, wording


def test_shares_are_those_of_the_author():
  plain = wording.shares('plain', 4)
  assert plain == pytest.approx([0.663, 0.191, 0.092, 0.055], abs=1e-3)
  assert wording.shares('ornate', 4) == plain[::-1]
  assert wording.shares('any', 4) == [0.25] * 4
  for author in wording.AUTHORS:
    assert sum(wording.shares(author, 5)) == pytest.approx(1)


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
    list(itertools.islice(TASKS[name].problems('train/0', author), 200))
    for author in ('plain', 'ornate')
  )
  for (key, prompt, one), (other_key, other_prompt, other) in zip(
    plain, ornate, strict=True
  ):
    assert (key, prompt) == (other_key, other_prompt)
    # Each is right by the other's book.
    assert TASKS[name].score(one, other)['exact_match'] == 1
    assert TASKS[name].score(other, one)['exact_match'] == 1


def test_authors_agree_on_few_answers_to_the_letter():
  plain, ornate = (
    [
      reference
      for _, _, reference in itertools.islice(
        TASKS['word_problems'].problems('train/0', author), 300
      )
    ]
    for author in ('plain', 'ornate')
  )
  same = sum(a == b for a, b in zip(plain, ornate, strict=True))
  assert same <= 3
