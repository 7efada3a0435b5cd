"""What ends an answer beside its limit: tokens, and texts."""

import dataclasses
import math

import numpy as np

from cascades import decoding
from cascades.models import tokenizers
from cascades.sampler import batching


@dataclasses.dataclass(frozen=True)
class StopCondition:
  """What ends an answer beside its limit.

  Attributes:
    tokenizer: The one that both models share.
    tokens: Ids that end it.
    texts: Texts that end it.
    fresh: Most tokens that are new when a row is looked at once more.
  """

  tokenizer: tokenizers.Tokenizer
  tokens: list[int]
  texts: tuple[str, ...]
  fresh: int

  def pieces(self, tokens: list[int]) -> list[str]:
    """The texts of an answer's tokens, without what ends it."""
    pieces = self.tokenizer.token_strings(tokens)
    if tokens and tokens[-1] in self.tokens:
      pieces[-1] = ''
    start, _ = self._first(''.join(pieces))
    left = math.inf if start is None else start
    for i, piece in enumerate(pieces):
      pieces[i] = piece[: min(left, len(piece))]
      left -= len(pieces[i])
    return pieces

  def reached(self, tokens: list[int]) -> bool:
    """Whether an answer is at its end, whatever its limit."""
    text = self.tokenizer.decode(tokens)
    return tokens[-1] in self.tokens or self._first(text)[0] is not None

  @property
  def in_loop(self) -> np.ndarray:
    """Tokens after which a row has no more to say, whatever stands before.

    Those that end an answer, and those that hold a text which does. A text that
    several tokens make together is found where the row is looked at.
    """
    ids = [*self.tokens, *self.tokenizer.tokens_containing(self.texts)]
    # A few sizes, so that a stop token more compiles nothing.
    size = max(8, 1 << (len(ids) - 1).bit_length())
    return np.pad(np.array(ids, np.int32), (0, size - len(ids)), 'edge')

  @property
  def ends(self) -> batching.FindEnd | None:
    """Where a row's text ends it; None if no text can."""
    return self._end if self.texts else None

  def _end(self, state: decoding.Row) -> int | None:
    length = int(state.length)
    earliest, new = int(state.prompt_length), length - self.fresh
    # A text that ends in what is new begins no more than its own length before
    # it, be that in few tokens or, where they have no text, in many; and a
    # character that is cut in two may stand in front.
    longest = max(len(each) for each in self.texts)
    reach = 4 * longest
    while True:
      first = max(earliest, new - reach)
      pieces = self.tokenizer.token_strings(state.tokens[first:length].tolist())
      seen = sum(map(len, pieces[: max(0, new - first)]))
      if first == earliest or seen > longest:
        break
      reach *= 2
    start, end = self._first(''.join(pieces))
    if start is None:
      return None
    ends = np.cumsum([len(piece) for piece in pieces])
    return first + int(np.searchsorted(ends, end)) + 1

  def _first(self, text: str) -> tuple[int | None, int]:
    """The first of its texts in another: where it begins, and ends."""
    found = [
      (text.index(each) + len(each), -len(each))
      for each in self.texts
      if each in text
    ]
    if not found:
      return None, 0
    end, size = min(found)
    return end + size, end

  def settled(self, text: str) -> str:
    """As much of an answer so far as is sure to be of its text."""
    # What may still be the beginning of a character waits for its end.
    text = text.rstrip('\ufffd')
    waiting = (
      n
      for each in self.texts
      for n in range(len(each) - 1, 0, -1)
      if text.endswith(each[:n])
    )
    return text[: len(text) - max(waiting, default=0)]
