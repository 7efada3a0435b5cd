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
import os
import pathlib
import random
import re
import resource
import shutil
import struct
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import answers
import gguf
import gguf_test
import launching
import numpy as np
import pytest
import report_test
import small

from cascades import drafters, files
from cascades.contrib.engine_audits import traces
from cascades.models import (
  checkpoints,
  gguf_files,
  tensor_files,
  tokenizers,
)
from experiments import records, sample, tasks
from experiments.analysis import runs
from experiments.reports import AnalysisConfig, write_report
from experiments.sweeps import workdirs

MODEL = checkpoints.ASSETS / 'tiny-drafter'
EXAMPLES = int(os.environ.get('CASCADES_FUZZ', '0'))
# Checks of annotations take 42 s where 9,999 layers are named.
SECONDS = 120 if os.environ.get('CASCADES_CHECK_TYPES') else 5
MEMORY = 500 * 2**20
slow = pytest.mark.slow

# --- What must not happen ---

_WATCHED: dict[str, Any] = {'inside': None, 'written': []}
_WRITES = {
  *('os.rename', 'os.remove', 'os.mkdir', 'os.rmdir', 'os.link', 'os.symlink'),
  *('os.truncate', 'os.chmod', 'shutil.move', 'shutil.rmtree'),
}


def _watch(event: str, arguments: tuple) -> None:
  """Notes what is written outside of a folder, but for JAX's cache."""
  is_written = event in _WRITES
  if event == 'open':
    _, mode, flags = arguments
    is_written = bool({*(mode or '')} & {*'wax+'})
    is_written |= bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
  if _WATCHED['inside'] is None or not is_written:
    return
  kept = os.path.realpath(os.environ['JAX_COMPILATION_CACHE_DIR'])
  for path in arguments[: 1 if event == 'open' else 2]:
    if isinstance(path, str | bytes | os.PathLike):
      path = os.path.realpath(os.fsdecode(path))
      allowed = f'{_WATCHED["inside"]}/', f'{kept}/', '/dev/'
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
  most = pages * resource.getpagesize() + MEMORY
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


def make_gguf(folder, name='tiny-drafter', stored='float16') -> None:
  folder.mkdir()
  gguf_test.written(folder, name, stored).rename(folder / 'x.gguf')


def make_tokenizer_json(folder: pathlib.Path) -> None:
  folder.mkdir()
  fields = gguf_test.as_json(tokenizers.read(MODEL / 'tokenizer.model'))
  (folder / 'tokenizer.json').write_text(json.dumps(fields))


def make_index(folder: pathlib.Path) -> None:
  copied('tiny-drafter')(folder)
  names = dict.fromkeys(tensor_files.open_folder(folder), 'model.safetensors')
  fields = {'metadata': {'total_size': 1}, 'weight_map': names}
  (folder / tensor_files.INDEX).write_text(json.dumps(fields))


BLOCK = {
  'q': [[0.25, 0.75]],
  'p': [{'tokens': [0], 'probs': [0.5], 'rest': 0.5}, [0.5, 0.5]],
  'drafts': [0],
  'tokens': [0, 1],
}


def make_trace(folder: pathlib.Path) -> None:
  folder.mkdir()
  text = (json.dumps(BLOCK) + '\n').encode()
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
  return write_report([runs.read(workdir)], AnalysisConfig(resamples=5))


# --- The table: what is done to a folder, and what is said of it ---


def _damage(function):
  """Returns the damage to a folder, by the other arguments of a function."""
  return lambda *args, **fields: (
    lambda folder: function(folder, *args, **fields)
  )


@_damage
def _each(folder, pattern, do):
  for file in folder.glob(pattern):
    do(file)


def _drop(pattern):
  return _each(pattern, pathlib.Path.unlink)


def _bytes(pattern, change):
  return _each(
    pattern, lambda file: file.write_bytes(change(file.read_bytes()))
  )


def _cut(pattern, keep):
  return _bytes(pattern, lambda data: data[:keep])


@_damage
def _fields(folder, file, /, **changes):
  """Changes fields of a JSON file; `...` removes one."""
  path = folder / file
  fields = json.loads(path.read_text()) if path.exists() else {}
  fields = {k: x for k, x in (fields | changes).items() if x is not ...}
  path.write_text(json.dumps(fields))


