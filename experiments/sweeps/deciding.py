"""The decision of a sweep: a setting with its evidence, and one sentence."""

import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from cascades import files
from cascades.decisions import Decision
from cascades.files import plain
from experiments import cli, records
from experiments.analysis import certification, reference_points
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.certification import Setting, Verdict
from experiments.records import unit_costs
from experiments.sweeps.curve_plan import Curve
from experiments.sweeps.plan import Point
from experiments.tasks import Task, halves

# Fields of a config's decision that are those of the analysis.
_STATISTICS = ('margin', 'risk', 'delta')
_VERIFIER = Setting(
  'verifier_only', 'verifier_only', gamma=0, lenience=math.nan, is_strict=True
)
# Hashes among the facts of a launcher.
_WEIGHTS = ('verifier', 'drafter', 'tokenizer', 'settings')
# Names of scores that are known as scores of many answers together: the loss
# of an answer is that of its own score.
_CORPUS_SCORES = {'sentence_bleu': 'BLEU', 'bleu': 'BLEU', 'chrf': 'chrF'}


def shortfall(
  config: Any,
  curves: Sequence[Curve],
  tasks: Mapping[str, Task],
  examples: Mapping[str, Sequence],
) -> str | None:
  """Returns why a sweep can certify no setting that may lose quality."""
  fields = (config.get('decision') or {}).items()
  statistics = AnalysisConfig(**{k: v for k, v in fields if k in _STATISTICS})
  settings = [x for x in curves if _makes_settings(x)]
  lossy = [x for x in settings if _may_lose_quality(x)]
  has_quality = all(task.quality_score for task in tasks.values())
  if not fields or dict(fields).get('method') or not lossy or not has_quality:
    return None
  # Settings are compared on the examples that all of them have.
  ids = [
    example.id
    for of_task in examples.values()
    for example in min((x.select(of_task) for x in settings), key=len)
  ]
  choosing = sum(halves.half_of(name) == 'choose' for name in ids)
  count = len({x.points_name for x in lossy})
  share = statistics.delta / count
  needed = certification.needed(statistics.risk, share)
  # With one half alone nothing is decided, which the end of the sweep explains.
  if choosing >= needed or choosing in (0, len(ids)):
    return None
  per_task = math.ceil(2 * needed / len(tasks))
  lowest = certification.least_risk(choosing, share)
  return (
    f'decision: {len(ids)} examples, of which {choosing} are for choosing,'
    f' cannot certify a loss of {statistics.risk:g} with delta'
    f' {statistics.delta:g} and {count} curves; give about {2 * needed}'
    f' examples (--config.num_examples={per_task}, in another --workdir)'
    + (f', or --config.decision.risk={lowest:g}' if lowest < 1 else '')
    + '. Until then, the decision will be strict decoding or the verifier'
    ' alone.'
  )


def _makes_settings(curve: Curve) -> bool:
  return not (curve.confidence or curve.baseline_model == 'drafter')


def _may_lose_quality(curve: Curve) -> bool:
  return not curve.baseline_model and not all(
    reference_points.is_strict(curve.method, x)
    for x in curve.leniences or (math.nan,)
  )


