"""Which distance to the verifier predicts the quality that a point loses?

Command: python -m experiments.analysis.distances WORKDIR...
Shows: two tables. Each workdir is a sweep of several rules, all at one
temperature. (a) Of pairs of points of different rules whose acceptance differs
by at most .02, the share in which the point of the larger distance loses more,
and how far that is above the share of the baseline, acceptance; the intervals
are over examples. (b) At the largest distance at which no other rule lost more
than the margin: the share of left-out rules, or tasks, whose fastest point
there loses no more, the largest loss in margins, and the mean share of speed
that is kept.
"""

import itertools
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import pandas as pd

from cascades import DecodingConfig, Sampler, load_model, methods
from cascades.sampler import scoring
from experiments import records
from experiments.analysis import runs
from experiments.tasks import quality_metric

_FIRST, _NEAR, _RESAMPLES = 16, 0.02, 200
# Largest losses, of the best score.
_MARGIN, _CORPUS_MARGIN = 0.03, 0.01
# log(pi / p) where p is 0 in float32.
_LARGEST = 30.0


def _regret(method, d, lenience, token):
  del method, lenience
  logits = d.p_logits.astype(jnp.float32)
  return jnp.zeros(()), logits.max() - logits[token]


def _regrets(run, prompts, answers):
  """Returns log max p - log p(y) of each token, under the raw softmax."""
  dtype = run.config.get('dtype')
  config = DecodingConfig(batch_size=32, method='verifier_only', gamma=0)
  decoder = Sampler(load_model(run.config['verifier'], dtype), config=config)
  model, params, _ = decoder.verifier
  target = scoring.Target((model,), (params,), methods.METHODS['verifier_only'])
  requests = [
    (decoder.encode(prompts[x.id].prompt, False), x.tokens) for x in answers
  ]
  unique = {(x.id, *x.tokens): i for i, x in enumerate(answers)}
  chosen = [requests[i] for i in unique.values()]
  _, values = scoring.map_tokens(decoder, chosen, _regret, target)
  ends = np.cumsum([len(tokens) for _, tokens in chosen])
  of_answer = dict(zip(unique, np.split(values, ends[:-1]), strict=True))
  return [of_answer[x.id, *x.tokens] for x in answers]


def _columns(greedy, values):
  """Returns a token's parts of each distance, from regrets or log(pi / p)."""
  if greedy:
    return {'mean regret': values, 'flips': (values > 0).astype(float)}
  return {'TV': np.maximum(0, 1 - np.exp(-values)), 'KL': values}


def _distances(greedy, values, counts):
  """Returns the distances of a point in each resample, by name.

  `values` has an array for each answer, and `counts` [resamples, answers].
  """
  lengths = np.array([len(x) for x in values])
  output = {}
  for size, suffix in (None, ''), (_FIRST, f', first {_FIRST}'):
    short = [x[:size] for x in values]
    total = counts @ np.array([len(x) for x in short])
    parts = [_columns(greedy, x) for x in short]
    for name in parts[0]:
      sums = counts @ np.array([x[name].sum() for x in parts])
      output[name + suffix] = sums / total
  flat, owner = np.concatenate(values), np.repeat(range(len(values)), lengths)
  order = np.argsort(flat)
  weights = counts[:, owner[order]].cumsum(1)
  rank = (weights < 0.99 * weights[:, -1:]).sum(1)
  output['99 % quantile'] = flat[order][rank]
  largest = np.array([x.max(initial=0) for x in values])
  output['largest'] = np.where(counts > 0, largest, 0).max(1)
  return output


def _losses(task, points, counts):
  """Returns the losses of points in each resample, [resamples, points]."""
  metric = quality_metric(task)
  if metric is None or metric.corpus is None:
    quality = np.array([[r.quality for r in point] for point in points])
    means = counts @ quality.T / counts.sum(1, keepdims=True)
  else:
    names = [*points[0][0].scores]
    scores = [[[r.scores[x] for x in names] for r in y] for y in points]
    sums = np.einsum('rn,pnk->rpk', counts, np.array(scores))
    means = np.array(
      [
        [metric.corpus(dict(zip(names, x, strict=True))) for x in y]
        for y in sums
      ]
    )
    means /= metric.scale
  return means[:, :1] - means[:, 1:]


