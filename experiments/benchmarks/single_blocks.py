"""The suite 'methods': each one's acceptance and residual, and a block by it.

The unit is two softmaxes of the same size: what makes q and p of logits.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from cascades import arguments, methods, verification
from experiments import cli
from experiments.benchmarks import stopwatch
from experiments.benchmarks.digits import median

# A function that can be jitted, and what it is called with.
_Arm = tuple[Callable[..., Any], tuple[Any, ...]]


def check(config: ConfigDict) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: A number is out of its range.
  """
  for name in ('batch', 'vocab_size', 'repeats'):
    arguments.whole(name, config[name], 1)


class _Blocks(NamedTuple):
  """What every method is given.

  Attributes:
    zq: Logits of the drafter.
    zp: Logits of the verifier.
    dists: The distributions of these logits, gates included.
    keys: One for each sequence.
    draft: Token ids, the drafter's favourites.
    lenience: The same for all methods.
  """

  zq: Float[Array, 'B gamma_1 V']
  zp: Float[Array, 'B gamma_1 V']
  dists: methods.Distributions
  keys: jax.Array
  draft: Int[Array, 'B gamma']
  lenience: Float[Array, '']


def _random(config: ConfigDict) -> _Blocks:
  """Blocks of random logits."""
  batch, gamma = config.batch, config.gamma
  shape = (batch, gamma + 1, config.vocab_size)
  zq, zp = (
    3 * jax.random.normal(key, shape)
    for key in jax.random.split(jax.random.key(config.seed))
  )
  q, p = jax.nn.softmax(zq), jax.nn.softmax(zp)
  return _Blocks(
    zq,
    zp,
    # Gates of their own, as in the loop: four arrays are read.
    methods.Distributions(q, p, jnp.copy(q), jnp.copy(p), zp),
    jax.random.split(jax.random.key(config.seed + 1), batch),
    jnp.argmax(zq[:, :gamma], -1).astype(jnp.int32),
    jnp.float32(config.lenience),
  )


def _two_softmaxes(zq: Array, zp: Array) -> tuple[Array, Array]:
  return jax.nn.softmax(zq), jax.nn.softmax(zp)


def _functions(method: methods.Method, blocks: _Blocks) -> _Arm:
  """Acceptance and residual at every position."""

  def one(d, lenience):
    return method.acceptance(d, lenience), method.residual(d, lenience)

  over = jax.vmap(jax.vmap(one, (0, None)), (0, None))
  return over, (blocks.dists, blocks.lenience)


def _verification(method: methods.Method, blocks: _Blocks) -> _Arm:
  """Which drafts stay, and the token after them."""

  def one(key, draft, d, lenience):
    return verification.verify(
      method,
      lenience,
      key,
      draft[None],
      lambda i, j: jax.tree.map(lambda x: x[i], d),
    )

  over = jax.vmap(one, (0, 0, 0, None))
  return over, (blocks.keys, blocks.draft, blocks.dists, blocks.lenience)


def measure(
  config: ConfigDict, done: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
  """Figures of every arm, which take turns: all of them, or none.

  Args:
    config: Says how large blocks are, and which methods there are.
    done: Figures of an earlier run; if there are any, nothing is left to do.
  """
  if done:
    return
  blocks = _random(config)
  todo: dict[str, _Arm] = {
    'two softmaxes': (_two_softmaxes, (blocks.zq, blocks.zp))
  }
  for name in list(config.methods) or list(methods.METHODS):
    method = methods.get_method(name)
    todo[f'{name}: acceptance and residual'] = _functions(method, blocks)
    todo[f'{name}: verification'] = _verification(method, blocks)
  bar = cli.progress(len(todo) * (config.repeats + 2), 'compiling')
  arms, compiled = {}, {}
  for name, (fn, args) in todo.items():
    compile_s, run = stopwatch.compiled(jax.jit(fn), *args)
    compiled[name] = {
      'compile_s': compile_s,
      'temporary_bytes': run.memory_analysis().temp_size_in_bytes,
    }
    arms[name] = functools.partial(run, *args)
    bar.update()
  bar.set_description('timing')
  seconds = stopwatch.interleave(arms, config.repeats, bar)
  bar.close()
  unit = median(seconds['two softmaxes'])
  for name, times in seconds.items():
    yield {
      'arm': name,
      'median_s': median(times),
      'ratio': median(times) / unit,
      'seconds': times,
      **compiled[name],
    }


def table(figures: Sequence[dict[str, Any]]) -> str:
  """A line per arm."""
  lines = [f'{"":<42}{"median":>10}{"ratio":>8}{"spread":>16}{"temporary":>12}']
  for row in figures:
    low, high = min(row['seconds']), max(row['seconds'])
    spread = f'{low * 1e3:.0f} to {high * 1e3:.0f}'
    lines.append(
      f'{row["arm"]:<42}{row["median_s"] * 1e3:>7.0f} ms{row["ratio"]:>8.2f}'
      f'{spread:>16}{row["temporary_bytes"] / 1e6:>9.0f} MB'
    )
  return '\n'.join(lines)
