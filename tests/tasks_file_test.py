"""The task of a user's file: formats, fields, halves, damage and memory."""

import functools
import gzip
import hashlib
import http.server
import json
import pathlib
import random
import threading
import tracemalloc
from math import nan

import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

from cascades import Conversation
from configs import common
from experiments import records
from experiments.analysis import runs
from experiments.sweeps import plan
from experiments.tasks import (
  METRICS,
  Example,
  file_task,
  half_of,
  quality_metric,
)
from experiments.tasks.data_files import DataFile

_ROWS = [
  {'prompt': f'Prompt {i}:', 'reference': f'answer {i}', 'n': i}
  for i in range(20)
]


def _config(path, num_examples=1000, **fields):
  options = dict(tasks=('file',), num_examples=num_examples)
  config = common.sweep('file', 'task', 'chat', **options)
  task_fields = ('chat', 'split')
  with config.ignore_type(), config.unlocked():
    config.update({k: fields.pop(k) for k in task_fields if k in fields})
    config.file.update({'path': str(path)} | fields)
  return config


def _load(path, num_examples=1000, **fields):
  """The examples of a file, their provenance, and the task."""
  config = _config(path, num_examples, **fields)
  (task,) = plan.configured_tasks(config).values()
  return *plan.load_examples(config, task), task


def _write(path, rows=_ROWS) -> pathlib.Path:
  """Writes rows in the format of the name."""
  suffix = path.name.removesuffix('.gz').rpartition('.')[2]
  if suffix == 'parquet':
    pd.DataFrame(rows).to_parquet(path)
    return path
  text = ''.join(f'{json.dumps(row)}\n' for row in rows)
  if suffix == 'csv':
    text = pd.DataFrame(rows).to_csv(index=False)
  content = text.encode()
  path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)
  return path


_FORMATS = ('a.jsonl', 'a.jsonl.gz', 'a.csv', 'a.csv.gz', 'a.parquet')


@pytest.mark.parametrize('name', _FORMATS)
def test_all_formats_hold_the_same_examples(name, tmp_path):
  examples, data, task = _load(_write(tmp_path / name), metric='rouge2')
  assert [(x.prompt, x.reference) for x in examples] == [
    (row['prompt'], row['reference']) for row in _ROWS
  ]
  other, changed, _ = _load(_write(tmp_path / 'b.jsonl', _ROWS[::-1]))
  assert [x.id for x in examples] == [x.id for x in other[::-1]]
  assert task.name == 'file:rouge2'
  assert list(data) == ['shots', 'files', 'scorer', 'metric', 'scale']
  assert len(data['files'][name]) == 64
  # Of the unpacked file; of Parquet, of its rows.
  plain = _write(tmp_path / name.removesuffix('.gz')).read_bytes()
  is_parquet = name.endswith('parquet')
  is_of_file = data['files'][name] == hashlib.sha256(plain).hexdigest()
  assert is_of_file != is_parquet
  assert {*changed['files'].values()}.isdisjoint(data['files'].values())
  # A smaller number is a prefix, in the order of the file.
  assert _load(tmp_path / name, 7)[0] == examples[:7]


def test_files_are_read_from_a_server(tmp_path):
  handler = http.server.SimpleHTTPRequestHandler
  handler = functools.partial(handler, directory=str(tmp_path))
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
    serve = functools.partial(server.serve_forever, poll_interval=0.01)
    threading.Thread(target=serve, daemon=True).start()
    url = f'http://127.0.0.1:{server.server_port}'
    for name in _FORMATS:
      _write(tmp_path / name)
      examples, data, _ = _load(f'{url}/{name}?token=1')
      assert len(examples) == 20
      assert [*data['files']] == [name]
    with pytest.raises(ValueError, match=r'^data: gone.csv cannot be read'):
      _load(f'{url}/gone.csv?token=secret')
    server.shutdown()


