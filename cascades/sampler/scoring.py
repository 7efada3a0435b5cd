"""Scores of given texts under a sampler's target.

Nothing is sampled: both models read context and continuation, in one pass
each, and the method's law gives the probability of every token after those
before it,

  log pi(x_1 .. x_n | context) = sum_i log law(q_i, p_i)(x_i).

`Sampler.sample` draws from the same target: the law holds for every token,
whatever its block and verification, unless the drafter or the bonus token
changes it; such options are refused.

The same pass gives what both models and the method say about each token
(`inspect_tokens`), and the values of any function of their distributions
(`map_tokens`).
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

from cascades import arguments, decoding, drafters, methods
from cascades.decoding import faults
from cascades.methods import processing
from cascades.models import sharding
from cascades.sampler import batching, sampler
from cascades.verification.single_draft import MAX_PROBS_AT_ONCE, value_at_token

# Called as (method, distributions, lenience, token) for one position.
TokenFn = Callable[..., tuple[Array, ...]]


class Score(NamedTuple):
  """The score of one continuation.

  Attributes:
    logprob: Natural logarithm of its probability; -inf where the target is 0 in
      float32, as it is for tokens that top-k or top-p drops.
    is_greedy: True if each of its tokens is a most probable one.
  """

  logprob: float
  is_greedy: bool


class TokenView(NamedTuple):
  """One token under both models and the method, after the tokens before it.

  Attributes:
    q: Its probability under the drafter, after temperature and truncation.
    p: Its probability under the verifier, after the same.
    pi: Its probability in the method's law.
    deferred: True if the rule defers it to the verifier; False without a rule.
    drafter_token: The drafter's most probable token.
    verifier_token: The verifier's most probable token.
  """

  q: float
  p: float
  pi: float
  deferred: bool
  drafter_token: int
  verifier_token: int


class Target(NamedTuple):
  """The target that texts are scored under."""

  models: tuple[Any, ...]
  params: tuple[PyTree, ...]
  method: methods.Method
  forbidden: Sequence[int] = ()


def _target(decoder: sampler.Sampler) -> Target:
  """Returns the target that a sampler's texts are scored under."""
  verifier, config = decoder.verifier, decoder.config
  method, verification_config = config.method, config.verification_config
  if config.temperature < processing.GREEDY_BELOW:
    raise ValueError(
      'temperature: must be above 0, since at 0 the target is one token and all'
      ' other tokens have probability 0; give a temperature above 0.'
    )
  if config.is_lossless:
    # The law is the verifier's, with any drafter and verification.
    method = methods.METHODS['verifier_only']
  elif verification_config.bonus == 'verifier':
    raise ValueError(
      "bonus: 'verifier' draws the token after a fully accepted block from p,"
      " so that a text has no single probability; take 'target'."
    )
  elif not verification_config.kind.keeps_law:
    raise ValueError(
      f'verification: with {verification_config.verification!r} the law depends'
      ' on where blocks begin, so that a text has no single probability; take'
      " 'token' or 'block'."
    )
  if not method.law_uses_q:
    return Target((verifier.model,), (verifier.params,), method)
  # The score of a text is the models', as in transformers.
  return target_of_both(decoder)._replace(forbidden=())


def is_language_model(bound_drafter: drafters.BoundDrafter | None) -> bool:
  """True if a drafter gives the probability of each token of any text."""
  model_drafters = drafters.ModelDrafter, drafters.SelfDrafter
  return isinstance(getattr(bound_drafter, 'drafter', None), model_drafters)


def target_of_both(decoder: sampler.Sampler) -> Target:
  """Returns the method's law with both models, whether or not it uses q."""
  verifier, bound_drafter = decoder.verifier, decoder.bound_drafter
  if bound_drafter is None:
    raise ValueError(
      'drafter: must be given, since the target depends on q; give a model.'
    )
  if not is_language_model(bound_drafter):
    raise ValueError(
      f'drafter: {type(bound_drafter.drafter).__name__} is not a language'
      ' model, so that the target of a given text is not known; take a model,'
      ' or a strict lenience.'
    )
  params: PyTree = bound_drafter.params
  drafter: Any = bound_drafter.drafter
  if getattr(drafter, 'adaptive', False):
    # The threshold changes the lengths of drafts, not the law.
    params, _ = params
  models = verifier.model, drafter.model
  config = decoder.config
  method = config.method if config.gamma else methods.METHODS['verifier_only']
  params = verifier.params, params
  return Target(models, params, method, decoder.suppress_tokens)


