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
the path. Texts of the rule itself show the difference. It is corrected where it
exceeds two of its standard errors, which enter the interval.

The q of n-grams and of heads depends on where a block begins too: they draft
from each position along the text, and w is that of a position and a block.
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

from cascades import decoding, drafters, methods
from cascades.config import DecodingConfig
from cascades.drafters.stepwise import StepwiseDrafter
from cascades.methods import processing
from cascades.models import sharding
from cascades.sampler import batching, sampler, scoring

# A context and the answer after it, in token ids.
Text = tuple[Sequence[int], Sequence[int]]

LENIENCES = 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95
RULES = 'speed chow opt token_v2 token_v3'.split()
# Of a larger vocabulary this many of each model's likeliest tokens are read,
# and all others as a single token.
_LIKELIEST = 512
# Positions that a rule is evaluated at together.
_CHUNK = 512
# Blocks that are drafted together.
_BLOCKS = 16
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
      or 'own text', for lossy block verification, n-grams and heads.
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
      0 for a small vocabulary. It bounds the error of acceptance and of TV,
      unless a rule compares these tokens with its threshold.
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
    rules: Leniences of each method; None for `RULES` at `LENIENCES`, of which
      n-grams and heads have none. Strict decoding is always predicted.
    gammas: Drafted tokens per block.
    config: Temperature, truncation, gate, verification and batch size; its
      method, lenience and gamma are not read.
    own_texts: Answers that a method decoded at a lenience, at any gamma, by
      (method, lenience): to the first prompts of `texts`, in their order.

  Raises:
    ValueError: There is no token, a text does not fit with a block after it, or
      the law depends on where blocks begin; one sentence says which.
  """
  gammas, own_texts = sorted({*gammas}), own_texts or {}
  config = (config or DecodingConfig()).replace(
    method='speed', lenience=0.0, gamma=max(gammas)
  )
  decoder = sampler.Sampler(verifier, drafter, config=config)
  has_text_q = sampler.is_language_model(decoder.bound_drafter)
  if rules is None:
    rules = dict.fromkeys(RULES if has_text_q else (), LENIENCES)
  # Each lenience once, those of texts too.
  leniences_of = {'speed': [0.0]}
  for name, values in rules.items():
    method = methods.get_method(name)
    values = [*values, *(y for x, y in own_texts if x == method.name)]
    values = map(float, values if method.has_lenience else [0.0])
    earlier = leniences_of.get(method.name, [])
    leniences_of[method.name] = [*dict.fromkeys([*earlier, *values])]
  lossy = [
    methods.METHODS[name]
    for name, leniences in leniences_of.items()
    if not all(map(methods.METHODS[name].is_strict, leniences))
  ]
  _check(decoder, lossy, [*texts, *itertools.chain(*own_texts.values())])
  trie = _Trie(has_text_q)
  indices = [trie.add(*text) for text in texts]
  indices_of = {x: [trie.add(*z) for z in y] for x, y in own_texts.items()}
  target = scoring.explained_target(decoder)
  columns: Any = scoring.map_tokens(decoder, trie.requests, _reading, target)
  readings = _Readings(methods.Distributions(*columns[:5]), *columns[5:])
  if not has_text_q:
    readings = readings._replace(q=_draft_along(decoder, trie.requests))
  points = []
  for name, leniences in leniences_of.items():
    own_indices = {y: rows for (x, y), rows in indices_of.items() if x == name}
    points += _curve(
      config,
      methods.METHODS[name],
      leniences,
      gammas,
      readings,
      indices,
      own_indices,
    )
  bound: Any = decoder.bound_drafter
  if isinstance(bound.drafter, drafters.NgramDrafter):
    points = [x._replace(drafter_calls=0) for x in points]
  of_texts = readings.at(np.concatenate(indices))
  return Prediction(
    points,
    num_answers=len(texts),
    num_positions=len(of_texts.token),
    rest=float(of_texts.rest.mean()),
    notes=_differences(config, of_texts, indices),
  )


def _check(decoder, lossy: Sequence[methods.Method], texts: Sequence[Text]):
  """Refuses what has no text, or no probability of acceptance along a text."""
  config, drafter = decoder.config, decoder.bound_drafter.drafter
  is_head = isinstance(drafter, StepwiseDrafter | drafters.NgramDrafter)
  can_draft = is_head and not any(method.law_uses_q for method in lossy)
  longest = max((len(x) + len(y) for x, y in texts if len(y)), default=0)
  size = longest + config.gamma + 1
  if not longest:
    error = 'texts: hold no token; give answers of the verifier.'
  elif config.verification not in ('token', 'block') or config.drafts > 1:
    error = (
      f'verification: {config.verification!r} with {config.drafts} drafts is'
      " not predicted; take 'token' or 'block', and 1 draft."
    )
  elif lossy and config.bonus == 'verifier':
    error = (
      "bonus: with 'verifier' the law of a lossy rule depends on where blocks"
      " begin; take 'target', or strict leniences."
    )
  elif not (can_draft or sampler.is_language_model(decoder.bound_drafter)):
    error = (
      f'drafter: {type(drafter).__name__} is not a language model; n-grams and'
      ' heads are predicted at strict leniences, and for rules such as min_p'
      ' whose law does not read q.'
    )
  elif getattr(drafter, 'adaptive', False):
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
  """Texts to read; if shared, without the prefixes that earlier texts have."""

  def __init__(self, is_shared: bool):
    self.is_shared = is_shared
    self.requests: list[Text] = []
    self._nodes: dict[Any, int] = {}

  def add(self, context: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """Adds a text; returns the index of the reading at each token."""
    nodes, new = [], len(self._nodes)
    parent = tuple(context) if self.is_shared else (new,)
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
  than the likeliest, in nats of the verifier's logits. Where q depends on the
  block, `q` [N, gamma] is that of the text's tokens in a block that begins
  here, and -1 behind its draft.
  """

  distributions: Any
  token: Any
  rest: Any
  entropy: Any
  logprob: Any
  gap: Any
  q: Any = None

  def at(self, indices: np.ndarray) -> '_Readings':
    """Returns some of the readings."""
    return jax.tree.map(lambda x: x[indices], self)


