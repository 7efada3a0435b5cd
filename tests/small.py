"""Pairs with nothing to say that compile and run at once."""

import atexit
import dataclasses
import functools
import io
import json
import math
import pathlib
import shutil
import struct
import tempfile

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece
from safetensors.numpy import load_file, save_file

import cascades
from cascades import drafters, methods
from cascades.arguments import options_of
from cascades.config import DecodingConfig
from cascades.models import checkpoints, language, tokenizers
from cascades.models.checkpoints import Checkpoint
from cascades.proof import table_models
from experiments import cli, records
from experiments.sweeps import curve_plan

ROOT = pathlib.Path(__file__).parents[1]
FIXTURES = ROOT / 'tests/fixtures'
# Of a config that is silent, so that the options are the usual ones.
curve = functools.partial(curve_plan.Curve.from_config, {})


@functools.cache
def tables(apart: float = 0.5) -> tuple[Checkpoint, Checkpoint]:
  """Two tables of the bundled models' tokens; `apart` is another's share."""
  tokenizer = cascades.load_model('tiny-drafter').tokenizer
  model = table_models.TableModel(tokenizer.vocab_size)
  one, other = (model.init_params(jax.random.key(i)) for i in range(2))
  logits = np.array(one), np.array(one + apart * other)
  for table in logits:
    table[:, [tokenizers.PAD, tokenizers.BOS, tokenizers.UNK]] = -np.inf
    # About one answer in three ends within 32 tokens.
    table[:, tokenizers.EOS] += 3
  return tuple(
    Checkpoint(model, jnp.asarray(table), tokenizer) for table in logits
  )


def random_model(tokenizer, layers=1, width=16, seed=0) -> Checkpoint:
  """A Gemma 2 that is hardly one, with random parameters."""
  sizes = 'hidden_size intermediate_size head_dim query_pre_attn_scalar'
  config = dict.fromkeys(sizes.split(), width)
  config |= dict(num_attention_heads=1, num_key_value_heads=1)
  config |= dict(model_type='gemma2', sliding_window=512)
  config |= dict(vocab_size=tokenizer.vocab_size, num_hidden_layers=layers)
  model = language.from_config(config)
  return Checkpoint(model, model.init_params(jax.random.key(seed)), tokenizer)


@functools.cache
def pair() -> tuple[str, str]:
  """Folders of a verifier of two random layers, and of a drafter of one."""
  root = pathlib.Path(tempfile.mkdtemp(prefix='cascades-small-'))
  atexit.register(shutil.rmtree, root, ignore_errors=True)
  tokenizer = cascades.load_model('tiny-drafter').tokenizer
  for i, (name, layers) in enumerate((('verifier', 2), ('drafter', 1))):
    checkpoints.save_model(root / name, random_model(tokenizer, layers, seed=i))
  return str(root / 'verifier'), str(root / 'drafter')


def flags(workdir, **fields) -> list[str]:
  """Those of a sweep of that pair, on eight numbers, with changes."""
  usual = dict(zip(('verifier', 'drafter'), pair(), strict=True))
  usual |= dict(tasks='("numerals",)', num_examples=8, shard_size=2, clock=1)
  usual |= dict(method='token_v3', lenience='(0.0, 1.0)', gamma=2) | fields
  flags = ['--quiet', f'--workdir={workdir}', f'--import={FIXTURES}/brief.py']
  flags += [f'--config.{name}={x}' for name, x in usual.items()]
  return [*flags, '--config=configs/quickstart.py']


def config(**fields):
  """The quickstart's config of that pair, on five numbers, with changes."""
  config = cli.load_config_module(ROOT / 'configs/quickstart.py').get_config()
  with config.unlocked():
    config.verifier, config.drafter = pair()
    config.update(tasks=('numerals',), num_examples=5, batch_size=3, clock=0)
    config.update(fields)
  return config


def of_target(target, **fields) -> methods.Method:
  """A method of nobody's, made from its target."""
  usual = dict(name='mine', equation='', strict=None, drafter_only=None)
  return methods.from_target(target, **usual | dict(reference='') | fields)


def built(config):
  """The configuration of gemma for a config.json."""
  return language.from_config(config).module.config


def refused(name) -> str:
  """The sentence in which a model is refused."""
  return conftest.refused('model', checkpoints.load_model, name)


