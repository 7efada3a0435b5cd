"""Training of drafters: texts, losses, resuming, and cards."""

import functools
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small

from cascades import load_model
from cascades.drafters import recurrent
from cascades.models import checkpoints
from configs import train_drafter, train_recurrent
from experiments.tasks import TASKS
from experiments.training import distillation_data as data
from experiments.training import layer_drafters, recurrent_heads, training_loop
from experiments.training.distillation_data import Document


@pytest.fixture(scope='module')
def lines(tmp_path_factory):
  """A file of prompts and answers."""
  file = tmp_path_factory.mktemp('texts') / 'problems.jsonl'
  some = TASKS['numerals'].load(split='train', num_examples=200)
  rows = [{'prompt': x.prompt, 'reference': x.reference} for x in some]
  file.write_text('\n'.join(map(json.dumps, rows)))
  return file


@pytest.fixture(scope='module')
def whole():
  """The verifier."""
  return checkpoints.load_model('tiny-drafter').unpack()


def config(text, **fields):
  config = train_drafter.get_config()
  small = dict(name='small', verifier='tiny-drafter', text=str(text), tasks=())
  small |= dict(layers=(1,), vocabulary=60, held_out=20, dtype='float32')
  small |= dict(answers=8, answer_length=8, shots=1, texts=12, row_length=48)
  small |= dict(rows=2, steps=6, eval_examples=4, eval_gamma=2)
  config.update(small | dict(checkpoint_every=2, log_every=2) | fields)
  return config


def test_documents_are_prompts_and_what_follows_them(lines, tmp_path):
  load = lambda *args, **fields: data.load_documents(config(*args, **fields))  # noqa: E731
  assert len(load(lines)) == 200
  assert load(lines) == load(lines) != load(lines, seed=1)
  stem = f'{small.ROOT}/tests/data/tasks/multi30k_de_en.jsonl'
  captions = load(stem, tasks=('multi30k_de_en',), held_out=1)
  assert sorted(d.text for d in captions)[1] == (
    'German: Ein Mädchen in einem roten Mantel füttert zwei Enten.\nEnglish:'
    ' A girl in a red coat feeds two ducks.'
  )
  # The references of a sweep's file are answers.
  for name, text in (
    ('a.csv', 'prompt,reference,txt\np,x,y\n'),
    ('a.jsonl', '{"prompt": "p", "reference": ["", "x", 0]}'),
  ):
    (tmp_path / name).write_text(text)
    assert load(tmp_path / name, held_out=0) == [('p', ' x')]


@pytest.mark.parametrize(
  ('fields', 'said'),
  [
    ({'text': 'absent.jsonl'}, r'data: absent.jsonl cannot be read \(No such'),
    ({'held_out': 101}, 'has 200 documents; give 202 or more, since 101 are'),
    ({'tasks': ('roman',)}, r"tasks: must be of .*, got 'roman'"),
    ({'text': '{"question": "b"}'}, "damaged.jsonl, line 2, has no field 'p"),
    ({'text': '{"prompt": "b", "reference": NaN}'}, 'l, line 2, '),
    ({'dtype': 'int8'}, 'dtype: must be one of bfloat16, float32, got'),
    ({'rows': 99}, 'rows: must be at most the number of texts, 12, got 99'),
    ({'row_length': 8}, 'row_length: rows of 8 tokens have no room'),
    ({'shots': 180}, 'shots: 180 examples and a prompt cannot'),
    ({'held_out': 0}, r'cannot be chosen from 0 documents \(held out\)'),
    ({'eval_examples': 0}, 'eval_examples: must be 1 or more, got 0'),
    ({'temperatures': ()}, 'temperatures: no temperature is given'),
    (
      {'text': '{"prompt": "a"}', 'held_out': 1, 'shots': 0},
      r'shots: .* from 0 documents \(answers\)',
    ),
  ],
)
def test_what_will_not_do_is_named(lines, tmp_path, whole, fields, said):
  file = tmp_path / 'damaged.jsonl'
  fields = {'text': lines} | fields
  if str(fields['text']).startswith('{'):
    file.write_text(f'{{"prompt": "a", "reference": 0}}\n{fields["text"]}\n')
    fields['text'] = file
  with pytest.raises(ValueError, match=said):
    data.prepare(config(**fields), whole, tmp_path)


