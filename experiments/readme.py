"""Writes the generated parts of README.md and of the guides anew.

Command: python -m experiments.readme
Shows: nothing; a test fails while a guide is not what this would write.

A part stands between `<!-- name -->` and `<!-- /name -->`, in the guide that it
belongs to: tables of what the code has (rooms, commands, methods, configs), and
figures from committed results and model cards.
"""

import ast
import datetime
import functools
import importlib
import json
import pathlib
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from experiments import cli

ROOT = pathlib.Path(__file__).parent.parent
_RESULTS = ROOT / 'experiments/results'
GUIDES = (
  'README.md',
  'cascades/README.md',
  'configs/README.md',
  'experiments/README.md',
  'experiments/results/README.md',
  'tests/README.md',
)


def _number(value: float | None) -> str:
  return '-' if value is None else f'{value:g}'


def _filled(text: str) -> str:
  """In lines of 80, as all of a guide."""
  return textwrap.fill(
    text, width=80, break_long_words=False, break_on_hyphens=False
  )


def _table(*rows: str) -> str:
  """A table of rows, the first of them its head; cells stand between bars."""
  head, *rest = rows
  columns = head.count('|') - 1
  return '\n'.join([head, f'|{"---|" * columns}', *rest])


# --- What the code has.


def rooms(layer: str) -> str:
  """A row per room of a layer: its line in the docstring of the package."""
  package = importlib.import_module(layer)
  says = dict(re.findall(r'^  (\w+) +(\S.*)$', package.__doc__, re.M))
  folder = pathlib.Path(package.__file__).parent
  return _table(
    '| room | what it is for |',
    *(
      f'| [`{name}`]({name if (folder / name).is_dir() else f"{name}.py"}) |'
      f' {says[name]} |'
      for name in package.ROOMS
    ),
  )


def _documented(folder: str) -> Iterator[tuple[str, str, str]]:
  """Modules of a folder that tell their command.

  Yields:
    The module's name, the command's without its flags, and the first sentence
    of its docstring.
  """
  for path in sorted((ROOT / folder).glob('*.py')):
    says = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or ''
    command = re.search(r'^Command: python -m ([\w.]+)', says, re.M)
    if command:
      first, _, _ = says.partition('\n\n')
      yield path.stem, command[1], ' '.join(first.split())


def commands() -> str:
  """A row per command of the package."""
  return _table(
    '| command | what it does |',
    *(
      f'| [`python -m {command}`]({name}.py) | {about} |'
      for name, command, about in _documented('experiments')
    ),
  )


def configs() -> str:
  """A row per config."""
  return _table(
    '| config | what it asks | started by |',
    *(
      f'| [`{name}.py`]({name}.py) | {about} | `{command}` |'
      for name, command, about in _documented('configs')
    ),
  )


def _fields(table: str) -> Iterator[tuple[str, str]]:
  """Fields of a table of configs/common.py, with the comments above them.

  Yields:
    Fields that share a comment, with their usual values; and the comment.
  """
  text = (ROOT / 'configs/common.py').read_text(encoding='utf-8')
  (made,) = (
    node.value
    for node in ast.parse(text).body
    if isinstance(node, ast.Assign) and node.targets[0].id == table
  )
  lines = [line.strip() for line in text.splitlines()]
  shared, about, end = [], '', made.lineno
  for value in made.keywords:
    above = lines[end : value.lineno - 1]
    comment = ' '.join(line.removeprefix('#').strip() for line in above)
    if comment:
      if shared:
        yield ', '.join(shared), about
      shared, about = [], comment
    shared.append(f'`{value.arg}={ast.unparse(value.value)}`')
    end = value.end_lineno
  yield ', '.join(shared), about


def fields() -> str:
  """A row per field that sweeps share, or for several of one comment."""
  return _table(
    '| field, and its usual value | what it says |',
    *(
      f'| {names} | {about} |'
      for table in ('_SWEEP', '_OPTIONAL')
      for names, about in _fields(table)
    ),
  )


