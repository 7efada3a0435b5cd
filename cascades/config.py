"""The options of decoding: one frozen value, declared and checked once.

  DecodingConfig(method='token_v3', lenience=0.3, gamma=8)

Every option of the core is declared here with its type, default, range, help
and the conditions under which it has an effect. The options of one kind of
drafter are declared on its spec: see `drafters`. An option that has no effect
beside the others is refused, never ignored.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from cascades import arguments
from cascades.declarations import Declared, Option, option, options_of
from cascades.verification_config import BONUSES, GATES, VerificationConfig

# The conditions of `Option.needs`: an option has an effect if they hold.
CONDITIONS = {
  'sampling': 'tokens are drawn, not taken greedily',
  'drafting': 'gamma is above 0',
  'tree': 'a block has several drafts',
  'gate': "the method reads the gates' probabilities",
  'lenience': 'the method has a lenience',
  'deferral': "the method's law is not the verifier's",
}
_DRAFTS = ('drafting',)


def _method(method: Any) -> Any:
  # Imports JAX, which flags and help do not wait for.
  from cascades import methods

  types = str | methods.Method
  arguments.instance('method', method, types, 'a name or a cascades.Method')
  return methods.get_method(method)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingConfig(Declared):
  """The options of decoding, whatever the models; `help` describes each.

  Attributes:
    method: Given as a `Method`, a name in `METHODS` or an alias of the paper's
      notebook; kept as a `Method`.

  Raises:
    ValueError: An option is out of its range, or has no effect beside the
      others, or two cannot be combined; one sentence says which.
  """

  method: Any = option(
    'token_v3',
    kind=str,
    check=_method,
    help='Method: which drafted tokens are accepted; a name in METHODS.',
  )
  lenience: float | None = option(
    None,
    kind=float,
    needs=('lenience',),
    help='Threshold of the method, from strict (lossless) to drafter-only; None'
    " is the method's strict value.",
  )
  gamma: int = option(
    4,
    kind=int,
    low=0,
    help='Tokens drafted per block; 0 decodes with the verifier alone.',
  )
  temperature: float = option(
    1.0,
    kind=float,
    low=0,
    high=1e6,
    help='Sampling temperature of both models; 0 is greedy.',
  )
  top_k: int | None = option(
    None,
    kind=int,
    low=1,
    # A number above the size of the vocabulary keeps all tokens.
    high=2**64,
    needs=('sampling',),
    help='Keeps the k most probable tokens of both models; None keeps all.',
  )
  top_p: float | None = option(
    None,
    kind=float,
    low=0,
    high=1,
    needs=('sampling',),
    help='Keeps the most probable tokens that hold this mass; None keeps all.',
  )
  cache_length: int = option(
    4096,
    kind=int,
    low=1,
    help='Most tokens of a sequence, prompt included.',
  )
  batch_size: int = option(
    64,
    kind=int,
    low=1,
    help='Most rows decoded at a time; a row is a prompt at a lenience.',
  )
  verification: str = option(
    'token',
    kind=str,
    needs=_DRAFTS,
    help='Verification of a block: token, block, look_ahead; of several'
    ' drafts: multi_round, k_seq, match, traversal.',
  )
  gate: str = option(
    'raw',
    kind=str,
    choices=GATES,
    needs=(*_DRAFTS, 'gate'),
    help='Probabilities that deferral rules read: at temperature 1 (raw), or'
    ' after temperature and truncation (processed).',
  )
  bonus: str = option(
    'target',
    kind=str,
    choices=BONUSES,
    needs=(*_DRAFTS, 'deferral'),
    help="Distribution of the token after a fully accepted block: the method's"
    ' law (target) or p (verifier).',
  )
  drafts: int = option(
    1, kind=int, low=1, needs=_DRAFTS, help='Drafts per block, side by side.'
  )
  tree_size: int | None = option(
    None,
    kind=int,
    low=1,
    needs=(*_DRAFTS, 'tree'),
    applies='several drafts',
    help='Most drafted tokens that the verifier reads per block; None reads'
    ' all. Drafts with a common prefix share it.',
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    self.verification_config.check(self.method, self.drafts)
    if self.tree_size is not None:
      arguments.integer('tree_size', self.tree_size, self.drafts)
    check_effects(self, self)
    refuse = self.verification_config.kind.refuse
    if (
      self.gamma
      and refuse
      and (reason := refuse(self.verification_config.argument, self.gamma))
    ):
      raise ValueError(f'verification: {self.verification!r} {reason}.')

  @property
  def effective_lenience(self) -> float:
    """The lenience, else the method's strict one; 0 if none is read."""
    from cascades.methods import inputs

    if self.gamma and 'lenience' in inputs.used(self.method):
      return self.method.or_strict(self.lenience)
    return self.lenience or self.method.strict or 0.0

  @property
  def is_lossless(self) -> bool:
    """True if the law of answers is the verifier's, whatever drafts."""
    return not self.gamma or self.method.is_strict(self.effective_lenience)

  @property
  def verification_config(self) -> VerificationConfig:
    """The kind of verification, its gate and its bonus."""
    return VerificationConfig(self.verification, self.gate, self.bonus)

  def to_dict(self) -> dict[str, Any]:
    """Returns every option by name, with values that JSON can hold."""
    return super().to_dict() | {'method': self.method.name}

  @classmethod
  def applicable(cls, **options: Any) -> Self:
    """Makes a config of the options that have an effect; drops the others.

    A sweep has one set of options for all of its curves, baselines included:
    each curve takes the options that apply to it.

    Raises:
      ValueError: As for the class.
    """
    declared = options_of(cls)
    defaults = {name: x.default for name, x in declared.items()}
    unused = without_effect(declared, {**defaults, **options})
    return cls(**{k: v for k, v in options.items() if k not in unused})


