"""Writes GGUF files of Gemma 2 and Gemma 3, as `gguf_files` reads them."""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cascades.models import (
  families,
  gguf_files,
  gguf_header,
  huggingface_export,
  language,
  param_mapping,
  tokenizers,
)

# Types of written matrices, by NumPy's names of dtypes.
STORED = {'float32': 'F32', 'float16': 'F16', 'bfloat16': 'BF16'}
_FILE_TYPES = {'F32': 0, 'F16': 1, 'BF16': 32}


class _WritableArray(np.ndarray):
  """An array whose `tofile` raises the system's error, unlike NumPy's own."""

  def tofile(self, fid: Any, sep: str = '', format: str = '%s') -> None:
    """Writes the bytes of the array to an open file."""
    del sep, format
    fid.write(self.data)


def save(
  path: pathlib.Path,
  model: language.LanguageModel,
  params: language.Params,
  tokenizer: tokenizers.Tokenizer,
  *,
  stored: str | None = None,
) -> None:
  """Writes a file that llama.cpp and `load_model` open.

  Matrices are written in F32, F16 or BF16, and norms in F32, plus 1, which
  rounds them by at most 2^-24 and hardly ever changes norms that were bfloat16.
  Rows that pad the table are left out.
  """
  gguf = gguf_header.library()

  config = huggingface_export.make_config(model, params, tokenizer.stops)
  families_by_type = {x: name for name, x in gguf_files.FAMILIES.items()}
  family = families_by_type.get(config['model_type'])
  if family is None:
    raise ValueError(
      f'model: a {config["model_type"]} is not supported by the export to GGUF;'
      ' give a Gemma 2 or a Gemma 3, or write a Hugging Face folder.'
    )
  kind = gguf.GGMLQuantizationType[STORED[stored or str(model.dtype(params))]]
  writer = gguf.GGUFWriter(path, family)
  _write_fields(writer, family, config, kind.name)
  _write_tokenizer(writer, tokenizer)

  norm = gguf.GGMLQuantizationType.F32
  tensors = [*param_mapping.tensors(params, config, model.gate_by_rows)]
  # The header comes first; memory holds one tensor at a time.
  for tensor in tensors:
    shape = list(tensor.struct.shape)
    if tensor.name == param_mapping.TABLE_TENSOR:
      shape[0] = tokenizer.vocab_size
    tensor_kind = kind if len(shape) > 1 else norm
    block, size = gguf.GGML_QUANT_SIZES[tensor_kind]
    size *= math.prod(shape) // block
    name = gguf_files.gguf_name(tensor.name)
    writer.add_tensor_info(
      name,
      shape,
      tensor_dtype=np.dtype('f4'),
      tensor_nbytes=size,
      raw_dtype=tensor_kind,
    )
  try:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
      x = tensor.make().astype(np.float32, copy=False)
      if tensor.name == param_mapping.TABLE_TENSOR:
        x = x[: tokenizer.vocab_size]
      x = x + np.float32(1) if x.ndim == 1 else gguf.quantize(x, kind)
      writer.write_tensor_data(x.view(_WritableArray))
  finally:
    writer.close()


def _write_fields(
  writer: Any, family: str, config: Mapping[str, Any], stored_type: str
) -> None:
  """Writes the fields of a model."""
  layers = config['num_hidden_layers']
  scale = gguf_files.query_scale(family, config)
  if config['query_pre_attn_scalar'] != scale:
    raise ValueError(
      'model: query_pre_attn_scalar'
      f' {config["query_pre_attn_scalar"]} is not supported by GGUF, which has'
      f' {scale} for {family} of {layers} layers; write a Hugging Face folder.'
    )
  caps = ('attn_logit_softcapping', 'final_logit_softcapping')
  has_caps = family == 'gemma2'
  for name, is_unfit in (
    (caps[0], (config.get(caps[0]) is not None) != has_caps),
    (caps[1], config.get(caps[1]) is None and has_caps),
    ('sliding_window', config['sliding_window'] is None),
  ):
    if is_unfit:
      raise ValueError(
        f'model: {name} {config.get(name)} is not supported by GGUF for'
        f' {family}; write a Hugging Face folder.'
      )
  writer.add_file_type(_FILE_TYPES[stored_type])
  writer.add_context_length(config['max_position_embeddings'])
  for name, gguf_name in gguf_files.SIZES.items():
    add = writer.add_float32 if name == 'rms_norm_eps' else writer.add_uint32
    add(f'{family}.{gguf_name}', config[name])
  writer.add_value_length(config['head_dim'])
  period = _local_period(family, config['layer_types'])
  writer.add_sliding_window_pattern(period)
  writer.add_rope_freq_base(config['rope_theta'])
  if config.get(caps[1]) is not None:
    writer.add_final_logit_softcapping(config[caps[1]])
  if has_caps:
    writer.add_attn_logit_softcapping(config[caps[0]])
  else:
    writer.add_rope_freq_base_swa(config['rope_local_base_freq'])
  scaling = config.get('rope_scaling')
  if scaling:
    gguf = gguf_header.library()
    writer.add_rope_scaling_type(gguf.RopeScalingType(scaling['rope_type']))
    writer.add_rope_scaling_factor(scaling['factor'])


def _local_period(family: str, layer_types: list[str]) -> int:
  """Returns the period of local and global layers, as llama.cpp reads it."""
  layers = len(layer_types)
  local = [x == families.SLIDING for x in layer_types]
  for period in (gguf_files.PERIODS[family], *range(1, layers + 2)):
    if gguf_files.local_layers(period, layers) == local:
      return period
  raise ValueError(
    'model: its global layers are not at equal distances, which GGUF does not'
    ' support; write a Hugging Face folder.'
  )


def _write_tokenizer(writer: Any, tokenizer: tokenizers.Tokenizer) -> None:
  """Writes the fields of a tokenizer."""
  if len(tokenizer.stops) > 2:
    raise ValueError(
      f'model: {len(tokenizer.stops)} tokens that end an answer'
      f' ({", ".join(map(str, tokenizer.stops))}) are not supported by GGUF,'
      ' which has two; write a Hugging Face folder.'
    )
  vocabulary = tokenizer.vocabulary()
  writer.add_tokenizer_model('llama')
  writer.add_tokenizer_pre('default')
  # llama.cpp matches user-defined tokens before it replaces spaces.
  user_defined = tokenizers.Kind.USER_DEFINED
  writer.add_token_list(
    [
      text.replace(tokenizers.SPACE, ' ') if kind == user_defined else text
      for text, _, kind in vocabulary
    ]
  )
  writer.add_token_scores([piece.score for piece in vocabulary])
  writer.add_token_types([int(piece.kind) for piece in vocabulary])
  writer.add_pad_token_id(tokenizers.PAD)
  writer.add_eos_token_id(tokenizers.EOS)
  writer.add_bos_token_id(tokenizers.BOS)
  writer.add_unk_token_id(tokenizers.UNK)
  for stop in tokenizer.stops[1:]:
    writer.add_eot_token_id(stop)
  if tokenizer.suppress_tokens:
    name = 'tokenizer.ggml.suppress_tokens'
    writer.add_array(name, tokenizer.suppress_tokens)
  if tokenizer.chat_template is not None:
    writer.add_chat_template(tokenizer.chat_template)
  writer.add_add_bos_token(True)
  writer.add_add_space_prefix(tokenizer.adds_prefix)