def test_fields_are_mapped_and_numbers_are_texts(tmp_path):
  rows = [{'q': 'Six?', 'a': 6, 'k': 7}, {'q': 'Pi?', 'a': 3.5, 'k': 'x'}]
  path = _write(tmp_path / 'a.jsonl', rows)
  shots = _write(tmp_path / 'shots.jsonl', [{'q': 'Two?', 'a': '2'}] * 3)
  fields = dict(prompt='Question: {q}\nAnswer:', reference='#### {a}', id='k')
  more = dict(metric='final_number', shots=2, stop_strings=('\n',))
  fields['examples'] = str(shots)
  examples, data, task = _load(path, **more | fields)
  head = 'Question: Two?\nAnswer: #### 2\n\n' * 2 + 'Question: '
  assert examples == [
    Example(id='7', prompt=f'{head}Six?\nAnswer:', reference='#### 6'),
    Example(id='x', prompt=f'{head}Pi?\nAnswer:', reference='#### 3.5'),
  ]
  assert data['shots'] == 2
  assert [*data['files']] == ['examples shots.jsonl', 'a.jsonl']
  assert task.score(' it is 6\nmore 5', '#### 6')['exact_match'] == 1
  _, _, task = _load(path, **fields)
  assert task.stop_strings == ('\n\n',)


@pytest.mark.parametrize('name', ['a.jsonl', 'a.parquet'])
def test_several_references_or_none(name, tmp_path):
  rows = [{'prompt': 'a', 'reference': ['x', 'y', 'x', '']}]
  examples, _, task = _load(_write(tmp_path / name, rows), metric='exact_match')
  assert examples[0].reference == ('x', 'y')
  assert task.score('y', examples[0].reference) == {'exact_match': 1.0}
  rows = [{'prompt': 'a', 'reference': None}, {'prompt': 'b', 'reference': ' '}]
  examples, data, task = _load(_write(tmp_path / name, rows))
  assert [x.reference for x in examples] == [(), ()]
  assert task.name == 'file'
  assert task.quality_score is None
  assert 'scorer' not in data


def test_the_halves_are_splits_by_id(tmp_path):
  # The first bytes of these hashes are 0x5f, 0x6b and 0xd4.
  ids = {'0': 'report', '1': 'report', '2': 'choose'}
  assert {name: half_of(name) for name in ids} == ids
  assert half_of('\ud800') in {'choose', 'report'}
  path = _write(tmp_path / 'a.jsonl')
  parts = {split: _load(path, split=split)[0] for split in ('choose', 'report')}
  assert all(half_of(x.id) == half for half in parts for x in parts[half])
  assert sum(map(len, parts.values())) == 20
  with pytest.raises(ValueError, match=r'^split: must be one of all, ch'):
    _load(path, split='test')


def test_chats_are_conversations_with_the_last_answer_as_reference(tmp_path):
  turns = [('system', 'Be brief.'), ('user', 'Hi'), ('assistant', 'Hello')]
  messages = [{'role': role, 'content': text} for role, text in turns]
  path = _write(tmp_path / 'a.jsonl', [{'messages': messages}])
  (example,), *_ = _load(path, chat=True, metric='exact_match')
  assert example.prompt == Conversation(turns[:2])
  assert example.reference == 'Hello'
  assert records.loads(records.dumps(example), Example) == example
  with pytest.raises(ValueError, match=r'^data: .*set --config.chat=True'):
    _load(path)


def _jsonl(*rows):
  return '\n'.join(x if isinstance(x, str) else json.dumps(x) for x in rows)


