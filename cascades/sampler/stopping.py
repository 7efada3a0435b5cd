"""Stop conditions of an answer beside its limit: tokens, and strings."""

import dataclasses
import math

import numpy as np

from cascades import decoding
from cascades.models import tokenizers
from cascades.sampler import batching


@dataclasses.dataclass(frozen=True)
class StopCondition:
  """Tokens and strings that end an answer."""

  tokenizer: tokenizers.Tokenizer
  tokens: list[int]
  strings: tuple[str, ...]
  tail_length: int

  def token_strings(self, tokens: list[int]) -> list[str]:
    """Returns the text of each token of an answer, without what ends it."""
    texts = self.tokenizer.token_strings(tokens)
    if tokens and tokens[-1] in self.tokens:
      texts[-1] = ''
    start, _ = self._find_first(''.join(texts))
    remaining = math.inf if start is None else start
    for i, text in enumerate(texts):
      texts[i] = text[: int(min(remaining, len(text)))]
      remaining -= len(texts[i])
    return texts

  def is_met(self, tokens: list[int]) -> bool:
    """True if the last token or the text of an answer ends it."""
    text = self.tokenizer.decode(tokens)
    return tokens[-1] in self.tokens or self._find_first(text)[0] is not None

  @property
  def loop_tokens(self) -> np.ndarray:
    """Token ids after which a row always ends, int32.

    Stop tokens, and tokens whose text contains a stop string. A stop string
    that spans several tokens is found when the row is polled.
    """
    ids = [*self.tokens, *self.tokenizer.tokens_containing(self.strings)]
    # A few sizes, so that one more stop token compiles nothing.
    size = max(8, 1 << (len(ids) - 1).bit_length())
    return np.pad(np.array(ids, np.int32), (0, size - len(ids)), 'edge')

  @property
  def find_end(self) -> batching.FindEnd | None:
    """Finds the length at which a row's text ends it; None without strings."""
    return self._find_end if self.strings else None

  def _find_end(self, state: decoding.Row) -> int | None:
    length = int(state.length)
    earliest, tail = int(state.prompt_length), length - self.tail_length
    # A string that ends in the tail begins at most its own length before it, in
    # few tokens or, if they have no text, in many; a character that is split
    # over tokens may precede it.
    longest = max(len(string) for string in self.strings)
    reach = 4 * longest
    while True:
      first = max(earliest, tail - reach)
      texts = self.tokenizer.token_strings(state.tokens[first:length].tolist())
      before_tail = sum(map(len, texts[: max(0, tail - first)]))
      if first == earliest or before_tail > longest:
        break
      reach *= 2
    start, end = self._find_first(''.join(texts))
    if start is None:
      return None
    ends = np.cumsum([len(text) for text in texts])
    return first + int(np.searchsorted(ends, end)) + 1

  def _find_first(self, text: str) -> tuple[int | None, int]:
    """Returns start and end of the stop string that ends first in a text."""
    matches = [
      (text.index(string) + len(string), -len(string))
      for string in self.strings
      if string in text
    ]
    if not matches:
      return None, 0
    end, negative_length = min(matches)
    return end + negative_length, end

  def stable_prefix(self, text: str) -> str:
    """Returns the part of a partial answer that later tokens cannot change."""
    # A character that is not complete is decoded as U+FFFD.
    text = text.rstrip('\ufffd')
    overlaps = (
      n
      for string in self.strings
      for n in range(len(string) - 1, 0, -1)
      if text.endswith(string[:n])
    )
    return text[: len(text) - max(overlaps, default=0)]
