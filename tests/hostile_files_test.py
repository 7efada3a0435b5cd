"""Files from strangers: each is read, or refused in one sentence.

A table has what is done to a good file and what is said of it. A property of
each format: however a file is changed, it is read or refused, in bounded time
and memory, and nothing is written outside of its folder. `CASCADES_FUZZ=20000`
tries as many changes of each format.
"""

import contextlib
import copy
import functools
import gzip
import html
import json
import math
import operator
import os
import pathlib
import random
import re
import resource
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gguf_test
import launching
import numpy as np
import pytest
import report_test
import small

from cascades import drafters, files
from cascades.contrib.engine_audits import traces
from cascades.models import checkpoints, gguf_files, tensor_files, tokenizers
from experiments import records, sample, tasks
from experiments.analysis import runs
from experiments.reports import AnalysisConfig, write_report
from experiments.sweeps import workdirs

MODEL = checkpoints.ASSETS / 'tiny-drafter'
EXAMPLES = int(os.environ.get('CASCADES_FUZZ', '0'))
# Checks of annotations take 42 s where 9,999 layers are named.
SECONDS = 120 if os.environ.get('CASCADES_CHECK_TYPES') else 5
slow = pytest.mark.slow

# --- What must not happen ---

_WATCHED: dict[str, Any] = {'inside': None, 'written': []}
_WRITES = [f'os.{x}' for x in 'rename remove mkdir rmdir link symlink'.split()]
_WRITES += ['os.truncate', 'os.chmod', 'shutil.move', 'shutil.rmtree']


def _watch(event: str, arguments: tuple) -> None:
  """Notes what is written outside of a folder, but for JAX's cache."""
  is_written = event in _WRITES
  if event == 'open':
    is_written = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
  if _WATCHED['inside'] is None or not is_written:
    return
  cache = os.path.realpath(os.environ['JAX_COMPILATION_CACHE_DIR'])
  for path in arguments[: 1 if event == 'open' else 2]:
    if isinstance(path, str | bytes | os.PathLike):
      path = os.path.realpath(os.fsdecode(path))
      allowed = f'{_WATCHED["inside"]}/', f'{cache}/', '/dev/'
      if not f'{path}/'.startswith(allowed):
        _WATCHED['written'].append((event, path))


@contextlib.contextmanager
def confined(folder: pathlib.Path) -> Iterator[None]:
  """Limits time and memory, and lets nothing be written outside of a folder."""
  if 'hooked' not in _WATCHED:
    sys.addaudithook(_watch)
    _WATCHED['hooked'] = True
  before = resource.getrlimit(resource.RLIMIT_AS)
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
  most = pages * resource.getpagesize() + 500 * 2**20
  _WATCHED.update(inside=os.path.realpath(folder), written=[])
  start = time.monotonic()
  resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_AS, before)
    _WATCHED['inside'] = None
  assert not _WATCHED['written']
  assert time.monotonic() - start < SECONDS


# --- Good files ---


def copied(name: str) -> Callable[[pathlib.Path], Any]:
  """Returns a function that copies a fixture's or a bundled folder."""
  source = small.FIXTURES / name
  source = source if source.exists() else checkpoints.ASSETS / name
  return lambda folder: shutil.copytree(source, folder)


def make_gguf(folder: pathlib.Path) -> None:
  folder.mkdir()
  gguf_test.written(folder, 'tiny-drafter').rename(folder / 'x.gguf')


def make_tokenizer_json(folder: pathlib.Path) -> None:
  folder.mkdir()
  fields = gguf_test.as_json(tokenizers.read(MODEL / 'tokenizer.model'))
  (folder / 'tokenizer.json').write_text(json.dumps(fields))


def make_lines(folder: pathlib.Path) -> None:
  """Makes files of lines: a record, and traces of engines."""
  folder.mkdir()
  record = report_test.make_record('sums', 'speed', 0.5, 0)
  records.write(folder / 'record.jsonl', [record])
  block = dict(q=[[0.25, 0.75]], drafts=[0], tokens=[0, 1])
  block['p'] = [{'tokens': [0], 'probs': [0.5], 'rest': 0.5}, [0.5, 0.5]]
  answer = dict(ids=[0, 1], sources=['draft', 3], w=[0.5, None])
  (folder / 'answers.jsonl').write_text(json.dumps(answer))
  text = (json.dumps(block) + '\n').encode()
  (folder / 'blocks.jsonl').write_bytes(text)
  (folder / 'blocks.jsonl.gz').write_bytes(gzip.compress(text * 9, mtime=0))


