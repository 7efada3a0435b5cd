"""Checks that no page that was built loads anything from another host.

The check reads the HTML, so that it sees the theme, the drawings and raw HTML
too. Links inside the site are checked by Sphinx itself.
"""

import html.parser
import pathlib
import re
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
  """A parser that collects the addresses that a page loads in `loads`."""

  def __init__(self, text: str):
    super().__init__()
    self.loads: list[str] = []
    self.feed(text)
    self.loads += _CSS.findall(text)

  def handle_starttag(
    self, tag: str, attrs: list[tuple[str, str | None]]
  ) -> None:
    """Notes the addresses of one element."""
    values = {name: value or '' for name, value in attrs}
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


def _check(app: 'Sphinx', exception: Exception | None) -> None:
  from sphinx.errors import ExtensionError

  if exception is None and app.builder.format == 'html':
    folder = pathlib.Path(app.outdir)
    if wrong := foreign(folder):
      raise ExtensionError('\n'.join(['the pages load:', *wrong]))


def setup(app: 'Sphinx') -> dict[str, bool]:
  """Registers the extension."""
  app.connect('build-finished', _check)
  return {'parallel_read_safe': True}
