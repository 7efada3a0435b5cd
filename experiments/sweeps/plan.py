"""What a config asks for: tasks, curves, and the points they are made of.

A curve is a method with a gamma and options, whose leniences are decoded
together. A point, the unit of work, is a curve on some examples of a task. It
has a name of its own, a hash of everything that can change what comes of it,
so that a file of that name need not be made again.
"""

import dataclasses
import inspect
import itertools
import pathlib
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_collections

from cascades.registries import OPTIONS
from cascades.verification_config import SEQUENTIAL
from experiments import records
from experiments.sweeps import fields

if TYPE_CHECKING:
  # It brings JAX, which nobody is to wait for who asks for help.
  from cascades.config import DecodingConfig

_CONFIGS = pathlib.Path(__file__).resolve().parents[2] / 'configs'
# The two models alone: no gamma, no options and no lenience.
ALONE = {'verifier_only': 'verifier', 'drafter_only': 'drafter'}
# Methods whose lenience means nothing, so that they are a single point.
_NO_LENIENCE = (*ALONE, 'always_accept')
# Examples of a point, unless a config says otherwise: what is lost at most when
# a run is killed, for each of its workers.
_SHARD = 256
# What curves of a sweep differ in, beside method and leniences; and what all of
# them are decoded with.
_OPTIONS = ('gamma', *records.OPTIONS)
_SHARED = ('temperature', 'cache_length')
# Fields of a config that become curves.
OF_CURVES = ('method', 'lenience', *_OPTIONS)
# Fields that say how a sweep is run, and which examples there are: a point has
# its own, and none of these changes what comes of them.
_CHANGE_NOTHING = (
  'tasks',
  'task',
  'num_examples',
  'shard_size',
  'tiny',
  'ray',
  'trackers',
  'clock',
)
# Options of `Sampler` about what drafts, which a sweep has for all curves.
_DRAFTING = ('stop_below', 'beam', 'fill_unselected_logits')


@dataclasses.dataclass(frozen=True)
class Curve:
  """What is decoded in one go, at several leniences.

  Attributes:
    config: The options, but for the lenience and the number of rows at a time.
      A cascade of whole answers decodes nothing itself: its options are those
      of the drafter alone.
    leniences: Its points; none where the method has no lenience.
    confidence: Key of `sequence.CONFIDENCES` for a cascade of whole answers;
      else None.
    drafter_options: Names and values of options of the drafter's spec.

  Raises:
    ValueError: There is no lenience and the method has one, or one will not do
      or is there twice.
  """

  config: 'DecodingConfig'
  leniences: tuple[float, ...]
  confidence: str | None = None
  drafter_options: tuple[tuple[str, Any], ...] = ()

  def __post_init__(self):
    if not self.leniences and self.method not in _NO_LENIENCE:
      raise ValueError(f'lenience: {self.method} needs at least one.')
    for lenience in self.leniences:
      self.config.replace(lenience=lenience)
    if twice := _twice(self.leniences):
      raise ValueError(f'lenience: {self.name} has {twice[0]:g} twice.')

  @classmethod
  def of(
    cls,
    config: Mapping[str, Any],
    method: str,
    leniences: Iterable[float],
    **given: Any,
  ) -> 'Curve':
    """A curve as a config has it decoded.

    Args:
      config: Fields; where they are silent, the options are the usual ones.
      method: A name in `METHODS`, an alias of it, or one of
        `sequence.CONFIDENCES`.
      leniences: Where the method has none, they are not looked at.
      **given: Its own gamma, verification, gate, bonus and drafts. The models
        alone and cascades of whole answers have none.

    Raises:
      ValueError: An option is unknown or out of its range, or cannot be
        combined with the method.
    """
    from cascades.config import DecodingConfig

    odd = sorted(given.keys() - {*_OPTIONS})
    if odd:
      raise ValueError(
        f'sweep: a curve has no {odd[0]} of its own; there are'
        f' {", ".join(_OPTIONS)}.'
      )
    method, confidence = _method(method), None
    chosen = {name: config[name] for name in _SHARED if name in config}
    if _drafts(method):
      chosen |= {name: config[name] for name in _OPTIONS if name in config}
      chosen |= given
    else:
      chosen['gamma'] = 0
      if method not in ALONE:
        method, confidence = 'drafter_only', method
    chosen['tree_size'] = config.get('tree_size')
    # A sweep has one config for all curves: each takes the options that have an
    # effect on it, and records what it took.
    decoding = DecodingConfig.applicable(method=method, **chosen)
    drafter_options = tuple(drafting(config).items()) if decoding.gamma else ()
    if not confidence and method in _NO_LENIENCE:
      leniences = ()
    return cls(decoding, tuple(leniences), confidence, drafter_options)

  @property
  def method(self) -> str:
    """Key of `METHODS`, or of `sequence.CONFIDENCES`."""
    return self.confidence or self.config.method.name

  @property
  def alone(self) -> str | None:
    """The model that answers by itself: 'verifier' or 'drafter'; or None."""
    return ALONE.get(self.method)

  @property
  def own(self) -> dict[str, Any]:
    """Its gamma and options, as configs name them."""
    return {name: getattr(self.config, name) for name in _OPTIONS}

  @property
  def fields(self) -> dict[str, Any]:
    """What tells it from others, as it is kept; and hashed, for points."""
    return dict(method=self.method, leniences=self.leniences, **self.own)

  @property
  def name(self) -> str:
    """Tells it from the other curves of a sweep."""
    own = self.own
    gamma = own.pop('gamma')
    name = records.variant(self.method, **own)
    return f'{name} gamma {gamma}' if gamma else name


