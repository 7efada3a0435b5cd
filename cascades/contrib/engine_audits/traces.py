"""Tests whether the recorded tokens of an engine follow the law of a rule.

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
    max_bias = max((drift.bias for drift in self.drifts), default=0.0)
    return max(max_bias, self.impossibles / max(self.tokens, 1))

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


class _Fields(Schema):
  """The fields of a line."""

  q: list[Any]
  p: list[Any]
  drafts: Annotated[list[Count], FailFast]
  tokens: Annotated[list[Count], FailFast]


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


class _Listed(Schema):
  """A distribution of the most probable tokens."""

  tokens: Annotated[list[Count], FailFast]
  probs: Annotated[list[NotNegative], FailFast]
  rest: NotNegative


def _block(number: int, line: bytearray) -> _Block:
  """Parses a line that is a block."""
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


def _answer(line: bytearray, has_models: bool = True) -> _Answer:
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


def read(
  path: str | pathlib.Path,
  parse: Callable[[int, bytearray], Any] = _block,
) -> Iterator[Any]:
  """Yields the lines of a trace, by default of blocks, as `parse` returns them.

  Raises:
    ValueError: The file is absent, or a line is not as described; names it.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'trace: there is no file {path}; give a file of blocks.')

  def refuse(number: int, reason: object) -> ValueError:
    return ValueError(f'trace: {path}, line {number}: {reason}.')

  for number, line in enumerate(files.read_lines(path, refuse), 1):
    if not line.isspace():
      try:
        yield parse(number, line)
      except ValueError as e:
        raise refuse(number, e) from None


def has_answers(path: str | pathlib.Path) -> bool:
  """Returns True if the lines of a trace are answers, not blocks."""
  return next(read(path, lambda _, line: b'"sources"' in line), False)


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
  law, is_token = _law(method, lenience), verification == 'token'
  counters: dict[str, _FrequencyCounter] = {}
  impossible, blocks, tokens, w, accepted = [], 0, 0, [], []
  for block in read(path):
    blocks += 1
    for i, token in enumerate(block.tokens):
      tokens += 1
      q = block.q[i] if i < len(block.q) else None
      pi, token_w = law(block, i)
      if pi.prob(token) == 0:
        impossible.append((block.line, token))
      elif is_token and i < len(block.drafts) and token_w is not None:
        # The last token, too, if the answer ended with an accepted draft.
        w.append(token_w)
        accepted.append(token == block.drafts[i])
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
    sources=check_sources(w, accepted) if w else None,
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
  answers = [*read(path, lambda _, line: _answer(line, bool(decoder)))]
  if not any({DRAFT, RESIDUAL} & {*x.sources} for x in answers):
    raise ValueError(f'trace: {path} has no draft; record at least one.')
  if decoder:
    target = scoring.explained_target(decoder)
    if len(target.models) < 2:
      raise ValueError('drafter: must be a language model; give one, or w.')
    requests = [
      (x.prompt_ids or decoder.encode(x.prompt or ''), x.ids) for x in answers
    ]
    results = scoring.map_tokens(decoder, requests, _source_probs, target)
  else:
    results = [(np.ones(len(x.ids)), np.array(x.w, float)) for x in answers]
  pi, w = (np.concatenate(x) for x in zip(*results, strict=True))
  sources = np.concatenate([np.array(x.sources, int) for x in answers])
  # A token of probability 0 contradicts either source.
  w = np.where(pi > 0, w, sources != DRAFT)
  examined = sources != BONUS
  return check_sources(w[examined], sources[examined] == DRAFT)


def _source_probs(method, d, lenience, token):
  """Returns pi of a token, and its probability of being an accepted draft."""
  pi = method.law(d, lenience)[token]
  acceptance = value_at_token(method.acceptance, d, lenience, token)
  return pi, jnp.where(pi > 0, d.q[token] * acceptance / pi, 0)


def _law(
  method: methods.Method, lenience: float
) -> Callable[[_Block, int], tuple[_Probs, float | None]]:
  """Returns a function to a position's law, and w of its token if known."""

  @jax.jit
  def dense_law(q, p):
    d, lam = methods.Distributions(q, p, q, p), jnp.asarray(lenience)
    a, law = method.acceptance(d, lam), method.law(d, lam)
    # Some residuals draw a rejected draft again.
    return law, q * (a + (1 - a) * method.residual(d, lam))

  def law(block: _Block, i: int) -> tuple[_Probs, float | None]:
    p, token = block.p[i], block.tokens[i]
    q = block.q[i] if i < len(block.q) else None
    if lenience == method.strict or q is None:
      # At the strict lenience the law is p, and without q it is taken to be p.
      p_token, q_token = p.prob(token), q.prob(token) if q else None
      if not p_token or q_token is None:
        return p, None
      return p, min(1.0, q_token / p_token)
    if p.rest or q.rest or len(p.probs) != len(q.probs):
      raise ValueError(
        f'trace: line {block.line}: the law of {method.name} needs the'
        ' probabilities of all tokens, the same number in q and p.'
      )
    dense = [x.probs[np.argsort(x.tokens)].astype(np.float32) for x in (q, p)]
    probs, is_draft = np.asarray(dense_law(dense[0], dense[1]), np.float64)
    engines.check_law(method, lenience, probs)
    pi = _Probs(np.sort(p.tokens), probs, 0.0)
    prob, joint = pi.prob(token), pi._replace(probs=is_draft).prob(token)
    return pi, joint / prob if prob and joint is not None else None

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
