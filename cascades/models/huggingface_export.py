"""Writes folders in Hugging Face layout of Gemma 2, 3, 3n and 4, without torch.

Beside the parameters, memory holds their tensors, which are in one file.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from cascades import files
from cascades.models import (
  chat,
  config_json,
  gemma_library,
  language,
  param_mapping,
  tensor_files,
  tokenizers,
)

# Files of a model that was in the folder before.
_STALE = (
  *('model*.safetensors*', chat.FILE, 'chat_template.json'),
  *(language.OWNER_FILE, 'tokenizer.json', 'added_tokens.json'),
  'special_tokens_map.json',
)
_TOKENIZER = {
  'tokenizer_class': 'GemmaTokenizer',
  'add_bos_token': True,
  'add_eos_token': False,
  'clean_up_tokenization_spaces': False,
}
# No property of the parameters: the length that families were trained for.
_LENGTHS = dict(gemma2=8192, gemma3=131072, gemma3n=32768, gemma4=131072)


def make_config(
  model: language.LanguageModel, params: language.Params, stops: tuple[int, ...]
) -> dict[str, Any]:
  """Returns the config.json of a model: the inverse of `language.from_config`.

  Names are those of transformers 5.
  """
  c = model.module.config
  # gemma has a class of this name for each family.
  package = type(c).__module__.split('.')
  families = [name for name in ('gemma3n', 'gemma4') if name in package]
  family = families[0] if families else f'gemma{2 + c.use_qk_norm}'
  layer_types = {x: name for name, x in config_json.ATTENTION_TYPES.items()}
  ropes: dict[str, dict[str, Any]] = {}
  for gemma_name, rope in model.ropes.items():
    fields = {'rope_type': 'default', 'rope_theta': float(rope.theta)}
    if rope.factor != 1:
      fields |= {'rope_type': 'linear', 'factor': float(rope.factor)}
    ropes[layer_types[gemma_name]] = fields
  fields = {
    'model_type': family + '_text' * (family != 'gemma2'),
    'architectures': [f'{family.capitalize()}ForCausalLM'],
    'max_position_embeddings': _LENGTHS[family],
    **{name: getattr(c, field) for field, name in gemma_library.SIZES.items()},
    'num_hidden_layers': c.num_layers,
    'layer_types': [layer_types[x.name] for x in c.attention_types],
    'rope_parameters': ropes,
    **config_json.FIXED,
    'dtype': str(model.dtype(params)),
    **_special_ids(stops),
  }
  if families:
    fields |= {
      'vocab_size_per_layer_input': c.num_embed,
      'hidden_size_per_layer_input': c.per_layer_input_dim,
      'num_kv_shared_layers': _shared_layers(c),
    }
  if family == 'gemma3n':
    fields |= _gemma3n_fields(c)
  elif family == 'gemma4':
    fields |= _gemma4_fields(c, ropes[config_json.FULL])
  else:
    by_width = c.query_pre_attn_norm.name.endswith('EMBED_DIM_DIV_NUM_HEADS')
    scalar = c.embed_dim // c.num_heads if by_width else c.head_dim
    fields['query_pre_attn_scalar'] = scalar
    fields['attn_logit_softcapping'] = c.attn_logits_soft_cap
  if family == 'gemma2':
    fields['rope_parameters'] = ropes[config_json.FULL]
  inverse = language.from_config(fields).module.config
  if hasattr(c, 'transpose_gating_einsum'):
    # The order of axes of a matrix, which config.json has no field for.
    order = c.transpose_gating_einsum
    inverse = dataclasses.replace(inverse, transpose_gating_einsum=order)
  if c != inverse:
    raise ValueError(
      f'model: a {type(model.module).__name__} with this configuration is not'
      ' supported by config.json; give a Gemma 2, 3, 3n or 4, text only.'
    )
  return fields


def _gemma3n_fields(c: Any) -> dict[str, Any]:
  """Returns the fields that only Gemma 3n has."""
  return {
    'intermediate_size': [c.hidden_dim] * c.num_layers,
    'activation_sparsity_pattern': list(c.activation_sparsity_pattern),
    'laurel_rank': c.laurel_rank,
    'altup_coef_clip': c.altup_coef_clip,
    'altup_num_inputs': c.num_altup_inputs,
  }


def _gemma4_fields(c: Any, full_rope: dict[str, Any]) -> dict[str, Any]:
  """Returns the fields that only Gemma 4 has."""
  full_rope['rope_type'] = 'proportional'
  full_rope['partial_rotary_factor'] = c.global_rope_proportion
  return {
    'global_head_dim': c.global_key_size,
    'num_global_key_value_heads': c.num_global_kv_heads,
    'attention_k_eq_v': c.k_eq_v_global,
    'use_double_wide_mlp': c.override_kv_shared_ffw_hidden is not None,
    'use_bidirectional_attention': c.use_bidirectional_attention,
    'enable_moe_block': c.enable_moe,
    'num_experts': c.num_experts or None,
    'top_k_experts': c.top_k_experts if c.enable_moe else None,
    'moe_intermediate_size': c.expert_dim or None,
  }


def _shared_layers(c: Any) -> int:
  """Returns the number of layers that read another layer's cache."""
  sharing = c.kv_cache_sharing_config
  share = sharing.frac_shared_layers if sharing else 0
  return c.num_layers - int(c.num_layers - share * c.num_layers)


def _special_ids(stops: tuple[int, ...]) -> dict[str, Any]:
  """Returns the fields of config.json with ids of special tokens."""
  return {
    'bos_token_id': tokenizers.BOS,
    'eos_token_id': stops[0] if len(stops) == 1 else list(stops),
    'pad_token_id': tokenizers.PAD,
  }


def save(
  folder: str | pathlib.Path,
  config: Mapping[str, Any],
  params: language.Params,
  tokenizer: tokenizers.Tokenizer,
  gate_by_rows: bool = True,
) -> None:
  """Writes a folder that `load_model` and transformers open."""
  folder = pathlib.Path(folder)
  resolved = config_json.read(config)
  tensors = [*param_mapping.tensors(params, resolved, gate_by_rows)]
  if any(x.struct.dtype == 'int8' for x in tensors):
    ranks = {x.name: len(x.struct.shape) for x in tensors}
    fields = language.cpu().stored.quantization_config(ranks)
    config = {**config, 'quantization_config': fields}
  arrays = {tensor.name: tensor.make() for tensor in tensors}
  with files.replace_files(folder) as part:
    tensor_files.save_tensors(part / tensor_files.SINGLE, arrays)
    tensor_files.write_json(part / 'config.json', config)
    special = _special_ids(tokenizer.stops)
    if tokenizer.suppress_tokens:
      special['suppress_tokens'] = list(tokenizer.suppress_tokens)
    tensor_files.write_json(part / 'generation_config.json', special)
    files.write_bytes(part / 'tokenizer.model', tokenizer.proto)
    if tokenizer.chat_template is not None:
      files.write_text(part / chat.FILE, tokenizer.chat_template)
    fields = tokenizer.special_tokens() | _TOKENIZER
    tensor_files.write_json(part / 'tokenizer_config.json', fields)
    new_names = {file.name for file in part.iterdir()}
  for file in [file for name in _STALE for file in folder.glob(name)]:
    if file.name not in new_names:
      file.unlink()
