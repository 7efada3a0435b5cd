"""Why the drafts of an answer were accepted or rejected.

`Sampler.sample` records the draft that was examined for each emitted token, and
the uniform number that it was compared with. Both models read the answer again,
in one pass each, for the probabilities that decided.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax

from cascades import arguments
from cascades.models.conversations import Prompt
from cascades.sampler import sampler, scoring
from cascades.sampler.outputs import SampleOutput
from cascades.verification.single_draft import value_at_token
from cascades.verification_config import DRAFT, RESIDUAL

# Likeliest tokens of a residual that an explanation has.
NUM_RESIDUAL_TOKENS = 5
# Differences of an acceptance that another shape of batch may make.
_ROUNDING = 1e-2


class Explanation(NamedTuple):
  """One emitted token, and the draft that was examined there.

  Fields of the draft are None if there is none; see `SampleOutput.drafts`.

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
    deferred: True if the rule defers the draft, False if there is none; None
      if the method has no rule.
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
    answer: An answer of `Sampler.sample` without `last_state` and
      `forbidden_tokens`.
    apply_chat_template: As it was for the answer.

  Raises:
    ValueError: The drafter is not a language model, or the answer was made by
      another sampler or from another prompt, as far as its drafts show.
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
  # With `echo` the prompt's tokens come first.
  first = len(answer.tokens) - count
  tokens, sources = answer.tokens[first:], answer.sources[first:]
  examined = [
    x if draft is None else draft
    for x, draft in zip(tokens, drafts, strict=True)
  ]
  (arrays,) = scoring.map_tokens(
    decoder,
    [(decoder.encode(prompt, apply_chat_template), tokens)],
    _evaluate,
    examined=[examined],
  )
  is_per_token = decoder.config.verification == 'token'
  deferred = answer.deferred or [None] * count
  explanations = []
  for i, draft in enumerate(drafts):
    q, p, pi, acceptance, *residual = (x[i].tolist() for x in arrays)
    candidates: list = []
    if is_per_token and sources[i] == RESIDUAL:
      candidates = [x for x in zip(*residual, strict=True) if x[1] > 0]
    values: tuple = (q, p, pi, acceptance if is_per_token else None)
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
    _check_decision(explanations[-1])
  return explanations


def _check_decision(explanation: Explanation) -> None:
  """Refuses an answer that another sampler made, or of another prompt.

  Raises:
    ValueError: The draft was decided otherwise than u < a says.
  """
  a, u = explanation.acceptance, explanation.uniform
  if a is None or u is None or abs(a - u) < _ROUNDING:
    return
  if (u < a) != (explanation.source == DRAFT):
    raise ValueError(
      f'answer: was not made by this sampler from this prompt (draft'
      f' {explanation.draft} has a {a:.3g} and u {u:.3g}, and source'
      f' {explanation.source}); give the sampler and the prompt of the answer.'
    )


def _evaluate(method, d, lenience, token):
  """Returns q, p, pi and a of a token, and the residual's likeliest tokens."""
  residual = method.residual(d, lenience)
  count = min(NUM_RESIDUAL_TOKENS, len(residual))
  probs, ids = jax.lax.top_k(residual, count)
  acceptance = value_at_token(method.acceptance, d, lenience, token)
  law = method.law(d, lenience)
  return d.q[token], d.p[token], law[token], acceptance, ids, probs
