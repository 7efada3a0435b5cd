"""SentencePiece tokenizers with Gemma's special ids."""

import codecs
import enum
import functools
import itertools
import re
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencepiece

PAD, EOS, BOS, UNK = 0, 1, 2, 3
IDS = dict(pad_id=PAD, eos_id=EOS, bos_id=BOS, unk_id=UNK)
# The character that replaces a space in pieces.
SPACE = '\u2581'
# Pieces that are no words of a text, such as `<end_of_turn>`, `<|turn>`,
# `<unused0>` or `[multimodal]`. Tags of HTML match too, and are text.
_CONTROL = re.compile(r'<[^<>\s]+>|\[[^\[\]\s]+\]')
_HTML = re.compile(
  '</?(a|b|bbox|blockquote|body|br|caption|code|div|em|footer|h[1-6]|head|hr'
  '|html|i|iframe|img|li|ol|p|pre|s|span|strong|sub|sup|table|tbody|td|tfoot'
  '|th|thead|tr|u|ul)>'
)
# Pieces for pictures and sounds, and pieces that pad a table.
_NO_TEXT = re.compile(
  r'<\w+_soft_token>|<(start|end)_of_(image|audio|video)>|\[PAD\d+\]'
)


class Kind(enum.IntEnum):
  """Kinds of pieces, with the numbers of SentencePiece and llama.cpp."""

  NORMAL = 1
  UNKNOWN = 2
  # Never matched in a text, such as end-of-sequence.
  CONTROL = 3
  # Matched in a text as a whole, before any merge.
  USER_DEFINED = 4
  UNUSED = 5
  BYTE = 6


class Piece(NamedTuple):
  """A token of a vocabulary."""

  text: str
  score: float
  kind: Kind


