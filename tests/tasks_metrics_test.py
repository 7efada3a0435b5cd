"""Metrics of tasks, by name and as users give them: patterns, functions."""

import dataclasses
import sys
import types

import pytest

from experiments.guides import inventory
from experiments.tasks import METRICS, TASKS, TaskSpec, metric_specs
from experiments.tasks.answer_metrics import choice_letter


def _score(spec, answer, reference=''):
  metric = metric_specs.find(spec)
  return metric.row_quality(metric.score(answer, reference))


@pytest.mark.parametrize(
  ('letter', 'texts'),
  [
    ('A', ['Answer: (A)\nQuestion']),
    ('B', ['B', 'b) the second', 'B. It is.', 'Either (A) or (B), so (B)']),
    ('C', [' (c) because', 'First the answer is A. No, the answer is **C**.']),
    ('D', ['The answer is D']),
    (None, ['The answer is: Because', 'A dog runs', "I'm sure", '']),
  ],
)
def test_the_letter_that_an_answer_chooses(letter, texts):
  assert {choice_letter(text) for text in texts} == {letter}


def test_an_answer_is_one_value_of_json():
  for answer in (' {"a": [1, null]}\n', '3'):
    assert _score('json', answer) == 1
  others = 'NaN', '-Infinity', "{'a': 1}", '[' * 99_999, ''
  for answer in ('{"a": 1} and more', *others):
    assert _score('json', answer) == 0


def test_names_and_aliases():
  assert metric_specs.find('exact') is METRICS['exact_match']
  assert metric_specs.find('normalised_exact') is METRICS['short_answer']
  scored = _score('token_f1', 'the cat sat', ('a cat', 'dogs'))
  assert scored == pytest.approx(2 / 3)
  for spec in ('rogue2', 'rouge2:x', '', ':'):
    with pytest.raises(ValueError, match=r'^metric: .*module:function\.$|impo'):
      metric_specs.find(spec)


def test_a_pattern_matches_or_its_group_is_the_reference():
  assert _score('regex:^yes', 'yes, it is') == 1
  assert _score('regex:^yes', 'no') == 0
  assert _score(r'regex:is (\w+)', 'it is Mercury.', ('Venus', 'Mercury')) == 1
  assert _score(r'regex:(is|was) (?<answer>\w+)', 'it was b', 'b') == 1
  assert _score(r'regex:is(?: (\w+))?', 'it is', 'b') == 0
  assert metric_specs.find(r'regex:a(b)').needs_reference
  assert not metric_specs.find('regex:a').needs_reference
  for pattern in ('', '(', 'a{2,1}', '(?P<x'):
    with pytest.raises(ValueError, match=r'^metric: '):
      metric_specs.find(f'regex:{pattern}')


def test_a_pattern_of_exponential_time_is_stopped(monkeypatch):
  monkeypatch.setattr(metric_specs, '_TIMEOUT_S', 0.05)
  with pytest.raises(ValueError, match=r'^metric: .* took more than 0.05 s'):
    _score(r'regex:^(a|aa)+$', 'a' * 60 + 'b')


def _raise(error):
  raise error


# As a tensor of two numbers; an error whose text cannot be made.
_NO_NUMBER = type('Numbers', (), {'__float__': lambda _: 1 / 0})()
_SILENT = type('Silent', (Exception,), {'__str__': lambda _: 1 / 0})()
_RETURNED = {
  'good': lambda answer, reference: 0.25,
  'true': lambda answer, reference: answer == reference,
  'large': lambda answer, reference: 1.5,
  'nan': lambda answer, reference: float('nan'),
  'text': lambda answer, reference: '1',
  'nothing': lambda answer, reference: None,
  'broken': lambda answer, reference: 1 / 0,
  'short': lambda answer: 1,
  'bytes': lambda answer, reference: b'1',
  'tensor': lambda answer, reference: _NO_NUMBER,
  'silent': lambda answer, reference: _raise(_SILENT),
  'exit': lambda answer, reference: sys.exit(3),
}


def test_a_function_returns_a_number_from_0_to_1(monkeypatch, tmp_path):
  module = types.ModuleType('metrics_of_mine')
  vars(module).update(_RETURNED, number=3)
  monkeypatch.setitem(sys.modules, 'metrics_of_mine', module)
  assert _score('metrics_of_mine:good', 'a', 'b') == 0.25
  assert _score('metrics_of_mine:true', 'a', 'a') == 1
  for name in {*_RETURNED} - {'good', 'true'}:
    metric = metric_specs.find(f'metrics_of_mine:{name}')
    said = rf'^metric: metrics_of_mine:{name} wi'
    with pytest.raises(ValueError, match=said):
      metric_specs.check_first(metric, 'reference')
  vars(module)['stop'] = lambda answer, reference: _raise(KeyboardInterrupt())
  with pytest.raises(KeyboardInterrupt):
    _score('metrics_of_mine:stop', 'a')
  (tmp_path / 'exits.py').write_text('raise SystemExit(3)')
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ValueError, match=r"^metric: 'exits:f' .*SystemExit: 3"):
    metric_specs.find('exits:f')
  for spec, said in (('number', '.* of type int'), ('gone', 'cannot be imp')):
    with pytest.raises(ValueError, match=f'^metric: .* {said}'):
      metric_specs.find(f'metrics_of_mine:{spec}')


# Answers and references that every metric takes.
_ANSWERS = ('#### 12', 'twelve', '')
_REFERENCE = 'She has 3*4=12, the answer (B).\n#### 12'


@pytest.mark.parametrize('name', METRICS)
def test_a_metric_has_the_scores_that_it_declares(name):
  metric = METRICS[name]
  assert metric.help.endswith('.')
  assert len(metric.help) <= 72
  assert metric.score.__doc__
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
  for answer, references, quality in (
    ('', (right, right), 0),
    (right, ('other 5 (A)', right), 1),
  ):
    scores = metric.score(answer, references)
    assert metric.row_quality(scores) == pytest.approx(quality)


def test_every_metric_is_of_the_guide():
  assert all(f'`{name}`' in inventory.tasks() for name in (*TASKS, *METRICS))


def test_a_declaration_has_known_metrics_and_problems_from_one_place():
  with pytest.raises(ValueError, match=r"^metric: 'roug' is not .*'rouge'"):
    dataclasses.replace(TASKS['xsum'], metrics=('roug',))
  declared = dict(name='a', metrics=(), max_new_tokens=1)
  message = '^task: a must have either problem or source; give one'
  with pytest.raises(ValueError, match=message):
    TaskSpec(**declared)
  with pytest.raises(ValueError, match=message):
    TaskSpec(**declared, problem=print, source=TASKS['xsum'].source)
