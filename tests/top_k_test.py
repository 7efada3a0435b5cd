"""The sampled law under top-k truncation, for every drafter.

With 64 tokens and top_k=50 some tokens of each row are dropped, others than the
drafter drops: what it draws must come from its own truncated row, and what
comes out must follow the verifier's.
"""

import pathlib

import assistants_test
import conftest
import eagle_test
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascades import decoding, drafters, methods, verification
from cascades.contrib.chains import chain_drafter as chain
from cascades.drafters import pairing, recurrent, speculators
from cascades.methods import processing
from cascades.proof import exact

pytestmark = pytest.mark.slow

_V, _K, _GAMMA, _NEW, _ROWS = 64, 50, 3, 2, 20_480
_MODEL = exact.TableModel(_V)
_PROMPT = (1, 2, 3)
_VERIFIER, _DRAFTER, _SMALL = (
  np.asarray(_MODEL.init_params(jax.random.key(i))) for i in range(3)
)
# Its favourites are the verifier's now and then.
_NEAR = 0.5 * (_DRAFTER + _VERIFIER)
_HOW = processing.Processing(
  temperature=np.float32(1.2), top_k=np.int32(_K), top_p=np.float32(1)
)


def _head(folder: pathlib.Path) -> drafters.Equipped:
  """An EAGLE-3 head of a table, which says every second token."""
  eagle_test.write_head(
    folder, _V, _V, [*range(0, _V, 2), _V - 1], taps=(1, 2, 4), seed=3
  )
  loaded = speculators.load(folder)
  layer = loaded.config['transformer_layer_config']
  drafter = drafters.EagleDrafter(
    _MODEL, (1, 2, 4), layer['rope_theta'], layer['rms_norm_eps']
  )
  return drafters.Equipped(drafter, (loaded.params, _VERIFIER))


def _equipped(name: str, folder: pathlib.Path) -> drafters.Equipped:
  model = drafters.ModelDrafter(_MODEL)
  of_head = recurrent.init_head(jax.random.key(4), _V), _VERIFIER
  if name == 'eagle':
    return _head(folder / 'head')
  if name == 'chain':
    small = drafters.Equipped(model, _SMALL)
    method = methods.METHODS['token_v3']
    return chain.chain(_MODEL, _NEAR, small, method, 0.4, 2)
  return drafters.Equipped(
    *{
      'model': (model, _NEAR),
      'stops': (
        drafters.ModelDrafter(_MODEL, adaptive=True),
        (_NEAR, jnp.float32(0.3)),
      ),
      'ngram': (drafters.NgramDrafter(3, 1), ()),
      'recurrent': (drafters.RecurrentDrafter(_MODEL), of_head),
      'beam': (drafters.RecurrentDrafter(_MODEL, beam=True), of_head),
    }[name]
  )


def _decoded(equipped, kind, drafts, lenience):
  """The first tokens of many rows."""
  decoder = decoding.Decoder(
    decoding.Models(_MODEL, equipped.drafter),
    methods.METHODS['token_v3'],
    _GAMMA,
    verification.Scheme(kind),
    drafts,
  )
  keys = jax.random.split(jax.random.key(5), _ROWS)
  asked = exact.Asked([_PROMPT] * _ROWS, keys, [lenience], _NEW)
  with conftest.optimised():
    rows = exact.decode_curve(
      decoder, (_VERIFIER, equipped.params), asked, _HOW
    )
  return rows.tokens[:, 0, len(_PROMPT) :][:, :_NEW]


def _law(lenience):
  """What token_v3 declares for a drafter that is a table."""
  d = exact.table_distributions(_VERIFIER, _NEAR, _HOW)
  method = methods.METHODS['token_v3']
  table = exact.Table.of([(method, lenience)], d)
  # The two models drop different tokens.
  dropped = table.q[..., :] == 0, table.p == 0
  assert all((x.sum(-1) == _V - _K).all() for x in dropped)
  assert (dropped[0] != dropped[1]).any(-1).all()
  return exact.declared_law(table, _MODEL, _PROMPT, _NEW)[0]


_ONE_DRAFT = 'model', 'stops', 'ngram', 'recurrent', 'eagle', 'chain'


@pytest.mark.parametrize(
  ('name', 'kind', 'drafts'),
  [
    *((name, 'token', 1) for name in _ONE_DRAFT),
    *((name, 'block', 1) for name in ('model', 'eagle')),
    *(('model', kind, 2) for kind in verification.SEVERAL),
    *(('recurrent', 'multi_round', 2), ('beam', 'match', 2)),
  ],
)
def test_strict_decoding_follows_the_truncated_verifier(
  name, kind, drafts, tmp_path
):
  strict = methods.METHODS['token_v3'].strict
  tokens = _decoded(_equipped(name, tmp_path), kind, drafts, strict)
  z = exact.z_scores(tokens, _law(strict))
  assert np.abs(z).max() < 5


@pytest.mark.parametrize('name', ['model', 'stops'])
def test_a_cascade_follows_its_truncated_law(name, tmp_path):
  tokens = _decoded(_equipped(name, tmp_path), 'token', 1, 0.5)
  z, other = (exact.z_scores(tokens, _law(x)) for x in (0.5, -1.0))
  assert np.abs(z).max() < 5 < np.abs(other).max()


# --- Drafters that look at a Gemma's cache ---


def _of_gemma(equipped, rows):
  """The first two tokens of many rows of a small random Gemma 4, strictly."""
  model, params, _ = assistants_test.verifier('dense')
  prompt = assistants_test.expected('dense')['tokens'][:11]
  decoder = decoding.Decoder(
    decoding.Models(model, equipped.drafter), methods.METHODS['speed'], 2
  )
  with conftest.optimised():
    found = exact.decode_curve(
      decoder,
      (params, equipped.params),
      exact.Asked(
        [prompt.tolist()] * rows,
        jax.random.split(jax.random.key(7), rows),
        [0.0],
        _NEW,
      ),
      _HOW,
    )
  return found.tokens[:, 0, len(prompt) :][:, :_NEW]


def _after(tokens):
  """The verifier's truncated probabilities after some texts, [..., V]."""
  model, params, _ = assistants_test.verifier('dense')

  def one(tokens):
    positions = jnp.arange(len(tokens))
    mask = positions[None] <= positions[:, None]
    logits, _ = model(params, tokens, positions, mask)
    return processing.probabilities(logits[-1], _HOW)

  return np.asarray(jax.vmap(one)(tokens))


@pytest.mark.parametrize('name', ['assistant', 'self:1'])
def test_drafters_in_the_verifiers_cache_keep_the_truncated_law(name):
  loaded = assistants_test.verifier('dense')
  if name == 'assistant':
    equipped = assistants_test.equipped('dense')
  else:
    equipped = pairing.equip(loaded, name)
  tokens = _of_gemma(equipped, 4096)
  prompt = jnp.asarray(assistants_test.expected('dense')['tokens'][:11])
  size = loaded.model.vocab_size
  first = _after(prompt[None])[0]
  assert 0 < (first == 0).sum() == size - _K
  longer = jnp.concatenate(
    [jnp.tile(prompt, (size, 1)), jnp.arange(size)[:, None]], 1
  )
  law = first[:, None] * _after(longer)
  assert np.abs(exact.z_scores(tokens, law)).max() < 5
