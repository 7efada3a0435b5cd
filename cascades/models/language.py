"""Language models as functions of one sequence.

A `LanguageModel` is a Gemma transformer seen as a pure function of one
sequence: tokens, positions, mask and cache in, logits and cache out. Batches
come from `jax.vmap`, which is exact. Native batches are not: Gemma 2 and 3
write the cache of a whole batch at the first row's `end_index`, so that rows of
different lengths are silently wrong. Gemma 4 writes row by row, and a `vmap` of
its experts becomes a native batch (`patches.vmap_as_batch`).

Layers that read the cache of an earlier layer have no cache of their own here.
Parameters are an argument, so that compiled code serves all checkpoints of the
same shapes.
"""

import contextlib
import dataclasses
import functools
import importlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import meta
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.methods import processing
from cascades.models import config_json, gemma_library, patches, tensor_files

Params = PyTree
# A dict of layers, 'layer_0' and so on, each with keys, values, positions and
# `end_index`, the number of tokens that were written.
Cache = PyTree
# Beside the embedding table: the rows of the tokens that a model can emit, if
# its vocabulary is restricted, and the ids of these tokens.
RESTRICTED_TABLE, VOCAB_IDS = 'restricted_table', 'vocab_ids'
# The file of a model that shares another's table, read by `contrib.cpu.stored`.
OWNER_FILE = 'reduced.json'
# Axes of a cache's arrays behind the axis of slots.
_TRAILING_AXES = {'k': 2, 'v': 2, 'positions': 0}


def cpu() -> types.ModuleType:
  """Imports the engine of CPUs, on which the core does not depend."""
  return importlib.import_module('cascades.contrib.cpu')


@contextlib.contextmanager
def intercept_modules(readers: Sequence[str] = ()) -> Iterator[str]:
  """Replaces products of gemma's modules with packed or restricted weights.

  It depends on nothing but the structure of the parameters and the readers.
  """
  from flax import linen as nn

  collection = '/'.join(['given', *readers])
  unnormed: tuple[Any, ...] = ()

  def intercept(
    call: Callable, args: tuple, kwargs: dict[str, Any], context: Any
  ) -> Any:
    nonlocal unnormed
    module, method = context.module, context.method_name
    if method == 'decode' and hasattr(module, 'input_embedding_table'):
      table = module.get_variable('params', RESTRICTED_TABLE)
      table = module.input_embedding_table if table is None else table
      return _decode(args[0], meta.unbox(table))
    if method != '__call__':
      return call(*args, **kwargs)
    if module.name in readers:
      module.sow(collection, 'states', args[0])
    # gemma 4.0.1 gives the router of a mixture of experts what `pre_ffw_norm`
    # has normalized, and so sends tokens to other experts than the model was
    # trained with. Unnecessary from the release after it.
    if module.name == 'pre_ffw_norm':
      unnormed = args
    elif module.name == 'router_norm':
      args = unnormed
    if hasattr(module, 'weight_name') and len(args) == 2:
      weight = module.get_variable('params', module.weight_name)
      if isinstance(weight, meta.AxisMetadata):
        return weight.unbox().einsum(*args)
    return call(*args, **kwargs)

  with nn.intercept_methods(intercept):
    yield collection


def _decode(x: Float[Array, '*L D'], table: Any) -> Float[Array, '*L P']:
  """Returns products of states with an embedding table, in float32."""
  # In bfloat16, tokens with similar logits would have equal ones.
  if hasattr(table, 'einsum'):
    return table.dot(x, jnp.float32)
  return jnp.dot(x, table.T, preferred_element_type=jnp.float32)


