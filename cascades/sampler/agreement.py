"""Draft greedily, check in one pass: how far do two models agree?

The drafter goes on from a prompt greedily; the verifier then reads prompt and
continuation in a single pass, and says at every place what it would have said.
Where they first differ is where greedy speculative decoding would have taken
over. Nothing is sampled, so this is the thing to look at before anything is.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from cascades import arguments
from cascades.drafters import pairing
from cascades.models import checkpoints, tokenizers
from cascades.sampler import batching, sampler

# Prompts that are read together.
_ROWS = 16


@dataclasses.dataclass(frozen=True)
class Place:
  """One token of a greedy continuation.

  Attributes:
    drafted: The drafter's token.
    wanted: The verifier's, after the same text.
    drafter_of_drafted: The drafter's probability of its own token.
    drafter_of_wanted: The drafter's of the verifier's token.
    verifier_of_drafted: The verifier's of the drafter's token.
    verifier_of_wanted: The verifier's of its own token.
  """

  drafted: int
  wanted: int
  drafter_of_drafted: float
  drafter_of_wanted: float
  verifier_of_drafted: float
  verifier_of_wanted: float

  @property
  def agree(self) -> bool:
    """Whether both want the same."""
    return self.drafted == self.wanted


@dataclasses.dataclass(frozen=True)
class Agreement:
  """How far a drafter's greedy continuation is the verifier's.

  Attributes:
    prompt: The text.
    places: The drafter's tokens, end-of-sequence included if it came before
      the limit.
    pieces: Their texts.
    ended: Whether the last of them is end-of-sequence.
  """

  prompt: str
  places: tuple[Place, ...]
  pieces: tuple[str, ...]
  ended: bool

  @property
  def matched(self) -> int:
    """Tokens before the first difference."""
    return next(
      (i for i, place in enumerate(self.places) if not place.agree),
      len(self.places),
    )

  @property
  def difference(self) -> Place | None:
    """Where they first differ; None if nowhere."""
    return None if self.whole else self.places[self.matched]

  @property
  def whole(self) -> bool:
    """Whether all tokens are the verifier's."""
    return self.matched == len(self.places)

  @property
  def share(self) -> float:
    """Of places where both want the same, given the drafter's text."""
    return float(np.mean([place.agree for place in self.places]))


@functools.partial(jax.jit, static_argnames='model')
def _say(model, params, tokens: Int[Array, 'B L'], asked: Int[Array, 'B N L']):
  """In one pass: the likeliest next tokens, [B, L], and their probabilities;
  then those of the tokens asked about, [B, N, L]."""

  def one(tokens, asked):
    positions = jnp.arange(tokens.shape[0])
    mask = positions[None] <= positions[:, None]
    logits, _ = model(params, tokens, positions, mask)
    probs = jax.nn.softmax(logits.astype(jnp.float32))
    return jnp.argmax(probs, -1), probs.max(-1), probs[positions, asked]

  return jax.vmap(one)(tokens, asked)


def agreement(
  pair: Sequence[checkpoints.Checkpoint | str],
  prompts: str | Sequence[str],
  max_new_tokens: int = 64,
) -> Agreement | list[Agreement]:
  """Checks the drafter's greedy continuations with the verifier.

  Args:
    pair: The verifier and the drafter, or their names.
    prompts: One text, or several.
    max_new_tokens: Most tokens of a continuation.

  Returns:
    An agreement for a single prompt, else a list of them.

  Raises:
    ValueError: The models do not go together, or a prompt does not fit.
  """
  known = str | checkpoints.Checkpoint
  given = arguments.listed('pair', pair, 'two models, or of their names')
  if len(given) != 2 or not all(isinstance(x, known) for x in given):
    raise ValueError(
      'pair: give two models, or their names: the verifier and the drafter.'
    )
  verifier, drafter = (
    checkpoints.load_model(x) if isinstance(x, str) else x for x in given
  )
  pairing.check_pair(verifier, drafter)
  single = isinstance(prompts, str)
  texts = [prompts]
  if not single:
    texts = arguments.listed('prompts', prompts, 'texts')
  answers = sampler.Sampler(drafter, gamma=0, temperature=0.0).sample(
    texts, max_new_tokens=max_new_tokens, echo=True
  )
  found = []
  for i in range(0, len(texts), _ROWS):
    some = answers[i : i + _ROWS]
    found += _check(drafter, verifier, texts[i : i + _ROWS], some)
  return found[0] if single else found


def _by_question(checkpoint, tokens, *asked):
  """What `_say` says, numpy, the tokens asked about one after the other."""
  best, of_best, of_asked = jax.device_get(
    _say(*checkpoint[:2], tokens, np.stack(asked, 1))
  )
  return best, of_best, of_asked.swapaxes(0, 1)


def _check(drafter, verifier, texts, answers) -> list[Agreement]:
  """Both models read prompts and continuations, once."""
  longest = max(len(answer.tokens) for answer in answers)
  tokens = np.zeros((_ROWS, batching.bucket(longest, 64)), np.int32)
  for row, answer in zip(tokens, answers, strict=False):
    row[: len(answer.tokens)] = answer.tokens
  drafted = np.roll(tokens, -1, axis=1)
  wanted, of_wanted, (of_drafted,) = _by_question(verifier, tokens, drafted)
  _, _, of_drafter = _by_question(drafter, tokens, drafted, wanted)
  both = *of_drafter, of_drafted, of_wanted
  found = []
  for j, (text, answer) in enumerate(zip(texts, answers, strict=True)):
    first = len(answer.tokens) - len(answer.logprobs)
    places = tuple(
      Place(
        int(drafted[j, t]),
        int(wanted[j, t]),
        *(float(values[j, t]) for values in both),
      )
      # What follows token t is said after reading it.
      for t in range(first - 1, len(answer.tokens) - 1)
    )
    pieces = tuple(drafter.tokenizer.pieces([p.drafted for p in places]))
    ended = bool(places) and places[-1].drafted == tokenizers.EOS
    found.append(Agreement(text, places, pieces, ended))
  return found