@_damage
def _tensor(folder, name, change):
  """Replaces a tensor by change(tensor); drops it where that is None."""
  small.rewrite(folder, tensors={name: change(small.stored(folder)[name])})


@_damage
def _renamed(folder, prefix):
  """Puts a prefix before the name of each tensor."""
  tensors = small.stored(folder)
  renamed = {prefix + name: x for name, x in tensors.items()}
  small.rewrite(folder, tensors=dict.fromkeys(tensors) | renamed)


@_damage
def _quantised(folder, part, kind):
  """Gives a matrix a part of another name, and another type or no tensor."""
  name = f'{ATTENTION}.q_proj'
  matrix = {f'{name}.weight': kind and np.ones(1)}
  parts = {f'{name}.{part}': np.ones((48, 1), np.int32)}
  small.rewrite(folder, tensors=parts | matrix)
  if kind:
    file = folder / 'model.safetensors'
    small.as_type(file, f'{name}.weight', kind, (48, 3))


@_damage
def _index(folder, name, file):
  """Maps a tensor to a file in a folder's index."""
  path = folder / tensor_files.INDEX
  index = small.read_json(path)
  index['weight_map'][name] = file
  path.write_text(json.dumps(index))


@_damage
def _pipe(folder, name):
  (folder / name).unlink(missing_ok=True)
  os.mkfifo(folder / name)


DEEP = '{"a": ' + '[' * 60_000 + ']' * 60_000 + '}\n'
LAYER, NORM = 'model.layers.1', 'model.norm.weight'
SHARD = 'model-00002-of-00004.safetensors'
ATTENTION = f'{LAYER}.self_attn'
OF_CONFIG = 'config.json: it is '
OF_INDEX = f'{tensor_files.INDEX}: '
OF_MODELS = [
  (_drop('config.json'), 'no config.json'),
  (_bytes('config.json', lambda data: b'\xff\xfe\x00'), OF_CONFIG),
  (_bytes('config.json', lambda data: DEEP.encode()), 'nested too deeply'),
  (_fields('config.json', model_type='llama'), "model_type 'llama'"),
  (_fields('config.json', vocab_size=60), 'a tokenizer of 64 pieces'),
  (
    _fields('config.json', hidden_size=36, query_pre_attn_scalar=12),
    'model.embed_tokens.weight has the shape (64, 32)',
  ),
  # As many layers as are believed without the tensors; and more; and fewer.
  *(
    (_fields('config.json', num_hidden_layers=n, layer_types=...), said)
    for n, said in (
      (9_999, 'not have the 9999 layers'),
      (200_000_000, 'num_hidden_layers'),
      (1, 'not have the 1 layers'),
    )
  ),
  (_bytes('*.index.json', lambda data: b'{"a": 1}'), OF_INDEX),
  (_index(NORM, SHARD), f'{SHARD} lacks the tensor {NORM}, though model.safe'),
  (_index(NORM, None), "norm.weight' must name a file beside it"),
  (_index(NORM, '../x.safetensors'), "a file beside it, got '../x.safetensors"),
  (_index(f'language_model.{NORM}', SHARD), f'has the tensor {NORM} twice'),
  (_drop(tensor_files.INDEX), 'model.safetensors is missing; fetch it again'),
  (_drop(SHARD), f'{SHARD} is missing'),
  # Nothing; some of the header; some of the numbers.
  *((_cut(SHARD, size), SHARD) for size in (0, 30_000)),
  (_drop('tokenizer.model'), 'tokenizer.model is missing, damaged'),
  *(
    (_pipe(name), 'not a regular file')
    for name in ('config.json', SHARD, 'tokenizer.model', tensor_files.INDEX)
  ),
  (
    _tensor(f'{LAYER}.input_layernorm.weight', lambda t: None),
    f'lacks the tensor {LAYER}.input_layernorm.weight',
  ),
  # A LoRA.
  (_renamed('base_model.model.'), 'adapters merged and without a wrapper'),
  # AWQ and GPTQ, pack-quantized, HQQ; bitsandbytes, MLX, and float8.
  *(
    (_quantised(part, kind), said)
    for part, kind, said in (
      *((x, None, 'before quantisation') for x in ('qweight', 'W_q')),
      ('weight.absmax', 'U8', 'q_proj.weight is quantised (U8)'),
      ('SCB', 'I8', 'fetch the model before quantisation, or'),
      ('scales', 'U32', 'q_proj.weight is quantised (U32)'),
      ('weight_scale', 'F8_E4M3', 'q_proj.weight is quantised (F8_E4M3)'),
    )
  ),
  *(
    (_tensor(f'{name}.weight', change), f'{name}.weight has the shape {shape}')
    for name, change, shape in (
      ('model.norm', lambda t: np.tile(t, 2), (64,)),
      (f'{ATTENTION}.q_proj', lambda t: t[:47], (47, 32)),
      # As many numbers as asked for, in the wrong order.
      (f'{ATTENTION}.q_proj', lambda t: t.T, (32, 48)),
    )
  ),
]


