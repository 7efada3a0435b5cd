"""Phase: greedy strict decoding is the verifier; samples follow their law.

The models are the bundled pair, and tables whose laws are enumerated.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from cascades import Sampler, drafters, load_model, methods, verification
from cascades.config import DecodingConfig
from cascades.proof import sampled
from cascades.sampler.sampler import SampleOutput
from experiments import tasks
from experiments.accelerators.device_phases import Measurement, Sizes

# A rule with a single target, which every verification supports.
_METHOD = 'opt'
_NEW_TOKENS = 64
# Significant bits of bfloat16, the first of which is not stored.
_BITS = 8


def plan(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of the phase."""
  # A device may multiply float32 with fewer bits unless it is told not to.
  exact = functools.partial(_greedy, sizes, 'float32', 'highest')
  yield Measurement('greedy, float32', exact)
  entries = list(verification.VERIFICATIONS.items())
  for name, kind in entries[: sizes.laws or None]:
    config = verification.VerificationConfig(name + ':2' * bool(kind.window))
    yield Measurement(
      f'law, {config.verification}', functools.partial(_law, sizes, config)
    )
  rounded = functools.partial(_greedy, sizes, 'bfloat16', None)
  yield Measurement('greedy, bfloat16', rounded)
  if jax.default_backend() != 'cpu':
    fast = functools.partial(_greedy, sizes, 'float32', None)
    yield Measurement("greedy, float32 in the device's precision", fast)


def _greedy(sizes: Sizes, dtype: str, precision: str | None) -> dict[str, Any]:
  """Compares greedy strict decoding with the verifier alone."""
  verifier = load_model('tiny-verifier', dtype)
  drafter = drafters.load('tiny-drafter', dtype)
  greedy = functools.partial(DecodingConfig, temperature=0.0)
  verifier_sampler = Sampler(verifier, config=greedy(gamma=0))
  strict_sampler = Sampler(
    verifier, drafter, config=greedy(method='speed', lenience=0.0, gamma=4)
  )
  examples = tasks.TASKS['word_problems'].load(
    split='test', seed=0, num_examples=sizes.prompts
  )
  prompts = [example.prompt for example in examples]
  with jax.default_matmul_precision(precision or 'default'):
    reference, answers = (
      x.sample(prompts, max_new_tokens=_NEW_TOKENS, return_logits=True)
      for x in (verifier_sampler, strict_sampler)
    )
  pairs = zip(prompts, reference, answers, strict=True)
  divergences = [
    {'prompt': prompt, **divergence}
    for prompt, expected, answer in pairs
    if (divergence := first_divergence(expected, answer)) is not None
  ]
  tokens = sum(len(answer.tokens) for answer in answers)
  return {
    'prompts': len(prompts),
    'tokens': tokens,
    'divergences': divergences,
    'must_agree': precision == 'highest',
  }


def first_divergence(
  expected: SampleOutput, answer: SampleOutput
) -> dict[str, Any] | None:
  """Returns the first token in which an answer differs; None if none does."""
  tokens = list(zip(expected.tokens, answer.tokens, strict=False))
  differs = [i for i, (x, y) in enumerate(tokens) if x != y]
  if not differs:
    if len(expected.tokens) == len(answer.tokens):
      return None
    # The shorter answer was cut, without a token that differs.
    return {'position': len(tokens), 'tokens': [], 'gap': None, 'spacing': None}
  position = differs[0]
  second, first = np.sort(np.asarray(expected.logits[position], float))[-2:]
  return {
    'position': position,
    'tokens': list(tokens[position]),
    'gap': float(first - second),
    # The distance of neighbouring bfloat16 numbers there.
    'spacing': 2.0 ** (math.frexp(first)[1] - _BITS),
  }


def _law(
  sizes: Sizes, config: verification.VerificationConfig
) -> dict[str, Any]:
  """Compares samples of the compiled loop with the enumerated law."""
  method = methods.get_method(_METHOD)
  leniences = 0.2, 0.5
  (check,) = sampled.check_samples(method, leniences, sizes.samples, [config])
  return {
    'samples': sizes.samples,
    'z': min(check.value, 1e30),
    'agrees': check.passed,
    'detail': check.detail,
  }
