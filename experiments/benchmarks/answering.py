"""The suite 'answering': samplers with several drafters answer prompts.

For each dtype of the models:

  problems  Strict decoding of a task's prompts: tokens per verifier call and
            per second; optionally gemma's sampler, which writes a fixed number
            of tokens, and the loops of transformers, both in floats, and of
            llama.cpp.
  copies    Greedy decoding of prompts that contain their answers.
"""

import contextlib
import functools
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from cascades import drafters, load_model
from cascades.arguments import options_of
from cascades.config import DecodingConfig
from cascades.models import checkpoints, language
from cascades.sampler import batching, sampler
from experiments import measuring, tasks
from experiments.benchmarks import loops, peers
from experiments.measuring import median

_Figures = list[dict[str, Any]]
_Peers = dict[str, peers.Peer]


def _configs(
  config: ConfigDict, arm: ConfigDict, **options: Any
) -> tuple[DecodingConfig, dict[str, Any]]:
  """Returns the options of decoding, strict by default, and of the drafter."""
  gamma = config.gamma if arm.get('drafter') else 0
  of_arm = {x: arm[x] for x in arm if x not in ('name', 'drafter')}
  strict = dict(method='speed', lenience=0.0, gamma=gamma)
  options = strict | of_arm | options
  names = options.keys() & options_of(DecodingConfig).keys()
  of_decoding = {name: options.pop(name) for name in names}
  return DecodingConfig(**of_decoding), options


class Models(NamedTuple):
  """Models in one dtype, and their prompts."""

  config: ConfigDict
  dtype: str
  verifier: checkpoints.Checkpoint
  drafters: dict[str | None, Any]
  prompts: list[str]

  def sample(
    self, decoder: sampler.Sampler, prompts: Sequence[str]
  ) -> list[sampler.SampleOutput]:
    """Answers prompts up to the limit of the config."""
    stop = [self.config.stop] if self.config.stop else None
    return decoder.sample(
      prompts, max_new_tokens=self.config.new_tokens, stop_tokens=stop
    )

  def ids(self) -> list[list[int]]:
    """Returns the token ids of the prompts."""
    encode = functools.partial(self.verifier.tokenizer.encode, add_bos=True)
    return [encode(prompt) for prompt in self.prompts]


def _load_prompts(config: ConfigDict) -> list[str]:
  """Loads the first prompts of the task of a config."""
  examples = tasks.TASKS[config.task].load(
    path=config.path or None,
    shots=config.shots,
    num_examples=config.num_examples,
  )
  return [x.prompt for x in examples]


def _load(config: ConfigDict, dtype: str) -> Models:
  """Loads all models in a dtype."""
  names = {arm.get('drafter') for arm in (*config.problems, *config.copies)}
  return Models(
    config,
    dtype,
    verifier=load_model(config.verifier, dtype),
    drafters={x: x and drafters.load(x, dtype) for x in names},
    prompts=_load_prompts(config),
  )


def parts(
  config: ConfigDict,
) -> Iterator[tuple[dict[str, Any], Callable[[], _Figures]]]:
  """Yields all parts; models and peers are loaded on demand."""
  # Before anything is timed.
  for arm in (*config.problems, *config.copies):
    _configs(config, arm, temperature=config.temperature)
  for dtype in config.dtypes:
    checkpoints.check_dtype(dtype)
  _load_prompts(config)
  for dtype in config.dtypes:
    load = functools.cache(functools.partial(_load, config, dtype))
    with contextlib.ExitStack() as stack:
      start = functools.cache(functools.partial(_start, load, stack))
      for batch, part in itertools.product(
        config.batch_sizes, ('problems', 'copies')
      ):
        key = {'part': part, 'dtype': dtype, 'batch': batch}
        yield key, functools.partial(_measure_answers, load, start, key)


def _start(load: Callable[[], Models], stack: contextlib.ExitStack) -> _Peers:
  """Starts the loops of other libraries that the config names."""
  models = load()
  config, verifier = models.config, models.verifier
  started: _Peers = {}
  spec = dict(
    dtype=models.dtype,
    prompts=models.ids(),
    stop=next(iter(verifier.tokenizer.encode(config.stop)), None),
    stop_text=config.stop,
    new_tokens=config.new_tokens,
    gamma=config.gamma,
    threads=os.cpu_count(),
  )
  if config.transformers and models.dtype != 'int8':
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    drafter = models.drafters[config.assistant].checkpoint
    for name, model in (('verifier', verifier), ('drafter', drafter)):
      spec[name] = f'{folder}/{name}'
      checkpoints.save_model(spec[name], _with_table(model, verifier))
    peer = peers.Peer(config.transformers, 'transformers', spec)
    started['transformers'] = stack.enter_context(peer)
  # llama.cpp has a dtype of its own, and runs beside the last one here.
  if config.llama and models.dtype == config.dtypes[-1]:
    spec['verifier'] = str(checkpoints.fetch(config.verifier))
    peer = peers.Peer(config.llama, 'llama', spec)
    started['llama.cpp'] = stack.enter_context(peer)
  return started


