"""The acceptance of engines' lossy switches; see `cascades.presets`.

They read one position, as all methods, and their laws hold for any q. A number
that is compiled in is in the name, unless it is the engine's in `_FACTORIES`.
"""

import functools
import math
import re

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cascades.methods.method import (
  BELOW_ZERO,
  Distributions,
  Lenience,
  Method,
  Probs,
  from_acceptance,
  from_target,
  normalize,
  ratio,
)
from cascades.methods.processing import argmax_lowest_id
from cascades.methods.relaxed import entropy


def _top(p: Probs, count: int) -> Float[Array, 'N']:
  return jax.lax.top_k(p, min(count, p.shape[-1]))[0]


@functools.cache
def entropy_gate(top_k: int) -> Method:
  """Keeps any draft where the verifier is undecided: the gate of FLy."""

  def acceptance(d: Distributions, lenience: Lenience) -> Probs:
    is_open = entropy(_top(d.p_gate, top_k)) >= -lenience
    return jnp.where(is_open & (d.p_gate > 0), 1.0, ratio(d.p, d.q))

  return from_acceptance(
    acceptance,
    lambda d, _: normalize(jnp.maximum(0, d.p - d.q), d.p),
    name='entropy_gate' + f'-{top_k}' * (top_k != 3),
    equation=f'a = 1 if H(top {top_k} of p) >= -lam and p > 0, else'
    ' min(1, p / q); residual norm(max(0, p - q))',
    reference='vLLM; FLy, arXiv 2511.22972',
    strict=-math.inf,
    strict_up_to=-math.log(max(top_k, 3)) - 1e-3,
    drafter_only=None,
  )


@functools.cache
def relaxed_top(top_k: int) -> Method:
  """Keeps a draft that is among the likeliest tokens, and near the first."""

  def acceptance(d: Distributions, lenience: Lenience) -> Probs:
    top = _top(d.p_gate, top_k)
    # With all ties of the last of them.
    threshold = jnp.maximum(top[-1], top[0] - lenience)
    return (d.p_gate >= threshold).astype(d.q.dtype)

  return from_acceptance(
    acceptance,
    lambda d, _: d.p,
    name='relaxed_top' + f'-{top_k}' * (top_k != 10),
    equation=f'a = 1 if p >= mp - lam, in the top {top_k}, else 0; residual p',
    reference='TensorRT-LLM',
    strict=-1.0,
    strict_up_to=BELOW_ZERO,
    drafter_only=None,
  )


@functools.cache
def accept_threshold(acc: float) -> Method:
  """Keeps a draft by the verifier's probability alone.

  The residual is the mean, over the rejected x, of p without x: with w_x =
  q(x) (1 - a(x)) and s_x = w_x / (1 - p(x)), it is p(v) (sum s - s_v) / sum w.
  """

  def acceptance(d: Distributions, lenience: Lenience) -> Probs:
    scaled = ratio(d.p, jnp.full_like(d.p, max(acc, 1e-9)))
    return jnp.where(d.p >= 1 - lenience, 1.0, scaled)

  def residual(d: Distributions, lenience: Lenience) -> Probs:
    rejected = d.q * (1 - acceptance(d, lenience))
    shares = rejected / jnp.where((rejected > 0) & (d.p < 1), 1 - d.p, 1)
    return normalize(d.p * jnp.maximum(0, shares.sum(-1) - shares), d.p)

  return from_acceptance(
    acceptance,
    residual,
    name='accept_threshold' + f'-{acc:g}' * (acc != 1),
    equation=f'a = 1 if p >= 1 - lam, else min(1, p / {acc:g}); residual p'
    ' without the draft',
    reference='SGLang',
    strict=0.0 if acc == 1 else None,
    strict_up_to=0.0 if acc == 1 else None,
    drafter_only=1.0,
    reads_gates=False,
  )


def _argmax_of_mixture(d: Distributions, lenience: Lenience) -> Probs:
  share, gates = jnp.clip(lenience, 0, 1), (d.q_gate, d.p_gate)
  if d.forbidden is not None:
    gates = (normalize(jnp.where(d.forbidden, 0, x), d.p) for x in gates)
  q, p = gates
  token = argmax_lowest_id(share * q + (1 - share) * p)
  one_hot = (jnp.arange(d.p.size) == token).astype(d.p.dtype)
  return jnp.where(lenience > 0, one_hot, d.p)


ensemble_argmax = from_target(
  _argmax_of_mixture,
  name='ensemble_argmax',
  equation='pi = one-hot at argmax(lam q + (1 - lam) p)',
  reference='transformers, at temperature 0',
  strict=0.0,
  strict_up_to=0.0,
  drafter_only=None,
)
_FACTORIES = {entropy_gate: 3, relaxed_top: 10, accept_threshold: 1.0}
METHODS = *(make(x) for make, x in _FACTORIES.items()), ensemble_argmax


def find_method(name: str) -> Method | None:
  """Returns the method of a name with a number, such as 'entropy_gate-4'."""
  base, _, text = name.partition('-')
  is_number = re.fullmatch(r'\d{1,7}|0\.\d{1,7}', text)
  for factory in _FACTORIES:
    if factory.__name__ == base and is_number:
      return factory(float(text) if '.' in text else int(text))
  return None
