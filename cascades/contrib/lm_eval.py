r"""The model type `cascades` of lm-evaluation-harness.

  python -m cascades.contrib.lm_eval --model cascades --tasks gsm8k \
    --batch_size 16 --model_args \
    verifier=tiny-verifier,drafter=tiny-drafter,lenience=0.3

is `lm_eval` with one model more. The harness (0.4.13) has no hook for models
of other packages, so this module registers the type and hands over to the
harness's own command line; in Python, importing it is enough for
`simple_evaluate`. The harness needs no torch.

`--model_args` are the arguments of `Sampler`, and `seed`. What a task asks for
is decoded by that sampler, greedily unless the task or `--gen_kwargs` say
`do_sample` or a temperature; log-likelihoods are those of the sampler's target
(see `scoring`), at its own temperature, 1 by default. With
`--apply_chat_template` prompts are turns of the model's own chat template, else
of its family's, after the `--system_instruction`.

`logprobs=FILE` in the `--model_args` adds a line of JSON to a file for each
answer: `prompt_hash`, that of the harness's samples, and `tokens`, `sources`,
`verifier_logprobs`, `drafter_logprobs`, `target_logprobs` and `law_given` of
`SampleOutput`.
"""

import collections
import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cascades import arguments, drafters, files, presets
from cascades.arguments import options_of
from cascades.config import DecodingConfig
from cascades.models import chat, tokenizers
from cascades.models.chat import Conversation
from cascades.sampler import sampler, scoring

try:
  from lm_eval import utils
  from lm_eval.__main__ import cli_evaluate
  from lm_eval.api.instance import Instance
  from lm_eval.api.model import TemplateLM
  from lm_eval.api.registry import register_model
  from lm_eval.models.utils import normalize_gen_kwargs
except ModuleNotFoundError as error:
  raise ModuleNotFoundError(
    arguments.missing('lm_eval', 'lm-evaluation-harness', 'eval')
  ) from error

# A child of the harness's logger, since that is what it shows.
_LOG = logging.getLogger('lm_eval.cascades')

_DECODING = tuple(options_of(DecodingConfig))
_MODELS = 'verifier', 'drafter', 'mesh', 'dtype'
# What a task may ask for, as `normalize_gen_kwargs` names it.
_PROCESSING = 'temperature', 'top_k', 'top_p'
_GENERATION = 'until', 'max_gen_toks', 'do_sample', *_PROCESSING
# Of an answer, in the file of `logprobs`; an infinite number is a string.
_LOGGED = (
  'tokens sources verifier_logprobs drafter_logprobs target_logprobs law_given'
).split()


def _check_names(
  option: str, values: Mapping[str, Any], names: Sequence[str]
) -> None:
  for key in values:
    if key not in names:
      raise ValueError(
        f'{option}: {key!r} is not known; choose from {", ".join(names)}.'
      )


class Generation(NamedTuple):
  """Generation options of a task; equal requests are decoded together."""

  max_new_tokens: int
  until: tuple[str, ...]
  processing: tuple[tuple[str, Any], ...]

  @classmethod
  def from_task(cls, task_kwargs: Mapping[str, Any]) -> 'Generation':
    """Reads a task's `generation_kwargs`."""
    options: dict[str, Any] = {**normalize_gen_kwargs(dict(task_kwargs))}
    _check_names('generation_kwargs', options, _GENERATION)
    processing = {x: options[x] for x in _PROCESSING if x in options}
    if not options['do_sample']:
      processing['temperature'] = 0
    return cls(
      max_new_tokens=options['max_gen_toks'],
      until=tuple(text for text in options['until'] if text),
      processing=tuple(processing.items()),
    )


