"""A verifier, and what drafts for it: by name, by checkpoint, or made here.

`equip` understands

  a `Checkpoint`, or its name     a language model of the same family
  'ngram'                         the text itself, where it repeats itself
  'ngram:3'                       the same, wherever its last 3 tokens stood
  'self:3'                        the verifier's own first 3 layers
  'tiny-recurrent', or a folder   a recurrent head that was trained for it
  a folder                        an assistant of Gemma 4, or an EAGLE-3 head
  'tiny-drafter+ngram'            a model, and what drafts for it; see `chains`
  an `Equipped`                   anything that was put together before
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from cascades import arguments, drafters, methods
from cascades.decoding import Plain
from cascades.drafters import assistants, chains, heads, speculators
from cascades.drafters.chain import chain
from cascades.models import checkpoints, language, tokenizers

# Most last tokens that a text look-up compares: each is compiled by itself.
_WINDOW = 256


def check_pair(
  verifier: checkpoints.Checkpoint, drafter: checkpoints.Checkpoint
) -> None:
  """Refuses two models that do not speak of the same tokens.

  Raises:
    ValueError: Vocabularies or tokenizers differ.
  """
  ours, theirs = verifier.tokenizer, drafter.tokenizer
  at = tokenizers.first_difference(ours, theirs)
  if at is not None:
    # Of whichever has so many.
    names = [
      repr(t.piece(at)) if at < t.vocab_size else 'nothing'
      for t in (theirs, ours)
    ]
    raise ValueError(
      f'drafter: its tokenizer ({theirs.vocab_size} pieces) is not the'
      f" verifier's ({ours.vocab_size} pieces), as token {at} is"
      f' {names[0]} in the one and {names[1]} in the other; take two models of'
      ' one family.'
    )
  sizes = verifier.model.vocab_size, drafter.model.vocab_size
  if sizes[0] != sizes[1]:
    raise ValueError(
      f'drafter: it gives {sizes[1]} logits and the verifier {sizes[0]}, though'
      f' both have {ours.vocab_size} tokens; load both with load_model, which'
      ' leaves out what pads them.'
    )


def check_tokenizer(
  verifier: checkpoints.Checkpoint, tokenizer: tokenizers.Tokenizer | None
) -> None:
  """Refuses a tokenizer that does not have a piece for each logit.

  Args:
    verifier: The verifier.
    tokenizer: What its tokens are read by; None where only ids are scored.

  Raises:
    ValueError: It has more, or less.
  """
  size = verifier.model.vocab_size
  pieces = size if tokenizer is None else tokenizer.vocab_size
  if pieces != size:
    raise ValueError(
      f'tokenizer: it has {pieces} pieces and the verifier gives {size} logits;'
      " give the verifier's own."
    )


def fingerprints(
  verifier: checkpoints.Checkpoint, equipped: drafters.Equipped
) -> tuple[str | None, str | None]:
  """What tells two language models from others; None of what is none.

  Args:
    verifier: The verifier.
    equipped: What drafts.
  """
  drafter, params = equipped
  if getattr(drafter, 'adaptive', False):
    params, _ = params
  own = None
  if isinstance(drafter, drafters.ModelDrafter | drafters.SelfDrafter):
    own = verifier._replace(model=drafter.model, params=params)
  return _fingerprint(verifier), own and _fingerprint(own)


def _fingerprint(checkpoint: checkpoints.Checkpoint) -> str | None:
  """Also of how many layers it has, for the first of them are another model."""
  model = checkpoint.model
  if not isinstance(model, language.LanguageModel):
    return None
  layers = model.module.config.num_layers
  return f'{layers}x{heads.fingerprint(checkpoint)}'


def check_trained(
  method: methods.Method,
  verifier: checkpoints.Checkpoint,
  equipped: drafters.Equipped,
) -> None:
  """Refuses a method that was trained for other models.

  Raises:
    ValueError: It was; names the model that is another.
  """
  if method.trained is None:
    return
  trained, found = method.trained, fingerprints(verifier, equipped)
  for i, role in enumerate(('verifier', 'drafter')):
    want = getattr(trained, role)
    if found[i] != want:
      own = found[i] or 'none, for it is no language model'
      raise ValueError(
        f'method: {method.name} was trained for the {role} {trained.names[i]},'
        f' with the fingerprint {want}, and this one has {own}; train a rule'
        ' for these two with configs/train_rule.py.'
      )


def is_model(name: str) -> bool:
  """Whether a name is that of a language model, which can answer alone."""
  kinds = (
    *(chains.parts, heads.folder_of),
    *(assistants.known, speculators.folder_of),
  )
  return not _is_borrowed(name) and not any(known(name) for known in kinds)


def _is_borrowed(name: str) -> bool:
  """Whether it drafts from the text, or with the verifier's first layers."""
  return name == 'ngram' or name.startswith(('ngram:', 'self:'))


