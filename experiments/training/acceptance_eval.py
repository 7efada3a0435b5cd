"""Acceptance of drafters."""

from collections.abc import Sequence
from typing import Any

from cascades.config import DecodingConfig
from cascades.models import checkpoints
from cascades.sampler import sampler

# With more rows at a time, logits over a large vocabulary exceed a CPU's cache.
_BATCH_SIZE = 8


def measure_acceptance(
  verifier: checkpoints.Checkpoint,
  drafter: Any,
  prompts: Sequence[str],
  gamma: int,
  **sample_options: Any,
) -> dict[str, dict[str, float]]:
  """Measures acceptance and tokens per call of strict decoding."""
  figures = {}
  for temperature in (1.0, 0.0):
    strict_sampler = sampler.Sampler(
      verifier,
      drafter,
      config=DecodingConfig(
        method='speed',
        lenience=0.0,
        gamma=gamma,
        temperature=temperature,
        batch_size=_BATCH_SIZE,
      ),
    )
    answers = strict_sampler.sample(prompts, **sample_options)
    accepted, examined, calls = (
      sum(answer.counts[name] for answer in answers)
      for name in ('accepted', 'examined', 'verifier_calls')
    )
    emitted = sum(len(answer.logprobs) for answer in answers)
    figures[f'temperature {temperature:g}'] = {
      'acceptance': accepted / examined,
      'tokens per verifier call': emitted / calls,
    }
  return figures
