"""Language models for one sequence: the only module that imports gemma.

A `LanguageModel` is a Gemma transformer seen as a pure function of one
sequence: tokens, positions, mask and cache in, logits and cache out. Batches
come from `jax.vmap`. That is not only simpler: Gemma 2 and 3 write a whole
batch's cache at the first row's `end_index`, so a native batch whose rows have
different lengths is silently wrong, while one sequence under `vmap` is exact.
Gemma 4 writes row by row; its mixture of experts cannot be `vmap`ped, so there
a `vmap` becomes a native batch (`_as_one_batch`).

Layers of Gemma 3n and 4 that attend to what an earlier layer has cached have
no cache of their own here; gemma's code would fill one for each.

Parameters are an argument everywhere, never captured, so that jitted code can
be reused across checkpoints of one shape.

Sources: Gemma 2 (arXiv 2408.00118), Gemma 3 (arXiv 2503.19786) and the public
`gemma` library.
"""

import contextlib
import dataclasses
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades.methods import processing
from cascades.models import families, panels

Cache = PyTree
Params = PyTree


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


# Beside the embedding table, the rows of the tokens that a model says, where it
# does not say all of them; and their ids.
REDUCED, SAID = 'reduced', 'said'
# Of matrices, by the end of the path to them: which axes come out of a product,
# and which it sums over. A mixture's experts end in `gating_einsum/w`.
_ORDERS = {
  'input_embedding': panels.Order((0,), (1,)),
  'qkv_einsum/w': panels.Order((0, 1, 3), (2,)),
  'q_einsum/w': panels.Order((0, 2), (1,)),
  'k_einsum/w': panels.Order((0, 2), (1,)),
  'kv_einsum/w': panels.Order((0, 1, 3), (2,)),
  'attn_vec_einsum/w': panels.Order((2,), (0, 1)),
  'gating_einsum': panels.Order((0, 2), (1,)),
  'linear': panels.Order((1,), (0,)),
  REDUCED: panels.Order((0,), (1,)),
}
# Where its matrices are transposed.
_GATE_BY_ROWS = panels.Order((0, 1), (2,))


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

    Their matrices lie in memory as a CPU reads them best; see `panels`.

    Args:
      params: In gemma's order, or some of them.
      put: What becomes of each array that is made, before the next one is.
    """
    made = functools.partial(panels.pack, put=put)
    return self._matrices(params, made, put)

  def unpack(self, params: Params) -> Params:
    """Parameters in gemma's order, of a packed model; the same otherwise."""
    if not self.packed:
      return params
    return self._matrices(params, panels.unpack)

  def order(self, path) -> panels.Order | None:
    """How the axes of a leaf are told apart; None if it is never packed.

    Args:
      path: To the leaf, as `jax.tree_util` gives it.
    """
    name = matrix_name(path)
    if name == 'gating_einsum' and self.gate_by_rows:
      return _GATE_BY_ROWS
    return _ORDERS.get(name)

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
  def _plain_scales(self) -> bool:
    """Whether norms multiply by their parameters, and not by 1 more."""
    config = self.module.config
    if hasattr(config, 'transpose_gating_einsum'):
      return not getattr(config, 'scale_plus_one', True)
    # Gemma 4, again without a choice.
    return True

  @property
  def _sources(self) -> list[int]:
    """For each layer, the one whose cache it attends to."""
    layers = list(range(self.module.config.num_layers))
    module = self.module.bind({})
    return getattr(module, 'kv_cache_sharing_patterns', layers)

  @property
  def last_of_kind(self) -> dict[str, int]:
    """Of each kind of layer, by gemma's name for it, the last with a cache."""
    kinds = [kind.name for kind in self.module.config.attention_types]
    own = [i for i, source in enumerate(self._sources) if i == source]
    return {kinds[i]: i for i in own}

  def turn(
    self, x: Float[Array, 'N h'], position: Int[Array, ''], kind: str
  ) -> Float[Array, 'N h']:
    """Queries of a Gemma 4, turned as a kind of layer turns its keys.

    Args:
      x: A query for each head.
      position: Where they stand.
      kind: gemma's name of the kind of layer.
    """
    from gemma.gm.math import _positional_embeddings

    c, local = self.module.config, kind == 'LOCAL_SLIDING'
    turned = _positional_embeddings.apply_rope(
      x[None, None],
      position[None, None],
      base_frequency=(
        c.local_base_frequency if local else c.global_base_frequency
      ),
      scale_factor=c.local_scale_factor if local else c.global_scale_factor,
      rope_proportion=(
        c.local_rope_proportion if local else c.global_rope_proportion
      ),
    )
    return turned[0, 0]

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
    scale = jnp.ones if self._plain_scales else jnp.zeros
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
    taps: tuple[int, ...] = (),
  ) -> tuple[Float[Array, 'L V'], Float[Array, 'L D'], Cache | None]:
    """As a call, which takes the same, with hidden states after the logits.

    Args:
      params: The checkpoint.
      tokens: Token ids.
      positions: Of each token.
      mask: What each token may attend to.
      cache: What was read before.
      taps: After how many layers, 0 to all of them, states are wanted as they
        go from layer to layer; those of a token are given one after the other.
        Without any, the normalised states that the logits are made of. Not of
        a Gemma 3n, whose layers pass on four.
    """
    _check_params(params)
    # The states after so many layers are what the next one is given.
    layers = self.module.config.num_layers
    readers = ['final_norm' if i == layers else f'layer_{i}' for i in taps]
    if cache is not None:
      # A layer without one is shown its source's: it only looks at positions.
      cache = {
        f'layer_{i}': cache[f'layer_{source}']
        for i, source in enumerate(self._sources)
      }

    def batch(params, tokens, positions, mask, cache):
      with _products(readers) as tapped:
        out, given = self.module.apply(
          {'params': self._viewed(params)},
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
      batch = _as_one_batch(batch)
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
    said = params['embedder'].get(SAID)
    if said is not None:
      return processing.spread(logits, said, self.vocab_size)
    return logits[..., : self.vocab_size]

  def speaking(
    self, params: Params, tokens: Int[Array, 'N'] | np.ndarray
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
    rows = {REDUCED: jnp.asarray(self._table(params)[tokens])}
    rows = self.pack(rows) if self.packed else rows
    extra = rows | {SAID: jnp.asarray(tokens)}
    return params | {'embedder': params['embedder'] | extra}

  def tersely(self, params: Params) -> tuple[Params, Int[Array, 'N'] | None]:
    """Parameters with which logits are of the tokens alone that are said.

    Returns:
      Those parameters, and the ids that their logits are of; the same ones and
      None of a model that says all tokens.
    """
    embedder = dict(params['embedder'])
    said = embedder.pop(SAID, None)
    return params if said is None else params | {'embedder': embedder}, said

  def hidden_size(self, params: Params, taps: tuple[int, ...] = ()) -> int:
    """Numbers of what `with_hidden` gives as a token's hidden state."""
    del params
    return self.module.config.embed_dim * max(1, len(taps))

  def dtype(self, params: Params) -> Any:
    """Of parameters and hidden states."""
    return self._table(params).dtype

  def _viewed(self, params: Params) -> Params:
    """Parameters as gemma's modules take them, packed or not."""
    return self._matrices(params, panels.Boxed) if self.packed else params

  def _table(self, params: Params, name: str = 'input_embedding') -> Any:
    """The embedding table, [tokens, width], or what stands for it."""
    table = params['embedder'][name]
    return panels.Panels(table, _ORDERS[name]) if self.packed else table

  def embed(self, params: Params, token: Int[Array, '']) -> Float[Array, 'D']:
    """A token's row of the embedding table, as it is stored."""
    return self._table(params)[token]

  def unembed(
    self, params: Params, hidden: Float[Array, 'D']
  ) -> Float[Array, 'V']:
    """Logits of a hidden state, by the same table."""
    spoken = REDUCED if REDUCED in params['embedder'] else 'input_embedding'
    logits = _decode(hidden, self._table(params, spoken))
    cap = self.module.config.final_logit_softcap
    logits = logits if cap is None else jnp.tanh(logits / cap) * cap
    return self._spread(params, logits)

  def first(self, layers: int) -> 'LanguageModel':
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

  def of_first(self, cache: Cache) -> Cache:
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
      after = {'k': 2, 'v': 2, 'positions': 0}.get(_keys(path)[-1])
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


def _decode(x: Float[Array, '*L D'], table: Any) -> Float[Array, '*L P']:
  """States by a table, packed or not, in float32.

  Rounded to bfloat16, tokens that are nearly as likely would be equally so.
  """
  if isinstance(table, panels.Panels):
    return panels.dot(x, table, jnp.float32)
  return jnp.dot(x, table.T, preferred_element_type=jnp.float32)


@contextlib.contextmanager
def _products(readers: Sequence[str] = ()) -> Iterator[str]:
  """Has gemma's modules multiply with what is packed, or reduced.

  They are compiled once for parameters of one structure and for what they
  leave behind, so that what is done here hangs on nothing else.

  Args:
    readers: Names of modules. What each is given is left behind by its name, in
      a collection that is to be mutable, under `states`.

  Yields:
    The name of the collection, another for other readers.
  """
  from flax import linen as nn

  tapped = '/'.join(['given', *readers])

  # What a mixture's router is to be given; see below.
  unnormed: list[Any] = []

  def instead(call, args, kwargs, context):
    module, name = context.module, context.method_name
    if name == '__call__' and module.name in readers:
      module.sow(tapped, 'states', args[0])
    if name == '__call__' and module.name == 'pre_ffw_norm':
      unnormed[:] = args
    if name == '__call__' and module.name == 'router_norm':
      # gemma 4.0.1 norms it twice, and so sends tokens to other experts than
      # the model was trained with; transformers, and gemma since, do not.
      args = tuple(unnormed)
    if name == 'decode' and hasattr(module, 'input_embedding_table'):
      table = module.get_variable('params', REDUCED)
      table = module.input_embedding_table if table is None else table
      table = table.unbox() if isinstance(table, panels.Boxed) else table
      return _decode(*args, table)
    if name == '__call__' and hasattr(module, 'weight_name') and len(args) == 2:
      weight = module.get_variable('params', module.weight_name)
      if isinstance(weight, panels.Boxed):
        return _einsum(*args, weight.unbox())
    return call(*args, **kwargs)

  with nn.intercept_methods(instead):
    yield tapped


def _einsum(equation: str, x: Array, weight: panels.Panels) -> Array:
  """As `jnp.einsum` with a weight on the right; x ends in the summed axes."""
  (rows, letters), out = (
    side.split(',') if ',' in side else side for side in equation.split('->')
  )
  summed, kept = (
    ''.join(letters[axis] for axis in axes)
    for axes in (weight.order.summed, weight.order.kept)
  )
  rows = rows.removesuffix(summed)
  return jnp.einsum(f'{rows}{kept}->{out}', panels.dot(x, weight))


def _keys(path) -> list[str]:
  """The names on the way to a leaf."""
  return [str(getattr(entry, 'key', entry)) for entry in path]


def matrix_name(path) -> str | None:
  """The end of the path to a matrix that products read; None of other leaves.

  Args:
    path: As `jax.tree_util` gives it; of a packed matrix, also to a part of it.
  """
  keys = [key for key in _keys(path) if not key.startswith('[')]
  return next(
    (k for k in (keys[-1], '/'.join(keys[-2:])) if k in _ORDERS), None
  )


def _layers(cache: Cache, layers: Iterable[int]) -> Cache:
  """Some layers' part of a cache."""
  return {f'layer_{i}': cache[f'layer_{i}'] for i in layers}


def _as_one_batch(batch: Callable[..., PyTree]) -> Callable[..., PyTree]:
  """A function of parameters and a batch, under `vmap` one of a larger batch.

  JAX has no `vmap` of `ragged_dot`, by which a mixture of experts sends each
  token to its own. A token's way does not hang on the others', so that rows
  may be read together as long as each keeps its own `end_index`.

  Args:
    batch: Takes parameters, which all rows share, and arrays of [B, ...].
  """

  @jax.custom_batching.custom_vmap
  def run(params, *rows):
    return batch(params, *rows)

  @run.def_vmap
  def rule(size, batched, params, *rows):
    of_params, *of_rows = batched
    if any(jax.tree.leaves(of_params)):
      raise ValueError(
        'params: a mixture of experts cannot be read with several sets of'
        ' parameters at once; give one after the other.'
      )

    def merge(x, is_batched):
      if not is_batched:
        x = jnp.broadcast_to(x, (size, *x.shape))
      return x.reshape(-1, *x.shape[2:])

    out = run(params, *jax.tree.map(merge, tuple(rows), tuple(of_rows)))
    out = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), out)
    return out, jax.tree.map(lambda x: True, out)

  return run


