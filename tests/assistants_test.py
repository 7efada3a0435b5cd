"""Gemma 4's assistants: what transformers says of them, and the law.

The fixtures were made by transformers (see make_assistant_fixtures.py there):
verifiers with layers that share caches, with keys that are values, and with a
mixture of experts, and an assistant for each. Both models are also compared
after a text of 720 tokens, with a window of 6 and one of 512.
"""

import dataclasses
import functools
import json
import pathlib
import shutil

import conftest
import counts
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from safetensors.numpy import load_file, save_file

import cascades
from cascades import decoding, load_model, methods
from cascades.drafters import assistants, pairing
from cascades.methods import processing
from cascades.models import checkpoints, language
from cascades.proof import exact
from cascades.scheme import Scheme
from configs import common
from experiments import records, sweep
from experiments.sweeps import plan

FIXTURES = pathlib.Path(__file__).parent / 'fixtures'
KINDS = ('shared', 'dense', 'experts')
WINDOWS = (6, 512)
_TEXTS = ['the quick brown fox', 'a cascade asks', 'every token is either kept']


def _folders(kind) -> tuple[str, str]:
  verifier = FIXTURES / f'hf_gemma4_{kind}'
  return str(verifier), f'{verifier}_assistant'


@functools.cache
def verifier(kind, window=None):
  found = load_model(_folders(kind)[0])
  if window is None:
    return found
  config = _fields(kind)[0] | {'sliding_window': window}
  model = language.from_config(config)
  return found.unpacked()._replace(
    model=dataclasses.replace(model, vocab_size=found.model.vocab_size)
  )


def _fields(kind):
  """Of config.json, of both."""
  return tuple(
    json.loads(pathlib.Path(folder, 'config.json').read_text())
    for folder in _folders(kind)
  )


@functools.cache
def equipped(kind, others_say=True, window=None):
  found = assistants.load(_folders(kind)[1])
  if window is not None:
    text = found.config['text_config'] | {'sliding_window': window}
    found = found._replace(config=found.config | {'text_config': text})
  return found.bind(verifier(kind, window), others_say)


@functools.cache
def expected(kind, name='expected'):
  file = FIXTURES / f'hf_gemma4_{kind}_assistant/{name}.npz'
  with np.load(file, allow_pickle=False) as found:
    return dict(found)


def _read(kind, tokens, garbage=(), window=None):
  """The verifier's cache and last state, before the last token."""
  model, params, _ = verifier(kind, window)
  cache = model.init_cache(params, len(tokens) + 12)
  written = np.concatenate([tokens[:-1], garbage]).astype(np.int32)
  _, hidden, cache = decoding.read_hidden(
    model, params, cache, jnp.asarray(written), jnp.int32(0)
  )
  last = len(tokens) - 2
  return model.rewind(cache, jnp.int32(last + 1)), hidden[last]


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('length', [4, 20])
@pytest.mark.parametrize('garbage', [(), (5, 6, 7)], ids=['', 'rejected'])
def test_drafts_are_transformers(kind, length, garbage):
  found = expected(kind)
  tokens = found['tokens'][:length]
  drafter, params = equipped(kind)
  # What was rejected lies beyond the text, and is not looked at.
  read = _read(kind, tokens, garbage)
  want = found[f'logits_{length}'], found[f'states_{length}']
  check_drafts(drafter, params, tokens, read, want)


def check_drafts(drafter, params, tokens, read, want):
  """Three steps, greedily, and what each token would be drawn from at .7."""
  cache, state = read
  length, token = len(tokens), jnp.asarray(tokens[-1])
  banks, step = drafter.banks(cache, jnp.int32(length)), jax.jit(drafter.step)
  warm = processing.Processing(temperature=np.float32(0.7))
  for said, after in zip(*want, strict=True):
    state, logits = step(params, banks, jnp.int32(length - 1), state, token)
    np.testing.assert_allclose(logits, said, rtol=0, atol=1e-5)
    np.testing.assert_allclose(state, after, rtol=0, atol=1e-5)
    drawn_from = np.exp(np.float64(said) / 0.7)
    drawn_from /= drawn_from.sum()
    got = drafter.probabilities(logits, warm)
    np.testing.assert_allclose(got, drawn_from, rtol=0, atol=2e-6)
    token = jnp.argmax(logits)


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('window', WINDOWS)
@pytest.mark.parametrize('garbage', [(), (5, 6, 7)], ids=['', 'rejected'])
def test_drafts_beyond_the_window_are_transformers(kind, window, garbage):
  found = expected(kind, 'long')
  drafter, params = equipped(kind, window=window)
  read = _read(kind, found['tokens'], garbage, window)
  want = found[f'logits_{window}'], found[f'states_{window}']
  check_drafts(drafter, params, found['tokens'], read, want)