def make_workdir(path: pathlib.Path, method: str = 'speed') -> pathlib.Path:
  """Makes a workdir of one task: models alone, a method at two leniences."""
  points = [(f'{x}_only', math.nan) for x in ('verifier', 'drafter')]
  points += [(method, 0.0), (method, 0.5)]
  lines = [
    report_test.make_record('sums', *point, example)
    for point in points
    for example in range(4)
  ]
  return report_test.make_workdir(path, lines)


def report(workdir) -> pathlib.Path:
  return write_report(runs.read(workdir), AnalysisConfig(resamples=5))


# --- The table: what is done to a folder, and what is said of it ---


def _damage(function):
  """Returns the damage to a folder, by the other arguments of a function."""
  return lambda *args, **fields: (
    lambda folder: function(folder, *args, **fields)
  )


@_damage
def _drop(folder, name):
  (folder / name).unlink()


@_damage
def _bytes(folder, name, change):
  (folder / name).write_bytes(change((folder / name).read_bytes()))


@_damage
def _pipe(folder, name):
  (folder / name).unlink(missing_ok=True)
  os.mkfifo(folder / name)


@_damage
def _fields(folder, file, /, **changes):
  """Changes fields of a JSON file; `...` removes one."""
  path = folder / file
  fields = json.loads(path.read_text()) if path.exists() else {}
  fields = {k: x for k, x in (fields | changes).items() if x is not ...}
  path.write_text(json.dumps(fields))


@_damage
def _index(folder, name, file):
  """Maps a tensor to a file in a folder's index."""
  names = small.read_json(folder / tensor_files.INDEX)['weight_map']
  _fields(tensor_files.INDEX, weight_map=names | {name: file})(folder)


@_damage
def _tensor(folder, name, change):
  """Replaces a tensor by change(tensor); drops it where that is None."""
  small.rewrite(folder, tensors={name: change(small.stored(folder)[name])})


@_damage
def _quantised(folder, part, kind):
  """Gives a matrix another type, and a part of another name."""
  tensors = {MATRIX: np.ones(1), f'{MATRIX}{part}': np.ones((48, 1), np.int32)}
  small.rewrite(folder, tensors=tensors)
  small.as_type(folder / 'model.safetensors', MATRIX, kind, (48, 3))


_in_gguf = functools.partial(_bytes, 'x.gguf')


def _at(name, skip, value):
  """Writes bytes into a GGUF file, so far from the end of a name."""

  def change(data):
    at = data.index(name) + len(name) + skip
    return data[:at] + value + data[at + len(value) :]

  return _in_gguf(change)


def _alignment(kind, value):
  # The library refuses to write these.
  head = b'GGUF' + struct.pack('<IQQQ', 3, 0, 1, 17) + b'general.alignment'
  return _in_gguf(lambda data: head + struct.pack('<I', kind) + value)


@_damage
def _gguf_field(folder, name, change):
  """Changes a field of a GGUF file; drops it where change(value) is None."""

  def changed(fields):
    kinds, value = fields.pop(name)
    if (value := change(value)) is not None:
      fields[name] = kinds, value

  gguf_test.rewritten(folder / 'x.gguf', changed).replace(folder / 'x.gguf')


@_damage
def _record(folder, field, value):
  """Changes the last record of a workdir."""
  path = folder / 'records/all.jsonl'
  *lines, last = path.read_text().splitlines()
  changed = json.dumps(json.loads(last) | {field: value})
  path.write_text('\n'.join((*lines, changed)) + '\n')


@_damage
def _traces(workdir, skip=0, **changes):
  """Leaves the first traces out, and changes fields of the others."""
  lines = records.read_traces(workdir, 'all')[skip:]
  fields = [json.loads(records.dumps(line)) | changes for line in lines]
  text = ''.join(json.dumps(f) + '\n' for f in fields)
  (workdir / 'traces/all.jsonl.gz').write_bytes(gzip.compress(text.encode()))


def _asked(workdir, ids='0123', prompt='p') -> None:
  asked = [tasks.Example(id=x, prompt=prompt, reference='r') for x in ids]
  records.write(workdir / 'examples/sums.jsonl', asked)