def _with_length(length):
  """Changes the length of the first name."""

  def change(data):
    at = data.index(b'general.architecture') - 8
    return data[:at] + length.to_bytes(8, 'little') + data[at + 8 :]

  return change


def _with_type(data):
  name = b'blk.2.ffn_up.weight'
  at = data.index(name) + len(name) + 4 + 2 * 8
  return data[:at] + (77).to_bytes(4, 'little') + data[at + 4 :]


def _with_alignment(kind, value):
  # The library refuses to write these.
  field = struct.pack('<Q', 17) + b'general.alignment' + struct.pack('<I', kind)
  head = b'GGUF' + struct.pack('<IQQ', 3, 0, 1)
  return lambda data: head + field + value


def _gguf_fields(change):
  """Changes the fields of a GGUF file."""
  return _each(
    '*.gguf', lambda file: gguf_test.rewritten(file, change).replace(file)
  )


def _gguf_field(name, kind, value):
  field = [gguf.GGUFValueType[kind]], value
  return _gguf_fields(lambda fields: fields.update({name: field}))


def _with_tokenizer(name, change):
  """Changes what a tokenizer has of each of its pieces; of all: `name` ''."""

  def damaged(fields):
    for each in 'tokens', 'scores', 'token_type':
      if each.startswith(name):
        kinds, values = fields[f'tokenizer.ggml.{each}']
        fields[f'tokenizer.ggml.{each}'] = kinds, change(values)

  return _gguf_fields(damaged)


OF_GGUF = [
  *(
    (_bytes('*.gguf', change), said)
    for change, said in (
      (lambda data: b'PK\3\4 and more', 'is not a GGUF file of version 2 or 3'),
      (
        lambda data: b'GGUF\4' + bytes(99),
        'is not a GGUF file of version 2 or 3',
      ),
      *(
        (change, 'is cut short or damaged (')
        for change in (
          *(lambda x, n=n: x[:n] for n in (8, 20, 60, 500, 20_000, -9000)),
          *(_with_length(2**power) for power in (40, 62, 63)),
          _with_alignment(4, bytes(4)),
          _with_alignment(8, struct.pack('<Q', 4) + b'many'),
        )
      ),
      (_with_type, "has the tensor 'blk.2.ffn_up.weight' of type 77, which is"),
      (
        lambda data: data.replace(
          b'blk.0.attn_v.weight', b'blk.0.attn_q.weight'
        ),
        "the tensor 'blk.0.attn_q.weight' is twice",
      ),
      (
        lambda data: data.replace(b'ggml.bos_token_id', b'ggml.eos_token_id'),
        "the field 'tokenizer.ggml.eos_token_id' is twice",
      ),
    )
  ),
  *(
    (_with_tokenizer(name, change), 'has a damaged tokenizer; fetch it again.')
    for name, change in (
      ('token_type', lambda x: [*x[:9], 0, *x[10:]]),
      ('tokens', lambda x: [*x[:-1], x[-2]]),
      ('', lambda x: x[:2]),
    )
  ),
  *(
    (_gguf_field('general.architecture', 'STRING', name), 'unsupported archit')
    for name in ('llama', 'x' * 10**6)
  ),
  (
    _gguf_field('tokenizer.ggml.model', 'STRING', 'gpt2'),
    "model must be 'llama', got 'gpt2'",
  ),
  (_gguf_field('split.count', 'UINT16', 3), 'split.count must be 1'),
  (
    _gguf_fields(lambda fields: fields.pop('gemma3.attention.key_length')),
    ': attention.key_length is missing',
  ),
  *(
    (_gguf_field('gemma3.block_count', 'UINT32', n), said)
    for n, said in (
      (9_999, 'not have the 9999 layers'),
      (200_000_000, 'block_count'),
    )
  ),
]