def _unmet(options: Mapping[str, Any]) -> dict[str, str]:
  """Returns a reason for each of `CONDITIONS` that does not hold."""
  from cascades import methods
  from cascades.methods import inputs, processing, registry

  reasons = {}
  temperature = arguments.number('temperature', options['temperature'], 0, 1e6)
  if temperature < processing.GREEDY_BELOW:
    reasons['sampling'] = (
      f'temperature {temperature:g}, which takes the most probable token'
    )
  if options['gamma'] == 0:
    reasons['drafting'] = 'gamma 0, where the verifier decodes alone'
    return reasons
  if options['drafts'] == 1:
    reasons['tree'] = 'drafts 1, since a single draft is not a tree'
  method = methods.get_method(options['method'])
  reads = inputs.used(method)
  if not reads & {'q_gate', 'p_gate'}:
    reasons['gate'] = f'method {method.name}, which does not read it'
  # A sweep names its points by lenience, also those of a user's method that has
  # none.
  if 'lenience' not in reads and registry.is_builtin(method):
    reasons['lenience'] = f'method {method.name}, which has no lenience'
  if inputs.has_verifier_law(method):
    reasons['deferral'] = f"method {method.name}, whose law is the verifier's"
  return reasons


def without_effect(
  declared: Mapping[str, Option], config: DecodingConfig | Mapping[str, Any]
) -> dict[str, str]:
  """Returns the options that have no effect, each with the reason."""
  if isinstance(config, DecodingConfig):
    config = {name: getattr(config, name) for name in options_of(config)}
  unmet = _unmet(config)
  return {
    name: reason
    for name, declaration in declared.items()
    if (reason := next(filter(None, map(unmet.get, declaration.needs)), None))
  }


def check_effects(declared: Declared, config: DecodingConfig) -> None:
  """Refuses options that are given and have no effect."""
  # Leniences that are in effect anyway.
  neutral = config.method.strict, config.method.drafter_only
  unused = without_effect(options_of(declared), config)
  for name, value in declared.changed().items():
    if name in unused and (name != 'lenience' or value not in neutral):
      raise ValueError(
        f'{name}: {arguments.quote(value)} has no effect with {unused[name]};'
        ' leave it out.'
      )
