"""Decodes every point of a sweep, and reports quality against cost.

Command: python -m experiments.sweep --config=configs/quickstart.py
Shows: a progress bar, a table, and where the report lies.

A point is (task, method, lenience, gamma, options). A curve, which is a method
with a gamma and options, has its leniences decoded together: the row of a
finished answer takes the next prompt, at whatever lenience. A curve's records
are written when they are whole, so a run that was stopped goes on where it
was.
"""

import dataclasses
import itertools
import json
import math
import pathlib
import sys
import time
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_collections
from absl import app, flags
from ml_collections import config_flags

from experiments import cli

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'What to run, such as configs/quickstart.py.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Where results go; by default runs/<name of the config>.'
)
_CONFIGS = pathlib.Path(__file__).resolve().parent.parent / 'configs'
# The two models alone: no gamma, no options and no lenience.
_ALONE = ('verifier_only', 'drafter_only')
# Methods whose lenience means nothing, so that they are a single point.
_NO_LENIENCE = (*_ALONE, 'always_accept')
# Added to the seed of the drafter alone. A sequence-level cascade takes either
# model's own answer: were they drawn with the same random numbers, the
# verifier would answer just where its draws are as unlucky as the drafter's.
_DRAFTER_SEED = 1_000_000


@dataclasses.dataclass(frozen=True)
class Curve:
  """What is decoded in one go, at several leniences.

  Attributes:
    method: Key of `METHODS`, or of `sequence.CONFIDENCES`.
    leniences: Its points; none where the method has no lenience.
    gamma: Tokens drafted per block.
    verification: As for `Sampler`, and so the rest.
    gate: As for `Sampler`.
    bonus: As for `Sampler`.
    drafts: As for `Sampler`.
  """

  method: str
  leniences: tuple[float, ...]
  gamma: int = 0
  verification: str = 'token'
  gate: str = 'raw'
  bonus: str = 'target'
  drafts: int = 1

  @property
  def name(self) -> str:
    """Tells it from the other curves of a sweep."""
    from cascades import records

    name = records.variant(
      self.method, self.verification, self.gate, self.bonus, self.drafts
    )
    return f'{name} gamma {self.gamma}' if self.gamma else name


# What `tiny` makes of a config, and of what it says of its task.
_TINY = {
  'verifier': 'tiny-verifier',
  'drafter': 'tiny-drafter',
  'num_examples': 4,
  'mesh': (1, 1),
}
_TINY_TASK = {'shots': 0, 'max_new_tokens': 32}


def _shrunk(config):
  """A config as it is run: where it says `tiny`, a rehearsal of it."""
  if not config.get('tiny'):
    return config
  config = ml_collections.ConfigDict(config.to_dict())
  config.update(_TINY)
  if 'task' in config:
    config.task.update(_TINY_TASK)
  return config


def default_workdir(path: pathlib.Path, tiny: bool = False) -> pathlib.Path:
  """Where the results of a config file go.

  `runs/quickstart`, and `runs/gemma2_2b_9b/gsm8k` of a file in a folder of
  configs; what a rehearsal leaves lies apart, in `runs/tiny/...`.
  """
  name = path.with_suffix('').resolve()
  known = name.is_relative_to(_CONFIGS)
  parts = name.relative_to(_CONFIGS).parts if known else (name.name,)
  return pathlib.Path('runs', *(['tiny'] if tiny else []), *parts)


def _mesh(config) -> tuple[int, int]:
  """Devices for the rows and for the parameters; a config may be silent."""
  return tuple(config.get('mesh', (1, 1)))


def tasks_of(config) -> dict[str, Any]:
  """The tasks of a sweep by name, with what the config says of them.

  Raises:
    ValueError: There is no such task, or a file is given for several.
  """
  from cascades.tasks import TASKS

  for name in config.tasks:
    if name not in TASKS:
      raise ValueError(
        f'tasks: no task {name!r}; there are {", ".join(TASKS)}.'
      )
  said = _of_task(config)
  if said.get('path') and len(config.tasks) > 1:
    raise ValueError(
      f'task.path: {said["path"]} cannot hold {len(config.tasks)} tasks; name'
      ' one of them with --config.tasks.'
    )
  tokens = said.get('max_new_tokens')
  changes = {'max_new_tokens': tokens} if tokens else {}
  return {
    name: dataclasses.replace(TASKS[name], **changes) for name in config.tasks
  }


def _of_task(config) -> dict[str, Any]:
  """What a config, which may be silent, says of its tasks."""
  return dict(config.get('task') or {})