def test_answers_and_what_ends_them_count(lines, whole):
  found = data.load_documents(config(lines))
  answers = {d.answer for d in found}
  for shots in (0, 1):
    c = config(lines, shots=shots, row_length=128)
    made = data.pack_rows(c, [found], whole.tokenizer, 4, 'x')
    assert made.tokens.shape == (4, 128)
    assert (made.tokens[:, 0] == 2).all()
    more = data.pack_rows(c, [found], whole.tokenizer, 5, 'x')
    np.testing.assert_array_equal(more.tokens[:4], made.tokens)
    for tokens, places, counts in zip(*made[:3], strict=True):
      asked = places[counts] + 1
      assert (np.diff(asked) > 0).all()
      said = whole.tokenizer.decode(tokens[asked].tolist())
      *some, cut = said.split(data.SEPARATOR)
      assert set(some) <= answers
      assert len(some) >= 2
      assert any(answer.startswith(cut) for answer in answers)
      before = whole.tokenizer.decode(tokens[: asked[0]].tolist())
      assert before.count(data.SEPARATOR) == shots


def test_texts_without_answers_count_as_a_whole_and_kinds_as_often(
  tmp_path, whole
):
  (tmp_path / 'texts.jsonl').write_text('{"prompt": "one two three"}')
  c = config(tmp_path / 'texts.jsonl', shots=0, held_out=0)
  made = data.pack_rows(c, [data.load_documents(c)], whole.tokenizer, 2, 'x')
  assert made.mask.all()
  many, one = [Document('a' * 9, '')] * 99, [Document('b' * 9, '')]
  c = config('x', row_length=4000)
  (tokens,) = data.pack_rows(c, [many, one], whole.tokenizer, 1, 'x').tokens
  text = whole.tokenizer.decode(tokens.tolist())
  assert 0.35 < text.count('a') / (text.count('a') + text.count('b')) < 0.65


def test_the_most_frequent_tokens_of_answers_are_said(lines, whole):
  found = data.load_documents(config(lines))
  said = data.frequent_tokens([found], whole.tokenizer, 10, [1, 700])
  assert len(said) == 10
  assert (np.diff(said) > 0).all()
  assert {1, 700} <= set(said.tolist())
  ids = [token for d in found for token in whole.tokenizer.encode(d.answer)]
  counts = np.bincount(ids, minlength=768)
  left_out = counts[np.setdiff1d(np.arange(768), said)].max()
  assert counts[np.setdiff1d(said, [1, 700])].min() >= left_out
  # A few documents of one kind weigh as much as many of another.
  one = [Document('', ' twelve')]
  said = data.frequent_tokens([found, one], whole.tokenizer, 6, [])
  assert {*whole.tokenizer.encode(' twelve')} <= set(said.tolist())


def test_what_is_asked_is_not_among_its_examples():
  found = [Document(f'{i}:', f' {i}') for i in range(3)]
  c = config('x', shots=2)
  for prompt, document in data.few_shot_prompts(c, found, 40, 'x'):
    assert document.text not in prompt
    assert prompt.endswith(document.prompt)
  found = [Document(f'{i}:', f' {i}') for i in range(12)]
  for count in 10, 40:
    pairs = data.few_shot_prompts(c, found, count, 'x')
    assert len(pairs) == count
    assert len({document for _, document in pairs}) == 10


