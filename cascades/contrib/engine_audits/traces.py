"""Tests whether the recorded tokens of an engine follow the law of a rule.

A trace is a file with one block per line, in JSON; of gzip if it ends in '.gz'.

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

With token verification of one draft per block, the sources of tokens are tested
as well, by `sampled.check_sources`. A trace of answers has sources alone:

  {"prompt": text, "ids": [ids], "sources": ["draft", "residual", "bonus", ...]}

  prompt   A text, or "prompt_ids": [ids].
  sources  "draft" or 1 for an accepted draft, "residual" or 2 for a token in
           place of a rejected one, "bonus" or 3 for a token without a draft.
  w        Without the models: the probability that the emitted token is an
           accepted draft, q a / pi; null for a bonus token.
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
import pydantic

from cascades import arguments, files, methods
from cascades.contrib.engine_audits import engines
from cascades.files import Count, FailFast, NotNegative, Schema, plain
from cascades.proof.sampled import SourceCheck, check_sources
from cascades.sampler import sampler, scoring
from cascades.verification.single_draft import value_at_token
from cascades.verification_config import BONUS, DRAFT, RESIDUAL, SOURCES

# Largest deviation of a sum of probabilities from 1; float16 and printed digits
# are rounded.
_SUM = 2e-3
# Confidence of all bounds together, and the number of sets of tokens.
_CONFIDENCE, _NUM_SETS = 0.999, 3
# A token is improbable below this multiple of the largest probability.
_IMPROBABLE = 0.2


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
    sources: The test of sources; None if no token has a known w.
  """

  rule: str
  lenience: float
  blocks: int
  tokens: int
  drifts: tuple[Drift, ...]
  impossible: tuple[tuple[int, int], ...]
  impossibles: int
  confidence: float
  sources: SourceCheck | None

  @property
  def low(self) -> float:
    """Lower bound of the mean total variation between a token and its law."""
    biases = [drift.bias for drift in self.drifts]
    return max([self.impossibles / self.tokens, *biases])

  @property
  def passed(self) -> bool:
    """True if no test rejects the rule."""
    return self.low == 0 and (not self.sources or self.sources.passed)

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
    if self.sources:
      text += '\n  ' + str(self.sources).replace('\n', '\n  ')
    return text


class _Listed(Schema):
  """A distribution of the most probable tokens."""

  tokens: Annotated[list[Count], FailFast]
  probs: Annotated[list[NotNegative], FailFast]
  rest: NotNegative


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
      'must be a list of probabilities, or an object of distinct tokens, their'
      ' probs, and rest; none negative, of the sum 1'
    ) from None
  return _Probs(tokens, probs / total, float(fields.rest / total))


_Row = Annotated[Any, pydantic.AfterValidator(_probs)]


class _Block(Schema):
  """The fields of a line that is a block."""

  q: Annotated[list[_Row], FailFast]
  p: Annotated[list[_Row], FailFast]
  drafts: Annotated[list[Count], FailFast]
  tokens: Annotated[list[Count], FailFast]


def _block(line: bytearray) -> _Block:
  """Parses a line that is a block."""
  block = _Block.parse(files.parse_json(line))
  q, p, drafts, tokens = block.q, block.p, block.drafts, block.tokens
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
      raise ValueError(f'draft {i} has probability 0 in q')
  return block


_Source = Annotated[
  Any,
  files.one_of(DRAFT, RESIDUAL, BONUS, *SOURCES[DRAFT:]),
  pydantic.AfterValidator(lambda x: x if x in range(4) else SOURCES.index(x)),
]


class _Answer(Schema):
  """The fields of a line that is an answer."""

  prompt: str | None = None
  prompt_ids: Annotated[list[Count], FailFast] | None = None
  ids: Annotated[list[Count], FailFast]
  sources: Annotated[list[_Source], FailFast]
  w: list[Annotated[float, pydantic.Field(ge=0, le=1)] | None] | None = None


