"""GGUF files of Gemma 2 and Gemma 3, as llama.cpp's converter writes them.

One file holds everything: what the model is, its tokenizer, and its tensors,
most of them quantised in blocks of 32 or 256 numbers. The tensors are those of
a Hugging Face folder by other names, so that `huggingface.leaves` says what
becomes of them; what differs:

- The weight of every norm is stored plus 1.
- `ffn_norm` is the norm before the feed-forward layer, not one after attention.
- Not said are: the base of local positions (10,000), and that the queries of
  the two 27B models are scaled by their width; in most files also not, which
  layers are local.
- A token's type is SentencePiece's, but those of turns, the unused ones and a
  few more are called control or normal, though a text may contain them; and
  tokens of several spaces hold spaces, where SentencePiece has what stands for
  them.

A quantised tensor becomes float32 as the public `gguf` library has it. Its
reader takes ten seconds and most of a gigabyte for Gemma's 262,144 tokens, so
that headers are read here.

Source: ggml's docs/gguf.md, and llama.cpp's convert_hf_to_gguf.py.
"""

import math
import pathlib
import re
import struct
import types
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from cascades import extras
from cascades.models import families, huggingface, language, tokenizers

SUFFIX = '.gguf'
# What matrices can be written as, by the names of numpy's types.
STORED = {'float32': 'F32', 'float16': 'F16', 'bfloat16': 'BF16'}
_FILE_TYPES = {'F32': 0, 'F16': 1, 'BF16': 32}
_FAMILIES = {'gemma2': 'gemma2', 'gemma3': 'gemma3_text'}
# Of so many layers the last is global, where a file does not say it.
_PERIODS = {'gemma2': 2, 'gemma3': 6}
# Queries are scaled by the width: of the models of so many layers.
_BY_WIDTH = {('gemma2', 46), ('gemma3', 62)}
# Of the types of values in a header: strings and arrays hold others.
_STRING, _ARRAY = 8, 9
_SCALARS = dict(enumerate('BbHhIif?')) | {10: 'Q', 11: 'q', 12: 'd'}
_NAMES = {
  'model.embed_tokens.weight': 'token_embd.weight',
  'model.norm.weight': 'output_norm.weight',
}
_IN_LAYER = {
  'input_layernorm': 'attn_norm',
  'post_attention_layernorm': 'post_attention_norm',
  'pre_feedforward_layernorm': 'ffn_norm',
  'post_feedforward_layernorm': 'post_ffw_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
}
_TURNS = '<start_of_turn>', '<end_of_turn>'
# Tokens that a text may contain, whatever a file calls them.
_IN_TEXTS = re.compile(
  '|'.join(_TURNS) + r'|<unused\d+>|<mask>|<2mass>|\[@BOS@\]'
)
_LOCAL = 'sliding_attention'
# Rows that are dequantised at a time.
_STEP = 1024


class Tensor(NamedTuple):
  """Where a tensor lies in a file.

  Attributes:
    shape: As numpy has it: rows first.
    kind: Its type, a `gguf.GGMLQuantizationType`.
    at: Its first byte.
    size: Its bytes.
  """

  shape: tuple[int, ...]
  kind: Any
  at: int
  size: int


class File(NamedTuple):
  """The header of a file.

  Attributes:
    path: The file.
    fields: What it says of itself, by name.
    tensors: By name.
  """

  path: pathlib.Path
  fields: dict[str, Any]
  tensors: dict[str, Tensor]

  def get(self, name: str, default: Any = None) -> Any:
    """A field of its architecture."""
    return self.fields.get(f'{self.family}.{name}', default)

  def whole(self, name: str, usual: int | None = None, **bounds: int) -> int:
    """Returns a field of its architecture that must be a whole number.

    Args:
      name: Of the field.
      usual: What an absent one is.
      **bounds: As `families.whole` takes them.

    Raises:
      ValueError: It is none.
    """
    name, value = f'{self.family}.{name}', self.get(name, usual)
    return families.whole({name: value}, name, where=self._where, **bounds)

  def number(
    self, name: str, usual: float | None = None, **bounds: float
  ) -> float:
    """Returns a field of its architecture that must be a number; as `whole`."""
    name, value = f'{self.family}.{name}', self.get(name, usual)
    return families.number({name: value}, name, where=self._where, **bounds)

  @property
  def _where(self) -> str:
    """How errors of fields begin."""
    return f'model: {self.path}'

  @property
  def family(self) -> str:
    """llama.cpp's name of the architecture."""
    return str(self.fields.get('general.architecture'))