def test_a_training_begins_with_layers():
  verifier = checkpoints.load_model('tiny-verifier').unpack()
  start = layer_drafters.begin(config('x', layers=(0, 5)), verifier)
  kinds = [k.name for k in start.model.module.config.attention_types]
  assert kinds == ['LOCAL_SLIDING', 'GLOBAL']
  assert start.params['layer_1'] is verifier.params['layer_5']
  for layers, said in (
    ((), r'layers: must be of 0 to 5, and .* attention \(1, 3, 5\), got'),
    ((0, 6), 'layers: must be of 0 to 5'),
    ((0, 2), 'and include one with global attention'),
  ):
    with pytest.raises(ValueError, match=said):
      layer_drafters.begin(config('x', layers=layers), verifier)


def test_answers_at_several_temperatures_are_kinds_and_none_is_held_out(
  tmp_path, monkeypatch, whole
):
  held_out = [Document('a', ' 1'), Document('b', ' 1')]
  rest = [Document(f'{i}', ' 1') for i in range(99)]
  documents = [*held_out, Document('a', ' 2'), held_out[1], *rest]
  monkeypatch.setattr(data, 'load_documents', lambda _: documents)
  asked, kinds = [], []

  class Writer:
    def __init__(self, model, config):
      self.temperature = config.temperature

    def sample(self, prompts, **_):
      asked.append((self.temperature, len(prompts)))
      return [types.SimpleNamespace(text=f' {self.temperature}')] * len(prompts)

  monkeypatch.setattr(data.sampler, 'Sampler', Writer)

  def pack(config, found, *_, **__):
    kinds.append(found)
    if len(kinds) % 2 == 0:
      raise KeyboardInterrupt
    return types.SimpleNamespace(mask=np.ones(1))

  monkeypatch.setattr(data, 'pack_rows', pack)
  c = config('x', held_out=2, answers=600, temperatures=(1.0, 0.0))
  for _ in range(2):
    with pytest.raises(KeyboardInterrupt):
      data.prepare(c, whole, tmp_path)
    # What was answered is not asked again.
    for answers in tmp_path.glob('answers-*/[!0]*.json'):
      answers.unlink()
  chunks = [(1.0, 256), (0.0, 256), (1.0, 88)]
  assert asked == chunks + chunks[1:]
  assert kinds[1] == kinds[3]
  learned, *answered = kinds[1]
  assert learned == rest
  said = [{d.answer for d in kind} for kind in answered]
  assert said == [{' 1.0'}, {' 0.0'}]
  assert {d.prompt for kind in answered for d in kind} <= {*map(str, range(99))}
  # Nor are answers of other weights under the verifier's name taken for its.
  other = whole._replace(params=data.cast('bfloat16', whole.params))
  with pytest.raises(KeyboardInterrupt):
    data.prepare(c, other, tmp_path)
  assert asked == chunks + chunks[1:] + chunks


def test_the_loss_is_what_it_is_called(whole):
  start = layer_drafters.begin(config('x', layers=(0, 1)), whole)
  tokens = jnp.asarray(np.arange(24).reshape(2, 12) + 300)
  places = jnp.asarray([[0, 3, 11], [5, 6, 6]])
  counts = jnp.asarray([[True, True, True], [True, True, False]])
  hidden = data.hidden_at(whole.model, whole.params, tokens, places)
  said = np.arange(0, 768, 3)
  shared = start.params['embedder']
  own = {k: v for k, v in start.params.items() if k != 'embedder'}
  other = jax.tree.map(lambda x: x * 1.1, own)
  head = shared['input_embedding'][said]

  def figures(own, by_acceptance, sharpened=(1.0,)):
    batch = data.Rows(tokens, places, counts, hidden)
    inputs = shared, head, batch, by_acceptance
    return layer_drafters.loss_fn(own, start.model, inputs, sharpened)

  # All layers are the verifier itself.
  loss, seen = figures(own, False)
  figure = loss, seen['kept'], seen['agree']
  assert figure == pytest.approx((0, 1, 1), abs=1e-5)
  trained = other | {'embedder': shared}
  states = data.hidden_at(start.model, trained, tokens, places)
  p, q = (
    np.asarray(jax.nn.softmax(x @ head.T), np.float64)[counts]
    for x in (hidden, states)
  )
  close = functools.partial(pytest.approx, rel=1e-3)
  loss, seen = figures(other, False)
  assert [loss, seen['kl']] == close([(p * np.log(p / q)).sum(-1).mean()] * 2)
  kept = np.minimum(p, q).sum(-1)
  assert figures(other, True)[0] == close(-np.log(kept).mean())
  assert seen['kept'] == pytest.approx(kept.mean(), rel=1e-4)
  sharp = [x**2 / (x**2).sum(-1, keepdims=True) for x in (p, q)]
  sharp = np.minimum(*sharp).sum(-1)
  want = -(np.log(kept) + np.log(sharp)).mean() / 2
  assert figures(other, True, (1.0, 0.5))[0] == close(want)


