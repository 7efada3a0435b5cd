"""Folders in Hugging Face layout of Gemma 2, 3, 3n and 4, without torch.

A folder holds config.json, the tensors in model.safetensors or in several files
(shards; model.safetensors.index.json says which has a tensor, and decides where
files hold more), and tokenizer.model. They
are read and written one tensor at a time: the tensors of one leaf, and when
writing those of one shard, are all that is held beside the parameters.

The table `leaves` pairs every leaf of gemma's parameter tree with the tensors
that Hugging Face keeps it in.
"""

import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cascades import arguments, atomic
from cascades.models import families, language, tokenizers

SINGLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
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

  def first(self, count: int) -> 'Rows':
    """So many of them."""
    return Rows((count, *self.shape[1:]), self._dtype, self._read)

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


def _turned(path: tuple[str, ...], name: str) -> Leaf:
  """A leaf that is a matrix whose axes change places."""
  return Leaf(path, (name,), lambda ts: _only(ts).T, lambda x: [x.T])


def _unused(path: tuple[str, ...], shape: tuple[int, ...]) -> Leaf:
  """A leaf that gemma asks for and never looks at, and no tensor holds."""

  def pack(ts):
    del ts
    return np.zeros(shape, jnp.bfloat16)

  return Leaf(path, (), pack, lambda x: [])


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
  config = families.text_config(config)
  yield _table(config)
  yield _same(('final_norm', 'scale'), 'model.norm.weight')
  if config.get('hidden_size_per_layer_input'):
    yield from _per_layer_inputs(config)
  if config['model_type'] == 'gemma3n_text':
    yield from _streams(config)
  for i in range(config['num_hidden_layers']):
    ours, theirs = f'layer_{i}', f'model.layers.{i}'
    for norm, name in _norms(config):
      yield _same((ours, norm, 'scale'), f'{theirs}.{name}.weight')
    yield from _attention(config, i)
    mlp = 'mlp2' if config.get('enable_moe_block') else 'mlp'
    yield from _feed_forward((ours, mlp), f'{theirs}.mlp', gate_by_rows)
    if config.get('enable_moe_block'):
      yield from _experts(config, i)
    if config['model_type'] == 'gemma3n_text':
      yield from _streams_of_layer(config, i)
    elif families.is_four(config):
      yield _same((ours, 'skip_scale'), f'{theirs}.layer_scalar')
    if config.get('hidden_size_per_layer_input'):
      yield from _per_layer_input(config, i)


def _table(config: Mapping[str, Any]) -> Leaf:
  """The embedding table, of which gemma may have fewer rows."""
  name = 'model.embed_tokens.weight'
  rows = config['vocab_size']
  more = config.get('table_size', rows) - rows
  if not more:
    return _same(TABLE, name)

  def pack(ts):
    table = _only(ts)
    return table.first(rows) if isinstance(table, Rows) else table[:rows]

  def unpack(x):
    # What is left out are copies of the row that pads.
    library = jnp if isinstance(x, jax.Array) else np
    copies = library.broadcast_to(x[:1], (more, *x.shape[1:]))
    return [library.concatenate([x, copies])]

  return Leaf(TABLE, (name,), pack, unpack)


def _norms(config: Mapping[str, Any]) -> list[tuple[str, str]]:
  """The norms of a layer, gemma's names and Hugging Face's."""
  common = [
    ('pre_attention_norm', 'input_layernorm'),
    ('post_attention_norm', 'post_attention_layernorm'),
    ('post_ffw_norm', 'post_feedforward_layernorm'),
  ]
  if not config.get('enable_moe_block'):
    return [*common, ('pre_ffw_norm', 'pre_feedforward_layernorm')]
  return [
    *common,
    ('pre_ffw2_norm', 'pre_feedforward_layernorm'),
    ('post_ffw2_norm', 'post_feedforward_layernorm_1'),
    ('pre_ffw_norm', 'pre_feedforward_layernorm_2'),
    ('post_ffw1_norm', 'post_feedforward_layernorm_2'),
  ]


