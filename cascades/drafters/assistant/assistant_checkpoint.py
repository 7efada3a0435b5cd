"""Assistants on disk: Hugging Face folders of model_type gemma4_assistant."""

import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from cascades.decoding import BoundDrafter
from cascades.drafters import specs
from cascades.drafters.assistant import assistant_drafter
from cascades.drafters.language_model import NoDrafter
from cascades.models import (
  checkpoints,
  families,
  param_dtypes,
  tensor_files,
  tokenizer_files,
  tokenizers,
)
from cascades.untrusted.schema import Schema, Size, one_of

_TYPES = 'gemma4_assistant', 'gemma4_unified_assistant'
# The ids of the tokens, ordered by centroids.
_ORDER = 'masked_embedding.token_ordering'


class _Text(Schema):
  """What an assistant's own layers must not have."""

  hidden_size_per_layer_input: Annotated[Any, one_of(None, 0)] = 0
  enable_moe_block: Annotated[Any, one_of(False)] = False
  use_double_wide_mlp: Annotated[Any, one_of(False)] = False


class _Fields(Schema):
  """What config.json says beside its text model."""

  backbone_hidden_size: Size = 1536
  use_ordered_embeddings: bool = False
  num_centroids: Size = 2048
  centroid_intermediate_top_k: Size = 32
  text_config: dict[str, Any] | None = None


def _published(backbone: int, heads: int, keys: tuple[int, int]):
  """The fields that Google's assistants of a size have in config.json.

  Args:
    backbone: Width of the verifier.
    heads: Of queries.
    keys: Heads of keys of layers with a window, and of those without.
  """
  small = keys[0] == keys[1]
  width = 256 if small else 1024
  return dict(
    model_type=_TYPES[0],
    backbone_hidden_size=backbone,
    use_ordered_embeddings=small,
    text_config=dict(
      vocab_size=262_144,
      hidden_size=width,
      intermediate_size=8 * width,
      num_hidden_layers=4,
      num_attention_heads=heads,
      num_key_value_heads=keys[0],
      num_global_key_value_heads=keys[1],
      head_dim=256,
      global_head_dim=512,
      sliding_window=512 if small else 1024,
      layer_types=[families.SLIDING] * 3 + [families.FULL],
      attention_k_eq_v=not small,
    ),
  )


# Of Google's, by name, as others' ports of them have it: we have seen none.
PUBLISHED = {
  'gemma-4-E2B-it-assistant': _published(1536, 4, (1, 1)),
  'gemma-4-E4B-it-assistant': _published(2560, 4, (2, 2)),
  'gemma-4-26B-A4B-it-assistant': _published(2816, 16, (8, 2)),
  'gemma-4-31B-it-assistant': _published(5376, 32, (16, 4)),
}


class Loaded(NamedTuple):
  """An assistant, and what a verifier must have for it.

  Attributes:
    params: Its own.
    config: Its fields; `text_config` as `families.text_config` gives it.
    tokenizer: Its folder's; None if it has none.
    name: Where it came from.
  """

  params: PyTree
  config: dict[str, Any]
  tokenizer: tokenizers.Tokenizer | None
  name: str
  options = ('fill_unselected_logits',)

  def bind(
    self, verifier: checkpoints.Checkpoint, fill_unselected_logits: bool = True
  ) -> BoundDrafter:
    """Binds it to a verifier.

    Args:
      verifier: A Gemma 4 of the size that the assistant was made for.
      fill_unselected_logits: As `AssistantDrafter` has it.

    Raises:
      ValueError: It is another.
    """
    _check(self, verifier)
    text = self.config['text_config']
    top = self.config['centroid_intermediate_top_k']
    drafter = assistant_drafter.AssistantDrafter(
      verifier.model,
      tuple(families.ATTENTION_TYPES[kind] for kind in text['layer_types']),
      top if self.config['use_ordered_embeddings'] else None,
      fill_unselected_logits,
    )
    return BoundDrafter(drafter, (self.params, verifier.params))


def known(name: str | pathlib.Path) -> bool:
  """Whether a name is that of an assistant, which may not be there yet."""
  return str(name) in PUBLISHED or _is_there(name)


def _is_there(name: str | pathlib.Path) -> bool:
  return tensor_files.read_config(name).get('model_type') in _TYPES


