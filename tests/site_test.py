"""The documentation site: pages, drawings, docstrings and links."""

import pathlib
import re

import diagrams
import launching
import pytest
import repository_pages
import site_checks

_ROOT = pathlib.Path(__file__).parents[1]
_DOCS = _ROOT / 'docs'
_PAGES = sorted(_DOCS.rglob('*.md'))


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


@pytest.mark.parametrize('name', diagrams.DRAWINGS)
def test_a_drawing_is_of_the_colours_of_the_theme(name):
  drawing = diagrams.DRAWINGS[name]()
  assert '<title>' in drawing
  assert not re.search(r'#[0-9a-f]{3}|fill=|nan', drawing)
  styles = (_DOCS / '_static/site.css').read_text()
  for kinds in re.findall(r'class="(.*?)"', drawing):
    for kind in kinds.split():
      assert re.search(rf'\.{kind}[ .]', styles), kind


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
  [page for page in _PAGES if _examples(page)],
  ids=lambda page: page.stem,
)
def test_the_examples_of_a_page_run(page, tmp_path):
  (tmp_path / 'examples.py').write_text(_examples(page))
  done = launching.python('examples.py', cwd=tmp_path)
  assert done.returncode == 0, done.stderr
