"""Strings in, strings and counts out; names as in `gm.text.Sampler`."""

import dataclasses
import math
import numbers
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from cascades import (
  arguments,
  compilation,
  decoding,
  drafters,
  schedules,
)
from cascades.config import DecodingConfig, without_effect
from cascades.declarations import Option, options_of
from cascades.drafters import pairing, specs
from cascades.methods import caps, processing
from cascades.models import checkpoints, sharding, tokenizers, turns
from cascades.sampler import batching, keys, memory, stopping
from cascades.sampler.outputs import ConversationState, SampleOutput
from cascades.sampler.requests import SampleRequest


class Sampler:
  """Decodes prompts with a verifier, a drafter and a method.

  Args:
    verifier: A `Checkpoint` from `load_model`, or a name that `load_model`
      takes.
    drafter: A `Checkpoint`; a name, such as a model's, 'ngram', 'self:3' (the
      verifier's first 3 layers) or the folder of a head; a drafter's spec (see
      `drafters`); or a bound drafter. None only with gamma 0.
    tokenizer: The tokenizer of both models; None takes the verifier's.
    config: The options of decoding; None takes every default.
    mesh: (data, model): numbers of devices to split rows and parameters over.
    dtype: 'float32' or 'bfloat16', the dtype of the parameters of models given
      by name; None takes the stored one.

  Raises:
    ValueError: A value is out of its range, or the models do not share a
      tokenizer; one sentence says which and what to do.

  Attributes:
    config: The options, with the method bound to the pair if it needs to be.
    verifier: The verifier, with its parameters on their devices.
    drafter: The drafter, loaded; None for none.
    bound_drafter: The drafter bound to the verifier; None for none.
    tokenizer: The tokenizer of both models.
    usage: Time and rows of the last call, a `batching.DecodeStats`.
  """

  def __init__(
    self,
    verifier: checkpoints.Checkpoint | str,
    drafter: Any = None,
    tokenizer: tokenizers.Tokenizer | None = None,
    *,
    config: DecodingConfig | None = None,
    mesh: tuple[int, int] = (1, 1),
    dtype: str | None = None,
    **drafter_options: Any,
  ):
    _refuse_decoding_options(drafter_options)
    self._drafter_options = drafter_options
    self.config = DecodingConfig() if config is None else config
    arguments.instance(
      'config', self.config, DecodingConfig, 'a cascades.DecodingConfig'
    )
    compilation.enable_cache()
    expected = 'a checkpoint from load_model, or a name that it takes'
    arguments.instance(
      'verifier', verifier, str | checkpoints.Checkpoint, expected
    )
    expected = (
      "a cascades.models.tokenizers.Tokenizer, or None for the verifier's"
    )
    arguments.instance(
      'tokenizer', tokenizer, tokenizers.Tokenizer | None, expected
    )
    self.usage = batching.DecodeStats()
    # Memory that batches need, by their size.
    self._needs: dict[tuple, memory.MemoryEstimate] = {}
    self._mesh = _mesh(mesh)
    if dtype is not None and not any(
      isinstance(model, str) and specs.kind_of(model).takes_dtype(model)
      for model in (verifier, drafter)
    ):
      raise ValueError(
        f'dtype: {arguments.quote(dtype)} has no effect on models that are'
        ' loaded already; give it to load_model, or give the models by name.'
      )
    if isinstance(verifier, str):
      verifier = checkpoints.load_model(verifier, dtype, self._mesh)
    if isinstance(drafter, str):
      drafter = pairing.load_drafter(drafter, dtype, self._mesh)
    self.verifier, self.drafter = (
      given._replace(
        params=sharding.shard_params(given.model, given.params, self._mesh)
      )
      if self._mesh is not None and isinstance(given, checkpoints.Checkpoint)
      else given
      for given in (verifier, drafter)
    )
    self.tokenizer = tokenizer or verifier.tokenizer
    pairing.check_tokenizer(verifier, self.tokenizer)
    self._bind_drafter()

  def _bind_drafter(self) -> None:
    """Binds the drafter and the method to the pair."""
    chosen, verifier = self.config, self.verifier
    if self.drafter is None and chosen.gamma:
      raise ValueError(
        f'drafter: none is given, but gamma is {chosen.gamma}; give a drafter,'
        ' or gamma 0 to decode with the verifier alone.'
      )
    self.bound_drafter = None
    self._check_drafter_options()
    if self.drafter is not None:
      self.bound_drafter = pairing.bind_drafter(
        verifier, self.drafter, **self._drafter_options
      )
      name = type(self.bound_drafter.drafter).__name__
      looks = self.bound_drafter.drafter.needs_hidden
      if chosen.method.name == 'drafter_only' and looks:
        raise ValueError(
          f'method: drafter_only is the drafter alone, and {name} drafts from'
          ' what the verifier has read; give another method.'
        )
    drafting = self.bound_drafter
    if chosen.method.bind and chosen.gamma:
      method = chosen.method.bind(verifier, self.bound_drafter)
      self.config = chosen = chosen.replace(method=method)
    if not chosen.gamma:
      nothing = drafters.NoDrafter()
      drafting = drafters.BoundDrafter(nothing, ())
    self._params = decoding.Params(verifier.params, drafting.params)
    self._step_config = decoding.StepConfig(
      decoding.Models(verifier.model, drafting.drafter),
      chosen.capped,
      chosen.gamma,
      chosen.verification_config,
      chosen.drafts,
      chosen.tree_size,
    )

  def _check_drafter_options(self) -> None:
    """Refuses options of the drafter that have no effect."""
    usual = {'fill_unselected_logits': True, 'beam': False}
    for name, value in self._drafter_options.items():
      if name in usual:
        arguments.booleans(**{name: value})
      elif name == 'stop_below' and value is not None:
        arguments.number(name, value, 0, 1)
    declared = {
      name: Option(
        kind=str,
        default=None,
        help='',
        needs=('drafting', 'blocks')[: 1 + (name in ('stop_below', 'beam'))],
      )
      for name, value in self._drafter_options.items()
      if value is not None and value is not usual.get(name)
    }
    options = {k: getattr(self.config, k) for k in options_of(DecodingConfig)}
    for name, reason in without_effect(declared, **options).items():
      raise ValueError(
        f'{name}: {arguments.quote(self._drafter_options[name])} has no effect'
        f' with {reason}; leave it out.'
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
    last_state: ConversationState | None = None,
    forbidden_tokens: Sequence[int | str] | None = None,
    stop_tokens: Sequence[int | str] | None = None,
    stop_strings: Sequence[str] = (),
    chat: bool = False,
  ) -> SampleOutput | list[SampleOutput]:
    """Answers one prompt or a list of them.

    The random key of a row comes from the seed and the prompt, so an answer
    does not depend on the other prompts or on their order. A prompt given
    several times gets different answers.

    Args:
      prompts: One text, or several.
      max_new_tokens: Most tokens of an answer.
      seed: Decides what is sampled; from 0 to 2^64 - 1.
      echo: Whether texts and tokens start with the prompt.
      return_logits: Whether to return the verifier's logits of the emitted
        tokens.
      return_state: Whether the answer to a single prompt holds a state.
      last_state: The state of an earlier answer: the prompt, a single one, is
        appended to all that was read and written until then, which is not read
        again. It stays as it is, and may be gone on from several times.
      forbidden_tokens: Ids, or texts that are one token, never to be emitted;
        None for nothing.
      stop_tokens: Ids, or texts that are one token, that end an answer beside
        the tokenizer's own: end-of-sequence, and end-of-turn for models that
        were tuned for instructions.
      stop_strings: Texts that end an answer. They are no part of its text; its
        tokens, and all counts, end with the token that completes the first of
        them. With them, an answer has no state to go on from.
      chat: Whether the prompts are a user's words, to be put as the models were
        taught turns (see `turns`); a turn ends the answer. Tags that the words
        spell, such as `<end_of_turn>`, stay text; without `chat` they are
        control tokens.

    Returns:
      An answer for a single prompt, else a list in the prompts' order.

    Raises:
      ValueError: No prompts, one that does not fit, a bad token, a state of
        other models, or more than the device's memory holds.
    """
    asking = SampleRequest(
      max_new_tokens=max_new_tokens,
      seed=seed,
      echo=echo,
      return_logits=return_logits,
      forbidden_tokens=forbidden_tokens,
      stop_tokens=stop_tokens,
      stop_strings=stop_strings,
      chat=chat,
    )
    arguments.booleans(return_state=return_state)
    if return_state and asking.stop_strings:
      raise ValueError(
        'stop_strings: an answer that they may cut has no state; leave'
        ' return_state out, or take stop_tokens.'
      )
    if return_state or last_state is not None:
      if not isinstance(prompts, str):
        raise ValueError('prompts: a conversation goes on with a single text.')
      *_, (answer, _) = self._turn(prompts, last_state, None, asking)
      return answer
    single = isinstance(prompts, str)
    (answers,) = self._curve(
      [prompts] if single else prompts, [self.config.lenience], asking
    )
    return answers[0] if single else answers

  def stream(
    self,
    prompt: str,
    *,
    last_state: ConversationState | None = None,
    **asked: Any,
  ) -> Iterator[str]:
    """Answers a prompt block by block.

    Args:
      prompt: One text.
      last_state: The state of an earlier answer to go on from; None for none.
      **asked: max_new_tokens, seed, forbidden_tokens, stop_tokens, stop_strings
        and chat, each as in `sample`.

    Yields:
      The text that each block adds, as soon as it is there; together they are
      the text that `sample` gives.

    Raises:
      ValueError: A value that `sample` would refuse.
    """
    for name in ('echo', 'return_logits'):
      if name in asked:
        raise TypeError(f'stream() takes no {name}.')
    said = ''
    for _, text in self._turn(prompt, last_state, 1, SampleRequest(**asked)):
      if len(text) > len(said):
        yield text[len(said) :]
        said = text

  def sample_curve(
    self,
    prompts: Sequence[str],
    leniences: Sequence[float],
    *,
    on_answer: Callable[[], None] | None = None,
    **asked: Any,
  ) -> list[list[SampleOutput]]:
    """Answers every prompt at every lenience, in one compiled loop.

    Args:
      prompts: Texts.
      leniences: Points of the curve. A row's key does not depend on its
        lenience, so points are paired.
      on_answer: Is called as an answer is there.
      **asked: max_new_tokens, seed, echo, return_logits, forbidden_tokens,
        stop_tokens, stop_strings and chat, each as in `sample`.

    Returns:
      For each lenience, an answer for each prompt.

    Raises:
      ValueError: A value that `sample` would refuse.
    """
    return self._curve(prompts, leniences, SampleRequest(**asked), on_answer)

  def _curve(
    self,
    prompts: Sequence[str],
    leniences: Sequence[float],
    asking: SampleRequest,
    on_answer: Callable[[], None] | None = None,
  ) -> list[list[SampleOutput]]:
    """As `sample_curve`."""
    prompts = arguments.as_list('prompts', prompts, 'texts')
    leniences = arguments.as_list('lenience', leniences, 'numbers')
    if not prompts:
      raise ValueError('prompts: the list is empty; give at least one text.')
    if not leniences:
      raise ValueError('lenience: the list is empty; give at least one.')
    leniences = [
      arguments.number('lenience', value, -math.inf, math.inf)
      for value in leniences
    ]
    put = [self._put(prompt, asking.chat) for prompt in prompts]
    texts, ids = [text for text, _ in put], [found for _, found in put]
    for number, prompt in enumerate(ids):
      self._check_room(f'prompt {number}', len(prompt), asking.max_new_tokens)
    engine, ending = self._engine(asking)
    self._check_memory(
      len(ids) * len(leniences), max(map(len, ids)), asking.max_new_tokens
    )
    self.usage = batching.DecodeStats()
    answers = [[None] * len(prompts) for _ in leniences]
    asked = batching.BatchRequest(
      ids,
      keys.of_prompts(asking.seed, ids),
      np.asarray(leniences, np.float32),
      asking.max_new_tokens,
      asking.return_logits,
      ending.ends,
    )
    batch_size = self.config.batch_size
    for job, row in batching.run(engine, asked, batch_size, self.usage):
      before = None
      if asking.echo:
        before = self.tokenizer.token_strings(
          ids[job.prompt], texts[job.prompt]
        )
      answers[job.lenience][job.prompt] = self._answer(row, ending, before)
      if on_answer:
        on_answer()
    return answers

  def _turn(
    self,
    prompt: str,
    last_state: ConversationState | None,
    max_blocks: int | None,
    asking: SampleRequest,
  ) -> Iterator[tuple[SampleOutput, str]]:
    """One turn of a conversation, so many blocks at a time.

    Yields:
      The answer so far, and what is sure to be of its text. Only the last has a
      state.
    """
    engine, ending = self._engine(asking)
    models, params = engine.step_config.models, engine.params
    row, read, before = None, [], []
    if last_state is not None:
      arguments.instance(
        'last_state',
        last_state,
        ConversationState,
        "an answer's, of return_state=True",
      )
      last_state.check(models, params)
      row, before = last_state.row, last_state.pieces
      read = row.tokens[0, : int(row.length[0])].tolist()
    text, ids = self._put(prompt, asking.chat, read)
    before = before + self.tokenizer.token_strings(ids, text)
    self._check_room('prompt', len(read) + len(ids), asking.max_new_tokens)
    self._check_memory(1, len(read) + len(ids), asking.max_new_tokens)
    self.usage = batching.DecodeStats()
    asked = batching.BatchRequest(
      [np.array(ids, np.int32)],
      keys.of_prompts(asking.seed, [read + ids]),
      [self.config.lenience],
      asking.max_new_tokens,
      asking.return_logits,
      ending.ends,
    )
    for small, later in batching.turn(
      engine, asked, row, max_blocks, self.usage
    ):
      answer = self._answer(small, ending, before if asking.echo else None)
      if later is not None:
        first = int(small.prompt_length)
        written = small.tokens[first : int(small.length)].tolist()
        pieces = before + self.tokenizer.token_strings(written)
        state = ConversationState(later, models, params, pieces)
        answer = dataclasses.replace(answer, state=state)
      text = answer.text
      yield answer, text if small.done else ending.settled(text)

  def _engine(
    self, asking: SampleRequest
  ) -> tuple[batching.Engine, stopping.StopCondition]:
    """What decodes, and what ends an answer."""
    forbidden, banned = None, []
    if asking.forbidden_tokens is not None:
      banned = self._token_ids('forbidden_tokens', asking.forbidden_tokens)
      forbidden = np.zeros(self.verifier.model.vocab_size, bool)
      forbidden[np.array(banned, np.int32)] = True
      if forbidden.all():
        raise ValueError('forbidden_tokens: no token is left to emit.')
    stops = list(self.tokenizer.stops)
    if asking.chat:
      stops.append(turns.require_template(self.tokenizer).end_token)
    if asking.stop_tokens is not None:
      stops += self._token_ids('stop_tokens', asking.stop_tokens)
    fresh = batching.POLL_INTERVAL_BLOCKS * (self.config.gamma + 1)
    ending = stopping.StopCondition(
      self.tokenizer, stops, asking.stop_strings, fresh
    )
    engine = batching.Engine(
      step_config=self._step_config,
      params=self._params,
      sampling=self.processing(forbidden),
      stop_tokens=ending.in_loop,
      mesh=self._mesh,
      schedule=self.schedule(asking.max_new_tokens, banned),
    )
    return engine, ending

  def schedule(self, new: int = 0, forbidden: Collection[int] = ()) -> Any:
    """How leniences go along answers of so many tokens; None: they stay."""

    def token(text):
      return self._token_ids('its marker', [text])[0]

    said = self.config.schedule
    schedule = schedules.parse(said, token)
    reason = schedule and schedule.refusal(new, forbidden)
    if reason:
      raise ValueError(
        f'schedule: {arguments.quote(said)} does not go with what is asked:'
        f' {reason}.'
      )
    return schedule

  def processing(
    self, forbidden: np.ndarray | None = None
  ) -> processing.SamplingParams:
    """From logits to probabilities; `forbidden` [V] as there."""
    top_k, top_p = self.config.top_k, self.config.top_p
    if top_k is not None:
      top_k = np.int32(min(top_k, self.verifier.model.vocab_size))
    return processing.SamplingParams(
      temperature=np.float32(self.config.temperature),
      top_k=top_k,
      top_p=None if top_p is None else np.float32(top_p),
      forbidden=forbidden,
      cap=caps.parse(self.config.cap),
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
    if (
      length + new + self._step_config.cache_headroom > self.config.cache_length
    ):
      raise ValueError(
        f'{name}: its {length} tokens and {new} new ones do not fit into'
        f' cache_length {self.config.cache_length}; shorten it or raise'
        ' cache_length.'
      )

  def _check_memory(self, rows: int, length: int, new: int) -> None:
    drafter = self.drafter
    if not isinstance(drafter, checkpoints.Checkpoint | None):
      size = self.verifier.model.vocab_size
      drafting, params = self.bound_drafter
      drafter = specs.Drafting(drafting, size), params
    models = self.verifier, drafter
    size = dict(
      batch_size=batching.width(rows, self.config.batch_size),
      gamma=self._step_config.tree_tokens,
      mesh=(1, 1) if self._mesh is None else self._mesh.devices.shape,
    )
    tokens = length + new + self._step_config.cache_headroom
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
    _, ids = self._put(prompt, chat)
    return ids

  def _put(
    self, prompt: str, chat: bool, read: Sequence[int] = ()
  ) -> tuple[str, list[int]]:
    """A prompt as it is read after what was read before, and its ids."""
    if not isinstance(prompt, str):
      raise ValueError(f'prompts: {arguments.quote(prompt)} is not a text.')
    if not chat:
      return prompt, self.tokenizer.encode(prompt, add_bos=not read)
    template = turns.require_template(self.tokenizer)
    last = read[-1] if read else None
    return (
      template.format_turn(prompt, last),
      template.encode(self.tokenizer, prompt, last),
    )

  def _token_ids(self, name: str, tokens: Sequence[int | str]) -> list[int]:
    most = self.verifier.model.vocab_size - 1
    ids = []
    for token in arguments.as_list(
      name, tokens, 'ids, or of texts of one token'
    ):
      if isinstance(token, str):
        found = self.tokenizer.encode(token)
        if len(found) != 1:
          raise ValueError(
            f'{name}: {arguments.quote(token)} is {len(found)} tokens; give'
            ' texts of one token, or ids.'
          )
        ids += found
        continue
      whole = isinstance(token, numbers.Integral) and not isinstance(
        token, bool
      )
      if not whole or not 0 <= token <= most:
        raise ValueError(
          f'{name}: there is no token {arguments.quote(token)}; ids go from 0'
          f' to {most}.'
        )
      ids.append(int(token))
    return ids

  def _answer(
    self,
    state: decoding.Row,
    ending: stopping.StopCondition,
    before: list[str] | None,
  ) -> SampleOutput:
    """What a row says; after the pieces of its prompt, unless they are None."""
    prompt_length, length = int(state.prompt_length), int(state.length)
    new = slice(prompt_length, length)
    pieces = (before or []) + ending.pieces(state.tokens[new].tolist())
    first = prompt_length if before is None else 0
    tokens = state.tokens[first:length].tolist()
    deferred = None
    if self.config.method.rule is not None:
      deferred = state.deferral[new].tolist()
    return SampleOutput(
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
      counts=decoding.summarize_counts(state, self._step_config),
    )


def _refuse_decoding_options(options: Collection[str]) -> None:
  """Refuses options of decoding that are given as keywords.

  Raises:
    TypeError: There is one; says where it goes.
  """
  for name in options_of(DecodingConfig):
    if name in options:
      raise TypeError(
        f'{name}: is an option of DecodingConfig; give'
        f' config=DecodingConfig({name}=...).'
      )


def _mesh(sizes: tuple[int, int]) -> jax.sharding.Mesh | None:
  """The devices of (data, model); None for a single one.

  Raises:
    ValueError: They are not two whole numbers, or more than there are.
  """
  if not isinstance(sizes, tuple | list) or len(sizes) != 2:
    raise ValueError(
      f'mesh: {arguments.quote(sizes)} will not do; give two numbers, such as'
      ' (4, 2).'
    )
  if tuple(sizes) == (1, 1):
    return None
  return sharding.make_mesh(*(arguments.integer('mesh', n, 1) for n in sizes))