def _with_table(
  model: checkpoints.Checkpoint, verifier: checkpoints.Checkpoint
) -> checkpoints.Checkpoint:
  """Returns a model with the whole table, which transformers needs."""
  plain = model.unpack()
  if language.VOCAB_IDS not in plain.params['embedder']:
    return plain
  table = verifier.unpack().params['embedder']
  return plain._replace(params={**plain.params, 'embedder': table})


def _measure_answers(
  load: Callable[[], Models], start: Callable[[], _Peers], key: dict[str, Any]
) -> _Figures:
  """Times all entrants of a part; `key` is part of their figures."""
  models, part, batch = load(), key['part'], key['batch']
  config, ids = models.config, models.ids()
  copies = part == 'copies'
  prompts = _copies(models) if copies else models.prompts
  temperature = 0.0 if copies else config.temperature
  participants = [
    entrant(models, arm, prompts, temperature=temperature, batch_size=batch)
    for arm in config[part]
  ]
  if config.gemma and models.dtype != 'int8' and not copies:
    length = batching.bucket(max(map(len, ids)) + config.new_tokens, 64)
    sizes = config.new_tokens, length
    participants.append(loops.gemma_loop(models.verifier, ids[:batch], *sizes))
  for name, peer in {} if copies else start().items():
    for mode, max_batch in peers.MODES[name].items():
      if batch <= max_batch:
        run = functools.partial(peer.answer, mode, batch)
        fields = {'arm': f'{name}, {mode}', 'others': peer.versions}
        participants.append(measuring.Entrant(fields, run))
  name = f'{models.dtype}, batch {batch}: {part}'
  return [
    key | row for row in measuring.race(participants, config.repeats, name)
  ]


def entrant(
  models: Models, arm: ConfigDict, prompts: Sequence[str], **options: Any
) -> measuring.Entrant:
  """Makes an entrant that answers prompts with the sampler of `arm`."""
  config, drafter_options = _configs(models.config, arm, **options)
  drafter = models.drafters[arm.get('drafter')]
  if drafter is not None:
    drafter = drafter.replace(**drafter_options)
  decoder = sampler.Sampler(models.verifier, drafter, config=config)

  def run() -> dict[str, Any]:
    answers = models.sample(decoder, prompts)
    facts = {
      'prefill_s': decoder.usage.prefill_s,
      'decode_s': decoder.usage.decode_s,
      'tokens': sum(len(answer.logprobs) for answer in answers),
    }
    for name in answers[0].counts:
      facts[name] = sum(answer.counts[name] for answer in answers)
    if not decoder.config.temperature:
      facts['first'] = answers[0].tokens
    return facts

  drafts, gamma = decoder.config.drafts, decoder.config.gamma
  fields = {'arm': arm.name, 'drafts': drafts, 'gamma': gamma}
  return measuring.Entrant(fields, run)


def _copies(models: Models) -> list[str]:
  """Returns prompts followed by their greedy answer and the prompt again."""
  stop = models.config.stop
  greedy_sampler = sampler.Sampler(
    models.verifier, config=DecodingConfig(gamma=0, temperature=0.0)
  )
  copies = []
  for prompt, answer in zip(
    models.prompts, models.sample(greedy_sampler, models.prompts), strict=True
  ):
    question = f'{stop}{prompt.rsplit(stop, 1)[-1]}' if stop else f'\n{prompt}'
    copies.append(f'{prompt}{answer.text}{question}')
  return copies


def table(figures: Sequence[dict[str, Any]]) -> _Figures:
  """Derives rates and ratios of the entrants."""
  rows, firsts = [], {}
  for row in figures:
    fields = {x: row[x] for x in ('part', 'dtype', 'batch')}
    speed = row['tokens'] / median(row['decode_s'])
    first_speed = firsts.setdefault(tuple(fields.values()), speed)
    calls, examined = row.get('verifier_calls'), row.get('examined')
    out = fields | {x: row.get(x) for x in ('arm', 'gamma', 'drafts')}
    out |= {
      'acceptance': row['accepted'] / examined if examined else None,
      'tokens per call': row['tokens'] / calls if calls else None,
      'tokens/s': speed,
      'x alone': speed / first_speed,
      'same tokens': row.get('same_tokens'),
    }
    rows.append(out)
  return rows
