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
1967). The sets are those that typical faults favour or avoid. A significant
deviation is a lower bound of the mean total variation between a token and its
law; there is no upper bound, since a trace shows each context once.
"""

import collections
import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cascades import arguments, files, methods
from cascades.contrib.engine_audits import engines
from cascades.files import Count, FailFast, NotNegative, Schema, plain

# Largest deviation of a sum of probabilities from 1; float16 and printed digits
# are rounded.
_SUM = 2e-3
# Confidence of all bounds together.
_CONFIDENCE = 0.999
# A token is improbable below this multiple of the largest probability.
_IMPROBABLE = 0.2
# Sets of tokens: that which has the unlisted ones, that which needs q; and all.
_UNLIKELY, _FAVOURED = 'unlikely tokens', "the drafter's favourites"
_NUM_SETS = 3


class _Probs(NamedTuple):
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


class _Block(NamedTuple):
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
    spread: Largest difference of the two in a lossless engine.
    worst: Line and id of the token that contributes most to the difference.
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
    impossible: Line and id of the first five tokens that the law rules out.
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
    fields = dataclasses.asdict(self)
    return plain({'passed': self.passed, 'low': self.low} | fields)

  def __str__(self) -> str:
    text = (
      f'{self.rule} at lenience {self.lenience:g}, {self.tokens} tokens of'
      f' {self.blocks} blocks: {"passed" if self.passed else "FAILED"}\n'
      f'  total variation of a token at least {self.low:.4f}, with confidence'
      f' {self.confidence:g}'
    )
    for drift in self.drifts:
      text += (
        f'\n  {drift.kind}: {drift.share:.4f} of {drift.tokens} tokens,'
        f' declared {drift.declared:.4f} +-{drift.spread:.4f}'
      )
      if drift.bias and drift.worst:
        line, token = drift.worst
        text += f'; mostly token {token}, first in line {line}'
    for line, token in self.impossible:
      text += f'\n  line {line} emits token {token}, of probability 0'
    return text


class _Fields(Schema):
  """The fields of a line."""

  q: list[Any]
  p: list[Any]
  drafts: Annotated[list[Count], FailFast]
  tokens: Annotated[list[Count], FailFast]


class _Listed(Schema):
  """A distribution of the most probable tokens."""

  tokens: Annotated[list[Count], FailFast]
  probs: Annotated[list[NotNegative], FailFast]
  rest: NotNegative


def read(path: str | pathlib.Path) -> Iterator[_Block]:
  """Yields the blocks of a trace, the format of the module's docstring.

  Raises:
    ValueError: The file is absent, or a line is not a block; names the line.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'trace: there is no file {path}; give a file of blocks.')

  def refuse(number: int, reason: object) -> ValueError:
    return ValueError(f'trace: {path}, line {number}: {reason}.')

  for number, line in enumerate(files.read_lines(path, refuse), 1):
    if not line.isspace():
      try:
        yield _block(number, line)
      except ValueError as e:
        raise refuse(number, e) from None


def _block(number: int, line: bytes | bytearray) -> _Block:
  """Parses one line of a trace."""
  fields = _Fields.parse(files.parse_json(line))
  drafts, tokens = fields.drafts, fields.tokens
  q, p = ([_probs(x) for x in rows] for rows in (fields.q, fields.p))
  if len(p) != len(drafts) + 1 or len(q) not in (len(drafts), len(p)):
    raise ValueError(
      f'{len(drafts)} drafts need as many distributions in q, or one more as in'
      f' p, got {len(q)} and {len(p)}'
    )
  count = len(tokens) - 1
  if not 0 <= count <= len(drafts) or tokens[:count] != drafts[:count]:
    raise ValueError(
      'tokens must be the first drafts and one more token, got'
      f' {arguments.quote(tokens)} for the drafts {arguments.quote(drafts)}'
    )
  for i, token in enumerate(drafts):
    if q[i].prob(token) == 0:
      raise ValueError(
        f'draft {i}, token {arguments.quote(token)}, has probability 0 in q'
      )
  return _Block(number, q, p, drafts, tokens)


def _probs(value: Any) -> _Probs:
  """Parses one distribution of a line, and normalizes its sum to 1."""
  try:
    if isinstance(value, list):
      value = dict(tokens=[*range(len(value))], probs=value, rest=0.0)
    fields = _Listed.parse(value)
    tokens, probs = np.array(fields.tokens), np.array(fields.probs)
    total = probs.sum() + fields.rest
    is_distinct = 0 < len({*fields.tokens}) == len(tokens) == len(probs)
    if not is_distinct or abs(total - 1) > _SUM:
      raise ValueError
  except ValueError:
    raise ValueError(
      'a distribution must be a list of probabilities, or an object of distinct'
      ' tokens, their probs, and rest; none negative, of the sum 1'
    ) from None
  return _Probs(tokens, probs / total, float(fields.rest / total))


