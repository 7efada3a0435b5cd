"""gemma's library: this module and its patches alone import it.

Sources: Gemma 2 (arXiv 2408.00118), Gemma 3 (arXiv 2503.19786) and the public
`gemma` library.
"""

import dataclasses
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from cascades.models import patches
from cascades.models.config_json import (
  ATTENTION_TYPES,
  FULL,
  SLIDING,
  GemmaConfig,
  Rope,
)

# Names in gemma's configurations, and in a config.json of any family.
SIZES = dict(
  num_embed='vocab_size',
  embed_dim='hidden_size',
  hidden_dim='intermediate_size',
  num_heads='num_attention_heads',
  head_dim='head_dim',
  num_kv_heads='num_key_value_heads',
  final_logit_softcap='final_logit_softcapping',
  sliding_window_size='sliding_window',
)


def import_gemma() -> Any:
  """Imports and returns `gemma.gm`, without TensorFlow.

  The import takes seconds, so that functions which need gemma call this one.
  """
  patches.import_checkpoints()
  from gemma import gm

  return gm


def gemma_checkpoints() -> dict[str, Any]:
  """Returns gemma's checkpoints by name, such as 'gemma2-2b-it'."""
  gm = import_gemma()
  return {
    path.name.lower().replace('_', '-'): path
    for path in gm.ckpts.CheckpointPath
  }


def orbax_shapes(folder: str | os.PathLike) -> PyTree:
  """Returns shapes and dtypes of an Orbax checkpoint of gemma's, text only.

  gemma's own code converts all of its layouts (nested, flat, stacked) to the
  tree of its modules.
  """
  tree, _ = _orbax_tree(folder)
  return tree.as_nested(remove_mm=tree.has_mm_params).tree


def restore_layers(
  folder: str | os.PathLike, structs: Mapping[str, PyTree]
) -> Iterator[tuple[str, PyTree]]:
  """Reads an Orbax checkpoint of gemma's, a layer at a time."""
  from gemma.gm.ckpts import _checkpoint
  from orbax import checkpoint as ocp

  tree, path = _orbax_tree(folder)
  stored = tree.as_nested(remove_mm=tree.has_mm_params).tree
  if tree.type == _checkpoint._CheckpointType.STACKED:
    # One array holds the same parameter of many layers.
    everything = _replace_leaves(stored, structs, lambda x: x)
    params = dict(_checkpoint.load_params(folder, params=everything))
    for layer, part in structs.items():
      yield layer, select(params.pop(layer), part)
    return
  restore = ocp.PyTreeCheckpointer().restore

  def only_structs(x):
    # What belongs to images, or to the state of a training, is left out.
    return x if isinstance(x, jax.ShapeDtypeStruct) else ocp.PLACEHOLDER

  for layer, struct in structs.items():
    part = _replace_leaves(stored, {layer: struct}, lambda _: ocp.PLACEHOLDER)
    target = tree.make_tree_for_params(tree.replace(tree=part))
    target = jax.tree.map(only_structs, target)
    args = ocp.args.PyTreeRestore(
      item=target, restore_args=jax.tree.map(_restore_args, target)
    )
    output = restore(path, args=args)
    nested = tree.replace(tree=output).as_nested(remove_mm=tree.has_mm_params)
    yield layer, select(nested.tree[layer], struct)


def select(tree: PyTree, structs: PyTree) -> PyTree:
  """Returns the leaves of a tree that another tree of dicts has, too."""
  if not isinstance(structs, Mapping):
    return tree
  common = (name for name in structs if name in tree)
  return {name: select(tree[name], structs[name]) for name in common}


def _replace_leaves(
  tree: PyTree, structs: PyTree, default: Callable[[Any], Any]
) -> PyTree:
  """Returns a tree with the leaves of another, and `default` of the rest."""
  if not isinstance(tree, Mapping):
    return default(tree) if structs is None else structs
  return {
    name: _replace_leaves(part, (structs or {}).get(name), default)
    for name, part in tree.items()
  }


def _orbax_tree(folder: str | os.PathLike) -> tuple[Any, Any]:
  """Returns the tree of a checkpoint, as gemma represents it, and its path."""
  from gemma.gm.ckpts import _checkpoint
  from orbax import checkpoint as ocp

  metadata, path = _checkpoint._get_metadata_and_path(
    ocp.StandardCheckpointer(), folder
  )
  tree = _checkpoint._CheckpointTree.shape_dtype_struct_like(tree=metadata)
  return tree, path


def apply_rope(
  x: Float[Array, 'N h'], position: Int[Array, ''], rope: Rope
) -> Float[Array, 'N h']:
  """Applies the rotary embedding of a Gemma 4 to queries at one position."""
  from gemma.gm.math import _positional_embeddings

  rotated = _positional_embeddings.apply_rope(
    x[None, None],
    position[None, None],
    # Annotated as int, and used as a float.
    base_frequency=cast('int', rope.theta),
    scale_factor=rope.factor,
    rope_proportion=rope.share,
  )
  return rotated[0, 0]


