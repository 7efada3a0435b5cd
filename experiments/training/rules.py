"""Training of deferral rules on the answers of sweeps.

Lemma 4 needs texts of the true distribution (see `contrib.rule_fitting`). They
are approximated by the answers of a sweep of the pair on training examples,
weighted by their scores and normalised per example.
"""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cascades.config import DecodingConfig
from cascades.contrib import learned, rule_fitting
from cascades.sampler import sampler
from experiments import records
from experiments.records import stats
from experiments.training import acceptance_eval

# Fields of a sweep that must be the same in all workdirs, with their defaults.
_SHARED_FIELDS = {
  'verifier': None,
  'drafter': None,
  'temperature': 1.0,
  'top_k': None,
  'top_p': None,
  'gate': 'raw',
  'dtype': None,
  'chat': False,
}


def shared_settings(workdirs: Sequence[str]) -> dict[str, Any]:
  """Returns the settings of sweeps to learn from."""
  settings: dict[str, Any] = {}
  for workdir in workdirs:
    path = pathlib.Path(workdir) / 'config.json'
    try:
      config = records.read_json(path)
      fields = {
        name: config.get(name, default)
        for name, default in _SHARED_FIELDS.items()
      }
    except (OSError, ValueError):
      raise ValueError(
        f'workdirs: {path} is missing or not a config; give the workdirs of'
        ' finished sweeps, with commas between them.'
      ) from None
    # An empty split is the task's own, which is most often test.
    if (config.get('split') or 'test') == 'test':
      raise ValueError(
        f'workdirs: {workdir} has test examples, on which no rule may be'
        ' trained; decode training examples with --config.split=train.'
      )
    for name, value in fields.items():
      if settings.setdefault(name, value) != value:
        raise ValueError(
          f'workdirs: {workdir} has the {name} {value!r}, but earlier ones have'
          f' {settings[name]!r}; give sweeps with the same {name}.'
        )
  return settings


def gather_texts(
  config: ConfigDict, workdirs: Sequence[str]
) -> list[rule_fitting.Text]:
  """Returns the answers of sweeps with a positive score, weighted.

  An answer that several points wrote is one text with the sum of the weights.
  """
  weights: dict[tuple, float] = {}
  prompts: dict[tuple[str, str], str] = {}
  for workdir in workdirs:
    examples = records.read_examples(workdir)
    for point, point_records in records.read_points(workdir).items():
      traces = records.read_traces(workdir, point)
      for record, trace in zip(point_records, traces, strict=True):
        score = _score(record, config.score)
        if not score > 0 or not trace.tokens:
          continue
        example = record.task, record.id
        prompt = examples[record.task][record.id].prompt
        if prompts.setdefault(example, prompt) != prompt:
          raise ValueError(
            f'workdirs: {workdir} has another prompt of {record.task}'
            f' {record.id} than earlier ones; give sweeps with the same data,'
            ' shots and file.'
          )
        key = example, tuple(trace.tokens)
        weights[key] = weights.get(key, 0.0) + score**config.sharpness
  if not weights:
    raise ValueError(
      f'workdirs: no answer in {", ".join(workdirs)} is right; give sweeps with'
      ' right answers, which rules are trained on.'
    )
  # A hash selects the texts, independent of the order of the sweeps.
  keys = sorted(weights, key=lambda key: records.digest([*key[0], *key[1]]))
  keys = keys[: config.texts]
  totals: dict[tuple[str, str], float] = {}
  for key in keys:
    totals[key[0]] = totals.get(key[0], 0.0) + weights[key]
  return [
    rule_fitting.Text(
      key[0], prompts[key[0]], key[1], weights[key] / totals[key[0]]
    )
    for key in keys
  ]


def _score(record: records.Record, score: str) -> float:
  """Returns the score of an answer; nan if it failed."""
  if record.failure is not None:
    return math.nan
  if score and score not in record.scores:
    raise ValueError(
      f'score: {record.task} has no score {score!r}; choose from'
      f' {", ".join(record.scores)}.'
    )
  return record.scores[score] if score else record.quality


def compare_rules(
  positions: rule_fitting.Positions,
  weights: Mapping[str, float],
  leniences: Sequence[float],
) -> dict[str, Any]:
  """Compares the objective (J) of rules on held-out examples.

  Each rule takes, at each cost of a rejection, the lenience that is best on the
  other examples.
  """
  parts = [
    positions.select(~positions.held_out),
    positions.select(positions.held_out),
  ]
  # A grid of the same density for all rules.
  grid = sorted({*leniences, *np.linspace(-0.2, 1, 25).tolist()})
  train, test = (rule_fitting.compare(part, weights, grid) for part in parts)
  weight, example = parts[1].weight, parts[1].example
  objective, per_token = {}, {}
  for name in train:
    losses = []
    for lenience in leniences:
      best = np.argmin(parts[0].weight @ train[name].at(lenience))
      losses.append(test[name].at(lenience)[:, best])
    objective[name] = [float(weight @ loss) for loss in losses]
    per_token[name] = np.mean(losses, axis=0)

  def gained(name):
    less = per_token[name] - per_token[learned.NAME]
    _, number = np.unique(example, return_inverse=True)
    sums = [np.bincount(number, values) for values in (weight * less, weight)]
    low, high = stats.bootstrap_sums_interval(
      np.stack(sums, 1), lambda sums: sums[0] / sums[1]
    )
    return [float(weight @ less), float(low), float(high)]

  return {
    'leniences': list(leniences),
    'objective': objective,
    'mean': {name: float(np.mean(x)) for name, x in objective.items()},
    'gained': {n: gained(n) for n in objective if n != learned.NAME},
    'examples': len(np.unique(example)),
    'tokens': len(weight),
  }


