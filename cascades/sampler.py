"""Strings in, strings and counts out; names as in `gm.text.Sampler`."""

import collections
import dataclasses
import math
import operator
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from cascades import (
  checkpoints,
  decoding,
  drafters,
  methods,
  sampling,
  tokenizers,
)
from cascades.verification import RESIDUAL, Scheme


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
  """What came out for one prompt; tokens after end-of-sequence are nowhere.

  Attributes:
    text: The answer; without stop tokens, and without the prompt unless
      `echo` was set.
    tokens: Ids, the stop token included; with `echo`, the prompt's before.
    pieces: The text of each token.
    sources: For each token, where it came from: an index into
      `records.SOURCES` (prompt, draft, residual, bonus).
    logprobs: The verifier's log-probability of each emitted token, at
      temperature 1 and before truncation, whatever was sampled from.
    logits: [emitted tokens, V], the verifier's, float32; None unless asked
      for.
    counts: Token and call counts, named as the fields of `records.Record`.
  """

  text: str
  tokens: list[int]
  pieces: list[str]
  sources: list[int]
  logprobs: list[float]
  logits: np.ndarray | None
  counts: dict[str, int]

  @property
  def acceptance_rate(self) -> float:
    """Accepted per examined token; nan if none was examined."""
    if not self.counts['examined']:
      return math.nan
    return self.counts['accepted'] / self.counts['examined']

  @property
  def block_efficiency(self) -> float:
    """Emitted tokens per verifier call; nan if there was none."""
    if not self.counts['verifier_calls']:
      return math.nan
    return len(self.logprobs) / self.counts['verifier_calls']


def _bucket(n: int) -> int:
  """The shape that n tokens are padded to: few shapes, little padding."""
  size = 16
  while size < n:
    size += 16 if size < 128 else size // 2
  return size


def _number(name: str, value, low: float, high: float) -> float:
  """Checks that low <= value <= high, which nan never is."""
  try:
    number = float(value)
  except (TypeError, ValueError):
    number = math.nan
  if not low <= number <= high:
    raise ValueError(
      f'{name}: {value!r} will not do; give a number from {low:g} to {high:g}.'
    )
  return number


def _whole(name: str, value, low: int) -> int:
  if isinstance(value, bool) or value != value or int(value) != value:
    raise ValueError(f'{name}: {value!r} is not a whole number.')
  if value < low:
    raise ValueError(f'{name}: {value!r} will not do; give {low} or more.')
  return int(value)


def check_options(
  *,
  method: str | methods.Method,
  lenience: float,
  gamma: int,
  temperature: float,
  top_k: int | None = None,
  top_p: float | None = None,
  cache_length: int = 4096,
  verification: str = 'token',
  gate: str = 'raw',
  bonus: str = 'target',
) -> dict[str, Any]:
  """A `Sampler`'s options as it uses them, without its models.

  Raises:
    ValueError: One is out of its range; one sentence says which.
  """
  method = methods.get_method(method)
  scheme = Scheme(verification=verification, gate=gate, bonus=bonus)
  scheme.check(method)
  return dict(
    method=method,
    scheme=scheme,
    lenience=_number('lenience', lenience, -math.inf, math.inf),
    gamma=_whole('gamma', gamma, 0),
    temperature=_number('temperature', temperature, 0, 1e6),
    top_k=None if top_k is None else _whole('top_k', top_k, 1),
    top_p=None if top_p is None else _number('top_p', top_p, 0, 1),
    cache_length=_whole('cache_length', cache_length, 1),
  )


