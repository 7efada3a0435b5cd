"""EAGLE-3: a layer that reads hidden states of several verifier layers.

Li et al. 2025, arXiv 2503.01840, with the tensors of the `speculators` library.
The verifier's states after three of its layers at position p, a_p, b_p and c_p,
become g_p = F [a_p; b_p; c_p]. With x the token that the verifier predicted at
position p,

  y = r + attention([norm(E_x); norm(g_p)]),   y <- y + mlp(norm(y))
  logits = T norm(y),

where r is g_p or its norm. The next step takes the drafted token, and y or
norm(y) in the place of g. The states may be normed before F, all three together
or each by itself. E is the head's own table, if it has one, or the verifier's.
T has rows for some of the tokens; the others have the logit -inf.

The layer attends to such pairs of a token and the state that predicted it: the
verifier's states in the text, and the head's own in the draft. The pairs of the
text are in a cache, at the slot and position of their token; the first token
has none. A key and a value depend on their pair alone, so `observe` needs no
attention, and drafting leaves the cache as it is. A layer with a window attends
to the last pairs of the text, and to all drafted pairs, as in training.

A head is a folder of the `speculators` library, with an `eagle3` config.json
and a layer of Llama's. It does not record its verifier, so only sizes are
checked: another verifier of the same size rejects most drafts.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Container
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, Float, Int, PyTree

from cascades.decoding.drafter import BoundDrafter
from cascades.decoding.model import Model
from cascades.decoding.state import write
from cascades.drafters import stepwise
from cascades.drafters.unbound import UnboundDrafter
from cascades.files import Count, Positive, Schema, Size, one_of
from cascades.models import checkpoints, config_json, hub, tensor_files

_EMBEDDINGS, _BIAS, _OFFSETS = 'embed_tokens.weight', 'fc.bias', 'd2t'
# Prefixes of the tensors that decide the drafts.
_DECISIVE = 'layers.', 'input_norm.', 'fc_norm.'


def apply_rope(
  x: Float[Array, 'N h'], position: Int[Array, ''], theta: float
) -> Float[Array, 'N h']:
  """Applies Llama's rotary position embedding."""
  half = x.shape[-1] // 2
  angles = position * theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  low, high = jnp.split(x.astype(jnp.float32), 2, -1)
  rotated = [low * cos - high * sin, high * cos + low * sin]
  return jnp.concatenate(rotated, -1).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class EagleDrafter(stepwise.StepwiseDrafter):
  """Drafts with an EAGLE-3 head; parameters are (the head's, the verifier's).

  Attributes:
    model: The verifier.
    hidden_layers: Verifier layers after which the head reads hidden states.
    theta: Base of the frequencies of the rotary embedding.
    epsilon: Added to the mean square in all norms.
    norm_before_residual: True if r is the norm of g.
    norm_output: True if the norm of y takes the place of g, instead of y.
    window: Pairs of the text that the layer attends to; None for all.
  """

  model: Model
  hidden_layers: tuple[int, ...]
  theta: float = 10_000.0
  epsilon: float = 1e-6
  norm_before_residual: bool = False
  norm_output: bool = False
  window: int | None = None

  def _norm(self, x: Array, scale: Array) -> Array:
    return stepwise.rms_norm(x, scale, self.epsilon)

  def _join_states(self, head: PyTree, hidden: Array | None) -> Array:
    """Returns g of the verifier's states at a position."""
    hidden = jnp.asarray(hidden, head['join'].dtype)
    if 'input_norm' in head:
      hidden = self._norm(hidden, head['input_norm'])
    if 'fc_norms' in head:
      states = hidden.reshape(head['fc_norms'].shape)
      hidden = self._norm(states, head['fc_norms']).ravel()
    g = hidden @ head['join']
    return g + head['join_bias'] if 'join_bias' in head else g

  def _pair(self, params: PyTree, g: Array, token: Array) -> tuple:
    """Returns the layer's input [2 H] for a token and a state [H], and r."""
    head, verifier = params
    if 'embeddings' in head:
      embedded = head['embeddings'][token]
    else:
      embedded = self.model.embed(verifier, token).astype(g.dtype)
    embedded = self._norm(embedded, head['token_norm'])
    normed = self._norm(g, head['state_norm'])
    x = jnp.concatenate([embedded, normed])
    return x, normed if self.norm_before_residual else g

  def _key_value(self, head: PyTree, x: Array, position: Array) -> PyTree:
    """Returns the key and the value of a pair, [K, h] each."""
    key = jnp.einsum('d,dkh->kh', x, head['key'])
    value = jnp.einsum('d,dkh->kh', x, head['value'])
    return {'k': apply_rope(key, position, self.theta), 'v': value}

  def init(self, params, cache_length):
    """Returns an empty cache."""
    key = params[0]['key']
    empty = jnp.zeros((cache_length, *key.shape[1:]), key.dtype)
    return {'k': empty, 'v': empty}

  def observe(self, params, state, tokens, hidden, position, count):
    """Writes the keys and values of tokens to the cache."""
    head, _ = params

    def key_value(token, hidden, position):
      x, _ = self._pair(params, self._join_states(head, hidden), token)
      return self._key_value(head, x, position)

    # Slots after `count` tokens are hidden until they are overwritten.
    positions = position + 1 + jnp.arange(len(tokens))
    pairs = jax.vmap(key_value)(tokens, hidden, positions)
    return jax.tree.map(lambda x, y: write(x, position + 1, y), state, pairs)

  def resize(self, params, state, cache_length):
    """Returns the cache with room for `cache_length` tokens."""
    widths = [(0, cache_length - len(state['k'])), (0, 0), (0, 0)]
    return jax.tree.map(lambda x: jnp.pad(x, widths), state)

  def view(
    self, state: PyTree, length: Int[Array, '']
  ) -> stepwise.KeyValueView:
    """Returns the pairs of a text that a block attends to."""
    slots, position = jnp.arange(len(state['k'])), length - 1
    # The first step reads the pair of the last token, so it is hidden here.
    is_visible = (slots > 0) & (slots < position)
    if self.window is not None:
      is_visible &= slots > position - self.window
    return stepwise.KeyValueView(state['k'], state['v'], is_visible)

  def step(self, params, view, position, carry, token, count):
    """Reads one token; returns the next state and the logits.

    The state is g, and the keys and values of the draft's pairs, [gamma + 1, K,
    h].
    """
    head, (g, pairs) = params[0], carry
    x, y = self._pair(params, g, token)
    pair = self._key_value(head, x, position + count)
    pairs = jax.tree.map(lambda x, y: x.at[count].set(y), pairs, pair)
    queries = jnp.einsum('d,dnh->nh', x, head['query'])
    queries = apply_rope(queries, position + count, self.theta)
    queries = queries * queries.shape[-1] ** -0.5
    is_drafted = jnp.arange(len(pairs['k'])) <= count
    drafted = stepwise.KeyValueView(pairs['k'], pairs['v'], is_drafted)
    attended = stepwise.attend(queries, view, drafted)
    y = y + jnp.einsum('nh,nhd->d', attended, head['out'])
    x = self._norm(y, head['mlp_norm'])
    hidden = jax.nn.silu(x @ head['gate']) * (x @ head['up'])
    y = y + hidden @ head['down']
    u = self._norm(y, head['norm'])
    g = u if self.norm_output else y
    logits, size = head['table'] @ u, self.model.vocab_size
    if 'tokens' not in head:
      # Further rows are the padding of the verifier's table.
      return (g, pairs), logits[:size]
    empty = jnp.full(size, -jnp.inf, logits.dtype)
    return (g, pairs), empty.at[head['tokens']].set(logits)

  def start(self, params, state, context, gamma):
    """Returns the recurrence of the head over the text's pairs."""
    view = self.view(state, context.length)
    g = self._join_states(params[0], context.hidden)
    step = functools.partial(self.step, params, view, context.length - 1)
    return step, (g, self.init(params, gamma + 1)), None