def test_tokens_of_other_groups_may_have_nothing():
  drafter, params = equipped('shared')
  silent, _ = equipped('shared', others_say=False)
  u = jax.random.normal(jax.random.key(0), (16,))
  both = drafter.logits(params[0], u), silent.logits(params[0], u)
  some = np.isfinite(both[1])
  # Five groups of 16, of four tokens each.
  assert some.sum() == 20
  np.testing.assert_array_equal(both[0][some], both[1][some])
  np.testing.assert_allclose(both[0][~some], both[1][some].min() - 1)


def test_a_text_of_one_token_has_nothing_to_look_at():
  drafter, params = equipped('dense')
  model, theirs, _ = verifier('dense')
  cache = model.init_cache(theirs, 8)
  banks = drafter.banks(cache, jnp.int32(1))
  assert not any(bank.seen.any() for bank in banks.values())
  state, logits = drafter.step(
    params, banks, jnp.int32(0), jnp.ones(24), jnp.int32(2)
  )
  assert np.isfinite(state).all()
  assert np.isfinite(logits).all()


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
  'more', [{}, {'drafts': 3, 'verification': 'multi_round'}], ids=['', 'three']
)
def test_greedy_and_strict_is_the_verifier_alone(kind, more):
  alone = cascades.Sampler(verifier(kind), gamma=0, temperature=0.0)
  strict = cascades.Sampler(
    *_folders(kind),
    method='speed',
    lenience=0.0,
    gamma=3,
    temperature=0.0,
    **more,
  )
  want, got = (s.sample(_TEXTS, max_new_tokens=24) for s in (alone, strict))
  assert [a.tokens for a in got] == [a.tokens for a in want]
  # Rows of unlike lengths are what they are alone.
  (one,) = strict.sample(_TEXTS[1:2], max_new_tokens=24)
  assert one.tokens == got[1].tokens
  assert one.counts == got[1].counts


# --- Laws ---

# Rows that are drawn together, and the text before them.
_MANY, _BEFORE = 8192, 11
# Strict, a token's rule, and a position's.
_RULES = ('speed', 0.0), ('token_v3', 0.5), ('opt', 0.1)


def _drawn(
  kind,
  others_say,
  new,
  rules=_RULES,
  *,
  prompt=None,
  window=None,
  temperature=1,
  many=_MANY,
  **scheme,
):
  """Tokens after a prompt, [rules, rows, new], each of so many rows."""
  model, theirs, _ = verifier(kind, window)
  if prompt is None:
    prompt = expected(kind)['tokens'][:_BEFORE]
  before = len(prompt)
  drafter, params = equipped(kind, others_say, window)
  models = decoding.Models(model, drafter)
  drafts = scheme.pop('drafts', 1)
  decoder = decoding.Decoder(
    models,
    exact.one_of([(methods.METHODS[name], at) for name, at in rules]),
    gamma=2,
    scheme=Scheme(**scheme),
    drafts=drafts,
  )
  params = decoding.Params(theirs, params)
  rows = decoding.prefill(
    params,
    prompt[None],
    np.array([before]),
    jax.random.split(jax.random.key(1), 1),
    np.array([before + new]),
    models=models,
    cache_length=before + new + decoder.slack,
  )
  every = jax.tree.map(lambda x: jnp.repeat(x, many, 0), rows.replace(key=()))
  drawn = []
  for i in range(len(rules)):
    # They take the memory of what they are given.
    row = jax.tree.map(jnp.copy, every).replace(
      key=jax.random.split(jax.random.key(i), many),
      lenience=jnp.full(many, i, jnp.float32),
    )
    how = processing.Processing(temperature=np.float32(temperature))
    row, _ = decoding.decode(
      row, params, how, np.array([-1], np.int32), decoder=decoder
    )
    drawn.append(np.asarray(row.tokens[:, before : before + new]))
  return drawn


