"""Mutated files of every kind: each is read, or refused in one sentence.

Hypothesis changes a good file, always in the same way; what failed once stays
as an `example`. `CASCADES_FUZZ=20000` tries as many of each kind.
"""

import contextlib
import copy
import gzip
import json
import math
import os
import pathlib
import re
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gguf_test
import hypothesis
import pytest
import strangers
from hypothesis import strategies as st

from cascades import drafters
from cascades.contrib.engine_audits import traces
from cascades.drafters.recurrent import recurrent_checkpoint
from cascades.models import (
  checkpoints,
  families,
  gguf_files,
  gguf_header,
  huggingface,
  tensor_files,
  tokenizer_files,
)
from experiments import records

pytestmark = pytest.mark.slow
FIXTURES = pathlib.Path(__file__).parent / 'fixtures'
EXAMPLES = int(os.environ.get('CASCADES_FUZZ', '0'))
SECONDS, MEMORY = 5, 500 * 2**20


# --- What is changed ---

ODD = st.one_of(
  st.none(),
  st.booleans(),
  st.integers(-2, 3),
  st.sampled_from([2**31 - 1, 2**31, 2**63, -(2**63), 10**30, 10**400]),
  st.sampled_from([0.5, -0.0, 1e-320, 1e308, math.nan, math.inf, -math.inf]),
  st.sampled_from(['', '1', 'x' * 10_000, '../x', '\x1b[2J', '\ud800', '\0']),
  st.sampled_from([[], {}, [1], [[]], {'a': 1}, [None] * 1000, '\u202e']),
  # Stand for as many lists in each other, which Python's own writer cannot say.
  st.sampled_from(['<100 lists>', '<100000 lists>']),
).map(copy.deepcopy)


def places(value: Any, above: tuple = ()) -> Iterator[tuple]:
  """Yields the path of every value within a value of JSON."""
  yield above
  if isinstance(value, dict | list):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
      yield from places(inner, (*above, key))


@st.composite
def changed_json(draw, text: str) -> bytes:
  """A text of JSON in which some values are others, gone or new."""
  value = json.loads(text)
  for _ in range(draw(st.integers(1, 3))):
    *above, last = draw(st.sampled_from([*places(value)][1:] or [('new',)]))
    inner = value
    for key in above:
      inner = inner[key]
    what = draw(st.sampled_from(['other', 'gone', 'new']))
    if what == 'gone':
      del inner[last]
    elif what == 'new' and isinstance(inner, dict):
      inner[draw(st.text(max_size=5))] = draw(ODD)
    else:
      inner[last] = draw(ODD)
    if not value:
      break
  text = re.sub(
    r'"<(\d+) lists>"',
    lambda found: '[' * int(found[1]) + ']' * int(found[1]),
    json.dumps(value),
  )
  return text.encode()


@st.composite
def changed_bytes(draw, data: bytes, first: int = 2**16) -> bytes:
  """Bytes of which some are others, gone or new, among the first of them."""
  data = bytearray(data)
  for _ in range(draw(st.integers(1, 4))):
    at = draw(st.integers(0, min(first, len(data)) - 1))
    what = draw(st.sampled_from(['flip', 'set', 'number', 'cut', 'insert']))
    if what == 'flip':
      data[at] ^= 1 << draw(st.integers(0, 7))
    elif what == 'set':
      data[at] = draw(st.sampled_from([0, 1, 127, 128, 255]))
    elif what == 'number':
      number = draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
      data[at : at + 8] = number.to_bytes(8, 'little')
    elif what == 'insert':
      data[at:at] = draw(st.binary(min_size=1, max_size=9))
    elif at:
      del data[at:]
  return bytes(data)


# --- How it is read ---


class Format(NamedTuple):
  """A kind of file.

  Attributes:
    make: Makes a good file's folder.
    name: Of the file, in it.
    read: Reads what a stranger can say there; takes the file's path.
    binary: Whether bytes are changed, and not the values of JSON.
    load: Reads all, and takes longer; None where `read` does that.
    examples: How many are tried, of the five minutes that all have.
  """

  make: Callable[[pathlib.Path], Any]
  name: str
  read: Callable[[pathlib.Path], Any]
  binary: bool = False
  load: Callable[[pathlib.Path], Any] | None = None
  examples: int = 300


def copied(name: str) -> Callable[[pathlib.Path], Any]:
  """Returns a function that copies a fixture's or a bundled folder."""
  source = FIXTURES / name
  source = source if source.exists() else checkpoints.ASSETS / name
  return lambda folder: shutil.copytree(source, folder)


def load_folder(path: pathlib.Path) -> Any:
  return checkpoints.load_model(path.parent)


def read_config(path: pathlib.Path) -> Any:
  return huggingface.read_config(path.parent)


def read_gguf(path: pathlib.Path) -> Any:
  file = gguf_header.read_header(path)
  config = gguf_files.read_config(file)
  families.text_config(config)
  gguf_files.read_tokenizer(file)
  return gguf_files.open_tensors(file, config)


def make_gguf(folder: pathlib.Path) -> None:
  folder.mkdir()
  gguf_test.written(folder, 'tiny-drafter', 'float16')


def make_tokenizer_json(folder: pathlib.Path) -> None:
  folder.mkdir()
  tokenizer = tokenizer_files.read(
    checkpoints.ASSETS / 'tiny-drafter/tokenizer.model'
  )
  fields = gguf_test.as_json(tokenizer)
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


