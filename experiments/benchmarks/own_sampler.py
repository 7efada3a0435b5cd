"""gemma's own sampler in its two parts, for comparisons."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from cascades.models import gemma_library, language, products


def in_two_parts(
  model: language.LanguageModel,
  params: language.Params,
  prompts: Int[Array, 'B P'],
  *,
  cache_length: int,
  new_tokens: int,
  temperature: float = 0.0,
) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
  """What reads prompts, and what goes on from there.

  A mixture's router is mended in it too (see `products`): gemma's modules are
  compiled once for both.

  Args:
    model: Samples.
    params: Its parameters, in gemma's order: `unpack`ed.
    prompts: Token ids, padded on the right.
    cache_length: Slots of its cache.
    new_tokens: So many are written, whatever they are.
    temperature: At which they are drawn; 0 is greedy.

  Returns:
    What reads the prompts and gives gemma's state; and what goes on from it.
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
    # None, so that every row writes as much.
    end_tokens=(),
    forbidden_tokens=None,
    sampling=(
      gm.text.RandomSampling(temperature=temperature)
      if temperature
      else gm.text.Greedy()
    ),
    cache_length=cache_length,
    special_tokens=gm.text.Gemma2Tokenizer.special_tokens,
  )

  @products.intercepted()
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

  @products.intercepted()
  def decode(state):
    return loop.sample(
      params=params,
      init_state=state,
      max_new_tokens=jnp.asarray(new_tokens),
    )

  return prefill, decode
