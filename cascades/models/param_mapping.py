"""Gemma's parameters, leaf by leaf, as tensors of Hugging Face's.

`param_mappings` pairs every leaf of gemma's parameter tree with the tensors of
Hugging Face's layout that hold it. The two differ only in the order of axes,
which a pattern of einops describes in both directions.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import einops
import jax
import jax.numpy as jnp
import numpy as np

from cascades.models import families

# The leaf with a row for each token: the largest of a small model.
TABLE = 'embedder', 'input_embedding'
TABLE_TENSOR = 'model.embed_tokens.weight'
_SAME, _TURNED = '... -> ...', 'o i -> i o'


class ParamMapping(NamedTuple):
  """One leaf of gemma's tree and the Hugging Face tensors it comes from.

  Attributes:
    path: Keys into gemma's tree.
    names: Names of the Hugging Face tensors, in order.
    pack: From the tensors, in that order, to the leaf; they may come one by
      one.
    unpack: From the leaf to the tensors, in that order.
  """

  path: tuple[str, ...]
  names: tuple[str, ...]
  pack: Callable[[Iterable[Any]], Any]
  unpack: Callable[[Any], list[Any]]


class Tensor(NamedTuple):
  """A tensor of Hugging Face's, before it is made.

  Attributes:
    name: Its name in a file.
    of: Its shape and dtype.
    make: Gives it, contiguous.
  """

  name: str
  of: jax.ShapeDtypeStruct
  make: Callable[[], np.ndarray]


def get(tree: Any, path: Iterable[str]) -> Any:
  """What a tree holds at the end of a path of keys."""
  return functools.reduce(lambda part, key: part[key], path, tree)


def _only(parts: Iterable[Any]) -> Any:
  """The one part that there is."""
  (part,) = parts
  return part


def _stack(parts: Iterable[Any], count: int) -> Any:
  """`np.stack`, with no more than one part held beside the result.

  Args:
    parts: Arrays of one shape and dtype, or what JAX traces in their place.
    count: How many they are.

  Returns:
    [count, ...].
  """
  parts, out = iter(parts), None
  for i, part in enumerate(parts):
    # Shapes are looked at, and there is nothing to hold.
    if isinstance(part, jax.Array):
      return jnp.stack([part, *parts])
    if out is None:
      out = np.empty((count, *part.shape), part.dtype)
    out[i] = part
    del part
  return out


def _leaf(
  path: str,
  names: str | Sequence[str],
  pattern: str = _SAME,
  layer: int | None = None,
  **sizes: int,
) -> ParamMapping:
  """A leaf that is a tensor, or several of one shape one after the other.

  Args:
    path: Keys into gemma's tree, with slashes between them.
    names: Of the tensors; of several the leaf has an axis more, the first.
    pattern: From a tensor's axes to those of its part of the leaf.
    layer: The layer in which path and names are to be found; None for none.
    **sizes: Of axes that the pattern names.
  """
  names = [names] if isinstance(names, str) else names
  if layer is not None:
    path = f'layer_{layer}/{path}'
    names = [f'model.layers.{layer}.{name}' for name in names]
  several = len(names) > 1
  tensor, array = pattern.split(' -> ')
  back = f'{array} -> {tensor}'

  def pack(tensors):
    parts = (einops.rearrange(x, pattern, **sizes) for x in tensors)
    return _stack(parts, len(names)) if several else _only(parts)

  def unpack(x):
    return [
      einops.rearrange(part, back, **sizes) for part in (x if several else [x])
    ]

  return ParamMapping(tuple(path.split('/')), tuple(names), pack, unpack)


def _unused(path: str, layer: int, shape: tuple[int, ...]) -> ParamMapping:
  """A leaf that gemma asks for and never looks at, and no tensor holds."""

  def pack(tensors):
    del tensors
    return np.zeros(shape, jnp.bfloat16)

  return ParamMapping(
    (f'layer_{layer}', *path.split('/')), (), pack, lambda x: []
  )


def param_mappings(
  config: Mapping[str, Any], gate_by_rows: bool = True
) -> Iterator[ParamMapping]:
  """Every leaf of the model that `language.from_config(config)` builds.

  Args:
    config: Fields of config.json, the model's or those that hold the text
      model's.
    gate_by_rows: Whether `gating_einsum` lies as Hugging Face has it, as it
      does in that model; in some of gemma's own, its matrices are transposed.
  """
  config = families.text_config(config)
  yield _table(config)
  yield _leaf('final_norm/scale', 'model.norm.weight')
  if config.get('hidden_size_per_layer_input'):
    yield from _per_layer_inputs(config)
  if config['model_type'] == 'gemma3n_text':
    # What its streams are made of, and one of its streams.
    for name in ('altup_projection', 'altup_unembed_projection'):
      for j in range(config['altup_num_inputs'] - 1):
        path = f'{name}_{j}/{name}_{j}'
        yield _leaf(path, f'model.{name}s.{j}.weight', _TURNED)
  for i in range(config['num_hidden_layers']):
    for norm, name in _norms(config):
      yield _leaf(f'{norm}/scale', f'{name}.weight', layer=i)
    yield from _attention(config, i)
    yield from _feed_forward(config, i, gate_by_rows)
    if config['model_type'] == 'gemma3n_text':
      yield from _streams(config, i)
    elif families.is_gemma4(config):
      yield _leaf('skip_scale', 'layer_scalar', layer=i)
    if config.get('hidden_size_per_layer_input'):
      yield from _per_layer_input(config, i)


def tensors(
  params: Any, config: Mapping[str, Any], gate_by_rows: bool = True
) -> Iterator[Tensor]:
  """The tensors of a model, in the order of its leaves; none is made.

  Args:
    params: gemma's tree, of JAX's or of numpy's arrays.
    config: As of `param_mappings`.
    gate_by_rows: As of `param_mappings`.
  """

  def made(leaf, i):
    whole = np.asarray(get(params, leaf.path))
    return np.ascontiguousarray(leaf.unpack(whole)[i])

  for leaf in param_mappings(config, gate_by_rows):
    x = get(params, leaf.path)
    shapes = jax.eval_shape(leaf.unpack, jax.ShapeDtypeStruct(x.shape, x.dtype))
    for i, (name, of) in enumerate(zip(leaf.names, shapes, strict=True)):
      yield Tensor(name, of, functools.partial(made, leaf, i))


def _table(config: Mapping[str, Any]) -> ParamMapping:
  """The embedding table, of which gemma may have fewer rows."""
  rows = config['vocab_size']
  more = config.get('table_size', rows) - rows

  def pack(tensors):
    table = _only(tensors)
    if not more:
      return table
    # What reads its rows is asked for fewer, and nothing is read here.
    return table.first(rows) if hasattr(table, 'first') else table[:rows]

  def unpack(x):
    if not more:
      return [x]
    # What is left out are copies of the row that pads.
    library = jnp if isinstance(x, jax.Array) else np
    copies = library.broadcast_to(x[:1], (more, *x.shape[1:]))
    return [library.concatenate([x, copies])]

  return ParamMapping(TABLE, (TABLE_TENSOR,), pack, unpack)


def _norms(config: Mapping[str, Any]) -> list[tuple[str, str]]:
  """The norms of a layer, gemma's names and Hugging Face's."""
  common = [
    ('pre_attention_norm', 'input_layernorm'),
    ('post_attention_norm', 'post_attention_layernorm'),
    ('post_ffw_norm', 'post_feedforward_layernorm'),
  ]
  if not config.get('enable_moe_block'):
    return [*common, ('pre_ffw_norm', 'pre_feedforward_layernorm')]
  return [
    *common,
    ('pre_ffw2_norm', 'pre_feedforward_layernorm'),
    ('post_ffw2_norm', 'post_feedforward_layernorm_1'),
    ('pre_ffw_norm', 'pre_feedforward_layernorm_2'),
    ('post_ffw1_norm', 'post_feedforward_layernorm_2'),
  ]


def _attention(config: Mapping[str, Any], i: int) -> Iterator[ParamMapping]:
  """What a layer attends by.

  Args:
    config: As `families.text_config` gives it.
    i: The layer.
  """
  four, heads = families.is_gemma4(config), config['num_attention_heads']
  kv_heads, dim = families.key_value_shape(config, i)
  own = i < config['num_hidden_layers'] - config.get('num_kv_shared_layers', 0)
  q, k, v = (f'self_attn.{x}_proj.weight' for x in 'qkv')
  by_head = functools.partial(_leaf, pattern='(n h) d -> n d h', layer=i, h=dim)
  if heads == kv_heads and not four:
    yield by_head('attn/qkv_einsum/w', (q, k, v), n=heads)
  else:
    yield by_head('attn/q_einsum/w', q, n=heads)
    whole = config['layer_types'][i] == families.FULL
    alike = four and whole and config['attention_k_eq_v']
    path = f'attn/{"k" if alike else "kv"}_einsum/w'
    if own:
      yield by_head(path, k if alike else (k, v), n=kv_heads)
    elif four:
      shape = kv_heads, config['hidden_size'], dim
      yield _unused(path, i, shape if alike else (2, *shape))
  name = 'self_attn.o_proj.weight'
  pattern = 'd (n h) -> n h d'
  yield _leaf('attn/attn_vec_einsum/w', name, pattern, i, n=heads)
  if config['model_type'] == 'gemma2':
    return
  start = 'attn/_' if config['model_type'] == 'gemma3_text' else 'attn/'
  yield _leaf(f'{start}query_norm/scale', 'self_attn.q_norm.weight', layer=i)
  path = f'{start}key_norm/scale'
  if own:
    yield _leaf(path, 'self_attn.k_norm.weight', layer=i)
  elif four:
    yield _unused(path, i, (dim,))


def _feed_forward(
  config: Mapping[str, Any], i: int, gate_by_rows: bool
) -> Iterator[ParamMapping]:
  """A dense feed-forward layer; beside it, experts and what chooses them."""
  experts = config.get('enable_moe_block')
  ours = 'mlp2' if experts else 'mlp'
  gates = 'mlp.gate_proj.weight', 'mlp.up_proj.weight'
  pattern = _SAME if gate_by_rows else _TURNED
  yield _leaf(f'{ours}/gating_einsum', gates, pattern, i)
  yield _leaf(f'{ours}/linear', 'mlp.down_proj.weight', _TURNED, i)
  if not experts:
    return
  yield _leaf('mlp/router_logits/w', 'router.proj.weight', _TURNED, i)
  yield _leaf('mlp/router_scale', 'router.scale', layer=i)
  yield _leaf('mlp/per_expert_scale', 'router.per_expert_scale', layer=i)
  name, pattern = 'experts.gate_up_proj', 'e (two f) d -> e two f d'
  yield _leaf('mlp/gating_einsum/w', name, pattern, i, two=2)
  yield _leaf('mlp/linear/w', 'experts.down_proj', 'e d f -> e f d', i)


def _per_layer_inputs(config: Mapping[str, Any]) -> Iterator[ParamMapping]:
  """What each layer is told of a token, beside its embedding."""
  layers = config['num_hidden_layers']
  if config['model_type'] == 'gemma3n_text':
    table, projection = (
      'per_layer_input_embedding',
      'per_layer_input_projection',
    )
  else:
    table, projection = 'per_layer_embeddings', 'per_layer_model_projection'
  name = 'model.embed_tokens_per_layer.weight'
  yield _leaf(f'embedder/{table}', name, 'v (l p) -> v l p', l=layers)
  name = 'model.per_layer_model_projection.weight'
  yield _leaf(f'embedder/{projection}/w', name, '(l p) d -> d l p', l=layers)
  name = 'per_layer_projection_norm'
  yield _leaf(f'embedder/{name}/scale', f'model.{name}.weight')


def _per_layer_input(
  config: Mapping[str, Any], i: int
) -> Iterator[ParamMapping]:
  """How a layer takes what it is told of a token."""
  three = config['model_type'] == 'gemma3n_text'
  ours = 'per_layer_mapping/' if three else ''
  for name in ('per_layer_input_gate', 'per_layer_projection'):
    yield _leaf(f'{ours}{name}/w', f'{name}.weight', _TURNED, i)
  name = 'post_per_layer_input_norm'
  yield _leaf(f'{ours}{name}/scale', f'{name}.weight', layer=i)


def _streams(config: Mapping[str, Any], i: int) -> Iterator[ParamMapping]:
  """What a layer of Gemma 3n does with its streams, and beside attention."""
  name = 'altup/correct_output_scale'
  yield _leaf(name, name.replace('/', '.'), layer=i)
  name = 'altup.correction_coefs.weight'
  yield _leaf('altup/correction_coefs', name, _TURNED, i)
  name, pattern = 'altup.prediction_coefs.weight', '(s t) m -> m s t'
  count = config['altup_num_inputs']
  yield _leaf('altup/prediction_coefs', name, pattern, i, s=count)
  for path, name, pattern in (
    ('altup/modality_router/w', 'altup.modality_router', _TURNED),
    ('altup/router_norm_layer/scale', 'altup.router_norm', _SAME),
    ('laurel/linear_left/w', 'laurel.linear_left', _TURNED),
    ('laurel/linear_right/w', 'laurel.linear_right', _TURNED),
    ('post_laurel_norm/scale', 'laurel.post_laurel_norm', _SAME),
  ):
    yield _leaf(path, f'{name}.weight', pattern, i)
