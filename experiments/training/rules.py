"""Training a deferral rule on what sweeps of a pair wrote.

Nobody has texts of the true distribution, which Lemma 4 asks for (see
`contrib.rule_fitting`); here they are those of a sweep of the pair, on training
examples, each weighing as it was scored, and each example as much as another.
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

# Fields of a sweep that say how rows come about, with their usual values: they
# have to be the same of all workdirs.
_ALIKE = {
  'verifier': None,
  'drafter': None,
  'temperature': 1.0,
  'gate': 'raw',
  'dtype': None,
  'chat': False,
}


def settings(workdirs: Sequence[str]) -> dict[str, Any]:
  """How sweeps were decoded that a rule is to learn from.

  Returns:
    The fields of `_ALIKE`.

  Raises:
    ValueError: There is none, one is of test examples, or they differ.
  """
  found: dict[str, Any] = {}
  for workdir in workdirs:
    path = pathlib.Path(workdir) / 'config.json'
    try:
      config = records.read_json(path)
      said = {name: config.get(name, _ALIKE[name]) for name in _ALIKE}
    except (OSError, ValueError):
      raise ValueError(
        f'workdirs: {path} is not there, or no config; name finished sweeps,'
        ' with commas between them.'
      ) from None
    if config.get('split', 'test') == 'test':
      raise ValueError(
        f'workdirs: {workdir} is of test examples, which no rule may learn'
        ' from; decode training examples, with --config.split=train.'
      )
    for name, value in said.items():
      if found.setdefault(name, value) != value:
        raise ValueError(
          f'workdirs: {workdir} has the {name} {value!r}, and those before it'
          f' {found[name]!r}; name sweeps that agree in it.'
        )
  return found


def gather(
  config: ConfigDict, workdirs: Sequence[str]
) -> list[rule_fitting.Text]:
  """The texts of some sweeps that are worth something.

  A text that several points wrote is one, and weighs as often.

  Args:
    config: Says which score weighs them, and how many there may be.
    workdirs: Theirs.

  Raises:
    ValueError: There are no records, a score is unknown, or none is above 0.
  """
  worth: dict[tuple, float] = {}
  prompts: dict[tuple[str, str], str] = {}
  for workdir in workdirs:
    asked = records.read_examples(workdir)
    for point, lines in records.read_points(workdir).items():
      traces = records.read_traces(workdir, point)
      for record, trace in zip(lines, traces, strict=True):
        score = _worth(record, config.score)
        if not score > 0 or not trace.tokens:
          continue
        example = record.task, record.id
        prompts[example] = asked[record.task][record.id].prompt
        key = example, tuple(trace.tokens)
        worth[key] = worth.get(key, 0.0) + score**config.sharpness
  if not worth:
    raise ValueError(
      f'workdirs: no answer in {", ".join(workdirs)} is right; a rule learns'
      ' from those that are.'
    )
  # Whichever come first by a hash.
  kept = sorted(worth, key=lambda key: records.digest([*key[0], *key[1]]))
  kept = kept[: config.texts]
  totals: dict[tuple[str, str], float] = {}
  for key in kept:
    totals[key[0]] = totals.get(key[0], 0.0) + worth[key]
  return [
    rule_fitting.Text(
      key[0], prompts[key[0]], key[1], worth[key] / totals[key[0]]
    )
    for key in kept
  ]


def _worth(record: records.Record, score: str) -> float:
  """How right an answer is, at least 0; nan of what failed."""
  if record.failure is not None:
    return math.nan
  if score and score not in record.scores:
    raise ValueError(
      f'score: {record.task} has no score {score!r}; there are'
      f' {", ".join(record.scores)}.'
    )
  return record.scores[score] if score else record.quality


def judge(
  places: rule_fitting.Places,
  weights: Mapping[str, float],
  leniences: Sequence[float],
) -> dict[str, Any]:
  """(J) of the learned rule and of others, on examples that are held out.

  At each price of a rejection every rule has the lenience that is best on the
  others.

  Returns:
    `leniences`; `objective`, by rule, at each; its mean over them, `mean`; and
    `gained`, by rule, by how much the learned one's mean is less, with a
    bootstrap interval over examples.
  """
  parts = [places.only(~places.held), places.only(places.held)]
  # All of them at leniences that are as near.
  own = sorted({*leniences, *np.linspace(-0.2, 1, 25).tolist()})
  train, test = (rule_fitting.compare(part, weights, own) for part in parts)
  weight, example = parts[1].weight, parts[1].example
  objective, per_token = {}, {}
  for name in train:
    chosen = []
    for price in leniences:
      best = np.argmin(parts[0].weight @ train[name].at(price))
      chosen.append(test[name].at(price)[:, best])
    objective[name] = [float(weight @ x) for x in chosen]
    per_token[name] = np.mean(chosen, axis=0)

  def gained(name):
    less = per_token[name] - per_token[learned.NAME]
    _, number = np.unique(example, return_inverse=True)
    rows = [np.bincount(number, each) for each in (weight * less, weight)]
    low, high = stats.bootstrap_sums_interval(
      np.stack(rows, 1), lambda sums: sums[0] / sums[1]
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


def train_rule(
  config: ConfigDict, workdir: pathlib.Path
) -> tuple[pathlib.Path, dict[str, Any], dict[str, Any]]:
  """Trains a rule on what sweeps wrote, and judges it.

  Args:
    config: Fields of a training, such as those of configs/train_rule.py.
    workdir: The rule is written in a folder there.

  Returns:
    The folder, the figures, and how the sweeps were decoded.

  Raises:
    ValueError: The sweeps, or a field, will not do.
  """
  workdirs = [name for name in config.workdirs.split(',') if name]
  if not workdirs:
    raise ValueError(
      'workdirs: name a sweep of training examples with --config.workdirs=...'
    )
  if not 0 < config.held_out < 1:
    raise ValueError(
      f'held_out: {config.held_out} will not do; give a share above 0 and'
      ' below 1.'
    )
  if not config.softness > 0 or not config.ridge >= 0:
    raise ValueError(
      'softness: give a number above 0, and a ridge of 0 or more.'
    )
  of = settings(workdirs)
  texts = gather(config, workdirs)
  decoder = sampler.Sampler(
    of['verifier'],
    of['drafter'],
    config=DecodingConfig(
      method='speed',
      lenience=0.0,
      gamma=1,
      temperature=of['temperature'],
      gate=of['gate'],
      batch_size=config.batch_size,
    ),
    dtype=of['dtype'],
  )
  places = rule_fitting.read(
    decoder, texts, config.held_out, of['chat'], workdir
  )
  if not 0 < places.held.mean() < 1:
    raise ValueError(
      f'held_out: {config.held_out} of the examples leaves nothing to learn'
      ' from, or nothing to judge by; give another share, or more examples.'
    )
  fields = config.leniences, config.softness, config.ridge
  weights = rule_fitting.fit(places.only(~places.held), *fields)
  names = of['verifier'], of['drafter']
  prints = learned.fingerprints(decoder.verifier, decoder.bound_drafter)
  folder = workdir / config.name
  learned.save(folder, weights, names, prints)
  figures = judge(places, weights, config.leniences)
  figures |= {'texts': len(texts), 'all tokens': len(places.weight)}
  return folder, figures, of


_CARD = """---
library_name: cascades
---

