"""Gemma 4's assistants: what transformers says of them, and the law.

The fixtures were made by transformers (see make_assistant_fixtures.py there):
verifiers with layers that share caches, with keys that are values, and with a
mixture of experts, and an assistant for each. Both models are also compared
after a text of 720 tokens, with a window of 6 and one of 512.
"""

import dataclasses
import functools
import pathlib
import shutil

import conftest
import counts
import jax
import jax.numpy as jnp
import many_methods
import numpy as np
import pytest
import small
import tiers
from fixtures import gguf_writer

import cascades
from cascades import decoding, drafters, load_model, methods
from cascades.drafters import assistant
from cascades.methods import processing
from cascades.models import language
from cascades.proof import sampled
from configs import common
from experiments import records, sweep
from experiments.sweeps import curve_plan

FIXTURES = pathlib.Path(__file__).parent / 'fixtures'


def _folders(kind) -> tuple[str, str]:
  verifier = FIXTURES / f'hf_gemma4_{kind}'
  return str(verifier), f'{verifier}_assistant'


@functools.cache
def verifier(kind, window=None):
  found = load_model(_folders(kind)[0])
  if window is None:
    return found
  file = pathlib.Path(_folders(kind)[0], 'config.json')
  config = small.read_json(file) | {'sliding_window': window}
  model = language.from_config(config)
  return found.unpack()._replace(
    model=dataclasses.replace(model, vocab_size=found.model.vocab_size)
  )


@functools.cache
def bound_drafter(kind, fill_unselected_logits=True, window=None):
  found = assistant.Assistant.load(_folders(kind)[1])
  if window is not None:
    found = found.replace(
      text=found.text.model_copy(update={'sliding_window': window})
    )
  found = found.replace(fill_unselected_logits=fill_unselected_logits)
  return found.bind(verifier(kind, window))


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


@functools.cache
def _step(drafter):
  return jax.jit(drafter.step)


# What was rejected lies beyond the text, and is not looked at.
_REJECTED = 5, 6, 7
_CASES = [(4, (), None), (20, _REJECTED, None)]
_CASES += [(720, _REJECTED, window) for window in (6, 512)]


@pytest.mark.parametrize('kind', ['shared', 'dense', 'experts'])
@pytest.mark.parametrize(
  ('length', 'garbage', 'window'), tiers.first(_CASES, 2)
)
def test_drafts_are_transformers(kind, length, garbage, window):
  # Three steps, greedily, and what each token would be drawn from at .7.
  found = expected(kind, 'long' if window else 'expected')
  tokens = found['tokens'][:length]
  cache, state = _read(kind, tokens, garbage, window)
  drafter, params = bound_drafter(kind, window=window)
  token = jnp.asarray(tokens[-1])
  views, step = drafter.views(cache, jnp.int32(length)), _step(drafter)
  warm = processing.SamplingParams(temperature=np.float32(0.7))
  key = window or length
  want = found[f'logits_{key}'], found[f'states_{key}']
  for said, after in zip(*want, strict=True):
    state, logits = step(params, views, jnp.int32(length - 1), state, token)
    np.testing.assert_allclose(logits, said, rtol=0, atol=1e-5)
    np.testing.assert_allclose(state, after, rtol=0, atol=1e-5)
    drawn_from = np.exp(np.float64(said) / 0.7)
    drawn_from /= drawn_from.sum()
    got = processing.processed_probs(logits, warm)
    np.testing.assert_allclose(got, drawn_from, rtol=0, atol=2e-6)
    token = jnp.argmax(logits)


def test_tokens_of_other_groups_may_have_nothing():
  drafter, params = bound_drafter('shared')
  silent, _ = bound_drafter('shared', fill_unselected_logits=False)
  u = jax.random.normal(jax.random.key(0), (16,))
  both = drafter.logits(params[0], u), silent.logits(params[0], u)
  some = np.isfinite(both[1])
  # Five groups of 16, of four tokens each.
  assert some.sum() == 20
  np.testing.assert_array_equal(both[0][some], both[1][some])
  np.testing.assert_allclose(both[0][~some], both[1][some].min() - 1)


def test_a_text_of_one_token_has_nothing_to_look_at():
  drafter, params = bound_drafter('dense')
  model, theirs, _ = verifier('dense')
  results = []
  for slots, filled in (8, jnp.zeros_like), (16, jnp.ones_like):
    cache = jax.tree.map(filled, model.init_cache(theirs, slots))
    views = drafter.views(cache, jnp.int32(1))
    assert not any(view.is_visible.any() for view in views.values())
    token = jnp.ones(24), jnp.int32(2)
    results.append(drafter.step(params, views, jnp.int32(0), *token))
  assert all(np.isfinite(x).all() for x in results[0])
  # Nor has what lies behind it, and how far that goes, a part in it.
  small.same(*results)


