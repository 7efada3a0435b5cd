"""SentencePiece tokenizers with Gemma's special ids, and their files."""

import codecs
import dataclasses
import enum
import functools
import itertools
import json
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencepiece

from cascades import files

PAD, EOS, BOS, UNK = 0, 1, 2, 3
IDS = dict(pad_id=PAD, eos_id=EOS, bos_id=BOS, unk_id=UNK)
# The character that replaces a space in pieces.
SPACE = '\u2581'
# Pieces that are no words of a text, such as `<end_of_turn>`, `<|turn>`,
# `<unused0>` or `[multimodal]`. Tags of HTML match too, and are text.
_CONTROL = re.compile(
  '(?!</?(a|b|bbox|blockquote|body|br|caption|code|div|em|footer|h[1-6]|head|hr'
  '|html|i|iframe|img|li|ol|p|pre|s|span|strong|sub|sup|table|tbody|td|tfoot'
  r'|th|thead|tr|u|ul)>)(<[^<>\s]+>|\[[^\[\]\s]+\])'
)
# Pieces for pictures and sounds, and pieces that pad a table.
_NO_TEXT = re.compile(
  r'<\w+_soft_token>|<(start|end)_of_(image|audio|video)>|\[PAD\d+\]'
)
_BYTE = re.compile('<0x[0-9A-F]{2}>')
# Gemma's tokenizer.model has 4.7 MB, and its tokenizer.json 33 MB, of which the
# 6,415 added tokens end after 1.3 MB.
_MAX_BYTES, _HEAD_CHARS = 2**29, 2**22
# Errors of code that reads JSON of another form.
_FAULTS = ArithmeticError, AttributeError, LookupError, TypeError, ValueError
_FAULTS += (RuntimeError,)

# Kinds of pieces, with the numbers of SentencePiece and llama.cpp. A text never
# becomes a CONTROL piece; a USER_DEFINED one matches it before any merge.
Kind = enum.IntEnum('Kind', 'NORMAL UNKNOWN CONTROL USER_DEFINED UNUSED BYTE')
_SPECIAL = dict.fromkeys((PAD, EOS, BOS), Kind.CONTROL) | {UNK: Kind.UNKNOWN}


class Piece(NamedTuple):
  """A token of a vocabulary."""

  text: str
  score: float
  kind: Kind


