"""Parts of pages: tables of the code, drawings, formulas, pages of folders."""

import os
import pathlib
import re

import diagrams
from docutils import nodes
from docutils.statemachine import StringList
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from experiments.guides import inventory


class GeneratedTable(SphinxDirective):
  """A table of what the code declares, such as methods or fields."""

  required_arguments = 1

  def run(self) -> list[nodes.Node]:
    """Returns the table, in a box that scrolls on a narrow screen."""
    name = self.arguments[0]
    if name not in inventory.TABLES:
      raise self.error(
        f'{name}: must be a table; there are {", ".join(inventory.TABLES)}.'
      )
    lines = inventory.TABLES[name]().splitlines()
    container = nodes.container(classes=['generated', name])
    self.state.nested_parse(
      StringList(lines, source=f'table {name}'), 0, container
    )
    return [container]


class Terms(SphinxDirective):
  """A glossary with a line `term: definition` per term."""

  has_content = True

  def run(self) -> list[nodes.Node]:
    """Returns the glossary, whose terms the role `term` links to."""
    lines = ['```{glossary}']
    for line in self.content:
      term, _, definition = line.partition(': ')
      lines += [term, f'  {definition}', '']
    container = nodes.container()
    source, _ = self.get_source_info()
    self.state.nested_parse(
      StringList([*lines, '```'], source=source), 0, container
    )
    return container.children


class Diagram(SphinxDirective):
  """A drawing of `diagrams.py`, inline so that its colours are the theme's."""

  required_arguments = 1
  has_content = True

  def run(self) -> list[nodes.Node]:
    """Returns a figure; the content of the directive is its caption."""
    name = self.arguments[0]
    if name not in diagrams.DRAWINGS:
      raise self.error(
        f'{name}: must be a drawing; there are {", ".join(diagrams.DRAWINGS)}.'
      )
    figure = nodes.container(classes=['diagram'])
    figure += nodes.raw('', diagrams.DRAWINGS[name](), format='html')
    caption = nodes.container(classes=['caption'])
    self.state.nested_parse(self.content, self.content_offset, caption)
    figure += caption
    return [figure]


def _mathml(translator, node: nodes.math) -> None:
  """Writes a formula as MathML, which browsers draw without scripts."""
  is_block = isinstance(node, nodes.math_block)
  tree = latex2mathml.tex2mathml(node.astext(), as_block=is_block)
  translator.body.append(
    f'<div class="formula">{tree}</div>' if is_block else tree
  )
  raise nodes.SkipNode


_ROOT = pathlib.Path(__file__).parents[2]
_PAGE = re.compile(r'<!-- page: (\S+) -->\s*')
# What stands for a folder of results, where a page links to the folder.
_FIGURES = ('summary.csv', 'benchmark.json')


def _rebase(link: str, folder: pathlib.Path, pages: dict[str, str]) -> str:
  """Returns where a link of a page of another folder leads on the site.

  Args:
    link: The link, as the page has it.
    folder: The folder of the page.
    pages: Pages of the site by their files.

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
  return os.path.relpath(path, _ROOT / 'docs')


def _site_pages() -> dict[str, str]:
  """Returns the pages of docs/ by their files and by the files they show."""
  pages = {'README.md': 'index.md', 'README.md#terms': 'glossary.md'}
  for path in (_ROOT / 'docs').rglob('*.md'):
    page = path.relative_to(_ROOT / 'docs').as_posix()
    shown = _PAGE.fullmatch(path.read_text(encoding='utf-8'))
    pages[shown[1] if shown else f'docs/{page}'] = page
  return pages


def read_page(app: Sphinx, docname: str, source: list[str]) -> None:
  """Replaces `<!-- page: FILE -->` by a page of the repository."""
  shown = _PAGE.fullmatch(source[0])
  if not shown:
    return
  path = _ROOT / shown[1]
  app.env.note_dependency(str(path))
  pages = _site_pages()

  def rebase(match: re.Match) -> str:
    link = _rebase(match[2], path.parent, pages)
    return f'[{match[1]}]({link})' if link else match[1]

  def rebase_definition(match: re.Match) -> str:
    return f'{match[1]}{_rebase(match[2], path.parent, pages)}'

  text = path.read_text(encoding='utf-8')
  text = re.sub(r'^(\[[^\]]+\]: )(\S+)$', rebase_definition, text, flags=re.M)
  source[0] = re.sub(r'\[([^\[\]]*)\]\(([^()\s]+)\)', rebase, text)


def setup(app: Sphinx) -> dict[str, bool]:
  """Registers the directives and the renderer."""
  app.add_directive('generated', GeneratedTable)
  app.add_directive('diagram', Diagram)
  app.add_directive('terms', Terms)
  app.connect('source-read', read_page)
  app.add_html_math_renderer('mathml', (_mathml, None), (_mathml, None))
  return {'parallel_read_safe': True}
