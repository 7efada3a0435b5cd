"""Published sets: from their files and from the hub, whole and damaged."""

import gzip
import hashlib
import json
import pathlib
import re
import sys
import types

import pandas as pd
import pytest

from experiments.tasks import GENERATED, TASKS

_FOLDER = pathlib.Path(__file__).parent / 'data/tasks'
_NAMES = [name for name, task in TASKS.items() if task.source]


def fixture_of(name):
  """The file of a set; of a pair of files the first."""
  return str(min(_FOLDER.glob(f'{name}.*')))


def load(name, **options):
  if 'path' not in options:
    options['path'] = fixture_of(name)
  return list(TASKS[name].load(**options))


@pytest.mark.parametrize('name', _NAMES)
def test_references_score_full_and_other_answers_do_not(name):
  task = TASKS[name]
  if task.quality_score is None:
    assert task.score('anything', ()) == {}
    return
  full = 100 if task.corpus else 1
  for example in load(name):
    texts = example.reference
    for text in [texts] if isinstance(texts, str) else texts:
      said = f' {text}{task.stop_strings[0]} more'
      scores = task.score(said, example.reference)
      assert scores[task.quality_score] == pytest.approx(full)
    for wrong in ('', '\n', 'Something else entirely'):
      assert task.score(wrong, example.reference)[task.quality_score] == 0


@pytest.mark.parametrize('name', _NAMES)
def test_a_prompt_is_worked_examples_then_the_question(name):
  task = TASKS[name]
  bare = {e.id: e.prompt for e in load(name, shots=0)}
  heads = {e.prompt.removesuffix(bare[e.id]) for e in load(name)}
  assert all(question.endswith(':') for question in bare.values())
  (head,) = heads
  # One more shot is one more answer, and the same before it.
  assert head.endswith('\n\n') == bool(task.shots)
  first, question = min(bare.items())
  last = question.rpartition('\n')[2]
  assert head.count(f'\n{last} ') == task.shots
  if task.shots:
    fewer = {e.id: e.prompt for e in load(name, shots=task.shots - 1)}
    assert head.startswith(fewer[first].removesuffix(question))
  # Nothing that ends an answer is in a worked one.
  for worked in head.split('\n\n')[:-1]:
    answer = worked.partition(f'\n{last} ')[2]
    assert answer
    assert not [stop for stop in task.stop_strings if stop in answer]


@pytest.mark.parametrize('name', [*_NAMES, *GENERATED])
def test_unknown_splits_and_too_many_shots_are_named(name):
  path = None if name in GENERATED else fixture_of(name)
  with pytest.raises(ValueError, match=r"split: must be one of .* got 'dev'"):
    load(name, path=path, split='dev')
  said = f'task: {name} generates its problems'
  if path:
    said = f'shots: must be .* for {name}, got'
  for shots in (-1, 99):
    with pytest.raises(ValueError, match=said):
      load(name, path=path, shots=shots)
  if not path:
    with pytest.raises(ValueError, match=said):
      load(name, path='a.jsonl')
    assert load(name, path=None, shots=0, num_examples=1)


@pytest.mark.parametrize('name', _NAMES)
def test_a_seed_decides_the_order_and_nothing_else(name):
  orders = [[e.id for e in load(name, seed=seed)] for seed in range(6)]
  assert load(name, seed=3) == load(name, seed=3)
  assert len({tuple(order) for order in orders}) > 1
  assert len({frozenset(order) for order in orders}) == 1
  assert [e.id for e in load(name, seed=5, num_examples=1)] == orders[5][:1]


def test_a_row_that_is_a_worked_example_is_refused():
  path = str(_FOLDER / 'val.de')
  with pytest.raises(ValueError, match=r'^task.shots: row \d of .* is a wo'):
    load('multi30k_de_en', path=path)
  assert load('multi30k_de_en', path=path, shots=0)


