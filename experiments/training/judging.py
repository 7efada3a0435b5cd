"""How much of a drafter's drafts a verifier keeps, strictly."""

from collections.abc import Sequence
from typing import Any

from cascades.models import checkpoints
from cascades.sampler import sampler

# More rows at a time, and on a CPU what is made of a large vocabulary lies in
# no cache.
_ROWS = 8


def strict(
  verifier: checkpoints.Checkpoint,
  drafter: Any,
  prompts: Sequence[str],
  gamma: int,
  temperature: float,
  **asked: Any,
) -> dict[str, float]:
  """Answers prompts.

  Args:
    verifier: Verifies.
    drafter: Drafts; whatever `Sampler` takes.
    prompts: Texts that neither was trained on.
    gamma: Tokens drafted per block.
    temperature: Of both.
    **asked: As for `Sampler.sample`.

  Returns:
    'acceptance', accepted by examined drafts, and 'tokens per verifier call'.
  """
  decoding = sampler.Sampler(
    verifier,
    drafter,
    method='speed',
    lenience=0.0,
    gamma=gamma,
    temperature=temperature,
    batch_size=_ROWS,
  )
  answers = decoding.sample(prompts, **asked)
  accepted, examined, calls = (
    sum(answer.counts[name] for answer in answers)
    for name in ('accepted', 'examined', 'verifier_calls')
  )
  emitted = sum(len(answer.logprobs) for answer in answers)
  return {
    'acceptance': accepted / examined,
    'tokens per verifier call': emitted / calls,
  }
