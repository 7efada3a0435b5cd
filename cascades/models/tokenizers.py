"""SentencePiece tokenizers with Gemma's special ids."""

import codecs
import enum
import functools
import itertools
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
import sentencepiece

from cascades import arguments
from cascades.untrusted import bounded
from cascades.untrusted.schema import Count, Counts, Each, Schema

PAD, EOS, BOS, UNK = 0, 1, 2, 3
IDS = dict(pad_id=PAD, eos_id=EOS, bos_id=BOS, unk_id=UNK)
# What stands for a space in pieces.
SPACE = '\u2581'
_BYTE = re.compile('<0x[0-9A-F]{2}>')
# Texts that stand for no words of a text, such as `<end_of_turn>`, `<|turn>`,
# `<unused0>` or `[multimodal]`; but for HTML, which is text.
_CONTROL = re.compile(r'<[^<>\s]+>|\[[^\[\]\s]+\]')
_HTML = re.compile(
  '</?(a|b|bbox|blockquote|body|br|caption|code|div|em|footer|h[1-6]|head|hr'
  '|html|i|iframe|img|li|ol|p|pre|s|span|strong|sub|sup|table|tbody|td|tfoot'
  '|th|thead|tr|u|ul)>'
)
# Of pictures and sounds, and what fills a table.
_NO_TEXT = re.compile(
  r'<\w+_soft_token>|<(start|end)_of_(image|audio|video)>|\[PAD\d+\]'
)


class Kind(enum.IntEnum):
  """What a piece is, by SentencePiece's numbers, which are llama.cpp's too."""

  NORMAL = 1
  UNKNOWN = 2
  # Never found in a text, as those that end it.
  CONTROL = 3
  # Found in a text whole, before anything else.
  USER_DEFINED = 4
  UNUSED = 5
  BYTE = 6


class Piece(NamedTuple):
  """A token.

  Attributes:
    text: With `SPACE` for a space.
    score: Of pieces that are joined, the one of the highest is joined first.
    kind: What it is.
  """

  text: str
  score: float
  kind: Kind


class Tokenizer:
  """A SentencePiece model; equal when its bytes are equal.

  Attributes:
    proto: The serialised model, as in `tokenizer.model`.
    vocab_size: Number of pieces.
    stops: Ids that end an answer of the model it came with: end-of-sequence,
      and the end of a turn where the model was taught turns. Tokenizers may be
      equal all the same.
  """

  def __init__(self, proto: bytes, stops: Iterable[int] = ()):
    self.proto = proto
    self._model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    self.vocab_size = self._model.vocab_size()
    self.stops = tuple(dict.fromkeys((EOS, *stops)))

  def encode(self, text: str, add_bos: bool = False) -> list[int]:
    """Token ids of a text.

    Raises:
      ValueError: It holds half of a surrogate pair, which is no character.
    """
    _check_characters(text)
    return self._model.encode(text, add_bos=add_bos)

  def encode_framed(
    self, parts: Iterable[str | int], add_bos: bool = False
  ) -> list[int]:
    """Encodes texts between given tokens; no text becomes a control token.

    A text that spells a control token (`<end_of_turn>`, `<unused0>`,
    `<start_of_image>`) is encoded as ordinary pieces. All other ids are those
    of `encode`: tokens that texts may contain are never merged with what stands
    beside them.

    Args:
      parts: Texts and token ids, in their order.
      add_bos: Whether the ids start with beginning-of-sequence.

    Raises:
      ValueError: A text holds half of a surrogate pair.
    """
    model, prefix = _words_only(self.proto)
    ids = [BOS] if add_bos else []
    for is_id, some in itertools.groupby(
      [prefix, *parts], lambda part: isinstance(part, int)
    ):
      if is_id:
        ids += some
        continue
      text = ''.join(some)
      _check_characters(text)
      ids += model.encode(text)
    return ids

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """The text of token ids; special tokens have none."""
    # A leading space belongs to the text: SentencePiece would strip it.
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
    """The name of a token, which special ones have too."""
    return self._model.id_to_piece(i)

  def vocabulary(self) -> list[Piece]:
    """All pieces, by their ids."""
    model = _proto()
    model.ParseFromString(self.proto)
    return [Piece(p.piece, p.score, Kind(p.type)) for p in model.pieces]

  def tokens_containing(self, texts: Sequence[str]) -> tuple[int, ...]:
    """Tokens whose own text holds one of these."""
    return _tokens_containing(self, tuple(texts)) if texts else ()

  def token_id(self, piece: str) -> int | None:
    """The token of that name; None if there is none."""
    # Of what it does not know, SentencePiece gives the id of `<unk>`.
    i = self._model.piece_to_id(piece)
    return i if self.piece(i) == piece else None

  def with_stops(self, *stops: int) -> 'Tokenizer':
    """The same tokenizer, of a model whose answers end at these ids too."""
    return Tokenizer(self.proto, (*self.stops, *stops))

  def __eq__(self, other) -> bool:
    return isinstance(other, Tokenizer) and self.proto == other.proto

  def __hash__(self) -> int:
    return hash(self.proto)


