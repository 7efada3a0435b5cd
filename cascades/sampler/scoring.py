"""Probabilities of given texts under a sampler's target, and of its drafts.

Nothing is sampled: both models read the texts, a common beginning once, and the
method's law gives the probability of every token after those before it,

  log pi(x_1 .. x_n | context) = sum_i log law(q_i, p_i)(x_i).

`Sampler.sample` draws from the same target: the law holds for every token,
whatever its block and verification, unless the drafter or the bonus token
changes it; such options are refused.

`map_tokens` evaluates any function of the distributions at each token. On it
stand `score`, and `explain`, why the drafts of an answer were accepted or
rejected.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from cascades import decoding, methods
from cascades.decoding import faults
from cascades.methods import processing
from cascades.models import sharding
from cascades.models.chat import Prompt
from cascades.sampler import batching, sampler
from cascades.verification.single_draft import MAX_PROBS_AT_ONCE, value_at_token
from cascades.verification_config import DRAFT, RESIDUAL

# Called as (method, distributions, lenience, token) for one position. A first
# value that is nan is the method's fault.
TokenFn = Callable[..., tuple[Array, ...]]
# A context and its continuation, in token ids.
Request = tuple[Sequence[int], Sequence[int]]
# Likeliest tokens of a residual that an explanation has.
NUM_RESIDUAL_TOKENS = 5
# Differences that another shape of batch may make: of an acceptance, of a log-
# probability by dtype, and the share of decisions that it may change.
_ROUNDING, _DIFFER = 1e-2, 0.25
_LOGPROB_ROUNDING = {'float32': 1e-2, 'bfloat16': 1.0}


class Score(NamedTuple):
  """The natural logarithm of a continuation's probability.

  It is -inf where the target is 0 in float32, as it is for tokens that top-k or
  top-p drops. `is_greedy` if each token is a most probable one.
  """

  logprob: float
  is_greedy: bool


class Explanation(NamedTuple):
  """One emitted token, and the draft that was examined there.

  Fields of the draft are None if there is none; see `SampleOutput.drafts`. So
  are q and the acceptance if the drafter is not a language model.

  Attributes:
    token: Id of the emitted token.
    source: An index into `verification_config.SOURCES`.
    draft: Id of the draft.
    q: The draft's probability for the drafter, as those below after temperature
      and truncation.
    p: The draft's probability for the verifier.
    pi: The draft's probability in the method's law.
    acceptance: The probability a that the method accepts the draft; None for
      verifications other than 'token', as is the residual.
    uniform: The number u that a was compared with: accepted if u < a.
    deferred: See `SampleOutput.deferred`; None if the method has no rule.
    residual: At a residual token the likeliest tokens of the distribution that
      it was drawn from, as (id, probability).
  """

  token: int
  source: int
  draft: int | None
  q: float | None
  p: float | None
  pi: float | None
  acceptance: float | None
  uniform: float | None
  deferred: bool | None
  residual: Sequence[tuple[int, float]]


class Target(NamedTuple):
  """The target that texts are scored under: of one model or of both."""

  models: tuple[decoding.Model, ...]
  params: tuple[PyTree, ...]
  method: methods.Method
  forbidden: Sequence[int] = ()


def _target(
  decoder: sampler.Sampler,
  method: methods.Method,
  has_q: bool,
  forbidden: Sequence[int] = (),
) -> Target:
  """Returns a method's law with both models, or with the verifier alone."""
  verifier, bound = decoder.verifier, decoder.bound_drafter
  models, params = (verifier.model,), (verifier.params,)
  if has_q:
    drafter: Any = bound and bound.drafter
    if not sampler.is_language_model(bound):
      raise ValueError(
        f'drafter: {type(drafter).__name__} is not a language model, so that'
        ' the target of a given text is unknown; take a model, or a strict'
        ' lenience.'
      )
    drafter_params: PyTree = bound and bound.params
    if getattr(drafter, 'adaptive', False):
      # The threshold changes the lengths of drafts, not the law.
      drafter_params, _ = drafter_params
    models, params = (*models, drafter.model), (*params, drafter_params)
  return Target(models, params, method, forbidden)


