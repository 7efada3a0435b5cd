"""Laws as the compiled loop samples them, and how far off samples are."""

from collections.abc import Sequence
from typing import Any

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
  asked: batching.BatchRequest,
  sampling: processing.SamplingParams,
  *,
  stops: Sequence[int] | np.ndarray = (-1,),
  room: int | None = None,
  return_logits: bool = False,
  schedule: Any = None,
) -> decoding.Row:
  """Every prompt at every lenience through the compiled loop, at once.

  Args:
    step_config: Both models, and how their blocks are verified.
    params: The parameters of the verifier, then those of the drafter.
    asked: Prompts, keys and leniences; an array of leniences, [prompts], has
      one for each prompt, which is then decoded at that alone.
    sampling: Temperature, truncation and forbidden tokens.
    stops: Ids that end a row.
    room: For how many new tokens there is room, at least those asked for,
      which it is if None; runs that differ in those alone are then one program.
    return_logits: Whether the rows hold the verifier's logits.
    schedule: How leniences go along a row; None: they stay.

  Returns:
    Final rows, numpy, [prompts, leniences, ...], or [prompts, ...] of an
    array of leniences; without caches and keys.
  """
  prompts, keys, leniences, new, *_ = asked
  # Of few lengths, so that prompts of many compile once.
  longest = -(-max(map(len, prompts)) // 8) * 8
  padded, lengths = batching.pad(prompts, longest)
  paired = isinstance(leniences, np.ndarray)
  shape = (len(prompts),) if paired else (len(prompts), len(leniences))
  params = decoding.Params(*params)
  room = new if room is None else room
  rows = decoding.prefill(
    params,
    padded,
    lengths,
    keys,
    lengths + new,
    schedule,
    cache_length=padded.shape[1] + room + step_config.cache_headroom,
    logits_length=room + step_config.gamma + 1 if return_logits else 0,
    models=step_config.models,
  )
  leniences = np.asarray(leniences, np.float32)
  if not paired:
    rows = decoding.gather_rows(rows, np.repeat(np.arange(shape[0]), shape[1]))
    leniences = np.tile(leniences, shape[0])
  rows = rows.replace(lenience=leniences)
  rows, _ = decoding.decode(
    rows, params, sampling, np.asarray(stops, np.int32), step_config=step_config
  )
  rows = rows.replace(
    verifier_cache=None, drafter_state=None, hidden=None, key=None
  )
  rows = jax.tree.map(lambda x: x.reshape(shape + x.shape[1:]), rows)
  return jax.device_get(rows)


def z_scores(tokens: np.ndarray, law: np.ndarray) -> np.ndarray:
  """How far the counts of outcomes are from a law, in standard deviations.

  A count is binomial, and its z the normal's with the same tail, half of the
  count's own chance included; for large counts it is (count - N law) / sqrt(N
  law (1 - law)), which for small ones has far too many large values.

  Outcomes so rare that a count says little (fewer than 10 expected) are taken
  together; one that cannot be is infinitely far off.

  Args:
    tokens: [N, n], N independent outcomes of n tokens each.
    law: [V] * n, the probability of each outcome; scaled to sum to 1.

  Returns:
    [outcomes + 1], those that are not rare and the rare ones together; or a
    single inf.
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
  # The chances of fewer, and of as many or more.
  one_less, some = np.maximum(counts - 1, 0), counts > 0
  fewer = np.where(some, special.bdtr(one_less, n, law), 0)
  from_there = np.where(some, special.bdtrc(one_less, n, law), 1)
  lower = (fewer + special.bdtr(counts, n, law)) / 2
  upper = (from_there + special.bdtrc(counts, n, law)) / 2
  return np.where(lower < upper, special.ndtri(lower), -special.ndtri(upper))
