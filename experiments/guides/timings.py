"""What benchmarks gave, from their committed figures."""

import json
from typing import Any

import numpy as np

from experiments.guides import RESULTS, markdown


def benchmark(name: str) -> dict[str, Any]:
  """The committed figures of a benchmark."""
  path = RESULTS / name / 'benchmark.json'
  return json.loads(path.read_text(encoding='utf-8'))


def _measured(name: str) -> str:
  """Which config gave the figures of a benchmark, when and on what."""
  found = benchmark(name)
  versions = found['versions']
  commit = ''
  if found.get('starts'):
    # Each once, in their order: a part may have been measured anew.
    each = dict.fromkeys(start['commit'][:7] for start in found['starts'])
    commit = ' at commit ' + ', then '.join(f'`{name}`' for name in each)
  return (
    f'`configs/{name}.py`{commit}, {found["date"]},'
    f' {found["cores"]} CPU cores, jax {versions["jax"]}, gemma'
    f' {versions["gemma"]} ([all of it]({name}))'
  )


def best_strict(timed: list[dict[str, Any]]) -> dict[tuple, dict[str, Any]]:
  """The fastest strict arm of each pair and batch size."""
  found: dict[tuple, dict[str, Any]] = {}
  for row in timed:
    if row['arm'] == 'strict' and 'over_floor' in row:
      key = row['pair'], row['batch']
      best = found.setdefault(key, row)
      if row['tokens_per_s'] > best['tokens_per_s']:
        found[key] = row
  return found


def performance() -> str:
  """What configs/benchmark.py gave, from its committed figures."""
  from experiments.benchmarks import loops

  found = benchmark('benchmark')
  timed = loops.rows(found['figures'])
  about = markdown.filled(
    f'{_measured("benchmark")}, float32, greedy,'
    f' {found["config"]["new_tokens"]} new tokens and medians of'
    f' {found["config"]["repeats"]} turns (120M: 32 and 3). Tokens per second'
    ' of decoding, all rows together; *x floor* is the time of the best'
    ' strict arm by that of the same bare forward passes.'
  )
  rows = []
  for (pair, batch), best in best_strict(timed).items():
    arms = {
      row['arm']: row['tokens_per_s']
      for row in timed
      if (row['pair'], row['batch']) == (pair, batch)
      and row.get('tokens_per_s')
    }
    rows.append(
      f'| {pair} | {batch} | {arms["gemma"]:.0f} | {arms["alone"]:.0f} |'
      f' {arms["lock-step"]:.0f} | {best["tokens_per_s"]:.0f} |'
      f' {best["gamma"]} | {best["acceptance"]:.2f} |'
      f' {best["over_gemma"]:.2f} | {best["over_floor"]:.2f} |'
    )
  speeds = markdown.table(
    "| pair | batch | gemma's sampler | ours, verifier alone | lock-step |"
    ' ours, strict | at gamma | drafts kept | x gemma | x floor |',
    *rows,
  )
  bounds = _bars(loops.targets(found['figures']))
  return f'{about}\n\n{speeds}\n\n{bounds}'


def drafters() -> str:
  """What configs/benchmark_drafters.py gave, from its committed figures."""
  from experiments.benchmarks import proposals as suite

  found = benchmark('benchmark_drafters')
  config, figures = found['config'], found['figures']
  about = markdown.filled(
    f'{_measured("benchmark_drafters")}, strict, one prompt at a time,'
    f' {config["num_examples"]} of each kind, medians of'
    f' {config["repeats"]} turns. *Problems* are sampled at temperature 1;'
    ' *copies* are greedy answers to a problem that stands in the prompt with'
    ' its answer; *loops* are what the 32M verifier goes on writing, whose'
    ' random weights repeat themselves. *Latency* is modelled from calls and'
    ' their bare costs, the verifier alone being 1; *x alone* is wall clock.'
  )
  rows = []
  for row in suite.rows(figures):
    kept, latency = (
      '-' if row.get(name) is None else f'{row[name]:.2f}'
      for name in ('acceptance', 'latency')
    )
    rows.append(
      f'| {row["part"]} | {row["arm"]} | {row["gamma"]} | {row["drafts"]}'
      f' | {kept} |'
      f' {row["tokens_per_call"]:.2f} | {latency} | {row["over_alone"]:.2f} |'
    )
  table = markdown.table(
    '| prompts | drafter | gamma | drafts | drafts kept | tokens per call |'
    ' latency | x alone |',
    *rows,
  )
  trees = '; '.join(
    f'{row["drafts"]} draft{"s" * (row["drafts"] > 1)}:'
    f' {np.median(row["block_s"]) / np.median(row["floor_s"]):.2f}'
    for row in figures
    if row['part'] == 'tree'
  )
  return (
    f'{about}\n\n{table}\n\n'
    f'The loop by its bare forward passes, 32M pair: {trees}.'
  )


def pretrained() -> str:
  """What configs/benchmark_270m.py gave, from its committed figures."""
  from experiments.benchmarks import pretrained as suite

  found = benchmark('benchmark_270m')
  config, figures = found['config'], found['figures']
  (machine,) = (row for row in figures if row['part'] == 'machine')
  calls = suite.calls(figures)
  read = calls['float32']
  table_share = 1 - read['1 without logits'] / read['1']
  others = ', '.join(f'{k} {v}' for k, v in machine['others'].items())
  about = markdown.filled(
    f'{_measured("benchmark_270m")}{", " if others else ""}{others}:'
    f' captions of `{config["task"]}` after {config["shots"]} worked examples,'
    f' greedy and strict, gamma {config["gamma"]},'
    f' {max(config["batch_sizes"])} prompts, medians of {config["repeats"]}'
    ' turns. Tokens a second are those of decoding, without reading the'
    ' prompts; *copies* are the prompts after'
    f' their own answers. Of {machine["parameters"] / 1e6:.0f} M parameters'
    f' {machine["table"] / 1e6:.0f} M are the table of tokens, and to multiply'
    f' by it is {table_share:.0%} of a call.'
  )
  widths = [str(n) for n in config['widths']]
  reading = markdown.table(
    '| numbers | a token, ms | '
    + ' | '.join(f'reading {n}' for n in widths[1:])
    + " | without logits | a drafter's call |",
    *(
      f'| {dtype} | {1e3 * of["1"]:.1f} | '
      + ' | '.join(
        f'{of[what] / of["1"]:.2f}'
        for what in (*widths[1:], '1 without logits', 'drafter')
      )
      + ' |'
      for dtype, of in calls.items()
    ),
  )
  speeds = markdown.table(
    '| prompts | numbers | batch | arm | tokens/s | x alone |'
    ' tokens per call | prompts read, s |',
    *(
      f'| {row["part"]} | {row["dtype"]} | {row["batch"]} | {row["arm"]} |'
      f' {row["tokens_per_s"]:.1f} | {row["over_alone"]:.2f} |'
      f' {_or_dash(row["tokens_per_call"])} | {row["prefill_s"]:.2f} |'
      for row in suite.rows(figures)
    ),
  )
  bounds = _bars(suite.targets(figures))
  return f'{about}\n\n{reading}\n\n{speeds}\n\n{bounds}'


def _or_dash(value: float | None) -> str:
  return '-' if value is None else f'{value:.2f}'


def _bars(targets) -> str:
  """A table of targets, met or not."""
  return markdown.table(
    '| target | bound | found | met |',
    *(
      f'| {name} | {bound} | {value} | {"yes" if met else "**no**"} |'
      for name, bound, value, met in targets
    ),
  )
