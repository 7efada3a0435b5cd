"""The suite 'sizes': what reading a block costs verifiers of several sizes.

Their weights are random: what a pass takes does not depend on them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from cascades import arguments
from cascades.models import checkpoints, language
from experiments.sweeps import costs

# Turns of each loop, at the least; and of their times, what counts.
_REPEATS = 15
_LOW = 0.1


def check(config: ConfigDict) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: There is no shape, or a number is out of its range.
  """
  if not config.verifiers:
    raise ValueError('verifiers: give at least one shape, by name.')
  if not config.gammas:
    raise ValueError('gammas: give at least one.')
  for gamma in config.gammas:
    arguments.whole('gammas', gamma, 1)
  arguments.whole('context', config.context, 1)


def _made(shape: ConfigDict, seed: int) -> checkpoints.Checkpoint:
  """A model with random weights, laid out as a loaded one is."""
  model = language.from_config(shape.to_dict())
  params = jax.jit(model.init_params)(jax.random.key(seed))
  made = checkpoints.Checkpoint(model, params, None)
  return made.packed() if jax.default_backend() == 'cpu' else made


def measure(
  config: ConfigDict, done: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
  """A row for every verifier, beside the one drafter.

  Args:
    config: Says which shapes, and how long each is timed.
    done: Rows of an earlier run, which are not measured again.
  """
  drafter = _made(config.drafter, config.seed)
  known = {row['name'] for row in done}
  for name in config.verifiers:
    if name in known:
      continue
    verifier = _made(config.verifiers[name], config.seed)
    loops = {
      gamma: costs.reading(verifier, gamma + 1, config.context)
      for gamma in (0, *config.gammas)
    }
    loops['drafter'] = costs.reading(drafter, 1, config.context)
    taken = costs.take_turns(loops, _REPEATS, config.seconds)
    low = {what: float(np.quantile(s, _LOW)) for what, s in taken.items()}
    leaves = jax.tree.leaves(verifier.params)
    yield {
      'name': name,
      'parameters': sum(x.size for x in leaves),
      'token_s': low[0],
      'token_high_s': float(np.quantile(taken[0], 1 - _LOW)),
      'drafter_by_token': low['drafter'] / low[0],
      'block_by_token': {
        str(gamma + 1): low[gamma] / low[0] for gamma in sorted(config.gammas)
      },
    }


def table(figures: Sequence[dict[str, Any]]) -> str:
  """A line per verifier."""
  return '\n'.join(
    f'{row["name"]:>8}  {row["parameters"] / 1e6:5.1f}M'
    f'  {1e3 * row["token_s"]:6.2f} ms a token; of that, the drafter'
    f' {row["drafter_by_token"]:.3f}, and a block of '
    + ', '.join(
      f'{size}: {ratio:.2f}' for size, ratio in row['block_by_token'].items()
    )
    for row in figures
  )