class _Rope(Schema):
  """The fields of rotary embeddings."""

  rope_type: Annotated[Any, one_of('default')] = config_json.rope_type()
  rope_theta: Positive | None = None


class _Layer(Schema):
  """The fields of a Llama layer, with the defaults of transformers."""

  model_type: Annotated[Any, one_of('llama')] = 'llama'
  num_hidden_layers: Annotated[Any, one_of(1)]
  vocab_size: Size = 32_000
  hidden_size: Size = 4096
  intermediate_size: Size = 11_008
  num_attention_heads: Size = 32
  num_key_value_heads: Size | None = None
  head_dim: Size | None = None
  hidden_act: Annotated[Any, one_of('silu')] = 'silu'
  rms_norm_eps: Positive = 1e-6
  attention_bias: Annotated[Any, one_of(False)] = False
  mlp_bias: Annotated[Any, one_of(False)] = False
  layer_types: Annotated[
    Any, one_of(None, [config_json.FULL], [config_json.SLIDING])
  ] = None
  sliding_window: Size | None = None
  # transformers 5 keeps these in `rope_parameters`, 4 in flat fields.
  rope_theta: Positive = 10_000.0
  rope_parameters: _Rope | None = None
  rope_scaling: _Rope | None = None

  @property
  def theta(self) -> float:
    """Base of the frequencies of the rotary embedding."""
    rope = self.rope_parameters or self.rope_scaling
    return (rope and rope.rope_theta) or self.rope_theta


