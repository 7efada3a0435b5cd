"""Finds where greedy answers of any engine first differ from our verifier's.

A row has a prompt and an answer, as texts or token ids: `prompt` or
`prompt_ids`, `text` or `ids`; vLLM's `prompt_token_ids` and `outputs`; or
`arguments` and `resps` of lm-eval's samples. Our verifier reads them in
float32, and again in the dtype that the engine claims: with logits rounded to
bfloat16, or for float32 with sums in another order. The gap of a token is the
largest logit of all others minus its own. The verdict on the first token that
is not the likeliest in float32 (of equal ones, the lowest id) is

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

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from pydantic import AliasChoices, AliasPath, Field
from scipy import stats

from cascades import files, methods
from cascades.config import DecodingConfig
from cascades.models import checkpoints
from cascades.models.tokenizers import BOS
from cascades.sampler import sampler, scoring
from experiments.tasks import data_files

_QUANTILE, _LEVEL = 0.999, 1e-3
# The last of them that an answer has is that of the file.
_VERDICTS = (
  'equal,other tokens of the same text,tie order,near tie,other prompt,error'
).split(',')
_COLUMNS = (
  'row verdict prompt position token text logit rank our_token our_text'
  ' our_logit gap top_gap'
).split()
# Logit of tokens that our answers never contain, and answers that are printed.
_SUPPRESSED, _SHOWN = -1e3, 10
_Ids = Annotated[list[files.Count], files.FailFast] | None


def _field(*names: str | AliasPath) -> Any:
  return Field(None, validation_alias=AliasChoices(*names))


class _Row(files.Schema):
  prompt: str | None = _field(
    'prompt', AliasPath('arguments', 'gen_args_0', 'arg_0')
  )
  prompt_ids: _Ids = _field('prompt_ids', 'prompt_token_ids')
  text: str | None = _field(
    'text', AliasPath('outputs', 0, 'text'), AliasPath('resps', 0, 0)
  )
  ids: _Ids = _field('ids', 'token_ids', AliasPath('outputs', 0, 'token_ids'))


class _Answer(NamedTuple):
  """A row in token ids; `cause` names a prompt that is not exact."""

  row: str
  prompt: list[int]
  ids: list[int]
  is_retokenized: bool
  other_prompts: Mapping[str, list[int]]
  cause: str
  is_respelled: bool = False


def compare(
  path: str, verifier: str, dtype: str, apply_chat_template: bool = False
) -> dict[str, Any]:
  """Compares greedy answers with a verifier's; returns values for JSON."""
  config = DecodingConfig(gamma=0, batch_size=8)
  exact = sampler.Sampler(verifier, config=config, dtype='float32')
  file, answers = data_files.DataFile('greedy', path), list[_Answer]()
  for place, row in file.rows():
    with file.errors_at(place):
      answers.append(_parse(place, row, exact, apply_chat_template))
  if not answers:
    raise file.refusal('', 'has no answers', 'give a file with some')
  # Sums of float32 have another order in other layouts and batches.
  checkpoint = exact.verifier.unpack()
  if dtype != 'float32':
    checkpoint = checkpoints.load_model(verifier, dtype)
  config = dataclasses.replace(config, batch_size=4)
  claimed = sampler.Sampler(checkpoint, config=config)
  judge = functools.partial(_judge, exact, claimed, dtype)
  result, variants = judge(answers), dict[str, Any]()
  if result['verdict'] == 'error':
    for name in dict.fromkeys(x for y in answers for x in y.other_prompts):
      prompts = [x.other_prompts.get(name, x.prompt) for x in answers]
      pairs = zip(answers, prompts, strict=True)
      variants[name] = judge([x._replace(prompt=y) for x, y in pairs])
  # The variant that differs least.
  for name, x in sorted(variants.items(), key=lambda item: item[1]['rate'])[:1]:
    if x['rate'] < result['rate'] and x['is_rounding']:
      cause = f'{name} leaves {x["first_differences"]} differences'
      result |= dict(verdict='other prompt', cause=cause)
      for difference in result['differences']:
        if difference['verdict'] == 'error':
          difference['verdict'] = 'other prompt'
  return result


