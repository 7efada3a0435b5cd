"""Models that share another's table, and say some of its tokens."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from small import refused

from cascades.models import checkpoints, language
from experiments.training import layer_drafters

_SAID = np.union1d(np.arange(4, 768, 2), [1, 7, 9])


@pytest.fixture
def folder(tmp_path):
  """The bundled drafter, which says some tokens."""
  drafter, at = checkpoints.load_model('tiny-drafter'), tmp_path / 'reduced'
  options = dict(verifier='tiny-drafter', stored='bfloat16')
  layer_drafters.save(at, drafter.unpack(), _SAID, **options)
  return at


def read(checkpoint, tokens):
  return checkpoint.model.with_hidden(
    checkpoint.params, jnp.asarray(tokens), *small.causal(len(tokens))
  )


def test_it_says_what_the_whole_model_says_of_these_tokens(folder):
  whole, part = map(checkpoints.load_model, ('tiny-drafter', folder))
  # More tokens than products in panels take, and one.
  for count in (200, 1):
    tokens = np.arange(count) % 700 + 5
    logits, hidden, _ = read(whole, tokens)
    said, states, _ = read(part, tokens)
    np.testing.assert_allclose(said[:, _SAID], logits[:, _SAID], atol=1e-5)
    np.testing.assert_allclose(states, hidden, atol=1e-5)
    assert np.isneginf(np.delete(said, _SAID, axis=1)).all()
  alone = part.model.unembed(part.params, states[0])
  np.testing.assert_allclose(alone, said[0], atol=1e-5)
  # A soft cap leaves out what is not said; in gemma's order, too.
  model, params, _ = part.unpack()
  model = small.reconfigure(model, final_logit_softcap=3.0)
  said, *_ = read(part._replace(model=model, params=params), [5, 6])
  assert np.isneginf(np.delete(said, _SAID, axis=1)).all()
  assert np.abs(said[:, _SAID]).max() <= 3


def table(checkpoint):
  return checkpoint.params['embedder']['input_embedding'].parts


def test_its_table_is_in_memory_once_and_read_anew(folder, tmp_path):
  assert not [name for name in small.stored(folder) if 'embed' in name]
  whole, part = map(checkpoints.load_model, ('tiny-drafter', folder))
  assert table(whole) is table(part)
  assert part.tokenizer == whole.tokenizer
  other = tmp_path / 'other'
  checkpoints.save_model(other, whole)
  first, stored = checkpoints.load_model(other), small.stored(other)
  small.rewrite(other, tensors={k: v + 1 for k, v in stored.items()})
  second = checkpoints.load_model(other)
  np.testing.assert_allclose(table(second), table(first) + 1, atol=1e-6)


def test_it_goes_with_its_table_in_any_numbers(tmp_path):
  whole = checkpoints.load_model('tiny-drafter', 'float32').unpack()
  # Of more bits than bfloat16 has.
  params = jax.tree.map(lambda x: x * 1.001, whole.params)
  scaled = whole._replace(params=params)
  checkpoints.save_model(tmp_path / 'whole', scaled)
  part = tmp_path / 'part'
  layer_drafters.save(part, scaled, _SAID, verifier=str(tmp_path / 'whole'))
  # A multimodal model has its vocabulary's size further down.
  config = tmp_path / 'whole/config.json'
  text = dict(model_type='gemma3', text_config=json.loads(config.read_text()))
  config.write_text(json.dumps(text))
  for dtype in ('float32', 'bfloat16'):
    found = checkpoints.load_model(part, dtype)
    assert found.model.dtype(found.params) == dtype
    # Not rounded: what is nearly as likely is not equally so.
    assert read(found, [5, 6])[0].dtype == np.float32


def test_layers_in_8_bits_are_read_as_numbers_times_scales(tmp_path):
  whole = checkpoints.load_model('tiny-drafter').unpack()
  options = dict(verifier='tiny-drafter', stored='int8')
  layer_drafters.save(tmp_path, whole, _SAID, **options)
  scale = 'model.layers.0.mlp.down_proj.weight_scale'
  part = checkpoints.load_model(tmp_path).unpack()
  found, want = (x.params['layer_0']['mlp']['linear'] for x in (part, whole))
  # Half a scale; beside it what float32 rounds.
  error, scales = np.abs(found - want), small.stored(tmp_path)[scale][:, 0]
  assert (error <= scales * 0.50001).all()
  assert error.any()


def test_damaged_folders_are_named(folder):
  file = folder / language.OWNER_FILE
  said = small.read_json(file)
  for fields, message in (
    (said | {'verifier': 'tiny-verifier'}, 'tiny-verifier has '),
    (said | {'checksum': '0'}, 'was trained with the embedding table 0, but'),
    (
      said | {'verifier': 'gemma2-2b-it'},
      'shares the table of gemma2-2b-it, which is not a folder',
    ),
    ({}, f'model: {file}: verifier is missing; fetch it again.'),
  ):
    file.write_text(json.dumps(fields))
    assert message in refused(folder)
  file.write_text(json.dumps(said))
  for ids in ([3, 3], [-1, 2], [5, 4], [767, 768], []):
    small.rewrite(folder, tensors={'vocabulary': np.array(ids, np.int32)})
    assert 'vocabulary must have increasing ids below 768' in refused(folder)

  weights = folder / 'model.safetensors'
  stored = weights.read_bytes()
  for kind in 'F8_E4M3', 'F4', 'F32', 'I8':
    weights.write_bytes(stored)
    small.as_type(weights, 'vocabulary', kind, (4,))
    assert 'vocabulary must have increasing ids below 768' in refused(folder)