DEEP = '{"a": ' + '[' * 60_000 + ']' * 60_000 + '}\n'
TO_DEEP = functools.partial(_bytes, change=lambda data: DEEP.encode())
CONFIG, RECORDS, INDEX = 'config.json', 'records/all.jsonl', tensor_files.INDEX
NORM, MATRIX = 'model.norm.weight', 'model.layers.1.self_attn.q_proj.weight'
SHARD = 'model-00002-of-00004.safetensors'
_NO_FIELDS = dict(data={'sums': 3}, curves=5, name={}, points=[5])
CUT, DAMAGED = 'is cut short or damaged (', 'has a damaged tokenizer; fetch'
OF_GGML = 'tokenizer.ggml'
TABLE = {
  'model': [
    (_drop(CONFIG), 'no config.json'),
    (TO_DEEP(CONFIG), 'nested too deeply'),
    (_fields(CONFIG, model_type='llama'), "model_type 'llama'"),
    (_fields(CONFIG, vocab_size=60), 'a tokenizer of 64 pieces'),
    # As many layers as are believed without the tensors; and too few.
    *(
      (_fields(CONFIG, num_hidden_layers=n, layer_types=...), f'the {n} layers')
      for n in (9_999, 1)
    ),
    (_bytes(INDEX, lambda data: b'{"a": 1}'), f'{INDEX}: '),
    (_index(NORM, SHARD), f'{SHARD} lacks the tensor {NORM}, though model.'),
    (_index(NORM, '../x.st'), "norm.weight' must name a file beside it, got"),
    (_index(f'language_model.{NORM}', SHARD), f'has the tensor {NORM} twice'),
    (_drop(INDEX), 'model.safetensors is missing; fetch it again'),
    (_drop(SHARD), f'{SHARD} is missing'),
    # Nothing; some of the numbers.
    (_bytes(SHARD, lambda data: b''), SHARD),
    (_bytes(SHARD, lambda data: data[:30_000]), SHARD),
    (_drop('tokenizer.model'), 'tokenizer.model is missing, damaged'),
    *(
      (_pipe(name), 'not a regular file')
      for name in (CONFIG, SHARD, 'tokenizer.model', INDEX)
    ),
    (_tensor(NORM, lambda t: None), f'lacks the tensor {NORM}'),
    # Of bitsandbytes, and float8.
    (_quantised('.absmax', 'U8'), 'q_proj.weight is quantised (U8)'),
    (_quantised('.SCB', 'I8'), 'fetch the model before quantisation, or'),
    (_quantised('_scale', 'F8_E4M3'), 'q_proj.weight is quantised (F8_E4M3)'),
    (_tensor(NORM, lambda t: np.tile(t, 2)), f'{NORM} has the shape (64,)'),
    # As many numbers as asked for, in the wrong order.
    (_tensor(MATRIX, lambda t: t.T), f'{MATRIX} has the shape (32, 48)'),
  ],
  'gguf': [
    (_in_gguf(lambda data: b'PK\3\4 and more'), 'is not a GGUF file of vers'),
    (_in_gguf(lambda data: b'GGUF\4' + bytes(99)), 'GGUF file of version 2 o'),
    *(
      (_in_gguf(lambda data, size=size: data[:size]), CUT)
      for size in (8, 20, 60, 500, 20_000, -9000)
    ),
    # The length of the first name.
    *((_at(b'', 24, struct.pack('<Q', 2**x)), CUT) for x in (40, 62, 63)),
    (_alignment(4, bytes(4)), CUT),
    (_alignment(8, struct.pack('<Q', 4) + b'many'), CUT),
    (_at(b'blk.1.ffn_up.weight', 20, b'M\0\0\0'), "ffn_up.weight' of type 77"),
    (_at(b'blk.0.attn_v', -1, b'q'), "tensor 'blk.0.attn_q.weight' is twice"),
    (_at(b'ggml.bos_token_id', -12, b'e'), "ggml.eos_token_id' is twice"),
    *(
      (_gguf_field(name, change), said)
      for name, change, said in (
        ('general.architecture', lambda x: 'x' * 10**6, 'unsupported archit'),
        (f'{OF_GGML}.model', lambda x: 'gpt2', "be 'llama', got 'gpt2'"),
        ('gemma3.attention.key_length', lambda x: None, 'length is missing'),
        ('gemma3.block_count', lambda x: 9_999, 'not have the 9999 layers'),
        (f'{OF_GGML}.token_type', lambda x: [*x[:9], 0, *x[10:]], DAMAGED),
        (f'{OF_GGML}.tokens', lambda x: [*x[:-1], x[-2]], DAMAGED),
      )
    ),
  ],
  'workdir': [
    *(
      (_record(field, value), f'{RECORDS}:16: damaged record')
      for field, *values in (
        *(('emitted', '3', None, -1, 10**10, 1.5), ('examined', -5, 'x')),
        *(('verifier_calls', -1), ('gamma', None)),
        *(('id', 5, {'a': 1}), ('task', []), ('text', 5), ('ended', 'no')),
        *(('verification', 5), ('drafts', None), ('quality', 10**400)),
        *(('lenience', 10**400), ('failure', {}), ('scores', [1])),
      )
      for value in values
    ),
    *(
      (_fields(CONFIG, **{name: value}), f'config.json: {name}')
      for name, value in _NO_FIELDS.items()
    ),
    (_fields('provenance.json', starts=[{'code': 1}]), 'provenance.json: star'),
    *((TO_DEEP(name), name) for name in (CONFIG, RECORDS)),
  ],
  'page': [
    # What disagrees is left out of a page, which says so.
    (_traces(sources=[99, 1, 1]), 'sources.0 must be'),
    (_traces(skip=12), 'has no trace'),
    (functools.partial(_asked, ids='x'), 'there is no example 0'),
    # No value ends a page; nor do settings that nobody reads, however deep.
    *((_record('quality', x), '') for x in (1e308, -1e308, 1e-320)),
    (_fields(CONFIG, extra=json.loads('[' * 400 + '1' + ']' * 400)), ''),
  ],
}


