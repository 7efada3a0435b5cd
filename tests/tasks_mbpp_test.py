"""MBPP: what passes, and who must allow it; tasks_test.py pins the prompts."""

import itertools
import json
import pathlib
import sys

import pytest

from experiments.tasks import TASKS, sandbox
from experiments.tasks.task_spec import read_worked_examples

_PATH = pathlib.Path(__file__).parent / 'data/tasks/mbpp.jsonl'
_TASK = TASKS['mbpp']

pytestmark = pytest.mark.skipif(
  sys.platform != 'linux', reason='the sandbox needs Linux'
)


def _load(path=_PATH, **given):
  return list(_TASK.load(path=path, **{'allow_code_execution': True} | given))


@pytest.fixture(scope='module')
def examples():
  return {example.id: example for example in _load()}


def test_answers_that_are_shown_pass_their_tests():
  pairs = read_worked_examples('mbpp')
  assert len(pairs) == 3
  for question, answer in pairs:
    _, _, text = question.partition('must pass:\n')
    tests, _, _ = text.partition('\nAnswer:')
    outcome = sandbox.run(answer.removesuffix('```'), tests)
    assert outcome.passed, (question, outcome.output)


def test_references_pass_and_those_of_others_do_not(examples):
  passed, failed = ({'pass@1': right, 'stopped': 0.0} for right in (1.0, 0.0))
  texts = [e.reference for e in examples.values()]
  for one, other in itertools.pairwise(texts):
    assert _TASK.score(one, one) == passed
    assert _TASK.score(one, other) == failed
  assert _TASK.score(texts[-1], texts[-1]) == passed
  assert _TASK.score('', texts[-1]) == failed


def test_an_answer_ends_at_its_mark(examples):
  reference = examples['mbpp/test/11'].reference
  right = '\ndef smallest(a, b, c):\n  return sorted([a, b, c])[0]\n'
  for answer, passes in {
    right: 1.0,
    f'{right}```\n\nTask: Write more.\n': 1.0,
    f'{right}```\nraise ValueError': 1.0,
    f'{right}raise ValueError': 0.0,
    f'```{right}': 0.0,
    'def smallest(a, b, c): return a': 0.0,
    # The tests come after the program, and cannot be left out by it.
    'import sys\nsys.exit(0)': 0.0,
  }.items():
    assert _TASK.score(answer, reference)['pass@1'] == passes, answer


def test_a_program_that_does_not_end_is_told_from_a_wrong_one(
  examples, monkeypatch
):
  run = sandbox.run
  monkeypatch.setattr(sandbox, 'run', lambda *texts: run(*texts, timeout_s=0.5))
  reference = examples['mbpp/test/11'].reference
  scores = _TASK.score('while True: pass', reference)
  assert scores == {'pass@1': 0.0, 'stopped': 1.0}


def test_nothing_is_loaded_unless_code_may_be_run():
  for allowed in ({}, {'allow_code_execution': False}):
    said = '^task: mbpp runs the programs .*allow_code_execution=True'
    with pytest.raises(ValueError, match=said):
      next(_TASK.load(path=_PATH, **allowed))


def test_nothing_is_loaded_where_code_cannot_be_confined(monkeypatch):
  monkeypatch.setattr(sys, 'platform', 'win32')
  with pytest.raises(ValueError, match='sandbox: this machine cannot'):
    _load()


def test_a_damaged_row_is_named(tmp_path):
  lines = _PATH.read_text(encoding='utf-8').splitlines()
  path = tmp_path / 'mbpp.jsonl'
  for change, said in (
    ({'task_id': None}, "has a field 'task_id' that is not a number"),
    ({'test_list': []}, "has an empty 'test_list'"),
    ({'test_list': 'assert True'}, "has a field 'test_list' that is not a"),
    ({'code': ' '}, "has an empty 'code'"),
    ({'text': 3}, "has a field 'text' that is not a text"),
  ):
    row = json.dumps(json.loads(lines[1]) | change)
    path.write_text(f'{lines[0]}\n{row}', encoding='utf-8')
    with pytest.raises(ValueError, match=f'line 2, {said}'):
      _load(path)
  path.write_text(lines[0], encoding='utf-8')
  with pytest.raises(ValueError, match='has no test rows; give mbpp'):
    _load(path)