def _task(run, task, of_point, traces, prompts, draws):
  """Returns the points of a task: a frame, and draws of losses, distances."""
  points = [p for p in of_point if p[0].task == task and p[0].gamma]
  points = [p for p in points if p[0].verification != 'sequential']
  alone = [p for p in of_point if p[0].task == task and not p[0].gamma]
  (verifier,) = [p for p in alone if p[0].method == 'verifier_only']
  ids, greedy = [r.id for r in verifier], verifier[0].temperature == 0
  if not greedy:
    # The law of a switch that looks ahead is not known.
    laws = [traces[p[0].point, p[0].id].target_logprobs for p in points]
    points = [p for p, law in zip(points, laws, strict=True) if None not in law]
  counts = np.random.default_rng(0).multinomial(
    len(ids), np.full(len(ids), 1 / len(ids)), draws
  )
  counts = np.concatenate([np.ones((1, len(ids)), int), counts])
  losses = _losses(task, [verifier, *points], counts)
  answers = [traces[r.point, r.id] for p in points for r in p]
  if greedy:
    values = _regrets(run, prompts, answers)
  else:
    values = [
      np.clip(
        np.subtract(x.target_logprobs, x.verifier_logprobs), -np.inf, _LARGEST
      )
      for x in answers
    ]
  rows, distances = [], []
  for i, point in enumerate(points):
    own = values[i * len(ids) : (i + 1) * len(ids)]
    accepted, examined, emitted, latency = (
      counts @ np.array([f(r) for r in point])
      for f in (
        lambda r: r.accepted,
        lambda r: r.examined,
        lambda r: r.emitted,
        lambda r: runs.metrics.latency(r, run.costs),
      )
    )
    of_draws = {'acceptance': accepted / examined}
    distances.append(of_draws | _distances(greedy, own, counts))
    first = point[0]
    rows.append(
      dict(
        task=f'{run.path.name} {task}',
        rule=first.method,
        lenience=first.lenience,
        gamma=first.gamma,
        speed=emitted[0] / latency[0],
        margin=_CORPUS_MARGIN if runs.is_corpus(task) else _MARGIN,
      )
    )
  draws_of = {k: np.stack([x[k] for x in distances], 1) for k in distances[0]}
  return pd.DataFrame(rows), losses, draws_of


def _agreement(frame, losses, distances):
  """Returns the share of ordered pairs in each resample, by distance."""
  near = distances['acceptance'][0]
  pairs = [
    (i, j)
    for i, j in itertools.combinations(range(len(frame)), 2)
    if frame.task[i] == frame.task[j] and frame.rule[i] != frame.rule[j]
    if abs(near[i] - near[j]) <= _NEAR
  ]
  i, j = np.transpose(pairs)
  more = np.sign(losses[:, i] - losses[:, j])
  shares = {
    name: (1 + more * np.sign(x[:, i] - x[:, j])).mean(1) / 2
    for name, x in distances.items()
  }
  return len(pairs), shares


def _left_out(frame, lost, distance, by):
  """Returns losses in margins and kept speeds of the parts left out."""
  output = []
  groups = [['task', 'rule'], ['task']][by == 'task']
  for key, part in frame.groupby(groups, sort=False):
    same_task = frame.task == key[0]
    others = frame.index[
      (same_task & (frame.rule != key[-1])) if by == 'rule' else ~same_task
    ]
    unsafe = [distance[k] for k in others if lost[k] > 1]
    limit = min(unsafe, default=np.inf)
    safe = [distance[k] for k in others if distance[k] < limit]
    limit = max(safe, default=-np.inf)
    allowed = [k for k in part.index if distance[k] <= limit]
    best = max((frame.speed[k] for k in part.index if lost[k] <= 1), default=0)
    if allowed and best:
      k = max(allowed, key=frame.speed.get)
      output.append((lost[k], frame.speed[k] / best))
  return np.transpose(output) if output else np.full((2, 1), np.nan)


def main(paths):
  """Prints both tables."""
  frames, losses, distances = [], [], []
  for path in map(pathlib.Path, paths):
    run = runs.read(path)
    of_point = list(runs.metrics.by_point(run.decoded).values())
    traces = {}
    for name, part in run.records.items():
      if name != runs.metrics.SEQUENTIAL:
        lines = records.read_traces(path, name)
        for r, trace in zip(part, lines, strict=False):
          traces[r.point, r.id] = trace
    for task, prompts in records.read_examples(path).items():
      parts = _task(run, task, of_point, traces, prompts, _RESAMPLES)
      for output, part in zip((frames, losses, distances), parts, strict=True):
        output.append(part)
  frame = pd.concat(frames, ignore_index=True)
  loss = np.concatenate(losses, 1)
  names = [*distances[0]]
  distance = {
    name: np.concatenate([x[name] for x in distances], 1) for name in names
  }
  count, shares = _agreement(frame, loss, distance)
  lost, rows = loss[0] / frame.margin.to_numpy(), []
  for name in names:
    over = shares[name] - shares['acceptance']
    low, high = np.quantile(shares[name], (0.025, 0.975))
    row = dict(
      distance=name,
      share=shares[name][0],
      low=low,
      high=high,
      above_baseline=over[0],
      above_low=np.quantile(over, 0.025),
    )
    for by in 'rule', 'task':
      if by == 'task' and frame.task.nunique() < 2:
        continue
      losses_of, kept = _left_out(frame, lost, distance[name][0], by)
      row |= {
        f'{by}s': len(kept),
        f'{by}s held': (losses_of <= 1).mean(),
        f'{by}: worst': losses_of.max(),
        f'{by}: speed kept': kept.mean(),
      }
    rows.append(row)
  print(f'{len(frame)} points, {count} pairs')
  print(pd.DataFrame(rows).round(3).to_string(index=False))
  values = {name: x[0] for name, x in distance.items()}
  frame.assign(loss=loss[0], **values).to_csv('distances.csv', index=False)


if __name__ == '__main__':
  main(sys.argv[1:])
