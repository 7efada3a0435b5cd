"""Writes the generated parts of README.md anew.

Command: python -m experiments.readme
Shows: nothing; a test fails while README.md is not what this would write.

A part stands between `<!-- name -->` and `<!-- /name -->`.
"""

import datetime
import functools
import json
import pathlib
import re
import textwrap
from typing import Any

import numpy as np

from experiments import cli

_PATH = pathlib.Path(__file__).parent.parent / 'README.md'
_RESULTS = _PATH.parent / 'experiments/results'


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


def _filled(text: str) -> str:
  """In lines of 80, as all of the page."""
  return textwrap.fill(
    text, width=80, break_long_words=False, break_on_hyphens=False
  )


def _measured(name: str, found: dict[str, Any]) -> str:
  """Which config gave the figures of a benchmark, when and on what."""
  *_, start = found['starts']
  versions = found['versions']
  return (
    f'`configs/{name}.py` at commit `{start["commit"][:7]}`, {found["date"]},'
    f' {found["cores"]} CPU cores, jax {versions["jax"]}, gemma'
    f' {versions["gemma"]} ([all of it](experiments/results/{name}))'
  )


def performance() -> str:
  """What configs/benchmark.py gave, from its committed figures."""
  from experiments.benchmarks import loops

  path = _RESULTS / 'benchmark/benchmark.json'
  found = json.loads(path.read_text(encoding='utf-8'))
  figures = found['figures']
  timed = loops.rows(figures)
  lines = [
    _filled(
      f'{_measured("benchmark", found)}, float32, greedy,'
      f' {found["config"]["new_tokens"]} new tokens and medians of'
      f' {found["config"]["repeats"]} turns (120M: 32 and 3). Tokens per second'
      ' of decoding, all rows together; *x floor* is the time of the best'
      ' strict arm by that of the same bare forward passes.'
    ),
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
    for name, bound, value, met in loops.targets(figures)
  ]
  return '\n'.join(lines)


