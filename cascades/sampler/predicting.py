"""Predicts every rule, lenience and gamma from one reading of given texts.

Both models read a text once, and nothing is drafted. Given the text y, with
a_t, pi_t the acceptance and the law after its first t tokens, an examined token
was an accepted draft with probability

  w_t = q_t(y_t) a_t(y_t) / pi_t(y_t),

independently along a block: Bayes' rule for equation (L) of `methods.method`.
So the block that begins at t keeps k drafts or more with probability

  K_t(k) = w_t ... w_(t+k-1)                                  with `token`,
  K_t(k) = v_k prod q / pi,  v_k = min(1, v_(k-1) pi / q)     with `block`,

k < gamma drafts and a residual token with K_t(k) - K_t(k+1), and all gamma and
a bonus token with K_t(gamma). Where blocks begin follows by recursion, and the
sum over positions is the number of calls, exactly in expectation, at any gamma.
The end of a text ends its last block; nothing behind it counts.

This needs a text that the rule itself emitted. On the verifier's text a lossy
rule has b_t = sum_x q_t(x) a_t(x) in place of w_t: right at each position, but
not along the path. Texts of the rule at some leniences show the error, which is
corrected where it exceeds two of its standard errors.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special
from jaxtyping import Array, Float, Int
from scipy.special import stdtrit

from cascades import methods
from cascades.config import DecodingConfig
from cascades.methods import processing
from cascades.sampler import sampler, scoring

# A context and the answer after it, in token ids.
Text = tuple[Sequence[int], Sequence[int]]

LENIENCES = 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95
RULES = 'speed chow opt token_v2 token_v3'.split()
# Of a larger vocabulary each model's likeliest tokens are read one by one, and
# all others as a single token.
_LIKELIEST = 512
# Positions that a rule is evaluated at together.
_CHUNK = 512
# Standard errors beyond which texts are not the verifier's, and beyond which a
# lossy rule is corrected.
_NOT_OWN, _CORRECTED = 3, 2
# Nats by which a greedy token may be less likely than another.
_NEAR_TIE = 0.1


class Point(NamedTuple):
  """A rule at a lenience and a gamma, as predicted.

  Attributes:
    method: Its name.
    lenience: Its lenience.
    gamma: Drafted tokens per block.
    basis: 'exact' (strict), 'verifier text', 'corrected' by texts of the rule,
      or 'own text'.
    tokens_per_call: Emitted tokens per verifier call.
    low: Lower end of its 95 % interval over answers.
    high: Upper end.
    acceptance_rate: Accepted per examined draft.
    acceptance: The same at each position of a block, [gamma].
    deferral_rate: Examined drafts that the rule defers; nan without a rule.
    total_variation: TV(pi, p), mean over positions; at temperature 0 the share
      of tokens that differ.
    kl: KL(pi || p) in nats, mean over positions; inf where p lacks a token.
    drafter_calls: Forward passes of the drafter per verifier call.
  """

  method: str
  lenience: float
  gamma: int
  basis: str
  tokens_per_call: float
  low: float
  high: float
  acceptance_rate: float
  acceptance: tuple[float, ...]
  deferral_rate: float
  total_variation: float
  kl: float
  drafter_calls: float


@dataclasses.dataclass(frozen=True)
class Prediction:
  """Points of all rules, leniences and gammas, and what they rest on.

  Attributes:
    points: Rule by rule, lenience by lenience, gamma by gamma.
    num_answers: Texts that were read.
    num_positions: Their tokens, context excluded.
    rest: Largest probability, mean over positions, of the tokens that were read
      as one; 0 if each was read by itself. It bounds the error of acceptance
      and of TV, but for thresholds that a rule compares it with.
    notes: Sentences that a reader must know.
  """

  points: list[Point]
  num_answers: int
  num_positions: int
  rest: float
  notes: list[str]


class _Values(NamedTuple):
  """A rule at a lenience at each position [N]; see the module."""

  q: np.ndarray
  pi: np.ndarray
  kept: np.ndarray
  acceptance: np.ndarray
  deferral: np.ndarray
  total_variation: np.ndarray
  kl: np.ndarray


class _Counts(NamedTuple):
  """Expected counts of A answers.

  Their tokens and calls, [A]; drafts that are examined and accepted by position
  in the block, [gamma, A], and those examined at each token, [L, A].
  """

  tokens: np.ndarray
  calls: np.ndarray
  examined: np.ndarray
  accepted: np.ndarray
  examined_at: np.ndarray

  def rates(self, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns log tokens per call and acceptance of the first n answers.

    With the influence of each answer: values [2], influences [2, n]; what an
    answer adds to a ratio x / y is (x - ratio y) / sum y.
    """
    accepted, examined = self.accepted.sum(0), self.examined.sum(0)
    rate = _divide(accepted[:n].sum(), examined[:n].sum())
    tokens, calls = self.tokens[:n], self.calls[:n]
    values = np.log(tokens.sum() / calls.sum()), rate
    influences = (
      tokens / tokens.sum() - calls / calls.sum(),
      _divide(accepted[:n] - rate * examined[:n], examined[:n].sum()),
    )
    return np.array(values), np.array(influences)