def _check_characters(text: str) -> None:
  """Refuses half of a surrogate pair, which is no character.

  Raises:
    ValueError: The text holds one.
  """
  try:
    text.encode()
  except UnicodeEncodeError as e:
    raise ValueError(
      f'text: {text[e.start]!r} at {e.start} is half of a surrogate pair and'
      ' no character; leave it out.'
    ) from None


def _is_control(text: str) -> bool:
  """Whether a token of this text is no part of a text's words."""
  return bool(_CONTROL.fullmatch(text)) and not _HTML.fullmatch(text)


@functools.lru_cache(maxsize=8)
def _words_only(
  proto: bytes,
) -> tuple[sentencepiece.SentencePieceProcessor, str]:
  """A SentencePiece model that makes no control token of any text.

  Args:
    proto: The serialised model.

  Returns:
    The same model where all control tokens are of the kind that is never found
    in a text, and where texts get no prefix; and the prefix of a whole text.
  """
  model = _proto()
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
  """Returns `Tokenizer.tokens_containing`; caches it for large vocabularies."""
  found = []
  for i in range(tokenizer.vocab_size):
    # A space is kept as another character.
    name = tokenizer.piece(i).replace(SPACE, ' ')
    # Special tokens have a name and no text.
    if any(text in name and text in tokenizer.decode([i]) for text in texts):
      found.append(i)
  return tuple(found)


