"""Decisions: a setting that was chosen on a user's data, with its evidence.

`python -m experiments.sweep` with a config that has a field `decision` writes
decision.json. `Sampler.from_decision` decodes with what the file holds, and
refuses other models than those that the evidence was gathered with: `weights`
hashes the weights, settings and tokenizer of a pair.
"""

import dataclasses
import hashlib
import pathlib
from typing import Annotated, Any, Self

import jax
import jax.numpy as jnp
import pydantic

from cascades import drafters, files
from cascades.config import DecodingConfig
from cascades.files import Schema, digest, plain
from cascades.models import checkpoints, sharding

_ADVICE = 'decide again with experiments.sweep'
_Hash = Annotated[str, pydantic.Field(pattern='^[0-9a-f]{64}$')]


class _Answers(Schema):
  """The limits of the answers to a task."""

  max_new_tokens: int = pydantic.Field(ge=1)
  stop_strings: list[str]


class _Evidence(Schema):
  """The facts of the evidence that are read again."""

  tasks: dict[str, _Answers]
  imports: list[str] | None = None


def _config(options: Any) -> Any:
  """Returns the options of decoding that a decision.json has."""
  if not isinstance(options, dict):
    return options
  return DecodingConfig.from_dict(
    {
      # Numbers that JSON cannot hold are texts.
      name: float(value) if value in ('inf', '-inf') else value
      for name, value in options.items()
      # None is a config's default; a decision has the numbers in effect.
      if value is not None or name not in ('lenience', 'gamma')
    }
  )


class Decision(Schema):
  """A setting, the models that it was chosen for, and the evidence.

  Attributes:
    format: Number of the form of the file.
    sentence: The decision in words.
    verifier: Name of the verifier, as `load_model` takes it.
    drafter: Name of the drafter; None if the verifier decodes alone.
    drafter_options: Options of the drafter by name.
    dtype: Dtype of the parameters; None for the stored one.
    chat: True if prompts are turns of a chat.
    config: The options of decoding.
    weights: Hashes of the models, as `weights` returns them.
    evidence: Facts about the data and the statistics, by name.
  """

  model_config = pydantic.ConfigDict(extra='forbid')
  format: int = pydantic.Field(ge=1, le=1)
  sentence: str
  verifier: str
  drafter: str | None
  drafter_options: dict[str, Any]
  dtype: str | None
  chat: bool
  config: Annotated[
    pydantic.InstanceOf[DecodingConfig], pydantic.BeforeValidator(_config)
  ]
  weights: dict[str, _Hash]
  evidence: dict[str, Any]

  @classmethod
  def load(cls, path: str | pathlib.Path) -> Self:
    """Reads a decision.json.

    Args:
      path: The file, or the workdir that holds it.

    Raises:
      ValueError: The file is missing or damaged, or an option is out of range.
    """
    path = pathlib.Path(path)
    path = path / 'decision.json' if path.is_dir() else path
    if not path.exists():
      raise ValueError(
        f'decision: there is no {path}; give the decision.json of a sweep whose'
        ' config has a decision.'
      )
    fields, location = files.read_fields(path, 'decision'), f'decision: {path}'
    evidence = fields.get('evidence')
    evidence = _Evidence.check(evidence, f'{location}: evidence', _ADVICE)
    try:
      return cls.check(fields, location, _ADVICE)
    except ValueError as error:
      # Nothing is imported because a file names it.
      imports = [f' --import={x}' for x in evidence.imports or ()]
      if not imports or 'is not known;' not in str(error):
        raise
      advice = f'The sweep had{"".join(imports)}; import the same.'
      raise ValueError(f'{error} {advice}') from None

  @property
  def sample_options(self) -> dict[str, Any]:
    """Options of `Sampler.sample` that the answers of the evidence had.

    They are apply_chat_template, and max_new_tokens and stop_strings if all
    tasks of the evidence had the same.
    """
    options: dict[str, Any] = {'apply_chat_template': self.chat}
    tasks = [*self.evidence.get('tasks', {}).values()]
    for name in ('max_new_tokens', 'stop_strings'):
      if tasks and all(task[name] == tasks[0][name] for task in tasks):
        options[name] = tasks[0][name]
    return options

  def load_models(
    self, verifier: Any = None, drafter: Any = None
  ) -> tuple[Any, Any]:
    """Returns the verifier and the drafter, loaded where none is given.

    Args:
      verifier: A checkpoint or a name; None for the decision's.
      drafter: A checkpoint, name or drafter; None for the decision's.

    Raises:
      ValueError: A model is absent, or its hash is not the decision's.
    """
    verifier = self.verifier if verifier is None else verifier
    if isinstance(verifier, str):
      verifier = checkpoints.load_model(verifier, self.dtype)
    drafter, bound = self.drafter if drafter is None else drafter, None
    if isinstance(drafter, str):
      drafter = drafters.load(drafter, self.dtype, **self.drafter_options)
    if drafter is not None:
      bound = drafters.bind_drafter(verifier, drafter)
    for name, value in weights(verifier, bound).items():
      if self.weights.get(name) != value:
        raise ValueError(
          f'decision: was made with {self.verifier!r} and {self.drafter!r}, and'
          f' the hash of the {name} of the models given differs; give those'
          f' models, or {_ADVICE}.'
        )
    return verifier, drafter