def certify(
  path: str | pathlib.Path,
  rule: str | methods.Method = 'speed',
  lenience: float | None = None,
) -> Certificate:
  """Compares the tokens of a trace with the law of a rule; see `engines`."""
  method, lenience = engines.declared(rule, lenience)
  law = _law(method, lenience)
  counters: dict[str, _FrequencyCounter] = {}
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
      for kind, in_set in _sets(pi, q if has_every_q else None).items():
        counter = counters.setdefault(kind, _FrequencyCounter())
        rest = pi.rest if kind == _UNLIKELY else 0.0
        counter.add(block.line, token, pi, in_set, rest)
  if not tokens:
    raise ValueError(f'trace: {path} has no block; record at least one.')
  significance = (1 - _CONFIDENCE) / _NUM_SETS
  return Certificate(
    rule=method.name,
    lenience=lenience,
    blocks=blocks,
    tokens=tokens,
    drifts=tuple(x.drift(k, significance) for k, x in counters.items()),
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
    dense = (x.probs[np.argsort(x.tokens)].astype(np.float32) for x in (q, p))
    probs = np.asarray(dense_law(*dense), np.float64)
    engines.check_law(method, lenience, probs)
    return _Probs(np.sort(p.tokens), probs, 0.0)

  return law


def _sets(pi: _Probs, q: _Probs | None) -> dict[str, np.ndarray]:
  """Returns masks over the listed tokens of a law; one of them needs q."""
  max_prob = pi.probs.max()
  sets = {
    'the likeliest token': np.arange(len(pi.probs)) == np.argmax(pi.probs),
    _UNLIKELY: pi.probs < _IMPROBABLE * max_prob,
  }
  if q is not None:
    order = np.argsort(q.tokens)
    nearest = order[np.searchsorted(q.tokens[order[:-1]], pi.tokens)]
    is_favoured = q.probs[nearest] > pi.probs
    sets[_FAVOURED] = (q.tokens[nearest] == pi.tokens) & is_favoured
  return sets


class _FrequencyCounter:
  """Counts emitted tokens of a set, and sums the set's declared probability."""

  def __init__(self):
    self.count, self.hits, self.declared = 0, 0, 0.0
    # By token: its count minus its declared probability, and its first line.
    self._excess: dict[int, float] = collections.defaultdict(float)
    self._first_line: dict[int, int] = {}

  def add(
    self, line: int, token: int, pi: _Probs, in_set: np.ndarray, rest: float
  ) -> None:
    """Counts one emitted token; `rest` is the unlisted part of the set."""
    is_listed = pi.prob(token) is not None
    hit = bool(in_set[pi.tokens == token].any()) if is_listed else rest > 0
    self.count += 1
    self.hits += hit
    self.declared += float(pi.probs[in_set].sum()) + rest
    if hit:
      self._excess[token] += 1
      self._first_line.setdefault(token, line)
    for x, prob in zip(pi.tokens[in_set], pi.probs[in_set], strict=True):
      self._excess[int(x)] -= prob

  def drift(self, kind: str, significance: float) -> Drift:
    """Returns the result, with bounds at a level of significance."""
    n, worst = self.count, None
    sign = math.copysign(1, self.hits - self.declared)
    if self._first_line:
      token = max(self._first_line, key=lambda x: sign * self._excess[x])
      worst = self._first_line[token], token
    return Drift(
      kind=kind,
      tokens=n,
      share=self.hits / n,
      declared=float(self.declared) / n,
      spread=math.sqrt(math.log(2 / significance) / (2 * n)),
      worst=worst,
    )


def to_json(
  probs: Sequence[float] | np.ndarray, top_k: int | None = None
) -> list[float] | dict[str, Any]:
  """Returns probabilities of all tokens, or the most probable, for a trace."""
  probs = np.asarray(probs, np.float64)
  if top_k is None or top_k >= probs.size:
    return probs.tolist()
  tokens = np.argsort(-probs, kind='stable')[:top_k]
  rest = max(0.0, 1 - float(probs[tokens].sum()))
  return {
    'tokens': tokens.tolist(),
    'probs': probs[tokens].round(7).tolist(),
    'rest': round(rest, 7),
  }
