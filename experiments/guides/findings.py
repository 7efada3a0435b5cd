"""What sweeps gave, from their committed results; and the headlines of all."""

import datetime
import json
import re
from typing import Any

import numpy as np

from experiments.guides import RESULTS, markdown, timings


def _config(name: str) -> dict[str, Any]:
  """What a sweep with committed results was told."""
  read = (RESULTS / name / 'config.json').read_text(encoding='utf-8')
  return json.loads(read)


def _told(name: str, more: str = '', of: str = 'problems a task') -> str:
  """Which config gave the results of a folder, when, on what and of what."""
  folder = RESULTS / name
  read = (folder / 'provenance.json').read_text(encoding='utf-8')
  *_, start = json.loads(read)['starts']
  began, ended = (
    datetime.datetime.fromisoformat(start[key]) for key in ('started', 'ended')
  )
  seconds = round((ended - began).total_seconds())
  versions, config = start['versions'], _config(name)
  flag, *changed = re.findall(r'--(config\S*)', start['command'])
  path = flag.partition('=')[2]
  changes = ''.join(f' with `--{flag}`' for flag in changed)
  return markdown.filled(
    f'`{path}`{changes} at commit `{start["commit"][:7]}`'
    f'{" (changed)" if start["dirty"] else ""}, {began:%Y-%m-%d},'
    f' {start["device"]}, jax {versions["jax"]}, gemma {versions["gemma"]}, in'
    f' {seconds // 60} min {seconds % 60} s'
    f' ([all of it]({name})): {config["num_examples"]}'
    f' {of}, temperature {config["temperature"]:g}{more}:'
  )


# Of the quickstart: task, method, lenience, and what people call them.
_SHOWN = (
  ('word_problems', 'verifier_only', None, 'verifier alone'),
  ('word_problems', 'drafter_only', None, 'drafter alone'),
  ('word_problems', 'speed', 0.0, 'speculative decoding (`speed`, lenience 0)'),
  ('word_problems', 'token_v2', 0.7, '`token_v2`, lenience 0.7'),
  ('word_problems', 'token_v3', 0.9, '`token_v3`, lenience 0.9'),
  ('word_problems', 'opt', 0.2, '`opt`, lenience 0.2'),
  ('word_problems', 'diff', 0.1, '`diff`, lenience 0.1'),
  ('word_problems', 'speed', 0.95, '`speed`, lenience 0.95'),
  ('word_problems', 'chow', 0.4, '`chow`, lenience 0.4'),
  ('numerals', 'verifier_only', None, 'verifier alone'),
  ('numerals', 'drafter_only', None, 'drafter alone'),
  ('numerals', 'speed', 0.0, 'speculative decoding (`speed`, lenience 0)'),
)


def _summary(name: str = 'quickstart'):
  """The summary of a sweep; by default of the quickstart."""
  import pandas as pd

  return pd.read_csv(RESULTS / name / 'summary.csv')


def _row(frame, task: str, method: str, lenience: float | None):
  """The one row of a summary that is meant."""
  rows = frame[(frame.task == task) & (frame.method == method)]
  if lenience is not None:
    rows = rows[rows.lenience == lenience]
  (row,) = rows.to_dict('records')
  return row


def points(name: str, task: str | None = None) -> str:
  """Some points of what configs/quickstart.py gave.

  Args:
    name: Of the folder with the results.
    task: Shows this one alone.
  """
  frame = _summary(name)
  about = _told(
    name, f', gamma {frame.gamma.max():g}, and of {len(frame)} points these'
  )
  shown = []
  for of, method, lenience, words in _SHOWN:
    if of != (task or of):
      continue
    row = _row(frame, of, method, lenience)
    calls = row['block_efficiency']
    shown.append(
      f'| {of} | {words} | {row["quality"]:.2f} ({row["quality_low"]:.2f} to'
      f' {row["quality_high"]:.2f}) |'
      f' {"-" if np.isnan(calls) else f"{calls:.2f}"} |'
      f' {row["relative_latency"]:.2f} |'
    )
  table = markdown.table(
    '| task | | exact match (95 % interval) | tokens per verifier call |'
    ' modelled latency |',
    *shown,
  )
  return f'{about}\n\n{table}'


