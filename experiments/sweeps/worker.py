"""What decodes points: a pair of models, loaded once.

A sweep in one process has one worker. Of several each has the pair, and a
launcher gives them points; see `launchers`.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from cascades import decoding
from cascades.config import DecodingConfig
from cascades.decoding import faults
from cascades.drafters import pairing
from cascades.models import checkpoints, sharding, turns
from cascades.sampler import batching, memory, sampler, scoring
from cascades.verification_config import SEQUENTIAL
from experiments import cli, records
from experiments.records import metrics, versions
from experiments.sweeps import costs, fingerprints, plan, sequence

# Added to the seed of the drafter alone. A sequence-level cascade takes either
# model's own answer: were they drawn with the same random numbers, the
# verifier would answer just where its draws are as unlucky as the drafter's.
_DRAFTER_SEED = 1_000_000

# Curves of a task whose programs are kept. Each takes some 600 memory maps on a
# CPU, and a process may have 65,530.
_COMPILED = 60

_BONUS = records.SOURCES.index('bonus')

# What comes of an example.
Made = tuple[records.Record, records.Trace]
# A point, and the examples that it is of.
Job = tuple[plan.Point, Sequence]
# An answer that is to be viewed: its point's name, what was asked, its tokens.
Viewed = tuple[str, str, records.Trace]


class CompileClock:
  """Seconds that JAX has spent compiling since it was made."""

  def __init__(self):
    self.seconds = 0.0

    def count(event: str, duration: float, **_):
      if event.startswith('/jax/core/compile/'):
        self.seconds += duration

    jax.monitoring.register_event_duration_secs_listener(count)


def make_mesh(config):
  """The devices that a config asks for; None for one."""
  if math.prod(plan.mesh_of(config)) == 1:
    return None
  return sharding.make_mesh(*plan.mesh_of(config))


def host_folder() -> str:
  """Returns the subfolder of a workdir that this process writes to.

  All hosts decode the same; the results of the first host are kept.
  """
  index = jax.process_index()
  return f'host-{index}' if index else ''


def _blocks(curves: Sequence[plan.Curve]) -> list[tuple[int, int]]:
  """Gammas and numbers of drafts whose costs are measured.

  A sequential cascade makes no blocks; where nothing else drafts, a usual block
  tells what the verifier takes for each token more.
  """
  every = [curve.config for curve in curves]
  sequential = [o for o in every if o.verification == SEQUENTIAL]
  blocks = {(o.gamma, o.drafts) for o in every if o not in sequential}
  if sequential and not any(gamma for gamma, _ in blocks):
    blocks.add((DecodingConfig().gamma, 1))
  return sorted(blocks)


class Worker:
  """Decodes points of a sweep.

  Attributes:
    batch_size: Most rows at a time.
    usage: What its points took together.
  """

  def __init__(
    self,
    config,
    curves: Sequence[plan.Curve],
    tasks: Mapping[str, Any],
    say: Callable[[str], None] = lambda text: None,
  ):
    """Loads the pair.

    Args:
      config: Of the sweep.
      curves: Of the sweep.
      tasks: Of the sweep, by name.
      say: Shows the user a line.

    Raises:
      ValueError: The pair is absent, does not fit or does not go together.
    """
    self.batch_size = config.batch_size
    self.usage = batching.DecodeStats()
    self._config, self._tasks, self._say = config, tasks, say
    self._clock = CompileClock()
    self._kinds: set[tuple] = set()
    self._blocks = _blocks(curves)
    self._is_model = pairing.is_model(config.drafter)
    # A config may be silent about these.
    dtype, self._tree_size = config.get('dtype'), config.get('tree_size')
    mesh = make_mesh(config)
    memory.check(
      checkpoints.describe(config.verifier, dtype),
      pairing.describe(config.drafter, dtype),
      batch_size=config.batch_size,
      # Prompts are not known yet; what they take is looked at once more.
      cache_length=max(task.max_new_tokens for task in tasks.values()),
      gamma=max(
        decoding.tree_tokens(*block, self._tree_size) for block in self._blocks
      ),
      allocated=False,
      mesh=plan.mesh_of(config),
    )
    self._verifier = checkpoints.load_model(config.verifier, dtype, mesh)
    self._drafter = pairing.load_drafter(config.drafter, dtype, mesh)
    # Whatever does not go together is refused here.
    self._chat = config.get('chat', False)
    if self._chat:
      turns.require_template(self._verifier.tokenizer)
    self._bound_drafter = pairing.bind_drafter(
      self._verifier, self._drafter, **plan.drafting(config)
    )
    for curve in curves:
      bind = curve.config.method.bind
      if bind and curve.config.gamma:
        bind(self._verifier, self._bound_drafter)

  def facts(self) -> dict[str, Any]:
    """What can change a result and is not said by a config."""
    return fingerprints.weights(self._verifier, self._bound_drafter) | {
      'code': versions.current_code(),
      'device': jax.devices()[0].device_kind,
      'versions': cli.versions(),
    }

  def costs(self) -> metrics.CostRange:
    """What one call of each model costs here."""
    return costs.measure(
      self._verifier,
      self._drafter if self._is_model else None,
      self._bound_drafter,
      self._blocks,
      tree_size=self._tree_size,
    )

  def _make_room(self, *kind) -> None:
    """Forgets what was compiled, once it is a lot."""
    if kind not in self._kinds and len(self._kinds) >= _COMPILED:
      jax.clear_caches()
      self._kinds.clear()
    self._kinds.add(kind)

  def decode(
    self,
    jobs: Sequence[Job],
    on_answer: Callable[[], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
  ) -> Iterator[tuple[plan.Point, list[Made]]]:
    """Decodes points, and gives each as it is done with what came of it.

    Args:
      jobs: Points that need no other's results, each with its examples.
      on_answer: Is called for each answer, as soon as it is known.
      stopped: Says whether to begin no further point.
    """
    for point, examples in jobs:
      if stopped():
        return
      before, task = self.batch_size, self._tasks[point.task]
      yield point, self.decode_curve(task, point.curve, examples, on_answer)
      if self.batch_size < before:
        self._say(
          f'memory: {before} rows at a time were too many for'
          f' {point.curve.name}; going on with {self.batch_size}.'
        )

  def decode_curve(
    self,
    task,
    curve: plan.Curve,
    examples: Sequence,
    on_answer: Callable[[], None] | None = None,
  ) -> list[Made]:
    """What a curve makes of some examples.

    Args:
      task: Says how long an answer may be, what ends it, and its score.
      curve: Any but those of whole answers.
      examples: Of the task.
      on_answer: Is called as an answer is there.

    Returns:
      The answers at the first lenience in the order of the examples, then
      those at the next.
    """
    self._make_room(task.name, curve)
    decoder, seed = self._arm(curve, batch_size=self.batch_size)
    refused = {
      example.id: reason
      for example in examples
      if (
        reason := decoder.refusal(
          example.prompt, task.max_new_tokens, self._chat
        )
      )
    }
    asked = [example for example in examples if example.id not in refused]
    leniences = curve.leniences or (math.nan,)
    points, wall = [[] for _ in leniences], math.nan
    if asked:
      try:
        points, wall = self._timed(
          decoder,
          [example.prompt for example in asked],
          curve.leniences or (0.0,),
          max_new_tokens=task.max_new_tokens,
          seed=seed,
          stop_strings=task.stop_strings,
          apply_chat_template=self._chat,
          on_answer=on_answer,
        )
      except faults.FaultError as error:
        if not curve.alone:
          raise
        # One that decodes alone does not know which of the pair it is.
        raise faults.FaultError(curve.alone, error.location) from None
    if curve.config.verification == SEQUENTIAL:
      # Both models read every token there, which the cascade need not.
      wall = math.nan
    # 0 where a sequential cascade never defers.
    blocks = sum(a.counts['verifier_calls'] for row in points for a in row)
    made = []
    for lenience, answers in zip(leniences, points, strict=True):
      of = dict(zip([example.id for example in asked], answers, strict=True))
      for example in examples:
        told = records.decoding_fields(
          decoder.config, task=task.name, lenience=lenience, id=example.id
        )
        if example.id in refused:
          made.append(records.failed_example(refused[example.id], **told))
          continue
        answer = of[example.id]
        # Rows are decoded together: each has its share of the batch's blocks.
        share = wall * answer.counts['verifier_calls'] / max(blocks, 1)
        made.append(_made(task, curve, example, answer, share, told))
    return made

  def _arm(self, curve: plan.Curve, **changes) -> tuple[sampler.Sampler, int]:
    """What decodes a curve, on the devices of the sweep, and its seed.

    Args:
      curve: Any but those of whole answers.
      **changes: Of its options.
    """
    verifier, drafter = self._verifier, self._drafter
    seed = self._config.seed
    # The two baselines are what they are measured against: plain decoding.
    if curve.alone:
      verifier = {'verifier': verifier, 'drafter': drafter}[curve.alone]
      seed += _DRAFTER_SEED * (curve.alone == 'drafter')
      drafter = None
    decoder = sampler.Sampler(
      verifier,
      drafter,
      config=curve.config.replace(**changes),
      mesh=plan.mesh_of(self._config),
      **dict(curve.drafter_options if drafter is not None else ()),
    )
    return decoder, seed

  def race(
    self,
    arms: Sequence[tuple[plan.Curve, float]],
    asked: Mapping[str, Sequence],
    turns: int = 3,
  ) -> list[records.Record]:
    """Arms against each other on the clock, one prompt at a time.

    All answer the same prompts, and take turns at each of them, after a turn
    that is not counted, in which what is missing is compiled.

    Args:
      arms: Curves, each with one of its leniences; any but those of whole
        answers.
      asked: Examples, by task.
      turns: How often a prompt is answered.

    Returns:
      A record of each arm and example that all arms can answer. Its seconds are
      those of decoding, without reading the prompt: the fewest of all turns,
      for what else the machine does only adds to them.
    """
    racing = [
      (curve, lenience, *self._arm(curve, batch_size=1, **_at(lenience)))
      for curve, lenience in arms
    ]
    found = []
    for name, examples in asked.items():
      task = self._tasks[name]
      new = task.max_new_tokens
      fit = [
        example
        for example in examples
        if not any(
          arm.refusal(example.prompt, new, self._chat) for *_, arm, _ in racing
        )
      ]
      told = dict(
        max_new_tokens=new,
        stop_strings=task.stop_strings,
        apply_chat_template=self._chat,
      )
      # All prompts once, so that whatever their lengths ask for is compiled.
      for example in fit:
        for *_, arm, seed in racing:
          arm.sample(example.prompt, seed=seed, **told)
      for example in fit:
        seconds = [math.inf] * len(racing)
        answers = [None] * len(racing)
        for _ in range(turns):
          for i, (*_, arm, seed) in enumerate(racing):
            answers[i] = arm.sample(example.prompt, seed=seed, **told)
            seconds[i] = min(seconds[i], arm.usage.decode_s)
        for (curve, lenience, arm, _), answer, took in zip(
          racing, answers, seconds, strict=True
        ):
          line = records.decoding_fields(
            arm.config, task=name, lenience=lenience, id=example.id
          )
          found.append(_made(task, curve, example, answer, took, line)[0])
    return found

  def _timed(self, decoder, prompts, leniences, **asked):
    """Answers, and the seconds that they took without compiling."""
    start, compiled = time.perf_counter(), self._clock.seconds
    points = decoder.sample_curve(prompts, leniences, **asked)
    wall = time.perf_counter() - start
    wall -= self._clock.seconds - compiled
    self.usage.add(decoder.usage)
    # What did not fit once will not fit again.
    self.batch_size = self.usage.batch_size or self.batch_size
    return points, wall

  def views(
    self, curve: plan.Curve, lenience: float, answers: Sequence[Viewed]
  ) -> list[records.View]:
    """What is said of each token of a few answers of a curve.

    Args:
      curve: Decoded them, with gamma > 0.
      lenience: At which of its leniences.
      answers: Of any tasks.

    Returns:
      A view of each; none where the drafter says nothing of a given text.
    """
    decoding_config = curve.config
    if not (
      decoding_config.gamma and scoring.is_language_model(self._bound_drafter)
    ):
      return []
    # A row at a time fits wherever a batch did.
    decoder, _ = self._arm(curve, batch_size=1, **_at(lenience))
    looks = scoring.inspect_tokens(
      decoder,
      [
        (
          decoder.encode(prompt, self._chat),
          trace.tokens[: records.MAX_VIEW_TOKENS],
        )
        for _, prompt, trace in answers
      ],
    )
    tokenizer = self._verifier.tokenizer
    has_rule = decoding_config.method.rule is not None
    views = []
    for (point, _, trace), said in zip(answers, looks, strict=True):
      # The bonus need not follow the law.
      own = decoding_config.bonus == 'verifier'
      bonus = [own and s == _BONUS for s in trace.sources[: len(said)]]
      pi = [x.p if b else x.pi for x, b in zip(said, bonus, strict=True)]
      views.append(
        records.View(
          point=point,
          lenience=lenience,
          id=trace.id,
          q=_rounded(x.q for x in said),
          p=_rounded(x.p for x in said),
          pi=_rounded(pi),
          deferred=[int(x.deferred) for x in said] if has_rule else None,
          drafter_argmax=[_name(tokenizer, x.drafter_token) for x in said],
          verifier_argmax=[_name(tokenizer, x.verifier_token) for x in said],
        )
      )
    return views

  def close(self) -> None:
    """Gives nothing back: the process ends."""


def _at(lenience: float) -> dict[str, float]:
  """The option of a lenience, where a curve has any."""
  return {} if math.isnan(lenience) else {'lenience': lenience}


def _rounded(probabilities: Iterable[float]) -> list[float]:
  """As many digits as people look at."""
  return [float(f'{x:.4g}') for x in probabilities]


def _name(tokenizer, token: int) -> str:
  """A token's text; the name of one that has none of its own."""
  (text,) = tokenizer.token_strings([token])
  return tokenizer.piece(token) if text in ('', '\ufffd') else text


