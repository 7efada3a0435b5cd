"""Workers: a pair of models, loaded once, that decodes points."""

import ctypes
import functools
import gc
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd

from cascades import decisions, drafters
from cascades.arguments import options_of
from cascades.decoding import faults
from cascades.models import chat, checkpoints, hub, sharding
from cascades.sampler import predicting, sampler
from cascades.verification_config import RESIDUAL
from experiments import cli, measuring, records
from experiments.records import results_version, unit_costs
from experiments.sweeps import (
  costs,
  curve_plan,
  plan,
  prediction,
  sequence,
  workdirs,
)
from experiments.sweeps.fields import PREDICTED, SweepConfig
from experiments.tasks import Example, Task, answer_metrics

# Added to the seed of the drafter alone. A sequence-level cascade takes either
# model's own answer: were they drawn with the same random numbers, the
# verifier would answer just where its draws are as unlucky as the drafter's.
_DRAFTER_SEED = 1_000_000

# Gammas whose unit costs are measured for predictions.
COST_GAMMAS = 1, 2, 4, 8, 16
# Number of tasks' curves whose compiled programs are kept. Each takes some 600
# memory maps on a CPU, and a process may have 65,530.
_MAX_COMPILED = 60
# Dtypes in which an answer on a CPU does not depend on the batch around it.
_EXACT = {np.dtype('float32'), np.dtype('int8')}


def make_mesh(config: SweepConfig) -> jax.sharding.Mesh | None:
  """Returns the mesh of a config's devices; None for a single device."""
  return (
    sharding.make_mesh(*config.mesh) if math.prod(config.mesh) > 1 else None
  )


