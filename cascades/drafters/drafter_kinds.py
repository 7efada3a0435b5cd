"""The registry of kinds of drafters, and strings that name a drafter.

  kind_of('self:3')                   the `DrafterKind` of a name or a folder
  parse_spec('self:3')                its spec, see `drafter_spec`
  declared_options()                  the options of all kinds, by name

`DRAFTERS.register` adds a `DrafterKind`, whose spec declares the options of the
kind. This module imports no JAX.
"""

import dataclasses
import difflib
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from cascades import arguments
from cascades.declarations import Option, options_of
from cascades.drafters.assistant.assistant_spec import AssistantSpec
from cascades.drafters.drafter_spec import Spec
from cascades.drafters.eagle.eagle_spec import EagleSpec
from cascades.drafters.language_model_spec import LanguageModelSpec
from cascades.drafters.ngram_spec import NgramSpec
from cascades.drafters.recurrent.recurrent_spec import RecurrentSpec
from cascades.drafters.self_speculative_spec import SelfSpeculativeSpec
from cascades.registries import Registry, split

# Names of Google's language models on the hub.
_GOOGLE = re.compile(r'(hub:)?google/gemma-(?!.*assistant)')


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrafterKind:
  """A kind of drafter: the entry of a registry.

  Attributes:
    spec: Class of the specs of the kind, which declares its options.
    syntax: Example or form of the names of the kind, for help and errors.
    help: Noun phrase for the drafter, for help and errors.
    claims: Called with a name; returns True if it names a drafter of the kind.
      None: the registered name, alone or before ':ARGUMENT', does.
    is_language_model: True if the drafter can decode alone.
    depends_on_block: True if q depends on where a block began, and not on the
      text alone. The target of a cascade then holds block by block.
  """

  spec: type[Spec]
  syntax: str
  help: str
  claims: Callable[[str], bool] | None = None
  is_language_model: bool = False
  depends_on_block: bool = True


DRAFTERS: Registry[DrafterKind] = Registry('drafter', DrafterKind)
for _name, _kind in {
  'ngram': DrafterKind(
    spec=NgramSpec,
    syntax='ngram:3',
    help='prompt look-up, which repeats continuations of the text',
  ),
  'self': DrafterKind(
    spec=SelfSpeculativeSpec,
    syntax='self:3',
    help="the verifier's own first layers",
    depends_on_block=False,
  ),
  'recurrent': DrafterKind(
    spec=RecurrentSpec,
    syntax='tiny-recurrent, or a folder',
    help='a recurrent head that was trained for the verifier',
    claims=RecurrentSpec.claims,
  ),
  'assistant': DrafterKind(
    spec=AssistantSpec,
    syntax='a folder',
    help='an assistant of Gemma 4',
    claims=AssistantSpec.claims,
  ),
  'eagle': DrafterKind(
    spec=EagleSpec,
    syntax='a folder',
    help='an EAGLE-3 head',
    claims=EagleSpec.claims,
  ),
  'language_model': DrafterKind(
    spec=LanguageModelSpec,
    syntax="a name, also 'OWNER/NAME' of the hub, a file or a folder",
    help='a language model of the same family',
    claims=LanguageModelSpec.claims,
    is_language_model=True,
    depends_on_block=False,
  ),
}.items():
  DRAFTERS.register(_name, _kind, builtin=True)


def kind_of(name: str) -> DrafterKind:
  """Returns the kind of drafter that a name or a folder selects.

  Kinds of the core are asked first, and language models come last among them:
  the folder of any drafter may look like one.
  """
  prefix, _ = split(name)
  if prefix in DRAFTERS:
    kind = DRAFTERS[prefix]
    if kind.claims is None:
      return kind
  arguments.file_name('drafter', name)
  claiming = _claiming(name, DRAFTERS.core()) or _claiming(name, DRAFTERS)
  if not claiming:
    _refuse_unknown(name)
  if len(claiming) > 1:
    raise ValueError(
      f'drafter: {arguments.quote(name)} must be of one kind, but'
      f' {" and ".join(claiming)} can read it; remove the files of the others.'
    )
  return DRAFTERS[claiming[0]]


def _claiming(name: str, kinds_by_name: Mapping[str, DrafterKind]) -> list[str]:
  """Returns the kinds that claim a name; other kinds before language models.

  The kind of a repository of the hub is read from its config.json, that of
  Google's models from their names.
  """

  def claiming(text: str) -> list[str]:
    entries = kinds_by_name.items()
    return [x for x, kind in entries if kind.claims and kind.claims(text)]

  def special(names: list[str]) -> list[str]:
    return [x for x in names if not kinds_by_name[x].is_language_model]

  by_name = claiming(name)
  if special(by_name) or '/' not in name or _GOOGLE.match(name):
    return special(by_name) or by_name
  from cascades.models import hub

  if not hub.is_name(name):
    return by_name
  folder = hub.fetch(name, weights=False)
  return special(claiming(str(folder))) or by_name


def _refuse_unknown(name: str) -> NoReturn:
  """Refuses a name that no kind of drafter claims."""
  registered = DRAFTERS.values()
  forms = '; '.join(f'{kind.syntax} ({kind.help})' for kind in registered)
  names = [x for kind in registered for x in kind.spec.known_names()]
  if pathlib.Path(name).exists():
    raise ValueError(
      f'drafter: {arguments.quote(name)} holds no drafter of a known kind; give'
      f' one of {forms}.'
    )
  near = difflib.get_close_matches(name[:99], [*DRAFTERS, *names], 1, 0.0)
  raise ValueError(
    f'drafter: {arguments.quote(name)} is not a folder or a known name; did you'
    f' mean {near[0]!r}? Choose from {", ".join(names)}; or {forms}.'
  )


def parse_spec(name: str, **options: Any) -> Spec:
  """Returns the spec of a drafter; reads no parameters."""
  return with_options(kind_of(name).spec.parse(name), name, **options)


def with_options(spec: Spec, label: str, **options: Any) -> Spec:
  """Returns a spec with other options."""
  supported = options_of(spec)
  changes = {}
  for name, value in options.items():
    if name not in supported:
      check_unsupported(name, value, label)
    elif value is not None:
      changes[name] = value
  return spec.replace(**changes) if changes else spec


def check_unsupported(name: str, value: Any, label: str) -> None:
  """Refuses an option that a drafter does not have, unless it is default."""
  declared = declared_options()
  if name not in declared:
    near = difflib.get_close_matches(name, declared, 1, 0.0)
    raise ValueError(
      f'{name}: is not an option of a drafter; did you mean {near[0]!r}? Choose'
      f' from {", ".join(declared)}.'
    )
  default = declared[name].default
  # Arrays have no truth value.
  is_default = isinstance(value, type(default)) and value == default
  if value is not None and not is_default:
    raise ValueError(
      f'{name}: is not supported by the drafter {arguments.quote(label)}; it'
      f' applies to {declared[name].applies}.'
    )


def declared_options() -> dict[str, Option]:
  """Returns the options of all kinds of drafters by name."""
  declared: dict[str, Option] = {}
  for kind in DRAFTERS.values():
    for name, option in options_of(kind.spec).items():
      if name in declared and declared[name] != option:
        raise ValueError(
          f'{name}: must be declared in one way, but two kinds of drafters'
          f' differ (one is {kind.help}); rename one of the two options.'
        )
      declared[name] = option
  return declared
