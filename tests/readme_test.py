"""The guides: their tables, links, commands and figures are true."""

import csv
import functools
import importlib.util
import json
import pathlib
import re
import subprocess
import tomllib

import pytest
import repository_pages
import result_tables

from experiments.benchmarks import answering, loops
from experiments.guides import ROOT, inventory
from experiments.reports import styles

# Cards of models, and tables that reports wrote.
_OTHERS = re.compile(
  r'cascades/assets/|experiments/results/\w+/|tests/fixtures/'
)


def _tracked() -> list[str]:
  listed = subprocess.run(
    ['git', 'ls-files', '--cached', '--others', '--exclude-standard', '*.md'],
    capture_output=True,
    text=True,
    check=True,
    cwd=ROOT,
  ).stdout.splitlines()
  return [x for x in listed if not _OTHERS.match(x) and (ROOT / x).exists()]


_PAGES = {
  name: (ROOT / name).read_text(encoding='utf-8') for name in _tracked()
}
_TEXTS = {name: text for name, text in _PAGES.items() if name != 'CHANGELOG.md'}
_ALL = pytest.mark.parametrize('guide', _TEXTS)


def test_every_table_has_one_place():
  places = [
    name
    for text in _TEXTS.values()
    for name in re.findall(r'^```\{generated\} (\w+)$', text, re.M)
  ]
  assert sorted(places) == sorted(inventory.TABLES)


@pytest.mark.parametrize('name', inventory.TABLES)
def test_a_table_is_whole(name):
  head, line, *rows = inventory.TABLES[name]().splitlines()
  assert line == '|---' * (head.count('|') - 1) + '|'
  assert rows
  for row in rows:
    assert len(_cells(row)) == len(_cells(head)), row


def test_the_first_page_is_short():
  assert len(_TEXTS['README.md'].splitlines()) <= 150


def test_guides_generators_and_configs_are_few():
  assert sum(len(text.splitlines()) for text in _TEXTS.values()) <= 1500
  generators = (ROOT / 'experiments/guides').glob('*.py')
  assert sum(len(x.read_text().splitlines()) for x in generators) <= 260
  configs = {path.stem for path in (ROOT / 'configs').glob('*.py')}
  assert len(configs - {'common'}) <= 19
  table = inventory.TABLES['configs']()
  for name in configs - {'common'}:
    assert f'`{name}.py`' in table


@pytest.mark.parametrize('extra', ['[test]', '[test-all]'])
def test_the_lines_that_ci_runs_are_commands(extra):
  lines = _TEXTS['README.md'].splitlines()
  line = next(line for line in lines if extra in line)
  assert 'pip install' in line
  assert '-m pytest -n 2' in line


def _prose(text: str) -> str:
  """Without blocks of code, which may hold what looks like a link."""
  return re.sub(r'^```.*?^```$', '', text, flags=re.M | re.S)


def _anchors(text: str) -> set[str]:
  """Returns the anchors of a page's headings."""
  headings = re.findall(r'^#+ (.*)$', _prose(text), re.M)
  return {
    re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
    for heading in headings
  }


def _broken(folder: pathlib.Path, own: str) -> list[str]:
  """Links of a guide's own text that lead nowhere from its folder."""
  found = []
  for link in re.findall(r'\]\(([^()\s]+)\)', _prose(own)):
    if re.match(r'\w+:', link):
      continue
    name, _, anchor = link.partition('#')
    path = folder / name
    there = path.exists()
    if there and anchor:
      text = path.read_text(encoding='utf-8') if name else own
      # A page of the site that shows a page of another folder.
      if shown := repository_pages.shown_file(text):
        text = shown.read_text(encoding='utf-8')
      there = anchor in _anchors(text)
    if not there:
      found.append(link)
  return found


@pytest.mark.parametrize('page', _PAGES)
def test_links_lead_somewhere(page):
  assert not _broken((ROOT / page).parent, _PAGES[page])


def test_a_link_that_leads_nowhere_is_found(tmp_path):
  (tmp_path / 'other.md').write_text("# One's own, two\n")
  text = (
    '## Here\n[a](#here) [b](other.md#ones-own-two) [c](https://x.org/y)\n'
    '```\n# There\n[d](nowhere.md)\n```\n'
    '[e](#there) [f](other.md#three) ![g](nowhere.png)\n'
  )
  assert _broken(tmp_path, text) == ['#there', 'other.md#three', 'nowhere.png']


@_ALL
def test_commands_name_modules_that_exist(guide):
  # A command may go on in the next line, after a backslash or in prose.
  text = _TEXTS[guide].replace('\\\n', ' ')
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  extras = {x for y in project['optional-dependencies'].values() for x in y}
  for module in set(re.findall(r'python -m\s+([\w.]+)', text)):
    # The packages of an extra may not be installed.
    assert module in extras or importlib.util.find_spec(module), module


@_ALL
def test_configs_and_files_that_are_named_exist(guide):
  text = _TEXTS[guide]
  named = re.findall(r'--config=(configs/\S+?\.py)', text)
  rooms = 'cascades|configs|experiments|notebooks|tests'
  named += re.findall(rf'`((?:{rooms})/[\w./-]*)`', text)
  for path in set(named):
    assert (ROOT / path).exists(), path


def test_the_proofs_name_tests_that_exist():
  for name in set(re.findall(r'`(\w+_test)\b', _TEXTS['docs/proofs.md'])):
    assert (ROOT / f'tests/{name}.py').exists(), name