def takes_dtype(name: str) -> bool:
  """Whether a dtype has an effect on what a name stands for.

  Text look-ups and first layers have no parameters of their own.
  """
  return not all(map(_is_borrowed, chains.parts(name) or (name,)))


def looks_at_block(name: str) -> bool:
  """Whether what it drafts hangs on where a block began, and not on the text.

  A cascade's target holds block by block then, and there is no drafter alone.
  """
  own_layers = name.startswith('self:') and not chains.parts(name)
  return not is_model(name) and not own_layers


@dataclasses.dataclass(frozen=True)
class Drafting:
  """What drafts and is no model of its own, as memory is counted of models.

  Attributes:
    drafter: A `decoding.Drafter`; what it keeps of a row counts as its cache.
    vocab_size: Logits of a drafted token.
  """

  drafter: Any
  vocab_size: int

  def init_cache(self, params: PyTree, cache_length: int) -> PyTree:
    """What it keeps of a row."""
    return self.drafter.init(params, cache_length)


def describe(name: str, dtype: str | None = None) -> tuple[Any, PyTree] | None:
  """What drafts, and the shapes of its parameters, without reading them.

  Args:
    name: As for `load_drafter`; an assistant's published name will do.
    dtype: What the parameters would become as they are read.

  Returns:
    (model, or what counts as one, shapes and dtypes of its parameters); None of
    what has none of its own, and of a recurrent head, which has next to none.

  Raises:
    ValueError: There is nothing of that name.
  """
  if names := chains.parts(name):
    # The middle model is by far the larger.
    return describe(names[0], dtype)
  for kind in assistants, speculators:
    if found := kind.describe(name, dtype):
      size, shapes = found
      # A head's cache is a layer's, which counts once it is loaded.
      return Drafting(Plain(), size), shapes
  return checkpoints.describe(name, dtype) if is_model(name) else None