@dataclasses.dataclass(frozen=True)
class LanguageModel:
  """A Gemma transformer as a function of one sequence.

  Hashable, so that it can be a static argument of `jax.jit`: models of equal
  configuration share one compilation. `decoding.model.Model` documents the
  methods that decoding calls.

  Attributes:
    module: gemma's flax module.
    vocab_size: Number of logits. The embedding table may have more rows, which
      pad it and are no tokens.
    layout: Form of the parameters' matrices: 'blocked' or 'int8', of
      `cascades.contrib.cpu`; None for gemma's.
    is_row_exact: True if results for a sequence are equal to the bit whatever
      is computed with it; always so in eight bits.
  """

  module: Any
  vocab_size: int
  layout: str | None = None
  is_row_exact: bool = False

  def with_layout(self, layout: str | None) -> 'LanguageModel':
    """Returns the model of parameters in a layout."""
    return dataclasses.replace(self, layout=layout)

  def pack(
    self, params: Params, place: Callable[[Any], Any] = lambda x: x
  ) -> Params:
    """Returns all or some parameters, in gemma's order, in the model's layout.

    Each array is placed before the next one is made.
    """
    if self.layout is None:
      return jax.tree.map(place, params)
    return cpu().pack(self, params, place)

  def unpack(self, params: Params) -> Params:
    """Returns parameters in gemma's order; of eight bits, in float32."""
    return params if self.layout is None else cpu().unpack(params)

  @property
  def gate_by_rows(self) -> bool:
    """True if `gating_einsum` has Hugging Face's order of axes."""
    # Gemma 4 has Hugging Face's order, and no field for it.
    return getattr(self.module.config, 'transpose_gating_einsum', True)

  @property
  def _cache_layers(self) -> Sequence[int]:
    """For each layer, the index of the layer whose cache it reads."""
    layers = list(range(self.module.config.num_layers))
    module = self.module.bind({})
    return getattr(module, 'kv_cache_sharing_patterns', layers)

  @property
  def last_cached_layers(self) -> dict[str, int]:
    """The last layer with a cache, by gemma's name of its attention type."""
    types = [x.name for x in self.module.config.attention_types]
    cached = [i for i, source in enumerate(self._cache_layers) if i == source]
    return {types[i]: i for i in cached}

  @property
  def ropes(self) -> dict[str, config_json.Rope]:
    """Rotary embeddings, by gemma's name of the attention type."""
    names, config = config_json.ATTENTION_TYPES, self.module.config
    return {
      names[layer_type]: config_json.Rope(
        getattr(config, f'{side}_base_frequency'),
        getattr(config, f'{side}_scale_factor'),
        getattr(config, f'{side}_rope_proportion', 1.0),
      )
      for layer_type, side in (
        (config_json.SLIDING, 'local'),
        (config_json.FULL, 'global'),
      )
    }

  def own_cache(self, cache: Cache) -> Cache:
    """Returns the layers of a larger cache that this model writes."""
    layers = enumerate(self._cache_layers)
    return {f'layer_{i}': cache[f'layer_{i}'] for i, x in layers if i == x}

  def init_cache(self, params: Params, cache_length: int) -> Cache:
    """Returns an empty cache for one sequence, in the parameters' dtype."""
    tensor_files.check_dtypes(params)
    cache = self.module.config.init_cache(
      batch_size=1, dtype=self.dtype(params), cache_length=cache_length
    )
    return self.own_cache(cache)

  def cache_length(self, cache: Cache) -> int:
    """Returns the number of slots of a cache."""
    return next(iter(cache.values()))['k'].shape[-3]

  def param_shapes(self) -> PyTree:
    """Returns shapes and dtypes of the parameters without allocating any."""
    return _param_shapes(self.module)

  def init_params(self, key: jax.Array) -> Params:
    """Returns random parameters for training from scratch.

    Embeddings have variance 1 / width, since Gemma multiplies them by its
    square root, matrices have variance 1 / fan-in, and norms are the identity.
    """
    config = self.module.config
    # Norms multiply by 1 + scale, except in some Gemma 3n and in Gemma 4.
    adds_one = hasattr(config, 'transpose_gating_einsum') and getattr(
      config, 'scale_plus_one', True
    )

    def draw_leaf(leaf_key, path, leaf):
      name, shape, dtype = jax.tree_util.keystr(path), leaf.shape, leaf.dtype
      if leaf.ndim == 1:
        return jnp.full(shape, 0 if adds_one else 1, dtype)
      is_by_rows = 'gating' in name and self.gate_by_rows
      fan_in = shape[-1 if 'embedding' in name or is_by_rows else -2]
      fan_in *= shape[0] if 'attn_vec' in name else 1
      return jax.random.normal(leaf_key, shape, dtype) * fan_in**-0.5

    leaves, treedef = jax.tree_util.tree_flatten_with_path(self.param_shapes())
    keys = jax.random.split(key, len(leaves))
    params = [draw_leaf(k, *x) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(treedef, params)

  def with_hidden(
    self,
    params: Params,
    tokens: Int[Array, 'L'],
    positions: Int[Array, 'L'],
    mask: Bool[Array, 'L S'],
    cache: Cache | None = None,
    hidden_layers: tuple[int, ...] = (),
  ) -> tuple[Float[Array, 'L V'], Float[Array, 'L D'], Cache | None]:
    """Returns logits after each token, float32, hidden states and the cache.

    Sliding windows are applied on top of the mask. Gemma 3n, whose layers pass
    on four states, has no states after `hidden_layers`.
    """
    tensor_files.check_dtypes(params)
    # The states after some layers are the input of the next one.
    last = self.module.config.num_layers
    readers = [
      f'layer_{i}' if i < last else 'final_norm' for i in hidden_layers
    ]
    if cache is not None:
      # gemma reads the positions of every layer's cache, also of layers that
      # read another layer's keys.
      cache = {
        f'layer_{i}': cache[f'layer_{source}']
        for i, source in enumerate(self._cache_layers)
      }

    def read_batch(params, tokens, positions, mask, cache):
      with intercept_modules(readers) as collection:
        out, inputs = self.module.apply(
          {'params': params},
          tokens,
          positions=positions,
          attention_mask=mask,
          cache=cache,
          return_hidden_states=True,
          mutable=[collection],
        )
      states = [inputs[collection][reader]['states'][0] for reader in readers]
      states = jnp.concatenate(states, -1) if states else out.hidden_states
      return out.logits, states, out.cache

    if self.is_row_exact or self.layout == 'int8':
      read_batch = cpu().row_exact.row_exact(read_batch)
    if getattr(self.module.config, 'enable_moe', False):
      read_batch = patches.vmap_as_batch(read_batch)
    batched = tokens[None], positions[None], mask[None], cache
    logits, hidden, cache = read_batch(params, *batched)
    logits = self._to_vocab(params, logits[0])
    return logits, hidden[0], cache and self.own_cache(cache)

  def _to_vocab(
    self, params: Params, logits: Float[Array, '*L P']
  ) -> Float[Array, '*L V']:
    """Returns logits of the whole vocabulary."""
    vocab_ids = params['embedder'].get(VOCAB_IDS)
    if vocab_ids is not None:
      return processing.scatter_to_vocab(logits, vocab_ids, self.vocab_size)
    return logits[..., : self.vocab_size]

  def restrict_vocab(
    self, params: Params, tokens: Int[Array, 'N'] | np.ndarray | Sequence[int]
  ) -> Params:
    """Returns parameters with which the model emits only some distinct tokens.

    The model reads all tokens. Logits of other tokens are -inf. Products with
    the table, most of a small model's time, get cheaper in proportion, as in
    FR-Spec (arXiv 2502.14856), VocabTrim (arXiv 2506.22694) and EAGLE-3's `d2t`
    (arXiv 2503.01840).
    """
    tokens = np.sort(np.asarray(tokens, np.int32))
    table = params['embedder']['input_embedding']
    rows = table.rows(tokens) if self.layout else jnp.asarray(table[tokens])
    extra = {RESTRICTED_TABLE: rows, VOCAB_IDS: jnp.asarray(tokens)}
    return params | {'embedder': params['embedder'] | extra}

  def split_vocab_ids(
    self, params: Params
  ) -> tuple[Params, Int[Array, 'N'] | None]:
    """Splits off the ids of a restricted vocabulary; None for the whole one."""
    embedder = dict(params['embedder'])
    vocab_ids = embedder.pop(VOCAB_IDS, None)
    return params | {'embedder': embedder}, vocab_ids

  def hidden_size(
    self, params: Params, hidden_layers: tuple[int, ...] = ()
  ) -> int:
    """Returns the size of a hidden state of `with_hidden`."""
    return self.module.config.embed_dim * max(1, len(hidden_layers))

  def dtype(self, params: Params) -> Any:
    """Returns the dtype of parameters and hidden states."""
    return self._table(params).dtype

  def _table(self, params: Params, name: str = 'input_embedding') -> Any:
    """Returns the embedding table, [tokens, width], packed or not."""
    return meta.unbox(params['embedder'][name])

  def embed(self, params: Params, token: Int[Array, '']) -> Float[Array, 'D']:
    """Returns a token's row of the embedding table, as it is stored."""
    return self._table(params)[token]

  def unembed(
    self, params: Params, hidden: Float[Array, 'D']
  ) -> Float[Array, 'V']:
    """Returns the logits of a normalized hidden state."""
    is_restricted = RESTRICTED_TABLE in params['embedder']
    name = RESTRICTED_TABLE if is_restricted else 'input_embedding'
    logits = _decode(hidden, self._table(params, name))
    cap = self.module.config.final_logit_softcap
    logits = logits if cap is None else jnp.tanh(logits / cap) * cap
    return self._to_vocab(params, logits)

  def first_layers(self, layers: int) -> 'LanguageModel':
    """Returns the model of the first layers, with the same parameters."""
    config = self.module.config
    # Per-layer embeddings are one table, a part of which would be copied in
    # every pass.
    is_shared = len(set(self._cache_layers)) < config.num_layers
    is_shared = is_shared or getattr(config, 'per_layer_input_dim', 0)
    if is_shared or not 1 <= layers < config.num_layers:
      raise ValueError(
        f'layers: must be from 1 to {config.num_layers - 1}, got {layers}, of a'
        ' verifier whose layers share neither caches nor embeddings; give'
        ' another drafter.'
      )
    attention_types = tuple(config.attention_types)[:layers]
    config = dataclasses.replace(config, attention_types=attention_types)
    module = dataclasses.replace(self.module, config=config)
    return dataclasses.replace(self, module=module)

  def rewind(self, cache: Cache, length: Int[Array, '']) -> Cache:
    """Returns the cache of the first `length` tokens; integers alone change."""
    return {
      name: layer | {'end_index': jnp.full_like(layer['end_index'], length)}
      for name, layer in cache.items()
    }

  def move(
    self, cache: Cache, at: Int[Array, ''], slots: Int[Array, 'N']
  ) -> Cache:
    """Returns the cache with some slots copied to those from `at` on."""

    def move_leaf(path, x):
      if (name := path[-1].key) not in _TRAILING_AXES:
        return x
      axis = x.ndim - 1 - _TRAILING_AXES[name]
      copies = jnp.take(x, slots, axis=axis)
      return jax.lax.dynamic_update_slice_in_dim(x, copies, at, axis)

    return jax.tree_util.tree_map_with_path(move_leaf, cache)

  def resize(self, params: Params, cache: Cache, cache_length: int) -> Cache:
    """Returns the cache padded with zeros to more slots."""
    larger = jax.eval_shape(lambda: self.init_cache(params, cache_length))

    def pad(x, y):
      sizes = zip(x.shape, y.shape, strict=True)
      return jnp.pad(x, [(0, n - m) for m, n in sizes])

    return jax.tree.map(pad, cache, larger)


@functools.cache
def _param_shapes(module: Any) -> PyTree:
  """Traces a module's initialization once for all that ask for its shapes."""
  tokens = jnp.zeros((1, 1), jnp.int32)
  return jax.eval_shape(
    lambda: module.init(jax.random.key(0), tokens)['params']
  )


def from_config(
  config: Mapping[str, Any] | config_json.GemmaConfig, dtype: Any = jnp.float32
) -> LanguageModel:
  """Returns the model of a Hugging Face `config.json`, read or not."""
  if isinstance(config, Mapping):
    config = config_json.read(config)
  module = gemma_library.transformer(config, dtype)
  return LanguageModel(module=module, vocab_size=config.vocab_size)


def from_gemma(name: str) -> tuple[LanguageModel, str]:
  """Returns the model of a checkpoint of gemma's, and its tokenizer's path."""
  gm = gemma_library.import_gemma()
  # GEMMA3N_E2B_IT is a checkpoint of the class Gemma3n_E2B.
  family, *size = name.split('-')[:-1] or [name]
  class_name = '_'.join([family.capitalize(), *map(str.upper, size)])
  model_class = getattr(gm.nn, class_name, None)
  if model_class is None:
    raise ValueError(
      f'model: gemma has no text model for {name!r}; give a Gemma 2, 3, 3n or'
      " 4, such as 'gemma2-2b-it'."
    )
  fields = {f.name for f in dataclasses.fields(model_class)}
  module = model_class(**({'text_only': True} if 'text_only' in fields else {}))
  if family == 'gemma3n':
    # As its published config.json has it; gemma leaves it out.
    config = dataclasses.replace(module.config, final_logit_softcap=30.0)
    module = module.clone(config=config)
  tokenizer = gm.text.Tokenizer.from_version(model_class.INFO.tokenizer_version)
  size = module.config.num_embed
  return LanguageModel(module=module, vocab_size=size), str(tokenizer.path)