def _library() -> types.ModuleType:
  """Imports the `gguf` library, an optional dependency.

  Raises:
    ValueError: It is not installed.
  """
  try:
    import gguf
  except ModuleNotFoundError as error:
    raise ValueError(extras.missing('model', 'gguf', 'gguf')) from error
  return gguf


def find(path: str | pathlib.Path) -> pathlib.Path | None:
  """The file that a path stands for; None if it stands for something else.

  Args:
    path: A file, or a folder that holds one and no safetensors.

  Raises:
    ValueError: The folder holds several.
  """
  path = pathlib.Path(path)
  if path.is_file():
    return path
  # A config.json may lie beside a GGUF file.
  if not path.is_dir() or any(path.glob('*.safetensors')):
    return None
  files = sorted(path.glob(f'*{SUFFIX}'))
  if len(files) > 1:
    names = ', '.join(file.name for file in files)
    raise ValueError(
      f'model: {path} holds several GGUF files ({names}); give one of them.'
    )
  return files[0] if files else None


# --- Reading ---


def read_header(path: pathlib.Path) -> File:
  """What a file says of itself, and where its tensors lie.

  Raises:
    ValueError: It is no GGUF file, of a version or a type that is not known, or
      cut short.
  """
  with path.open('rb') as file:
    magic, version = file.read(4), file.read(4)
    if magic != b'GGUF':
      raise ValueError(
        f'model: {path} is no GGUF file; give one, or a folder that holds a'
        ' model.'
      )
    version = int.from_bytes(version, 'little')
    if version not in (2, 3):
      raise ValueError(
        f'model: {path} is GGUF of version {version}, and 2 and 3 can be read;'
        ' convert it anew.'
      )
    try:
      return _read_rest(path, file)
    # Whatever a damaged header leads to: lengths that make no sense, texts that
    # are none, an end before the end.
    except (
      *(EOFError, MemoryError, OverflowError),
      *(struct.error, UnicodeDecodeError),
    ) as e:
      raise ValueError(
        f'model: {path} is cut short or damaged; fetch it again.'
      ) from e


