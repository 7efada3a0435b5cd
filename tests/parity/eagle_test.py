"""EAGLE-3 heads: what `speculators` drafts with them, and refusals.

Two random heads in the fixtures come with the logits of `speculators`, and set
every option between them; so a head's own pass over a text is right. What the
loop drafts, block by block, is compared with that.
"""

import functools
import json

import conftest
import jax
import jax.numpy as jnp
import models_test
import numpy as np
import pytest
import small
import tiers
from safetensors.numpy import save_file

from cascades import decoding, drafters, load_model, methods, verification
from cascades.contrib.cpu import blocked
from cascades.drafters import eagle3
from cascades.methods import processing
from cascades.models import checkpoints
from cascades.sampler import batching

_TEXTS = ('apart', 40), ('apart', 716), ('joined', 716)
_TAPS = 'eagle_aux_hidden_state_layer_ids'


def write_head(
  folder,
  target,
  vocab,
  said,
  *,
  hidden_layers=(0, 1, 2),
  width=12,
  embeddings=True,
  bias=False,
  seed=0,
  **config,
):
  """Writes a random head that drafts `said`, or all; returns its config."""
  layer = dict(model_type='llama', num_hidden_layers=1, hidden_size=width)
  layer |= dict(intermediate_size=20, num_attention_heads=4, head_dim=6)
  layer |= dict(num_key_value_heads=2, rms_norm_eps=1e-5, vocab_size=vocab)
  layer['rope_parameters'] = {'rope_type': 'default', 'rope_theta': 100.0}
  fields = {
    'speculators_model_type': 'eagle3',
    'draft_vocab_size': vocab if said is None else len(said),
    _TAPS: hidden_layers,
    'target_hidden_size': None if target == width else target,
    'transformer_layer_config': layer,
  } | config
  folder.mkdir(exist_ok=True)
  text = json.dumps(fields)
  (folder / 'config.json').write_text(text)
  there = ['embed_tokens.weight'] * embeddings + ['fc.bias'] * bias
  parsed = eagle3._Config.parse(json.loads(text))
  shapes = dict(eagle3._layout(parsed, there).values())
  rng = np.random.default_rng(seed)
  tensors = {
    name: rng.normal(size=shape) / shape[1] ** 0.5
    for name, shape in shapes.items()
    if len(shape) == 2
  } | {
    name: rng.uniform(0.5, 2, shape)
    for name, shape in shapes.items()
    if name.endswith(('norm.weight', 'fc.bias'))
  }
  # So that what it attends to matters.
  for name in ('q_proj', 'k_proj'):
    tensors[f'layers.0.self_attn.{name}.weight'] *= 2
  tensors = {name: x.astype(np.float32) for name, x in tensors.items()}
  if said is not None:
    tensors['d2t'] = np.asarray(said) - np.arange(len(said))
  save_file(tensors, folder / 'model.safetensors')
  return fields


def head_of_table(folder, model, said):
  """A head of a table model, and its parameters."""
  size, layers = model.vocab_size, (1, 2, 4)
  write_head(folder, size, size, said, hidden_layers=layers, seed=3)
  loaded = eagle3.EagleHead.load(folder)
  drafter = drafters.EagleDrafter(model, layers, 100.0, 1e-5)
  return drafter, loaded.params


@functools.partial(jax.jit, static_argnums=(0, 1))
def _read(drafter, model, params, own, tokens):
  """Reads a text: the verifier's states, and the head's cache of it."""
  text = tokens, *small.causal(len(tokens))
  layers = drafter.hidden_layers
  _, hidden, _ = model.with_hidden(params, *text, hidden_layers=layers)
  state = drafter.init(own, len(tokens))
  # Of every token but the first, where it was said.
  said = tokens[1:], hidden[:-1]
  return hidden, drafter.observe(own, state, *said, 0, len(tokens) - 1)


_step = jax.jit(drafters.EagleDrafter.step, static_argnums=0)


def drafts_of(bound_drafter, read, tokens, length, drafted):
  """The logits after the first `length` tokens, and after each of a draft."""
  (drafter, own), (hidden, state) = bound_drafter, read
  view, at = drafter.view(state, jnp.int32(length)), jnp.int32(length - 1)
  # A text of one token was said by nobody; it is read with its own state.
  g = drafter._join_states(own[0], hidden[max(length - 2, 0)])
  carry, rows = (g, drafter.init(own, len(drafted) + 1)), []
  for i, token in enumerate((tokens[length - 1], *drafted)):
    given = own, view, at, carry, jnp.int32(token), jnp.int32(i)
    carry, row = _step(drafter, *given)
    rows.append(row)
  return np.array(rows)


