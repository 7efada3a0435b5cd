"""Folders in Hugging Face layout of Gemma 2, 3, 3n and 4, without torch.

A folder holds config.json, its tensors (see `tensor_files`; by which names,
`param_mapping` says), and tokenizer.model. Those of one file are all that is
held beside the parameters when they are written.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from cascades import atomic
from cascades.models import (
  families,
  language,
  param_mapping,
  tensor_files,
  tokenizers,
)
from cascades.untrusted.schema import Count, Schema


def read_config(
  folder: pathlib.Path,
) -> tuple[dict[str, Any], language.LanguageModel]:
  """The fields of a folder's config.json, and their model.

  Raises:
    ValueError: There is none, or none that can be read.
  """
  config = tensor_files.read_json(folder / 'config.json')
  if config is None:
    raise ValueError(
      f'model: {folder} has no config.json; give a folder in Hugging Face'
      ' layout (config.json, *.safetensors, tokenizer.model), or an Orbax'
      " checkpoint of gemma's."
    )
  try:
    return config, language.from_config(config)
  except ValueError as e:
    raise ValueError(f'model: {folder}/{e}') from None


class _Ends(Schema):
  """What a file says of where answers end."""

  eos_token_id: Count | list[Count | None] | None = None


def stop_tokens(folder: pathlib.Path, vocab_size: int) -> list[int]:
  """The ids that a folder says end an answer: of a turn, if it was taught any.

  Args:
    folder: Its config.json and its generation_config.json may say it.
    vocab_size: Number of the model's logits; ids must be less.

  Raises:
    ValueError: One of its files is damaged, or says something else.
  """
  ids = []
  for name in ('config.json', 'generation_config.json'):
    fields = tensor_files.read_json(folder / name) or {}
    said = _Ends.check(fields, f'model: {folder / name}').eos_token_id
    found = said if isinstance(said, list) else [said]
    found = [i for i in found if i is not None]
    if max(found, default=0) >= vocab_size:
      raise ValueError(
        f'model: {folder / name}: eos_token_id must be less than {vocab_size},'
        f' the number of tokens, got {max(found)}; fetch it again.'
      )
    ids += found
  return ids


def make_config(
  model: language.LanguageModel, params: language.Params, stops: tuple[int, ...]
) -> dict[str, Any]:
  """What config.json has to say of a model: the inverse of `from_config`.

  Nothing is left to defaults, and what transformers 4 and 5 name differently
  is there by both names.

  Args:
    model: A Gemma 2, 3, 3n or 4, text only.
    params: The model's parameters, or shapes of them.
    stops: Ids that end an answer.

  Raises:
    ValueError: The model is of another family.
  """
  c = model.module.config
  made = {
    type(language.from_config({'model_type': family}).module.config): fields
    for family, fields in (
      ('gemma2', _classic_fields),
      ('gemma3n_text', _fields_3n),
      ('gemma4_text', _fields_4),
    )
  }
  if type(c) in made:
    fields = _common_fields(model, str(model.dtype(params)), stops)
    fields |= made[type(c)](c, fields['rope_parameters'])
    again = language.from_config(fields).module.config
    if hasattr(c, 'transpose_gating_einsum'):
      # How its matrices lie, of which config.json says nothing.
      again = dataclasses.replace(
        again, transpose_gating_einsum=c.transpose_gating_einsum
      )
    if c == again:
      return fields
  raise ValueError(
    f'model: a {type(model.module).__name__} with this configuration cannot be'
    ' said in a config.json; give a Gemma 2, 3, 3n or 4, text only.'
  )


def _common_fields(
  model: language.LanguageModel, dtype: str, stops: tuple[int, ...]
) -> dict[str, Any]:
  """The fields of config.json that all families have.

  Args:
    model: Is to be described.
    dtype: What the parameters are stored in, as numpy names it.
    stops: Ids that end an answer.
  """
  c = model.module.config
  kinds = {gemmas: theirs for theirs, gemmas in families.KINDS.items()}
  ropes = {}
  for kind, rope in model.ropes.items():
    said = {'rope_type': 'default', 'rope_theta': float(rope.theta)}
    if rope.factor != 1:
      said |= {'rope_type': 'linear', 'factor': float(rope.factor)}
    ropes[kinds[kind]] = said
  return {
    **{theirs: getattr(c, ours) for ours, theirs in families.SIZES.items()},
    'num_hidden_layers': c.num_layers,
    'layer_types': [kinds[kind.name] for kind in c.attention_types],
    'rope_parameters': ropes,
    **families.FIXED,
    'attention_dropout': 0.0,
    'initializer_range': 0.02,
    'use_cache': True,
    'dtype': dtype,
    'torch_dtype': dtype,
    **_special_ids(stops),
  }


def _classic_fields(c: Any, ropes: dict[str, Any]) -> dict[str, Any]:
  """Those of a Gemma 2 or 3.

  Args:
    c: gemma's configuration of the model.
    ropes: How each kind of layer turns positions, as transformers 5 says it.
  """
  three, whole = c.use_qk_norm, ropes[families.FULL]
  by_width = c.query_pre_attn_norm.name.endswith('EMBED_DIM_DIV_NUM_HEADS')
  scalar = c.embed_dim // c.num_heads if by_width else c.head_dim
  if three:
    turned = _flat_ropes(ropes)
  else:
    turned = {'rope_parameters': whole, 'rope_theta': whole['rope_theta']}
  if 'factor' in whole:
    turned['rope_scaling'] = {'rope_type': 'linear', 'factor': whole['factor']}
  return {
    'model_type': 'gemma3_text' if three else 'gemma2',
    'architectures': ['Gemma3ForCausalLM' if three else 'Gemma2ForCausalLM'],
    'query_pre_attn_scalar': scalar,
    'attn_logit_softcapping': c.attn_logits_soft_cap,
    # No property of the parameters: what the families were trained for.
    'max_position_embeddings': 131072 if three else 8192,
    **turned,
  }


def _flat_ropes(ropes: dict[str, Any]) -> dict[str, Any]:
  """How each kind of layer turns positions, as transformers 4 says it."""
  return {
    'rope_theta': ropes[families.FULL]['rope_theta'],
    'rope_local_base_freq': ropes[families.SLIDING]['rope_theta'],
  }


def _fields_3n(c: Any, ropes: dict[str, Any]) -> dict[str, Any]:
  """Those of a Gemma 3n; arguments as for `_classic_fields`."""
  return {
    'model_type': 'gemma3n_text',
    'architectures': ['Gemma3nForCausalLM'],
    'intermediate_size': [c.hidden_dim] * c.num_layers,
    'vocab_size_per_layer_input': c.num_embed,
    'hidden_size_per_layer_input': c.per_layer_input_dim,
    'num_kv_shared_layers': _shared_layers(c),
    'activation_sparsity_pattern': list(c.activation_sparsity_pattern),
    'laurel_rank': c.laurel_rank,
    'altup_coef_clip': c.altup_coef_clip,
    'altup_num_inputs': c.num_altup_inputs,
    'altup_active_idx': 0,
    'altup_correct_scale': True,
    'max_position_embeddings': 32768,
    **_flat_ropes(ropes),
  }


def _fields_4(c: Any, ropes: dict[str, Any]) -> dict[str, Any]:
  """Those of a Gemma 4; arguments as for `_classic_fields`."""
  proportional = {
    'rope_type': 'proportional',
    'partial_rotary_factor': c.global_rope_proportion,
  }
  return {
    'model_type': 'gemma4_text',
    'architectures': ['Gemma4ForCausalLM'],
    'vocab_size_per_layer_input': c.num_embed,
    'hidden_size_per_layer_input': c.per_layer_input_dim,
    'global_head_dim': c.global_key_size,
    'num_global_key_value_heads': c.num_global_kv_heads,
    'attention_k_eq_v': c.k_eq_v_global,
    'num_kv_shared_layers': _shared_layers(c),
    'use_double_wide_mlp': c.override_kv_shared_ffw_hidden is not None,
    'use_bidirectional_attention': c.use_bidirectional_attention,
    'enable_moe_block': c.enable_moe,
    'num_experts': c.num_experts or None,
    'top_k_experts': c.top_k_experts if c.enable_moe else None,
    'moe_intermediate_size': c.expert_dim or None,
    'max_position_embeddings': 131072,
    'rope_parameters': ropes
    | {families.FULL: ropes[families.FULL] | proportional},
  }


def _shared_layers(c: Any) -> int:
  """How many layers attend to what others have cached."""
  sharing = c.kv_cache_sharing_config
  if sharing is None:
    return 0
  return c.num_layers - int(
    c.num_layers - sharing.frac_shared_layers * c.num_layers
  )


def _special_ids(stops: tuple[int, ...]) -> dict[str, Any]:
  """The ids that begin, end and pad a text, by their names in config.json."""
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
  *,
  shard_gb: float = 5.0,
  gate_by_rows: bool = True,
) -> None:
  """Writes a folder that `load_model` and transformers open.

  Args:
    folder: Made if it is not there; another model's tensors in it are removed.
      It stays as it was if the model cannot be written.
    config: Fields of config.json, as `language.from_config` reads them.
    params: gemma's tree, of JAX's or of numpy's arrays.
    tokenizer: Written as tokenizer.model.
    shard_gb: Most of a file of tensors, in 1e9 bytes, except that a larger
      tensor has one of its own.
    gate_by_rows: Whether `gating_einsum` lies in `params` as Hugging Face has
      it, [2, hidden, width]; else [2, width, hidden].

  Raises:
    ValueError: `shard_gb` is not positive.
    OSError: A file cannot be written; names it.
  """
  if not shard_gb > 0:
    raise ValueError(f'shard_gb: {shard_gb:g} will not do; give more than 0.')
  folder = pathlib.Path(folder)
  tensors = param_mapping.tensors(params, config, gate_by_rows)
  shards = _divided(tensors, shard_gb * 1e9)
  with atomic.replace_files(folder) as part:
    for file, shard in shards.items():
      made = {tensor.name: tensor.make() for tensor in shard}
      tensor_files.save_tensors(part / file, made)
    if len(shards) > 1:
      _write_index(part, shards)
    tensor_files.write_json(part / 'config.json', config)
    _write_tokenizer(part, tokenizer)
    written = {file.name for file in part.iterdir()}
  for file in folder.glob('model*.safetensors*'):
    if file.name not in written:
      file.unlink()


def _bytes(tensor: param_mapping.Tensor) -> int:
  """How many a tensor takes."""
  return tensor.of.size * tensor.of.dtype.itemsize


def _divided(
  tensors: Iterable[param_mapping.Tensor], limit: float
) -> dict[str, list[param_mapping.Tensor]]:
  """Tensors in their order, so many a file as it may hold.

  Args:
    tensors: What is to be written.
    limit: Most bytes of a file, unless it has a single tensor.

  Returns:
    For each file, by the name that transformers looks for, its tensors.
  """
  shards, room = [[]], limit
  for tensor in tensors:
    if _bytes(tensor) > room and shards[-1]:
      shards.append([])
      room = limit
    shards[-1].append(tensor)
    room -= _bytes(tensor)
  last = len(shards)
  if last == 1:
    return {tensor_files.SINGLE: shards[0]}
  return {
    f'model-{i:05}-of-{last:05}.safetensors': shard
    for i, shard in enumerate(shards, 1)
  }


def _write_index(
  folder: pathlib.Path, shards: Mapping[str, list[param_mapping.Tensor]]
) -> None:
  """Writes which file has which tensor, and their bytes in all."""
  total = sum(_bytes(tensor) for shard in shards.values() for tensor in shard)
  where = {
    tensor.name: file for file, shard in shards.items() for tensor in shard
  }
  fields = {'metadata': {'total_size': total}, 'weight_map': where}
  tensor_files.write_json(folder / tensor_files.INDEX, fields)


def _write_tokenizer(
  folder: pathlib.Path, tokenizer: tokenizers.Tokenizer
) -> None:
  """Writes the tokenizer, its special tokens, and where answers end."""
  special = _special_ids(tokenizer.stops)
  tensor_files.write_json(folder / 'generation_config.json', special)
  atomic.write_bytes(folder / 'tokenizer.model', tokenizer.proto)
  names = dict(
    pad_token=tokenizers.PAD,
    eos_token=tokenizers.EOS,
    bos_token=tokenizers.BOS,
    unk_token=tokenizers.UNK,
  )
  tensor_files.write_json(
    folder / 'tokenizer_config.json',
    {name: tokenizer.piece(i) for name, i in names.items()}
    | {
      'tokenizer_class': 'GemmaTokenizer',
      'add_bos_token': True,
      'add_eos_token': False,
      'clean_up_tokenization_spaces': False,
    },
  )