@_damage
def _record(folder, field, value):
  """Changes the last record of a workdir."""
  path = folder / 'records/all.jsonl'
  *lines, last = path.read_text().splitlines()
  changed = json.dumps(json.loads(last) | {field: value})
  path.write_text('\n'.join((*lines, changed)) + '\n')


OF_WORKDIRS = [
  *(
    (_record(field, value), 'records/all.jsonl:16: damaged record')
    for field, values in dict(
      emitted=('3', None, -1, 10**9, 1.5),
      verifier_calls=(-1,),
      examined=(-5, 'x'),
      accepted=(10**9,),
      gamma=(None,),
      id=(5, {'a': 1}),
      task=([],),
      method=(None,),
      verification=(5,),
      drafts=(None,),
      quality=(10**400,),
      text=(5,),
      failure=({},),
      scores=([1],),
      ended=('no',),
    ).items()
    for value in values
  ),
  *(
    (_fields('config.json', **{name: value}), f'config.json: {name}')
    for name, value in dict(
      task=5, data={'sums': 3}, versions='x', file=5, batch_size=-1, name={}
    ).items()
  ),
  *(
    (_fields('provenance.json', starts=x), 'provenance.json: starts')
    for x in (3, [3], [{'code': 1}])
  ),
  *(
    (_bytes(name, lambda data: DEEP.encode()), name)
    for name in ('config.json', 'records/all.jsonl')
  ),
]


@_damage
def _traces(workdir, skip=0, **changes):
  """Leaves the first traces out, and changes fields of the others."""
  lines = records.read_traces(workdir, 'all')[skip:]
  fields = [json.loads(records.dumps(line)) | changes for line in lines]
  text = ''.join(json.dumps(f) + '\n' for f in fields)
  (workdir / 'traces/all.jsonl.gz').write_bytes(gzip.compress(text.encode()))


def _other_ids(workdir):
  asked = [tasks.Example(id='x', prompt='p', reference='r')]
  records.write(workdir / 'examples/sums.jsonl', asked)


# What disagrees is left out of a page, which says so.
OF_PAGES = [
  (_traces(sources=[99, 1, 1]), 'sources must be'),
  (_traces(skip=12), 'has no trace'),
  (lambda w: shutil.rmtree(w / 'traces'), 'is missing'),
  (_bytes('traces/*', lambda data: b'x'), 'traces/all.jsonl.gz'),
  (_other_ids, 'there is no example 0'),
]


def refusal(read, folder) -> str:
  """Returns the sentence in which reading a folder is refused."""
  with pytest.raises(ValueError, match=': ') as error:
    read(folder)
  message = str(error.value)
  assert str(folder) in message
  return message


def notices(folder) -> str:
  """Returns what a page says that it leaves out."""
  page = report(folder).read_text(encoding='utf-8')
  marked = re.findall('<p class="notice">(.*?)</p>', page)
  assert all(line.startswith('Left out: ') for line in marked)
  assert '<article' not in page
  return html.unescape(' '.join(marked))


def load_model(folder) -> Any:
  file = folder / 'x.gguf'
  return checkpoints.load_model(file if file.exists() else folder)


def _confined_load(folder) -> str:
  with confined(folder.parent):
    return refusal(load_model, folder)


# By kind: what makes a good folder, what is said of a damaged one, and damage.
KINDS = {
  'model': (copied('hf_gemma2'), _confined_load, OF_MODELS),
  'gguf': (
    functools.partial(make_gguf, name='tiny-verifier', stored=None),
    *(_confined_load, OF_GGUF),
  ),
  'workdir': (make_workdir, functools.partial(refusal, report), OF_WORKDIRS),
  'page': (make_workdir, notices, OF_PAGES),
}


