"""Tests of meshes; this file is also the program of their child processes.

How many devices a CPU counts as is fixed once JAX has started, so everything
that needs several of them is done by children: see `main`.
"""

import functools
import pathlib
import shutil
import subprocess
import sys
import tempfile

import conftest
import jax
import launching
import numpy as np
import pytest
import small

from cascades import decoding, drafters, methods
from cascades.contrib.cpu import blocked
from cascades.methods import processing
from cascades.models import checkpoints, gemma_library, language, sharding
from cascades.proof import table_models

_LENGTHS = np.array([8, 7, 6, 5, 4, 3, 8, 8], np.int32)
_NEW, _GAMMA = 16, 2


def start(devices: int, *args) -> subprocess.Popen:
  """This file as a process that counts so many CPU devices."""
  pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
  command = [sys.executable, __file__, *map(str, args)]
  return subprocess.Popen(command, env=launching.on_devices(devices), **pipes)


def finish(*processes: subprocess.Popen) -> None:
  """Waits for processes, which must end well."""
  said = launching.finish(*processes)
  for process, text in zip(processes, said, strict=True):
    assert process.returncode == 0, text
    assert text.endswith('fine\n'), text


def gemma(width: int = 64, heads: int = 8, kv_heads: int = 4):
  config = dict(model_type='gemma3_text', layer_types=['sliding_attention'])
  config |= dict(hidden_size=width, intermediate_size=2 * width, head_dim=8)
  config |= dict(num_attention_heads=heads, num_key_value_heads=kv_heads)
  config |= dict(vocab_size=280, num_hidden_layers=1, sliding_window=12)
  return language.from_config(config | dict(query_pre_attn_scalar=8))


def decode(pair, params, mesh=None):
  """Greedy answers and drawn ones, of 8 rows, on a mesh or on one device."""
  keys = jax.random.split(jax.random.key(2), len(_LENGTHS))
  random, vocab = np.random.default_rng(0), pair[0].vocab_size
  prompts = random.integers(1, vocab, (len(_LENGTHS), 8))
  inputs = prompts.astype(np.int32), _LENGTHS, keys, _LENGTHS + _NEW
  if mesh:
    models = zip(pair, params, strict=True)
    params = [sharding.shard_params(*model, mesh) for model in models]
    inputs = sharding.shard_rows(inputs, mesh)
  models = decoding.Models(pair[0], drafters.ModelDrafter(pair[1]))
  step_config = decoding.StepConfig(models, methods.METHODS['token_v3'], _GAMMA)
  params, prompts = decoding.Params(*params), decoding.Prompts(*inputs)
  options = dict(cache_length=8 + _NEW + _GAMMA + 1, models=models)
  for temperature in 0.0, 1.0:
    rows = decoding.prefill(params, prompts, **options)
    sampling = processing.SamplingParams(temperature=np.float32(temperature))
    given = params, sampling, np.array([-1], np.int32), np.int32(0)
    # Two loops, so that the first one's rows go into the second.
    for max_blocks in 3, 2**30:
      if mesh:
        rows = sharding.shard_rows(rows, mesh)
      limit = np.int32(max_blocks)
      rows, _ = decoding.decode(rows, *given, limit, step_config=step_config)
    if mesh:
      # The loop leaves caches where they lie, and so does `shard_rows`.
      again = sharding.shard_rows(rows, mesh).verifier_cache
      same = jax.tree.map(lambda x, y: x is y, rows.verifier_cache, again)
      assert jax.tree.all(same), same
    rows = rows.replace(verifier_cache=None, drafter_state=None, key=None)
    yield sharding.fetch(rows)


def check_assistant():
  """An assistant looks into caches wherever these lie."""
  verifier = str(small.FIXTURES / 'hf_gemma4_shared')
  texts, answers = ['the quick brown fox', 'a cascade asks'], []
  for mesh in (1, 1), (2, 1), (1, 2):
    options = dict(lenience=0.3, gamma=3, mesh=mesh)
    one = small.sampler(verifier, f'{verifier}_assistant', **options)
    found = one.sample(texts, max_new_tokens=24)
    assert sum(answer.counts['accepted'] for answer in found) > 0
    answers.append([answer.tokens for answer in found])
    assert answers[-1] == answers[0], mesh


