"""A verifier, and what drafts for it: by name, by checkpoint, or made here.

`bind_drafter` understands

  a `Checkpoint`, or its name     a language model of the same family
  'ngram'                         the text itself, where it repeats itself
  'ngram:3'                       the same, wherever its last 3 tokens stood
  'self:3'                        the verifier's own first 3 layers
  'tiny-recurrent', or a folder   a recurrent head that was trained for it
  a folder                        an assistant of Gemma 4, or an EAGLE-3 head
  'NAME:ARGUMENT', 'A+B'          what a plug-in declares; see `specs`
  a `BoundDrafter`                   anything that was put together before
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from cascades import arguments, drafters
from cascades.drafters import specs
from cascades.drafters.assistant import assistant_checkpoint
from cascades.drafters.eagle import eagle_checkpoint
from cascades.drafters.recurrent import recurrent_checkpoint
from cascades.drafters.specs import DRAFTERS, kind_of
from cascades.models import checkpoints, tokenizers
from cascades.registries import OPTIONS

# What each option of a drafter needs, and its default.
_NEEDS = {
  'stop_below': ('a model that drafts can stop early', None),
  'beam': ('a recurrent head has beams', False),
  'fill_unselected_logits': ('an assistant looks into some groups', True),
}


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


for _name, _kind in {
  'recurrent': specs.Kind(
    pattern='tiny-recurrent, or a folder',
    says='a recurrent head that was trained for the verifier',
    has_prefix=False,
    load=lambda name, dtype, mesh: recurrent_checkpoint.load(
      recurrent_checkpoint.folder_of(name), dtype
    ),
    matches=lambda name: recurrent_checkpoint.folder_of(name) is not None,
  ),
  'assistant': specs.Kind(
    pattern='a folder',
    says='an assistant of Gemma 4',
    has_prefix=False,
    load=assistant_checkpoint.load,
    describe=assistant_checkpoint.describe,
    matches=assistant_checkpoint.known,
  ),
  'eagle': specs.Kind(
    pattern='a folder',
    says='an EAGLE-3 head',
    has_prefix=False,
    load=eagle_checkpoint.load,
    describe=eagle_checkpoint.describe,
    matches=eagle_checkpoint.known,
  ),
  'model': specs.Kind(
    pattern='a name, or a folder',
    says='a language model of the same family',
    has_prefix=False,
    load=checkpoints.load_model,
    describe=checkpoints.describe,
    looks_at_block=False,
  ),
}.items():
  DRAFTERS.register(_name, _kind, builtin=True)


def is_model(name: str) -> bool:
  """Whether a name is that of a language model, which can answer alone."""
  return kind_of(name) is DRAFTERS['model']


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
  return kind_of(name).describe(name, dtype)


def load_drafter(
  name: str,
  dtype: str | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> checkpoints.Checkpoint | specs.Spec:
  """What a name stands for, as far as no verifier is needed for it.

  Args:
    name: A model's or a head's name, 'ngram', or 'self:3'.
    dtype: What the parameters are kept in, 'float32' or 'bfloat16'; None for
      what they are stored in.
    mesh: Devices that the parameters of a model are split over; None for one.

  Raises:
    ValueError: There is nothing of that name.
  """
  return kind_of(name).load(name, dtype, mesh)


@dataclasses.dataclass(frozen=True)
class ModelSpec:
  """A language model that drafts.

  Attributes:
    checkpoint: The model.
  """

  checkpoint: checkpoints.Checkpoint
  options = ('stop_below',)

  def bind(
    self, verifier: checkpoints.Checkpoint, stop_below: float | None = None
  ) -> drafters.BoundDrafter:
    """Binds it to a verifier of the same tokens; see `bind_drafter`."""
    model, params, _ = self.checkpoint
    check_pair(verifier, self.checkpoint)
    if stop_below is None:
      return drafters.BoundDrafter(drafters.ModelDrafter(model), params)
    return drafters.BoundDrafter(
      drafters.ModelDrafter(model, adaptive=True),
      (params, jnp.float32(stop_below)),
    )


def bind_drafter(
  verifier: checkpoints.Checkpoint, drafter: Any, **options: Any
) -> drafters.BoundDrafter:
  """What drafts for a verifier.

  Args:
    verifier: The verifier.
    drafter: A checkpoint, a loaded head or assistant, a name for one, 'ngram',
      'self:3', or a drafter that is bound_drafter already.
    **options: stop_below, beam and fill_unselected_logits, as `Options` has
      them, and those that plug-ins declare. None, or the default, says nothing.

  Raises:
    ValueError: They do not go together, or an option is not this drafter's.
  """
  if isinstance(drafter, str):
    drafter = load_drafter(drafter)
  given = {
    name: value
    for name, value in options.items()
    if value is not None and value is not _NEEDS.get(name, ('', None))[1]
  }
  if isinstance(drafter, checkpoints.Checkpoint):
    drafter = ModelSpec(drafter)
  taken = getattr(drafter, 'options', ())
  for name in given:
    if name in taken:
      continue
    need = _NEEDS[name][0] if name in _NEEDS else OPTIONS.get(name).applies
    raise ValueError(f'{name}: only {need}.')
  if isinstance(drafter, drafters.BoundDrafter):
    return _checked(verifier, drafter)
  arguments.instance(
    'drafter',
    drafter,
    specs.Spec,
    "what load_model gives, a name for it, 'ngram', 'self:3', or a drafter with"
    ' its parameters',
  )
  return drafter.bind(verifier, **given)


def _checked(
  verifier: checkpoints.Checkpoint, drafter: drafters.BoundDrafter
) -> drafters.BoundDrafter:
  """A drafter that is bound_drafter already.

  Raises:
    ValueError: It has another vocabulary.
  """
  # Of the model that drafts, or of what drafts without one.
  owner = getattr(drafter.drafter, 'model', drafter.drafter)
  size = getattr(owner, 'vocab_size', None)
  if size not in (None, verifier.model.vocab_size):
    raise ValueError(
      f'drafter: its vocabulary has {size} tokens, the verifier has'
      f' {verifier.model.vocab_size}; take two of one family.'
    )
  return drafter