def _target_of_text(decoder: sampler.Sampler) -> Target:
  """Returns the target that a sampler's texts are scored under."""
  config, method = decoder.config, decoder.config.method
  if config.temperature < processing.GREEDY_BELOW:
    raise ValueError(
      'temperature: must be above 0, since at 0 the target is one token and all'
      ' other tokens have probability 0; give a temperature above 0.'
    )
  if config.is_lossless:
    # The law is the verifier's, with any drafter and verification.
    method = methods.METHODS['verifier_only']
  elif (
    config.bonus == 'verifier' or not config.verification_config.kind.keeps_law
  ):
    raise ValueError(
      f'verification: with {config.verification!r} and bonus {config.bonus!r}'
      ' the law depends on where blocks begin, so that a text has no single'
      " probability; take 'token' or 'block', and bonus 'target'."
    )
  # The score of a text is the models', as in transformers: no id is forbidden.
  return _target(decoder, method, method.law_uses_q)


def explained_target(decoder: sampler.Sampler) -> Target:
  """Returns the target of answers; ValueError if it is not known."""
  config = decoder.config
  has_q = not config.is_lossless or sampler.is_language_model(
    decoder.bound_drafter
  )
  method = config.method
  if not has_q or not config.gamma:
    method = methods.METHODS['verifier_only']
  return _target(decoder, method, has_q, decoder.suppress_tokens)


def score(decoder: sampler.Sampler, requests: Sequence[Request]) -> list[Score]:
  """Scores continuations of contexts under the sampler's target."""
  target = _target_of_text(decoder)
  columns = map_tokens(decoder, requests, _log_law, target)
  ends = np.cumsum([len(continuation) for _, continuation in requests])
  parts = [np.split(column, ends[:-1]) for column in columns]
  return [
    Score(math.fsum(logprobs.tolist()), bool(is_mode.all()))
    for logprobs, is_mode in zip(*parts, strict=True)
  ]


def explain(
  decoder: sampler.Sampler,
  prompt: Prompt,
  answer: sampler.SampleOutput,
  *,
  apply_chat_template: bool = False,
) -> list[Explanation]:
  """Explains each emitted token of an answer, in their order.

  The probabilities are computed again, with another shape of batch: they equal
  those of the decoding up to rounding.

  Args:
    decoder: The sampler that made the answer, at its own lenience.
    prompt: The prompt of the answer.
    answer: An answer of `Sampler.sample` without `last_state` and
      `forbidden_tokens`.
    apply_chat_template: As it was for the answer.

  Raises:
    ValueError: The drafter is not a language model and decoding is lossy, or
      the answer was made by another sampler or from another prompt, as far as
      its numbers show.
  """
  target, count = explained_target(decoder), len(answer.logprobs)
  # With `echo` the prompt's tokens come first.
  new = slice(len(answer.tokens) - count, None)
  tokens, sources = answer.tokens[new], answer.sources[new]
  examined = [
    token if draft is None else draft
    for token, draft in zip(tokens, answer.drafts, strict=True)
  ]
  requests = [(decoder.encode(prompt, apply_chat_template), tokens)]
  columns = map_tokens(decoder, requests, _decision, target, examined)
  has_q = len(target.models) > 1
  is_per_token = has_q and decoder.config.verification == 'token'
  deferred = answer.deferred or [None] * count
  explanations, errors = [], [0.0]
  for i, draft in enumerate(answer.drafts):
    q, p, pi, acceptance, logprob, *residual = (x[i].tolist() for x in columns)
    if examined[i] == tokens[i]:
      errors.append(abs(logprob - answer.logprobs[i]))
    candidates: list = []
    if is_per_token and sources[i] == RESIDUAL:
      candidates = [x for x in zip(*residual, strict=True) if x[1] > 0]
    values = q if has_q else None, p, pi, acceptance if is_per_token else None
    explanations.append(
      Explanation(
        tokens[i],
        sources[i],
        draft,
        *((None,) * len(values) if draft is None else values),
        uniform=answer.accept_uniforms[i],
        deferred=deferred[i],
        residual=candidates,
      )
    )
  decided = [
    (x.uniform < x.acceptance) == (x.source == DRAFT)
    for x in explanations
    if x.acceptance is not None and x.uniform is not None
    if abs(x.acceptance - x.uniform) >= _ROUNDING
  ]
  error, flipped = max(errors), decided.count(False)
  dtype = str(decoder.verifier.model.dtype(decoder.verifier.params))
  if error > _LOGPROB_ROUNDING[dtype] or flipped > _DIFFER * len(decided):
    raise ValueError(
      'answer: was not made by this sampler from this prompt (log-probabilities'
      f' differ by up to {error:.3g}, {flipped} of {len(decided)} decisions);'
      ' give the sampler and the prompt of the answer.'
    )
  return explanations


