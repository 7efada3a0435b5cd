"""The suite 'assistants': what a drafter that looks into caches takes.

Of a verifier and an assistant with the shapes of published ones and random
weights, which a pass does not hang on:

  passes  A step of the assistant, with its logits of some groups of tokens, of
          all tokens, and without any; the verifier's pass over a token and over
          a block.
  floor   The steps and the pass of a block, one after the other, each token
          the likeliest, and nothing else.
  block   The same in the decoding loop: drawn at temperature 1, verified,
          counted.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from cascades import arguments, decoding
from cascades.drafters import assistants
from cascades.methods import processing
from cascades.models import checkpoints, language, panels
from experiments.benchmarks.bars import Bar, bar
from experiments.sweeps import costs

# Of a loop's turns, what counts: what else the machine does only adds.
_LOW = 0.1
# Numbers that weights are made of, over and over.
_BLOCK = 2**20


def check(config: ConfigDict) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: A number is out of its range.
  """
  for name in ('gamma', 'context', 'repeats'):
    arguments.whole(name, config[name], 1)
  checkpoints.check_dtype(config.dtype)
  if config.assistant not in assistants.PUBLISHED:
    known = ', '.join(assistants.PUBLISHED)
    raise ValueError(f'assistant: {config.assistant} is none of {known}.')