def _reading(method, d: methods.Distributions, lenience, token) -> Any:
  """Reads one position: `_Readings`, with the distributions spread out."""
  facts = (
    special.entr(d.p).sum(),
    jnp.log(d.p[token]),
    jnp.log(d.p_gate.max()) - jnp.log(d.p_gate[token]),
  )
  if d.p.size <= 2 * _LIKELIEST + 1:
    return *d[:5], token, jnp.zeros(()), *facts
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


def _standard_error(influences: np.ndarray) -> Any:
  """Returns the standard error of a sum of n independent influences."""
  n = influences.shape[-1]
  return np.sqrt(n / max(1, n - 1) * np.square(influences).sum(-1))


@functools.partial(jax.jit, static_argnames='method')
def _values(
  d: methods.Distributions,
  token: Int[Array, 'N'],
  q: Float[Array, 'N'] | None,
  lenience: Float[Array, ''] | np.float32,
  *,
  method: methods.Method,
) -> Float[Array, '6 N']:
  """Returns q / pi and w of the text's token, sum q a, sum q r, TV and KL."""

  def at_position(d, token, q):
    if q is not None:
      # Of q only the text's token is read.
      rest = jnp.zeros_like(d.q).at[token - 1].set(1 - q)
      d = d._replace(q=rest.at[token].set(q))
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

  return jax.vmap(at_position, out_axes=-1)(d, token, q)