def _attention(config: Mapping[str, Any], i: int) -> Iterator[Leaf]:
  """What a layer attends by.

  Args:
    config: As `families.text_config` gives it.
    i: The layer.
  """
  ours = f'layer_{i}', 'attn'
  theirs = f'model.layers.{i}.self_attn'
  family = config['model_type']
  four, heads = families.is_four(config), config['num_attention_heads']
  kv_heads, dim = families.key_heads(config, i)
  q, k, v = (f'{theirs}.{x}_proj.weight' for x in 'qkv')
  first = config['num_hidden_layers'] - config.get('num_kv_shared_layers', 0)
  if heads == kv_heads and not four:
    yield _heads((*ours, 'qkv_einsum', 'w'), (q, k, v), heads, dim)
  else:
    yield _heads((*ours, 'q_einsum', 'w'), (q,), heads, dim)
    whole = config['layer_types'][i] == families.FULL
    alike = four and whole and config['attention_k_eq_v']
    path = *ours, 'k_einsum' if alike else 'kv_einsum', 'w'
    if i < first:
      yield _heads(path, (k,) if alike else (k, v), kv_heads, dim)
    elif four:
      shape = kv_heads, config['hidden_size'], dim
      yield _unused(path, shape if alike else (2, *shape))
  yield Leaf(
    (*ours, 'attn_vec_einsum', 'w'),
    (f'{theirs}.o_proj.weight',),
    lambda ts: _only(ts).T.reshape(heads, dim, -1),
    lambda x: [x.reshape(heads * dim, -1).T],
  )
  if family == 'gemma2':
    return
  start = '_' if family == 'gemma3_text' else ''
  path = *ours, f'{start}query_norm', 'scale'
  yield _same(path, f'{theirs}.q_norm.weight')
  path = *ours, f'{start}key_norm', 'scale'
  if i < first:
    yield _same(path, f'{theirs}.k_norm.weight')
  elif four:
    yield _unused(path, (dim,))


def _feed_forward(
  ours: tuple[str, ...], theirs: str, gate_by_rows: bool
) -> Iterator[Leaf]:
  """A dense feed-forward layer, whatever it is called."""

  def gate(x):
    return x if gate_by_rows else x.transpose(0, 2, 1)

  yield Leaf(
    (*ours, 'gating_einsum'),
    (f'{theirs}.gate_proj.weight', f'{theirs}.up_proj.weight'),
    lambda ts: gate(_stack(ts, 2)),
    lambda x: list(gate(x)),
  )
  yield _turned((*ours, 'linear'), f'{theirs}.down_proj.weight')


def _experts(config: Mapping[str, Any], i: int) -> Iterator[Leaf]:
  """A mixture of experts, and what chooses among them."""
  ours, theirs = (f'layer_{i}', 'mlp'), f'model.layers.{i}'
  hidden = config['moe_intermediate_size']
  yield _turned((*ours, 'router_logits', 'w'), f'{theirs}.router.proj.weight')
  yield _same((*ours, 'router_scale'), f'{theirs}.router.scale')
  yield _same((*ours, 'per_expert_scale'), f'{theirs}.router.per_expert_scale')
  yield Leaf(
    (*ours, 'gating_einsum', 'w'),
    (f'{theirs}.experts.gate_up_proj',),
    lambda ts: (x := _only(ts)).reshape(len(x), 2, hidden, -1),
    lambda x: [x.reshape(x.shape[0], 2 * hidden, -1)],
  )
  yield Leaf(
    (*ours, 'linear', 'w'),
    (f'{theirs}.experts.down_proj',),
    lambda ts: _only(ts).transpose(0, 2, 1),
    lambda x: [x.transpose(0, 2, 1)],
  )


def _per_layer_inputs(config: Mapping[str, Any]) -> Iterator[Leaf]:
  """What each layer is told of a token, beside its embedding."""
  layers = config['num_hidden_layers']
  three = config['model_type'] == 'gemma3n_text'
  table = 'per_layer_input_embedding' if three else 'per_layer_embeddings'
  projection = (
    'per_layer_input_projection' if three else 'per_layer_model_projection'
  )
  yield Leaf(
    ('embedder', table),
    ('model.embed_tokens_per_layer.weight',),
    lambda ts: (x := _only(ts)).reshape(x.shape[0], layers, -1),
    lambda x: [x.reshape(x.shape[0], -1)],
  )
  yield Leaf(
    ('embedder', projection, 'w'),
    ('model.per_layer_model_projection.weight',),
    lambda ts: (x := _only(ts).T).reshape(x.shape[0], layers, -1),
    lambda x: [x.reshape(x.shape[0], -1).T],
  )
  yield _same(
    ('embedder', 'per_layer_projection_norm', 'scale'),
    'model.per_layer_projection_norm.weight',
  )