@dataclasses.dataclass(unsafe_hash=True, repr=False)
class Tokenizer:
  """A SentencePiece model; equal when its bytes are equal.

  An answer of the model that it came with ends at a token of `stops` and has
  none of `suppress_tokens`, unless a request says otherwise; `chat_template` is
  the Jinja template of that model's chats.
  """

  proto: bytes
  stops: tuple[int, ...] = dataclasses.field(default=(EOS,), compare=False)
  chat_template: str | None = dataclasses.field(default=None, compare=False)
  suppress_tokens: tuple[int, ...] = dataclasses.field(
    default=(), compare=False
  )

  def __post_init__(self):
    self._model = _open_model(self.proto)
    self.vocab_size = self._model.vocab_size()

  def encode(self, text: str, add_bos: bool = False) -> list[int]:
    """Encodes a text as token ids; control tokens that it spells, as such."""
    return self._model.encode(_as_bytes(text), add_bos=add_bos)

  def encode_framed(self, parts: Iterable[str | int]) -> list[int]:
    """Encodes texts between token ids; no text becomes a control token.

    A text that spells a control token (`<end_of_turn>`, `<unused0>`,
    `<start_of_image>`) is encoded as ordinary pieces. All other ids equal those
    of `encode`, since a user-defined token is never merged with its neighbours.
    """
    model, ids = _words_only(self.proto), list[int]()
    for is_id, group in itertools.groupby(
      parts, lambda part: isinstance(part, int)
    ):
      if is_id:
        ids += map(int, group)
      else:
        ids += model.encode(_as_bytes(''.join(map(str, group))))
    return ids

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Returns the text of token ids; special tokens have no text."""
    # SentencePiece's own decoding would strip a leading space of the text.
    return ''.join(self.token_strings(ids))

  def token_strings(self, ids: Sequence[int] | np.ndarray) -> list[str]:
    """Returns the text of each token; joined, they are the decoded text.

    The bytes of a character that is split over several byte tokens are given
    to the last of these tokens.
    """
    texts = []
    decoder = codecs.getincrementaldecoder('utf-8')('replace')
    for i in map(int, ids):
      if self._model.is_byte(i):
        texts.append(decoder.decode(bytes.fromhex(self.piece(i)[3:-1])))
        continue
      incomplete = decoder.decode(b'', final=True)
      is_special = self._model.is_control(i) or self._model.is_unknown(i)
      piece = '' if is_special else self.piece(i).replace(SPACE, ' ')
      texts.append(incomplete + piece)
    if texts:
      texts[-1] += decoder.decode(b'', final=True)
    return texts

  def piece(self, i: int) -> str:
    """Returns the piece of a token, also of a special token."""
    return self._model.id_to_piece(i)

  def token_id(self, piece: str) -> int | None:
    """Returns the id of a piece; None if it is not in the vocabulary."""
    # SentencePiece returns the id of `<unk>` for unknown pieces.
    i = self._model.piece_to_id(piece)
    return i if self.piece(i) == piece else None

  def special_tokens(self) -> dict[str, str]:
    """Returns the pieces of the tokens of `IDS`, by transformers' names."""
    return {
      name.replace('_id', '_token'): self.piece(i) for name, i in IDS.items()
    }

  def vocabulary(self) -> list[Piece]:
    """Returns all pieces, in the order of their ids."""
    pieces = _make_proto(self.proto).pieces
    return [Piece(p.piece, p.score, Kind(p.type)) for p in pieces]

  def control_tokens(self) -> dict[str, int]:
    """Returns the ids of the tokens that no message may become, by text."""
    model = _words_only(self.proto)
    ids = range(self.vocab_size)
    return {self.piece(i): i for i in ids if model.is_control(i) or i == BOS}

  @functools.lru_cache(maxsize=64)  # noqa: B019
  def tokens_containing(self, texts: tuple[str, ...]) -> tuple[int, ...]:
    """Returns the tokens whose text contains one of some texts."""
    # Special tokens have a piece and no text.
    return tuple(
      i
      for i in range(self.vocab_size if texts else 0)
      for piece in [self.piece(i).replace(SPACE, ' ')]
      if any(text in piece and text in self.decode([i]) for text in texts)
    )

  def with_stops(
    self, *stops: int, suppress_tokens: Iterable[int] = ()
  ) -> 'Tokenizer':
    """Returns an equal tokenizer with more stops and suppressed tokens."""
    # Rows that pad a table have no logit.
    ids = (i for i in suppress_tokens if i < self.vocab_size)
    return dataclasses.replace(
      self,
      stops=tuple(dict.fromkeys((*self.stops, *stops))),
      suppress_tokens=(*self.suppress_tokens, *ids),
    )


@functools.lru_cache(maxsize=2)
def _open_model(proto: bytes) -> sentencepiece.SentencePieceProcessor:
  """Returns the model of bytes, which the tokenizers of a pair share."""
  return sentencepiece.SentencePieceProcessor(model_proto=proto)


def _as_bytes(text: str) -> bytes:
  try:
    return text.encode()
  except UnicodeEncodeError as e:
    raise ValueError(
      f'text: {text[e.start]!r} at {e.start} is half of a surrogate pair, not a'
      ' character; leave it out.'
    ) from None


@functools.lru_cache(maxsize=8)
def _words_only(proto: bytes) -> sentencepiece.SentencePieceProcessor:
  """Returns a model that encodes no text as a control token."""
  model = _make_proto(proto)
  for piece in model.pieces:
    if piece.type == Kind.USER_DEFINED and _CONTROL.fullmatch(piece.piece):
      piece.type = int(Kind.CONTROL)
  if model.normalizer_spec.add_dummy_prefix:
    raise ValueError(
      'chat: is not supported by a tokenizer that adds a space to a text; give'
      ' a tokenizer of Gemma.'
    )
  words = model.SerializeToString()
  return sentencepiece.SentencePieceProcessor(model_proto=words)


def _make_proto(content: bytes = b'', **fields) -> Any:
  """Returns a SentencePiece model as a protocol buffer."""
  from sentencepiece import sentencepiece_model_pb2

  # The generated module declares its classes when it is imported.
  model = sentencepiece_model_pb2.ModelProto(**fields)  # pyright: ignore[reportAttributeAccessIssue]
  model.MergeFromString(content)
  return model