_RESULTS = ROOT / 'experiments/results'
_RESULTS_PAGE = _TEXTS['experiments/results/README.md']
# Lines that the site replaces by a table.
_SHOWN = re.findall(
  r'^\[Table.*?\]\((\w+)/(\w+\.md)\)(.*)$', _RESULTS_PAGE, re.M
)
# Columns of the tables of points, as summary.csv calls them.
_COLUMNS = {
  'Gamma': 'gamma',
  'Rejection rate': 'rejection_rate',
  'Block efficiency': 'block_efficiency',
  'Modelled latency': 'relative_latency',
}


def _cells(line: str) -> list[str]:
  return [cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]]


@functools.cache
def _points(folder: str) -> list[dict[str, str]]:
  return list(csv.DictReader((_RESULTS / folder / 'summary.csv').open()))


def _same(shown: str, value: str) -> bool:
  """Returns True if a cell shows a value, rounded to its digits."""
  shown = shown.replace(styles.MINUS, '-')
  if not value or shown == styles.DASH:
    return not float(value or 0) and shown == styles.DASH
  digits = len(shown.partition('.')[2])
  return f'{float(value):.{digits}f}' == shown


def _point(head: list[str], row: list[str], point: dict[str, str]) -> bool:
  """Returns True if a row of a table shows a point of summary.csv."""
  shown = dict(zip(head, row, strict=True))
  label = styles.styles({point['method']: point['method']})[point['method']]
  kind = point.get('verification')
  method = label.label + (f' ({kind})' if kind != 'token' else '')
  lenience = shown.pop('Lenience').replace(styles.MINUS, '-')
  if shown.pop('Method') != method:
    return False
  if (lenience == styles.DASH) != (not point['lenience']):
    return False
  if point['lenience'] and float(lenience) != float(point['lenience']):
    return False
  quality = re.fullmatch(
    r'(\S+) \((\S+) to (\S+)\)', shown.pop('Exact match (95 % interval)')
  )
  fields = 'quality', 'quality_low', 'quality_high'
  pairs = [*zip(fields, quality.groups(), strict=True)]
  pairs += [(_COLUMNS[name], cell) for name, cell in shown.items()]
  return all(_same(cell, point[field]) for field, cell in pairs)


@pytest.mark.parametrize('name', result_tables.TABLES)
def test_a_table_of_results_is_of_the_files_of_its_folder(name):
  text = (_RESULTS / name).read_text(encoding='utf-8')
  assert text == result_tables.TABLES[name]()
  folder, _, file = name.partition('/')
  if file == 'points.md':
    rows = [_cells(x) for x in text.splitlines() if x.startswith('|')]
    for row in rows[2:]:
      points = [_point(rows[0], row, point) for point in _points(folder)]
      assert any(points), row


def test_every_folder_of_results_is_shown():
  folders = {path.name for path in _RESULTS.iterdir() if path.is_dir()}
  assert folders == {folder for folder, _, _ in _SHOWN}
  linked = set(re.findall(r'\]\((\w+/[\w.]+)\)', _RESULTS_PAGE))
  files = {
    path.relative_to(_RESULTS).as_posix()
    for suffix in ('md', 'png')
    for path in _RESULTS.glob(f'*/*.{suffix}')
  }
  assert files <= linked
  for folder, _, rest in _SHOWN:
    links = re.findall(r'\((\w+)/(\w+\.\w+)\)', rest)
    assert {name for name, _ in links} == {folder}
    names = {'benchmark.json'} & {file for _, file in links}
    assert names or {'summary.csv', 'provenance.json'} <= {x for _, x in links}


def _sections() -> dict[str, str]:
  """Returns the sections of the results by anchor."""
  parts = re.split(r'^(?=## )', _RESULTS_PAGE, flags=re.M)[1:]
  return {anchor: part for part in parts for anchor in _anchors(part)}


def _numbers(text: str) -> list[str]:
  """Returns the figures of a text that have two or more decimals."""
  return re.findall(r'\b\d+\.\d{2,}\b', text)


def test_figures_stand_in_the_tables_of_their_section():
  sections, known = _sections(), {}
  for anchor, text in sections.items():
    files = re.findall(r'\((\w+/\w+\.md)\)', text)
    known[anchor] = {
      number
      for file in files
      for number in _numbers((_RESULTS / file).read_text(encoding='utf-8'))
    }
    assert files
    assert {*_numbers(text)} <= known[anchor], anchor
  head = _RESULTS_PAGE.partition('## ')[0]
  answers = re.findall(r'^\| \[(.*?)\]\(#(.*?)\) \|(.*)$', head, re.M)
  assert [anchor for _, anchor, _ in answers] == [*sections]
  for question, anchor, answer in answers:
    assert sections[anchor].startswith(f'## {question}\n')
    assert {*_numbers(answer)} <= known[anchor], question
  claims = 0
  for paragraph in _TEXTS['README.md'].split('\n\n'):
    anchors = re.findall(r'\(experiments/results/README.md#(.*?)\)', paragraph)
    numbers = {*_numbers(paragraph)} if anchors else set()
    assert numbers <= set().union(*(known[x] for x in anchors)), paragraph
    claims += len(numbers)
  assert claims


@pytest.mark.parametrize('folder', ['benchmark', 'benchmark_270m'])
def test_thresholds_that_are_met_are_counted(folder):
  read = json.loads((_RESULTS / folder / 'benchmark.json').read_text())
  suite = loops if folder == 'benchmark' else answering
  met = [met for *_, met in suite.thresholds(read['figures'])]
  shown = f'{met.count("yes")} of {len(met)} targets'
  texts = [path.read_text() for path in (_RESULTS / folder).glob('*.md')]
  assert any(shown in text for text in texts)
