"""How likely a sampler's target makes a text that is given.

Nothing is sampled: both models read context and continuation, in one pass
each, and a method's law gives the probability of every token after those
before it,

  log pi(x_1 .. x_n | context) = sum_i log law(q_i, p_i)(x_i).

That is what `Sampler.sample` draws from: a method's law is that of every token,
whatever block it stands in and however it is verified, unless the drafter or
the bonus token says otherwise; those are refused.
"""

import collections
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from cascades import (
  batching,
  decoding,
  drafters,
  methods,
  pairing,
  sampler,
  sampling,
)
from cascades.verification.single import AT_ONCE


class Score(NamedTuple):
  """How likely one continuation is.

  Attributes:
    logprob: Natural logarithm of its probability; -inf where float32 has the
      target at 0, as it has what top-k or top-p drops.
    greedy: Whether each of its tokens is as likely as any.
  """

  logprob: float
  greedy: bool


class _Target(NamedTuple):
  """One law for all positions.

  Attributes:
    models: The verifier, and the drafter if the law looks at it.
    params: Theirs.
    method: Has the law.
  """

  models: tuple[Any, ...]
  params: tuple[PyTree, ...]
  method: methods.Method


def _target(decoder: sampler.Sampler) -> _Target:
  verifier, method = decoder.verifier, decoder.method
  if decoder.temperature == 0:
    raise ValueError(
      'temperature: at 0 the target is one token and says nothing of the'
      ' others; give a temperature above 0.'
    )
  if decoder.gamma == 0 or decoder.lenience == method.strict:
    # The verifier's law, whatever drafts for it and however it is verified.
    method = methods.METHODS['verifier_only']
    return _Target((verifier.model,), (verifier.params,), method)
  scheme = decoder.scheme
  if scheme.bonus == 'verifier' and scheme.verification != 'sequential':
    raise ValueError(
      "bonus: 'verifier' gives the token after a whole block another law, so"
      " that a text has no one probability; take 'target'."
    )
  if not method.needs_bonus_draft:
    return _Target((verifier.model,), (verifier.params,), method)
  equipped = pairing.equip(verifier, decoder.drafter)
  kinds = drafters.ModelDrafter, drafters.SelfDrafter
  if not isinstance(equipped.drafter, kinds):
    raise ValueError(
      f'drafter: {type(equipped.drafter).__name__} is no language model, so'
      ' that the target of a given text is not known; take a model, or the'
      " method's strict lenience."
    )
  params = equipped.params
  if getattr(equipped.drafter, 'adaptive', False):
    # Where it stops changes how much is drafted, and no law.
    params, _ = params
  models = verifier.model, equipped.drafter.model
  return _Target(models, (verifier.params, params), method)


