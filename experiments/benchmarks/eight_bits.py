"""The suite 'eight_bits': a model in eight bits compared with one in floats.

Along the floats' greedy answers: KL divergence and agreement per token. The
suite `answering` times models of both dtypes.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from ml_collections import ConfigDict

from cascades import decoding, load_model
from cascades.config import DecodingConfig
from cascades.models import checkpoints
from cascades.sampler import sampler
from experiments.benchmarks import entrants
from experiments.records import stats

_FLOATS, _INT8 = 'float32', 'int8'


def check(config: ConfigDict) -> None:
  """Checks a config before anything is timed."""
  entrants.load_examples(config, 1)


def parts(
  config: ConfigDict,
) -> Iterator[tuple[dict[str, Any], Callable[[], list[dict[str, Any]]]]]:
  """Yields the only part."""
  yield {'part': 'distance'}, lambda: [_measure_distance(config)]


def _measure_distance(config: ConfigDict) -> dict[str, Any]:
  """Compares both verifiers on greedy answers, with 95 % intervals."""
  verifiers = {x: load_model(config.verifier, x) for x in (_FLOATS, _INT8)}
  examples = entrants.load_examples(config, config.num_compared)
  prompts = [x.prompt for x in examples]
  answers = sampler.Sampler(
    verifiers[_FLOATS],
    config=DecodingConfig(gamma=0, temperature=0.0, batch_size=8),
  ).sample(prompts, max_new_tokens=config.new_tokens, stop_tokens=[config.stop])
  rows = []
  for prompt, answer in zip(prompts, answers, strict=True):
    start = verifiers[_FLOATS].tokenizer.encode(prompt, add_bos=True)
    tokens = answer.tokens
    rows.append(_compare(verifiers, start, tokens, config.new_tokens))
  sums = np.array([[len(kl), kl.sum(), is_same.sum()] for kl, is_same in rows])
  triples = zip(
    _per_token(sums.sum(0)), *stats.bootstrap(sums, _per_token), strict=True
  )
  names = 'KL divergence per token', 'agreement per token'
  measures = {
    name: [float(x) for x in triple]
    for name, triple in zip(names, triples, strict=True)
  }
  return {'part': 'distance', 'answers': len(rows), 'measures': measures}


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


def tables(
  figures: Sequence[dict[str, Any]],
) -> list[list[dict[str, Any]]]:
  """Returns a row for each measure."""
  (figure,) = figures
  return [
    [
      {'measure': name, 'value': x, '95 % interval': f'{low:.4g} to {high:.4g}'}
      for name, (x, low, high) in figure['measures'].items()
    ]
  ]