# What `tiny` makes of a config, and of what it says of its task.
_TINY = {
  'verifier': 'tiny-verifier',
  'drafter': 'tiny-drafter',
  'num_examples': 4,
  'mesh': (1, 1),
}
_TINY_TASK = {'shots': 0, 'max_new_tokens': 32}


def shrunk(config):
  """A config as it is run: where it says `tiny`, a rehearsal of it."""
  if not config.get('tiny'):
    return config
  config = ml_collections.ConfigDict(config.to_dict())
  config.update(_TINY)
  if 'task' in config:
    config.task.update(_TINY_TASK)
  return config


def default_workdir(
  config: str | pathlib.Path, tiny: bool = False
) -> pathlib.Path:
  """Where the results of a config go.

  `runs/quickstart` for configs/quickstart.py; the words of an argument are
  folders in it, `runs/mine/2b/fast` for mine.py:2b,fast. Those of
  configs/paper.py need no name above them: `runs/gemma2_2b_9b/gsm8k`. What a
  rehearsal leaves lies apart, in `runs/tiny/...`.

  Args:
    config: As `--config` names it: a path, and maybe a colon and an argument.
    tiny: Whether it is a rehearsal.
  """
  path, _, argument = str(config).partition(':')
  name = pathlib.Path(path).with_suffix('').resolve()
  known = name.is_relative_to(_CONFIGS)
  parts = name.relative_to(_CONFIGS).parts if known else (name.name,)
  if name == _CONFIGS / 'paper':
    parts = ()
  # Neither '/data' nor '..' leads out of the folder.
  words = argument.replace('/', ',').split(',')
  words = [word for word in words if word.strip('.')]
  return pathlib.Path('runs', *(['tiny'] if tiny else []), *parts, *words)


def mesh_of(config) -> tuple[int, int]:
  """Devices for the rows and for the parameters; a config may be silent."""
  return tuple(config.get('mesh', (1, 1)))


