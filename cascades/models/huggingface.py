"""Folders in Hugging Face layout of Gemma 2 and Gemma 3, without torch.

A folder holds config.json, the tensors in one *.safetensors file or in several
(shards, which model.safetensors.index.json lists), and tokenizer.model. They
are read and written one tensor at a time: the tensors of one leaf, and when
writing those of one shard, are all that is held beside the parameters.

The table `leaves` pairs every leaf of gemma's parameter tree with the tensors
that Hugging Face keeps it in.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cascades.models import language, tokenizers

INDEX = 'model.safetensors.index.json'
# The leaf with a row for each token: the largest of a small model.
TABLE = 'embedder', 'input_embedding'
# As safetensors names them.
_DTYPES = {'BF16': jnp.bfloat16, 'F16': jnp.float16}


class Leaf(NamedTuple):
  """One leaf of gemma's tree and the Hugging Face tensors it comes from.

  Attributes:
    path: Keys into gemma's tree.
    names: Names of the Hugging Face tensors, in order.
    pack: From the tensors, in that order, to the leaf; they may come one by
      one.
    unpack: From the leaf to the tensors, in that order.
  """

  path: tuple[str, ...]
  names: tuple[str, ...]
  pack: Callable[[Iterable[Any]], Any]
  unpack: Callable[[Any], list[Any]]


class Rows:
  """A tensor that is read some rows at a time, so that it is never held whole.

  Attributes:
    shape: Of the tensor.
  """

  def __init__(
    self,
    shape: tuple[int, ...],
    dtype: str,
    read: Callable[[int, int], np.ndarray],
  ):
    """Nothing is read yet.

    Args:
      shape: Of the tensor.
      dtype: As safetensors names it.
      read: Gives rows, from the first of these numbers to before the second.
    """
    self.shape, self._dtype, self._read = shape, dtype, read

  def get_shape(self) -> tuple[int, ...]:
    """As safetensors says it."""
    return self.shape

  def get_dtype(self) -> str:
    """As safetensors says it."""
    return self._dtype

  def __getitem__(self, rows: slice) -> np.ndarray:
    """Some rows that stand together."""
    first, last, _ = rows.indices(self.shape[0])
    return self._read(first, last)

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    del copy
    return self[:].astype(dtype, copy=False)


def _same(path: tuple[str, ...], name: str) -> Leaf:
  """A leaf that is one tensor as it is."""
  return Leaf(path, (name,), _only, lambda x: [x])


def _only(parts: Iterable[Any]) -> Any:
  """The one part that there is."""
  (part,) = parts
  return part


def _stack(parts: Iterable[Any], count: int) -> Any:
  """`np.stack`, with no more than one part held beside the result.

  Args:
    parts: Arrays of one shape and dtype, or what JAX traces in their place.
    count: How many they are.

  Returns:
    [count, ...].
  """
  parts, out = iter(parts), None
  for i, part in enumerate(parts):
    # Shapes are looked at, and there is nothing to hold.
    if isinstance(part, jax.Array):
      return jnp.stack([part, *parts])
    if out is None:
      out = np.empty((count, *part.shape), part.dtype)
    out[i] = part
    del part
  return out


def _heads(
  path: tuple[str, ...], names: Sequence[str], heads: int, head_dim: int
) -> Leaf:
  """A leaf of matrices that project the states onto the heads.

  One tensor is [heads * head_dim, width] and becomes [heads, width, head_dim];
  several are stacked, [names, heads, width, head_dim].

  Args:
    path: Keys into gemma's tree.
    names: Names of the tensors.
    heads: Number of heads.
    head_dim: Numbers of one head.
  """
  stacked = len(names) > 1

  def pack(ts):
    parts = (t.reshape(heads, head_dim, -1).transpose(0, 2, 1) for t in ts)
    return _stack(parts, len(names)) if stacked else _only(parts)

  def unpack(x):
    parts = x if stacked else [x]
    return [p.transpose(0, 2, 1).reshape(heads * head_dim, -1) for p in parts]

  return Leaf(path, tuple(names), pack, unpack)


def leaves(
  config: Mapping[str, Any], gate_by_rows: bool = True
) -> Iterator[Leaf]:
  """Every leaf of the model that `language.from_config(config)` builds.

  Args:
    config: Fields of config.json, the model's or those that hold the text
      model's.
    gate_by_rows: Whether `gating_einsum` lies as Hugging Face has it, as it
      does in that model; in some of gemma's own, its matrices are transposed.
  """

  def gate(x):
    return x if gate_by_rows else x.transpose(0, 2, 1)

  config = language.text_config(config)
  heads, kv_heads = (
    config['num_attention_heads'],
    config['num_key_value_heads'],
  )
  dim = config['head_dim']
  yield _same(TABLE, 'model.embed_tokens.weight')
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
      lambda ts: _only(ts).T.reshape(heads, dim, -1),
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
      lambda ts: gate(_stack(ts, 2)),
      lambda x: list(gate(x)),
    )
    yield Leaf(
      (ours, 'mlp', 'linear'),
      (f'{mlp}.down_proj.weight',),
      lambda ts: _only(ts).T,
      lambda x: [x.T],
    )


def read_json(file: pathlib.Path) -> dict[str, Any] | None:
  """A file's fields; None if there is no such file.

  Raises:
    ValueError: It is damaged.
  """
  try:
    fields = json.loads(file.read_text(encoding='utf-8'))
  except OSError:
    return None
  except ValueError:
    fields = None
  if not isinstance(fields, dict):
    raise ValueError(f'model: {file} is damaged; fetch it again.')
  return fields


def read_config(
  folder: pathlib.Path,
) -> tuple[dict[str, Any], language.LanguageModel]:
  """The fields of a folder's config.json, and their model.

  Raises:
    ValueError: There is none, or none that can be read.
  """
  config = read_json(folder / 'config.json')
  if config is None:
    raise ValueError(
      f'model: {folder} has no config.json; give a folder in Hugging Face'
      ' layout (config.json, *.safetensors, tokenizer.model), or an Orbax'
      " checkpoint of gemma's."
    )
  try:
    return config, language.from_config(config)
  except ValueError as e:
    raise ValueError(f'model: {folder}/{e}') from None


def stop_tokens(folder: pathlib.Path, vocab_size: int) -> list[int]:
  """The ids that a folder says end an answer: of a turn, if it was taught any.

  Args:
    folder: Its config.json and its generation_config.json may say it.
    vocab_size: Number of the model's logits; ids must be less.

  Raises:
    ValueError: One of its files is damaged, or says something else.
  """
  ids = []
  for name in ('config.json', 'generation_config.json'):
    said = (read_json(folder / name) or {}).get('eos_token_id')
    found = said if isinstance(said, list) else [said]
    found = [i for i in found if i is not None]
    if not all(type(i) is int and 0 <= i < vocab_size for i in found):
      raise ValueError(
        f'model: {folder / name} says that answers end at eos_token_id'
        f' {said!r}; give ids from 0 to {vocab_size - 1}.'
      )
    ids += found
  return ids


def find_params(
  what: pathlib.Path,
  where: Mapping[str, tuple[Any, str]],
  config: Mapping[str, Any],
  model: language.LanguageModel,
) -> Iterator[tuple[Leaf, list, list]]:
  """Every leaf, where its tensors are stored, and their shapes and dtypes.

  Args:
    what: The folder or file, for errors.
    where: As `places` gives it.
    config: Fields of config.json, as `read_config` gives them.
    model: What the tensors are to fit, as `read_config` gives it.

  Yields:
    The leaf; for each of its tensors where it is; their
    `jax.ShapeDtypeStruct`s.

  Raises:
    ValueError: A tensor is missing or of another model.
  """

  def find(name, wanted):
    if name not in where:
      raise ValueError(
        f'model: {what} lacks the tensor {name}; the download may be'
        ' incomplete, fetch it again.'
      )
    handle, stored = where[name]
    header = handle.get_slice(stored)
    shape = tuple(header.get_shape())
    if shape != wanted.shape:
      raise ValueError(
        f'model: in {what} the tensor {name} has the shape {shape}'
        f' where config.json asks for {wanted.shape}; fetch both from one'
        ' place.'
      )
    # JAX reads float64 as float32 too.
    dtype = _DTYPES.get(header.get_dtype(), jnp.float32)
    return where[name], jax.ShapeDtypeStruct(shape, dtype)

  shapes = model.param_shapes()
  for leaf in leaves(config):
    # Of the stored tensors: a transposed one can be packed, but wrongly.
    wanted = jax.eval_shape(leaf.unpack, get(shapes, leaf.path))
    found, tensors = zip(*map(find, leaf.names, wanted), strict=True)
    yield leaf, list(found), list(tensors)


def stored(handle: Any, name: str, leaf: Leaf) -> np.ndarray | Rows:
  """A tensor as it is stored; of a table, what reads its rows.

  Args:
    handle: Of the file that holds it.
    name: Its name there.
    leaf: What it is for.
  """
  found = handle.get_slice(name)
  if leaf.path != TABLE:
    return np.asarray(found[:])
  shape, dtype = tuple(found.get_shape()), found.get_dtype()
  return Rows(shape, dtype, lambda first, last: found[first:last])


def places(folder: pathlib.Path) -> dict[str, tuple[Any, str]]:
  """Where a folder has its tensors.

  Returns:
    By the name that `leaves` gives a tensor, a handle of the file that holds it
    and its name there.

  Raises:
    ValueError: A file is missing or damaged.
  """
  from safetensors import SafetensorError, safe_open

  where = {}
  for file in _files(folder):
    try:
      # What is mapped would count as memory until the handle is closed.
      handle = safe_open(file, framework='numpy', backend='pread')
    except FileNotFoundError:
      raise ValueError(
        f'model: {file} is missing, though {INDEX} lists it; fetch it again.'
      ) from None
    except SafetensorError:
      raise ValueError(f'model: {file} is damaged; fetch it again.') from None
    for name in handle.keys():  # noqa: SIM118 (a handle is no dict)
      # Multimodal checkpoints put the text model under another root.
      short = name.removeprefix('language_model.')
      short = short.replace('model.language_model.', 'model.')
      where[short] = (handle, name)
  return where


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  """The files with tensors: those that the index lists, or all there are.

  Raises:
    ValueError: There are none, or the index is damaged.
  """
  files = sorted(folder.glob('*.safetensors'))
  if not files:
    raise ValueError(
      f'model: {folder} has no *.safetensors file; fetch the weights in that'
      ' format, as others cannot be read.'
    )
  index = read_json(folder / INDEX)
  if index is None:
    return files
  listed = index.get('weight_map')
  if not isinstance(listed, dict):
    raise ValueError(f'model: {folder / INDEX} is damaged; fetch it again.')
  return [folder / name for name in sorted(set(listed.values()))]


def config_of(
  model: language.LanguageModel, params: language.Params, stops: tuple[int, ...]
) -> dict[str, Any]:
  """What config.json has to say of a model: the inverse of `from_config`.

  Nothing is left to defaults, and what transformers 4 and 5 name differently
  is there by both names.

  Args:
    model: A Gemma 2 or a Gemma 3, text only.
    params: The model's parameters, or shapes of them.
    stops: Ids that end an answer.

  Raises:
    ValueError: The model is of another family.
  """
  c = model.module.config
  # Later families have configurations of other classes.
  if type(c) is type(
    language.from_config({'model_type': 'gemma2'}).module.config
  ):
    fields = _config_fields(c, str(model.dtype(params)), stops)
    again = language.from_config(fields).module.config
    if c == dataclasses.replace(
      again, transpose_gating_einsum=c.transpose_gating_einsum
    ):
      return fields
  raise ValueError(
    f'model: a {type(model.module).__name__} with this configuration cannot be'
    ' said in a config.json; give a Gemma 2 or a Gemma 3.'
  )


def _config_fields(
  c: Any, dtype: str, stops: tuple[int, ...]
) -> dict[str, Any]:
  """The fields of config.json, of a Gemma 2 or a Gemma 3.

  Args:
    c: gemma's configuration of the model.
    dtype: What the parameters are stored in, as numpy names it.
    stops: Ids that end an answer.
  """
  three = c.use_qk_norm
  kinds = {'GLOBAL': 'full_attention', 'LOCAL_SLIDING': 'sliding_attention'}
  by_width = c.query_pre_attn_norm.name.endswith('EMBED_DIM_DIV_NUM_HEADS')
  scalar = c.embed_dim // c.num_heads if by_width else c.head_dim
  local = _rope(c.local_base_frequency, c.local_scale_factor)
  whole = _rope(c.global_base_frequency, c.global_scale_factor)
  rope = {'rope_parameters': whole, 'rope_theta': whole['rope_theta']}
  if three:
    rope['rope_local_base_freq'] = local['rope_theta']
    rope['rope_parameters'] = {
      'sliding_attention': local,
      'full_attention': whole,
    }
  if 'factor' in whole:
    rope['rope_scaling'] = {'rope_type': 'linear', 'factor': whole['factor']}
  return {
    'model_type': 'gemma3_text' if three else 'gemma2',
    'architectures': ['Gemma3ForCausalLM' if three else 'Gemma2ForCausalLM'],
    'vocab_size': c.num_embed,
    'hidden_size': c.embed_dim,
    'intermediate_size': c.hidden_dim,
    'num_hidden_layers': c.num_layers,
    'num_attention_heads': c.num_heads,
    'num_key_value_heads': c.num_kv_heads,
    'head_dim': c.head_dim,
    'query_pre_attn_scalar': scalar,
    'sliding_window': c.sliding_window_size,
    'layer_types': [kinds[kind.name] for kind in c.attention_types],
    'attn_logit_softcapping': c.attn_logits_soft_cap,
    'final_logit_softcapping': c.final_logit_softcap,
    **rope,
    **language.FIXED,
    'attention_dropout': 0.0,
    'initializer_range': 0.02,
    # No property of the parameters: what the families were trained for.
    'max_position_embeddings': 131072 if three else 8192,
    'use_cache': True,
    'dtype': dtype,
    'torch_dtype': dtype,
    **_special_ids(stops),
  }


def _rope(theta: float, factor: float) -> dict[str, Any]:
  """A kind of layer's rotary positions, as transformers 5 says them.

  Args:
    theta: Base of the frequencies.
    factor: What positions are divided by.
  """
  if factor == 1:
    return {'rope_type': 'default', 'rope_theta': float(theta)}
  return {
    'rope_type': 'linear',
    'rope_theta': float(theta),
    'factor': float(factor),
  }


def _special_ids(stops: tuple[int, ...]) -> dict[str, Any]:
  """The ids that begin, end and pad a text, by their names in config.json."""
  return {
    'bos_token_id': tokenizers.BOS,
    'eos_token_id': stops[0] if len(stops) == 1 else list(stops),
    'pad_token_id': tokenizers.PAD,
  }


def save(
  folder: str | pathlib.Path,
  config: Mapping[str, Any],
  params: language.Params,
  tokenizer: tokenizers.Tokenizer,
  *,
  shard_gb: float = 5.0,
  gate_by_rows: bool = True,
) -> None:
  """Writes a folder that `load_model` and transformers open.

  Args:
    folder: Made if it is not there; another model's tensors in it are removed.
    config: Fields of config.json, as `language.from_config` reads them.
    params: gemma's tree, of JAX's or of numpy's arrays.
    tokenizer: Written as tokenizer.model.
    shard_gb: Most of a file of tensors, in 1e9 bytes, except that a larger
      tensor has one of its own.
    gate_by_rows: Whether `gating_einsum` lies in `params` as Hugging Face has
      it, [2, hidden, width]; else [2, width, hidden].

  Raises:
    ValueError: `shard_gb` is not positive.
  """
  if not shard_gb > 0:
    raise ValueError(f'shard_gb: {shard_gb:g} will not do; give more than 0.')
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  tensors = _tensors(params, leaves(config, gate_by_rows))
  shards = _named(_divided(tensors, shard_gb * 1e9))
  _write_shards(folder, shards, params)
  _write_json(folder / 'config.json', config)
  written = set(shards)
  if len(shards) > 1:
    _write_index(folder, shards)
    written.add(INDEX)
  for file in folder.glob('model*.safetensors*'):
    if file.name not in written:
      file.unlink()
  # safetensors lets nobody but the owner read what it writes.
  mode = (folder / 'config.json').stat().st_mode
  for file in shards:
    (folder / file).chmod(mode)
  _write_tokenizer(folder, tokenizer)


class _Tensor(NamedTuple):
  """A tensor that is to be written.

  Attributes:
    name: Its name in the file.
    leaf: The leaf of gemma's tree that it is made of.
    number: Which of the leaf's tensors it is, from 0.
    size: Its bytes.
  """

  name: str
  leaf: Leaf
  number: int
  size: int


def _tensors(
  params: language.Params, made_of: Iterable[Leaf]
) -> Iterator[_Tensor]:
  """The tensors of a model, in the order of its leaves; none is made."""
  for leaf in made_of:
    x = get(params, leaf.path)
    shapes = jax.eval_shape(leaf.unpack, jax.ShapeDtypeStruct(x.shape, x.dtype))
    for i, (name, shape) in enumerate(zip(leaf.names, shapes, strict=True)):
      size = math.prod(shape.shape) * shape.dtype.itemsize
      yield _Tensor(name, leaf, i, size)


def _divided(tensors: Iterable[_Tensor], limit: float) -> list[list[_Tensor]]:
  """Tensors in their order, so many a file as it may hold.

  Args:
    tensors: What is to be written.
    limit: Most bytes of a file, unless it has a single tensor.

  Returns:
    For each file its tensors; at least one file.
  """
  shards, room = [[]], limit
  for tensor in tensors:
    if tensor.size > room and shards[-1]:
      shards.append([])
      room = limit
    shards[-1].append(tensor)
    room -= tensor.size
  return shards


def _named(shards: list[list[_Tensor]]) -> dict[str, list[_Tensor]]:
  """The same by the names of their files, which transformers looks for."""
  if len(shards) == 1:
    return {'model.safetensors': shards[0]}
  last = len(shards)
  return {
    f'model-{i:05}-of-{last:05}.safetensors': shard
    for i, shard in enumerate(shards, 1)
  }


def _write_shards(
  folder: pathlib.Path,
  shards: Mapping[str, list[_Tensor]],
  params: language.Params,
) -> None:
  """Writes the files of tensors; those of one file are held at a time.

  Args:
    folder: Where they go.
    shards: By file name, its tensors.
    params: gemma's tree, of JAX's or of numpy's arrays.
  """
  from safetensors.numpy import save_file

  for file, shard in shards.items():
    tensors = {
      name: np.ascontiguousarray(
        leaf.unpack(np.asarray(get(params, leaf.path)))[number]
      )
      for name, leaf, number, _ in shard
    }
    save_file(tensors, folder / file, metadata={'format': 'pt'})


def _write_index(
  folder: pathlib.Path, shards: Mapping[str, list[_Tensor]]
) -> None:
  """Writes which file has which tensor, and their bytes in all."""
  total = sum(tensor.size for shard in shards.values() for tensor in shard)
  where = {
    tensor.name: file for file, shard in shards.items() for tensor in shard
  }
  _write_json(
    folder / INDEX, {'metadata': {'total_size': total}, 'weight_map': where}
  )


def _write_tokenizer(
  folder: pathlib.Path, tokenizer: tokenizers.Tokenizer
) -> None:
  """Writes the tokenizer, its special tokens, and where answers end."""
  special = _special_ids(tokenizer.stops)
  _write_json(folder / 'generation_config.json', special)
  (folder / 'tokenizer.model').write_bytes(tokenizer.proto)
  names = dict(
    pad_token=tokenizers.PAD,
    eos_token=tokenizers.EOS,
    bos_token=tokenizers.BOS,
    unk_token=tokenizers.UNK,
  )
  _write_json(
    folder / 'tokenizer_config.json',
    {name: tokenizer.piece(i) for name, i in names.items()}
    | {
      'tokenizer_class': 'GemmaTokenizer',
      'add_bos_token': True,
      'add_eos_token': False,
      'clean_up_tokenization_spaces': False,
    },
  )


def _write_json(file: pathlib.Path, fields: Mapping[str, Any]) -> None:
  """Writes fields as JSON, sorted by name."""
  text = json.dumps(dict(fields), indent=2, sort_keys=True)
  file.write_text(text + '\n', encoding='utf-8')


def get(tree: Any, path: Iterable[str]) -> Any:
  """What a tree holds at the end of a path of keys."""
  for key in path:
    tree = tree[key]
  return tree