class _Config(Schema):
  """The fields of a head's config.json."""

  speculators_model_type: Annotated[Any, one_of('eagle3')]
  transformer_layer_config: _Layer
  eagle_aux_hidden_state_layer_ids: (
    Annotated[list[Count], pydantic.Field(min_length=1)] | None
  ) = None
  draft_vocab_size: Size = 32_000
  target_hidden_size: Size | None = None
  norm_before_residual: bool = False
  norm_before_fc: bool = False
  fc_norm: bool = False
  norm_output: bool = False

  @property
  def verifier_width(self) -> int:
    """Width of the verifier."""
    return self.target_hidden_size or self.transformer_layer_config.hidden_size


@dataclasses.dataclass(frozen=True, eq=False)
class EagleHead(UnboundDrafter):
  """An EAGLE-3 head, which was trained for one verifier.

  Attributes:
    params: The parameters of the head.
    config: The fields of its config.json.
    name: Name of the head, for errors.
  """

  params: PyTree = dataclasses.field(repr=False)
  config: _Config
  name: str
  syntax = 'a folder (an EAGLE-3 head)'
  reads_files = True

  @classmethod
  def claims(cls, name: str) -> bool:
    """Returns True for a folder that `speculators` wrote."""
    return 'speculators_model_type' in tensor_files.read_config(name)

  @classmethod
  def load(cls, name, dtype=None, mesh=None):
    """Reads a head; it is small, so the mesh is ignored."""
    checkpoints.check_dtype(dtype)
    folder = pathlib.Path(hub.local_folder(name))
    config = tensor_files.read_config(folder)
    config = _Config.check(config, f'drafter: {folder}/config.json')
    layer = config.transformer_layer_config
    num_heads = layer.num_attention_heads
    if num_heads % (layer.num_key_value_heads or num_heads):
      raise ValueError(
        f'drafter: {folder}/config.json: num_key_value_heads must be a divisor'
        f' of num_attention_heads ({num_heads}); fetch it again.'
      )
    tensors = tensor_files.open_folder(folder)
    layout = _layout(config, tensors)
    read = {tensor for tensor, _ in layout.values()}
    # A tensor that is not read here may change the drafts.
    unread = [x for x in tensors if x.startswith(_DECISIVE) and x not in read]
    if unread:
      raise ValueError(
        f'drafter: {folder} has a tensor {min(unread)} that no supported field'
        ' of its config.json explains; give another head.'
      )
    params = stepwise.read_params(folder, tensors, _OFFSETS, layout)
    size = layer.head_dim or layer.hidden_size // num_heads
    for name in ('query', 'key', 'value'):
      params[name] = params[name].reshape(2 * layer.hidden_size, -1, size)
    params['out'] = params['out'].reshape(-1, size, layer.hidden_size)
    if config.fc_norm:
      names = [x for x in params if x.startswith('fc_norm_')]
      params['fc_norms'] = np.stack([params.pop(x) for x in names])
    if 'tokens' in params:
      # Stored as distances from the places in the table.
      tokens = params['tokens'] + np.arange(len(params['tokens']))
      in_range = (tokens >= 0) & (tokens < layer.vocab_size)
      if not in_range.all() or len({*tokens}) < len(tokens):
        raise ValueError(
          f'drafter: in {folder} the tensor {_OFFSETS} must point at different'
          f' tokens below vocab_size ({layer.vocab_size}); fetch it again.'
        )
      params['tokens'] = tokens.astype(np.int32)
    params = tensor_files.device_put_params(params, dtype)
    return cls(params, config, hub.label(folder))

  def bind(self, verifier: checkpoints.Checkpoint) -> BoundDrafter:
    """Binds the head to a verifier of the size that it was trained for."""
    model, config = verifier.model, self.config
    layer, gemma = config.transformer_layer_config, model.module.config
    # The default of `speculators`.
    default = 2, gemma.num_layers // 2, gemma.num_layers - 3
    layer_ids = tuple(config.eagle_aux_hidden_state_layer_ids or default)
    present = tuple(x for x in layer_ids if 0 <= x <= gemma.num_layers)
    last_token = int(np.max(self.params.get('tokens', 0)))
    # A head may count the padding of the verifier's table as tokens.
    is_padded = layer.vocab_size == gemma.num_embed
    num_tokens = gemma.num_embed if is_padded else model.vocab_size
    fields = {
      'states of a layer': (1, 4 if getattr(gemma, 'use_altup', False) else 1),
      'width': (config.verifier_width, gemma.embed_dim),
      'tokens': (layer.vocab_size, num_tokens),
      'last drafted token': (last_token, min(last_token, model.vocab_size - 1)),
      'layers read': (layer_ids, present),
    }
    stepwise.check_verifier(self.name, fields)
    has_window = layer.layer_types == [config_json.SLIDING]
    drafter = EagleDrafter(
      model,
      layer_ids,
      layer.theta,
      layer.rms_norm_eps,
      config.norm_before_residual,
      config.norm_output,
      layer.sliding_window if has_window else None,
    )
    return BoundDrafter(drafter, (self.params, verifier.params))