def load_examples(config, task) -> tuple[list, dict[str, Any]]:
  """The examples of a task, and what says which they are.

  Returns:
    Held-out examples; and, of a published set, how many worked examples stand
    before a question, the hashes of the files, and what computes its scores.

  Raises:
    ValueError: The set is absent or damaged, or code may not be run.
  """
  said = _of_task(config)
  shots, path = said.get('shots'), said.get('path') or None
  examples = list(
    task.load(
      split='test',
      seed=config.seed,
      num_examples=config.num_examples,
      path=path,
      shots=shots,
      allow_code_execution=bool(said.get('allow_code_execution')),
    )
  )
  if task.source is None:
    return examples, {}
  data = {
    'shots': task.shots if shots is None else shots,
    **task.source.provenance(path),
  }
  if task.scorer is not None:
    data['scorer'] = task.scorer()
  return examples, data


_OPTIONS = ('gamma', 'verification', 'gate', 'bonus', 'drafts')
# Of what drafts, for all curves; as for `Sampler`.
_DRAFTING = ('stop_below', 'beam')


def _drafting(config) -> dict[str, Any]:
  """What a config, which may be silent, says of its drafter."""
  return {name: config[name] for name in _DRAFTING if config.get(name)}


def _method(name: str) -> str:
  """A method's own name.

  Raises:
    ValueError: A sweep knows no such method.
  """
  from cascades import methods, sequence

  if name in sequence.CONFIDENCES:
    return name
  try:
    return methods.get_method(name).name
  except ValueError as e:
    known = ' and '.join(sequence.CONFIDENCES)
    raise ValueError(f'{str(e)[:-1]}; a sweep also takes {known}.') from None


def curves(
  config: Mapping[str, Any],
  module: types.ModuleType | None,
  overrides: Mapping[str, Any],
) -> list[Curve]:
  """The curves of a sweep.

  Args:
    config: Fields; they are the only curve where there is no `sweep` function.
      `verification`, `gate`, `bonus` and `drafts` may be missing.
    module: The config's module, whose `sweep(add)` adds curves: `add(method,
      lenience, gamma, verification, gate, bonus, drafts)`, where what is not
      given is the config's. Several gammas are a curve each.
    overrides: Fields set on the command line: they win, so that a method
      named there is the only one, and leniences, gamma and options given there
      are everyone's. Curves that they make equal become one.
  """
  from cascades import records, sequence

  fields = records.STANDARD | {
    name: config[name] for name in _OPTIONS if name in config
  }
  chosen = []

  def add(
    method,
    lenience,
    gamma=None,
    verification=None,
    gate=None,
    bonus=None,
    drafts=None,
  ):
    given = dict(
      gamma=gamma,
      verification=verification,
      gate=gate,
      bonus=bonus,
      drafts=drafts,
    )
    given = {
      name: fields[name] if value is None or name in overrides else value
      for name, value in given.items()
    }
    method, leniences = _method(method), tuple(lenience)
    if 'lenience' in overrides and leniences:
      leniences = tuple(config['lenience'])
    gammas = given.pop('gamma')
    if method in _ALONE or method in sequence.CONFIDENCES:
      gammas, given = 0, {}
    if method in _NO_LENIENCE:
      leniences = ()
    for each in gammas if isinstance(gammas, (tuple, list)) else (gammas,):
      chosen.append(Curve(method, leniences, each, **given))

  if hasattr(module, 'sweep'):
    module.sweep(add)
  else:
    add(config['method'], config['lenience'])
  if 'method' in overrides:
    name = _method(config['method'])
    chosen[:] = [curve for curve in chosen if curve.method == name]
    if not chosen:
      add(name, config['lenience'])
  if not {'method', 'lenience', *_OPTIONS} & set(overrides):
    return chosen
  merged: dict[str, Curve] = {}
  for curve in chosen:
    old = merged.setdefault(curve.name, curve)
    union = dict.fromkeys((*old.leniences, *curve.leniences))
    merged[curve.name] = dataclasses.replace(old, leniences=tuple(union))
  return list(merged.values())