# `speculators` made the fixtures. The head `apart` norms states apart, and has
# a layer with a window of 9.
@pytest.mark.parametrize(('name', 'most'), tiers.first(_TEXTS))
def test_drafts_are_those_of_speculators(name, most):
  folder = small.FIXTURES / f'eagle3_{name}'
  with np.load(folder / 'expected.npz') as file:
    found = dict(file)
  verifier = load_model(small.FIXTURES / 'hf_gemma3').unpack()
  bound_drafter = drafters.bind_drafter(verifier, str(folder))
  drafter, own = bound_drafter
  tokens = jnp.asarray(found.pop('tokens')[: most + 4])
  read = _read(drafter, verifier.model, verifier.params, own, tokens)
  said = own[0].get('tokens', jnp.arange(64))
  lengths = [int(key.removeprefix('logits_')) for key in found]
  for length in (n for n in lengths if n <= most):
    want = found[f'logits_{length}']
    # speculators drafts what the text goes on with.
    drafted = tokens[length : length + len(want) - 1]
    got = drafts_of(bound_drafter, read, tokens, length, drafted)
    np.testing.assert_allclose(got[:, said], want, rtol=0, atol=5e-5)


_GAMMA, _PADDED = 3, 40
# Beyond the window; one token; and a few. And of a second turn.
_LENGTHS = models_test.WINDOW + 9, 1, 4
_THEN = 3, 5, 0
_SAID = np.r_[2:20, 25:47:2]


@functools.partial(jax.jit, static_argnums=2)
def _block(rows, params, step_config):
  """The drafts of a block, and the rows after it."""
  sampling = processing.SamplingParams(temperature=np.float32(1))

  def one(row, params):
    key = jax.random.fold_in(row.key, 2 * row.blocks)
    draft, *_ = decoding.propose(row, params, sampling, key, step_config)
    never = jnp.full((1,), -1)
    given = row, params, sampling, never
    return draft, decoding.step(*given, step_config=step_config)[0]

  return jax.vmap(one, (0, None), axis_name=decoding.ROWS)(rows, params)


@pytest.mark.parametrize(
  ('kind', 'layout', 'drafts', 'options'),
  tiers.first(
    [
      ('hf_gemma3', 'blocked', 1, dict(norm_before_residual=True)),
      ('hf_gemma4_experts', None, 1, dict(width=24, embeddings=False)),
      ('hf_gemma4_dense', None, 3, dict(norm_before_fc=True, bias=True)),
      ('hf_gemma4_shared', None, 1, dict(norm_before_residual=True)),
      ('hf_gemma2', 'blocked', 1, dict(norm_before_fc=True, bias=True)),
    ]
  ),
)
def test_the_loop_drafts_what_a_head_says_of_the_text_at_once(
  kind, layout, drafts, options, tmp_path, monkeypatch
):
  # Sampled at temperature 1 and strict, so that drafts are rejected.
  model, params = models_test.make(kind)
  monkeypatch.setattr(blocked, '_SMALL', 0)
  read_by = model.with_layout(layout)
  weights = read_by.pack(params)
  width = model.hidden_size(params)
  write_head(tmp_path, width, model.vocab_size, _SAID, **options)
  bound_drafter = drafter, own = drafters.bind_drafter(
    checkpoints.Checkpoint(read_by, weights, None), str(tmp_path)
  )
  kind = 'token' if drafts == 1 else 'multi_round'
  step_config = decoding.StepConfig(
    decoding.Models(read_by, drafter),
    methods.METHODS['speed'],
    _GAMMA,
    verification.VerificationConfig(kind),
    drafts,
  )
  given, models = decoding.Params(weights, own), step_config.models
  first, more = (
    batching.pad([models_test.text(seed + n, n) for n in lengths], max(lengths))
    for seed, lengths in ((20, _LENGTHS), (40, _THEN))
  )
  limits = np.full(len(_LENGTHS), _PADDED, np.int32)
  keys = jax.random.split(jax.random.key(1), len(_LENGTHS))
  slots = _PADDED + drafts * (_GAMMA + 1)
  prompts = decoding.Prompts(*first, keys, limits)
  rows = decoding.prefill(given, prompts, models=models, cache_length=slots)
  found = []
  for block in range(5):
    if block == 3:
      # A copy, for it takes the memory of what it is given.
      rows = decoding.gather_rows(rows, np.arange(len(limits)))
      rows = decoding.extend(rows, given, *more, limits, models=models)
    draft, after = _block(rows, given, step_config)
    found.append(jax.device_get((rows, draft, after)))
    rows = after
  accepted = rejected = 0
  for i, last in enumerate(found[-1][2].length):
    # What is read of a text hangs on nothing that follows it.
    text = found[-1][2].tokens[i]
    padded = np.where(np.arange(len(text)) < last, text, 1)[:_PADDED]
    read = _read(drafter, model, params, own, padded)
    for before, draft, after in found:
      length = before.length[i]
      np.testing.assert_array_equal(before.tokens[i, :length], text[:length])
      for j in range(drafts):
        drafted, got = draft.tokens[i, j], draft.logits[i, :, j]
        assert np.isin(drafted, _SAID).all()
        want = drafts_of(bound_drafter, read, text, length, drafted)
        # Strictly, nobody asks what would follow the one draft.
        asked = len(want) - (drafts == 1)
        np.testing.assert_allclose(got[:asked], want[:asked], 0, 5e-5)
        assert (got[asked:] == 0).all()
      new = after.length[i] - length - 1
      accepted, rejected = accepted + new, rejected + _GAMMA - new
  assert min(accepted, rejected) > 0


