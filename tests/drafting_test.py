"""Training a drafter for a verifier that has none."""

import functools
import itertools
import json
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from ml_collections import ConfigDict

from cascades.models import checkpoints
from configs import train_drafter
from experiments.tasks import TASKS
from experiments.training import (
  cards,
  distillation_data,
  layer_drafters,
  texts,
)

_DATA = pathlib.Path(__file__).parent / 'data/tasks'


@pytest.fixture(scope='module')
def lines(tmp_path_factory):
  """A file of prompts and answers."""
  file = tmp_path_factory.mktemp('texts') / 'problems.jsonl'
  some = itertools.islice(TASKS['numerals'].problems('0', 'plain'), 200)
  rows = [{'prompt': p, 'answer': f' {a}'} for _, p, a in some]
  file.write_text('\n'.join(map(json.dumps, rows)))
  return file


@pytest.fixture(scope='module')
def whole():
  """The verifier."""
  return checkpoints.load_model('tiny-drafter').unpack()


@pytest.fixture(scope='module')
def tokenizer(whole):
  return whole.tokenizer


def save(folder, start, verifier='tiny-drafter'):
  """Writes a drafter that says sixty tokens."""
  layer_drafters.save(folder, start, np.arange(60), verifier=verifier)
  return str(folder)


def config(text, **fields):
  config = train_drafter.get_config()
  small = dict(name='small', verifier='tiny-drafter', text=str(text), tasks=())
  small |= dict(layers=(1,), vocabulary=60, held_out=20, dtype='float32')
  small |= dict(answers=8, answer_length=8, shots=1, texts=12, row_length=48)
  small |= dict(rows=2, steps=6, eval_examples=4, eval_gamma=2)
  config.update(small | dict(checkpoint_every=2, log_every=2) | fields)
  return config


# --- Texts ---


def test_documents_are_prompts_and_what_follows_them(lines, tmp_path):
  found = texts.load_documents(config(lines))
  assert len(found) == 200
  assert found == texts.load_documents(config(lines))
  assert found != texts.load_documents(config(lines, seed=1))
  stem = str(_DATA / 'multi30k_de_en.jsonl')
  captions = config(stem, tasks=('multi30k_de_en',), held_out=1)
  assert sorted(d.text for d in texts.load_documents(captions))[1] == (
    'German: Ein Mädchen in einem roten Mantel füttert zwei Enten.\nEnglish:'
    ' A girl in a red coat feeds two ducks.'
  )
  # The references of a sweep's file are answers.
  for name, text in (
    ('a.csv', 'prompt,reference,txt\np,x,y\n'),
    ('a.jsonl', '{"prompt": "p", "reference": ["", "x", 0]}'),
  ):
    (tmp_path / name).write_text(text)
    c = config(tmp_path / name, held_out=0)
    assert texts.load_documents(c) == [('p', ' x')]


@pytest.mark.parametrize(
  ('fields', 'said'),
  [
    ({'text': 'absent.jsonl'}, r'text: absent.jsonl cannot be read \(No such'),
    ({'held_out': 101}, 'has 200 documents; give 202 or more, since 101 are'),
    ({'tasks': ('roman',)}, r"tasks: must be published sets .* got 'roman'"),
    ({'text': '{"question": "b"}'}, 'text: damaged.jsonl, line 2, must have a'),
    ({'text': '{"prompt": "b", "reference": NaN}'}, 'l, line 2, must have a'),
  ],
)
def test_texts_that_will_not_do_are_named(lines, tmp_path, fields, said):
  file = tmp_path / 'damaged.jsonl'
  fields = {'text': lines} | fields
  if str(fields['text']).startswith('{'):
    file.write_text(f'{{"prompt": "a"}}\n{fields["text"]}\n')
    fields['text'] = file
  with pytest.raises(ValueError, match=said):
    texts.load_documents(config(**fields))


def test_answers_and_what_ends_them_count(lines, tokenizer):
  found = texts.load_documents(config(lines))
  answers = {d.answer for d in found}
  for shots in (0, 1):
    c = config(lines, shots=shots, row_length=96)
    made = texts.pack_rows(c, [found], tokenizer, 4, 'x')
    assert made.tokens.shape == (4, 96)
    assert (made.tokens[:, 0] == 2).all()
    more = texts.pack_rows(c, [found], tokenizer, 5, 'x')
    np.testing.assert_array_equal(more.tokens[:4], made.tokens)
    for tokens, places, counts in zip(*made, strict=True):
      asked = places[counts] + 1
      assert (np.diff(asked) > 0).all()
      said = tokenizer.decode(tokens[asked].tolist())
      *some, cut = said.split(texts.SEPARATOR)
      assert set(some) <= answers
      assert len(some) >= 2
      assert any(answer.startswith(cut) for answer in answers)
      before = tokenizer.decode(tokens[: asked[0]].tolist())
      assert before.count(texts.SEPARATOR) == shots