def first_difference(a: Tokenizer | None, b: Tokenizer | None) -> int | None:
  """The first id that is not the same piece in both; None if there is none.

  What else tokenizers hold decides how a text is cut, not what an id means.
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


def _proto(**fields):
  """A SentencePiece model as its file has it."""
  from sentencepiece import sentencepiece_model_pb2

  return sentencepiece_model_pb2.ModelProto(**fields)


def strip_non_text(pieces: Iterable[Piece]) -> list[Piece]:
  """Pieces by their ids, without those at the end that stand for no text.

  Those are of pictures and sounds, and what fills a table: a file of the same
  model may have them or not, and a tokenizer.model has none.
  """
  found = [*pieces]
  while found and _NO_TEXT.fullmatch(found[-1].text):
    found.pop()
  return found


def from_pieces(
  pieces: Sequence[Piece], dummy_prefix: bool = False
) -> Tokenizer:
  """The byte-pair tokenizer of these pieces, with Gemma's conventions.

  Args:
    pieces: By their ids; the first four are those of `PAD` to `UNK`.
    dummy_prefix: Whether a text is read as if a space stood before it.

  Raises:
    ValueError: SentencePiece makes no tokenizer of them.
  """
  if len(pieces) <= UNK:
    raise ValueError(
      f'tokenizer: it has {len(pieces)} pieces, and the first {UNK + 1} are of'
      ' its own; fetch it again.'
    )
  try:
    return Tokenizer(_written(pieces, dummy_prefix))
  # A text may hold half of a surrogate pair.
  except (RuntimeError, UnicodeEncodeError) as error:
    raise ValueError(
      f'tokenizer: its pieces make none ({error}); fetch it again.'
    ) from None


def _written(pieces: Sequence[Piece], dummy_prefix: bool) -> bytes:
  """The SentencePiece model of these pieces; see `from_pieces`."""
  names = [piece.text for piece in pieces]
  made = _proto(
    pieces=[
      dict(piece=piece.text, score=piece.score, type=int(piece.kind))
      for piece in pieces
    ],
    trainer_spec=dict(
      # Byte pairs.
      model_type=2,
      vocab_size=len(pieces),
      byte_fallback=any(piece.kind == Kind.BYTE for piece in pieces),
      **IDS,
      pad_piece=names[PAD],
      eos_piece=names[EOS],
      bos_piece=names[BOS],
      unk_piece=names[UNK],
    ),
    normalizer_spec=dict(
      name='identity',
      add_dummy_prefix=dummy_prefix,
      remove_extra_whitespaces=False,
      escape_whitespaces=True,
    ),
  )
  return made.SerializeToString()


def find_file(folder: pathlib.Path) -> pathlib.Path:
  """Where a folder has its tokenizer, or should have it."""
  files = [folder / 'tokenizer.model', folder / 'tokenizer.json']
  return next((file for file in files if file.exists()), files[0])


def read(file: pathlib.Path, field: str = 'model') -> Tokenizer:
  """The tokenizer of a tokenizer.model, or of a tokenizer.json.

  Args:
    file: Either of them.
    field: What the user gave it for.

  Raises:
    ValueError: It is missing or damaged.
  """
  if file.suffix == '.json':
    return from_json(file)
  try:
    # A model of Gemma's has 4.7 MB, and begins with its first piece.
    proto = bounded.read_bytes(file, field, 'fetch it again', 2**29, b'\n')
    tokenizer = Tokenizer(proto)
  except (OSError, RuntimeError):
    tokenizer = None
  # An empty file makes a tokenizer without pieces.
  if tokenizer is None or not tokenizer.vocab_size:
    raise ValueError(
      f'{field}: {file} is missing, damaged or not a SentencePiece model; fetch'
      ' it again.'
    )
  return tokenizer


class _Pairs(Schema):
  """A byte-pair model of a tokenizer.json."""

  type: Literal['BPE']
  byte_fallback: Literal[True]
  vocab: Counts
  merges: Annotated[list[str | list[str]], Each]


class _Added(Schema):
  """A token beside those of the model."""

  id: Count
  content: str


class _Fields(Schema):
  """A tokenizer.json."""

  model: _Pairs
  added_tokens: Annotated[list[_Added], Each] | None = None


def from_json(file: pathlib.Path) -> Tokenizer:
  """The tokenizer of a `tokenizer.json`, as Hugging Face's library writes it.

  It lists pairs in the order in which they are joined; SentencePiece joins by
  scores of what comes out, and so the first pair that makes a piece decides.

  Raises:
    ValueError: The file is missing or damaged, or holds another kind of
      tokenizer.
  """
  advice = 'give its tokenizer.model'
  fields = bounded.read_json(file, 'tokenizer', advice, bounded.TABLE)
  said = _Fields.check(fields, f'tokenizer: {file}', advice)
  order: dict[str, int] = {}
  for i, pair in enumerate(said.model.merges):
    pair = pair.split(' ') if isinstance(pair, str) else pair
    if len(pair) != 2:
      raise ValueError(
        f'tokenizer: {file}: model.merges.{i} must be a pair of pieces, got'
        f' {arguments.quote(pair)}; {advice}.'
      )
    order.setdefault(''.join(pair), i)
  ids = dict(said.model.vocab)
  added = {token.content: token.id for token in said.added_tokens or ()}
  ids |= added

  def kind(text: str, i: int) -> Kind:
    if i in (PAD, EOS, BOS, UNK):
      return Kind.UNKNOWN if i == UNK else Kind.CONTROL
    if _BYTE.fullmatch(text):
      return Kind.BYTE
    return Kind.USER_DEFINED if text in added else Kind.NORMAL

  # What no pair makes is never joined, whatever its score.
  last = len(order)
  listed = sorted(ids.items(), key=lambda item: item[1])
  pieces = strip_non_text(
    Piece(
      text.replace(' ', SPACE),
      -float(order.get(text, last + i)),
      kind(text, i),
    )
    for text, i in listed
  )
  if [i for _, i in listed[: len(pieces)]] != [*range(len(pieces))]:
    raise ValueError(
      f'tokenizer: {file} leaves ids out, or has some of them twice; give its'
      ' tokenizer.model.'
    )
  try:
    return from_pieces(pieces)
  except ValueError as error:
    said = str(error).removeprefix('tokenizer: ')
    raise ValueError(f'tokenizer: {file}: {said}') from None