def check(
  curves: Sequence[Curve], temperature: float, tree_size: int | None = None
) -> None:
  """Looks at every curve before anything is loaded.

  Raises:
    ValueError: An option is out of its range, cannot be combined with its
      method, or a curve or lenience is there twice.
  """
  from cascades import sampler, sequence

  for curve in curves:
    of_answers = curve.method in sequence.CONFIDENCES
    if not curve.leniences and curve.method not in _NO_LENIENCE:
      raise ValueError(f'lenience: {curve.method} needs at least one.')
    for lenience in curve.leniences or (0.0,):
      sampler.check_options(
        # A cascade of answers decodes nothing but the two models alone.
        method='drafter_only' if of_answers else curve.method,
        lenience=lenience,
        gamma=curve.gamma,
        temperature=temperature,
        verification=curve.verification,
        gate=curve.gate,
        bonus=curve.bonus,
        drafts=curve.drafts,
        # A single draft is no tree.
        tree_size=tree_size if curve.drafts > 1 else None,
      )
    twice = _twice(curve.leniences)
    if twice:
      raise ValueError(f'lenience: {curve.name} has {twice[0]:g} twice.')
  twice = _twice(curve.name for curve in curves)
  if twice:
    raise ValueError(
      f'sweep: {twice[0]} is added twice; give all its leniences at once.'
    )


def _twice(values: Iterable) -> list:
  """What is there more than once."""
  values = list(values)
  return [v for i, v in enumerate(values) if v in values[:i]]


def claim(workdir: pathlib.Path, settings: dict[str, Any]) -> None:
  """Makes a workdir this run's, or goes on with one of the same settings.

  Raises:
    ValueError: It holds another run's results.
  """
  from cascades import records

  path = workdir / 'config.json'
  if path.exists():
    try:
      found = json.loads(path.read_text(encoding='utf-8'))
    except ValueError:
      raise ValueError(f'workdir: {path} is damaged; delete it.') from None
    names = sorted(
      name
      for name in set(found) | set(settings)
      if name != 'versions' and found.get(name) != settings.get(name)
    )
    if names:
      raise ValueError(
        f'workdir: {workdir} holds a run with another {", ".join(names)};'
        ' choose another --workdir, or delete it.'
      )
  records.write_text(path, json.dumps(settings, indent=2) + '\n')


class CompileClock:
  """Seconds that JAX has spent compiling since it was made."""

  def __init__(self):
    import jax

    self.seconds = 0.0

    def count(event: str, duration: float, **_):
      if event.startswith('/jax/core/compile/'):
        self.seconds += duration

    jax.monitoring.register_event_duration_secs_listener(count)


