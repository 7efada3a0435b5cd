"""How likely a sampler's target makes a text that is given.

Nothing is sampled: both models read context and continuation, in one pass
each, and a method's law gives the probability of every token after those
before it,

  log pi(x_1 .. x_n | context) = sum_i log law(q_i, p_i)(x_i).

That is what `Sampler.sample` draws from: a method's law is that of every token,
whatever block it stands in and however it is verified, unless the drafter or
the bonus token says otherwise; those are refused.

The same pass shows what both models and the method say of each token: `look`;
and what any function says of it: `each`.
"""

import collections
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from cascades import arguments, decoding, drafters, methods, schedules
from cascades.decoding import faults
from cascades.methods import processing
from cascades.models import sharding
from cascades.sampler import batching, sampler
from cascades.verification.single_draft import AT_ONCE, of_token


class Score(NamedTuple):
  """How likely one continuation is.

  Attributes:
    logprob: Natural logarithm of its probability; -inf where float32 has the
      target at 0, as it has what top-k or top-p drops.
    greedy: Whether each of its tokens is as likely as any.
  """

  logprob: float
  greedy: bool


class Look(NamedTuple):
  """What is said of one token, after those before it.

  Attributes:
    q: How likely it is to the drafter, as it samples.
    p: How likely it is to the verifier, as it samples.
    pi: How likely it is in the method's law.
    deferred: Whether the rule defers it to the verifier; 0 without a rule.
    drafter: The drafter's likeliest token.
    verifier: The verifier's likeliest token.
  """

  q: float
  p: float
  pi: float
  deferred: bool
  drafter: int
  verifier: int


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
  """The law that scores are of.

  Raises:
    ValueError: It is not the same wherever blocks begin, or is not known.
  """
  verifier, options = decoder.verifier, decoder.config
  method, verification_config = options.capped, options.verification_config
  if options.temperature < processing.GREEDY_BELOW:
    raise ValueError(
      'temperature: at 0 the target is one token and says nothing of the'
      ' others; give a temperature above 0.'
    )
  strict = options.lenience == method.strict
  if options.gamma == 0 or (strict and decoder.schedule() is None):
    # The verifier's law, whatever drafts for it and however it is verified.
    method = methods.METHODS['verifier_only']
  elif verification_config.bonus == 'verifier':
    raise ValueError(
      "bonus: 'verifier' gives the token after a whole block another law, so"
      " that a text has no one probability; take 'target'."
    )
  elif not verification_config.kind.keeps_law:
    raise ValueError(
      f'verification: {verification_config.verification!r} has another law'
      ' after other blocks, so that a text has no one probability; take'
      " 'token' or 'block'."
    )
  if not method.law_uses_q:
    return _Target((verifier.model,), (verifier.params,), method)
  return _of_both(decoder)


def is_language_model(bound_drafter: drafters.BoundDrafter) -> bool:
  """Whether what drafts says of any text how likely each token is."""
  kinds = drafters.ModelDrafter, drafters.SelfDrafter
  return isinstance(bound_drafter.drafter, kinds)


