"""Phase: seconds of reading 1 to 17 tokens, and of a drafter's step.

Passes run in one compiled loop, so that the time of a launch is not counted.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import jax

from cascades import drafters
from cascades.models import memory
from experiments.accelerators import random_models
from experiments.accelerators.device_phases import Measurement, Sizes
from experiments.benchmarks import harness
from experiments.sweeps import costs

# Widths that are measured at all batch sizes before the other widths.
_FIRST_WIDTHS = 3


def plan(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of the phase."""
  # 0 is a drafter's step.
  first = *sizes.widths[:_FIRST_WIDTHS], 0
  for widths in first, sizes.widths[_FIRST_WIDTHS:]:
    models = itertools.product(sizes.batch_sizes, sizes.shapes, widths)
    for batch, name, width in models:
      label = f'reading {width}' if width else 'drafting'
      run = functools.partial(_read, width=width) if width else _draft
      yield Measurement(
        f'{name}, batch {batch}: {label}',
        functools.partial(run, sizes, name, batch),
      )


def _read(sizes: Sizes, name: str, batch: int, *, width: int) -> dict[str, Any]:
  """Times passes that read some tokens in each row."""
  model = random_models.load(name, sizes)
  loop = costs.forward_loop(model.checkpoint, width, sizes.context, rows=batch)
  # Each pass reads the weights, and every slot of all caches.
  cache = jax.eval_shape(
    lambda params: model.checkpoint.model.init_cache(params, sizes.context),
    model.checkpoint.params,
  )
  fields = {'shape': name, 'batch': batch, 'width': width, **model.facts}
  read_bytes = model.bytes + batch * memory.num_bytes(cache)
  return fields | {'bytes': read_bytes} | _time(loop, sizes)


def _draft(sizes: Sizes, name: str, batch: int) -> dict[str, Any]:
  """Times a drafter's step at temperature 1: a pass, and a draw."""
  model = random_models.load(name, sizes)
  checkpoint = model.checkpoint
  drafter = drafters.BoundDrafter(
    drafters.ModelDrafter(checkpoint.model), checkpoint.params
  )
  loop = costs.proposal_loop(
    checkpoint,
    drafter,
    gamma=sizes.gamma,
    drafts=1,
    context=sizes.context,
    rows=batch,
  )
  # A proposal of gamma tokens has as many steps, and one that reads the last.
  loop = loop._replace(calls=loop.calls * (sizes.gamma + 1))
  fields = {'shape': name, 'batch': batch, **model.facts}
  return fields | {'bytes': model.bytes} | _time(loop, sizes)


def _time(loop: costs.TimedLoop, sizes: Sizes) -> dict[str, Any]:
  """Compiles a loop, and times its runs."""
  first_s, _ = harness.timed(loop.run)
  runs = [harness.timed(loop.run)[0] for _ in range(sizes.repeats)]
  return {
    'pass_s': [seconds / loop.calls for seconds in runs],
    'compile_s': max(0.0, first_s - harness.median(runs)),
  }