def predict(
  verifier: Any,
  drafter: Any,
  texts: Sequence[Text],
  *,
  rules: Mapping[str, Sequence[float]] | None = None,
  gammas: Sequence[int] = range(1, 17),
  config: DecodingConfig | None = None,
  own_texts: Mapping[tuple[str, float], Sequence[Text]] | None = None,
) -> Prediction:
  """Predicts acceptance, calls and distance to the verifier.

  Args:
    verifier: As for `Sampler`.
    drafter: As for `Sampler`.
    texts: Answers that the verifier decoded by itself.
    rules: Leniences of each method; None for `RULES` at `LENIENCES`. Strict
      decoding is always predicted.
    gammas: Drafted tokens per block.
    config: Temperature, truncation, gate, verification and batch size; its
      method, lenience and gamma are not read.
    own_texts: Answers that a method decoded at a lenience, at any gamma, by
      (method, lenience), to the first prompts of `texts` in their order.

  Raises:
    ValueError: There is no token, a text does not fit with a block after it, or
      the law depends on where blocks begin; one sentence says which.
  """
  config = DecodingConfig() if config is None else config
  rules = dict.fromkeys(RULES, LENIENCES) if rules is None else rules
  gammas, own_texts = sorted({*gammas}), own_texts or {}
  decoder = sampler.Sampler(
    verifier,
    drafter,
    config=config.replace(method='speed', lenience=0.0, gamma=max(gammas)),
  )
  _check(decoder, texts, rules, own_texts)
  trie = _Trie()
  indices = [trie.add(*text) for text in texts]
  own_indices = {
    key: [trie.add(*text) for text in of_key]
    for key, of_key in own_texts.items()
  }
  readings = _read(decoder, trie.requests)
  notes = _differences(decoder, readings, indices)
  points = []
  for name, leniences in {'speed': (), **rules}.items():
    method = methods.get_method(name)
    leniences = [float(x) for x in leniences]
    if method.name == 'speed':
      leniences = [0.0, *(x for x in leniences if x != 0)]
    points += _curve(
      decoder.config,
      method,
      leniences,
      gammas,
      readings,
      indices,
      {x: own_indices.get((name, x), []) for x in leniences},
    )
  num_positions = sum(len(tokens) for _, tokens in texts)
  rest = float(readings.rest[np.concatenate(indices)].mean())
  return Prediction(points, len(texts), num_positions, rest, notes)


def _check(decoder, texts, rules, own_texts) -> None:
  """Refuses what has no single probability of acceptance."""
  config = decoder.config
  if not any(len(tokens) for _, tokens in texts):
    raise ValueError('texts: hold no token; give answers of the verifier.')
  if config.verification not in ('token', 'block') or config.drafts > 1:
    raise ValueError(
      f'verification: {config.verification!r} with {config.drafts} drafts is'
      " not predicted; take 'token' or 'block', and 1 draft."
    )
  lossy = [
    name
    for name, leniences in rules.items()
    if not all(map(methods.get_method(name).is_strict, leniences))
  ]
  if lossy and config.bonus == 'verifier':
    raise ValueError(
      f'bonus: with verifier the law of {lossy[0]} depends on where blocks'
      ' begin; take target, or strict leniences.'
    )
  if getattr(decoder.bound_drafter.drafter, 'adaptive', False):
    raise ValueError(
      'stop_below: drafts that stop early are not predicted; give None.'
    )
  for context, tokens in itertools.chain(texts, *own_texts.values()):
    size = len(context) + len(tokens) + config.gamma + 1
    if size > config.cache_length:
      raise ValueError(
        f'gamma: a text of {len(context) + len(tokens)} tokens and a block of'
        f' {config.gamma} do not fit into cache_length {config.cache_length};'
        ' give a smaller gamma, or a larger cache_length.'
      )


