"""Finds where greedy answers of any engine first differ from our verifier's.

A row has a prompt and an answer, as texts or token ids, by names of ours, of
vLLM, or of lm-eval's samples (`_Row`). Our verifier reads them in float32, and
again in the dtype that the engine claims: with logits rounded to bfloat16, or
for float32 with sums in another order. The gap of a token is the largest logit
of all others minus its own. The verdict on the first token that is not the
likeliest in float32 (of equal ones, the lowest id) is

  tie order  if its logit equals another largest one in either reading;
  near tie   if its gap is at most the bound, or it is the likeliest in the
             claimed dtype; the bound is the 99.9 % quantile, over all
             positions, of |change of the gap| between the readings;
  error      else; 'other tokens of the same text' if our tokens of the text are
             all likeliest; 'other prompt' if the prompt's ids are not ours, or
             another prompt explains the file.

The file is in error, however small the gaps, if answers differ more often than
the readings do in the positions up to there (Fisher's exact test, level .001).
Another prompt explains it if fewer differ, not too many for that test, and
errors are no more than 1 in 1,000 positions by a binomial test.
"""

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from pydantic import AliasChoices, AliasPath, Field
from scipy import stats

from cascades import DecodingConfig, Sampler, files, load_model, methods
from cascades.models.tokenizers import BOS
from cascades.sampler import scoring
from experiments.tasks import data_files

_QUANTILE, _LEVEL = 0.999, 1e-3
# The last of them that an answer has is that of the file.
_VERDICTS = (
  'equal,other tokens of the same text,tie order,near tie,other prompt,error'
).split(',')
_READ = 'token logit rank our_token our_logit gap top_gap'.split()
# Logit of tokens that our answers never contain, and answers that are printed.
_SUPPRESSED, _SHOWN = -1e3, 10
_Ids = Annotated[list[files.Count], files.FailFast] | None


def _field(name: str, *paths: tuple) -> Any:
  choices = AliasChoices(name, *(AliasPath(*x) for x in paths))
  return Field(None, validation_alias=choices)


class _Row(files.Schema):
  prompt: str | None = _field('prompt', ('arguments', 'gen_args_0', 'arg_0'))
  prompt_ids: _Ids = _field('prompt_ids', ('prompt_token_ids',))
  text: str | None = _field('text', ('outputs', 0, 'text'), ('resps', 0, 0))
  ids: _Ids = _field('ids', ('token_ids',), ('outputs', 0, 'token_ids'))


class _Answer(NamedTuple):
  row: str
  prompt: list[int]
  ids: list[int]
  is_retokenized: bool
  # Prompts of engines with faults, and the name of the row's own if not ours.
  variants: Mapping[str, list[int]]
  cause: str
  is_respelled: bool = False


def compare(
  path: str, verifier: str, dtype: str, apply_chat_template: bool = False
) -> dict[str, Any]:
  """Compares greedy answers with a verifier's; returns values for JSON."""
  config = DecodingConfig(gamma=0, batch_size=8)
  exact = Sampler(verifier, config=config, dtype='float32')
  file, answers = data_files.DataFile('greedy', path), list[_Answer]()
  for place, row in file.rows():
    fields = _Row.check(row, f'greedy: {file.name}, {place}', data_files.MEND)
    with file.errors_at(place):
      answers.append(_parse(place, fields, exact, apply_chat_template))
  if not answers:
    raise file.refusal('', 'has no answers', 'give a file with some')
  # Sums of float32 have another order in other layouts and batches.
  checkpoint = load_model(verifier, dtype)
  checkpoint = checkpoint.unpack() if dtype == 'float32' else checkpoint
  claimed = Sampler(checkpoint, config=DecodingConfig(gamma=0, batch_size=4))
  judge = functools.partial(_judge, exact, claimed, dtype)
  result = judge([*answers])
  names = dict.fromkeys(x for y in answers for x in y.variants)
  lowest = result['rate']
  for name in names if result['verdict'] == 'error' else ():
    rows = [x._replace(prompt=x.variants.get(name, x.prompt)) for x in answers]
    variant = judge(rows)
    if variant['rate'] < lowest and variant['is_rounding']:
      lowest = variant['rate']
      cause = f'{name} leaves {variant["first_differences"]} differences'
      result |= dict(verdict='other prompt', cause=cause)
      for x in result['differences']:
        x['verdict'] = x['verdict'].replace('error', 'other prompt')
  return result


