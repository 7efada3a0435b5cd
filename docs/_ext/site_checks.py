"""Checks the pages that were built: no other host, no link that is broken.

Sphinx checks the references that pages write; these checks read the HTML, so
that they see the theme, the drawings and raw HTML too.
"""

import html.parser
import pathlib
import re
import urllib.parse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from sphinx.application import Sphinx

# Attributes by which an element loads a file as its page opens.
_LOADING = {
  'script': ('src',),
  'img': ('src', 'srcset'),
  'source': ('src', 'srcset'),
  'iframe': ('src',),
  'video': ('src', 'poster'),
  'audio': ('src',),
  'embed': ('src',),
  'object': ('data',),
  'use': ('href', 'xlink:href'),
  'image': ('href', 'xlink:href'),
}
# Links that a browser follows only if it is asked to.
_PASSIVE_RELS = {'search', 'index', 'next', 'prev', 'canonical', 'author'}
_HOST = re.compile(r'(?:[a-z]+:)?//', re.IGNORECASE)
_CSS = re.compile(r'(?:url\(|@import)\s*["\']?((?:[a-z]+:)?//[^"\')\s;]+)')


class Page(html.parser.HTMLParser):
  """The links of a page.

  Attributes:
    loads: Addresses that the page loads.
    links: Addresses that it links to.
    ids: Anchors that it has.
  """

  def __init__(self, text: str):
    super().__init__()
    self.loads: list[str] = []
    self.links: list[str] = []
    self.ids: set[str] = set()
    self.feed(text)
    self.loads += _CSS.findall(text)

  def handle_starttag(
    self, tag: str, attrs: list[tuple[str, str | None]]
  ) -> None:
    """Notes the addresses and the anchor of one element."""
    values = {name: value or '' for name, value in attrs}
    self.ids |= {values[name] for name in ('id', 'name') if name in values}
    if tag == 'a' and 'href' in values:
      self.links.append(values['href'])
    if tag == 'link' and not _PASSIVE_RELS & {*values.get('rel', '').split()}:
      self.loads.append(values.get('href', ''))
    for name in _LOADING.get(tag, ()):
      self.loads += [
        piece.split()[0] for piece in values.get(name, '').split(',') if piece
      ]


def foreign(folder: pathlib.Path) -> list[str]:
  """Returns what pages and style sheets load from other hosts."""
  wrong = []
  for path in sorted(folder.rglob('*.html')):
    loads = Page(path.read_text(encoding='utf-8')).loads
    wrong += [f'{path.name} loads {x}' for x in loads if _HOST.match(x)]
  for path in sorted(folder.rglob('*.css')):
    found = _CSS.findall(path.read_text(encoding='utf-8'))
    wrong += [f'{path.name} loads {address}' for address in found]
  return wrong


def broken(folder: pathlib.Path) -> list[str]:
  """Returns links of pages to files or anchors that are not there."""
  pages = {
    path.resolve(): Page(path.read_text(encoding='utf-8'))
    for path in sorted(folder.rglob('*.html'))
  }
  wrong = []
  for path, page in pages.items():
    for link in sorted({*page.links, *page.loads}):
      parts = urllib.parse.urlsplit(link)
      if parts.scheme or parts.netloc:
        continue
      name = urllib.parse.unquote(parts.path)
      goal = (path.parent / name).resolve() if name else path
      anchor = urllib.parse.unquote(parts.fragment)
      if not goal.exists() or goal.is_dir():
        wrong.append(f'{path.name}: {link} is not there')
      elif anchor and goal in pages and anchor not in pages[goal].ids:
        wrong.append(f'{path.name}: {link} has no such anchor')
  return wrong


def _check(app: 'Sphinx', exception: Exception | None) -> None:
  from sphinx.errors import ExtensionError

  if exception is None and app.builder.format == 'html':
    folder = pathlib.Path(app.outdir)
    if wrong := foreign(folder) + broken(folder):
      raise ExtensionError('\n'.join(['the pages are wrong:', *wrong]))


def setup(app: 'Sphinx') -> dict[str, bool]:
  """Registers the extension."""
  app.connect('build-finished', _check)
  return {'parallel_read_safe': True}