class Decoder:
  """Decodes curves on one task; each of the two models alone at most once.

  Attributes:
    task: What scores the answers.
    batch_size: Most rows at a time.
    usage: What its curves took together.
  """

  def __init__(
    self, config, checkpoints, task, examples, clock, folder: pathlib.Path
  ):
    from cascades import batching

    self.task = task
    self.batch_size = config.batch_size
    self.usage = batching.Usage()
    self._config, self._clock, self._folder = config, clock, folder
    self._checkpoints = dict(zip(_ALONE, checkpoints, strict=True))
    self._examples = examples
    self._alone: dict[str, list[tuple]] = {}

  def path(self, curve: Curve) -> pathlib.Path:
    """Where the records of a curve go."""
    name = f'{self.task.name} {curve.name}'.replace(' ', '-')
    return self._folder / f'{name}.jsonl'

  def records(self, curve: Curve) -> list:
    """The records of a curve, a point's together, in the examples' order."""
    from cascades import sequence

    if curve.method in _ALONE:
      return [record for record, _ in self._of(curve.method)]
    if curve.method in sequence.CONFIDENCES:
      drafts, answers = self._of('drafter_only'), self._of('verifier_only')
      return [
        sequence.cascade(
          drafter, verifier, logprobs, method=curve.method, lenience=lenience
        )
        for lenience in curve.leniences
        for (drafter, logprobs), (verifier, _) in zip(
          drafts, answers, strict=True
        )
      ]
    return [record for record, _ in self._decode(curve)]

  def _of(self, method: str) -> list[tuple]:
    """What `_decode` gives for a model alone."""
    from cascades import records

    if method not in self._alone:
      curve = Curve(method, ())
      path = self.path(curve)
      # The log-probabilities, which the drafter is asked for, lie nowhere.
      if method == 'verifier_only' and path.exists():
        self._alone[method] = [(record, None) for record in records.read(path)]
      else:
        self._alone[method] = self._decode(curve)
    return self._alone[method]

  def _decode(self, curve: Curve) -> list[tuple]:
    """Records of a curve, each with the log-probabilities of its tokens."""
    from cascades import sampler

    config = self._config
    verifier, drafter = self._checkpoints.values()
    seed = config.seed
    if curve.method in _ALONE:
      # The two baselines are what they are measured against: plain decoding.
      verifier, drafter = self._checkpoints[curve.method], None
    if curve.method == 'drafter_only':
      seed += _DRAFTER_SEED
    decoder = sampler.Sampler(
      verifier,
      drafter,
      method=curve.method,
      gamma=curve.gamma,
      temperature=config.temperature,
      batch_size=self.batch_size,
      cache_length=config.get('cache_length', 4096),
      mesh=_mesh(config),
      verification=curve.verification,
      gate=curve.gate,
      bonus=curve.bonus,
      drafts=curve.drafts,
      tree_size=config.get('tree_size') if curve.drafts > 1 else None,
      **(_drafting(config) if curve.gamma else {}),
    )
    start, compiled = time.perf_counter(), self._clock.seconds
    points = decoder.sample_curve(
      [e.prompt for e in self._examples],
      curve.leniences or (0.0,),
      max_new_tokens=self.task.max_new_tokens,
      seed=seed,
      stop_strings=self.task.stops,
      chat=config.get('chat', False),
    )
    wall = time.perf_counter() - start
    wall -= self._clock.seconds - compiled
    self.usage.add(decoder.usage)
    # What did not fit once will not fit again.
    self.batch_size = self.usage.batch_size or self.batch_size
    blocks = sum(a.counts['verifier_calls'] for row in points for a in row)
    found = []
    for lenience, answers in zip(
      curve.leniences or (math.nan,), points, strict=True
    ):
      for example, answer in zip(self._examples, answers, strict=True):
        # Rows are decoded together: each has its share of the batch's blocks.
        share = wall * answer.counts['verifier_calls'] / blocks
        if curve.verification == 'sequential':
          # What ran was the speculative loop, not the cascade.
          share = math.nan
        record = self._record(curve, lenience, example, answer, share)
        found.append((record, answer.logprobs))
    return found

  def _record(self, curve: Curve, lenience, example, answer, wall_s):
    from cascades import methods, records

    scores = dict(self.task.score(answer.text, example.reference))
    counts = dict(answer.counts)
    if curve.method == 'drafter_only':
      counts |= {
        'verifier_calls': 0,
        'verifier_tokens': 0,
        'drafter_calls': counts['verifier_calls'],
      }
    if methods.get_method(curve.method).rule is None:
      counts['deferred'] = None
    return records.Record(
      task=self.task.name,
      method=curve.method,
      lenience=lenience,
      gamma=curve.gamma,
      verification=curve.verification,
      gate=curve.gate,
      bonus_from=curve.bonus,
      drafts=curve.drafts,
      temperature=self._config.temperature,
      id=example.id,
      prompt=example.prompt,
      text=answer.text,
      reference=example.reference,
      tokens=answer.tokens,
      pieces=answer.pieces,
      sources=answer.sources,
      quality=scores[self.task.metric] if self.task.metric else math.nan,
      scores=scores,
      wall_s=wall_s,
      **counts,
    )


def main() -> None:
  if _CONFIG.value is None:
    raise app.UsageError(
      '--config: name a config, such as --config=configs/quickstart.py.'
    )
  config = _CONFIG.value
  flag = flags.FLAGS['config']
  path = pathlib.Path(config_flags.get_config_filename(flag))
  chosen = curves(
    config, cli.load_config_module(path), config_flags.get_override_values(flag)
  )
  workdir = pathlib.Path(
    _WORKDIR.value or default_workdir(path, bool(config.get('tiny')))
  )
  run(config, chosen, workdir)