def tasks_of(config) -> dict[str, Any]:
  """The tasks of a sweep by name, with what the config says of them.

  Raises:
    ValueError: There is no such task, or a file is given for several.
  """
  from experiments.tasks import TASKS

  if not config.tasks:
    raise ValueError(
      'tasks: none is named; name one or more with --config.tasks, such as'
      f' {next(iter(TASKS))}.'
    )
  for name in config.tasks:
    if name not in TASKS:
      raise ValueError(TASKS.unknown(name, 'tasks'))
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
    Held-out examples, if the config names no other split; and, of a published
    set, how many worked examples stand before a question, the hashes of the
    files, and what computes its scores.

  Raises:
    ValueError: The set is absent or damaged, or has no such split, or code may
      not be run.
  """
  said = _of_task(config)
  shots, path = said.get('shots'), said.get('path') or None
  examples = list(
    task.load(
      split=config.get('split', 'test'),
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
  if signature := task.signature():
    data['scorer'] = signature
  return examples, data


def drafting(config) -> dict[str, Any]:
  """What a config, which may be silent, says of its drafter."""
  said = {name: config.get(name) for name in (*_DRAFTING, *OPTIONS.names())}
  return {name: value for name, value in said.items() if value is not None}


def _method(name: str) -> str:
  """A method's own name.

  Raises:
    ValueError: A sweep knows no such method.
  """
  from cascades import methods
  from experiments.sweeps import sequence

  if name in sequence.CONFIDENCES:
    return name
  try:
    return methods.get_method(name).name
  except ValueError as e:
    known = ' and '.join(sequence.CONFIDENCES)
    raise ValueError(f'{str(e)[:-1]}; a sweep also takes {known}.') from None


def _drafts(name: str) -> bool:
  """Whether a method decodes blocks: no model alone, no whole answers."""
  from experiments.sweeps import sequence

  return name not in ALONE and name not in sequence.CONFIDENCES


def curves(
  config: Mapping[str, Any],
  module: types.ModuleType | None,
  overrides: Mapping[str, Any],
) -> list[Curve]:
  """The curves of a sweep.

  Args:
    config: Fields; they are the only curve where there is no `sweep` function.
      Options may be missing.
    module: The config's module, whose `sweep(add)` adds curves: `add(method,
      lenience, gamma)`, and by name verification, gate, bonus and drafts, where
      what is not given is the config's. Several gammas are a curve each. A
      `sweep(add, config)` also receives the fields.
    overrides: Fields set on the command line: they win, so that a method
      named there is the only one, and leniences, gamma and options given there
      are everyone's. Curves that they make equal become one.

  Raises:
    ValueError: What a curve of them cannot be; as `Curve.of`.
  """
  fields.check(config)
  overridden = {*OF_CURVES} & {*overrides}
  only = _method(config['method']) if 'method' in overridden else None
  chosen = []

  def add(method, lenience, gamma=None, **given):
    method, leniences = _method(method), tuple(lenience)
    if only not in (None, method):
      return
    if 'lenience' in overridden and leniences:
      leniences = tuple(config['lenience'])
    if overridden:
      leniences = tuple(dict.fromkeys(leniences))
    given = {
      name: value
      for name, value in given.items()
      if value is not None and name not in overridden
    }
    if gamma is None or 'gamma' in overridden:
      gamma = config['gamma']
    gammas = gamma if _drafts(method) else 0
    verification = {'verification': config.get('verification'), **given}
    if gammas and verification['verification'] == SEQUENTIAL:
      # It makes no blocks: one curve, whatever the gammas of the others.
      gammas = 1
    for each in gammas if isinstance(gammas, (tuple, list)) else (gammas,):
      chosen.append(Curve.of(config, method, leniences, **given, gamma=each))

  if hasattr(module, 'sweep'):
    wanted = len(inspect.signature(module.sweep).parameters)
    module.sweep(*(add, config)[:wanted])
  else:
    add(config['method'], config['lenience'])
  if only and not chosen:
    add(only, config['lenience'])
  if not overridden:
    return chosen
  merged: dict[str, Curve] = {}
  for curve in chosen:
    old = merged.setdefault(curve.name, curve)
    union = dict.fromkeys((*old.leniences, *curve.leniences))
    merged[curve.name] = dataclasses.replace(old, leniences=tuple(union))
  return list(merged.values())


def check(curves: Sequence[Curve], config: Mapping[str, Any]) -> None:
  """Looks at curves together, before anything is loaded.

  Args:
    curves: Of the sweep.
    config: Its fields.

  Raises:
    ValueError: There is no curve, one is there twice, or was made of another
      config: what is kept of it would be named after this one.
  """
  if not curves:
    raise ValueError(
      'sweep: it has no curves; give it a method, and a gamma where the method'
      ' drafts.'
    )
  for curve in curves:
    said = Curve.of(config, curve.method, curve.leniences, **curve.own)
    if said != curve:
      raise ValueError(
        f'sweep: {curve.name} was made of a config that says something else of'
        ' decoding; make it of the one that is run.'
      )
  twice = _twice(curve.name for curve in curves)
  if twice:
    raise ValueError(
      f'sweep: {twice[0]} is added twice; give all its leniences at once.'
    )


def _twice(values: Iterable) -> list:
  """What is there more than once."""
  values = list(values)
  return [v for i, v in enumerate(values) if v in values[:i]]


@dataclasses.dataclass(frozen=True)
class Point:
  """A curve on some examples of a task.

  Attributes:
    task: Its name.
    curve: What decodes them.
    first: Place of the first example.
    last: Place after that of the last one.
    identity: Hash of all that can change its records.
  """

  task: str
  curve: Curve
  first: int
  last: int
  identity: str

  @property
  def name(self) -> str:
    """Of its files: what people look for, and the hash."""
    # A method may be named after the folder that it lies in.
    name = re.sub('[ /]', '-', f'{self.task} {self.curve.name}')
    return f'{name}-{self.first}-{self.identity[:16]}'


def points(
  config: Mapping[str, Any],
  curves: Sequence[Curve],
  tasks: Mapping[str, Any],
  examples: Mapping[str, Sequence],
  facts: Mapping[str, Any],
) -> list[Point]:
  """The points of a sweep: of a task, of a curve, one after the other.

  Args:
    config: Fields.
    curves: From `curves`.
    tasks: From `tasks_of`.
    examples: By task, from `load_examples`.
    facts: What else can change a result: weights, code, versions and device.
  """
  from experiments.records import external_code

  of_run = {
    name: value
    for name, value in records.plain(config).items()
    if name not in (*OF_CURVES, *_CHANGE_NOTHING)
  }
  size, found = config.get('shard_size') or _SHARD, []
  for task, curve in itertools.product(tasks, curves):
    hashed = {
      'run': of_run,
      'facts': facts,
      'curve': records.plain(curve.fields),
      'task': [
        task,
        tasks[task].max_new_tokens,
        list(tasks[task].stop_strings),
      ],
    }
    method = curve.config.method
    if method.identity:
      # The same name may be that of another rule tomorrow.
      hashed['learned'] = method.identity
    plugins = external_code.used_plugins(
      curve.config, config.get('drafter', '')
    )
    if source := external_code.hash_external(method, tasks[task], *plugins):
      hashed['outside'] = source
    for first in range(0, len(examples[task]), size):
      shard = examples[task][first : first + size]
      hashed['examples'] = records.hash_examples(shard)
      identity = records.digest(hashed)
      found.append(Point(task, curve, first, first + len(shard), identity))
  return found


def with_models_alone(chosen: Sequence[Curve]) -> list[Curve]:
  """Curves, and those that cascades of whole answers are made of."""
  judged = [curve.config for curve in chosen if curve.confidence]
  there = {curve.method for curve in chosen}
  missing = [
    Curve(judged[0].replace(method=name), ())
    for name in ALONE
    if judged and name not in there
  ]
  return [*missing, *chosen]