def _answer(line: bytearray, has_models: bool) -> _Answer:
  """Parses a line that is an answer; without the models it needs w."""
  answer = _Answer.parse(files.parse_json(line))
  w = [0.0] * len(answer.ids) if answer.w is None else answer.w
  lengths = [len(x) for x in (answer.ids, answer.sources, w)]
  if len({*lengths}) > 1:
    raise ValueError(f'ids, sources and w must have one length, got {lengths}')
  if has_models and answer.prompt is answer.prompt_ids:
    raise ValueError('prompt is missing; give it, or prompt_ids')
  examined = [x for x, i in zip(w, answer.sources, strict=True) if i != BONUS]
  if not has_models and (answer.w is None or None in examined):
    raise ValueError('w is missing; give it, or the verifier and the drafter')
  return answer


def read(
  path: str | pathlib.Path, parse: Callable[[bytearray], Any] = _block
) -> Iterator[tuple[int, Any]]:
  """Yields lines' numbers, and what `parse` returns; errors name the line."""
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'trace: there is no file {path}; give a file of blocks.')

  def refuse(number: int, reason: object) -> ValueError:
    return ValueError(f'trace: {path}, line {number}: {reason}.')

  for number, line in enumerate(files.read_lines(path, refuse), 1):
    if not line.isspace():
      try:
        yield number, parse(line)
      except ValueError as e:
        raise refuse(number, e) from None


def has_answers(path: str | pathlib.Path) -> bool:
  """Returns True if the lines of a trace are answers, not blocks."""
  return next(read(path, lambda line: b'"sources"' in line), (0, False))[1]


def certify(
  path: str | pathlib.Path,
  rule: str | methods.Method = 'speed',
  lenience: float | None = None,
  verification: str = 'token',
) -> Certificate:
  """Compares the blocks of a trace with the law of a rule; see `engines`.

  Sources are tested if the engine's verification is 'token'.
  """
  method, lenience = engines.declared(rule, lenience)
  law = _law(method, lenience)
  counters = collections.defaultdict(_FrequencyCounter)
  impossible, examined, blocks, tokens = [], [], 0, 0
  for line, block in read(path):
    blocks += 1
    tokens += len(block.tokens)
    for i, token in enumerate(block.tokens):
      q = block.q[i] if i < len(block.q) else None
      pi, w = law(line, q, block.p[i], token)
      if pi.prob(token) == 0:
        impossible.append((line, token))
      elif i < len(block.drafts) and w is not None:
        # The last token, too, if the answer ended with an accepted draft.
        examined.append((w, token == block.drafts[i]))
      # Without q after the last draft, later positions are tested only if the
      # drafts before are accepted. A set that needs q would then depend on the
      # verification; the first position alone has no such dependence.
      has_every_q = len(block.q) == len(block.p) or i == 0
      for kind, in_set, rest in _sets(pi, q if has_every_q else None):
        counters[kind].add(line, token, pi, in_set, rest)
  if not tokens:
    raise ValueError(f'trace: {path} has no block; record at least one.')
  significance = (1 - _CONFIDENCE) / _NUM_SETS
  is_tested = examined and verification == 'token'
  return Certificate(
    rule=method.name,
    lenience=lenience,
    blocks=blocks,
    tokens=tokens,
    drifts=tuple(x.drift(k, significance) for k, x in counters.items()),
    impossible=tuple(impossible[:5]),
    impossibles=len(impossible),
    confidence=_CONFIDENCE,
    sources=check_sources(*np.transpose(examined)) if is_tested else None,
  )


def check_answers(
  path: str | pathlib.Path, decoder: sampler.Sampler | None = None
) -> SourceCheck:
  """Tests the sources of a trace of answers; see `sampled.check_sources`.

  Args:
    path: The trace.
    decoder: Computes w, by the engine's options and models; the drafter is a
      language model. None takes w from the trace.
  """
  answers = [x for _, x in read(path, lambda x: _answer(x, bool(decoder)))]
  sources = np.array([i for x in answers for i in x.sources])
  accepted, examined = sources == DRAFT, sources != BONUS
  if not examined.any():
    raise ValueError(f'trace: {path} has no draft; record at least one.')
  if decoder:
    target = scoring.explained_target(decoder)
    if len(target.models) < 2:
      raise ValueError('drafter: must be a language model; give one, or w.')
    requests = [
      (x.prompt_ids or decoder.encode(x.prompt or ''), x.ids) for x in answers
    ]
    _, w = scoring.map_tokens(decoder, requests, _source_probs, target)
  else:
    w = np.array([y for x in answers for y in x.w], float)
  # A token of probability 0 contradicts either source.
  w = np.where(np.isnan(w), ~accepted, w)
  return check_sources(w[examined], accepted[examined])