def test_texts_without_answers_count_as_a_whole_and_kinds_as_often(tokenizer):
  found = [texts.Document('one two three', '')]
  made = texts.pack_rows(config('x', shots=0), [found], tokenizer, 2, 'x')
  assert made.mask.all()
  many, one = [texts.Document('a' * 9, '')] * 99, [texts.Document('b' * 9, '')]
  c = config('x', row_length=4000)
  (tokens,) = texts.pack_rows(c, [many, one], tokenizer, 1, 'x').tokens
  text = tokenizer.decode(tokens.tolist())
  assert 0.35 < text.count('a') / (text.count('a') + text.count('b')) < 0.65


def test_the_most_frequent_tokens_of_answers_are_said(lines, tokenizer):
  found = texts.load_documents(config(lines))
  said = texts.frequent_tokens([found], tokenizer, 10, [1, 700])
  assert len(said) == 10
  assert (np.diff(said) > 0).all()
  assert {1, 700} <= set(said.tolist())
  ids = [token for d in found for token in tokenizer.encode(d.answer)]
  counts = np.bincount(ids, minlength=768)
  left_out = counts[np.setdiff1d(np.arange(768), said)].max()
  assert counts[np.setdiff1d(said, [1, 700])].min() >= left_out
  # A few documents of one kind weigh as much as many of another.
  one = [texts.Document('', ' twelve')]
  said = texts.frequent_tokens([found, one], tokenizer, 6, [])
  assert {*tokenizer.encode(' twelve')} <= set(said.tolist())


def test_what_is_asked_is_not_among_its_examples():
  found = [texts.Document(f'{i}:', f' {i}') for i in range(3)]
  c = config('x', shots=2)
  for prompt, document in texts.few_shot_prompts(c, found, 40, 'x'):
    assert document.text not in prompt
    assert prompt.endswith(document.prompt)
  found = [texts.Document(f'{i}:', f' {i}') for i in range(12)]
  for count in 10, 40:
    pairs = texts.few_shot_prompts(c, found, count, 'x', allow_repeats=False)
    assert len(pairs) == count
    assert len({document for _, document in pairs}) == 10
  with pytest.raises(ValueError, match='shots: 2 examples and a prompt cannot'):
    texts.few_shot_prompts(c, found[:2], 1, 'x')


def test_answers_are_kept_as_they_come(tmp_path):
  asked = []

  def answer(some, first):
    asked.append((first, len(some)))
    return [prompt.upper() for prompt in some]

  prompts = [f'p{i}' for i in range(600)]
  file = tmp_path / 'answers.json'
  want = [prompt.upper() for prompt in prompts]
  assert texts.resume_answers(file, prompts[:300], answer) == want[:300]
  assert texts.resume_answers(file, prompts, answer) == want
  # A group has a seed, and is written whole.
  assert asked == [(0, 256), (256, 44), (256, 256), (512, 88)]
  assert texts.resume_answers(file, prompts, None) == want


# --- What it learns ---


def test_a_training_begins_with_layers_or_with_a_drafter_of_the_same_table(
  lines, tmp_path, whole
):
  verifier = checkpoints.load_model('tiny-verifier').unpack()
  start = layer_drafters.begin(config('x', layers=(0, 5)), verifier)
  kinds = [k.name for k in start.model.module.config.attention_types]
  assert kinds == ['LOCAL_SLIDING', 'GLOBAL']
  assert start.params['layer_1'] is verifier.params['layer_5']
  first = layer_drafters.begin(config(lines), whole)
  c = config(lines, init=save(tmp_path / 'first', first))
  del c.layers
  again = layer_drafters.begin(c, whole)
  assert again.model == first.model
  small.same(again.params, first.params)
  both = ConfigDict(config(lines).to_dict() | {'init': 'first'})
  other = ConfigDict(c.to_dict() | {'init': 'tiny-verifier'})
  wrong = [(both, whole, 'init: exactly one of init ')]
  wrong += [(other, whole, 'init: tiny-verifier does not share')]
  wrong += [
    (config('x', layers=layers), verifier, said)
    for layers, said in (
      ((), r'layers: must be of 0 to 5, and .* attention \(1, 3, 5\), got'),
      ((0, 6), 'layers: must be of 0 to 5'),
      ((0, 2), 'and include one with global attention'),
    )
  ]
  for changed, model, said in wrong:
    with pytest.raises(ValueError, match=said):
      layer_drafters.begin(changed, model)