def _read_rest(path: pathlib.Path, file: BinaryIO) -> File:
  """What comes after the version."""
  end = path.stat().st_size
  tensors, fields = {}, {}
  count, of_fields = _scalars(file, 'Q', 2)
  if max(count, of_fields) > end:
    raise EOFError
  for _ in range(of_fields):
    name = _text(file)
    fields[name] = _value(file, end)
  headers = []
  for _ in range(count):
    name, (axes,) = _text(file), _scalars(file, 'I')
    shape = _scalars(file, 'Q', min(axes, 8))[::-1]
    kind, at = *_scalars(file, 'I'), *_scalars(file, 'Q')
    headers.append((name, shape, kind, at))
  step = fields.get('general.alignment', 32)
  if not isinstance(step, int) or step < 1:
    raise EOFError
  start = -(-file.tell() // step) * step
  for name, shape, kind, at in headers:
    if name in tensors:
      raise ValueError(
        f'model: {path} has the tensor {name} twice; fetch it again.'
      )
    kind, size = _size(path, name, shape, kind)
    tensors[name] = Tensor(shape, kind, start + at, size)
    if start + at + size > end:
      raise EOFError
  return File(path, fields, tensors)


def _bytes(file: BinaryIO, count: int) -> bytes:
  """The next bytes.

  Raises:
    EOFError: There are fewer.
  """
  found = file.read(count)
  if len(found) < count:
    raise EOFError
  return found


def _scalars(file: BinaryIO, code: str, count: int = 1) -> tuple:
  """The next numbers, little-endian, by their letter in `struct`."""
  layout = f'<{count}{code}'
  return struct.unpack(layout, _bytes(file, struct.calcsize(layout)))


def _text(file: BinaryIO) -> str:
  """The next text."""
  return _bytes(file, *_scalars(file, 'Q')).decode()


def _value(file: BinaryIO, end: int) -> Any:
  """The next value, whose type stands before it."""
  (kind,) = _scalars(file, 'I')
  if kind == _STRING:
    return _text(file)
  if kind != _ARRAY:
    return _scalars(file, _code(kind))[0]
  (kind,), (count,) = _scalars(file, 'I'), _scalars(file, 'Q')
  if count > end:
    raise EOFError
  if kind == _STRING:
    return [_text(file) for _ in range(count)]
  return list(_scalars(file, _code(kind), count))


def _code(kind: int) -> str:
  """The letter of a type of numbers."""
  if kind not in _SCALARS:
    raise EOFError
  return _SCALARS[kind]


def _size(
  path: pathlib.Path, name: str, shape: tuple[int, ...], number: int
) -> tuple[Any, int]:
  """A tensor's type by its number, and its bytes.

  Raises:
    ValueError: There is no such type, or nobody can read it.
  """
  gguf = _library()

  try:
    kind = gguf.GGMLQuantizationType(number)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    # Of one block, which says whether it can.
    gguf.dequantize(np.zeros((1, size), np.uint8), kind)
  except (ValueError, KeyError, NotImplementedError):
    raise ValueError(
      f'model: {path} has the tensor {name} of type {number}, which cannot be'
      ' read; give a file in F32, F16, BF16, Q8_0, Q4_0, Q5_0, Q4_K, Q5_K or'
      ' Q6_K.'
    ) from None
  return kind, math.prod(shape) // block * size


def config_of(file: File) -> dict[str, Any]:
  """What a config.json would say of the model.

  Raises:
    ValueError: It is of another family, or in several files.
  """
  path, family = file.path, file.family
  if family not in _FAMILIES:
    raise ValueError(
      f'model: {path} is of the architecture {family!r}; give a Gemma 2 or a'
      ' Gemma 3 (gemma2, gemma3).'
    )
  parts = {'split.count': 1} | file.fields
  if families.whole(parts, 'split.count', 0, where=f'model: {path}') > 1:
    raise ValueError(
      f'model: {path} is one of several files; join them with'
      " llama.cpp's llama-gguf-split --merge first."
    )
  config = _sizes_of(file)
  table = file.tensors.get('token_embd.weight')
  if table is None:
    raise ValueError(f'model: {path} does not say its tokens; fetch it again.')
  layers, width = config['num_hidden_layers'], config['hidden_size']
  by_width = (family, layers) in _BY_WIDTH
  matrices = {t.kind.name for t in file.tensors.values() if len(t.shape) > 1}
  config |= {
    'model_type': _FAMILIES[family],
    'vocab_size': table.shape[0],
    'query_pre_attn_scalar': width // config['num_attention_heads']
    if by_width
    else config['head_dim'],
    'tie_word_embeddings': 'output.weight' not in file.tensors,
    # Norms are kept in float32 beside matrices of whatever type.
    'dtype': 'bfloat16' if matrices == {'BF16'} else 'float32',
  }
  return config | _attention_of(file, layers)


def _sizes_of(file: File) -> dict[str, Any]:
  """What a config.json would say of sizes, all of which a file must say.

  Raises:
    ValueError: It does not, or one is no number.
  """
  named = {
    'hidden_size': 'embedding_length',
    'intermediate_size': 'feed_forward_length',
    'num_hidden_layers': 'block_count',
    'num_attention_heads': 'attention.head_count',
    'num_key_value_heads': 'attention.head_count_kv',
    'head_dim': 'attention.key_length',
    'sliding_window': 'attention.sliding_window',
    'rms_norm_eps': 'attention.layer_norm_rms_epsilon',
  }
  usual = {'sliding_window': 4096} if file.family == 'gemma2' else {}
  config = {}
  for ours, theirs in named.items():
    if file.get(theirs, usual.get(ours)) is None:
      raise ValueError(
        f'model: {file.path} does not say its {theirs}; fetch it again.'
      )
    if ours == 'rms_norm_eps':
      config[ours] = file.number(theirs)
      continue
    most = {'high': families.MOST_LAYERS} if theirs == 'block_count' else {}
    config[ours] = file.whole(theirs, usual.get(ours), **most)
  return config


def _attention_of(file: File, layers: int) -> dict[str, Any]:
  """What a config.json would say of positions, soft caps and local layers.

  Raises:
    ValueError: Something is no number.
  """
  config: dict[str, Any] = {}
  family = file.family
  if family == 'gemma2':
    for name, usual in (('attn', 50.0), ('final', 30.0)):
      name = f'{name}_logit_softcapping'
      config[name] = file.number(name, usual)
    config['rope_theta'] = file.number('rope.freq_base', 10_000.0)
  else:
    config['rope_theta'] = file.number('rope.freq_base', 1_000_000.0)
    config['rope_local_base_freq'] = file.number('rope.freq_base_swa', 10_000.0)
  # llama.cpp has 0 for none.
  factor = file.number('rope.scaling.factor', or_null=True, low=-1.0)
  kind = file.get('rope.scaling.type', 'none' if factor is None else 'linear')
  if kind != 'none':
    config['rope_scaling'] = {'rope_type': kind, 'factor': factor or 1.0}
  name = 'attention.sliding_window_pattern'
  local = file.get(name)
  if not isinstance(local, list):
    local = _are_local(file.whole(name, _PERIODS[family], low=0), layers)
  kinds = 'full_attention', _LOCAL
  config['layer_types'] = [kinds[bool(x)] for x in local]
  return config


def _are_local(period: int, layers: int) -> list[bool]:
  """Which layers are local: all but the last of so many; of 0, all."""
  return [not period or i % period < period - 1 for i in range(layers)]


def tokenizer_of(file: File) -> tokenizers.Tokenizer:
  """The tokenizer that a file holds.

  Raises:
    ValueError: It is none of SentencePiece's, or not one of Gemma's.
  """
  said = {
    name.removeprefix('tokenizer.ggml.'): value
    for name, value in file.fields.items()
    if name.startswith('tokenizer.')
  }
  model, names = said.get('model'), said.get('tokens')
  scores, types = said.get('scores'), said.get('token_type')
  lists = all(x and isinstance(x, list) for x in (names, scores, types))
  if model != 'llama' or not lists:
    raise ValueError(
      f'model: {file.path} has the tokenizer {model!r}, which is none of'
      " SentencePiece's; give another conversion of the model."
    )
  ids = [
    said.get(f'{name}_token_id', i)
    for i, name in enumerate(('padding', 'eos', 'bos', 'unknown'))
  ]
  # Of a tuned model, what ends an answer may stand for what ends a text.
  eot = families.whole(
    said, 'eot_token_id', 0, len(names) - 1, True, f'model: {file.path}'
  )
  stops = [ids[1], eot]
  wanted = [tokenizers.PAD, ids[1], tokenizers.BOS, tokenizers.UNK]
  if ids != wanted or not len(names) == len(scores) == len(types):
    raise ValueError(
      f'model: {file.path} has a tokenizer whose special tokens are {ids}, not'
      f" Gemma's; give another conversion of the model."
    )
  try:
    tokenizer = tokenizers.of_pieces(
      tokenizers.of_texts(
        _piece(i, *each)
        for i, each in enumerate(zip(names, scores, types, strict=True))
      ),
      dummy_prefix=bool(said.get('add_space_prefix', False)),
    )
  except (ValueError, IndexError, TypeError, AttributeError) as e:
    raise ValueError(
      f'model: {file.path} has a damaged tokenizer; fetch it again.'
    ) from e
  if 'tokenizer.chat_template' in file.fields:
    stops += [tokenizer.id_of(_TURNS[1])]
  return tokenizer.ending_at(*(i for i in stops if i is not None))


def _piece(i: int, name: str, score: float, kind: int) -> tokenizers.Piece:
  """A token of a file, as SentencePiece has it."""
  kinds = tokenizers.Kind
  if i == tokenizers.UNK:
    kind = kinds.UNKNOWN
  elif _IN_TEXTS.fullmatch(name):
    kind = kinds.USER_DEFINED
  # SentencePiece looks for runs of spaces in a text that has none any more.
  return tokenizers.Piece(
    name.replace(' ', tokenizers.SPACE), score, kinds(kind)
  )


class Handle:
  """A file's tensors, as safetensors gives those of its own."""

  def __init__(self, path: pathlib.Path, tensors: Mapping[str, Tensor]):
    self._path, self._tensors = path, tensors

  def get_slice(self, name: str) -> huggingface.Rows:
    """A tensor that is read some rows at a time."""
    tensor = self._tensors[name]

    def read(first: int, last: int) -> np.ndarray:
      found = np.empty((last - first, *tensor.shape[1:]), np.float32)
      # What dequantising holds beside its result is a multiple of it.
      for i in range(first, last, _STEP):
        end = min(i + _STEP, last)
        found[i - first : end - first] = _dequantised(
          self._path, tensor, i, end
        )
      # A norm.
      return found - np.float32(1) if found.ndim == 1 else found

    return huggingface.Rows(tensor.shape, 'F32', read)


def _dequantised(
  path: pathlib.Path, tensor: Tensor, first: int, last: int
) -> np.ndarray:
  """Some rows of a tensor, in float32."""
  gguf = _library()

  rows, row = last - first, tensor.size // tensor.shape[0]
  with path.open('rb') as file:
    file.seek(tensor.at + first * row)
    data = np.fromfile(file, np.uint8, rows * row)
  found = gguf.dequantize(data.reshape(rows, -1), tensor.kind)
  return found.reshape(rows, *tensor.shape[1:])


def places(file: File, config: Mapping[str, Any]) -> dict[str, tuple]:
  """Where a file has its tensors, as `huggingface.places` has it.

  Args:
    file: A header.
    config: What `config_of` gives.
  """
  handle, found = Handle(file.path, file.tensors), {}
  for leaf in huggingface.leaves(config):
    for name in leaf.names:
      if (stored := name_of(name)) in file.tensors:
        found[name] = handle, stored
  return found


def name_of(name: str) -> str:
  """llama.cpp's name of a tensor, of Hugging Face's."""
  if name in _NAMES:
    return _NAMES[name]
  layer, _, rest = name.removeprefix('model.layers.').partition('.')
  return f'blk.{layer}.{_IN_LAYER[rest.removesuffix(".weight")]}.weight'


# --- Writing ---


class _Written(np.ndarray):
  """An array that says why it could not be written, as NumPy's own does not."""

  def tofile(self, fid, sep='', format='%s'):
    """Writes its bytes."""
    del sep, format
    fid.write(self.data)


def save(
  path: pathlib.Path,
  model: language.LanguageModel,
  params: language.Params,
  tokenizer: tokenizers.Tokenizer,
  *,
  gate_by_rows: bool = True,
  stored: str | None = None,
) -> None:
  """Writes a file that llama.cpp and `load_model` open.

  Matrices are written as they are, in F32, F16 or BF16, and norms in F32, plus
  1: what that rounds away (at the most 2^-24 of it, and next to never anything
  of what was bfloat16 once) is lost. So are rows that pad the table.

  Args:
    path: Must not be there.
    model: A Gemma 2 or a Gemma 3.
    params: gemma's tree, of arrays of numpy's or JAX's.
    tokenizer: The model's.
    gate_by_rows: As for `huggingface.save`.
    stored: What matrices are rounded to; a key of `STORED`, or None for what
      they are.

  Raises:
    ValueError: The format has no word for something of the model.
  """
  gguf = _library()

  config = huggingface.config_of(model, params, tokenizer.stops)
  families = {theirs: ours for ours, theirs in _FAMILIES.items()}
  family = families.get(config['model_type'])
  if family is None:
    raise ValueError(
      f'model: a {config["model_type"]} cannot be written as GGUF here; give a'
      ' Gemma 2 or a Gemma 3, or write a Hugging Face folder.'
    )
  kind = gguf.GGMLQuantizationType[STORED[stored or str(model.dtype(params))]]
  writer = gguf.GGUFWriter(path, family)
  _write_fields(writer, family, config, kind.name)
  _write_tokenizer(writer, tokenizer)

  norm = gguf.GGMLQuantizationType.F32
  tensors = [
    (name, leaf, number)
    for leaf in huggingface.leaves(config, gate_by_rows)
    for number, name in enumerate(leaf.names)
  ]
  # A header stands before what it tells of, and no tensor is held for long.
  for name, leaf, number in tensors:
    x = huggingface.get(params, leaf.path)
    x = jax.ShapeDtypeStruct(x.shape, x.dtype)
    shape = list(jax.eval_shape(leaf.unpack, x)[number].shape)
    if leaf.path == huggingface.TABLE:
      shape[0] = tokenizer.vocab_size
    of = kind if len(shape) > 1 else norm
    block, size = gguf.GGML_QUANT_SIZES[of]
    size *= math.prod(shape) // block
    writer.add_tensor_info(name_of(name), shape, np.dtype('f4'), size, of)
  try:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, leaf, number in tensors:
      x = leaf.unpack(np.asarray(huggingface.get(params, leaf.path)))[number]
      if leaf.path == huggingface.TABLE:
        x = x[: tokenizer.vocab_size]
      x = np.ascontiguousarray(x, np.float32)
      x = x + np.float32(1) if x.ndim == 1 else gguf.quantize(x, kind)
      writer.write_tensor_data(x.view(_Written))
  finally:
    writer.close()


def _write_fields(
  writer: Any, family: str, config: Mapping[str, Any], kind: str
) -> None:
  """Writes what a model is.

  Raises:
    ValueError: The format has no word for it.
  """
  layers, heads = config['num_hidden_layers'], config['num_attention_heads']
  width, dim = config['hidden_size'], config['head_dim']
  scale = width // heads if (family, layers) in _BY_WIDTH else dim
  if config['query_pre_attn_scalar'] != scale:
    raise ValueError(
      'model: its queries are scaled by'
      f' {config["query_pre_attn_scalar"]}, and GGUF has no other than {scale}'
      f' for a {family} of {layers} layers; write a Hugging Face folder.'
    )
  writer.add_file_type(_FILE_TYPES[kind])
  writer.add_context_length(config['max_position_embeddings'])
  writer.add_embedding_length(width)
  writer.add_feed_forward_length(config['intermediate_size'])
  writer.add_block_count(layers)
  writer.add_head_count(heads)
  writer.add_head_count_kv(config['num_key_value_heads'])
  writer.add_key_length(dim)
  writer.add_value_length(dim)
  writer.add_layer_norm_rms_eps(config['rms_norm_eps'])
  writer.add_sliding_window(config['sliding_window'])
  local = [kind == _LOCAL for kind in config['layer_types']]
  # A number, which is what llama.cpp asks for. Of two that will do, its own.
  periods = _PERIODS[family], *range(1, layers + 2)
  period = next((n for n in periods if _are_local(n, layers) == local), None)
  if period is None:
    raise ValueError(
      'model: its global layers do not come at even distances, and GGUF has no'
      ' word for others; write a Hugging Face folder.'
    )
  writer.add_sliding_window_pattern(period)
  writer.add_rope_freq_base(config['rope_theta'])
  if family == 'gemma2':
    writer.add_attn_logit_softcapping(config['attn_logit_softcapping'])
    writer.add_final_logit_softcapping(config['final_logit_softcapping'])
  else:
    writer.add_rope_freq_base_swa(config['rope_local_base_freq'])
  scaling = config.get('rope_scaling')
  if scaling:
    gguf = _library()

    writer.add_rope_scaling_type(gguf.RopeScalingType(scaling['rope_type']))
    writer.add_rope_scaling_factor(scaling['factor'])


def _write_tokenizer(writer: Any, tokenizer: tokenizers.Tokenizer) -> None:
  """Writes a tokenizer."""
  pieces = list(tokenizer.vocabulary())
  writer.add_tokenizer_model('llama')
  writer.add_tokenizer_pre('default')
  # What a text may contain is looked for before its spaces are replaced.
  spaced = tokenizers.Kind.USER_DEFINED
  writer.add_token_list(
    [
      text.replace(tokenizers.SPACE, ' ') if kind == spaced else text
      for text, _, kind in pieces
    ]
  )
  writer.add_token_scores([piece.score for piece in pieces])
  writer.add_token_types([int(piece.kind) for piece in pieces])
  writer.add_pad_token_id(tokenizers.PAD)
  writer.add_eos_token_id(tokenizers.EOS)
  writer.add_bos_token_id(tokenizers.BOS)
  writer.add_unk_token_id(tokenizers.UNK)
  for stop in tokenizer.stops[1:2]:
    writer.add_eot_token_id(stop)
  writer.add_add_bos_token(True)
  writer.add_add_space_prefix(False)
