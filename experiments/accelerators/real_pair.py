"""Phase: a pair with trained weights, on the clock.

Gemma 3 270M translates captions with the drafter that was trained for it. The
phase says what to install if the model is not there; nothing is downloaded.
"""

import functools
import os
from collections.abc import Iterator
from typing import Any

import jax

from cascades import Sampler, drafters, load_model
from cascades.config import DecodingConfig
from experiments.accelerators.device_phases import Measurement, Sizes
from experiments.benchmarks import harness

_GERMAN = (
  'Ein Hund läuft durch den Schnee.',
  'Zwei Kinder spielen am Strand.',
  'Eine Frau liest ein Buch im Park.',
  'Ein Mann fährt mit dem Fahrrad zur Arbeit.',
  'Drei Mädchen singen auf einer Bühne.',
  'Ein Junge springt in das Wasser.',
  'Zwei Männer reparieren ein Dach.',
  'Eine Gruppe von Menschen wartet auf den Bus.',
)
_EXAMPLE = (
  'German: Eine Katze schläft auf dem Sofa.\n'
  'English: A cat is sleeping on the sofa.\n\n'
)
_ARMS = {
  'alone': dict(gamma=0),
  'strict': dict(method='speed', lenience=0.0, gamma=4),
  'token_v2': dict(method='token_v2', lenience=0.3, gamma=4),
}


def plan(sizes: Sizes) -> Iterator[Measurement]:
  """Yields the measurements of the phase."""
  for batch in sizes.loop_batch_sizes:
    run = functools.partial(_translate, sizes, batch)
    yield Measurement(f'{sizes.real[0]}, batch {batch}', run)


@functools.cache
def _models(names: tuple[str, str], dtype: str) -> tuple[Any, Any]:
  """Loads both models without a network."""
  os.environ['HF_HUB_OFFLINE'] = '1'
  verifier, drafter = names
  return load_model(verifier, dtype), drafters.parse_spec(drafter).load(dtype)


def _translate(sizes: Sizes, batch: int) -> dict[str, Any]:
  """Times the verifier alone and two methods, greedily, in turns."""
  dtype = 'float32' if jax.default_backend() == 'cpu' else sizes.dtype
  verifier, drafter = _models(sizes.real, dtype)
  prompts = [f'{_EXAMPLE}German: {x}\nEnglish:' for x in _GERMAN[:batch]]

  def entrant(name: str, options: dict[str, Any]) -> harness.Entrant:
    config = DecodingConfig(temperature=0.0, batch_size=batch, **options)
    sampler = Sampler(
      verifier, drafter if config.gamma else None, config=config
    )

    def run() -> dict[str, Any]:
      answers = sampler.sample(
        prompts, max_new_tokens=8 if sizes.tiny else 48, stop_strings=['\n']
      )
      counts = [answer.counts for answer in answers]
      examined = sum(x['examined'] for x in counts)
      return {
        'decode_s': sampler.usage.decode_s,
        'tokens': sum(len(answer.logprobs) for answer in answers),
        'acceptance': sum(x['accepted'] for x in counts) / examined
        if examined
        else None,
        'first': answers[0].tokens,
      }

    return harness.Entrant({'arm': name}, run)

  participants = [entrant(name, options) for name, options in _ARMS.items()]
  rows = harness.race(participants, sizes.repeats, 'turns', quiet=True)
  return {'batch': batch, 'dtype': dtype, 'rows': rows}
