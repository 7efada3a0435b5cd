"""Tests whether the recorded blocks of an engine follow the law of a rule.

A trace is a file with one block per line, in JSON. A name that ends in '.gz'
means that the file is compressed with gzip.

  {"q": [distribution, ...], "p": [distribution, ...], "drafts": [ids],
   "tokens": [ids]}

  drafts  The gamma drafted token ids; empty for a model that decodes alone.
  q       The distribution that each draft was sampled from: gamma
          distributions, or gamma + 1 with the drafter's distribution after the
          last draft. Without the last, the bonus token is tested against the
          verifier's distribution.
  p       The verifier's distribution before each draft and after the last:
          gamma + 1 distributions.
  tokens  The emitted ids: the accepted drafts and one more token.

A distribution lists the probabilities of all tokens, after temperature and
truncation; or those of the most probable tokens, and the total of the others:

  {"tokens": [ids], "probs": [...], "rest": 0.02}

Each emitted token of a lossless engine follows the declared law of its
position, given the tokens before. For token sets A that depend only on the
tokens before,

  sum over emitted tokens x of  1[x in A] - law(A)

is therefore a martingale. After n tokens, a lossless engine deviates by more
than n e with a probability of at most 2 exp(-2 n e^2) (Hoeffding 1963, Azuma
1967). The sets tested are those that typical faults favour or avoid: the most
probable token, improbable tokens, and tokens that are more probable under q
than under the law. A significant deviation is a lower bound of the mean total
variation between a token and its law. There is no upper bound, since a trace
shows each context once.
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

# Largest deviation of a sum of probabilities from 1; float16 and printed digits
# are rounded.
_SUM = 2e-3
# Confidence of all bounds together.
_CONFIDENCE = 0.999
# A token is improbable below this multiple of the largest probability.
_IMPROBABLE = 0.2


@dataclasses.dataclass(frozen=True)
class _Probs:
  """Probabilities of the listed tokens of a distribution."""

  tokens: np.ndarray
  probs: np.ndarray
  rest: float

  def prob(self, token: int) -> float | None:
    """Returns the probability of a token; None if unlisted and not 0."""
    indices = np.flatnonzero(self.tokens == token)
    if len(indices):
      return float(self.probs[indices[0]])
    return None if self.rest > 0 else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Block:
  """One block of a trace; the fields are those of the file."""

  line: int
  q: list[_Probs]
  p: list[_Probs]
  drafts: list[int]
  tokens: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drift:
  """The emitted and the declared frequency of one set of tokens.

  Attributes:
    kind: Description of the set.
    tokens: Number of emitted tokens that were tested.
    share: Fraction of these tokens that are in the set.
    declared: Mean probability of the set under the law.
    spread: Largest difference between `share` and `declared` of a lossless
      engine, at the certificate's confidence.
    worst: Line and id of the token that contributes most to the difference;
      None if no token of the set was emitted.
  """

  kind: str
  tokens: int
  share: float
  declared: float
  spread: float
  worst: tuple[int, int] | None

  @property
  def bias(self) -> float:
    """Lower bound of the difference in frequency; 0 if not significant."""
    return max(0.0, abs(self.share - self.declared) - self.spread)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
  """The result of testing a trace against a rule.

  Attributes:
    rule: Name of the method.
    lenience: Lenience of the rule.
    blocks: Number of blocks.
    tokens: Number of emitted tokens.
    drifts: The result for each set of tokens.
    impossible: Line and id of the first five emitted tokens that have
      probability 0 under the law.
    impossibles: Number of all such tokens.
    confidence: Confidence of all drifts together.
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
    """Lower bound of the mean total variation between a token and its law."""
    max_bias = max((drift.bias for drift in self.drifts), default=0.0)
    return max(max_bias, self.impossibles / max(self.tokens, 1))

  @property
  def passed(self) -> bool:
    """True if no test rejects the rule."""
    return self.low == 0

  def to_dict(self) -> dict[str, Any]:
    """Returns the result with values that JSON supports."""
    return {'passed': self.passed, 'low': self.low} | plain(
      dataclasses.asdict(self)
    )

  def __str__(self) -> str:
    report = [
      f'{self.rule} at lenience {self.lenience:g}, {self.tokens} tokens of'
      f' {self.blocks} blocks: {"passed" if self.passed else "FAILED"}',
      f'  total variation of a token at least {self.low:.4f}, with confidence'
      f' {self.confidence:g}',
    ]
    for drift in self.drifts:
      text = (
        f'  {drift.kind}: {drift.share:.4f} of {drift.tokens} tokens, declared'
        f' {drift.declared:.4f} +-{drift.spread:.4f}'
      )
      if drift.bias and drift.worst:
        line, token = drift.worst
        text += f'; mostly token {token}, first in line {line}'
      report.append(text)
    for line, token in self.impossible:
      report.append(f'  line {line} emits token {token}, of probability 0')
    return '\n'.join(report)


