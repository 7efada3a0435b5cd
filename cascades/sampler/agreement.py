"""Draft greedily, check in one pass: how far do two models agree?

The drafter goes on from a prompt greedily; the verifier then reads what it
wrote in a single pass, and says at every place what it would have said. Where
they first differ is where greedy speculative decoding would have taken over.
Nothing is sampled, so this is the thing to look at before anything is.

That is the first half of a block, of as many drafts as are asked for; so
whatever drafts can be looked at. Of a drafter that looks at the verifier where
a block begins, the continuation is what it makes of the prompt alone.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cascades import arguments, decoding, methods
from cascades.decoding import faults
from cascades.drafters import pairing
from cascades.methods import processing
from cascades.models import checkpoints, tokenizers
from cascades.sampler import batching

# Most prompts, and most numbers of logits, that are drafted after together.
_ROWS, _LOGITS = 16, 2**27


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
    return [*(place.agree for place in self.places), False].index(False)

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
    """Of places where both want the same; nan if nothing was drafted."""
    if not self.places:
      return float('nan')
    return float(np.mean([place.agree for place in self.places]))


@functools.partial(jax.jit, static_argnames='step_config')
def _say(
  rows: decoding.Row,
  params: decoding.Params,
  sampling: processing.SamplingParams,
  *,
  step_config: decoding.StepConfig,
) -> tuple[jax.Array, ...]:
  """A block of each row: what `Place` has, each [B, gamma], and their count.

  Also gives the first fault of each row.
  """

  def one(row):
    key = jax.random.key(0)
    proposed = decoding.propose(row, params, sampling, key, step_config)
    block = decoding.read_block(row, params, proposed, step_config)
    drafted = block.draft.tokens[0]
    of_drafter = jax.vmap(
      lambda i: block.draft.logits_at(i, 0, block.logits.shape[-1])
    )(jnp.arange(len(drafted)))
    of_drafter = jax.nn.softmax(of_drafter.astype(jnp.float32))
    of_verifier = jax.nn.softmax(block.logits[:-1].astype(jnp.float32))
    wanted = processing.argmax_lowest_id(of_verifier)

    def asked(of, tokens):
      return jnp.take_along_axis(of, tokens[:, None], 1)[:, 0]

    # Rows after the draft are padding.
    there = jnp.arange(len(drafted)) < block.draft.lengths[0]
    sound = processing.is_sound(block.logits[:-1], block.hidden[:-1])
    verifier_bad = there & ~sound
    fault = faults.locate(
      *(row, verifier_bad, proposed.drafter_bad[:-1], jnp.zeros_like(there)),
      emitted=jnp.int32(len(drafted)),
    )
    both = [asked(of_drafter, x) for x in (drafted, wanted)]
    both += [asked(of_verifier, x) for x in (drafted, wanted)]
    return drafted, wanted, *both, block.draft.lengths[0], fault

  return jax.vmap(one, axis_name=decoding.ROWS)(rows)


def agreement(
  pair: Sequence[Any],
  prompts: str | Sequence[str],
  max_new_tokens: int = 64,
) -> Agreement | list[Agreement]:
  """Checks the drafter's greedy continuations with the verifier.

  Args:
    pair: The verifier, a `Checkpoint` or its name; and what drafts, as
      `Sampler` takes it.
    prompts: One text, or several.
    max_new_tokens: Most tokens of a continuation.

  Returns:
    An agreement for a single prompt, else a list of them.

  Raises:
    ValueError: The models do not go together, or an argument will not do.
  """
  given = arguments.as_list('pair', pair, 'a verifier and what drafts for it')
  known = str | checkpoints.Checkpoint
  if len(given) != 2 or not isinstance(given[0], known):
    raise ValueError(
      'pair: give two models, or their names: the verifier and the drafter.'
    )
  verifier, drafter = given
  if isinstance(verifier, str):
    verifier = checkpoints.load_model(verifier)
  pairing.check_tokenizer(verifier, verifier.tokenizer)
  bound_drafter = pairing.bind_drafter(verifier, drafter)
  # They are drafted as one block, whose logits are one array.
  gamma = arguments.integer(
    'max_new_tokens',
    max_new_tokens,
    1,
    arguments.MAX_INT32 // verifier.model.vocab_size,
  )
  texts = [prompts]
  if not isinstance(prompts, str):
    texts = arguments.as_list('prompts', prompts, 'texts')
  for text in texts:
    arguments.instance('prompts', text, str, 'texts')
  models = decoding.Models(verifier.model, bound_drafter.drafter)
  # Which method would verify is nothing to us.
  strict = methods.get_method('speed')
  engine = batching.Engine(
    decoding.StepConfig(models, strict, gamma),
    decoding.Params(verifier.params, bound_drafter.params),
    processing.SamplingParams(temperature=np.float32(0)),
    np.zeros(0, np.int32),
  )
  found = list(_found(verifier.tokenizer, engine, texts))
  return found[0] if isinstance(prompts, str) else found


def _found(
  tokenizer: tokenizers.Tokenizer, engine: batching.Engine, texts: Sequence[str]
) -> Iterator[Agreement]:
  """Agreements of texts, some of them at a time."""
  gamma, size = engine.step_config.gamma, tokenizer.vocab_size
  rows = max(1, min(_ROWS, _LOGITS // (gamma * size)))
  prompts = [np.array(tokenizer.encode(text, add_bos=True)) for text in texts]
  room = max(map(len, prompts), default=0) + engine.step_config.cache_headroom
  for i in range(0, len(texts), rows):
    some = prompts[i : i + rows]
    # As many each time, so that nothing is compiled twice.
    some += [some[0]] * (rows - len(some))
    keys = jax.random.split(jax.random.key(0), rows)
    limits = [batching.bucket(room)] * rows
    read = engine.prefill(some, keys, limits, limits[0])
    said = _say(
      read, engine.params, engine.sampling, step_config=engine.step_config
    )
    *places, counts, found = jax.device_get(said)
    for j, text in enumerate(texts[i : i + rows]):
      fault = jax.tree.map(lambda x, j=j: x[j], found)
      faults.check(fault, f'prompt {i + j}')
      columns = [column[j, : counts[j]].tolist() for column in places]
      kept = []
      for place in itertools.starmap(Place, zip(*columns, strict=True)):
        kept.append(place)
        if place.drafted in tokenizer.stops:
          break
      pieces = tokenizer.token_strings([place.drafted for place in kept])
      ended = bool(kept) and kept[-1].drafted == tokenizers.EOS
      yield Agreement(text, tuple(kept), tuple(pieces), ended)