def needs() -> str:
  """What the paper's sweeps need, as configs/paper.py says."""
  text = (ROOT / 'configs/paper.py').read_text(encoding='utf-8')
  says = ast.get_docstring(ast.parse(text))
  about, table = re.search(
    r'^Needs: (.*?)\n\n((?: .*\n?)+)', says, re.M | re.S
  ).groups()
  about = ' '.join(about.split())
  table = textwrap.dedent(table).rstrip()
  return f'{_filled(about[0].upper() + about[1:])}\n\n```\n{table}\n```'


def methods_table() -> str:
  """A row per registered method."""
  from cascades import methods

  def row(method):
    equation = method.equation.replace('|', r'\|')
    return (
      f'| `{method.name}` | {equation} | {_number(method.strict)}'
      f' | {_number(method.drafter_only)} | {method.reference} |'
    )

  return _table(
    '| method | equation | strict at | drafter alone at | reference |',
    *map(row, methods.METHODS.values()),
  )


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
  rows = []
  for name, (config, parameters, scores) in found.items():
    cells = ' | '.join(scores.get(task, '-') for task in tasks)
    rows.append(f'| `{name}` | `{config}` | {parameters} | {cells} |')
  return _table(f'| | trained by | parameters | {" | ".join(tasks)} |', *rows)


# --- What was measured.


def _benchmark(name: str) -> dict[str, Any]:
  """The committed figures of a benchmark."""
  path = _RESULTS / name / 'benchmark.json'
  return json.loads(path.read_text(encoding='utf-8'))


def _measured(name: str) -> str:
  """Which config gave the figures of a benchmark, when and on what."""
  found = _benchmark(name)
  versions = found['versions']
  commit = ''
  if found.get('starts'):
    *_, start = found['starts']
    commit = f' at commit `{start["commit"][:7]}`'
  return (
    f'`configs/{name}.py`{commit}, {found["date"]},'
    f' {found["cores"]} CPU cores, jax {versions["jax"]}, gemma'
    f' {versions["gemma"]} ([all of it]({name}))'
  )


def _best_strict(timed: list[dict[str, Any]]) -> dict[tuple, dict[str, Any]]:
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

  found = _benchmark('benchmark')
  timed = loops.rows(found['figures'])
  about = _filled(
    f'{_measured("benchmark")}, float32, greedy,'
    f' {found["config"]["new_tokens"]} new tokens and medians of'
    f' {found["config"]["repeats"]} turns (120M: 32 and 3). Tokens per second'
    ' of decoding, all rows together; *x floor* is the time of the best'
    ' strict arm by that of the same bare forward passes.'
  )
  rows = []
  for (pair, batch), best in _best_strict(timed).items():
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
  speeds = _table(
    "| pair | batch | gemma's sampler | ours, verifier alone | lock-step |"
    ' ours, strict | at gamma | drafts kept | x gemma | x floor |',
    *rows,
  )
  bounds = _table(
    '| target | bound | found | met |',
    *(
      f'| {name} | {bound} | {value} | {"yes" if met else "**no**"} |'
      for name, bound, value, met in loops.targets(found['figures'])
    ),
  )
  return f'{about}\n\n{speeds}\n\n{bounds}'