class Tokenizer:
  """A SentencePiece model; equal when its bytes are equal.

  Attributes:
    proto: The serialised model, as in `tokenizer.model`.
    vocab_size: Number of pieces.
    stops: Ids that end an answer of the model that it came with:
      end-of-sequence, and end-of-turn for instruction-tuned models. Tokenizers
      with different stops can be equal.
    chat_template: The Jinja template of that model's chats; None if it came
      with none. Tokenizers with different templates can be equal.
    suppress_tokens: Ids that no answer of that model may contain, unless a
      request says otherwise. Tokenizers with different ones can be equal.
  """

  def __init__(
    self,
    proto: bytes,
    stops: Iterable[int] = (),
    chat_template: str | None = None,
    suppress_tokens: Iterable[int] = (),
  ):
    self.proto = proto
    self.chat_template = chat_template
    self._model = _open_model(proto)
    self.vocab_size = self._model.vocab_size()
    size = self.vocab_size
    # Rows that pad a table have no logit.
    self.suppress_tokens = tuple(i for i in suppress_tokens if i < size)
    self.stops = tuple(dict.fromkeys((EOS, *stops)))

  def encode(self, text: str, add_bos: bool = False) -> list[int]:
    """Encodes a text as token ids.

    Args:
      text: The text; control tokens that it spells are encoded as such.
      add_bos: True to start with beginning-of-sequence.

    Raises:
      ValueError: The text holds half of a surrogate pair, which is no
        character.
    """
    _check_characters(text)
    return self._model.encode(text, add_bos=add_bos)

  def encode_framed(
    self, parts: Iterable[str | int], add_bos: bool = False
  ) -> list[int]:
    """Encodes texts between token ids; no text becomes a control token.

    A text that spells a control token (`<end_of_turn>`, `<unused0>`,
    `<start_of_image>`) is encoded as ordinary pieces. All other ids equal those
    of `encode`, since a user-defined token is never merged with its neighbours.

    Args:
      parts: Texts and token ids, in their order.
      add_bos: True to start with beginning-of-sequence.

    Raises:
      ValueError: A text holds half of a surrogate pair.
    """
    model, prefix = _words_only(self.proto)
    ids = [BOS] if add_bos else []
    for is_id, group in itertools.groupby(
      [prefix, *parts], lambda part: isinstance(part, int)
    ):
      if is_id:
        ids += map(int, group)
        continue
      text = ''.join(map(str, group))
      _check_characters(text)
      ids += model.encode(text)
    return ids

  @property
  def adds_prefix(self) -> bool:
    """True if texts are encoded as if they began with a space."""
    return bool(_words_only(self.proto)[1])

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Returns the text of token ids; special tokens have no text."""
    # SentencePiece's own decoding would strip a leading space of the text.
    return ''.join(self.token_strings(ids))

  def token_strings(
    self, ids: Sequence[int] | np.ndarray, text: str | None = None
  ) -> list[str]:
    """Returns the text of each token; joined, they are the decoded text.

    The bytes of a character that is split over several byte tokens are given
    to the last of these tokens.

    Args:
      ids: Token ids.
      text: The text that `encode` made the ids of. The result then joins to
        this text, in which a space and U+2581 differ, though both have the
        same tokens. None decodes the ids alone.
    """
    strings = self._decode_each(ids)
    if text is None:
      return strings
    if len(''.join(strings)) != len(text):
      return [text, *[''] * (len(strings) - 1)]
    ends = itertools.accumulate(map(len, strings), initial=0)
    return [text[a:b] for a, b in itertools.pairwise(ends)]

  def _decode_each(self, ids: Sequence[int] | np.ndarray) -> list[str]:
    """Returns the text that each token adds."""
    texts = []
    decoder = codecs.getincrementaldecoder('utf-8')('replace')
    for i in map(int, ids):
      if self._model.is_byte(i):
        byte = bytes.fromhex(self._model.id_to_piece(i)[3:-1])
        texts.append(decoder.decode(byte))
        continue
      incomplete = decoder.decode(b'', final=True)
      is_special = self._model.is_control(i) or self._model.is_unknown(i)
      piece = '' if is_special else self._model.id_to_piece(i)
      texts.append(incomplete + piece.replace(SPACE, ' '))
    if texts:
      texts[-1] += decoder.decode(b'', final=True)
    return texts

  def piece(self, i: int) -> str:
    """Returns the piece of a token, also of a special token."""
    return self._model.id_to_piece(i)

  def special_tokens(self) -> dict[str, str]:
    """Returns the pieces of the tokens of `IDS`, by transformers' names."""
    return {
      name.replace('_id', '_token'): self.piece(i) for name, i in IDS.items()
    }

  def vocabulary(self) -> list[Piece]:
    """Returns all pieces, in the order of their ids."""
    model = _make_proto()
    model.ParseFromString(self.proto)
    return [Piece(p.piece, p.score, Kind(p.type)) for p in model.pieces]

  def tokens_containing(self, texts: Sequence[str]) -> tuple[int, ...]:
    """Returns the tokens whose text contains one of some texts."""
    return _tokens_containing(self, tuple(texts)) if texts else ()

  def token_id(self, piece: str) -> int | None:
    """Returns the id of a piece; None if it is not in the vocabulary."""
    # SentencePiece returns the id of `<unk>` for unknown pieces.
    i = self._model.piece_to_id(piece)
    return i if self.piece(i) == piece else None

  def with_stops(
    self, *stops: int, suppress_tokens: Iterable[int] = ()
  ) -> 'Tokenizer':
    """Returns an equal tokenizer with more stops and suppressed tokens."""
    stops, ids = (*self.stops, *stops), self.suppress_tokens
    ids = *ids, *suppress_tokens
    return Tokenizer(self.proto, stops, self.chat_template, ids)

  def with_chat_template(self, template: str | None) -> 'Tokenizer':
    """Returns an equal tokenizer with another template of chats."""
    return Tokenizer(self.proto, self.stops, template, self.suppress_tokens)

  def split_control_tokens(self, text: str) -> list[str | int]:
    """Splits a text into texts and the ids of control tokens in it."""
    pattern, ids = _control_pattern(self)
    parts: list[str] = pattern.split(text)
    return [ids.get(part, part) for part in parts if part]

  def control_tokens(self) -> dict[str, int]:
    """Returns the ids of the tokens that no message may become, by text."""
    return {
      piece.text: i
      for i, piece in enumerate(self.vocabulary())
      if piece.kind == Kind.CONTROL
      or (piece.kind == Kind.USER_DEFINED and _is_control(piece.text))
    }

  def __eq__(self, value: object) -> bool:
    return isinstance(value, Tokenizer) and self.proto == value.proto

  def __hash__(self) -> int:
    return hash(self.proto)


# SentencePiece models in memory, by their bytes: copies of a tokenizer, and the
# tokenizers of a pair, share one.
_models: weakref.WeakValueDictionary[
  bytes, sentencepiece.SentencePieceProcessor
] = weakref.WeakValueDictionary()


def _open_model(proto: bytes) -> sentencepiece.SentencePieceProcessor:
  """Returns the SentencePiece model of bytes, made once."""
  model = _models.get(proto)
  if model is None:
    model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    _models[proto] = model
  return model


def _check_characters(text: str) -> None:
  """Refuses a text with half of a surrogate pair, which is no character."""
  try:
    text.encode()
  except UnicodeEncodeError as e:
    raise ValueError(
      f'text: {text[e.start]!r} at {e.start} is half of a surrogate pair,'
      ' not a character; leave it out.'
    ) from None


def _is_control(text: str) -> bool:
  """Returns True if a piece is a control token rather than text."""
  return bool(_CONTROL.fullmatch(text)) and not _HTML.fullmatch(text)