# --- Laws ---

# Rows that are drawn together, and the text before them.
_MANY, _BEFORE = 8192, 11
# Strict, a token's rule, and a position's.
_RULES = ('speed', 0.0), ('token_v3', 0.5), ('opt', 0.1)
_PLAIN = processing.SamplingParams(temperature=np.float32(1))
# Of 64 tokens; the two models drop different ones.
_TRUNCATED = processing.SamplingParams(
  temperature=np.float32(1.2), top_k=np.int32(50)
)


@functools.cache
def _after(kind):
  """The verifier's logits after a prompt, and after one more token."""
  model, params, _ = verifier(kind)
  prompt = jnp.asarray(expected(kind)['tokens'][:_BEFORE])

  def said(tokens):
    return model(params, tokens, *small.causal(len(tokens)))[0][-1]

  more = jnp.arange(model.vocab_size)
  return said(prompt), jax.vmap(lambda x: said(jnp.append(prompt, x)))(more)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'fill_unselected_logits', 'sampling', 'config'),
  [
    ('shared', False, _PLAIN, {}),
    ('experts', True, _PLAIN, {}),
    ('dense', True, _PLAIN, dict(verification='block')),
    ('dense', True, _TRUNCATED, {}),
    ('shared', True, _PLAIN, dict(verification='multi_round', drafts=3)),
  ],
)
def test_rules_have_their_law(kind, fill_unselected_logits, sampling, config):
  # q hangs on where a block began, so that a cascade's target holds block by
  # block: of a block's first token, and strictly of the next one too.
  rules = [(methods.METHODS[name], at) for name, at in _RULES]
  drafts = drafter, params = bound_drafter(kind, fill_unselected_logits)
  prompt = expected(kind)['tokens'][:_BEFORE]
  cache, state = _read(kind, prompt)
  views = drafter.views(cache, jnp.int32(_BEFORE))
  at, token = jnp.int32(_BEFORE - 1), jnp.asarray(prompt[-1])
  _, logits = drafter.step(params, views, at, state, token)
  d = decoding.distributions(logits, _after(kind)[0], sampling)
  assert np.abs(d.q - d.p).max() > 0.005
  assert sampling is _PLAIN or ((d.q == 0) != (d.p == 0)).any()
  for i, (method, lenience) in enumerate(rules):
    with conftest.optimised():
      tokens = small.continued(
        *(verifier(kind), drafts, prompt, 2),
        many_methods.from_functions(rules),
        **dict(gamma=2, rows=_MANY, seed=i, lenience=i, sampling=sampling),
        **config,
      )
    z = sampled.z_scores(tokens[:, :1], np.asarray(method.law(d, lenience)))
    assert np.abs(z).max() < 5, method.name
    if method.name == 'speed':
      # Both tokens follow the verifier's law.
      first, then = (
        np.asarray(jax.vmap(processing.processed_probs, (0, None))(x, sampling))
        for x in (_after(kind)[0][None], _after(kind)[1])
      )
      law = first[0][:, None] * then
      assert np.abs(sampled.z_scores(tokens, law)).max() < 5
    else:
      # Another law than the verifier's, which many rows tell apart.
      assert np.abs(sampled.z_scores(tokens[:, :1], np.asarray(d.p))).max() > 5


@pytest.mark.slow
@pytest.mark.parametrize(('kind', 'window'), [('shared', 6), ('dense', 512)])
def test_strict_beyond_the_window_is_what_transformers_generates(kind, window):
  found = expected(kind, 'long')
  small.check_continued(
    verifier(kind, window),
    bound_drafter(kind, window=window),
    found['tokens'],
    found[f'greedy_{window}'],
    found[f'drawn_from_{window}'][0],
  )


# --- Refusals ---


def _refused(verifier, folder):
  return conftest.refused(
    'drafter', drafters.bind_drafter, verifier, str(folder)
  )


