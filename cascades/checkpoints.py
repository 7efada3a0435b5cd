"""Loading and saving checkpoints: `load_model(name or folder)`.

Three kinds of names are understood:

- the bundled pair, `tiny-drafter` and `tiny-verifier`;
- a folder in Hugging Face layout (config.json, *.safetensors and a tokenizer)
  of Gemma 2 or Gemma 3, read without torch, one tensor at a time;
- the names of gemma's own checkpoints (`gemma2-2b-it`, ...), which gemma
  downloads.

The tables below pair every leaf of gemma's parameter tree with the tensors
that Hugging Face keeps it in.
"""

import dataclasses
import difflib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import PyTree

from cascades import models, tokenizers

ASSETS = pathlib.Path(__file__).parent / 'assets'
BUNDLED = ('tiny-drafter', 'tiny-verifier')
# As safetensors names them.
_DTYPES = {'BF16': jnp.bfloat16, 'F16': jnp.float16}


class Checkpoint(NamedTuple):
  """A model ready to run: unpacks to (model, params, tokenizer)."""

  model: models.LanguageModel
  params: models.Params
  tokenizer: tokenizers.Tokenizer

  def packed(self) -> 'Checkpoint':
    """The same model as a CPU reads it best; see `LanguageModel.pack`."""
    if self.model.packed:
      return self
    return self._replace(
      model=dataclasses.replace(self.model, packed=True),
      params=self.model.pack(self.params),
    )

  def unpacked(self) -> 'Checkpoint':
    """The same model with its parameters as gemma's own code takes them."""
    return self._replace(
      model=dataclasses.replace(self.model, packed=False),
      params=self.model.unpack(self.params),
    )


class Leaf(NamedTuple):
  """One leaf of gemma's tree and the Hugging Face tensors it comes from.

  Attributes:
    path: Keys into gemma's tree.
    names: Hugging Face tensors, in order.
    pack: Tensors to leaf.
    unpack: Leaf to tensors.
  """

  path: tuple[str, ...]
  names: tuple[str, ...]
  pack: Callable[[list[Any]], Any]
  unpack: Callable[[Any], list[Any]]


def _same(path, name) -> Leaf:
  return Leaf(path, (name,), lambda ts: ts[0], lambda x: [x])


def _heads(path, names, heads, head_dim) -> Leaf:
  """[heads * head_dim, width] tensors as [..., heads, width, head_dim]."""
  stacked = len(names) > 1

  def pack(ts):
    parts = [t.reshape(heads, head_dim, -1).transpose(0, 2, 1) for t in ts]
    return jnp.stack(parts) if stacked else parts[0]

  def unpack(x):
    parts = x if stacked else [x]
    return [p.transpose(0, 2, 1).reshape(heads * head_dim, -1) for p in parts]

  return Leaf(path, tuple(names), pack, unpack)


def leaves(config: Mapping[str, Any]) -> Iterator[Leaf]:
  """Every leaf of the model that `models.from_config(config)` builds."""
  config = models.text_config(config)
  heads, kv_heads = (
    config['num_attention_heads'],
    config['num_key_value_heads'],
  )
  dim = config['head_dim']
  yield _same(('embedder', 'input_embedding'), 'model.embed_tokens.weight')
  yield _same(('final_norm', 'scale'), 'model.norm.weight')
  for i in range(config['num_hidden_layers']):
    ours, theirs = f'layer_{i}', f'model.layers.{i}'
    for norm, name in (
      ('pre_attention_norm', 'input_layernorm'),
      ('post_attention_norm', 'post_attention_layernorm'),
      ('pre_ffw_norm', 'pre_feedforward_layernorm'),
      ('post_ffw_norm', 'post_feedforward_layernorm'),
    ):
      yield _same((ours, norm, 'scale'), f'{theirs}.{name}.weight')
    attn = f'{theirs}.self_attn'
    q, k, v = (f'{attn}.{x}_proj.weight' for x in 'qkv')
    if heads == kv_heads:
      path = (ours, 'attn', 'qkv_einsum', 'w')
      yield _heads(path, (q, k, v), heads, dim)
    else:
      yield _heads((ours, 'attn', 'q_einsum', 'w'), (q,), heads, dim)
      yield _heads((ours, 'attn', 'kv_einsum', 'w'), (k, v), kv_heads, dim)
    yield Leaf(
      (ours, 'attn', 'attn_vec_einsum', 'w'),
      (f'{attn}.o_proj.weight',),
      lambda ts: ts[0].T.reshape(heads, dim, -1),
      lambda x: [x.reshape(heads * dim, -1).T],
    )
    if config['model_type'] == 'gemma3_text':
      for ours_norm, name in (('_query_norm', 'q'), ('_key_norm', 'k')):
        path = (ours, 'attn', ours_norm, 'scale')
        yield _same(path, f'{attn}.{name}_norm.weight')
    mlp = f'{theirs}.mlp'
    yield Leaf(
      (ours, 'mlp', 'gating_einsum'),
      (f'{mlp}.gate_proj.weight', f'{mlp}.up_proj.weight'),
      jnp.stack,
      list,
    )
    yield Leaf(
      (ours, 'mlp', 'linear'),
      (f'{mlp}.down_proj.weight',),
      lambda ts: ts[0].T,
      lambda x: [x.T],
    )


