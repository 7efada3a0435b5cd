"""Engines' switches: decisions as in their sources, laws as declared.

The references are NumPy, written from the sources that `presets` names, but for
transformers' own function, whose decisions `fixtures/make_ensemble.py` has.
"""

import functools
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

import cascades
from cascades import methods, presets, verification
from cascades.config import DecodingConfig
from cascades.methods import processing
from experiments.sweeps import curve_plan

_SIZE, _GAMMA, _BLOCKS = 6, 5, 10_000
_ENSEMBLE = np.load(small.FIXTURES / 'ensemble.npz', allow_pickle=False)


@functools.cache
def _blocks(is_greedy=False):
  """Random blocks: zeros, ties, favourites, and drafts of any length."""
  rng = np.random.default_rng(0)
  shape = _BLOCKS, _GAMMA + 1, _SIZE
  logits = (
    rng.normal(size=(2, *shape))
    * rng.choice([0.5, 2, 6], shape[:1])[:, None, None]
  )
  logits[:, : _BLOCKS // 4] = np.round(logits[:, : _BLOCKS // 4])
  logits[rng.random(logits.shape) < 0.15] = -np.inf
  logits[..., 0] = np.maximum(logits[..., 0], 0)
  q, p = gates = np.float32(
    np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  )
  drafts = q[:, :-1].argmax(-1)
  # Half of them are the verifier's favourites, else few are in a row.
  follows = rng.random(drafts.shape) < 0.5
  drafts = np.where(follows, p[:, :-1].argmax(-1), drafts)
  one_hot = np.eye(_SIZE, dtype=np.float32)
  # After the last draft q is unknown.
  q = np.pad(one_hot[drafts], ((0, 0), (0, 1), (0, 0)), mode='edge')
  if is_greedy:
    p = one_hot[p.argmax(-1)]
  lengths = rng.integers(0, _GAMMA + 1, _BLOCKS)
  return methods.Distributions(q, p, *gates), drafts, lengths


def _decide(config, d, drafts, lengths, seed=0):
  """Accepted drafts and next tokens of blocks, and their uniform numbers."""
  gates = (d.q, d.p) if config.gate == 'processed' else d[2:4]
  d = methods.Distributions(d.q, d.p, *gates)
  keys = jax.random.split(jax.random.key(seed), len(drafts))

  @jax.jit
  @jax.vmap
  def verify(key, d, drafts, length):
    inputs = verification.VerificationInputs(
      method=config.method,
      lenience=jnp.float32(config.effective_lenience),
      tokens=drafts[None],
      draft_lengths=length[None],
      has_bonus_probs=jnp.array([False]),
      distributions_at=lambda i, _: jax.tree.map(lambda x: x[i], d),
      config=config.verification_config,
    )
    verdict = verification.verify(inputs, key)
    size = len(drafts) + processing.uniforms_per_token(d.q.shape[-1])
    uniforms = processing.draw_uniforms(key, size)
    return verdict.num_accepted, verdict.next_token, uniforms

  found = jax.device_get(verify(keys, d, drafts, lengths))
  return *found[:2], *np.split(found[2], [drafts.shape[1]], -1)


def _without(p, x):
  return np.where(np.arange(len(p)) == x, 0, p)


def _count(drafts, keeps):
  """Drafts before the first that does not stay."""
  return next((i for i, x in enumerate(drafts) if not keeps(i, x)), len(drafts))


def _fly(u, p, gate, drafts, is_greedy, window=2, entropy=0.6, top_k=3):
  """VLLM's pre-pass and its kernel, of drafts with one-hot q."""
  n, gate = len(drafts), gate if is_greedy else p
  native = [
    x == p[i].argmax() if is_greedy else p[i, x] >= u[i]
    for i, x in enumerate(drafts)
  ]

  def keeps(i, x):
    h = -sum(y * np.log(y) for y in np.sort(gate[i])[-top_k:] if y > 0)
    follows = i + window < n and all(native[i + 1 : i + 1 + window])
    return native[i] or (gate[i, x] > 0 and follows and h >= entropy)

  accepted = _count(drafts, keeps)
  if accepted == n or is_greedy:
    return accepted, p[accepted]
  return accepted, _without(p[accepted], drafts[accepted])


def _relaxed(u, p, gate, drafts, is_greedy, delta=0.3):
  """TensorRT-LLM's kernel; of equal probabilities, all are in the top k."""

  def keeps(i, x):
    *_, least, _, largest = np.sort(gate[i])
    return gate[i, x] >= max(least, largest - np.float32(delta))

  accepted = _count(drafts, keeps)
  return accepted, np.eye(_SIZE)[gate[accepted].argmax()]


def _threshold(u, p, gate, drafts, is_greedy, single=0.6, acc=0.7):
  """SGLang's kernel, of a chain."""
  accepted = _count(
    drafts,
    lambda i, x: u[i] <= p[i, x] / np.float32(acc) or p[i, x] >= single,
  )
  is_whole = accepted == len(drafts)
  rest = p[accepted] if is_whole else _without(p[accepted], drafts[accepted])
  return accepted, rest


def _medusa(u, p, gate, drafts, is_greedy, threshold=0.2):
  """`evaluate_posterior`, of a path, at temperature 1."""

  def keeps(i, x):
    entropy = -sum(y * np.log(y) for y in gate[i] if y > 0)
    return gate[i, x] > min(threshold, threshold**0.5 * np.exp(-entropy))

  accepted = _count(drafts, keeps)
  return accepted, np.eye(_SIZE)[gate[accepted].argmax()]


_CASES = {
  'vllm_fly:window=2,entropy=.6': (_fly, False),
  'vllm_fly:window=1,entropy=.5,top_k=4': (
    functools.partial(_fly, window=1, entropy=0.5, top_k=4),
    False,
  ),
  'vllm_fly:entropy=.6,window=2': (_fly, True),
  'trtllm_relaxed:top_k=3,delta=.3': (_relaxed, True),
  'sglang_threshold:single=.6,acc=.7': (_threshold, False),
  'sglang_threshold:acc=.7,single=.6': (_threshold, True),
  'sglang_threshold': (functools.partial(_threshold, single=1, acc=1), False),
  'medusa_typical:threshold=.2': (_medusa, True),
}


@pytest.mark.parametrize('name', _CASES)
def test_blocks_are_decided_as_by_the_engine(name):
  decide, is_greedy = _CASES[name]
  d, drafts, lengths = _blocks(is_greedy)
  temperature = {'temperature': 0.0} if is_greedy else {}
  config = presets.configure(name, gamma=_GAMMA, **temperature)
  accepted, tokens, u, rest = _decide(config, d, drafts, lengths)
  want, weights = zip(
    *(
      decide(u[i], d.p[i], d.p_gate[i], drafts[i, : lengths[i]], is_greedy)
      for i in range(_BLOCKS)
    ),
    strict=True,
  )
  # A probability at a threshold may be rounded to either side of it.
  same = accepted == want
  assert same.mean() > 0.9995
  draw = jax.vmap(processing.sample_from_uniforms)
  drawn = draw(jnp.asarray(rest), jnp.asarray(weights, jnp.float32))
  assert (drawn == tokens)[same].mean() > 0.9995
  strict = config.replace(lenience=config.method.strict or 0.0)
  less, *_ = _decide(strict, d, drafts, lengths)
  assert ((less < accepted).mean() > 0.03) == (name[0] != 's')


def test_decisions_are_those_of_transformers():
  f = _ENSEMBLE
  q, p = jax.nn.softmax(f['logits'])
  d, drafts = methods.Distributions(q, p, q, p), f['drafts']
  method = presets.transformers_ensemble(0.5).method
  a, residual = (
    jax.vmap(jax.vmap(x, (0, None)))(d, jnp.float32(1 - f['w']))
    for x in (method.acceptance, method.residual)
  )
  kept = np.take_along_axis(np.asarray(a)[:, :-1], drafts[..., None], -1)
  n = np.cumprod(f['uniforms'] <= kept[..., 0], -1).sum(-1)
  np.testing.assert_array_equal(n, f['accepted'])
  rows = np.arange(len(n))
  is_bonus = (n == drafts.shape[1])[:, None]
  weights = np.where(is_bonus, p[rows, n], residual[rows, n])
  np.testing.assert_allclose(weights, f['weights'], atol=2e-5)


def test_greedy_answers_are_those_of_transformers():
  prompts = [f'The number {n} in words:' for n in range(101, 125)]
  for w, want in zip((0.3, 0.6), _ENSEMBLE['greedy'], strict=True):
    config = presets.transformers_ensemble(w, temperature=0.0)
    pair = small.load('tiny-verifier'), small.load('tiny-drafter')
    answers = cascades.Sampler(*pair, config=config).sample(
      prompts, max_new_tokens=24, forbidden_tokens=[1]
    )
    for answer, tokens in zip(answers, want, strict=True):
      # It drafts less where the answer ends.
      assert answer.tokens[:20] == tokens[:20].tolist()


def test_block_verification_is_that_of_engines():
  """VLLM's and SGLang's kernels: the last prefix that passes stays."""
  d, drafts, lengths = _blocks()
  q = 0.5 * (d.q + d.q_gate)
  d = d._replace(q=np.float32(q))
  config = DecodingConfig(method='speed', verification='block')
  accepted, tokens, u, rest = _decide(config, d, drafts, lengths)
  weights = []
  for i, n in enumerate(lengths):
    w, tau, scale = 1.0, 0, 1.0
    for j in range(n):
      x = drafts[i, j]
      w = min(1, w * d.p[i, j, x] / q[i, j, x])
      h = w
      if j + 1 < n:
        mass = np.maximum(0, w * d.p[i, j + 1] - q[i, j + 1]).sum()
        h = mass / (mass + 1 - w) if mass + 1 - w > 0 else 1
      if u[i, j] <= h:
        tau, scale = j + 1, w
    assert tau == accepted[i] or abs(w - scale) < 1e-5, i
    left = np.maximum(0, scale * d.p[i, tau] - q[i, tau])
    weights.append(d.p[i, tau] if tau == n else left)
  draw = jax.vmap(processing.sample_from_uniforms)
  drawn = draw(jnp.asarray(rest), jnp.asarray(weights, jnp.float32))
  assert (drawn == tokens).mean() > 0.999


@pytest.mark.parametrize('name', presets.PRESETS)
def test_a_preset_is_a_name_for_curves_and_flags(name):
  config = presets.PRESETS[name]()
  assert presets.configure(name) == config
  fields = dict(temperature=config.temperature, gamma=4, drafts=1)
  curve = curve_plan.Curve.from_config(fields, name, ())
  assert curve.leniences == (config.lenience,)
  assert curve.config.replace(lenience=config.lenience) == config
  curve = curve_plan.Curve.from_config(fields, name, (0.25, 0.5))
  assert curve.leniences == (0.25, 0.5)
  assert methods.get_method(config.method.name) is config.method
  assert config.draft == ('sample' if 'trans' in name else 'argmax')
  assert config.bonus == 'verifier'
  assert not config.is_lossless or name == 'sglang_threshold'
  # Flags that nobody gave have the defaults of all options.
  flags = {**vars(DecodingConfig()), 'lenience': None}
  del flags['method']
  assert presets.configure(name, **flags | {'temperature': 0.0}).lenience < 1
  if 'top_k=' in str(inspect.signature(presets.PRESETS[name])):
    with pytest.raises(ValueError, match=f'top_k: .* write {name}:top_k=3'):
      presets.configure(name, top_k=5)


def test_numbers_of_a_preset_are_in_the_name_of_its_method():
  # The window is of the curve's gamma.
  name = 'vllm_fly:window=6,top_k=4'
  curve = curve_plan.Curve.from_config({}, name, (), gamma=8)
  assert curve.method == 'entropy_gate-4'
  assert curve.config.verification == 'look_ahead:7'
  for name in 'entropy_gate-4', 'relaxed_top-3', 'accept_threshold-0.5':
    method = methods.get_method(name)
    assert (method.name, pickle.loads(pickle.dumps(method))) == (name, method)
  for name in 'entropy_gate-x', 'opt-4', 'entropy_gate-':
    with pytest.raises(ValueError, match='is not known'):
      methods.get_method(name)


@pytest.mark.parametrize(
  ('name', 'options', 'message'),
  [
    ('vllm_fly:window=4', dict(gamma=4), 'window: must be 3 or less'),
    ('vllm_fly:window=0', {}, 'window: must be 1 or more'),
    ('vllm_fly', dict(gamma=1), 'gamma: must be 2 or more'),
    ('vllm_fly:entropy=-1', {}, 'entropy: must be a number from 0'),
    ('vllm_fly:top_k=0', {}, 'top_k: must be 1 or more'),
    ('vllm_fly:size=3', {}, "method: 'vllm_fly:size=3' is not known; write"),
    ('vllm_fly:window', {}, "method: 'vllm_fly:window' is not known; write"),
    ('vllm_fly', dict(draft='sample', bonus='x'), 'bonus: is .verifier. in'),
    ('vllm_fly', dict(verification='block'), 'verification: is .look_ahead:4'),
    ('vllm_fly', dict(drafts=2), 'drafts: is 1 in this engine, got 2'),
    ('transformers_ensemble:w=0', {}, 'w: must be a number from'),
    ('trtllm_relaxed:delta=2', {}, 'delta: must be a number from 0 to 1'),
    ('trtllm_relaxed', dict(temperature=0.7), r'temperature: is 0\.0 in this'),
    ('sglang_threshold:acc=-1', {}, 'acc: must be a number from 0 to 1'),
    ('medusa_typical:threshold=2', {}, 'threshold: must be a number from 0'),
    (
      'undecided',
      dict(verification='look_ahead:3'),
      'is not the gate of FLy; take',
    ),
  ],
)
def test_what_no_engine_does_is_refused(name, options, message):
  with pytest.raises(ValueError, match=message):
    presets.configure(name, **options)
