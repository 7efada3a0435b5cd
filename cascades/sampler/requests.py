"""Requests: the options of an answer, its prompts as tokens, and its end."""

import collections
import dataclasses
import math
import numbers
import zlib
from collections.abc import Sequence
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from cascades import arguments, decoding
from cascades.models import chat, tokenizers
from cascades.models.chat import Conversation, Prompt
from cascades.sampler import batching


class RequestOptions(TypedDict, total=False):
  """Keyword arguments of `Sampler.sample`; fields of `SampleRequest`."""

  max_new_tokens: int
  seed: int
  echo: bool
  return_logits: bool
  return_logprobs: bool
  forbidden_tokens: Sequence[int | str] | None
  stop_tokens: Sequence[int | str] | None
  stop_strings: Sequence[str]
  apply_chat_template: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleRequest:
  """Options of an answer, whatever the prompt.

  Attributes:
    max_new_tokens: Most tokens of an answer.
    seed: Seed of the sampling, from 0 to 2^64 - 1.
    echo: True if texts and tokens start with the prompt. With last_state they
      start with the whole conversation. Prompts are decoded from their tokens:
      U+2581 is a space, and control tokens have no text.
    return_logits: True to return the verifier's logits of the emitted tokens.
    return_logprobs: True to return their log-probabilities under verifier,
      drafter and target.
    forbidden_tokens: Ids, or texts of one token, that are never emitted; None
      forbids the suppress_tokens of the verifier's generation_config.json, and
      an empty list nothing.
    stop_tokens: Ids, or texts of one token, that end an answer in addition to
      the tokenizer's own: end-of-sequence, and end-of-turn of instruction-tuned
      models. None adds none.
    stop_strings: Texts that end an answer. The text stops before them; tokens
      and counts include the token that completes the first of them. An answer
      with stop strings has no state to continue from.
    apply_chat_template: Wraps each prompt in the model's chat template; its
      end-of-turn token ends the output. Control tokens spelled in the prompt,
      such as `<end_of_turn>`, stay text; without a template they are control
      tokens.
  """

  max_new_tokens: int = 64
  seed: int = 0
  echo: bool = False
  return_logits: bool = False
  return_logprobs: bool = False
  forbidden_tokens: Sequence[int | str] | None = None
  stop_tokens: Sequence[int | str] | None = None
  stop_strings: Sequence[str] = ()
  apply_chat_template: bool = False

  def __post_init__(self):
    strings = arguments.as_list('stop_strings', self.stop_strings, 'texts')
    if not all(isinstance(x, str) and x for x in strings):
      raise ValueError(
        'stop_strings: must be non-empty texts, got'
        f' {arguments.quote(self.stop_strings)}.'
      )
    checked = dict(
      max_new_tokens=arguments.integer(
        'max_new_tokens', self.max_new_tokens, 1
      ),
      seed=arguments.integer('seed', self.seed, 0, 2**64 - 1),
      stop_strings=tuple(strings),
    )
    flags = 'echo', 'return_logits', 'return_logprobs', 'apply_chat_template'
    for name in flags:
      # 'no' would be true.
      value = getattr(self, name)
      arguments.instance(name, value, bool | np.bool_, 'True or False')
    for name, value in checked.items():
      # The class is frozen: nothing else assigns its fields.
      object.__setattr__(self, name, value)

  def for_prompts(self, prompts: Sequence[Prompt]) -> 'SampleRequest':
    """Returns the request, with the chat template if prompts are messages."""
    are_messages = {isinstance(prompt, Conversation) for prompt in prompts}
    if len(are_messages) > 1 and not self.apply_chat_template:
      raise ValueError(
        'prompts: must all be texts or all be messages; set apply_chat_template'
        ' to read texts as messages of the user.'
      )
    has_template = self.apply_chat_template or True in are_messages
    return dataclasses.replace(self, apply_chat_template=has_template)


def encode(
  tokenizer: tokenizers.Tokenizer,
  prompt: Prompt,
  apply_chat_template: bool = False,
  previous: Sequence[int] = (),
) -> list[int]:
  """Encodes a prompt that follows earlier tokens."""
  if not isinstance(prompt, Prompt):
    raise ValueError(f'prompts: must be texts, got {arguments.quote(prompt)}.')
  if isinstance(prompt, str) and not apply_chat_template:
    return tokenizer.encode(prompt, add_bos=not previous)
  last = previous[-1] if previous else None
  return chat.require_template(tokenizer).encode(tokenizer, prompt, last)


def token_ids(
  option: str,
  tokens: Sequence[int | str],
  tokenizer: tokenizers.Tokenizer,
  vocab_size: int,
) -> list[int]:
  """Returns the ids of tokens given as ids or as texts of one token."""
  ids = []
  kind = 'token ids, or of texts of one token'
  for token in arguments.as_list(option, tokens, kind):
    is_id = isinstance(token, numbers.Integral) and not isinstance(token, bool)
    is_text = isinstance(token, str)
    encoded: list[Any] = tokenizer.encode(token) if is_text else [token]
    if (
      len(encoded) != 1
      or not (is_id or is_text)
      or (not 0 <= encoded[0] < vocab_size)
    ):
      raise ValueError(
        f'{option}: there is no token {arguments.quote(token)}; ids go from 0'
        f' to {vocab_size - 1}, and a text must be one of the tokens.'
      )
    ids.append(int(encoded[0]))
  return ids


def prompt_keys(seed: int, prompts: Sequence[Sequence[int]]) -> jax.Array:
  """Makes a key per prompt from the seed, its tokens and its repetition.

  A key depends neither on the other prompts nor on the position in the batch.
  Prompts with the same checksum share a key.
  """
  repetitions = collections.Counter()
  pairs = []
  for prompt in map(tuple, prompts):
    digest = zlib.crc32(np.array(prompt, '<i4').tobytes())
    pairs.append((digest, repetitions[prompt]))
    repetitions[prompt] += 1
  halves = np.array([seed % 2**32, seed // 2**32], np.uint32)
  # Few shapes, so that any number of prompts compiles nothing.
  padded = np.zeros((batching.bucket(len(pairs), 8), 2), np.uint32)
  padded[: len(pairs)] = pairs
  return _fold(halves, padded)[: len(pairs)]


@jax.jit
def _fold(seed: UInt32[Array, '2'], pairs: UInt32[Array, 'N 2']) -> jax.Array:
  """Folds pairs of numbers into the key of a seed's two halves."""
  root = jax.random.key(seed[0])
  root = jnp.where(seed[1] > 0, jax.random.fold_in(root, seed[1]), root)

  def fold_pair(pair):
    return jax.random.fold_in(jax.random.fold_in(root, pair[0]), pair[1])

  return jax.vmap(fold_pair)(pairs)


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
