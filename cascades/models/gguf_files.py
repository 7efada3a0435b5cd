"""GGUF files of Gemma 2 and Gemma 3, as llama.cpp's converter writes them.

One file holds everything: what the model is, its tokenizer, and its tensors,
most of them quantised in blocks of 32 or 256 numbers. The tensors are those of
a Hugging Face folder under other names, so that `param_mapping.param_mappings`
applies to them. The differences are:

- The weight of every norm is stored plus 1.
- `ffn_norm` is the norm before the feed-forward layer, not one after attention.
- Not said are: the base of local positions (10,000), and that the queries of
  the two 27B models are scaled by their width; in most files also not, which
  layers are local.
- A token's type is SentencePiece's, but those of turns, the unused ones and a
  few more are called control or normal, though a text may contain them; and
  tokens of several spaces hold spaces, where SentencePiece has what stands for
  them.

A quantised tensor becomes float32 as the public `gguf` library has it.

Source: llama.cpp's convert_hf_to_gguf.py.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import pydantic

from cascades import arguments
from cascades.models import (
  families,
  gguf_header,
  param_mapping,
  tensor_files,
  tokenizers,
)
from cascades.untrusted.schema import (
  Count,
  Each,
  NotNegative,
  Number,
  Positive,
  Schema,
  Size,
)

SUFFIX = '.gguf'
FAMILIES = {'gemma2': 'gemma2', 'gemma3': 'gemma3_text'}
# Queries are scaled by the width: of the models of so many layers.
BY_WIDTH = {('gemma2', 46), ('gemma3', 62)}


def _named(name: str, usual: Any = ...) -> Any:
  """A field by its name in a file, with what an absent one is."""
  return pydantic.Field(usual, alias=name)


def _listed(given: Any) -> Any:
  """A list of what a header has as an array; anything else as it is."""
  return given.tolist() if isinstance(given, np.ndarray) else given


def _flags(given: Any) -> Any:
  """A list of true and false, of numbers that are 1 and 0."""
  numbers = isinstance(given, np.ndarray) and given.dtype.kind in 'iu'
  if numbers and ((given == 0) | (given == 1)).all():
    given = given != 0
  return _listed(given)


def _flag(given: Any) -> Any:
  """True or false, of a number that is 1 or 0."""
  return given != 0 if type(given) is int and given in (0, 1) else given


def _scores(given: Any) -> Any:
  """A list of scores, of which -inf is the lowest that there is."""
  if isinstance(given, np.ndarray) and given.dtype.kind == 'f':
    given = np.where(np.isneginf(given), given.dtype.type(_LOWEST), given)
  return _listed(given)


def _token_or_none(given: Any) -> Any:
  """The id of a token; None where a file says -1, of 32 bits."""
  none = type(given) is int and given in (-1, 2**32 - 1)
  return None if none else given


# A score of float32.
_LOWEST = -(2.0**99)
_Token = Annotated[Count | None, pydantic.BeforeValidator(_token_or_none)]
_Local = Annotated[Count | list[bool], pydantic.BeforeValidator(_flags)]


class _Whole(Schema):
  """What is read of a file whatever its architecture."""

  parts: Count = _named('split.count', 1)


class _Gemma3(Schema):
  """Fields of a config.json by their names in a file, without its family."""

  hidden_size: Size = _named('embedding_length')
  intermediate_size: Size = _named('feed_forward_length')
  num_hidden_layers: families.Layers = _named('block_count')
  num_attention_heads: Size = _named('attention.head_count')
  num_key_value_heads: Size = _named('attention.head_count_kv')
  head_dim: Size = _named('attention.key_length')
  sliding_window: Size = _named('attention.sliding_window')
  rms_norm_eps: Positive = _named('attention.layer_norm_rms_epsilon')
  rope_theta: Positive = _named('rope.freq_base', 1_000_000.0)
  rope_local_base_freq: Positive = _named('rope.freq_base_swa', 10_000.0)
  # llama.cpp has 0 for none.
  factor: NotNegative | None = _named('rope.scaling.factor', None)
  rope_type: str | None = _named('rope.scaling.type', None)
  # Of so many layers the last is global, where a file does not say which.
  local: _Local = _named('attention.sliding_window_pattern', 6)


class _Gemma2(_Gemma3):
  """The same of a Gemma 2, which caps its logits."""

  sliding_window: Size = _named('attention.sliding_window', 4096)
  attn_logit_softcapping: Positive = _named('attn_logit_softcapping', 50.0)
  final_logit_softcapping: Positive = _named('final_logit_softcapping', 30.0)
  rope_theta: Positive = _named('rope.freq_base', 10_000.0)
  local: _Local = _named('attention.sliding_window_pattern', 2)


class _Tokens(Schema):
  """What a file says of its tokenizer."""

  tokens: Annotated[list[str], Each]
  scores: Annotated[list[Number], Each, pydantic.BeforeValidator(_scores)]
  token_type: Annotated[list[Count], Each, pydantic.BeforeValidator(_listed)]
  padding_token_id: Count = tokenizers.PAD
  eos_token_id: Count = tokenizers.EOS
  bos_token_id: Count = tokenizers.BOS
  unknown_token_id: Count = tokenizers.UNK
  eot_token_id: Annotated[
    Count | None, pydantic.BeforeValidator(_token_or_none)
  ] = None
  add_space_prefix: Annotated[bool, pydantic.BeforeValidator(_flag)] = False


_OF = {'gemma2': _Gemma2, 'gemma3': _Gemma3}
PERIODS = {name: of.model_fields['local'].default for name, of in _OF.items()}
# Of a config.json, and of a file.
SIZES = {
  name: field.alias
  for name, field in _Gemma3.model_fields.items()
  if field.is_required()
}
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
# Rows that are dequantised at a time.
_STEP = 1024


def find_file(path: str | pathlib.Path) -> pathlib.Path | None:
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


def read_config(file: gguf_header.File) -> dict[str, Any]:
  """What a config.json would say of the model.

  Raises:
    ValueError: It is of another family, or in several files.
  """
  path, family = file.path, file.family
  if family not in FAMILIES:
    raise ValueError(
      f'model: {path} is of the architecture {arguments.quote(family)}; give a'
      ' Gemma 2 or a Gemma 3 (gemma2, gemma3).'
    )
  whole = _Whole.check(file.fields, f'model: {path}')
  if whole.parts > 1:
    raise ValueError(
      f'model: {path} is one of several files; join them with'
      " llama.cpp's llama-gguf-split --merge first."
    )
  said = _as_one_number(file.under(f'{family}.'))
  fields = _OF[family].check(said, f'model: {path}')
  table = file.tensors.get('token_embd.weight')
  if table is None:
    raise ValueError(f'model: {path} does not say its tokens; fetch it again.')
  layers = fields.num_hidden_layers
  by_width = (family, layers) in BY_WIDTH
  matrices = {t.kind.name for t in file.tensors.values() if len(t.shape) > 1}
  own = {'factor', 'rope_type', 'local'}
  config = {
    **{
      name: x for name, x in fields if name in {*_OF[family].model_fields} - own
    },
    'model_type': FAMILIES[family],
    'vocab_size': table.shape[0],
    'query_pre_attn_scalar': fields.hidden_size // fields.num_attention_heads
    if by_width
    else fields.head_dim,
    'tie_word_embeddings': 'output.weight' not in file.tensors,
    # Norms are kept in float32 beside matrices of whatever type.
    'dtype': 'bfloat16' if matrices == {'BF16'} else 'float32',
  }
  kind = fields.rope_type or ('none' if fields.factor is None else 'linear')
  if kind != 'none':
    config['rope_scaling'] = {'rope_type': kind, 'factor': fields.factor or 1.0}
  local = fields.local
  if not isinstance(local, list):
    local = local_layers(local, layers)
  kinds = families.FULL, families.SLIDING
  config['layer_types'] = [kinds[x] for x in local]
  return config


def _as_one_number(fields: dict[str, Any]) -> dict[str, Any]:
  """Fields, with one number where a file has the same for each layer."""
  layers, same = fields.get('block_count'), {}
  for name in ('feed_forward_length', 'attention.head_count_kv'):
    each = fields.get(name)
    if not isinstance(each, np.ndarray) or not isinstance(layers, int):
      continue
    if len(each) == layers and len(each) and (each == each[0]).all():
      same[name] = each[0].item()
  return fields | same


def local_layers(period: int, layers: int) -> list[bool]:
  """Which layers are local: all but the last of so many; of 0, all."""
  return [not period or i % period < period - 1 for i in range(layers)]


def read_tokenizer(file: gguf_header.File) -> tokenizers.Tokenizer:
  """The tokenizer that a file holds.

  Raises:
    ValueError: It is none of SentencePiece's, or not one of Gemma's.
  """
  found = file.under('tokenizer.ggml.')
  if found.get('model') != 'llama':
    raise ValueError(
      f'model: {file.path} has the tokenizer'
      f' {arguments.quote(found.get("model"))}, which is none of'
      " SentencePiece's; give another conversion of the model."
    )
  said = _Tokens.check(found, f'model: {file.path}')
  ids = said.padding_token_id, said.bos_token_id, said.unknown_token_id
  if ids != (tokenizers.PAD, tokenizers.BOS, tokenizers.UNK):
    raise ValueError(
      f'model: {file.path} has a tokenizer whose special tokens are {ids}, not'
      f" Gemma's; give another conversion of the model."
    )
  # Of a tuned model, what ends an answer may stand for what ends a text.
  stops = [i for i in (said.eos_token_id, said.eot_token_id) if i is not None]
  lists = said.tokens, said.scores, said.token_type
  try:
    if max(stops) >= len(said.tokens):
      raise IndexError
    tokenizer = tokenizers.from_pieces(
      tokenizers.strip_non_text(
        _piece(i, *each) for i, each in enumerate(zip(*lists, strict=True))
      ),
      dummy_prefix=said.add_space_prefix,
    )
  except (ValueError, IndexError) as e:
    raise ValueError(
      f'model: {file.path} has a damaged tokenizer; fetch it again.'
    ) from e
  if 'tokenizer.chat_template' in file.fields:
    end = tokenizer.token_id(_TURNS[1])
    stops += [] if end is None else [end]
  return tokenizer.with_stops(*stops)


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


def _dequantised(
  path: pathlib.Path, tensor: gguf_header.Tensor, first: int, last: int
) -> np.ndarray:
  """Some rows of a tensor, in float32."""
  gguf = gguf_header.library()

  rows, row = last - first, tensor.size // tensor.shape[0]
  with path.open('rb') as file:
    file.seek(tensor.at + first * row)
    data = np.fromfile(file, np.uint8, rows * row)
  found = gguf.dequantize(data.reshape(rows, -1), tensor.kind)
  return found.reshape(rows, *tensor.shape[1:])


def _rows(
  path: pathlib.Path, tensor: gguf_header.Tensor
) -> tensor_files.TensorHandle:
  """A tensor that is read some rows at a time."""

  def read(first: int, last: int) -> np.ndarray:
    found = np.empty((last - first, *tensor.shape[1:]), np.float32)
    # What dequantising holds beside its result is a multiple of it.
    for i in range(first, last, _STEP):
      end = min(i + _STEP, last)
      found[i - first : end - first] = _dequantised(path, tensor, i, end)
    # A norm.
    return found - np.float32(1) if found.ndim == 1 else found

  return tensor_files.TensorHandle(tensor.shape, 'F32', read)


def open_tensors(
  file: gguf_header.File, config: Mapping[str, Any]
) -> dict[str, Any]:
  """Where a file has its tensors, as `tensor_files.open_folder` has it.

  Args:
    file: A header.
    config: What `read_config` gives.

  Raises:
    ValueError: There are tensors of layers that the model does not have.
  """
  layers = config['num_hidden_layers']
  tensor_files.check_layers(file.path, file.tensors, layers, 'blk.')
  return {
    name: _rows(file.path, file.tensors[stored])
    for leaf in param_mapping.param_mappings(config)
    for name in leaf.names
    if (stored := gguf_name(name)) in file.tensors
  }


def gguf_name(name: str) -> str:
  """llama.cpp's name of a tensor, of Hugging Face's."""
  if name in _NAMES:
    return _NAMES[name]
  layer, _, rest = name.removeprefix('model.layers.').partition('.')
  return f'blk.{layer}.{_IN_LAYER[rest.removesuffix(".weight")]}.weight'
