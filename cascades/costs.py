"""What one call of each model costs: the units of the modelled latency."""

import time
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import checkpoints, drafters
from cascades.metrics import Costs


def measure(
  verifier: checkpoints.Checkpoint,
  drafter: checkpoints.Checkpoint,
  gammas: Iterable[int],
  context: int = 128,
  repeats: int = 7,
) -> Costs:
  """Times bare forward passes of both models, one sequence, in compiled loops.

  Args:
    verifier: Read one token at a time, and gamma + 1 at a time.
    drafter: Read one token at a time.
    gammas: Block lengths to time the verifier at.
    context: Tokens in the cache at the end of a loop.
    repeats: Loops, the arms taking turns; medians are returned.

  Returns:
    Seconds per call.
  """
  arms = {
    'verifier': (verifier, 1),
    'drafter': (drafter, 1),
    **{gamma: (verifier, gamma + 1) for gamma in gammas if gamma},
  }
  loops = {
    name: _loop(checkpoint.model, width, context)
    for name, (checkpoint, width) in arms.items()
  }
  for name, loop in loops.items():
    jax.block_until_ready(loop(arms[name][0].params))
  seconds: dict[Any, list[float]] = {name: [] for name in arms}
  for _ in range(repeats):
    for name, loop in loops.items():
      start = time.perf_counter()
      jax.block_until_ready(loop(arms[name][0].params))
      calls = context // arms[name][1]
      seconds[name].append((time.perf_counter() - start) / calls)
  median = {name: float(np.median(values)) for name, values in seconds.items()}
  return Costs(
    verifier_token_s=median.pop('verifier'),
    drafter_token_s=median.pop('drafter'),
    verify_s=median,
  )


def _loop(model, width: int, context: int):
  """A compiled loop of forward passes that read `width` tokens each."""

  @jax.jit
  def run(params):
    def body(i, carry):
      cache, tokens = carry
      logits, cache = drafters.read(model, params, cache, tokens, i * width)
      # The next tokens depend on the logits, so that no pass is left out.
      return cache, jnp.argmax(logits, -1).astype(jnp.int32)

    tokens = jnp.full((width,), 5, jnp.int32)
    cache = model.init_cache(params, context)
    return jax.lax.fori_loop(0, context // width, body, (cache, tokens))

  return run