def test_a_pair_of_files_may_be_packed_beside_its_worked_examples(tmp_path):
  name = 'multi30k_de_en'
  assert load(name, path=f'{_FOLDER}/{name}') == load(name)
  for stem in (name, 'val'):
    for end in ('en', 'de'):
      data = (_FOLDER / f'{stem}.{end}').read_bytes()
      (tmp_path / f'{stem}.{end}.gz').write_bytes(gzip.compress(data))
  for path in (name, f'{name}.de', f'{name}.en.gz'):
    assert load(name, path=str(tmp_path / path)) == load(name)
  damaged = tmp_path / f'{name}.en.gz'
  damaged.write_bytes(damaged.read_bytes()[:-9])
  with pytest.raises(ValueError, match=r'en\.gz, line \d+: Compressed'):
    load(name, path=str(damaged))
  (tmp_path / 'val.de.gz').unlink()
  with pytest.raises(ValueError, match='worked examples come from this file'):
    load(name, path=str(tmp_path / name))


def test_answers_to_captions_have_chrf_too():
  score = TASKS['multi30k_de_en'].score
  assert score(' A dog.', 'A dog.')['chrf'] == 100
  assert 20 < score(' A dot.', 'A dog.')['chrf'] < 80


def test_a_table_may_be_csv_parquet_or_lines(tmp_path):
  frame = pd.read_csv(_FOLDER / 'xsum.csv', dtype=str, keep_default_na=False)
  frame.to_parquet(tmp_path / 'test.parquet')
  (tmp_path / 'test.jsonl').write_text(
    '\n\n'.join(json.dumps(row) for row in frame.to_dict('records')),
    encoding='utf-8-sig',
  )
  want = load('xsum')
  for end in ('parquet', 'jsonl'):
    assert load('xsum', path=str(tmp_path / f'test.{end}')) == want


def _hub_rows(name, split):
  """The rows of a file in the shape of the hub's."""
  if name.startswith('multi30k'):
    stem = _FOLDER / (name if split == 'test' else 'val')
    sides = (
      stem.with_suffix(end).read_text(encoding='utf-8').splitlines()
      for end in ('.en', '.de')
    )
    return [{'en': en, 'de': de} for en, de in zip(*sides, strict=True)]
  if name == 'xsum':
    frame = pd.read_csv(_FOLDER / 'xsum.csv', dtype=str, keep_default_na=False)
    return frame.to_dict('records')
  text = pathlib.Path(fixture_of(name)).read_text(encoding='utf-8')
  return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
  'name', ['squad_v2', 'web_questions', 'trivia_qa', 'wmt14_en_de']
)
def test_a_parquet_table_may_have_objects_and_lists(name, tmp_path):
  path = tmp_path / 'test.parquet'
  pd.DataFrame(_hub_rows(name, 'test')).to_parquet(path)
  assert load(name, path=str(path)) == load(name)


@pytest.mark.parametrize('name', [n for n in _NAMES if n != 'spec_bench'])
def test_the_hub_gives_the_same_examples(name, monkeypatch):
  asked = []

  def load_dataset(*names, split, revision):
    asked.append((*names, split, revision))
    return _hub_rows(name, split)

  hub = types.SimpleNamespace(load_dataset=load_dataset)
  monkeypatch.setitem(sys.modules, 'datasets', hub)
  assert load(name, path=None) == load(name)
  source = TASKS[name].source
  # Worked examples may be of another split.
  splits = ['validation'] if name.startswith('multi30k') else []
  assert asked == [
    (source.hub, source.config, split, source.revision)
    for split in (*splits, source.splits['test'])
  ]
  (said,) = source.provenance(None).values()
  assert said.startswith(source.hub)


@pytest.mark.parametrize('name', _NAMES)
def test_without_a_hub_a_sentence_says_what_to_download(name, monkeypatch):
  def load_dataset(*names, **options):
    raise ConnectionError('no\nnetwork.')

  hub = types.SimpleNamespace(load_dataset=load_dataset)
  monkeypatch.setitem(sys.modules, 'datasets', hub)
  source = TASKS[name].source
  why = 'no network' if source.hub else 'it is not on the Hugging Face hub'
  said = (
    f'cannot be loaded ({why}); download {source.download} and give it with'
    ' --config.task.path='
  )
  with pytest.raises(ValueError, match=re.escape(said)):
    load(name, path=None)


