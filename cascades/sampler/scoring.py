"""Probabilities of given texts under a sampler's target, and of its drafts.

Nothing is sampled: both models read context and continuation, in one pass
each, and the method's law gives the probability of every token after those
before it,

  log pi(x_1 .. x_n | context) = sum_i log law(q_i, p_i)(x_i).

`Sampler.sample` draws from the same target: the law holds for every token,
whatever its block and verification, unless the drafter or the bonus token
changes it; such options are refused.

`map_tokens` evaluates any function of the distributions at each token. On it
stand `score`, and `explain`, why the drafts of an answer were accepted or
rejected.
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
  results = map_tokens(decoder, requests, _log_law, target)
  return [
    Score(math.fsum(logprobs.tolist()), bool(is_mode.all()))
    for logprobs, is_mode in results
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
  (arrays,) = map_tokens(decoder, requests, _decision, target, examined)
  has_q = len(target.models) > 1
  is_per_token = has_q and decoder.config.verification == 'token'
  deferred = answer.deferred or [None] * count
  explanations, errors = [], [0.0]
  for i, draft in enumerate(answer.drafts):
    q, p, pi, acceptance, logprob, *residual = (x[i].tolist() for x in arrays)
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
) -> list[tuple[np.ndarray, ...]]:
  """Applies a function to the distributions at each token of continuations.

  Compiled once per rows and lengths, both of which come in few sizes. `target`
  is the law; `examined` tokens take the place of a single continuation's.
  """
  vocab_size, limit = decoder.verifier.model.vocab_size, decoder.config
  indices_by_size = collections.defaultdict(list)
  for i, (context, continuation) in enumerate(requests):
    text = np.array([*context, *continuation])
    fits = len(text) <= limit.cache_length and len(context)
    if not fits or text.min() < 0 or text.max() >= vocab_size:
      raise ValueError(
        f'request {i}: its {len(text)} tokens, {len(context)} of them context,'
        ' must be one token or more of context, ids from 0 to'
        f' {vocab_size - 1}, and fit into cache_length {limit.cache_length}.'
      )
    # The last token is scored, and not read.
    read = batching.bucket(len(text) - 1, 64)
    size = read, batching.bucket(len(continuation), 8)
    indices_by_size[size].append(i)
  results: list = [None] * len(requests)
  for size, indices in indices_by_size.items():
    for batch in itertools.batched(indices, decoder.config.batch_size):
      rows = [(*requests[i], examined or requests[i][1]) for i in batch]
      arrays = _read_rows(decoder, target, rows, size=size, token_fn=token_fn)
      for i, row_arrays in zip(batch, arrays, strict=True):
        results[i] = row_arrays
  return results


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
  results, culprits = sharding.fetch(
    _read(
      target.params,
      (tokens, starts, scored),
      np.float32(decoder.config.effective_lenience),
      decoder.sampling_params(target.forbidden),
      models=target.models,
      method=target.method,
      gate=decoder.config.gate,
      token_fn=token_fn,
    )
  )
  for i, (context, continuation, _) in enumerate(requests):
    for at in np.flatnonzero(culprits[i, : len(continuation)])[:1]:
      faults.check(
        faults.Fault(culprits[i, at], len(context) + at),
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


def _decision(method, d, lenience, token):
  """Returns q, p, pi, a and log p of a token, and the residual's likeliest."""
  residual = method.residual(d, lenience)
  count = min(NUM_RESIDUAL_TOKENS, len(residual))
  probs, ids = jax.lax.top_k(residual, count)
  acceptance = value_at_token(method.acceptance, d, lenience, token)
  law = method.law(d, lenience)
  logprob = jax.nn.log_softmax(d.p_logits)[token]
  return d.q[token], d.p[token], law[token], acceptance, logprob, ids, probs


@functools.partial(
  jax.jit, static_argnames=('models', 'method', 'gate', 'token_fn')
)
def _read(
  params: tuple[PyTree, ...],
  rows: tuple[Int[np.ndarray | Array, 'B ...'], ...],
  lenience: Float[Array, ''] | np.float32,
  sampling: processing.SamplingParams,
  *,
  models: tuple[decoding.Model, ...],
  method: methods.Method,
  gate: str,
  token_fn: TokenFn,
) -> tuple[tuple[Array, ...], Int[Array, 'B N']]:
  """Reads rows of tokens, the position before the scored ones, and these."""
  pairs = list(zip(models, params, strict=True))

  def read_row(tokens, start, scored):
    last = len(tokens) - 1
    positions = jnp.minimum(start + jnp.arange(scored.shape[0]), last)
    zero = jnp.zeros((), jnp.int32)
    # Hidden states: the logits of all positions do not fit into memory.
    states = []
    for model, model_params in pairs:
      cache = model.init_cache(model_params, tokens.shape[0])
      _, hidden, _ = decoding.read_hidden(
        model, model_params, cache, tokens, position=zero
      )
      states.append(hidden[positions])

    def position_values(args):
      states, token = args
      # Computed once, for the function and for the check of soundness.
      logits = [
        model.unembed(model_params, hidden)
        for (model, model_params), hidden in zip(pairs, states, strict=True)
      ]
      # A law that does not depend on q may be given any q.
      d = decoding.distributions(logits[-1], logits[0], sampling, gate=gate)
      values = token_fn(method, d, lenience, token)
      bad = [~processing.is_sound(*x) for x in zip(logits, states, strict=True)]
      bad += [False] * (2 - len(bad)) + [jnp.isnan(values[0]).any()]
      bad = jnp.stack(bad)
      return values, jnp.where(bad.any(), jnp.argmax(bad) + 1, 0)

    at_once = max(1, MAX_PROBS_AT_ONCE // models[0].vocab_size)
    batch_size = min(at_once, scored.shape[0])
    return jax.lax.map(position_values, (states, scored), batch_size=batch_size)

  return jax.vmap(read_row)(*rows)