class Sampler:
  """Decodes prompts with a verifier, a drafter and a method.

  Args:
    verifier: A `Checkpoint` from `load_model`, or a name for it.
    drafter: Likewise; None only with gamma = 0, plain decoding with the
      verifier.
    tokenizer: Of both models; None takes the verifier's.
    method: A name in `METHODS`, an alias of the paper's notebook, or a
      `Method`.
    lenience: The method's; see `Method.strict` and `Method.drafter_only`.
    gamma: Tokens drafted per block, >= 0.
    temperature: Of both models; 0 is greedy.
    top_k: Keep the k most probable tokens of both models.
    top_p: Keep the most probable tokens that hold this mass, of both models.
    cache_length: Most tokens a sequence may have, prompt included.
    verification: 'token', 'block' or 'sequential'; see `verification.Scheme`,
      also for the next two.
    gate: Whether deferral rules see 'raw' or 'processed' probabilities.
    bonus: Whether the token after a whole block is drawn from the 'target' or
      from the 'verifier'.

  Raises:
    ValueError: A value is out of its range, or the models do not share a
      tokenizer; one sentence says which and what to do.
  """

  def __init__(
    self,
    verifier: checkpoints.Checkpoint | str,
    drafter: checkpoints.Checkpoint | str | None = None,
    tokenizer: tokenizers.Tokenizer | None = None,
    *,
    method: str | methods.Method = 'token_v3',
    lenience: float = 0.5,
    gamma: int = 4,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    cache_length: int = 4096,
    verification: str = 'token',
    gate: str = 'raw',
    bonus: str = 'target',
  ):
    options = check_options(
      method=method,
      lenience=lenience,
      gamma=gamma,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
      cache_length=cache_length,
      verification=verification,
      gate=gate,
      bonus=bonus,
    )
    self.method: methods.Method = options['method']
    self.scheme: Scheme = options['scheme']
    self.lenience: float = options['lenience']
    self.gamma: int = options['gamma']
    self.temperature: float = options['temperature']
    self.top_k: int | None = options['top_k']
    self.top_p: float | None = options['top_p']
    self.cache_length: int = options['cache_length']
    if isinstance(verifier, str):
      verifier = checkpoints.load_model(verifier)
    if isinstance(drafter, str):
      drafter = checkpoints.load_model(drafter)
    self.verifier, self.drafter = verifier, drafter
    self.tokenizer = tokenizer or verifier.tokenizer
    if drafter is None:
      if self.gamma:
        raise ValueError(
          f'drafter: none is given, but gamma is {self.gamma}; give a drafter,'
          ' or gamma 0 to decode with the verifier alone.'
        )
    else:
      check_pair(verifier, drafter)
    if self.gamma:
      self._drafter = drafters.ModelDrafter(drafter.model)
    else:
      self._drafter = drafters.NoDrafter(verifier.model.vocab_size)

  def sample(
    self,
    prompts: str | Sequence[str],
    *,
    max_new_tokens: int = 64,
    seed: int = 0,
    echo: bool = False,
    return_logits: bool = False,
    forbidden_tokens: Sequence[int | str] | None = None,
    stop_tokens: Sequence[int | str] | None = None,
  ) -> Answer | list[Answer]:
    """Answers one prompt or a list of them.

    The random key of a row comes from the seed and the prompt, so an answer
    does not depend on the other prompts or on their order. A prompt given
    several times gets different answers.

    Args:
      prompts: One text, or several.
      max_new_tokens: Most tokens of an answer.
      seed: Of the sampling.
      echo: Whether texts and tokens start with the prompt.
      return_logits: Whether to return the verifier's logits of the emitted
        tokens.
      forbidden_tokens: Ids, or texts that are one token, never to be emitted.
      stop_tokens: Ids, or texts that are one token, that end an answer beside
        end-of-sequence.

    Returns:
      An answer for a single prompt, else a list in the prompts' order.

    Raises:
      ValueError: No prompts, one that does not fit, or a bad token.
    """
    single = isinstance(prompts, str)
    answers = self.sample_curve(
      [prompts] if single else prompts,
      [self.lenience],
      max_new_tokens=max_new_tokens,
      seed=seed,
      echo=echo,
      return_logits=return_logits,
      forbidden_tokens=forbidden_tokens,
      stop_tokens=stop_tokens,
    )[0]
    return answers[0] if single else answers

  def sample_curve(
    self,
    prompts: Sequence[str],
    leniences: Sequence[float],
    *,
    max_new_tokens: int = 64,
    seed: int = 0,
    echo: bool = False,
    return_logits: bool = False,
    forbidden_tokens: Sequence[int | str] | None = None,
    stop_tokens: Sequence[int | str] | None = None,
  ) -> list[list[Answer]]:
    """Answers every prompt at every lenience, in one compiled call.

    Args:
      prompts: Texts.
      leniences: Points of the curve. A row's key does not depend on its
        lenience, so points are paired.
      max_new_tokens: As in `sample`, and so the rest.
      seed: See `sample`.
      echo: See `sample`.
      return_logits: See `sample`.
      forbidden_tokens: See `sample`.
      stop_tokens: See `sample`.

    Returns:
      For each lenience, an answer for each prompt.

    Raises:
      ValueError: As in `sample`.
    """
    prompts, leniences = list(prompts), list(leniences)
    if not prompts:
      raise ValueError('prompts: the list is empty; give at least one text.')
    if not leniences:
      raise ValueError('lenience: the list is empty; give at least one.')
    for value in leniences:
      _number('lenience', value, -math.inf, math.inf)
    max_new_tokens = _whole('max_new_tokens', max_new_tokens, 1)
    ids = [self._encode(prompt) for prompt in prompts]
    room = self.cache_length - max_new_tokens - self.gamma - 1
    for number, prompt in enumerate(ids):
      if len(prompt) > room:
        raise ValueError(
          f'prompt {number}: its {len(prompt)} tokens and {max_new_tokens} new'
          f' ones do not fit into cache_length {self.cache_length}; shorten it'
          ' or raise cache_length.'
        )
    lengths = np.array([len(prompt) for prompt in ids], np.int32)
    padded = np.zeros((len(ids), _bucket(lengths.max())), np.int32)
    for row, prompt in zip(padded, ids, strict=True):
      row[: len(prompt)] = prompt
    forbidden = None
    if forbidden_tokens is not None:
      banned = self._token_ids('forbidden_tokens', forbidden_tokens)
      forbidden = np.zeros(self.verifier.model.vocab_size, bool)
      forbidden[banned] = True
      if forbidden.all():
        raise ValueError('forbidden_tokens: no token is left to emit.')
    stops = [tokenizers.EOS]
    stops += self._token_ids('stop_tokens', stop_tokens or ())
    drafter_params = self.drafter.params if self.gamma else ()
    models = dict(
      verifier=self.verifier.model, drafter=self._drafter, gamma=self.gamma
    )
    rows = decoding.prefill(
      self.verifier.params,
      drafter_params,
      padded,
      lengths,
      _keys(seed, ids),
      lengths + max_new_tokens,
      max_new_tokens=_bucket(max_new_tokens),
      return_logits=return_logits,
      **models,
    )
    states = decoding.decode(
      rows,
      self.verifier.params,
      drafter_params,
      np.tile(np.array(leniences, np.float32), (len(ids), 1)),
      sampling.Processing(
        temperature=np.float32(self.temperature),
        top_k=None if self.top_k is None else np.int32(self.top_k),
        top_p=None if self.top_p is None else np.float32(self.top_p),
        forbidden=forbidden,
      ),
      # A fixed number of slots, so that a stop token more compiles nothing.
      np.pad(np.array(stops, np.int32), (0, -len(stops) % 8), 'edge'),
      method=self.method,
      scheme=self.scheme,
      **models,
    )
    states, n = jax.device_get(states), len(prompts)
    rows = [
      [jax.tree.map(operator.itemgetter((i, j)), states) for i in range(n)]
      for j in range(len(leniences))
    ]
    return [[self._answer(row, echo, stops) for row in point] for point in rows]

  def _encode(self, prompt: str) -> list[int]:
    if not isinstance(prompt, str):
      raise ValueError(f'prompts: {prompt!r} is not a text.')
    return self.tokenizer.encode(prompt, add_bos=True)

  def _token_ids(self, name: str, tokens: Sequence[int | str]) -> list[int]:
    ids = []
    for token in tokens:
      found = (
        self.tokenizer.encode(token) if isinstance(token, str) else [token]
      )
      if len(found) != 1:
        raise ValueError(
          f'{name}: {token!r} is {len(found)} tokens; give texts of one token,'
          ' or ids.'
        )
      if not 0 <= found[0] < self.verifier.model.vocab_size:
        raise ValueError(
          f'{name}: there is no token {token!r}; ids go from 0 to'
          f' {self.verifier.model.vocab_size - 1}.'
        )
      ids += found
    return ids

  def _answer(
    self, state: decoding.SamplingState, echo: bool, stops: list[int]
  ) -> Answer:
    prompt_length, length = int(state.prompt_length), int(state.length)
    first = 0 if echo else prompt_length
    tokens = state.tokens[first:length].tolist()
    pieces = self.tokenizer.pieces(tokens)
    if tokens and length > prompt_length and tokens[-1] in stops:
      pieces[-1] = ''
    logits = state.logits
    new = slice(prompt_length, length)
    return Answer(
      text=''.join(pieces),
      tokens=tokens,
      pieces=pieces,
      sources=state.source[first:length].tolist(),
      logprobs=state.logprob[new].tolist(),
      logits=None if logits is None else logits[: length - prompt_length],
      counts=self._counts(state, state.source[new]),
    )

  def _counts(
    self, state: decoding.SamplingState, sources: np.ndarray
  ) -> dict[str, int]:
    blocks = int(state.blocks)
    counts = dict(
      drafted=blocks * self.gamma,
      examined=int(state.examined),
      accepted=int(state.accepted),
      deferred=int(state.deferred),
      residual=int(state.residual),
      bonus=int(state.bonus),
      verifier_calls=blocks,
      verifier_tokens=blocks * (self.gamma + 1),
      drafter_calls=blocks * self._drafter.calls(self.gamma),
    )
    if self.gamma and self.scheme.verification == 'sequential':
      # What a cascade of tokens would call: the drafter once a token, and the
      # verifier where it takes over, to read what was written up to there.
      written = np.flatnonzero(sources == RESIDUAL)
      counts |= dict(
        drafted=len(sources),
        verifier_calls=len(written),
        verifier_tokens=int(written[-1]) + 1 if len(written) else 0,
        drafter_calls=len(sources),
      )
    return counts