def _draft_along(decoder, requests: Sequence[Text]) -> np.ndarray:
  """Drafts from each token of texts on; returns `_Readings.q`."""
  bound, gamma = decoder.bound_drafter, decoder.config.gamma
  models = decoding.Models(decoder.verifier.model, bound.drafter)
  params = decoding.Params(decoder.verifier.params, bound.params)
  sampling = decoder.sampling_params(decoder.suppress_tokens).of_drafter
  size = batching.bucket(max(len(x) + len(y) for x, y in requests) + gamma, 64)
  parts = []
  for context, tokens in requests:
    (text,), _ = batching.pad([[*context, *tokens]], size, size)
    index = np.arange(batching.bucket(len(tokens), 2 * _BLOCKS))
    starts = len(context) + index.reshape(-1, _BLOCKS)
    q = _draft(params, text, starts, sampling, models=models, gamma=gamma)
    parts.append(sharding.fetch(q)[: len(tokens)])
  return np.concatenate(parts)


@functools.partial(jax.jit, static_argnames=('models', 'gamma'))
def _draft(params, tokens, starts, sampling, *, models, gamma):
  """Returns q of a text's tokens in blocks that begin at `starts`."""
  (verifier, drafter), size = models, len(tokens)
  no_bonus, zero = jnp.zeros((), bool), jnp.zeros((), jnp.int32)
  cache = verifier.init_cache(params.verifier, size)
  _, hidden, cache = decoding.read_hidden(
    verifier, params.verifier, cache, tokens, zero, None, drafter.hidden_layers
  )
  # Later tokens are hidden from a block by its length.
  state = drafter.init(params.drafter, size)
  state = drafter.observe(
    params.drafter, state, tokens[1:], hidden[:-1], zero, zero + size - 1
  )

  def draft_block(start):
    forced, key = tokens[start + jnp.arange(gamma)], jax.random.key(0)
    last = hidden[jnp.maximum(start - 2, 0)]
    rewound = verifier.rewind(cache, start - 1)
    context = decoding.DraftContext(
      tokens, start, last, rewound, key, sampling, no_bonus, forced
    )
    draft, *_ = drafter.propose(
      params.drafter, state, context, gamma=gamma, drafts=1
    )
    draft, _ = decoding.end_drafts(draft, sampling, no_bonus)

    def q_at(i):
      logits = draft.logits_at(i, 0, verifier.vocab_size)
      q = processing.processed_probs(logits, sampling)[forced[i]]
      return jnp.where(i < draft.lengths[0], q, -1)

    return jax.vmap(q_at)(jnp.arange(gamma))

  blocks = jax.vmap(draft_block, axis_name=decoding.ROWS)
  return jnp.concatenate(jax.lax.map(blocks, starts))


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
  gamma: int,
) -> tuple[np.ndarray, ...]:
  """Evaluates a method along A texts of at most L tokens.

  Returns:
    The first four of `_values` for token k of the block at t, [4, gamma, L, S,
    A], 0 behind a text; the means of the others, [2, S]; and True where there
    is a draft, [gamma, L, A].
  """
  positions, q = np.concatenate(indices), None
  lengths = np.array([len(x) for x in indices])
  k = np.arange(gamma)[:, None, None]
  t = k + np.arange(lengths.max())[:, None]
  index = np.where(t < lengths, np.cumsum(lengths) - lengths + t, -1)
  in_draft = in_text = index >= 0
  if readings.q is not None:
    # The values of first tokens come first, at each position.
    q_of_block = readings.q[positions][np.maximum(index - k, 0), k]
    in_draft = in_text & (q_of_block >= 0)
    positions = positions[index[in_text]]
    q = np.maximum(q_of_block[in_text], 0)
    index[in_text] = np.arange(len(positions))
  parts: list[list] = [[] for _ in leniences]
  for first in range(0, len(positions), _CHUNK):
    # Of one size, so that a method is compiled once.
    chunk = np.arange(first, first + _CHUNK) % len(positions)
    d, token, *_ = readings.at(positions[chunk])
    inputs = jax.device_put((d, token, None if q is None else q[chunk]))
    for part, lenience in zip(parts, leniences, strict=True):
      part.append(_values(*inputs, np.float32(lenience), method=method))
  flat = np.array([np.concatenate(part, -1) for part in parts], float)
  flat = flat[..., : len(positions)].swapaxes(0, 1)
  values = np.append(flat[:4], np.zeros((4, len(leniences), 1)), -1)[..., index]
  means = flat[4:, :, : lengths.sum()].mean(-1)
  return np.moveaxis(values, 1, 3), means, in_draft