def drafters() -> str:
  """What configs/benchmark_drafters.py gave, from its committed figures."""
  from experiments.benchmarks import proposals as suite

  path = _RESULTS / 'benchmark_drafters/benchmark.json'
  found = json.loads(path.read_text(encoding='utf-8'))
  config, figures = found['config'], found['figures']
  lines = [
    _filled(
      f'{_measured("benchmark_drafters", found)}, strict, one prompt at a time,'
      f' {config["num_examples"]} of each kind, medians of'
      f' {config["repeats"]} turns. *Problems* are sampled at temperature 1;'
      ' *copies* are greedy answers to a problem that stands in the prompt with'
      ' its answer; *loops* are what the 32M verifier goes on writing, whose'
      ' random weights repeat themselves. *Latency* is modelled from calls and'
      ' their bare costs, the verifier alone being 1; *x alone* is wall clock.'
    ),
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


def _config(name: str) -> dict[str, Any]:
  """What a sweep with committed results was told."""
  read = (_RESULTS / name / 'config.json').read_text(encoding='utf-8')
  return json.loads(read)


def _told(name: str, more: str = '') -> str:
  """Which config gave the results of a folder, when and on what."""
  folder = _RESULTS / name
  read = (folder / 'provenance.json').read_text(encoding='utf-8')
  *_, start = json.loads(read)['starts']
  began, ended = (
    datetime.datetime.fromisoformat(start[key]) for key in ('started', 'ended')
  )
  seconds = round((ended - began).total_seconds())
  versions, config = start['versions'], _config(name)
  return _filled(
    f'`configs/{name}.py` at commit `{start["commit"][:7]}`, {began:%Y-%m-%d},'
    f' {start["device"]}, jax {versions["jax"]}, gemma {versions["gemma"]}, in'
    f' {seconds // 60} min {seconds % 60} s'
    f' ([all of it](experiments/results/{name})): {config["num_examples"]}'
    f' problems a task, temperature {config["temperature"]:g}{more}:'
  )


# Of the quickstart: task, method, lenience, and what people call them.
_SHOWN = (
  ('word_problems', 'verifier_only', None, 'verifier alone'),
  ('word_problems', 'drafter_only', None, 'drafter alone'),
  ('word_problems', 'speed', 0.0, 'speculative decoding (`speed`, lenience 0)'),
  ('word_problems', 'token_v3', 0.5, '`token_v3`, lenience 0.5'),
  ('word_problems', 'token_v3', 0.999, '`token_v3`, lenience 0.999'),
  ('word_problems', 'token_v3', 1.0, '`token_v3`, lenience 1'),
  ('numerals', 'verifier_only', None, 'verifier alone'),
  ('numerals', 'drafter_only', None, 'drafter alone'),
  ('numerals', 'speed', 0.0, 'speculative decoding (`speed`, lenience 0)'),
)


def quickstart() -> str:
  """A part of what configs/quickstart.py gave, from its committed results."""
  import pandas as pd

  from experiments.records import metrics

  folder = _RESULTS / 'quickstart'
  frame = pd.read_csv(folder / 'summary.csv')
  lines = [
    _told(
      'quickstart',
      f', gamma {frame.gamma.max():g}, and of {len(frame)} points these',
    ),
    '',
    '| task | | exact match (95 % interval) | tokens per verifier call |'
    ' modelled latency |',
    '|---|---|---|---|---|',
  ]
  for task, method, lenience, words in _SHOWN:
    rows = frame[(frame.task == task) & (frame.method == method)]
    if lenience is not None:
      rows = rows[rows.lenience == lenience]
    (row,) = rows.to_dict('records')
    calls = row['block_efficiency']
    lines.append(
      f'| {task} | {words} | {row["quality"]:.2f} ({row["quality_low"]:.2f} to'
      f' {row["quality_high"]:.2f}) |'
      f' {"-" if np.isnan(calls) else f"{calls:.2f}"} |'
      f' {row["relative_latency"]:.2f} |'
    )
  read = (folder / 'costs.json').read_text(encoding='utf-8')
  costs = metrics.Costs.from_json(read)
  lines += [
    '',
    _filled(
      'The verifier reads the five tokens of a block in'
      f' {costs.verify_s[4] / costs.verifier_token_s:.1f} times the time of'
      ' one, and the drafter writes one in'
      f' {costs.drafter_token_s / costs.verifier_token_s:.2f} of it.'
    ),
  ]
  return '\n'.join(lines)


def _sweep(name: str, table: str) -> str:
  """What a config gave: a table of its committed report."""
  path = _RESULTS / name / f'{table}.md'
  _, _, text = path.read_text(encoding='utf-8').partition('\n\n')
  return f'{_told(name)}\n\n{text.strip()}'


def models() -> str:
  """What the bundled models score, from the cards beside their weights."""
  from cascades.models import checkpoints

  found, tasks = {}, {}
  for name in checkpoints.BUNDLED:
    path = checkpoints.ASSETS / name / 'README.md'
    card = path.read_text(encoding='utf-8')
    scores = dict(
      re.findall(r'^\| (\w+) \| exact_match \| (\S+) \|$', card, re.M)
    )
    (config,) = re.findall(r'--config=(\S+?)`', card)
    (parameters,) = re.findall(r'([\d,]+) parameters', card)
    found[name] = config, parameters, scores
    tasks |= scores
  lines = [
    f'| | trained by | parameters | {" | ".join(tasks)} |',
    f'|{"---|" * (3 + len(tasks))}',
  ]
  for name, (config, parameters, scores) in found.items():
    cells = ' | '.join(scores.get(task, '-') for task in tasks)
    lines.append(f'| `{name}` | `{config}` | {parameters} | {cells} |')
  return '\n'.join(lines)


PARTS = {
  'quickstart': quickstart,
  'methods': methods_table,
  'baselines': functools.partial(_sweep, 'baselines', 'kinds'),
  'specialist': functools.partial(_sweep, 'specialist', 'mixture'),
  'performance': performance,
  'drafters': drafters,
  'models': models,
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