def map_tokens(
  decoder: sampler.Sampler,
  requests: Sequence[Request],
  token_fn: TokenFn,
  target: Target,
  examined: Sequence[int] | None = None,
) -> list[np.ndarray]:
  """Applies a function to the distributions at each token of continuations.

  Returns its values as columns: a row for each token of all requests in turn.
  The function is compiled once, reading for few sizes of rows and lengths.
  `target` is the law; `examined` tokens take a single continuation's place.
  """
  vocab_size, config = decoder.verifier.model.vocab_size, decoder.config
  for i, (context, continuation) in enumerate(requests):
    text = np.array([*context, *continuation])
    fits = len(text) <= config.cache_length and len(context)
    if not fits or text.min() < 0 or text.max() >= vocab_size:
      raise ValueError(
        f'request {i}: its {len(text)} tokens, {len(context)} of them context,'
        ' must be one token or more of context, ids from 0 to'
        f' {vocab_size - 1}, and fit into cache_length {config.cache_length}.'
      )
  ends = np.cumsum([len(continuation) for _, continuation in requests])
  columns, at_once = list[np.ndarray](), 4 * config.batch_size
  sampling = decoder.sampling_params(target.forbidden)
  positions = _read_positions(config, target, requests, ends, examined)
  for part in itertools.batched(positions, at_once):
    rows, indices, at, tokens, states = zip(*part, strict=True)
    # The last part is filled up with its own positions.
    values, culprits = sharding.fetch(
      _map_positions(
        target.params,
        [np.resize(x, (at_once, len(x[0]))) for x in zip(*states, strict=True)],
        np.resize(tokens, at_once),
        np.float32(config.effective_lenience),
        sampling,
        models=target.models,
        method=target.method,
        gate=config.gate,
        token_fn=token_fn,
      )
    )
    for i in np.flatnonzero(culprits[: len(part)])[:1]:
      context, continuation = requests[indices[i]]
      faults.check(
        faults.Fault(culprits[i], at[i]),
        f'a context of {len(context)} and {len(continuation)} more tokens',
      )
    shapes = [(1 + ends[-1], *x.shape[1:]) for x in values]
    columns = columns or [*map(np.empty, shapes, [x.dtype for x in values])]
    for column, x in zip(columns, values, strict=True):
      column[[*rows]] = x[: len(rows)]
  return [column[:-1] for column in columns]