@functools.cache
def _after(kind):
  """The verifier's probabilities after a prompt, and after one more token."""
  model, params, _ = verifier(kind)
  prompt = jnp.asarray(expected(kind)['tokens'][:_BEFORE])

  def said(tokens):
    positions = jnp.arange(len(tokens))
    mask = positions[None] <= positions[:, None]
    logits, _ = model(params, tokens, positions, mask)
    return jax.nn.softmax(logits[-1])

  more = jnp.arange(model.vocab_size)
  longer = jax.vmap(lambda token: said(jnp.append(prompt, token)))
  return np.asarray(said(prompt)), np.asarray(longer(more))


def _of_first(kind, others_say):
  """q and p of the first token after the prompt."""
  drafter, params = equipped(kind, others_say)
  tokens = expected(kind)['tokens'][:_BEFORE]
  cache, state = _read(kind, tokens)
  banks = drafter.banks(cache, jnp.int32(_BEFORE))
  at, token = jnp.int32(_BEFORE - 1), jnp.asarray(tokens[-1])
  _, logits = drafter.step(params, banks, at, state, token)
  return jax.nn.softmax(logits), jnp.asarray(_after(kind)[0])


def check_laws(kind, others_say, **scheme):
  """The declared law of a block's first token; strictly, of the next one too.

  q hangs on where a block began, so that a cascade's target holds block by
  block.
  """
  with conftest.optimised():
    drawn = _drawn(kind, others_say, 2, **scheme)
  q, p = _of_first(kind, others_say)
  assert np.abs(q - p).max() > 0.005
  for (name, lenience), tokens in zip(_RULES, drawn, strict=True):
    method = methods.METHODS[name]
    law = method.law(methods.Distributions(q, p, q, p), lenience)
    z = exact.z_scores(tokens[:, :1], np.asarray(law))
    assert np.abs(z).max() < 5, name
    if name == 'speed':
      second = _after(kind)[0] @ _after(kind)[1]
      assert np.abs(exact.z_scores(tokens[:, 1:], second)).max() < 5
    else:
      # Another law than the verifier's, which many rows tell apart.
      assert np.abs(exact.z_scores(tokens[:, :1], np.asarray(p))).max() > 5


@pytest.mark.parametrize('others_say', tiers.first([False, True]))
def test_rules_have_their_law_whatever_other_tokens_say(others_say):
  check_laws('shared', others_say)


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
  'scheme',
  [
    dict(verification='token'),
    dict(verification='block'),
    dict(verification='multi_round', drafts=3),
  ],
  ids=lambda x: x['verification'],
)
def test_rules_have_their_law_however_they_are_verified(kind, scheme):
  check_laws(kind, True, **scheme)


@pytest.mark.slow
@pytest.mark.parametrize(('kind', 'window'), [('shared', 6), ('dense', 512)])
def test_strict_beyond_the_window_is_what_transformers_generates(kind, window):
  # Rows of 720 tokens are large: fewer of them.
  found, strict = expected(kind, 'long'), _RULES[:1]
  given = dict(prompt=found['tokens'], window=window, rules=strict)
  greedy = found[f'greedy_{window}']
  (tokens,) = _drawn(kind, True, len(greedy), temperature=0, many=1, **given)
  np.testing.assert_array_equal(tokens[0], greedy)
  (tokens,) = _drawn(kind, True, 1, temperature=0.7, many=1024, **given)
  law = found[f'drawn_from_{window}'][0]
  assert np.abs(exact.z_scores(tokens, law)).max() < 5


# --- Refusals ---


def _refused(kind_of_verifier, folder):
  with pytest.raises(ValueError, match=r'^drafter: ') as error:
    assistants.load(folder).bind(verifier(kind_of_verifier))
  message = str(error.value)
  assert '\n' not in message
  assert message.endswith('.')
  return message


def test_a_verifier_of_another_size_is_refused():
  # Both are as wide; heads for keys are not as many.
  said = _refused('dense', _folders('shared')[1])
  assert 'another verifier (with 1 heads of 8 for keys' in said
  with pytest.raises(ValueError, match=r'another verifier \(a Gemma 4\)'):
    pairing.equip(load_model('tiny-verifier'), _folders('shared')[1])


@pytest.mark.slow
def test_a_verifier_of_a_gguf_is_none_of_its(tmp_path):
  # Such files are of Gemma 2 and 3.
  checkpoints.save_gguf(tmp_path / 'tiny.gguf', load_model('tiny-verifier'))
  with pytest.raises(ValueError, match=r'another verifier \(a Gemma 4\)'):
    cascades.Sampler(str(tmp_path / 'tiny.gguf'), _folders('shared')[1])