@pytest.mark.slow
def test_a_stopped_training_ends_the_same(lines, tmp_path, monkeypatch):
  one, two = tmp_path / 'one', tmp_path / 'two'
  for workdir in (one, two):
    workdir.mkdir()
  folder = layer_drafters.train(config(lines), one)
  log = (one / 'small.jsonl').read_text().splitlines()
  seen = [json.loads(line) for line in log]
  assert [line['step'] for line in seen] == [2, 4, 6]
  assert {'kept', 'agree', 'kl', 'loss'} <= seen[0].keys()

  original = data.Rows.sample

  def stop(rows, config, step):
    if step == 4:
      raise KeyboardInterrupt
    return original(rows, config, step)

  with monkeypatch.context() as patch:
    patch.setattr(data.Rows, 'sample', stop)
    with pytest.raises(KeyboardInterrupt):
      layer_drafters.train(config(lines), two)
  again = layer_drafters.train(config(lines), two)
  for name in ('model.safetensors', 'reduced.json', 'config.json'):
    assert (folder / name).read_bytes() == (again / name).read_bytes()
  figures = training_loop.write_card(folder, config(lines), 'a command')
  assert figures['temperature 0']['tokens per verifier call'] >= 1


def test_a_training_does_not_resume_with_other_fields(tmp_path):
  file = tmp_path / 'hidden.npy'
  hidden = np.lib.format.open_memmap(file, 'w+', shape=(12, 1, 1))
  rows = data.Rows(*np.zeros((3, 12, 1)), hidden)

  def fit(**fields):
    return training_loop.fit(
      config('x', steps=2, **fields),
      tmp_path,
      jnp.ones(2),
      optax.sgd(0.1),
      rows,
      loss_fn=lambda x: ((x**2).sum(), {}),
      batch=lambda step, rows: (),
    )

  (tmp_path / 'checkpoints').mkdir()
  np.testing.assert_allclose(fit(), 0.64)
  np.testing.assert_allclose(fit(log_every=1), 0.64)
  for field, value in dict(rows=3, seed=1).items():
    with pytest.raises(ValueError, match=f'with another {field}; choose'):
      fit(**{field: value})
  rows = rows._replace(hidden=np.memmap(tmp_path / 'x', 'f4', 'w+', 0, (12,)))
  with pytest.raises(ValueError, match='with another hidden; choose'):
    fit()


def test_terms_of_a_model_are_carried(lines, tmp_path, monkeypatch, whole):
  figures = {'temperature 1': {'acceptance': 0.5}}
  monkeypatch.setattr(training_loop, '_evaluate', lambda *_: figures)
  folder = tmp_path / 'made'
  start = layer_drafters.begin(config(lines), whole)
  layer_drafters.save(folder, start, np.arange(60), verifier='tiny-drafter')
  models = {'tiny-drafter': checkpoints.MODELS['gemma3-270m']}
  for with_terms in False, True:
    if with_terms:
      index = types.SimpleNamespace(MODELS=models)
      monkeypatch.setattr(training_loop, 'checkpoints', index)
    training_loop.write_card(folder, config(lines), 'a command')
    card = (folder / 'README.md').read_text()
    for said in (
      'A drafter for `tiny-drafter`: some of its layers',
      'Retrain: `a command`',
      '| temperature 1 | 0.500 |',
    ):
      assert said in card
    assert ('license: apache-2.0' in card) != with_terms
    assert ('under the Gemma Terms of Use' in card) == with_terms
    assert (folder / 'NOTICE').exists() == with_terms
  assert 'a modification' in (folder / 'NOTICE').read_text()
  assert '4.9 No Waiver' in (folder / 'LICENSE').read_text()