def _parse(place: str, fields: _Row, exact: Sampler, is_chat: bool) -> _Answer:
  """Returns the answer of a row."""
  tokenizer, text = exact.tokenizer, fields.text or ''
  ids = tokenizer.encode(text) if fields.ids is None else fields.ids
  encoded, variants = fields.prompt_ids or [], dict[str, list[int]]()
  if fields.prompt is not None:
    encoded = exact.encode(fields.prompt, is_chat)
    # A model may have no template.
    with contextlib.suppress(ValueError):
      name = 'no chat template' if is_chat else 'chat template'
      variants[name] = exact.encode(fields.prompt, not is_chat)
  prompt, cause = fields.prompt_ids or encoded, ''
  size, limit = tokenizer.vocab_size, exact.config.cache_length
  if not ids or not prompt:
    part = 'an empty answer' if prompt else 'neither prompt nor prompt_ids'
    raise data_files.RowError(f'has {part}')
  if len(prompt) + len(ids) > limit:
    raise data_files.RowError(f'has more than {limit} tokens')
  is_known = max(*prompt, *ids) < size
  # A text may lack what ends an answer.
  if not (is_known and tokenizer.decode(ids).strip().startswith(text.strip())):
    fault = f'has ids that are not below {size} or do not decode to its text'
    raise data_files.RowError(fault, 'give the verifier of the engine')
  rest = [x for x in encoded if x != BOS]
  for n, name in enumerate(('no BOS', 'one BOS', 'two BOS')):
    variants[name] = [BOS] * n + rest
  variants = {name: x for name, x in variants.items() if x and x != encoded}
  if prompt != encoded:
    names = [name for name, x in variants.items() if x == prompt]
    cause, variants = (*names, 'other ids')[0], {}
  return _Answer(place, prompt, ids, fields.ids is None, variants, cause)


@functools.cache
def _top_two(dtype: str, suppressed: tuple[int, ...]) -> scoring.TokenFn:
  """Returns a function with the columns `_READ` of a position."""

  def top_two(method, d, lenience, token):
    logits = d.p_logits.at[jnp.array(suppressed, int)].set(_SUPPRESSED)
    logits = logits.astype(dtype).astype(jnp.float32)
    (top, second), ids = jax.lax.top_k(logits, 2)
    logit = logits[token]
    gap = jnp.where(token == ids[0], second, top) - logit
    rank = 1 + (logits > logit).sum()
    return token, logit, rank, ids[0], top, gap, top - second

  return top_two


def _read(
  decoder: Sampler, answers: Sequence[_Answer], dtype: str = 'float32'
) -> pd.DataFrame:
  """Reads answers with a verifier; returns a row for each position."""
  model, params, _ = decoder.verifier
  target = scoring.Target((model,), (params,), methods.METHODS['verifier_only'])
  requests = [(x.prompt, x.ids) for x in answers]
  token_fn = _top_two(dtype, decoder.suppress_tokens)
  columns = scoring.map_tokens(decoder, requests, token_fn, target)
  frame = pd.DataFrame(dict(zip(_READ, columns, strict=True)))
  pairs = [(i, j) for i, x in enumerate(answers) for j in range(len(x.ids))]
  frame['answer'], frame['position'] = np.transpose(pairs)
  differs = frame.token != frame.our_token
  frame['is_read'] = differs.groupby(frame.answer).cumsum() - differs == 0
  return frame.assign(is_first=frame.is_read & differs)


