"""Workers: a pair of models, loaded once, that decodes points."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from cascades import decisions, drafters
from cascades.arguments import options_of
from cascades.decoding import faults
from cascades.models import (
  chat,
  checkpoints,
  hub,
  sharding,
)
from cascades.sampler import sampler
from experiments import cli, measuring, records
from experiments.records import results_version, unit_costs
from experiments.sweeps import (
  costs,
  curve_plan,
  outcomes,
  plan,
  preflight,
)
from experiments.tasks import Task

# Added to the seed of the drafter alone. A sequence-level cascade takes either
# model's own answer: were they drawn with the same random numbers, the
# verifier would answer just where its draws are as unlucky as the drafter's.
_DRAFTER_SEED = 1_000_000

# Number of tasks' curves whose compiled programs are kept. Each takes some 600
# memory maps on a CPU, and a process may have 65,530.
_MAX_COMPILED = 60
# Prompts that are decoded before a sweep starts.
_PREVIEWED = 8


def make_mesh(config: Any) -> jax.sharding.Mesh | None:
  """Returns the mesh of a config's devices; None for a single device."""
  if math.prod(plan.mesh_shape(config)) == 1:
    return None
  return sharding.make_mesh(*plan.mesh_shape(config))


class Worker:
  """Decodes points of a sweep with a pair of models."""

  def __init__(
    self,
    config: Any,
    curves: Sequence[curve_plan.Curve],
    tasks: Mapping[str, Any],
    say: Callable[[str], None] = lambda text: None,
  ):
    """Loads the pair."""
    self.batch_size = config.batch_size
    self._config, self._tasks, self._say = config, tasks, say
    self._curves = curves
    self._clock = measuring.CompileClock()
    self._compiled: set[tuple] = set()
    spec = drafters.parse(config.drafter, **curve_plan.drafter_options(config))
    # A config may lack these fields.
    dtype, self._tree_size = config.get('dtype'), config.get('tree_size')
    mesh = make_mesh(config)
    self._verifier = checkpoints.load_model(config.verifier, dtype, mesh)
    self._drafter = drafters.load(spec, dtype, mesh)
    # Raises if the pair cannot be combined.
    self._chat = config.get('chat', False)
    if self._chat:
      chat.require_template(self._verifier.tokenizer)
    self._bound_drafter = drafters.bind_drafter(self._verifier, self._drafter)

  def facts(self) -> dict[str, Any]:
    """Returns hashes of the weights, results version, versions and device."""
    commits = hub.commits([self._config.verifier, self._config.drafter])
    return decisions.weights(self._verifier, self._bound_drafter) | {
      'code': results_version.name(),
      'device': jax.devices()[0].device_kind,
      'versions': cli.versions(),
      **({'commits': commits} if commits else {}),
    }

  def costs(self) -> unit_costs.CostRange:
    """Measures the seconds of one call of each model."""
    kind = drafters.kind_of(self._config.drafter)
    return costs.measure(
      self._verifier,
      self._drafter.checkpoint if kind.is_language_model else None,
      self._bound_drafter,
      sorted({(x.config.gamma, x.config.drafts) for x in self._curves}),
      tree_size=self._tree_size,
    )

  def preview(
    self, examples: Mapping[str, Sequence]
  ) -> tuple[list[records.Record], float]:
    """Answers eight prompts; returns records, and seconds of compilation."""
    curves = [curve for curve in self._curves if not curve.confidence]
    curve, compiled = preflight.choose(curves), self._clock.seconds
    count = max(1, _PREVIEWED // len(self._tasks))
    answers = [
      outcome.record
      for name, task in self._tasks.items()
      for outcome in self.decode_curve(task, curve, examples[name][:count])
    ]
    return answers, self._clock.seconds - compiled

  def _limit_compiled(self, task: str, curve: curve_plan.Curve) -> None:
    """Clears the compiled programs once there are `_MAX_COMPILED` curves."""
    key = task, curve
    if key not in self._compiled and len(self._compiled) >= _MAX_COMPILED:
      jax.clear_caches()
      self._compiled.clear()
    self._compiled.add(key)

  def decode(
    self,
    points: Sequence[plan.Point],
    examples: Mapping[str, Sequence],
    on_answer: Callable[[], None] | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
  ) -> Iterator[tuple[plan.Point, list[records.Outcome]]]:
    """Decodes points in order; yields each with its outcomes."""
    for point in points:
      if is_stopping():
        return
      rows, task = self.batch_size, self._tasks[point.task]
      shard = examples[point.task][point.first : point.last]
      yield point, self.decode_curve(task, point.curve, shard, on_answer)
      if self.batch_size < rows:
        self._say(
          f'memory: a batch of {rows} rows was too large for'
          f' {point.curve.name}; the next batches have {self.batch_size} rows.'
        )

  def decode_curve(
    self,
    task: Task,
    curve: curve_plan.Curve,
    examples: Sequence,
    on_answer: Callable[[], None] | None = None,
  ) -> list[records.Outcome]:
    """Decodes and scores examples at all leniences of a curve."""
    self._limit_compiled(task.name, curve)
    decoder, seed = self._sampler(curve, batch_size=self.batch_size)
    refusals = {
      example.id: decoder.refusal(
        example.prompt, task.max_new_tokens, self._chat
      )
      for example in examples
    }
    accepted = [example for example in examples if not refusals[example.id]]
    leniences = curve.leniences or (math.nan,)
    points, wall_s = [[] for _ in leniences], math.nan
    if accepted:
      request = self._request(task) | dict(seed=seed, on_answer=on_answer)
      prompts = [example.prompt for example in accepted]
      try:
        points, wall_s = self._decode_timed(
          decoder, prompts, curve.leniences or (0.0,), **request
        )
      except faults.FaultError as error:
        if not curve.baseline_model:
          raise
        # A model that decodes alone does not know its role in the pair.
        raise faults.FaultError(curve.baseline_model, error.location) from None
    calls = sum(a.counts['verifier_calls'] for row in points for a in row)
    decoded = []
    for lenience, answers in zip(leniences, points, strict=True):
      ids = (example.id for example in accepted)
      answers_by_id = dict(zip(ids, answers, strict=True))
      for example in examples:
        fields = records.decoding_fields(
          decoder.config, task=task.name, lenience=lenience, id=example.id
        )
        if refusal := refusals[example.id]:
          decoded.append(records.failed_example(refusal, **fields))
          continue
        answer = answers_by_id[example.id]
        # Rows decoded together share the time by their blocks.
        share_s = wall_s * answer.counts['verifier_calls'] / calls
        decoded.append(
          outcomes.score(
            example,
            answer,
            task=task,
            curve=curve,
            fields=fields,
            wall_s=share_s,
          )
        )
    return decoded

  def _request(self, task: Task) -> dict[str, Any]:
    """Returns the options of a request that depend on the task."""
    return dict(
      max_new_tokens=task.max_new_tokens,
      stop_strings=task.stop_strings,
      apply_chat_template=self._chat,
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
      mesh=plan.mesh_shape(self._config),
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
        request = example.prompt, task.max_new_tokens, self._chat
        if any(decoder.refusal(*request) for decoder, _ in lanes):
          continue
        runs = [functools.partial(answer, *x, example, task) for x in lanes]
        outputs = measuring.take_turns(runs, turns)
        for (curve, lenience), (decoder, _), timed in zip(
          entrants, lanes, outputs, strict=True
        ):
          fields = records.decoding_fields(
            decoder.config, task=name, lenience=lenience, id=example.id
          )
          outcome = outcomes.score(
            example,
            timed[-1][1],
            task=task,
            curve=curve,
            fields=fields,
            wall_s=min(decode_s for decode_s, _ in timed),
          )
          race.append(outcome.record)
    return race

  def _decode_timed(
    self,
    decoder: sampler.Sampler,
    prompts: Sequence[str],
    leniences: Sequence[float],
    **request: Any,
  ) -> tuple[list[list[Any]], float]:
    """Decodes prompts; returns answers and seconds without compilation."""
    start, compiled = time.perf_counter(), self._clock.seconds
    points = decoder.sample_curve(prompts, leniences, **request)
    wall_s = time.perf_counter() - start
    wall_s -= self._clock.seconds - compiled
    # A batch that did not fit once will not fit again.
    self.batch_size = decoder.usage.batch_size or self.batch_size
    return points, wall_s
