"""A deferral rule that was learnt: Lemma 4 with a linear head in it.

Of all rules that reject as much, the best defers where

  E_P[loss(q)] > E_P[loss(p)] + lam TV(p, q)        Lemma 4, arXiv 2405.19261

with P the distribution that the true next token has. Nobody knows it, and OPT
puts mp - mq in the place of the difference. Here a linear head stands there,

  defer if h(q, p) > lam TV(p, q),   h = sum_i w_i f_i,

of a few numbers f_i of both distributions, as the gate sees them; OPT has w = 1
for mp, -1 for mq, and else 0. So one head is a rule at every lenience. It is
trained by configs/train_rule.py, and belongs to the pair that it was trained
for, which it knows by fingerprints.

DIVERSED (arXiv 2604.07622, unverified: known by its description alone) learns
as well, but something else: the weight of an ensemble, pi = w p + (1 - w) q,
from a head on both models' hidden states. Here a rule is learnt, which says yes
or no, of probabilities alone, to another objective.

On disk a head is a folder with a rule.json: the weights by the features' names,
the names of its models, and their fingerprints.
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

# The head of the bundled pair, which has the plain name; others have a name, or
# a folder, behind the colon.
NAME, BUNDLED = 'learned', 'tiny-rule'
FILE = 'rule.json'
_ASSETS = pathlib.Path(__file__).parents[1] / 'assets'
_TRAIN = 'train one with configs/train_rule.py'

Feature = Callable[[Distributions], Float[Array, '']]


def _at_favourite(probs, of) -> Float[Array, '']:
  """Returns the largest probability among the tokens that maximise `of`."""
  # By plain reductions: an argmax is far slower on a CPU.
  return jnp.where(of >= of.max(-1, keepdims=True), probs, 0).max(-1)


def _agree(d: Distributions) -> Float[Array, '']:
  at = _at_favourite(d.p_gate, d.q_gate)
  return (at >= d.p_gate.max(-1)).astype(d.q_gate.dtype)


# What a head looks at, all of it defined where a probability is 0. Would the
# true token be one of p's, it were p(x) of the time sum p^2 likely to p and
# sum p q to q; the sums are what a head needs to know of that.
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
  'q_at_mp': lambda d: _at_favourite(d.q_gate, d.p_gate),
  'p_at_mq': lambda d: _at_favourite(d.p_gate, d.q_gate),
  'agree': _agree,
}
# Logarithms of what may be 0, and products: h is to be compared with a multiple
# of TV, and is none of these numbers alone.
_LEAST = 1e-4


def _log(feature: Feature) -> Feature:
  return lambda d: jnp.log(feature(d) + _LEAST)


def _times(one: Feature, other: Feature) -> Feature:
  return lambda d: one(d) * other(d)


FEATURES |= {
  f'log {name}': _log(FEATURES[name])
  for name in ('mq', 'mp', 'q_at_mp', 'p_at_mq')
} | {
  f'{one} {other}': _times(FEATURES[one], FEATURES[other])
  for one, others in {
    'tv': ('tv', 'mq', 'mp', 'sum_pq', 'q_at_mp', 'p_at_mq'),
    'agree': ('mq', 'mp'),
    'mq': ('mp',),
  }.items()
  for other in others
}
# The head that is OPT.
OPT = {'mp': 1.0, 'mq': -1.0}


def features(d: Distributions) -> Float[Array, 'F']:
  """All that a head looks at, in the order of `FEATURES`."""
  return jnp.stack([feature(d) for feature in FEATURES.values()], -1)


def difference(
  d: Distributions, weights: Mapping[str, float]
) -> Float[Array, '']:
  """h(q, p): by how much the drafter's loss is expected to be the larger.

  Args:
    d: Of one position.
    weights: By name of feature; what is absent, or 0, is not computed.
  """
  terms = (w * FEATURES[name](d) for name, w in weights.items() if w)
  return sum(terms, jnp.zeros(d.q_gate.shape[:-1], d.q_gate.dtype))


def defer(d: Distributions, lenience: Lenience, weights: Mapping[str, float]):
  """Defer where h(q, p) > lam TV(p, q)."""
  return difference(d, weights) > deferral_cost(d, lenience)


class Trained(NamedTuple):
  """The pair of models that a rule was trained for.

  Attributes:
    verifier: Fingerprint of the verifier; see `fingerprints`.
    drafter: Fingerprint of the drafter.
    names: Of both, for people.
    identity: A hash of the rule.
  """

  verifier: str
  drafter: str
  names: tuple[str, str]
  identity: str

  def check(self, name: str, verifier, drafter) -> None:
    """Refuses another pair.

    Args:
      name: Of the method.
      verifier: A `Checkpoint`.
      drafter: A `BoundDrafter`.

    Raises:
      ValueError: One of the models is another; names it.
    """
    prints = fingerprints(verifier, drafter)
    for role, expected, found, model in zip(
      ('verifier', 'drafter'), self, prints, self.names, strict=False
    ):
      if found != expected:
        raise ValueError(
          f'method: {name} was trained for the {role} {model}, with the'
          f' fingerprint {expected}, and this one has'
          f' {found or "none, for it is no language model"}; train a rule for'
          ' these two with configs/train_rule.py.'
        )


def fingerprints(
  verifier: checkpoints.Checkpoint, bound_drafter: drafters.BoundDrafter
) -> tuple[str | None, str | None]:
  """Returns fingerprints of two language models; None of what is none.

  Args:
    verifier: The verifier.
    bound_drafter: What drafts.
  """
  drafter, params = bound_drafter
  if getattr(drafter, 'adaptive', False):
    params, _ = params
  own = None
  if isinstance(drafter, drafters.ModelDrafter | drafters.SelfDrafter):
    own = verifier._replace(model=drafter.model, params=params)
  return _fingerprint(verifier), own and _fingerprint(own)


def _fingerprint(checkpoint: checkpoints.Checkpoint) -> str | None:
  """Also of how many layers it has, for the first of them are another model."""
  model = checkpoint.model
  if not isinstance(model, language.LanguageModel):
    return None
  layers = model.module.config.num_layers
  return f'{layers}x{recurrent_checkpoint.fingerprint(checkpoint)}'


def of(
  weights: Mapping[str, float],
  name: str = NAME,
  trained: Trained | None = None,
) -> Method:
  """The method of a head; the same object for the same arguments.

  Args:
    weights: By name of feature; what is absent is 0.
    name: Of the method.
    trained: For which models; None: for any.

  Raises:
    ValueError: There is no such feature, or a weight is no finite number.
  """
  for feature, weight in weights.items():
    if feature not in FEATURES:
      raise ValueError(
        f'weights: there is no feature {feature!r}; there are'
        f' {", ".join(FEATURES)}.'
      )
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not math.isfinite(weight):
      raise ValueError(
        f'weights: {feature} is {weight!r}; give a finite number.'
      )
  pairs = ((name, float(weight)) for name, weight in weights.items())
  return _made(name, tuple(sorted(pairs)), trained)


# Programs are compiled for the method itself.
@functools.cache
def _made(name, weights, trained) -> Method:
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
  """Writes a head.

  Args:
    folder: Made if it is not there.
    weights: By name of feature.
    names: Of the verifier and the drafter, for people.
    fingerprints: Of both, as the function of that name has them.
  """
  models = zip(('verifier', 'drafter'), names, fingerprints, strict=True)
  said: dict[str, Any] = {
    of: {'name': name, 'fingerprint': found} for of, name, found in models
  }
  said['weights'] = dict(weights)
  atomic.write_text(folder / FILE, json.dumps(said, indent=2) + '\n')


class _Model(Schema):
  """A model that a head was trained for."""

  name: str
  fingerprint: str


class _Fields(Schema):
  """The fields of rule.json."""

  verifier: _Model
  drafter: _Model
  weights: dict[str, Number]


def read(file: pathlib.Path) -> tuple[dict[str, float], Trained]:
  """Reads a head's weights by feature, and the pair that it was trained for.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: It is damaged.
  """
  fields = bounded.read_fields(file, 'method', _TRAIN)
  said = _Fields.check(fields, f'method: {file}', _TRAIN)
  models = said.verifier, said.drafter
  trained = Trained(
    *(model.fingerprint for model in models),
    names=(said.verifier.name, said.drafter.name),
    identity=digest(fields),
  )
  return said.weights, trained


def load(named: str) -> Method:
  """Loads the method of a head on disk.

  Args:
    named: A bundled head's name, or the folder of one.

  Raises:
    ValueError: There is none, or it is damaged.
  """
  return METHOD if named == BUNDLED else _load(named, f'{NAME}:{named}')


def _load(named: str, name: str) -> Method:
  """Loads a rule like `load`, under the given name of the method."""
  arguments.file_name('method', named)
  bundled = _ASSETS / named
  folder = bundled if (bundled / FILE).is_file() else pathlib.Path(named)
  file = folder / FILE
  try:
    weights, trained = read(file)
    return of(weights, name, trained)
  except FileNotFoundError:
    raise ValueError(f'method: there is no {file}; {_TRAIN}.') from None
  except (OSError, ValueError) as e:
    if str(e).startswith('method: '):
      raise
    reason = str(e).rstrip('.')
    raise ValueError(
      f'method: {file} cannot be read as a learned rule ({reason}); {_TRAIN}.'
    ) from None


# What the plain name stands for.
METHOD = _load(BUNDLED, NAME)
