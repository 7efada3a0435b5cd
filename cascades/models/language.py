"""Language models for one sequence.

A `LanguageModel` is a Gemma transformer seen as a pure function of one
sequence: tokens, positions, mask and cache in, logits and cache out. Batches
come from `jax.vmap`. That is not only simpler: Gemma 2 and 3 write a whole
batch's cache at the first row's `end_index`, so a native batch whose rows have
different lengths is silently wrong, while one sequence under `vmap` is exact.
Gemma 4 writes row by row; its mixture of experts cannot be `vmap`ped, so there
a `vmap` becomes a native batch (`products.as_one_batch`).

Layers of Gemma 3n and 4 that attend to what an earlier layer has cached have
no cache of their own here; gemma's code would fill one for each.

Parameters are an argument everywhere, never captured, so that jitted code can
be reused across checkpoints of one shape.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.methods import processing
from cascades.models import blocked_layout, families, gemma_library, products
from cascades.models.products import RESTRICTED_TABLE, VOCAB_IDS

Cache = PyTree
Params = PyTree


@dataclasses.dataclass(frozen=True)
class LanguageModel:
  """A Gemma transformer as a function of one sequence.

  Hashable, so that it can be a static argument of `jax.jit`: two models of
  equal configuration share one compilation.

  Attributes:
    module: gemma's flax module.
    vocab_size: Number of logits. The embedding table may have more rows, which
      pad it and stand for no token.
    packed: Whether the parameters are those that `pack` gives.
  """

  module: Any
  vocab_size: int
  packed: bool = False

  def pack(
    self, params: Params, put: Callable[[Any], Any] = lambda x: x
  ) -> Params:
    """Parameters for the same model with `packed` set.

    Their matrices lie in memory as a CPU reads them best; see `blocked_layout`.

    Args:
      params: In gemma's order, or some of them.
      put: What becomes of each array that is made, before the next one is.
    """
    made = functools.partial(blocked_layout.pack, put=put)
    return self._matrices(params, made, put)

  def unpack(self, params: Params) -> Params:
    """Parameters in gemma's order, of a packed model; the same otherwise."""
    if not self.packed:
      return params
    return self._matrices(params, blocked_layout.unpack)

  def order(self, path) -> blocked_layout.AxisSplit | None:
    """How the axes of a leaf are told apart; None if it is never packed.

    Args:
      path: To the leaf, as `jax.tree_util` gives it.
    """
    name = products.matrix_name(path)
    if name == 'gating_einsum' and self.gate_by_rows:
      return products.GATE_BY_ROWS
    return products.ORDERS.get(name)

  def _matrices(
    self,
    params: Params,
    made: Callable[..., Any],
    others: Callable[[Any], Any] = lambda x: x,
  ) -> Params:
    """Parameters with what is made of each matrix that is packed, or to be.

    Args:
      params: In gemma's order, or as `pack` gives them.
      made: Takes a leaf and its order.
      others: Takes a leaf that is no such matrix.
    """

    def one(path, x):
      order = self.order(path)
      return others(x) if order is None else made(x, order)

    # A large table lies in several parts.
    is_leaf = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree_util.tree_map_with_path(one, params, is_leaf=is_leaf)

  @property
  def gate_by_rows(self) -> bool:
    """Whether `gating_einsum` lies as Hugging Face has it."""
    # Gemma 4 leaves no choice.
    return getattr(self.module.config, 'transpose_gating_einsum', True)

  @property
  def _sources(self) -> Sequence[int]:
    """For each layer, the one whose cache it attends to."""
    layers = list(range(self.module.config.num_layers))
    module = self.module.bind({})
    return getattr(module, 'kv_cache_sharing_patterns', layers)

  @property
  def last_cached_layers(self) -> dict[str, int]:
    """Of each kind of layer, by gemma's name for it, the last with a cache."""
    kinds = [kind.name for kind in self.module.config.attention_types]
    own = [i for i, source in enumerate(self._sources) if i == source]
    return {kinds[i]: i for i in own}

  @property
  def ropes(self) -> dict[str, families.Rope]:
    """How each kind of layer turns positions, by gemma's name for it."""
    c = self.module.config
    return {
      kind: families.Rope(
        getattr(c, f'{side}_base_frequency'),
        getattr(c, f'{side}_scale_factor'),
        getattr(c, f'{side}_rope_proportion', 1.0),
      )
      for kind, side in (('LOCAL_SLIDING', 'local'), ('GLOBAL', 'global'))
    }

  def apply_rope(
    self, x: Float[Array, 'N h'], position: Int[Array, ''], kind: str
  ) -> Float[Array, 'N h']:
    """Queries of a Gemma 4, turned as a kind of layer turns its keys.

    Args:
      x: A query for each head.
      position: Where they stand.
      kind: gemma's name of the kind of layer.
    """
    return gemma_library.apply_rope(x, position, self.ropes[kind])

  def _own(self, cache: Cache) -> Cache:
    """A cache of every layer, without those that attend to another's."""
    sources = enumerate(self._sources)
    return _layers(cache, [i for i, source in sources if i == source])

  def init_cache(self, params: Params, cache_length: int) -> Cache:
    """An empty cache of `cache_length` slots, for one sequence."""
    _check_params(params)
    cache = self.module.config.init_cache(
      batch_size=1,
      dtype=self.dtype(params),
      cache_length=cache_length,
    )
    return self._own(cache)

  def param_shapes(self) -> PyTree:
    """Shapes and dtypes of the parameters, without making any."""
    init = self.module.init
    tokens = jnp.zeros((1, 1), jnp.int32)
    return jax.eval_shape(lambda: init(jax.random.key(0), tokens)['params'])

  def cache_length(self, cache: Cache) -> int:
    """Slots of a cache."""
    return next(iter(cache.values()))['k'].shape[-3]

  def init_params(self, key: jax.Array) -> Params:
    """Random parameters, scaled for training from scratch.

    Embeddings have variance 1 / width (Gemma multiplies them by its square
    root), matrices variance 1 / fan-in, norms start as the identity.
    """
    # Norms multiply by 1 more than their parameters, but for Gemma 3n and 4.
    config = self.module.config
    more = hasattr(config, 'transpose_gating_einsum') and getattr(
      config, 'scale_plus_one', True
    )
    scale = jnp.zeros if more else jnp.ones
    shapes = self.param_shapes()
    leaves, treedef = jax.tree_util.tree_flatten_with_path(shapes)

    def draw(k, path, leaf):
      name = jax.tree_util.keystr(path)
      if leaf.ndim == 1:
        return scale(leaf.shape, leaf.dtype)
      fan_in = leaf.shape[-2]
      if 'embedding' in name:
        fan_in = leaf.shape[-1]
      elif 'attn_vec' in name:
        fan_in = leaf.shape[0] * leaf.shape[1]
      elif 'gating' in name and self.gate_by_rows:
        fan_in = leaf.shape[-1]
      return jax.random.normal(k, leaf.shape, leaf.dtype) * fan_in**-0.5

    keys = jax.random.split(key, len(leaves))
    drawn = [draw(k, p, x) for k, (p, x) in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(treedef, drawn)

  def __call__(
    self,
    params: Params,
    tokens: Int[Array, 'L'],
    positions: Int[Array, 'L'],
    mask: Bool[Array, 'L S'],
    cache: Cache | None = None,
  ) -> tuple[Float[Array, 'L V'], Cache | None]:
    """Logits after each token; the cache with these tokens appended.

    Args:
      params: The checkpoint.
      tokens: Token ids.
      positions: Absolute position of each token, from 0.
      mask: Which of the S cache slots (or of the L tokens, without a cache)
        each token may attend to. Sliding windows are applied on top of it.
      cache: From `init_cache` or a previous call; None to do without.

    Returns:
      Logits, float32, and the new cache.
    """
    logits, _, cache = self.with_hidden(params, tokens, positions, mask, cache)
    return logits, cache

  def with_hidden(
    self,
    params: Params,
    tokens: Int[Array, 'L'],
    positions: Int[Array, 'L'],
    mask: Bool[Array, 'L S'],
    cache: Cache | None = None,
    hidden_layers: tuple[int, ...] = (),
  ) -> tuple[Float[Array, 'L V'], Float[Array, 'L D'], Cache | None]:
    """As a call, which takes the same, with hidden states after the logits.

    Args:
      params: The checkpoint.
      tokens: Token ids.
      positions: Of each token.
      mask: What each token may attend to.
      cache: What was read before.
      hidden_layers: After how many layers, 0 to all of them, states are wanted
        as they go from layer to layer; those of a token are given one after
        the other. Without any, the normalised states that the logits are made
        of. Not of a Gemma 3n, whose layers pass on four.
    """
    _check_params(params)
    # The states after so many layers are what the next one is given.
    layers = self.module.config.num_layers
    readers = [
      'final_norm' if i == layers else f'layer_{i}' for i in hidden_layers
    ]
    if cache is not None:
      # A layer without one is shown its source's: it only looks at positions.
      cache = {
        f'layer_{i}': cache[f'layer_{source}']
        for i, source in enumerate(self._sources)
      }

    def batch(params, tokens, positions, mask, cache):
      if self.packed:
        params = self._matrices(params, blocked_layout.BlockedParam)
      with products.intercepted(readers) as tapped:
        out, given = self.module.apply(
          {'params': params},
          tokens,
          positions=positions,
          attention_mask=mask,
          cache=cache,
          return_hidden_states=True,
          mutable=[tapped],
        )
      states = [given[tapped][reader]['states'][0] for reader in readers]
      states = jnp.concatenate(states, -1) if states else out.hidden_states
      return out.logits, states, out.cache

    if getattr(self.module.config, 'enable_moe', False):
      batch = products.as_one_batch(batch)
    logits, hidden, cache = batch(
      params, tokens[None], positions[None], mask[None], cache
    )
    logits = self._spread(params, logits[0])
    return logits, hidden[0], cache and self._own(cache)

  def _spread(
    self, params: Params, logits: Float[Array, '*L P']
  ) -> Float[Array, '*L V']:
    """Logits of all tokens, of those that the products give.

    Rows that stand for no token are left out; a token that is not spoken has
    -inf.
    """
    said = params['embedder'].get(VOCAB_IDS)
    if said is not None:
      return processing.scatter_to_vocab(logits, said, self.vocab_size)
    return logits[..., : self.vocab_size]

  def restrict_vocab(
    self, params: Params, tokens: Int[Array, 'N'] | np.ndarray | Sequence[int]
  ) -> Params:
    """Parameters of the same model that only says some of the tokens.

    It reads all of them. What it says then is -inf but for these, and their
    softmax is what it was, given that one of these comes. Products with the
    table, which are most of a small model, get cheaper by what is left out; as
    FR-Spec (Zhao et al. 2025, arXiv 2502.14856), VocabTrim (arXiv 2506.22694)
    and EAGLE-3's `d2t` (Li et al. 2025, arXiv 2503.01840) have it.

    Args:
      params: Of the model, with its whole vocabulary.
      tokens: Ids, each of them once.
    """
    tokens = np.sort(np.asarray(tokens, np.int32))
    rows = {RESTRICTED_TABLE: jnp.asarray(self._table(params)[tokens])}
    rows = self.pack(rows) if self.packed else rows
    extra = rows | {VOCAB_IDS: jnp.asarray(tokens)}
    return params | {'embedder': params['embedder'] | extra}

  def split_vocab_ids(
    self, params: Params
  ) -> tuple[Params, Int[Array, 'N'] | None]:
    """Parameters with which logits are of the tokens alone that are said.

    Returns:
      Those parameters, and the ids that their logits are of; the same ones and
      None of a model that says all tokens.
    """
    embedder = dict(params['embedder'])
    said = embedder.pop(VOCAB_IDS, None)
    return params if said is None else params | {'embedder': embedder}, said

  def hidden_size(
    self, params: Params, hidden_layers: tuple[int, ...] = ()
  ) -> int:
    """Numbers of what `with_hidden` gives as a token's hidden state."""
    del params
    return self.module.config.embed_dim * max(1, len(hidden_layers))

  def dtype(self, params: Params) -> Any:
    """Of parameters and hidden states."""
    return self._table(params).dtype

  def _table(self, params: Params, name: str = 'input_embedding') -> Any:
    """The embedding table, [tokens, width], or what stands for it."""
    table = params['embedder'][name]
    return (
      blocked_layout.BlockedWeight(table, products.ORDERS[name])
      if self.packed
      else table
    )

  def embed(self, params: Params, token: Int[Array, '']) -> Float[Array, 'D']:
    """A token's row of the embedding table, as it is stored."""
    return self._table(params)[token]

  def unembed(
    self, params: Params, hidden: Float[Array, 'D']
  ) -> Float[Array, 'V']:
    """Logits of a hidden state, by the same table."""
    spoken = (
      RESTRICTED_TABLE
      if RESTRICTED_TABLE in params['embedder']
      else 'input_embedding'
    )
    logits = products.decode(hidden, self._table(params, spoken))
    cap = self.module.config.final_logit_softcap
    logits = logits if cap is None else jnp.tanh(logits / cap) * cap
    return self._spread(params, logits)

  def first_layers(self, layers: int) -> 'LanguageModel':
    """The model of the first layers only; the same parameters will do.

    Raises:
      ValueError: There are no such layers, or they are no model.
    """
    config = self.module.config
    # A part of the one table with what each layer adds for a token would have
    # to be copied in every pass.
    shared = len(set(self._sources)) < config.num_layers
    if shared or getattr(config, 'per_layer_input_dim', 0):
      raise ValueError(
        f'layers: the first {layers} of {type(self.module).__name__} are no'
        ' model of their own, for its layers share caches or embeddings; give'
        ' another drafter.'
      )
    if not 1 <= layers < config.num_layers:
      raise ValueError(
        f'layers: {layers} will not do; the verifier has {config.num_layers},'
        f' give 1 to {config.num_layers - 1}.'
      )
    config = dataclasses.replace(
      config,
      attention_types=tuple(config.attention_types)[:layers],
    )
    return dataclasses.replace(
      self, module=dataclasses.replace(self.module, config=config)
    )

  def first_layers_cache(self, cache: Cache) -> Cache:
    """What a cache of more layers holds of this model's."""
    return _layers(cache, range(self.module.config.num_layers))

  def rewind(self, cache: Cache, length: Int[Array, '']) -> Cache:
    """The cache as it was when it held `length` tokens.

    Only integers change: slots past `length` stay as they are and are masked
    until they are written again.
    """
    return {
      name: layer | {'end_index': jnp.full_like(layer['end_index'], length)}
      for name, layer in cache.items()
    }

  def move(
    self, cache: Cache, at: Int[Array, ''], slots: Int[Array, 'N']
  ) -> Cache:
    """The cache with what some slots hold written to `at` and after it."""

    def moved(path, x):
      # By name, how many axes stand after that of the slots.
      after = {'k': 2, 'v': 2, 'positions': 0}.get(products.tree_keys(path)[-1])
      if after is None:
        return x
      axis = x.ndim - 1 - after
      chosen = jnp.take(x, slots, axis=axis)
      return jax.lax.dynamic_update_slice_in_dim(x, chosen, at, axis)

    return jax.tree_util.tree_map_with_path(moved, cache)

  def resize(self, params: Params, cache: Cache, cache_length: int) -> Cache:
    """The same cache with more slots."""
    empty = jax.eval_shape(lambda: self.init_cache(params, cache_length))
    return jax.tree.map(
      lambda x, y: jnp.pad(
        x, [(0, n - m) for m, n in zip(x.shape, y.shape, strict=True)]
      ),
      cache,
      empty,
    )


def _check_params(params: Params) -> None:
  """Refuses parameters in float16, of which `load_model` makes float32.

  Raises:
    ValueError: Some are.
  """
  if any(x.dtype == jnp.float16 for x in jax.tree.leaves(params)):
    raise ValueError(
      "params: they are float16, and Gemma's activations pass the largest"
      ' number of float16; cast them to float32 or bfloat16.'
    )


def _layers(cache: Cache, layers: Iterable[int]) -> Cache:
  """Some layers' part of a cache."""
  return {f'layer_{i}': cache[f'layer_{i}'] for i in layers}


def from_config(config: Mapping[str, Any], dtype=jnp.float32) -> LanguageModel:
  """A model from the fields of a Hugging Face `config.json`.

  Args:
    config: Those fields, of a family that `families` knows; of one that also
      sees or hears, the text model is taken.
    dtype: What the parameters are kept in.

  Raises:
    ValueError: The family, or a value in it, is not supported.
  """
  config = families.text_config(config)
  module = gemma_library.transformer(config, dtype)
  return LanguageModel(module=module, vocab_size=config['vocab_size'])


def from_gemma(name: str) -> tuple[LanguageModel, str]:
  """The model of one of gemma's own checkpoints, and where its tokenizer is.

  Args:
    name: A key of `gemma_library.gemma_checkpoints`.

  Raises:
    ValueError: It is not the name of a text model.
  """
  gm = gemma_library.import_gemma()
  # GEMMA3N_E2B_IT is a checkpoint of the class Gemma3n_E2B.
  family, *size = name.split('-')[:-1] or [name]
  class_name = '_'.join([family.capitalize(), *map(str.upper, size)])
  kind = getattr(gm.nn, class_name, None)
  if kind is None:
    raise ValueError(
      f'model: gemma has no text model for {name!r}; give a Gemma 2, 3, 3n or'
      " 4, such as 'gemma2-2b-it'."
    )
  fields = {f.name for f in dataclasses.fields(kind)}
  module = kind(**({'text_only': True} if 'text_only' in fields else {}))
  tokenizer = gm.text.Tokenizer.from_version(kind.INFO.tokenizer_version)
  size = module.config.num_embed
  return LanguageModel(module=module, vocab_size=size), str(tokenizer.path)