_ROW = {'prompt': 'p', 'reference': 'r'}
_OTHER = _ROW | {'prompt': 'q'}
_HEAD = 'prompt,reference\n'
_DAMAGED = [
  ('jsonl', _jsonl(_ROW, '{"prompt": "a'), 'line 2, is damaged (Unterminated'),
  ('jsonl', _jsonl(_ROW, '', '[1]'), 'line 3, is not a JSON object'),
  ('jsonl', b'{"prompt": "\xff"}', 'line 1, is not UTF-8 text'),
  (
    *('jsonl', _jsonl({'question': 'p', 'reference': 'r'})),
    "line 1, has no field 'prompt', only 'question', 'reference'",
  ),
  ('jsonl', _jsonl('[' * 60_000 + ']' * 60_000), 'line 1, is nested too deep'),
  ('jsonl', '\n\n', ' has no rows of split all'),
  ('csv', f'\n{_HEAD}\n"p\nq",r\n\nx\n', 'line 7, must have 2 cells'),
  ('csv', f'{_HEAD}p,r\n"q,r\n', 'line 3, is damaged (unexpected'),
  ('csv', '\n \nprompt;prompt\np;r\n', 'line 3, names a column twice'),
  (
    *('jsonl.gz', gzip.compress(_jsonl(*_ROWS).encode())[:-12]),
    'line 20, cannot be read (Compressed file ended',
  ),
  ('parquet', _HEAD, ' cannot be read (Parquet magic bytes not'),
  ('txt', 'p', ' must end in .jsonl, .csv, .jsonl.gz, .csv.gz or'),
  *(
    ('jsonl', _jsonl(_OTHER, _ROW | fields), f'line 2, {sentence}')
    for fields, sentence in (
      ({'reference': None}, "has no field 'refer"),
      ({'prompt': ' \n'}, "has an empty 'prompt'"),
      ({'prompt': nan}, "has a field 'prompt' that is not a finite number"),
      ({'prompt': {'text': 'p'}}, "has a field 'prompt' that is not a text"),
      ({'reference': -1e999}, "has a field 'reference' that is not a finite"),
      ({'reference': ['r', nan]}, "has a field 'reference' that is not a list"),
      ({'id': 'x' * 201}, "has a field 'id' that is not a text of 1 to"),
    )
  ),
  (
    *('jsonl', _jsonl(_ROW | {'id': 7}, _OTHER | {'id': '7'})),
    "line 2, has the same id '7' as line 1",
  ),
]


@pytest.mark.parametrize(('suffix', 'content', 'sentence'), _DAMAGED)
def test_a_damaged_file_is_one_sentence(suffix, content, sentence, tmp_path):
  path = tmp_path / f'a.{suffix}'
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(ValueError, match=r'^data: .*\.$') as error:
    _load(path, metric='exact_match')
  separator = ', ' if sentence.startswith('line') else ''
  assert str(error.value).startswith(f'data: {path.name}{separator}{sentence}')


@pytest.mark.parametrize(
  ('reference', 'copy'),
  [
    ('r', {'prompt': ' p\n', 'reference': 'r '}),
    (None, {'prompt': 'p', 'reference': ''}),
    (['r', 's'], {'prompt': 'p', 'reference': ['s', 'r']}),
    ('r', {'messages': [('user', 'p'), ('model', 'r')]}),
  ],
)
def test_a_repeated_row_is_left_out(reference, copy, tmp_path, capsys):
  row, other = _ROW | {'reference': reference}, _ROW | {'reference': 'another'}
  rows = [x | {'id': i} for i, x in enumerate([row, copy, other, copy, row])]
  path = _write(tmp_path / 'a.jsonl', rows)
  assert [x.id for x in _load(path, chat=True)[0]] == ['0', '2']
  # Before the number of examples is taken.
  assert [x.id for x in _load(path, 2, chat=True)[0]] == ['0', '2']
  lines = capsys.readouterr().err.splitlines()
  counts = [x.partition(' rows repeat the prompt and')[0] for x in lines]
  assert counts == ['data: 3 of 5', 'data: 1 of 3']
  parts = [_load(path, split=x, chat=True)[0] for x in ('choose', 'report')]
  assert sorted(x.id for part in parts for x in part) == ['0', '2']


def test_a_row_that_is_a_worked_example_is_named(tmp_path):
  shots = _write(tmp_path / 'shots.jsonl', [_ROW | {'prompt': 'w'}, _ROW])
  rows = [_ROW | {'prompt': 'q'}, {'prompt': 'p\n', 'reference': 'another'}]
  path = _write(tmp_path / 'a.jsonl', rows)
  with pytest.raises(ValueError, match=r'^data: a.jsonl, line 2, is a worked'):
    _load(path, examples=str(shots))
  # Neither a row nor a worked example beyond those that are used.
  assert _load(path, 1, examples=str(shots))[0]
  assert len(_load(path, examples=str(shots), shots=1)[0]) == 2


def test_a_function_is_tried_before_anything_is_decoded(tmp_path, monkeypatch):
  (tmp_path / 'exiting.py').write_text('def f(*_): raise SystemExit(3)')
  monkeypatch.syspath_prepend(tmp_path)
  message = r'^metric: exiting:f with the answer .* \(SystemExit: 3\)'
  with pytest.raises(ValueError, match=message):
    _load(_write(tmp_path / 'a.jsonl'), metric='exiting:f')


