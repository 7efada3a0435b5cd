"""Reads tokenizers from tokenizer.model and tokenizer.json."""

import contextlib
import json
import pathlib
import re
from typing import Annotated, Literal

from cascades import arguments
from cascades.models.tokenizers import (
  BOS,
  EOS,
  PAD,
  SPACE,
  UNK,
  Kind,
  Piece,
  Tokenizer,
  from_pieces,
  strip_non_text,
)
from cascades.untrusted import bounded
from cascades.untrusted.schema import Count, Counts, FailFast, Schema

_BYTE = re.compile('<0x[0-9A-F]{2}>')
# 512 MB; Gemma's tokenizer.model has 4.7 MB, and begins with its first piece.
_MAX_BYTES, _FIRST_BYTE = 2**29, b'\n'
# The 6,415 added tokens of Gemma's tokenizer.json end after 1.3 of its 33 MB.
_HEAD_CHARS = 2**22


def find_file(folder: pathlib.Path) -> pathlib.Path:
  """Returns the path of a folder's tokenizer, which may not exist."""
  files = [folder / 'tokenizer.model', folder / 'tokenizer.json']
  return next((file for file in files if file.exists()), files[0])


def read_folder(
  folder: pathlib.Path, table_size: int
) -> tuple[pathlib.Path, Tokenizer]:
  """Reads the tokenizer of a folder, and says from which file.

  Tokens that were added or renamed later are in tokenizer.json alone.
  """
  file, json_file = find_file(folder), folder / 'tokenizer.json'
  tokenizer = read(file)
  if file == json_file or not json_file.exists():
    return file, tokenizer
  is_renamed = _renames_tokens(json_file, tokenizer)
  if is_renamed is not False or tokenizer.vocab_size < table_size:
    # Of another kind of tokenizer, the file says nothing about this one.
    with contextlib.suppress(*[] if is_renamed else [ValueError]):
      full = from_json(json_file)
      if is_renamed is not False or full.vocab_size > tokenizer.vocab_size:
        return json_file, full
  return file, tokenizer


def _renames_tokens(file: pathlib.Path, tokenizer: Tokenizer) -> bool | None:
  """Returns True if an added token of a tokenizer.json has another name.

  None: the file does not begin with them, and must be read to its end.
  """
  try:
    bounded.check_regular(file, 'tokenizer', 'fetch it again')
    with file.open(encoding='utf-8') as opened:
      head = opened.read(_HEAD_CHARS)
    array = head.partition('"added_tokens"')[2].lstrip(': \n\r\t')
    tokens, _ = json.JSONDecoder().raw_decode(array)
    return any(
      token['content'].replace(' ', SPACE) != tokenizer.piece(token['id'])
      for token in tokens
      if token['id'] < tokenizer.vocab_size
    )
  except (LookupError, RecursionError, TypeError, ValueError):
    return None


def read(file: pathlib.Path, field: str = 'model') -> Tokenizer:
  """Reads a tokenizer.model or a tokenizer.json."""
  if file.suffix == '.json':
    return from_json(file)
  try:
    proto = bounded.read_bytes(
      file, field, 'fetch it again', max_bytes=_MAX_BYTES, prefix=_FIRST_BYTE
    )
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


class _BytePairModel(Schema):
  """The `model` of a tokenizer.json, of byte pairs."""

  type: Literal['BPE']
  byte_fallback: Literal[True]
  vocab: Counts
  merges: Annotated[list[str | list[str]], FailFast]


class _AddedToken(Schema):
  """A token that is not in the vocabulary of the model."""

  id: Count
  content: str


class _Fields(Schema):
  """The fields of a tokenizer.json."""

  model: _BytePairModel
  added_tokens: Annotated[list[_AddedToken], FailFast] | None = None


def from_json(file: pathlib.Path) -> Tokenizer:
  """Reads a `tokenizer.json`, as Hugging Face's library writes it.

  The file lists pairs in the order in which they are merged. SentencePiece
  merges by scores of the merged piece, so the first pair that makes a piece
  decides its score.
  """
  advice = 'give its tokenizer.model'
  content = bounded.read_json(file, 'tokenizer', advice, bounded.TABLE)
  fields = _Fields.check(content, f'tokenizer: {file}', advice)
  ranks = _merge_ranks(file, fields.model.merges, advice)
  added = {token.content: token.id for token in fields.added_tokens or ()}
  by_id = sorted((fields.model.vocab | added).items(), key=lambda item: item[1])
  pieces = strip_non_text(
    Piece(
      text.replace(' ', SPACE),
      # No pair makes the other pieces, so that their score has no effect.
      -float(ranks.get(text, len(ranks) + i)),
      _kind(text, i, text in added),
    )
    for text, i in by_id
  )
  if [i for _, i in by_id[: len(pieces)]] != [*range(len(pieces))]:
    raise ValueError(
      f'tokenizer: {file} must have each id from 0 exactly once; {advice}.'
    )
  try:
    return from_pieces(pieces)
  except ValueError as error:
    reason = str(error).removeprefix('tokenizer: ')
    raise ValueError(f'tokenizer: {file}: {reason}') from None


def _merge_ranks(
  file: pathlib.Path, merges: list[str | list[str]], advice: str
) -> dict[str, int]:
  """Returns the rank at which each merged piece is first made."""
  ranks: dict[str, int] = {}
  for i, merge in enumerate(merges):
    pair = merge.split(' ') if isinstance(merge, str) else merge
    if len(pair) != 2:
      raise ValueError(
        f'tokenizer: {file}: model.merges.{i} must be a pair of pieces, got'
        f' {arguments.quote(pair)}; {advice}.'
      )
    ranks.setdefault(''.join(pair), i)
  return ranks


def _kind(text: str, i: int, is_added: bool) -> Kind:
  """Returns the kind of a piece of a tokenizer.json."""
  if i in (PAD, EOS, BOS, UNK):
    return Kind.UNKNOWN if i == UNK else Kind.CONTROL
  if _BYTE.fullmatch(text):
    return Kind.BYTE
  return Kind.USER_DEFINED if is_added else Kind.NORMAL