def _per_layer_input(config: Mapping[str, Any], i: int) -> Iterator[Leaf]:
  """How a layer takes what it is told of a token."""
  ours, theirs = (f'layer_{i}',), f'model.layers.{i}'
  if config['model_type'] == 'gemma3n_text':
    ours = *ours, 'per_layer_mapping'
  for name in ('per_layer_input_gate', 'per_layer_projection'):
    yield _turned((*ours, name, 'w'), f'{theirs}.{name}.weight')
  name = 'post_per_layer_input_norm'
  yield _same((*ours, name, 'scale'), f'{theirs}.{name}.weight')


def _streams(config: Mapping[str, Any]) -> Iterator[Leaf]:
  """What Gemma 3n makes its streams of, and one of its streams."""
  for name in ('altup_projection', 'altup_unembed_projection'):
    for j in range(config['altup_num_inputs'] - 1):
      path = f'{name}_{j}', f'{name}_{j}'
      yield _turned(path, f'model.{name}s.{j}.weight')


def _streams_of_layer(config: Mapping[str, Any], i: int) -> Iterator[Leaf]:
  """What a layer of Gemma 3n does with its streams, and beside attention."""
  ours, theirs = f'layer_{i}', f'model.layers.{i}'
  count = config['altup_num_inputs']
  yield _same(
    (ours, 'altup', 'correct_output_scale'),
    f'{theirs}.altup.correct_output_scale',
  )
  name = 'correction_coefs'
  yield _turned((ours, 'altup', name), f'{theirs}.altup.{name}.weight')
  yield Leaf(
    (ours, 'altup', 'prediction_coefs'),
    (f'{theirs}.altup.prediction_coefs.weight',),
    lambda ts: _only(ts).T.reshape(-1, count, count),
    lambda x: [x.reshape(x.shape[0], -1).T],
  )
  name = 'modality_router'
  yield _turned((ours, 'altup', name, 'w'), f'{theirs}.altup.{name}.weight')
  path = ours, 'altup', 'router_norm_layer', 'scale'
  yield _same(path, f'{theirs}.altup.router_norm.weight')
  for name in ('linear_left', 'linear_right'):
    yield _turned((ours, 'laurel', name, 'w'), f'{theirs}.laurel.{name}.weight')
  path = ours, 'post_laurel_norm', 'scale'
  yield _same(path, f'{theirs}.laurel.post_laurel_norm.weight')


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


def find(
  what: pathlib.Path,
  where: Mapping[str, tuple[Any, str]],
  name: str,
  wanted: tuple[int, ...],
  field: str = 'model',
) -> tuple[tuple[Any, str], jax.ShapeDtypeStruct]:
  """Where a tensor is stored, and its shape and dtype.

  Args:
    what: The folder or file, for errors.
    where: As `places` gives it.
    name: Of the tensor.
    wanted: Its shape by config.json.
    field: What the user gave the folder for.

  Raises:
    ValueError: It is missing or of another shape.
  """
  if name not in where:
    raise ValueError(
      f'{field}: {what} lacks the tensor {name}; the download may be'
      ' incomplete, fetch it again.'
    )
  handle, stored = where[name]
  header = handle.get_slice(stored)
  shape = tuple(header.get_shape())
  if shape != wanted:
    raise ValueError(
      f'{field}: in {what} the tensor {name} has the shape {shape}'
      f' where config.json asks for {wanted}; fetch both from one place.'
    )
  # JAX reads float64 as float32 too.
  dtype = _DTYPES.get(header.get_dtype(), jnp.float32)
  return where[name], jax.ShapeDtypeStruct(shape, dtype)


def read_all(
  what: pathlib.Path,
  where: Mapping[str, tuple[Any, str]],
  shapes: Mapping[str, tuple[int, ...]],
  field: str,
) -> dict[str, np.ndarray]:
  """All of some tensors, by name, as they are stored.

  Args:
    what: The folder or file, for errors.
    where: As `places` gives it.
    shapes: By name, what config.json asks for.
    field: What the user gave the folder for.

  Raises:
    ValueError: One is missing or of another shape.
  """
  found = {}
  for name, shape in shapes.items():
    (handle, stored_as), _ = find(what, where, name, shape, field)
    # Ids have 32 or 64 bits.
    _check_real(what, name, handle, stored_as, ('I32', 'I64'), field)
    found[name] = np.asarray(handle.get_slice(stored_as)[:])
  return found


