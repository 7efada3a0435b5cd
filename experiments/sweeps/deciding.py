"""The decision of a sweep: a setting with its evidence, and one sentence."""

import json
import math
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import jinja2

from cascades import files
from cascades.decisions import Decision
from cascades.files import plain
from experiments import cli, records
from experiments.analysis import certification, runs
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.certification import Setting, Verdict
from experiments.records import unit_costs
from experiments.sweeps.curve_plan import Curve
from experiments.sweeps.fields import DecisionFields, SweepConfig
from experiments.sweeps.plan import Point
from experiments.tasks import Task, choosing, half_of

_SENTENCE = jinja2.Template(
  pathlib.Path(__file__).with_name('decision.txt').read_text(),
  undefined=jinja2.StrictUndefined,
)
_VERIFIER = Setting(
  'verifier_only', 'verifier_only', gamma=0, lenience=math.nan, is_strict=True
)
# Hashes among the facts of a worker.
_WEIGHTS = ('verifier', 'drafter', 'tokenizer', 'settings')
# Names of scores that are known as scores of many answers together: the loss
# of an answer is that of its own score.
_CORPUS_SCORES = {'sentence_bleu': 'BLEU', 'bleu': 'BLEU', 'chrf': 'chrF'}


def shortfall(
  config: SweepConfig,
  curves: Sequence[Curve],
  tasks: Mapping[str, Task],
  examples: Mapping[str, Sequence],
) -> str | None:
  """Returns why a sweep can certify no setting that may lose quality."""
  decision, is_strict = config.decision, runs.is_strict
  curves = [
    x for x in curves if not x.confidence and x.baseline_model != 'drafter'
  ]
  lossy = {
    x.points_name
    for x in curves
    if not x.baseline_model
    and not all(is_strict(x.method, y) for y in x.leniences or (math.nan,))
  }
  has_quality = all(task.quality_score for task in tasks.values())
  if not decision or decision.method or not lossy or not has_quality:
    return None
  # Settings are compared on the examples that all of them have.
  ids = [
    example.id
    for of_task in examples.values()
    for example in min((of_task[: x.num_examples] for x in curves), key=len)
  ]
  needed = certification.needed(decision.risk, decision.delta / len(lossy))
  count = sum(choosing(ids))
  # With one half alone nothing is decided, which the end of the sweep explains.
  if count >= needed or len({*map(half_of, ids)}) < 2:
    return None
  return (
    f'decision: {len(ids)} examples, of which {count} are for choosing, cannot'
    f' certify a loss of {decision.risk:g} with delta {decision.delta:g} and'
    f' {len(lossy)} curves (a method at a gamma) that may lose quality; give'
    f' {2 * needed} examples, or a larger --config.decision.risk.'
  )


def decide(
  config: SweepConfig,
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
  fields = config.decision or DecisionFields()
  statistics = AnalysisConfig(
    margin=fields.margin, risk=fields.risk, delta=fields.delta
  )
  decoded = [x for point in points for x in records_of[point.name]]
  fixed = fixed_settings(fields, config.values) if fields.method else ()
  if fixed:
    settings = {_VERIFIER, *fixed}
    decoded = [x for x in decoded if certification.setting_of(x) in settings]
    missing = settings - {certification.setting_of(x) for x in decoded}
    if missing:
      names = ' and '.join(sorted(map(str, missing)))
      say(f'decision: not made, because the sweep did not decode {names}.')
      return None
  try:
    answers = certification.collect(decoded, costs)
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
  changes: dict[str, Any] = {'batch_size': config.values['batch_size']}
  if not math.isnan(setting.lenience):
    changes['lenience'] = setting.lenience
  uses_drafter = setting.gamma > 0
  fields_of = 'choosing_examples reporting_examples loss speedup'.split()
  numbers: dict[str, Any] = {'margin': statistics.margin}
  if verdict.choosing_examples:
    numbers = {'risk': statistics.risk, 'delta': statistics.delta}
    fields_of[:0] = 'delta_per_curve', 'least_risk'
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
    **{name: getattr(verdict, name) for name in fields_of},
    'speedup_over_strict': verdict.speedup_over_strict,
    'strict_setting': verdict.strict and str(verdict.strict),
    'needed_examples': verdict.needed_examples,
    'trials': [
      {
        'variant': setting.variant,
        'gamma': setting.gamma,
        'lenience': setting.lenience,
        'speedup': trial.speedup,
        'loss': trial.loss,
        'p': None if setting.is_strict or math.isnan(trial.p) else trial.p,
        'is_certified': trial.is_certified,
      }
      for trial in verdict.trials
      for setting in [trial.setting]
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
    dtype=config.dtype and jnp.dtype(config.dtype).name,
    chat=config.chat,
    config=curve.config.replace(**changes),
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


def fixed_settings(
  fields: DecisionFields, config: Mapping[str, Any]
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
      is_strict=runs.is_strict(curve.method, lenience),
    )

  fixed = setting(fields.method, fields.gamma, fields.lenience)
  return fixed, setting('speed', fields.strict_gamma, 0.0)


def _quality_name(tasks: Mapping[str, Task]) -> str:
  names = set()
  for task in tasks.values():
    score = task.quality_score or ''
    is_of_corpus = runs.is_corpus(task.name) or score in _CORPUS_SCORES
    name = _CORPUS_SCORES.get(score, score)
    names.add(f'sentence-level {name}' if is_of_corpus else name)
  return names.pop() if len(names) == 1 else 'quality'


def sentence(
  verdict: Verdict, config: AnalysisConfig, quality_name: str
) -> str:
  """Returns a verdict in words."""
  mean, low, high = verdict.loss
  text = _SENTENCE.render(
    v=verdict,
    config=config,
    risk=f'{100 * config.risk:g}',
    margin=f'{100 * config.margin:g}',
    quality=quality_name,
    # + 0.0 makes 0.0 of -0.0.
    moved=[round(-100 * x, 1) + 0.0 for x in (mean, high, low)],
  )
  return re.sub(r' (?=[.;,] |[.]$)', '', ' '.join(text.split()))
