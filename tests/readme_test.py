"""The guides: their size, links, commands and figures are true."""

import importlib.util
import pathlib
import re
import subprocess
import tomllib

import inventory
import launching
import pytest
import repository_pages
import result_tables
import site_checks
from inventory import ROOT

# Cards of models.
_OTHERS = re.compile(r'cascades/assets/|tests/fixtures/')


def _pages() -> dict[str, str]:
  listed = subprocess.run(
    ['git', 'ls-files', '--cached', '--others', '--exclude-standard', '*.md'],
    capture_output=True,
    text=True,
    check=True,
    cwd=ROOT,
  ).stdout.splitlines()
  names = [x for x in listed if not _OTHERS.match(x) and (ROOT / x).exists()]
  return {name: (ROOT / name).read_text(encoding='utf-8') for name in names}


_PAGES = _pages()
_TEXTS = {name: text for name, text in _PAGES.items() if name != 'CHANGELOG.md'}
_RESULTS = ROOT / 'experiments/results'
_RESULTS_PAGE = _TEXTS['experiments/results/README.md']


def test_guides_and_configs_are_few():
  assert len(_TEXTS['README.md'].splitlines()) <= 90
  assert sum(len(text.splitlines()) for text in _TEXTS.values()) <= 1500
  configs = {path.stem for path in (ROOT / 'configs').glob('*.py')} - {'common'}
  assert len(configs) <= 14
  table = inventory.TABLES['configs']()
  assert all(f'`{name}.py`' in table for name in configs)


def _prose(text: str) -> str:
  """Returns a text without blocks of code, which may hold links."""
  return re.sub(r'^```.*?^```$', '', text, flags=re.M | re.S)


def _anchors(text: str) -> set[str]:
  """Returns the anchors of a page's headings."""
  return {
    re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
    for heading in re.findall(r'^#+ (.*)$', _prose(text), re.M)
  }


@pytest.mark.parametrize('page', _PAGES)
def test_links_lead_somewhere(page):
  for link in re.findall(r'\]\((?!\w+:)([^()\s]+)\)', _prose(_PAGES[page])):
    name, _, anchor = link.partition('#')
    path = (ROOT / page).parent / name if name else ROOT / page
    assert path.exists(), link
    if anchor:
      text = path.read_text(encoding='utf-8')
      # A page of the site that shows a page of another folder.
      shown = repository_pages.shown_file(text) or path
      assert anchor in _anchors(shown.read_text(encoding='utf-8')), link


@pytest.mark.parametrize('guide', _TEXTS)
def test_commands_and_files_that_are_named_exist(guide):
  # A command may go on in the next line, after a backslash or in prose.
  text = _TEXTS[guide].replace('\\\n', ' ')
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  extras = {x for y in project['optional-dependencies'].values() for x in y}
  for module in set(re.findall(r'python -m\s+([\w.]+)', text)):
    # The packages of an extra may not be installed.
    assert module in extras or importlib.util.find_spec(module), module
  named = re.findall(r'--config=(configs/\S+?\.py)', text)
  folders = 'cascades|configs|experiments|notebooks|tests'
  named += re.findall(rf'`((?:{folders})/[\w./-]*)`', text)
  if guide == 'docs/proofs.md':
    named += [f'tests/{x}.py' for x in re.findall(r'`(\w+_test)\b', text)]
  for path in set(named):
    assert (ROOT / path).exists(), path


@pytest.mark.parametrize('name', result_tables.TABLES)
def test_a_table_of_results_is_of_the_files_of_its_folder(name):
  text = (_RESULTS / name).read_text(encoding='utf-8')
  assert text == result_tables.TABLES[name]()


def _numbers(text: str) -> set[str]:
  """Returns the figures of a text that have two or more decimals."""
  return {*re.findall(r'\b\d+\.\d{2,}\b', text)}


def test_figures_stand_in_the_tables_of_their_section():
  head, *parts = re.split(r'^(?=## )', _RESULTS_PAGE, flags=re.M)
  sections = {anchor: part for part in parts for anchor in _anchors(part)}
  known = {}
  for anchor, text in sections.items():
    files = re.findall(r'\((\w+/(?!summary)\w+\.csv)\)', text)
    known[anchor] = set().union(
      *(_numbers((_RESULTS / x).read_text(encoding='utf-8')) for x in files)
    )
    assert _numbers(text) <= known[anchor], anchor
  answers = re.findall(r'^\| \[(.*?)\]\(#(.*?)\) \|(.*)$', head, re.M)
  assert [anchor for _, anchor, _ in answers] == [*sections]
  for question, anchor, answer in answers:
    assert sections[anchor].startswith(f'## {question}\n')
    assert _numbers(answer) <= known[anchor], question
  claims = set()
  for paragraph in _TEXTS['README.md'].split('\n\n'):
    anchors = re.findall(r'\(experiments/results/README.md#(.*?)\)', paragraph)
    numbers = _numbers(paragraph) if anchors else set()
    assert numbers <= set().union(*(known[x] for x in anchors)), paragraph
    claims |= numbers
  assert claims


_LOADS = """<script src="https://x.org/a.js"></script>
<link rel="stylesheet" href="//x.org/a.css">
<link rel="preconnect" href="http://x.org">
<img srcset="a.png 1x, https://x.org/b.png 2x">
<style>@import "https://x.org/a.css"</style>
<p style="background: url(//x.org/a.png)">"""


def test_loads_from_other_hosts_are_found(tmp_path):
  (tmp_path / 'a.html').write_text('<a href="//x.org">a link</a>')
  assert not site_checks.foreign(tmp_path)
  for i, line in enumerate(_LOADS.splitlines()):
    (tmp_path / f'load{i}.html').write_text(line)
  (tmp_path / 'c.css').write_text('p { background: url("http://x.org/a.png") }')
  wrong = site_checks.foreign(tmp_path)
  assert len({x.partition(' loads ')[0] for x in wrong}) == 7


def test_a_table_is_as_narrow_as_it_can_be(tmp_path):
  path = tmp_path / 'table.csv'
  rows = 'Method,Task,Quality', 'a,one,1 (0 to 2)', 'b,one,2 (1 to 3)'
  path.write_text('\n'.join(rows))
  assert repository_pages.table(path).splitlines() == [
    '| Method | Quality |',
    '|---|---:|',
    '| a | 1 (0\xa0to\xa02) |',
    '| b | 2 (1\xa0to\xa03) |',
  ]
  path.write_text('\n'.join(rows).replace('b,one', 'b,two'))
  assert '| b | two | 2' in repository_pages.table(path)


def _examples(page: pathlib.Path) -> str:
  """Returns the Python of a page that imports what it uses."""
  text = page.read_text(encoding='utf-8')
  blocks = re.findall(r'^```python\n(.*?)^```', text, re.M | re.S)
  return '\n'.join(
    x for x in blocks if 'configs' not in x and 'their_package' not in x
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'page',
  [page for page in sorted(ROOT.glob('docs/**/*.md')) if _examples(page)],
  ids=lambda page: page.stem,
)
def test_the_examples_of_a_page_run(page, tmp_path):
  (tmp_path / 'examples.py').write_text(_examples(page))
  done = launching.python('examples.py', cwd=tmp_path)
  assert done.returncode == 0, done.stderr
