"""Binds a drafter, given as a name, a model or a spec, to a verifier."""

from typing import Any

from cascades import arguments
from cascades.decoding import BoundDrafter
from cascades.drafters import drafter_kinds
from cascades.drafters.drafter_spec import Spec
from cascades.drafters.language_model_spec import LanguageModelSpec
from cascades.models import checkpoints


def bind_drafter(
  verifier: checkpoints.Checkpoint,
  drafter: str | checkpoints.Checkpoint | Spec | BoundDrafter,
  **options: Any,
) -> BoundDrafter:
  """Binds a drafter to a verifier."""
  label = getattr(drafter, 'path', None) or type(drafter).__name__
  label = drafter if isinstance(drafter, str) else label
  if isinstance(drafter, BoundDrafter):
    for name, value in options.items():
      drafter_kinds.check_unsupported(name, value, label)
    return _check_vocab(verifier, drafter)
  spec = as_spec(drafter)
  arguments.instance(
    'drafter',
    spec,
    Spec,
    "a name such as 'ngram' or 'self:3', a checkpoint from load_model, a spec,"
    ' or a drafter with its parameters',
  )
  return drafter_kinds.with_options(spec, label, **options).bind(verifier)


def as_spec(drafter: Any) -> Any:
  """Returns the spec of a name or of a loaded model; others as they are."""
  if isinstance(drafter, str):
    return drafter_kinds.parse_spec(drafter)
  if isinstance(drafter, checkpoints.Checkpoint):
    return LanguageModelSpec(checkpoint=drafter)
  return drafter


def _check_vocab(
  verifier: checkpoints.Checkpoint, bound_drafter: BoundDrafter
) -> BoundDrafter:
  """Returns a bound drafter whose vocabulary is that of the verifier."""
  drafter = bound_drafter.drafter
  # The vocabulary is that of the drafter's model, if it has one.
  owner = getattr(drafter, 'model', drafter)
  size = getattr(owner, 'vocab_size', None)
  if size not in (None, verifier.model.vocab_size):
    raise ValueError(
      f'drafter: must have the {verifier.model.vocab_size} tokens of the'
      f' verifier, got {size}; take two models of one family.'
    )
  return bound_drafter
