"""Checks whether the blocks that an engine wrote follow the law of a rule.

A trace is a file with a block a line, in JSON; packed, if it ends in '.gz':

  {"q": [row, ...], "p": [row, ...], "drafts": [ids], "tokens": [ids]}

  drafts  What was drafted, gamma of them; none where a model decodes alone.
  q       What each draft was drawn from; gamma rows, or one more: what the
          drafter would draw after the last. Without it the token after a
          whole draft is taken for the verifier's.
  p       What the verifier would draw from before each draft and after the
          last; gamma + 1 rows.
  tokens  What was emitted: drafts that stay, and one token more.

A row has the probabilities of all tokens, after temperature and truncation, or
of the likeliest only, and what the others have together:

  {"tokens": [ids], "probs": [...], "rest": 0.02}

A token that was emitted follows the declared law of its place, given the tokens
before it, whatever became of the block. So for a set A of tokens that hangs on
what stands before only,

  sum over all tokens of  1[x in A] - law(A)

is a martingale; after n tokens of a lossless engine it is within n e of 0 but
for a chance of 2 exp(-2 n e^2) (Hoeffding 1963, Azuma 1967). Sets are looked at
that faults drift to or from: the likeliest token, unlikely ones, and those that
the drafter likes more than the law does. How far one is off bounds from below
the total variation of a token from its law, on the average of the trace. No
trace bounds it from above: it shows each context once.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import arguments, methods
from cascades.contrib.engine_audits import engines
from cascades.plain import plain
from cascades.untrusted import bounded

# What rows may be off 1, as float16 and printed digits are.
_SUM = 2e-3
# How sure a bound is.
_CONFIDENCE = 0.999
# Tokens less likely than this share of the likeliest are unlikely.
_UNLIKELY = 0.2


@dataclasses.dataclass(frozen=True)
class _Row:
  """Probabilities of some tokens, and what the others have together."""

  tokens: np.ndarray
  probs: np.ndarray
  rest: float

  def of(self, token: int) -> float | None:
    """A token's probability; None of one of the others."""
    at = np.flatnonzero(self.tokens == token)
    if len(at):
      return float(self.probs[at[0]])
    return None if self.rest > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class _Block:
  """A line of a trace."""

  line: int
  q: list[_Row]
  p: list[_Row]
  drafts: list[int]
  tokens: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drift:
  """The share of emitted tokens that are of a kind, beside the declared one.

  Attributes:
    kind: Which.
    tokens: Places where it was looked at.
    share: Of them, where such a token was emitted.
    declared: What the law says of that share.
    spread: How far the two may be apart, with the certificate's confidence.
    worst: The line and the token that the share owes most to; None where it is
      not off.
  """

  kind: str
  tokens: int
  share: float
  declared: float
  spread: float
  worst: tuple[int, int] | None

  @property
  def bias(self) -> float:
    """By how much the kind is off, less what chance may do."""
    return max(0.0, abs(self.share - self.declared) - self.spread)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
  """Bounds, from a trace, on how far an engine is from a rule.

  Attributes:
    rule: A method's name.
    lenience: What was asked at.
    blocks: Lines.
    tokens: Tokens that they emitted.
    drifts: Of each kind.
    impossible: Lines and tokens that the law cannot emit, the first few.
    impossibles: How many there are.
    confidence: How sure the spreads are, all of them together.
  """

  rule: str
  lenience: float
  blocks: int
  tokens: int
  drifts: tuple[Drift, ...]
  impossible: tuple[tuple[int, int], ...]
  impossibles: int
  confidence: float

  @property
  def low(self) -> float:
    """Mean total variation of a token from its law: no less than this."""
    most = max((drift.bias for drift in self.drifts), default=0.0)
    return max(most, self.impossibles / max(self.tokens, 1))

  @property
  def passed(self) -> bool:
    """True if no test tells the engine from the rule."""
    return self.low == 0

  def to_dict(self) -> dict[str, Any]:
    """Returns the result as JSON can hold it."""
    return {'passed': self.passed, 'low': self.low} | plain(
      dataclasses.asdict(self)
    )

  def __str__(self) -> str:
    lines = [
      f'{self.rule} at lenience {self.lenience:g}, {self.tokens} tokens of'
      f' {self.blocks} blocks: {"passed" if self.passed else "FAILED"}',
      f'  total variation of a token at least {self.low:.4f}, with confidence'
      f' {self.confidence:g}',
    ]
    for drift in self.drifts:
      said = (
        f'  {drift.kind}: {drift.share:.4f} of {drift.tokens} tokens, the law'
        f' has {drift.declared:.4f}, by chance +-{drift.spread:.4f}'
      )
      if drift.bias and drift.worst:
        line, token = drift.worst
        said += f'; above all token {token}, first in line {line}'
      lines.append(said)
    for line, token in self.impossible:
      lines.append(f'  line {line} emits token {token}, which has no chance')
    return '\n'.join(lines)