def refusal(read, folder) -> str:
  """Returns the sentence in which reading a folder is refused."""
  with pytest.raises(ValueError, match=': ') as error:
    read(folder)
  message = str(error.value)
  assert str(folder) in message
  assert '. ' not in message.replace(str(folder), '')
  return message


def notices(folder) -> str:
  """Returns what a page says that it leaves out."""
  page = report(folder).read_text(encoding='utf-8')
  marked = re.findall('<p class="notice">(.*?)</p>', page)
  assert all(line.startswith('Left out: ') for line in marked)
  assert ('<article' in page) == (not marked)
  return html.unescape(' '.join(marked))


def load_model(folder) -> Any:
  file = folder / 'x.gguf'
  return checkpoints.load_model(file if file.exists() else folder)


def _confined_load(folder) -> str:
  with confined(folder.parent):
    return refusal(load_model, folder)


# By name: makes a good folder, reads it, and returns what is said of another.
MADE = {
  'model': (copied('hf_gemma2'), load_model, _confined_load),
  'gguf': (make_gguf, load_model, _confined_load),
  'workdir': (make_workdir, report, functools.partial(refusal, report)),
  'page': (make_workdir, report, notices),
}


@pytest.fixture(scope='module')
def good(tmp_path_factory):
  """Returns a good folder of each kind, which was read once."""

  @functools.cache
  def make(kind):
    folder = tmp_path_factory.mktemp(kind) / kind
    for call in MADE[kind][:2]:
      call(folder)
    return folder

  return make


@pytest.mark.parametrize(
  ('kind', 'damage', 'said'),
  [
    pytest.param(
      *(kind, damage, said),
      marks=slow if kind in ('workdir', 'page') else (),
      id=f'{kind}-{i}-{said[:24]}',
    )
    for kind, rows in TABLE.items()
    for i, (damage, said) in enumerate(rows)
  ],
)
def test_a_hostile_file_is_one_sentence(good, tmp_path, kind, damage, said):
  folder = shutil.copytree(good(kind), tmp_path / 'folder')
  damage(folder)
  message = MADE[kind][2](folder)
  assert said in message
  assert '\n' not in message
  assert len(message) < 1000


# --- The property of a format ---

ODD = (
  *(None, True, False, -2, -1, 0, 1, 3, 2**31 - 1, 2**31, 2**63, -(2**63)),
  *(10**30, 10**400, 0.5, -0.0, 1e-320, 1e308, math.nan, math.inf, -math.inf),
  *('', '1', 'x' * 10_000, '../x', '\x1b[2J', '\ud800', '\0', '\u202e'),
  *([], {}, [1], [[]], {'a': 1}, [None] * 1000),
  # Stand for as many lists in each other, which Python's own writer cannot say.
  *('<100 lists>', '<100000 lists>'),
)