def _layout(config: _Config, tensors: Container[str]) -> stepwise.Layout:
  """Returns the tensor of each parameter, and its shape."""
  layer, attention = config.transformer_layer_config, 'layers.0.self_attn'
  width, hidden = layer.hidden_size, layer.intermediate_size
  num_heads, vocab_size = layer.num_attention_heads, config.draft_vocab_size
  size = layer.head_dim or width // num_heads
  queries = num_heads * size
  keys = (layer.num_key_value_heads or num_heads) * size
  num_states = len(config.eagle_aux_hidden_state_layer_ids or range(3))
  states = num_states * config.verifier_width
  layout: stepwise.Layout = {
    'join': ('fc.weight', (width, states)),
    'query': (f'{attention}.q_proj.weight', (queries, 2 * width)),
    'key': (f'{attention}.k_proj.weight', (keys, 2 * width)),
    'value': (f'{attention}.v_proj.weight', (keys, 2 * width)),
    'out': (f'{attention}.o_proj.weight', (width, queries)),
    'gate': ('layers.0.mlp.gate_proj.weight', (hidden, width)),
    'up': ('layers.0.mlp.up_proj.weight', (hidden, width)),
    'down': ('layers.0.mlp.down_proj.weight', (width, hidden)),
    'token_norm': ('layers.0.input_layernorm.weight', (width,)),
    'state_norm': ('layers.0.hidden_norm.weight', (width,)),
    'mlp_norm': ('layers.0.post_attention_layernorm.weight', (width,)),
    'norm': ('norm.weight', (width,)),
    'table': ('lm_head.weight', (vocab_size, width)),
  }
  if config.norm_before_fc:
    layout['input_norm'] = 'input_norm.weight', (states,)
  for i in range(num_states if config.fc_norm else 0):
    layout[f'fc_norm_{i}'] = f'fc_norm.{i}.weight', (config.verifier_width,)
  if _EMBEDDINGS in tensors or width != config.verifier_width:
    layout['embeddings'] = _EMBEDDINGS, (layer.vocab_size, width)
  if _BIAS in tensors:
    layout['join_bias'] = _BIAS, (width,)
  if _OFFSETS in tensors or vocab_size != layer.vocab_size:
    layout['tokens'] = _OFFSETS, (vocab_size,)
  return layout