def from_pieces(pieces: Iterable[Piece]) -> Tokenizer:
  """Makes the byte-pair tokenizer of pieces, with Gemma's conventions.

  Pieces at the end that encode no text are left out: they may be in one file of
  a model and not in another, and a tokenizer.model has none of them.
  """
  pieces = [*pieces]
  while pieces and _NO_TEXT.fullmatch(pieces[-1].text):
    pieces.pop()
  model = _make_proto(
    trainer_spec=dict(
      # Byte pairs.
      model_type=2,
      vocab_size=len(pieces),
      byte_fallback=any(piece.kind == Kind.BYTE for piece in pieces),
      **IDS,
      **{k.replace('id', 'piece'): pieces[i].text for k, i in IDS.items()},
    ),
    normalizer_spec=dict(
      name='identity',
      add_dummy_prefix=False,
      remove_extra_whitespaces=False,
      escape_whitespaces=True,
    ),
  )
  # One at a time: 262,144 dicts would take 60 MB.
  for text, score, kind in pieces:
    model.pieces.add(piece=text, score=score, type=int(kind))
  return Tokenizer(model.SerializeToString())


def read_folder(folder: pathlib.Path, table_size: int) -> Tokenizer:
  """Reads a folder's tokenizer; added and renamed tokens are in the JSON."""
  file, json_file = folder / 'tokenizer.model', folder / 'tokenizer.json'
  if not json_file.is_file():
    return read(file)
  if not file.exists():
    return from_json(json_file)
  tokenizer = read(file)
  is_renamed = _may_rename_tokens(json_file, tokenizer)
  if not is_renamed and tokenizer.vocab_size >= table_size:
    return tokenizer
  full = from_json(json_file)
  is_full = is_renamed or full.vocab_size > tokenizer.vocab_size
  return full if is_full else tokenizer


def _may_rename_tokens(file: pathlib.Path, tokenizer: Tokenizer) -> bool:
  """Returns False if a tokenizer.json has the tokens of a tokenizer."""
  try:
    with file.open(encoding='utf-8') as opened:
      array = opened.read(_HEAD_CHARS).partition('"added_tokens":')[2].lstrip()
    return any(
      token['content'].replace(' ', SPACE) != tokenizer.piece(token['id'])
      for token in json.JSONDecoder().raw_decode(array)[0]
      if token['id'] < tokenizer.vocab_size
    )
  except _FAULTS:
    return True


def read(file: pathlib.Path) -> Tokenizer:
  """Reads a tokenizer.model."""
  try:
    proto = files.read_bytes(file, 'model', 'fetch it again', _MAX_BYTES)
    tokenizer = Tokenizer(proto)
    # An empty file makes a tokenizer without pieces.
    if tokenizer.vocab_size:
      return tokenizer
  except (OSError, RuntimeError):
    pass
  raise ValueError(
    f'model: {file} is missing, damaged or not a SentencePiece model; fetch it'
    ' again.'
  )


def from_json(file: pathlib.Path) -> Tokenizer:
  """Reads a `tokenizer.json`, as Hugging Face's library writes it.

  The file lists pairs in the order in which they are merged. SentencePiece
  merges by scores of the merged piece, so the first pair that makes a piece
  decides its score.
  """
  advice = 'give its tokenizer.model alone'
  content = files.read_json(file, 'tokenizer', advice, _MAX_BYTES)
  try:
    model, ranks = content['model'], dict[str, int]()
    if model['type'] != 'BPE' or model['byte_fallback'] is not True:
      raise ValueError('it has no byte pairs with byte_fallback')
    for i, merge in enumerate(model['merges']):
      left, right = merge.split(' ') if isinstance(merge, str) else merge
      ranks.setdefault(left + right, i)
    added = {x['content']: x['id'] for x in content.get('added_tokens') or ()}
    vocabulary: dict[str, Any] = model['vocab'] | added
    by_id = sorted(vocabulary.items(), key=lambda item: item[1])
    # No pair makes the other pieces, so that their score has no effect.
    tokenizer = from_pieces(
      Piece(
        text.replace(' ', SPACE),
        -float(ranks[text] if text in ranks else len(ranks) + i),
        _SPECIAL.get(i)
        or (Kind.BYTE if _BYTE.fullmatch(text) else None)
        or (Kind.USER_DEFINED if text in added else Kind.NORMAL),
      )
      for text, i in by_id
    )
    size = tokenizer.vocab_size
    if [i for _, i in by_id[:size]] != [*range(size)]:
      raise ValueError('each id from 0 must be there exactly once')
    return tokenizer
  except _FAULTS as error:
    reason = files.sentence(f'{type(error).__name__}: {error}').partition(';')
  raise ValueError(f'tokenizer: {file} is damaged ({reason[0]}); {advice}.')
