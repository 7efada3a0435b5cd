"""Why the drafts of an answer were accepted or rejected.

`Sampler.sample` records the draft that was examined for each emitted token, and
the uniform number that it was compared with. Both models read the answer again,
in one pass each, for the probabilities that decided.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax

from cascades import arguments, methods
from cascades.models.conversations import Prompt
from cascades.sampler import sampler, scoring
from cascades.sampler.outputs import SampleOutput
from cascades.verification.single_draft import value_at_token
from cascades.verification_config import DRAFT, RESIDUAL

# Likeliest tokens of a residual that an explanation has.
NUM_RESIDUAL_TOKENS = 5
# Differences that another shape of batch may make: of an acceptance, of a log-
# probability by dtype, and the share of decisions that it may change.
_ROUNDING, _DIFFER = 1e-2, 0.25
_LOGPROB_ROUNDING = {'float32': 1e-2, 'bfloat16': 1.0}


class Explanation(NamedTuple):
  """One emitted token, and the draft that was examined there.

  Fields of the draft are None if there is none; see `SampleOutput.drafts`. So
  are q and the acceptance if the drafter is not a language model.

  Attributes:
    token: Id of the emitted token.
    source: An index into `verification_config.SOURCES`.
    draft: Id of the draft.
    q: The draft's probability under the drafter, after temperature and
      truncation.
    p: The draft's probability under the verifier, after the same.
    pi: The draft's probability in the method's law.
    acceptance: The probability a with which the method accepts the draft; None
      for verifications other than 'token'.
    uniform: The number u that a was compared with; the draft is accepted if
      u < a.
    deferred: See `SampleOutput.deferred`; None if the method has no rule.
    residual: At a residual token the likeliest tokens of the distribution that
      it was drawn from, as (id, probability). Empty elsewhere, and for
      verifications other than 'token'.
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


def explained_target(decoder: sampler.Sampler) -> scoring.Target:
  """Returns the target of explanations; ValueError if it is not known."""
  config, verifier = decoder.config, decoder.verifier
  is_model = scoring.is_language_model(decoder.bound_drafter)
  if is_model or not config.is_lossless:
    return scoring.target_of_both(decoder)
  method = methods.METHODS['verifier_only']
  models, params = (verifier.model,), (verifier.params,)
  return scoring.Target(models, params, method, decoder.suppress_tokens)


def explain(
  decoder: sampler.Sampler,
  prompt: Prompt,
  answer: SampleOutput,
  *,
  apply_chat_template: bool = False,
) -> list[Explanation]:
  """Explains each emitted token of an answer, in their order.

  The probabilities are computed again, with another shape of batch: they equal
  those of the decoding up to rounding.

  Args:
    decoder: The sampler that made the answer, at its own lenience.
    prompt: The prompt of the answer.
    answer: An answer of `Sampler.sample` without `last_state`,
      `forbidden_tokens` and `allow_control_tokens`.
    apply_chat_template: As it was for the answer.

  Raises:
    ValueError: The drafter is not a language model and decoding is lossy, or
      the answer was made by another sampler or from another prompt, as far as
      its numbers show.
  """
  arguments.instance(
    'answer', answer, SampleOutput, 'an answer of Sampler.sample'
  )
  drafts, count = answer.drafts, len(answer.logprobs)
  if len(drafts) != count:
    raise ValueError(
      f'answer: has {len(drafts)} drafts for {count} tokens; give an answer as'
      ' Sampler.sample returns it.'
    )
  target = explained_target(decoder)
  # With `echo` the prompt's tokens come first.
  first = len(answer.tokens) - count
  tokens, sources = answer.tokens[first:], answer.sources[first:]
  pairs = zip(tokens, drafts, strict=True)
  examined = [token if draft is None else draft for token, draft in pairs]
  requests = [(decoder.encode(prompt, apply_chat_template), tokens)]
  (arrays,) = scoring.by_size(
    decoder, target, requests, _evaluate, examined=[examined]
  )
  has_q = len(target.models) > 1
  is_per_token = has_q and decoder.config.verification == 'token'
  deferred = answer.deferred or [None] * count
  explanations, errors = [], [0.0]
  for i, draft in enumerate(drafts):
    q, p, pi, acceptance, logprob, *residual = (x[i].tolist() for x in arrays)
    if examined[i] == tokens[i]:
      errors.append(abs(logprob - answer.logprobs[i]))
    candidates: list = []
    if is_per_token and sources[i] == RESIDUAL:
      candidates = [x for x in zip(*residual, strict=True) if x[1] > 0]
    values: tuple = q if has_q else None, p, pi
    values += (acceptance if is_per_token else None,)
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
  dtype = decoder.verifier.model.dtype(decoder.verifier.params)
  _check_answer(explanations, max(errors), _LOGPROB_ROUNDING[str(dtype)])
  return explanations


def _check_answer(
  explanations: list[Explanation], error: float, tolerance: float
) -> None:
  """Refuses an answer that another sampler made, or of another prompt."""
  decisions = [(x.acceptance, x.uniform, x.source) for x in explanations]
  decided = [
    (u < a) == (source == DRAFT)
    for a, u, source in decisions
    if a is not None and u is not None and abs(a - u) >= _ROUNDING
  ]
  if error > tolerance or decided.count(False) > _DIFFER * len(decided):
    raise ValueError(
      'answer: was not made by this sampler from this prompt (log-probabilities'
      f' differ by up to {error:.3g}, {decided.count(False)} of {len(decided)}'
      ' decisions); give the sampler and the prompt of the answer.'
    )


def _evaluate(method, d, lenience, token):
  """Returns q, p, pi, a and log p of a token, and the residual's likeliest."""
  residual = method.residual(d, lenience)
  count = min(NUM_RESIDUAL_TOKENS, len(residual))
  probs, ids = jax.lax.top_k(residual, count)
  acceptance = value_at_token(method.acceptance, d, lenience, token)
  law = method.law(d, lenience)
  logprob = jax.nn.log_softmax(d.p_logits)[token]
  return d.q[token], d.p[token], law[token], acceptance, logprob, ids, probs
