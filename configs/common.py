"""Fields that configs share, with their default values.

A config gives only the fields whose values differ from the defaults:

  from configs import common

  def get_config():
    return common.sweep('verification', tasks=('numerals',), gamma=8)

The name of a point contains a hash of its fields. If a default changes, every
sweep that has the default is decoded again.
"""

import ml_collections

from experiments.sweeps import fields

_FIELDS = fields.defaults()
# Fields of every benchmark.
_BENCHMARK = dict(
  # Timed runs of each entrant, after one that is not counted.
  repeats=5,
  # Seed of random weights, prompts and sampling.
  seed=0,
)
# Further fields of benchmarks of the decoding loop.
_DECODING = dict(
  # Dtype of random weights; the bundled pair is float32.
  dtype='float32',
  # Gamma of entrants that are not strict, and the only gamma with all of
  # `acceptances`.
  gamma=4,
  # Acceptance rates that pairs with random weights are forced to; the middle
  # one is used at every gamma.
  acceptances=(0.6, 0.8, 0.9),
)
# Further fields of benchmarks of samplers, which answer a task's prompts.
_ANSWERING = dict(
  # Path of the task's file, and number of worked examples before each prompt.
  path='',
  shots=0,
  # Text of the one token that ends an answer; '' for the model's stop tokens.
  stop='',
  # Temperature of problems; copies are greedy.
  temperature=1.0,
  # Dtypes of the models; each is measured.
  dtypes=('float32',),
  # Numbers of prompts that are answered at a time.
  batch_sizes=(1,),
  # Tokens drafted per block.
  gamma=4,
  # Entrants from other libraries, which are greedy: True for gemma's sampler,
  # and paths of Pythons with transformers and with xllamacpp ('' for none).
  # `assistant` is the drafter of transformers, `llama_drafter` a GGUF file.
  gemma=False,
  transformers='',
  llama='',
  assistant='',
  llama_drafter='',
)


def sweep(*optional: str, **changes) -> ml_collections.ConfigDict:
  """Returns the fields of a sweep, which `experiments.sweeps.fields` declares.

  Args:
    *optional: Names of optional fields that the sweep has, with their defaults.
    **changes: Values other than the defaults; for a field that is a dict, the
      entries that differ. An optional field with a value needs no name.

  Returns:
    A config; further fields can be added.

  Raises:
    KeyError: There is no such field.
  """
  names = [*fields.SHARED, *optional, *(x for x in changes if x in _FIELDS)]
  # These may be a number, several, or 'predicted'.
  free = {
    x: ml_collections.FieldReference(_FIELDS[x], field_type=object)
    for x in ('lenience', 'gamma')
  }
  c = ml_collections.ConfigDict({x: _FIELDS[x] for x in names} | free)
  c.lock()
  c.update(changes)
  return c.unlock()


def benchmark(suite: str, **fields) -> ml_collections.ConfigDict:
  """Returns the fields of a benchmark."""
  return ml_collections.ConfigDict(dict(suite=suite) | _BENCHMARK | fields)


def decoding(**fields) -> ml_collections.ConfigDict:
  """Returns a benchmark of the decoding loop with `pairs`, see `pair`."""
  return benchmark('loops', **_DECODING | fields)


def answering(**fields) -> ml_collections.ConfigDict:
  """Returns a benchmark of samplers; `problems` and `copies` list entrants."""
  return benchmark('answering', **_ANSWERING | fields)


def entrant(
  name: str, drafter: str | None = None, **options
) -> ml_collections.ConfigDict:
  """Returns an entrant; without a drafter it is the verifier alone."""
  return ml_collections.ConfigDict(dict(name=name, drafter=drafter) | options)


def shape(
  family: str,
  width: int,
  hidden: int,
  layers: int,
  num_heads: int,
  kv_heads: int,
  head_dim: int,
  vocab_size: int,
  **more,
) -> ml_collections.ConfigDict:
  """Returns the config.json of a model that is timed with random weights."""
  return ml_collections.ConfigDict(
    dict(
      model_type=family,
      vocab_size=vocab_size,
      hidden_size=width,
      intermediate_size=hidden,
      num_hidden_layers=layers,
      num_attention_heads=num_heads,
      num_key_value_heads=kv_heads,
      head_dim=head_dim,
      query_pre_attn_scalar=head_dim,
      **more,
    )
  )


def pair(
  verifier, drafter, name: str = '', **fields
) -> ml_collections.ConfigDict:
  """Returns the fields of two models that are timed together."""
  return ml_collections.ConfigDict(
    dict(name=name, verifier=verifier, drafter=drafter, **fields)
  )