def _places(value: Any, above: tuple = ()) -> Iterator[tuple]:
  """Yields the path of every value within a value of JSON."""
  yield above
  if isinstance(value, dict | list):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
      yield from _places(inner, (*above, key))


def changed_json(draw: random.Random, data: bytes) -> bytes:
  """A text of JSON in which some values are others, gone or new."""
  value = json.loads(data)
  for _ in range(draw.randint(1, 3)):
    *above, last = draw.choice([*_places(value)][1:] or [('new',)])
    inner = functools.reduce(operator.getitem, above, value)
    kind = draw.choice(['other', 'gone', 'new'])
    if kind == 'gone':
      inner.pop(last, None) if isinstance(inner, dict) else inner.pop(last)
    elif kind == 'new' and isinstance(inner, dict):
      inner[chr(draw.randrange(0xD800))] = copy.deepcopy(draw.choice(ODD))
    else:
      inner[last] = copy.deepcopy(draw.choice(ODD))
  lists = lambda found: '[' * int(found[1]) + ']' * int(found[1])  # noqa: E731
  return re.sub(r'"<(\d+) lists>"', lists, json.dumps(value)).encode()


def changed_bytes(draw: random.Random, data: bytes) -> bytes:
  """Bytes of which some are others, gone or new, among the first of them."""
  data = bytearray(data)
  for _ in range(draw.randint(1, 4)):
    at = draw.randrange(min(2**16, len(data)))
    number = draw.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
    # Bytes, and the number of those that they replace.
    new, size = draw.choice(
      [
        (bytes([data[at] ^ 1 << draw.randrange(8)]), 1),
        (bytes([draw.choice([0, 1, 127, 128, 255])]), 1),
        (number.to_bytes(8, 'little'), 8),
        (draw.randbytes(draw.randint(1, 9)), 0),
        (b'', len(data) if at else 0),
      ]
    )
    data[at : at + size] = new
  return bytes(data)


def load_drafter(folder: pathlib.Path) -> Any:
  return drafters.load(str(folder))


def read_gguf(folder: pathlib.Path) -> Any:
  file = gguf_files.read_header(folder / 'x.gguf')
  return gguf_files.read_config(file), gguf_files.read_tokenizer(file)


_READ_TENSORS, _WEIGHTS = tensor_files.open_folder, 'model.safetensors'
_GEMMAS = 'hf_gemma2 hf_gemma3 hf_gemma3n hf_gemma4_dense'.split()
_GEMMAS += ['hf_gemma4_experts', 'hf_gemma4_shared']
_DRAFTERS = 'hf_gemma4_dense_assistant', 'eagle3_apart'
_FILES = [
  (make_tokenizer_json, 'tokenizer.json', tokenizers.from_json),
  ('tiny-drafter', 'tokenizer.model', tokenizers.read),
  (make_lines, 'record.jsonl', records.read),
  (make_lines, 'blocks.jsonl', lambda file: [*traces.read(file)]),
  (make_lines, 'answers.jsonl', traces.check_answers),
  (make_lines, 'blocks.jsonl.gz', lambda file: [*traces.read(file)]),
]
# The maker or the name of a folder, a file in it, and what reads that; which is
# tried with one in so many changes, where it reads to the end and takes longer.
FORMATS = [
  *((name, CONFIG, checkpoints.read_config, 1) for name in _GEMMAS),
  *((name, CONFIG, load_model, 40) for name in _GEMMAS),
  *((name, CONFIG, load_drafter, 1) for name in _DRAFTERS),
  ('tiny-recurrent', 'head.json', load_drafter, 1),
  ('tiny-drafter', 'generation_config.json', load_model, 1),
  ('hf_gemma2', INDEX, _READ_TENSORS, 1),
  ('tiny-drafter', _WEIGHTS, _READ_TENSORS, 1),
  ('tiny-drafter', _WEIGHTS, load_model, 40),
  (make_gguf, 'x.gguf', read_gguf, 1),
  (make_gguf, 'x.gguf', load_model, 40),
  *(
    (make, name, lambda folder, x=name, read=read: read(folder / x), 1)
    for make, name, read in _FILES
  ),
]


