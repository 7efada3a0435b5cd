"""Scores of answers, by hand and against the libraries that define them."""

from decimal import Decimal

import pytest

from experiments.tasks import METRICS, TASKS, final_numbers, short_answers, task
from experiments.tasks.task_spec import read_worked_examples


@pytest.mark.parametrize(
  ('text', 'numbers'),
  [
    ('1,234,567.50 and .5', '1234567.50 .5'),
    ('1, 2, 3', '1 2 3'),
    ('-$1,200 or $-7 or \N{MINUS SIGN}3', '-1200 -7 -3'),
    ('5-3=2, (5)-3', '5 3 2 5 3'),
    ('10 - 3', '10 3'),
    ('£4.20, 7% of 90 €, **12**', '4.20 7 90 12'),
    ('48/2 clips, 3/4', '24 0.75'),
    ('4/0 is none', ''),
    ('The end is 12.', '12'),
    ('1,23', '1 23'),
    ('none', ''),
  ],
)
def test_numbers_in_a_text(text, numbers):
  assert final_numbers.numbers(text) == [Decimal(n) for n in numbers.split()]


@pytest.mark.parametrize(
  ('right', 'marked', 'answers'),
  [
    (1, 1, (' so 2 * 600 = 1200\n#### 1200', '#### $1,200.00')),
    (1, 1, ('####1200 dollars', '#### none, or 1200')),
    (
      1,
      1,
      ('#### 1200\nQuestion: A?\nAnswer: 3\n#### 3', '#### 1200\n\nHe has 7.'),
    ),
    (0, 1, ('#### 1200.01', '#### -1200', '#### 12,00', '#### 1200/2')),
    # What stands on the line after the mark is not marked.
    (1, 0, ('She pays 1200', '1200 it is\n####', 'He has 7.\n####\n1200')),
    (1, 0, ['####\n7\nor 1200']),
    (0, 0, ('She pays 1200 for 2', '#### \n1200 and 7', 'twelve hundred', '')),
  ],
)
def test_gsm8k_compares_final_numbers(right, marked, answers):
  score = TASKS['gsm8k'].score
  for answer in answers:
    scores = score(answer, 'So 2*600=1200\n#### 1,200')
    assert scores == {'exact_match': right, 'marked': marked}, answer
  # To the last digit: as floats the two are the same.
  scores = score('#### 10000000000000000.2', '#### 10000000000000000.1')
  assert scores['exact_match'] == 0


def test_gsm8ks_worked_examples_are_right():
  assert len(read_worked_examples('gsm8k')) == 8
  for _, answer in read_worked_examples('gsm8k'):
    number, marked = final_numbers.final_number(answer)
    assert marked
    steps = [s for s in answer.split('\n')[:-1] if '=' in s]
    for step in steps:
      left, _, right = step.partition(' = ')
      expression = left.rstrip('0123456789+-*/. ')
      value = eval(left[len(expression) :], {})
      assert final_numbers.numbers(right)[0] == value
    assert final_numbers.numbers(steps[-1].partition('=')[2])[0] == number


def test_squads_normalisation():
  for text, normalised in (
    ('The  U.S.A.', 'usa'),
    ('an A-side, a "theme"', 'aside theme'),
    ('THE', ''),
    ("Émile  Zola's", 'émile zolas'),
  ):
    assert short_answers.normalise(text) == normalised


@pytest.mark.parametrize(
  ('answer', 'reference', 'f1', 'exact'),
  [
    ('in the old mill', ('old mill', 'mill'), 2 * 2 / 5, 0),
    ('Mill mill', 'mill', 2 / 3, 0),
    ('A', ('A',), 1, 1),
    ('B', ('A',), 0, 0),
    ('the Mill.', ('barn', 'mill'), 1, 1),
    ('mill', (), 0, 0),
  ],
)
def test_f1_counts_words_in_common(answer, reference, f1, exact):
  assert short_answers.f1(answer, reference) == pytest.approx(f1)
  assert short_answers.exact_match(answer, reference) == exact


def test_an_unanswerable_question_wants_that_word():
  wrong = dict.fromkeys(('unanswerable here', '', '1931'), 0)
  right = dict.fromkeys((' unanswerable', 'Unanswerable.\nQuestion: and?'), 1)
  for answer, score in (wrong | right).items():
    scores = TASKS['squad_v2'].score(answer, 'unanswerable')
    assert scores == {'f1': score, 'exact_match': score}
  # One that has an answer does not want it.
  scores = TASKS['squad_v2'].score('unanswerable', ('1931',))
  assert scores == {'f1': 0, 'exact_match': 0}


def test_rouge_counts_pairs_and_the_longest_common_sequence():
  # Pairs: (goat, elected) of 3 and of 2; sequence: goat elected mayor.
  score = METRICS['rouge'].score
  scores = score('goat was elected mayor', 'A goat elected mayor')
  assert scores['rouge2'] == pytest.approx(2 * (1 / 3) * (1 / 3) / (2 / 3))
  assert scores['rougeL'] == pytest.approx(3 / 4)
  # Words are compared by their stems.
  assert score('goats elect', 'goat elected')['rouge2'] == 1
  version, options = METRICS['rouge'].signature().split('|')
  assert (version[:12], options) == ('rouge-score:', 'stem:yes')
  bleu = 'BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|'
  assert METRICS['bleu'].signature().startswith(bleu)


def test_an_answer_ends_at_the_first_stop():
  assert task.truncate('a\nb\n\nc', ('\n\n', '\n')) == 'a'
  assert task.truncate('a\nb', ()) == 'a\nb'
  assert task.truncate('\nb', ('\n',)) == ''