def load_drafter(
  name: str,
  dtype: str | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> (
  checkpoints.Checkpoint
  | heads.Loaded
  | assistants.Loaded
  | speculators.Loaded
  | chains.Loaded
  | str
):
  """What a name stands for, as far as no verifier is needed for it.

  Args:
    name: A model's or a head's name, 'ngram', or 'self:3'.
    dtype: What the parameters are kept in, 'float32' or 'bfloat16'; None for
      what they are stored in.
    mesh: Devices that the parameters of a model are split over; None for one.

  Raises:
    ValueError: There is nothing of that name.
  """
  if names := chains.parts(name):
    return chains.Loaded(*(load_drafter(part, dtype, mesh) for part in names))
  if is_model(name):
    return checkpoints.load_model(name, dtype, mesh)
  if assistants.known(name):
    return assistants.load(name, dtype)
  if folder := speculators.folder_of(name):
    return speculators.load(folder, dtype)
  folder = heads.folder_of(name)
  return name if folder is None else heads.load(folder, dtype)


def equip(
  verifier: checkpoints.Checkpoint,
  drafter: Any,
  *,
  stop_below: float | None = None,
  beam: bool = False,
  others_say: bool = True,
  inner_method: str | methods.Method | None = None,
  inner_lenience: float | None = None,
  inner_gamma: int | None = None,
) -> drafters.Equipped:
  """What drafts for a verifier.

  Args:
    verifier: The verifier.
    drafter: A checkpoint, a loaded head or assistant, a name for one, 'ngram',
      'self:3', or a drafter that is equipped already.
    stop_below: A drafting model stops where its most probable token is less
      probable than this; None: never.
    beam: Whether a recurrent head's drafts are those of a beam search.
    others_say: Whether an assistant gives a little to the tokens of groups that
      it does not look into, as transformers has it; else nothing.
    inner_method: By which a model decodes with what drafts for it, where there
      are such two; None for 'speed'.
    inner_lenience: How readily it keeps their drafts; None for strictly.
    inner_gamma: Tokens per block of the two; None for 2.

  Raises:
    ValueError: They do not go together, or an option is not this drafter's.
  """
  if isinstance(drafter, str):
    drafter = load_drafter(drafter)
  if stop_below is not None and not isinstance(drafter, checkpoints.Checkpoint):
    raise ValueError('stop_below: only a model that drafts can stop early.')
  if beam and not isinstance(drafter, heads.Loaded):
    raise ValueError('beam: only a recurrent head has beams.')
  if not others_say and not isinstance(drafter, assistants.Loaded):
    raise ValueError('others_say: only an assistant looks into some groups.')
  given = dict(method=inner_method, lenience=inner_lenience, gamma=inner_gamma)
  given = {name: x for name, x in given.items() if x is not None}
  if isinstance(drafter, chains.Loaded):
    return _chained(verifier, drafter, chains.Inner(**given))
  for name in given:
    raise ValueError(
      f'inner_{name}: only a model that is drafted for itself has one; give a'
      " drafter such as 'self:6+ngram'."
    )
  if isinstance(drafter, checkpoints.Checkpoint):
    check_pair(verifier, drafter)
    if stop_below is None:
      return drafters.Equipped(
        drafters.ModelDrafter(drafter.model), drafter.params
      )
    return drafters.Equipped(
      drafters.ModelDrafter(drafter.model, adaptive=True),
      (drafter.params, jnp.float32(stop_below)),
    )
  if isinstance(drafter, assistants.Loaded):
    return drafter.equip(verifier, others_say)
  if isinstance(drafter, speculators.Loaded):
    return drafter.equip(verifier)
  if isinstance(drafter, heads.Loaded):
    drafter.check(verifier)
    params = verifier.params
    if drafter.says is not None:
      params = verifier.model.speaking(params, drafter.says)
    return drafters.Equipped(
      drafters.RecurrentDrafter(verifier.model, beam=beam),
      (drafter.head, params),
    )
  arguments.a(
    'drafter',
    drafter,
    str | drafters.Equipped,
    "what load_model gives, a name for it, 'ngram', 'self:3', or a drafter with"
    ' its parameters',
  )
  if isinstance(drafter, drafters.Equipped):
    # Of the model that drafts, or of what drafts without one.
    owner = getattr(drafter.drafter, 'model', drafter.drafter)
    size = getattr(owner, 'vocab_size', None)
    if size not in (None, verifier.model.vocab_size):
      raise ValueError(
        f'drafter: its vocabulary has {size} tokens, the verifier has'
        f' {verifier.model.vocab_size}; take two of one family.'
      )
    return drafter
  if drafter == 'ngram':
    return drafters.Equipped(drafters.NgramDrafter(), ())
  kind, _, said = drafter.partition(':')
  count = arguments.count_in(said)
  if not count:
    what = 'layers' if kind == 'self' else 'tokens'
    name = arguments.shown(drafter)
    raise ValueError(f"drafter: {name} names no {what}; write '{kind}:3'.")
  if kind == 'ngram' and count > _WINDOW:
    raise ValueError(
      f'drafter: {drafter!r} compares more tokens than a text look-up can;'
      f" write 'ngram:{_WINDOW}' or less."
    )
  if kind == 'ngram':
    return drafters.Equipped(drafters.NgramDrafter(count, count), ())
  first = verifier.model.first(count)
  return drafters.Equipped(drafters.SelfDrafter(first), verifier.params)


def _chained(
  verifier: checkpoints.Checkpoint, loaded: chains.Loaded, inner: chains.Inner
) -> drafters.Equipped:
  """A middle model that drafts for a verifier, and is drafted for itself."""
  middle = loaded.middle
  if isinstance(middle, str) and middle.startswith('self:'):
    first = equip(verifier, middle)
    middle = verifier._replace(model=first.drafter.model)
  if not isinstance(middle, checkpoints.Checkpoint):
    raise ValueError(
      "drafter: what stands before '+' is no language model, which could be"
      ' drafted for; take a model, or its first layers by self:N.'
    )
  check_pair(verifier, middle)
  small = equip(middle, loaded.small)
  return chain(
    middle.model,
    middle.params,
    small,
    inner.method,
    inner.lenience,
    inner.gamma,
  )