def choose_dtype(stored: Iterable[Any], what: Any = None) -> str | None:
  """Chooses what parameters become for which nobody names a type.

  float16 ends at 65,504, which the activations of Gemma pass. float32 has every
  number of float16, so that answers are those of the same weights in float32;
  it takes twice the memory. bfloat16 takes no more, and rounds each number to
  three bits less; who prefers that asks for it.

  Args:
    stored: The types of all parameters.
    what: The folder or file, which a line on stderr names if what is stored is
      not what is computed in; None says nothing.

  Returns:
    'float32' if any is float16, else None: they stay as they are stored.
  """
  if not any(dtype == jnp.float16 for dtype in stored):
    return None
  if what is not None:
    print(
      f'{what}: stored in float16, computed in float32, which takes twice the'
      ' memory; with dtype bfloat16 it takes no more.',
      file=sys.stderr,
    )
  return 'float32'


def stored_dtypes(
  where: Mapping[str, tuple[Any, str]], names: Iterable[str]
) -> list[Any]:
  """The types of tensors, of those that are there.

  Args:
    where: As `places` gives it.
    names: Of the tensors.
  """
  there = (where[name] for name in names if name in where)
  return [
    _DTYPES.get(handle.get_slice(name).get_dtype(), jnp.float32)
    for handle, name in there
  ]


def put(params: Any, dtype: Any = None, what: Any = None) -> Any:
  """Puts parameters on the device.

  Args:
    params: Arrays of NumPy's; whole numbers stay what they are.
    dtype: What all others become; None for what `choose_dtype` says.
    what: As there.
  """
  dtype = dtype or choose_dtype(
    (x.dtype for x in jax.tree.leaves(params)), what
  )

  def one(x):
    number = np.issubdtype(x.dtype, np.integer)
    return jnp.asarray(x, x.dtype if number or dtype is None else dtype)

  return jax.tree.map(one, params)


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

  shapes = model.param_shapes()
  for leaf in leaves(config):
    # Of the stored tensors: a transposed one can be packed, but wrongly.
    wanted = jax.eval_shape(leaf.unpack, get(shapes, leaf.path))
    found = [
      find(what, where, name, x.shape)
      for name, x in zip(leaf.names, wanted, strict=True)
    ]
    for name, (at, _) in zip(leaf.names, found, strict=True):
      _check_real(what, name, *at)
    yield leaf, [where for where, _ in found], [shape for _, shape in found]


def _check_real(
  what: pathlib.Path,
  name: str,
  handle: Any,
  stored_as: str,
  others: Sequence[str] = (),
  field: str = 'model',
) -> None:
  """Refuses what would be read as if its numbers were the weights.

  Args:
    what: The folder or file, for errors.
    name: Of the tensor.
    handle: Of the file that holds it.
    stored_as: Its name there.
    others: Further types that it may have, as safetensors names them.
    field: What the user gave the folder for.

  Raises:
    ValueError: It has whole numbers, or others of 8 bits and less.
  """
  kind = handle.get_slice(stored_as).get_dtype()
  if kind not in ('F64', 'F32', *_DTYPES, *others):
    raise ValueError(
      f'{field}: in {what} the tensor {name} is quantised ({kind}), which is'
      ' not read; fetch the model as it was before, or as a GGUF file.'
    )


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
  """Finds the tensors of a folder.

  The index decides: each tensor is read from the file that `weight_map` names
  for it, and what else the files hold is ignored. Without an index the tensors
  are those of `model.safetensors`, or of the only file there is.

  Returns:
    By the name that `leaves` gives a tensor, a handle of the file that holds it
    and its name there.

  Raises:
    ValueError: A file or a tensor is missing, damaged, or there twice.
  """
  if not any(folder.glob('*.safetensors')):
    raise ValueError(
      f'model: {folder} has no *.safetensors file; fetch the weights in that'
      ' format, as others cannot be read.'
    )
  files = _weight_map(folder)
  if files is None:
    file = _only_file(folder)
    handles = {file.name: _opened(file)}
    files = dict.fromkeys(handles[file.name].keys(), file.name)
  else:
    handles = {
      file: _opened(folder / file) for file in sorted(set(files.values()))
    }
    held = {file: {*handle.keys()} for file, handle in handles.items()}
    for name, file in files.items():
      if name not in held[file]:
        raise ValueError(
          f'model: {folder / file} lacks the tensor {name}, though {INDEX} says'
          ' that it is there; fetch both from one place.'
        )
  where: dict[str, tuple[Any, str]] = {}
  for name, file in files.items():
    # Multimodal checkpoints put the text model under another root.
    short = name.removeprefix('language_model.')
    short = short.replace('model.language_model.', 'model.')
    if short in where:
      raise ValueError(
        f'model: {folder} has the tensor {short} twice, as {where[short][1]}'
        f' and as {name}; fetch the model again.'
      )
    where[short] = (handles[file], name)
  return where


