"""Generated problems, and published sets: whole and damaged."""

import hashlib
import itertools
import json
import re
import shutil
import sys
import types

import pandas as pd
import pytest
import small

from experiments.sweeps import plan
from experiments.tasks import TASKS
from experiments.tasks.data_files import DataFile
from experiments.tasks.task import split_of

_DATA = small.ROOT / 'tests/data'
# Hashes of every task's examples, by split.
_EXAMPLES = json.loads((_DATA / 'task_examples.json').read_text())
GENERATED = [name for name, x in TASKS.items() if x.problem]


@pytest.fixture(params=GENERATED)
def task(request):
  return TASKS[request.param]


def test_a_split_has_the_problems_that_their_keys_decide(task):
  problems = [*itertools.islice(task.problems('test/0'), 3000)]
  split = {prompt: split_of(key) for key, prompt, _ in problems}
  assert 0.03 < [*split.values()].count('test') / len(split) < 0.1
  examples = task.load(split='test', num_examples=20)
  assert {split[e.prompt] for e in examples} == {'test'}


def test_a_word_problem_wants_one_marked_number():
  wrong = '12', 'so #### 12 or #### 12', '#### 11\n#### 12', '#### twelve'
  wrong += '####\n12', '#### a hundred thousand million'
  wrong += f'#### 12/{"0" * 5000}', f'#### {"9" * 9999}'
  for answer in ('#### 12', '####12', *wrong):
    scored = TASKS['word_problems'].score(answer, 'then 3*4=12.\n#### 12')
    right = float(answer in ('#### 12', '####12'))
    assert scored == {'exact_match': right}, answer


def test_a_task_ends_with_its_last_problem():
  whole = list(TASKS['roman'].load(num_examples=None))
  assert len({e.prompt for e in whole}) == len(whole) == 506
  assert list(TASKS['roman'].load(num_examples=600)) == whole


def test_an_unknown_task_is_named_with_the_nearest():
  with pytest.raises(ValueError, match=r"^tasks: 'fil' .* mean 'file'\?"):
    plan.configured_tasks(small.config(tasks=('fil',)))


def _digest(values) -> str:
  text = json.dumps([*values], ensure_ascii=False)
  return hashlib.sha256(text.encode()).hexdigest()


def _examples(task, split):
  """The examples of a split as plain values: 300 of two seeds, or all."""
  path = task.source and fixture_of(task.name)
  for seed in (0, 1):
    for e in task.load(split=split, seed=seed, num_examples=300, path=path):
      yield [e.id, e.prompt, e.reference]


@pytest.mark.parametrize('name', _EXAMPLES)
def test_examples_stay_the_same_to_the_bit(name):
  task, want = TASKS[name], dict(_EXAMPLES[name])
  if task.problem:
    problems = [*itertools.islice(task.problems('any'), 1000)]
    assert _digest(problems) == want.pop('by plain')
  assert {split: _digest(_examples(task, split)) for split in want} == want


def test_every_task_has_hashes_of_its_examples():
  assert {*_EXAMPLES} == {*TASKS} - {'file'}
  for name in GENERATED:
    assert {'train', 'validation', 'test'} < {*_EXAMPLES[name]}


_FOLDER = _DATA / 'tasks'
_NAMES = [name for name, task in TASKS.items() if task.source]


def fixture_of(name):
  """The file of a set; None for generated problems."""
  return next(map(str, _FOLDER.glob(f'{name}.*')), None)


def _load(name, **options):
  return list(TASKS[name].load(**{'path': fixture_of(name)} | options))


@pytest.mark.parametrize('name', [*_NAMES, *GENERATED])
def test_references_score_full_and_other_answers_do_not(name):
  task = TASKS[name]
  if task.quality_score is None:
    assert task.score('anything', ()) == {}
    return
  full = task.metrics[0].scale
  for example in _load(name, num_examples=30):
    texts = example.reference
    for text in [texts] if isinstance(texts, str) else texts:
      rest = ''.join(f'{stop} more' for stop in task.stop_strings[:1])
      scores = task.score(f' {text}{rest}', example.reference)
      assert scores[task.quality_score] == pytest.approx(full)
    for wrong in ('', '\n', 'Something else entirely'):
      assert task.score(wrong, example.reference)[task.quality_score] == 0