def score(
  decoder: sampler.Sampler,
  requests: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> list[Score]:
  """How likely the sampler's target makes continuations of contexts.

  Compiled once per rows and lengths, both of which come in few sizes: see
  `batching.width` and `batching.bucket`.

  Args:
    decoder: Has the models, the method and its lenience, temperature, top-k,
      top-p and gate, and the most rows that are read at a time.
    requests: Token ids of a context, at least one, and of what follows it.

  Returns:
    A score for each, in their order.

  Raises:
    ValueError: There is no one law, or a request does not fit.
  """
  target = _target(decoder)
  alike = collections.defaultdict(list)
  for i, (context, continuation) in enumerate(requests):
    length = len(context) + len(continuation)
    if not context:
      raise ValueError(
        f'request {i}: its context is empty; give at least one token, such as'
        ' the beginning of a sequence.'
      )
    if length > decoder.cache_length:
      raise ValueError(
        f'request {i}: its {length} tokens do not fit into cache_length'
        f' {decoder.cache_length}; shorten it or raise cache_length.'
      )
    # The last token is asked about, and not read.
    sizes = batching.bucket(length - 1), batching.bucket(len(continuation), 8)
    alike[sizes].append(i)
  scores = [Score(-math.inf, False)] * len(requests)
  for sizes, indices in alike.items():
    for first in range(0, len(indices), decoder.batch_size):
      some = indices[first : first + decoder.batch_size]
      found = _score_rows(decoder, target, [requests[i] for i in some], *sizes)
      for i, one in zip(some, found, strict=True):
        scores[i] = one
  return scores


def _score_rows(decoder, target, requests, length, asked_length):
  """Requests of one size, in one pass."""
  rows = batching.width(len(requests), decoder.batch_size)
  tokens = np.zeros((rows, length), np.int32)
  asked = np.zeros((rows, asked_length), np.int32)
  starts = np.zeros(rows, np.int32)
  for i, (context, continuation) in enumerate(requests):
    text = [*context, *continuation]
    tokens[i, : len(text) - 1] = text[:-1]
    asked[i, : len(continuation)] = continuation
    # What follows a token is said after reading it.
    starts[i] = len(context) - 1
  logprobs, likeliest = jax.device_get(
    _read(
      target.params,
      tokens,
      starts,
      asked,
      np.float32(decoder.lenience),
      sampling.Processing(
        temperature=decoder.temperature,
        top_k=decoder.top_k,
        top_p=decoder.top_p,
      ),
      models=target.models,
      method=target.method,
      gate=decoder.scheme.gate,
    )
  )
  return [
    Score(
      float(logprobs[i, : len(continuation)].sum(dtype=np.float64)),
      bool(likeliest[i, : len(continuation)].all()),
    )
    for i, (_, continuation) in enumerate(requests)
  ]


@functools.partial(jax.jit, static_argnames=('models', 'method', 'gate'))
def _read(
  params: tuple[PyTree, ...],
  tokens: Int[Array, 'B L'],
  starts: Int[Array, 'B'],
  asked: Int[Array, 'B N'],
  lenience: Float[Array, ''],
  how: sampling.Processing,
  *,
  models: tuple[Any, ...],
  method: methods.Method,
  gate: str,
) -> tuple[Float[Array, 'B N'], Bool[Array, 'B N']]:
  """The logarithm of the law at the tokens asked about, and its peaks.

  Args:
    params: Of each model.
    tokens: Padded on the right.
    starts: Where each row's first token that is asked about is said.
    asked: Padded on the right; what is said of the padding means nothing.
    lenience: Of the method.
    how: From logits to probabilities.
    models: The verifier, and the drafter if the law looks at it.
    method: Has the law.
    gate: What the rule sees; see `verification.Scheme`.
  """
  zero = jnp.zeros((), jnp.int32)

  def said(model, params, tokens, places):
    """Hidden states: there is no room for the logits of all places."""
    cache = model.init_cache(params, tokens.shape[0])
    _, hidden, _ = drafters.read_hidden(model, params, cache, tokens, zero)
    return hidden[places]

  def one(tokens, start, asked):
    places = jnp.minimum(start + jnp.arange(asked.shape[0]), len(tokens) - 1)
    states = [
      said(model, of_model, tokens, places)
      for model, of_model in zip(models, params, strict=True)
    ]

    def place(args):
      states, token = args
      logits = [
        model.decode(of_model, hidden)
        for model, of_model, hidden in zip(models, params, states, strict=True)
      ]
      # A law that does not look at the drafter may be shown anything.
      d = decoding.distributions(logits[-1], logits[0], how)
      if gate == 'processed':
        d = d._replace(q_gate=d.q, p_gate=d.p)
      pi = method.law(d, lenience)
      return jnp.log(pi[token]), pi[token] >= pi.max()

    at_once = max(1, AT_ONCE // models[0].vocab_size)
    return jax.lax.map(
      place, (states, asked), batch_size=min(at_once, asked.shape[0])
    )

  return jax.vmap(one)(tokens, starts, asked)