def _parse(
  place: str, row: Mapping[str, Any], exact: sampler.Sampler, has_template: bool
) -> _Answer:
  """Returns the answer of a row."""
  try:
    fields = _Row.parse(row)
  except ValueError as error:
    raise data_files.RowError(f'is not an answer ({error})') from None
  tokenizer, text = exact.tokenizer, fields.text or ''
  ids = tokenizer.encode(text) if fields.ids is None else fields.ids
  prompt = encoded = fields.prompt_ids or []
  if fields.prompt is not None:
    encoded = exact.encode(fields.prompt, has_template)
    prompt = prompt or encoded
  size, limit = tokenizer.vocab_size, exact.config.cache_length
  if not ids or not prompt:
    part = 'an empty answer' if prompt else 'neither prompt nor prompt_ids'
    raise data_files.RowError(f'has {part}')
  if len(prompt) + len(ids) > limit:
    raise data_files.RowError(f'has more than {limit} tokens')
  # A text may lack what ends an answer.
  if max(*prompt, *ids) >= size or not (
    tokenizer.decode(ids).strip().startswith(text.strip())
  ):
    raise data_files.RowError(
      f'has ids that are not below {size} or do not decode to its text',
      'give the verifier of the engine',
    )
  # Mistakes of engines.
  rest = [*itertools.dropwhile(lambda x: x == BOS, encoded)]
  names = 'no BOS', 'one BOS', 'two BOS'
  variants = {name: [BOS] * n + rest for n, name in enumerate(names)}
  # A model may have no template.
  with contextlib.suppress(ValueError):
    if fields.prompt is not None:
      name = 'no chat template' if has_template else 'chat template'
      variants[name] = exact.encode(fields.prompt, not has_template)
  variants = {name: x for name, x in variants.items() if x and x != encoded}
  cause = ''
  if prompt != encoded:
    names = [name for name, x in variants.items() if x == prompt]
    cause, variants = (*names, 'other ids')[0], {}
  return _Answer(place, prompt, ids, fields.ids is None, variants, cause)


@functools.cache
def _top_two(dtype: str, suppressed: tuple[int, ...]) -> scoring.TokenFn:
  """Returns a function with the columns of `_read` at a position."""

  def top_two(method, d, lenience, token):
    logits = d.p_logits.at[jnp.array(suppressed, int)].set(_SUPPRESSED)
    logits = logits.astype(dtype).astype(jnp.float32)
    (top, second), ids = jax.lax.top_k(logits, 2)
    logit = logits[token]
    gap = jnp.where(token == ids[0], second, top) - logit
    rank = 1 + (logits > logit).sum()
    return gap, logit, rank, ids[0], top, top - second

  return top_two


def _read(
  decoder: sampler.Sampler, answers: Sequence[_Answer], dtype: str = 'float32'
) -> pd.DataFrame:
  """Reads answers with a verifier; returns a row for each position."""
  model, params, _ = decoder.verifier
  target = scoring.Target((model,), (params,), methods.METHODS['verifier_only'])
  requests = [(x.prompt, x.ids) for x in answers]
  token_fn = _top_two(dtype, decoder.suppress_tokens)
  arrays = scoring.map_tokens(decoder, requests, token_fn, target)
  names = 'gap', 'logit', 'rank', 'our_token', 'our_logit', 'top_gap'
  columns = map(np.concatenate, zip(*arrays, strict=True))
  frame = pd.DataFrame(dict(zip(names, columns, strict=True)))
  pairs = [(i, j) for i, x in enumerate(answers) for j in range(len(x.ids))]
  frame['answer'], frame['position'] = np.transpose(pairs)
  frame['token'] = [token for x in answers for token in x.ids]
  return frame


def _first_differences(frame: pd.DataFrame) -> pd.DataFrame:
  """Returns the first position of each answer that differs."""
  return frame[frame.token != frame.our_token].drop_duplicates('answer')