def gemma_checkpoints() -> dict[str, Any]:
  """gemma's own checkpoints by name: 'gemma2-2b-it' to its enum member."""
  gm = import_gemma()
  return {
    path.name.lower().replace('_', '-'): path
    for path in gm.ckpts.CheckpointPath
  }


def from_gemma(name: str) -> tuple[LanguageModel, str]:
  """The model of one of gemma's own checkpoints, and where its tokenizer is.

  Args:
    name: A key of `gemma_checkpoints`.

  Raises:
    ValueError: It is not the name of a text model.
  """
  gm = import_gemma()
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


def find_gemma(layers: int, width: int) -> str | None:
  """One of gemma's own checkpoints of this architecture; None if none is.

  Args:
    layers: How many there are.
    width: Numbers in an embedding.
  """
  for name in gemma_checkpoints():
    config = from_gemma(name)[0].module.config
    if (config.num_layers, config.embed_dim) == (layers, width):
      return name
  return None


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
  import_gemma()
  ropes = families.ropes(config)
  local, whole = ropes[families.SLIDING], ropes[families.FULL]
  if config['model_type'] == 'gemma3n_text':
    made = _gemma3n
  else:
    made = _gemma4 if families.is_four(config) else _classic
  transformer, of_transformer, kinds, own = made(config)
  # Each family's own.
  kinds = {theirs: kinds[gemmas] for theirs, gemmas in families.KINDS.items()}
  fields = dict(
    num_embed=config['vocab_size'],
    embed_dim=config['hidden_size'],
    hidden_dim=config['intermediate_size'],
    num_heads=config['num_attention_heads'],
    head_dim=config['head_dim'],
    num_kv_heads=config['num_key_value_heads'],
    final_logit_softcap=config['final_logit_softcapping'],
    use_post_attn_norm=True,
    use_post_ffw_norm=True,
    attention_types=tuple(kinds[kind] for kind in config['layer_types']),
    sliding_window_size=config['sliding_window'],
    local_base_frequency=local.theta,
    local_scale_factor=local.factor,
    global_base_frequency=whole.theta,
    global_scale_factor=whole.factor,
    vision_encoder=None,
  )
  return LanguageModel(
    module=transformer(
      dtype=dtype, tokens='tokens', config=of_transformer(**fields, **own)
    ),
    vocab_size=config['vocab_size'],
  )


