"""The sampler: strings in, strings and counts out."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, Unpack, overload

import jax
import numpy as np

from cascades import (
  arguments,
  compilation,
  decisions,
  decoding,
  drafters,
)
from cascades.config import DecodingConfig
from cascades.methods import processing
from cascades.models import checkpoints, memory, tokenizers, turns
from cascades.models.conversations import Prompt
from cascades.sampler import (
  batching,
  continuous_batching,
  keys,
  outputs,
  stopping,
)
from cascades.sampler import (
  pair as pairs,
)
from cascades.sampler import (
  prompts as prompt_encoding,
)
from cascades.sampler.outputs import ConversationState, SampleOutput
from cascades.sampler.requests import (
  RequestOptions,
  SampleOptions,
  SampleRequest,
  make_request,
)


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
    dtype: 'float32', 'bfloat16' or 'int8', the dtype of the parameters of
      models given by name; None takes the stored one.

  Raises:
    ValueError: A value is out of its range, or the models do not share a
      tokenizer; one sentence says which and what to do.

  Attributes:
    config: The options of decoding.
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
  ):
    config = DecodingConfig() if config is None else config
    arguments.instance(
      'config', config, DecodingConfig, 'a cascades.DecodingConfig'
    )
    compilation.enable_cache()
    self._pair = pair = pairs.load_pair(
      verifier, drafter, tokenizer, config, mesh_shape=mesh, dtype=dtype
    )
    self.usage = batching.DecodeStats()
    self.config = config
    bound = pair.bound_drafter
    if not config.gamma or bound is None:
      bound = drafters.BoundDrafter(drafters.NoDrafter(), ())
    self._params = decoding.Params(pair.verifier.params, bound.params)
    self._step_config = decoding.StepConfig(
      models=decoding.Models(pair.verifier.model, bound.drafter),
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
  def verifier(self) -> checkpoints.Checkpoint:
    """The verifier, with its parameters on their devices."""
    return self._pair.verifier

  @property
  def drafter(self) -> Any:
    """The drafter's spec, loaded, or the given bound drafter; None for none."""
    return self._pair.drafter

  @property
  def bound_drafter(self) -> drafters.BoundDrafter | None:
    """The drafter bound to the verifier; None for none."""
    return self._pair.bound_drafter

  @property
  def tokenizer(self) -> tokenizers.Tokenizer:
    """The tokenizer of both models."""
    return self._pair.tokenizer

  @property
  def suppress_tokens(self) -> tuple[int, ...]:
    """Ids that answers do not contain unless forbidden_tokens is given."""
    # The tokenizer may be None.
    return getattr(self.verifier.tokenizer, 'suppress_tokens', ())

  @overload
  def sample(
    self, prompts: Prompt, **options: Unpack[SampleOptions]
  ) -> SampleOutput: ...

  @overload
  def sample(
    self, prompts: Sequence[Prompt], **options: Unpack[SampleOptions]
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
      **options: max_new_tokens, seed, echo, return_logits, forbidden_tokens,
        stop_tokens, stop_strings, apply_chat_template and
        allow_control_tokens: fields of `SampleRequest`.

    Returns:
      An answer for a single prompt, else a list in the order of the prompts.

    Raises:
      ValueError: There are no prompts, one does not fit, a token does not
        exist, the state was made by other models, or the device's memory does
        not suffice.
    """
    request = make_request(options, 'sample')
    arguments.booleans(return_state=return_state)
    if return_state and request.stop_strings:
      raise ValueError(
        'stop_strings: cannot be combined with return_state, since they may cut'
        ' the answer; leave return_state out, or give stop_tokens.'
      )
    if return_state or last_state is not None:
      if not isinstance(prompts, Prompt):
        raise ValueError(
          'prompts: must be one prompt with return_state or last_state.'
        )
      *_, (answer, _) = self._continue(prompts, last_state, None, request)
      return answer
    is_single = isinstance(prompts, Prompt)
    prompts = [prompts] if is_single else prompts
    leniences = [self.config.effective_lenience]
    (answers,) = self.sample_curve(prompts, leniences, **options)
    return answers[0] if is_single else answers

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
      **options: As in `sample`, without echo and return_logits.

    Yields:
      The text that each block adds, as soon as it is decoded; all of them
      together are the text that `sample` returns.

    Raises:
      ValueError: `sample` would refuse a value.
    """
    for name in ('echo', 'return_logits', 'return_state'):
      if name in options:
        raise TypeError(f'{name}: is not supported by stream; call sample.')
    length, request = 0, make_request(options, 'stream')
    for _, text in self._continue(prompt, last_state, 1, request):
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

    Raises:
      ValueError: `sample` would refuse a value.
    """
    request = make_request(options, 'sample_curve')
    prompts = arguments.as_list('prompts', prompts, 'texts')
    leniences = arguments.as_list('lenience', leniences, 'numbers')
    request = prompt_encoding.with_template(request, prompts)
    if not prompts:
      raise ValueError('prompts: the list is empty; give at least one text.')
    if not leniences:
      raise ValueError('lenience: the list is empty; give at least one.')
    leniences = [
      arguments.number('lenience', value, -math.inf, math.inf)
      for value in leniences
    ]
    encoded = [
      prompt_encoding.encode_request(self.tokenizer, prompt, request)
      for prompt in prompts
    ]
    ids = [tokens for _, tokens in encoded]
    for i, tokens in enumerate(ids):
      self._check_length(f'prompt {i}', len(tokens), request.max_new_tokens)
    engine, stop = self._engine(request)
    longest, rows = max(map(len, ids)), len(ids) * len(leniences)
    self.usage = batching.DecodeStats()
    batch_size = self._fit_batch(engine, request, rows, longest)
    answers: list[list[Any]] = [[None] * len(ids) for _ in leniences]
    jobs = batching.BatchRequest(
      prompts=[np.array(tokens, np.int32) for tokens in ids],
      keys=keys.of_prompts(request.seed, ids),
      leniences=np.asarray(leniences, np.float32),
      max_new_tokens=request.max_new_tokens,
      return_logits=request.return_logits,
      find_end=stop.find_end,
    )
    for job, row in continuous_batching.run(
      engine, jobs, batch_size, self.usage
    ):
      prefix = None
      if request.echo:
        text, tokens = encoded[job.prompt]
        prefix = self.tokenizer.token_strings(tokens, text)
      answers[job.lenience][job.prompt] = self._output(row, stop, prefix)
      if on_answer:
        on_answer()
    return answers

  def _continue(
    self,
    prompt: Prompt,
    last_state: ConversationState | None,
    max_blocks: int | None,
    request: SampleRequest,
  ) -> Iterator[tuple[SampleOutput, str]]:
    """Answers one prompt of a conversation, `max_blocks` blocks at a time."""
    request = prompt_encoding.with_template(request, [prompt])
    engine, stop = self._engine(request)
    models, params = engine.step_config.models, engine.params
    row, previous, prefix = None, [], []
    if last_state is not None:
      outputs.check_state(last_state, models, params)
      row, prefix = last_state.row, last_state.token_strings
      previous = np.asarray(row.tokens[0, : int(row.length[0])]).tolist()
    text, ids = prompt_encoding.encode_request(
      self.tokenizer, prompt, request, previous
    )
    prefix = prefix + self.tokenizer.token_strings(ids, text)
    length = len(previous) + len(ids)
    self._check_length('prompt', length, request.max_new_tokens)
    self.usage = batching.DecodeStats()
    self._fit_batch(engine, request, 1, length)
    batch_request = batching.BatchRequest(
      prompts=[np.array(ids, np.int32)],
      keys=keys.of_prompts(request.seed, [previous + ids]),
      leniences=[self.config.effective_lenience],
      max_new_tokens=request.max_new_tokens,
      return_logits=request.return_logits,
      find_end=stop.find_end,
    )
    for so_far, final in continuous_batching.decode_single(
      engine, batch_request, row, max_blocks, stats=self.usage
    ):
      answer = self._output(so_far, stop, prefix if request.echo else None)
      if final is not None:
        new = slice(int(so_far.prompt_length), int(so_far.length))
        tokens = so_far.tokens[new].tolist()
        strings = prefix + self.tokenizer.token_strings(tokens)
        state = ConversationState(final, models, params, strings)
        answer = dataclasses.replace(answer, state=state)
      text = answer.text
      yield answer, text if so_far.done else stop.stable_prefix(text)

  def _engine(
    self, request: SampleRequest
  ) -> tuple[batching.Engine, stopping.StopCondition]:
    """Makes the engine and the stop condition of a request."""
    forbidden, forbidden_ids = request.forbidden_tokens, self.suppress_tokens
    if forbidden is not None:
      forbidden_ids = self._token_ids('forbidden_tokens', forbidden)
    stop_ids = list(self.tokenizer.stops)
    if request.apply_chat_template:
      end_token = turns.require_template(self.tokenizer).end_token
      stop_ids += [] if end_token is None else [end_token]
    if request.stop_tokens is not None:
      stop_ids += self._token_ids('stop_tokens', request.stop_tokens)
    block_length = self._step_config.gamma + 1
    stop = stopping.StopCondition(
      tokenizer=self.tokenizer,
      tokens=stop_ids,
      strings=tuple(request.stop_strings),
      tail_length=batching.POLL_INTERVAL_BLOCKS * block_length,
    )
    engine = batching.Engine(
      step_config=self._step_config,
      params=self._params,
      sampling=self.sampling_params(forbidden_ids),
      stop_tokens=stop.loop_tokens,
      mesh=self._pair.mesh,
    )
    return engine, stop

  def sampling_params(
    self, forbidden: Sequence[int] = ()
  ) -> processing.SamplingParams:
    """Returns the sampling parameters of both models.

    Args:
      forbidden: Token ids that are never emitted.
    """
    top_k, top_p = self.config.top_k, self.config.top_p
    size = self.verifier.model.vocab_size
    if top_k is not None:
      top_k = np.int32(min(top_k, size))
    return processing.SamplingParams(
      temperature=np.float32(self.config.temperature),
      top_k=top_k,
      top_p=None if top_p is None else np.float32(top_p),
      forbidden=prompt_encoding.forbidden_mask(forbidden, size),
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

  def max_prompt_tokens(self, tokens: int) -> int:
    """Returns the most tokens of a prompt if its answer has `tokens` tokens."""
    return self.config.cache_length - tokens - self._step_config.cache_headroom

  def _check_length(self, name: str, length: int, max_new_tokens: int) -> None:
    if length > self.max_prompt_tokens(max_new_tokens):
      raise ValueError(
        f'{name}: its {length} tokens, {max_new_tokens} new tokens and a block'
        f' of {self._step_config.cache_headroom} do not fit into cache_length'
        f' {self.config.cache_length}; shorten it or raise cache_length.'
      )

  def _fit_batch(
    self,
    engine: batching.Engine,
    request: SampleRequest,
    rows: int,
    length: int,
  ) -> int:
    """Returns the rows at a time that the device's memory holds."""
    models = self._step_config.models
    slots = engine.cache_length(length, request.max_new_tokens)
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
    block = 4 * (self._step_config.tree_tokens + 1)
    floats = (
      block + engine.logits_length(request)
    ) * models.verifier.vocab_size
    row_bytes = self._cache_bytes[slots] + 4 * floats
    devices = 1 if engine.mesh is None else engine.mesh.size
    rows = batching.width(rows, self.config.batch_size)
    fitting = memory.fit_rows(rows, row_bytes // devices)
    if fitting == rows:
      return self.config.batch_size
    self.usage.batch_size = fitting
    return fitting

  def encode(
    self, prompt: Prompt, apply_chat_template: bool = False
  ) -> list[int]:
    """Returns the token ids of a prompt that begins a sequence."""
    _, ids = prompt_encoding.encode(self.tokenizer, prompt, apply_chat_template)
    return ids

  def _token_ids(self, name: str, tokens: Sequence[int | str]) -> list[int]:
    vocab_size = self.verifier.model.vocab_size
    return prompt_encoding.token_ids(name, tokens, self.tokenizer, vocab_size)

  def _output(
    self,
    row: decoding.Row,
    stop: stopping.StopCondition,
    prefix: list[str] | None,
  ) -> SampleOutput:
    return outputs.from_row(
      row,
      stop.token_strings,
      stop.is_met,
      prefix=prefix,
      has_rule=self.config.method.rule is not None,
      counts=decoding.summarize_counts(row),
    )