def _of_both(decoder: sampler.Sampler) -> _Target:
  """The method's law, of both models whether it needs them or not."""
  verifier, bound_drafter = decoder.verifier, decoder.bound_drafter
  if bound_drafter is None:
    raise ValueError(
      'drafter: none is given, and the target looks at one; give a model.'
    )
  if not is_language_model(bound_drafter):
    raise ValueError(
      f'drafter: {type(bound_drafter.drafter).__name__} is no language model,'
      ' so that the target of a given text is not known; take a model, or the'
      " method's strict lenience."
    )
  params = bound_drafter.params
  if getattr(bound_drafter.drafter, 'adaptive', False):
    # Where it stops changes how much is drafted, and no law.
    params, _ = params
  models = verifier.model, bound_drafter.drafter.model
  return _Target(models, (verifier.params, params), decoder.config.capped)


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
    FaultError: A distribution is not finite.
  """
  scores = []
  said = _by_size(decoder, _target(decoder), requests, _log_law)
  for (context, _), (logprobs, likeliest) in zip(requests, said, strict=True):
    for at in np.flatnonzero(np.isnan(logprobs))[:1]:
      method = faults.CULPRITS.index('method')
      faults.check(
        faults.Fault(method, len(context) + at),
        f'a request of {len(context)} and {len(logprobs)} tokens',
      )
    total = math.fsum(logprobs.tolist())
    scores.append(Score(total, bool(likeliest.all())))
  return scores


def each(
  decoder: sampler.Sampler,
  requests: Sequence[tuple[Sequence[int], Sequence[int]]],
  say: Callable[..., tuple[Array, ...]],
) -> list[tuple[np.ndarray, ...]]:
  """What a function of yours says of each token of continuations.

  Args:
    decoder: Has the models, the method and its lenience; its drafter is looked
      at whatever the law needs.
    requests: Token ids of a context, at least one, and of what follows it.
    say: (method, distributions, lenience, token) -> arrays, of one place. It is
      compiled: give the same function again.

  Returns:
    For each request the arrays, with an axis of N tokens before their own.

  Raises:
    ValueError: The drafter is no language model, or a request does not fit.
  """
  return _by_size(decoder, _of_both(decoder), requests, say)


def _by_size(
  decoder, target, requests, say, one_size=False
) -> list[tuple[np.ndarray, ...]]:
  """What is said of requests, in their order, those of one size together.

  Args:
    decoder: As for `each`.
    target: What is compiled.
    requests: As for `each`.
    say: As for `each`.
    one_size: Whether all of them are padded to one size.
  """
  requests = arguments.as_list('requests', requests, 'pairs of lists of ids')
  sizes = _sizes(decoder, requests)
  if one_size and sizes:
    sizes = [tuple(map(max, zip(*sizes, strict=True)))] * len(sizes)
  alike = collections.defaultdict(list)
  for i, size in enumerate(sizes):
    alike[size].append(i)
  said: list = [None] * len(requests)
  for size, indices in alike.items():
    for some in itertools.batched(indices, decoder.config.batch_size):
      rows = [requests[i] for i in some]
      found = _read_rows(decoder, target, rows, *size, say)
      for i, of_one in zip(some, found, strict=True):
        said[i] = of_one
  return said


def look(
  decoder: sampler.Sampler,
  requests: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> list[list[Look]]:
  """What both models and the method say of each token of continuations.

  Made for the few answers that somebody looks at: they are all padded to one
  size, so that it is compiled once.

  Args:
    decoder: As for `each`.
    requests: As for `each`.

  Returns:
    For each a `Look` per token.

  Raises:
    ValueError: The drafter is no language model, or a request does not fit.
  """
  said = _by_size(decoder, _of_both(decoder), requests, _look, one_size=True)
  return [
    [Look(*each) for each in zip(*(x.tolist() for x in found), strict=True)]
    for found in said
  ]


def _sizes(decoder, requests) -> list[tuple[int, int]]:
  """What each request is padded to: read, and asked about.

  Raises:
    ValueError: One does not fit.
  """
  sizes = []
  vocab_size = decoder.verifier.model.vocab_size
  for i, request in enumerate(requests):
    if not _is_request(request, vocab_size):
      raise ValueError(
        f'request {i}: {arguments.quote(request)} will not do; give two lists'
        f' of token ids, from 0 to {vocab_size - 1}: a context and what follows'
        ' it.'
      )
    context, continuation = request
    length = len(context) + len(continuation)
    if not len(context):
      raise ValueError(
        f'request {i}: its context is empty; give at least one token, such as'
        ' the beginning of a sequence.'
      )
    if length > decoder.config.cache_length:
      raise ValueError(
        f'request {i}: its {length} tokens do not fit into cache_length'
        f' {decoder.config.cache_length}; shorten it or raise cache_length.'
      )
    # The last token is asked about, and not read.
    sizes.append(
      (batching.bucket(length - 1, 64), batching.bucket(len(continuation), 8))
    )
  return sizes


def _is_request(request, vocab_size: int) -> bool:
  """Whether it is a context and a continuation, of ids that there are."""
  try:
    context, continuation = map(np.asarray, request)
  except (TypeError, ValueError):
    return False
  return all(
    x.ndim == 1
    and (not x.size or x.dtype.kind in 'iu')
    and ((x >= 0) & (x < vocab_size)).all()
    for x in (context, continuation)
  )


def _read_rows(decoder, target, requests, length, asked_length, say):
  """What is said of requests of one size, in one pass; see `_read`.

  Raises:
    FaultError: A distribution is not finite.
  """
  rows = batching.width(len(requests), decoder.config.batch_size)
  filled = [*requests, *[((0,), ())] * (rows - len(requests))]
  texts = [[*context, *continuation][:-1] for context, continuation in filled]
  tokens, _ = batching.pad(texts, length, length)
  asked, _ = batching.pad([x for _, x in filled], asked_length, asked_length)
  # What follows a token is said after reading it.
  starts = np.array([len(context) - 1 for context, _ in filled], np.int32)
  said, culprits = sharding.fetch(
    _read(
      target.params,
      (tokens, starts, asked),
      np.float32(decoder.config.lenience),
      decoder.processing(),
      decoder.schedule(max(len(asked) for _, asked in requests)),
      models=target.models,
      method=target.method,
      gate=decoder.config.gate,
      say=say,
    )
  )
  for i, (context, continuation) in enumerate(requests):
    bad = culprits[i, : len(continuation)]
    if bad.any():
      at = int(bad.argmax())
      faults.check(
        faults.Fault(bad[at], len(context) + at),
        f'a request of {len(context)} and {len(continuation)} tokens',
      )
  return [
    tuple(x[i, : len(continuation)] for x in said)
    for i, (_, continuation) in enumerate(requests)
  ]


def _log_law(method, d, lenience, token):
  """For `score`: the logarithm of the law at a token, and whether it peaks."""
  pi = method.law(d, lenience)
  return jnp.log(pi[token]), pi[token] >= pi.max()


def _look(method, d, lenience, token):
  """For `look`: the fields of a `Look`."""
  return Look(
    q=d.q[token],
    p=d.p[token],
    pi=method.law(d, lenience)[token],
    deferred=of_token(method.rule, d, lenience, token) > 0,
    drafter=processing.argmax_lowest_id(d.q),
    verifier=processing.argmax_lowest_id(d.p),
  )


@functools.partial(jax.jit, static_argnames=('models', 'method', 'gate', 'say'))
def _read(
  params: tuple[PyTree, ...],
  rows: tuple[Int[Array, 'B L'], Int[Array, 'B'], Int[Array, 'B N']],
  lenience: Float[Array, ''],
  sampling: processing.SamplingParams,
  schedule: Any,
  *,
  models: tuple[Any, ...],
  method: methods.Method,
  gate: str,
  say: Callable[..., tuple[Array, ...]],
) -> tuple[tuple[Array, ...], Int[Array, 'B N']]:
  """What is said of the tokens that are asked about, each [B, N, ...].

  Also gives whose logits are no distribution there, a `faults.Fault.culprit`.

  Args:
    params: Each model's parameters.
    rows: All but the last token of each text, padded on the right; where each
      row's first token that is asked about is said; and those tokens, of whose
      padding what is said means nothing.
    lenience: How readily the method keeps drafts.
    sampling: Temperature, truncation and forbidden tokens.
    schedule: How the lenience goes along what is asked about; None: it stays.
    models: The verifier, and the drafter if the law looks at it.
    method: Has the law.
    gate: What the rule sees: 'raw' or 'processed' probabilities.
    say: (method, distributions, lenience, token) -> what is said of the token.
  """
  zero = jnp.zeros((), jnp.int32)

  def said(model, params, tokens, places):
    """Hidden states: there is no room for the logits of all places."""
    cache = model.init_cache(params, tokens.shape[0])
    _, hidden, _ = decoding.read_hidden(model, params, cache, tokens, zero)
    return hidden[places]

  def one(tokens, start, asked):
    places = jnp.minimum(start + jnp.arange(asked.shape[0]), len(tokens) - 1)
    states = [
      said(model, of_model, tokens, places)
      for model, of_model in zip(models, params, strict=True)
    ]

    def unembedded(states):
      return [
        model.unembed(of_model, hidden)
        for model, of_model, hidden in zip(models, params, states, strict=True)
      ]

    def distributions(logits):
      # A law that does not look at the drafter may be shown anything.
      return decoding.distributions(logits[-1], logits[0], sampling, gate=gate)

    leniences = jnp.broadcast_to(lenience, asked.shape)
    if schedule is not None:
      leniences, _ = schedules.along(
        *(schedule, schedule.start(tokens, start + 1), lenience, method),
        asked[:-1],
        lambda i: distributions(unembedded([x[i] for x in states])),
      )

    def place(args):
      states, lenience, token = args
      # Made once, for what is said of a token and for whether it is sound.
      logits = unembedded(states)
      bad = ~jnp.stack(list(map(processing.is_sound, logits, states)))
      culprit = jnp.where(bad.any(), jnp.argmax(bad) + 1, 0)
      d = distributions(logits)
      return say(method, d, lenience, token), culprit

    at_once = max(1, AT_ONCE // models[0].vocab_size)
    return jax.lax.map(
      place,
      (states, leniences, asked),
      batch_size=min(at_once, asked.shape[0]),
    )

  return jax.vmap(one)(*rows)