@slow
@pytest.mark.parametrize(('make', 'name', 'read', 'one_in'), FORMATS)
def test_a_changed_file_is_read_or_refused(tmp_path, make, name, read, one_in):
  make, folder = copied(make) if isinstance(make, str) else make, tmp_path / 'f'
  make(folder)
  file = folder / name
  data = file.read_bytes()
  change = changed_json if file.suffix[:5] == '.json' else changed_bytes
  # As it is, it will do.
  read(folder)
  for seed in range(max(5, (EXAMPLES or 300) // one_in)):
    file.write_bytes(change(random.Random(seed), data))
    with confined(tmp_path):
      message = 'model: read'
      try:
        read(folder)
      except (ValueError, OSError) as error:
        message = str(error)
    assert ': ' in message, seed
    assert '\n' not in message, seed
    assert len(message) < 1000, seed


# --- Files that name other files ---


@pytest.mark.parametrize('ring', [('one',), ('one', 'other')])
def test_models_that_share_a_table_in_a_ring_are_refused(tmp_path, ring):
  for name, owner in zip(ring, (*ring[1:], ring[0]), strict=True):
    shutil.copytree(MODEL, tmp_path / name)
    fields = {'verifier': str(tmp_path / owner), 'checksum': '0'}
    _fields('reduced.json', **fields)(tmp_path / name)
  assert str(tmp_path) in small.refused(tmp_path / 'one')


# What meets a link may refuse it.
refusing = contextlib.suppress(ValueError, OSError)


@slow
def test_a_report_writes_nothing_that_its_figures_point_at(tmp_path):
  outside = tmp_path / 'mine.txt'
  outside.write_text('precious')
  workdir = make_workdir(tmp_path / 'run')
  report(workdir)
  figures = list((workdir / 'report/figures').iterdir())
  assert {path.suffix for path in figures} == {'.png', '.svg'}
  for path in figures:
    path.unlink()
    path.symlink_to(outside)
  with refusing:
    report(workdir)
  assert outside.read_bytes() == b'precious'


def test_a_sweep_touches_nothing_that_its_folders_point_at(tmp_path):
  outside, workdir = tmp_path / 'docs', tmp_path / 'run'
  outside.mkdir()
  workdir.mkdir()
  (outside / 'notes.jsonl').write_text('precious')
  (workdir / 'records').symlink_to(outside)
  with refusing:
    workdirs.Workdir(workdir)
  assert (outside / 'notes.jsonl').read_text() == 'precious'


# --- Terminals and pages ---

HOSTILE = '\x1b]0;title\x07\x1b[2J'


@slow
def test_an_error_writes_no_escape_sequences(tmp_path):
  folder = shutil.copytree(MODEL, tmp_path / 'model')
  _fields(INDEX, weight_map={'a': f'{HOSTILE}.safetensors'})(folder)
  flags = f'--verifier={folder}', '--prompt=a'
  done = launching.run('experiments.sample', *flags)
  assert done.returncode == 2
  assert done.stderr.startswith('error: model: ')
  assert not {'\x1b', '\x07'} & set(done.stderr)


@pytest.mark.parametrize('colour', [False, True])
def test_a_painted_answer_holds_no_escape_sequences_of_a_token(colour):
  painted = sample.paint([HOSTILE], [1], colour=colour)
  assert 'title' in painted
  assert '\x07' not in painted
  # A colour begins and ends with a sequence.
  assert painted.count('\x1b') == (2 if colour else 0)


def test_no_password_of_a_url_is_kept(monkeypatch):
  command = ['sweep', '--data=ftp://user:hunter2secret@127.0.0.1:9/a.jsonl']
  monkeypatch.setattr(sys, 'orig_argv', command)
  text = json.dumps(workdirs.provenance({}))
  assert 'hunter2secret' not in text
  assert '--data=ftp://***@127.0.0.1' in text


@slow
def test_a_page_spells_what_would_act_or_cannot_be_seen(tmp_path):
  method = 'an escape: \x1b; a filler: \u3164'
  prompt = 'half of a surrogate pair: \ud800; the other way: \u202e'
  workdir = make_workdir(tmp_path / 'run', method)
  _asked(workdir, prompt=prompt)
  page = report(workdir).read_text(encoding='utf-8')
  assert not any(map(files.is_invisible, page))
  assert f'data-key="{files.printable(method)}"' in page
  # Half of a pair of surrogates is none of a file's characters.
  assert files.printable(prompt.replace('\ud800', '\ufffd')) in page
