"""The fields of a sweep's config, each declared once: default, range and help.

`configs/common.py` makes configs of the defaults; a sweep reads the typed
`SweepConfig` of a config. What a name stands for (a method, a task, a model) is
looked up where it is used.
"""

import ast
import dataclasses
import difflib
from collections.abc import Mapping
from types import NoneType
from typing import Any, Literal, Self, get_args, get_origin

from absl import flags
from ml_collections import ConfigDict, config_flags

from cascades import arguments
from cascades.arguments import Declared, Option, option, options_of
from cascades.config import DecodingConfig


class _LiteralParser(flags.ArgumentParser):
  """Reads None, a number, several values such as (2, 4), or a text."""

  def parse(self, argument: Any) -> Any:
    """Returns the value of an argument; a default is returned as it is."""
    try:
      return ast.literal_eval(argument)
    except (SyntaxError, ValueError):
      return argument


# A value of `lenience` and `gamma`: those of the predicted front.
PREDICTED = 'predicted'

# By default, the command line sets no field that is None, and sets one of any
# type without a value.
for _kind in object, NoneType:
  config_flags.register_flag_parser_for_type(_kind, _LiteralParser())


class _Fields(Declared):
  """Fields that `_convert` has checked."""

  def __post_init__(self) -> None:
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayFields(_Fields):
  """Cluster of --launcher=ray."""

  address: str = option('', "Address; '' starts a cluster on this machine.")
  cpus: float = option(1, 'CPUs of a point.', low=0)
  gpus: float = option(0, 'GPUs of a point.', low=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskFields(_Fields):
  """Options of published sets."""

  path: str | None = option('', "Path of the file; '' downloads it.")
  shots: int | None = option(
    0, 'Worked examples before a question; None for those of the task.', low=0
  )
  max_new_tokens: int | None = option(
    0,
    "Most tokens of an answer; 0 is the task's default, 256 for `file`.",
    low=0,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileFields(_Fields):
  """Options of the task `file`."""

  path: str = option('', 'Path or URL of the rows.')
  prompt: str = option(
    'prompt', "Name of a field, or a template such as 'Question: {question}'."
  )
  reference: str = option('reference', 'The same for the reference.')
  id: str = option(
    'id', 'Name of a field; the id of a row without one is its hash.'
  )
  examples: str = option('', 'File of worked examples, with the same fields.')
  shots: int = option(0, 'Worked examples before a prompt; 0: all.', low=0)
  separator: str = option(' ', 'Text between a prompt and its reference.')
  metric: str = option('', "Metric; '' measures speed only.")
  stop_strings: tuple[str, ...] = option(
    (), 'Ends of answers; after worked examples a blank line by default.'
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecisionFields(_Fields):
  """Guarantee of the decision at the end of a sweep."""

  risk: float = option(
    0.05,
    'Largest loss of quality, as a share of the best score: 3 points of BLEU or'
    ' chrF are 0.03.',
    low=0.001,
    high=0.999,
  )
  delta: float = option(
    0.1,
    'Probability with which the guarantee may fail.',
    low=0.0001,
    high=0.9999,
  )
  margin: float = option(
    0.03,
    "With a `method`: the interval of the quality minus the verifier's must be"
    ' above -margin.',
    low=0.001,
    high=0.999,
  )
  method: str = option(
    '',
    'A setting that is fixed, not chosen, and compared with strict decoding on'
    ' all examples; so are `lenience` and `gamma`.',
  )
  lenience: float = option(0.0, 'Lenience of `method`.')
  gamma: int = option(4, 'Gamma of `method`.', low=0)
  strict_gamma: int = option(4, 'Gamma of strict decoding.', low=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig(_Fields):
  """Fields of a sweep beside the options of decoding and of drafters."""

  verifier: str = option(
    'tiny-verifier',
    'A name, a file, a folder, or a repository of the Hugging Face hub, such as'
    " 'google/gemma-3-1b-it@REVISION'; models with a licence to accept need a"
    ' token in HF_TOKEN.',
  )
  drafter: str = option(
    'tiny-drafter',
    "A model, 'ngram', 'self:3' (the verifier's first 3 layers), a recurrent"
    ' head or an assistant of Gemma 4.',
  )
  tasks: tuple[str, ...] = option(
    ('word_problems',), "Keys of experiments.tasks.TASKS, or 'lm_eval:NAME'."
  )
  num_examples: int = option(100, 'Held-out examples per task.', low=1)
  lenience: float | tuple[float, ...] | Literal['predicted'] = option(
    (0.3,),
    "Leniences of `method`, for configs without sweep(add); 'predicted' selects"
    ' those of the predicted front of speed-up and distance to the verifier.',
  )
  gamma: int | tuple[int, ...] | Literal['predicted'] = option(
    4,
    'Tokens drafted per block, unless sweep(add) gives a gamma; of several,'
    " such as (2, 4, 6), each is a curve of the report; 'predicted' selects the"
    ' fastest.',
    low=0,
  )
  ray: RayFields | None = option(RayFields, 'Cluster of --launcher=ray.')
  wandb: bool = option(
    False, 'Logs the summary to Weights & Biases at the end.'
  )
  seed: int = option(
    0,
    'Seed of the selection of examples and of the sampling.',
    low=0,
    high=2**64 - 1,
  )
  clock: int = option(
    10,
    'Prompts of each task at which the models alone, strict decoding and the'
    ' fastest point are timed against each other, one at a time; 0: none.',
    low=0,
  )
  split: str = option(
    'test',
    "Leniences are chosen on 'train' and reported on 'test'; '' is the default"
    ' of the task.',
  )
  task: TaskFields | None = option(TaskFields, 'Options of published sets.')
  file: FileFields | None = option(FileFields, 'Options of the task `file`.')
  decision: DecisionFields | None = option(
    DecisionFields, 'Guarantee of the decision at the end.'
  )
  chat: bool = option(
    False, 'Wraps prompts in the chat template of instruction-tuned models.'
  )
  dtype: str | None = option(
    None,
    'Dtype of the models; int8 rounds matrices to eight bits; None for the'
    ' dtype in config.json, or else the stored dtype.',
    choices=('bfloat16', 'float32', 'int8'),
  )
  mesh: tuple[int, int] = option(
    (1, 1),
    'Devices that the rows, and the parameters, are divided among.',
    low=1,
  )
  shard_size: int = option(
    256, 'Examples per point; a run that is killed loses at most one.', low=0
  )
  # All fields of the config, with those of decoding and of drafters, as they
  # stand there: points are named by them.
  values: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @classmethod
  def convert(cls, config: Any) -> Self:
    """Converts a config; refuses fields that no sweep has, and other types."""
    if isinstance(config, cls):
      return config
    values = config.to_dict() if isinstance(config, ConfigDict) else config
    converted = _convert(values, cls, declared())
    for name in REQUIRED:
      if name not in values:
        raise ValueError(
          f'{name}: is missing; build the config with common.sweep().'
        )
    fields = {k: x for k, x in converted.items() if k in options_of(cls)}
    return cls(**_ABSENT | fields, values=values)


# What every sweep must say; what else there is has a usual value.
REQUIRED = 'verifier', 'drafter', 'tasks', 'num_examples', 'batch_size', 'seed'
# Fields of every config; the command line sets only fields that a config has,
# and names of points depend on all its fields.
SHARED = (
  *REQUIRED,
  *('method', 'lenience', 'gamma', 'temperature', 'ray', 'wandb'),
)
# Values of fields that a config lacks, beside those at their defaults.
_ABSENT: dict[str, Any] = {'clock': 0, 'split': ''}
_ABSENT |= dict.fromkeys(('ray', 'task', 'file', 'decision'))


def declared() -> dict[str, Option]:
  """Returns the declaration of every field."""
  # Imports JAX, which the help of a command does not need.
  from cascades import drafters

  decoding = options_of(DecodingConfig) | drafters.declared_options()
  for name, x in decoding.items():
    if x.kind is str:
      # The name of a registered entry is looked up when it is used.
      decoding[name] = dataclasses.replace(x, check=None, choices=())
  return decoding | options_of(SweepConfig)


def defaults() -> dict[str, Any]:
  """Returns the default of every field; of a table, those of its fields."""

  def default(x: Option) -> Any:
    if not isinstance(x.default, type):
      return x.default
    return {name: y.default for name, y in options_of(x.default).items()}

  return {name: default(x) for name, x in declared().items()}


def _convert(
  values: Mapping[str, Any],
  owner: type[Declared],
  options: Mapping[str, Option],
  prefix: str = '',
) -> dict[str, Any]:
  """Converts fields by their names, which begin with a prefix in errors."""
  types = {field.name: field.type for field in dataclasses.fields(owner)}
  converted: dict[str, Any] = {}
  for name, value in values.items():
    if name not in options:
      near = difflib.get_close_matches(str(name), options, 1, 0.0)
      raise ValueError(
        f'{prefix}{name}: a sweep has no such field; did you mean'
        f' {prefix}{near[0]}?'
      )
    named = dataclasses.replace(options[name], name=f'{prefix}{name}')
    kind = types.get(name, named.kind)
    parts, is_several = get_args(kind), isinstance(value, list | tuple)
    if (value is None and NoneType in parts) or (
      value == PREDICTED and Literal['predicted'] in parts
    ):
      pass
    elif issubclass(named.kind, Declared):
      table = options_of(named.kind)
      expected = f'the fields {", ".join(table)}'
      value = arguments.instance(
        named.name, value, Mapping | ConfigDict, expected
      )
      inner = _convert(dict(value.items()), named.kind, table, f'{named.name}.')
      value = named.kind(**inner)
    elif get_origin(kind) is tuple or (
      is_several and value and any(get_origin(x) is tuple for x in parts)
    ):
      # None for any number of values.
      count = len(parts) if kind == tuple[int, int] else None
      if not is_several or count not in (None, len(value)):
        expected = f'a list of {count} numbers' if count else 'a list'
        value = arguments.quote(value)
        raise ValueError(f'{named.name}: must be {expected}, got {value}.')
      value = tuple(map(named.validate, value))
    else:
      value = named.validate(value)
    converted[name] = value
  return converted