# gemma's module, its configuration, its kinds of layers, and further fields.
_Made = tuple[Any, Any, Any, dict[str, Any]]


def _classic(config: Mapping[str, Any]) -> _Made:
  """What gemma makes a Gemma 2 or 3 of."""
  from gemma.gm.nn import _config, _modules, _transformer

  scaling = _config.QueryPreAttentionNormalisation
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
  own = dict(
    attn_logits_soft_cap=config['attn_logit_softcapping'],
    query_pre_attn_norm=norm,
    # Hugging Face's own order.
    transpose_gating_einsum=True,
    use_qk_norm=config['model_type'] == 'gemma3_text',
  )
  kinds = _modules.AttentionType
  return _transformer.Transformer, _config.TransformerConfig, kinds, own


def _gemma3n(config: Mapping[str, Any]) -> _Made:
  """What gemma makes a Gemma 3n of."""
  from gemma.gm.nn.gemma3n import _config, _modules, _transformer

  own = dict(
    query_pre_attn_norm=_config.QueryPreAttentionNormalisation.NONE,
    transpose_gating_einsum=True,
    use_qk_norm=True,
    use_value_norm=True,
    use_altup=True,
    altup_coef_clip=config['altup_coef_clip'],
    activation_sparsity_pattern=tuple(config['activation_sparsity_pattern']),
    per_layer_input_dim=config['hidden_size_per_layer_input'],
    use_laurel=True,
    laurel_rank=config['laurel_rank'],
    kv_cache_sharing_config=_sharing(config, _config),
    scale_plus_one=False,
    guard_against_excess_precision=True,
  )
  module, kinds = _transformer.Gemma3nTransformer, _modules.AttentionType
  return module, _config.TransformerConfig, kinds, own


