"""GGUF files of Gemma 2 and Gemma 3, as llama.cpp's converter writes them.

One file holds the fields of the model, its tokenizer and its tensors, most of
them quantised in blocks. The tensors are those of a Hugging Face folder under
other names, so that `param_mapping.param_mappings` applies to them, except:

- The weight of every norm is stored plus 1.
- `ffn_norm` is the norm before the feed-forward layer, not one after attention.
- Files lack the base of local positions (10,000), and the fact that the two 27B
  models scale queries by their width; most files lack the layers that are
  local.
- The kinds of tokens are SentencePiece's, except that some that a text may
  contain are called control or normal; and tokens of several spaces contain
  spaces, where SentencePiece has `tokenizers.SPACE`.

The public `gguf` library dequantises tensors to float32. Headers are read here:
it takes ten seconds and most of a gigabyte for Gemma's 262,144 tokens.

Sources: ggml's docs/gguf.md, llama.cpp's convert_hf_to_gguf.py.
"""

import dataclasses
import functools
import itertools
import math
import os
import pathlib
import re
import struct
import types
from collections.abc import Hashable, Iterator
from typing import Annotated, Any, BinaryIO, NamedTuple

import numpy as np
import pydantic

from cascades import arguments, files
from cascades.files import Count, FailFast, Number, Schema, one_of
from cascades.models import config_json, param_mapping, tokenizers
from cascades.models.tensor_files import TensorHandle, check_layers

FAMILIES = {'gemma2': 'gemma2', 'gemma3': 'gemma3_text'}

# Types of values in a header; all others are scalars.
_STRING, _ARRAY = 8, 9
# Letters of scalars in `struct`, by the number of their type.
_SCALARS = dict(enumerate('BbHhIif?')) | {10: 'Q', 11: 'q', 12: 'd'}


class Tensor(NamedTuple):
  """The place of a tensor in a file."""

  shape: tuple[int, ...]
  kind: Any
  at: int
  size: int


class File(NamedTuple):
  """The header of a file."""

  path: pathlib.Path
  fields: dict[str, Any]
  tensors: dict[str, Tensor]

  def under(self, prefix: str) -> dict[str, Any]:
    """Returns the fields whose names have a prefix, by the rest of the name."""
    names = (name for name in self.fields if name.startswith(prefix))
    return {name.removeprefix(prefix): self.fields[name] for name in names}


def library() -> types.ModuleType:
  """Imports and returns the `gguf` library, an optional dependency."""
  try:
    import gguf
  except ModuleNotFoundError as error:
    raise ValueError(arguments.missing('model', 'gguf', 'gguf')) from error
  return gguf


def read_header(path: pathlib.Path) -> File:
  """Reads the fields of a file and the places of its tensors."""
  files.check_regular(path, 'model', 'fetch it again')
  with path.open('rb') as file:
    if file.read(4) != b'GGUF' or file.read(4)[:1] not in (b'\2', b'\3'):
      raise ValueError(
        f'model: {path} is not a GGUF file of version 2 or 3; give one, or a'
        ' folder that holds a model.'
      )
    try:
      return _read_rest(path, file)
    # Lengths or texts are wrong, or the file ends early or contradicts itself.
    except (
      *(EOFError, MemoryError, OverflowError),
      *(UnicodeDecodeError, struct.error),
    ) as error:
      raise ValueError(
        f'model: {path} is cut short or damaged ({error}); fetch it again.'
      ) from error