def _get(tree, path):
  for key in path:
    tree = tree[key]
  return tree


def _set(tree, path, value):
  for key in path[:-1]:
    tree = tree.setdefault(key, {})
  tree[path[-1]] = value


def save_model(
  folder: str | pathlib.Path,
  config: Mapping[str, Any],
  params: models.Params,
  tokenizer: tokenizers.Tokenizer,
) -> None:
  """Writes a checkpoint in Hugging Face layout.

  Args:
    folder: Made if it is not there.
    config: Fields of config.json, as `models.from_config` reads them.
    params: gemma's tree.
    tokenizer: Written as tokenizer.model.
  """
  from safetensors.numpy import save_file

  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  tensors = {}
  for leaf in leaves(config):
    parts = leaf.unpack(_get(params, leaf.path))
    for name, part in zip(leaf.names, parts, strict=True):
      tensors[name] = np.ascontiguousarray(part)
  save_file(tensors, folder / 'model.safetensors', metadata={'format': 'pt'})
  text = json.dumps(dict(config), indent=2, sort_keys=True)
  (folder / 'config.json').write_text(text + '\n')
  # safetensors lets nobody but the owner read what it writes.
  mode = (folder / 'config.json').stat().st_mode
  (folder / 'model.safetensors').chmod(mode)
  (folder / 'tokenizer.model').write_bytes(tokenizer.proto)


def load_model(name: str | pathlib.Path) -> Checkpoint:
  """Loads a model with its parameters and tokenizer.

  Args:
    name: `tiny-drafter` or `tiny-verifier`; a folder in Hugging Face layout;
      or one of gemma's own checkpoints, such as `gemma2-2b-it`.

  Returns:
    (model, params, tokenizer); on a CPU with packed parameters, which
    `Checkpoint.unpacked` brings into gemma's order.

  Raises:
    ValueError: There is no such model, or its folder is damaged; one sentence
      says what to do.
  """
  folder = _folder(name)
  checkpoint = load_folder(folder) if folder else _load_gemma(str(name))
  if jax.default_backend() == 'cpu':
    # Layer by layer, so that the model is not held twice.
    model, params, _ = checkpoint
    for layer in params:
      params[layer] = model.pack({layer: params[layer]})[layer]
    model = dataclasses.replace(model, packed=True)
    checkpoint = checkpoint._replace(model=model)
  return checkpoint


def describe(
  name: str | pathlib.Path,
) -> tuple[models.LanguageModel, PyTree]:
  """The model that `load_model` gives, and the shapes of its parameters.

  Of a folder, only config.json and the headers of the tensors are read; of
  gemma's own checkpoints, nothing is fetched.

  Args:
    name: As for `load_model`.

  Returns:
    (model, shapes and dtypes of its params).

  Raises:
    ValueError: As in `load_model`, except for what only loading shows.
  """
  folder = _folder(name)
  if folder:
    config, model = _read_config(folder)
    shapes = {}
    for leaf, _, tensors in _find_params(folder, config, model):
      _set(shapes, leaf.path, jax.eval_shape(leaf.pack, tensors))
  else:
    _check_known(str(name))
    model, _ = models.from_gemma(str(name))
    shapes = model.param_shapes()
  if jax.default_backend() == 'cpu':
    shapes = jax.eval_shape(model.pack, shapes)
    model = dataclasses.replace(model, packed=True)
  return model, shapes


def _folder(name: str | pathlib.Path) -> pathlib.Path | None:
  """Where a model lies; None if gemma has to fetch it."""
  if name in BUNDLED:
    return ASSETS / name
  return pathlib.Path(name) if pathlib.Path(name).is_dir() else None


def _read_config(folder: pathlib.Path) -> tuple[Any, models.LanguageModel]:
  """The fields of a folder's config.json, and their model."""
  try:
    config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
  except OSError:
    raise ValueError(
      f'model: {folder} has no config.json; give a folder in Hugging Face'
      ' layout (config.json, *.safetensors, tokenizer.model).'
    ) from None
  except ValueError:
    config = None
  if not isinstance(config, dict):
    raise ValueError(f'model: {folder}/config.json is damaged; fetch it again.')
  try:
    return config, models.from_config(config)
  except ValueError as e:
    raise ValueError(f'model: {folder}/{e}') from None


