"""Tests of the SentencePiece tokenizers."""

import json

import numpy as np
import pytest
import small

from cascades.models import tokenizers

_SPECIAL = ['<pad>', '</s>', '<s>', '<unk>']
TEXTS = (
  'There are 12 apples and 7 pears.\nHow many pieces of fruit are there?',
  'Add 12 and 7, which makes 19.\n',
) * 20


@pytest.fixture(scope='module')
def tokenizer() -> tokenizers.Tokenizer:
  return small.tokenizer(TEXTS, vocab_size=300)


def test_tokens_are_as_gemmas(tokenizer):
  assert tokenizer.vocab_size == 300
  ids = range(tokenizer.vocab_size)
  names = [tokenizer.piece(i) for i in ids]
  assert names[:4] == _SPECIAL
  assert [tokenizer.token_id(name) for name in names] == list(ids)
  assert tokenizer.token_id('<end_of_turn>') is None
  # Digits are single tokens; other text was learned in pieces.
  digits, text = tokenizer.encode('1219'), 'There are 12 apples'
  assert len(digits) == 4
  assert tokenizer.encode('1219', add_bos=True) == [tokenizers.BOS, *digits]
  assert len(tokenizer.encode(text)) < len(text)


@pytest.mark.parametrize(
  'text',
  [
    *('', '   several   spaces   ', 'one\ntwo\n\n three\n'),
    'Grüße, šípek, 東京, Ωmega',
    'emoji 🙂 and a family 👩‍👩‍👧 of several code points',
    'e\u0301 stays decomposed, \u00e9 composed; \ufb01 a ligature',
    'special words: <s> </s> <pad> <unk> <0x41>',
    'a\u2581b \u2581\u2581 \U0001f642 7 \0',
    ''.join(map(chr, range(1, 128))),
  ],
)
def test_text_survives_encoding(tokenizer, text):
  ids = tokenizer.encode(text)
  assert all(i > tokenizers.UNK for i in ids)
  # The ids cannot tell a space from U+2581.
  assert tokenizer.decode(ids) == text.replace('\u2581', ' ')
  assert len(tokenizer.token_strings(ids)) == len(ids)


def test_special_tokens_have_no_text_and_characters_end_once(tokenizer):
  ids = tokenizer.encode('7 pears')
  pad, eos, bos = tokenizers.PAD, tokenizers.EOS, tokenizers.BOS
  written = np.array([bos, *ids, eos, pad, pad], np.int32)
  assert tokenizer.decode(written) == '7 pears'
  assert tokenizer.token_strings([bos, eos]) == ['', '']
  smile = tokenizer.encode('🙂')
  assert len(smile) == 4
  assert tokenizer.token_strings(smile) == ['', '', '', '🙂']
  # Cut at the end, and before more text, as when sampling stops in the middle.
  assert tokenizer.decode(smile[:2]) == '\ufffd'
  cut = [*smile[:2], *tokenizer.encode(' pears')]
  assert tokenizer.decode(cut) == '\ufffd pears'
  # What is lost at the beginning takes nothing of what follows with it.
  assert tokenizer.decode([smile[-1], *smile]) == '\ufffd🙂'
  assert len(tokenizer.token_strings(cut)) == len(cut)


def test_symbols_are_tokens_and_answers_may_end_at_them():
  symbols = '<start_of_turn>', '<end_of_turn>'
  tokenizer = small.tokenizer(TEXTS, 310, symbols)
  ids = [tokenizer.token_id(symbol) for symbol in symbols]
  assert tokenizer.encode(f'7{symbols[1]}')[-1:] == ids[1:]
  assert tokenizer.stops == (tokenizers.EOS,)
  ending = tokenizer.with_stops(ids[1], tokenizers.EOS, ids[1])
  assert ending.stops == (tokenizers.EOS, ids[1])
  assert ending == tokenizer


@pytest.mark.parametrize(
  ('changes', 'match'),
  [
    *((dict(vocab=x), 'IndexError: ') for x in ({}, {'<pad>': 0, '</s>': 1})),
    (dict(vocab={'a': 5}), 'each id from 0 must be there exactly once'),
    (dict(vocab={x: str(x) for x in _SPECIAL}), 'TypeError: '),
    (dict(vocab={'': 4}), 'RuntimeError: '),
    (dict(merges=['ab']), 'not enough values to unpack'),
    (dict(merges=[3]), 'TypeError: '),
    (dict(type='Unigram'), 'it has no byte pairs with byte_fallback'),
    (dict(byte_fallback=False), 'it has no byte pairs with byte_fallback'),
  ],
)
def test_what_is_no_tokenizer_json_is_refused(tmp_path, changes, match):
  vocab = {name: i for i, name in enumerate(_SPECIAL)}
  model = dict(type='BPE', byte_fallback=True, vocab=vocab, merges=[])
  if {'', 'a'} & {*changes.get('vocab', {})}:
    changes = {'vocab': vocab | changes['vocab']}
  file = tmp_path / 'tokenizer.json'
  file.write_text(json.dumps(dict(model=model | changes)))
  match = rf'^tokenizer: .*tokenizer\.json is damaged \(.*{match}'
  with pytest.raises(ValueError, match=match):
    tokenizers.from_json(file)