def _read_rest(path: pathlib.Path, file: BinaryIO) -> File:
  num_tensors, num_fields = _read_scalars(file, 'Q', 2)
  fields: dict[str, Any] = {}
  for _ in range(num_fields):
    name = _read_text(file)
    _require(name not in fields, f'the field {arguments.quote(name)} is twice')
    fields[name] = _read_value(file)
  tensors: dict[str, Tensor] = {}
  for _ in range(num_tensors):
    name, (axes,) = _read_text(file), _read_scalars(file, 'I')
    label = f'the tensor {arguments.quote(name)}'
    _require(name not in tensors, f'{label} is twice')
    _require(1 <= axes <= 4, f'{label} has {axes} axes')
    shape = _read_scalars(file, 'Q', axes)[::-1]
    (number,), (offset,) = _read_scalars(file, 'I'), _read_scalars(file, 'Q')
    kind, block, size = _block_type(number)
    if kind is None:
      raise ValueError(
        f'model: {path} has {label} of type {number}, which is not supported;'
        ' give a file in F32, F16, BF16, Q8_0, Q4_0, Q5_0, Q4_K, Q5_K or Q6_K.'
      )
    _require(shape[-1] % block == 0, f'{label} has rows of incomplete blocks')
    size *= math.prod(shape) // block
    tensors[name] = Tensor(shape, kind, offset, size)
  alignment = fields.get('general.alignment', 32)
  is_aligned = isinstance(alignment, int) and alignment > 0
  _require(is_aligned, 'general.alignment must be positive')
  start = -(-file.tell() // alignment) * alignment
  spans = sorted((x.at, x.at + x.size) for x in tensors.values() if x.size)
  is_apart = all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
  end = max((x.at + x.size for x in tensors.values()), default=0)
  is_inside = start + end <= path.stat().st_size
  is_inside &= all(x.at % alignment == 0 for x in tensors.values())
  reason = 'its tensors overlap, lie outside of it, or are unaligned'
  _require(is_apart and is_inside, reason)
  placed = {name: x._replace(at=start + x.at) for name, x in tensors.items()}
  return File(path, fields, placed)


def _require(condition: bool, reason: str) -> None:
  if not condition:
    raise EOFError(reason)


def _read_bytes(file: BinaryIO, count: int) -> bytes:
  # Python would allocate the bytes before it reads them.
  is_small = count <= 2**16 or count <= os.fstat(file.fileno()).st_size
  data = file.read(count) if is_small else b''
  _require(len(data) == count, 'it ends early')
  return data


def _read_scalars(file: BinaryIO, code: str, count: int = 1) -> tuple:
  layout = f'<{count}{code}'
  return struct.unpack(layout, _read_bytes(file, struct.calcsize(layout)))


def _read_text(file: BinaryIO) -> str:
  (length,) = _read_scalars(file, 'Q')
  return _read_bytes(file, length).decode()


def _read_value(file: BinaryIO) -> Any:
  """Reads a value, which its type precedes; numbers of an array as an array."""
  (kind,), count = _read_scalars(file, 'I'), None
  if kind == _ARRAY:
    (kind,), (count,) = _read_scalars(file, 'I'), _read_scalars(file, 'Q')
  if kind == _STRING:
    texts = [_read_text(file) for _ in range(1 if count is None else count)]
    return texts[0] if count is None else texts
  _require(kind in _SCALARS, f'a field has the type {kind}')
  if count is None:
    return _read_scalars(file, _SCALARS[kind])[0]
  # Any byte but 0 is true, as in `struct`.
  is_bool = _SCALARS[kind] == '?'
  dtype = np.dtype('u1' if is_bool else f'<{_SCALARS[kind]}')
  array = np.frombuffer(_read_bytes(file, count * dtype.itemsize), dtype)
  return array != 0 if is_bool else array


@functools.cache
def _block_type(number: int) -> tuple[Any, int, int]:
  """Returns a type with the numbers and bytes of a block; None if unknown."""
  gguf = library()
  try:
    kind = gguf.GGMLQuantizationType(number)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    # Dequantises one block, since the library lists types that it cannot read.
    gguf.dequantize(np.zeros((1, size), np.uint8), kind)
  except (ValueError, KeyError, NotImplementedError):
    return None, 1, 0
  return kind, block, size


# Fields of config.json; the first eight are in every file.
_FIELDS = {
  'embedding_length': 'hidden_size',
  'feed_forward_length': 'intermediate_size',
  'block_count': 'num_hidden_layers',
  'attention.head_count': 'num_attention_heads',
  'attention.head_count_kv': 'num_key_value_heads',
  'attention.key_length': 'head_dim',
  'attention.sliding_window': 'sliding_window',
  'attention.layer_norm_rms_epsilon': 'rms_norm_eps',
  'rope.freq_base': 'rope_theta',
  'rope.freq_base_swa': 'rope_local_base_freq',
  'final_logit_softcapping': 'final_logit_softcapping',
  'attn_logit_softcapping': 'attn_logit_softcapping',
}
_PATTERN = 'attention.sliding_window_pattern'
# Models that scale queries by their width: family and number of layers.
_SCALED_BY_WIDTH = {('gemma2', 46), ('gemma3', 62)}
_Bit = bool | Annotated[int, pydantic.Field(ge=0, le=1)]


class _Layers(Schema):
  layers: config_json.Layers = pydantic.Field(alias='block_count')
  # A period of layers, the last one global; or a bit for each layer.
  local: Count | Annotated[list[_Bit], FailFast] = pydantic.Field(
    alias=_PATTERN
  )


def read_config(file: File) -> config_json.GemmaConfig:
  """Returns the configuration of the model of a file."""
  path, family = file.path, str(file.fields.get('general.architecture'))
  if family not in FAMILIES:
    raise ValueError(
      f'model: {path} has the unsupported architecture'
      f' {arguments.quote(family)}; give gemma2 or gemma3, in one file.'
    )
  defaults = {
    'gemma2': {_PATTERN: 2, 'attention.sliding_window': 4096},
    'gemma3': {_PATTERN: 6},
  }
  stored: dict[str, Any] = {**defaults[family], **file.under(f'{family}.')}
  absent = [x for x in [*_FIELDS][:8] if x not in stored]
  absent += [x for x in ['token_embd.weight'] if x not in file.tensors]
  if absent:
    raise ValueError(f'model: {path}: {absent[0]} is missing; fetch it again.')
  # A short text stands for an array of more numbers than layers.
  for name, x in stored.items():
    if isinstance(x, np.ndarray):
      is_short = 0 < len(x) <= config_json.MAX_LAYERS
      stored[name] = x.tolist() if is_short else str(x)
  fields = _Layers.check(stored, f'model: {path}')
  local, layers = fields.local, fields.layers
  if not isinstance(local, list):
    local = [not local or i % local < local - 1 for i in range(layers)]
  matrices = {t.kind.name for t in file.tensors.values() if len(t.shape) > 1}
  config = {
    **{x: stored[name] for name, x in _FIELDS.items() if name in stored},
    'model_type': FAMILIES[family],
    'query_pre_attn_scalar': stored['attention.key_length'],
    'vocab_size': file.tensors['token_embd.weight'].shape[0],
    'tie_word_embeddings': 'output.weight' not in file.tensors,
    # Norms are float32 beside matrices of any type.
    'dtype': 'bfloat16' if matrices == {'BF16'} else 'float32',
    'layer_types': [
      config_json.SLIDING if x else config_json.FULL for x in local
    ],
  }
  factor = stored.get('rope.scaling.factor')
  usual = 'none' if factor is None else 'linear'
  if (rope := stored.get('rope.scaling.type', usual)) != 'none':
    # llama.cpp writes 0 for no factor.
    config['rope_scaling'] = {'rope_type': rope, 'factor': factor or 1.0}
  try:
    read = config_json.read(config)
  except ValueError as error:
    reason = str(error).removeprefix('config.json: ')
    raise ValueError(f'model: {path}: {reason}') from None
  if (family, layers) in _SCALED_BY_WIDTH:
    scale = read.hidden_size // read.num_attention_heads
    return read.model_copy(update={'query_pre_attn_scalar': scale})
  return read


_TURN_TAGS = '<start_of_turn>', '<end_of_turn>'
# Tokens that a text may contain, whatever kind a file gives them.
_TEXT_TOKENS = re.compile(
  '|'.join(_TURN_TAGS)
  + r'|<unused\d+>|<mask>|<2mass>|\[@BOS@\]|<(start|end)_of_image>'
)
# Lower than any score, and representable in float32.
_LOWEST_SCORE = -(2.0**99)
# Ids that stand for no token, in 32 bits.
_NO_TOKEN = None, -1, 2**32 - 1
_Counts = Annotated[list[Count], FailFast]


class _Tokens(Schema):
  """Fields of a tokenizer from SentencePiece, with Gemma's special tokens."""

  model: Annotated[Any, one_of('llama')]
  tokens: Annotated[list[str], FailFast]
  scores: Annotated[list[Number], FailFast]
  token_type: _Counts
  padding_token_id: Annotated[Any, one_of(tokenizers.PAD)] = tokenizers.PAD
  eos_token_id: Count = tokenizers.EOS
  bos_token_id: Annotated[Any, one_of(tokenizers.BOS)] = tokenizers.BOS
  unknown_token_id: Annotated[Any, one_of(tokenizers.UNK)] = tokenizers.UNK
  eot_token_id: Annotated[int, pydantic.Field(ge=-1, le=2**32 - 1)] | None = (
    None
  )
  suppress_tokens: _Counts | None = None
  add_space_prefix: Annotated[Any, one_of(False, 0)] = False
  chat_template: str | None = None


def read_tokenizer(file: File) -> tokenizers.Tokenizer:
  """Returns the tokenizer of a file."""
  stored = file.under('tokenizer.ggml.')
  stored['chat_template'] = file.fields.get('tokenizer.chat_template')
  tokens = stored.get('tokens')
  limit = len(tokens) if isinstance(tokens, list) else 0
  for name in ('scores', 'token_type', 'suppress_tokens'):
    # A list takes a multiple of the array's memory.
    if isinstance(x := stored.get(name), np.ndarray) and len(x) <= limit:
      # An infinitely low score is the lowest one.
      x = np.where(x == -np.inf, _LOWEST_SCORE, x) if name == 'scores' else x
      stored[name] = x.tolist()
  fields = _Tokens.check(
    stored, f'model: {file.path}', 'give another conversion of the model'
  )
  # The end-of-sequence token of a tuned model may be its end-of-turn token.
  ends = fields.eos_token_id, fields.eot_token_id
  stops = [i for i in ends if i not in _NO_TOKEN]
  suppressed = fields.suppress_tokens or []
  try:
    if max(stops + suppressed) >= len(fields.tokens):
      raise IndexError
    tokenizer = tokenizers.from_pieces(_vocabulary(fields))
  except (ValueError, IndexError, RuntimeError) as error:
    raise ValueError(
      f'model: {file.path} has a damaged tokenizer; fetch it again.'
    ) from error
  if fields.chat_template is not None:
    end = tokenizer.token_id(_TURN_TAGS[1])
    stops += [] if end is None else [end]
  tokenizer = tokenizer.with_stops(*stops, suppress_tokens=suppressed)
  return dataclasses.replace(tokenizer, chat_template=fields.chat_template)


def _vocabulary(fields: _Tokens) -> Iterator[tokenizers.Piece]:
  lists = fields.tokens, fields.scores, fields.token_type
  for i, (text, score, number) in enumerate(zip(*lists, strict=True)):
    if i == tokenizers.UNK:
      kind = tokenizers.Kind.UNKNOWN
    elif _TEXT_TOKENS.fullmatch(text):
      kind = tokenizers.Kind.USER_DEFINED
    else:
      kind = tokenizers.Kind(number)
    # SentencePiece replaces the spaces of a text before it matches pieces.
    yield tokenizers.Piece(text.replace(' ', tokenizers.SPACE), score, kind)


# Numbers that are dequantised at a time, rounded up to a row.
_CHUNK_SIZE = 2**18


@functools.cache
def _tensor_names() -> Any:
  # More layers than a file has.
  return library().get_tensor_name_map(library().MODEL_ARCH.GEMMA3, 100)


def gguf_name(name: str) -> str:
  """Returns llama.cpp's name of a tensor from Hugging Face's name."""
  return _tensor_names().get_name(name, ('.weight',))


@functools.lru_cache(maxsize=2)
def open_file(path: pathlib.Path, versions: Hashable) -> tuple[Any, Any, Any]:
  """Returns config, tokenizer and tensors, cached: reading takes seconds."""
  del versions
  file = read_header(path)
  config = read_config(file)
  check_layers(path, file.tensors, config.num_hidden_layers, 'blk.')
  tensors = {
    name: _make_handle(path, file.tensors[stored])
    for mapping in param_mapping.param_mappings(config)
    for name in mapping.names
    if (stored := gguf_name(name)) in file.tensors
  }
  return config, read_tokenizer(file), tensors


def _make_handle(path: pathlib.Path, tensor: Tensor) -> TensorHandle:
  """Returns the handle of a tensor of a file, read in float32."""

  def read(first: int, last: int) -> np.ndarray:
    rows = np.empty((last - first, *tensor.shape[1:]), np.float32)
    # Dequantising takes a multiple of its result's memory.
    step = max(1, _CHUNK_SIZE // math.prod(tensor.shape[1:]))
    row_bytes = tensor.size // tensor.shape[0]
    with path.open('rb') as file:
      file.seek(tensor.at + first * row_bytes)
      for i in range(0, last - first, step):
        part = rows[i : i + step]
        data = np.fromfile(file, np.uint8, len(part) * row_bytes)
        numbers = library().dequantize(data.reshape(len(part), -1), tensor.kind)
        part[...] = numbers.reshape(part.shape)
    # Norms, the only vectors, are stored plus 1.
    return rows - np.float32(1) if rows.ndim == 1 else rows

  return TensorHandle(tensor.shape, 'F32', read)