_QUESTION = '{"id": "1", "question": "Q", "context": "C"'
# Of a set: texts of its file, and what is said of each.
_DAMAGED = {
  'gsm8k': {
    None: r'cannot be read \(No such file',
    '': 'has no rows',
    '{"question": "Q", "answer": "#### 1"}\n{"question": ': (
      r'2, is damaged \(Expecting value'
    ),
    '3': '1, is not an object',
    '\n{"question": "Q"}': "2, has no field 'answer'",
    '{"question": 3, "answer": ""}': "1, has a field 'question' that is",
    '{"question": " ", "answer": "#### 1"}': "1, has an empty 'question'",
    '{"question": "Q", "answer": "4\\n#### none"}': "an 'answer' without",
  },
  'natural_questions': {
    '{"question": "Q", "answer": "A"}': "'answer' that is not a list",
    '{"question": "Q", "answer": [1]}': "'answer' that is not a list of texts",
  },
  'squad_v2': {
    f'{_QUESTION}, "answers": []}}': "1, has a field 'answers' that is not an",
    f'{_QUESTION}, "answers": {{"text": []}}}}\n'
    * 2: "2, has the id '1' a sec",
    '{"data":\n': r'1, is damaged \(Expecting value: line 1',
  },
  'trivia_qa': {'{"question_id": "1", "question": "Q"}': "no field 'answer'"},
  'spec_bench': {
    '{"question_id": 1, "category": "qa", "turns": []}': "no text in 'turns'"
  },
}


@pytest.mark.parametrize(
  ('name', 'text', 'message'),
  [(name, *case) for name, cases in _DAMAGED.items() for case in cases.items()],
)
def test_a_damaged_file_is_named(name, text, message, tmp_path):
  path = tmp_path / 'file'
  if text is not None:
    path.write_text(text)
  with pytest.raises(ValueError, match=message) as e:
    load(name, path=str(path))
  assert str(e.value).startswith(f'path: {path}')
  assert str(e.value).count(str(path)) == 1
  assert str(e.value).endswith(f'; give {TASKS[name].source.download}.')


def test_tables_and_pairs_that_are_damaged_are_named(tmp_path):
  for name, text, said in (
    ('test.csv', 'a,b,1\nc,d,2,3\n', r'test\.csv cannot be read .*line 3'),
    ('test.csv', 'a,b,1\nc,,2\n', r"test\.csv, row 2, has an empty 'summ"),
    ('test.parquet', '', r'test\.parquet cannot be read'),
  ):
    path = tmp_path / name
    path.write_text(f'document,summary,id\n{text}')
    with pytest.raises(ValueError, match=said):
      load('xsum', path=str(path))
  (tmp_path / 'pair.en').write_text('One.\nTwo.\n')
  (tmp_path / 'pair.de').write_text('Eins.\n')
  with pytest.raises(ValueError, match=r'pair\.en has 2 lines and .*\.de 1;'):
    load('multi30k_de_en', path=str(tmp_path / 'pair'), shots=0)
  (tmp_path / 'pair.de').write_bytes(b'Eins.\nZw\xf6lf.\n')
  with pytest.raises(ValueError, match=r'pair\.de, line 2: it is not UTF-8'):
    load('multi30k_de_en', path=str(tmp_path / 'pair'), shots=0)


@pytest.mark.parametrize('name', _NAMES)
def test_a_file_is_known_by_its_hash(name):
  source = TASKS[name].source
  found = source.provenance(fixture_of(name))['files']
  assert set(found) == {p.name for p in _FOLDER.glob(f'{name}.*')}
  for file, said in found.items():
    assert said == hashlib.sha256((_FOLDER / file).read_bytes()).hexdigest()
  with pytest.raises(ValueError, match='cannot be read'):
    source.provenance('/nowhere/at/all')