class _Trie:
  """Texts whose common prefixes are read once.

  Attributes:
    requests: What is to be read: texts, but for prefixes of earlier texts.
  """

  def __init__(self):
    self.requests: list[Text] = []
    self._nodes: dict[Any, int] = {}

  def add(self, context: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """Adds a text; returns the index of the reading at each token."""
    parent: Any = tuple(context)
    indices, first_new = [], len(tokens)
    for i, token in enumerate(tokens):
      if (parent, token) not in self._nodes:
        first_new = min(first_new, i)
      parent = self._nodes.setdefault((parent, token), len(self._nodes))
      indices.append(parent)
    if first_new < len(tokens):
      request = [*context, *tokens[:first_new]], [*tokens[first_new:]]
      self.requests.append(request)
    return np.array(indices, np.intp)


class _Readings(NamedTuple):
  """Both models at N positions, over U tokens; `token` is the text's of them.

  `rest` is the larger probability of the tokens read as one, `entropy` that of
  p, `logprob` log p of the text's token, and `gap` how much the likeliest token
  of the verifier's logits exceeds it.
  """

  distributions: methods.Distributions
  token: np.ndarray
  rest: np.ndarray
  entropy: np.ndarray
  logprob: np.ndarray
  gap: np.ndarray


def _reading(method, d: methods.Distributions, lenience, token):
  """Returns what `_Readings` has of one position."""
  p_gate, size = d.p_gate, d.p.shape[-1]
  facts = (
    special.entr(d.p).sum(),
    jnp.log(d.p[token]),
    jnp.log(p_gate.max()) - jnp.log(p_gate[token]),
  )
  if size <= 2 * _LIKELIEST + 1:
    return *d, token, jnp.zeros(()), *facts
  likeliest = [jax.lax.top_k(x, _LIKELIEST)[1] for x in (p_gate, d.q_gate)]
  ids = jnp.sort(jnp.concatenate([*likeliest, token[None]]))
  # Of a token that is there twice the later is empty.
  is_first = jnp.append(True, ids[1:] != ids[:-1])

  def gather(x, empty, rest):
    outside = rest(x.at[ids].set(empty))
    return jnp.append(jnp.where(is_first, x[ids], empty), outside)

  q, p = (gather(x, 0, jnp.sum) for x in (d.q, d.p))
  # For thresholds of a rule: the likeliest token of the rest.
  gates = (gather(x, 0, jnp.max) for x in (d.q_gate, p_gate))
  p_logits = gather(d.p_logits, -jnp.inf, jnp.max)
  rest = jnp.maximum(q[-1], p[-1])
  return q, p, *gates, p_logits, jnp.searchsorted(ids, token), rest, *facts


def _read(decoder: sampler.Sampler, requests: Sequence[Text]) -> _Readings:
  """Reads texts with both models."""
  target = scoring.explained_target(decoder)
  rows = scoring.map_tokens(decoder, requests, _reading, target)
  arrays = [np.concatenate(x) for x in zip(*rows, strict=True)]
  return _Readings(methods.Distributions(*arrays[:5]), *arrays[5:])


def _differences(
  decoder: sampler.Sampler, readings: _Readings, indices: list[np.ndarray]
) -> list[str]:
  """Returns a sentence if texts are not the verifier's own answers."""
  indices = [x for x in indices if len(x)]
  if decoder.config.temperature < processing.GREEDY_BELOW:
    gaps = readings.gap[np.concatenate(indices)]
    if not (count := int((gaps > _NEAR_TIE).sum())):
      return []
    return [
      f"texts: {count} of {len(gaps)} tokens are not the verifier's likeliest;"
      ' give its own greedy answers.'
    ]
  excess = [
    (-readings.logprob[x].astype(float) - readings.entropy[x]).sum()
    for x in indices
  ]
  sizes = np.array([len(x) for x in indices])
  mean, error = _ratio(np.array(excess), sizes)
  if abs(mean) <= _NOT_OWN * error:
    return []
  return [
    f"texts: their tokens have {mean:+.3f} nats more than the verifier's"
    f' entropy (standard error {error:.3f}), so they are not its own answers at'
    f' temperature {decoder.config.temperature:g}; predictions are off.'
  ]


def _ratio(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
  """Returns sum x / sum y over answers, and its standard error."""
  ratio, n = x.sum() / y.sum(), len(x)
  if n == 1:
    return float(ratio), math.inf
  error = np.sqrt(n / (n - 1) * np.square(x - ratio * y).sum()) / abs(y.sum())
  return float(ratio), float(error)


@functools.partial(jax.jit, static_argnames='method')
def _values(
  d: methods.Distributions,
  token: Int[Array, 'N'],
  lenience: Float[Array, ''] | np.float32,
  *,
  method: methods.Method,
) -> tuple[Array, ...]:
  """Returns `_Values` of a method, [N] each."""

  def at_position(d, token):
    pi = method.law(d, lenience)
    accepted = d.q * method.acceptance(d, lenience)
    deferral = jnp.nan
    if method.rule is not None:
      deferral = (d.q * method.rule(d, lenience)).sum()
    kept = jnp.where(pi[token] > 0, accepted[token] / pi[token], 0)
    return (
      d.q[token],
      pi[token],
      jnp.minimum(kept, 1),
      jnp.minimum(accepted.sum(), 1),
      deferral,
      methods.total_variation(d.p, pi),
      special.rel_entr(pi, d.p).sum(),
    )

  return jax.vmap(at_position)(d, token)


def _evaluate(
  method: methods.Method,
  leniences: Sequence[float],
  readings: _Readings,
  indices: Sequence[np.ndarray],
) -> list[_Values]:
  """Evaluates a method at each lenience, at the readings of some texts."""
  positions = np.concatenate(indices)
  parts: list[list] = [[] for _ in leniences]
  for first in range(0, len(positions), _CHUNK):
    # Of one size, so that a rule is compiled once.
    chunk = np.resize(positions[first : first + _CHUNK], _CHUNK)
    d = methods.Distributions(*(x[chunk] for x in readings.distributions))
    d, token = jax.device_put((d, readings.token[chunk]))
    for part, lenience in zip(parts, leniences, strict=True):
      part.append(_values(d, token, np.float32(lenience), method=method))
  count = len(positions)
  return [
    _Values(*(np.concatenate(x)[:count] for x in zip(*part, strict=True)))
    for part in parts
  ]


def _padded(values: Sequence[np.ndarray], indices, room: int) -> np.ndarray:
  """Returns values at the positions of all texts as [L + room, S, A], or 0."""
  lengths = np.array([len(x) for x in indices])
  padded = np.zeros((len(values), len(indices), lengths.max() + room))
  padded[:, np.arange(padded.shape[-1]) < lengths[:, None]] = values
  return np.moveaxis(padded, -1, 0)


def _chances(
  kept: np.ndarray, ratios: np.ndarray | None, gamma: int
) -> np.ndarray:
  """Returns K_t(k), [gamma + 1, L + gamma, S, A], of w, or of q / pi."""
  chances = np.zeros((gamma + 1, *kept.shape))
  chances[0] = weight = product = np.ones(kept.shape)
  for k in range(gamma):
    # Row t is that of position t + k.
    ahead = np.zeros(kept.shape)
    ahead[: len(kept) - k] = (kept if ratios is None else ratios)[k:]
    if ratios is None:
      chances[k + 1] = chances[k] * ahead
      continue
    inverse = np.divide(1, ahead, out=np.zeros(kept.shape), where=ahead > 0)
    weight, product = np.minimum(1, weight * inverse), product * ahead
    chances[k + 1] = weight * product
  return chances


def _count(
  chances: np.ndarray, lengths: np.ndarray, gamma: int
) -> list[_Counts]:
  """Counts the blocks of A answers from K_t(k), at each of S leniences."""
  longest, index = int(lengths.max()), np.arange(gamma)[:, None, None]
  starts = np.zeros((longest + gamma + 1, *chances.shape[2:]))
  starts[0] = 1
  examined_at = np.zeros_like(starts)
  calls = np.zeros_like(starts[0])
  examined, accepted = np.zeros((2, gamma, *calls.shape))
  for t in range(longest):
    # No block begins behind the end.
    begins = starts[t] * (t < lengths)
    reached = begins * chances[: gamma + 1, t]
    in_text = t + index < lengths
    calls += begins
    examined += reached[:-1] * in_text
    accepted += reached[1:] * in_text
    examined_at[t : t + gamma] += reached[:-1] * in_text
    starts[t + 1 : t + gamma + 1] += reached[:-1] - reached[1:]
    starts[t + gamma + 1] += reached[-1]
  return [
    _Counts(
      lengths,
      calls[s],
      examined[:, s],
      accepted[:, s],
      examined_at[:longest, s],
    )
    for s in range(len(calls))
  ]


def _correction(base: _Counts, own: _Counts) -> np.ndarray:
  """Returns what own texts add to the rates, and its standard errors, [2, 2].

  Both are of answers to the same prompts. A difference within two of its
  standard errors is none.
  """
  n = len(own.tokens)
  values, influences = zip(base.rates(n), own.rates(n), strict=True)
  change, influence = (x[1] - x[0] for x in (values, influences))
  errors = np.sqrt(n / max(1, n - 1) * np.square(influence).sum(-1))
  is_large = np.abs(change) > _CORRECTED * errors
  return np.where(is_large, [change, errors], 0)


def _curve(
  config: DecodingConfig,
  method: methods.Method,
  leniences: Sequence[float],
  gammas: Sequence[int],
  readings: _Readings,
  indices: Sequence[np.ndarray],
  own_indices: Mapping[float, Sequence[np.ndarray]],
) -> list[Point]:
  """Predicts a method at its leniences and gammas."""
  is_block, most = config.verification == 'block', gammas[-1]

  def count_all(values, indices, is_exact):
    """Returns the counts of each gamma and lenience."""
    kept = [
      x.kept if exact else x.acceptance
      for x, exact in zip(values, is_exact, strict=True)
    ]
    ratios = None
    if is_block:
      ratios = _padded([_divide(x.q, x.pi) for x in values], indices, most)
    chances = _chances(_padded(kept, indices, most), ratios, most)
    lengths = np.array([len(x) for x in indices])
    return {gamma: _count(chances, lengths, gamma) for gamma in gammas}

  values = _evaluate(method, leniences, readings, indices)
  is_strict = [method.is_strict(x) for x in leniences]
  counts = count_all(values, indices, is_strict)
  own_counts = {}
  for lenience, own in own_indices.items():
    if len(own) and not method.is_strict(lenience):
      own_values = _evaluate(method, [lenience], readings, own)
      own_counts[lenience] = count_all(own_values, own, [True])
  distances = [float(x.total_variation.mean()) for x in values]
  deferrals = _padded([x.deferral for x in values], indices, 0)
  points = []
  for i, lenience in enumerate(leniences):
    if is_block and not is_strict[i] and lenience not in own_counts:
      continue
    for gamma in gammas:
      base, basis = counts[gamma][i], 'exact'
      change = np.zeros((2, 2))
      if is_block and not is_strict[i]:
        base, basis = own_counts[lenience][gamma][0], 'own text'
      elif not is_strict[i]:
        # Strict decoding, at distance 0, needs no correction.
        knots = {0.0: change} | {
          distances[leniences.index(x)]: _correction(
            counts[gamma][leniences.index(x)], own[gamma][0]
          )
          for x, own in own_counts.items()
        }
        at = sorted(knots)
        table = np.array([knots[x].ravel() for x in at]).T
        change = [np.interp(distances[i], at, row) for row in table]
        change = np.reshape(change, (2, 2))
        basis = 'corrected' if change.any() else 'verifier text'
      n = len(base.tokens)
      (log_tokens, acceptance), influence = base.rates(n)
      error = np.hypot(change[1, 0], np.linalg.norm(influence[0]))
      half = math.inf if n == 1 else stdtrit(n - 1, 0.975) * error
      log_tokens += change[0, 0]
      by_position = _divide(base.accepted.sum(-1), base.examined.sum(-1))
      examined_at = base.examined_at
      deferral = _divide(
        (examined_at * deferrals[:, i]).sum(), examined_at.sum()
      )
      reads_q = method.law_uses_q and config.bonus == 'target'
      points.append(
        Point(
          method.name,
          lenience,
          gamma,
          basis,
          math.exp(log_tokens),
          math.exp(log_tokens - half),
          math.exp(log_tokens + half),
          float(np.clip(acceptance + change[0, 1], 0, 1)),
          tuple(np.clip(by_position + change[0, 1], 0, 1).tolist()),
          float(deferral),
          distances[i],
          float(values[i].kl.mean()),
          gamma + (reads_q and not is_strict[i]),
        )
      )
  return points


def _divide(x: Any, y: Any) -> Any:
  """Divides; 0 / 0 and x / 0 are 0."""
  x, y = np.broadcast_arrays(np.asarray(x, float), y)
  return np.divide(x, y, out=np.zeros(x.shape), where=y != 0)[()]
