"""Decisions: a setting that was chosen on a user's data, with its evidence.

A sweep writes decision.json; `Sampler.from_decision` decodes with what it has,
and refuses other models than those of the evidence, by hashes of a pair.
"""

import dataclasses
import hashlib
import pathlib
from typing import Annotated, Any, Self

import jax
import jax.numpy as jnp
import pydantic

from cascades import drafters, files
from cascades.arguments import options_of
from cascades.config import DecodingConfig
from cascades.files import Schema, digest, plain
from cascades.models import checkpoints, language, sharding

_ADVICE = 'decide again with experiments.sweep'


class _Answers(Schema):
  """The limits of the answers to a task."""

  max_new_tokens: int = pydantic.Field(ge=1)
  stop_strings: list[str]


class _Evidence(Schema):
  """The facts of the evidence that are read again."""

  tasks: dict[str, _Answers]


def _config(options: Any) -> Any:
  """Returns the options of decoding that a decision.json has."""
  if not isinstance(options, dict):
    return options
  # JSON has infinity as text; a decision has numbers in effect, never None.
  options = {
    name: float(value) if value in ('inf', '-inf') else value
    for name, value in options.items()
    if value is not None or name not in ('lenience', 'gamma')
  }
  declared = options_of(DecodingConfig)
  if names := options.keys() ^ declared:
    raise ValueError(f'{min(names)}: is not an option of decoding, or missing')
  for name, option in declared.items():
    option.validate(options[name])
  return DecodingConfig(**options)


class Decision(Schema, extra='forbid'):
  """A setting, the models that it was chosen for, and the evidence.

  Attributes:
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
  weights: dict[str, str]
  evidence: Annotated[
    dict[str, Any],
    pydantic.AfterValidator(lambda facts: _Evidence.parse(facts) and facts),
  ]

  @classmethod
  def load(cls, path: str | pathlib.Path) -> Self:
    """Reads a decision.json, or that of a workdir."""
    path = pathlib.Path(path, 'decision.json' * pathlib.Path(path).is_dir())
    if not path.exists():
      raise ValueError(f'decision: there is no {path}; {_ADVICE}.')
    fields = files.read_fields(path, 'decision', _ADVICE)
    return cls.check(fields, f'decision: {path}', _ADVICE)

  @property
  def sample_options(self) -> dict[str, Any]:
    """Options of `Sampler.sample` that all answers of the evidence had."""
    options: dict[str, Any] = {'apply_chat_template': self.chat}
    for name in ('max_new_tokens', 'stop_strings'):
      values = [task[name] for task in self.evidence['tasks'].values()]
      if values and values == values[:1] * len(values):
        options[name] = values[0]
    return options

  def load_models(
    self, verifier: Any = None, drafter: Any = None
  ) -> tuple[Any, Any]:
    """Returns the pair, of which what is not given is the decision's."""
    if verifier is None or isinstance(verifier, str):
      verifier = checkpoints.load_model(verifier or self.verifier, self.dtype)
    drafter = self.drafter if drafter is None else drafter
    if isinstance(drafter, str):
      drafter = drafters.load(drafter, self.dtype, **self.drafter_options)
    bound = drafter and drafters.bind_drafter(verifier, drafter)
    for name, value in weights(verifier, bound).items():
      if self.weights.get(name) != value:
        raise ValueError(
          f'decision: the hash of the {name} differs from that of'
          f' {self.verifier!r} and {self.drafter!r}; give these, or {_ADVICE}.'
        )
    return verifier, drafter


def fingerprint(params: Any) -> str:
  """Hashes parameters, from a checksum of each array on its own device."""
  params = language.cpu().map_packed(lambda x: x.parts, params)
  text = str(jax.tree.structure(params))
  for leaf in jax.tree.leaves(params):
    first, second = sharding.fetch(_checksum(leaf))
    text += f'\n{leaf.dtype}{leaf.shape}{first:08x}{second:08x}'
  return hashlib.sha256(text.encode()).hexdigest()


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
  hashes = {'verifier': fingerprint(verifier.params)}
  hashes['tokenizer'] = hashlib.sha256(tokenizer.proto).hexdigest()
  if bound_drafter is not None:
    settings = [
      *map(_values, (verifier.model, bound_drafter.drafter)),
      list(tokenizer.stops),
      *tokenizer.suppress_tokens,
      *filter(None, [tokenizer.chat_template]),
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
    return [_values(getattr(model, x.name)) for x in dataclasses.fields(model)]
  if isinstance(model, tuple | list):
    return [_values(x) for x in model]
  is_value = isinstance(model, bool | int | float | str | None)
  return model if is_value else type(model).__name__
