"""The facts of a sweep before it starts, from eight prompts and a few loops.

Tokens per block are measured on a strict curve and on the curve with the most
leniences, which stand for the other curves. The time of a block is measured
with as many rows as the sweep decodes at a time.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from cascades import drafters
from cascades.models import checkpoints
from cascades.sampler import batching
from cascades.sampler.sampler import Sampler
from experiments.records import unit_costs
from experiments.sweeps import costs
from experiments.sweeps.curve_plan import Curve

_PROMPTS = 8
# Share of the rows of a batch that decode, the others being done.
_BUSY = 0.8
# Times that an entrant of the race answers a prompt, and their number.
_RACE_TURNS, _ENTRANTS = 4, 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preview:
  """Facts of a sweep before it starts; None for those not measured yet."""

  prompt_tokens: tuple[int, int, int]
  vocab_size: int
  gamma: int = 0
  lossy_point: str | None = None
  trial: 'Trial | None' = None
  block_ratios: Mapping[int, float] = dataclasses.field(default_factory=dict)
  answers: int = 0
  seconds: float | None = None

  def sentences(self) -> list[str]:
    """Returns the facts as sentences, those that were measured first first."""
    low, median, high = self.prompt_tokens
    sentences = [
      f'tokenizers: both models have the same {self.vocab_size} tokens.',
      f'prompts: {low} to {high} tokens, median {median}.',
    ]
    trial = self.trial
    if trial is None:
      return sentences
    sentences.append(
      f'answers: {trial.answer_tokens:.0f} tokens on average, to'
      f' {trial.prompts} prompts.'
    )
    if trial.cut_answers > 0.5:
      sentences.append(
        f'answers: {trial.cut_answers:.0%} of them reach the maximum number of'
        ' tokens; to end answers sooner, give stop texts with'
        ' --config.file.stop_strings, or a lower --config.task.max_new_tokens.'
      )
    if self.gamma:
      sentences.append(self._acceptance(trial))
      sentences += [
        self._payment(trial, rows, ratio)
        for rows, ratio in sorted(self.block_ratios.items())
      ]
    if self.seconds is not None:
      sentences.append(
        f'time: {self.answers} answers in about {_duration(self.seconds)}.'
      )
    return sentences

  def _acceptance(self, trial: 'Trial') -> str:
    """Returns how many drafts were accepted."""
    if math.isnan(trial.acceptance):
      return f'drafter: it drafted no token after {trial.prompts} prompts.'
    text = f'drafter: its acceptance rate is {trial.acceptance:.2f}'
    if self.lossy_point is None:
      return f'{text} in strict decoding with gamma {self.gamma}.'
    return f'{text} with {self.lossy_point}; no curve decodes strictly.'

  def _payment(self, trial: 'Trial', rows: int, block_ratio: float) -> str:
    """Returns whether the drafter pays for a number of rows at a time."""
    speed = trial.tokens_per_block / block_ratio
    needed = break_even(block_ratio, self.gamma)
    condition = (
      '; no acceptance rate is high enough'
      if needed is None
      else f'; it pays from an acceptance rate of {needed:.3f}'
    )
    # The formula is that of strict blocks whose drafts have gamma tokens.
    if self.lossy_point or not trial.has_full_drafts:
      condition = ''
    return (
      f'{"one answer" if rows == 1 else f"{rows} answers"} at a time: a block'
      f' takes {block_ratio:.2f} times as long as a token of the verifier'
      f' alone, so the drafter {"pays" if speed > 1 else "does not pay"}'
      f' ({speed:.2f} times as fast{condition}).'
    )


def say_facts(previews: Iterable[Preview], say: Callable[[str], None]) -> None:
  """Says each fact when it is known."""
  count = 0
  for facts in previews:
    sentences = facts.sentences()
    for sentence in sentences[count:]:
      say(sentence)
    count = len(sentences)


def tokens_per_block(acceptance: float, gamma: int) -> float:
  """Returns the mean tokens of a strict block (arXiv 2211.17192, eq. 1)."""
  if acceptance >= 1:
    return gamma + 1.0
  return (1 - acceptance ** (gamma + 1)) / (1 - acceptance)


def break_even(block_ratio: float, gamma: int) -> float | None:
  """Returns the least acceptance at which drafting is not slower."""
  for thousandths in range(1001):
    if tokens_per_block(thousandths / 1000, gamma) >= block_ratio:
      return thousandths / 1000
  return None


def _duration(seconds: float) -> str:
  """Returns seconds as text, such as '2 min' or '3.5 h'."""
  if seconds < 90:
    return f'{seconds:.0f} s'
  return (
    f'{seconds / 60:.0f} min' if seconds < 5400 else f'{seconds / 3600:.1f} h'
  )


class Setting(NamedTuple):
  """A sweep whose models are loaded."""

  verifier: checkpoints.Checkpoint
  bound_drafter: drafters.BoundDrafter
  sampler: Callable[..., tuple[Sampler, int]]
  request: Callable[[Any], dict[str, Any]]
  config: Any
  tasks: Mapping[str, Any]
  clock: costs.CompileClock


class Trial(NamedTuple):
  """Eight prompts, decoded at all leniences of a curve; and one of its points.

  Attributes:
    efficiency: Tokens per block at each lenience.
    prompts: Number of prompts.
    tokens_per_block: Those of the point.
    acceptance: Share of the examined drafts that the point accepts; nan if none
      is examined.
    has_full_drafts: True if each draft of the point has gamma tokens.
    answer_tokens: Mean tokens of the point's answers.
    cut_answers: Share of the point's answers that reach the limit of tokens.
    prefill_s: Seconds of reading a prompt.
    compile_s: Seconds of compiling.
  """

  efficiency: list[float]
  prompts: int
  tokens_per_block: float
  acceptance: float
  has_full_drafts: bool
  answer_tokens: float
  cut_answers: float
  prefill_s: float
  compile_s: float


def preview(
  setting: Setting,
  curves: Sequence[Curve],
  examples: Mapping[str, Sequence],
  measured: unit_costs.Costs,
) -> Iterator[Preview]:
  """Yields the facts of a sweep, each time with those measured since."""
  drafting = [x for x in curves if x.config.gamma and not x.confidence]
  strict = [x for x in drafting if x.config.method.strict in x.leniences]
  first = (strict or drafting or list(curves))[0]
  widest = max(drafting or [first], key=lambda x: len(x.leniences))
  lengths = _prompt_lengths(setting, first, examples)
  facts = Preview(
    prompt_tokens=(lengths[0], int(statistics.median(lengths)), lengths[-1]),
    vocab_size=setting.verifier.model.vocab_size,
  )
  yield facts
  point = first.leniences.index(first.config.method.strict) if strict else 0
  trial = _try_curve(setting, first, examples, point)
  gamma, lossy_point = first.config.gamma, None
  if drafting and not strict:
    lossy_point = first.points_name
    if first.leniences:
      lossy_point += f' at lenience {first.leniences[0]:g}'
  facts = dataclasses.replace(
    facts, gamma=gamma, lossy_point=lossy_point, trial=trial
  )
  yield facts
  widest_trial = (
    trial if widest is first else _try_curve(setting, widest, examples)
  )
  sizes = [_size(setting, x, examples) for x in curves]
  width = sizes[list(curves).index(first)].width
  shapes = {
    (_block(x), y.width) for x, y in zip(curves, sizes, strict=True)
  } | {(_block(first), 1)}
  times = _block_times(setting, shapes, int(trial.answer_tokens))
  seconds = sum(
    _curve_seconds(
      curve,
      size,
      trial=trial if curve is first else widest_trial,
      answer_tokens=trial.answer_tokens,
      step_s=times[_block(curve), size.width],
      relative_cost=measured.drafter_token_s / measured.verifier_token_s,
    )
    for curve, size in zip(curves, sizes, strict=True)
  )
  clock = min(setting.config.get('clock', 0), len(lengths))
  race_tokens = clock * _ENTRANTS * _RACE_TURNS * trial.answer_tokens
  seconds += race_tokens * measured.verifier_token_s
  num_compiled = len(curves) + (_ENTRANTS if clock else 0)
  seconds += max(trial.compile_s, widest_trial.compile_s) * num_compiled
  yield dataclasses.replace(
    facts,
    block_ratios={
      x: times[_block(first), x] / times[_ALONE, x] for x in {1, width}
    },
    answers=sum(x.answers for x in sizes),
    seconds=seconds,
  )


# gamma, drafts and tree_size.
_Block = tuple[int, int, int | None]
_ALONE: _Block = (0, 1, None)


def _block(curve: Curve) -> _Block:
  """Returns the block of a curve."""
  config = curve.config
  return config.gamma, config.drafts, config.tree_size


class _Size(NamedTuple):
  """Numbers of a curve: of its examples, its answers and its rows at a time."""

  examples: int
  answers: int
  width: int


def _size(
  setting: Setting, curve: Curve, examples: Mapping[str, Sequence]
) -> _Size:
  """Returns the numbers of a curve."""
  n = sum(len(curve.select(x)) for x in examples.values())
  answers = n * max(1, len(curve.leniences))
  return _Size(n, answers, batching.width(answers, setting.config.batch_size))


def _prompt_lengths(
  setting: Setting, curve: Curve, examples: Mapping[str, Sequence]
) -> list[int]:
  """Returns the tokens of all prompts, from the shortest to the longest."""
  decoder, _ = setting.sampler(curve, batch_size=1)
  return sorted(
    len(decoder.encode(x.prompt, setting.request(task)['apply_chat_template']))
    for name, task in setting.tasks.items()
    for x in examples[name]
  )


def _try_curve(
  setting: Setting,
  curve: Curve,
  examples: Mapping[str, Sequence],
  index: int = 0,
) -> Trial:
  """Decodes the first prompts of each task at all leniences of a curve."""
  compiled = setting.clock.seconds
  decoder, seed = setting.sampler(curve, batch_size=setting.config.batch_size)
  points: list[list[Any]] = [[] for _ in curve.leniences or (0.0,)]
  prompts, cut, prefill_s = 0, 0, 0.0
  for name, task in setting.tasks.items():
    rows = [
      x.prompt for x in examples[name][: max(1, _PROMPTS // len(setting.tasks))]
    ]
    # The first time compiles.
    for _ in range(2):
      decoded = decoder.sample_curve(
        rows, curve.leniences or (0.0,), seed=seed, **setting.request(task)
      )
    for point, answers in zip(points, decoded, strict=True):
      point += answers
    prompts += len(rows)
    cut += sum(len(x.tokens) >= task.max_new_tokens for x in decoded[index])
    prefill_s += decoder.usage.prefill_s

  def total(name: str, i: int = index) -> int:
    return sum(x.counts[name] for x in points[i])

  emitted = [sum(len(x.tokens) for x in answers) for answers in points]
  efficiency = [
    tokens / max(1, total('verifier_calls', i))
    for i, tokens in enumerate(emitted)
  ]
  examined, drafted = total('examined'), total('drafted')
  return Trial(
    efficiency=efficiency,
    prompts=prompts,
    tokens_per_block=efficiency[index],
    acceptance=total('accepted') / examined if examined else math.nan,
    has_full_drafts=(drafted == curve.config.gamma * total('verifier_calls')),
    answer_tokens=emitted[index] / prompts,
    cut_answers=cut / prompts,
    prefill_s=prefill_s / prompts,
    compile_s=setting.clock.seconds - compiled,
  )


def _block_times(
  setting: Setting, shapes: Set[tuple[_Block, int]], context: int
) -> dict[tuple[_Block, int], float]:
  """Measures the seconds of a block, by its shape and the rows at a time.

  A token of the verifier alone is there for every number of rows.
  """
  no_drafter = drafters.BoundDrafter(drafters.NoDrafter(), ())
  loops = {}
  for block, width in shapes | {(_ALONE, width) for _, width in shapes}:
    gamma, drafts, tree_size = block
    loops[block, width], _ = costs.strict_loop(
      setting.verifier,
      setting.bound_drafter if gamma else no_drafter,
      gamma=gamma,
      drafts=drafts,
      tree_size=tree_size,
      context=max(2 * (gamma + 1), context),
      rows=width,
    )
  times = costs.time_in_turns(loops, repeats=3, seconds=1.0)
  return {key: statistics.median(x) for key, x in times.items()}


def _curve_seconds(
  curve: Curve,
  size: _Size,
  *,
  trial: Trial,
  answer_tokens: float,
  step_s: float,
  relative_cost: float,
) -> float:
  """Estimates the seconds of decoding a curve, compiling left out."""
  count = max(1, len(curve.leniences))
  efficiency, gamma = [1.0], curve.config.gamma
  if curve.baseline_model == 'drafter':
    step_s *= relative_cost
  if gamma:
    # Leniences are matched by their rank.
    ranks = [i / max(1, count - 1) for i in range(count)]
    last = len(trial.efficiency) - 1
    efficiency = [trial.efficiency[round(rank * last)] for rank in ranks]
  n = size.examples
  blocks = sum(n * answer_tokens / x for x in efficiency)
  return blocks / (size.width * _BUSY) * step_s + n * trial.prefill_s
