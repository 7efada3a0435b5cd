"""Language models as drafters: names, files and models that are loaded."""

import dataclasses
import re

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from cascades.arguments import option
from cascades.decoding.drafter import (
  ROWS,
  BoundDrafter,
  Draft,
  DraftContext,
  Drafter,
)
from cascades.decoding.model import Model
from cascades.decoding.reading import parallel_drafts_mask, read
from cascades.drafters.unbound import UnboundDrafter, check_pair
from cascades.methods import processing
from cascades.models import (
  checkpoints,
  config_json,
  hub,
  package_index,
  tensor_files,
)

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
  syntax = "a name, also 'OWNER/NAME' of the hub, a file or a folder"
  description = 'a language model of the same family'
  known_names = (
    *package_index.BUNDLED,
    *package_index.MODELS,
    *package_index.BUNDLED_WITHOUT_TABLE,
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
    if _GEMMA_NAME.fullmatch(name):
      return True
    format_name = checkpoints.find_format(name)
    if format_name not in ('huggingface', 'hub'):
      return bool(format_name)
    # Folders of this format may hold a drafter of another kind.
    is_remote = format_name == 'hub'
    folder = hub.fetch(name, weights=False) if is_remote else name
    return tensor_files.read_config(folder).get('model_type') in (
      config_json.MODEL_TYPES
    )

  @classmethod
  def load(cls, name, dtype=None, mesh=None):
    """Loads a model, as `load_model` does."""
    return cls(checkpoints.load_model(name, dtype, mesh))

  def bind(self, verifier: checkpoints.Checkpoint) -> BoundDrafter:
    """Binds the model to a verifier with the same tokenizer."""
    check_pair(verifier, self.checkpoint)
    model, params, _ = self.checkpoint
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
    _, cache = read(self.model, model_params, state, tokens, position=position)
    return cache

  def propose(self, params, state, context, *, gamma, drafts):
    """Drafts until all drafts of the batch are full or have stopped."""
    params, threshold = self._split(params)
    draft, state = draft_tokens(
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


def draft_tokens(
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
  """Drafts with a language model until all drafts are full or have stopped.

  Several drafts are tokens of one tree in the cache: level i of the tree holds
  token i of each draft, and each level is one forward pass.
  """
  params, draft_vocab_ids = model.split_vocab_ids(params)
  vocab_size = model.vocab_size
  if draft_vocab_ids is not None:
    vocab_size = len(draft_vocab_ids)
  sampling = context.sampling.restrict_vocab(draft_vocab_ids)
  size = processing.uniforms_per_token(vocab_size)
  uniforms = processing.draw_uniforms(context.key, gamma + 1, drafts, size)
  last, needs_bonus = context.length - 1, context.needs_bonus_probs

  def extend(state, logits, cache):
    """Appends a token to each draft."""
    level, is_drafting = state['level'], state['is_drafting']
    tokens = jax.vmap(
      lambda u, z: processing.sample_from_uniforms(
        u, processing.processed_probs(z, sampling)
      )
    )(uniforms[level], logits)
    if draft_vocab_ids is not None:
      tokens = draft_vocab_ids[tokens]
    asks = is_drafting.any() & (level < gamma + needs_bonus)
    any_drafting = state['any_drafting']
    if threshold is not None:
      confidence = jax.vmap(processing.gate_probs)(logits).max(-1)
      is_drafting = is_drafting & (confidence >= threshold)
      any_drafting = jax.lax.pmax(is_drafting.any(), ROWS)
    return dict(
      level=level + 1,
      cache=cache,
      last_tokens=tokens,
      tokens=state['tokens'].at[level].set(tokens),
      logits=state['logits'].at[level].set(logits),
      is_drafting=is_drafting,
      lengths=state['lengths'] + (is_drafting & (level < gamma)),
      calls=state['calls'] + asks,
      any_drafting=any_drafting,
    )

  def read_level(state):
    """Drafts a level after reading the tokens of the level before."""
    position, tree_mask = last + state['level'], None
    if drafts > 1:
      position = last
      tree_mask = parallel_drafts_mask(state['level'], drafts, gamma)
    logits, cache = read(
      model,
      params,
      state['cache'],
      state['last_tokens'],
      position=position,
      tree_mask=tree_mask,
    )
    return extend(state, logits, cache)

  def read_last_two(state):
    """Drafts the first level after reading the last two tokens in one pass."""
    # In a sequence of one token, the second slot is overwritten later.
    first = jnp.maximum(last - 1, 0)
    tokens = jax.lax.dynamic_slice(context.tokens, (first,), (2,))
    cache = model.rewind(state['cache'], first)
    logits, cache = read(model, params, cache, tokens, position=first)
    cache = model.rewind(cache, last + 1)
    return extend(state, logits[last - first][None], cache)

  state = dict(
    level=jnp.zeros((), jnp.int32),
    cache=cache,
    last_tokens=jnp.broadcast_to(context.tokens[last], (drafts,)),
    tokens=jnp.zeros((gamma + 1, drafts), jnp.int32),
    logits=jnp.zeros(
      (gamma + 1, drafts, vocab_size),
      jnp.promote_types(model.dtype(params), jnp.float32),
    ),
    is_drafting=jnp.ones(drafts, bool),
    lengths=jnp.zeros(drafts, jnp.int32),
    calls=jnp.zeros((), jnp.int32),
    any_drafting=jnp.ones((), bool),
  )
  if reads_last_two:
    state = read_last_two(state)
  # One loop for the batch: it runs as long as any row needs it.
  levels = gamma + jax.lax.pmax(needs_bonus.astype(jnp.int32), ROWS)
  state = jax.lax.while_loop(
    lambda state: (state['level'] < levels) & state['any_drafting'],
    read_level,
    state,
  )
  return Draft(
    tokens=state['tokens'][:gamma].T,
    logits=state['logits'],
    lengths=state['lengths'],
    has_bonus_probs=jnp.ones(drafts, bool),
    calls=state['calls'],
    draft_vocab_ids=draft_vocab_ids,
  ), state['cache']
