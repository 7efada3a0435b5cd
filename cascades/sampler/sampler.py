"""The sampler: strings in, strings and counts out."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Self, Unpack, overload

import jax
import numpy as np
from jaxtyping import PyTree

from cascades import arguments, compilation, decisions, decoding, drafters
from cascades.config import DecodingConfig
from cascades.methods import processing
from cascades.models import chat, checkpoints, memory, sharding
from cascades.models.chat import Prompt
from cascades.sampler import batching
from cascades.sampler.requests import (
  RequestOptions,
  SampleRequest,
  StopCondition,
  encode,
  prompt_keys,
  token_ids,
)


class TokenWeights(NamedTuple):
  """Importance weights p / pi of the tokens of an answer, [tokens].

  Means under these weights are the verifier's, token by token given the text
  before, where pi covers p: not at temperature 0, and not for methods such as
  min_p, top_k or always_accept, whose pi is 0 where p is not. A product of them
  is no weight of a whole answer: its variance grows with the length, and tests
  of such weights refused 82 of 84 points (docs/not_paid.md).

  Attributes:
    values: The weights, float64, at most the bound that was given.
    effective_size: (sum w)^2 / sum w^2, from 0 to the number of tokens.
  """

  values: np.ndarray
  effective_size: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleOutput:
  """The answer to one prompt; tokens after end-of-sequence are left out.

  Attributes:
    text: The answer, without stop tokens, and without the prompt unless `echo`
      was set.
    tokens: Token ids, the stop token included; with `echo`, preceded by those
      of the prompt.
    token_strings: The text of each token.
    sources: The source of each token: an index into
      `verification_config.SOURCES` (prompt, draft, residual, bonus).
    deferred: For each emitted token, True if the method's rule defers the draft
      that was examined there. At a bonus token, True if a rule about the whole
      position, such as `chow`, defers there or q is unknown, with `token`
      verification and bonus 'target'. None if the method has no rule.
    ended: True if a stop token or a stop string ended the answer, False if its
      limit did.
    logprobs: The verifier's log-probability of each emitted token, at
      temperature 1 and before truncation, for every method.
    logits: [emitted tokens, V], the verifier's, float32; None unless requested.
    counts: Counts of tokens and calls by name; see `decoding.summarize_counts`.
    drafts: For each emitted token, the id of the draft that was examined there,
      at a residual token the rejected one. None at a bonus token, and at a
      residual token with several drafts, more of which may be rejected.
    accept_uniforms: The uniform number u that each of these drafts was compared
      with: it is accepted if u is less than its acceptance probability. None
      without a draft, and for every verification but 'token'.
    verifier_logprobs: log p of each emitted token, with p after temperature,
      truncation and forbidden tokens. This and the next two are None unless
      `return_logprobs` requests them, and -inf where the float32 probability is
      0.
    drafter_logprobs: log q of each, after the same; None for a token without q:
      after a whole draft q is computed only where the law reads it.
    target_logprobs: log pi of each, the probability with which it is emitted
      after the text before it, over drafts, blocks and uniform numbers. None
      for each with a verification that does not keep the law, as `look_ahead`.
    law_given: 'text' if pi depends on the text before alone; 'path' if pi is
      the law given also where the token's block began. A lossy law is that of
      the path with bonus 'verifier', with `look_ahead`, and if it reads the q
      of n-grams or of a head, which depends on the block.
    state: The `last_state` with which `Sampler.sample` continues this answer;
      None unless requested.
  """

  text: str
  tokens: list[int]
  token_strings: list[str]
  sources: list[int]
  deferred: list[bool] | None
  ended: bool
  logprobs: list[float]
  logits: np.ndarray | jax.Array | None
  counts: dict[str, int]
  drafts: list[int | None] = dataclasses.field(default_factory=list)
  accept_uniforms: list[float | None] = dataclasses.field(default_factory=list)
  verifier_logprobs: list[float] | None = None
  drafter_logprobs: list[float | None] | None = None
  target_logprobs: list[float] | list[None] | None = None
  law_given: Literal['text', 'path'] = 'text'
  state: 'ConversationState | None' = dataclasses.field(
    default=None, repr=False
  )

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

  def weights(self, truncate: float = math.inf) -> TokenWeights:
    """Returns p / pi of each token, at most `truncate`.

    Raises:
      ValueError: The answer has no target_logprobs.
    """
    log_p, log_pi = self.verifier_logprobs, self.target_logprobs
    if log_p is None or log_pi is None or None in log_pi:
      raise ValueError(
        'target_logprobs: are missing; sample with return_logprobs=True, and'
        ' not with look_ahead, whose law of a token is unknown.'
      )
    ratios = np.exp(np.subtract(log_p, np.array(log_pi, float)))
    values = np.minimum(ratios, truncate)
    squares = float(np.square(values).sum())
    size = float(values.sum() ** 2 / squares) if squares else 0.0
    return TokenWeights(values, size)


@dataclasses.dataclass(frozen=True)
class ConversationState:
  """A conversation as both models have read it.

  Attributes:
    row: One row, with the caches of both models.
    models: The verifier and the drafter that read it.
    params: Their parameters.
  """

  row: decoding.Row
  models: tuple[Any, Any]
  params: PyTree

  @property
  def tokens(self) -> list[int]:
    """The conversation's token ids."""
    return np.asarray(self.row.tokens[0])[: int(self.row.length[0])].tolist()


