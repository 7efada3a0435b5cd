"""Language models as drafters, and the verifier's own first layers."""

import dataclasses
import re

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from cascades import arguments
from cascades.arguments import option
from cascades.decoding.drafter import BoundDrafter, Draft, DraftContext, Drafter
from cascades.decoding.model import Model
from cascades.decoding.reading import parallel_drafts_mask, read_hidden
from cascades.drafters.stepwise import draft_tokens
from cascades.drafters.unbound import UnboundDrafter, parse_argument
from cascades.methods import processing
from cascades.models import checkpoints, config_json, tensor_files, tokenizers

# Names of the checkpoints of the gemma library, such as 'gemma2-2b-it', and of
# their repositories on the hub, such as 'google/gemma-2-2b-it@main'.
_GEMMA_NAME = re.compile(
  r'gemma\d\w*-[\w-]+|google/gemma-\d(?!.*assistant)[\w.-]*(@\S+)?'
)


@dataclasses.dataclass(frozen=True, eq=False)
class DraftModel(UnboundDrafter):
  """A language model that drafts token by token.

  Attributes:
    checkpoint: The model, of the verifier's vocabulary.
  """

  checkpoint: checkpoints.Checkpoint = dataclasses.field(repr=False)
  stop_below: float | None = option(
    None,
    low=0,
    high=1,
    help='Probability of the most probable token below which drafting stops;'
    ' None never stops.',
    applies='language models',
  )
  syntax = "a name, also 'OWNER/NAME' of the hub, a file or a folder (a model)"
  known_names = (
    *checkpoints.BUNDLED,
    *checkpoints.MODELS,
    *checkpoints.BUNDLED_WITHOUT_TABLE,
  )
  reads_files = True
  is_language_model = True
  depends_on_block = False

  @classmethod
  def claims(cls, name: str) -> bool:
    """Returns True for a name or path that a checkpoint format matches.

    Any name of the form of gemma's own is claimed, since the list of these
    names takes seconds to import.
    """
    # Folders in Hugging Face layout may hold a drafter of another kind.
    model_type = tensor_files.read_config(name).get('model_type')
    return (
      _GEMMA_NAME.fullmatch(name) is not None
      or model_type in config_json.MODEL_TYPES
      or checkpoints.find_format(name) not in ('', 'hub', 'huggingface')
    )

  @classmethod
  def load(cls, name, dtype=None, mesh=None):
    """Loads a model, as `load_model` does."""
    return cls(checkpoints.load_model(name, dtype, mesh))

  def bind(self, verifier: checkpoints.Checkpoint) -> BoundDrafter:
    """Binds the model to a verifier with the same tokenizer."""
    model, params, tokenizer = self.checkpoint
    pair = tokenizer, verifier.tokenizer
    token = first_difference(*pair)
    if token is not None:
      actual, expected = (
        repr(x.piece(token)) if token < x.vocab_size else 'nothing'
        for x in pair
      )
      raise ValueError(
        f"drafter: its tokenizer must be the verifier's, but token {token} is"
        f' {actual} for the drafter and {expected} for the verifier; take two'
        ' models of one family.'
      )
    if self.stop_below is None:
      return BoundDrafter(ModelDrafter(model), params)
    threshold = jnp.float32(self.stop_below)
    return BoundDrafter(ModelDrafter(model, adaptive=True), (params, threshold))


@dataclasses.dataclass(frozen=True)
class ModelDrafter(Drafter):
  """A language model that drafts token by token.

  The last token of a draft is read only if the bonus token's target depends on
  q. So the cache may lack the token before the last after a fully accepted
  block, and a single draft begins by reading the last two tokens in one pass.
  Several drafts take gamma + 1 passes.

  Attributes:
    model: The language model.
    adaptive: True if a draft stops before its most probable token, at
      temperature 1 and before truncation, is less probable than a threshold
      (BiLD's fallback, Kim et al. 2023, arXiv 2302.07863). The parameters are
      then (those of the model, threshold). A draft stops before a token is
      drawn, so the law is kept.
  """

  model: Model
  adaptive: bool = False

  @property
  def allows_empty_draft(self) -> bool:
    """True if the first token may be below the threshold."""
    return self.adaptive

  def _split(self, params: PyTree) -> tuple[PyTree, Float[Array, ''] | None]:
    return params if self.adaptive else (params, None)

  def init(self, params, cache_length):
    """Returns an empty cache."""
    return self.model.init_cache(self._split(params)[0], cache_length)

  def read(self, params, state, tokens, position):
    """Returns the cache after reading tokens."""
    model_params, _ = self._split(params)
    # The logits are unused, so XLA does not compute them.
    *_, cache = read_hidden(
      self.model, model_params, state, tokens, position=position
    )
    return cache

  def propose(self, params, state, context, *, gamma, drafts):
    """Drafts until all drafts of the batch are full or have stopped."""
    params, threshold = self._split(params)
    draft, state = _draft(
      self.model,
      params,
      state,
      context,
      gamma=gamma,
      drafts=drafts,
      reads_last_two=drafts == 1,
      threshold=threshold,
    )
    return draft, state, context.verifier_cache

  def rollback(self, state, position, draft_index, length, *, gamma, drafts):
    """Moves the slots of the accepted draft to the front."""
    if drafts > 1 and gamma:
      slots = position + jnp.arange(gamma + 1) * drafts + draft_index
      state = self.model.move(state, position, slots)
    return self.model.rewind(state, length)

  def resize(self, params, state, cache_length):
    """Returns the cache with room for `cache_length` tokens."""
    return self.model.resize(self._split(params)[0], state, cache_length)