@pytest.mark.parametrize('name', _FORMATS)
def test_changed_bytes_are_refused_or_read(name, tmp_path):
  content, rng = _write(tmp_path / name).read_bytes(), random.Random(name)
  sentences = set()
  for _ in range(150):
    changed = bytearray(content)
    for _ in range(rng.choice((1, 4, 40))):
      changed[rng.randrange(len(changed))] = rng.randrange(256)
    (tmp_path / name).write_bytes(changed)
    try:
      _load(tmp_path / name, metric='exact_match')
    except ValueError as error:
      sentences.add((type(error), str(error)))
  assert len(sentences) > 2
  assert {kind for kind, _ in sentences} == {ValueError}
  assert all(text.startswith('data: a.') for _, text in sentences)


@pytest.mark.parametrize('path', ['', 'gone.jsonl', 'nofs://a/b.jsonl?key=s3'])
def test_a_file_that_is_not_there_is_one_sentence(path, tmp_path):
  path = str(tmp_path / path) if path.startswith('gone') else path
  with pytest.raises(ValueError, match=r'^data: ') as error:
    _load(path)
  assert 's3' not in str(error.value)
  for own in (None, {'prompt': 'q'}):
    with pytest.raises(ValueError, match=r'^data: no file'):
      file_task({'file': own}).load()


def test_a_template_has_names_alone(tmp_path):
  path = _write(tmp_path / 'a.jsonl')
  for prompt in ('{a[0]}', '{a!r}', '{a:>99999999}', '{}', '{a', 'x {{}}'):
    with pytest.raises(ValueError, match=r'^file.prompt: .* must be the name'):
      _load(path, prompt=prompt)
  with pytest.raises(ValueError, match=r"has no field 'prompt\.__cl"):
    _load(path, prompt='{prompt.__class__}')


def test_a_column_of_a_parquet_file_has_a_name_of_its_own(tmp_path):
  columns, names = [['a'], ['b'], ['c']], ['prompt', 'reference', 'prompt']
  table = pyarrow.table([*map(pyarrow.array, columns)], names)
  parquet.write_table(table, tmp_path / 'a.parquet')
  with pytest.raises(ValueError, match=r'\(it names a column twice\); give'):
    _load(tmp_path / 'a.parquet')


@pytest.mark.parametrize('name', ['a.jsonl', 'a.csv', 'a.parquet'])
def test_no_more_is_read_than_is_needed(name, tmp_path):
  path = _write(tmp_path / name, _ROWS * 2)
  # The later rows repeat earlier ones.
  assert len(_load(path, 20)[0]) == len(_load(path, 21)[0]) == 20
  if name.endswith('parquet'):
    return
  with path.open('ab') as file:
    file.write(b'\xff{"\n' + b' ' * 10_000_000)
  assert len(_load(path, 20)[0]) == 20


@pytest.mark.parametrize('name', _FORMATS)
def test_rows_are_read_as_a_stream(name, tmp_path):
  rng = random.Random(0)
  # Texts that cannot be packed to nothing.
  rows = [{'prompt': rng.randbytes(200).hex()} for _ in range(20_000)]
  file = DataFile('data', str(_write(tmp_path / name, rows)))
  tracemalloc.start()
  before, count, used = pyarrow.total_allocated_bytes(), 0, 0
  for _ in file.rows():
    count += 1
    used = max(used, pyarrow.total_allocated_bytes() - before)
  used += tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert count == 20_000
  # The prompts alone are 8 MB.
  assert used < 8_000_000


def test_metrics_of_names_of_tasks():
  assert quality_metric('file:bleu').scale == 100
  assert quality_metric('file:os:system') is quality_metric('file') is None
  assert quality_metric('file:rouge1') is METRICS['rouge1']
  assert quality_metric('squad_v2') is METRICS['squad']
  assert quality_metric('lm_eval:x') is quality_metric('spec_bench') is None
  assert runs.is_corpus('file:bleu')
  assert not runs.is_corpus('file:chrf')
