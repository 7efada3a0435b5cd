"""Metrics of tasks: patterns, functions, and against their libraries."""

import dataclasses
import sys
import types
from decimal import Decimal

import inventory
import pytest
from sacrebleu.metrics import BLEU, CHRF

from experiments.tasks import METRICS, TASKS, answer_metrics


def _quality(metric, scores):
  return min(1.0, scores[metric.scores[0]] / metric.scale)


def _score(spec, answer, reference=''):
  metric = answer_metrics.find(spec)
  return _quality(metric, metric.score(answer, reference))


def test_names():
  scored = _score('squad', 'the cat sat', ('a cat', 'dogs'))
  assert scored == pytest.approx(2 / 3)
  for spec in ('rogue2', 'rouge2:x', '', ':', 'regex', 'regex:'):
    with pytest.raises(ValueError, match=r'^metric: .*module:function\.$|impo'):
      answer_metrics.find(spec)


@pytest.mark.parametrize(
  ('spec', 'answer', 'reference', 'score'),
  [
    ('regex:^yes', 'yes, it is', '', 1),
    ('regex:^yes', 'no', 'no', 0),
    (r'regex:is (\w+)', 'it is Mercury.', ('Venus', ' Mercury'), 1),
    (r'regex:(is|was) (?<answer>\w+)', 'it was b', 'b', 1),
    (r'regex:is(?: (\w+))?', 'it is', 'b', 0),
    ('json', ' {"a": [1, null]}\n', '', 1),
    ('json', '3', 'x', 1),
    *(
      ('json', text, text, 0)
      for text in ('NaN', '-Infinity', "{'a': 1}", '[' * 99_999, '', '{} and')
    ),
  ],
)
def test_patterns_and_json(spec, answer, reference, score):
  assert _score(spec, answer, reference) == score
  is_needed = answer_metrics.find(spec).needs_reference
  assert is_needed == ('(' in spec)


def test_a_pattern_that_cannot_be_used_is_one_sentence(monkeypatch):
  for text in ('(', 'a{2,1}', '(?P<x'):
    with pytest.raises(ValueError, match=r'^metric: .* is not a pattern'):
      answer_metrics.find(f'regex:{text}')
  monkeypatch.setattr(answer_metrics, '_TIMEOUT_S', 0.05)
  said = r'^metric: .* failed .*timed out.*it\.$'
  with pytest.raises(ValueError, match=said):
    _score(r'regex:^(a|aa)+$', 'a' * 60 + 'b')


# As a tensor of two numbers.
_NO_NUMBER = type('Numbers', (), {'__float__': lambda _: 1 / 0})()
_WRONG = {
  'large': lambda answer, reference: 1.5,
  'nan': lambda answer, reference: float('nan'),
  'text': lambda answer, reference: '1',
  'nothing': lambda answer, reference: None,
  'short': lambda answer: 1,
  'tensor': lambda answer, reference: _NO_NUMBER,
  'exit': lambda answer, reference: sys.exit(3),
}


def test_a_function_returns_a_number_from_0_to_1(monkeypatch):
  module = types.ModuleType('metrics_of_mine')
  vars(module).update(_WRONG, number=3, same=lambda x, y: x == y)
  monkeypatch.setitem(sys.modules, 'metrics_of_mine', module)
  assert _score('metrics_of_mine:same', 'a', 'a') == 1
  for name in _WRONG:
    said = rf'^metric: metrics_of_mine:{name} wi.* from 0 to 1\.$'
    with pytest.raises(ValueError, match=said):
      _score(f'metrics_of_mine:{name}', 'a')
  for spec, said in (('number', '.* of type int'), ('gone', 'cannot be imp')):
    with pytest.raises(ValueError, match=f'^metric: .* {said}'):
      answer_metrics.find(f'metrics_of_mine:{spec}')


# Answers and references that every metric takes.
_ANSWERS = ('#### 12', 'twelve', '')
_REFERENCE = 'She has 3*4=12, the answer (B).\n#### 12'