def decide(
  config: Any,
  points: Sequence[Point],
  records_of: Mapping[str, Sequence[records.Record]],
  *,
  tasks: Mapping[str, Task],
  costs: unit_costs.Costs,
  facts: Mapping[str, Any],
  data: Mapping[str, Any],
  say: Callable[[str], None],
) -> Decision | None:
  """Chooses the setting of a sweep, or judges the one that its config fixes."""
  fields = config.decision.to_dict()
  options = {name: fields[name] for name in _STATISTICS if name in fields}
  statistics = AnalysisConfig(**options)
  decoded = [x for point in points for x in records_of[point.name]]
  fixed = _fixed_settings(fields, config) if fields.get('method') else ()
  if fixed:
    settings = {_VERIFIER, *fixed}
    decoded = [x for x in decoded if certification.setting_of(x) in settings]
    missing = settings - {certification.setting_of(x) for x in decoded}
    if missing:
      names = ' and '.join(sorted(map(str, missing)))
      say(f'decision: not made, because the sweep did not decode {names}.')
      return None
  answers = certification.collect(decoded, tasks, costs)
  try:
    if fixed:
      verdict = certification.judge(answers, *fixed, statistics)
    else:
      verdict = certification.decide(answers, statistics)
  except certification.EmptyHalfError as error:
    say(str(error))
    return None
  setting = verdict.use
  curve = next(
    point.curve
    for point in points
    if not point.curve.confidence
    for record in records_of[point.name][:1]
    if certification.setting_of(record).curve == setting.curve
  )
  lenience, dtype = setting.lenience, config.get('dtype')
  changes = {} if math.isnan(lenience) else {'lenience': lenience}
  uses_drafter, over_strict = setting.gamma > 0, verdict.speedup_over_strict
  numbers: dict[str, Any] = {'margin': statistics.margin}
  if verdict.choosing:
    numbers = {
      'risk': statistics.risk,
      'delta': statistics.delta,
      'delta_per_curve': verdict.share,
      'least_risk': verdict.least_risk,
    }
  evidence = {
    'data': dict(data),
    'tasks': {
      name: {
        'metric': _quality_name({name: task}),
        'max_new_tokens': task.max_new_tokens,
        'stop_strings': list(task.stop_strings),
      }
      for name, task in tasks.items()
    },
    'seed': config.seed,
    'code': facts['code'],
    'imports': cli.imports(),
    'device': facts['device'],
    **numbers,
    'choosing_examples': verdict.choosing,
    'reporting_examples': verdict.reporting,
    'loss': list(verdict.lost),
    'speedup': list(verdict.speedup),
    'speedup_over_strict': over_strict and list(over_strict),
    'strict_setting': verdict.strict and str(verdict.strict),
    'needed_examples': verdict.needed,
    'trials': [
      {
        'variant': trial.setting.variant,
        'gamma': trial.setting.gamma,
        'lenience': trial.setting.lenience,
        'speedup': trial.speedup,
        'loss': trial.loss,
        'p': None
        if math.isnan(trial.p) or trial.setting.is_strict
        else trial.p,
        'is_certified': trial.is_certified,
      }
      for trial in verdict.trials
    ],
  }
  quality = _quality_name(tasks).replace('_', ' ')
  return Decision(
    format=1,
    sentence=sentence(verdict, statistics, quality),
    verifier=config.verifier,
    drafter=config.drafter if uses_drafter else None,
    drafter_options=dict(curve.drafter_options) if uses_drafter else {},
    # None for the stored dtype.
    dtype=dtype and jnp.dtype(dtype).name,
    chat=bool(config.get('chat', False)),
    config=curve.config.replace(batch_size=config.batch_size, **changes),
    weights={name: facts[name] for name in _WEIGHTS},
    evidence=evidence,
  )


def save(decision: Decision, path: str | pathlib.Path) -> None:
  """Writes a decision to a JSON file, whole or not at all."""
  config = decision.config
  config = config.replace(lenience=config.effective_lenience)
  fields = vars(decision) | {'config': config.to_dict()}
  text = json.dumps(plain(fields), indent=2, allow_nan=False)
  files.write_text(path, text + '\n')


def _fixed_settings(
  fields: Mapping[str, Any], config: Any
) -> tuple[Setting, Setting]:
  """Returns the setting that a config fixes, and its strict decoding."""

  def setting(method: str, gamma: int, lenience: float) -> Setting:
    curve = Curve.from_config(config, method, (lenience,), gamma=gamma)
    lenience = lenience if curve.leniences else math.nan
    return Setting(
      curve.method,
      records.variant(curve.method, **curve.options),
      gamma=gamma,
      lenience=lenience,
      is_strict=reference_points.is_strict(curve.method, lenience),
    )

  values = fields['method'], fields['gamma'], float(fields['lenience'])
  return setting(*values), setting('speed', fields['strict_gamma'], 0.0)


def _quality_name(tasks: Mapping[str, Task]) -> str:
  names = set()
  for task in tasks.values():
    score = task.quality_score or ''
    is_of_corpus = task.corpus is not None or score in _CORPUS_SCORES
    name = _CORPUS_SCORES.get(score, score)
    names.add(f'sentence-level {name}' if is_of_corpus else name)
  return names.pop() if len(names) == 1 else 'quality'


def sentence(
  verdict: Verdict, config: AnalysisConfig, quality_name: str
) -> str:
  """Returns a verdict in words."""
  if verdict.unsolved:
    return (
      f'The verifier scores 0.00 on {" and ".join(verdict.unsolved)}: look at'
      ' the prompts and the metric. Until then, decode with the verifier alone.'
    )
  if not verdict.choosing:
    return _judgement(verdict, config, quality_name)
  setting = verdict.setting
  if verdict.slow:
    return f'Decode with the verifier alone, because {_slow(verdict)}.'
  if not setting.gamma:
    return f'{_drafter_does_not_pay(verdict)} {_uncertified(verdict, config)}'
  text = f'Use {setting}: {_over_verifier(verdict)}'
  if verdict.speedup_over_strict:
    text += f' and {_over_strict(verdict)}'
  text += ', modelled for one answer at a time, with 95 % intervals'
  if setting.is_strict:
    return (
      f"{text}; its answers have the verifier's law, so no quality is lost."
      f' {_uncertified(verdict, config)}'
    )
  return (
    f'{text}; {_quality_change(verdict, quality_name)} that were not used for'
    f' the choice. With probability {100 * (1 - config.delta):g}% its mean loss'
    f' over such examples is at most {100 * config.risk:g} points (chosen among'
    f' {len(verdict.trials)} settings on {verdict.choosing} examples); the'
    ' speed has an interval but no guarantee.'
  )