def test_the_loss_is_of_what_the_head_would_draft():
  model, params, _ = load_model('tiny-verifier').unpack()
  head = recurrent.init_head(jax.random.key(0), 320)
  tokens = jnp.array([[2, 300, 301, 302, 303, 304, 305, 306]])
  logits, hidden, _ = model.with_hidden(params, tokens[0], *small.causal(8))
  # Of the tokens of two answers, and a place that does not count.
  places = jnp.array([[1, 2, 3, 5, 6, 6]])
  table = params['embedder']['input_embedding']
  batch = data.Rows(tokens, places, jnp.arange(6)[None] < 5, hidden[places])
  loss, seen = recurrent_heads.loss_fn(head, params, model, table, batch, 2)
  # By hand: nothing is drafted from one answer into the next.
  said = jax.nn.softmax(logits)
  nats, shares = [], [[], []]
  for t in (1, 2, 3, 5, 6):
    answer, state = (1, 2, 3) if t < 5 else (5, 6), hidden[t]
    for i in range(2):
      if t + 1 + i not in answer:
        break
      given = model, params, head, hidden[t], state
      state, guess = recurrent.step(*given, tokens[0, t + 1 + i])
      p, q = said[t + 1 + i], jax.nn.softmax(guess)
      nats.append(-(p * jnp.log(q)).sum())
      shares[i].append(jnp.minimum(p, q).sum())
  np.testing.assert_allclose(loss, np.mean(nats), rtol=1e-4)
  want = [np.mean(share) for share in shares]
  np.testing.assert_allclose(seen['kept'], want, rtol=1e-4)


@pytest.mark.slow
def test_a_head_of_texts_says_what_is_frequent_in_them(tmp_path):
  config = train_recurrent.get_config()
  rows = (dict(prompt=f'{n} is', reference=f'no. {n}') for n in range(60))
  (tmp_path / 'texts.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  config.update(vocabulary=20, held_out=10, answers=4, answer_length=8, shots=1)
  config.update(texts=8, row_length=96, rows=2, steps=2, depth=2, log_every=1)
  config.update(eval_examples=3, checkpoint_every=2, name='head', tasks=())
  config.update(verifier='tiny-verifier', dtype='float32')
  config.update(text=str(tmp_path / 'texts.jsonl'))
  folder = recurrent_heads.train(config, tmp_path)
  (line,) = (tmp_path / 'head.jsonl').read_text().splitlines()[1:]
  assert np.isfinite(json.loads(line)['loss'])
  loaded = recurrent.RecurrentHead.load(folder)
  assert loaded.draft_vocab_ids.shape == (20,)
  bound_drafter = loaded.bind(load_model('tiny-verifier'))
  state = jnp.ones(320)
  head = bound_drafter.drafter.model, bound_drafter.params[1], loaded.head
  _, logits = recurrent.step(*head, state, state, jnp.int32(5))
  drafted = np.flatnonzero(np.isfinite(logits))
  assert drafted.tolist() == loaded.draft_vocab_ids.tolist()
  figures = training_loop.write_card(folder, config, 'a command')
  assert figures['temperature 0']['tokens per verifier call'] >= 1
  card = (folder / 'README.md').read_text()
  assert 'A drafter for `tiny-verifier`: a recurrent head' in card
