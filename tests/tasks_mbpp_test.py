"""MBPP: what the prompt shows, what passes, and who must allow it."""

import itertools
import json
import pathlib
import sys

import pytest

from experiments.tasks import TASKS, mbpp, sandbox

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


def test_the_ids_decide_the_split(examples):
  assert set(examples) == {f'mbpp/test/{i}' for i in (11, 12, 499, 510)}
  assert [e.id for e in _load(split='validation')] == ['mbpp/validation/511']
  assert [e.id for e in _load(split='train')] == ['mbpp/train/601']


def test_a_prompt_is_three_solved_tasks_and_the_tests_to_pass(examples):
  prompt = examples['mbpp/test/12'].prompt
  assert prompt.count('Task: ') == 4
  assert prompt.count('```') == 3 * 2 + 1
  assert prompt.endswith("""

Task: Write a python function to count the vowels of a word, the German Umlaute\
 ä, ö, ü included.
These tests must pass:
assert vowels("Übermut") == 3
assert vowels("Käse") == 2
assert vowels("") == 0
Answer:
```python""")
  (alone,) = _load(split='train', shots=0)
  assert alone.prompt.startswith('Task: ')
  assert alone.prompt.count('```') == 1
  # Neither the answer nor the tests that are not shown.
  assert 'sum(letter' not in prompt
  assert '0.25' not in examples['mbpp/test/11'].prompt


def test_answers_that_are_shown_pass_their_tests():
  for text, tests, code in mbpp._WORKED:
    outcome = sandbox.run(code, '\n'.join(tests))
    assert outcome.passed, (text, outcome.output)


def test_references_pass_and_those_of_others_do_not(examples):
  passed, failed = (
    {'pass@1': float(right), 'stopped': 0.0} for right in (True, False)
  )
  for example in examples.values():
    assert _TASK.score(example.reference, example.reference) == passed
  for one, other in itertools.pairwise(examples.values()):
    assert _TASK.score(one.reference, other.reference) == failed
  assert _TASK.score('', example.reference) == failed


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
  assert _TASK.score('while True: pass', reference) == {
    'pass@1': 0.0,
    'stopped': 1.0,
  }


@pytest.mark.parametrize('allowed', [{}, {'allow_code_execution': False}])
def test_nothing_is_loaded_unless_code_may_be_run(allowed):
  with pytest.raises(ValueError, match='allow_code_execution=True') as raised:
    next(_TASK.load(path=_PATH, **allowed))
  assert str(raised.value).startswith('task: mbpp runs the programs')


def test_nothing_is_loaded_where_code_cannot_be_confined(monkeypatch):
  monkeypatch.setattr(sys, 'platform', 'win32')
  with pytest.raises(ValueError, match='sandbox: this machine cannot'):
    _load()


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    ({'task_id': None}, "has a 'task_id' that is not a number"),
    ({'test_list': []}, "has an empty 'test_list'"),
    ({'test_list': 'assert True'}, "has a 'test_list' that is not a list"),
    ({'code': ' '}, "has an empty 'code'"),
    ({'text': 3}, "has a 'text' that is not text"),
  ],
)
def test_a_damaged_row_is_named(tmp_path, change, said):
  lines = _PATH.read_text(encoding='utf-8').splitlines()
  row = json.loads(lines[1]) | change
  path = tmp_path / 'mbpp.jsonl'
  path.write_text('\n'.join([lines[0], json.dumps(row)]), encoding='utf-8')
  with pytest.raises(ValueError, match=f'line 2, {said}'):
    _load(path)


def test_a_file_without_the_split_is_named(tmp_path):
  path = tmp_path / 'mbpp.jsonl'
  first = _PATH.read_text(encoding='utf-8').splitlines()[0]
  path.write_text(first, encoding='utf-8')
  with pytest.raises(ValueError, match='has no test rows; give mbpp'):
    _load(path)