def fingerprint(params: Any) -> str:
  """Hashes parameters, from a checksum of each array on its own device."""
  leaves, treedef = jax.tree.flatten(params)
  checksums = [str(treedef)]
  for leaf in leaves:
    first, second = sharding.fetch(_checksum(leaf))
    checksums.append(f'{leaf.dtype}{leaf.shape}{first:08x}{second:08x}')
  return hashlib.sha256('\n'.join(checksums).encode()).hexdigest()


@jax.jit
def _checksum(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns two sums, of any order, of an array's bits by their positions."""
  kind = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
  bits = jax.lax.bitcast_convert_type(x, kind).astype(jnp.uint32)
  position, stride = jnp.ones((), jnp.uint32), 1
  for axis, size in enumerate(bits.shape):
    along = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    position += along * jnp.uint32(stride % 2**32)
    stride *= size
  # Multiplication by an odd number is invertible modulo 2**32.
  weight = 2 * position * jnp.uint32(2654435761) + 1
  mixed = bits * weight
  return mixed.sum(), ((mixed ^ (mixed >> 15)) * weight).sum()


def weights(
  verifier: checkpoints.Checkpoint, bound_drafter: drafters.BoundDrafter | None
) -> dict[str, str]:
  """Hashes a pair of models, and the settings that their folders hold."""
  tokenizer: Any = verifier.tokenizer
  hashes = {
    'verifier': fingerprint(verifier.params),
    'tokenizer': hashlib.sha256(tokenizer.proto).hexdigest(),
  }
  if bound_drafter is not None:
    template = tokenizer.chat_template
    settings = [
      *map(_values, (verifier.model, bound_drafter.drafter)),
      list(tokenizer.stops),
      *tokenizer.suppress_tokens,
      *([template] if template else []),
    ]
    hashes['drafter'] = fingerprint(bound_drafter.params)
    hashes['settings'] = digest(plain(settings))
  return hashes


def _values(model: Any) -> Any:
  """Lists the values of a model's configuration, without names of fields."""
  config = getattr(getattr(model, 'module', None), 'config', None)
  if config is not None:
    return [repr(config), model.vocab_size]
  if dataclasses.is_dataclass(model):
    names = [field.name for field in dataclasses.fields(model)]
    return [_values(getattr(model, name)) for name in names]
  if isinstance(model, tuple | list):
    return [_values(x) for x in model]
  is_value = model is None or isinstance(model, bool | int | float | str)
  return model if is_value else type(model).__name__
