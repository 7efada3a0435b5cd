"""Escapes untrusted text for pages and tables.

A name or an answer may contain formulas or markup. Each place has one function,
which displays such content as escaped characters.
"""

import html
import re
import unicodedata

from cascades.files import is_invisible, printable


def for_xml(text: str) -> str:
  """Returns a text for XML; escaping it twice equals escaping it once."""
  # Two characters that XML, and so SVG and HTML, cannot contain.
  return re.sub('[\ufffe\uffff]', '\N{REPLACEMENT CHARACTER}', printable(text))


def for_html(text: str) -> str:
  """Returns a text for HTML, between tags or in quotes."""
  return html.escape(for_xml(text))


def for_csv(value: object) -> object:
  """Returns a cell of a table that no spreadsheet reads as a formula."""
  if not isinstance(value, str):
    return value
  # Spreadsheets may skip blanks, and read full-width forms as ASCII.
  text = ''.join(unicodedata.normalize('NFKC', value).split())
  first = next((c for c in text if not is_invisible(c)), '')
  return f"'{value}" if {value[:1], first} & {*'=+-@\t\r'} else value


def for_markdown(text: str) -> str:
  """Returns a text for a cell of a table in Markdown, with markup escaped."""
  text = ' '.join(printable(text).split())
  text = re.sub(r'([\\`*|>$@\[\]]|:(?=//)|(?<=www)\.)', r'\\\1', text)
  return text.replace('&', '&amp;').replace('<', '&lt;')
