"""Gemma's own library: the only module that imports it.

Sources: Gemma 2 (arXiv 2408.00118), Gemma 3 (arXiv 2503.19786) and the public
`gemma` library.
"""

import contextlib
import importlib
import os
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from jaxtyping import Array, Float, Int, PyTree

from cascades.models import families


@contextlib.contextmanager
def _stand_in(name: str, **attributes: Any) -> Iterator[None]:
  """A module of a few names, while something is imported that asks for it.

  Whoever has kept it finds everything of the real one in it from then on.
  """
  if name in sys.modules:
    yield
    return
  module = types.ModuleType(name)
  module.__dict__.update(attributes)
  package, _, last = name.rpartition('.')
  sys.modules[name] = module
  if package:
    setattr(importlib.import_module(package), last, module)
  try:
    yield
  finally:
    del sys.modules[name]
    if package:
      delattr(sys.modules[package], last)
    for attribute in attributes:
      delattr(module, attribute)
    module.__getattr__ = lambda asked: getattr(
      importlib.import_module(name), asked
    )


def import_gemma():
  """Imports and returns `gemma.gm`, without TensorFlow.

  It takes seconds, hence this function, called where gemma is needed, and not
  an import above. It would take four times as many, and as much more memory,
  with what gemma imports for annotations alone: TensorFlow's tensors and the
  training loop of kauldron. Neither has a part in a model. Whoever imports
  either of them, before or after, gets the real one; only kauldron's own type
  checks do not know TensorFlow's tensors then.
  """
  # Where TensorFlow is imported nevertheless, it does not talk on stderr.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  os.environ.setdefault('GRPC_VERBOSITY', 'NONE')
  # Set or not, no computation of ours depends on it; unset, it logs a line.
  os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
  if 'gemma.gm.ckpts' not in sys.modules:
    # A version that asks for more than is there gets all of it below.
    with contextlib.suppress(ImportError, AttributeError):
      with _stand_in('tensorflow', Tensor=type('Tensor', (), {})):
        import kauldron.typing  # noqa: F401
      with _stand_in('kauldron.train', TrainState=object):
        import gemma.gm.ckpts  # noqa: F401
  from gemma import gm

  return gm


def gemma_checkpoints() -> dict[str, Any]:
  """Returns gemma's checkpoint paths by name, such as 'gemma2-2b-it'."""
  gm = import_gemma()
  return {
    path.name.lower().replace('_', '-'): path
    for path in gm.ckpts.CheckpointPath
  }


def orbax_shapes(folder: str | os.PathLike) -> PyTree:
  """Shapes and dtypes of an Orbax checkpoint of gemma's, text only.

  Whatever gemma has released its parameters as (nested, flat, stacked), its own
  code makes what its modules take of it.

  Args:
    folder: Where the checkpoint lies.
  """
  from gemma.gm.ckpts import _checkpoint
  from orbax import checkpoint as ocp

  metadata, _ = _checkpoint._get_metadata_and_path(
    ocp.StandardCheckpointer(), folder
  )
  tree = _checkpoint._CheckpointTree.shape_dtype_struct_like(tree=metadata)
  return tree.as_nested(remove_mm=tree.has_mm_params).tree


def apply_rope(
  x: Float[Array, 'N h'], position: Int[Array, ''], rope: families.Rope
) -> Float[Array, 'N h']:
  """Queries of a Gemma 4, turned by where they stand."""
  from gemma.gm.math import _positional_embeddings

  turned = _positional_embeddings.apply_rope(
    x[None, None],
    position[None, None],
    base_frequency=rope.theta,
    scale_factor=rope.factor,
    rope_proportion=rope.share,
  )
  return turned[0, 0]


def transformer(config: Mapping[str, Any], dtype: Any) -> Any:
  """Returns the gemma module of a model.

  Args:
    config: As `families.text_config` gives it.
    dtype: What the parameters are kept in.

  Raises:
    ValueError: The model is not one of gemma's.
  """
  import_gemma()
  family = config['model_type']
  if family == 'gemma3n_text':
    from gemma.gm.nn.gemma3n import _config, _modules, _transformer

    made, own = _transformer.Gemma3nTransformer, _gemma3n
  elif families.is_gemma4(config):
    from gemma.gm.nn.gemma4 import _config, _modules, _transformer

    made, own = _transformer.Transformer, _gemma4
  else:
    from gemma.gm.nn import _config, _modules, _transformer

    made, own = _transformer.Transformer, _classic
  # Each family's own.
  kinds = {
    theirs: _modules.AttentionType[gemmas]
    for theirs, gemmas in families.KINDS.items()
  }
  ropes = families.ropes(config)
  local, whole = ropes[families.SLIDING], ropes[families.FULL]
  fields = {ours: config[theirs] for ours, theirs in families.SIZES.items()}
  fields |= dict(
    use_post_attn_norm=True,
    use_post_ffw_norm=True,
    attention_types=tuple(kinds[kind] for kind in config['layer_types']),
    local_base_frequency=local.theta,
    local_scale_factor=local.factor,
    global_base_frequency=whole.theta,
    global_scale_factor=whole.factor,
    vision_encoder=None,
  )
  fields |= own(config, _config)
  return made(
    dtype=dtype, tokens='tokens', config=_config.TransformerConfig(**fields)
  )