def load_folder(folder: str | pathlib.Path) -> Checkpoint:
  """Loads a Gemma 2 or 3 folder in Hugging Face layout.

  Raises:
    ValueError: As in `load_model`.
  """
  folder = pathlib.Path(folder)
  config, model = _read_config(folder)
  try:
    tokenizer = tokenizers.Tokenizer.from_file(folder / 'tokenizer.model')
  except ValueError:
    tokenizer = None
  # An empty file makes a tokenizer without pieces.
  if tokenizer is None or not tokenizer.vocab_size:
    raise ValueError(
      f'model: {folder}/tokenizer.model is missing, damaged or not a'
      ' SentencePiece model; fetch it again.'
    )
  if tokenizer.vocab_size > model.vocab_size:
    raise ValueError(
      f'model: {folder}/tokenizer.model has {tokenizer.vocab_size} pieces, more'
      f' than the {model.vocab_size} of config.json; fetch the tokenizer that'
      ' belongs to the model.'
    )
  params = {}
  for leaf, places, _ in _find_params(folder, config, model):
    # Never kept longer: a leaf may be a fifth of the model.
    _set(params, leaf.path, leaf.pack([h.get_tensor(n) for h, n in places]))
  return Checkpoint(model, params, tokenizer)


def _find_params(folder, config, model) -> Iterator[tuple[Leaf, list, list]]:
  """Every leaf, where its tensors are stored, and their shapes and dtypes."""
  from safetensors import SafetensorError, safe_open

  files = sorted(folder.glob('*.safetensors'))
  if not files:
    raise ValueError(
      f'model: {folder} has no *.safetensors file; fetch the weights in that'
      ' format, as others cannot be read.'
    )
  where = {}
  for file in files:
    try:
      handle = safe_open(file, framework='flax')
    except SafetensorError:
      raise ValueError(f'model: {file} is damaged; fetch it again.') from None
    for name in handle.keys():  # noqa: SIM118 (a handle is no dict)
      # Multimodal checkpoints put the text model under another root.
      short = name.removeprefix('language_model.')
      short = short.replace('model.language_model.', 'model.')
      where[short] = (handle, name)

  def find(name, wanted):
    if name not in where:
      raise ValueError(
        f'model: {folder} lacks the tensor {name}; the download may be'
        ' incomplete, fetch it again.'
      )
    handle, stored = where[name]
    header = handle.get_slice(stored)
    shape = tuple(header.get_shape())
    if shape != wanted.shape:
      raise ValueError(
        f'model: in {folder} the tensor {name} has the shape {shape}'
        f' where config.json asks for {wanted.shape}; fetch both from one'
        ' place.'
      )
    # JAX reads float64 as float32 too.
    dtype = _DTYPES.get(header.get_dtype(), jnp.float32)
    return where[name], jax.ShapeDtypeStruct(shape, dtype)

  shapes = model.param_shapes()
  for leaf in leaves(config):
    # Of the stored tensors: a transposed one can be packed, but wrongly.
    wanted = jax.eval_shape(leaf.unpack, _get(shapes, leaf.path))
    places, tensors = zip(*map(find, leaf.names, wanted), strict=True)
    yield leaf, list(places), list(tensors)


def _load_gemma(name: str) -> Checkpoint:
  """One of gemma's own checkpoints, which gemma fetches."""
  gm = models.import_gemma()
  known = _check_known(name)
  model, path = models.from_gemma(name)
  try:
    tokenizer = tokenizers.Tokenizer(epath.Path(path).read_bytes())
    params = gm.ckpts.load_params(known[name], text_only=True)
  # Whatever a cloud client may raise, the user's way out is the same.
  except Exception as e:
    said = (str(e).splitlines() or [type(e).__name__])[0]
    raise ValueError(
      f'model: {name} could not be fetched from {known[name].value} ({said});'
      ' check the connection, or give a folder that holds the model.'
    ) from e
  return Checkpoint(model, params, tokenizer)


def _check_known(name: str) -> dict[str, Any]:
  """gemma's own checkpoints, which must have this name."""
  known = models.gemma_checkpoints()
  if name not in known:
    names = [*BUNDLED, *known]
    near = difflib.get_close_matches(name, names, 1, 0.0)
    raise ValueError(
      f'model: {name!r} is no folder and no known name; did you mean'
      f' {near[0]!r}? There are {", ".join(names)}.'
    )
  return known
