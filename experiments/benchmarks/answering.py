"""The suite 'answering': samplers with several drafters answer prompts.

For each dtype of the models:

  problems  Strict decoding of a task's prompts: tokens per verifier call and
            per second; optionally gemma's sampler, which writes a fixed number
            of tokens, and the loops of transformers, both in floats, and of
            llama.cpp.
  copies    Greedy decoding of prompts that are followed by their greedy answer
            and the last question again.
"""

import contextlib
import functools
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from cascades import drafters, load_model
from cascades.config import DecodingConfig
from cascades.models import checkpoints, language
from cascades.sampler import batching, sampler
from experiments import measuring, tasks
from experiments.benchmarks import loops, peers
from experiments.measuring import median

_Figures = list[dict[str, Any]]
_Parts = Iterator[tuple[dict[str, Any], Callable[[], _Figures]]]


def _decoding(
  config: ConfigDict, arm: ConfigDict, part: str, batch_size: int
) -> DecodingConfig:
  """Returns the options of an entrant, strict by default."""
  options = dict(
    method='speed',
    lenience=0.0,
    gamma=config.gamma if arm.drafter else 0,
    temperature=0.0 if part == 'copies' else config.temperature,
    batch_size=batch_size,
  )
  changes = {x: arm[x] for x in arm if x not in ('name', 'drafter')}
  return DecodingConfig(**options | changes)


def parts(config: ConfigDict) -> _Parts:
  """Yields all parts; the models of a dtype are loaded before its first."""
  # Before anything is timed.
  for part in ('problems', 'copies'):
    for arm in config[part]:
      _decoding(config, arm, part, 1)
  for dtype in config.dtypes:
    checkpoints.check_dtype(dtype)
  examples = tasks.TASKS[config.task].load(
    path=config.path or None,
    shots=config.shots,
    num_examples=config.num_examples,
  )
  prompts = [x.prompt for x in examples]
  for dtype in config.dtypes:
    yield from _dtype_parts(config, dtype, prompts)


def _dtype_parts(config: ConfigDict, dtype: str, prompts: list[str]) -> _Parts:
  """Yields the parts of a dtype, after its models are loaded."""
  verifier = load_model(config.verifier, dtype)
  names = {arm.drafter for arm in (*config.problems, *config.copies)}
  models = {x: x and drafters.load(x, dtype) for x in names}
  encode = functools.partial(verifier.tokenizer.encode, add_bos=True)
  ids = [*map(encode, prompts)]
  length = batching.bucket(max(map(len, ids)) + config.new_tokens, 64)
  stops = [config.stop] if config.stop else None
  limits = dict(max_new_tokens=config.new_tokens, stop_tokens=stops)
  greedy = sampler.Sampler(
    verifier, config=DecodingConfig(gamma=0, temperature=0.0)
  )
  texts: dict[str, list[str]] = {'problems': prompts, 'copies': []}
  answers = greedy.sample(prompts, **limits)
  for prompt, answer in zip(prompts, answers, strict=True):
    question = prompt.rsplit(config.stop, 1)[-1] if config.stop else prompt
    copy = f'{prompt}{answer.text}{config.stop or "\n"}{question}'
    texts['copies'].append(copy)
  with contextlib.ExitStack() as stack:
    libraries = _start(config, dtype, verifier, models, ids, stack)
    for batch, part in itertools.product(config.batch_sizes, texts):
      entrants = []
      for arm in config[part]:
        options = _decoding(config, arm, part, batch)
        decoder = sampler.Sampler(verifier, models[arm.drafter], config=options)
        entrants.append(_entrant(arm.name, decoder, texts[part], limits))
      if part == 'problems':
        if config.gemma and dtype != 'int8':
          sizes = config.new_tokens, length
          entrants.append(loops.gemma_loop(verifier, ids[:batch], *sizes))
        for name, (versions, modes, answer) in libraries.items():
          for mode in modes:
            if batch == 1 or (name, mode) == peers.BATCHED:
              fields = {'arm': f'{name}, {mode}', 'others': versions}
              run = functools.partial(answer, mode, batch)
              entrants.append(measuring.Entrant(fields, run))
      key = {'part': part, 'dtype': dtype, 'batch': batch}
      name = f'{dtype}, batch {batch}: {part}'
      race = functools.partial(measuring.race, entrants, config.repeats, name)
      yield key, race


def _start(
  config: ConfigDict,
  dtype: str,
  verifier: checkpoints.Checkpoint,
  models: dict[str | None, Any],
  ids: list[list[int]],
  stack: contextlib.ExitStack,
) -> dict[str, peers.Peer]:
  """Starts the loops of other libraries that the config names."""
  started: dict[str, peers.Peer] = {}
  spec = dict(
    dtype=dtype,
    prompts=ids,
    stop=next(iter(verifier.tokenizer.encode(config.stop)), None),
    stop_text=config.stop,
    new_tokens=config.new_tokens,
    gamma=config.gamma,
    threads=os.cpu_count(),
    llama_drafter=config.llama_drafter,
  )
  if config.transformers and dtype != 'int8':
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    plain = verifier.unpack()
    drafter = models[config.assistant].checkpoint.unpack()
    if language.VOCAB_IDS in drafter.params['embedder']:
      # transformers needs the whole table.
      table = {'embedder': plain.params['embedder']}
      drafter = drafter._replace(params=drafter.params | table)
    for name, model in (('verifier', plain), ('drafter', drafter)):
      spec[name] = f'{folder}/{name}'
      checkpoints.save_model(spec[name], model)
    peer = peers.start(config.transformers, 'transformers', spec)
    started['transformers'] = stack.enter_context(peer)
  # llama.cpp has a dtype of its own, and runs beside the last one here.
  if config.llama and dtype == config.dtypes[-1]:
    spec['verifier'] = str(checkpoints.fetch(config.verifier))
    peer = peers.start(config.llama, 'llama.cpp', spec)
    started['llama.cpp'] = stack.enter_context(peer)
  return started


def _entrant(
  name: str,
  decoder: sampler.Sampler,
  prompts: list[str],
  limits: dict[str, Any],
) -> measuring.Entrant:
  """Makes an entrant that answers prompts."""

  def run() -> dict[str, Any]:
    answers = decoder.sample(prompts, **limits)
    facts = {
      'prefill_s': decoder.usage.prefill_s,
      'decode_s': decoder.usage.decode_s,
      'tokens': sum(len(answer.logprobs) for answer in answers),
    }
    for count in answers[0].counts:
      facts[count] = sum(answer.counts[count] for answer in answers)
    if not decoder.config.temperature:
      facts['first'] = answers[0].tokens
    return facts

  drafts, gamma = decoder.config.drafts, decoder.config.gamma
  return measuring.Entrant({'arm': name, 'drafts': drafts, 'gamma': gamma}, run)


def table(figures: Sequence[dict[str, Any]]) -> _Figures:
  """Derives rates and ratios of the entrants."""
  rows, firsts, group = [], {}, ('part', 'dtype', 'batch')
  for row in figures:
    speed = row['tokens'] / median(row['decode_s'])
    first_speed = firsts.setdefault(tuple(row[x] for x in group), speed)
    calls, examined = row.get('verifier_calls'), row.get('examined')
    out = {x: row.get(x) for x in (*group, 'arm', 'gamma', 'drafts')} | {
      'acceptance': row['accepted'] / examined if examined else None,
      'tokens per call': row['tokens'] / calls if calls else None,
      'tokens/s': speed,
      'x alone': speed / first_speed,
      'same tokens': row.get('same_tokens'),
    }
    rows.append(out)
  return rows