def _opened(file: pathlib.Path) -> Any:
  """A handle of a file of tensors.

  Raises:
    ValueError: It is missing or damaged.
  """
  from safetensors import SafetensorError, safe_open

  try:
    # What is mapped would count as memory until the handle is closed.
    return safe_open(file, framework='numpy', backend='pread')
  except FileNotFoundError:
    raise ValueError(
      f'model: {file} is missing, though {INDEX} lists it; fetch it again.'
    ) from None
  except SafetensorError:
    raise ValueError(f'model: {file} is damaged; fetch it again.') from None


def _weight_map(folder: pathlib.Path) -> dict[str, str] | None:
  """The file of each tensor, as the index says it; None without an index.

  Raises:
    ValueError: The index is damaged, or names a file outside of the folder.
  """
  index = read_json(folder / INDEX)
  if index is None:
    return None
  files = index.get('weight_map')
  if not isinstance(files, dict):
    raise ValueError(f'model: {folder / INDEX} is damaged; fetch it again.')
  for name, file in files.items():
    named = isinstance(file, str) and pathlib.PurePath(file).name == file
    if not named or file in ('', '..'):
      raise ValueError(
        f'model: {folder / INDEX}: the file of {name} is'
        f' {arguments.shown(file)}, and not the name of a file beside it; fetch'
        ' it again.'
      )
  return files


def _only_file(folder: pathlib.Path) -> pathlib.Path:
  """The file of tensors of a folder that has no index.

  Raises:
    ValueError: There are several, and none is called `model.safetensors`.
  """
  files = sorted(folder.glob('*.safetensors'))
  usual = folder / SINGLE
  if usual in files:
    return usual
  if len(files) > 1:
    names = ', '.join(file.name for file in files)
    raise ValueError(
      f'model: {folder} has several files of tensors ({names}) and no {INDEX}'
      ' that says which to read; fetch the index, or leave one file there.'
    )
  return files[0]


def config_of(
  model: language.LanguageModel, params: language.Params, stops: tuple[int, ...]
) -> dict[str, Any]:
  """What config.json has to say of a model: the inverse of `from_config`.

  Nothing is left to defaults, and what transformers 4 and 5 name differently
  is there by both names.

  Args:
    model: A Gemma 2, 3, 3n or 4, text only.
    params: The model's parameters, or shapes of them.
    stops: Ids that end an answer.

  Raises:
    ValueError: The model is of another family.
  """
  c = model.module.config
  made = {
    type(language.from_config({'model_type': family}).module.config): fields
    for family, fields in (
      ('gemma2', _classic_fields),
      ('gemma3n_text', _fields_3n),
      ('gemma4_text', _fields_4),
    )
  }
  if type(c) in made:
    fields = _common_fields(c, str(model.dtype(params)), stops)
    fields |= made[type(c)](c)
    again = language.from_config(fields).module.config
    if hasattr(c, 'transpose_gating_einsum'):
      # How its matrices lie, of which config.json says nothing.
      again = dataclasses.replace(
        again, transpose_gating_einsum=c.transpose_gating_einsum
      )
    if c == again:
      return fields
  raise ValueError(
    f'model: a {type(model.module).__name__} with this configuration cannot be'
    ' said in a config.json; give a Gemma 2, 3, 3n or 4, text only.'
  )