@pytest.mark.slow
@pytest.mark.parametrize('others_say', [True, False])
def test_a_sweep_with_an_assistant_ends_with_a_page(
  tmp_path, capsys, others_say
):
  names = dict(zip(('verifier', 'drafter'), _folders('shared'), strict=True))
  fields = dict(names, num_examples=2, batch_size=4, tasks=('numerals',))
  fields |= dict(others_say=others_say, clock=0)
  config = common.sweep(**fields)
  curves = [
    plan.Curve.of(config, name, leniences)
    for name, leniences in (
      *(('verifier_only', ()), ('drafter_only', ())),
      *(('speed', (0.0, 0.5)), ('token_v3', (0.3,))),
    )
  ]
  sweep.run(config, curves, tmp_path)
  said = capsys.readouterr().err
  assert 'cannot answer alone; left out drafter_only' in said
  kept = json.loads((tmp_path / 'config.json').read_text())
  assert kept['others_say'] is others_say
  found = records.read_all(tmp_path)
  assert {record.method for record in found} == {
    *('verifier_only', 'speed', 'token_v3')
  }
  for record in found:
    counts.check(record)
  assert sum(record.accepted for record in found) > 0
  page = (tmp_path / 'report/index.html').read_text()
  assert 'a target holds block by block, and there is no drafter alone' in page


@pytest.mark.parametrize(
  ('field', 'value', 'said'),
  [
    ('backbone_hidden_size', 25, 'asks for (16, 50)'),
    ('num_centroids', 15, 'asks for (15, 16)'),
    ('num_centroids', None, 'num_centroids is None'),
    ('backbone_hidden_size', '16', "backbone_hidden_size is '16'"),
    ('centroid_intermediate_top_k', None, 'centroid_intermediate_top_k is No'),
    ('centroid_intermediate_top_k', 10**6, 'centroid_intermediate_top_k is 1'),
    ('text_config', [1], 'text_config is [1]'),
    ('text_config', {'num_hidden_layers': None}, 'num_hidden_layers is None'),
  ],
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path, field, value, said):
  folder = tmp_path / 'assistant'
  shutil.copytree(_folders('shared')[1], folder)
  file = folder / 'config.json'
  file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
  assert said in _refused('shared', folder)


def test_an_order_that_leaves_tokens_out_is_refused(tmp_path):
  folder = tmp_path / 'assistant'
  shutil.copytree(_folders('shared')[1], folder)
  file = folder / 'model.safetensors'
  tensors = load_file(file)
  tensors['masked_embedding.token_ordering'][0] = 1
  tensors['masked_embedding.token_ordering'][1] = 1
  save_file(tensors, file)
  assert 'not each of them once' in _refused('shared', folder)
  del tensors['model.norm.weight']
  save_file(tensors, file)
  assert 'lacks the tensor model.norm.weight' in _refused('shared', folder)


def test_an_assistant_is_no_model_of_its_own():
  name = _folders('shared')[1]
  assert not pairing.is_model(name)
  with pytest.raises(
    ValueError, match=r'gemma4_assistant.* no model by itself'
  ):
    load_model(name)
  with pytest.raises(ValueError, match='method: drafter_only is the drafter'):
    cascades.Sampler(verifier('shared'), name, method='drafter_only')
  # As is one that is not there.
  with pytest.raises(ValueError, match='fetch google/gemma-4-E2B-it-assistant'):
    cascades.Sampler(verifier('shared'), 'gemma-4-E2B-it-assistant')


def test_what_an_assistant_is_not_asked_for_is_refused():
  pair = verifier('shared'), _folders('shared')[1]
  for options, said in (
    (dict(drafts=2), "'token' looks at one draft"),
    (dict(stop_below=0.5), 'stop_below: only a model that drafts'),
    (dict(beam=True), 'beam: only a recurrent head'),
    (dict(others_say='no'), 'others_say: .* give True or False'),
  ):
    with pytest.raises(ValueError, match=said):
      cascades.Sampler(*pair, **options)
  with pytest.raises(ValueError, match='others_say: only an assistant'):
    cascades.Sampler('tiny-verifier', 'tiny-drafter', others_say=False)
  # Which is told from what was loaded, and passed on.
  silent = cascades.Sampler(*pair, others_say=False)
  assert not silent.equipped.drafter.others_say