def every(
  name: str,
  score: str = 'BLEU',
  digits: int = 1,
  of: str = 'captions',
  tuned: bool = False,
) -> str:
  """Every point of a study of one task.

  Args:
    name: Of the folder with the results.
    score: What its quality is.
    digits: Of it.
    of: What its examples are.
    tuned: Whether of several gammas the fastest is shown.
  """
  frame = _summary(name)
  usual = {'schedule': 'constant', 'cap': 'none', 'verification': 'token'}
  told = f', gamma {frame.gamma.max():g}'
  if tuned:
    told = ', each rule at the gamma that is fastest for it'
    kinds = frame.groupby(['method', 'lenience', *usual], dropna=False)
    frame = frame.loc[sorted(kinds.relative_latency.idxmin())]

  def cell(value, form):
    return '-' if np.isnan(value) else format(value, form)

  def rule(row):
    said = {name: getattr(row, name, x) for name, x in usual.items()}
    more = [f'`{x}`' for name, x in said.items() if x != usual[name]]
    return ', '.join([f'`{row.method}`', *more])

  rows = [
    f'| {rule(row)} | {cell(row.lenience, "g")} |'
    + (f' {row.gamma:g} |' if tuned else '')
    + f' {row.quality:.{digits}f} ({row.quality_low:.{digits}f} to'
    f' {row.quality_high:.{digits}f}) | {cell(row.rejection_rate, ".2f")} |'
    f' {cell(row.block_efficiency, ".2f")} | {row.relative_latency:.2f} |'
    for row in frame.itertuples()
  ]
  table = markdown.table(
    f'| method | lenience |{" gamma |" if tuned else ""} {score} (95 %'
    ' interval) | rejection rate | tokens per verifier call | modelled latency'
    ' |',
    *rows,
  )
  return f'{_told(name, told, of)}\n\n{table}'


def quickstart() -> str:
  """A part of what configs/quickstart.py gave, from its committed results."""
  from experiments.records import metrics

  read = (RESULTS / 'quickstart/costs.json').read_text(encoding='utf-8')
  costs = metrics.Measured.from_json(read).costs
  note = markdown.filled(
    'A block of four drafts takes the verifier, verification and all,'
    f' {costs.verify_s[4] / costs.verifier_token_s:.1f} times the time of a'
    ' token of its own, and the drafter writes one in'
    f' {costs.drafter_token_s / costs.verifier_token_s:.2f} of it.'
  )
  return f'{points("quickstart")}\n\n{note}'


def of_report(name: str, table: str) -> str:
  """A table of a committed report."""
  path = RESULTS / name / f'{table}.md'
  _, _, text = path.read_text(encoding='utf-8').partition('\n\n')
  return text.strip()


def _cells(name: str, table: str) -> list[list[str]]:
  """The rows of such a table, without its head."""
  _, _, *lines = of_report(name, table).splitlines()
  return [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines]


def sweep_table(name: str, table: str) -> str:
  """What a config gave: a table of its committed report."""
  return f'{_told(name)}\n\n{of_report(name, table)}'


def headlines() -> str:
  """Ten figures of all that was measured, each from its committed results."""
  from experiments.benchmarks import answering, loops

  frame = _summary()
  alone, drafter, strict, cascade, *_ = (
    _row(frame, *which[:3]) for which in _SHOWN
  )
  kinds = {row[0]: row for row in _cells('tuned_gamma', 'kinds')}
  mixed = _cells('specialist', 'mixture')[0]
  figures = timings.benchmark('benchmark')['figures']
  best = loops.fastest(loops.rows(figures))
  met = [met for *_, met in loops.thresholds(figures)]
  copies = next(
    row
    for row in answering.rows(timings.benchmark('benchmark_270m')['figures'])
    if (row['part'], row['arm']) == ('copies', 'n-gram')
  )

  def each(field, batch):
    return ', '.join(
      f'{row[field]:.2f} ({pair})'
      for (pair, rows), row in best.items()
      if rows == batch
    )

  return markdown.table(
    '| what | found |',
    '| exact match on word problems: verifier alone, drafter alone |'
    f' {alone["quality"]:.2f}, {drafter["quality"]:.2f} |',
    '| strict speculative decoding there: modelled latency, tokens per verifier'
    f' call | {strict["relative_latency"]:.2f},'
    f' {strict["block_efficiency"]:.2f} |',
    f'| `{cascade["method"]}` at lenience {cascade["lenience"]:g}: modelled'
    ' latency, exact match |'
    f' {cascade["relative_latency"]:.2f}, {cascade["quality"]:.2f} |',
    "| gamma tuned, fastest at the verifier's quality: speed-up, by modelled"
    ' latency, of strict decoding, of a speculative cascade |'
    f' {kinds["strict decoding"][5]},'
    f' {kinds["speculative cascade"][5]} |',
    '| a specialist drafts for a generalist: quality of the best cascade over'
    f" the verifier's, over the drafter's | {mixed[5]}, {mixed[6]} |",
    "| speed of strict decoding by that of gemma's own sampler, batch 1 |"
    f' {each("over_gemma", 1)} |',
    "| speed of strict decoding by that of gemma's own sampler, batch 16 |"
    f' {each("over_gemma", 16)} |',
    '| time of that loop by that of the same bare forward passes, batch 1 |'
    f' {each("over_floor", 1)} |',
    '| speed of n-grams on text that stands in the prompt by that of the'
    f' verifier alone, gamma 4 | {copies["over_alone"]:.2f} (Gemma 3 270M) |',
    f'| targets of the loop that are met | {met.count("yes")} of {len(met)} |',
  )
