"""Reads docstrings as plain text with backticks, as their authors wrote them.

Sphinx takes docstrings for reStructuredText, in which `*`, `|` and a trailing
underscore are markup. Here only the sections of Google's style and backticks
are, and an indented paragraph is shown as it stands.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from sphinx.application import Sphinx

_SECTION = re.compile(r'(Args|Attributes|Raises|Returns|Yields):$')
# Characters of markup, and a word that is taken for the start of an address.
_MARKUP = re.compile(r'([*|\\]|_\b|(?<=\bfile):(?=\w))')
_CODE = re.compile(r'(\w?)`([^`]+)`(?=(\w?))')


def escape(line: str) -> str:
  """Returns a line whose only markup is what stands in backticks."""

  def mark(match: re.Match) -> str:
    before, code, after = match.groups()
    # An escaped space, which is not shown, allows a letter beside the code.
    start, end = (x and '\\ ' for x in (before, after))
    return f'{before}{start}``{code}``{end}'

  pieces = re.split(r'(\w?`[^`]+`)', line)
  marked = ''.join(
    piece if i % 2 else _MARKUP.sub(r'\\\1', piece)
    for i, piece in enumerate(pieces)
  )
  return _CODE.sub(mark, marked)


def _joined(lines: list[str]) -> list[str]:
  """Puts a span of code that a line breaks onto the first of the lines."""
  joined: list[str] = []
  for line in lines:
    if joined and joined[-1].count('`') % 2:
      joined[-1] += ' ' + line.strip()
    else:
      joined.append(line)
  return joined


def convert(lines: list[str]) -> list[str]:
  """Returns the reStructuredText of a docstring."""
  converted: list[str] = []
  in_section = in_literal = False
  for line in _joined(lines):
    is_indented = line.startswith(' ')
    if line.strip() and not is_indented:
      converted += [''] * in_literal
      in_section, in_literal = bool(_SECTION.match(line)), False
    if is_indented and not in_section and not in_literal:
      converted += ['', '::', '']
      in_literal = True
    converted.append(line if in_literal else escape(line))
  return converted


def setup(app: 'Sphinx') -> dict[str, bool]:
  """Registers the extension; it runs before napoleon reads the sections."""

  def process(app, what, name, obj, options, lines):
    lines[:] = convert(lines)

  from sphinx.domains.python import PyObject

  # Napoleon writes the section `Attributes` as fields of this name.
  for field in PyObject.doc_field_types:
    if field.name == 'variable':
      field.label = 'Attributes'
  app.connect('autodoc-process-docstring', process, priority=400)
  return {'parallel_read_safe': True}