def _common_fields(
  c: Any, dtype: str, stops: tuple[int, ...]
) -> dict[str, Any]:
  """The fields of config.json that all families have.

  Args:
    c: gemma's configuration of the model.
    dtype: What the parameters are stored in, as numpy names it.
    stops: Ids that end an answer.
  """
  kinds = {gemmas: theirs for theirs, gemmas in families.KINDS.items()}
  return {
    'vocab_size': c.num_embed,
    'hidden_size': c.embed_dim,
    'intermediate_size': c.hidden_dim,
    'num_hidden_layers': c.num_layers,
    'num_attention_heads': c.num_heads,
    'num_key_value_heads': c.num_kv_heads,
    'head_dim': c.head_dim,
    'sliding_window': c.sliding_window_size,
    'layer_types': [kinds[kind.name] for kind in c.attention_types],
    'final_logit_softcapping': c.final_logit_softcap,
    **families.FIXED,
    'attention_dropout': 0.0,
    'initializer_range': 0.02,
    'use_cache': True,
    'dtype': dtype,
    'torch_dtype': dtype,
    **_special_ids(stops),
  }


def _classic_fields(c: Any) -> dict[str, Any]:
  """Those of a Gemma 2 or 3."""
  three = c.use_qk_norm
  by_width = c.query_pre_attn_norm.name.endswith('EMBED_DIM_DIV_NUM_HEADS')
  scalar = c.embed_dim // c.num_heads if by_width else c.head_dim
  turned = _turned_fields(c)
  whole = turned['rope_parameters'][families.FULL]
  if not three:
    turned = {'rope_parameters': whole, 'rope_theta': whole['rope_theta']}
  if 'factor' in whole:
    turned['rope_scaling'] = {'rope_type': 'linear', 'factor': whole['factor']}
  return {
    'model_type': 'gemma3_text' if three else 'gemma2',
    'architectures': ['Gemma3ForCausalLM' if three else 'Gemma2ForCausalLM'],
    'query_pre_attn_scalar': scalar,
    'attn_logit_softcapping': c.attn_logits_soft_cap,
    # No property of the parameters: what the families were trained for.
    'max_position_embeddings': 131072 if three else 8192,
    **turned,
  }


def _turned_fields(c: Any) -> dict[str, Any]:
  """How each kind of layer turns positions, by all names for it."""
  local = _rope(c.local_base_frequency, c.local_scale_factor)
  whole = _rope(c.global_base_frequency, c.global_scale_factor)
  return {
    'rope_theta': whole['rope_theta'],
    'rope_local_base_freq': local['rope_theta'],
    'rope_parameters': {families.SLIDING: local, families.FULL: whole},
  }


def _fields_3n(c: Any) -> dict[str, Any]:
  """Those of a Gemma 3n."""
  return {
    'model_type': 'gemma3n_text',
    'architectures': ['Gemma3nForCausalLM'],
    'intermediate_size': [c.hidden_dim] * c.num_layers,
    'vocab_size_per_layer_input': c.num_embed,
    'hidden_size_per_layer_input': c.per_layer_input_dim,
    'num_kv_shared_layers': _shared_layers(c),
    'activation_sparsity_pattern': list(c.activation_sparsity_pattern),
    'laurel_rank': c.laurel_rank,
    'altup_coef_clip': c.altup_coef_clip,
    'altup_num_inputs': c.num_altup_inputs,
    'altup_active_idx': 0,
    'altup_correct_scale': True,
    'max_position_embeddings': 32768,
    **_turned_fields(c),
  }


def _fields_4(c: Any) -> dict[str, Any]:
  """Those of a Gemma 4."""
  local = _rope(c.local_base_frequency, c.local_scale_factor)
  whole = _rope(c.global_base_frequency, c.global_scale_factor)
  whole |= {
    'rope_type': 'proportional',
    'partial_rotary_factor': c.global_rope_proportion,
  }
  return {
    'model_type': 'gemma4_text',
    'architectures': ['Gemma4ForCausalLM'],
    'vocab_size_per_layer_input': c.num_embed,
    'hidden_size_per_layer_input': c.per_layer_input_dim,
    'global_head_dim': c.global_key_size,
    'num_global_key_value_heads': c.num_global_kv_heads,
    'attention_k_eq_v': c.k_eq_v_global,
    'num_kv_shared_layers': _shared_layers(c),
    'use_double_wide_mlp': c.override_kv_shared_ffw_hidden is not None,
    'use_bidirectional_attention': c.use_bidirectional_attention,
    'enable_moe_block': c.enable_moe,
    'num_experts': c.num_experts or None,
    'top_k_experts': c.top_k_experts if c.enable_moe else None,
    'moe_intermediate_size': c.expert_dim or None,
    'max_position_embeddings': 131072,
    'rope_parameters': {families.SLIDING: local, families.FULL: whole},
  }