def _numbers(shape: Sequence[int], dtype: Any) -> jax.Array:
  """Weights of a shape; a product with them is about as large as its rows."""
  some = np.random.default_rng(0).normal(size=_BLOCK).astype(np.float32)
  scale = 1.0 if len(shape) == 1 else max(shape[-2:]) ** -0.5
  size = int(np.prod(shape))

  @jax.jit
  def made(some):
    times = -(-size // _BLOCK)
    return jnp.tile(scale * some, times)[:size].reshape(shape).astype(dtype)

  return made(some)


def verifier_of(shape: ConfigDict, dtype: str) -> checkpoints.Checkpoint:
  """A verifier of a shape, a tensor at a time, as a loaded one lies."""
  model = language.from_config(shape.to_dict(), jnp.dtype(dtype))
  packed = jax.default_backend() == 'cpu'

  def one(path, leaf):
    x, order = _numbers(leaf.shape, dtype), model.order(path)
    return panels.pack(x, order) if packed and order else x

  params = jax.tree_util.tree_map_with_path(one, model.param_shapes())
  model = dataclasses.replace(model, packed=packed)
  return checkpoints.Checkpoint(model, params, None)


def _assistant(name: str, dtype: str) -> assistants.Loaded:
  """An assistant of a published shape; its groups are of any tokens."""
  _, shapes = assistants.describe(name)
  tensors = {
    name: np.random.default_rng(1).permutation(leaf.shape[0])
    if name.endswith('ordering')
    else np.asarray(_numbers(leaf.shape, dtype))
    for name, leaf in shapes.items()
  }
  return assistants.of_tensors(name, tensors)


def _readings(
  verifier: checkpoints.Checkpoint, config: ConfigDict
) -> dict[str, costs.Loop]:
  """Bare passes of the verifier."""
  widths = {'verifier, a token': 1, 'verifier, a block': config.gamma + 1}
  return {
    name: costs.reading(verifier, width, config.context)
    for name, width in widths.items()
  }


def _stepping(
  verifier: checkpoints.Checkpoint, equipped: Any, config: ConfigDict, head: str
) -> costs.Loop:
  """Steps of the assistant, each of the token that the last one thought best.

  Args:
    verifier: Its caches are looked into.
    equipped: The assistant, and its parameters.
    config: Says how many tokens there are to look at.
    head: 'groups' as it is; 'all' for logits of all tokens; 'none' for none.
  """
  drafter = equipped.drafter
  if head == 'all':
    drafter = dataclasses.replace(drafter, top=None)
  model, calls = verifier.model, config.context

  @jax.jit
  def run(params):
    cache = model.init_cache(params[1], calls + 1)
    banks = drafter.banks(cache, jnp.int32(calls))

    def body(i, carry):
      state, token = carry
      at = jnp.int32(calls - 1)
      if head == 'none':
        state, _ = drafter.step(params, banks, at, state, token)
        return state, (jnp.abs(state[0]) * 97).astype(jnp.int32) % 97
      state, logits = drafter.step(params, banks, at, state, token)
      return state, processing.likeliest(logits)

    size = model.hidden_size(params[1])
    start = jnp.ones(size, model.dtype(params[1])), jnp.int32(5)
    return jax.lax.fori_loop(0, calls, body, start)

  return costs.Loop(run, (equipped.params,), calls)


def _floor(
  verifier: checkpoints.Checkpoint, equipped: Any, config: ConfigDict
) -> costs.Loop:
  """The steps of a block and its pass, block after block."""
  model, drafter, gamma = verifier.model, equipped.drafter, config.gamma
  size = gamma + 1
  count = max(1, config.context // size)

  @jax.jit
  def run(params):
    def body(i, carry):
      cache, hidden, token = carry
      at = i * size
      banks = drafter.banks(cache, at + 1)

      def step(carry, _):
        state, token = carry
        state, logits = drafter.step(params, banks, at, state, token)
        return (state, processing.likeliest(logits)), token

      end, tokens = jax.lax.scan(step, (hidden, token), None, gamma)
      tokens = jnp.append(tokens, end[1])
      logits, states, cache = decoding.read_hidden(
        model, params[1], cache, tokens, at
      )
      # As if all had been kept.
      token = processing.likeliest(logits.sum(0))
      return cache, states[-1], token

    width = model.hidden_size(params[1])
    start = (
      model.init_cache(params[1], count * size),
      jnp.ones(width, model.dtype(params[1])),
      jnp.int32(5),
    )
    return jax.lax.fori_loop(0, count, body, start)[1:]

  return costs.Loop(run, (equipped.params,), count)


def measure(
  config: ConfigDict, done: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
  """A row for every loop.

  Args:
    config: Says which shapes, and how long they are timed.
    done: Rows of an earlier run; if there are any, nothing is left to do.
  """
  if done:
    return
  verifier = verifier_of(config.verifier, config.dtype)
  equipped = _assistant(config.assistant, config.dtype).equip(verifier)
  loops = _readings(verifier, config)
  for head in ('groups', 'all', 'none'):
    made = _stepping(verifier, equipped, config, head)
    loops[f'a step, logits of {head}'] = made
  loops['floor'] = _floor(verifier, equipped, config)
  sizes = config.gamma, 1, None, config.context
  loops['block'], _ = costs.strict(verifier, equipped, *sizes)
  taken = costs.take_turns(loops, config.repeats, config.seconds)
  leaves = [jax.tree.leaves(x) for x in (verifier.params, equipped.params[0])]
  yield {
    'part': 'sizes',
    'layers': verifier.model.module.config.num_layers,
    'verifier_parameters': sum(x.size for x in leaves[0]),
    'assistant_parameters': sum(x.size for x in leaves[1]),
  }
  for what, seconds in taken.items():
    yield {
      'part': 'loops',
      'what': what,
      'turns': len(seconds),
      'call_s': float(np.quantile(seconds, _LOW)),
      'call_high_s': float(np.quantile(seconds, 1 - _LOW)),
    }


def calls(figures: Sequence[dict[str, Any]]) -> dict[str, float]:
  """Seconds of a call, by what it is of."""
  return {r['what']: r['call_s'] for r in figures if r['part'] == 'loops'}


def targets(figures: Sequence[dict[str, Any]]) -> list[Bar]:
  """What the figures are held to."""
  read = calls(figures)
  groups, whole = (read[f'a step, logits of {x}'] for x in ('groups', 'all'))
  return [
    bar(
      'a block by the floor of its passes',
      '<=',
      1.1,
      read['block'] / read['floor'],
    ),
    bar(
      'a step with some groups by one with all tokens',
      '<=',
      0.5,
      groups / whole,
    ),
  ]


def table(figures: Sequence[dict[str, Any]]) -> str:
  """A line per loop and per target."""
  sizes = figures[0]
  read = calls(figures)
  token = read['verifier, a token']
  lines = [
    f'{sizes["layers"]} layers, {sizes["verifier_parameters"] / 1e9:.2f}e9'
    f' parameters; the assistant {sizes["assistant_parameters"] / 1e6:.1f}e6',
    '',
    f'{"":28}{"ms":>9}{"by a token":>12}',
  ]
  lines += [
    f'{what:28}{1e3 * seconds:9.2f}{seconds / token:12.3f}'
    for what, seconds in read.items()
  ]
  lines.append('')
  lines += [
    f'{"met " if met else "MISSED"} {name} {bound}: {value}'
    for name, bound, value, met in targets(figures)
  ]
  return '\n'.join(lines)
