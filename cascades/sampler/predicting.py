"""Predicts every rule, lenience and gamma from one reading of given texts.

Both models read a text once, and nothing is drafted. Given the text y, with q,
pi and the acceptance a after its first t tokens, an examined token was an
accepted draft with probability

  w_t = q(y_t) a(y_t) / pi(y_t),

independently along a block: Bayes' rule for equation (L) of `methods.method`.
So the block that begins at t keeps k drafts or more with probability

  K_t(k) = w_t ... w_(t+k-1)                                     (token)
  K_t(k) = v_k prod q / pi,   v_k = min(1, v_(k-1) pi / q)       (block)

k < gamma drafts and a residual token with K_t(k) - K_t(k+1), and all gamma and
a bonus token with K_t(gamma). Where blocks begin follows by recursion; the sum
over positions is the number of calls, exactly in expectation, at any gamma. The
end of a text ends its last block; nothing behind it counts.

This needs a text that the rule itself emitted. On the verifier's text a lossy
rule has sum_x q(x) a(x) in place of w_t: right at each position, but not along
the path. Texts of the rule itself show the error, which is corrected where it
exceeds two of its standard errors.
"""

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
# Of a larger vocabulary this many of each model's likeliest tokens are read,
# and all others as a single token.
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
    basis: 'exact' if strict, 'verifier text', 'corrected' by texts of the rule,
      or 'own text', for lossy block verification.
    tokens_per_call: Emitted tokens per verifier call.
    low: Lower end of its 95 % interval over answers.
    high: Upper end.
    acceptance_rate: Accepted per examined draft.
    acceptance: The same at each position of a block, [gamma].
    deferral_rate: Share of examined drafts that the rule defers; nan without
      a rule.
    total_variation: TV(pi, p), mean over positions; at temperature 0 the share
      of positions where the two differ.
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