class Sampler:
  """Decodes prompts with a verifier, a drafter and a method.

  Args:
    verifier: A `Checkpoint` from `load_model`, or a name that `load_model`
      takes.
    drafter: A `Checkpoint`; a name, such as a model's, 'ngram', 'self:3' (the
      verifier's first 3 layers) or the folder of a head; a drafter such as
      `cascades.NgramDrafter(min_match=3)`, also bound. None only with gamma 0.
    config: The options of decoding; None takes every default.
    mesh: (data, model): numbers of devices to split rows and parameters over.
    dtype: 'float32', 'bfloat16' or 'int8', the dtype of the parameters of
      models given by name; None takes the stored one.

  Raises:
    ValueError: A value is out of its range, or the models do not share a
      tokenizer; one sentence says which and what to do.

  Attributes:
    config: The options of decoding.
    verifier: The verifier, with its parameters on their devices.
    drafter: The drafter, loaded, or the given bound drafter; None for none.
    bound_drafter: The drafter bound to the verifier; None for none.
    tokenizer: The tokenizer of both models.
    usage: Time and rows of the last call, a `batching.DecodeStats`.
  """

  def __init__(
    self,
    verifier: checkpoints.Checkpoint | str,
    drafter: Any = None,
    *,
    config: DecodingConfig | None = None,
    mesh: tuple[int, int] = (1, 1),
    dtype: str | None = None,
  ):
    self.config = config = DecodingConfig() if config is None else config
    expected = 'a cascades.DecodingConfig'
    arguments.instance('config', config, DecodingConfig, expected)
    compilation.enable_cache()
    drafter = drafters.parse(drafter)
    takes_dtype = isinstance(verifier, str) or isinstance(
      drafter, drafters.NamedDrafter
    )
    if dtype is not None and not takes_dtype:
      raise ValueError(
        f'dtype: {arguments.quote(dtype)} has no effect on models that are'
        ' loaded already; give it to load_model, or give the models by name.'
      )
    data, model = arguments.as_list('mesh', mesh, 'two numbers')
    self._mesh = None
    if (data, model) != (1, 1):
      self._mesh = sharding.make_mesh(data, model)
    if isinstance(verifier, str):
      verifier = checkpoints.load_model(verifier, dtype, self._mesh)
    self.verifier = verifier = verifier.shard(self._mesh)
    drafter = drafters.load(drafter, dtype, self._mesh)
    self.tokenizer: Any = verifier.tokenizer
    size = verifier.model.vocab_size
    if self.tokenizer and self.tokenizer.vocab_size != size:
      raise ValueError(
        f'tokenizer: must have a piece for each of the {size} logits of the'
        f' verifier, got {self.tokenizer.vocab_size} pieces; give its own.'
      )
    self.drafter, self.bound_drafter = drafter, None
    if drafter is not None:
      self.bound_drafter = drafters.bind_drafter(verifier, drafter)
    self.usage = batching.DecodeStats()
    bound = self.bound_drafter
    if bound is None and config.gamma:
      raise ValueError(
        f'drafter: none is given, but gamma is {config.gamma}; give a drafter,'
        ' or gamma 0 to decode with the verifier alone.'
      )
    if bound is None or not config.gamma:
      bound = drafters.BoundDrafter(drafters.NoDrafter(), ())
    elif config.method.name == 'drafter_only' and bound.drafter.needs_hidden:
      name = type(bound.drafter).__name__
      raise ValueError(
        'method: drafter_only decodes with the drafter alone, but'
        f" {name} reads the verifier's states; give another method."
      )
    self._params = decoding.Params(verifier.params, bound.params)
    self._step_config = decoding.StepConfig(
      models=decoding.Models(verifier.model, bound.drafter),
      method=config.method,
      gamma=config.gamma,
      verification=config.verification_config,
      drafts=config.drafts,
      tree_size=config.tree_size,
    )
    # Bytes of the caches of a row, by their slots.
    self._cache_bytes: dict[int, int] = {}

  @classmethod
  def from_decision(
    cls,
    path: str | pathlib.Path,
    verifier: checkpoints.Checkpoint | str | None = None,
    drafter: Any = None,
    mesh: tuple[int, int] = (1, 1),
  ) -> Self:
    """Makes the sampler of a decision that a sweep wrote.

    Args:
      path: A decision.json, or the workdir that holds it.
      verifier: As for the class; None loads the decision's.
      drafter: As for the class; None loads the decision's.
      mesh: As for the class.

    Raises:
      ValueError: The file is damaged, or the models are not the decision's.
    """
    decision = decisions.Decision.load(path)
    models = decision.load_models(verifier, drafter)
    return cls(*models, config=decision.config, mesh=mesh)

  @property
  def suppress_tokens(self) -> tuple[int, ...]:
    """Ids that answers do not contain unless forbidden_tokens is given."""
    # The tokenizer may be None.
    return getattr(self.tokenizer, 'suppress_tokens', ())

  @overload
  def sample(
    self,
    prompts: Prompt,
    *,
    return_state: bool = False,
    last_state: ConversationState | None = None,
    **options: Unpack[RequestOptions],
  ) -> SampleOutput: ...

  @overload
  def sample(
    self, prompts: Sequence[Prompt], **options: Unpack[RequestOptions]
  ) -> list[SampleOutput]: ...

  def sample(
    self,
    prompts: Prompt | Sequence[Prompt],
    *,
    return_state: bool = False,
    last_state: ConversationState | None = None,
    **options: Unpack[RequestOptions],
  ) -> SampleOutput | list[SampleOutput]:
    """Answers one prompt or a list of prompts.

    The random key of a row comes from the seed and the prompt, so an answer
    does not depend on the other prompts or on their order. A prompt given
    several times gets different answers.

    Args:
      prompts: One text, or several; or messages, each a `Conversation`, which
        imply apply_chat_template.
      return_state: True to return a state with the answer to a single prompt.
      last_state: The state of an earlier answer. The single prompt is
        appended to the conversation, which is not read again. The state stays
        valid and may be continued several times.
      **options: max_new_tokens, seed, echo, return_logits, return_logprobs,
        forbidden_tokens, stop_tokens, stop_strings and apply_chat_template:
        fields of `SampleRequest`.

    Returns:
      An answer for a single prompt, else a list in the order of the prompts.

    Raises:
      ValueError: There are no prompts, one does not fit, a token does not
        exist, the state was made by other models, or the device's memory does
        not suffice.
    """
    is_single = isinstance(prompts, Prompt)
    if not return_state and last_state is None:
      leniences = [self.config.effective_lenience]
      prompts = [prompts] if is_single else prompts
      (answers,) = self.sample_curve(prompts, leniences, **options)
      return answers[0] if is_single else answers
    request = SampleRequest(**options)
    if not is_single or (return_state and request.stop_strings):
      raise ValueError(
        'return_state: takes one prompt, as last_state does, and no'
        ' stop_strings, which may cut the answer; give stop_tokens.'
      )
    *_, (answer, _) = self._continue(prompts, request, last_state)
    return answer

  def stream(
    self,
    prompt: Prompt,
    *,
    last_state: ConversationState | None = None,
    **options: Unpack[RequestOptions],
  ) -> Iterator[str]:
    """Answers a prompt block by block.

    Args:
      prompt: One text.
      last_state: The state of an earlier answer to continue; None for none.
      **options: As in `sample`; with echo the prompt comes first.

    Yields:
      The text that each block adds, as soon as it is decoded; all of them
      together are the text that `sample` returns.
    """
    length, request = 0, SampleRequest(**options)
    for _, text in self._continue(prompt, request, last_state, max_blocks=1):
      if len(text) > length:
        yield text[length:]
        length = len(text)

  def sample_curve(
    self,
    prompts: Sequence[Prompt],
    leniences: Sequence[float],
    *,
    on_answer: Callable[[], Any] | None = None,
    **options: Unpack[RequestOptions],
  ) -> list[list[SampleOutput]]:
    """Answers every prompt at every lenience, in one compiled loop.

    Args:
      prompts: Texts.
      leniences: Points of the curve. The key of a row does not depend on its
        lenience, so points are paired.
      on_answer: Called after each answer; None for nothing.
      **options: As in `sample`.

    Returns:
      For each lenience, an answer to each prompt.
    """
    request = SampleRequest(**options)
    prompts = arguments.as_list('prompts', prompts, 'texts')
    leniences = [
      arguments.number('lenience', value, -math.inf, math.inf)
      for value in arguments.as_list('lenience', leniences, 'numbers')
    ]
    if not prompts or not leniences:
      name = 'lenience' if prompts else 'prompts'
      raise ValueError(f'{name}: the list is empty; give at least one.')
    engine, stop, batch = self._prepare(prompts, leniences, request)
    batch_size = self._fit_batch(engine, batch)
    answers: list[list[Any]] = [[None] * len(prompts) for _ in leniences]
    for job, row in batching.run(engine, batch, batch_size, self.usage):
      ids = batch.prompts[job.prompt]
      prefix = self.tokenizer.token_strings(ids) if request.echo else None
      answers[job.lenience][job.prompt] = self._output(row, stop, prefix)
      if on_answer:
        on_answer()
    return answers

  def _continue(
    self,
    prompt: Prompt,
    request: SampleRequest,
    state: ConversationState | None,
    max_blocks: int | None = None,
  ) -> Iterator[tuple[SampleOutput, str]]:
    """Answers one prompt of a conversation, `max_blocks` blocks at a time."""
    models, params = self._step_config.models, self._params
    row, previous = (state.row, state.tokens) if state else (None, [])
    if state:
      leaves = map(jax.tree.leaves, (state.params, params))
      # Scalars, such as the threshold at which a drafter stops, are options.
      is_same = state.models == models and all(
        not np.ndim(x) or _is_equal(x, y) for x, y in zip(*leaves, strict=False)
      )
      if not is_same:
        raise ValueError(
          'last_state: was made by other models; continue with the sampler that'
          ' made it.'
        )
    engine, stop, batch = self._prepare(
      [prompt], [self.config.effective_lenience], request, previous
    )
    self._fit_batch(engine, batch, len(previous))
    ids = [*previous, *map(int, batch.prompts[0])]
    prefix = self.tokenizer.token_strings(ids) if request.echo else None
    for so_far, final in batching.decode_single(
      engine, batch, row, max_blocks, stats=self.usage
    ):
      answer = self._output(so_far, stop, prefix)
      if final is not None:
        state = ConversationState(final, models, params)
        answer = dataclasses.replace(answer, state=state)
      text = answer.text
      yield answer, text if so_far.done else stop.stable_prefix(text)

  def _prepare(
    self,
    prompts: Sequence[Prompt],
    leniences: Sequence[float],
    request: SampleRequest,
    previous: Sequence[int] = (),
  ) -> tuple[batching.Engine, StopCondition, batching.BatchRequest]:
    """Encodes prompts; returns an engine, their end, and a batch."""
    tokenizer, size = self.tokenizer, self.verifier.model.vocab_size
    request = request.for_prompts(prompts)
    stop_ids = list(tokenizer.stops)
    if request.apply_chat_template:
      end_token = chat.require_template(tokenizer).end_token
      stop_ids += [] if end_token is None else [end_token]
    if request.stop_tokens is not None:
      tokens = request.stop_tokens
      stop_ids += token_ids('stop_tokens', tokens, tokenizer, size)
    forbidden = self.suppress_tokens
    if request.forbidden_tokens is not None:
      tokens = request.forbidden_tokens
      forbidden = token_ids('forbidden_tokens', tokens, tokenizer, size)
    if len({*forbidden}) == size:
      raise ValueError(
        'forbidden_tokens: must not be all tokens; leave at least one out.'
      )
    block_length = self._step_config.gamma + 1
    stop = StopCondition(
      tokenizer=tokenizer,
      tokens=stop_ids,
      strings=tuple(request.stop_strings),
      tail_length=batching.POLL_INTERVAL_BLOCKS * block_length,
    )
    engine = batching.Engine(
      step_config=self._step_config,
      params=self._params,
      sampling=self.sampling_params(forbidden),
      stop_tokens=stop.loop_tokens,
      mesh=self._mesh,
    )
    encoded = [
      encode(tokenizer, prompt, request.apply_chat_template, previous)
      for prompt in prompts
    ]
    for i, ids in enumerate(encoded):
      length = len(previous) + len(ids)
      self._check_length(f'prompt {i}', length, request.max_new_tokens)
    self.usage = batching.DecodeStats()
    batch = batching.BatchRequest(
      prompts=[np.array(ids, np.int32) for ids in encoded],
      keys=prompt_keys(request.seed, [[*previous, *ids] for ids in encoded]),
      leniences=np.asarray(leniences, np.float32),
      max_new_tokens=request.max_new_tokens,
      return_logits=request.return_logits,
      return_logprobs=request.return_logprobs,
      find_end=stop.find_end,
    )
    return engine, stop, batch

  def sampling_params(
    self, forbidden: Sequence[int] = ()
  ) -> processing.SamplingParams:
    """Returns the sampling parameters of both models.

    Args:
      forbidden: Token ids that are never emitted.
    """
    top_k, top_p = self.config.top_k, self.config.top_p
    size = self.verifier.model.vocab_size
    return processing.SamplingParams(
      temperature=np.float32(self.config.temperature),
      top_k=None if top_k is None else np.int32(min(top_k, size)),
      top_p=None if top_p is None else np.float32(top_p),
      forbidden=np.isin(np.arange(size), forbidden) if forbidden else None,
      draft_temperature=(
        np.float32(0) if self.config.draft == 'argmax' else None
      ),
    )

  def refusal(
    self, prompt: Prompt, max_new_tokens: int, apply_chat_template: bool = False
  ) -> str | None:
    """Returns why a prompt cannot be answered, in a sentence, or None."""
    try:
      length = len(self.encode(prompt, apply_chat_template))
      self._check_length('prompt', length, max_new_tokens)
    except ValueError as error:
      return str(error)
    return None

  def _check_length(self, name: str, length: int, max_new_tokens: int) -> None:
    block, limit = self._step_config.cache_headroom, self.config.cache_length
    if length + max_new_tokens + block > limit:
      raise ValueError(
        f'{name}: its {length} tokens, {max_new_tokens} new tokens and a block'
        f' of {block} do not fit into cache_length {limit}; shorten it or raise'
        ' cache_length.'
      )

  def _fit_batch(
    self, engine: batching.Engine, request: batching.BatchRequest, read: int = 0
  ) -> int:
    """Returns the rows at a time that the device's memory holds."""
    models, longest = self._step_config.models, max(map(len, request.prompts))
    slots = engine.cache_length(read + longest, request.max_new_tokens)
    if slots not in self._cache_bytes:
      caches = jax.eval_shape(
        lambda x: (
          models.verifier.init_cache(x.verifier, slots),
          models.drafter.init(x.drafter, slots),
        ),
        self._params,
      )
      self._cache_bytes[slots] = memory.num_bytes(caches)
    # q, p and their logits for a block, and those that are returned.
    vectors = 4 * (self._step_config.tree_tokens + 1)
    vectors += engine.logits_length(request)
    row_bytes = self._cache_bytes[slots]
    row_bytes += 4 * vectors * models.verifier.vocab_size
    rows = batching.width(
      len(request.prompts) * len(request.leniences), self.config.batch_size
    )
    devices = 1 if engine.mesh is None else engine.mesh.size
    fitting = memory.fit_rows(rows, row_bytes // devices)
    if fitting == rows:
      return self.config.batch_size
    self.usage.batch_size = fitting
    return fitting

  def encode(
    self, prompt: Prompt, apply_chat_template: bool = False
  ) -> list[int]:
    """Returns the token ids of a prompt that begins a sequence."""
    return encode(self.tokenizer, prompt, apply_chat_template)

  def _output(
    self, row: decoding.Row, stop: StopCondition, prefix: list[str] | None
  ) -> SampleOutput:
    """Makes the output of a fetched row."""
    first, length = int(row.prompt_length), int(row.length)
    new = slice(first, length)
    new_tokens, limit = row.tokens[new].tolist(), int(row.limit)
    echoed = slice(first if prefix is None else 0, length)
    strings = [*(prefix or ()), *stop.token_strings(new_tokens)]
    config, has_rule = self.config, self.config.method.rule is not None
    is_strict = not config.gamma or config.method.is_strict(float(row.lenience))
    logprobs: dict[str, Any] = {}
    if row.law_logprobs is not None:
      log_q, log_p, log_pi = row.law_logprobs[new].T.tolist()
      keeps_law = config.verification_config.kind.keeps_law
      is_of_text = keeps_law and config.bonus == 'target'
      if config.method.law_uses_q:
        is_of_text &= is_language_model(self.bound_drafter)
      if is_strict:
        # But for rounding they are.
        log_pi = log_p
      elif not keeps_law:
        log_pi = [None] * len(log_p)
      logprobs = dict(
        verifier_logprobs=log_p,
        drafter_logprobs=[None if math.isnan(x) else x for x in log_q],
        target_logprobs=log_pi,
        law_given='text' if is_strict or is_of_text else 'path',
      )
    return SampleOutput(
      text=''.join(strings),
      tokens=row.tokens[echoed].tolist(),
      token_strings=strings,
      sources=row.source[echoed].tolist(),
      deferred=row.deferral[new].tolist() if has_rule else None,
      ended=bool(row.done and (length < limit or stop.is_met(new_tokens))),
      logprobs=row.logprob[new].tolist(),
      logits=row.logits,
      counts=decoding.summarize_counts(row),
      drafts=[x if x >= 0 else None for x in row.draft[new].tolist()],
      accept_uniforms=[
        None if math.isnan(u) else u for u in row.accept_uniform[new].tolist()
      ],
      **logprobs,
    )


def is_language_model(bound_drafter: drafters.BoundDrafter | None) -> bool:
  """True if a drafter gives the probability of each token of any text."""
  model_drafters = drafters.ModelDrafter, drafters.SelfDrafter
  return isinstance(getattr(bound_drafter, 'drafter', None), model_drafters)


def _is_equal(x: Any, y: Any) -> bool:
  """Returns True for one array of parameters, or for copies of it."""
  if x is y:
    return True
  fields = [(z.dtype, z.shape, getattr(z, 'sharding', None)) for z in (x, y)]
  return fields[0] == fields[1] and bool((x == y).all())
