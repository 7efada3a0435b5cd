"""Fields that configs share, each with its usual value.

A config names what it decides, and has the rest from here:

  from configs import common

  def get_config():
    return common.sweep('verification', tasks=('numerals',), gamma=8)

A sweep's points are named after their fields: with another value here, every
sweep that does not decide it is decoded anew.
"""

import ml_collections

from cascades import drafters
from cascades.config import DecodingConfig
from cascades.declarations import options_of

# Of every sweep.
_SWEEP = dict(
  # Bundled models, Hugging Face folders, or gemma's checkpoint names; a drafter
  # may also be 'ngram', 'self:3' (the verifier's first 3 layers), a recurrent
  # head or an assistant of Gemma 4.
  verifier='tiny-verifier',
  drafter='tiny-drafter',
  # What to decode: keys of experiments.tasks.TASKS, or 'lm_eval:NAME'.
  tasks=('word_problems',),
  # Held-out examples per task.
  num_examples=100,
  # One method and its leniences; a config's sweep(add) goes through many.
  method='token_v3',
  lenience=(0.3,),
  # Tokens drafted per block, where sweep(add) does not say; of several, each
  # makes a curve, and the report tunes it.
  gamma=4,
  # Of both models; 0 is greedy.
  temperature=1.0,
  # Rows decoded at a time, a row being a prompt at a lenience.
  batch_size=64,
  # With --launcher=ray: where the cluster is ('' is this machine), what a point
  # takes, and how often one whose worker is lost is tried again.
  ray=dict(address='', cpus=1, gpus=0, retries=3),
  # Who is told of points as they are done, beside the workdir: of 'tensorboard'
  # and 'wandb'.
  trackers=(),
  # Of the examples and of the sampling.
  seed=0,
)
# Of sweeps that ask for them. A field can be set on the command line where a
# config has it; a config has none unasked, for points are named after it.
_OPTIONAL = dict(
  # Prompts of each task at which the models alone, strict decoding and the
  # fastest point are timed against each other, one prompt at a time; 0: none.
  clock=10,
  # Which examples: leniences are chosen on 'train', and reported on 'test'; ''
  # is the task's own.
  split='test',
  # Of published sets. Where it lies (from the hub if empty), how many worked
  # examples stand before a question, most tokens of an answer (0: the task's
  # own), and whether generated code may be run.
  task=dict(path='', shots=0, max_new_tokens=0, allow_code_execution=False),
  # Of the task `file`. `prompt`, `reference` and `id` name fields of its rows,
  # or are templates such as 'Question: {question}'; ids are a hash of the row
  # where there are none. `examples` is a file of worked examples, `shots` rows
  # of it (0: all). `metric` '' measures speed only. Prompts that are `too_long`
  # for the cache are refused, dropped, or lose their beginning (truncate).
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
    too_long='refuse',
  ),
  # Of the decision at the end: the largest loss of quality, as a share, and the
  # probability with which that guarantee may fail.
  decision=dict(risk=0.05, delta=0.1),
  # Whether prompts are turns of a chat, for instructed models.
  chat=False,
  # Of the models: 'bfloat16' or 'float32'; None: as config.json
  # names it, else as stored.
  dtype=None,
  # Devices that split the rows, and that split the parameters.
  mesh=(1, 1),
  # Examples of a point, which is what a killed run loses at most.
  shard_size=256,
  # The same with the bundled pair on four examples, without worked ones: a
  # rehearsal that runs anywhere.
  tiny=False,
)
# Options of decoding and of drafters, each declared once, beside the code.
_OPTIONAL |= {
  name: option.default
  for name, option in (
    options_of(DecodingConfig) | drafters.declared_options()
  ).items()
  if name not in _SWEEP
}
# Of every benchmark.
_BENCHMARK = dict(
  # Turns of each entrant, after one that is not counted.
  repeats=5,
  # Of weights, prompts, sampling, and whatever else is random.
  seed=0,
)
# Of those of the decoding loop.
_DECODING = dict(
  # Of the random weights; the bundled ones are float32.
  dtype='float32',
  # The gamma of entrants other than the strict ones, and the one at which more
  # acceptances are tried.
  gamma=4,
  # How often a draft of random weights is kept; the middle one for all gammas.
  acceptances=(0.6, 0.8, 0.9),
)
# Of those of samplers, which answer a task's prompts.
_ANSWERING = dict(
  # The task's file, and worked examples before each prompt.
  path='',
  shots=0,
  # What ends an answer, a single token; '' for the model's own.
  stop='',
  # At which problems are sampled; copies are greedy.
  temperature=1.0,
  # What the models are kept in.
  dtypes=('float32',),
  # Prompts that are answered at a time.
  batch_sizes=(1,),
  # Tokens drafted per block.
  gamma=4,
  # Whether gemma's own sampler takes part, and Pythons that have other
  # people's loops, '' for none: they are greedy. `assistant` drafts there.
  gemma=False,
  transformers='',
  llama='',
  assistant='',
)
# Of those who train models.
_TRAINING = dict(
  seed=0,
  # Tokens of a training row; problems are packed into rows.
  row_length=192,
  # Held-out problems a model is judged on at the end, greedily, per task.
  eval_examples=500,
  # Steps between checkpoints, and between lines of the log.
  checkpoint_every=250,
  log_every=50,
)
# Of the config.json of every model that is trained here from scratch.
_SMALL_MODEL = dict(
  model_type='gemma3_text',
  architectures=['Gemma3ForCausalLM'],
  vocab_size=768,
  # Shorter than most prompts, so that everyday use crosses it.
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
  """The fields of a sweep.

  Args:
    *optional: Fields that it has beside those of every sweep, at their usual
      values.
    **fields: Values other than the usual; of `task` and `ray` only what
      differs. An optional field need not be named twice.

  Returns:
    A config that can be added to.

  Raises:
    KeyError: There is no such field, which may be misspelt; a new one is to be
      added to these tables, and to those of experiments/sweeps/fields.py.
  """
  names = [*optional, *(name for name in fields if name in _OPTIONAL)]
  c = ml_collections.ConfigDict(
    _SWEEP | {name: _OPTIONAL[name] for name in names}
  )
  with c.ignore_type():
    # Only gamma may be of another type, several instead of one.
    c.gamma = fields.pop('gamma', c.gamma)
  c.lock()
  c.update(fields)
  return c.unlock()


def benchmark(suite: str, **fields) -> ml_collections.ConfigDict:
  """The fields of a benchmark.

  Args:
    suite: What to time; one of experiments.benchmarks.SUITES.
    **fields: Its own, and values other than the usual.
  """
  return ml_collections.ConfigDict(dict(suite=suite) | _BENCHMARK | fields)


def decoding(**fields) -> ml_collections.ConfigDict:
  """The fields of a benchmark of the decoding loop.

  Args:
    **fields: Its own, and values other than the usual. `pairs` are timed: the
      bundled names of two models, or their `shape`.
  """
  return benchmark('loops', **_DECODING | fields)


def answering(**fields) -> ml_collections.ConfigDict:
  """The fields of a benchmark of samplers.

  Args:
    **fields: Its own, and values other than the usual. `problems` and `copies`
      have an `entrant` each for what decodes, the verifier alone first.
  """
  return benchmark('answering', **_ANSWERING | fields)


def entrant(
  name: str, drafter: str | None = None, **options
) -> ml_collections.ConfigDict:
  """Returns the fields of an entrant of a benchmark of samplers.

  Args:
    name: Name in tables.
    drafter: Name of the drafter; None for the verifier alone.
    **options: Further options of the sampler.
  """
  return ml_collections.ConfigDict(dict(name=name, drafter=drafter) | options)


def training(**fields) -> ml_collections.ConfigDict:
  """Returns the fields of a training of models.

  Args:
    **fields: Further fields, and values other than the defaults.
  """
  return ml_collections.ConfigDict(_TRAINING | fields)


def small_model(**fields) -> ml_collections.ConfigDict:
  """Returns the config.json of a small model that is trained from scratch.

  Args:
    **fields: Sizes, and values other than the defaults.
  """
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
  """Returns the config.json of a model that is timed with random weights.

  Args:
    family: Model type at Hugging Face, such as 'gemma2'.
    width: Width of the residual stream.
    hidden: Width of the feed-forward layers.
    layers: Number of layers.
    num_heads: Number of attention heads.
    kv_heads: Number of key-value heads.
    head_dim: Width of a head.
    vocab_size: Number of tokens.
    **more: Further fields.
  """
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
  """Returns the fields of two models that are timed together.

  Args:
    verifier: A bundled name, or a `shape`.
    drafter: A bundled name, or a `shape`.
    name: Name of the pair in tables.
    **fields: Fields of the benchmark that differ for this pair.
  """
  return ml_collections.ConfigDict(
    dict(name=name, verifier=verifier, drafter=drafter, **fields)
  )