@pytest.mark.parametrize('name', ['gsm8k', 'multi30k_de_en', 'numerals'])
def test_options_that_a_task_has_not_are_named(name):
  with pytest.raises(ValueError, match=r"split: must be one of .* got 'dev'"):
    _load(name, split='dev')
  said = f'task: {name} generates its problems'
  if name not in GENERATED:
    said = f'shots: must be .* for {name}, got'
  for options in (dict(shots=-1), dict(shots=99), dict(path='a.jsonl')):
    if name in GENERATED or 'shots' in options:
      with pytest.raises(ValueError, match=said):
        _load(name, **options)
  assert _load(name, shots=0, num_examples=1)


def test_worked_examples_are_rows_of_another_file(tmp_path):
  path = str(_FOLDER / 'val.jsonl')
  why = r'^path: val.jsonl, line 1, is a worked .* prompt; choose another split'
  with pytest.raises(ValueError, match=why):
    _load('multi30k_de_en', path=path)
  assert _load('multi30k_de_en', path=path, shots=0)
  path = shutil.copy(fixture_of('multi30k_de_en'), tmp_path / 'a.jsonl')
  with pytest.raises(ValueError, match=r'val.jsonl .*No such .*put the worked'):
    _load('multi30k_de_en', path=str(path))


def _hub_rows(name, split):
  """The rows of a file in the shape of the hub's."""
  is_worked = name.startswith('multi30k') and split == 'validation'
  path = str(_FOLDER / 'val.jsonl') if is_worked else fixture_of(name)
  return [row for _, row in DataFile('path', path).rows()]


@pytest.mark.parametrize('name', ['squad_v2', 'trivia_qa', 'wmt14_en_de'])
def test_a_parquet_table_may_have_objects_and_lists(name, tmp_path):
  path = tmp_path / 'test.parquet'
  pd.DataFrame(_hub_rows(name, 'test')).to_parquet(path)
  assert _load(name, path=str(path)) == _load(name)


@pytest.mark.parametrize('name', [n for n in _NAMES if n != 'spec_bench'])
def test_the_hub_gives_the_same_examples(name, monkeypatch):
  asked = []

  def load_dataset(*names, split, revision):
    asked.append((*names, split, revision))
    return _hub_rows(name, split)

  hub = types.SimpleNamespace(load_dataset=load_dataset)
  monkeypatch.setitem(sys.modules, 'datasets', hub)
  examples, data = TASKS[name].read()
  assert examples == _load(name)
  source = TASKS[name].source
  # Worked examples may be of another split.
  splits = ['validation'] if name.startswith('multi30k') else []
  assert asked == [
    (source.hub, source.config, split, source.revision)
    for split in (*splits, source.splits['test'])
  ]
  assert data['hub'].startswith(source.hub)


@pytest.mark.parametrize('name', ['xsum', 'spec_bench'])
def test_without_a_hub_a_sentence_says_what_to_download(name, monkeypatch):
  def load_dataset(*names, **options):
    raise ConnectionError('no\nnetwork.')

  hub = types.SimpleNamespace(load_dataset=load_dataset)
  monkeypatch.setitem(sys.modules, 'datasets', hub)
  source = TASKS[name].source
  why = 'no network' if source.hub else 'it is not on the Hugging Face hub'
  said = f'cannot be loaded ({why}); download and {source.advice} with --config'
  with pytest.raises(ValueError, match=re.escape(said)):
    _load(name, path=None)


_QUESTION = '{"id": "1", "question": "Q", "context": "C"'


@pytest.mark.parametrize(
  ('name', 'text', 'message'),
  [
    ('gsm8k', '', ' has no rows'),
    ('gsm8k', '{"question": " "}', ", line 1, has an empty 'question'"),
    (
      *('gsm8k', '{"question": "Q", "answer": "none"}'),
      ', line 1, has a reference that final_number cannot score',
    ),
    (
      *('natural_questions', '{"question": "Q", "answer": [{}]}'),
      ", line 1, has a field 'answer' that is not a list of texts",
    ),
    ('squad_v2', '{"question":"Q","context":" "}', ", line 1, has an empty '"),
    (
      *('squad_v2', f'{_QUESTION}, "answers": {{"text": []}}}}\n' * 2),
      ", line 2, has the same id '1' as line 1",
    ),
    ('trivia_qa', '{"answer": {"value": []}}', ", line 1, has a field 'answ"),
    (
      *('spec_bench', '{"question_id": 1, "category": "qa", "turns": []}'),
      ", line 1, has an empty 'question'",
    ),
  ],
)
def test_a_damaged_file_is_named(name, text, message, tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text(text)
  with pytest.raises(ValueError, match=r'^path: .*\.$') as e:
    _load(name, path=str(path))
  assert str(e.value).startswith(f'path: a.jsonl{message}')