def _keys(seed: int, prompts: list[list[int]]) -> jax.Array:
  """A key per prompt, from the seed, its tokens and how often it came before.

  Neither the place in the batch nor the other prompts have a part in it.
  """
  seen = collections.Counter()
  numbers = []
  for prompt in prompts:
    digest = zlib.crc32(np.array(prompt, '<i4').tobytes())
    numbers.append((digest, seen[digest]))
    seen[digest] += 1
  numbers = np.array(numbers, np.uint32)
  root = jax.random.key(_whole('seed', seed, 0))
  fold = jax.vmap(jax.random.fold_in, (None, 0))
  return jax.vmap(jax.random.fold_in)(fold(root, numbers[:, 0]), numbers[:, 1])


def check_pair(
  verifier: checkpoints.Checkpoint, drafter: checkpoints.Checkpoint
) -> None:
  """Refuses two models that do not speak of the same tokens.

  Raises:
    ValueError: Vocabularies or tokenizers differ.
  """
  sizes = verifier.model.vocab_size, drafter.model.vocab_size
  if sizes[0] != sizes[1]:
    raise ValueError(
      f'drafter: its vocabulary has {sizes[1]} tokens, the verifier has'
      f' {sizes[0]}; take two models of one family.'
    )
  if verifier.tokenizer != drafter.tokenizer:
    raise ValueError(
      "drafter: its tokenizer is not the verifier's, so their token ids mean"
      ' different things; take two models of one family.'
    )