def _made(task, curve, example, answer, wall_s: float, told) -> Made:
  """An answer as it is recorded."""
  try:
    scores = dict(task.score(answer.text, example.reference))
  except Exception as error:
    reason = f'score: {type(error).__name__}: {error}'
    return records.failed_example(reason, **told)
  counts = dict(answer.counts)
  if curve.alone == 'drafter':
    counts |= {
      'verifier_calls': 0,
      'verifier_tokens': 0,
      'drafter_calls': counts['verifier_calls'],
    }
  deferred = answer.deferred
  if curve.config.method.rule is None:
    counts['deferred'] = deferred = None
  record = records.Record(
    **told,
    failure=None,
    text=answer.text,
    quality=scores[task.quality_score] if task.quality_score else math.nan,
    scores=scores,
    emitted=len(answer.tokens),
    ended=answer.ended,
    wall_s=wall_s,
    **counts,
  )
  trace = records.Trace(
    id=example.id,
    tokens=answer.tokens,
    token_strings=answer.token_strings,
    sources=answer.sources,
    deferred=None if deferred is None else list(map(int, deferred)),
    # As many digits as float32 tells apart.
    logprobs=[float(f'{x:.6g}') for x in answer.logprobs],
  )
  return record, trace


def combine(
  curve: plan.Curve, drafter: Iterable[Made], verifier: Iterable[Made]
) -> list[Made]:
  """What a curve of whole answers makes of those of the models alone."""
  pairs = list(zip(drafter, verifier, strict=True))
  return [
    sequence.cascade(*pair, method=curve.confidence, lenience=lenience)
    for lenience in curve.leniences
    for pair in pairs
  ]