def _gemma4(config: Mapping[str, Any]) -> _Made:
  """What gemma makes a Gemma 4 of."""
  from gemma.gm.nn.gemma4 import _config, _modules, _transformer

  ropes = families.ropes(config)
  usual, whole = (
    config['num_key_value_heads'],
    config['num_global_key_value_heads'],
  )
  own = dict(
    num_global_kv_heads=None if whole == usual else whole,
    global_key_size=config['global_head_dim'],
    k_eq_v_global=config['attention_k_eq_v'],
    local_rope_proportion=ropes[families.SLIDING].share,
    global_rope_proportion=ropes[families.FULL].share,
    per_layer_input_dim=config['hidden_size_per_layer_input'],
    kv_cache_sharing_config=_sharing(config, _config),
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
  kinds = _modules.AttentionType
  return _transformer.Transformer, _config.TransformerConfig, kinds, own


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


def own_sampler(
  model: LanguageModel,
  params: Params,
  prompts: Int[Array, 'B P'],
  *,
  cache_length: int,
  new_tokens: int,
  temperature: float = 0.0,
) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
  """gemma's own sampler in its two parts, for comparisons.

  A mixture's router is mended in it too (see `_products`): gemma's modules are
  compiled once for both.

  Args:
    model: Samples.
    params: Its parameters, in gemma's order: `unpack`ed.
    prompts: Token ids, padded on the right.
    cache_length: Slots of its cache.
    new_tokens: So many are written, whatever they are.
    temperature: At which they are drawn; 0 is greedy.

  Returns:
    What reads the prompts and gives gemma's state; and what goes on from it.
  """
  gm = import_gemma()
  from gemma.gm.text import _prefill, _sampler_loop
  from gemma.gm.utils import _types

  text = _types.Input(
    text=jnp.asarray(prompts),
    images=None,
    config=model.module.config.input_config,
  )
  loop = _sampler_loop.SamplerLoop(
    model=model.module,
    # None, so that every row writes as much.
    end_tokens=(),
    forbidden_tokens=None,
    sampling=(
      gm.text.RandomSampling(temperature=temperature)
      if temperature
      else gm.text.Greedy()
    ),
    cache_length=cache_length,
    special_tokens=gm.text.Gemma2Tokenizer.special_tokens,
  )

  @_products()
  def prefill():
    return _prefill.prefill(
      model=model.module,
      params=params,
      input=text,
      last_state=None,
      cache_length=cache_length,
      max_out_length=new_tokens,
      pad_length=prompts.shape[1],
      rng=jax.random.key(0),
      sharding=None,
    )

  @_products()
  def decode(state):
    return loop.sample(
      params=params,
      init_state=state,
      max_new_tokens=jnp.asarray(new_tokens),
    )

  return prefill, decode
