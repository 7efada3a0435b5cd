"""Verification that judges a draft by the drafts after it: 'look_ahead:4'.

  window           the verification
  windowed_blocks  its enumeration, for proofs

This module has the entry of the registry; it imports the others when a block is
verified or enumerated.
"""

from cascades import arguments
from cascades.verification_config import Verification

# W by default: the judged draft and the drafts after it.
_WINDOW = 4


def _window(argument: str) -> int:
  if not argument:
    return _WINDOW
  return arguments.integer('window', arguments.parse_count(argument), 2)


def _refuse(window: int, gamma: int) -> str | None:
  if window <= gamma:
    return None
  return (
    f'accepts a draft leniently only if {window - 1} more follow in its block,'
    f' but gamma is {gamma}; raise gamma to {window}, or give a smaller number'
  )


VERIFICATION = Verification(
  decide=f'{__name__}.window:look_ahead',
  blocks=f'{__name__}.windowed_blocks:blocks',
  keeps_law=False,
  pattern='look_ahead:4',
  shortest='look_ahead:2',
  parse=_window,
  refuse=_refuse,
)
