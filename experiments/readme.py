"""Writes the generated parts of README.md and of the guides anew.

Command: python -m experiments.readme
Shows: nothing; a test fails while a guide is not what this would write.

A part stands between `<!-- name -->` and `<!-- /name -->`, in the guide that it
belongs to: tables of what the code has (rooms, commands, methods, configs), and
figures from committed results and model cards.
"""

import functools
import re
from collections.abc import Callable

from experiments import cli
from experiments.guides import ROOT, findings, inventory, timings

GUIDES = (
  'README.md',
  'cascades/README.md',
  'configs/README.md',
  'experiments/README.md',
  'experiments/results/README.md',
  'tests/README.md',
)

PARTS: dict[str, Callable[[], str]] = {
  'rooms_of_the_library': functools.partial(inventory.rooms, 'cascades'),
  'methods': inventory.methods_table,
  'schedules': inventory.schedules,
  'models': inventory.models,
  'configs': inventory.configs,
  'fields': inventory.fields,
  'needs': inventory.needs,
  'rooms_of_experiments': functools.partial(inventory.rooms, 'experiments'),
  'commands': inventory.commands,
  'headlines': findings.headlines,
  'quickstart': findings.quickstart,
  'greedy': functools.partial(
    findings.points, 'quickstart_greedy', 'word_problems'
  ),
  'tuned_gamma': functools.partial(
    findings.sweep_table, 'tuned_gamma', 'kinds'
  ),
  'front': functools.partial(findings.of_report, 'tuned_gamma', 'pareto'),
  'race': functools.partial(findings.of_report, 'quickstart', 'race'),
  'baselines': functools.partial(findings.sweep_table, 'baselines', 'kinds'),
  'truncated_alike': functools.partial(
    findings.of_report, 'baselines', 'truncated_alike'
  ),
  'specialist': functools.partial(
    findings.sweep_table, 'specialist', 'mixture'
  ),
  'captions': functools.partial(findings.every, 'gemma3_270m'),
  'captions_cooler': functools.partial(findings.every, 'gemma3_270m_cooler'),
  'captions_greedy': functools.partial(findings.every, 'gemma3_270m_greedy'),
  'captions_self': functools.partial(findings.every, 'gemma3_270m_self'),
  'captions_ngram': functools.partial(findings.every, 'gemma3_270m_ngram'),
  'captions_head': functools.partial(findings.every, 'gemma3_270m_head'),
  'learned': functools.partial(
    findings.every, 'learned', 'exact match', 2, 'problems'
  ),
  'learned_captions': functools.partial(
    findings.every, 'learned_270m', 'BLEU', 1, 'captions'
  ),
  'memory': functools.partial(
    findings.every, 'memory', 'exact match', 3, 'word problems', True
  ),
  'memory_captions': functools.partial(
    findings.every, 'memory_270m', 'BLEU', 1, 'captions', True
  ),
  'performance': timings.performance,
  'drafters': timings.drafters,
  'pretrained': timings.pretrained,
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
