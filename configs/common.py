"""Fields that configs share, with their default values.

A config gives only the fields whose values differ from the defaults:

  from configs import common

  def get_config():
    return common.sweep('verification', tasks=('numerals',), gamma=8)

The name of a point contains a hash of its fields. If a default changes, every
sweep that has the default is decoded again.
"""

import ast
from typing import Any

import ml_collections
from absl import flags
from ml_collections import config_flags

from cascades import drafters
from cascades.arguments import options_of
from cascades.config import DecodingConfig

# Fields of every sweep.
_SWEEP = dict(
  # Bundled models, Hugging Face folders, or gemma's checkpoint names; a drafter
  # may also be 'ngram', 'self:3' (the verifier's first 3 layers), a recurrent
  # head or an assistant of Gemma 4.
  verifier='tiny-verifier',
  drafter='tiny-drafter',
  # Tasks to decode: keys of experiments.tasks.TASKS, or 'lm_eval:NAME'.
  tasks=('word_problems',),
  # Held-out examples per task.
  num_examples=100,
  # One method and its leniences, for configs without sweep(add).
  method='token_v3',
  lenience=(0.3,),
  # Tokens drafted per block, unless sweep(add) gives a gamma. Several values,
  # such as (2, 4, 6), make a curve each, and the report selects the best for
  # each point.
  gamma=4,
  # Sampling temperature of both models; 0 is greedy.
  temperature=1.0,
  # Rows decoded at a time; a row is a prompt at one lenience.
  batch_size=64,
  # Cluster of --launcher=ray: its address ('' starts one on this machine), the
  # CPUs and GPUs of a point, and retries of a point whose worker is lost.
  ray=dict(address='', cpus=1, gpus=0, retries=3),
  # Logs the summary to Weights & Biases at the end of a sweep.
  wandb=False,
  # Seed of the selection of examples and of the sampling.
  seed=0,
)
# Fields of sweeps that ask for them: the command line sets only fields that a
# config has, and names of points depend on all its fields.
_OPTIONAL = dict(
  # Prompts of each task at which the models alone, strict decoding and the
  # fastest point are timed against each other, one at a time; 0 disables.
  clock=10,
  # Split of the examples: leniences are chosen on 'train' and reported on
  # 'test'; '' is the default of the task.
  split='test',
  # Options of published sets: path of the file ('' downloads it from the hub),
  # worked examples before a question, and largest number of tokens of an answer
  # (0: the task's default, 256 for `file`).
  task=dict(path='', shots=0, max_new_tokens=0),
  # Options of the task `file`. `prompt` and `reference` name fields of its
  # rows, or are templates such as 'Question: {question}'; `id` names a field,
  # and the id of a row without one is its hash. `examples` is a file of worked
  # examples, with the same fields as the rows, of which `shots` rows are used
  # (0: all). `metric` '' measures speed only.
  # Without `stop_strings`, answers after worked examples end at a blank line.
  file=dict(
    path='',
    prompt='prompt',
    reference='reference',
    id='id',
    examples='',
    shots=0,
    separator=' ',
    metric='',
    stop_strings=(),
  ),
  # Guarantee of the decision at the end of a sweep: the largest loss of
  # quality, as a share of the best score (3 points of BLEU or chrF are 0.03),
  # and the probability with which the guarantee may fail.
  # With a `method`, its lenience and gamma are not chosen but fixed: they are
  # compared with strict decoding at `strict_gamma` on all examples, and the
  # interval of the quality minus the verifier's must be above -margin.
  decision=dict(
    risk=0.05,
    delta=0.1,
    margin=0.03,
    method='',
    lenience=0.0,
    gamma=4,
    strict_gamma=4,
  ),
  # Decodes eight prompts before a new sweep, to estimate whether the drafter
  # pays and how long the sweep will take.
  preflight=True,
  # Wraps prompts in the chat template of the models, which are
  # instruction-tuned.
  chat=False,
  # Dtype of the models: 'bfloat16', 'float32' or 'int8' (matrices in eight
  # bits); None for the dtype in config.json, or else the stored dtype.
  dtype=None,
  # Numbers of devices that the rows, and the parameters, are divided among.
  mesh=(1, 1),
  # Examples per point; a run that is killed loses at most one point.
  shard_size=256,
)
# Options of decoding and of drafters, each declared once, beside the code.
_OPTIONAL |= {
  name: option.default
  for name, option in (
    options_of(DecodingConfig) | drafters.declared_options()
  ).items()
  if name not in _SWEEP
}
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
  # `assistant` is the drafter of transformers.
  gemma=False,
  transformers='',
  llama='',
  assistant='',
)
# Fields of trainings of models.
_TRAINING = dict(
  seed=0,
  # Tokens of a training row; problems are packed into rows.
  row_length=192,
  # Held-out problems per task that evaluate a model at the end, greedily.
  eval_examples=500,
  # Steps between checkpoints, and between lines of the log.
  checkpoint_every=250,
  log_every=50,
)
# Fields of config.json of the models that are trained from scratch.
_SMALL_MODEL = dict(
  model_type='gemma3_text',
  architectures=['Gemma3ForCausalLM'],
  vocab_size=768,
  # Shorter than most prompts, so that common use reaches the window's end.
  sliding_window=48,
  rope_theta=100_000.0,
  rope_local_base_freq=10_000.0,
  rms_norm_eps=1e-6,
  hidden_activation='gelu_pytorch_tanh',
  max_position_embeddings=8192,
  tie_word_embeddings=True,
  pad_token_id=0,
  eos_token_id=1,
  bos_token_id=2,
  torch_dtype='float32',
)


