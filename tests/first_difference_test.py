"""First differences of greedy answers: verdicts, planted faults, bad rows."""

import functools
import json

import conftest
import jax
import launching
import numpy as np
import pytest
import small

from cascades.models import checkpoints, tokenizers
from cascades.sampler import batching, requests
from experiments import first_difference

_PROMPT = 'The number 60 in words:'


def _written(folder, rows):
  (folder / 'a.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  return str(folder / 'a.jsonl')


def test_rows_of_any_engine_have_a_verdict(tmp_path):
  spell = small.load('tiny-verifier').tokenizer.encode
  prompt, right = spell(_PROMPT, True), [*spell(' sixty'), tokenizers.EOS]
  ours, output = dict(prompt=_PROMPT), dict(text=' sixty', token_ids=right)
  rows = [
    ours | dict(text=' sixty'),
    dict(prompt=None, prompt_token_ids=prompt, outputs=[output]),
    dict(arguments=dict(gen_args_0=dict(arg_0=_PROMPT)), resps=[[' sixty']]),
    ours | dict(text=' sixty-one'),
    ours | dict(ids=[*spell(' six'), *spell('ty')]),
    ours | dict(prompt_ids=prompt[1:], ids=right),
    ours | dict(prompt_ids=prompt[:-1], ids=right),
  ]
  flags = f'--greedy={tmp_path}/a.jsonl --workdir={tmp_path} --dtype=bfloat16'
  flags = '--verifier=tiny-verifier', *flags.split()
  counts = '7 answers, 3 tokenized again: 3 equal, 1 other tokens'
  for count, code, said in (3, 0, '\nequal: 0 of '), (7, 1, counts):
    _written(tmp_path, rows[:count])
    done = launching.run('experiments.audit', *flags)
    assert (done.returncode, said in done.stdout) == (code, True), done.stderr
  found = small.read_json(tmp_path / 'a.json')
  wrong, different = found['differences'][0], found['differences']
  assert [(x['row'], x['verdict'], x['cause']) for x in different] == [
    ('line 4', 'error', ''),
    ('line 5', 'other tokens of the same text', ''),
    ('line 6', 'other prompt', 'no BOS'),
    ('line 7', 'other prompt', 'other ids'),
  ]
  assert (found['verdict'], wrong['rank']) == ('error', 3)
  assert wrong['our_token'] == tokenizers.EOS != wrong['token']
  assert wrong['gap'] > wrong['top_gap'] > found['bound'] > 0


@pytest.mark.parametrize(
  ('row', 'said'),
  [
    (dict(text='a'), ', has neither prompt nor prompt_ids; fix the row'),
    (dict(prompt='a', text=''), ', has an empty answer; fix the row'),
    (dict(prompt='a', ids=[-1]), ': ids.0 must be greater .*; fix the row'),
    (dict(prompt='a', ids=[768]), ', has ids that are not below 768 or do not'),
    (dict(prompt='a', ids=[3], text='no'), '.* do not decode to its text; g'),
    (dict(prompt='a' * 9999, text='a'), ', has more than 4096 tokens; fix'),
    (None, ' has no answers; give a file with some'),
  ],
)
def test_a_bad_row_is_named(row, said, tmp_path):
  rows = [dict(prompt='a', text='b'), row] if row else []
  path, place = _written(tmp_path, rows), ', line 2' * bool(row)
  with pytest.raises(ValueError, match=f'^greedy: a.jsonl{place}{said}'):
    first_difference.compare(path, 'tiny-drafter', 'float32')


@functools.cache
def _reader(model):
  return jax.jit(jax.vmap(model.with_hidden, (None, 0, 0, None)))


def _engine(checkpoint, prompts, early=0, shift=0, count=16):
  """Greedy answers; of logits some positions early, or at shifted positions."""
  tokens, lengths = batching.pad([[*x, *[0] * count] for x in prompts], 4096)
  starts, rows = lengths - count, np.arange(len(prompts))
  slots, mask = small.causal(tokens.shape[1])
  positions = slots + shift * (slots >= starts[:, None])
  read = _reader(checkpoint.model)
  for ends in starts + np.arange(count)[:, None]:
    logits, *_ = read(checkpoint.params, tokens, positions, mask)
    tokens[rows, ends] = logits[rows, ends - 1 - early].argmax(-1)
  answers = [tokens[i, starts[i] : lengths[i]].tolist() for i in rows]
  return [x[: [*x, tokenizers.EOS].index(tokenizers.EOS) + 1] for x in answers]


@conftest.optimised()
@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'int8'])
def test_planted_faults_are_named(dtype, tmp_path, monkeypatch):
  monkeypatch.setattr(batching, 'width', lambda rows, batch_size: batch_size)
  path, draw = tmp_path / 'model', np.random.default_rng(1).integers
  checkpoints.save_model(path, small.load('tiny-verifier'))
  template = '{{ bos_token }}{{ messages[0].content }} So:'
  (path / 'chat_template.jinja').write_text(template)
  checkpoint = checkpoints.load_model(path, dtype)
  # The model has learnt the former alone: gaps are of any size.
  prompts = [f'The number {draw(999)} in {x}:' for x in 15 * ['words', 'runes']]

  def audit(answers, is_chat=False, dtype=dtype):
    rows = [*map(lambda x, y: dict(prompt=x, ids=y), prompts, answers)]
    options = _written(tmp_path, rows), str(path), dtype, is_chat
    found = first_difference.compare(*options)
    return found['verdict'], found['cause'].partition(' leaves')[0]

  encode = functools.partial(requests.encode, checkpoint.tokenizer)
  right, framed = ([encode(x, y) for x in prompts] for y in (False, True))
  answer = functools.partial(_engine, checkpoint)
  plain, chat = answer(right), answer(framed)
  for answers, is_chat in (plain, False), (chat, True):
    verdict, _ = audit(answers, is_chat)
    assert verdict in ('equal', 'tie order', 'near tie')
    # Near ties of another dtype are none of float32.
    want = 'equal' if verdict == 'equal' else 'error'
    assert audit(answers, is_chat, 'float32') == (want, '')
  for cause, answers, is_chat in (
    ('no BOS', answer([x[1:] for x in right]), False),
    ('two BOS', answer([[tokenizers.BOS, *x] for x in right]), False),
    ('chat template', chat, False),
    ('no chat template', plain, True),
  ):
    assert audit(answers, is_chat) == ('other prompt', cause)
  for fault in dict(early=1), dict(shift=1):
    assert audit(answer(right, **fault)) == ('error', '')


def test_equal_logits_are_a_tie_in_any_order(tmp_path):
  checkpoint = checkpoints.load_model(small.pair()[0]).unpack()
  ids = checkpoint.tokenizer.encode(_PROMPT, add_bos=True)
  ((token,),) = _engine(checkpoint, [ids], count=1)
  # Another token has its row in the table.
  twin = next(x for x in range(token + 1, 800) if x not in ids)
  embedder = checkpoint.params['embedder']
  embedder.update(jax.tree.map(lambda x: x.at[twin].set(x[token]), embedder))
  checkpoints.save_model(tmp_path / 'model', checkpoint)
  path = _written(tmp_path, [dict(prompt=_PROMPT, ids=[twin])])
  found = first_difference.compare(path, str(tmp_path / 'model'), 'float32')
  assert (found['verdict'], found['differences'][0]['gap']) == ('tie order', 0)