def _shared_layers(c: Any) -> int:
  """How many layers attend to what others have cached."""
  sharing = c.kv_cache_sharing_config
  if sharing is None:
    return 0
  return c.num_layers - int(
    c.num_layers - sharing.frac_shared_layers * c.num_layers
  )


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
      It stays as it was if the model cannot be written.
    config: Fields of config.json, as `language.from_config` reads them.
    params: gemma's tree, of JAX's or of numpy's arrays.
    tokenizer: Written as tokenizer.model.
    shard_gb: Most of a file of tensors, in 1e9 bytes, except that a larger
      tensor has one of its own.
    gate_by_rows: Whether `gating_einsum` lies in `params` as Hugging Face has
      it, [2, hidden, width]; else [2, width, hidden].

  Raises:
    ValueError: `shard_gb` is not positive.
    OSError: A file cannot be written; names it.
  """
  if not shard_gb > 0:
    raise ValueError(f'shard_gb: {shard_gb:g} will not do; give more than 0.')
  folder = pathlib.Path(folder)
  tensors = _tensors(params, leaves(config, gate_by_rows))
  shards = _named(_divided(tensors, shard_gb * 1e9))
  written = set(shards)
  with atomic.replace_files(folder) as part:
    _write_shards(part, shards, params)
    write_json(part / 'config.json', config)
    if len(shards) > 1:
      _write_index(part, shards)
      written.add(INDEX)
    _write_tokenizer(part, tokenizer)
  for file in folder.glob('model*.safetensors*'):
    if file.name not in written:
      file.unlink()


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
    return {SINGLE: shards[0]}
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
  for file, shard in shards.items():
    tensors = {
      name: np.ascontiguousarray(
        leaf.unpack(np.asarray(get(params, leaf.path)))[number]
      )
      for name, leaf, number, _ in shard
    }
    save_tensors(folder / file, tensors)


def save_tensors(file: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a file of tensors, whole or not at all.

  Raises:
    OSError: It cannot be written; names the file.
  """
  from safetensors.numpy import save_file

  with atomic.replace_file(file) as part:
    save_file(dict(tensors), part, metadata={'format': 'pt'})


def _write_index(
  folder: pathlib.Path, shards: Mapping[str, list[_Tensor]]
) -> None:
  """Writes which file has which tensor, and their bytes in all."""
  total = sum(tensor.size for shard in shards.values() for tensor in shard)
  where = {
    tensor.name: file for file, shard in shards.items() for tensor in shard
  }
  write_json(
    folder / INDEX, {'metadata': {'total_size': total}, 'weight_map': where}
  )


def _write_tokenizer(
  folder: pathlib.Path, tokenizer: tokenizers.Tokenizer
) -> None:
  """Writes the tokenizer, its special tokens, and where answers end."""
  special = _special_ids(tokenizer.stops)
  write_json(folder / 'generation_config.json', special)
  atomic.write_bytes(folder / 'tokenizer.model', tokenizer.proto)
  names = dict(
    pad_token=tokenizers.PAD,
    eos_token=tokenizers.EOS,
    bos_token=tokenizers.BOS,
    unk_token=tokenizers.UNK,
  )
  write_json(
    folder / 'tokenizer_config.json',
    {name: tokenizer.piece(i) for name, i in names.items()}
    | {
      'tokenizer_class': 'GemmaTokenizer',
      'add_bos_token': True,
      'add_eos_token': False,
      'clean_up_tokenization_spaces': False,
    },
  )


def write_json(file: pathlib.Path, fields: Mapping[str, Any]) -> None:
  """Writes fields as JSON, sorted by name."""
  text = json.dumps(dict(fields), indent=2, sort_keys=True)
  atomic.write_text(file, text + '\n')


def get(tree: Any, path: Iterable[str]) -> Any:
  """What a tree holds at the end of a path of keys."""
  for key in path:
    tree = tree[key]
  return tree