def _source_probs(method, d, lenience, token):
  """Returns pi of a token, and w, which is nan if pi is 0."""
  pi = method.law(d, lenience)[token]
  acceptance = value_at_token(method.acceptance, d, lenience, token)
  return pi, jnp.where(pi > 0, d.q[token] * acceptance / pi, jnp.nan)


def _law(
  method: methods.Method, lenience: float
) -> Callable[..., tuple[_Probs, float | None]]:
  """Returns a function to a position's law, and w of its token if known."""

  @jax.jit
  def dense_law(q, p):
    d, lam = methods.Distributions(q, p, q, p), jnp.asarray(lenience)
    a, law = method.acceptance(d, lam), method.law(d, lam)
    # Some residuals draw a rejected draft again.
    return law, q * (a + (1 - a) * method.residual(d, lam))

  def law(line: int, q: _Probs | None, p: _Probs, token: int):
    # At the strict lenience the law is p, and without q it is taken to be p.
    pi, joint = p, q
    if lenience != method.strict and q:
      if p.rest or q.rest or len(p.probs) != len(q.probs):
        raise ValueError(
          f'trace: line {line}: the law of {method.name} needs the'
          ' probabilities of all tokens, the same number in q and p.'
        )
      dense = [x.probs[np.argsort(x.tokens)].astype(np.float32) for x in (q, p)]
      laws = np.asarray(dense_law(*dense), np.float64)
      engines.check_law(method, lenience, laws[0])
      pi, joint = (_Probs(np.sort(p.tokens), x, 0.0) for x in laws)
    prob, draft_prob = pi.prob(token), joint.prob(token) if joint else None
    return pi, draft_prob / prob if prob and draft_prob is not None else None

  return law


def _sets(
  pi: _Probs, q: _Probs | None
) -> Iterator[tuple[str, np.ndarray, float]]:
  """Yields sets: masks of the law's listed tokens, and the unlisted part."""
  yield 'the likeliest token', np.arange(len(pi.probs)) == pi.probs.argmax(), 0
  yield 'unlikely tokens', pi.probs < _IMPROBABLE * pi.probs.max(), pi.rest
  if q is not None:
    order = np.argsort(q.tokens)
    nearest = order[np.searchsorted(q.tokens[order[:-1]], pi.tokens)]
    in_set = (q.tokens[nearest] == pi.tokens) & (q.probs[nearest] > pi.probs)
    yield "the drafter's favourites", in_set, 0


class _FrequencyCounter:
  """Counts emitted tokens of a set, and sums the set's declared probability."""

  def __init__(self):
    self.count, self.hits, self.declared = 0, 0, 0.0
    # By token: its count minus its declared probability; its first line and id.
    self._excess: dict[int, float] = collections.defaultdict(float)
    self._line: dict[int, tuple[int, int]] = {}

  def add(
    self, line: int, token: int, pi: _Probs, in_set: np.ndarray, rest: float
  ) -> None:
    """Counts one emitted token; `rest` is the unlisted part of the set."""
    mask = in_set[pi.tokens == token]
    hit = bool(mask.any() if len(mask) else rest > 0)
    self.count += 1
    self.hits += hit
    self.declared += float(pi.probs[in_set].sum()) + rest
    if hit:
      self._excess[token] += 1
      self._line.setdefault(token, (line, token))
    for x, prob in zip(pi.tokens[in_set], pi.probs[in_set], strict=True):
      self._excess[int(x)] -= prob

  def drift(self, kind: str, significance: float) -> Drift:
    """Returns the result, with bounds at a level of significance."""
    n, sign = self.count, math.copysign(1, self.hits - self.declared)
    worst = max(
      self._line.values(), key=lambda x: sign * self._excess[x[1]], default=None
    )
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
  probs = probs[tokens].round(7)
  rest = max(0.0, round(1 - float(probs.sum()), 7))
  return dict(tokens=tokens.tolist(), probs=probs.tolist(), rest=rest)