def _classic(config: Mapping[str, Any], module: Any) -> dict[str, Any]:
  """A Gemma 2's or 3's own fields.

  Args:
    config: As `families.text_config` gives it.
    module: Of gemma, that has the configuration.
  """
  scaling = module.QueryPreAttentionNormalisation
  scalar = config['query_pre_attn_scalar']
  if scalar == config['head_dim']:
    norm = scaling.BY_ONE_OVER_SQRT_HEAD_DIM
  elif scalar == config['hidden_size'] // config['num_attention_heads']:
    norm = scaling.BY_ONE_OVER_SQRT_EMBED_DIM_DIV_NUM_HEADS
  else:
    raise ValueError(
      f'config.json: query_pre_attn_scalar {scalar} is neither head_dim nor'
      ' hidden_size / num_attention_heads, which is all that gemma offers.'
    )
  return dict(
    attn_logits_soft_cap=config['attn_logit_softcapping'],
    query_pre_attn_norm=norm,
    # Hugging Face's own order.
    transpose_gating_einsum=True,
    use_qk_norm=config['model_type'] == 'gemma3_text',
  )


def _gemma3n(config: Mapping[str, Any], module: Any) -> dict[str, Any]:
  """A Gemma 3n's own fields; arguments as for `_classic`."""
  return dict(
    query_pre_attn_norm=module.QueryPreAttentionNormalisation.NONE,
    transpose_gating_einsum=True,
    use_qk_norm=True,
    use_value_norm=True,
    use_altup=True,
    altup_coef_clip=config['altup_coef_clip'],
    activation_sparsity_pattern=tuple(config['activation_sparsity_pattern']),
    per_layer_input_dim=config['hidden_size_per_layer_input'],
    use_laurel=True,
    laurel_rank=config['laurel_rank'],
    kv_cache_sharing_config=_sharing(config, module),
    scale_plus_one=False,
    guard_against_excess_precision=True,
  )


def _gemma4(config: Mapping[str, Any], module: Any) -> dict[str, Any]:
  """A Gemma 4's own fields; arguments as for `_classic`."""
  ropes = families.ropes(config)
  usual = config['num_key_value_heads']
  whole = config['num_global_key_value_heads']
  own = dict(
    num_global_kv_heads=None if whole == usual else whole,
    global_key_size=config['global_head_dim'],
    k_eq_v_global=config['attention_k_eq_v'],
    local_rope_proportion=ropes[families.SLIDING].share,
    global_rope_proportion=ropes[families.FULL].share,
    per_layer_input_dim=config['hidden_size_per_layer_input'],
    kv_cache_sharing_config=_sharing(config, module),
    use_bidirectional_attention=config['use_bidirectional_attention'] or None,
  )
  if config['use_double_wide_mlp']:
    own['override_kv_shared_ffw_hidden'] = 2 * config['intermediate_size']
  if config['enable_moe_block']:
    own |= dict(
      enable_moe=True,
      num_experts=config['num_experts'],
      expert_dim=config['moe_intermediate_size'],
      top_k_experts=config['top_k_experts'],
      moe_dense_hidden_dim=config['intermediate_size'],
    )
  return own


def _sharing(config: Mapping[str, Any], module: Any) -> Any:
  """Which layers attend to what others have cached, as gemma says it."""
  layers, shared = config['num_hidden_layers'], config['num_kv_shared_layers']
  if not shared:
    return None
  # It takes a share, and the whole part of what that leaves; some come out as
  # one less.
  share = shared / layers
  if int(layers - share * layers) != layers - shared:
    share = (shared - 0.5) / layers
  return module.KVCacheSharingConfig(
    frac_shared_layers=share, share_global=True, share_local=True
  )
