"""Decisions: a setting that was chosen on a user's data, with its evidence.

`python -m experiments.sweep` with a config that has a field `decision` writes
decision.json. `Sampler.from_decision` decodes with what the file holds, and
refuses other models than those that the evidence was gathered with.
"""

import dataclasses
import json
import pathlib
from typing import Annotated, Any, Self

import pydantic

from cascades import arguments, atomic, drafters, fingerprints
from cascades.config import DecodingConfig
from cascades.models import checkpoints
from cascades.plain import plain
from cascades.untrusted import bounded
from cascades.untrusted.schema import Schema

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


class _Fields(Schema):
  """The fields of a decision.json."""

  model_config = pydantic.ConfigDict(extra='forbid')
  format: int = pydantic.Field(ge=1, le=1)
  sentence: str
  verifier: str
  drafter: str | None
  drafter_options: dict[str, Any]
  dtype: str | None
  chat: bool
  config: dict[str, Any]
  weights: dict[str, _Hash]
  evidence: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
  """A setting, the models that it was chosen for, and the evidence.

  Attributes:
    sentence: The decision in words.
    verifier: Name of the verifier, as `load_model` takes it.
    drafter: Name of the drafter; None if the verifier decodes alone.
    drafter_options: Options of the drafter's spec by name.
    dtype: Dtype of the parameters; None for the stored one.
    chat: True if prompts are turns of a chat.
    config: The options of decoding.
    weights: Hashes of the models, as `fingerprints.weights` returns them.
    evidence: Facts about the data and the statistics, by name.
  """

  sentence: str
  verifier: str
  drafter: str | None
  drafter_options: dict[str, Any]
  dtype: str | None
  chat: bool
  config: DecodingConfig
  weights: dict[str, str]
  evidence: dict[str, Any]

  def save(self, path: str | pathlib.Path) -> None:
    """Writes the decision to a JSON file, whole or not at all."""
    config = self.config.replace(lenience=self.config.effective_lenience)
    fields = {'format': 1} | vars(self) | {'config': config.to_dict()}
    text = json.dumps(plain(fields), indent=2, allow_nan=False)
    atomic.write_text(path, text + '\n')

  @classmethod
  def load(cls, path: str | pathlib.Path) -> Self:
    """Reads a decision.json.

    Args:
      path: The file, or the workdir that holds it.

    Raises:
      ValueError: The file is missing or damaged, or an option is out of range.
    """
    path = pathlib.Path(path)
    if path.is_dir():
      path = path / 'decision.json'
    if not path.exists():
      raise ValueError(
        f'decision: there is no {path}; give the decision.json of a sweep whose'
        ' config has a decision.'
      )
    content = bounded.read_json(path, 'decision', _ADVICE)
    fields: dict[str, Any] = dict(
      _Fields.check(content, f'decision: {path}', _ADVICE)
    )
    del fields['format']
    if evidence := fields['evidence']:
      _Evidence.check(evidence, f'decision: {path}: evidence', _ADVICE)
    options = {
      # Numbers that JSON cannot hold are texts.
      name: float(value) if value in ('inf', '-inf') else value
      for name, value in fields['config'].items()
      # None is a config's default; a decision has the numbers in effect.
      if value is not None or name not in ('lenience', 'gamma')
    }
    try:
      config = DecodingConfig.from_dict(options)
    except ValueError as error:
      # Nothing is imported because a file names it.
      imports = evidence.get('imports') or ()
      advice = ''.join(f' --import={name}' for name in imports)
      text = str(error)
      if advice and 'is not known;' in text:
        text += f' The sweep had{advice}; import the same.'
      raise ValueError(f'decision: {path}: {text}') from None
    fields['config'] = config
    return cls(**fields)

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
    """Returns the verifier and the drafter's spec, loaded where none is given.

    Args:
      verifier: A checkpoint or a name; None for the decision's.
      drafter: A checkpoint, name or spec; None for the decision's.

    Raises:
      ValueError: A model is absent, or its hash is not the decision's.
    """
    verifier = self.verifier if verifier is None else verifier
    if isinstance(verifier, str):
      verifier = checkpoints.load_model(verifier, self.dtype)
    if self.drafter is None:
      if drafter is not None:
        raise ValueError(
          'drafter: the decision is the verifier alone; leave it out.'
        )
      self._check_weights(fingerprints.weights(verifier, None))
      return verifier, None
    drafter = self.drafter if drafter is None else drafter
    if isinstance(drafter, str):
      drafter = drafters.parse_spec(drafter, **self.drafter_options)
      drafter = drafter.load(self.dtype)
    bound = drafters.bind_drafter(verifier, drafter)
    self._check_weights(fingerprints.weights(verifier, bound))
    return verifier, drafter

  def _check_weights(self, weights: dict[str, str]) -> None:
    """Refuses models whose hashes are not those of the decision."""
    for name, value in weights.items():
      if self.weights.get(name) != value:
        raise ValueError(
          f'decision: was made with {arguments.quote(self.verifier)} and'
          f' {arguments.quote(self.drafter)}, and the hash of the {name} of the'
          ' models given differs; give those models, or decide again with'
          ' experiments.sweep.'
        )