def read(path: str | pathlib.Path) -> Iterator[_Block]:
  """Blocks of a trace, one at a time.

  Raises:
    ValueError: There is no such file, or a line is no block; says which.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'trace: there is no file {path}.')

  def refuse(number: int, why: object) -> ValueError:
    return ValueError(f'trace: {path}, line {number}: {why}.')

  for number, line in enumerate(bounded.read_lines(path, refuse), 1):
    if not line.isspace():
      try:
        yield _block(number, line)
      except ValueError as e:
        raise refuse(number, e) from None


def _block(number: int, line: bytes | bytearray) -> _Block:
  said = bounded.parse_json(line)
  needed = {'q', 'p', 'drafts', 'tokens'}
  if not isinstance(said, dict) or not needed <= said.keys():
    raise ValueError('it has to be an object with q, p, drafts and tokens')
  drafts, tokens = (_ids(name, said[name]) for name in ('drafts', 'tokens'))
  for name in 'q', 'p':
    if not isinstance(said[name], list):
      raise ValueError(f'{name} has to be a list of rows')
  q, p = ([_row(name, row) for row in said[name]] for name in ('q', 'p'))
  if len(p) != len(drafts) + 1 or len(q) not in (len(drafts), len(p)):
    raise ValueError(
      f'{len(drafts)} drafts want as many rows of q, or one more, and one more'
      f' of p; there are {len(q)} and {len(p)}'
    )
  for i, token in enumerate(drafts):
    if q[i].of(token) == 0:
      raise ValueError(
        f'draft {i}, token {arguments.quote(token)}, has no chance in its q'
      )
  count = len(tokens) - 1
  if not 0 <= count <= len(drafts) or tokens[:count] != drafts[:count]:
    raise ValueError(
      f'{arguments.quote(tokens)} are no drafts of {arguments.quote(drafts)}'
      ' from the first on and one token more'
    )
  return _Block(number, q, p, drafts, tokens)


def _ids(name: str, said: Any) -> list[int]:
  whole = isinstance(said, list) and all(
    isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in said
  )
  if not whole:
    raise ValueError(f'{name} has to be a list of token ids')
  return said


def _row(name: str, said: Any) -> _Row:
  rest = 0.0
  try:
    if isinstance(said, Mapping):
      tokens = np.array(_ids('tokens of a row', said['tokens']), np.int64)
      probs, rest = np.array(said['probs'], np.float64), float(said['rest'])
    else:
      probs = np.array(said, np.float64)
      tokens = np.arange(probs.size)
  except (KeyError, OverflowError, TypeError, ValueError):
    raise ValueError(
      f'a row of {name} is neither a list of probabilities nor an object with'
      ' tokens, probs and rest'
    ) from None
  if probs.ndim != 1 or probs.shape != tokens.shape or not probs.size:
    raise ValueError(f'a row of {name} has not a probability for each token')
  if len(set(tokens.tolist())) < len(tokens):
    raise ValueError(f'a row of {name} has a token twice')
  total = probs.sum() + rest
  if not (probs >= 0).all() or rest < 0 or not abs(total - 1) <= _SUM:
    raise ValueError(f'a row of {name} sums to {total:.4f}, not to 1')
  return _Row(tokens, probs / total, float(rest / total))


def certify(
  path: str | pathlib.Path,
  rule: str | methods.Method = 'speed',
  lenience: float | None = None,
) -> Certificate:
  """Compares what an engine emitted with a rule.

  Args:
    path: A trace; see the module.
    rule: The declared one: a method that has one target, or its name.
    lenience: Of the rule; None for the one at which it is strict.

  Raises:
    ValueError: An argument is out of its range, or a line is damaged.
  """
  method, lenience = engines.declared(rule, lenience)
  law = _laws(method, lenience)
  kinds = {kind: _Tally(kind) for kind in _KINDS}
  impossible, blocks, tokens = [], 0, 0
  for block in read(path):
    blocks += 1
    for i, token in enumerate(block.tokens):
      tokens += 1
      q = block.q[i] if i < len(block.q) else None
      pi = law(block, i)
      if pi.of(token) == 0:
        impossible.append((block.line, token))
      for tally in kinds.values():
        # Where there may be no q, it must not hang on how far blocks go.
        whole = len(block.q) == len(block.p) or i == 0
        tally.add(block.line, token, pi, q if whole else None)
  if not tokens:
    raise ValueError(f'trace: {path} has no block.')
  wrong = (1 - _CONFIDENCE) / len(_KINDS)
  return Certificate(
    rule=method.name,
    lenience=lenience,
    blocks=blocks,
    tokens=tokens,
    drifts=tuple(tally.drift(wrong) for tally in kinds.values() if tally.count),
    impossible=tuple(impossible[:5]),
    impossibles=len(impossible),
    confidence=_CONFIDENCE,
  )


def _laws(
  method: methods.Method, lenience: float
) -> Callable[[_Block, int], _Row]:
  """The law of a token of a block."""

  @jax.jit
  def said(q, p):
    return method.law(methods.Distributions(q, p, q, p), jnp.asarray(lenience))

  def law(block: _Block, i: int) -> _Row:
    p = block.p[i]
    if lenience == method.strict or i >= len(block.q):
      # Strict, or nothing is known of q: the verifier's.
      return p
    q = block.q[i]
    if p.rest or q.rest or len(p.probs) != len(q.probs):
      raise ValueError(
        f'trace: line {block.line}: the law of {method.name} wants rows of all'
        ' tokens, and as many in q and p.'
      )
    order = np.argsort(q.tokens), np.argsort(p.tokens)
    rows = [
      x.probs[o].astype(np.float32) for x, o in zip((q, p), order, strict=True)
    ]
    return _Row(p.tokens[order[1]], np.asarray(said(*rows), np.float64), 0.0)

  return law


# --- Kinds of tokens.


def _likeliest(pi: _Row, q: _Row | None) -> np.ndarray:
  """The likeliest token."""
  del q
  return np.arange(len(pi.probs)) == np.argmax(pi.probs)


def _unlikely(pi: _Row, q: _Row | None) -> np.ndarray:
  """Marks the tokens that are far less likely than the likeliest."""
  del q
  return pi.probs < _UNLIKELY * pi.probs.max()


def _favoured(pi: _Row, q: _Row | None) -> np.ndarray | None:
  """Returns tokens that are more probable for the drafter than in the law."""
  if q is None:
    return None
  of_q = np.array([q.of(token) or 0.0 for token in pi.tokens.tolist()])
  return of_q > pi.probs


_KINDS: dict[str, Callable[[_Row, _Row | None], np.ndarray | None]] = {
  'the likeliest token': _likeliest,
  'unlikely tokens': _unlikely,
  "the drafter's favourites": _favoured,
}
# Kinds that the tokens which are not listed belong to.
_OF_OTHERS = ('unlikely tokens',)


class _Tally:
  """Counts how often tokens of a kind were emitted, and how often declared."""

  def __init__(self, kind: str):
    self.kind, self.count, self.hits, self.declared = kind, 0, 0, 0.0
    # Of each token, how much more often than declared; and where it was first.
    self._more: dict[int, float] = {}
    self._line: dict[int, int] = {}

  def add(self, line: int, token: int, pi: _Row, q: _Row | None) -> None:
    """A token that was emitted."""
    inside = _KINDS[self.kind](pi, q)
    if inside is None:
      return
    others = self.kind in _OF_OTHERS
    listed = pi.of(token) is not None
    hit = bool(inside[pi.tokens == token].any()) if listed else others
    self.count += 1
    self.hits += hit
    self.declared += float(pi.probs[inside].sum()) + others * pi.rest
    if hit:
      self._more[token] = self._more.get(token, 0.0) + 1
      self._line.setdefault(token, line)
    for x, prob in zip(pi.tokens[inside], pi.probs[inside], strict=True):
      self._more[int(x)] = self._more.get(int(x), 0.0) - prob

  def drift(self, wrong: float) -> Drift:
    """Returns the verdict at a level of significance."""
    n = self.count
    off = self.hits - self.declared
    worst = None
    if self._line:
      token = max(
        self._line, key=lambda x: math.copysign(1, off) * self._more[x]
      )
      worst = self._line[token], token
    return Drift(
      kind=self.kind,
      tokens=n,
      share=self.hits / n,
      declared=float(self.declared) / n,
      spread=math.sqrt(math.log(2 / wrong) / (2 * n)),
      worst=worst,
    )


def row(probs: Sequence[float] | np.ndarray, most: int | None = None) -> Any:
  """Probabilities as a row of a trace; of the likeliest only, if so asked."""
  probs = np.asarray(probs, np.float64)
  if most is None or most >= probs.size:
    return probs.tolist()
  tokens = np.argsort(-probs, kind='stable')[:most]
  rest = max(0.0, 1 - float(probs[tokens].sum()))
  return {
    'tokens': tokens.tolist(),
    'probs': [round(float(x), 7) for x in probs[tokens]],
    'rest': round(rest, 7),
  }