def drafters() -> str:
  """What configs/benchmark_drafters.py gave, from its committed figures."""
  from experiments.benchmarks import proposals as suite

  found = _benchmark('benchmark_drafters')
  config, figures = found['config'], found['figures']
  about = _filled(
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
  table = _table(
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


def method_costs() -> str:
  """What configs/benchmark_methods.py gave, from its committed figures."""
  found = _benchmark('benchmark_methods')
  config, figures = found['config'], found['figures']
  unit, *_ = figures
  about = _filled(
    f'{_measured("benchmark_methods")}: {config["batch"]} sequences of'
    f' {config["gamma"] + 1} positions and {config["vocab_size"]:,} tokens,'
    f' float32, medians of {config["repeats"]} turns, by the time of two'
    f' softmaxes of that size ({unit["median_s"] * 1e3:.0f} ms).'
  )
  by_method: dict[str, dict[str, dict[str, Any]]] = {}
  for row in figures:
    method, colon, what = row['arm'].partition(': ')
    if colon:
      by_method.setdefault(method, {})[what] = row
  rows = []
  for method, parts in by_method.items():
    most = max(row['temporary_bytes'] for row in parts.values())
    rows.append(
      f'| `{method}` | {parts["acceptance and residual"]["ratio"]:.2f} |'
      f' {parts["verification"]["ratio"]:.2f} | {most / 1e6:.0f} |'
    )
  table = _table(
    '| method | acceptance and residual | verification of a block |'
    ' most temporaries, MB |',
    *rows,
  )
  return f'{about}\n\n{table}'


def report_cost() -> str:
  """What configs/benchmark_reports.py gave, from its committed figures."""
  from experiments.benchmarks import pages

  said = pages.table(_benchmark('benchmark_reports')['figures'])
  return _filled(f'{_measured("benchmark_reports")}: {said}.')


def launcher_cost() -> str:
  """What configs/benchmark_launchers.py gave, from its committed figures."""
  from experiments.benchmarks import launching

  said = launching.table(_benchmark('benchmark_launchers')['figures'])
  return _filled(f'{_measured("benchmark_launchers")}: {said}.')


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
    f' ([all of it]({name})): {config["num_examples"]}'
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


def _summary():
  """The summary of the quickstart."""
  import pandas as pd

  return pd.read_csv(_RESULTS / 'quickstart/summary.csv')


def _row(frame, task: str, method: str, lenience: float | None):
  """The one row of a summary that is meant."""
  rows = frame[(frame.task == task) & (frame.method == method)]
  if lenience is not None:
    rows = rows[rows.lenience == lenience]
  (row,) = rows.to_dict('records')
  return row


def quickstart() -> str:
  """A part of what configs/quickstart.py gave, from its committed results."""
  from experiments.records import metrics

  frame = _summary()
  about = _told(
    'quickstart',
    f', gamma {frame.gamma.max():g}, and of {len(frame)} points these',
  )
  shown = []
  for task, method, lenience, words in _SHOWN:
    row = _row(frame, task, method, lenience)
    calls = row['block_efficiency']
    shown.append(
      f'| {task} | {words} | {row["quality"]:.2f} ({row["quality_low"]:.2f} to'
      f' {row["quality_high"]:.2f}) |'
      f' {"-" if np.isnan(calls) else f"{calls:.2f}"} |'
      f' {row["relative_latency"]:.2f} |'
    )
  table = _table(
    '| task | | exact match (95 % interval) | tokens per verifier call |'
    ' modelled latency |',
    *shown,
  )
  read = (_RESULTS / 'quickstart/costs.json').read_text(encoding='utf-8')
  costs = metrics.Costs.from_json(read)
  note = _filled(
    'The verifier reads the five tokens of a block in'
    f' {costs.verify_s[4] / costs.verifier_token_s:.1f} times the time of'
    ' one, and the drafter writes one in'
    f' {costs.drafter_token_s / costs.verifier_token_s:.2f} of it.'
  )
  return f'{about}\n\n{table}\n\n{note}'


def _of_report(name: str, table: str) -> str:
  """A table of a committed report."""
  path = _RESULTS / name / f'{table}.md'
  _, _, text = path.read_text(encoding='utf-8').partition('\n\n')
  return text.strip()


def _cells(name: str, table: str) -> list[list[str]]:
  """The rows of such a table, without its head."""
  _, _, *lines = _of_report(name, table).splitlines()
  return [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines]


def sweep_table(name: str, table: str) -> str:
  """What a config gave: a table of its committed report."""
  return f'{_told(name)}\n\n{_of_report(name, table)}'


def headlines() -> str:
  """Ten figures of all that was measured, each from its committed results."""
  from experiments.benchmarks import loops, proposals

  frame = _summary()
  alone, drafter, strict, strictish, _, loosest, *_ = (
    _row(frame, *which[:3]) for which in _SHOWN
  )
  kinds = {row[0]: row for row in _cells('baselines', 'kinds')}
  mixed = _cells('specialist', 'mixture')[0]
  figures = _benchmark('benchmark')['figures']
  best = _best_strict(loops.rows(figures))
  met = [met for *_, met in loops.targets(figures)]
  repeats = max(
    (
      row
      for row in proposals.rows(_benchmark('benchmark_drafters')['figures'])
      if row['part'] == 'loops'
    ),
    key=lambda row: row['over_alone'],
  )

  def each(field, batch):
    return ', '.join(
      f'{row[field]:.2f} ({pair})'
      for (pair, rows), row in best.items()
      if rows == batch
    )

  return _table(
    '| what | found |',
    '| exact match on word problems: verifier alone, drafter alone |'
    f' {alone["quality"]:.2f}, {drafter["quality"]:.2f} |',
    '| strict speculative decoding there: modelled latency, tokens per verifier'
    f' call | {strict["relative_latency"]:.2f},'
    f' {strict["block_efficiency"]:.2f} |',
    f'| `token_v3` from lenience {strictish["lenience"]:g} to'
    f' {loosest["lenience"]:g}: exact match at modelled latency |'
    f' {strictish["quality"]:.2f} at {strictish["relative_latency"]:.2f} to'
    f' {loosest["quality"]:.2f} at {loosest["relative_latency"]:.2f} |',
    "| gamma tuned, fastest at the verifier's quality: speed-up, by modelled"
    ' latency, of a speculative cascade, of a cascade of whole answers |'
    f' {kinds["speculative cascade"][5]},'
    f' {kinds["cascade of answers"][5]} |',
    '| a specialist drafts for a generalist: quality of the best cascade over'
    f" the verifier's, over the drafter's | {mixed[5]}, {mixed[6]} |",
    "| speed of strict decoding by that of gemma's own sampler, batch 1 |"
    f' {each("over_gemma", 1)} |',
    "| speed of strict decoding by that of gemma's own sampler, batch 16 |"
    f' {each("over_gemma", 16)} |',
    '| time of that loop by that of the same bare forward passes, batch 1 |'
    f' {each("over_floor", 1)} |',
    '| speed of n-grams on text that repeats itself by that of the verifier'
    f' alone, gamma {repeats["gamma"]} | {repeats["over_alone"]:.2f} (32M) |',
    f'| targets of the loop that are met | {sum(met)} of {len(met)} |',
  )


PARTS: dict[str, Callable[[], str]] = {
  'rooms_of_the_library': functools.partial(rooms, 'cascades'),
  'methods': methods_table,
  'models': models,
  'configs': configs,
  'fields': fields,
  'needs': needs,
  'rooms_of_experiments': functools.partial(rooms, 'experiments'),
  'commands': commands,
  'headlines': headlines,
  'quickstart': quickstart,
  'baselines': functools.partial(sweep_table, 'baselines', 'kinds'),
  'truncated_alike': functools.partial(
    _of_report, 'baselines', 'truncated_alike'
  ),
  'specialist': functools.partial(sweep_table, 'specialist', 'mixture'),
  'performance': performance,
  'drafters': drafters,
  'method_costs': method_costs,
  'report_cost': report_cost,
  'launcher_cost': launcher_cost,
}


def places(text: str) -> list[str]:
  """The names of the parts that a guide has places for, in their order."""
  return re.findall(r'^<!-- (\w+) -->$', text, re.M)


def render(text: str) -> str:
  """A guide with each of its generated parts made anew.

  Raises:
    ValueError: A place is for no part, or does not end.
  """
  for name in places(text):
    if name not in PARTS:
      raise ValueError(f'{name}: no such part; there are {", ".join(PARTS)}.')
    start, end = f'<!-- {name} -->', f'<!-- /{name} -->'
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    if not found:
      raise ValueError(f'{name}: its place does not end; add {end}.')
    text = f'{before}{start}\n\n{PARTS[name]()}\n\n{end}{after}'
  return text


def main() -> None:
  for guide in GUIDES:
    path = ROOT / guide
    text = path.read_text(encoding='utf-8')
    path.write_text(render(text), encoding='utf-8')


if __name__ == '__main__':
  cli.run(main)