@pytest.mark.parametrize('name', METRICS)
def test_a_metric_has_the_scores_that_it_declares(name):
  metric = METRICS[name]
  assert metric.help.endswith('.')
  assert len(metric.help) <= 72
  right = _REFERENCE if metric.needs_reference else '[12]'
  best = metric.score(right, _REFERENCE)
  for answer in _ANSWERS:
    scores = metric.score(answer, _REFERENCE)
    assert tuple(scores) == metric.scores
    assert scores[metric.scores[0]] <= best[metric.scores[0]]
  assert best[metric.scores[0]] == pytest.approx(metric.scale)
  if metric.corpus:
    assert metric.corpus(best) == best[metric.scores[0]]
  if metric.signature:
    assert '|' in metric.signature()
  # Of a row, the quality is between 0 and 1, and one reference suffices.
  rows = ('', (right, right), 0), (right, ('other 5 (A)', right), 1)
  for answer, references, quality in rows:
    scores = metric.score(answer, references)
    assert _quality(metric, scores) == pytest.approx(quality)


def test_every_metric_is_of_the_guide():
  assert all(f'`{name}`' in inventory.tasks() for name in (*TASKS, *METRICS))


def test_a_task_has_known_metrics():
  with pytest.raises(ValueError, match=r"^metric: 'roug' is not .*'rouge'"):
    dataclasses.replace(TASKS['xsum'], metrics=('roug',))


@pytest.mark.parametrize(
  ('text', 'numbers'),
  [
    *(('1,234,567.50 and .5', '1234567.50 .5'), ('1, 2, 3', '1 2 3')),
    *(('-$1,200 or $-7 or \N{MINUS SIGN}3', '-1200 -7 -3'), ('none', '')),
    *(('5-3=2, (5)-3', '5 3 2 5 3'), ('10 - 3', '10 3'), ('4/0 is none', '')),
    *(('£4.20, 7% of 90 €, **12**', '4.20 7 90 12'), ('1,23', '1 23')),
    *(('48/2 clips, 3/4', '24 0.75'), ('The end is 12.', '12')),
  ],
)
def test_numbers_in_a_text(text, numbers):
  assert answer_metrics.numbers(text) == [Decimal(n) for n in numbers.split()]


@pytest.mark.parametrize(
  ('right', 'marked', 'answers'),
  [
    (1, 1, (' so 2 * 600 = 1200\n#### 1200', '#### $1,200.00')),
    (1, 1, ('####1200 dollars', '#### none, or 1200', '#### 1200\n\nOf 7.')),
    (1, 1, ('#### 1200\nQuestion: A?\nAnswer: 3\n#### 3',)),
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


@pytest.mark.parametrize(
  ('answer', 'reference', 'f1', 'exact'),
  [
    ('The  U.S.A., an A-side', 'usa aside', 1, 1),
    ("Émile  Zola's", 'émile zolas', 1, 1),
    ('in the old mill', ('old mill', 'mill'), 2 * 2 / 5, 0),
    *(('Mill mill', 'mill', 2 / 3, 0), ('the Mill.', ('barn', 'mill'), 1, 1)),
    *(('A', ('A',), 1, 1), ('B', ('A',), 0, 0), ('mill', (), 0, 0)),
  ],
)
def test_f1_counts_words_in_common(answer, reference, f1, exact):
  scores = METRICS['squad'].score(answer, reference)
  assert scores == {'f1': pytest.approx(f1), 'exact_match': exact}
  score = METRICS['short_answer'].score
  assert score(answer, reference) == {'exact_match': exact}


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


def test_scorers_are_the_libraries():
  pair = 'four hundred two', 'four hundred ten'
  for name, scorer in (('chrf', CHRF()), ('bleu', BLEU(effective_order=True))):
    want = scorer.sentence_score(pair[0], [pair[1]]).score
    metric = METRICS[name]
    assert metric.score(*pair)[metric.scores[0]] == pytest.approx(want)
    assert 0 < want < 100
  bleu = 'BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|'
  assert METRICS['bleu'].signature().startswith(bleu)


def test_an_answer_ends_at_the_first_stop():
  for stops, quality in ((('\n\n', '\n'), 1), (('\n\n',), 0), ((), 0)):
    task = dataclasses.replace(TASKS['roman'], stop_strings=stops)
    assert task.score('a\nb\n\nc', 'a') == {'exact_match': quality}
  assert task.score('a', 'a') == {'exact_match': 1}