class Worker:
  """Decodes points of a sweep with a pair of models."""

  def __init__(
    self,
    config: Any,
    curves: Sequence[curve_plan.Curve],
    tasks: Mapping[str, Task],
    say: Callable[[str], None] = lambda text: None,
  ):
    """Loads the pair."""
    self._config = config = SweepConfig.convert(config)
    self.batch_size = config.values['batch_size']
    self._tasks, self._say, self.curves = tasks, say, curves
    self._clock = measuring.CompileClock()
    self._compiled: set[tuple] = set()
    options = curve_plan.drafter_options(config.values)
    spec, mesh = drafters.parse(config.drafter, **options), make_mesh(config)
    self._verifier = checkpoints.load_model(config.verifier, config.dtype, mesh)
    self._drafter = drafters.load(spec, config.dtype, mesh)
    # Raises if the pair cannot be combined.
    if config.chat:
      chat.require_template(self._verifier.tokenizer)
    self._bound_drafter = drafters.bind_drafter(self._verifier, self._drafter)

  def facts(self) -> dict[str, Any]:
    """Returns hashes of the weights, results version, versions and device."""
    config, device = self._config, jax.devices()[0]
    params = self._verifier.params, self._bound_drafter.params
    dtypes = {np.dtype(x.dtype) for x in jax.tree.leaves(params)}
    models = [self._verifier.model]
    if drafters.kind_of(config.drafter).is_language_model:
      models.append(self._drafter.checkpoint.model)
    # Experts of a mixture sum the rows of a batch together.
    mixed = any(getattr(x.module.config, 'enable_moe', False) for x in models)
    is_exact = device.platform == 'cpu' and dtypes <= _EXACT and not mixed
    commits = hub.commits([config.verifier, config.drafter])
    return decisions.weights(self._verifier, self._bound_drafter) | {
      'code': results_version.name(),
      'device': device.device_kind,
      'versions': cli.versions(),
      **({'commits': commits} if commits else {}),
      **({} if is_exact else {'batch_size': config.values['batch_size']}),
    }

  def costs(self, gammas: Sequence[int] = ()) -> unit_costs.CostMeasurement:
    """Measures the seconds of one call of each model."""
    kind = drafters.kind_of(self._config.drafter)
    blocks = {(x.config.gamma, x.config.drafts) for x in self.curves}
    return costs.measure(
      self._verifier,
      self._drafter.checkpoint if kind.is_language_model else None,
      self._bound_drafter,
      sorted(blocks | {(gamma, 1) for gamma in gammas}),
      tree_size=self._config.values.get('tree_size'),
    )

  def predict(
    self,
    examples: Sequence[Example],
    decoded: Iterable[tuple[curve_plan.Curve, Sequence[records.Trace]]],
    costs: unit_costs.Costs,
    requests: Iterable[tuple[str, Iterable, Iterable]],
  ) -> pd.DataFrame:
    """Predicts points from answers of curves; see `prediction.run`.

    The answers are to the first examples, at each lenience.
    """
    names = [*predicting.RULES]
    names += [x.method for x in self.curves if x.config.method.rule]
    rules = dict.fromkeys(names, predicting.LENIENCES)
    gammas = {*range(1, max(COST_GAMMAS) + 1)}
    for method, leniences, of_method in requests:
      before = rules.get(method, predicting.LENIENCES)
      rules[method] = tuple(sorted({*before, *leniences} - {PREDICTED}))
      gammas |= {*of_method} - {PREDICTED}
    # With the options that a curve has by default.
    options = dict(verification='token', bonus='target', drafts=1)
    curve = curve_plan.Curve.from_config(
      self._config.values, 'token_v3', (0.0,), gamma=max(gammas), **options
    )
    # Each answer fits, with a block after it.
    size = curve.config.cache_length + max(gammas) + 1
    options = dict(batch_size=self.batch_size, cache_length=size)
    pair, _ = self._sampler(curve, **options)
    answers, default = {}, curve.options
    for x, traces in decoded:
      if x.baseline_model or x.options == default | {'gamma': x.config.gamma}:
        leniences = x.leniences or (0.0,)
        tokens = [trace.tokens for trace in traces]
        parts = itertools.batched(tokens, len(tokens) // len(leniences))
        keys = itertools.product([x.method], leniences)
        answers |= dict(zip(keys, parts, strict=True))
    contexts = [pair.encode(x.prompt, self._config.chat) for x in examples]
    of_verifier = answers['verifier_only', 0.0]
    texts = prediction.first_texts(contexts, of_verifier, prediction.GOAL)
    contexts, own_texts = contexts[: len(texts)], {}
    for name in rules:
      leniences = [lenience for method, lenience in answers if method == name]
      for lenience in prediction.own_leniences(name, leniences):
        args = contexts, answers[name, lenience], prediction.OWN_GOAL
        own_texts[name, lenience] = prediction.first_texts(*args)
    options = dict(rules=rules, gammas=sorted(gammas), own_texts=own_texts)
    self._forget()
    predicted, frame = prediction.run(pair, texts, {1: costs}, **options)
    self._forget()
    for line in predicted.notes:
      self._say(line)
    return frame

  def _forget(self) -> None:
    """Gives back the memory of compiled programs, half a gigabyte."""
    jax.clear_caches()
    self._compiled.clear()
    gc.collect()  # Then glibc would keep it.
    if hasattr(libc := ctypes.CDLL(None), 'malloc_trim'):
      libc.malloc_trim(0)

  def decode(
    self,
    point: plan.Point,
    examples: Mapping[str, Sequence],
    on_answer: Callable[[], None] | None = None,
  ) -> list[records.Outcome]:
    """Decodes a point."""
    rows, task = self.batch_size, self._tasks[point.task]
    shard = examples[point.task][point.first : point.last]
    decoded = self.decode_curve(task, point.curve, shard, on_answer)
    if self.batch_size < rows:
      self._say(
        f'memory: a batch of {rows} rows was too large for'
        f' {point.curve.name}; the next batches have {self.batch_size} rows.'
      )
    return decoded

  def decode_curve(
    self,
    task: Task,
    curve: curve_plan.Curve,
    examples: Sequence,
    on_answer: Callable[[], None] | None = None,
  ) -> list[records.Outcome]:
    """Decodes and scores examples at all leniences of a curve."""
    key = task.name, curve
    if key not in self._compiled and len(self._compiled) >= _MAX_COMPILED:
      self._forget()
    self._compiled.add(key)
    decoder, seed = self._sampler(curve, batch_size=self.batch_size)
    refusals = {x.id: self._refusal(decoder, x, task) for x in examples}
    prompts = [x.prompt for x in examples if not refusals[x.id]]
    leniences = curve.leniences or (math.nan,)
    points: list[list[sampler.SampleOutput]] = [[] for _ in leniences]
    start, compiled = time.perf_counter(), self._clock.seconds
    request = self._request(task) | dict(seed=seed, return_logprobs=True)
    try:
      if prompts:
        points = decoder.sample_curve(
          prompts, curve.leniences or (0.0,), on_answer=on_answer, **request
        )
    except faults.FaultError as error:
      if not curve.baseline_model:
        raise
      # A model that decodes alone does not know its role in the pair.
      raise faults.FaultError(curve.baseline_model, error.location) from None
    wall_s = time.perf_counter() - start - (self._clock.seconds - compiled)
    # A batch that did not fit once will not fit again.
    self.batch_size = decoder.usage.batch_size or self.batch_size
    calls = sum(a.counts['verifier_calls'] for row in points for a in row)
    decoded = []
    for lenience, row in zip(leniences, points, strict=True):
      answers = iter(row)
      for example in examples:
        answer, share_s = refusals[example.id], 0.0
        if not answer:
          answer = next(answers)
          # Rows decoded together share the time by their blocks.
          share_s = wall_s * answer.counts['verifier_calls'] / calls
        fields = records.decoding_fields(
          decoder.config, task=task.name, lenience=lenience, id=example.id
        )
        decoded.append(_outcome(example, answer, task, curve, share_s, fields))
    return decoded

  def _refusal(
    self, decoder: sampler.Sampler, example: Example, task: Task
  ) -> str | None:
    return decoder.refusal(
      example.prompt, task.max_new_tokens, self._config.chat
    )

  def _request(self, task: Task) -> dict[str, Any]:
    """Returns the options of a request that depend on the task."""
    return dict(
      max_new_tokens=task.max_new_tokens,
      stop_strings=task.stop_strings,
      apply_chat_template=self._config.chat,
    )

  def _sampler(
    self, curve: curve_plan.Curve, **changes: Any
  ) -> tuple[sampler.Sampler, int]:
    """Returns the sampler of a curve, and its seed."""
    verifier, drafter = self._verifier, self._drafter
    seed = self._config.seed
    # Quality and time are measured against the models alone: plain decoding.
    if curve.baseline_model == 'drafter':
      verifier, seed = drafter.checkpoint, seed + _DRAFTER_SEED
    config = curve.config.replace(**changes)
    # Options that the curve does not use are set back to their defaults.
    defaults = {name: x.default for name, x in options_of(drafter).items()}
    drafter = drafter.replace(**defaults | dict(curve.drafter_options))
    decoder = sampler.Sampler(
      verifier,
      None if curve.baseline_model else drafter,
      config=config,
      mesh=self._config.mesh,
    )
    return decoder, seed

  def race(
    self,
    entrants: Sequence[tuple[curve_plan.Curve, float]],
    examples: Mapping[str, Sequence],
    turns: int = 3,
  ) -> list[records.Record]:
    """Times curves at a lenience each (or nan), one prompt at a time.

    All answer the same prompts. They take turns at each prompt, after a turn
    that compiles what is missing and is not timed.
    """
    lanes = []
    for curve, lenience in entrants:
      option = {} if math.isnan(lenience) else {'lenience': lenience}
      lanes.append(self._sampler(curve, batch_size=1, **option))

    def answer(decoder, seed, example, task):
      request = self._request(task)
      output = decoder.sample(example.prompt, seed=seed, **request)
      return decoder.usage.decode_s, output

    race = []
    for name, of_task in examples.items():
      task = self._tasks[name]
      for example in of_task:
        if any(self._refusal(x, example, task) for x, _ in lanes):
          continue
        runs = [functools.partial(answer, *x, example, task) for x in lanes]
        outputs = measuring.take_turns(runs, turns)
        for (curve, lenience), (decoder, _), timed in zip(
          entrants, lanes, outputs, strict=True
        ):
          fields = records.decoding_fields(
            decoder.config, task=name, lenience=lenience, id=example.id
          )
          seconds = min(decode_s for decode_s, _ in timed)
          race.append(
            _outcome(example, timed[-1][1], task, curve, seconds, fields).record
          )
    return race


def _outcome(
  example: Example,
  answer: sampler.SampleOutput | str,
  task: Task,
  curve: curve_plan.Curve,
  wall_s: float,
  fields: Mapping[str, Any],
) -> records.Outcome:
  """Scores an answer, or a refusal, and returns its record and trace."""
  if isinstance(answer, str):
    return records.failed_example(answer, **fields)
  try:
    values = task.score_example(answer.text, example)
    scores = {name: float(value) for name, value in values.items()}
    quality = scores[task.quality_score] if task.quality_score else math.nan
    if task.quality_score and not math.isfinite(quality):
      raise ValueError(f'{task.quality_score} is {quality}')
  except KeyboardInterrupt:
    raise
  # A metric is code of others, which may even try to end the process.
  except BaseException as error:
    reason = f'score: {answer_metrics.describe_error(error)}'
    return records.failed_example(reason, **fields)
  counts = dict(answer.counts)
  if curve.baseline_model == 'drafter':
    counts |= {
      'verifier_calls': 0,
      'verifier_tokens': 0,
      'drafter_calls': counts['verifier_calls'],
    }
  deferred = answer.deferred
  if curve.config.method.rule is None:
    counts['deferred'] = deferred = None
  record = records.Record(
    **fields,
    failure=None,
    text=answer.text,
    quality=quality,
    scores=scores,
    emitted=len(answer.tokens),
    ended=answer.ended,
    wall_s=wall_s,
    **counts,
    **_deferrals(answer, curve),
  )
  trace = records.Trace(
    id=example.id,
    tokens=answer.tokens,
    token_strings=answer.token_strings,
    sources=answer.sources,
    deferred=None if deferred is None else list(map(int, deferred)),
    logprobs=_rounded(answer.logprobs),
    rejected=[
      draft if source == RESIDUAL else None
      for draft, source in zip(answer.drafts, answer.sources, strict=True)
    ],
    # The race asks for none, and has no traces.
    verifier_logprobs=_rounded(answer.verifier_logprobs or ()),
    drafter_logprobs=_rounded(answer.drafter_logprobs or ()),
    target_logprobs=_rounded(answer.target_logprobs or ()),
    law_given=answer.law_given,
  )
  return records.Outcome(record, trace)


def _rounded(logprobs: Sequence[float | None]) -> list[Any]:
  # float32 has about 6 significant digits.
  return [None if x is None else float(f'{x:.6g}') for x in logprobs]


def _deferrals(
  answer: sampler.SampleOutput, curve: curve_plan.Curve
) -> dict[str, int | None]:
  """Counts what a cascade without speculation would defer."""
  config = curve.config
  is_whole = config.method.name in ('chow', 'diff') and config.gamma
  kind = config.verification, config.bonus, config.drafts
  if not is_whole or kind != ('token', 'target', 1):
    return dict(deferrals=None, last_deferral=None)
  indices = [i for i, x in enumerate(answer.deferred or (), 1) if x]
  return dict(deferrals=len(indices), last_deferral=max(indices, default=0))


def cascades(
  point: plan.Point, points: Sequence[plan.Point], files: workdirs.Workdir
) -> list[records.Outcome]:
  """Decodes a cascade of whole answers from those of the models alone."""
  # The models alone may have answered more examples.
  n = point.last - point.first
  sources = {
    source.curve.baseline_model: [*map(records.Outcome, answers, traces)][:n]
    for source in points
    if source.curve.baseline_model
    and (source.task, source.first) == (point.task, point.first)
    for answers in [files.read_records(source)]
    for traces in [records.read(files.paths(source)[1], records.Trace)]
  }
  pairs = list(zip(sources['drafter'], sources['verifier'], strict=True))
  return [
    sequence.cascade(*pair, method=point.curve.confidence, lenience=lenience)
    for lenience in point.curve.leniences
    for pair in pairs
  ]
