"""Gemma's parameters, leaf by leaf, as tensors of Hugging Face's.

`param_mappings` pairs every leaf of gemma's parameter tree with the tensors of
Hugging Face's layout that hold it. The two differ only in the order of axes,
which a pattern of einops describes in both directions.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import einops
import jax
import jax.numpy as jnp
import numpy as np

from cascades.models.config_json import FULL, GemmaConfig

# Path of the embedding table, the largest leaf of a small model.
TABLE = 'embedder', 'input_embedding'
TABLE_TENSOR = 'model.embed_tokens.weight'
_SAME, _TRANSPOSED = '... -> ...', '... o i -> ... i o'
# gemma's and Hugging Face's names of the norms of a layer.
_COMMON_NORMS = {
  'pre_attention_norm': 'input_layernorm',
  'post_attention_norm': 'post_attention_layernorm',
  'post_ffw_norm': 'post_feedforward_layernorm',
}
_NORMS = _COMMON_NORMS | {'pre_ffw_norm': 'pre_feedforward_layernorm'}
_MIXED_NORMS = _COMMON_NORMS | {
  'pre_ffw2_norm': 'pre_feedforward_layernorm',
  'post_ffw2_norm': 'post_feedforward_layernorm_1',
  'pre_ffw_norm': 'pre_feedforward_layernorm_2',
  'post_ffw1_norm': 'post_feedforward_layernorm_2',
}
# AltUp and LAuReL in a layer of a Gemma 3n.
_STREAMS = {
  'altup/correct_output_scale': 'altup.correct_output_scale',
  'altup/correction_coefs': 'altup.correction_coefs.weight',
  'altup/modality_router/w': 'altup.modality_router.weight',
  'altup/router_norm_layer/scale': 'altup.router_norm.weight',
  'laurel/linear_left/w': 'laurel.linear_left.weight',
  'laurel/linear_right/w': 'laurel.linear_right.weight',
  'post_laurel_norm/scale': 'laurel.post_laurel_norm.weight',
}
# A mixture of experts, and its router.
_EXPERTS = {
  'mlp/router_logits/w': 'router.proj.weight',
  'mlp/router_scale': 'router.scale',
  'mlp/per_expert_scale': 'router.per_expert_scale',
  'mlp/linear/w': 'experts.down_proj',
}
# The embedding of a layer, added to the states after it.
_LAYER_INPUT = {
  'per_layer_input_gate/w': 'per_layer_input_gate.weight',
  'per_layer_projection/w': 'per_layer_projection.weight',
  'post_per_layer_input_norm/scale': 'post_per_layer_input_norm.weight',
}


class ParamMapping(NamedTuple):
  """One leaf of gemma's tree and the Hugging Face tensors it comes from.

  Attributes:
    path: Keys into gemma's parameter tree.
    names: Names of the Hugging Face tensors, in order.
    pack: Makes the leaf of an iterable of the tensors, in that order.
    unpack: Makes the tensors of the leaf, in that order.
  """

  path: tuple[str, ...]
  names: tuple[str, ...]
  pack: Callable[[Iterable[Any]], Any]
  unpack: Callable[[Any], list[Any]]


def get(tree: Any, path: Iterable[str]) -> Any:
  """Returns the part of a tree at a path of keys."""
  return functools.reduce(lambda part, key: part[key], path, tree)


def _stack(parts: Iterable[Any], count: int) -> Any:
  """Stacks arrays; holds one part at a time beside the result.

  Axes along which a NumPy part is broadcast, as scales are, stay broadcast.
  """
  iterator, shape, out = iter(parts), (), np.empty(0)
  for i, part in enumerate(iterator):
    # Tracers have shapes only, and take no memory.
    if isinstance(part, jax.Array):
      return jnp.stack([part, *iterator])
    shape = part.shape
    part = part[tuple(slice(None if x else 1) for x in part.strides)]
    if i == 0:
      out = np.empty((count, *part.shape), part.dtype)
    out[i] = part
    del part
  return (
    out if out.shape[1:] == shape else np.broadcast_to(out, (count, *shape))
  )


def _leaf(
  path: str,
  names: str | Sequence[str],
  pattern: str | None = None,
  layer: int | None = None,
  **sizes: int,
) -> ParamMapping:
  """Returns the mapping of a leaf that is a tensor, or a stack of tensors."""
  is_matrix = path.endswith(('/w', 'linear', 'coefs'))
  pattern = pattern or (_TRANSPOSED if is_matrix else _SAME)
  names = [names] if isinstance(names, str) else names
  if layer is not None:
    path = f'layer_{layer}/{path}'
    names = [f'model.layers.{layer}.{name}' for name in names]
  is_stack = len(names) > 1
  tensor, array = pattern.split(' -> ')
  inverse = f'{array} -> {tensor}'

  def pack(tensors):
    parts = (einops.rearrange(x, pattern, **sizes) for x in tensors)
    return _stack(parts, len(names)) if is_stack else next(parts)

  def unpack(x):
    parts = x if is_stack else [x]
    return [einops.rearrange(part, inverse, **sizes) for part in parts]

  return ParamMapping(tuple(path.split('/')), tuple(names), pack, unpack)


def _unused(path: str, layer: int, shape: tuple[int, ...]) -> ParamMapping:
  """Returns the mapping of a leaf that gemma declares but never reads."""
  keys = f'layer_{layer}', *path.split('/')
  pack = lambda _: np.zeros(shape, jnp.bfloat16)  # noqa: E731
  return ParamMapping(keys, (), pack, lambda x: [])


def param_mappings(
  config: GemmaConfig, gate_by_rows: bool = True
) -> Iterator[ParamMapping]:
  """Yields the mapping of each leaf of `language.from_config(config)`."""
  yield _table(config)
  yield _leaf('final_norm/scale', 'model.norm.weight')
  if config.hidden_size_per_layer_input:
    table, projection = (
      ('per_layer_input_embedding', 'per_layer_input_projection')
      if config.is_gemma3n
      else ('per_layer_embeddings', 'per_layer_model_projection')
    )
    by_layer = functools.partial(_leaf, l=config.num_hidden_layers)
    name = 'model.embed_tokens_per_layer.weight'
    yield by_layer(f'embedder/{table}', name, 'v (l p) -> v l p')
    path = f'embedder/{projection}/w'
    name = 'model.per_layer_model_projection.weight'
    yield by_layer(path, name, '(l p) d -> d l p')
    name = 'per_layer_projection_norm'
    yield _leaf(f'embedder/{name}/scale', f'model.{name}.weight')
  if config.is_gemma3n:
    # Projections from one stream to all, and back to one.
    for name in ('altup_projection', 'altup_unembed_projection'):
      for j in range(config.altup_num_inputs - 1):
        path = f'{name}_{j}/{name}_{j}'
        yield _leaf(path, f'model.{name}s.{j}.weight', _TRANSPOSED)
  for i in range(config.num_hidden_layers):
    yield from _layer(config, i, _SAME if gate_by_rows else _TRANSPOSED)


def _layer(config: GemmaConfig, i: int, gate: str) -> Iterator[ParamMapping]:
  """Yields the mappings of a layer."""
  leaf, is_mixed = functools.partial(_leaf, layer=i), config.enable_moe_block
  norms, rows = (_MIXED_NORMS, _EXPERTS) if is_mixed else (_NORMS, {})
  for norm, name in norms.items():
    yield leaf(f'{norm}/scale', f'{name}.weight')
  yield from _attention(config, i)
  gates, dense = ('mlp.gate_proj.weight', 'mlp.up_proj.weight'), 'mlp'
  if is_mixed:
    dense = 'mlp2'
    name, pattern = 'experts.gate_up_proj', 'e (two f) d -> e two f d'
    yield leaf('mlp/gating_einsum/w', name, pattern, two=2)
  yield leaf(f'{dense}/gating_einsum', gates, gate)
  yield leaf(f'{dense}/linear', 'mlp.down_proj.weight')
  if config.is_gemma3n:
    rows = _STREAMS
    name, pattern = 'altup.prediction_coefs.weight', '(s t) m -> m s t'
    count = config.altup_num_inputs
    yield leaf('altup/prediction_coefs', name, pattern, s=count)
  elif config.is_gemma4:
    rows = rows | {'skip_scale': 'layer_scalar'}
  if config.hidden_size_per_layer_input:
    prefix = 'per_layer_mapping/' if config.is_gemma3n else ''
    rows = rows | {prefix + x: name for x, name in _LAYER_INPUT.items()}
  for path, name in rows.items():
    yield leaf(path, name)


def tensors(
  params: Any, config: GemmaConfig, gate_by_rows: bool = True
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields names and tensors of a model, in the order of its leaves."""
  for mapping in param_mappings(config, gate_by_rows):
    leaf = get(params, mapping.path)
    parts = leaf if isinstance(leaf, tuple) else (leaf,)
    for x, suffix in zip(parts, ('', '_scale'), strict=False):
      unpacked = mapping.unpack(np.asarray(x))
      for name, tensor in zip(mapping.names, unpacked, strict=True):
        # Scales are a view of few numbers; all their columns are a matrix.
        tensor = tensor[..., :1] if suffix else tensor
        yield name + suffix, np.ascontiguousarray(tensor)