def _judgement(
  judgement: Verdict, config: AnalysisConfig, quality_name: str
) -> str:
  setting, points = judgement.setting, f'{100 * config.margin:g}'
  quality = _quality_change(judgement, quality_name)
  if judgement.is_shown:
    return (
      f'Use {setting}: {_over_strict(judgement)} and'
      f' {_over_verifier(judgement)}, modelled for one answer at a time;'
      f' {quality}. The config fixes both settings, and the quality counts as'
      f" the verifier's because the paired 95 % interval is above -{points}."
    )
  if math.isnan(judgement.lost[0]):
    reason = 'cannot be judged without a metric; give --metric and references'
  elif not judgement.keeps_quality and judgement.reporting < judgement.needed:
    reason = (
      f'cannot be judged on {judgement.reporting} examples; give'
      f' {judgement.needed} or more, which can show that at most {points} of'
      ' 100 points are lost'
    )
  elif not judgement.keeps_quality:
    reason = (
      f"is not shown to keep the verifier's quality: {quality}, and the paired"
      f' 95 % interval is not above -{points}'
    )
  else:
    reason = (
      'is not shown to be faster than strict decoding and the verifier alone:'
      f' it is {_over_strict(judgement)} and {_over_verifier(judgement)},'
      ' modelled for one answer at a time'
    )
  advice = f'Use {judgement.use}, which loses no quality'
  if judgement.slow:
    advice += f'; {_slow(judgement)}'
  return f'{setting} {reason}. {advice}.'


def _slow(verdict: Verdict) -> str:
  setting, speedup = verdict.slow or (None, ())
  return (
    f'{setting} is not shown to be faster: {_with_ends(speedup)} times as fast'
    ' as the verifier alone, modelled for one answer at a time'
  )


def _over_strict(verdict: Verdict) -> str:
  return (
    f'{_with_ends(verdict.speedup_over_strict or ())} times as fast as strict'
    f' decoding ({verdict.strict})'
  )


def _over_verifier(verdict: Verdict) -> str:
  return f'{_with_ends(verdict.speedup)} times as fast as the verifier alone'


def _quality_change(verdict: Verdict, quality_name: str) -> str:
  loss, lowest, highest = verdict.lost
  # + 0.0 makes 0.0 of -0.0.
  ends = loss, highest, lowest
  change, low, high = (round(-100 * x, 1) + 0.0 for x in ends)
  return (
    f'its {quality_name} is {abs(change):.1f} of 100 points'
    f" {'below' if change < 0 else 'above'} the verifier's [{low:+.1f},"
    f' {high:+.1f}] on {verdict.reporting} examples'
  )


def _with_ends(numbers: Sequence[float]) -> str:
  value, low, high = numbers
  return f'{value:.2f} [{low:.2f}, {high:.2f}]'


def _drafter_does_not_pay(verdict: Verdict) -> str:
  for trial in verdict.trials:
    if trial.setting == verdict.strict:
      return (
        'Decode with the verifier alone, because the drafter does not pay: the'
        f' fastest lossless setting, {trial.setting}, is {trial.speedup:.2f}'
        ' times as fast (modelled, one answer at a time).'
      )
  return (
    'Decode with the verifier alone: no lossless setting with a drafter was'
    ' decoded.'
  )


def _uncertified(verdict: Verdict, config: AnalysisConfig) -> str:
  if all(x.setting.is_strict for x in verdict.trials):
    return 'No setting that may lose quality was tried.'
  if any(math.isnan(x.loss) for x in verdict.trials):
    return (
      'Without a metric no other setting can be certified: give --metric and'
      ' references.'
    )
  if any(x.is_certified and not x.setting.is_strict for x in verdict.trials):
    return 'No certified setting that may lose quality is faster.'
  points, count = f'{100 * config.risk:g} points', verdict.choosing
  text = f'No setting that may lose quality could be certified at {points}: '
  if count < verdict.needed:
    text += (
      f'{count} examples for choosing (half of all) can certify'
      f' {100 * verdict.least_risk:.1f} points at best, and {verdict.needed}'
      ' would be needed if no answer changed'
    )
  else:
    text += (
      f'the losses on {count} examples for choosing (half of all) are too large'
      f' or too uncertain, though {verdict.needed} would suffice if no answer'
      ' changed'
    )
  if verdict.estimate:
    setting, count = verdict.estimate
    text += (
      f'; about {count} would be needed for {setting}, with losses as they were'
      ' here'
    )
  return f'{text}.'
