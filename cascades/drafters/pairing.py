"""Loads drafters by name, with language models as checkpoints."""

from typing import Any

import jax
from jaxtyping import PyTree

from cascades.drafters import drafter_kinds
from cascades.drafters.drafter_spec import Spec
from cascades.drafters.language_model_spec import LanguageModelSpec
from cascades.models import checkpoints


def is_model(name: str) -> bool:
  """Returns True for the name of a language model, which can decode alone."""
  return drafter_kinds.kind_of(name).is_language_model


def describe(name: str, dtype: str | None = None) -> tuple[Any, PyTree] | None:
  """Describes a drafter for memory estimates; see `Spec.describe`."""
  return drafter_kinds.parse_spec(name).describe(dtype)


def load_drafter(
  name: str,
  dtype: str | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> checkpoints.Checkpoint | Spec:
  """Loads a drafter; returns the checkpoint of a language model, or a spec.

  Args:
    name: Name or folder of the drafter.
    dtype: Type of the parameters after loading; None keeps the stored type.
    mesh: Devices that the parameters of a model are divided among.

  Raises:
    ValueError: No kind claims the name, or its files are damaged.
  """
  spec = drafter_kinds.parse_spec(name).load(dtype, mesh)
  if isinstance(spec, LanguageModelSpec):
    return spec.loaded_checkpoint()
  return spec