class Prediction(NamedTuple):
  """Points of all rules, leniences and gammas, and what they rest on.

  Attributes:
    points: Rule by rule, lenience by lenience, gamma by gamma.
    num_answers: Texts that were read.
    num_positions: Their tokens, context excluded.
    rest: Probability, mean over positions, of the tokens that were read as one;
      0 for a small vocabulary. It bounds the error of acceptance and of TV.
    notes: Sentences that a reader must know.
  """

  points: list[Point]
  num_answers: int
  num_positions: int
  rest: float
  notes: list[str]


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
    texts: Answers that the verifier decoded alone.
    rules: Leniences of each method; None for `RULES` at `LENIENCES`. Strict
      decoding is always predicted.
    gammas: Drafted tokens per block.
    config: Temperature, truncation, gate, verification and batch size; its
      method, lenience and gamma are not read.
    own_texts: Answers that a method decoded at a lenience, at any gamma, by
      (method, lenience): to the first prompts of `texts`, in their order.

  Raises:
    ValueError: There is no token, a text does not fit with a block after it, or
      the law depends on where blocks begin; one sentence says which.
  """
  rules = dict.fromkeys(RULES, LENIENCES) if rules is None else rules
  gammas, own_texts = sorted({*gammas}), own_texts or {}
  config = (config or DecodingConfig()).replace(
    method='speed', lenience=0.0, gamma=max(gammas)
  )
  decoder = sampler.Sampler(verifier, drafter, config=config)
  # Each lenience once, those of texts too.
  leniences_of = {'speed': [0.0]}
  for name, values in rules.items():
    method = methods.get_method(name)
    values = [*values, *(y for x, y in own_texts if x == method.name)]
    values = map(float, values if method.has_lenience else [0.0])
    earlier = leniences_of.get(method.name, [])
    leniences_of[method.name] = [*dict.fromkeys([*earlier, *values])]
  is_lossy = any(
    not methods.METHODS[name].is_strict(x)
    for name, leniences in leniences_of.items()
    for x in leniences
  )
  _check(decoder, is_lossy, [*texts, *itertools.chain(*own_texts.values())])
  trie = _Trie()
  indices = [trie.add(*text) for text in texts]
  by_rule = {x: [trie.add(*z) for z in y] for x, y in own_texts.items()}
  target = scoring.explained_target(decoder)
  rows = scoring.map_tokens(decoder, trie.requests, _reading, target)
  arrays = [np.concatenate(x) for x in zip(*rows, strict=True)]
  readings = _Readings(methods.Distributions(*arrays[:5]), *arrays[5:])
  points = []
  for name, leniences in leniences_of.items():
    own_indices = {y: texts for (x, y), texts in by_rule.items() if x == name}
    points += _curve(
      config,
      methods.METHODS[name],
      leniences,
      gammas,
      readings,
      indices,
      own_indices,
    )
  of_texts = readings.at(np.concatenate(indices))
  return Prediction(
    points,
    num_answers=len(texts),
    num_positions=len(of_texts.token),
    rest=float(of_texts.rest.mean()),
    notes=_differences(config, of_texts, indices),
  )


def _check(decoder, is_lossy: bool, texts: Sequence[Text]) -> None:
  """Refuses what has no text, or no probability of acceptance along a text."""
  config = decoder.config
  longest = max((len(x) + len(y) for x, y in texts if len(y)), default=0)
  size = longest + config.gamma + 1
  if not longest:
    error = 'texts: hold no token; give answers of the verifier.'
  elif config.verification not in ('token', 'block') or config.drafts > 1:
    error = (
      f'verification: {config.verification!r} with {config.drafts} drafts is'
      " not predicted; take 'token' or 'block', and 1 draft."
    )
  elif is_lossy and config.bonus == 'verifier':
    error = (
      "bonus: with 'verifier' the law of a lossy rule depends on where blocks"
      " begin; take 'target', or strict leniences."
    )
  elif getattr(decoder.bound_drafter.drafter, 'adaptive', False):
    error = (
      'stop_below: drafts that stop early are not predicted; leave it out.'
    )
  elif size > config.cache_length:
    error = (
      f'gamma: a text of {longest} tokens and a block of {config.gamma} do not'
      f' fit into cache_length {config.cache_length}; give a smaller gamma, or'
      ' a larger cache_length.'
    )
  else:
    return
  raise ValueError(error)


class _Trie:
  """Texts to read, without the prefixes that earlier texts have."""

  def __init__(self):
    self.requests: list[Text] = []
    self._nodes: dict[Any, int] = {}

  def add(self, context: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """Adds a text; returns the index of the reading at each token."""
    parent, nodes, new = tuple(context), [], len(self._nodes)
    for token in tokens:
      parent = self._nodes.setdefault((parent, token), len(self._nodes))
      nodes.append(parent)
    first = sum(node < new for node in nodes)
    if first < len(tokens):
      self.requests.append(([*context, *tokens[:first]], [*tokens[first:]]))
    return np.array(nodes, np.intp)


class _Readings(NamedTuple):
  """Both models at N positions, over U tokens; `token` is the text's of them.

  `rest` is the larger probability of the tokens read as one, `entropy` that of
  p, `logprob` log p of the text's token, and `gap` how much less likely it is
  than the likeliest, in nats of the verifier's logits.
  """

  distributions: Any
  token: Any
  rest: Any
  entropy: Any
  logprob: Any
  gap: Any

  def at(self, indices: np.ndarray) -> '_Readings':
    """Returns some of the readings."""
    return jax.tree.map(lambda x: x[indices], self)


def _reading(method, d: methods.Distributions, lenience, token):
  """Reads one position: `_Readings`, with the distributions spread out."""
  facts = (
    special.entr(d.p).sum(),
    jnp.log(d.p[token]),
    jnp.log(d.p_gate.max()) - jnp.log(d.p_gate[token]),
  )
  if d.p.size <= 2 * _LIKELIEST + 1:
    return *d, token, jnp.zeros(()), *facts
  top_ids = [jax.lax.top_k(x, _LIKELIEST)[1] for x in (d.p_gate, d.q_gate)]
  ids = jnp.sort(jnp.concatenate([*top_ids, token[None]]))
  # Of a token that is there twice the later is empty.
  is_first = jnp.append(True, ids[1:] != ids[:-1])

  def gather(x, empty, merge):
    rest = merge(x.at[ids].set(empty))
    return jnp.append(jnp.where(is_first, x[ids], empty), rest)

  q, p = (gather(x, 0, jnp.sum) for x in (d.q, d.p))
  # A rule compares tokens: the rest is as likely as the likeliest of them.
  gates = (gather(x, 0, jnp.max) for x in (d.q_gate, d.p_gate))
  p_logits = gather(d.p_logits, -jnp.inf, jnp.max)
  index, rest = jnp.searchsorted(ids, token), jnp.maximum(q[-1], p[-1])
  return q, p, *gates, p_logits, index, rest, *facts


def _differences(
  config: DecodingConfig, readings: _Readings, indices: Sequence[np.ndarray]
) -> list[str]:
  """Returns a sentence if texts are not the verifier's own answers."""
  if config.temperature < processing.GREEDY_BELOW:
    count = int((readings.gap > _NEAR_TIE).sum())
    text = f'{count} of {len(readings.gap)} tokens are not its likeliest'
    is_own = not count
  else:
    excess = -readings.logprob.astype(float) - readings.entropy
    sizes = np.array([len(x) for x in indices if len(x)])
    sums = np.add.reduceat(excess, np.cumsum(sizes) - sizes)
    mean, influence = _ratio(sums, sizes)
    error = _standard_error(influence)
    text = f'{mean:+.3f} nats a token beyond its entropy, error {error:.3f}'
    is_own = abs(mean) <= _NOT_OWN * error or len(sizes) == 1
  if is_own:
    return []
  return [
    f"texts: are not the verifier's own answers at temperature"
    f' {config.temperature:g} ({text}), so that predictions are off; let it'
    ' decode them, with the same template.'
  ]


