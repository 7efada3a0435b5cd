"""The spec of a language model as a drafter, by name, folder or checkpoint."""

import dataclasses
import re
from typing import TYPE_CHECKING, Self

from cascades.declarations import option
from cascades.drafters import drafter_spec

if TYPE_CHECKING:
  import jax

  from cascades.decoding import BoundDrafter
  from cascades.models.checkpoints import Checkpoint

# Names of the checkpoints of the gemma library, such as 'gemma2-2b-it', and of
# their repositories on the hub, such as 'google/gemma-2-2b-it@main'.
_GEMMA_NAME = re.compile(r'gemma\d\w*-[\w-]+|google/gemma-\d[\w.-]*(@\S+)?')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelSpec(drafter_spec.CheckpointSpec['Checkpoint']):
  """A language model that drafts token by token."""

  stop_below: float | None = option(
    None,
    low=0,
    high=1,
    help='Probability of the most probable token below which drafting stops;'
    ' None never stops.',
    applies='language models',
  )

  @classmethod
  def claims(cls, name: str) -> bool:
    """Returns True for a name or path that a checkpoint format matches.

    Any name of the form of gemma's own is claimed, since the list of these
    names takes seconds to import.
    """
    if _GEMMA_NAME.fullmatch(name):
      return True
    from cascades.models import checkpoints, config_json, hub, tensor_files

    format_name = checkpoints.find_format(name)
    if format_name in ('huggingface', 'hub'):
      # Folders of this format may hold a drafter of another kind.
      is_name = format_name == 'hub'
      folder = hub.fetch(name, weights=False) if is_name else name
      model_type = tensor_files.read_config(folder).get('model_type')
      return model_type in config_json.MODEL_TYPES
    return bool(format_name)

  @classmethod
  def known_names(cls) -> tuple[str, ...]:
    """Returns the names of bundled models and those of the package index."""
    from cascades.models import bundled, package_index

    return (
      *bundled.BUNDLED,
      *package_index.MODELS,
      *bundled.BUNDLED_WITHOUT_TABLE,
    )

  def load(
    self, dtype: str | None = None, mesh: 'jax.sharding.Mesh | None' = None
  ) -> Self:
    """Returns a spec with the model, divided over the mesh."""
    spec = super().load(dtype, mesh)
    checkpoint = spec.loaded_checkpoint().shard(mesh)
    return dataclasses.replace(spec, checkpoint=checkpoint)

  def read_checkpoint(
    self, dtype: str | None, mesh: 'jax.sharding.Mesh | None'
  ) -> 'Checkpoint':
    """Loads the model, as `load_model` does."""
    from cascades.models import checkpoints

    return checkpoints.load_model(self.require_path(), dtype, mesh)

  def bind(self, verifier: 'Checkpoint') -> 'BoundDrafter':
    """Binds the model to a verifier with the same tokenizer."""
    import jax.numpy as jnp

    from cascades.decoding import BoundDrafter
    from cascades.drafters import token_checks
    from cascades.drafters.language_model import ModelDrafter

    checkpoint = self.loaded_checkpoint()
    model, params, _ = checkpoint
    token_checks.check_pair(verifier, checkpoint)
    if self.stop_below is None:
      return BoundDrafter(ModelDrafter(model), params)
    threshold = jnp.float32(self.stop_below)
    return BoundDrafter(ModelDrafter(model, adaptive=True), (params, threshold))