def _respell(exact: sampler.Sampler, answers: list[_Answer]) -> pd.DataFrame:
  """Reads answers, in which our tokens of an equal text replace others."""
  frame, decode = _read(exact, answers), exact.tokenizer.decode
  firsts = _first_differences(frame)[['answer', 'position', 'our_token']]
  for i, at, token in firsts.to_numpy(int).tolist():
    ids, start = answers[i].ids, decode([token])
    text = decode(ids[at:])
    if start and text.startswith(start):
      rest = exact.tokenizer.encode(text.removeprefix(start))
      # What ends an answer has no text.
      rest += [] if decode(ids[-1:]) else ids[-1:]
      ids = [*ids[:at], token, *rest]
      respelled = answers[i]._replace(ids=ids, is_respelled=True)
      if _first_differences(_read(exact, [respelled])).empty:
        answers[i] = respelled
  return (
    _read(exact, answers) if any(x.is_respelled for x in answers) else frame
  )


def _judge(
  exact: sampler.Sampler,
  claimed: sampler.Sampler,
  dtype: str,
  answers: Sequence[_Answer],
) -> dict[str, Any]:
  """Reads answers in both dtypes, and returns the verdicts on them."""
  answers = [*answers]
  frame = _respell(exact, answers)
  # Engines of eight bits have logits in float32.
  claims = _read(claimed, answers, dtype.replace('int8', 'float32'))
  bound = np.quantile(abs(frame.gap - claims.gap), _QUANTILE, method='higher')
  is_near = (frame.gap <= bound) | (claims.gap < 0)
  is_tie = (frame.gap == 0) | (claims.gap == 0)
  names = 'tie order', 'near tie'
  frame['verdict'] = np.select([is_tie, is_near], names, 'error')
  differs = frame.token != frame.our_token
  is_read = differs.groupby(frame.answer).cumsum() - differs == 0
  n, m = int(is_read.sum()), int((differs & is_read).sum())
  changed = int((frame.our_token != claims.our_token)[is_read].sum())
  p_value = stats.hypergeom.sf(m - 1, 2 * n, n, m + changed)
  firsts = _first_differences(frame).set_index('answer')
  errors = (firsts.verdict == 'error').sum()
  p_errors = stats.binom.sf(errors - 1, n, 1 - _QUANTILE)
  decode, piece = exact.tokenizer.decode, exact.tokenizer.piece
  for name in 'token', 'our_token':
    firsts[name.replace('token', 'text')] = [
      files.printable(repr(decode([i]) or piece(i)))
      for i in firsts[name].tolist()
    ]
  table = pd.DataFrame([(x.row, x.cause, x.is_respelled) for x in answers])
  table = table.set_axis(['row', 'prompt', 'is_same'], axis=1).join(firsts)
  table['verdict'] = np.select(
    [table.prompt != '', table.is_same],
    ['other prompt', 'other tokens of the same text'],
    table.verdict.fillna('equal'),
  )
  verdict = max(table.verdict, key=_VERDICTS.index)
  table = table[table.verdict != 'equal'][_COLUMNS].convert_dtypes()
  return {
    'verdict': 'error' if p_value < _LEVEL else verdict,
    'cause': '',
    'dtype': dtype,
    'answers': len(answers),
    'retokenized': sum(x.is_retokenized for x in answers),
    'positions': n,
    'first_differences': m,
    'changed': changed,
    'rate': m / n,
    'p_value': float(p_value),
    'is_rounding': bool(min(p_value, p_errors) >= _LEVEL),
    'bound': float(bound),
    'differences': json.loads(table.to_json(orient='records')),
  }


def describe(result: Mapping[str, Any]) -> str:
  """Returns a result of `compare` as a table between two sentences."""
  different = result['differences']
  counts = collections.Counter(x['verdict'] for x in different)
  counts['equal'] = result['answers'] - len(different)
  text = ', '.join(f'{counts[x]} {x}' for x in _VERDICTS if counts[x])
  table = pd.DataFrame(different[:_SHOWN])
  if different:
    text += f'\n{table.to_string(index=False, float_format="{:.4g}".format)}'
  cause = result['cause'] and f' ({result["cause"]})'
  return (
    f'{result["answers"]} answers, {result["retokenized"]} tokenized again:'
    f' {text}\n{result["verdict"]}{cause}:'
    f' {result["first_differences"]} of {result["positions"]} positions differ,'
    f' where {result["dtype"]} changes {result["changed"]}'
    f' (p = {result["p_value"]:.2g}); near ties have gaps up to'
    f' {result["bound"]:.3g}.'
  )
