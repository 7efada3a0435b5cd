"""The interface of a language model, as decoding calls it."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, PyTree

Params = PyTree
Cache = PyTree


@runtime_checkable
class Model(Protocol):
  """A language model as a function of one sequence; `vmap` for a batch.

  Hashable, so that it can be a static argument of `jit`. Parameters are an
  argument of every function, and caches are values: S slots of tokens, of which
  a model attends to those that a mask names. `models.language.LanguageModel`
  is such a model, and `proof.table_models.TableModel`.
  """

  @property
  def vocab_size(self) -> int:
    """Number of tokens, V."""
    ...

  def dtype(self, params: Params) -> Any:
    """Returns the dtype of hidden states."""
    ...

  def hidden_size(
    self, params: Params, hidden_layers: tuple[int, ...] = ()
  ) -> int:
    """Returns the size D of a hidden state of `with_hidden`."""
    ...

  def with_hidden(
    self,
    params: Params,
    tokens: Int[Array, 'L'],
    positions: Int[Array, 'L'],
    mask: Bool[Array, 'L S'],
    cache: Cache | None = None,
    hidden_layers: tuple[int, ...] = (),
  ) -> tuple[Float[Array, 'L V'], Float[Array, 'L D'], Cache]:
    """Reads tokens, and appends them to the cache.

    Args:
      params: The parameters.
      tokens: Token ids.
      positions: Position of each token in the sequence, from 0.
      mask: True for the cache slots (without a cache: for the tokens) that each
        token may attend to.
      cache: From `init_cache` or a previous call; None for no cache.
      hidden_layers: Numbers of layers after which hidden states are returned,
        concatenated; empty for the states that logits are made of.

    Returns:
      Logits after each token, hidden states, and the new cache.
    """
    ...

  def embed(self, params: Params, token: Int[Array, '']) -> Float[Array, 'D']:
    """Returns the embedding of a token."""
    ...

  def unembed(
    self, params: Params, hidden: Float[Array, 'D']
  ) -> Float[Array, 'V']:
    """Returns the logits of a hidden state."""
    ...

  def split_vocab_ids(
    self, params: Params
  ) -> tuple[Params, Int[Array, 'N'] | None]:
    """Splits off the ids of a restricted vocabulary; None for the whole one.

    With the parameters that are left, logits cover these tokens only.
    """
    ...

  def init_cache(self, params: Params, cache_length: int) -> Cache:
    """Returns an empty cache."""
    ...

  def cache_length(self, cache: Cache) -> int:
    """Returns the number of slots of a cache."""
    ...

  def rewind(self, cache: Cache, length: Int[Array, '']) -> Cache:
    """Returns a cache as it was with `length` tokens; changes integers only."""
    ...

  def move(
    self, cache: Cache, at: Int[Array, ''], slots: Int[Array, 'N'], /
  ) -> Cache:
    """Returns a cache with some slots copied to those from `at` on."""
    ...

  def resize(self, params: Params, cache: Cache, cache_length: int) -> Cache:
    """Returns a cache with more slots."""
    ...
