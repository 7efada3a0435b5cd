"""Samples of the compiled loop, and their distance from a law."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import PyTree
from scipy import special

from cascades import decoding
from cascades.methods import processing
from cascades.sampler import batching


def decode_curve(
  step_config: decoding.StepConfig,
  params: Sequence[PyTree],
  request: batching.BatchRequest,
  sampling: processing.SamplingParams,
  *,
  stop_tokens: Sequence[int] | np.ndarray = (-1,),
  capacity: int | None = None,
  return_logits: bool = False,
) -> decoding.Row:
  """Decodes every prompt at every lenience in one compiled loop."""
  prompts, keys, leniences, new, *_ = request
  # Prompts are padded to few lengths, so that few programs are compiled.
  longest = -(-max(map(len, prompts)) // 8) * 8
  padded, lengths = batching.pad(prompts, longest)
  paired = isinstance(leniences, np.ndarray)
  shape: tuple[int, ...] = (len(prompts),)
  if not paired:
    shape = len(prompts), len(leniences)
  params = decoding.Params(*params)
  capacity = new if capacity is None else capacity
  rows = decoding.prefill(
    params,
    decoding.Prompts(padded, lengths, keys, lengths + new),
    cache_length=padded.shape[1] + capacity + step_config.cache_headroom,
    logits_length=capacity + step_config.gamma + 1 if return_logits else 0,
    models=step_config.models,
  )
  leniences = np.asarray(leniences, np.float32)
  if not paired:
    repeated = np.repeat(np.arange(len(prompts)), shape[-1])
    rows = decoding.gather_rows(rows, repeated)
    leniences = np.tile(leniences, shape[0])
  rows = rows.replace(lenience=leniences)
  rows, _ = decoding.decode(
    rows,
    params,
    sampling,
    np.asarray(stop_tokens, np.int32),
    step_config=step_config,
  )
  rows = rows.replace(
    verifier_cache=None, drafter_state=None, hidden=None, key=None
  )
  rows = jax.tree.map(lambda x: x.reshape(shape + x.shape[1:]), rows)
  return jax.device_get(rows)


def z_scores(tokens: np.ndarray, law: np.ndarray) -> np.ndarray:
  """Computes z-scores of the counts of outcomes under a law.

  A count is binomial. Its z is the normal quantile of its mid-p tail, which
  includes half of the count's own probability. For large counts it equals
  (count - N law) / sqrt(N law (1 - law)), which has far too many large values
  for small counts.

  Outcomes with fewer than 10 expected counts are merged into one. An outcome of
  probability 0 that occurs has an infinite z.
  """
  n = len(tokens)
  counts = np.zeros(law.shape)
  np.add.at(counts, tuple(tokens.T), 1)
  if counts[law == 0].any():
    return np.array([np.inf])
  law = law / law.sum()
  counts, law = counts.ravel(), law.ravel()
  rare = n * law < 10
  counts = np.append(counts[~rare], counts[rare].sum())
  law = np.append(law[~rare], law[rare].sum())
  # Probabilities of fewer counts, and of as many or more.
  one_less, some = np.maximum(counts - 1, 0), counts > 0
  fewer = np.where(some, special.bdtr(one_less, n, law), 0)
  at_least = np.where(some, special.bdtrc(one_less, n, law), 1)
  lower = (fewer + special.bdtr(counts, n, law)) / 2
  upper = (at_least + special.bdtrc(counts, n, law)) / 2
  return np.where(lower < upper, special.ndtri(lower), -special.ndtri(upper))