def test_answers_at_several_temperatures_are_kinds_and_none_is_held_out(
  tmp_path, monkeypatch, whole
):
  held_out = texts.Document('a', ' 1'), texts.Document('', 'plain')
  rest = [texts.Document(f'{i}', ' 1') for i in range(99)]
  documents = [*held_out, texts.Document('a', ' 2'), held_out[1], *rest]
  monkeypatch.setattr(texts, 'load_documents', lambda _: documents)
  asked, kinds = [], []

  class Writer:
    def __init__(self, model, config):
      self.temperature = config.temperature

    def sample(self, prompts, **_):
      asked.append((self.temperature, len(prompts)))
      return [types.SimpleNamespace(text=f' {self.temperature}')] * len(prompts)

  monkeypatch.setattr(distillation_data.sampler, 'Sampler', Writer)

  def pack(config, found, *_, **__):
    kinds.append(found)
    if len(kinds) == 2:
      raise KeyboardInterrupt
    # Of what is held out.
    return types.SimpleNamespace(mask=np.ones(1))

  monkeypatch.setattr(texts, 'pack_rows', pack)
  c = config('x', held_out=2, answers=600, temperatures=(1.0, 0.0))
  with pytest.raises(KeyboardInterrupt):
    distillation_data.prepare(c, whole, tmp_path)
  assert asked == [(1.0, 256), (0.0, 256), (1.0, 88)]
  (learned, *answered), held = kinds[1], kinds[0]
  assert (held, learned) == ([[*held_out]], rest)
  said = [{d.answer for d in kind} for kind in answered]
  assert said == [{' 1.0'}, {' 0.0'}]
  assert {d.prompt for kind in answered for d in kind} <= {*map(str, range(99))}


def test_the_loss_is_what_it_is_called(whole):
  start = layer_drafters.begin(config('x', layers=(0, 1)), whole)
  tokens = jnp.asarray(np.arange(24).reshape(2, 12) + 300)
  places = jnp.asarray([[0, 3, 11], [5, 6, 6]])
  counts = jnp.asarray([[True, True, True], [True, True, False]])
  hidden = distillation_data.hidden_at(
    whole.model, whole.params, tokens, places
  )
  said = np.arange(0, 768, 3)
  shared = start.params['embedder']
  own = {k: v for k, v in start.params.items() if k != 'embedder'}
  other = jax.tree.map(lambda x: x * 1.1, own)
  head = shared['input_embedding'][said]

  def figures(own, by_acceptance, sharpened=(1.0,)):
    batch = distillation_data.DistillationBatch(tokens, places, counts, hidden)
    inputs = layer_drafters.LossInputs(shared, head, batch, by_acceptance)
    return layer_drafters.loss_fn(own, start.model, inputs, sharpened)

  # All layers are the verifier itself.
  loss, seen = figures(own, False)
  figure = loss, seen['kept'], seen['agree']
  assert figure == pytest.approx((0, 1, 1), abs=1e-5)
  states = distillation_data.hidden_at(
    start.model, other | {'embedder': shared}, tokens, places
  )
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
def test_a_training_that_was_stopped_ends_with_the_same_drafter(
  lines, tmp_path, monkeypatch
):
  one, two = tmp_path / 'one', tmp_path / 'two'
  for workdir in (one, two):
    workdir.mkdir()
  folder = layer_drafters.train(config(lines), one)
  log = (one / 'small.jsonl').read_text().splitlines()
  seen = [json.loads(line) for line in log]
  assert [line['step'] for line in seen] == [2, 4, 6]
  assert {'kept', 'agree', 'kl', 'loss'} <= seen[0].keys()

  original = layer_drafters.training_loop.fit

  def stop(*args, **options):
    original(*args, **options | dict(steps=4))
    raise KeyboardInterrupt

  monkeypatch.setattr(layer_drafters.training_loop, 'fit', stop)
  with pytest.raises(KeyboardInterrupt):
    layer_drafters.train(config(lines), two)
  monkeypatch.setattr(layer_drafters.training_loop, 'fit', original)
  again = layer_drafters.train(config(lines), two)
  for name in ('model.safetensors', 'reduced.json', 'config.json'):
    assert (folder / name).read_bytes() == (again / name).read_bytes()

  figures = layer_drafters.evaluate(folder, config(lines))
  assert 0 < figures['cost of a call'] < 3
  assert figures['temperature 0']['tokens per verifier call'] >= 1


def test_what_is_made_of_a_model_with_terms_carries_them(
  lines, tmp_path, monkeypatch, whole
):
  c = config(lines, sharpened=(1.0, 0.3), kl_fraction=0.0)
  c.temperatures = (0.0, 1.0, 0.0)
  folder = tmp_path / 'made'
  save(folder, layer_drafters.begin(c, whole))
  both = {'acceptance': 0.5, 'tokens per verifier call': 2.0}
  figures = {f'temperature {t}': both for t in (1, 0)} | {'cost of a call': 0.1}
  models = {'tiny-drafter': checkpoints.MODELS['gemma3-270m']}
  for with_terms in False, True:
    if with_terms:
      index = types.SimpleNamespace(MODELS=models)
      monkeypatch.setattr(cards, 'checkpoints', index)
    layer_drafters.write_card(folder, c, figures, 'a command')
    card = (folder / 'README.md').read_text()
    for said in (
      'A drafter for `tiny-drafter`, made of its layers 1, with',
      'It drafts 60 tokens',
      '| temperature 1 | acceptance | 0.500 |',
    ):
      assert said in card
    assert ('under the Gemma Terms of Use' in card) == with_terms
    assert (folder / 'NOTICE').exists() == with_terms
  assert 'a modification' in (folder / 'NOTICE').read_text()
  assert '4.9 No Waiver' in (folder / 'LICENSE').read_text()
