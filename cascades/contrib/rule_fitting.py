"""Fitting a deferral rule to the objective of Lemma 4.

At a token y of a text that is right, which stands for one drawn from the true
distribution, the drafter loses 1 - q(y) and the verifier 1 - p(y). A rule that
defers with r loses (1 - r) (1 - q(y)) + r (1 - p(y)), and pays r TV(p, q) in
rejections (Lemma 3), so that at lenience lam it is to make

  mean of (1 - r) (1 - q(y)) + r (1 - p(y) + lam TV(p, q))             (J)

small (Lemma 4 of Narasimhan et al. 2025, arXiv 2405.19261). Both models read
the texts once. Then the head of `learned` is fitted, from OPT's weights on: r
is a sigmoid, and J its mean over some leniences.
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

# What a rule is compared with, at leniences of which the best is taken.
COMPARED = {
  'chow': tuple(np.linspace(0, 1, 11).tolist()),
  'diff': tuple(np.linspace(-0.5, 0.5, 11).tolist()),
  'opt': tuple(np.linspace(-0.2, 1, 13).tolist()),
  'token_v2': (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
  'token_v3': (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999),
}


class Text(NamedTuple):
  """An answer that a sweep wrote.

  Attributes:
    example: Of which task, and its id.
    prompt: Text that it answers.
    tokens: Ids of the answer.
    weight: Its share of its example's weight, which sums to 1.
  """

  example: tuple[str, str]
  prompt: str
  tokens: tuple[int, ...]
  weight: float


@dataclasses.dataclass(frozen=True)
class Places:
  """All tokens of some texts, and what is said of them.

  Attributes:
    features: In the order of `learned.FEATURES`, [N, F].
    q: How likely the token is to the drafter, as it samples, [N].
    p: The same of the verifier.
    price: TV(p, q) of what is sampled from, [N].
    laws: How likely it is in the law of each of `COMPARED`, by name, [N, K].
    rejected: How likely a draft there is to be rejected, by name, [N, K].
    weight: How much each token counts, [N]; they sum to 1.
    example: Number of its example, [N].
    held: Whether that is held out, [N].
  """

  features: Float[np.ndarray, 'N F']
  q: Float[np.ndarray, 'N']
  p: Float[np.ndarray, 'N']
  price: Float[np.ndarray, 'N']
  laws: Mapping[str, Float[np.ndarray, 'N K']]
  rejected: Mapping[str, Float[np.ndarray, 'N K']]
  weight: Float[np.ndarray, 'N']
  example: Int[np.ndarray, 'N']
  held: Bool[np.ndarray, 'N']

  def only(self, which: Bool[np.ndarray, 'N']) -> 'Places':
    """Some of the tokens, whose weights sum to 1 again."""

    def of(value):
      if isinstance(value, Mapping):
        return {name: x[which] for name, x in value.items()}
      return value[which]

    fields = (field.name for field in dataclasses.fields(self))
    some: dict[str, Any] = {name: of(getattr(self, name)) for name in fields}
    return Places(**some | {'weight': some['weight'] / some['weight'].sum()})


def said_of(method, d, lenience, token):
  """Computes the terms of (J) at one position, for `scoring.map_tokens`."""
  del method, lenience
  laws, rejected = [], []
  for name, leniences in COMPARED.items():
    other = methods.METHODS[name]
    at = jnp.asarray(leniences, d.q.dtype)
    laws.append(jax.vmap(other.law, (None, 0))(d, at)[:, token])
    kept = jax.vmap(other.acceptance, (None, 0))(d, at)
    # sum q - sum q a: exactly 0 where all is kept.
    rejected.append((d.q - d.q * kept).sum(-1))
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
  chat: bool = False,
  kept: pathlib.Path | None = None,
) -> Places:
  """Has both models read texts.

  Args:
    decoder: Has the models, and how they are sampled.
    texts: Answers that count as right.
    held_out: Share of the examples that is held out, which a hash chooses.
    chat: Whether prompts are turns of a chat.
    kept: Where what was read is kept, so that it is not read again; None:
      nowhere.
  """
  features, q, p, price, *others = _columns(decoder, texts, chat, kept)
  laws, rejected = others[: len(COMPARED)], others[len(COMPARED) :]
  lengths = [len(text.tokens) for text in texts]
  numbers: dict[tuple[str, str], int] = {}
  example = [numbers.setdefault(text.example, len(numbers)) for text in texts]
  held = [_hash(text.example) < held_out for text in texts]
  weight = np.repeat([text.weight for text in texts], lengths)
  return Places(
    features=features,
    q=q,
    p=p,
    price=price,
    laws=dict(zip(COMPARED, laws, strict=True)),
    rejected=dict(zip(COMPARED, rejected, strict=True)),
    weight=weight / weight.sum(),
    example=np.repeat(example, lengths),
    held=np.repeat(held, lengths),
  )


def _columns(decoder, texts, chat, kept) -> list[np.ndarray]:
  """Computes `said_of` for all tokens, or reads it again; float64."""
  asked = [(decoder.encode(text.prompt, chat), text.tokens) for text in texts]
  options = decoder.config
  of = (
    *learned.fingerprints(decoder.verifier, decoder.bound_drafter),
    *(options.temperature, options.gate, list(learned.FEATURES), COMPARED),
  )
  identity = digest([plain(of), asked])
  file = kept and kept / f'places-{identity[:16]}.npz'
  if file and file.is_file():
    with np.load(file, allow_pickle=False) as found:
      return [found[name] for name in found.files]
  said = scoring.map_tokens(decoder, asked, said_of)
  columns = [
    np.concatenate(column).astype(np.float64)
    for column in zip(*said, strict=True)
  ]
  if file:
    with atomic.replace_file(file) as part, part.open('wb') as out:
      np.savez_compressed(out, *columns)
  return columns


def _hash(example: tuple[str, str]) -> float:
  """From 0 to 1, whatever else there is."""
  return int(digest([*example])[:8], 16) / 16**8


def fit(
  places: Places,
  leniences: Sequence[float],
  softness: float,
  ridge: float,
) -> dict[str, float]:
  """The head for which (J) is least, the mean over leniences.

  Args:
    places: What it learns from.
    leniences: Prices of a rejection.
    softness: It defers by sigmoid((h - lam TV) / softness). The more, the
      smoother, and the more h is overstated: what is far from the border is
      worth more then.
    ridge: Of the squared distance from OPT's weights, of features of variance
      1.

  Returns:
    Weights by the names of `learned.FEATURES`, to six digits.
  """
  x, names = places.features, list(learned.FEATURES)
  mean = places.weight @ x
  scale = np.sqrt(places.weight @ (x - mean) ** 2)
  varies = scale > 1e-9
  scale = np.where(varies, scale, 1)
  # What is constant has no say, but for the one that is to be.
  x = np.where(varies, (x - mean) / scale, 0)
  one = names.index('one')
  x[:, one] = 1
  opt = np.array([learned.OPT.get(name, 0.0) for name in names])
  start = opt * scale
  start[one] = opt @ mean
  gain = places.p - places.q

  def objective(w):
    h, value, slope = x @ w, 0.0, np.zeros(len(x))
    for lam in leniences:
      cost = lam * places.price
      r = special.expit((h - cost) / softness)
      value += (places.weight * r * (cost - gain)).sum()
      slope += places.weight * r * (1 - r) * (cost - gain) / softness
    value, slope = value / len(leniences), slope / len(leniences)
    away = w - start
    return value + ridge * away @ away, slope @ x + 2 * ridge * away

  found = optimize.minimize(
    objective,
    start,
    jac=True,
    method='L-BFGS-B',
    # Most tokens are the same to both models: what there is to gain is little.
    options={'maxiter': 300, 'maxcor': 20, 'ftol': 1e-12, 'gtol': 1e-9},
  ).x
  # Back to the features as they are.
  weights = found / scale
  weights[one] = 0
  weights[one] = found[one] - weights @ mean
  return {
    name: float(f'{w:.6g}') for name, w in zip(names, weights, strict=True)
  }


class Losses(NamedTuple):
  """Loss and rejection cost of a rule at each of K leniences.

  Attributes:
    loss: Of what it lets through, [N, K].
    cost: In rejections, [N, K].
  """

  loss: Float[np.ndarray, 'N K']
  cost: Float[np.ndarray, 'N K']

  def at(self, price: float) -> Float[np.ndarray, 'N K']:
    """(J) of each token, where a rejection costs so much."""
    return self.loss + price * self.cost


def compare(
  places: Places, weights: Mapping[str, float], leniences: Sequence[float]
) -> dict[str, Losses]:
  """Computes losses of the learned rule and of those it is compared with.

  Args:
    places: Tokens.
    weights: Of the learned rule, by feature.
    leniences: Of the learned rule.
  """
  row = np.array([weights.get(name, 0.0) for name in learned.FEATURES])
  h, price = places.features @ row, places.price[:, None]
  r = (h[:, None] > np.asarray(leniences) * price).astype(float)
  q, p = places.q[:, None], places.p[:, None]
  found = {learned.NAME: Losses(1 - q + r * (q - p), r * price)}
  found |= {
    name: Losses(1 - places.laws[name], places.rejected[name])
    for name in COMPARED
  }
  return found | {
    'never defer': Losses(1 - q, 0 * price),
    'always defer': Losses(1 - p, price),
  }
