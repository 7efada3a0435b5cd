"""Predictions with unit costs: which rule, lenience and gamma would pay."""

import math
from collections.abc import Iterable, Mapping, Sequence
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

# Least answers and tokens to read: of the verifier, and of a lossy rule at each
# of its leniences, which is decoded at this gamma.
GOAL, OWN_GOAL, _OWN_GAMMA = (40, 3000), (8, 1000), 4
# Columns of the table for each batch.
_BY_BATCH = 'gamma', 'speedup'


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
  options |= dict(config=pair.config)
  models = pair.verifier, pair.drafter
  prediction = predicting.predict(*models, texts, **options)
  points, frames = pd.DataFrame(prediction.points), []
  for batch, unit in unit_costs.items():
    break_even = unit.break_even(points.gamma.unique())
    frames.append(points.assign(batch=batch, break_even=break_even))
    comparisons.add_speedups(frames[-1], unit)
  return prediction, pd.concat(frames, ignore_index=True)


def fastest(frame: pd.DataFrame) -> pd.DataFrame:
  """Selects the best gamma of each lenience at each batch, strict first."""
  keys = [frame[name] for name in ('method', 'lenience', 'batch')]
  speedups = frame.speedup.fillna(0).groupby(keys, sort=False)
  return frame.loc[speedups.idxmax()]


def sentence(frame: pd.DataFrame) -> str:
  """Returns the speed-up of strict decoding in words."""
  strict = fastest(frame.query("method == 'speed' and lenience == 0"))
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
  names = 'method lenience acceptance_rate tokens_per_call low high'.split()
  names += ['deferral_rate', 'total_variation', 'kl', *_BY_BATCH]
  (_, first), *rest = fastest(frame).groupby('batch')
  output = first[names]
  for batch, best in rest:
    # The rows of all batches have one order.
    columns = {f'{x}_batch_{batch}': [*best[x]] for x in _BY_BATCH}
    output = output.assign(**columns)
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


def own_leniences(method: str, leniences: Iterable[float]) -> list[float]:
  """Selects lossy leniences: after a third, two thirds and all of them."""
  is_strict = methods.get_method(method).is_strict
  lossy = sorted(x for x in leniences if not is_strict(x))
  thirds = (math.ceil(i * len(lossy) / 3) - 1 for i in (1, 2, 3))
  return [lossy[i] for i in sorted({*thirds})] if lossy else []


def first_texts(
  contexts: Sequence, answers: Sequence[Sequence[int]], goal: tuple[int, int]
) -> list[Text]:
  """Pairs contexts and answers up to a goal of answers and of tokens."""
  ends = np.cumsum([*map(len, answers)])
  count = max(goal[0], int(np.searchsorted(ends, goal[1])) + 1)
  return [*zip(contexts[:count], answers, strict=False)]


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

  def decode(method, leniences, prompts, goal, gamma):
    """Answers some prompts at a time until each lenience has enough tokens."""
    options = dict(method=method, lenience=leniences[0], gamma=gamma)
    config = pair.config.replace(**options)
    decoder = sampler.Sampler(pair.verifier, pair.drafter, config=config)
    texts: list[list[Text]] = [[] for _ in leniences]
    total, (size, positions) = len(prompts[: goal[0]]) * len(leniences), goal
    with cli.progress(total, f'decoding {method}') as bar:
      for first in range(0, len(prompts), size):
        batch = prompts[first : first + size]
        bar.total = (first + len(batch)) * len(leniences)
        # Another seed gives another answer to a repeated prompt.
        options = request | {'seed': request['seed'] + first}
        options['on_answer'] = bar.update
        curve = decoder.sample_curve(batch, leniences, **options)
        contexts = [pair.encode(prompt, is_chat) for prompt in batch]
        for of_lenience, outputs in zip(texts, curve, strict=True):
          tokens = [output.tokens for output in outputs]
          of_lenience += zip(contexts, tokens, strict=True)
        if min(sum(len(y) for _, y in x) for x in texts) >= positions:
          break
    return texts

  goal = (answers, 0) if answers else GOAL
  (texts,) = decode('verifier_only', [0.0], prompts, goal, gamma=0)
  gamma, own_texts = min(_OWN_GAMMA, pair.config.gamma), {}
  for name in rules:
    if at := own_leniences(name, rules[name]):
      curve = decode(name, at, prompts[: len(texts)], OWN_GOAL, gamma)
      own_texts |= {(name, x): y for x, y in zip(at, curve, strict=True)}
  return texts, own_texts