def sweep(*optional: str, **fields) -> ml_collections.ConfigDict:
  """Returns the fields of a sweep.

  Args:
    *optional: Names of optional fields that the sweep has, with their defaults.
    **fields: Values other than the defaults; for a field that is a dict, the
      entries that differ. An optional field with a value needs no name.

  Returns:
    A config; further fields can be added.

  Raises:
    KeyError: There is no such field. A new field is declared in this module and
      in experiments/sweeps/fields.py.
  """
  names = [*optional, *(name for name in fields if name in _OPTIONAL)]
  c = ml_collections.ConfigDict(
    _SWEEP
    | {name: _OPTIONAL[name] for name in names}
    # Several values are allowed instead of one.
    | {'gamma': _of_any_type(_SWEEP['gamma'])}
  )
  c.lock()
  c.update(fields)
  tables: list[Any] = [c, *c.values()]
  for table in tables:
    if isinstance(table, ml_collections.ConfigDict):
      for name in [name for name, value in table.items() if value is None]:
        # The command line sets only fields that have a type.
        table[name] = _of_any_type(None)
  return c.unlock()


class _LiteralParser(flags.ArgumentParser):
  """Reads None, a number, several values such as (2, 4), or a text."""

  def parse(self, argument: Any) -> Any:
    """Returns the value of an argument; a default is returned as it is."""
    for read in (ast.literal_eval, float):
      try:
        return read(argument)
      except (SyntaxError, TypeError, ValueError):
        continue
    return argument


# `object` alone would make flags without a value of these fields. The types of
# values are checked by experiments/sweeps/fields.py.
_ANY_TYPE = config_flags.register_flag_parser_for_type(
  (object,), _LiteralParser()
)


def _of_any_type(value: Any) -> ml_collections.FieldReference:
  """Returns a field that the command line can set to values of any type."""
  return ml_collections.FieldReference(value, field_type=_ANY_TYPE)


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


def training(**fields) -> ml_collections.ConfigDict:
  """Returns the fields of a training of models."""
  return ml_collections.ConfigDict(_TRAINING | fields)


def small_model(**fields) -> ml_collections.ConfigDict:
  """Returns the config.json of a small model that is trained from scratch."""
  return ml_collections.ConfigDict(_SMALL_MODEL | fields)


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
