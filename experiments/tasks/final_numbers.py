"""Parsing of the final number of an answer, as GSM8K marks it.

Reference answers end in a line `#### N` (Cobbe et al. 2021, arXiv 2110.14168).
"""

import re
from decimal import Decimal

MARK = '####'
# Thousands in threes, decimals, a denominator. A minus after a number or apart
# from a number is not a sign; a currency may stand on either side of a sign.
_NUMBER = re.compile(
  r'(?P<sign>(?<![\w).])[-+\u2212])?[$€£¥]?'
  r'(?P<value>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?'
  r'|(?<![0-9])\.[0-9]+)'
  r'(?:/(?P<denominator>[0-9]+))?'
)


def numbers(text: str) -> list[Decimal]:
  """Returns the numbers in a text, in order.

  '-$1,234.50' is -1234.50 and '3/4' is 0.75; divisions by zero are left out.
  """
  values = []
  for match in _NUMBER.finditer(text):
    value = Decimal(match['value'].replace(',', ''))
    if match['denominator']:
      denominator = Decimal(match['denominator'])
      if not denominator:
        continue
      value /= denominator
    values.append(-value if match['sign'] in ('-', '\u2212') else value)
  return values


def marked_number(text: str) -> Decimal | None:
  """Returns the first number after the first `####` on its line, or None."""
  _, mark, rest = text.partition(MARK)
  values = numbers(rest.partition('\n')[0])
  return values[0] if mark and values else None


def final_number(text: str) -> tuple[Decimal | None, bool]:
  """Returns the final number of an answer."""
  number = marked_number(text)
  if number is not None:
    return number, True
  values = numbers(text)
  return (values[-1] if values else None), False
