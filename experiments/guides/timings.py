"""What benchmarks gave, from their committed figures."""

import json
from typing import Any

from experiments.guides import RESULTS, markdown


def benchmark(name: str) -> dict[str, Any]:
  """Reads the committed figures of a benchmark."""
  path = RESULTS / name / 'benchmark.json'
  return json.loads(path.read_text(encoding='utf-8'))


def _measured(name: str) -> str:
  """Says which config gave the figures of a benchmark, when and on what."""
  found = benchmark(name)
  versions = found['versions']
  # Each once, in their order: a part may have been measured anew.
  commits = dict.fromkeys(start['commit'][:7] for start in found['starts'])
  others: dict[str, str] = {}
  for row in found['figures']:
    others |= row.get('others', {})
  return (
    f'`configs/{name}.py` at commit'
    f' {", then ".join(f"`{commit}`" for commit in commits)}, {found["date"]},'
    f' {found["cores"]} CPU cores, jax {versions["jax"]}, gemma'
    f' {versions["gemma"]} ([all of it]({name}))'
    + ''.join(f', {name} {version}' for name, version in others.items())
  )


def performance() -> str:
  """Shows the fastest strict entrants of configs/benchmark.py."""
  from experiments.benchmarks import harness, loops

  found = benchmark('benchmark')
  figures = found['figures']
  about = markdown.filled(
    f'{_measured("benchmark")}, float32, greedy,'
    f' {found["config"]["new_tokens"]} new tokens and medians of'
    f' {found["config"]["repeats"]} turns (120M: 32 and 3). Of strict decoding'
    ' the fastest gamma: tokens per second of decoding, all rows together; that'
    " by gemma's sampler and by our loop with the verifier alone; and its time"
    ' by that of the same bare forward passes (*x floor*).'
  )
  heads = 'pair', 'batch', 'gamma', 'drafts kept', 'tokens/s'
  columns = {
    head: loops.COLUMNS[head]
    for head in (*heads, 'x gemma', 'x alone', 'x floor')
  }
  best = loops.fastest(loops.rows(figures)).values()
  _, held = loops.tables(figures)
  tables = [harness.table(columns, [*best]), held]
  return '\n\n'.join([about, *map(markdown.cells, tables)])


def drafters() -> str:
  """Shows all entrants of configs/benchmark_drafters.py."""
  from experiments.benchmarks import answering

  found = benchmark('benchmark_drafters')
  config = found['config']
  about = markdown.filled(
    f'{_measured("benchmark_drafters")}, strict, one prompt at a time,'
    f' {config["num_examples"]} of each kind, medians of'
    f' {config["repeats"]} turns. *Problems* are sampled at temperature 1;'
    ' *copies* are greedy answers to a problem that stands in the prompt with'
    ' its answer. *Latency* is modelled from calls and their bare costs, the'
    ' verifier alone being 1; *x alone* is wall clock.'
  )
  answers, _ = answering.tables(found['figures'])
  return f'{about}\n\n{markdown.cells(answers)}'


def pretrained() -> str:
  """Shows all entrants of configs/benchmark_270m.py."""
  from experiments.benchmarks import answering

  found = benchmark('benchmark_270m')
  config = found['config']
  about = markdown.filled(
    f'{_measured("benchmark_270m")}: captions of `{config["task"]}` after'
    f' {config["shots"]} worked examples, greedy and strict, gamma'
    f' {config["gamma"]}, {max(config["batch_sizes"])} prompts, medians of'
    f' {config["repeats"]} turns. Tokens a second are those of decoding,'
    ' without reading the prompts; *copies* are the prompts after their own'
    ' answers. Targets are ratios of tokens a second.'
  )
  tables = map(markdown.cells, answering.tables(found['figures']))
  return '\n\n'.join([about, *tables])
