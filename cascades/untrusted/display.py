"""Escapes untrusted text for terminals, pages and tables.

A name or an answer may contain active content: sequences that move a cursor,
characters that reverse the direction of writing, formulas, markup. Each place
has one function, which displays such content as escaped characters.
"""

import html
import re
import unicodedata

# Invisible characters that join letters and emoji, which are left as they are.
_JOINERS = '\u200c\u200d'
# Cc: control, Cf: format, Cs: half of a surrogate pair, Zl, Zp: ends of lines.
_INVISIBLE = {'Cc', 'Cf', 'Cs', 'Zl', 'Zp'}
# Blank letters and symbols: fillers of Hangul, an empty Braille cell.
_BLANK = '\u115f\u1160\u3164\uffa0\u2800'
# Characters that XML, and so SVG and HTML, cannot contain.
_NO_XML = re.compile(r'[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]')
# Characters of the longest message.
_MAX_MESSAGE = 1000
_FORMULA = ('=', '+', '-', '@', '\t', '\r')
_URL = re.compile(r'(\w[\w+.-]*://)([^\s\'"<>]+)')


def is_invisible(character: str) -> bool:
  """Returns True if a character is blank, or controls its surroundings."""
  return (
    character not in '\n\t'
    and character not in _JOINERS
    and (character in _BLANK or unicodedata.category(character) in _INVISIBLE)
  )


def escape(character: str) -> str:
  r"""Returns Python's escape of a character: '\x1b', '\u202e'."""
  return character.encode('unicode_escape').decode()


def printable(text: str) -> str:
  """Returns a text for a terminal or a log, with control characters escaped."""
  if text.isascii() and text.isprintable():
    return text
  return ''.join(escape(c) if is_invisible(c) else c for c in text)


def sentence(text: str) -> str:
  """Returns a message as one line for a terminal, of 1,000 characters.

  The middle of a longer message is left out. URLs lose their secrets.
  """
  text = printable(' '.join(without_secrets(text).split()))
  half = _MAX_MESSAGE // 2
  return (
    text if len(text) <= _MAX_MESSAGE else f'{text[:half]} ... {text[-half:]}'
  )


def for_xml(text: str) -> str:
  """Returns a text for XML, with invisible characters escaped.

  U+FFFD replaces other characters that XML cannot contain. Escaping a text
  twice equals escaping it once.
  """
  escapes = {ord(c): escape(c) for c in set(text) if is_invisible(c)}
  return _NO_XML.sub('\N{REPLACEMENT CHARACTER}', text.translate(escapes))


def for_html(text: str) -> str:
  """Returns a text for HTML, between tags or in quotes; see `for_xml`."""
  return html.escape(for_xml(text))


def for_csv(value: object) -> object:
  """Returns a cell of a table that no spreadsheet reads as a formula."""
  if not isinstance(value, str):
    return value
  # Spreadsheets may skip blanks, and read full-width forms as ASCII.
  visible = (
    c
    for c in unicodedata.normalize('NFKC', value)
    if not c.isspace() and not is_invisible(c)
  )
  is_formula = value.startswith(_FORMULA) or next(visible, '') in _FORMULA
  return f"'{value}" if is_formula else value


def for_markdown(text: str) -> str:
  """Returns a text for a cell of a table in Markdown, on one line.

  Markup, entities, mathematics, links and bare addresses are escaped.
  """
  text = ' '.join(printable(text).split())
  text = re.sub(r'([\\`*|>$@\[\]]|:(?=//)|(?<=www)\.)', r'\\\1', text)
  return text.replace('&', '&amp;').replace('<', '&lt;')


def without_secrets(text: str) -> str:
  """Returns a text whose URLs have no password, token, query or fragment."""
  return _URL.sub(_without_secrets, text)


def _without_secrets(url: re.Match) -> str:
  """Returns a URL without password, token, query and fragment."""
  place = re.split('[?#]', url[2], maxsplit=1)[0]
  rest = '?***' if len(place) < len(url[2]) else ''
  user, at, host = place.rpartition('@')
  name, colon, _ = user.partition(':')
  # An '@' after a '/' belongs to a path, unless a password contains the '/'.
  if at and ('/' not in user or (colon and '/' not in name)):
    place = f'{name if colon else ""}{colon}***@{host}'
  return url[1] + place + rest
