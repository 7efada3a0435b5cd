"""Writes the generated parts of README.md anew.

Command: python -m experiments.readme
Shows: nothing; a test fails while README.md is not what this would write.

A part stands between `<!-- name -->` and `<!-- /name -->`.
"""

import json
import pathlib
import re

import numpy as np

from experiments import cli

_PATH = pathlib.Path(__file__).parent.parent / 'README.md'


def _number(value: float | None) -> str:
  return '-' if value is None else f'{value:g}'


def methods_table() -> str:
  """A row per registered method."""
  from cascades import methods

  lines = [
    '| method | equation | strict at | drafter alone at | reference |',
    '|---|---|---|---|---|',
  ]
  for method in methods.METHODS.values():
    equation = method.equation.replace('|', r'\|')
    lines.append(
      f'| `{method.name}` | {equation} | {_number(method.strict)}'
      f' | {_number(method.drafter_only)} | {method.reference} |'
    )
  return '\n'.join(lines)


def performance() -> str:
  """What configs/benchmark.py gave, from its committed figures."""
  from experiments.suites import decoding

  path = _PATH.parent / 'experiments/results/benchmark/benchmark.json'
  found = json.loads(path.read_text(encoding='utf-8'))
  figures, versions = found['figures'], found['versions']
  timed = decoding.rows(figures)
  lines = [
    f'Measured {found["date"]} on {found["cores"]} CPU cores, jax'
    f' {versions["jax"]}, gemma {versions["gemma"]}, float32, greedy,'
    f' {found["config"]["new_tokens"]} new tokens and medians of'
    f' {found["config"]["repeats"]} turns (120M: 32 and 3). Tokens per second'
    ' of decoding, all rows together; *x floor* is the time of the best strict'
    ' arm by that of the same bare forward passes.',
    '',
    "| pair | batch | gemma's sampler | ours, verifier alone | lock-step |"
    ' ours, strict | at gamma | drafts kept | x gemma | x floor |',
    '|---|---|---|---|---|---|---|---|---|---|',
  ]
  groups = dict.fromkeys((row['pair'], row['batch']) for row in timed)
  for pair, batch in groups:
    mine = [r for r in timed if (r['pair'], r['batch']) == (pair, batch)]
    arms = {
      row['arm']: row['tokens_per_s'] for row in mine if row.get('tokens_per_s')
    }
    best = max(
      (row for row in mine if row['arm'] == 'strict' and 'over_floor' in row),
      key=lambda row: row['tokens_per_s'],
    )
    lines.append(
      f'| {pair} | {batch} | {arms["gemma"]:.0f} | {arms["alone"]:.0f} |'
      f' {arms["lock-step"]:.0f} | {best["tokens_per_s"]:.0f} |'
      f' {best["gamma"]} | {best["acceptance"]:.2f} |'
      f' {best["over_gemma"]:.2f} | {best["over_floor"]:.2f} |'
    )
  lines += ['', '| target | bound | found | met |', '|---|---|---|---|']
  lines += [
    f'| {name} | {bound} | {value} | {"yes" if met else "**no**"} |'
    for name, bound, value, met in decoding.targets(figures)
  ]
  return '\n'.join(lines)


def drafters() -> str:
  """What configs/benchmark_drafters.py gave, from its committed figures."""
  from experiments.suites import drafters as suite

  path = _PATH.parent / 'experiments/results/benchmark_drafters/benchmark.json'
  found = json.loads(path.read_text(encoding='utf-8'))
  config, figures = found['config'], found['figures']
  lines = [
    f'Measured {found["date"]} on {found["cores"]} CPU cores, strict, one'
    f' prompt at a time, {config["num_examples"]} of each kind, medians of'
    f' {config["repeats"]} turns. *Problems* are sampled at temperature 1;'
    ' *copies* are greedy answers to a problem that stands in the prompt with'
    ' its answer; *loops* are what the 32M verifier goes on writing, whose'
    ' random weights repeat themselves. *Latency* is modelled from calls and'
    ' their bare costs, the verifier alone being 1; *x alone* is wall clock.',
    '',
    '| prompts | drafter | gamma | drafts | drafts kept | tokens per call |'
    ' latency | x alone |',
    '|---|---|---|---|---|---|---|---|',
  ]
  for row in suite.rows(figures):
    kept, latency = (
      '-' if row.get(name) is None else f'{row[name]:.2f}'
      for name in ('acceptance', 'latency')
    )
    lines.append(
      f'| {row["part"]} | {row["arm"]} | {row["gamma"]} | {row["drafts"]}'
      f' | {kept} |'
      f' {row["tokens_per_call"]:.2f} | {latency} | {row["over_alone"]:.2f} |'
    )
  trees = '; '.join(
    f'{row["drafts"]} draft{"s" * (row["drafts"] > 1)}:'
    f' {np.median(row["block_s"]) / np.median(row["floor_s"]):.2f}'
    for row in figures
    if row['part'] == 'tree'
  )
  lines += ['', f'The loop by its bare forward passes, 32M pair: {trees}.']
  return '\n'.join(lines)


PARTS = {
  'methods': methods_table,
  'performance': performance,
  'drafters': drafters,
}


def render(text: str) -> str:
  """README.md with every generated part made anew.

  Raises:
    ValueError: A part has no place in it.
  """
  for name, make in PARTS.items():
    start, end = f'<!-- {name} -->', f'<!-- /{name} -->'
    pattern = re.compile(f'{re.escape(start)}.*?{re.escape(end)}', re.DOTALL)
    if not pattern.search(text):
      raise ValueError(f'README.md: no place for {name}; add {start} {end}.')
    part = f'{start}\n\n{make()}\n\n{end}'
    text = pattern.sub(lambda _, part=part: part, text)
  return text


def main() -> None:
  text = _PATH.read_text(encoding='utf-8')
  _PATH.write_text(render(text), encoding='utf-8')


if __name__ == '__main__':
  cli.run(main)
