"""GGUF files of Gemma 2 and Gemma 3, as llama.cpp's converter writes them.

One file holds the fields of the model, its tokenizer and its tensors,
most of them quantised in blocks of 32 or 256 numbers. The tensors are those of
a Hugging Face folder under other names, so that `param_mapping.param_mappings`
applies to them. The differences are:

- The weight of every norm is stored plus 1.
- `ffn_norm` is the norm before the feed-forward layer, not one after attention.
- Files lack the base of local positions (10,000), and the fact that the two 27B
  models scale queries by their width; most files lack the layers that are
  local.
- The kinds of tokens are SentencePiece's, except that tokens of turns, unused
  tokens and a few more are called control or normal, though a text may contain
  them; and tokens of several spaces contain spaces, where SentencePiece has
  `tokenizers.SPACE`.

The public `gguf` library dequantises tensors to float32.

Source: llama.cpp's convert_hf_to_gguf.py.
"""

import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
import pydantic

from cascades import arguments
from cascades.models import (
  config_json,
  gguf_header,
  param_mapping,
  tensor_files,
  tokenizers,
)
from cascades.untrusted.schema import (
  Count,
  FailFast,
  NotNegative,
  Number,
  Positive,
  Schema,
  Size,
)

SUFFIX = '.gguf'
FAMILIES = {'gemma2': 'gemma2', 'gemma3': 'gemma3_text'}
# Models that scale queries by their width: family and number of layers.
_SCALED_BY_WIDTH = {('gemma2', 46), ('gemma3', 62)}


def _gguf_field(name: str, default: Any = ...) -> Any:
  """Returns a field by its name in a file."""
  return pydantic.Field(default, alias=name)


def _to_list(field: Any) -> Any:
  """Converts an array of a header to a list."""
  return field.tolist() if isinstance(field, np.ndarray) else field


def _to_booleans(field: Any) -> Any:
  """Converts an array of 0 and 1 to a list of booleans."""
  is_integer = isinstance(field, np.ndarray) and field.dtype.kind in 'iu'
  if is_integer and ((field == 0) | (field == 1)).all():
    field = field != 0
  return _to_list(field)


def _to_boolean(field: Any) -> Any:
  """Converts 0 and 1 to a boolean."""
  return field != 0 if type(field) is int and field in (0, 1) else field


def _to_scores(field: Any) -> Any:
  """Converts an array of scores to a list, with the lowest score for -inf."""
  if isinstance(field, np.ndarray) and field.dtype.kind == 'f':
    lowest = field.dtype.type(_LOWEST_SCORE)
    field = np.where(np.isneginf(field), lowest, field)
  return _to_list(field)


def _token_or_none(field: Any) -> Any:
  """Converts -1, in 32 bits, to None."""
  is_none = type(field) is int and field in (-1, 2**32 - 1)
  return None if is_none else field


# Lower than any score, and representable in float32.
_LOWEST_SCORE = -(2.0**99)
_Counts = Annotated[list[Count], FailFast, pydantic.BeforeValidator(_to_list)]
_Local = Annotated[Count | list[bool], pydantic.BeforeValidator(_to_booleans)]


class _SplitFields(Schema):
  """The field that tells if a model is split into several files."""

  parts: Count = _gguf_field('split.count', 1)


class _Gemma3(Schema):
  """Fields of config.json, by their names in a file without its family."""

  hidden_size: Size = _gguf_field('embedding_length')
  intermediate_size: Size = _gguf_field('feed_forward_length')
  num_hidden_layers: config_json.Layers = _gguf_field('block_count')
  num_attention_heads: Size = _gguf_field('attention.head_count')
  num_key_value_heads: Size = _gguf_field('attention.head_count_kv')
  head_dim: Size = _gguf_field('attention.key_length')
  sliding_window: Size = _gguf_field('attention.sliding_window')
  rms_norm_eps: Positive = _gguf_field('attention.layer_norm_rms_epsilon')
  rope_theta: Positive = _gguf_field('rope.freq_base', 1_000_000.0)
  rope_local_base_freq: Positive = _gguf_field('rope.freq_base_swa', 10_000.0)
  # llama.cpp writes 0 for no factor.
  factor: NotNegative | None = _gguf_field('rope.scaling.factor', None)
  rope_type: str | None = _gguf_field('rope.scaling.type', None)
  final_logit_softcapping: Positive | None = _gguf_field(
    'final_logit_softcapping', None
  )
  # A period of layers, the last one global; or a boolean for each layer.
  local: _Local = _gguf_field('attention.sliding_window_pattern', 6)


class _Gemma2(_Gemma3):
  """Fields of a Gemma 2, which caps its logits."""

  sliding_window: Size = _gguf_field('attention.sliding_window', 4096)
  attn_logit_softcapping: Positive = _gguf_field('attn_logit_softcapping', 50.0)
  final_logit_softcapping: Positive = _gguf_field(
    'final_logit_softcapping', 30.0
  )
  rope_theta: Positive = _gguf_field('rope.freq_base', 10_000.0)
  local: _Local = _gguf_field('attention.sliding_window_pattern', 2)