@pytest.fixture(scope='module')
def good(tmp_path_factory):
  """Returns a good folder of each kind, which was read once."""

  @functools.cache
  def make(kind):
    folder = tmp_path_factory.mktemp(kind) / kind
    KINDS[kind][0](folder)
    read = report if kind in ('workdir', 'page') else load_model
    read(folder)
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
    for kind, (_, _, table) in KINDS.items()
    for i, (damage, said) in enumerate(table)
  ],
)
def test_a_hostile_file_is_named_in_one_sentence(
  good, tmp_path, kind, damage, said
):
  folder = shutil.copytree(good(kind), tmp_path / 'folder')
  damage(folder)
  message = KINDS[kind][1](folder)
  assert said in message
  assert '\n' not in message
  assert '. ' not in message.replace(str(folder), '') or kind == 'page'
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
    inner = value
    for key in above:
      inner = inner[key]
    kind = draw.choice(['other', 'gone', 'new'])
    if kind == 'gone':
      inner.pop(last, None) if isinstance(inner, dict) else inner.pop(last)
    elif kind == 'new' and isinstance(inner, dict):
      inner[chr(draw.randrange(0xD800))] = copy.deepcopy(draw.choice(ODD))
    else:
      inner[last] = copy.deepcopy(draw.choice(ODD))
  text = re.sub(
    r'"<(\d+) lists>"',
    lambda found: '[' * int(found[1]) + ']' * int(found[1]),
    json.dumps(value),
  )
  return text.encode()


def changed_bytes(draw: random.Random, data: bytes) -> bytes:
  """Bytes of which some are others, gone or new, among the first of them."""
  data = bytearray(data)
  for _ in range(draw.randint(1, 4)):
    at = draw.randrange(min(2**16, len(data)))
    kind = draw.choice(['flip', 'set', 'number', 'cut', 'insert'])
    if kind == 'flip':
      data[at] ^= 1 << draw.randrange(8)
    elif kind == 'set':
      data[at] = draw.choice([0, 1, 127, 128, 255])
    elif kind == 'number':
      number = draw.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
      data[at : at + 8] = number.to_bytes(8, 'little')
    elif kind == 'insert':
      data[at:at] = draw.randbytes(draw.randint(1, 9))
    elif at:
      del data[at:]
  return bytes(data)


class Format(NamedTuple):
  """A format: makes a folder with the file `name`, and reads a part or all."""

  make: Callable[[pathlib.Path], Any]
  name: str
  read: Callable[[pathlib.Path], Any]
  load: Callable[[pathlib.Path], Any] | None = None


def load_folder(path: pathlib.Path) -> Any:
  return checkpoints.load_model(path.parent)


def load_drafter(path: pathlib.Path) -> Any:
  return drafters.load(str(path.parent))


def open_folder(path: pathlib.Path) -> Any:
  return tensor_files.open_folder(path.parent)


def read_gguf(path: pathlib.Path) -> Any:
  file = gguf_files.read_header(path)
  return gguf_files.read_config(file), gguf_files.read_tokenizer(file)


def read_trace(path: pathlib.Path) -> Any:
  return [*traces.read(path)]


def make_run(folder: pathlib.Path) -> None:
  make_workdir(folder)
  lines = (folder / 'records/all.jsonl').read_text().splitlines()
  (folder / 'one.jsonl').write_text(lines[-1] + '\n')


_TINY = copied('tiny-drafter')
FORMATS = {
  **{
    f'config.json of {name}': Format(
      copied(name),
      'config.json',
      lambda path: checkpoints.read_config(path.parent),
      load_folder,
    )
    for name in (
      *('hf_gemma2', 'hf_gemma3', 'hf_gemma3n', 'hf_gemma4_dense'),
      *('hf_gemma4_experts', 'hf_gemma4_shared'),
    )
  },
  **{
    f'config.json of {name}': Format(copied(name), 'config.json', load_drafter)
    for name in ('hf_gemma4_dense_assistant', 'eagle3_apart')
  },
  "a recurrent head's head.json": Format(
    copied('tiny-recurrent'), 'head.json', load_drafter
  ),
  'generation_config.json': Format(
    _TINY, 'generation_config.json', load_folder
  ),
  'an index of tensors': Format(make_index, tensor_files.INDEX, open_folder),
  'a header of safetensors': Format(
    _TINY, 'model.safetensors', open_folder, load_folder
  ),
  'a GGUF file': Format(make_gguf, 'x.gguf', read_gguf, checkpoints.load_model),
  'tokenizer.json': Format(
    make_tokenizer_json, 'tokenizer.json', tokenizers.read
  ),
  'tokenizer.model': Format(_TINY, 'tokenizer.model', tokenizers.read),
  'a record': Format(make_run, 'one.jsonl', records.read),
  **{
    f'a trace, {name}': Format(make_trace, name, read_trace)
    for name in ('blocks.jsonl', 'blocks.jsonl.gz')
  },
}


