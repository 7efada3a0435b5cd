"""Shows pages of other folders on the site, with links that lead there.

A page of docs/ that is `<!-- page: FILE -->` shows that file. There a line that
begins with `[Table: TITLE](FILE)` is replaced by that table of a folder of
results, a file of CSV, and by the command and the commit of the folder.
"""

import csv
import datetime
import json
import os
import pathlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from sphinx.application import Sphinx

_ROOT = pathlib.Path(__file__).parents[2]
_DOCS = _ROOT / 'docs'
_PAGE = re.compile(r'<!-- page: (\S+) -->\s*')
_TABLE = re.compile(r'^\[Table: (.*?)\]\((\S+?)\)(.*)$', re.M)
_FIGURE = re.compile(r'\[figure\]\((\S+?)\)')
_LINK = re.compile(r'\[([^\[\]]*)\]\(([^()\s]+)\)')
_DEFINITION = re.compile(r'^(\[[^\]]+\]: )(\S+)$', re.M)
# Files of a folder of results with all its figures, and with its provenance.
_FIGURES = ('summary.csv', 'benchmark.json')
_ORIGINS = ('provenance.json', 'benchmark.json')


def _site_pages() -> dict[str, str]:
  """Returns the pages of docs/ by their files and by the files they show."""
  pages = {'README.md': 'index.md'}
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
  relative = path.relative_to(_ROOT).as_posix()
  if relative in pages:
    return pages[relative] + (f'#{anchor}' if anchor else '')
  if path.suffix == '.md' or path.is_dir():
    return ''
  return os.path.relpath(path, _DOCS)


def _first(folder: pathlib.Path, names: tuple[str, ...]) -> pathlib.Path:
  """Returns the first of some files that a folder has."""
  return next(folder / name for name in names if (folder / name).exists())


def origin(folder: pathlib.Path) -> str:
  """Returns the command and the commit of a folder of results, as Markdown."""
  text = _first(folder, _ORIGINS).read_text(encoding='utf-8')
  results = json.loads(text)
  starts = results['starts']
  versions = starts[-1].get('versions') or results['versions']
  commits = dict.fromkeys(start['commit'][:7] for start in starts)
  facts = [
    *(
      f'{data["examples"]:,} {name.replace("_", " ")}'
      for name, data in starts[-1].get('data', {}).items()
    ),
    starts[0]['started'][:10],
    starts[0].get('device') or f'{results["cores"]} CPU cores',
    *(f'{name} {versions[name]}' for name in ('jax', 'gemma')),
  ]
  time = datetime.datetime.fromisoformat
  ended = [x for x in starts if x.get('ended')]
  spans = (time(x['ended']) - time(x['started']) for x in ended)
  minutes = sum(spans, datetime.timedelta()).total_seconds() / 60
  if minutes:
    facts.append(f'{minutes:.0f} minutes')
  places = 'commits' if len(commits) > 1 else 'commit'
  return (
    f'`{starts[-1]["command"]}` at {places}'
    f' {", ".join(f"`{x}`" for x in commits)} ({", ".join(facts)}).'
  )


def table(path: pathlib.Path) -> str:
  """Returns a table of a file of CSV, as narrow as a page needs it.

  A column of tasks that all rows share is left out, and intervals are not
  broken into lines.

  Args:
    path: The file; its first line is the head.
  """
  with path.open(encoding='utf-8', newline='') as file:
    columns = [
      column
      for column in zip(*csv.reader(file), strict=True)
      if column[0] != 'Task' or len({*column[1:]}) > 1
    ]
  head, *rows = (
    f'| {" | ".join(cells)} |' for cells in zip(*columns, strict=True)
  )
  # All columns but the first are right-aligned.
  line = '|---' + '|---:' * (len(columns) - 1) + '|'
  # The spaces of an interval become non-breaking.
  return re.sub(
    r'\(\S+ to \S+\)',
    lambda x: x[0].replace(' ', '\xa0'),
    '\n'.join([head, line, *rows]),
  )


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

  def titled(match: re.Match) -> str:
    title, name, rest = match.groups()
    file = path.parent / name
    figures = _first(file.parent, _FIGURES).name
    links = [f'[All numbers]({pathlib.PurePosixPath(name).parent}/{figures})']
    links += [f'[figure]({x})' for x in _FIGURE.findall(rest)]
    return (
      f'\n**{title}**\n\n{table(file)}\n\n'
      f'{origin(file.parent)} {", ".join(links)}.\n'
    )

  text = _TABLE.sub(titled, path.read_text(encoding='utf-8'))
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