def _count(
  keep_probs: np.ndarray,
  deferral: np.ndarray,
  in_draft: np.ndarray,
  lengths: np.ndarray,
  gamma: int,
) -> list[_Counts]:
  """Counts the blocks of A texts at each of S leniences, from K_t(k)."""
  shape = keep_probs.shape[2:]
  starts = np.zeros((lengths.max() + gamma + 1, *shape))
  starts[0] = 1
  calls, deferred = np.zeros(shape), np.zeros(shape)
  examined, accepted = np.zeros((gamma, *shape)), np.zeros((gamma, *shape))
  for t in range(lengths.max()):
    # No block begins behind the end.
    begins, drafted = starts[t] * (t < lengths), in_draft[:gamma, t, None]
    reached = begins * keep_probs[: gamma + 1, t]
    calls += begins
    examined += reached[:-1] * drafted
    accepted += reached[1:] * drafted
    deferred += (reached[:-1] * drafted * deferral[:gamma, t]).sum(0)
    starts[t + 1 : t + gamma + 1] += reached[:-1] - reached[1:]
    starts[t + gamma + 1] += reached[-1]
  return [
    _Counts(lengths, calls[s], examined[:, s], accepted[:, s], deferred[s])
    for s in range(len(calls))
  ]


def _correction(base: _Counts, decoded: _Counts) -> np.ndarray:
  """Returns what own texts add to the rates, and its standard errors, [2, 2].

  Both are of answers to the same prompts. A difference within two of its
  standard errors is none, but its error remains: it may hide a bias.
  """
  (old, old_influences), (new, new_influences) = (
    x.rates(len(decoded.tokens)) for x in (base, decoded)
  )
  errors = _standard_error(new_influences - old_influences)
  is_large = np.abs(new - old) > _CORRECTED * errors
  return np.array([np.where(is_large, new - old, 0), errors])


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
    values, distances, in_draft = _evaluate(
      method, leniences, readings, indices, max_gamma
    )
    ratios, exact, mean, deferral = values
    accepted = np.where(np.array(is_exact)[:, None], exact, mean)
    products = np.cumprod(ratios if is_block else accepted, 0)
    # v_k prod q / pi is the least of the first k products.
    keep_probs = np.minimum.accumulate(np.insert(products, 0, 1, 0), 0)
    lengths = np.array([len(x) for x in indices])
    counts = {
      x: _count(keep_probs, deferral, in_draft, lengths, x) for x in gammas
    }
    return counts, distances

  is_strict = [method.is_strict(x) for x in leniences]
  counts, (distances, divergences) = counts_of(leniences, indices, is_strict)
  own_counts = {
    leniences.index(x): counts_of([x], rows, [True])[0]
    for x, rows in own_indices.items()
    if not method.is_strict(x)
  }
  points = []
  for (i, lenience), gamma in itertools.product(enumerate(leniences), gammas):
    base, basis, change = counts[gamma][i], 'exact', np.zeros((2, 2))
    if not is_strict[i] and (is_block or readings.q is not None):
      if i not in own_counts:
        continue
      base, basis = own_counts[i][gamma][0], 'own text'
    elif not is_strict[i]:
      # In between by distance; strict decoding needs no correction.
      knots = {0.0: change} | {
        distances[j]: _correction(counts[gamma][j], decoded[gamma][0])
        for j, decoded in own_counts.items()
      }
      at = sorted(knots)
      rows = np.array([knots[x].ravel() for x in at]).T
      change = np.array([np.interp(distances[i], at, x) for x in rows])
      change = change.reshape(2, 2)
      basis = 'corrected' if change[0].any() else 'verifier text'
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
