"""Models of Gemma's shapes with random weights, made on the device."""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cascades.models import checkpoints, language, memory
from experiments.accelerators.device_phases import Pair, Sizes
from experiments.benchmarks import entrants

# Tokens of a random prompt.
_PROMPT = 64
# Most layers of a model; a larger one takes long to compile.
_MAX_LAYERS = 18
# Share of the free memory that weights may take.
_MEMORY_SHARE = 0.6
# By name: family, width, hidden width, layers, heads, key-value heads, window.
# One vocabulary, so that all can be paired: Gemma 2 has 256,000 tokens, two
# in a hundred fewer.
_VOCAB, _HEAD_DIM = 262_144, 256
_GEMMAS = {
  '270M': ('gemma3_text', 640, 2048, 18, 4, 1, 512),
  '1B': ('gemma3_text', 1152, 6912, 26, 4, 1, 512),
  '4B': ('gemma3_text', 2560, 10240, 34, 8, 4, 1024),
  '9B': ('gemma2', 3584, 14336, 42, 16, 8, 4096),
  'tiny 1': ('gemma3_text', 32, 64, 1, 2, 1, 16),
  'tiny 2': ('gemma3_text', 64, 128, 2, 2, 1, 16),
}


def shape(name: str) -> dict[str, Any]:
  """Returns the fields of a config.json by the name of a shape."""
  family, width, hidden, layers, num_heads, kv_heads, window = _GEMMAS[name]
  is_tiny = name.startswith('tiny')
  head_dim = 16 if is_tiny else _HEAD_DIM
  return dict(
    model_type=family,
    vocab_size=512 if is_tiny else _VOCAB,
    hidden_size=width,
    intermediate_size=hidden,
    num_hidden_layers=layers,
    num_attention_heads=num_heads,
    num_key_value_heads=kv_heads,
    head_dim=head_dim,
    query_pre_attn_scalar=head_dim,
    sliding_window=window,
  )


class RandomModel(NamedTuple):
  """A model with random weights; `of_layers` is the number of its shape."""

  checkpoint: checkpoints.Checkpoint
  layers: int
  of_layers: int

  @property
  def bytes(self) -> int:
    """Bytes of the weights."""
    return memory.num_bytes(self.checkpoint.params)

  @property
  def facts(self) -> dict[str, int]:
    """Fields of figures."""
    return {'layers': self.layers, 'of_layers': self.of_layers}


# Models, and what holds their weights, by a key; dropped if memory is short.
_cache: dict[Hashable, Any] = {}


def cached[T](key: Hashable, make: Callable[[], T]) -> T:
  """Returns a value that holds weights, and makes it at the first call."""
  if key not in _cache:
    # `make` may call `drop`, which empties the cache.
    value = make()
    _cache[key] = value
  return _cache[key]


def drop() -> None:
  """Frees the memory of all models and of all that was compiled."""
  _cache.clear()
  jax.clear_caches()


def load(name: str, sizes: Sizes) -> RandomModel:
  """Makes a model, with fewer layers if it has many or memory is short."""
  return cached((name, sizes), lambda: _make(name, sizes))


def _make(name: str, sizes: Sizes) -> RandomModel:
  """Makes a model; see `load`."""
  fields, dtype = shape(name), jnp.dtype(sizes.dtype)
  of_layers = fields['num_hidden_layers']
  layers = min(of_layers, _MAX_LAYERS)
  two_sizes = [
    memory.num_bytes(
      language.from_config(
        fields | {'num_hidden_layers': n}, dtype
      ).param_shapes()
    )
    for n in (1, 2)
  ]
  per_layer = two_sizes[1] - two_sizes[0]
  table = two_sizes[0] - per_layer

  def room() -> int:
    free = memory.available()
    if free is None:
      return layers
    return int((_MEMORY_SHARE * free - table) // per_layer)

  if room() < layers:
    drop()
  layers = min(layers, room())
  if layers < 1:
    raise ValueError(
      f'memory: a layer of {name} does not fit; use a larger device.'
    )
  fields['num_hidden_layers'] = layers
  checkpoint = entrants.random_checkpoint(fields, dtype, seed=0)
  return RandomModel(checkpoint, layers, of_layers)


def load_pair(pair: Pair, sizes: Sizes) -> entrants.Pair:
  """Makes two models with random prompts, the most that a loop is given."""

  def make() -> entrants.Pair:
    models = [load(name, sizes).checkpoint for name in pair]
    rng = np.random.default_rng(0)
    count = max(*sizes.loop_batch_sizes, sizes.curve)
    vocab = models[0].model.vocab_size
    prompts = list(rng.integers(300, vocab, (count, _PROMPT)))
    return entrants.Pair(
      str(pair), *models, prompts, sizes.new_tokens, sizes.repeats
    )

  return cached((pair, sizes), make)