def test_a_verifier_of_another_size_is_refused(tmp_path):
  # Both are as wide; heads for keys are not as many.
  said = _refused(verifier('dense'), _folders('shared')[1])
  assert 'another verifier (key heads (' in said
  # Files of GGUF are of Gemma 2 and 3.
  file = tmp_path / 'tiny.gguf'
  gguf_writer.save_gguf(file, load_model('tiny-drafter'))
  for name in 'tiny-verifier', file:
    said = _refused(load_model(name), _folders('shared')[1])
    assert 'another verifier (Gemma 4: True, not False)' in said


@pytest.mark.slow
@pytest.mark.usefixtures('few_shapes')
def test_a_sweep_with_an_assistant_ends_with_a_page(tmp_path):
  names = dict(zip(('verifier', 'drafter'), _folders('shared'), strict=True))
  fields = dict(num_examples=2, batch_size=4, tasks=('numerals',), clock=0)
  config = common.sweep(**names, **fields, fill_unselected_logits=False)
  curves = [
    curve_plan.Curve.from_config(config, name, leniences)
    for name, leniences in (('verifier_only', ()), ('speed', (0.0, 0.5)))
  ]
  sweep.run(config, curves, tmp_path)
  kept = small.read_json(tmp_path / 'config.json')
  assert kept['fill_unselected_logits'] is False
  found = records.read_all(tmp_path)
  for record in found:
    counts.check(record)
  assert sum(record.accepted for record in found) > 0
  page = (tmp_path / 'report/index.html').read_text()
  sentence = 'the target holds for each block, and there is no drafter alone'
  assert sentence in page


_ORDER, _NORM = 'masked_embedding.token_ordering', 'model.norm.weight'
_LAYERS = {'num_hidden_layers': None}


@pytest.mark.parametrize(
  ('fields', 'tensors', 'said'),
  [
    ({'backbone_hidden_size': 25}, {}, 'implies (16, 50)'),
    ({'num_centroids': 15}, {}, 'implies (15, 16)'),
    ({'num_centroids': None}, {}, 'num_centroids must'),
    ({'centroid_intermediate_top_k': None}, {}, 'intermediate_top_k must'),
    ({'centroid_intermediate_top_k': 10**6}, {}, 'intermediate_top_k must'),
    ({'text_config': [1]}, {}, 'text_config must'),
    ({'text_config': _LAYERS}, {}, 'num_hidden_layers must'),
    # An order that leaves tokens out.
    ({}, {_ORDER: np.zeros(64, np.int64)}, 'must have each of 64 tokens once'),
    ({}, {_ORDER: np.zeros(64)}, 'has the type F64, and ids must be'),
    ({}, {_NORM: np.ones(16, np.int64)}, 'is quantised (I64)'),
    ({}, {_NORM: None}, 'lacks the tensor model.norm.weight'),
  ],
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path, fields, tensors, said):
  folder = tmp_path / 'assistant'
  shutil.copytree(_folders('shared')[1], folder)
  small.rewrite(folder, fields, tensors)
  assert said in _refused(verifier('shared'), folder)


def test_an_assistant_is_no_model_of_its_own():
  name = _folders('shared')[1]
  head = str(FIXTURES / 'eagle3_apart')
  for folder, kind in (name, 'gemma4_assistant'), (head, 'eagle3'):
    assert not drafters.kind_of(folder).is_language_model
    with pytest.raises(ValueError, match=f'{kind}.* not a model that decodes'):
      load_model(folder)
  with pytest.raises(
    ValueError, match='method: drafter_only decodes with the drafter'
  ):
    small.sampler(verifier('shared'), name, method='drafter_only')
  # A published one is that of the hub, which no test reaches.
  published = 'gemma-4-E2B-it-assistant'
  for name in (published, f'{published}@main', f'google/{published}'):
    with pytest.raises(ValueError, match=f'google/{published}.* is no'):
      cascades.Sampler(verifier('shared'), name)


@pytest.mark.slow
def test_an_assistant_may_have_another_dtype_than_its_verifier():
  whole, name = _folders('shared')
  pair = load_model(whole, 'bfloat16'), drafters.load(name, 'float32')
  assert small.sampler(*pair).sample('a', max_new_tokens=4).counts['drafted']


@pytest.mark.usefixtures('wrong_types')
def test_what_an_assistant_is_not_asked_for_is_refused():
  pair = verifier('shared'), _folders('shared')[1]
  with pytest.raises(ValueError, match='fill_unselected_logits: '):
    small.sampler(*pair, fill_unselected_logits='no')
  # Which is told from what was loaded, and passed on.
  silent = small.sampler(*pair, fill_unselected_logits=False)
  assert not silent.bound_drafter.drafter.fill_unselected_logits
