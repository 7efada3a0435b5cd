"""What may be chosen about decoding: one value, made and checked once."""

import dataclasses
import difflib
import math
from typing import Any

from cascades import arguments, methods, schedules
from cascades.methods import caps, inputs, processing, registry
from cascades.registries import OPTIONS
from cascades.scheme import CONSTANT, NO_CAP, SEQUENTIAL, Scheme

# Tokens drafted per block where nothing is said of them.
_GAMMA = 4
# Options that only matter where tokens are drafted; and of these, those that
# only matter where there are blocks.
_OF_DRAFTS = (
  *('verification', 'gate', 'bonus', 'drafts', 'tree_size', 'stop_below'),
  *('beam', 'schedule', 'cap', 'others_say'),
)
_OF_BLOCKS = ('gamma', 'bonus', 'drafts', 'tree_size', 'stop_below', 'beam')


def without_effect(
  method: methods.Method,
  gamma: int | None,
  verification: str,
  temperature: float,
  cap: str,
) -> dict[str, str]:
  """Names the options that have no effect, whatever the models, and says why.

  Args:
    method: The method.
    gamma: Tokens drafted per block; None if nothing is said of it.
    verification: As in `Options`.
    temperature: At which both models are sampled.
    cap: As in `Options`; another than 'none' looks at the gate.
  """
  found = {}
  temperature = arguments.number('temperature', temperature, 0, 1e6)
  if temperature < processing.GREEDY_BELOW:
    reason = f'temperature {temperature:g}, which takes the likeliest token'
    found |= dict.fromkeys(('top_k', 'top_p'), reason)
  if gamma == 0:
    reason = 'gamma 0, where the verifier decodes alone'
    return found | dict.fromkeys((*_OF_DRAFTS, *OPTIONS.names()), reason)
  if verification == SEQUENTIAL:
    reason = "verification 'sequential', which makes no blocks"
    found |= dict.fromkeys(_OF_BLOCKS, reason)
  looks_at = inputs.used(method)
  if not looks_at & {'q_gate', 'p_gate'} and cap == NO_CAP:
    found['gate'] = f'method {method.name}, which does not look at it'
  # Points of a sweep are named by a lenience, also those of a method from
  # outside that has none.
  if 'lenience' not in looks_at and registry.is_builtin(method):
    reason = f'method {method.name}, which has no lenience'
    found |= dict.fromkeys(('lenience', 'schedule'), reason)
  if inputs.has_verifier_law(method):
    reason = f"method {method.name}, whose law is the verifier's"
    found |= dict.fromkeys(('bonus', 'cap'), reason)
  return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """How answers are decoded, whatever the models.

  All but one are arguments of `sampler.Sampler`, which has what they mean.

  Attributes:
    method: A `Method`, whatever was given.
    plugins: Names and values of options that plug-ins declare; see `of`.

  Raises:
    ValueError: One is out of its range, or two do not go together; one
      sentence says which.
  """

  method: str | methods.Method = 'token_v3'
  lenience: float = 0.5
  gamma: int | None = None
  temperature: float = 1.0
  top_k: int | None = None
  top_p: float | None = None
  cache_length: int = 4096
  batch_size: int = 64
  verification: str = 'token'
  gate: str = 'raw'
  bonus: str = 'target'
  drafts: int = 1
  tree_size: int | None = None
  stop_below: float | None = None
  beam: bool = False
  schedule: str = CONSTANT
  cap: str = NO_CAP
  others_say: bool = True
  plugins: tuple[tuple[str, Any], ...] = ()

  @classmethod
  def of(cls, **options: Any) -> 'Options':
    """Options by name, those that plug-ins declare among them.

    Raises:
      TypeError: There is no such option; names the nearest.
      ValueError: As for the class.
    """
    own = {field.name for field in dataclasses.fields(cls)} - {'plugins'}
    plugins = {name: options[name] for name in options.keys() - own}
    for name in plugins:
      if name not in OPTIONS:
        near = difflib.get_close_matches(name, [*own, *OPTIONS], 1, 0.0)
        raise TypeError(
          f'option: {arguments.quote(name)} is not known; did you mean'
          f' {near[0]!r}?'
        )
    given = ((k, v) for k, v in sorted(plugins.items()) if v is not None)
    core = {name: options[name] for name in options.keys() & own}
    return cls(**core, plugins=tuple(given))

  def __post_init__(self):
    number, whole = arguments.number, arguments.integer
    method = methods.get_method(self.method)
    drafts = whole('drafts', self.drafts, 1)
    self.scheme.check(method, drafts)
    gamma = self.gamma
    if gamma is None:
      gamma = 1 if self.verification == SEQUENTIAL else _GAMMA
    checked = dict(
      method=method,
      drafts=drafts,
      gamma=whole('gamma', gamma, 0),
      lenience=number('lenience', self.lenience, -math.inf, math.inf),
      temperature=number('temperature', self.temperature, 0, 1e6),
      cache_length=whole('cache_length', self.cache_length, 1),
      batch_size=whole('batch_size', self.batch_size, 1),
    )
    if self.tree_size is not None:
      checked['tree_size'] = whole('tree_size', self.tree_size, drafts)
      if drafts == 1:
        raise ValueError(
          'tree_size: a single draft is no tree; give more drafts, or leave'
          ' tree_size out.'
        )
    if self.top_k is not None:
      # More than there are tokens keeps them all.
      checked['top_k'] = whole('top_k', self.top_k, 1, math.inf)
    for name in ('top_p', 'stop_below'):
      value = getattr(self, name)
      if value is not None:
        checked[name] = number(name, value, 0, 1)
    schedules.check(self.schedule, method)
    if caps.parse(self.cap) and self.scheme.verification == SEQUENTIAL:
      raise ValueError(
        "cap: 'sequential' follows the rule itself, which nothing caps; take"
        " another verification, or cap 'none'."
      )
    arguments.booleans(beam=self.beam, others_say=self.others_say)
    checked['plugins'] = tuple(
      (name, OPTIONS.get(name).check(value)) for name, value in self.plugins
    )
    for name, value in checked.items():
      # Frozen for everyone else.
      object.__setattr__(self, name, value)
    self._check_effects()

  def _check_effects(self) -> None:
    """Refuses options that have no effect beside the others.

    Raises:
      ValueError: There is one; names it.
    """
    # Values that say what is the case anyway.
    usual = {field.name: {field.default} for field in dataclasses.fields(self)}
    usual['gamma'].add(1)
    usual['lenience'] |= {self.method.strict, self.method.drafter_only}
    plugins = dict(self.plugins)
    for name, reason in without_effect(
      *(self.method, self.gamma, self.verification, self.temperature, self.cap)
    ).items():
      value = getattr(self, name) if name in usual else plugins.get(name)
      if value not in usual.get(name, {None}):
        raise ValueError(
          f'{name}: {arguments.quote(value)} has no effect with {reason}; leave'
          ' it out.'
        )
    refuse = self.scheme.kind.refuse
    if (
      self.gamma
      and refuse
      and (reason := refuse(self.scheme.argument, self.gamma))
    ):
      raise ValueError(f'verification: {self.verification!r} {reason}.')

  @property
  def capped(self) -> methods.Method:
    """The method, with its cap if there is one."""
    return caps.capped(self.method, self.cap)

  @property
  def scheme(self) -> Scheme:
    """How blocks are verified."""
    return Scheme(self.verification, self.gate, self.bonus)