@functools.lru_cache(maxsize=8)
def _control_pattern(
  tokenizer: Tokenizer,
) -> tuple[re.Pattern, dict[str, int]]:
  """Returns a pattern that splits a text at control tokens, and their ids."""
  ids = tokenizer.control_tokens()
  # The longest of several tokens that begin alike.
  longest_first = sorted(ids, key=len, reverse=True)
  return re.compile(f'({"|".join(map(re.escape, longest_first))})'), ids


@functools.lru_cache(maxsize=8)
def _words_only(
  proto: bytes,
) -> tuple[sentencepiece.SentencePieceProcessor, str]:
  """Returns a SentencePiece model that encodes no text as a control token."""
  model = _make_proto()
  model.ParseFromString(proto)
  for piece in model.pieces:
    if piece.type == Kind.USER_DEFINED and _is_control(piece.piece):
      piece.type = int(Kind.CONTROL)
  prefix = ' ' if model.normalizer_spec.add_dummy_prefix else ''
  model.normalizer_spec.add_dummy_prefix = False
  words = sentencepiece.SentencePieceProcessor(
    model_proto=model.SerializeToString()
  )
  return words, prefix


@functools.lru_cache(maxsize=64)
def _tokens_containing(
  tokenizer: Tokenizer, texts: tuple[str, ...]
) -> tuple[int, ...]:
  """Returns `Tokenizer.tokens_containing`; cached for large vocabularies."""
  ids = []
  for i in range(tokenizer.vocab_size):
    piece = tokenizer.piece(i).replace(SPACE, ' ')
    # Special tokens have a piece and no text.
    if any(text in piece and text in tokenizer.decode([i]) for text in texts):
      ids.append(i)
  return tuple(ids)


def first_difference(a: Tokenizer | None, b: Tokenizer | None) -> int | None:
  """Returns the first id with different pieces; None if all pieces are equal.

  Everything else in a tokenizer decides how texts are split, and not what an id
  means. A missing tokenizer differs at the first id.
  """
  if a == b:
    return None
  if a is None or b is None:
    return 0
  common = min(a.vocab_size, b.vocab_size)
  for i in range(common):
    if a.piece(i) != b.piece(i):
      return i
  return None if a.vocab_size == b.vocab_size else common


def _make_proto(**fields) -> Any:
  """Returns a SentencePiece model as a protocol buffer."""
  from sentencepiece import sentencepiece_model_pb2

  # The generated module declares its classes when it is imported.
  return sentencepiece_model_pb2.ModelProto(**fields)  # pyright: ignore[reportAttributeAccessIssue]


def strip_non_text(pieces: Iterable[Piece]) -> list[Piece]:
  """Returns pieces without those at the end that encode no text.

  Pieces for pictures and sounds, and pieces that pad a table, may be in one
  file of a model and not in another; a tokenizer.model has none of them.
  """
  text_pieces = [*pieces]
  while text_pieces and _NO_TEXT.fullmatch(text_pieces[-1].text):
    text_pieces.pop()
  return text_pieces


def from_pieces(
  pieces: Sequence[Piece], dummy_prefix: bool = False
) -> Tokenizer:
  """Makes the byte-pair tokenizer of pieces, with Gemma's conventions."""
  if len(pieces) <= UNK:
    raise ValueError(
      f'tokenizer: must have at least {UNK + 1} pieces, the special tokens, got'
      f' {len(pieces)}; fetch it again.'
    )
  try:
    return Tokenizer(_serialize(pieces, dummy_prefix))
  # A piece may hold half of a surrogate pair.
  except (RuntimeError, UnicodeEncodeError) as error:
    raise ValueError(
      f'tokenizer: must have valid pieces ({error}); fetch it again.'
    ) from None


def _serialize(pieces: Sequence[Piece], dummy_prefix: bool) -> bytes:
  """Returns the serialised SentencePiece model of pieces."""
  texts = [piece.text for piece in pieces]
  model = _make_proto(
    trainer_spec=dict(
      # Byte pairs.
      model_type=2,
      vocab_size=len(pieces),
      byte_fallback=any(piece.kind == Kind.BYTE for piece in pieces),
      **IDS,
      pad_piece=texts[PAD],
      eos_piece=texts[EOS],
      bos_piece=texts[BOS],
      unk_piece=texts[UNK],
    ),
    normalizer_spec=dict(
      name='identity',
      add_dummy_prefix=dummy_prefix,
      remove_extra_whitespaces=False,
      escape_whitespaces=True,
    ),
  )
  # One at a time: 262,144 dicts would take 60 MB.
  for text, score, kind in pieces:
    model.pieces.add(piece=text, score=score, type=int(kind))
  return model.SerializeToString()