def make_trace(folder: pathlib.Path, packed: bool = False) -> None:
  folder.mkdir()
  text = (json.dumps(BLOCK) + '\n').encode()
  if packed:
    (folder / 'blocks.jsonl.gz').write_bytes(gzip.compress(text * 9, mtime=0))
  else:
    (folder / 'blocks.jsonl').write_bytes(text)


def read_trace(path: pathlib.Path) -> Any:
  return [*traces.read(path)]


def make_run(folder: pathlib.Path) -> None:
  strangers.make_workdir(folder)
  lines = (folder / 'records/all.jsonl').read_text().splitlines()
  (folder / 'one.jsonl').write_text(lines[-1] + '\n')


FORMATS = {
  **{
    f'config.json of {name}': Format(
      copied(name), 'config.json', read_config, load=load_folder
    )
    for name in (
      *('hf_gemma2', 'hf_gemma3', 'hf_gemma3n', 'hf_gemma4_dense'),
      *('hf_gemma4_experts', 'hf_gemma4_shared'),
    )
  },
  "an assistant's config.json": Format(
    copied('hf_gemma4_dense_assistant'),
    'config.json',
    lambda path: drafters.parse_spec(str(path.parent)).load(),
    load=lambda path: drafters.parse_spec(str(path.parent)).load(),
  ),
  "an EAGLE-3 head's config.json": Format(
    copied('eagle3_apart'),
    'config.json',
    lambda path: drafters.parse_spec(str(path.parent)).load(),
    load=lambda path: drafters.parse_spec(str(path.parent)).load(),
  ),
  "a recurrent head's head.json": Format(
    copied('tiny-recurrent'),
    'head.json',
    lambda path: recurrent_checkpoint.load(path.parent),
  ),
  'generation_config.json': Format(
    copied('tiny-drafter'),
    'generation_config.json',
    load_folder,
  ),
  'an index of tensors': Format(
    make_index,
    tensor_files.INDEX,
    lambda path: tensor_files.open_folder(path.parent),
  ),
  'a header of safetensors': Format(
    copied('tiny-drafter'),
    'model.safetensors',
    lambda path: tensor_files.open_folder(path.parent),
    binary=True,
    load=load_folder,
  ),
  'a GGUF file': Format(
    make_gguf,
    'tiny-drafter.gguf',
    read_gguf,
    binary=True,
    load=checkpoints.load_model,
  ),
  'tokenizer.json': Format(
    make_tokenizer_json, 'tokenizer.json', tokenizer_files.read
  ),
  'tokenizer.model': Format(
    copied('tiny-drafter'), 'tokenizer.model', tokenizer_files.read, binary=True
  ),
  'a record': Format(make_run, 'one.jsonl', lambda path: records.read(path)),
  'a block of a trace': Format(make_trace, 'blocks.jsonl', read_trace),
  'a packed trace': Format(
    lambda folder: make_trace(folder, True),
    'blocks.jsonl.gz',
    read_trace,
    binary=True,
  ),
}

# --- What must not happen ---

_WATCHED: dict[str, Any] = {'inside': None, 'written': []}
_WRITES = {
  *('os.rename', 'os.remove', 'os.mkdir', 'os.rmdir', 'os.link', 'os.symlink'),
  *('os.truncate', 'os.chmod', 'shutil.move', 'shutil.rmtree'),
}


def _watch(event: str, arguments: tuple) -> None:
  """Notes what is written outside of a folder."""
  inside = _WATCHED['inside']
  if inside is None:
    return
  if event == 'open':
    path, mode, flags = arguments
    if not (mode and set(mode) & set('wax+')) and not (
      flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    ):
      return
  elif event in _WRITES:
    path = arguments[0]
  else:
    return
  if isinstance(path, str | bytes | os.PathLike):
    path = os.path.realpath(os.fsdecode(path))
    # JAX keeps what it compiles.
    kept = os.path.realpath(os.environ['JAX_COMPILATION_CACHE_DIR'])
    if not path.startswith((inside, kept, '/dev/')):
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


def check(file: pathlib.Path, data: bytes, read: Callable) -> None:
  """Reads changed bytes: they will do, or are refused in a sentence."""
  file.write_bytes(data)
  with confined(file.parents[1]):
    said = 'model: read'
    try:
      read(file)
    except (ValueError, OSError) as error:
      said = str(error)
  assert ': ' in said
  assert '\n' not in said
  assert len(said) < 1000


@pytest.mark.parametrize(
  ('part', 'kind'),
  [
    (part, kind)
    for part in ('read', 'load')
    for kind, of in FORMATS.items()
    if getattr(of, part)
  ],
)
def test_a_changed_file_is_read_or_refused(tmp_path, kind, part):
  of = FORMATS[kind]
  read = getattr(of, part)
  of.make(tmp_path / 'folder')
  file = tmp_path / 'folder' / of.name
  good = file.read_bytes()
  changed = changed_bytes(good) if of.binary else changed_json(good.decode())
  count = EXAMPLES or of.examples
  # What is read to the end takes longer.
  count = max(5, count // 40) if part == 'load' else count
  # As it is, it will do.
  read(file)

  @hypothesis.settings(
    max_examples=count,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[*hypothesis.HealthCheck],
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
  )
  @hypothesis.given(changed)
  def attempt(data):
    check(file, data, read)

  attempt()