def _read_positions(config, target, requests, ends, examined):
  """Yields row, request, position and token, and the states before it."""
  prefix = batching.shared_prefix([context for context, _ in requests])
  size = len(prefix) + -len(prefix) % 16
  (tokens,), (start,) = batching.pad([prefix], size, size)
  caches = _read_prefix(target.params, tokens, start, models=target.models)
  order = sorted(range(len(requests)), key=lambda i: sum(map(len, requests[i])))
  # Of more rows the temporaries of long texts would take a gigabyte.
  for batch in itertools.batched(order, min(32, config.batch_size)):
    # The last token is scored, and not read.
    texts = [[*itertools.chain(*requests[i])][start:-1] for i in batch]
    texts += [[]] * (batching.width(len(batch), config.batch_size) - len(batch))
    rows, _ = batching.pad(texts, config.cache_length)
    states = _read(target.params, caches, rows, start, models=target.models)
    states = sharding.fetch(states)
    for n, i in enumerate(batch):
      context, continuation = requests[i]
      # A continuation of no tokens has one in the last row, which is dropped.
      rows = [*range(ends[i] - len(continuation), ends[i])] or [-1]
      scored = zip(rows, [*(examined or continuation)] or [0], strict=True)
      for at, (row, token) in enumerate(scored, len(context)):
        yield row, i, at, token, [x[n, at - 1 - start] for x in states]


def _log_law(method, d, lenience, token):
  """Returns the law's logprob of a token, and True if it is the largest."""
  pi = method.law(d, lenience)
  return jnp.log(pi[token]), pi[token] >= pi.max()


def _decision(method, d, lenience, token):
  """Returns q, p, pi, a and log p of a token, and the residual's likeliest."""
  residual = method.residual(d, lenience)
  count = min(NUM_RESIDUAL_TOKENS, len(residual))
  probs, ids = jax.lax.top_k(residual, count)
  acceptance = value_at_token(method.acceptance, d, lenience, token)
  law = method.law(d, lenience)
  logprob = jax.nn.log_softmax(d.p_logits)[token]
  return d.q[token], d.p[token], law[token], acceptance, logprob, ids, probs


@functools.partial(jax.jit, static_argnames='models')
def _read_prefix(params, tokens, length, *, models):
  """Returns each model's cache of the first `length` tokens, or of none."""
  caches, zero = [], jnp.zeros((), jnp.int32)
  for model, model_params in zip(models, params, strict=True):
    cache = model.init_cache(model_params, len(tokens))
    if len(tokens):
      *_, cache = decoding.read_hidden(
        model, model_params, cache, tokens, position=zero
      )
    caches.append(model.rewind(cache, length))
  return caches


@functools.partial(jax.jit, static_argnames='models')
def _read(params, caches, rows, start, *, models):
  """Returns each model's states, [B, L, D], of rows that follow a prefix."""

  def read_row(tokens):
    # The logits of all positions do not fit into memory.
    states = []
    for model, model_params, cache in zip(models, params, caches, strict=True):
      length = model.cache_length(cache) + len(tokens)
      cache = model.resize(model_params, cache, length)
      _, hidden, _ = decoding.read_hidden(
        model, model_params, cache, tokens, position=start
      )
      states.append(hidden)
    return states

  return jax.vmap(read_row)(rows)


@functools.partial(
  jax.jit, static_argnames=('models', 'method', 'gate', 'token_fn')
)
def _map_positions(
  params, states, tokens, lenience, sampling, *, models, method, gate, token_fn
):
  """Applies a function to N positions; returns the culprit at each, too."""
  # Tables are read once for all positions. Distributions of few positions at a
  # time stay in a CPU's cache.
  logits = [
    jax.vmap(functools.partial(model.unembed, model_params))(hidden)
    for model, model_params, hidden in zip(models, params, states, strict=True)
  ]

  def map_position(args):
    logits, states, token = args
    # A law that does not depend on q may be given any q.
    d = decoding.distributions(logits[-1], logits[0], sampling, gate=gate)
    values = token_fn(method, d, lenience, token)
    bad = [~processing.is_sound(*x) for x in zip(logits, states, strict=True)]
    bad += [False] * (2 - len(bad)) + [jnp.isnan(values[0]).any()]
    bad = jnp.stack(bad)
    return values, jnp.where(bad.any(), jnp.argmax(bad) + 1, 0)

  size = min(len(tokens), max(1, MAX_PROBS_AT_ONCE // models[0].vocab_size))
  return jax.lax.map(map_position, (logits, states, tokens), batch_size=size)