def _ratio(x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
  """Returns sum x / sum y over answers, and what each adds to the ratio."""
  total = y.sum()
  if not total:
    return 0.0, np.zeros(len(y))
  ratio = x.sum() / total
  return float(ratio), (x - ratio * y) / total


def _standard_error(influences: np.ndarray) -> np.ndarray:
  """Returns the standard error of a sum of n independent influences."""
  n = influences.shape[-1]
  return np.sqrt(n / max(1, n - 1) * np.square(influences).sum(-1))


@functools.partial(jax.jit, static_argnames='method')
def _values(
  d: methods.Distributions,
  token: Int[Array, 'N'],
  lenience: Float[Array, ''] | np.float32,
  *,
  method: methods.Method,
) -> Float[Array, '6 N']:
  """Returns q / pi and w of the text's token, sum q a, sum q r, TV and KL."""

  def at_position(d, token):
    pi = method.law(d, lenience)
    accepted = d.q * method.acceptance(d, lenience)
    deferral = jnp.nan
    if method.rule is not None:
      deferral = (d.q * method.rule(d, lenience)).sum()
    divisor = jnp.where(pi[token] > 0, pi[token], jnp.inf)
    return jnp.stack(
      [
        d.q[token] / divisor,
        jnp.minimum(accepted[token] / divisor, 1),
        jnp.minimum(accepted.sum(), 1),
        deferral,
        methods.total_variation(d.p, pi),
        special.rel_entr(pi, d.p).sum(),
      ]
    )

  return jax.vmap(at_position, out_axes=-1)(d, token)


class _Counts(NamedTuple):
  """Expected counts of A answers.

  Tokens and calls, [A]; drafts examined and accepted by position in the block,
  [gamma, A]; and those examined and deferred, [A].
  """

  tokens: np.ndarray
  calls: np.ndarray
  examined: np.ndarray
  accepted: np.ndarray
  deferred: np.ndarray

  def rates(self, n: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns log tokens per call and acceptance of the first n answers.

    They are [2], what each answer adds to them [2, n].
    """
    tokens, calls = self.tokens[:n], self.calls[:n]
    ratio, influence = _ratio(tokens, calls)
    rate, of_rate = _ratio(self.accepted.sum(0)[:n], self.examined.sum(0)[:n])
    influences = np.array([influence / ratio, of_rate])
    return np.array([math.log(ratio), rate]), influences


def _evaluate(
  method: methods.Method,
  leniences: Sequence[float],
  readings: _Readings,
  indices: Sequence[np.ndarray],
  room: int,
) -> tuple[Any, Any]:
  """Evaluates a method along texts of at most L tokens.

  Returns:
    `_values`, [6, L + room, S, A], 0 behind a text, and [6, S, N].
  """
  positions = np.concatenate(indices)
  parts: list[list] = [[] for _ in leniences]
  for first in range(0, len(positions), _CHUNK):
    # Of one size, so that a method is compiled once.
    chunk = readings.at(np.resize(positions[first : first + _CHUNK], _CHUNK))
    d, token = jax.device_put((chunk.distributions, chunk.token))
    for part, lenience in zip(parts, leniences, strict=True):
      part.append(_values(d, token, np.float32(lenience), method=method))
  flat = np.array([np.concatenate(part, -1) for part in parts], float)
  flat = flat[..., : len(positions)].swapaxes(0, 1)
  lengths = np.array([len(x) for x in indices])
  size = lengths.max() + room
  values = np.zeros((*flat.shape[:2], len(indices), size))
  values[..., np.arange(size) < lengths[:, None]] = flat
  return np.moveaxis(values, -1, 1), flat


def _keep_probs(accepted: np.ndarray, ratios: np.ndarray | None, gamma: int):
  """Returns K_t(k), [gamma + 1, L + gamma, S, A], of w, or of q / pi."""
  keep_probs = np.zeros((gamma + 1, *accepted.shape))
  keep_probs[0] = weight = product = np.ones(accepted.shape)
  shifted = accepted if ratios is None else ratios
  for k in range(gamma):
    if ratios is None:
      keep_probs[k + 1] = keep_probs[k] * shifted
    else:
      inverse = np.where(shifted > 0, 1 / np.maximum(shifted, 1e-300), 0)
      weight, product = np.minimum(1, weight * inverse), product * shifted
      keep_probs[k + 1] = weight * product
    # Row t is that of position t + k.
    shifted = np.append(shifted[1:], shifted[-1:], 0)
  return keep_probs


def _count(
  keep_probs: np.ndarray, deferral: np.ndarray, lengths: np.ndarray, gamma: int
) -> list[_Counts]:
  """Counts the blocks of A texts at each of S leniences, from K_t(k)."""
  index = np.arange(gamma)[:, None, None]
  starts = np.zeros((lengths.max() + gamma + 1, *keep_probs.shape[2:]))
  starts[0] = 1
  calls, deferred = np.zeros((2, *starts.shape[1:]))
  examined, accepted = np.zeros((2, gamma, *starts.shape[1:]))
  for t in range(lengths.max()):
    # No block begins behind the end.
    begins = starts[t] * (t < lengths)
    reached = begins * keep_probs[: gamma + 1, t]
    in_text = reached[:-1] * (t + index < lengths)
    calls += begins
    examined += in_text
    accepted += reached[1:] * (t + index < lengths)
    deferred += (in_text * deferral[t : t + gamma]).sum(0)
    starts[t + 1 : t + gamma + 1] += reached[:-1] - reached[1:]
    starts[t + gamma + 1] += reached[-1]
  return [
    _Counts(lengths, calls[s], examined[:, s], accepted[:, s], deferred[s])
    for s in range(calls.shape[0])
  ]


def _correction(base: _Counts, by_rule: _Counts) -> np.ndarray:
  """Returns what own texts add to the rates, and its standard errors, [2, 2].

  Both are of answers to the same prompts. A difference within two of its
  standard errors is none.
  """
  (old, old_influences), (new, new_influences) = (
    x.rates(len(by_rule.tokens)) for x in (base, by_rule)
  )
  errors = _standard_error(new_influences - old_influences)
  change = np.array([new - old, errors])
  return np.where(np.abs(new - old) > _CORRECTED * errors, change, 0)


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
  is_block, max_gamma = config.verification == 'block', gammas[-1]

  def counts_of(leniences, indices, is_exact):
    values, flat = _evaluate(method, leniences, readings, indices, max_gamma)
    ratios, exact, mean, deferral = values[:4]
    accepted = np.where(np.array(is_exact)[:, None], exact, mean)
    keep_probs = _keep_probs(accepted, ratios if is_block else None, max_gamma)
    lengths = np.array([len(x) for x in indices])
    counts = {x: _count(keep_probs, deferral, lengths, x) for x in gammas}
    return counts, flat[4:].mean(-1)

  is_strict = [method.is_strict(x) for x in leniences]
  counts, (distances, divergences) = counts_of(leniences, indices, is_strict)
  own_counts = {
    leniences.index(x): counts_of([x], by_rule, [True])[0]
    for x, by_rule in own_indices.items()
    if not method.is_strict(x)
  }
  points = []
  for (i, lenience), gamma in itertools.product(enumerate(leniences), gammas):
    base, basis, change = counts[gamma][i], 'exact', np.zeros((2, 2))
    if not is_strict[i] and is_block:
      if i not in own_counts:
        continue
      base, basis = own_counts[i][gamma][0], 'own text'
    elif not is_strict[i]:
      # In between by distance; strict decoding needs no correction.
      knots = {0.0: change} | {
        distances[j]: _correction(counts[gamma][j], by_rule[gamma][0])
        for j, by_rule in own_counts.items()
      }
      at = sorted(knots)
      rows = np.array([knots[x].ravel() for x in at]).T
      change = np.array([np.interp(distances[i], at, x) for x in rows])
      change = change.reshape(2, 2)
      basis = 'corrected' if change.any() else 'verifier text'
    (log_tokens, rate), influences = base.rates()
    log_tokens, rate = np.array([log_tokens, rate]) + change[0]
    n = len(base.tokens)
    error = math.hypot(_standard_error(influences[0]), change[1, 0])
    half = float(stdtrit(n - 1, 0.975)) * error if n > 1 else math.inf
    accepted, examined = base.accepted.sum(-1), base.examined.sum(-1)
    by_position = accepted / np.maximum(examined, 1e-30) + change[0, 1]
    reads_q = method.law_uses_q and config.bonus == 'target'
    points.append(
      Point(
        method=method.name,
        lenience=lenience,
        gamma=gamma,
        basis=basis,
        tokens_per_call=math.exp(log_tokens),
        low=math.exp(log_tokens - half),
        high=math.exp(log_tokens + half),
        acceptance_rate=float(np.clip(rate, 0, 1)),
        acceptance=tuple(np.clip(by_position, 0, 1).tolist()),
        deferral_rate=float(base.deferred.sum() / max(examined.sum(), 1e-30)),
        total_variation=float(distances[i]),
        kl=float(divergences[i]),
        drafter_calls=gamma + (reads_q and not is_strict[i]),
      )
    )
  return points