def run(config, chosen: Sequence[Curve], workdir: pathlib.Path) -> None:
  """Runs a sweep in a workdir, or what of it is missing there."""
  import jax

  from cascades import (
    batching,
    checkpoints,
    costs,
    decoding,
    load_model,
    memory,
    metrics,
    pairing,
    records,
    report,
    sequence,
    sharding,
    turns,
  )

  config = _shrunk(config)
  # Whatever the user can get wrong is looked at before a model is loaded.
  tasks = tasks_of(config)
  for name in ('num_examples', 'batch_size'):
    if config[name] < 1:
      raise ValueError(f'{name}: {config[name]} will not do; give 1 or more.')
  # A config may be silent about these.
  dtype, tree_size = config.get('dtype'), config.get('tree_size')
  check(chosen, config.temperature, tree_size)
  mesh = None
  if math.prod(_mesh(config)) > 1:
    mesh = sharding.make_mesh(*_mesh(config))
  loaded = {name: load_examples(config, task) for name, task in tasks.items()}
  if jax.process_index():
    # Every host decodes the same; the first one's results are the results.
    workdir = workdir / f'host-{jax.process_index()}'
  cli.make_folder(workdir)

  model = pairing.is_model(config.drafter)
  if not model:
    # Neither do cascades of whole answers without it.
    alone = 'drafter_only', *sequence.CONFIDENCES
    left = [curve.name for curve in chosen if curve.method in alone]
    chosen = [curve for curve in chosen if curve.method not in alone]
    if left:
      print(
        f'drafter: {config.drafter} cannot answer alone; left out'
        f' {", ".join(left)}.',
        file=sys.stderr,
      )
    if not chosen:
      raise ValueError(
        f'drafter: {config.drafter} cannot answer alone, and no other curve is'
        ' left; add one that it drafts for.'
      )
  bar = cli.progress(len(chosen) * len(tasks), 'loading the models')
  memory.check(
    checkpoints.describe(config.verifier, dtype),
    checkpoints.describe(config.drafter, dtype) if model else None,
    batch_size=config.batch_size,
    # Prompts are not known yet; what they take is looked at once more.
    cache_length=max(task.max_new_tokens for task in tasks.values()),
    gamma=max(
      decoding.tree_tokens(curve.gamma, curve.drafts, tree_size)
      for curve in chosen
    ),
    allocated=False,
    mesh=_mesh(config),
  )
  pair = (
    load_model(config.verifier, dtype, mesh),
    pairing.load_drafter(config.drafter, dtype, mesh),
  )
  # Whatever does not go together is refused here.
  if config.get('chat', False):
    turns.template(pair[0].tokenizer)
  equipped = pairing.equip(*pair, **_drafting(config))
  of_curves = ('method', 'lenience', *_OPTIONS)
  fields = {
    name: records.plain(value)
    for name, value in config.to_dict().items()
    if name not in of_curves
  }
  data = {name: data for name, (_, data) in loaded.items() if data}
  # Bundled tasks are told by their name and the seed.
  fields |= {'data': data} if data else {}
  fields |= {
    # What became of the fields that make curves.
    'curves': [
      {
        name: records.plain(value)
        for name, value in dataclasses.asdict(curve).items()
      }
      for curve in chosen
    ],
    'device': jax.devices()[0].device_kind,
    'versions': cli.versions(),
  }
  claim(workdir, fields)
  costs_path = workdir / 'costs.json'
  if not costs_path.exists():
    bar.set_description('measuring unit costs')
    blocks = {(curve.gamma, curve.drafts) for curve in chosen}
    drafter = pair[1] if model else equipped
    measured = costs.measure(
      pair[0], drafter, sorted(blocks), tree_size=tree_size
    )
    records.write_text(costs_path, measured.to_json())
  clock, paths, usage = CompileClock(), [], batching.Usage()
  for name, task in tasks.items():
    examples, _ = loaded[name]
    decoder = Decoder(config, pair, task, examples, clock, workdir / 'records')
    for curve in chosen:
      bar.set_description(f'{task.name} {curve.name}')
      paths.append(decoder.path(curve))
      if not paths[-1].exists():
        before = decoder.batch_size
        records.write(paths[-1], decoder.records(curve))
        if decoder.batch_size < before:
          bar.write(
            f'memory: {before} rows at a time were too many for'
            f' {curve.name}; going on with {decoder.batch_size}.',
            file=sys.stderr,
          )
      bar.update()
    usage.add(decoder.usage)
  bar.close()
  frame = metrics.summarise(
    itertools.chain.from_iterable(map(records.read, paths)),
    metrics.Costs.from_json(costs_path.read_text()),
  )
  records.write_text(workdir / 'summary.csv', frame.to_csv(index=False))
  page = report.write_report(workdir)
  shown = metrics.best_points(frame.assign(variant=metrics.variants(frame)))[
    'task variant gamma lenience quality rejection_rate block_efficiency'
    ' relative_latency'.split()
  ]
  print(
    "\nEach method's fastest point at the verifier's quality, else its best:"
  )
  print(
    shown.to_string(
      index=False,
      na_rep='-',
      float_format='{:.3f}'.format,
      formatters={'lenience': '{:g}'.format},
    )
  )
  if usage.rows:
    print(
      f'Rows kept busy: {usage.utilisation:.1%} of {usage.rows}; reading'
      f' prompts {usage.prefill_s:.0f} s, decoding {usage.decode_s:.0f} s.'
    )
  print(f'All points: {workdir / "summary.csv"}\nReport:     {page}')


if __name__ == '__main__':
  cli.run(main)
