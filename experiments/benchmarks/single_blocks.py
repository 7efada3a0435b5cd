"""Each method's acceptance and residual, and its verification of a block."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import methods, verification
from experiments import cli


def check(config) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: A number is out of its range.
  """
  for name in ('batch', 'vocab_size', 'repeats'):
    if config[name] < 1:
      raise ValueError(f'{name}: {config[name]} will not do; give 1 or more.')


def interleave(
  arms: Mapping[str, Callable[[], Any]], repeats: int, bar
) -> dict[str, list[float]]:
  """Seconds of every arm, the arms taking turns; the first turn is left out.

  Args:
    arms: Functions of nothing that return arrays.
    repeats: Turns that count.
    bar: Moved on by one for each turn of an arm.
  """
  seconds: dict[str, list[float]] = {name: [] for name in arms}
  for turn in range(repeats + 1):
    for name, run in arms.items():
      start = time.perf_counter()
      jax.block_until_ready(run())
      if turn:
        seconds[name].append(time.perf_counter() - start)
      bar.update()
  return seconds


def measure(config, done: Sequence[dict[str, Any]] = ()) -> Iterator[dict]:
  """Figures of every arm, which take turns: all of them, or none.

  The unit is two softmaxes of the same size: what makes q and p of logits.
  """
  if done:
    return
  batch, gamma, size = config.batch, config.gamma, config.vocab_size
  names = list(config.methods) or list(methods.METHODS)
  shape = (batch, gamma + 1, size)
  zq, zp = (
    3 * jax.random.normal(key, shape)
    for key in jax.random.split(jax.random.key(config.seed))
  )
  q, p = jax.nn.softmax(zq), jax.nn.softmax(zp)
  # Gates of their own, as in the loop: four arrays are read.
  dists = methods.Distributions(q, p, jnp.copy(q), jnp.copy(p))
  keys = jax.random.split(jax.random.key(config.seed + 1), batch)
  draft = jnp.argmax(zq[:, :gamma], -1).astype(jnp.int32)
  lenience = jnp.float32(config.lenience)

  def two_softmaxes(zq, zp):
    return jax.nn.softmax(zq), jax.nn.softmax(zp)

  def functions(method):
    def one(d, lenience):
      return method.acceptance(d, lenience), method.residual(d, lenience)

    over = jax.vmap(jax.vmap(one, (0, None)), (0, None))
    return over, (dists, lenience)

  def verify(method):
    def one(key, draft, d, lenience):
      return verification.verify(
        method,
        lenience,
        key,
        draft[None],
        lambda i, j: jax.tree.map(lambda x: x[i], d),
      )

    return jax.vmap(one, (0, 0, 0, None)), (keys, draft, dists, lenience)

  todo = {'two softmaxes': (two_softmaxes, (zq, zp))}
  for name in names:
    method = methods.get_method(name)
    todo[f'{name}: acceptance and residual'] = functions(method)
    todo[f'{name}: verification'] = verify(method)
  bar = cli.progress(len(todo) * (config.repeats + 2), 'compiling')
  arms, compiled = {}, {}
  for name, (fn, args) in todo.items():
    start = time.perf_counter()
    exe = jax.jit(fn).lower(*args).compile()
    compiled[name] = {
      'compile_s': time.perf_counter() - start,
      'temporary_bytes': exe.memory_analysis().temp_size_in_bytes,
    }
    arms[name] = lambda exe=exe, args=args: exe(*args)
    bar.update()
  bar.set_description('timing')
  seconds = interleave(arms, config.repeats, bar)
  bar.close()
  unit = float(np.median(seconds['two softmaxes']))
  for name, times in seconds.items():
    yield {
      'arm': name,
      'median_s': float(np.median(times)),
      'ratio': float(np.median(times)) / unit,
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
