"""Drafters: objects that bind to a verifier, by name or made in Python.

  unbound         the base class of drafters, and what is read of their names
  ngram           prompt look-up: repeats continuations of the text
  stepwise        what the others share: the loop, attention, norms, checks
  language_model  language models, and the verifier's own first layers
  recurrent       recurrent heads on the verifier's last hidden state
  eagle3          EAGLE-3 heads, which read several layers of the verifier
  assistant       Gemma 4's own drafters, which attend to its caches

A drafter with a name is a file, an import and an entry of `DRAFTERS`.
"""

import difflib
import pathlib
from typing import Any

import jax

from cascades import arguments
from cascades.arguments import Option, Registry, options_of
from cascades.decoding.drafter import BoundDrafter, DraftContext
from cascades.drafters.assistant import Assistant
from cascades.drafters.eagle3 import EagleDrafter, EagleHead
from cascades.drafters.language_model import (
  DraftModel,
  ModelDrafter,
  SelfDrafter,
  SelfSpeculative,
)
from cascades.drafters.ngram import NgramDrafter
from cascades.drafters.recurrent import RecurrentDrafter, RecurrentHead
from cascades.drafters.unbound import NamedDrafter, NoDrafter, UnboundDrafter
from cascades.models import checkpoints, hub

__all__ = (
  'DRAFTERS Assistant BoundDrafter DraftContext DraftModel EagleDrafter'
  ' EagleHead ModelDrafter NamedDrafter NgramDrafter NoDrafter RecurrentDrafter'
  ' RecurrentHead SelfDrafter SelfSpeculative UnboundDrafter bind_drafter'
  ' declared_options kind_of load parse'
).split()

# Names are claimed in this order. Language models come last: the folder of any
# drafter may look like one.
DRAFTERS: Registry[type[UnboundDrafter]] = Registry('drafter', UnboundDrafter)
DRAFTERS.register('ngram', NgramDrafter, builtin=True)
DRAFTERS.register('self', SelfSpeculative, builtin=True)
DRAFTERS.register('recurrent', RecurrentHead, builtin=True)
DRAFTERS.register('assistant', Assistant, builtin=True)
DRAFTERS.register('eagle', EagleHead, builtin=True)
DRAFTERS.register('language_model', DraftModel, builtin=True)


def kind_of(name: str) -> type[UnboundDrafter]:
  """Returns the class of the drafter that a name or a folder selects."""
  kind = DRAFTERS.get(name.partition(':')[0])
  if kind is not None and not kind.reads_files:
    return kind
  registered = DRAFTERS.values()
  kind = next((x for x in registered if x.claims(name)), None)
  if kind is None:
    folder = hub.local_folder(name, weights=False)
    kind = next((x for x in registered if x.claims(folder)), None)
  if kind is not None:
    return kind
  names = [y for x in registered for y in x.known_names]
  near = difflib.get_close_matches(name[:99], [*DRAFTERS, *names], 1, 0.0)
  forms = '; '.join(x.syntax for x in registered)
  is_there = pathlib.Path(name).exists()
  reason = 'holds no drafter' if is_there else 'is not a folder or a known name'
  raise ValueError(
    f'drafter: {arguments.quote(name)} {reason}; did you mean {near[0]!r}?'
    f' Choose from {", ".join(names)}; or {forms}.'
  )


def declared_options() -> dict[str, Option]:
  """Returns the options of all kinds of drafters by name."""
  declared: dict[str, Option] = {}
  for kind in DRAFTERS.values():
    for name, option in options_of(kind).items():
      if declared.setdefault(name, option) != option:
        raise ValueError(f'{name}: is taken; rename it in {kind.__name__}.')
  return declared


def parse(drafter: Any, **options: Any) -> Any:
  """Returns a drafter with options; reads no parameters.

  Args:
    drafter: A name such as 'ngram:3', a folder, or a name on the hub; a loaded
      language model; or a drafter, bound or not. None stays None.
    **options: Options by name. None keeps an option as it is.

  Returns:
    A `NamedDrafter` if files are to be read, or an `UnboundDrafter`; a
    `BoundDrafter` and None as they are.
  """
  label = drafter if isinstance(drafter, str) else type(drafter).__name__
  if isinstance(drafter, str):
    kind = kind_of(drafter)
    is_stored = kind.reads_files
    drafter = NamedDrafter(drafter, kind) if is_stored else kind.load(drafter)
  elif isinstance(drafter, checkpoints.Checkpoint):
    drafter = DraftModel(drafter)
  types = NamedDrafter | UnboundDrafter | BoundDrafter | None
  expected = 'a name, a checkpoint from load_model, or a drafter'
  arguments.instance('drafter', drafter, types, expected)
  kind = drafter.kind if isinstance(drafter, NamedDrafter) else type(drafter)
  supported = options_of(kind) if issubclass(kind, UnboundDrafter) else {}
  declared = declared_options()
  for name in (x for x in options if x not in supported):
    if name not in declared:
      near = difflib.get_close_matches(name, declared, 1, 0.0)
      hint = f'did you mean {near[0]!r}?'
    elif options[name] in (None, declared[name].default):
      continue
    else:
      hint = f'it applies to {declared[name].applies}.'
    raise ValueError(
      f'{name}: is no option of the drafter {arguments.quote(label)}; {hint}'
    )
  changes = {x: options[x] for x in supported if options.get(x) is not None}
  return drafter.replace(**changes) if changes else drafter


def load(
  drafter: Any,
  dtype: str | None = None,
  mesh: jax.sharding.Mesh | None = None,
  **options: Any,
) -> Any:
  """Loads a drafter and its options, given as for `parse`."""
  drafter = parse(drafter, **options)
  if isinstance(drafter, NamedDrafter):
    loaded = drafter.kind.load(drafter.name, dtype, mesh)
    return loaded.replace(**drafter.options)
  if isinstance(drafter, DraftModel):
    return drafter.replace(checkpoint=drafter.checkpoint.shard(mesh))
  return drafter


def bind_drafter(
  verifier: checkpoints.Checkpoint, drafter: Any, **options: Any
) -> BoundDrafter:
  """Binds a drafter, as `parse` takes it, to a verifier."""
  drafter = load(drafter, **options)
  if not isinstance(drafter, BoundDrafter):
    drafter = drafter.bind(verifier)
  expected = verifier.model.vocab_size
  model = getattr(drafter.drafter, 'model', None)
  size = getattr(model, 'vocab_size', expected)
  if size != expected:
    raise ValueError(
      f'drafter: must have as many logits as the verifier, got {size} and'
      f' {expected}; load both with load_model, which leaves out the padding of'
      ' a table.'
    )
  return drafter