def check_equal(got, want):
  """The same answers; logarithms may be rounded in another way."""
  for a, b in zip(got, want, strict=True):
    np.testing.assert_array_equal(a.length, _LENGTHS + _NEW)
    np.testing.assert_allclose(a.logprob, b.logprob, rtol=1e-4, atol=1e-4)
    rest = (jax.tree.leaves(run.replace(logprob=None)) for run in (a, b))
    for x, y in zip(*rest, strict=True):
      assert isinstance(x, np.ndarray)
      # What lies past a row's end is not part of it.
      if x.ndim == 2:
        seen = np.arange(x.shape[1]) < a.length[:, None]
        x, y = np.where(seen, x, 0), np.where(seen, y, 0)
      np.testing.assert_array_equal(x, y)


def shard_shapes(params, mesh, model):
  """By the names of a leaf, what one device has of it."""
  split = sharding.shard_params(model, params, mesh)
  name = functools.partial(jax.tree_util.keystr, simple=True, separator='/')
  leaves = jax.tree_util.tree_leaves_with_path(split)
  return {name(at): x.addressable_shards[0].data.shape for at, x in leaves}


def check_layouts():
  """Every matrix is split where it should be."""
  grouped, by_head = gemma(), gemma(kv_heads=8)
  four = {
    'embedder/input_embedding': (70, 64),
    'layer_0/attn/q_einsum/w': (2, 64, 8),
    'layer_0/attn/kv_einsum/w': (2, 1, 64, 8),
    'layer_0/attn/attn_vec_einsum/w': (2, 8, 64),
    'layer_0/mlp/gating_einsum': (2, 32, 64),
    'layer_0/mlp/linear': (32, 64),
    'layer_0/pre_ffw_norm/scale': (64,),
  }
  # 4 heads cannot be split in 8, so that all devices have all of them.
  eight = {'layer_0/attn/kv_einsum/w': (2, 4, 64, 8)}
  for model, size, want in (
    (grouped, 4, four),
    (by_head, 4, {'layer_0/attn/qkv_einsum/w': (3, 2, 64, 8)}),
    (grouped, 8, eight),
  ):
    params = jax.tree.map(lambda x: np.zeros(x.shape), model.param_shapes())
    got = shard_shapes(params, sharding.make_mesh(8 // size, size), model)
    assert {name: got[name] for name in want} == want


def check_experts_and_tables(mesh):
  """A mixture of experts drafted for by a model with tables for its layers."""
  made = [small.load(f'hf_gemma4_{kind}') for kind in ('experts', 'shared')]
  pair, params, _ = zip(*made, strict=True)
  models = zip(params, pair, strict=True)
  experts, tables = (shard_shapes(p, mesh, m) for p, m in models)
  # Of six experts with ten units each; beside them stands a plain one.
  assert experts['layer_1/mlp/gating_einsum/w'] == (6, 2, 5, 24)
  assert experts['layer_1/mlp/linear/w'] == (6, 5, 24)
  assert experts['layer_1/mlp2/linear'] == (20, 24)
  assert tables['embedder/per_layer_embeddings'] == (64, 6, 3)
  check_equal(decode(pair, params, mesh), list(decode(pair, params)))


def check_rows():
  """Rows are split along `data`, and caches by their heads."""
  mesh = sharding.make_mesh(2, 4)
  cache = dict(k=np.zeros((4, 1, 9, 4, 8)), v=np.zeros((4, 1, 9, 3, 8)))
  tree = dict(cache=cache, tokens=np.zeros((4, 9), np.int32), odd=np.zeros(3))
  tree['key'] = jax.random.split(jax.random.key(0), 4)
  rows = sharding.shard_rows(tree, mesh)
  shapes = jax.tree.map(lambda x: x.sharding.shard_shape(x.shape), rows)
  cache = dict(k=(2, 1, 9, 1, 8), v=(2, 1, 9, 3, 8))
  assert shapes == dict(cache=cache, tokens=(2, 9), odd=(3,), key=(2,))


def check_loading():
  """A model that is read for a mesh lies there, and is the same."""
  blocked._SMALL = 2**14
  model, mesh = gemma(), sharding.make_mesh(2, 4)
  params = model.init_params(jax.random.key(0))
  tokenizer = small.tokenizer(['one model on many devices'] * 9, 276)
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    checkpoint = checkpoints.Checkpoint(model, params, tokenizer)
    checkpoints.save_model(folder / 'files', checkpoint)
    gemma_library.import_gemma().ckpts.save_params(
      params, folder / 'orbax' / 'one', wait_until_finished=True
    )
    for file in 'config.json', 'tokenizer.model':
      shutil.copy(folder / 'files' / file, folder / 'orbax')
    for source in 'files', 'orbax/one':
      there = checkpoints.load_model(folder / source, mesh=mesh)
      here = checkpoints.load_model(folder / source)
      want = sharding.shard_params(here.model, here.params, mesh)

      def same(x, y):
        assert x.sharding == y.sharding, (x.sharding, y.sharding)
        np.testing.assert_array_equal(x, y)

      jax.tree.map(same, there.params, want)
      got = shard_shapes(there.params, mesh, there.model)
      assert got['embedder/input_embedding/parts/1'] == (1, 64, 6)
      assert got['layer_0/mlp/linear/parts'] == (32, 64)


def check_parameters_on_hosts():
  """Gathers arrays that are split among hosts."""
  model = gemma()
  params = jax.device_get(model.init_params(jax.random.key(0)))
  mesh = sharding.make_mesh(1, 8)
  # From an array that is tied to a device, too.
  params['final_norm']['scale'] = jax.device_put(
    params['final_norm']['scale'], jax.local_devices()[1]
  )
  split = sharding.shard_params(model, params, mesh)
  embedding = split['embedder']['input_embedding']
  assert not embedding.is_fully_addressable
  assert embedding.addressable_shards[0].data.shape == (35, 64)
  whole = sharding.fetch({'params': split, 'here': np.arange(3)})
  jax.tree.map(np.testing.assert_array_equal, whole['params'], params)
  np.testing.assert_array_equal(whole['here'], np.arange(3))
  rounded = map(model.with_layout('int8').pack, (split, params))
  jax.tree.map(np.testing.assert_array_equal, *rounded)


def main(job: str, *args: str) -> None:
  """A child process: `meshes`, or `join PORT ID`."""
  if job == 'join':
    port, process = args
    jax.distributed.initialize(f'localhost:{port}', 2, int(process))
    assert len(jax.devices()) == 8
    assert len(jax.local_devices()) == 4
    check_parameters_on_hosts()
    # Between processes a CPU is slow, so that these have little to exchange.
    pair = table_models.TableModel(256), table_models.TableModel(256)
    shapes = [((4, 2), False)]
  else:
    check_layouts()
    check_rows()
    check_loading()
    check_experts_and_tables(sharding.make_mesh(4, 2))
    check_assistant()
    pair = gemma(), gemma(32, 4, 4)
    shapes = [((8, 1), False), ((4, 2), True), ((2, 4), False), ((1, 8), True)]
  params = [m.init_params(jax.random.key(i)) for i, m in enumerate(pair)]
  alone = list(decode(pair, params))
  assert sum(decoding.count(rows).accepted.sum() for rows in alone) > 0
  for shape, packed in shapes:
    models_, params_ = pair, params
    if packed:
      # Models that one divides have large matrices.
      blocked._SMALL = 0
      models_ = [m.with_layout('blocked') for m in pair]
      params_ = [m.pack(p) for m, p in zip(models_, params, strict=True)]
    check_equal(decode(models_, params_, sharding.make_mesh(*shape)), alone)
  print('fine')


@pytest.mark.slow
def test_answers_are_those_of_one_device_on_every_mesh():
  finish(start(8, 'meshes'))


@pytest.mark.slow
def test_two_processes_share_one_mesh_and_both_get_every_row():
  port = launching.free_port()
  finish(*[start(4, 'join', port, process) for process in range(2)])


def test_a_mesh_needs_its_devices_and_one_is_a_mesh_too():
  for data, model in (0, 1), (2, -1), (4000, 2):
    said = conftest.refused('mesh', sharding.make_mesh, data, model)
    assert f'{jax.device_count()} devices, got {data} x {model}.' in said
  mesh = sharding.make_mesh(1, 1)
  table = table_models.TableModel(5)
  params = table.init_params(jax.random.key(0))
  placed = sharding.shard_params(table, params, mesh)
  assert placed.sharding.is_fully_replicated
  np.testing.assert_array_equal(sharding.fetch(placed), params)


if __name__ == '__main__':
  main(*sys.argv[1:])