def _respell(exact: Sampler, answers: list[_Answer]) -> pd.DataFrame:
  """Reads answers, in which our tokens of an equal text replace others."""
  frame, decode = _read(exact, answers), exact.tokenizer.decode
  firsts = frame.loc[frame.is_first, ['answer', 'position', 'our_token']]
  for i, at, token in firsts.to_numpy(int).tolist():
    ids, start = answers[i].ids, decode([token])
    text = decode(ids[at:])
    if start and text.startswith(start):
      rest = exact.tokenizer.encode(text.removeprefix(start))
      # What ends an answer has no text.
      end = [] if decode(ids[-1:]) else ids[-1:]
      ids = [*ids[:at], token, *rest, *end]
      respelled = answers[i]._replace(ids=ids, is_respelled=True)
      if not _read(exact, [respelled]).is_first.any():
        answers[i], frame = respelled, None
  return _read(exact, answers) if frame is None else frame


def _judge(
  exact: Sampler, claimed: Sampler, dtype: str, answers: list[_Answer]
) -> dict[str, Any]:
  """Reads answers in both dtypes, and returns the verdicts on them."""
  frame = _respell(exact, answers)
  # Engines of eight bits have logits in float32.
  claims = _read(claimed, answers, dtype.replace('int8', 'float32'))
  bound = np.quantile(abs(frame.gap - claims.gap), _QUANTILE, method='higher')
  is_near = (frame.gap <= bound) | (claims.gap < 0)
  is_tie = (frame.gap == 0) | (claims.gap == 0)
  names = 'tie order', 'near tie'
  frame['verdict'] = np.select([is_tie, is_near], names, 'error')
  n, m = int(frame.is_read.sum()), int(frame.is_first.sum())
  changed = int((frame.our_token != claims.our_token)[frame.is_read].sum())
  p_value = stats.hypergeom.sf(m - 1, 2 * n, n, m + changed)
  firsts = frame[frame.is_first].set_index('answer')
  errors = (firsts.verdict == 'error').sum()
  p_errors = stats.binom.sf(errors - 1, n, 1 - _QUANTILE)
  decode, piece = exact.tokenizer.decode, exact.tokenizer.piece
  for name in 'token', 'our_token':
    texts = [repr(decode([i]) or piece(i)) for i in firsts[name].tolist()]
    firsts[name.replace('token', 'text')] = [*map(files.printable, texts)]
  table = pd.DataFrame(answers).join(firsts)
  table['verdict'] = table.verdict.fillna('equal')
  table.loc[table.is_respelled, 'verdict'] = 'other tokens of the same text'
  table.loc[table.cause != '', 'verdict'] = 'other prompt'
  verdict = max(table.verdict, key=_VERDICTS.index)
  names = ['row', 'verdict', 'cause', 'position', 'text', 'our_text', *_READ]
  table = table[table.verdict != 'equal'][names].convert_dtypes()
  counts = dict(positions=n, first_differences=m, changed=changed, rate=m / n)
  counts |= dict(dtype=dtype, answers=len(answers), bound=float(bound))
  return counts | {
    'verdict': 'error' if p_value < _LEVEL else verdict,
    'cause': '',
    'retokenized': sum(x.is_retokenized for x in answers),
    'p_value': float(p_value),
    'is_rounding': bool(min(p_value, p_errors) >= _LEVEL),
    'differences': json.loads(table.to_json(orient='records')),
  }


def describe(result: dict[str, Any]) -> str:
  """Returns a result of `compare` as a table between two sentences."""
  different = result['differences']
  labels = [x['verdict'] for x in different]
  labels += ['equal'] * (result['answers'] - len(different))
  text = ', '.join(f'{labels.count(x)} {x}' for x in _VERDICTS if x in labels)
  table = pd.DataFrame(different[:_SHOWN])
  if different:
    text += f'\n{table.to_string(index=False, float_format="{:.4g}".format)}'
  cause = result['cause'] and f' ({result["cause"]})'
  return (
    '{answers} answers, {retokenized} tokenized again: {text}\n{verdict}{note}:'
    ' {first_differences} of {positions} positions differ; {dtype} changes'
    ' {changed} (p = {p_value:.2g}); near ties have gaps up to {bound:.3g}.'
  ).format_map(result | dict(text=text, note=cause))