def score(
  decoder: sampler.Sampler,
  requests: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> list[Score]:
  """Scores continuations of contexts under the sampler's target.

  Compiled once per rows and lengths, both of which come in few sizes: see
  `batching.width` and `batching.bucket`.
  """
  scores = []
  results = by_size(decoder, _target(decoder), requests, _log_law)
  for (context, _), (logprobs, is_mode) in zip(requests, results, strict=True):
    for at in np.flatnonzero(np.isnan(logprobs))[:1]:
      method = faults.CULPRITS.index('method')
      faults.check(
        faults.Fault(method, len(context) + at),
        f'a context of {len(context)} and {len(logprobs)} more tokens',
      )
    total = math.fsum(logprobs.tolist())
    scores.append(Score(total, bool(is_mode.all())))
  return scores


def map_tokens(
  decoder: sampler.Sampler,
  requests: Sequence[tuple[Sequence[int], Sequence[int]]],
  token_fn: TokenFn,
  examined: Sequence[Sequence[int]] | None = None,
) -> list[tuple[np.ndarray, ...]]:
  """Applies a function to the distributions at each token of continuations."""
  target = target_of_both(decoder)
  return by_size(decoder, target, requests, token_fn, examined=examined)


def by_size(
  decoder, target, requests, token_fn, *, one_size=False, examined=None
) -> list[tuple[np.ndarray, ...]]:
  """Applies a function to requests, those of one size together.

  Args are those of `map_tokens`, but for `target`, the law, and `one_size`,
  which is True to pad all requests to one size.
  """
  requests = arguments.as_list('requests', requests, 'pairs of lists of ids')
  sizes = _sizes(decoder, requests)
  if one_size and sizes:
    sizes = [tuple(map(max, zip(*sizes, strict=True)))] * len(sizes)
  indices_by_size = collections.defaultdict(list)
  for i, size in enumerate(sizes):
    indices_by_size[size].append(i)
  results: list = [None] * len(requests)
  for size, indices in indices_by_size.items():
    for batch in itertools.batched(indices, decoder.config.batch_size):
      rows = [
        (*requests[i], requests[i][1] if examined is None else examined[i])
        for i in batch
      ]
      arrays = _read_rows(decoder, target, rows, size=size, token_fn=token_fn)
      for i, row_arrays in zip(batch, arrays, strict=True):
        results[i] = row_arrays
  return results


def inspect_tokens(
  decoder: sampler.Sampler,
  requests: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> list[list[TokenView]]:
  """Returns the view of each token of continuations.

  Meant for a few answers that a person reads: all are padded to one size, so
  that one program is compiled.
  """
  target = target_of_both(decoder)
  results = by_size(decoder, target, requests, _token_view, one_size=True)
  return [
    [TokenView(*row) for row in zip(*(x.tolist() for x in arrays), strict=True)]
    for arrays in results
  ]


def _sizes(decoder, requests) -> list[tuple[int, int]]:
  """Returns the padded lengths of each request: tokens read, tokens scored."""
  sizes = []
  vocab_size = decoder.verifier.model.vocab_size
  for i, request in enumerate(requests):
    if not _is_request(request, vocab_size):
      raise ValueError(
        f'request {i}: must be two lists of token ids from 0 to'
        f' {vocab_size - 1}, a context and its continuation, got'
        f' {arguments.quote(request)}.'
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
    # The last token is scored, and not read.
    sizes.append(
      (batching.bucket(length - 1, 64), batching.bucket(len(continuation), 8))
    )
  return sizes


def _is_request(request, vocab_size: int) -> bool:
  """True if a request is two lists of token ids of the vocabulary."""
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


def _read_rows(decoder, target, requests, *, size, token_fn):
  """Applies a function to requests of one size, in one pass; see `_read`."""
  length, scored_length = size
  rows = batching.width(len(requests), decoder.config.batch_size)
  padded = [*requests, *[((0,), (), ())] * (rows - len(requests))]
  contexts, continuations, examined = zip(*padded, strict=True)
  texts = [[*x, *y][:-1] for x, y in zip(contexts, continuations, strict=True)]
  tokens, _ = batching.pad(texts, length, length)
  scored, _ = batching.pad(examined, scored_length, scored_length)
  # A token is predicted at the position before it.
  starts = np.array([len(context) - 1 for context in contexts], np.int32)
  # JAX takes NumPy arrays too.
  arrays: Any = tokens, starts, scored
  results, culprits = sharding.fetch(
    _read(
      target.params,
      _Rows(*arrays),
      np.float32(decoder.config.effective_lenience),
      decoder.sampling_params(target.forbidden),
      models=target.models,
      evaluation=_Evaluation(target.method, decoder.config.gate, token_fn),
    )
  )
  for i, (context, continuation, _) in enumerate(requests):
    bad = culprits[i, : len(continuation)]
    if bad.any():
      at = int(bad.argmax())
      faults.check(
        faults.Fault(bad[at], len(context) + at),
        f'a context of {len(context)} and {len(continuation)} more tokens',
      )
  return [
    tuple(x[i, : len(continuation)] for x in results)
    for i, (_, continuation, _) in enumerate(requests)
  ]


def _log_law(method, d, lenience, token):
  """Returns the law's logprob of a token, and True if it is the largest."""
  pi = method.law(d, lenience)
  return jnp.log(pi[token]), pi[token] >= pi.max()


def _token_view(method, d, lenience, token):
  """Returns the fields of a `TokenView`, in order."""
  return (
    d.q[token],
    d.p[token],
    method.law(d, lenience)[token],
    value_at_token(method.rule, d, lenience, token) > 0,
    processing.argmax_lowest_id(d.q),
    processing.argmax_lowest_id(d.p),
  )


class _Rows(NamedTuple):
  """Texts to score, padded on the right."""

  tokens: Int[Array, 'B L']
  starts: Int[Array, 'B']
  scored: Int[Array, 'B N']


class _Evaluation(NamedTuple):
  """A function of the distributions at a token; a static argument."""

  method: methods.Method
  gate: str
  token_fn: TokenFn


@functools.partial(jax.jit, static_argnames=('models', 'evaluation'))
def _read(
  params: tuple[PyTree, ...],
  rows: _Rows,
  lenience: Float[Array, ''],
  sampling: processing.SamplingParams,
  *,
  models: tuple[Any, ...],
  evaluation: _Evaluation,
) -> tuple[tuple[Array, ...], Int[Array, 'B N']]:
  """Applies a function to the distributions at scored tokens."""
  row = functools.partial(
    _read_row,
    params=params,
    lenience=lenience,
    models=models,
    sampling=sampling,
    evaluation=evaluation,
  )
  return jax.vmap(row)(rows)


def _read_row(
  row: _Rows, *, params, lenience, models, sampling, evaluation
) -> tuple[tuple[Array, ...], Int[Array, 'N']]:
  """Reads one row; see `_read`."""
  zero, scored = jnp.zeros((), jnp.int32), row.scored
  last = len(row.tokens) - 1
  positions = jnp.minimum(row.starts + jnp.arange(scored.shape[0]), last)
  # Hidden states: the logits of all positions do not fit into memory.
  states = []
  for model, model_params in zip(models, params, strict=True):
    cache = model.init_cache(model_params, row.tokens.shape[0])
    _, hidden, _ = decoding.read_hidden(
      model, model_params, cache, row.tokens, position=zero
    )
    states.append(hidden[positions])

  def position_values(args):
    states, token = args
    # Computed once, for the function and for the check of soundness.
    logits = [
      model.unembed(model_params, hidden)
      for model, model_params, hidden in zip(
        models, params, states, strict=True
      )
    ]
    bad = ~jnp.stack(list(map(processing.is_sound, logits, states)))
    culprit = jnp.where(bad.any(), jnp.argmax(bad) + 1, 0)
    # A law that does not depend on q may be given any q.
    d = decoding.distributions(
      logits[-1], logits[0], sampling, gate=evaluation.gate
    )
    values = evaluation.token_fn(evaluation.method, d, lenience, token)
    return values, culprit

  at_once = max(1, MAX_PROBS_AT_ONCE // models[0].vocab_size)
  return jax.lax.map(
    position_values,
    (states, scored),
    batch_size=min(at_once, scored.shape[0]),
  )