@register_model('cascades')
class CascadesLM(TemplateLM):
  """A `Sampler` as the harness sees a model.

  Args:
    seed: An answer depends on it and on its prompt, not on other requests.
    batch_size: 'auto' takes `max_batch_size`, or what `Sampler` takes.
    max_batch_size: Taken where `batch_size` is 'auto'.
    device: Unused, as JAX has its own flag (JAX_PLATFORMS).
    logprobs: File that receives the log-probabilities of answers; '' for none.
    **options: Arguments of `Sampler`; models by name or path.
  """

  def __init__(
    self,
    *,
    seed: int = 0,
    batch_size: int | str | None = None,
    max_batch_size: int | None = None,
    device: str | None = None,
    logprobs: str = '',
    **options: Any,
  ):
    super().__init__()
    del device
    names = (*_MODELS, *_DECODING, *drafters.declared_options(), 'seed')
    _check_names('model_args', options, names)
    if options.get('verifier') is None:
      raise ValueError('verifier: must be given in model_args.')
    for name in ('verifier', 'drafter'):
      # The harness makes a number of a folder that is called so.
      if isinstance(options.get(name), int | float):
        options[name] = str(options[name])
    if str(batch_size).startswith('auto'):
      batch_size = max_batch_size
    if batch_size is not None:
      text = str(batch_size)
      options['batch_size'] = int(text) if text.isdigit() else batch_size
    models = {k: v for k, v in options.items() if k in _MODELS}
    decoding = {k: v for k, v in options.items() if k in _DECODING}
    if isinstance(models.get('drafter'), str):
      names = options.keys() - models.keys() - decoding.keys()
      models['drafter'] = drafters.parse(
        models['drafter'], **{name: options[name] for name in names}
      )
    self.sampler = sampler.Sampler(
      config=presets.configure(**decoding), **models
    )
    self.seed, self._logprobs = seed, str(logprobs)
    self._mesh = options.get('mesh', (1, 1))
    self._counts = collections.Counter()

  @property
  def eot_token_id(self) -> int:
    """End-of-sequence."""
    return tokenizers.EOS

  @property
  def prefix_token_id(self) -> int:
    """The token that begins a text without a context."""
    return tokenizers.BOS

  @property
  def max_length(self) -> int:
    """Most tokens of a sequence."""
    return self.sampler.config.cache_length

  def tok_encode(
    self, string: str, add_special_tokens: bool | None = None, **kwargs
  ) -> list[int]:
    """Token ids of a text, with a beginning of sequence unless told not to."""
    return self.sampler.tokenizer.encode(
      string, add_bos=add_special_tokens is not False
    )

  def generate_until(
    self, requests: list[Instance], disable_tqdm: bool = False
  ) -> list[str]:
    """Answers prompts, each with its `generation_kwargs`."""
    alike = collections.defaultdict(list)
    arguments: list[Any] = [request.args for request in requests]
    for i, request_args in enumerate(arguments):
      alike[Generation.from_task(request_args[1])].append(i)
    texts = [''] * len(requests)
    for generation, indices in alike.items():
      decoder = self._like(dict(generation.processing))
      prompts = [arguments[i][0] for i in indices]
      answers = decoder.sample(
        [getattr(prompt, 'messages', prompt) for prompt in prompts],
        max_new_tokens=generation.max_new_tokens,
        seed=self.seed,
        stop_strings=generation.until,
        return_logprobs=bool(self._logprobs),
      )
      self._log(prompts, answers)
      for i, answer in zip(indices, answers, strict=True):
        texts[i] = answer.text
        self._counts.update(answer.counts, answers=1, tokens=len(answer.tokens))
        request = requests[i].args
        self.cache_hook.add_partial('generate_until', request, texts[i])
    summary = ', '.join(f'{k} {round(v, 3)}' for k, v in self.counts.items())
    _LOG.info('%s: %s', self.sampler.config.method.name, summary)
    return texts

  def _log(
    self, prompts: Sequence[str], answers: Sequence[sampler.SampleOutput]
  ) -> None:
    """Appends answers to the file of `logprobs`."""
    if self._logprobs:
      with open(self._logprobs, 'a', encoding='utf-8') as file:
        for prompt, answer in zip(prompts, answers, strict=True):
          line = {name: getattr(answer, name) for name in _LOGGED}
          line = {'prompt_hash': utils.hash_string(prompt)} | files.plain(line)
          file.write(json.dumps(line) + '\n')

  def _like(self, changes: dict[str, Any]) -> sampler.Sampler:
    """The same sampler with other options."""
    decoder = self.sampler
    if not changes.get('temperature', 1):
      # Greedy decoding truncates nothing, whatever a task or the sampler says.
      changes = changes | dict(top_k=None, top_p=None)
    return sampler.Sampler(
      decoder.verifier,
      decoder.drafter,
      config=decoder.config.replace(**changes),
      mesh=self._mesh,
    )

  def _loglikelihood_tokens(
    self,
    requests: list[tuple[tuple[str, str], list[int], list[int]]],
    disable_tqdm: bool = False,
  ) -> list[tuple[float, bool]]:
    """Scores continuations, and tells whether they are greedy."""
    scores = scoring.score(
      self.sampler, [(context, target) for _, context, target in requests]
    )
    for (texts, *_), score in zip(requests, scores, strict=True):
      self.cache_hook.add_partial('loglikelihood', texts, tuple(score))
    return [(score.logprob, score.is_greedy) for score in scores]

  def loglikelihood_rolling(
    self, requests: list[Instance], disable_tqdm: bool = False
  ) -> list[float]:
    """Scores whole texts, in windows of `max_length` if they are longer."""
    windows, owners = [], []
    # A window is read but for its last token.
    room = self.max_length - 1
    for i, request in enumerate(requests):
      ids = self.tok_encode(request.args[0], add_special_tokens=False)
      first = self.prefix_token_id
      for window in utils.get_rolling_token_windows(ids, first, room, 1):
        windows.append(utils.make_disjoint_window(window))
        owners.append(i)
    totals = [0.0] * len(requests)
    scores = scoring.score(self.sampler, windows)
    for i, score in zip(owners, scores, strict=True):
      totals[i] += score.logprob
    for request, total in zip(requests, totals, strict=True):
      self.cache_hook.add_partial('loglikelihood_rolling', request.args, total)
    return totals

  @property
  def counts(self) -> dict[str, float]:
    """Calls and tokens of all answers so far, and their rates if defined."""
    counts: dict[str, float] = {**self._counts}
    if counts.get('examined'):
      counts['acceptance_rate'] = counts['accepted'] / counts['examined']
    if counts.get('verifier_calls'):
      counts['block_efficiency'] = counts['tokens'] / counts['verifier_calls']
    return counts

  def get_model_info(self) -> dict[str, Any]:
    """Returns the entry in the `config` of the harness's results."""
    config = self.sampler.config
    names = ('gamma', 'drafts', 'temperature', 'top_k', 'top_p')
    return dict(
      cascades=dict(
        method=config.method.name,
        lenience=config.effective_lenience,
        **{name: getattr(config, name) for name in names},
        **dataclasses.asdict(config.verification_config),
        seed=self.seed,
        counts=self.counts,
      )
    )

  def apply_chat_template(
    self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
  ) -> str:
    """Returns messages as the model's chat template writes them.

    A last message of the assistant is continued.
    """
    messages = Conversation(chat_history)
    ids = self.sampler.encode(messages, apply_chat_template=True)
    prompt = _ChatText(self.sampler.tokenizer.decode(ids))
    prompt.messages = messages
    return prompt

  def _encode_pair(
    self, context: str, continuation: str
  ) -> tuple[list[int], list[int]]:
    """Encodes a context, and the continuation behind it."""
    if not isinstance(context, _ChatText):
      return super()._encode_pair(context, continuation)
    tokenizer = self.sampler.tokenizer
    parts = chat.require_template(tokenizer).split(context.messages)
    ids = tokenizer.encode_framed(parts)
    return ids, tokenizer.encode_framed([*parts, continuation])[len(ids) :]

  def chat_template(self, chat_template: bool | str = False) -> str | None:
    """Returns the chat template for the harness's results; None if unused."""
    if not chat_template:
      return None
    if isinstance(chat_template, str):
      raise ValueError(
        f'apply_chat_template: the name {chat_template!r} is not supported;'
        " leave it out to take the model's own template."
      )
    tokenizer = self.sampler.tokenizer
    return tokenizer.chat_template or tokenizer.decode(
      self.sampler.encode('{message}', True)
    )

  @property
  def tokenizer_name(self) -> str:
    """A name for the harness's cache of prompts with chat templates."""
    return hashlib.sha256(self.sampler.tokenizer.proto).hexdigest()


class _ChatText(str):
  """A prompt as a chat template writes it, with its messages.

  The harness sees the text; the sampler encodes the messages, in which control
  tokens stay text.
  """

  messages: Conversation


if __name__ == '__main__':
  cli_evaluate()