@dataclasses.dataclass(frozen=True)
class SelfSpeculative(UnboundDrafter):
  """The first layers of the verifier as its drafter.

  Attributes:
    layers: Number of layers, less than the verifier's.
  """

  layers: int
  syntax = "self:3 (the verifier's own first layers)"
  depends_on_block = False

  def __post_init__(self) -> None:
    layers = arguments.integer('layers', self.layers, 1)
    object.__setattr__(self, 'layers', layers)

  @classmethod
  def load(cls, name, dtype=None, mesh=None):
    """Returns the drafter of a name such as 'self:3'."""
    return cls(parse_argument(name, 'layers'))

  def bind(self, verifier: checkpoints.Checkpoint) -> BoundDrafter:
    """Binds the first layers to their verifier."""
    drafter = SelfDrafter(verifier.model.first_layers(self.layers))
    return BoundDrafter(drafter, verifier.params)


@dataclasses.dataclass(frozen=True)
class SelfDrafter(Drafter):
  """The first layers of the verifier, with its parameters and its cache.

  Keys and values of the drafted tokens are those that the verifier itself would
  write, so the drafter has no state of its own.
  """

  model: Model

  def propose(self, params, state, context, *, gamma, drafts):
    """Drafts in the verifier's cache, which lacks only the last token."""
    layers = jax.eval_shape(lambda: self.model.init_cache(params, 1))
    cache = {layer: context.verifier_cache[layer] for layer in layers}
    draft, cache = _draft(
      self.model, params, cache, context, gamma=gamma, drafts=drafts
    )
    cache = self.model.rewind(cache, context.length - 1)
    return draft, state, context.verifier_cache | cache


def _draft(
  model: Model,
  params: PyTree,
  cache: PyTree,
  context: DraftContext,
  *,
  gamma: int,
  drafts: int,
  reads_last_two: bool = False,
  threshold: Float[Array, ''] | None = None,
) -> tuple[Draft, PyTree]:
  """Drafts with a language model, token i of all drafts in one pass."""
  params, draft_vocab_ids = model.split_vocab_ids(params)
  vocab_size = model.vocab_size
  if draft_vocab_ids is not None:
    vocab_size = len(draft_vocab_ids)
  last = context.length - 1

  def read_level(cache, tokens, level):
    position, tree_mask = last + level, None
    if drafts > 1:
      position = last
      tree_mask = parallel_drafts_mask(level, drafts, gamma)
    logits, _, cache = read_hidden(
      model, params, cache, tokens, position=position, tree_mask=tree_mask
    )
    return cache, logits

  def read_last_two(cache):
    # In a sequence of one token, the second slot is overwritten later.
    first = jnp.maximum(last - 1, 0)
    tokens = jax.lax.dynamic_slice(context.tokens, (first,), (2,))
    cache = model.rewind(cache, first)
    logits, _, cache = read_hidden(model, params, cache, tokens, position=first)
    return model.rewind(cache, last + 1), logits[last - first][None]

  size = processing.uniforms_per_token(vocab_size)
  dtype = jnp.promote_types(model.dtype(params), jnp.float32)
  return draft_tokens(
    read_level,
    cache,
    jnp.zeros((gamma + 1, drafts, vocab_size), dtype),
    processing.draw_uniforms(context.key, gamma + 1, drafts, size),
    context,
    draft_vocab_ids,
    first=read_last_two if reads_last_two else None,
    threshold=threshold,
  )


def first_difference(
  a: tokenizers.Tokenizer | None, b: tokenizers.Tokenizer | None
) -> int | None:
  """Returns the first id of another meaning; a missing tokenizer has none."""
  if a == b:
    return None
  if a is None or b is None:
    return 0
  common = min(a.vocab_size, b.vocab_size)
  different = (i for i in range(common) if a.piece(i) != b.piece(i))
  return next(different, None if a.vocab_size == b.vocab_size else common)
