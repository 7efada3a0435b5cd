"""Strings in, strings and counts out; names as in `gm.text.Sampler`."""

import collections
import dataclasses
import math
import numbers
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from cascades import arguments, compilation, decoding, drafters, methods
from cascades.drafters import pairing
from cascades.methods import processing
from cascades.models import checkpoints, sharding, tokenizers, turns
from cascades.sampler import batching, memory
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
    deferred: For each emitted token, whether the method's rule defers to the
      verifier there; None where it has no such rule.
    ended: Whether a stop token, or a text, ended it rather than its limit.
    logprobs: The verifier's log-probability of each emitted token, at
      temperature 1 and before truncation, whatever was sampled from.
    logits: [emitted tokens, V], the verifier's, float32; None unless asked
      for.
    counts: Token and call counts, named as the fields of `records.Record`.
    state: What `Sampler.sample` takes as `last_state` to go on from here; None
      unless asked for.
  """

  text: str
  tokens: list[int]
  pieces: list[str]
  sources: list[int]
  deferred: list[bool] | None
  ended: bool
  logprobs: list[float]
  logits: np.ndarray | None
  counts: dict[str, int]
  state: 'State | None' = dataclasses.field(default=None, repr=False)

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


@dataclasses.dataclass(frozen=True)
class State:
  """Where a conversation stands: all that both models have read of it.

  Attributes:
    row: One row, with both caches.
    models: The verifier and the drafter that read it.
    params: Their parameters.
    pieces: The text of each token.
  """

  row: decoding.Row
  models: tuple[Any, Any]
  params: PyTree
  pieces: list[str]

  def check(self, models: tuple[Any, Any], params: PyTree) -> None:
    """Refuses to go on with other models than those that read it.

    Parameters are compared by their values where they are not the same arrays.
    Single numbers among them, as where a drafter stops, are options, and may
    change from one turn to the next.

    Raises:
      ValueError: They are others, or have other parameters.
    """
    same = self.models == models
    if same:
      ours, theirs = (
        [x for x in jax.tree.leaves(tree) if jnp.ndim(x)]
        for tree in (self.params, params)
      )
      same = len(ours) == len(theirs) and all(
        x is y or (x.dtype == y.dtype and jnp.array_equal(x, y))
        for x, y in zip(ours, theirs, strict=True)
      )
    if not same:
      raise ValueError(
        'last_state: other models have read it; go on with the sampler that'
        ' made it.'
      )


def check_options(
  *,
  method: str | methods.Method,
  lenience: float,
  gamma: int,
  temperature: float,
  top_k: int | None = None,
  top_p: float | None = None,
  cache_length: int = 4096,
  batch_size: int = 64,
  verification: str = 'token',
  gate: str = 'raw',
  bonus: str = 'target',
  drafts: int = 1,
  tree_size: int | None = None,
) -> dict[str, Any]:
  """A `Sampler`'s options as it uses them, without its models.

  Raises:
    ValueError: One is out of its range; one sentence says which.
  """
  method = methods.get_method(method)
  scheme = Scheme(verification=verification, gate=gate, bonus=bonus)
  drafts = arguments.whole('drafts', drafts, 1)
  scheme.check(method, drafts)
  if tree_size is not None:
    tree_size = arguments.whole('tree_size', tree_size, drafts)
    if drafts == 1:
      raise ValueError(
        'tree_size: a single draft is no tree; give more drafts, or leave'
        ' tree_size out.'
      )
  return dict(
    method=method,
    scheme=scheme,
    drafts=drafts,
    tree_size=tree_size,
    lenience=arguments.number('lenience', lenience, -math.inf, math.inf),
    gamma=arguments.whole('gamma', gamma, 0),
    temperature=arguments.number('temperature', temperature, 0, 1e6),
    top_k=None if top_k is None else arguments.whole('top_k', top_k, 1),
    top_p=None if top_p is None else arguments.number('top_p', top_p, 0, 1),
    cache_length=arguments.whole('cache_length', cache_length, 1),
    batch_size=arguments.whole('batch_size', batch_size, 1),
  )


class Sampler:
  """Decodes prompts with a verifier, a drafter and a method.

  Args:
    verifier: A `Checkpoint` from `load_model`, or a name for it.
    drafter: Likewise; or anything else that `pairing.equip` understands: a
      text look-up 'ngram', the verifier's first layers 'self:3', a recurrent
      head 'tiny-recurrent'. None only with gamma = 0, plain decoding with the
      verifier.
    tokenizer: Of both models; None takes the verifier's.
    method: A name in `METHODS`, an alias of the paper's notebook, or a
      `Method`.
    lenience: The method's; see `Method.strict` and `Method.drafter_only`.
    gamma: Tokens drafted per block, >= 0.
    temperature: Of both models; 0 is greedy.
    top_k: Keep the k most probable tokens of both models.
    top_p: Keep the most probable tokens that hold this mass, of both models.
    cache_length: Most tokens a sequence may have, prompt included. Caches are
      only as long as the answers need.
    batch_size: Most rows decoded at a time; a row is a prompt at a lenience.
      The row of a finished answer takes the next prompt.
    verification: 'token', 'block' or 'sequential' for one draft per block,
      'multi_round', 'k_seq' or 'match' for any number; see
      `verification`, also for the next two.
    gate: Whether deferral rules see 'raw' or 'processed' probabilities.
    bonus: Whether the token after a whole block is drawn from the 'target' or
      from the 'verifier'.
    drafts: How many are drafted per block, side by side.
    tree_size: Most drafted tokens that the verifier reads per block, where they
      are several drafts; None for all. See `decoding.decode`.
    stop_below: The drafter stops where its most probable token is less
      probable than this; None: never.
    beam: Whether several drafts of a recurrent head are those of a beam
      search; for 'match'.
    mesh: (data, model): devices to split the rows and the parameters over;
      see `sharding`.
    dtype: Of models that are given by name; as for `load_model`.

  Raises:
    ValueError: A value is out of its range, or the models do not share a
      tokenizer; one sentence says which and what to do.

  Attributes:
    usage: What the last call took; see `batching.Usage`.
  """

  def __init__(
    self,
    verifier: checkpoints.Checkpoint | str,
    drafter: Any = None,
    tokenizer: tokenizers.Tokenizer | None = None,
    *,
    method: str | methods.Method = 'token_v3',
    lenience: float = 0.5,
    gamma: int = 4,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    cache_length: int = 4096,
    batch_size: int = 64,
    verification: str = 'token',
    gate: str = 'raw',
    bonus: str = 'target',
    drafts: int = 1,
    tree_size: int | None = None,
    stop_below: float | None = None,
    beam: bool = False,
    mesh: tuple[int, int] = (1, 1),
    dtype: str | None = None,
  ):
    options = check_options(
      method=method,
      lenience=lenience,
      gamma=gamma,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
      cache_length=cache_length,
      batch_size=batch_size,
      verification=verification,
      gate=gate,
      bonus=bonus,
      drafts=drafts,
      tree_size=tree_size,
    )
    if stop_below is not None:
      stop_below = arguments.number('stop_below', stop_below, 0, 1)
    arguments.flags(beam=beam)
    compilation.keep()
    arguments.a(
      'verifier',
      verifier,
      str | checkpoints.Checkpoint,
      'what load_model gives, or a name for it',
    )
    arguments.a(
      'tokenizer',
      tokenizer,
      tokenizers.Tokenizer | None,
      "a cascades.models.tokenizers.Tokenizer, or None for the verifier's",
    )
    if not isinstance(mesh, tuple | list) or len(mesh) != 2:
      raise ValueError(
        f'mesh: {arguments.shown(mesh)} will not do; give two numbers, such as'
        ' (4, 2).'
      )
    self.usage = batching.Usage()
    # What batches need of the memory, by their size.
    self._needs: dict[tuple, memory.Need] = {}
    self.method: methods.Method = options['method']
    self.scheme: Scheme = options['scheme']
    self.lenience: float = options['lenience']
    self.gamma: int = options['gamma']
    # Without drafts, there is nothing to have several of.
    self.drafts: int = options['drafts'] if self.gamma else 1
    self.tree_size: int | None = options['tree_size'] if self.gamma else None
    self.temperature: float = options['temperature']
    self.top_k: int | None = options['top_k']
    self.top_p: float | None = options['top_p']
    self.cache_length: int = options['cache_length']
    self.batch_size: int = options['batch_size']
    self._mesh = None
    if tuple(mesh) != (1, 1):
      self._mesh = sharding.make_mesh(
        *(arguments.whole('mesh', n, 1) for n in mesh)
      )
    if isinstance(verifier, str):
      verifier = checkpoints.load_model(verifier, dtype, self._mesh)
    if isinstance(drafter, str):
      drafter = pairing.load_drafter(drafter, dtype, self._mesh)
    self.verifier, self.drafter = verifier, drafter
    self.tokenizer = tokenizer or verifier.tokenizer
    if drafter is None:
      if self.gamma:
        raise ValueError(
          f'drafter: none is given, but gamma is {self.gamma}; give a drafter,'
          ' or gamma 0 to decode with the verifier alone.'
        )
    elif isinstance(drafter, checkpoints.Checkpoint):
      pairing.check_pair(verifier, drafter)
    if self._mesh is not None:
      self.verifier, self.drafter = (
        c._replace(params=sharding.shard_params(*c[:2], self._mesh))
        if isinstance(c, checkpoints.Checkpoint)
        else c
        for c in (verifier, drafter)
      )
    self._drafter = drafters.Equipped(
      drafters.NoDrafter(verifier.model.vocab_size), ()
    )
    if self.gamma:
      self._drafter = pairing.equip(
        self.verifier, self.drafter, stop_below=stop_below, beam=beam
      )

    self._decoder = decoding.Decoder(
      decoding.Models(self.verifier.model, self._drafter.drafter),
      self.method,
      self.gamma,
      self.scheme,
      self.drafts,
      self.tree_size,
    )

  def sample(
    self,
    prompts: str | Sequence[str],
    *,
    max_new_tokens: int = 64,
    seed: int = 0,
    echo: bool = False,
    return_logits: bool = False,
    return_state: bool = False,
    last_state: State | None = None,
    forbidden_tokens: Sequence[int | str] | None = None,
    stop_tokens: Sequence[int | str] | None = None,
    stop_strings: Sequence[str] = (),
    chat: bool = False,
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
      return_state: Whether the answer to a single prompt holds a state.
      last_state: The state of an earlier answer: the prompt, a single one, is
        appended to all that was read and written until then, which is not read
        again. It stays as it is, and may be gone on from several times.
      forbidden_tokens: Ids, or texts that are one token, never to be emitted.
      stop_tokens: Ids, or texts that are one token, that end an answer beside
        the tokenizer's own: end-of-sequence, and end-of-turn for models that
        were tuned for instructions.
      stop_strings: Texts that end an answer. They are no part of its text; its
        tokens, and all counts, end with the token that completes the first of
        them. With them, an answer has no state to go on from.
      chat: Whether the prompts are a user's words, to be put as the models were
        taught turns (see `turns`); a turn ends the answer.

    Returns:
      An answer for a single prompt, else a list in the prompts' order.

    Raises:
      ValueError: No prompts, one that does not fit, a bad token, a state of
        other models, or more than the device's memory holds.
    """
    options = dict(
      max_new_tokens=max_new_tokens,
      seed=seed,
      forbidden_tokens=forbidden_tokens,
      stop_tokens=stop_tokens,
      stop_strings=stop_strings,
      chat=chat,
    )
    arguments.flags(return_state=return_state)
    stop_strings = arguments.texts('stop_strings', stop_strings)
    options['stop_strings'] = stop_strings
    if return_state and stop_strings:
      raise ValueError(
        'stop_strings: an answer that they may cut has no state; leave'
        ' return_state out, or take stop_tokens.'
      )
    if return_state or last_state is not None:
      if not isinstance(prompts, str):
        raise ValueError('prompts: a conversation goes on with a single text.')
      *_, (answer, _) = self._turn(
        prompts, last_state, None, echo, return_logits, **options
      )
      return answer
    single = isinstance(prompts, str)
    answers = self.sample_curve(
      [prompts] if single else prompts,
      [self.lenience],
      echo=echo,
      return_logits=return_logits,
      **options,
    )[0]
    return answers[0] if single else answers

  def stream(
    self,
    prompt: str,
    *,
    max_new_tokens: int = 64,
    seed: int = 0,
    last_state: State | None = None,
    forbidden_tokens: Sequence[int | str] | None = None,
    stop_tokens: Sequence[int | str] | None = None,
    stop_strings: Sequence[str] = (),
    chat: bool = False,
  ) -> Iterator[str]:
    """Answers a prompt block by block.

    Args:
      prompt: One text.
      max_new_tokens: As in `sample`, and so the rest.
      seed: See `sample`.
      last_state: See `sample`.
      forbidden_tokens: See `sample`.
      stop_tokens: See `sample`.
      stop_strings: See `sample`.
      chat: See `sample`.

    Yields:
      The text that each block adds, as soon as it is there; together they are
      the text that `sample` gives.

    Raises:
      ValueError: As in `sample`.
    """
    said = ''
    for _, text in self._turn(
      prompt,
      last_state,
      1,
      False,
      False,
      max_new_tokens=max_new_tokens,
      seed=seed,
      forbidden_tokens=forbidden_tokens,
      stop_tokens=stop_tokens,
      stop_strings=stop_strings,
      chat=chat,
    ):
      if len(text) > len(said):
        yield text[len(said) :]
        said = text

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
    stop_strings: Sequence[str] = (),
    chat: bool = False,
    on_answer: Callable[[], None] | None = None,
  ) -> list[list[Answer]]:
    """Answers every prompt at every lenience, in one compiled loop.

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
      stop_strings: See `sample`.
      chat: See `sample`.
      on_answer: Is called as an answer is there.

    Returns:
      For each lenience, an answer for each prompt.

    Raises:
      ValueError: As in `sample`.
    """
    arguments.flags(echo=echo, return_logits=return_logits, chat=chat)
    prompts = arguments.listed('prompts', prompts, 'texts')
    leniences = arguments.listed('lenience', leniences, 'numbers')
    if not prompts:
      raise ValueError('prompts: the list is empty; give at least one text.')
    if not leniences:
      raise ValueError('lenience: the list is empty; give at least one.')
    for value in leniences:
      arguments.number('lenience', value, -math.inf, math.inf)
    max_new_tokens = arguments.whole('max_new_tokens', max_new_tokens, 1)
    texts = [self._put(prompt, chat) for prompt in prompts]
    ids = [self.tokenizer.encode(text, add_bos=True) for text in texts]
    for number, prompt in enumerate(ids):
      self._check_room(f'prompt {number}', len(prompt), max_new_tokens)
    engine, ending = self._engine(
      forbidden_tokens, stop_tokens, stop_strings, chat
    )
    self._check_memory(
      len(ids) * len(leniences), max(map(len, ids)), max_new_tokens
    )
    self.usage = batching.Usage()
    answers = [[None] * len(prompts) for _ in leniences]
    asked = batching.Asked(
      ids,
      _keys(seed, ids),
      np.asarray(leniences, np.float32),
      max_new_tokens,
      return_logits,
      ending.ends,
    )
    for job, row in batching.run(engine, asked, self.batch_size, self.usage):
      before = None
      if echo:
        before = self.tokenizer.spelled(ids[job.prompt], texts[job.prompt])
      answers[job.lenience][job.prompt] = self._answer(row, ending, before)
      if on_answer:
        on_answer()
    return answers

  def _turn(
    self,
    prompt: str,
    last_state: State | None,
    max_blocks: int | None,
    echo: bool,
    return_logits: bool,
    *,
    max_new_tokens: int,
    seed: int,
    forbidden_tokens: Sequence[int | str] | None,
    stop_tokens: Sequence[int | str] | None,
    stop_strings: Sequence[str],
    chat: bool,
  ) -> Iterator[tuple[Answer, str]]:
    """One turn of a conversation, so many blocks at a time.

    Yields:
      The answer so far, and what is sure to be of its text. Only the last has a
      state.
    """
    arguments.flags(echo=echo, return_logits=return_logits, chat=chat)
    max_new_tokens = arguments.whole('max_new_tokens', max_new_tokens, 1)
    engine, ending = self._engine(
      forbidden_tokens, stop_tokens, stop_strings, chat
    )
    models, params = engine.decoder.models, engine.params
    row, read, before = None, [], []
    if last_state is not None:
      arguments.a(
        'last_state', last_state, State, "an answer's, of return_state=True"
      )
      last_state.check(models, params)
      row, before = last_state.row, last_state.pieces
      read = row.tokens[0, : int(row.length[0])].tolist()
    text = self._put(prompt, chat, read)
    ids = self.tokenizer.encode(text, add_bos=not read)
    before = before + self.tokenizer.spelled(ids, text)
    self._check_room('prompt', len(read) + len(ids), max_new_tokens)
    self._check_memory(1, len(read) + len(ids), max_new_tokens)
    self.usage = batching.Usage()
    asked = batching.Asked(
      [np.array(ids, np.int32)],
      _keys(seed, [read + ids]),
      [self.lenience],
      max_new_tokens,
      return_logits,
      ending.ends,
    )
    for small, later in batching.turn(
      engine, asked, row, max_blocks, self.usage
    ):
      answer = self._answer(small, ending, before if echo else None)
      if later is not None:
        first = int(small.prompt_length)
        written = small.tokens[first : int(small.length)].tolist()
        pieces = before + self.tokenizer.pieces(written)
        state = State(later, models, params, pieces)
        answer = dataclasses.replace(answer, state=state)
      text = answer.text
      yield answer, text if small.done else ending.settled(text)

  def _engine(
    self,
    forbidden_tokens: Sequence[int | str] | None,
    stop_tokens: Sequence[int | str] | None,
    stop_strings: Sequence[str],
    chat: bool,
  ) -> tuple[batching.Engine, '_Ending']:
    """What decodes, and what ends an answer."""
    forbidden = None
    if forbidden_tokens is not None:
      banned = self._token_ids('forbidden_tokens', forbidden_tokens)
      banned = np.array(banned, np.int32)
      forbidden = np.zeros(self.verifier.model.vocab_size, bool)
      forbidden[banned] = True
      if forbidden.all():
        raise ValueError('forbidden_tokens: no token is left to emit.')
    stops = list(self.tokenizer.stops)
    if chat:
      stops.append(turns.template(self.tokenizer).end)
    if stop_tokens is not None:
      stops += self._token_ids('stop_tokens', stop_tokens)
    texts = arguments.texts('stop_strings', stop_strings)
    engine = batching.Engine(
      decoder=self._decoder,
      params=decoding.Params(self.verifier.params, self._drafter.params),
      how=self.processing(forbidden),
      # A fixed number of slots, so that a stop token more compiles nothing.
      stop_tokens=np.pad(
        np.array(stops, np.int32), (0, -len(stops) % 8), 'edge'
      ),
      mesh=self._mesh,
    )
    fresh = batching.LOOK * (self.gamma + 1)
    return engine, _Ending(self.tokenizer, stops, texts, fresh)

  def processing(
    self, forbidden: np.ndarray | None = None
  ) -> processing.Processing:
    """From logits to probabilities; `forbidden` [V] as there."""
    top_k = self.top_k
    if top_k is not None:
      top_k = np.int32(min(top_k, self.verifier.model.vocab_size))
    return processing.Processing(
      temperature=np.float32(self.temperature),
      top_k=top_k,
      top_p=None if self.top_p is None else np.float32(self.top_p),
      forbidden=forbidden,
    )

  def refusal(
    self, prompt: str, max_new_tokens: int, chat: bool = False
  ) -> str | None:
    """Why a prompt cannot be answered, in a sentence; None where it can."""
    try:
      length = len(self.encode(prompt, chat))
      self._check_room('prompt', length, max_new_tokens)
    except ValueError as error:
      return str(error)
    return None

  def _check_room(self, name: str, length: int, new: int) -> None:
    if length + new + self._decoder.slack > self.cache_length:
      raise ValueError(
        f'{name}: its {length} tokens and {new} new ones do not fit into'
        f' cache_length {self.cache_length}; shorten it or raise cache_length.'
      )

  def _check_memory(self, rows: int, length: int, new: int) -> None:
    # What drafts and is no model of its own has no weights worth counting.
    model = isinstance(self.drafter, checkpoints.Checkpoint)
    models = self.verifier, self.drafter if model else None
    size = dict(
      batch_size=batching.width(rows, self.batch_size),
      gamma=self._decoder.tree_tokens,
      mesh=(1, 1) if self._mesh is None else self._mesh.devices.shape,
    )
    tokens = length + new + self._decoder.slack
    slots = batching.bucket(tokens)
    # To count it takes longer than to decode a short answer.
    key = slots, *size.values()
    if key not in self._needs:
      self._needs[key] = memory.need(*models, cache_length=slots, **size)
    needed = self._needs[key].beside_params
    free = memory.available(needed)
    if free is not None and needed > free:
      memory.check(
        *models, cache_length=tokens, allocated=True, limit=free, **size
      )

  def encode(self, prompt: str, chat: bool = False) -> list[int]:
    """The ids of a prompt, from the beginning of a sequence on."""
    return self.tokenizer.encode(self._put(prompt, chat), add_bos=True)

  def _put(self, prompt: str, chat: bool, read: Sequence[int] = ()) -> str:
    """A prompt as it is read, after what was read before."""
    if not isinstance(prompt, str):
      raise ValueError(f'prompts: {arguments.shown(prompt)} is not a text.')
    if chat:
      template = turns.template(self.tokenizer)
      return template.turn(prompt, last=read[-1] if read else None)
    return prompt

  def _token_ids(self, name: str, tokens: Sequence[int | str]) -> list[int]:
    most = self.verifier.model.vocab_size - 1
    ids = []
    for token in arguments.listed(
      name, tokens, 'ids, or of texts of one token'
    ):
      if isinstance(token, str):
        found = self.tokenizer.encode(token)
        if len(found) != 1:
          raise ValueError(
            f'{name}: {arguments.shown(token)} is {len(found)} tokens; give'
            ' texts of one token, or ids.'
          )
        ids += found
        continue
      whole = isinstance(token, numbers.Integral) and not isinstance(
        token, bool
      )
      if not whole or not 0 <= token <= most:
        raise ValueError(
          f'{name}: there is no token {arguments.shown(token)}; ids go from 0'
          f' to {most}.'
        )
      ids.append(int(token))
    return ids

  def _answer(
    self,
    state: decoding.Row,
    ending: '_Ending',
    before: list[str] | None,
  ) -> Answer:
    """What a row says; after the pieces of its prompt, unless they are None."""
    prompt_length, length = int(state.prompt_length), int(state.length)
    new = slice(prompt_length, length)
    pieces = (before or []) + ending.pieces(state.tokens[new].tolist())
    first = prompt_length if before is None else 0
    tokens = state.tokens[first:length].tolist()
    deferred = None
    if self.method.rule is not None:
      deferred = state.deferral[new].tolist()
    return Answer(
      text=''.join(pieces),
      tokens=tokens,
      pieces=pieces,
      sources=state.source[first:length].tolist(),
      deferred=deferred,
      ended=bool(
        state.done
        and (length < state.limit or ending.reached(state.tokens[new].tolist()))
      ),
      logprobs=state.logprob[new].tolist(),
      logits=state.logits,
      counts=self._counts(state, state.source[new]),
    )

  def _counts(self, row: decoding.Row, sources: np.ndarray) -> dict[str, int]:
    found = {k: int(n) for k, n in decoding.count(row)._asdict().items()}
    blocks = found.pop('blocks')
    counts = found | dict(
      verifier_calls=blocks,
      verifier_tokens=blocks * (self._decoder.tree_tokens + 1),
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


@dataclasses.dataclass(frozen=True)
class _Ending:
  """What ends an answer beside its limit.

  Attributes:
    tokenizer: Of the models.
    tokens: Ids that end it.
    texts: Texts that end it.
    fresh: Most tokens that are new when a row is looked at once more.
  """

  tokenizer: tokenizers.Tokenizer
  tokens: list[int]
  texts: tuple[str, ...]
  fresh: int

  def pieces(self, tokens: list[int]) -> list[str]:
    """The texts of an answer's tokens, without what ends it."""
    pieces = self.tokenizer.pieces(tokens)
    if tokens and tokens[-1] in self.tokens:
      pieces[-1] = ''
    start, _ = self._first(''.join(pieces))
    left = math.inf if start is None else start
    for i, piece in enumerate(pieces):
      pieces[i] = piece[: min(left, len(piece))]
      left -= len(pieces[i])
    return pieces

  def reached(self, tokens: list[int]) -> bool:
    """Whether an answer is at its end, whatever its limit."""
    text = self.tokenizer.decode(tokens)
    return tokens[-1] in self.tokens or self._first(text)[0] is not None

  @property
  def ends(self) -> batching.Ends | None:
    """Where a row's text ends it; None if no text can."""
    return self._end if self.texts else None

  def _end(self, state: decoding.Row) -> int | None:
    length = int(state.length)
    earliest, new = int(state.prompt_length), length - self.fresh
    # A text that ends in what is new begins no more than its own length before
    # it, be that in few tokens or, where they have no text, in many; and a
    # character that is cut in two may stand in front.
    longest = max(len(each) for each in self.texts)
    reach = 4 * longest
    while True:
      first = max(earliest, new - reach)
      pieces = self.tokenizer.pieces(state.tokens[first:length].tolist())
      seen = sum(map(len, pieces[: max(0, new - first)]))
      if first == earliest or seen > longest:
        break
      reach *= 2
    start, end = self._first(''.join(pieces))
    if start is None:
      return None
    ends = np.cumsum([len(piece) for piece in pieces])
    return first + int(np.searchsorted(ends, end)) + 1

  def _first(self, text: str) -> tuple[int | None, int]:
    """The first of its texts in another: where it begins, and ends."""
    found = [
      (text.index(each) + len(each), -len(each))
      for each in self.texts
      if each in text
    ]
    if not found:
      return None, 0
    end, size = min(found)
    return end + size, end

  def settled(self, text: str) -> str:
    """As much of an answer so far as is sure to be of its text."""
    # What may still be the beginning of a character waits for its end.
    text = text.rstrip('\ufffd')
    waiting = (
      n
      for each in self.texts
      for n in range(len(each) - 1, 0, -1)
      if text.endswith(each[:n])
    )
    return text[: len(text) - max(waiting, default=0)]


def _keys(seed: int, prompts: list[list[int]]) -> jax.Array:
  """A key per prompt, from the seed, its tokens and how often it came before.

  Neither the place in the batch nor the other prompts have a part in it: two
  prompts of one checksum share a key, and each is answered as it is alone.

  Args:
    seed: Below 2^64; its upper half is folded in where there is one.
    prompts: Token ids.
  """
  seen = collections.Counter()
  numbers = []
  for prompt in map(tuple, prompts):
    digest = zlib.crc32(np.array(prompt, '<i4').tobytes())
    numbers.append((digest, seen[prompt]))
    seen[prompt] += 1
  seed = arguments.whole('seed', seed, 0, 2**64 - 1)
  halves = np.array([seed % 2**32, seed // 2**32], np.uint32)
  # Of few shapes, so that prompts of any number compile nothing.
  padded = np.zeros((batching.bucket(len(numbers), 8), 2), np.uint32)
  padded[: len(numbers)] = numbers
  return _fold(halves, padded)[: len(numbers)]


@jax.jit
def _fold(seed: Int[Array, '2'], numbers: Int[Array, 'N 2']) -> jax.Array:
  """Keys of a seed's halves and of two numbers each."""
  root = jax.random.key(seed[0])
  root = jnp.where(seed[1] > 0, jax.random.fold_in(root, seed[1]), root)

  def one(pair):
    return jax.random.fold_in(jax.random.fold_in(root, pair[0]), pair[1])

  return jax.vmap(one)(numbers)
