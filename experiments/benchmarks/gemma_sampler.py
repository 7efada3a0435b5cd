"""gemma's sampler in two parts, prefill and decoding, for comparisons."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from cascades.models import gemma_library, language


def split_sampler(
  model: language.LanguageModel,
  params: language.Params,
  prompts: Int[Array, 'B P'],
  *,
  cache_length: int,
  new_tokens: int,
) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
  """Makes the prefill and the greedy decoding of gemma's sampler.

  The router of a mixture of experts is patched here too (see `products`), as
  gemma's modules are compiled once for both samplers.
  """
  gm = gemma_library.import_gemma()
  from gemma.gm.text import _prefill, _sampler_loop
  from gemma.gm.utils import _types

  text = _types.Input(
    text=jnp.asarray(prompts),
    images=None,
    config=model.module.config.input_config,
  )
  loop = _sampler_loop.SamplerLoop(
    model=model.module,
    # No token ends a row, so that all rows have one length.
    end_tokens=(),
    forbidden_tokens=None,
    sampling=gm.text.Greedy(),
    cache_length=cache_length,
    special_tokens=gm.text.Gemma2Tokenizer.special_tokens,
  )

  @language.intercept_modules()
  def prefill():
    return _prefill.prefill(
      model=model.module,
      params=params,
      input=text,
      last_state=None,
      cache_length=cache_length,
      max_out_length=new_tokens,
      pad_length=prompts.shape[1],
      rng=jax.random.key(0),
      sharding=None,
    )

  @language.intercept_modules()
  def decode(state):
    return loop.sample(
      params=params, init_state=state, max_new_tokens=jnp.asarray(new_tokens)
    )

  return prefill, decode