def describe(
  name: str, dtype: str | None = None
) -> tuple[specs.Drafting, dict[str, jax.ShapeDtypeStruct]]:
  """What counts as an assistant's model, and its tensors.

  Args:
    name: A folder, or a key of `PUBLISHED`.
    dtype: What its parameters would become; None for bfloat16, which is what
      Google stores, or float32 for what is stored in float16.

  Raises:
    ValueError: Its config.json is not an assistant's.
  """
  checkpoints.check_dtype(dtype)
  if _is_there(name):
    folder = pathlib.Path(name)
    config = _spelled_out(folder, tensor_files.read_config(folder))
    places = tensor_files.open_folder(folder)
  else:
    config, places = _spelled_out(name, PUBLISHED[name]), {}
  shapes = param_dtypes.drafter_shapes(places, _shapes(config), dtype, _ORDER)
  size = config['text_config']['vocab_size']
  return specs.Drafting(NoDrafter(), size), shapes


def load(
  folder: str | pathlib.Path, dtype: str | None = None, mesh: Any = None
) -> Loaded:
  """Reads an assistant.

  Args:
    folder: As Hugging Face has it.
    dtype: What its parameters become; None for what is stored, or float32 for
      float16.
    mesh: Ignored, for an assistant is small.

  Raises:
    ValueError: It is not whole, not there, or of another kind.
  """
  checkpoints.check_dtype(dtype)
  if str(folder) in PUBLISHED and not _is_there(folder):
    raise ValueError(
      f'drafter: there is no folder {folder}; fetch google/{folder} from the'
      ' hub, and give where it lies.'
    )
  folder = pathlib.Path(folder)
  config = _spelled_out(folder, tensor_files.read_config(folder))
  places = tensor_files.open_folder(folder)
  shapes = _shapes(config)
  found = tensor_files.read_all(
    folder, places, shapes, field='drafter', ids=_ORDER
  )
  file, tokenizer = tokenizer_files.find_file(folder), None
  if file.exists():
    tokenizer = tokenizer_files.read(file)
  params = _arranged(config, found, folder, dtype)
  return Loaded(params, config, tokenizer, folder.name)


def _spelled_out(
  folder: pathlib.Path | str, said: Mapping[str, Any]
) -> dict[str, Any]:
  """The fields of a config.json, with those that it is silent about.

  Raises:
    ValueError: They are no assistant's.
  """
  where = f'drafter: {folder}/config.json'
  config = _Fields.check(said, where)
  groups, top = config.num_centroids, config.centroid_intermediate_top_k
  if config.use_ordered_embeddings and top > groups:
    raise ValueError(
      f'{where}: centroid_intermediate_top_k must be at most the {groups} of'
      f' num_centroids, got {top}; fetch it again.'
    )
  given = config.text_config or {}
  _Text.check(given, f'{where}: text_config')
  try:
    # All its layers look into another's caches, which is no model by itself.
    text = families.text_config(
      given
      | {
        'num_kv_shared_layers': 0,
        'hidden_size_per_layer_input': 0,
        'model_type': 'gemma4_text',
      }
    )
  except ValueError as e:
    raise ValueError(f'drafter: {folder}/{e}') from None
  return dict(config) | {'text_config': text}


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
  """The tensors of an assistant."""
  text, backbone = config['text_config'], config['backbone_hidden_size']
  width, hidden = text['hidden_size'], text['intermediate_size']
  vocab = text['vocab_size']
  shapes = {
    'pre_projection.weight': (width, 2 * backbone),
    'post_projection.weight': (backbone, width),
    'model.embed_tokens.weight': (vocab, width),
    'model.norm.weight': (width,),
  }
  if config['use_ordered_embeddings']:
    shapes['masked_embedding.centroids.weight'] = config['num_centroids'], width
    shapes[_ORDER] = (vocab,)
  for i in range(text['num_hidden_layers']):
    heads, (_, dim) = (
      text['num_attention_heads'],
      families.key_value_shape(text, i),
    )
    of_layer = {
      'self_attn.q_proj.weight': (heads * dim, width),
      'self_attn.q_norm.weight': (dim,),
      'self_attn.o_proj.weight': (width, heads * dim),
      'mlp.gate_proj.weight': (hidden, width),
      'mlp.up_proj.weight': (hidden, width),
      'mlp.down_proj.weight': (width, hidden),
      'layer_scalar': (1,),
    } | {f'{name}.weight': (width,) for name in _NORMS.values()}
    shapes |= {f'model.layers.{i}.{k}': shape for k, shape in of_layer.items()}
  return shapes


