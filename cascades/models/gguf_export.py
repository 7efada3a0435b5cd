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
  huggingface,
  language,
  param_mapping,
  tokenizers,
)

# What matrices can be written as, by the names of numpy's types.
STORED = {'float32': 'F32', 'float16': 'F16', 'bfloat16': 'BF16'}
_FILE_TYPES = {'F32': 0, 'F16': 1, 'BF16': 32}


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
    stored: What matrices are rounded to; a key of `STORED`, or None for what
      they are.

  Raises:
    ValueError: The format has no word for something of the model.
  """
  gguf = gguf_header.library()

  config = huggingface.make_config(model, params, tokenizer.stops)
  named = {theirs: ours for ours, theirs in gguf_files.FAMILIES.items()}
  family = named.get(config['model_type'])
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
  tensors = [*param_mapping.tensors(params, config, model.gate_by_rows)]
  # A header stands before what it tells of, and no tensor is held for long.
  for tensor in tensors:
    shape = list(tensor.of.shape)
    if tensor.name == param_mapping.TABLE_TENSOR:
      shape[0] = tokenizer.vocab_size
    of = kind if len(shape) > 1 else norm
    block, size = gguf.GGML_QUANT_SIZES[of]
    size *= math.prod(shape) // block
    name = gguf_files.gguf_name(tensor.name)
    writer.add_tensor_info(name, shape, np.dtype('f4'), size, of)
  try:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
      x = tensor.make().astype(np.float32, copy=False)
      if tensor.name == param_mapping.TABLE_TENSOR:
        x = x[: tokenizer.vocab_size]
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
  scale = width // heads if (family, layers) in gguf_files.BY_WIDTH else dim
  if config['query_pre_attn_scalar'] != scale:
    raise ValueError(
      'model: its queries are scaled by'
      f' {config["query_pre_attn_scalar"]}, and GGUF has no other than {scale}'
      f' for a {family} of {layers} layers; write a Hugging Face folder.'
    )
  writer.add_file_type(_FILE_TYPES[kind])
  writer.add_context_length(config['max_position_embeddings'])
  for ours, theirs in gguf_files.SIZES.items():
    add = writer.add_float32 if ours == 'rms_norm_eps' else writer.add_uint32
    add(f'{family}.{theirs}', config[ours])
  writer.add_value_length(dim)
  local = [kind == families.SLIDING for kind in config['layer_types']]
  # A number, which is what llama.cpp asks for. Of two that will do, its own.
  periods = gguf_files.PERIODS[family], *range(1, layers + 2)
  fits = (n for n in periods if gguf_files.local_layers(n, layers) == local)
  period = next(fits, None)
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
    gguf = gguf_header.library()
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
