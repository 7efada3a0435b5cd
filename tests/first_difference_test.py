"""First differences of greedy answers: verdicts, planted faults, bad rows."""

import dataclasses
import functools
import json
import random

import jax
import jax.numpy as jnp
import launching
import numpy as np
import pytest
import small

from cascades.models import checkpoints, language, tokenizers
from cascades.sampler.requests import encode
from experiments import first_difference

_PROMPT = 'The number 60 in words:'
_DTYPES = 'float32', 'bfloat16', 'int8'


def _written(path, rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


def test_rows_of_any_engine_have_a_verdict(tmp_path):
  spell = small.load('tiny-verifier').tokenizer.encode
  prompt, right = spell(_PROMPT, True), [*spell(' sixty'), tokenizers.EOS]
  output = dict(text=' sixty', token_ids=right)
  rows = [
    (dict(prompt=_PROMPT, text=' sixty'), None),
    (dict(prompt=None, prompt_token_ids=prompt, outputs=[output]), None),
    (
      dict(arguments=dict(gen_args_0=dict(arg_0=_PROMPT)), resps=[[' sixty']]),
      None,
    ),
    (dict(prompt=_PROMPT, text=' sixty-one'), ('error', '')),
    (
      dict(prompt=_PROMPT, ids=[*spell(' six'), *spell('ty')]),
      ('other tokens of the same text', ''),
    ),
    *(
      (dict(prompt=_PROMPT, prompt_ids=x, ids=right), ('other prompt', name))
      for x, name in ((prompt[1:], 'no BOS'), (prompt[:-1], 'other ids'))
    ),
  ]
  path = _written(tmp_path / 'a.jsonl', [row for row, _ in rows])
  flags = [f'--greedy={path}', '--dtype=bfloat16', f'--workdir={tmp_path}']
  flags.append('--verifier=tiny-verifier')
  done = launching.run('experiments.audit', *flags)
  assert done.returncode == 1, done.stderr
  assert '7 answers, 3 tokenized again: 3 equal, 1 other tokens' in done.stdout
  found = small.read_json(tmp_path / 'a.json')
  assert found['verdict'] == 'error'
  assert [
    (x['row'], x['verdict'], x['prompt']) for x in found['differences']
  ] == [(f'line {i}', *x) for i, (_, x) in enumerate(rows, 1) if x]
  wrong = found['differences'][0]
  assert wrong['our_token'] == tokenizers.EOS != wrong['token']
  assert wrong['rank'] == 3
  assert wrong['gap'] > wrong['top_gap'] > found['bound'] > 0
  _written(tmp_path / 'a.jsonl', [row for row, _ in rows[:3]])
  done = launching.run('experiments.audit', *flags)
  assert done.returncode == 0, done.stderr
  assert '\nequal: 0 of ' in done.stdout


@pytest.mark.parametrize(
  ('row', 'said'),
  [
    (dict(text='a'), 'has neither prompt nor prompt_ids; fix the row'),
    (dict(prompt='a', text=''), 'has an empty answer; fix the row'),
    (dict(prompt='a', ids=[-1]), 'is not an answer .ids.0 must be greater'),
    (dict(prompt='a', ids=[768]), 'has ids that are not below 768 or do not'),
    (dict(prompt='a', ids=[300], text='no'), '.* do not decode to its text; g'),
    (dict(prompt='a' * 9999, text='a'), 'has more than 4096 tokens; fix'),
    (None, 'has no answers; give a file with some'),
  ],
)
def test_a_bad_row_is_named(row, said, tmp_path):
  good = dict(prompt='a', text='b')
  path = _written(tmp_path / 'a.jsonl', [good, row] if row else [])
  place = ', line 2, ' if row else ' '
  with pytest.raises(ValueError, match=f'^greedy: a.jsonl{place}{said}'):
    first_difference.compare(path, 'tiny-drafter', 'float32')


@functools.partial(jax.jit, static_argnames='model')
def _next(params, tokens, lengths, starts, fault, model):
  """The next token of each text; see `_engine`."""
  slots = jnp.arange(tokens.shape[1])

  def read(tokens, length, start):
    positions = slots + fault[1] * (slots >= start)
    mask = slots <= slots[:, None]
    logits, *_ = model.with_hidden(params, tokens, positions, mask)
    return logits[length - 1 - fault[0]].argmax()

  return jax.vmap(read)(tokens, lengths, starts)


def _engine(checkpoint, prompts, early=0, shift=0, count=16):
  """Greedy answers; of logits some positions early, or at shifted positions."""
  starts = np.array([len(x) for x in prompts])
  tokens = np.zeros((len(prompts), max(starts) + count), np.int32)
  for row, ids in zip(tokens, prompts, strict=True):
    row[: len(ids)] = ids
  for ends in starts + np.arange(count)[:, None]:
    arguments = tokens, ends, starts, np.array([early, shift])
    following = _next(checkpoint.params, *arguments, checkpoint.model)
    tokens[range(len(tokens)), ends] = following
  pairs = zip(tokens.tolist(), starts, strict=True)
  answers = [row[start : start + count] for row, start in pairs]
  return [x[: [*x, tokenizers.EOS].index(tokenizers.EOS) + 1] for x in answers]


def _audited(path, model, dtype, prompts, answers, **options):
  pairs = zip(prompts, answers, strict=True)
  rows = [dict(prompt=prompt, ids=ids) for prompt, ids in pairs]
  file = _written(path / 'a.jsonl', rows)
  found = first_difference.compare(file, model, dtype, **options)
  return found['verdict'], found['cause'].partition(' leaves')[0], found


@pytest.mark.slow
@pytest.mark.parametrize('dtype', _DTYPES)
def test_planted_faults_are_named(dtype, tmp_path):
  checkpoint = checkpoints.load_model('tiny-verifier', dtype)
  draw = random.Random(1).randrange
  # The model has learnt the former alone: gaps are of any size.
  prompts = [f'The number {draw(10**6)} in words:' for _ in range(30)]
  prompts += [f'The number {draw(4000)} in Roman numerals:' for _ in range(30)]
  right = [checkpoint.tokenizer.encode(x, add_bos=True) for x in prompts]
  audit = functools.partial(_audited, tmp_path, 'tiny-verifier')
  answers = _engine(checkpoint, right)
  verdict, _, found = audit(dtype, prompts, answers)
  assert verdict in ('equal', 'tie order', 'near tie')
  # Near ties of another dtype are none of float32.
  verdict, *_ = audit('float32', prompts, answers)
  assert verdict == ('error' if found['first_differences'] else 'equal')
  for cause, ids in (
    ('no BOS', [x[1:] for x in right]),
    ('two BOS', [[tokenizers.BOS, *x] for x in right]),
  ):
    found = audit(dtype, prompts, _engine(checkpoint, ids))
    assert found[:2] == ('other prompt', cause)
  for fault in dict(early=1), dict(shift=1):
    *found, _ = audit(dtype, prompts, _engine(checkpoint, right, **fault))
    assert found == ['error', '']


@pytest.mark.slow
@pytest.mark.parametrize('dtype', _DTYPES)
def test_a_wrong_template_is_named(dtype, tmp_path):
  folder, path = small.FIXTURES / 'chat', tmp_path / 'model'
  tokenizer = tokenizers.from_json(folder / 'tokenizer.json')
  template = (folder / 'gemma3.jinja').read_text()
  tokenizer = dataclasses.replace(tokenizer, chat_template=template)
  model = language.from_config(small.config_of(tokenizer.vocab_size, 2, 32))
  params = model.init_params(jax.random.key(0))
  checkpoints.save_model(path, checkpoints.Checkpoint(model, params, tokenizer))
  checkpoint = checkpoints.load_model(path, dtype)
  prompts = [f'what is {i} + 2?' for i in range(20)]
  plain, framed = (
    [encode(checkpoint.tokenizer, x, is_chat) for x in prompts]
    for is_chat in (False, True)
  )
  for ids, is_chat, cause in (
    (framed, False, 'chat template'),
    (plain, True, 'no chat template'),
    (framed, True, ''),
  ):
    rows, options = (prompts, _engine(checkpoint, ids)), (str(path), dtype)
    found = _audited(tmp_path, *options, *rows, apply_chat_template=is_chat)
    assert found[1] == cause
    assert (found[0] in ('other prompt', 'error')) == bool(cause)


def test_equal_logits_are_a_tie_in_any_order(tmp_path):
  checkpoint = checkpoints.load_model(small.pair()[0]).unpack()
  ids = checkpoint.tokenizer.encode(_PROMPT, add_bos=True)
  (answer,) = _engine(checkpoint, [ids], count=4)
  # Another token has the row of the last one in the table.
  twin = next(x for x in range(answer[-1] + 1, 800) if x not in (*ids, *answer))
  table = checkpoint.params['embedder']['input_embedding']
  table = {'input_embedding': table.at[twin].set(table[answer[-1]])}
  params = checkpoint.params | {'embedder': table}
  checkpoints.save_model(tmp_path / 'model', checkpoint._replace(params=params))
  answers, model = [[*answer[:-1], twin]], str(tmp_path / 'model')
  *_, found = _audited(tmp_path, model, 'float32', [_PROMPT], answers)
  assert found['verdict'] == 'tie order'
  assert found['differences'][0]['gap'] == 0
