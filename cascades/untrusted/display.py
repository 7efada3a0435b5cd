"""Text of others where people see it: terminals, pages, tables.

A name or an answer may hold what acts there: sequences that move a cursor,
characters that turn the direction of writing, formulas, markup. Each place has
one function, which shows such text as it is spelled.
"""

import html
import re
import unicodedata
from collections.abc import Mapping

# Of formats that show nothing themselves, those that join letters and emoji.
_JOINERS = '\u200c\u200d'
# Cc: control, Cf: format, Cs: half of a surrogate pair, Zl, Zp: ends of lines.
_UNSEEN = {'Cc', 'Cf', 'Cs', 'Zl', 'Zp'}
# Letters and a symbol that are blank: fillers of Hangul, an empty Braille cell.
_BLANK = '\u115f\u1160\u3164\uffa0\u2800'
# What XML, and so SVG and HTML, has no way to hold.
_NO_XML = re.compile(r'[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]')
# Of a message.
_LONGEST = 1000
_FORMULA = ('=', '+', '-', '@', '\t', '\r')
_URL = re.compile(r'(\w[\w+.-]*://)([^\s\'"<>]+)')
_LATEX = {c: f'\\{c}' for c in '&%$#_{}'} | {
  '\\': r'\textbackslash{}',
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
}


def is_invisible(character: str) -> bool:
  """Says whether a character has no form of its own, or may act."""
  return (
    character not in '\n\t'
    and character not in _JOINERS
    and (character in _BLANK or unicodedata.category(character) in _UNSEEN)
  )


def escape(character: str) -> str:
  r"""Spells a character as Python does: '\x1b', '\u202e'."""
  return character.encode('unicode_escape').decode()


def printable(text: str) -> str:
  """Returns a text for a terminal or a log: what acts there is spelled."""
  if text.isascii() and text.isprintable():
    return text
  return ''.join(escape(c) if is_invisible(c) else c for c in text)


def sentence(text: str) -> str:
  """Returns a message as one line for a terminal, of a thousand characters.

  What is left out is in its middle; URLs are without their secrets.
  """
  text = printable(' '.join(without_secrets(text).split()))
  half = _LONGEST // 2
  return text if len(text) <= _LONGEST else f'{text[:half]} ... {text[-half:]}'


def for_xml(text: str) -> str:
  """Returns a text of which nothing acts, or is unseen: it is spelled.

  U+FFFD stands for what else XML cannot hold. What is spelled once stays as it
  is if it comes here again.
  """
  spelled = {ord(c): escape(c) for c in set(text) if is_invisible(c)}
  return _NO_XML.sub('\N{REPLACEMENT CHARACTER}', text.translate(spelled))


def for_html(text: str) -> str:
  """Returns a text for a page, between tags or in quotes; see `for_xml`."""
  return html.escape(for_xml(text))


def for_csv(value: object) -> object:
  """Returns a cell of a table that no spreadsheet takes for a formula.

  Args:
    value: Numbers stay as they are.
  """
  if not isinstance(value, str):
    return value
  # What a spreadsheet may pass over, or take for another: full-width forms.
  seen = (
    c
    for c in unicodedata.normalize('NFKC', value)
    if not c.isspace() and not is_invisible(c)
  )
  acts = value.startswith(_FORMULA) or next(seen, '') in _FORMULA
  return f"'{value}" if acts else value


def for_markdown(text: str) -> str:
  """Returns a text for a cell of a table in Markdown, on one line.

  Without markup, entities, mathematics and links, also those that only look
  like addresses.
  """
  text = ' '.join(printable(text).split())
  text = re.sub(r'([\\`*|>$@\[\]]|:(?=//)|(?<=www)\.)', r'\\\1', text)
  return text.replace('&', '&amp;').replace('<', '&lt;')


def for_latex(text: str, symbols: Mapping[str, str] | None = None) -> str:
  """Returns a text for a table in LaTeX.

  Args:
    text: On one line.
    symbols: What stands for characters that LaTeX lacks.
  """
  known = _LATEX | dict(symbols or {})
  return ''.join(known.get(c, c) for c in printable(text))


def without_secrets(text: str) -> str:
  """Returns a text whose URLs have no password, token, query or fragment."""
  return _URL.sub(_without_secrets, text)


def _without_secrets(url: re.Match) -> str:
  place = re.split('[?#]', url[2], maxsplit=1)[0]
  rest = '?***' if len(place) < len(url[2]) else ''
  user, at, host = place.rpartition('@')
  name, colon, _ = user.partition(':')
  # An '@' behind a '/' is of a path, unless a password holds that.
  if at and ('/' not in user or (colon and '/' not in name)):
    place = f'{name if colon else ""}{colon}***@{host}'
  return url[1] + place + rest
