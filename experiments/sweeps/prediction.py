"""Predictions with unit costs: which rule, lenience and gamma would pay."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd

from cascades import methods
from cascades.models.chat import Prompt
from cascades.sampler import predicting, sampler
from cascades.sampler.predicting import Prediction, Text
from experiments import cli
from experiments.analysis import comparisons
from experiments.records.unit_costs import Costs
from experiments.sweeps import costs

# Answers that are decoded at a time, positions that are enough and, of a lossy
# rule, gamma: of the verifier, and of a rule at each of its leniences.
ANSWERS, POSITIONS = 40, 3000
_RULE_ANSWERS, _RULE_POSITIONS, _RULE_GAMMA = 8, 1000, 4


def run(
  pair: sampler.Sampler,
  texts: Sequence[Text],
  unit_costs: Mapping[int, Costs],
  **options: Any,
) -> tuple[Prediction, pd.DataFrame]:
  """Predicts a pair, with a row of the frame for each batch and point.

  Texts and options (rules, gammas, own texts) are those of `cascades.predict`;
  unit costs are those of a batch, by its rows.
  """
  models = pair.verifier, pair.drafter
  options |= dict(config=pair.config)
  prediction = predicting.predict(*models, texts, **options)
  points, frames = pd.DataFrame(prediction.points), []
  gammas = points.gamma.unique()
  for batch, unit in unit_costs.items():
    per_token = unit.speedup(1, points.drafter_calls, points.gamma)
    speedups = points[['tokens_per_call', 'low', 'high']].mul(per_token, axis=0)
    frame = points.assign(batch=batch, break_even=unit.break_even(gammas))
    frame[comparisons.with_ends('speedup')] = speedups
    frames.append(frame)
  return prediction, pd.concat(frames, ignore_index=True)


def fastest(frame: pd.DataFrame) -> pd.DataFrame:
  """Selects the best gamma of each lenience at each batch, strict first."""
  keys = [frame[name] for name in ('method', 'lenience', 'batch')]
  speedups = frame.speedup.fillna(0).groupby(keys, sort=False)
  return frame.loc[speedups.idxmax()]


def sentence(frame: pd.DataFrame) -> str:
  """Returns the speed-up of strict decoding in words."""
  best = fastest(frame)
  strict = best[(best.method == 'speed') & (best.lenience == 0)]
  rows: Any = strict.itertuples()
  parts = [
    f'{x.speedup:.2f} [{x.speedup_low:.2f}, {x.speedup_high:.2f}] times as fast'
    f' at batch {x.batch} (gamma {x.gamma}, acceptance'
    f' {x.acceptance_rate:.2f}, break-even {x.break_even:.2f})'
    for x in rows
  ]
  sizes = np.arange(1, strict.batch.max() + 1)
  slow = sizes[np.interp(sizes, strict.batch, strict.speedup) < 1]
  pays = f'pays up to batch {sizes[-1]}'
  if len(slow):
    pays = f'does not pay from batch {slow[0]} on'
  return (
    'Compared with the verifier alone, strict decoding would be'
    f' {" and ".join(parts)}; the drafter {pays}.'
  )


def table(frame: pd.DataFrame) -> str:
  """Returns the best gamma of each lenience at each batch, as text."""
  keys, names = ['method', 'lenience'], ['gamma', 'speedup']
  rates = 'acceptance_rate tokens_per_call low high deferral_rate'.split()
  rates += ['total_variation', 'kl']
  (_, first), *rest = fastest(frame).groupby('batch')
  output = first[[*keys, *rates, *names]]
  for batch, best in rest:
    best, suffixes = best[[*keys, *names]], ('', f'_batch_{batch}')
    output = output.merge(best, on=keys, suffixes=suffixes)
  return output.to_string(
    index=False, float_format='{:z.3f}'.format, na_rep='-'
  )


def measure_costs(
  pair: sampler.Sampler, gammas: Sequence[int]
) -> dict[int, Costs]:
  """Measures unit costs at batch 1, 8 and, on devices that hold it, 64."""
  drafter, measured = pair.drafter, {}
  sizes = gammas if len(gammas) < 6 else [1, 2, 4, 8, max(gammas)]
  for rows in (1, 8) if jax.default_backend() == 'cpu' else (1, 8, 64):
    cli.say(f'measuring unit costs at batch {rows}')
    try:
      measured[rows] = costs.measure(
        pair.verifier,
        drafter.checkpoint if drafter.is_language_model else None,
        pair.bound_drafter,
        [(x, 1) for x in sizes if x <= max(gammas)],
        context=64,
        repeats=3,
        rows=rows,
      ).low
    except jax.errors.JaxRuntimeError as error:
      if rows == 1 or 'RESOURCE_EXHAUSTED' not in str(error):
        raise
  return measured


def decode_texts(
  pair: sampler.Sampler,
  prompts: Sequence[Prompt],
  rules: Mapping[str, Sequence[float]],
  answers: int | None = None,
  **request: Any,
) -> tuple[list[Text], dict[tuple[str, float], list[Text]]]:
  """Returns answers of the verifier, and of lossy rules at three leniences.

  As many prompts as are needed are answered, in their order.
  """
  reads_q = any(methods.get_method(name).law_uses_q for name in rules)
  if reads_q and not sampler.is_language_model(pair.bound_drafter):
    raise ValueError(
      'drafter: must be a model or self:N for rules that read q; leave --method'
      ' out for strict decoding.'
    )
  is_chat = request['apply_chat_template']
  if refusal := pair.refusal(prompts[0], request['max_new_tokens'], is_chat):
    raise ValueError(refusal)

  def decode(method, leniences, prompts, answers, positions, gamma):
    """Answers some prompts at a time until each lenience has enough tokens."""
    options = dict(method=method, lenience=leniences[0], gamma=gamma)
    config = pair.config.replace(**options)
    decoder = sampler.Sampler(pair.verifier, pair.drafter, config=config)
    texts: list[list[Text]] = [[] for _ in leniences]
    total = len(prompts[:answers]) * len(leniences)
    with cli.progress(total, f'decoding {method}') as bar:
      for first in range(0, len(prompts), answers):
        batch = prompts[first : first + answers]
        bar.total = (first + len(batch)) * len(leniences)
        # Another seed gives another answer to a repeated prompt.
        options = request | {'seed': request['seed'] + first}
        options['on_answer'] = bar.update
        curve = decoder.sample_curve(batch, leniences, **options)
        for of_lenience, outputs in zip(texts, curve, strict=True):
          pairs = zip(batch, outputs, strict=True)
          of_lenience += [(pair.encode(x, is_chat), y.tokens) for x, y in pairs]
        if min(sum(len(y) for _, y in x) for x in texts) >= positions:
          break
    return texts

  goal = (answers, 0) if answers else (ANSWERS, POSITIONS)
  (texts,) = decode('verifier_only', [0.0], prompts, *goal, gamma=0)
  prompts, own_texts = prompts[: len(texts)], {}
  goal = _RULE_ANSWERS, _RULE_POSITIONS
  gamma = min(_RULE_GAMMA, pair.config.gamma)
  for name, leniences in rules.items():
    is_strict = methods.get_method(name).is_strict
    lossy = sorted(x for x in leniences if not is_strict(x))
    # One third, two thirds and the end of the range.
    thirds = {math.ceil(i * len(lossy) / 3) - 1 for i in (1, 2, 3) if lossy}
    if at := [lossy[i] for i in sorted(thirds)]:
      curve = decode(name, at, prompts, *goal, gamma=gamma)
      own_texts |= {(name, x): y for x, y in zip(at, curve, strict=True)}
  return texts, own_texts