_WINDOW = dict(sliding_window=0, layer_types=['sliding_attention'])
_NORMS = dict(norm_before_fc=True, fc_norm=True)
_MODEL_TYPE = dict(model_type='qwen3')
_REFUSED = [
  ('made', dict(target=25), 'another verifier (width: 25, not 24)'),
  ('made', dict(hidden_layers=(1, 2, 5)), 'layers read: (1, 2, 5), not (1, 2)'),
  ('made', dict(target=32), 'states of a layer: 1, not 4'),
  ('fields', dict(speculators_model_type='mtp'), "be 'eagle3', got 'mtp'"),
  ('fields', _NORMS, 'lacks the tensor input_norm.weight'),
  ('fields', {_TAPS: [1, -2, 3]}, 'must be greater than or equal to 0, got -2'),
  ('layer', _MODEL_TYPE, "model_type must be 'llama', got 'qwen3'"),
  ('layer', dict(num_key_value_heads=3), 'num_key_value_heads must be a divis'),
  ('layer', dict(attention_bias=True), 'attention_bias must be False, got'),
  ('layer', dict(rope_parameters=None, rope_theta=None), 'rope_theta must'),
  ('layer', dict(rope_parameters={'rope_type': 'llama3'}), "must be 'default'"),
  ('layer', _WINDOW, 'sliding_window must be greater than or equal to 1, got'),
  ('tensors', {'d2t': None}, 'lacks the tensor d2t'),
  ('tensors', {'d2t': np.array([3, 3, 62])}, 'tokens below vocab_size (64)'),
  ('tensors', {'d2t': np.array([3.0, 3, 7])}, 'd2t has the type F64, and ids'),
  ('tensors', {'norm.weight': np.ones(12, np.int32)}, 'is quantised (I32)'),
  ('tensors', {'norm.weight': np.ones(5)}, 'norm.weight has the shape (5,)'),
  ('tensors', {'fc_norm.0.weight': np.ones(6)}, 'that no supported field of'),
]


@pytest.mark.parametrize(('part', 'changes', 'said'), _REFUSED)
def test_a_head_that_does_not_fit_is_refused(tmp_path, part, changes, said):
  folder, verifier = tmp_path / 'head', small.load('hf_gemma4_dense')
  usual = dict(target=24, vocab=64, said=[3, 4, 9], hidden_layers=(1, 2, 3))
  config = write_head(folder, **usual | (changes if part == 'made' else {}))
  if part == 'layer':
    layer = config['transformer_layer_config'] | changes
    small.rewrite(folder, {'transformer_layer_config': layer})
  elif part != 'made':
    small.rewrite(folder, **{part: changes})
  if 'states' in said:
    verifier = small.load('hf_gemma3n')
  given = drafters.bind_drafter, verifier, str(folder)
  assert said in conftest.refused('drafter', *given)


def test_a_head_that_names_no_layers_reads_the_usual_ones(tmp_path):
  write_head(tmp_path, 24, 64, [3, 4, 9], hidden_layers=None)
  verifier = small.load('hf_gemma4_shared')
  drafter = drafters.bind_drafter(verifier, str(tmp_path)).drafter
  assert drafter.hidden_layers == (2, 3, 3)


def test_a_bias_is_added_to_the_joined_states(tmp_path):
  write_head(tmp_path, 24, 64, None, bias=True)
  given = small.load('hf_gemma4_dense'), str(tmp_path)
  drafter, (own, _) = drafters.bind_drafter(*given)
  bias = small.stored(tmp_path)['fc.bias']
  np.testing.assert_array_equal(drafter._join_states(own, jnp.zeros(72)), bias)
