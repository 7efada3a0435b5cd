"""Shows pages of other folders on the site, with links that lead there.

A page of docs/ that is `<!-- page: FILE -->` shows that file. There a line
`<!-- table: FILE -->` is replaced by a table that a report wrote.
"""

import os
import pathlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from sphinx.application import Sphinx

_ROOT = pathlib.Path(__file__).parents[2]
_DOCS = _ROOT / 'docs'
_PAGE = re.compile(r'<!-- page: (\S+) -->\s*')
_TABLE = re.compile(r'^<!-- table: (\S+) -->$', re.M)
_LINK = re.compile(r'\[([^\[\]]*)\]\(([^()\s]+)\)')
_DEFINITION = re.compile(r'^(\[[^\]]+\]: )(\S+)$', re.M)
# The file that a link to a folder of results leads to.
_FIGURES = ('summary.csv', 'benchmark.json')


def _site_pages() -> dict[str, str]:
  """Returns the pages of docs/ by their files and by the files they show."""
  pages = {'README.md': 'index.md', 'README.md#terms': 'glossary.md'}
  for path in _DOCS.rglob('*.md'):
    page = path.relative_to(_DOCS).as_posix()
    shown = _PAGE.fullmatch(path.read_text(encoding='utf-8'))
    pages[shown[1] if shown else f'docs/{page}'] = page
  return pages


def _rebase(link: str, folder: pathlib.Path, pages: dict[str, str]) -> str:
  """Returns where a link of a page of another folder leads on the site.

  Args:
    link: The link, as the page has it.
    folder: The folder of the page.
    pages: Pages of the site, as `_site_pages` returns them.

  Returns:
    The link on the site; empty if the site does not show its file.
  """
  name, _, anchor = link.partition('#')
  if not name or re.match(r'\w+:', link):
    return link
  path = (folder / name).resolve()
  if path.is_dir():
    path = next((path / x for x in _FIGURES if (path / x).exists()), path)
  relative = path.relative_to(_ROOT).as_posix()
  if link_page := pages.get(f'{relative}#{anchor}'):
    return link_page
  if relative in pages:
    return pages[relative] + (f'#{anchor}' if anchor else '')
  if path.suffix == '.md' or path.is_dir():
    return ''
  return os.path.relpath(path, _DOCS)


def shown_file(text: str) -> pathlib.Path | None:
  """Returns the file that a page of docs/ shows; None if it is its own."""
  match = _PAGE.fullmatch(text)
  return _ROOT / match[1] if match else None


def render(path: pathlib.Path) -> str:
  """Returns the text of a page of another folder, as the site shows it."""
  pages = _site_pages()

  def link(match: re.Match) -> str:
    goal = _rebase(match[2], path.parent, pages)
    return f'[{match[1]}]({goal})' if goal else match[1]

  def definition(match: re.Match) -> str:
    return match[1] + _rebase(match[2], path.parent, pages)

  def table(match: re.Match) -> str:
    return (path.parent / match[1]).read_text(encoding='utf-8').strip()

  text = _TABLE.sub(table, path.read_text(encoding='utf-8'))
  return _LINK.sub(link, _DEFINITION.sub(definition, text))


def _read(app: 'Sphinx', docname: str, source: list[str]) -> None:
  path = shown_file(source[0])
  if path:
    app.env.note_dependency(str(path))
    source[0] = render(path)


def setup(app: 'Sphinx') -> dict[str, bool]:
  """Registers the extension."""
  app.connect('source-read', _read)
  return {'parallel_read_safe': True}