class _Tokens(Schema):
  """Fields of a tokenizer."""

  tokens: Annotated[list[str], FailFast]
  scores: Annotated[
    list[Number], FailFast, pydantic.BeforeValidator(_to_scores)
  ]
  token_type: _Counts
  padding_token_id: Count = tokenizers.PAD
  eos_token_id: Count = tokenizers.EOS
  bos_token_id: Count = tokenizers.BOS
  unknown_token_id: Count = tokenizers.UNK
  eot_token_id: Annotated[
    Count | None, pydantic.BeforeValidator(_token_or_none)
  ] = None
  suppress_tokens: _Counts | None = None
  add_space_prefix: Annotated[bool, pydantic.BeforeValidator(_to_boolean)] = (
    False
  )


_SCHEMAS = {'gemma2': _Gemma2, 'gemma3': _Gemma3}
_NAMES = {
  'model.embed_tokens.weight': 'token_embd.weight',
  'model.norm.weight': 'output_norm.weight',
}
_LAYER_NAMES = {
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
_TURN_TAGS = '<start_of_turn>', '<end_of_turn>'
# Tokens that a text may contain, whatever kind a file gives them.
_TEXT_TOKENS = re.compile(
  '|'.join(_TURN_TAGS)
  + r'|<unused\d+>|<mask>|<2mass>|\[@BOS@\]|<(start|end)_of_image>'
)
# Numbers that are dequantised at a time, rounded up to a row.
_CHUNK_SIZE = 2**18


def is_gguf(path: pathlib.Path) -> bool:
  """Returns True for a GGUF file, or a folder with one and no safetensors.

  A file is recognised by its suffix or by its first bytes.
  """
  if path.is_dir():
    # A folder may have a config.json and a GGUF file.
    has_safetensors = any(path.glob('*.safetensors'))
    return not has_safetensors and any(path.glob(f'*{SUFFIX}'))
  return path.suffix == SUFFIX or (
    path.is_file() and gguf_header.has_magic(path)
  )


def find_file(path: pathlib.Path) -> pathlib.Path:
  """Returns the GGUF file of a path."""
  if not path.is_dir():
    return path
  files = sorted(path.glob(f'*{SUFFIX}'))
  if not files:
    raise ValueError(f'model: {path} holds no GGUF file; give one.')
  if len(files) > 1:
    names = ', '.join(file.name for file in files)
    raise ValueError(
      f'model: {path} holds several GGUF files ({names}); give one of them.'
    )
  return files[0]


def read_config(file: gguf_header.File) -> dict[str, Any]:
  """Returns the config.json that describes the model of a file."""
  path, family = file.path, file.family
  if family not in FAMILIES:
    raise ValueError(
      f'model: {path} has the unsupported architecture'
      f' {arguments.quote(family)}; give a Gemma 2 or 3 (gemma2, gemma3).'
    )
  split = _SplitFields.check(file.fields, f'model: {path}')
  if split.parts > 1:
    raise ValueError(
      f'model: {path} is one of several files; join them with'
      " llama.cpp's llama-gguf-split --merge first."
    )
  table = file.tensors.get('token_embd.weight')
  fields = _SCHEMAS[family].check(
    _as_one_number(file.under(f'{family}.')), f'model: {path}'
  )
  if table is None:
    raise ValueError(f'model: {path} lacks token_embd.weight; fetch it again.')
  renamed = {*_SCHEMAS[family].model_fields} - {'factor', 'rope_type', 'local'}
  matrices = {t.kind.name for t in file.tensors.values() if len(t.shape) > 1}
  config = {
    **{name: x for name, x in fields if name in renamed},
    'model_type': FAMILIES[family],
    'vocab_size': table.shape[0],
    'query_pre_attn_scalar': _query_scale(family, dict(fields)),
    'tie_word_embeddings': 'output.weight' not in file.tensors,
    # Norms are float32 beside matrices of any type.
    'dtype': 'bfloat16' if matrices == {'BF16'} else 'float32',
    'layer_types': _layer_types(fields),
  }
  rope = fields.rope_type or ('none' if fields.factor is None else 'linear')
  if rope != 'none':
    config['rope_scaling'] = {'rope_type': rope, 'factor': fields.factor or 1.0}
  return config


def _query_scale(family: str, config: Mapping[str, Any]) -> int:
  """Returns the divisor of the square of queries, `query_pre_attn_scalar`."""
  if (family, config['num_hidden_layers']) in _SCALED_BY_WIDTH:
    return config['hidden_size'] // config['num_attention_heads']
  return config['head_dim']


def _layer_types(fields: _Gemma3) -> list[str]:
  """Returns the attention type of each layer."""
  local = fields.local
  if not isinstance(local, list):
    local = local_layers(local, fields.num_hidden_layers)
  return [config_json.SLIDING if x else config_json.FULL for x in local]


def _as_one_number(fields: dict[str, Any]) -> dict[str, Any]:
  """Returns fields with one number in place of equal numbers of all layers."""
  layers, equal = fields.get('block_count'), {}
  for name in ('feed_forward_length', 'attention.head_count_kv'):
    values = fields.get(name)
    if not isinstance(values, np.ndarray) or not isinstance(layers, int):
      continue
    if len(values) == layers and layers and (values == values[0]).all():
      equal[name] = values[0].item()
  return fields | equal


def local_layers(period: int, layers: int) -> list[bool]:
  """Returns True for each local layer."""
  return [not period or i % period < period - 1 for i in range(layers)]


def read_tokenizer(file: gguf_header.File) -> tokenizers.Tokenizer:
  """Returns the tokenizer of a file."""
  raw = file.under('tokenizer.ggml.')
  if raw.get('model') != 'llama':
    raise ValueError(
      f'model: {file.path} has the tokenizer'
      f' {arguments.quote(raw.get("model"))}, which is not from SentencePiece;'
      ' give another conversion of the model.'
    )
  fields = _Tokens.check(raw, f'model: {file.path}')
  ids = fields.padding_token_id, fields.bos_token_id, fields.unknown_token_id
  if ids != (tokenizers.PAD, tokenizers.BOS, tokenizers.UNK):
    raise ValueError(
      f'model: {file.path} has a tokenizer whose special tokens are {ids}, not'
      f" Gemma's; give another conversion of the model."
    )
  # The end-of-sequence token of a tuned model may be its end-of-turn token.
  ends = fields.eos_token_id, fields.eot_token_id
  stops = [i for i in ends if i is not None]
  suppressed = fields.suppress_tokens or []
  try:
    if max(stops + suppressed) >= len(fields.tokens):
      raise IndexError
    tokenizer = tokenizers.from_pieces(
      tokenizers.strip_non_text(_vocabulary(fields)),
      dummy_prefix=fields.add_space_prefix,
    )
  except (ValueError, IndexError) as error:
    raise ValueError(
      f'model: {file.path} has a damaged tokenizer; fetch it again.'
    ) from error
  template = file.fields.get('tokenizer.chat_template')
  if template is not None:
    end = tokenizer.token_id(_TURN_TAGS[1])
    stops += [] if end is None else [end]
    arguments.instance(
      f'model: {file.path}: tokenizer.chat_template', template, str, 'a text'
    )
  tokenizer = tokenizer.with_stops(*stops, suppress_tokens=suppressed)
  return tokenizer.with_chat_template(template)


def _vocabulary(fields: _Tokens) -> Iterator[tokenizers.Piece]:
  """Yields the tokens of a file as SentencePiece's pieces."""
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


def _dequantise(
  path: pathlib.Path, tensor: gguf_header.Tensor, first: int, last: int
) -> np.ndarray:
  """Reads the rows [first, last) of a tensor, in float32."""
  gguf = gguf_header.library()

  rows, row_bytes = last - first, tensor.size // tensor.shape[0]
  with path.open('rb') as file:
    file.seek(tensor.at + first * row_bytes)
    data = np.fromfile(file, np.uint8, rows * row_bytes)
  numbers = gguf.dequantize(data.reshape(rows, -1), tensor.kind)
  return numbers.reshape(rows, *tensor.shape[1:])


def _make_handle(
  path: pathlib.Path, tensor: gguf_header.Tensor
) -> tensor_files.TensorHandle:
  """Returns the handle of a tensor of a file."""

  def read(first: int, last: int) -> np.ndarray:
    rows = np.empty((last - first, *tensor.shape[1:]), np.float32)
    # Dequantising takes a multiple of its result's memory.
    step = max(1, _CHUNK_SIZE // math.prod(tensor.shape[1:]))
    for i in range(first, last, step):
      end = min(i + step, last)
      rows[i - first : end - first] = _dequantise(path, tensor, i, end)
    # Norms, the only vectors, are stored plus 1.
    return rows - np.float32(1) if rows.ndim == 1 else rows

  return tensor_files.TensorHandle(tensor.shape, 'F32', read)


def open_tensors(
  file: gguf_header.File, config: config_json.GemmaConfig
) -> dict[str, tensor_files.TensorHandle]:
  """Opens the tensors of a file."""
  layers = config.num_hidden_layers
  tensor_files.check_layers(file.path, file.tensors, layers, 'blk.')
  return {
    name: _make_handle(file.path, file.tensors[stored_name])
    for mapping in param_mapping.param_mappings(config)
    for name in mapping.names
    if (stored_name := gguf_name(name)) in file.tensors
  }


def gguf_name(name: str) -> str:
  """Returns llama.cpp's name of a tensor from Hugging Face's name."""
  if name in _NAMES:
    return _NAMES[name]
  layer, _, rest = name.removeprefix('model.layers.').partition('.')
  return f'blk.{layer}.{_LAYER_NAMES[rest.removesuffix(".weight")]}.weight'
