"""Kinds of verification and sources of tokens. Does not import JAX."""

import dataclasses
import functools
import pkgutil
from collections.abc import Callable
from typing import Any

from cascades import arguments
from cascades.registries import Registry, split

# Sources of tokens; each constant is the index of its name.
SOURCES = ('prompt', 'draft', 'residual', 'bonus')
PROMPT, DRAFT, RESIDUAL, BONUS = range(4)

# Verifications that keep the law: of one draft per block, and of any number.
SINGLE_DRAFT = ('token', 'block')
MULTI_DRAFT = ('multi_round', 'k_seq', 'match', 'traversal')
GATES = ('raw', 'processed')
BONUSES = ('target', 'verifier')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
  """A kind of verification: an entry of the registry.

  Functions are named as 'module:function' and imported when a block is
  verified, so that names can be checked without JAX.

  Attributes:
    decide: Called as decide(inputs, accept_uniforms, sample_uniforms) with
      `VerificationInputs` and uniform numbers, and with the keyword `argument`
      if there is a `parse`; returns a `Verdict`.
    any_drafts: True if a block may have several drafts.
    single_target: True if the method must have `Method.single_target`.
    keeps_law: True if each token follows the method's law, wherever blocks
      begin. Otherwise a text has no single probability.
    draws_tokens: True if a token is drawn at each position; each then gets
      `processing.uniforms_per_token` uniform numbers instead of one per draft.
    blocks: 'module:function' that enumerates all blocks with probabilities, for
      `proof.enumeration`. None for the others, which it knows.
    pattern: An example of a name with an argument, for error texts.
    shortest: The name with the argument for the shortest blocks, which audits
      use; empty if the name alone suffices.
    parse: Parses the text after the colon, '' without one, to the argument;
      raises ValueError for other texts. None if the name takes no argument.
    refuse: Called as refuse(argument, gamma); returns in a few words why
      blocks of gamma drafts are not supported, or None.
  """

  decide: str
  any_drafts: bool = False
  single_target: bool = False
  keeps_law: bool = True
  draws_tokens: bool = False
  blocks: str | None = None
  pattern: str = ''
  shortest: str = ''
  parse: Callable[[str], Any] | None = None
  refuse: Callable[[Any, int], str | None] | None = None


def _window(argument: str) -> int:
  return arguments.integer('window', arguments.parse_count(argument or '4'), 2)


def _refuse_window(window: int, gamma: int) -> str | None:
  if window <= gamma:
    return None
  return (
    f'accepts a draft leniently only if {window - 1} more follow in its block,'
    f' but gamma is {gamma}; raise gamma to {window}, or give a smaller number'
  )


VERIFICATIONS: Registry[Verification] = Registry('verification', Verification)
for _name, _entry in {
  'token': Verification(decide='cascades.verification.single_draft:token'),
  'block': Verification(
    decide='cascades.verification.single_draft:block', single_target=True
  ),
  **{
    name: Verification(
      decide=f'cascades.verification.{module}:{name}',
      any_drafts=True,
      single_target=True,
      draws_tokens=name == 'match',
    )
    for name, module in zip(
      MULTI_DRAFT, (*['multi_draft'] * 3, 'traversal'), strict=True
    )
  },
  'look_ahead': Verification(
    decide='cascades.verification.look_ahead:look_ahead',
    blocks='cascades.proof.enumeration:look_ahead_blocks',
    keeps_law=False,
    pattern='look_ahead:4',
    shortest='look_ahead:2',
    parse=_window,
    refuse=_refuse_window,
  ),
}.items():
  VERIFICATIONS.register(_name, _entry, builtin=True)


@dataclasses.dataclass(frozen=True)
class VerificationConfig:
  """The verification of blocks; recorded with every result."""

  verification: str = 'token'
  gate: str = 'raw'
  bonus: str = 'target'

  def __post_init__(self):
    for name, values in ('gate', GATES), ('bonus', BONUSES):
      value = getattr(self, name)
      if not isinstance(value, str) or value not in values:
        raise ValueError(
          f'{name}: {arguments.quote(value)} is not known; choose from'
          f' {", ".join(values)}.'
        )
    # Raises if the name is unknown or its argument is wrong.
    _ = self.argument

  @property
  def kind(self) -> Verification:
    """The entry of the verification's name."""
    return VERIFICATIONS.find(self.verification)[0]

  @property
  def argument(self) -> Any:
    """The verification's argument; None if it takes none."""
    kind, text = VERIFICATIONS.find(self.verification)
    if kind.parse is None:
      if ':' in self.verification:
        raise ValueError(
          f'verification: {arguments.quote(self.verification)} is not known;'
          f' write {split(self.verification)[0]!r}, which takes no argument.'
        )
      return None
    try:
      return kind.parse(text)
    except ValueError:
      raise ValueError(
        f'verification: {arguments.quote(self.verification)} is not known;'
        f' write {kind.pattern!r}.'
      ) from None

  @property
  def decide(self) -> Callable:
    """The function that verifies a block, with the argument if there is one."""
    decide = pkgutil.resolve_name(self.kind.decide)
    if self.kind.parse is None:
      return decide
    return functools.partial(decide, argument=self.argument)

  def check(self, method: Any, drafts: int = 1) -> None:
    """Refuses a method that cannot be verified this way."""
    if self.kind.single_target and not method.single_target:
      raise ValueError(
        f'verification: {self.verification!r} needs a method with a single'
        f" target, and {method.name} has a target per token; take 'token'."
      )
    if drafts > 1 and not self.kind.any_drafts:
      raise ValueError(
        f'verification: {self.verification!r} verifies one draft per block, got'
        f' drafts {drafts}; take {", ".join(MULTI_DRAFT)}, or 1 draft.'
      )


# Token verification, with raw gates and the bonus token from the target.
STANDARD = VerificationConfig()