# {name}

A deferral rule for `{verifier}` and `{drafter}`, and for no other pair:
Lemma 4 of Narasimhan et al. 2025 (arXiv 2405.19261) with a linear head in the
place of the difference of losses (`cascades/contrib/learned.py`).

- Data: {texts} texts that a sweep of the pair wrote to training examples, at
  temperature {temperature:g}, weighed by {score}; {all_tokens:,} tokens. Of
  the examples {held_out:.0%} are held out.
- Training: mean of the lemma's objective over {prices_all} leniences from
  {least:g} to {most:g}; L-BFGS, from OPT's weights.
- Retrain: `{command}`.

What is lost and paid for rejections, a token, on the {examples} examples that
are held out ({tokens:,} tokens), where a rejection costs {prices}, and the
mean over all leniences; of each rule at the lenience that is best on the other
examples. Last, by how much the learned rule's mean is less, with a 95 %
interval.

{table}

The weights:

{weights}

Use: `cascades.Sampler('{verifier}', '{drafter}',
method='learned:{name}')`, with this folder for the name where it is not
bundled.
"""


def write_card(
  folder: pathlib.Path,
  config: ConfigDict,
  figures: Mapping[str, Any],
  of: Mapping[str, Any],
  command: str,
) -> None:
  """Writes a card with these figures beside a rule.

  Args:
    folder: The rule's.
    config: Of its training.
    figures: From `train_rule`.
    of: How the sweeps were decoded.
    command: What trains it.
  """
  said = json.loads((folder / learned.FILE).read_text(encoding='utf-8'))
  # A few of the prices will do.
  shown = sorted({*np.linspace(0, len(config.leniences) - 1, 4).astype(int)})
  prices = [f'{figures["leniences"][i]:g}' for i in shown]
  rows = []
  for name, values in figures['objective'].items():
    less = '-'
    if name in figures['gained']:
      less = '{:.4f} ({:.4f} to {:.4f})'.format(*figures['gained'][name])
    cells = [values[i] for i in shown] + [figures['mean'][name]]
    rows.append((f'`{name}`', *(f'{x:.4f}' for x in cells), less))
  weights = [(f'`{name}`', f'{w:g}') for name, w in said['weights'].items()]
  text = _CARD.format(
    name=folder.name,
    verifier=of['verifier'],
    drafter=of['drafter'],
    texts=figures['texts'],
    temperature=of['temperature'],
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
    table=acceptance_eval.table(
      ('rule', *prices, 'mean', 'learned, less'), rows
    ),
    weights=acceptance_eval.table(('feature', 'weight'), weights),
  )
  records.write_text(folder / 'README.md', text)
  text = json.dumps(figures, indent=2) + '\n'
  records.write_text(folder / 'figures.json', text)
