"""GGUF files of Gemma 2 and Gemma 3, as llama.cpp's converter writes them.

One file holds everything: what the model is, its tokenizer, and its tensors,
most of them quantised in blocks of 32 or 256 numbers. The tensors are those of
a Hugging Face folder by other names, so that `param_mapping.leaves` says what
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

A quantised tensor becomes float32 as the public `gguf` library has it.

Source: llama.cpp's convert_hf_to_gguf.py.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from cascades.models import (
  config_fields,
  families,
  gguf_header,
  param_mapping,
  tensor_files,
  tokenizers,
)

SUFFIX = '.gguf'
FAMILIES = {'gemma2': 'gemma2', 'gemma3': 'gemma3_text'}
# Of so many layers the last is global, where a file does not say it.
PERIODS = {'gemma2': 2, 'gemma3': 6}
# Queries are scaled by the width: of the models of so many layers.
BY_WIDTH = {('gemma2', 46), ('gemma3', 62)}
# Of a config.json, and of a file.
SIZES = {
  'hidden_size': 'embedding_length',
  'intermediate_size': 'feed_forward_length',
  'num_hidden_layers': 'block_count',
  'num_attention_heads': 'attention.head_count',
  'num_key_value_heads': 'attention.head_count_kv',
  'head_dim': 'attention.key_length',
  'sliding_window': 'attention.sliding_window',
  'rms_norm_eps': 'attention.layer_norm_rms_epsilon',
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


def config_of(file: gguf_header.File) -> dict[str, Any]:
  """What a config.json would say of the model.

  Raises:
    ValueError: It is of another family, or in several files.
  """
  path, family = file.path, file.family
  if family not in FAMILIES:
    raise ValueError(
      f'model: {path} is of the architecture {family!r}; give a Gemma 2 or a'
      ' Gemma 3 (gemma2, gemma3).'
    )
  parts = {'split.count': 1} | file.fields
  if config_fields.whole(parts, 'split.count', 0, where=f'model: {path}') > 1:
    raise ValueError(
      f'model: {path} is one of several files; join them with'
      " llama.cpp's llama-gguf-split --merge first."
    )
  config = _sizes_of(file)
  table = file.tensors.get('token_embd.weight')
  if table is None:
    raise ValueError(f'model: {path} does not say its tokens; fetch it again.')
  layers, width = config['num_hidden_layers'], config['hidden_size']
  by_width = (family, layers) in BY_WIDTH
  matrices = {t.kind.name for t in file.tensors.values() if len(t.shape) > 1}
  config |= {
    'model_type': FAMILIES[family],
    'vocab_size': table.shape[0],
    'query_pre_attn_scalar': width // config['num_attention_heads']
    if by_width
    else config['head_dim'],
    'tie_word_embeddings': 'output.weight' not in file.tensors,
    # Norms are kept in float32 beside matrices of whatever type.
    'dtype': 'bfloat16' if matrices == {'BF16'} else 'float32',
  }
  return config | _attention_of(file, layers)


def _sizes_of(file: gguf_header.File) -> dict[str, Any]:
  """What a config.json would say of sizes, all of which a file must say.

  Raises:
    ValueError: It does not, or one is no number.
  """
  usual = {'sliding_window': 4096} if file.family == 'gemma2' else {}
  config = {}
  for ours, theirs in SIZES.items():
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


def _attention_of(file: gguf_header.File, layers: int) -> dict[str, Any]:
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
    local = are_local(file.whole(name, PERIODS[family], low=0), layers)
  kinds = families.FULL, families.SLIDING
  config['layer_types'] = [kinds[bool(x)] for x in local]
  return config


def are_local(period: int, layers: int) -> list[bool]:
  """Which layers are local: all but the last of so many; of 0, all."""
  return [not period or i % period < period - 1 for i in range(layers)]


def tokenizer_of(file: gguf_header.File) -> tokenizers.Tokenizer:
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
  eot = config_fields.whole(
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


def _rows(path: pathlib.Path, tensor: gguf_header.Tensor) -> tensor_files.Rows:
  """A tensor that is read some rows at a time."""

  def read(first: int, last: int) -> np.ndarray:
    found = np.empty((last - first, *tensor.shape[1:]), np.float32)
    # What dequantising holds beside its result is a multiple of it.
    for i in range(first, last, _STEP):
      end = min(i + _STEP, last)
      found[i - first : end - first] = _dequantised(path, tensor, i, end)
    # A norm.
    return found - np.float32(1) if found.ndim == 1 else found

  return tensor_files.Rows(tensor.shape, 'F32', read)


def places(file: gguf_header.File, config: Mapping[str, Any]) -> dict[str, Any]:
  """Where a file has its tensors, as `tensor_files.places` has it.

  Args:
    file: A header.
    config: What `config_of` gives.
  """
  return {
    name: _rows(file.path, file.tensors[stored])
    for leaf in param_mapping.leaves(config)
    for name in leaf.names
    if (stored := name_of(name)) in file.tensors
  }


def name_of(name: str) -> str:
  """llama.cpp's name of a tensor, of Hugging Face's."""
  if name in _NAMES:
    return _NAMES[name]
  layer, _, rest = name.removeprefix('model.layers.').partition('.')
  return f'blk.{layer}.{_IN_LAYER[rest.removesuffix(".weight")]}.weight'
