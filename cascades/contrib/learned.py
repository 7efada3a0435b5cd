"""A learned deferral rule: Lemma 4 with a linear estimate of the loss gap.

Among all rules with the same rejection rate, the best one defers where

  E_P[loss(q)] > E_P[loss(p)] + lam TV(p, q)        Lemma 4, arXiv 2405.19261

with P the true distribution of the next token, which is unknown. OPT estimates
the loss gap E_P[loss(q)] - E_P[loss(p)] by max p - max q. A learned rule uses a
linear head instead,

  defer if h(q, p) > lam TV(p, q),   h = sum_i w_i f_i,

on a few features f_i of both gate distributions. OPT is the head with weight 1
for max p, -1 for max q, and 0 otherwise. One head gives a rule at every
lenience lam. configs/train_rule.py trains a head for one pair of models. The
fingerprints of the pair are stored with the head, and other pairs are refused.

DIVERSED (arXiv 2604.07622, unverified: known by its description alone) learns
the weight w of an ensemble pi = w p + (1 - w) q from the hidden states of both
models. The head here gives a binary decision, sees probabilities alone, and is
trained for another objective.

On disk, a head is a folder with a rule.json: the weights by feature, and the
names and fingerprints of both models.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy import special
from jaxtyping import Array, Float

from cascades import arguments, atomic, drafters
from cascades.drafters.recurrent import recurrent_checkpoint
from cascades.methods.cascade import deferral_cost
from cascades.methods.method import (
  Distributions,
  Lenience,
  Method,
  from_rule,
  total_variation,
)
from cascades.models import checkpoints, language
from cascades.plain import digest
from cascades.untrusted import bounded
from cascades.untrusted.schema import Number, Schema

# 'learned' selects the head of the bundled pair; 'learned:tiny-rule' and
# 'learned:FOLDER' select a bundled head by name, and a head on disk.
NAME, BUNDLED = 'learned', 'tiny-rule'
FILE = 'rule.json'
_ASSETS = pathlib.Path(__file__).parents[1] / 'assets'
_TRAIN = 'train a rule with configs/train_rule.py'

Feature = Callable[[Distributions], Float[Array, '']]


def _prob_at_argmax(probs, scores) -> Float[Array, '']:
  """Returns the largest probability among the tokens that maximise `scores`."""
  # Plain reductions: an argmax is far slower on a CPU.
  is_max = scores >= scores.max(-1, keepdims=True)
  return jnp.where(is_max, probs, 0).max(-1)


def _agree(d: Distributions) -> Float[Array, '']:
  """Returns 1 if q and p have a most probable token in common, else 0."""
  p_at_mq = _prob_at_argmax(d.p_gate, d.q_gate)
  return (p_at_mq >= d.p_gate.max(-1)).astype(d.q_gate.dtype)


# Features of a head, by the names in rule.json: mq and mp are max q and max p,
# q_at_mp is q at the most probable token of p. All are finite where a
# probability is 0. The sums are expectations: if the true token were sampled
# from p, its mean probability would be sum p^2 under p and sum p q under q.
FEATURES: dict[str, Feature] = {
  'one': lambda d: jnp.ones(d.q_gate.shape[:-1], d.q_gate.dtype),
  'mq': lambda d: d.q_gate.max(-1),
  'mp': lambda d: d.p_gate.max(-1),
  'tv': lambda d: total_variation(d.p_gate, d.q_gate),
  'entropy_q': lambda d: special.entr(d.q_gate).sum(-1),
  'entropy_p': lambda d: special.entr(d.p_gate).sum(-1),
  'sum_qq': lambda d: (d.q_gate * d.q_gate).sum(-1),
  'sum_pp': lambda d: (d.p_gate * d.p_gate).sum(-1),
  'sum_pq': lambda d: (d.p_gate * d.q_gate).sum(-1),
  'q_at_mp': lambda d: _prob_at_argmax(d.q_gate, d.p_gate),
  'p_at_mq': lambda d: _prob_at_argmax(d.p_gate, d.q_gate),
  'agree': _agree,
}
# Added before a logarithm, since the features may be 0.
_LOG_OFFSET = 1e-4


def _log(feature: Feature) -> Feature:
  """Returns the logarithm of a feature."""
  return lambda d: jnp.log(feature(d) + _LOG_OFFSET)


def _product(left: Feature, right: Feature) -> Feature:
  """Returns the product of two features."""
  return lambda d: left(d) * right(d)


# Logarithms and products: h is compared with a multiple of TV, and need not be
# linear in the features above.
FEATURES |= {
  f'log {name}': _log(FEATURES[name])
  for name in ('mq', 'mp', 'q_at_mp', 'p_at_mq')
} | {
  f'{left} {right}': _product(FEATURES[left], FEATURES[right])
  for left, rights in {
    'tv': ('tv', 'mq', 'mp', 'sum_pq', 'q_at_mp', 'p_at_mq'),
    'agree': ('mq', 'mp'),
    'mq': ('mp',),
  }.items()
  for right in rights
}
# The weights of OPT.
OPT = {'mp': 1.0, 'mq': -1.0}


def features(d: Distributions) -> Float[Array, 'F']:
  """Computes all features, in the order of `FEATURES`."""
  return jnp.stack([feature(d) for feature in FEATURES.values()], -1)


def difference(
  d: Distributions, weights: Mapping[str, float]
) -> Float[Array, '']:
  """Computes h(q, p), the estimated loss of q minus that of p."""
  terms = (w * FEATURES[name](d) for name, w in weights.items() if w)
  return sum(terms, jnp.zeros(d.q_gate.shape[:-1], d.q_gate.dtype))


def defer(d: Distributions, lenience: Lenience, weights: Mapping[str, float]):
  """Returns True where h(q, p) > lam TV(p, q), for d of one position, [V]."""
  return difference(d, weights) > deferral_cost(d, lenience)


class TrainedPair(NamedTuple):
  """The pair of models that a rule was trained for.

  Attributes:
    verifier: Fingerprint of the verifier; see `fingerprints`.
    drafter: Fingerprint of the drafter.
    names: Names of the verifier and the drafter, used only in messages.
    identity: Hash of the rule.
  """

  verifier: str
  drafter: str
  names: tuple[str, str]
  identity: str

  def check(self, name: str, verifier, drafter) -> None:
    """Refuses any other pair of models."""
    prints = fingerprints(verifier, drafter)
    for role, expected, actual, model in zip(
      ('verifier', 'drafter'), self, prints, self.names, strict=False
    ):
      if actual != expected:
        raise ValueError(
          f'method: {name} was trained for the {role} {model}, with the'
          f' fingerprint {expected}, and the {role} given has'
          f' {actual or "none, as it is not a language model"}; train a rule'
          ' for this pair with configs/train_rule.py.'
        )


def fingerprints(
  verifier: checkpoints.Checkpoint, bound_drafter: drafters.BoundDrafter
) -> tuple[str | None, str | None]:
  """Returns the fingerprints of a verifier and its drafter."""
  drafter, params = bound_drafter
  if getattr(drafter, 'adaptive', False):
    params, _ = params
  checkpoint = None
  if isinstance(drafter, drafters.ModelDrafter | drafters.SelfDrafter):
    checkpoint = verifier._replace(model=drafter.model, params=params)
  return _fingerprint(verifier), checkpoint and _fingerprint(checkpoint)


def _fingerprint(checkpoint: checkpoints.Checkpoint) -> str | None:
  """Returns a hash of the weights, prefixed with the number of layers.

  The first layers of a model share its weights but are a different model.
  """
  model = checkpoint.model
  if not isinstance(model, language.LanguageModel):
    return None
  layers = model.module.config.num_layers
  return f'{layers}x{recurrent_checkpoint.fingerprint(checkpoint)}'


def from_weights(
  weights: Mapping[str, float],
  name: str = NAME,
  trained: TrainedPair | None = None,
) -> Method:
  """Returns the method of a head; equal arguments return the same object."""
  for feature, weight in weights.items():
    if feature not in FEATURES:
      raise ValueError(
        f'weights: {feature!r} is not a feature; choose from'
        f' {", ".join(FEATURES)}.'
      )
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not math.isfinite(weight):
      raise ValueError(
        f'weights: {feature} must be a finite number, got {weight!r}.'
      )
  pairs = ((name, float(weight)) for name, weight in weights.items())
  return _cached_method(name, tuple(sorted(pairs)), trained)


# The method is a static argument of compiled programs, so equal methods must be
# the same object.
@functools.cache
def _cached_method(name, weights, trained) -> Method:
  """Makes the method of a head; weights are (feature, weight) pairs."""
  weights = dict(weights)
  method = from_rule(
    lambda d, lenience: defer(d, lenience, weights),
    name=name,
    equation='defer if h(q, p) > lam TV(p, q), h linear in features of both',
    reference=(
      'Lemma 4 of Narasimhan et al. 2025 with a learned difference; DIVERSED,'
      ' arXiv 2604.07622, learns an ensemble (unverified)'
    ),
    strict=-math.inf,
    drafter_only=math.inf,
  )
  if trained is None:
    return method

  def bind(verifier, drafter):
    trained.check(name, verifier, drafter)
    return bound

  load_named = load if name == NAME else None
  bound = dataclasses.replace(
    method, bind=bind, load=load_named, identity=trained.identity
  )
  return bound


def save(
  folder: pathlib.Path,
  weights: Mapping[str, float],
  names: tuple[str, str],
  fingerprints: tuple[str, str],
) -> None:
  """Writes a head."""
  models = zip(('verifier', 'drafter'), names, fingerprints, strict=True)
  fields: dict[str, Any] = {
    role: {'name': name, 'fingerprint': fingerprint}
    for role, name, fingerprint in models
  }
  fields['weights'] = dict(weights)
  atomic.write_text(folder / FILE, json.dumps(fields, indent=2) + '\n')


class _Model(Schema):
  """One model of the pair that a head was trained for."""

  name: str
  fingerprint: str


class _Fields(Schema):
  """The fields of rule.json."""

  verifier: _Model
  drafter: _Model
  weights: dict[str, Number]


def read(file: pathlib.Path) -> tuple[dict[str, float], TrainedPair]:
  """Reads the weights of a head, and the pair that it was trained for."""
  fields = bounded.read_fields(file, 'method', _TRAIN)
  rule = _Fields.check(fields, f'method: {file}', _TRAIN)
  models = rule.verifier, rule.drafter
  trained = TrainedPair(
    *(model.fingerprint for model in models),
    names=(rule.verifier.name, rule.drafter.name),
    identity=digest(fields),
  )
  return rule.weights, trained


def load(named: str) -> Method:
  """Loads the method of a head on disk."""
  return METHOD if named == BUNDLED else _load(named, f'{NAME}:{named}')


def _load(named: str, name: str) -> Method:
  """Loads a head as `load` does, as a method of the given name."""
  arguments.file_name('method', named)
  bundled = _ASSETS / named
  folder = bundled if (bundled / FILE).is_file() else pathlib.Path(named)
  file = folder / FILE
  try:
    weights, trained = read(file)
    return from_weights(weights, name, trained)
  except FileNotFoundError:
    raise ValueError(f'method: there is no {file}; {_TRAIN}.') from None
  except (OSError, ValueError) as e:
    if str(e).startswith('method: '):
      raise
    reason = str(e).rstrip('.')
    raise ValueError(
      f'method: {file} cannot be read as a learned rule ({reason}); {_TRAIN}.'
    ) from None


# The method 'learned'.
METHOD = _load(BUNDLED, NAME)