def _table(config: GemmaConfig) -> ParamMapping:
  """Returns the mapping of the embedding table; gemma's may have fewer rows."""
  rows = config.vocab_size
  padding = config.table_size - rows

  def pack(tensors):
    (table,) = tensors
    return table[:rows] if padding else table

  def unpack(x):
    if not padding:
      return [x]
    # Rows that pad the table repeat the row of the padding token.
    library = jnp if isinstance(x, jax.Array) else np
    copies = library.broadcast_to(x[:1], (padding, *x.shape[1:]))
    return [library.concatenate([x, copies])]

  return ParamMapping(TABLE, (TABLE_TENSOR,), pack, unpack)


def _attention(config: GemmaConfig, layer: int) -> Iterator[ParamMapping]:
  """Yields the mappings of the attention of a layer."""
  query_heads, is_gemma4 = config.num_attention_heads, config.is_gemma4
  key_heads, dim = config.key_heads(layer)
  has_cache = layer < config.num_hidden_layers - config.num_kv_shared_layers
  leaf = functools.partial(_leaf, layer=layer)
  by_head = functools.partial(leaf, pattern='(n h) d -> n d h', h=dim)
  q, k, v = (f'self_attn.{x}_proj.weight' for x in 'qkv')
  if query_heads == key_heads and not is_gemma4:
    yield by_head('attn/qkv_einsum/w', (q, k, v), n=query_heads)
  else:
    yield by_head('attn/q_einsum/w', q, n=query_heads)
    is_full = config.layer_types[layer] == FULL
    shares_values = is_gemma4 and is_full and config.attention_k_eq_v
    path = f'attn/{"k" if shares_values else "kv"}_einsum/w'
    if has_cache:
      yield by_head(path, k if shares_values else (k, v), n=key_heads)
    elif is_gemma4:
      shape = key_heads, config.hidden_size, dim
      yield _unused(path, layer, shape if shares_values else (2, *shape))
  out, pattern = 'self_attn.o_proj.weight', 'd (n h) -> n h d'
  yield leaf('attn/attn_vec_einsum/w', out, pattern, n=query_heads)
  if config.model_type == 'gemma2':
    return
  prefix = 'attn/_' if config.model_type == 'gemma3_text' else 'attn/'
  yield leaf(f'{prefix}query_norm/scale', 'self_attn.q_norm.weight')
  path = f'{prefix}key_norm/scale'
  if has_cache:
    yield leaf(path, 'self_attn.k_norm.weight')
  elif is_gemma4:
    yield _unused(path, layer, (dim,))
