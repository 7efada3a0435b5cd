"""Fits a deferral rule to the objective of Lemma 4.

A correct text approximates a sample of the true distribution. At its token y,
the drafter has the loss 1 - q(y) and the verifier 1 - p(y). A rule that defers
with probability r has the expected loss (1 - r) (1 - q(y)) + r (1 - p(y)), and
the rejection probability r TV(p, q) (Lemma 3). The objective at lenience lam,
to be minimised over rules, is

  mean of (1 - r) (1 - q(y)) + r (1 - p(y) + lam TV(p, q))             (J)

(Lemma 4 of Narasimhan et al. 2025, arXiv 2405.19261). Both models read the
texts once. The head of `learned` is then fitted, starting at OPT's weights: r
is a sigmoid, and J is averaged over several leniences.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import optimize, special

from cascades import atomic, methods
from cascades.contrib import learned
from cascades.plain import digest, plain
from cascades.sampler import sampler, scoring

# Methods that a rule is compared with, each at the best of its leniences.
COMPARED = {
  'chow': tuple(np.linspace(0, 1, 11).tolist()),
  'diff': tuple(np.linspace(-0.5, 0.5, 11).tolist()),
  'opt': tuple(np.linspace(-0.2, 1, 13).tolist()),
  'token_v2': (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
  'token_v3': (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999),
}


class Text(NamedTuple):
  """A correct answer of a sweep, to learn from.

  Attributes:
    example: Name of the task, and id of the example.
    prompt: Text of the prompt.
    tokens: Token ids of the answer.
    weight: Weight of the answer; the weights of an example sum to 1.
  """

  example: tuple[str, str]
  prompt: str
  tokens: tuple[int, ...]
  weight: float


@dataclasses.dataclass(frozen=True)
class Positions:
  """All N positions of some texts, with the terms of (J) at each.

  A position is that of one token y of a text, after the tokens before.

  Attributes:
    features: Features in the order of `learned.FEATURES`, [N, F].
    q: q(y), probability of the token under the drafter, [N].
    p: p(y), probability of the token under the verifier, [N].
    tv: TV(p, q), [N].
    laws: Probability of the token in the law of a method at each of its K
      leniences, by name of `COMPARED`, [N, K].
    rejected: Probability that a draft is rejected, by name, [N, K].
    weight: Weight of each position, [N]; sums to 1.
    example: Index of the example, [N].
    held_out: True for positions of held-out examples, [N].
  """

  features: Float[np.ndarray, 'N F']
  q: Float[np.ndarray, 'N']
  p: Float[np.ndarray, 'N']
  tv: Float[np.ndarray, 'N']
  laws: Mapping[str, Float[np.ndarray, 'N K']]
  rejected: Mapping[str, Float[np.ndarray, 'N K']]
  weight: Float[np.ndarray, 'N']
  example: Int[np.ndarray, 'N']
  held_out: Bool[np.ndarray, 'N']

  def select(self, mask: Bool[np.ndarray, 'N']) -> 'Positions':
    """Returns the positions of a mask, with weights that sum to 1."""

    def masked(value):
      if isinstance(value, Mapping):
        return {name: x[mask] for name, x in value.items()}
      return value[mask]

    names = (field.name for field in dataclasses.fields(self))
    fields: dict[str, Any] = {
      name: masked(getattr(self, name)) for name in names
    }
    fields['weight'] /= fields['weight'].sum()
    return Positions(**fields)


def objective_terms(method, d, lenience, token):
  """Computes the terms of (J) at one position, for `scoring.map_tokens`."""
  del method, lenience
  laws, rejected = [], []
  for name, leniences in COMPARED.items():
    compared = methods.METHODS[name]
    lams = jnp.asarray(leniences, d.q.dtype)
    laws.append(jax.vmap(compared.law, (None, 0))(d, lams)[:, token])
    acceptance = jax.vmap(compared.acceptance, (None, 0))(d, lams)
    # sum (q - q a), not 1 - sum q a: exactly 0 if all drafts are accepted.
    rejected.append((d.q - d.q * acceptance).sum(-1))
  return (
    learned.features(d),
    d.q[token],
    d.p[token],
    methods.total_variation(d.p, d.q),
    *laws,
    *rejected,
  )


def read(
  decoder: sampler.Sampler,
  texts: Sequence[Text],
  held_out: float,
  *,
  chat: bool = False,
  cache_folder: pathlib.Path | None = None,
) -> Positions:
  """Scores texts with both models."""
  features, q, p, tv, *columns = _columns(decoder, texts, chat, cache_folder)
  laws, rejected = columns[: len(COMPARED)], columns[len(COMPARED) :]
  lengths = [len(text.tokens) for text in texts]
  numbers: dict[tuple[str, str], int] = {}
  example = [numbers.setdefault(text.example, len(numbers)) for text in texts]
  is_held_out = [_hash(text.example) < held_out for text in texts]
  weight = np.repeat([text.weight for text in texts], lengths)
  return Positions(
    features=features,
    q=q,
    p=p,
    tv=tv,
    laws=dict(zip(COMPARED, laws, strict=True)),
    rejected=dict(zip(COMPARED, rejected, strict=True)),
    weight=weight / weight.sum(),
    example=np.repeat(example, lengths),
    held_out=np.repeat(is_held_out, lengths),
  )


def _columns(decoder, texts, chat, cache_folder) -> list[np.ndarray]:
  """Computes `objective_terms` at all positions, or reads them; float64."""
  requests = [(decoder.encode(x.prompt, chat), x.tokens) for x in texts]
  options = decoder.config
  settings = (
    *learned.fingerprints(decoder.verifier, decoder.bound_drafter),
    *(options.temperature, options.top_k, options.top_p, options.gate),
    *(list(learned.FEATURES), COMPARED),
  )
  identity = digest([plain(settings), requests])
  file = cache_folder and cache_folder / f'places-{identity[:16]}.npz'
  if file and file.is_file():
    with np.load(file, allow_pickle=False) as arrays:
      return [arrays[name] for name in arrays.files]
  terms = scoring.map_tokens(decoder, requests, objective_terms)
  columns = [
    np.concatenate(column).astype(np.float64)
    for column in zip(*terms, strict=True)
  ]
  if file:
    with atomic.replace_file(file) as part, part.open('wb') as out:
      np.savez_compressed(out, *columns)
  return columns


def _hash(example: tuple[str, str]) -> float:
  """Maps an example to a number from 0 to 1, independent of the others."""
  return int(digest([*example])[:8], 16) / 16**8


def fit(
  positions: Positions,
  leniences: Sequence[float],
  softness: float,
  ridge: float,
) -> dict[str, float]:
  """Finds the head that minimises (J), averaged over leniences."""
  x, names = positions.features, list(learned.FEATURES)
  mean = positions.weight @ x
  scale = np.sqrt(positions.weight @ (x - mean) ** 2)
  varies = scale > 1e-9
  scale = np.where(varies, scale, 1)
  # Constant features get weight 0, except 'one', the intercept.
  x = np.where(varies, (x - mean) / scale, 0)
  intercept = names.index('one')
  x[:, intercept] = 1
  opt = np.array([learned.OPT.get(name, 0.0) for name in names])
  start = opt * scale
  start[intercept] = opt @ mean
  gain = positions.p - positions.q

  def objective(w):
    h, value, slope = x @ w, 0.0, np.zeros(len(x))
    for lam in leniences:
      cost = lam * positions.tv
      r = special.expit((h - cost) / softness)
      value += (positions.weight * r * (cost - gain)).sum()
      slope += positions.weight * r * (1 - r) * (cost - gain) / softness
    value, slope = value / len(leniences), slope / len(leniences)
    away = w - start
    return value + ridge * away @ away, slope @ x + 2 * ridge * away

  solution = optimize.minimize(
    objective,
    start,
    jac=True,
    method='L-BFGS-B',
    # Small tolerances: (J) varies little, as q and p are nearly equal at most
    # positions.
    options={'maxiter': 300, 'maxcor': 20, 'ftol': 1e-12, 'gtol': 1e-9},
  ).x
  # Weights of the unscaled features.
  weights = solution / scale
  weights[intercept] = 0
  weights[intercept] = solution[intercept] - weights @ mean
  return {
    name: float(f'{w:.6g}') for name, w in zip(names, weights, strict=True)
  }


class Losses(NamedTuple):
  """Expected loss and rejection probability of a rule at K leniences.

  Attributes:
    loss: Expected loss at each position, [N, K].
    rejected: Probability that a draft is rejected, [N, K].
  """

  loss: Float[np.ndarray, 'N K']
  rejected: Float[np.ndarray, 'N K']

  def at(self, lam: float) -> Float[np.ndarray, 'N K']:
    """Computes (J) at each position, for the cost lam of a rejection."""
    return self.loss + lam * self.rejected


def compare(
  positions: Positions, weights: Mapping[str, float], leniences: Sequence[float]
) -> dict[str, Losses]:
  """Computes the losses of a learned rule and of the methods in `COMPARED`."""
  w = np.array([weights.get(name, 0.0) for name in learned.FEATURES])
  h, tv = positions.features @ w, positions.tv[:, None]
  r = (h[:, None] > np.asarray(leniences) * tv).astype(float)
  q, p = positions.q[:, None], positions.p[:, None]
  losses = {
    name: Losses(1 - positions.laws[name], positions.rejected[name])
    for name in COMPARED
  }
  return {
    learned.NAME: Losses(1 - q + r * (q - p), r * tv),
    **losses,
    'never defer': Losses(1 - q, 0 * tv),
    'always defer': Losses(1 - p, tv),
  }