def _restore_args(struct: Any) -> Any:
  """Returns Orbax's options for an array; for one device, of NumPy's."""
  from orbax import checkpoint as ocp

  if not isinstance(struct, jax.ShapeDtypeStruct):
    return ocp.RestoreArgs()
  if isinstance(struct.sharding, jax.sharding.SingleDeviceSharding):
    # Orbax keeps its own copy beside an array of JAX.
    return ocp.RestoreArgs(restore_type=np.ndarray, dtype=struct.dtype)
  return ocp.ArrayRestoreArgs(
    sharding=struct.sharding, dtype=struct.dtype, global_shape=struct.shape
  )


def transformer(config: GemmaConfig, dtype: Any) -> Any:
  """Returns gemma's flax module of a model."""
  import_gemma()
  # Each family has classes of its own.
  package = '.gemma3n' * config.is_gemma3n + '.gemma4' * config.is_gemma4
  names = '_config', '_modules', '_transformer'
  module, modules, transformers = (
    importlib.import_module(f'gemma.gm.nn{package}.{name}') for name in names
  )
  types = [
    modules.AttentionType[ATTENTION_TYPES[x]] for x in config.layer_types
  ]
  sliding, full = config.ropes[SLIDING], config.ropes[FULL]
  global_heads = config.num_global_key_value_heads
  has_same_heads = global_heads == config.num_key_value_heads
  # Fields of all families; a family has no other ones of the same name.
  fields = {name: getattr(config, x) for name, x in SIZES.items()} | dict(
    use_post_attn_norm=True,
    use_post_ffw_norm=True,
    attention_types=tuple(types),
    local_base_frequency=sliding.theta,
    local_scale_factor=sliding.factor,
    local_rope_proportion=sliding.share,
    global_base_frequency=full.theta,
    global_scale_factor=full.factor,
    global_rope_proportion=full.share,
    vision_encoder=None,
    attn_logits_soft_cap=config.attn_logit_softcapping,
    # Hugging Face's order of axes.
    transpose_gating_einsum=True,
    use_qk_norm=config.model_type != 'gemma2',
    use_value_norm=True,
    use_altup=True,
    use_laurel=True,
    altup_coef_clip=config.altup_coef_clip,
    activation_sparsity_pattern=tuple(config.activation_sparsity_pattern),
    laurel_rank=config.laurel_rank,
    scale_plus_one=False,
    guard_against_excess_precision=True,
    per_layer_input_dim=config.hidden_size_per_layer_input,
    kv_cache_sharing_config=_sharing(config, module),
    num_global_kv_heads=None if has_same_heads else global_heads,
    global_key_size=config.global_head_dim,
    k_eq_v_global=config.attention_k_eq_v,
    use_bidirectional_attention=config.use_bidirectional_attention or None,
  )
  if not config.is_gemma4:
    by_head = config.query_pre_attn_scalar == config.head_dim
    name = 'HEAD_DIM' if by_head else 'EMBED_DIM_DIV_NUM_HEADS'
    name = 'NONE' if config.is_gemma3n else f'BY_ONE_OVER_SQRT_{name}'
    norm = module.QueryPreAttentionNormalisation[name]
    fields['query_pre_attn_norm'] = norm
  if config.use_double_wide_mlp:
    fields['override_kv_shared_ffw_hidden'] = 2 * config.intermediate_size
  if config.enable_moe_block:
    fields |= dict(
      enable_moe=True,
      num_experts=config.num_experts,
      expert_dim=config.moe_intermediate_size,
      top_k_experts=config.top_k_experts,
      moe_dense_hidden_dim=config.intermediate_size,
    )
  names = {field.name for field in dataclasses.fields(module.TransformerConfig)}
  gemma_config = module.TransformerConfig(
    **{name: x for name, x in fields.items() if name in names}
  )
  name = 'Gemma3nTransformer' if config.is_gemma3n else 'Transformer'
  make = getattr(transformers, name)
  return make(dtype=dtype, tokens='tokens', config=gemma_config)


def _sharing(config: GemmaConfig, module: Any) -> Any:
  """Returns gemma's configuration of layers that read another layer's cache."""
  layers, shared = config.num_hidden_layers, config.num_kv_shared_layers
  if not shared:
    return None
  # gemma takes a share and truncates the number of other layers, which rounding
  # of the share can make one less.
  share = shared / layers
  if int(layers - share * layers) != layers - shared:
    share = (shared - 0.5) / layers
  return module.KVCacheSharingConfig(
    frac_shared_layers=share, share_global=True, share_local=True
  )
