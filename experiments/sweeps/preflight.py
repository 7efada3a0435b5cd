"""The facts of a sweep before it starts, from eight prompts and a few loops.

Tokens per block are measured on a strict curve, if there is one, which stands
for the other curves. The time of a block is measured with as many rows as the
sweep decodes at a time.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from cascades import drafters
from cascades.models import checkpoints
from cascades.sampler import batching
from cascades.sampler.sampler import Sampler
from experiments import measuring
from experiments.records import unit_costs
from experiments.sweeps import costs
from experiments.sweeps.curve_plan import Curve

_PROMPTS = 8
# Share of the rows of a batch that decode, the others being done.
_BUSY = 0.8


class Setting(NamedTuple):
  """A sweep whose models are loaded."""

  verifier: checkpoints.Checkpoint
  bound_drafter: drafters.BoundDrafter
  sampler: Callable[..., tuple[Sampler, int]]
  request: Callable[[Any], dict[str, Any]]
  config: Any
  tasks: Mapping[str, Any]
  clock: measuring.CompileClock


class Trial(NamedTuple):
  """Totals of eight prompts, decoded at a point of a curve."""

  prompts: int
  emitted: int
  cut: int
  counts: Mapping[str, int]
  prefill_s: float
  compile_s: float

  @property
  def tokens_per_block(self) -> float:
    """Tokens for each call of the verifier."""
    return self.emitted / max(1, self.counts['verifier_calls'])


# gamma, drafts and tree_size.
_Block = tuple[int, int, int | None]
_ALONE: _Block = (0, 1, None)


def preview(
  setting: Setting,
  curves: Sequence[Curve],
  examples: Mapping[str, Sequence],
  measured: unit_costs.Costs,
) -> Iterator[str]:
  """Yields the facts of a sweep as sentences, as they are measured."""
  drafting = [x for x in curves if x.config.gamma and not x.confidence]
  strict = [x for x in drafting if x.config.method.strict in x.leniences]
  first = (strict or drafting or list(curves))[0]
  lengths = _prompt_lengths(setting, first, examples)
  size = setting.verifier.model.vocab_size
  yield f'tokenizers: both models have the same {size} tokens.'
  median = int(statistics.median(lengths))
  yield f'prompts: {lengths[0]} to {lengths[-1]} tokens, median {median}.'
  point = first.leniences.index(first.config.method.strict) if strict else 0
  trial = _try_curve(setting, first, examples, point)
  name = f'strict decoding with gamma {first.config.gamma}'
  if not strict:
    lenience = f' at lenience {first.leniences[0]:g}' if first.leniences else ''
    name = f'{first.points_name}{lenience}; no curve decodes strictly'
  yield from describe(trial, name if first.config.gamma else '')
  widths = {x: _width(setting, x, examples) for x in curves}
  shapes = {(_block(x), width) for x, width in widths.items()}
  shapes |= {(_block(first), 1)}
  answer_tokens = trial.emitted / trial.prompts
  times = _block_times(setting, shapes, int(answer_tokens))
  if first.config.gamma:
    for rows in sorted({1, widths[first]}):
      ratio = times[_block(first), rows] / times[_ALONE, rows]
      yield payment(rows, ratio, trial.tokens_per_block / ratio)
  seconds = trial.compile_s * len(curves)
  answers = 0
  for curve, width in widths.items():
    count = _num_answers(curve, examples)
    step_s = times[_block(curve), width]
    if curve.baseline_model == 'drafter':
      step_s *= measured.drafter_token_s / measured.verifier_token_s
    efficiency = trial.tokens_per_block if curve.config.gamma else 1.0
    seconds += count * answer_tokens / efficiency / (width * _BUSY) * step_s
    seconds += count * trial.prefill_s / trial.prompts
    answers += count
  yield f'time: {answers} answers in about {_duration(seconds)}.'


def describe(trial: Trial, point: str) -> Iterator[str]:
  """Yields the facts of a trial; `point` names one with a drafter."""
  yield (
    f'answers: {trial.emitted / trial.prompts:.0f} tokens on average, to'
    f' {trial.prompts} prompts.'
  )
  if trial.cut > 0.5 * trial.prompts:
    yield (
      f'answers: {trial.cut / trial.prompts:.0%} of them reach the maximum'
      ' number of tokens; to end answers sooner, give stop texts with'
      ' --config.file.stop_strings, or a lower --config.task.max_new_tokens.'
    )
  if examined := point and trial.counts['examined']:
    acceptance = trial.counts['accepted'] / examined
    yield f'drafter: its acceptance rate is {acceptance:.2f} in {point}.'
  elif point:
    yield f'drafter: it drafted no token after {trial.prompts} prompts.'


def payment(rows: int, ratio: float, speed: float) -> str:
  """Returns whether the drafter pays for a number of rows at a time."""
  return (
    f'{"one answer" if rows == 1 else f"{rows} answers"} at a time: a block'
    f' takes {ratio:.2f} times as long as a token of the verifier alone, so the'
    f' drafter {"pays" if speed > 1 else "does not pay"} ({speed:.2f} times as'
    ' fast).'
  )


def _duration(seconds: float) -> str:
  """Returns seconds as text, such as '2 min' or '3.5 h'."""
  if seconds < 90:
    return f'{seconds:.0f} s'
  return (
    f'{seconds / 60:.0f} min' if seconds < 5400 else f'{seconds / 3600:.1f} h'
  )


def _block(curve: Curve) -> _Block:
  """Returns the block of a curve."""
  config = curve.config
  return config.gamma, config.drafts, config.tree_size


def _num_answers(curve: Curve, examples: Mapping[str, Sequence]) -> int:
  """Returns the number of answers of a curve."""
  n = sum(len(curve.select(x)) for x in examples.values())
  return n * max(1, len(curve.leniences))


def _width(
  setting: Setting, curve: Curve, examples: Mapping[str, Sequence]
) -> int:
  """Returns the rows of a curve that are decoded at a time."""
  answers = _num_answers(curve, examples)
  return batching.width(answers, setting.config.batch_size)


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
  setting: Setting, curve: Curve, examples: Mapping[str, Sequence], index: int
) -> Trial:
  """Decodes the first prompts of each task at a lenience of a curve."""
  compiled = setting.clock.seconds
  decoder, seed = setting.sampler(curve, batch_size=setting.config.batch_size)
  answers, cut, prefill_s = [], 0, 0.0
  count = max(1, _PROMPTS // len(setting.tasks))
  for name, task in setting.tasks.items():
    rows = [x.prompt for x in examples[name][:count]]
    # The first time compiles.
    for _ in range(2):
      points = decoder.sample_curve(
        rows, curve.leniences or (0.0,), seed=seed, **setting.request(task)
      )
    answers += points[index]
    cut += sum(len(x.tokens) >= task.max_new_tokens for x in points[index])
    prefill_s += decoder.usage.prefill_s
  names = 'verifier_calls', 'examined', 'accepted'
  return Trial(
    prompts=len(answers),
    emitted=sum(len(x.tokens) for x in answers),
    cut=cut,
    counts={name: sum(x.counts[name] for x in answers) for name in names},
    prefill_s=prefill_s,
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
  times = measuring.time_in_turns(loops, repeats=3, seconds=1.0)
  return {key: statistics.median(x) for key, x in times.items()}