@slow
@pytest.mark.parametrize(
  ('part', 'kind'),
  [
    (part, kind)
    for part in ('read', 'load')
    for kind, entry in FORMATS.items()
    if getattr(entry, part)
  ],
)
def test_a_changed_file_is_read_or_refused(tmp_path, kind, part):
  entry = FORMATS[kind]
  read = getattr(entry, part)
  entry.make(tmp_path / 'folder')
  file = tmp_path / 'folder' / entry.name
  data = file.read_bytes()
  is_json = file.suffix in ('.json', '.jsonl')
  change = changed_json if is_json else changed_bytes
  # As it is, it will do.
  read(file)
  # What is read to the end takes longer.
  count = max(5, (EXAMPLES or 300) // (40 if part == 'load' else 1))
  for seed in range(count):
    file.write_bytes(change(random.Random(seed), data))
    with confined(tmp_path):
      message = 'model: read'
      try:
        read(file)
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
  assert str(tmp_path) in gguf_test.refused(tmp_path / 'one')


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
  names = 'notes.jsonl', '.download.part'
  outside.mkdir()
  workdir.mkdir()
  for name in names:
    (outside / name).write_text('precious')
  (workdir / 'records').symlink_to(outside)
  with refusing:
    workdirs.Workdir(workdir).delete_points()
  assert {(outside / x).read_text() for x in names} == {'precious'}


@pytest.mark.parametrize('line', [DEEP, json.dumps({'lenience': 10**400})])
def test_a_sweep_makes_a_point_with_a_damaged_record_again(tmp_path, line):
  path = tmp_path / 'records/a.jsonl'
  path.parent.mkdir()
  path.write_text(line.strip() + '\n')
  trace = answers.make_trace('', id='1', deferred=None)
  records.write(tmp_path / 'traces/a.jsonl.gz', [trace])
  point = types.SimpleNamespace(
    name='a', first=0, last=1, curve=types.SimpleNamespace(leniences=(1.0,))
  )
  assert workdirs.Workdir(tmp_path).read_point(point) is None


# --- Terminals and pages ---

HOSTILE = '\x1b]0;title\x07\x1b[2J'


@slow
def test_an_error_writes_no_escape_sequences(tmp_path):
  folder = shutil.copytree(MODEL, tmp_path / 'model')
  names = {'a': f'{HOSTILE}.safetensors'}
  _fields(tensor_files.INDEX, weight_map=names)(folder)
  done = launching.run(
    'experiments.sample', f'--verifier={folder}', '--prompt=a'
  )
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
  url = 'ftp://user:hunter2secret@127.0.0.1:9/a.jsonl'
  command = ['python', '-m', 'experiments.sweep', f'--data={url}']
  monkeypatch.setattr(sys, 'orig_argv', command)
  text = json.dumps(workdirs.provenance({}))
  assert 'hunter2secret' not in text
  assert '--data=ftp://***@127.0.0.1' in text


@slow
@pytest.mark.parametrize(
  ('method', 'prompt'),
  [
    ('speed', 'half of a surrogate pair: \ud800'),
    ('an escape: \x1b', 'a b'),
    ('speed', 'the other way: \u202e'),
    ('a filler: \u3164', 'a b'),
  ],
  ids=repr,
)
def test_a_page_spells_what_would_act_or_cannot_be_seen(
  tmp_path, method, prompt
):
  workdir = make_workdir(tmp_path / 'run', method)
  examples = [
    tasks.Example(id=str(i), prompt=prompt, reference='r') for i in range(4)
  ]
  records.write(workdir / 'examples/sums.jsonl', examples)
  page = report(workdir).read_text(encoding='utf-8')
  (odd,) = filter(files.is_invisible, method + prompt)
  # Half of a pair of surrogates is none of a file's characters.
  spelling = '\ufffd' if odd == '\ud800' else files.printable(odd)
  assert not any(map(files.is_invisible, page))
  if odd in method:
    assert f'data-key="{method.replace(odd, spelling)}"' in page
  else:
    assert prompt.replace(odd, spelling) in page


@slow
@pytest.mark.parametrize(
  'change',
  [
    *(_record('quality', value) for value in (1e308, -1e308, 1e-320)),
    # Settings that nobody reads, however deep.
    _fields('config.json', extra=json.loads('[' * 400 + '1' + ']' * 400)),
  ],
)
def test_no_value_ends_the_page(good, tmp_path, change):
  folder = shutil.copytree(good('workdir'), tmp_path / 'run')
  change(folder)
  assert report(folder).exists()