def _check_fields(config: ConfigDict) -> list[str]:
  """Checks the fields of a training, and returns its workdirs."""
  workdirs = [name for name in config.workdirs.split(',') if name]
  if not workdirs:
    raise ValueError(
      'workdirs: none is given; give --config.workdirs=runs/quickstart_train.'
    )
  if not 0 < config.held_out < 1:
    raise ValueError(
      f'held_out: must be a share above 0 and below 1, got {config.held_out}.'
    )
  for name, is_valid in (
    ('softness', config.softness > 0),
    ('ridge', config.ridge >= 0),
  ):
    if not is_valid:
      bound = 'above 0' if name == 'softness' else '0 or more'
      raise ValueError(f'{name}: must be {bound}, got {config[name]}.')
  return workdirs


def train_rule(
  config: ConfigDict, workdir: pathlib.Path
) -> tuple[pathlib.Path, dict[str, Any], dict[str, Any]]:
  """Trains a rule on the answers of sweeps, and compares it with others."""
  workdirs = _check_fields(config)
  settings = shared_settings(workdirs)
  texts = gather_texts(config, workdirs)
  pair_sampler = sampler.Sampler(
    settings['verifier'],
    settings['drafter'],
    # Truncation has no effect on greedy decoding.
    config=DecodingConfig.applicable(
      # Its rule reads the gates, as the features do.
      method='opt',
      lenience=-math.inf,
      gamma=1,
      batch_size=config.batch_size,
      **{x: settings[x] for x in ('temperature', 'top_k', 'top_p', 'gate')},
    ),
    dtype=settings['dtype'],
  )
  positions = rule_fitting.read(
    pair_sampler,
    texts,
    config.held_out,
    chat=settings['chat'],
    cache_folder=workdir,
  )
  if not 0 < positions.held_out.mean() < 1:
    raise ValueError(
      f'held_out: {config.held_out} of the examples leaves none for training'
      ' or none for comparison; give another share, or more examples.'
    )
  fields = config.leniences, config.softness, config.ridge
  weights = rule_fitting.fit(positions.select(~positions.held_out), *fields)
  names = settings['verifier'], settings['drafter']
  prints = learned.fingerprints(
    pair_sampler.verifier, pair_sampler.bound_drafter
  )
  folder = workdir / config.name
  learned.save(folder, weights, names, prints)
  figures = compare_rules(positions, weights, config.leniences)
  figures |= {'texts': len(texts), 'all tokens': len(positions.weight)}
  return folder, figures, settings


_CARD = """---
library_name: cascades
---

# {name}

A deferral rule for `{verifier}` and `{drafter}`, and for no other pair:
Lemma 4 of Narasimhan et al. 2025 (arXiv 2405.19261) with a linear head in the
place of the difference of losses (`cascades/contrib/learned.py`).

- Data: {texts} answers of the pair to training examples, from a sweep at
  temperature {temperature:g}, weighted by {score}; {all_tokens:,} tokens. Of
  the examples {held_out:.0%} are held out.
- Training: mean of the lemma's objective over {prices_all} leniences from
  {least:g} to {most:g}; L-BFGS, from OPT's weights.
- Retrain: `{command}`.

The lemma's objective per token (expected loss, plus the cost of rejections) on
the {examples} held-out examples ({tokens:,} tokens), where a rejection costs
{prices}, and its mean over all leniences. Each rule has the lenience that is
best on the other examples. The last column is the reduction of the mean by the
learned rule, with a 95 % interval.

{table}

The weights:

{weights}

Use: `DecodingConfig(method='learned:{name}')`; for a rule that is not bundled,
the path of this folder replaces the name.
"""


def write_card(
  folder: pathlib.Path,
  config: ConfigDict,
  figures: Mapping[str, Any],
  settings: Mapping[str, Any],
  command: str,
) -> None:
  """Writes the model card of a rule."""
  rule = json.loads((folder / learned.FILE).read_text(encoding='utf-8'))
  # The table has four of the costs.
  indices = sorted({*np.linspace(0, len(config.leniences) - 1, 4).astype(int)})
  prices = [f'{figures["leniences"][i]:g}' for i in indices]
  rows = []
  for name, values in figures['objective'].items():
    less = '-'
    if name in figures['gained']:
      less = '{:.4f} ({:.4f} to {:.4f})'.format(*figures['gained'][name])
    cells = [values[i] for i in indices] + [figures['mean'][name]]
    rows.append((f'`{name}`', *(f'{x:.4f}' for x in cells), less))
  weights = [(f'`{name}`', f'{w:g}') for name, w in rule['weights'].items()]
  text = _CARD.format(
    name=folder.name,
    verifier=settings['verifier'],
    drafter=settings['drafter'],
    texts=figures['texts'],
    temperature=settings['temperature'],
    score=f'`{config.score}`' if config.score else 'quality',
    all_tokens=figures['all tokens'],
    held_out=config.held_out,
    prices_all=len(figures['leniences']),
    least=min(figures['leniences']),
    most=max(figures['leniences']),
    command=command,
    examples=figures['examples'],
    tokens=figures['tokens'],
    prices=', '.join(prices),
    table=acceptance_eval.format_table(
      ('rule', *prices, 'mean', 'learned, less'), rows
    ),
    weights=acceptance_eval.format_table(('feature', 'weight'), weights),
  )
  records.write_text(folder / 'README.md', text)
  text = json.dumps(figures, indent=2) + '\n'
  records.write_text(folder / 'figures.json', text)