def read(path: str | pathlib.Path) -> Iterator[_Block]:
  """Reads the blocks of a trace, one at a time.

  Args:
    path: The trace; the module's docstring describes the format.

  Raises:
    ValueError: The file is absent, or a line is not a block; names the line.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'trace: there is no file {path}; give a file of blocks.')

  def refuse(number: int, reason: object) -> ValueError:
    return ValueError(f'trace: {path}, line {number}: {reason}.')

  for number, line in enumerate(bounded.read_lines(path, refuse), 1):
    if not line.isspace():
      try:
        yield _block(number, line)
      except ValueError as e:
        raise refuse(number, e) from None


def _block(number: int, line: bytes | bytearray) -> _Block:
  """Parses one line of a trace."""
  fields = bounded.parse_json(line)
  needed = {'q', 'p', 'drafts', 'tokens'}
  if not isinstance(fields, dict) or not needed <= fields.keys():
    raise ValueError('must be an object with q, p, drafts and tokens')
  drafts, tokens = (_ids(name, fields[name]) for name in ('drafts', 'tokens'))
  for name in 'q', 'p':
    if not isinstance(fields[name], list):
      raise ValueError(f'{name} must be a list of distributions')
  q, p = ([_probs(name, x) for x in fields[name]] for name in ('q', 'p'))
  if len(p) != len(drafts) + 1 or len(q) not in (len(drafts), len(p)):
    raise ValueError(
      f'{len(drafts)} drafts need {len(drafts)} or {len(drafts) + 1}'
      f' distributions in q and {len(drafts) + 1} in p, got {len(q)} and'
      f' {len(p)}'
    )
  for i, token in enumerate(drafts):
    if q[i].prob(token) == 0:
      raise ValueError(
        f'draft {i}, token {arguments.quote(token)}, has probability 0 in q'
      )
  count = len(tokens) - 1
  if not 0 <= count <= len(drafts) or tokens[:count] != drafts[:count]:
    raise ValueError(
      'tokens must be the first drafts and one more token, got'
      f' {arguments.quote(tokens)} for the drafts {arguments.quote(drafts)}'
    )
  return _Block(line=number, q=q, p=p, drafts=drafts, tokens=tokens)


def _ids(name: str, value: Any) -> list[int]:
  """Returns a field of a line if it is a list of token ids."""
  if not isinstance(value, list) or not all(
    isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in value
  ):
    raise ValueError(f'{name} must be a list of token ids')
  return value


def _probs(name: str, value: Any) -> _Probs:
  """Parses one distribution of a line, and normalizes its sum to 1."""
  rest = 0.0
  try:
    if isinstance(value, Mapping):
      ids = _ids('tokens of a distribution', value['tokens'])
      tokens = np.array(ids, np.int64)
      probs, rest = np.array(value['probs'], np.float64), float(value['rest'])
    else:
      probs = np.array(value, np.float64)
      tokens = np.arange(probs.size)
  except (KeyError, OverflowError, TypeError, ValueError):
    raise ValueError(
      f'a distribution of {name} must be a list of probabilities or an object'
      ' with tokens, probs and rest'
    ) from None
  if probs.ndim != 1 or probs.shape != tokens.shape or not probs.size:
    raise ValueError(
      f'a distribution of {name} must have one probability for each token'
    )
  if len(set(tokens.tolist())) < len(tokens):
    raise ValueError(f'a distribution of {name} lists a token twice')
  total = probs.sum() + rest
  if not (probs >= 0).all() or rest < 0 or not abs(total - 1) <= _SUM:
    raise ValueError(
      f'a distribution of {name} must have no negative probability and the sum'
      f' 1, got the sum {total:.4f}'
    )
  return _Probs(tokens, probs / total, float(rest / total))


def certify(
  path: str | pathlib.Path,
  rule: str | methods.Method = 'speed',
  lenience: float | None = None,
) -> Certificate:
  """Compares the tokens that an engine emitted with the law of a rule.

  Args:
    path: The trace; the module's docstring describes the format.
    rule: The declared rule: a method with a single target, or its name.
    lenience: Lenience of the rule; None selects `method.strict`.

  Raises:
    ValueError: An argument is out of range, or a line is not a block.
  """
  method, lenience = engines.declared(rule, lenience)
  law = _law(method, lenience)
  counters = [_FrequencyCounter(kind) for kind in _SETS]
  impossible, blocks, tokens = [], 0, 0
  for block in read(path):
    blocks += 1
    for i, token in enumerate(block.tokens):
      tokens += 1
      q = block.q[i] if i < len(block.q) else None
      pi = law(block, i)
      if pi.prob(token) == 0:
        impossible.append((block.line, token))
      # Without q after the last draft, later positions are tested only if the
      # drafts before are accepted. A set that needs q would then depend on the
      # verification; the first position alone has no such dependence.
      has_every_q = len(block.q) == len(block.p) or i == 0
      for counter in counters:
        counter.add(block.line, token, pi, q if has_every_q else None)
  if not tokens:
    raise ValueError(f'trace: {path} has no block; record at least one.')
  significance = (1 - _CONFIDENCE) / len(_SETS)
  return Certificate(
    rule=method.name,
    lenience=lenience,
    blocks=blocks,
    tokens=tokens,
    drifts=tuple(
      counter.drift(significance) for counter in counters if counter.count
    ),
    impossible=tuple(impossible[:5]),
    impossibles=len(impossible),
    confidence=_CONFIDENCE,
  )


def _law(
  method: methods.Method, lenience: float
) -> Callable[[_Block, int], _Probs]:
  """Returns a function from a block and a position in it to the law there."""

  @jax.jit
  def dense_law(q, p):
    return method.law(methods.Distributions(q, p, q, p), jnp.asarray(lenience))

  def law(block: _Block, i: int) -> _Probs:
    p = block.p[i]
    if lenience == method.strict or i >= len(block.q):
      # At the strict lenience the law is p, and without q it is taken to be p.
      return p
    q = block.q[i]
    if p.rest or q.rest or len(p.probs) != len(q.probs):
      raise ValueError(
        f'trace: line {block.line}: the law of {method.name} needs the'
        ' probabilities of all tokens, the same number in q and p.'
      )
    order = np.argsort(q.tokens), np.argsort(p.tokens)
    dense = [
      x.probs[o].astype(np.float32) for x, o in zip((q, p), order, strict=True)
    ]
    probs = np.asarray(dense_law(*dense), np.float64)
    engines.check_law(method, lenience, probs)
    return _Probs(p.tokens[order[1]], probs, 0.0)

  return law


# --- Sets of tokens: masks [n] over the listed tokens of the law. ---


def _most_probable(pi: _Probs, q: _Probs | None) -> np.ndarray:
  """Marks the most probable token."""
  del q
  return np.arange(len(pi.probs)) == np.argmax(pi.probs)


def _improbable(pi: _Probs, q: _Probs | None) -> np.ndarray:
  """Marks the tokens that are far less probable than the most probable one."""
  del q
  return pi.probs < _IMPROBABLE * pi.probs.max()


def _favoured(pi: _Probs, q: _Probs | None) -> np.ndarray | None:
  """Marks the tokens that are more probable under q than under the law."""
  if q is None:
    return None
  order = np.argsort(q.tokens)
  nearest = order[np.searchsorted(q.tokens[order[:-1]], pi.tokens)]
  return (q.tokens[nearest] == pi.tokens) & (q.probs[nearest] > pi.probs)


_SETS: dict[str, Callable[[_Probs, _Probs | None], np.ndarray | None]] = {
  'the likeliest token': _most_probable,
  'unlikely tokens': _improbable,
  "the drafter's favourites": _favoured,
}
# Sets that contain the unlisted tokens of a distribution.
_WITH_UNLISTED = ('unlikely tokens',)


class _FrequencyCounter:
  """Counts emitted tokens of a set, and sums the set's declared probability."""

  def __init__(self, kind: str):
    self.kind, self.count, self.hits, self.declared = kind, 0, 0, 0.0
    # By token: its count minus its declared probability, and its first line.
    self._excess: dict[int, float] = {}
    self._first_line: dict[int, int] = {}

  def add(self, line: int, token: int, pi: _Probs, q: _Probs | None) -> None:
    """Counts one emitted token."""
    in_set = _SETS[self.kind](pi, q)
    if in_set is None:
      return
    has_unlisted = self.kind in _WITH_UNLISTED
    is_listed = pi.prob(token) is not None
    hit = bool(in_set[pi.tokens == token].any()) if is_listed else has_unlisted
    self.count += 1
    self.hits += hit
    self.declared += float(pi.probs[in_set].sum()) + has_unlisted * pi.rest
    if hit:
      self._excess[token] = self._excess.get(token, 0.0) + 1
      self._first_line.setdefault(token, line)
    for x, prob in zip(pi.tokens[in_set], pi.probs[in_set], strict=True):
      self._excess[int(x)] = self._excess.get(int(x), 0.0) - prob

  def drift(self, significance: float) -> Drift:
    """Returns the result, with bounds at a level of significance."""
    n = self.count
    sign = math.copysign(1, self.hits - self.declared)
    worst = None
    if self._first_line:
      token = max(self._first_line, key=lambda x: sign * self._excess[x])
      worst = self._first_line[token], token
    return Drift(
      kind=self.kind,
      tokens=n,
      share=self.hits / n,
      declared=float(self.declared) / n,
      spread=math.sqrt(math.log(2 / significance) / (2 * n)),
      worst=worst,
    )


def to_json(
  probs: Sequence[float] | np.ndarray, top_k: int | None = None
) -> list[float] | dict[str, Any]:
  """Returns a distribution in the format of a trace.

  Args:
    probs: Probabilities of all tokens, [V].
    top_k: Number of most probable tokens to list; None lists all.
  """
  probs = np.asarray(probs, np.float64)
  if top_k is None or top_k >= probs.size:
    return probs.tolist()
  tokens = np.argsort(-probs, kind='stable')[:top_k]
  rest = max(0.0, 1 - float(probs[tokens].sum()))
  return {
    'tokens': tokens.tolist(),
    'probs': [round(float(x), 7) for x in probs[tokens]],
    'rest': round(rest, 7),
  }