def reconfigure(model, **fields):
  """Changes fields of the configuration of a model of gemma."""
  config = dataclasses.replace(model.module.config, **fields)
  module = dataclasses.replace(model.module, config=config)
  return dataclasses.replace(model, module=module)


def causal(count: int) -> tuple[jax.Array, jax.Array]:
  """Positions of a text, and the mask of those that each token sees."""
  positions = jnp.arange(count)
  return positions, positions[None] <= positions[:, None]


def made(workdir):
  """Yields each record of a sweep with its trace."""
  for name, lines in records.read_points(workdir).items():
    yield from zip(lines, records.read_traces(workdir, name), strict=True)


def answers(workdir) -> dict:
  """All that a sweep says but timings, by point and example."""
  return {
    (record.point, record.id): (
      records.dumps(dataclasses.replace(record, wall_s=0.0, lenience=0.0)),
      trace,
    )
    for record, trace in made(workdir)
  }


@functools.cache
def load(name: str) -> Checkpoint:
  """A model of the fixtures, or a bundled one, in gemma's order."""
  folder = FIXTURES / name
  return checkpoints.load_model(folder if folder.exists() else name).unpack()


def stored(folder) -> dict[str, np.ndarray]:
  """Every tensor of a folder of Hugging Face's."""
  files = sorted(folder.glob('*.safetensors'))
  return {name: x for file in files for name, x in load_file(file).items()}


def same(a, b) -> None:
  """That parameters are equal, to the last bit."""
  jax.tree.map(np.testing.assert_array_equal, a, b)


def dtypes(params) -> set[str]:
  """The types of parameters, or of their shapes."""
  return {x.dtype.name for x in jax.tree.leaves(params)}


def read_json(file) -> dict:
  """The fields of a file."""
  return json.loads(file.read_text())


def rewrite(folder, fields=None, tensors=None) -> None:
  """Changes a Hugging Face folder; takes out `...` fields and None tensors."""
  if fields:
    file = folder / 'config.json'
    config = read_json(file) | fields
    config = {name: x for name, x in config.items() if x is not ...}
    file.write_text(json.dumps(config))
  if tensors:
    tensors = stored(folder) | tensors
    for file in folder.glob('*.safetensors*'):
      file.unlink()
    some = {name: x for name, x in tensors.items() if x is not None}
    arrays = {name: np.ascontiguousarray(x) for name, x in some.items()}
    save_file(arrays, folder / 'model.safetensors')


def as_type(file, name: str, kind: str, shape) -> None:
  """Declares another type and shape of a tensor, whose bytes become zeros."""
  bits = int(kind.partition('_')[0][1:])
  header, data = {}, b''
  kinds = {'float32': 'F32', 'int32': 'I32', 'bfloat16': 'BF16', 'int8': 'I8'}
  for tensor, x in load_file(file).items():
    dtype, sizes, part = kinds.get(str(x.dtype), 'I64'), x.shape, x.tobytes()
    if tensor == name:
      dtype, sizes, part = kind, shape, bytes(math.prod(shape) * bits // 8)
    at = [len(data), len(data) + len(part)]
    header[tensor] = dict(dtype=dtype, shape=[*sizes], data_offsets=at)
    data += part
  text = json.dumps(header).encode()
  file.write_bytes(struct.pack('<Q', len(text)) + text + data)


def tokenizer(texts, vocab_size: int, symbols=()) -> tokenizers.Tokenizer:
  """Trains a byte-pair tokenizer with Gemma's conventions."""
  out, options = io.BytesIO(), dict(vocab_size=vocab_size, model_type='bpe')
  options |= dict(byte_fallback=True, split_digits=True, add_dummy_prefix=False)
  options |= dict(remove_extra_whitespaces=False, num_threads=1, minloglevel=2)
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts),
    model_writer=out,
    normalization_rule_name='identity',
    user_defined_symbols=['\n', *symbols],
    **options,
    **tokenizers.IDS,
  )
  return tokenizers.Tokenizer(out.getvalue())


def sampler(
  verifier, drafter=None, *, mesh=(1, 1), dtype=None, **options
) -> cascades.Sampler:
  """Makes a sampler of options of decoding and of the drafter, by name."""
  own = {k: options.pop(k) for k in options_of(DecodingConfig) if k in options}
  drafter = drafters.parse(drafter, **options)
  config = DecodingConfig(**own)
  models = verifier, drafter
  return cascades.Sampler(*models, config=config, mesh=mesh, dtype=dtype)