_NORMS = {
  'pre_attention': 'input_layernorm',
  'post_attention': 'post_attention_layernorm',
  'pre_feed_forward': 'pre_feedforward_layernorm',
  'post_feed_forward': 'post_feedforward_layernorm',
}


def _arranged(
  config: Mapping[str, Any],
  found: Mapping[str, np.ndarray],
  folder: Any,
  dtype: str | None,
) -> PyTree:
  """Tensors as `AssistantDrafter` takes them."""
  text = config['text_config']
  params = {
    'before': found['pre_projection.weight'].T,
    'after': found['post_projection.weight'].T,
    'table': found['model.embed_tokens.weight'],
    'norm': found['model.norm.weight'],
    'layers': [],
  }
  if config['use_ordered_embeddings']:
    order = found[_ORDER]
    count = config['num_centroids']
    if len(order) % count or (np.sort(order) != np.arange(len(order))).any():
      raise ValueError(
        f'drafter: {folder} orders {len(order)} tokens under {count} centroids,'
        ' but not each of them once; fetch it again.'
      )
    params['centroids'] = found['masked_embedding.centroids.weight']
    params['groups'] = order.reshape(count, -1).astype(np.int32)
  for i in range(text['num_hidden_layers']):
    heads, (_, dim) = (
      text['num_attention_heads'],
      families.key_value_shape(text, i),
    )
    w = {
      name: found[f'model.layers.{i}.{name}.weight']
      for name in (
        *('self_attn.q_proj', 'self_attn.q_norm', 'self_attn.o_proj'),
        *('mlp.gate_proj', 'mlp.up_proj', 'mlp.down_proj'),
        *_NORMS.values(),
      )
    }
    params['layers'].append(
      {ours: w[theirs] for ours, theirs in _NORMS.items()}
      | {
        'query': w['self_attn.q_proj'].T.reshape(-1, heads, dim),
        'query_norm': w['self_attn.q_norm'],
        'out': w['self_attn.o_proj'].T.reshape(heads, dim, -1),
        'gate': w['mlp.gate_proj'].T,
        'up': w['mlp.up_proj'].T,
        'down': w['mlp.down_proj'].T,
        'scale': found[f'model.layers.{i}.layer_scalar'],
      }
    )
  return param_dtypes.device_put_params(params, dtype, folder)


def _check(loaded: Loaded, verifier: checkpoints.Checkpoint) -> None:
  """Refuses a verifier that an assistant was not made for.

  Raises:
    ValueError: It is no Gemma 4, or of another size; or speaks other tokens.
  """
  model, config = verifier.model, loaded.config
  text, c = config['text_config'], model.module.config

  def refuse(what: str):
    raise ValueError(
      f'drafter: {loaded.name} was made for another verifier ({what}); give the'
      ' Gemma 4 whose name it has.'
    )

  if not hasattr(c, 'global_rope_proportion'):
    refuse('a Gemma 4')
  if model.hidden_size(verifier.params) != config['backbone_hidden_size']:
    refuse(f'of width {config["backbone_hidden_size"]}, not {c.embed_dim}')
  if model.vocab_size != text['vocab_size']:
    refuse(f'of {text["vocab_size"]} tokens, not {model.vocab_size}')
  if loaded.tokenizer is not None and verifier.tokenizer is not None:
    at = tokenizers.first_difference(verifier.tokenizer, loaded.tokenizer)
    if at is not None:
      refuse(f'with another token {at}')
  cache = jax.eval_shape(lambda: model.init_cache(verifier.params, 8))
  last, ropes = model.last_cached_layers, families.ropes(text)
  for i, kind in enumerate(text['layer_types']):
    if families.ATTENTION_TYPES[kind] not in last:
      refuse(f'with a layer of {kind}')
    keys, dim = families.key_value_shape(text, i)
    *_, theirs, size = cache[f'layer_{last[families.ATTENTION_TYPES[kind]]}'][
      'k'
    ].shape
    if (theirs, size) != (keys, dim):
      refuse(f'with {keys} heads of {dim} for keys in layers of {kind}')
  turned = model.ropes
  if any(
    turned[families.ATTENTION_TYPES[x]] != ropes[x] for x in text['layer_types']
  ):
    refuse('that turns positions otherwise')
  if c.sliding_window_size != text['sliding_window']:
    refuse(f'with a window of {text["sliding_window"]}')
